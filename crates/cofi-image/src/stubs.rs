//! Which function a stub of the procedure linkage table (PLT) leads to: no symbol names a stub, but the slot from which it jumps has a
//! relocation.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};

use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::{ElfFile, FileHeader, SectionHeader};
use object::{
    Architecture, Endianness, FileKind, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable,
    ReadRef, RelocationTarget, SymbolIndex,
};

use crate::contents::FromFile;
use crate::symbols::{Symbol, Symbols, demangle};

/// The sections that hold stubs, and how long one is there if the section does not say.
const SECTIONS: [(&str, u64); 3] = [(".plt", 16), (".plt.sec", 16), (".plt.got", 8)];

/// How long stubs are: the linker for 32-bit code says four bytes of its table, which is no length of a stub.
const LENGTHS: RangeInclusive<u64> = 8..=64;

/// ENDBR64 and ENDBR32.
const ENDBR: [[u8; 4]; 2] = [[0xf3, 0x0f, 0x1e, 0xfa], [0xf3, 0x0f, 0x1e, 0xfb]];

/// The prefix that keeps bounds over a jump.
const BND: u8 = 0xf2;

/// The stubs of one file, as `puts@plt`.
#[derive(Debug, Default)]
pub(crate) struct Stubs(Symbols);

impl Stubs {
    pub(crate) fn at(&self, address: u64) -> Option<Symbol<'_>> {
        self.0.at(address)
    }

    /// Every stub: its name and its addresses.
    pub(crate) fn for_each(&self, visit: impl FnMut(&str, Range<u64>)) {
        self.0.for_each_range(visit);
    }

    fn of_class<'data, E, R>(data: R) -> Option<Self>
    where
        E: FileHeader<Endian = Endianness>,
        R: ReadRef<'data>,
    {
        let file = ElfFile::<E, R>::parse(data).ok()?;
        let endian = file.endian();
        let base = match file.architecture() {
            Architecture::X86_64 => Base::NextInstruction,
            Architecture::I386 => {
                let table = file
                    .section_by_name(".got.plt")
                    .or_else(|| file.section_by_name(".got"));
                Base::Table(table.map(|table| table.address()))
            }
            _ => return None,
        };
        let slots: HashMap<u64, SymbolIndex> = file
            .dynamic_relocations()?
            .filter_map(|(slot, relocation)| match relocation.target() {
                RelocationTarget::Symbol(symbol) => Some((slot, symbol)),
                _ => None,
            })
            .collect();
        let names = file.dynamic_symbol_table()?;
        // Hostile tables can name one long string any number of times.
        let mut room = data.len().map_or(0, |len| len.saturating_mul(2)) + (1 << 16);
        let mut list = Vec::new();
        for (section, len) in SECTIONS {
            let Some(section) = file.section_by_name(section) else {
                continue;
            };
            let told: u64 = section.elf_section_header().sh_entsize(endian).into();
            let len = if LENGTHS.contains(&told) { told } else { len };
            let code = section.data().unwrap_or_default();
            let starts = (section.address()..).step_by(len as usize);
            for (start, stub) in starts.zip(code.chunks(len as usize)) {
                let Some(name) = base
                    .slot(start, stub)
                    .and_then(|slot| slots.get(&slot))
                    .and_then(|symbol| names.symbol_by_index(*symbol).ok())
                    .and_then(|symbol| symbol.name().ok())
                    .filter(|name| !name.is_empty())
                else {
                    continue;
                };
                room = room.checked_sub(name.len() as u64)?;
                list.push((start, stub.len() as u64, format!("{}@plt", demangle(name))));
            }
        }
        let list = list
            .iter()
            .map(|(start, len, name)| (*start, *len, name.as_str()));
        Some(Self(Symbols::of_ranges(list)))
    }
}

impl FromFile for Stubs {
    /// A file that has none, is damaged or is not ELF has no stubs.
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Self {
        let stubs = match FileKind::parse(data) {
            Ok(FileKind::Elf32) => Self::of_class::<FileHeader32<Endianness>, R>(data),
            Ok(FileKind::Elf64) => Self::of_class::<FileHeader64<Endianness>, R>(data),
            _ => None,
        };
        stubs.unwrap_or_default()
    }
}

/// From where the displacement of a stub's jump counts.
#[derive(Clone, Copy, Debug)]
enum Base {
    /// Of 64-bit code, from behind the jump.
    NextInstruction,
    /// Of 32-bit code, from address 0 or from the global offset table, of which EBX has the address.
    Table(Option<u64>),
}

impl Base {
    /// The slot from which the stub at `start` jumps.
    fn slot(self, start: u64, stub: &[u8]) -> Option<u64> {
        let behind = |code: &[u8]| start.wrapping_add((stub.len() - code.len()) as u64);
        let code = ENDBR
            .iter()
            .find_map(|endbr| stub.strip_prefix(endbr))
            .unwrap_or(stub);
        let code = code.strip_prefix(&[BND]).unwrap_or(code);
        let [0xff, form, a, b, c, d, rest @ ..] = code else {
            return None;
        };
        let displacement = [*a, *b, *c, *d];
        let signed = i64::from(i32::from_le_bytes(displacement)) as u64;
        let narrow = |address: u64| u64::from(address as u32);
        match (self, form) {
            (Self::NextInstruction, 0x25) => Some(behind(rest).wrapping_add(signed)),
            (Self::Table(_), 0x25) => Some(narrow(signed)),
            (Self::Table(Some(table)), 0xa3) => Some(narrow(table.wrapping_add(signed))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    const SOURCE: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <time.h>\nint main(int n, char **v)\n{\n    \
        void *room = malloc(n);\n    printf(\"%p %ld\", room, (long)time(0));\n    puts(v[0]);\n    free(room);\n    return 0;\n}\n";

    /// The stubs that objdump names, by address.
    fn by_objdump(program: &Path) -> BTreeMap<u64, String> {
        let ran = Command::new("objdump").arg("-d").arg(program).output();
        let text = String::from_utf8(ran.expect("objdump").stdout).expect("UTF-8");
        let label = |line: &str| {
            let (address, rest) = line.split_once(" <")?;
            let name = rest.strip_suffix(">:")?;
            let address = u64::from_str_radix(address, 16).ok()?;
            // What has no name is named by what stands before it.
            (name.ends_with("@plt") && !name.starts_with('*')).then(|| (address, name.to_owned()))
        };
        text.lines().filter_map(label).collect()
    }

    #[test]
    fn stubs_have_the_names_that_objdump_gives_them() {
        if !cofi_test::has_program("objdump") {
            return cofi_test::skip("objdump is missing");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("stubs.c");
        fs::write(&source, SOURCE).expect("room");
        for bits in ["-m64", "-m32"] {
            for protection in ["-fcf-protection=none", "-fcf-protection=full"] {
                for pie in [["-fpie", "-pie"], ["-fno-pie", "-no-pie"]] {
                    for binding in ["-Wl,-z,now", "-Wl,-z,lazy"] {
                        let mut flags = vec![bits, protection, pie[0], pie[1], binding, "-s"];
                        if protection.ends_with("full") {
                            flags.push("-Wl,-z,ibtplt");
                        }
                        let program = folder.path().join("stubs");
                        let _ = fs::remove_file(&program);
                        if !cofi_test::compile(&source, &program, &flags) {
                            continue;
                        }
                        let bytes = fs::read(&program).expect("a program");
                        let stubs = Stubs::parse(bytes.as_slice());
                        let wanted = by_objdump(&program);
                        assert!(wanted.values().any(|name| name == "puts@plt"), "{flags:?}");
                        let mut found = BTreeMap::new();
                        stubs.0.for_each(|name, start| {
                            found.insert(start, name.to_owned());
                        });
                        assert_eq!(found, wanted, "{flags:?}");
                        // Damage takes names away, and nothing else.
                        for len in [0, 4, 64, bytes.len() / 2, bytes.len() - 1] {
                            Stubs::parse(&bytes[..len]);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn only_jumps_through_slots_are_stubs() {
        let slot = |base: Base, code: &[u8]| base.slot(0x1000, code);
        let (wide, narrow) = (Base::NextInstruction, Base::Table(Some(0x4000)));
        assert_eq!(
            slot(wide, &[0xff, 0x25, 2, 0, 0, 0, 0x66, 0x90]),
            Some(0x1008)
        );
        assert_eq!(
            slot(wide, &[0xf2, 0xff, 0x25, 0xff, 0xff, 0xff, 0xff]),
            Some(0x1006)
        );
        let marked = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0, 0, 0, 0];
        assert_eq!(slot(wide, &marked), Some(0x100a));
        assert_eq!(
            slot(narrow, &[0xff, 0xa3, 0xfc, 0xff, 0xff, 0xff]),
            Some(0x3ffc)
        );
        assert_eq!(
            slot(narrow, &[0xff, 0x25, 0, 0, 0, 0x80]),
            Some(0x8000_0000)
        );
        assert_eq!(slot(Base::Table(None), &[0xff, 0xa3, 0, 0, 0, 0]), None);
        assert_eq!(slot(wide, &[0xff, 0xa3, 0, 0, 0, 0]), None);
        // The first entry of a lazy table pushes.
        assert_eq!(slot(wide, &[0xff, 0x35, 0, 0, 0, 0]), None);
        assert_eq!(slot(wide, &[0xff, 0x25, 0, 0, 0]), None);
        assert_eq!(slot(wide, &[]), None);
    }
}
