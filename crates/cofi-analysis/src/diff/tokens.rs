//! Numbers for instructions: two instructions of two recordings have the same one if they are the same, as far as they are compared.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use cofi_image::{CodeFile, Place};
use cofi_packet::{ExecMode, Ip};
use rustc_hash::FxHashMap;

use super::Level;
use super::feed::BlockAt;
use super::files::{FileMatches, FunctionTable, How, Role};
use crate::functions::saved_piece;

/// What is not compared.
pub(super) const INVISIBLE: u32 = 0;

/// Instructions with this bit are one step, as long as they follow each other.
const STEP: u32 = 1 << 31;

/// Whether a token that comes behind the same token adds nothing.
pub(super) const fn is_step(token: u32) -> bool {
    token & STEP != 0
}

/// What tells instructions apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// File and offset.
    Offset(u32, u64),
    /// Function, and how far into it.
    Within(u32, u64),
    /// Function, name of the source file (none: that of the function), and line, from the function's on.
    Line(u32, Option<String>, i64),
    Function(u32),
    /// Code of a file that is of no function.
    Rest(u32),
    /// Generated code: the function's name, and how far into it.
    Generated(Rc<str>, u64),
    /// Generated code without a name: what of the instruction does not depend on where it stands.
    Bytes(u8, [u8; 15]),
    /// No file is known.
    Address(u64),
}

/// A block's tokens, one an instruction.
pub(super) type Content = Rc<[u32]>;

/// The instructions of both recordings.
#[derive(Debug)]
pub(super) struct Tokens<'m> {
    files: &'m mut FileMatches,
    numbers: FxHashMap<Key, u32>,
    contents: Vec<Content>,
    /// How many instructions of each are not compared.
    left_out: Vec<u32>,
    known: FxHashMap<Content, u32>,
    /// Paths, by the contents of their blocks, and how many instructions of each are not compared.
    paths: FxHashMap<Box<[u32]>, u32>,
    path_left_out: Vec<u32>,
    /// By where the file is in memory, which is kept so long.
    roles: [HashMap<usize, (Arc<CodeFile>, Role)>; 2],
    /// The names of generated code.
    names: HashMap<String, Rc<str>>,
    /// Code without name and file was compared.
    pub(super) by_bytes: u64,
}

impl<'m> Tokens<'m> {
    pub(super) fn new(files: &'m mut FileMatches) -> Self {
        Self {
            files,
            numbers: FxHashMap::default(),
            contents: Vec::new(),
            left_out: Vec::new(),
            known: FxHashMap::default(),
            paths: FxHashMap::default(),
            path_left_out: Vec::new(),
            roles: [HashMap::new(), HashMap::new()],
            names: HashMap::new(),
            by_bytes: 0,
        }
    }

    pub(super) const fn level(&self) -> Level {
        self.files.level
    }

    pub(super) fn content(&self, number: u32) -> &[u32] {
        self.contents
            .get(number as usize)
            .map_or(&[], |content| content)
    }

    /// The number of what a block is made of.
    pub(super) fn define(&mut self, side: usize, block: &BlockAt) -> u32 {
        let mut tokens = Vec::with_capacity(block.lens.len());
        for (index, run) in block.runs.iter().enumerate() {
            let end = block
                .runs
                .get(index + 1)
                .map_or(block.lens.len(), |next| next.first as usize);
            let lens = block.lens.get(run.first as usize..end).unwrap_or_default();
            let mut done = 0;
            for len in lens {
                let ip = Ip(run.ip.0.wrapping_add(done));
                let place = run.place.as_ref().map(|place| place.forward(done));
                tokens.push(self.token(side, place.as_ref(), (ip, *len, run.mode)));
                done += u64::from(*len);
            }
        }
        let tokens: Content = tokens.into();
        let next = self.contents.len() as u32;
        let number = *self.known.entry(tokens.clone()).or_insert(next);
        if number == next {
            let left_out = tokens.iter().filter(|token| **token == INVISIBLE);
            self.left_out.push(left_out.count() as u32);
            self.contents.push(tokens);
        }
        number
    }

    /// How many instructions of a content are not compared.
    pub(super) fn left_out(&self, content: u32) -> u32 {
        self.left_out.get(content as usize).copied().unwrap_or(0)
    }

    /// The number of a path of blocks with these contents.
    pub(super) fn define_path(&mut self, contents: Vec<u32>) -> u32 {
        let next = self.path_left_out.len() as u32;
        let left_out = contents.iter().map(|content| self.left_out(*content)).sum();
        let number = *self.paths.entry(contents.into()).or_insert(next);
        if number == next {
            self.path_left_out.push(left_out);
        }
        number
    }

    /// How many instructions of a path are not compared.
    #[inline]
    pub(super) fn path_left_out(&self, path: u32) -> u32 {
        self.path_left_out.get(path as usize).copied().unwrap_or(0)
    }

    fn number(&mut self, key: Key) -> u32 {
        let step = match key {
            Key::Line(..) | Key::Function(_) | Key::Rest(_) => STEP,
            _ => 0,
        };
        let next = self.numbers.len() as u32 + 1;
        *self.numbers.entry(key).or_insert(next | step)
    }

    fn token(&mut self, side: usize, place: Option<&Place>, insn: (Ip, u8, ExecMode)) -> u32 {
        let Some(place) = place else {
            return self.number(Key::Address(insn.0.0));
        };
        let role = self.role(side, &place.file);
        match role {
            Role::LeftOut => INVISIBLE,
            _ if saved_piece(place.file.path()).is_some() && place.file.segments().is_empty() => {
                self.generated(place, insn)
            }
            Role::Exact(file) => {
                // Generated code that has a name is a file of its own, of each process.
                match place.symbol().filter(|_| place.file.segments().is_empty()) {
                    Some(_) => self.generated(place, insn),
                    None => self.number(Key::Offset(file, place.offset)),
                }
            }
            Role::Functions(table) => self.in_table(&table, place),
        }
    }

    fn role(&mut self, side: usize, file: &Arc<CodeFile>) -> Role {
        let Self { files, roles, .. } = self;
        let Some(roles) = roles.get_mut(side) else {
            return Role::LeftOut;
        };
        let entry = roles.entry(Arc::as_ptr(file).addr());
        let (_, role) = entry.or_insert_with(|| (file.clone(), files.role(side, file)));
        role.clone()
    }

    fn generated(&mut self, place: &Place, (_, len, _): (Ip, u8, ExecMode)) -> u32 {
        if let Some(symbol) = place.symbol() {
            let name = match self.names.get(symbol.name) {
                Some(name) => name.clone(),
                None => {
                    let name: Rc<str> = symbol.name.into();
                    self.names.insert(symbol.name.to_owned(), name.clone());
                    name
                }
            };
            return self.number(Key::Generated(name, symbol.offset));
        }
        if self.files.level == Level::Functions {
            return INVISIBLE;
        }
        self.by_bytes += 1;
        let mut bytes = [0; 15];
        let len = len.min(15);
        let read = place
            .file
            .read_at(place.offset, &mut bytes[..usize::from(len)]);
        let bytes = without_addresses(bytes, read.min(len.into()));
        self.number(Key::Bytes(len, bytes))
    }

    fn in_table(&mut self, table: &FunctionTable, place: &Place) -> u32 {
        let symbol = place.symbol();
        let function = symbol.and_then(|_| table.at(place.offset));
        let Some(function) = function else {
            return match table.keeps_others {
                true => self.number(Key::Rest(table.file)),
                false => INVISIBLE,
            };
        };
        match function.how {
            How::Whole => self.number(Key::Function(function.number)),
            How::Offset => {
                let within = place.offset.wrapping_sub(function.start);
                self.number(Key::Within(function.number, within))
            }
            How::Line(declared) => {
                let row = place.file.address_of_offset(place.offset);
                let lines = table.lines.as_ref();
                let row = row.and_then(|address| lines?.at(address));
                let Some(row) = row.filter(|row| row.line != 0) else {
                    return INVISIBLE;
                };
                let line = i64::from(row.line);
                let key = match declared {
                    Some((file, first)) if file == row.file => {
                        Key::Line(function.number, None, line - i64::from(first))
                    }
                    _ => {
                        let files = lines.map(cofi_image::LineTable::files);
                        let file = files.and_then(|files| files.get(row.file as usize));
                        // Another build may have been made in another folder.
                        let file = file.and_then(|file| file.rsplit('/').next());
                        Key::Line(function.number, file.map(str::to_owned), line)
                    }
                };
                self.number(key)
            }
        }
    }
}

/// The bytes of an instruction without those that may hold addresses: four at the end, or the eight of a MOV of 64 bits.
fn without_addresses(mut bytes: [u8; 15], len: usize) -> [u8; 15] {
    let is_long = len == 10 && bytes[0] & 0xf8 == 0x48 && bytes[1] & 0xf8 == 0xb8;
    let from = match len {
        _ if is_long => 2,
        5.. => len - 4,
        _ => len,
    };
    bytes[from..].fill(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_generated_code() {
        let of = |bytes: &[u8]| {
            let mut all = [0; 15];
            all[..bytes.len()].copy_from_slice(bytes);
            without_addresses(all, bytes.len())[..bytes.len()].to_vec()
        };
        // call, movabs, jne of 8 bits, jne of 32 bits
        assert_eq!(of(&[0xe8, 1, 2, 3, 4]), [0xe8, 0, 0, 0, 0]);
        assert_eq!(
            of(&[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8]),
            [0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(of(&[0x75, 9]), [0x75, 9]);
        assert_eq!(of(&[0x0f, 0x85, 1, 2, 3, 4]), [0x0f, 0x85, 0, 0, 0, 0]);
    }
}
