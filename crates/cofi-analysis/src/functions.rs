//! The functions that ran, each once however its code is laid out.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofi_image::{CodeFile, Place};
use cofi_insn::advance;
use cofi_packet::{ExecMode, Ip};
use cofi_session::compact;

use crate::summary::{FileCount, FunctionCount};

/// A function, as told from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) enum FunctionKey {
    /// What it belongs to, and its first address there.
    At(
        #[serde(with = "crate::path_bytes::optional")] Option<PathBuf>,
        Option<u64>,
    ),
    /// Of code that a process generated, wherever its pieces are: what it belongs to, and its name.
    Generated(#[serde(with = "crate::path_bytes")] PathBuf, String),
    /// Code that a process generated and did not name: the process, and where.
    Unnamed(u32, u64),
    /// A function where it was inlined in code that belongs to this: its name.
    Inlined(#[serde(with = "crate::path_bytes")] PathBuf, String),
}

/// What generated code belongs to, as [`FunctionCount::file`] has it.
const GENERATED: &str = "[generated]";

/// Pieces of generated code that are no further apart are taken for those of one mapping, whose code was saved where it ran.
const APART: u64 = 1 << 16;

/// The process and the address that the recorder's name for a saved piece of code tells: `FILE.code/NUMBER-PID-ADDRESS.code`.
pub(crate) fn saved_piece(path: &Path) -> Option<(u32, u64)> {
    let folder = path.parent()?.extension()?;
    if folder != "code" || path.extension()? != "code" {
        return None;
    }
    let mut words = path.file_stem()?.to_str()?.split('-').skip(1);
    let pid = words.next()?.parse().ok()?;
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    Some((pid, address))
}

/// The functions seen.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    numbers: HashMap<FunctionKey, usize>,
    list: Vec<(FunctionKey, FunctionCount)>,
    /// The file looked at last, since code stays in one for long.
    last: Option<(Arc<CodeFile>, Option<u64>, usize)>,
    /// Stubs of the procedure linkage table are functions, too. Who reconstructs calls must not take them for any.
    with_stubs: bool,
}

impl Functions {
    /// As [`default`](Self::default), with a function for each stub of the procedure linkage table.
    pub(crate) fn with_stubs() -> Self {
        Self {
            with_stubs: true,
            ..Self::default()
        }
    }

    /// The functions in which the instructions of a run lie.
    pub(crate) fn parts(
        &mut self,
        mut ip: Ip,
        lens: &[u8],
        mode: ExecMode,
        mut place: impl FnMut(Ip) -> Option<Place>,
    ) -> Vec<(usize, u32, bool)> {
        let mut parts: Vec<(usize, u32, bool)> = Vec::new();
        for len in lens {
            let (function, first) = self.function(place(ip).as_ref());
            match parts.last_mut() {
                Some((last, count, _)) if *last == function && !first => *count += 1,
                _ => parts.push((function, 1, first)),
            }
            ip = advance(ip, *len, mode);
        }
        parts
    }

    /// The function there, and whether this is its first instruction.
    pub(crate) fn function(&mut self, place: Option<&Place>) -> (usize, bool) {
        let symbol = place.and_then(match self.with_stubs {
            true => Place::symbol_or_stub,
            false => Place::symbol,
        });
        let start = symbol.map(|symbol| symbol.start);
        let first = symbol.is_some_and(|symbol| symbol.offset == 0);
        if let (Some(place), Some((file, address, function))) = (place, &self.last)
            && Arc::ptr_eq(file, &place.file)
            && *address == start
        {
            return (*function, first);
        }
        let path = place.map(|place| place.owner().to_owned());
        // What the kernel's own list names keeps its place: different functions of it share names.
        let is_elf = place.is_none_or(|place| {
            !place.file.segments().is_empty() || place.owner() != place.file.path()
        });
        let piece = path.as_deref().filter(|_| !is_elf).and_then(saved_piece);
        let key = match (&path, symbol, piece) {
            (Some(path), Some(symbol), piece) if !is_elf => {
                let owner = piece.map_or_else(|| path.clone(), |_| GENERATED.into());
                FunctionKey::Generated(owner, symbol.name.to_owned())
            }
            (_, None, Some((pid, address))) => FunctionKey::Unnamed(pid, address),
            _ => FunctionKey::At(path.clone(), start),
        };
        let name = || match (&symbol, &path) {
            (Some(symbol), _) => symbol.demangled(),
            (None, Some(path)) => path.display().to_string(),
            (None, None) => "[unmapped]".into(),
        };
        let function = self.number(key, name);
        self.last = place.map(|place| (place.file.clone(), start, function));
        (function, first)
    }

    /// A function that was inlined in the code at a place.
    pub(crate) fn inlined(&mut self, place: &Place, name: &str) -> usize {
        let key = FunctionKey::Inlined(place.owner().to_owned(), name.to_owned());
        self.number(key, || name.to_owned())
    }

    /// All of them, by their numbers.
    pub(crate) fn list(&self) -> &[(FunctionKey, FunctionCount)] {
        &self.list
    }

    /// The same functions with the same numbers.
    pub(crate) fn of_list(list: Vec<(FunctionKey, FunctionCount)>) -> Self {
        let keys = list.iter().map(|(key, _)| key.clone());
        Self {
            numbers: keys.zip(0..).collect(),
            list,
            ..Self::default()
        }
    }

    /// The function of a number.
    pub(crate) fn get(&self, number: usize) -> Option<&FunctionCount> {
        self.list.get(number).map(|(_, function)| function)
    }

    /// The number of a function, which is the next free one if it is new.
    pub(crate) fn number(&mut self, key: FunctionKey, name: impl FnOnce() -> String) -> usize {
        let next = self.list.len();
        let number = *self.numbers.entry(key.clone()).or_insert(next);
        if number == next {
            let (file, address) = match &key {
                FunctionKey::At(file, address) => (file.clone(), *address),
                FunctionKey::Generated(owner, _) | FunctionKey::Inlined(owner, _) => {
                    (Some(owner.clone()), None)
                }
                FunctionKey::Unnamed(..) => (Some(GENERATED.into()), None),
            };
            let count = FunctionCount {
                name: name(),
                file,
                address,
                is_named: !matches!(key, FunctionKey::At(_, None) | FunctionKey::Unnamed(..)),
                instructions: 0,
                entries: 0,
            };
            self.list.push((key, count));
        }
        number
    }

    pub(crate) fn count(&mut self, function: usize, instructions: u64, entries: u64) {
        if let Some((_, function)) = self.list.get_mut(function) {
            function.instructions += instructions;
            function.entries += entries;
        }
    }

    pub(crate) fn merge(&mut self, other: Functions) {
        for (key, function) in other.list {
            let number = self.number(key, || function.name.clone());
            self.count(number, function.instructions, function.entries);
        }
    }

    /// What has been counted since this was called last, by itself. The functions are remembered.
    pub(crate) fn take(&mut self) -> Self {
        let counted = self.list.iter_mut().filter_map(|(key, function)| {
            if (function.instructions, function.entries) == (0, 0) {
                return None;
            }
            let counted = (key.clone(), function.clone());
            (function.instructions, function.entries) = (0, 0);
            Some(counted)
        });
        Self {
            list: counted.collect(),
            ..Self::default()
        }
    }

    /// Functions and files, most instructions first.
    pub(crate) fn finish(self) -> (Vec<FunctionCount>, Vec<FileCount>) {
        let mut functions = joined(self.list);
        let mut by_file: HashMap<&PathBuf, u64> = HashMap::new();
        for function in &functions {
            if let Some(file) = &function.file {
                *by_file.entry(file).or_default() += function.instructions;
            }
        }
        let mut files: Vec<FileCount> = by_file
            .into_iter()
            .map(|(file, instructions)| FileCount {
                file: file.clone(),
                instructions,
            })
            .collect();
        compact::sort_by(&mut files, |a, b| {
            (b.instructions, &a.file).cmp(&(a.instructions, &b.file))
        });
        compact::sort_by(&mut functions, |a, b| {
            let (a_key, b_key) = ((&a.file, a.address, &a.name), (&b.file, b.address, &b.name));
            (b.instructions, a_key).cmp(&(a.instructions, b_key))
        });
        (functions, files)
    }
}

/// Functions, with pieces of generated code that has no name put together where they belong to one mapping.
fn joined(list: Vec<(FunctionKey, FunctionCount)>) -> Vec<FunctionCount> {
    let mut functions = Vec::new();
    let mut pieces: Vec<(u32, u64, FunctionCount)> = Vec::new();
    for (key, function) in list {
        match key {
            FunctionKey::Unnamed(pid, address) => pieces.push((pid, address, function)),
            _ => functions.push(function),
        }
    }
    compact::sort_by_key(&mut pieces, |(pid, address, _)| (*pid, *address));
    let mut last: Option<(u32, u64)> = None;
    for (pid, address, piece) in pieces {
        let goes_on = last.is_some_and(|(of, at)| of == pid && address - at <= APART);
        last = Some((pid, address));
        match functions.last_mut() {
            Some(whole) if goes_on => {
                let FunctionCount {
                    instructions,
                    entries,
                    ..
                } = piece;
                whole.instructions += instructions;
                whole.entries += entries;
            }
            _ => functions.push(FunctionCount {
                name: format!("code of process {pid} from {address:#x} on"),
                ..piece
            }),
        }
    }
    functions
}
