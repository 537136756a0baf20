//! Loading ELF files and raw bytes, and naming what stands in them.

use std::path::{Path, PathBuf};

use cofi_image::{
    AddressSpace, ElfSegment, FileStore, ImageError, ImageView, Version, load_elf, load_raw,
};
use cofi_insn::CodeSource;
use cofi_packet::Ip;

/// A little ELF file: code at file offset 0x1000, linked to `CODE`, and a symbol table.
const CODE: u64 = 0x40_1000;
const CODE_LEN: u64 = 0x40;

struct Builder {
    wide: bool,
    machine: u16,
    out: Vec<u8>,
}

impl Builder {
    fn u16(&mut self, value: u16) {
        self.out.extend(value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.out.extend(value.to_le_bytes());
    }
    fn word(&mut self, value: u64) {
        if self.wide {
            self.out.extend(value.to_le_bytes())
        } else {
            self.u32(value as u32)
        }
    }
    fn pad_to(&mut self, offset: usize) {
        assert!(self.out.len() <= offset);
        self.out.resize(offset, 0);
    }

    fn program_header(&mut self, flags: u32, offset: u64, address: u64, len: u64) {
        self.u32(1);
        if self.wide {
            self.u32(flags);
        }
        for value in [offset, address, address, len, len] {
            self.word(value);
        }
        if !self.wide {
            self.u32(flags);
        }
        self.word(0x1000);
    }

    /// Type, then flags, address, offset, size; link; entry size.
    fn section(&mut self, kind: u32, words: [u64; 4], link: u32, entry: u64) {
        self.u32(0);
        self.u32(kind);
        for value in words {
            self.word(value);
        }
        self.u32(link);
        self.u32(1);
        self.word(1);
        self.word(entry);
    }

    fn symbol(&mut self, name: u32, info: u8, section: u16, value: u64, size: u64) {
        self.u32(name);
        if self.wide {
            self.out.extend([info, 0]);
            self.u16(section);
            self.word(value);
            self.word(size);
        } else {
            self.word(value);
            self.word(size);
            self.out.extend([info, 0]);
            self.u16(section);
        }
    }
}

fn elf(wide: bool, machine: u16, kind_of_table: Option<u32>) -> Vec<u8> {
    let mut b = Builder {
        wide,
        machine,
        out: Vec::new(),
    };
    let (header, ph, sh, sym) = if wide {
        (64, 56, 64, 24)
    } else {
        (52, 32, 40, 16)
    };
    b.out.extend([
        0x7f,
        b'E',
        b'L',
        b'F',
        if wide { 2 } else { 1 },
        1,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]);
    b.u16(2);
    b.u16(b.machine);
    b.u32(1);
    for value in [CODE, header, 0x2000] {
        b.word(value);
    }
    b.u32(0);
    for value in [header as u16, ph, 2, sh, 4, 3] {
        b.u16(value);
    }
    b.program_header(4, 0, CODE - 0x1000, 0x200);
    b.program_header(5, 0x1000, CODE, CODE_LEN);
    b.pad_to(0x1000);
    b.out.extend((0..CODE_LEN).map(|i| 0x80 + i as u8));
    b.pad_to(0x1100);
    let strings = b"\0_start\0_ZN3foo3barEi\0label\0data_mark\0";
    b.out.extend(strings);
    b.pad_to(0x1200);
    b.symbol(0, 0, 0, 0, 0);
    b.symbol(8, 0x12, 1, CODE + 0x10, 0x10); // _ZN3foo3barEi, a global function
    b.symbol(1, 0x10, 1, CODE, 0); // _start, a global label
    b.symbol(22, 0x00, 1, CODE + 0x18, 0); // a label inside the function
    b.symbol(28, 0x10, 1, 0x50_0000, 0); // not in code
    b.symbol(1, 0x12, 0, 0, 0); // undefined
    b.pad_to(0x2000);
    b.section(0, [0; 4], 0, 0);
    b.section(1, [6, CODE, 0x1000, CODE_LEN], 0, 0);
    b.section(kind_of_table.unwrap_or(0), [0, 0, 0x1200, 6 * sym], 3, sym);
    b.section(3, [0, 0, 0x1100, strings.len() as u64], 0, 0);
    b.out
}

const X86_64: u16 = 62;
const I386: u16 = 3;
const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;

fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn describe(view: &ImageView<'_>, ip: u64) -> String {
    view.place(Ip(ip)).unwrap().to_string()
}

#[test]
fn loads_at_link_address_and_moved() {
    let folder = tempfile::tempdir().unwrap();
    for (wide, machine, table) in [
        (true, X86_64, SYMTAB),
        (false, I386, SYMTAB),
        (true, X86_64, DYNSYM),
    ] {
        let path = write(folder.path(), "program", &elf(wide, machine, Some(table)));
        for base in [None, Some(0x7f00_0000)] {
            let mut space = AddressSpace::new();
            let mut store = FileStore::new();
            let loaded = load_elf(&mut space, &mut store, &path, base, Version(0)).unwrap();
            let shift = base.unwrap_or(CODE - 0x1000) - (CODE - 0x1000);
            assert_eq!(loaded.base, CODE - 0x1000 + shift);
            assert_eq!(loaded.entry, CODE + shift);
            let mut view = ImageView::new(&space, Version(0));
            let mut buf = [0; 4];
            assert_eq!(view.read(Ip(CODE + shift + 0x20), &mut buf), 4);
            assert_eq!(buf, [0xa0, 0xa1, 0xa2, 0xa3]);
            assert_eq!(view.read(Ip(CODE + shift + CODE_LEN - 1), &mut buf), 1);
            assert_eq!(view.read(Ip(CODE + shift - 0x1000), &mut buf), 4);
            assert_eq!(&buf, b"\x7fELF");
            assert_eq!(describe(&view, CODE + shift), "_start");
            assert_eq!(describe(&view, CODE + shift + 0xf), "_start+0xf");
            assert_eq!(describe(&view, CODE + shift + 0x10), "foo::bar(int)");
            assert_eq!(describe(&view, CODE + shift + 0x1a), "foo::bar(int)+0xa");
            assert_eq!(
                describe(&view, CODE + shift + 0x20),
                format!("{}+0x401020", path.display())
            );
        }
    }
}

#[test]
fn offsets_of_a_mapping_lead_to_symbols() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "library", &elf(true, X86_64, Some(SYMTAB)));
    let stripped = write(folder.path(), "stripped", &elf(true, X86_64, None));
    let raw = write(folder.path(), "raw", &[0x90; 64]);
    let mut store = FileStore::new();
    let mut space = AddressSpace::new();
    // As a kernel maps it: whole pages, by file offset.
    space.map(0x7000_0000, 0x1000, &store.file(&path), 0x1000, Version(0));
    space.map(
        0x7100_0000,
        0x1000,
        &store.file(&stripped),
        0x1000,
        Version(0),
    );
    space.map(0x7200_0000, 0x1000, &store.file(&raw), 0, Version(0));
    space.map(
        0x7300_0000,
        0x1000,
        &store.file(Path::new("/gone")),
        0x30,
        Version(0),
    );
    let view = ImageView::new(&space, Version(0));
    assert_eq!(describe(&view, 0x7000_0011), "foo::bar(int)+0x1");
    assert_eq!(
        describe(&view, 0x7100_0011),
        format!("{}+0x401011", stripped.display())
    );
    assert_eq!(
        describe(&view, 0x7200_0011),
        format!("{}+0x11", raw.display())
    );
    assert_eq!(describe(&view, 0x7300_0011), "/gone+0x41");
    let place = view.place(Ip(0x7000_0015)).unwrap();
    let symbol = place.symbol().unwrap();
    assert_eq!(
        (symbol.name, symbol.start, symbol.offset),
        ("_ZN3foo3barEi", CODE + 0x10, 5)
    );
    assert_eq!(
        place.file.segments()[1],
        ElfSegment {
            address: CODE,
            offset: 0x1000,
            len: CODE_LEN,
            executable: true
        }
    );
}

#[test]
fn raw_bytes_and_what_cannot_be_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let raw = write(folder.path(), "raw", &[1, 2, 3]);
    let arm = write(folder.path(), "arm", &elf(true, 183, Some(SYMTAB)));
    let mut space = AddressSpace::new();
    let mut store = FileStore::new();
    load_raw(&mut space, &mut store, &raw, 0x1000, Version(0)).unwrap();
    let mut buf = [0; 8];
    assert_eq!(
        ImageView::new(&space, Version(0)).read(Ip(0x1000), &mut buf),
        3
    );

    let mut fails =
        |path: &Path| load_elf(&mut space, &mut store, path, None, Version(0)).unwrap_err();
    assert!(matches!(
        fails(&raw),
        ImageError::BadElf {
            reason: "it does not begin like one",
            ..
        }
    ));
    assert!(matches!(
        fails(&arm),
        ImageError::BadElf {
            reason: "it is not for an x86 processor",
            ..
        }
    ));
    assert!(matches!(
        fails(&folder.path().join("none")),
        ImageError::Missing { .. }
    ));
    assert!(matches!(fails(folder.path()), ImageError::NotAFile { .. }));
    let error = load_raw(&mut space, &mut store, Path::new("/no/such"), 0, Version(0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/no/such: no such file, so the code mapped from it is unknown"
    );
}

#[test]
fn cut_and_damaged_files_do_no_harm() {
    for wide in [true, false] {
        let whole = elf(wide, if wide { X86_64 } else { I386 }, Some(SYMTAB));
        let folder = tempfile::tempdir().unwrap();
        let check = |bytes: &[u8], name: &str| {
            let path = write(folder.path(), name, bytes);
            let mut store = FileStore::new();
            let mut space = AddressSpace::new();
            if load_elf(&mut space, &mut store, &path, None, Version(0)).is_ok() {
                let mut view = ImageView::new(&space, Version(0));
                for ip in (CODE..CODE + CODE_LEN).step_by(7) {
                    let readable = view.read(Ip(ip), &mut [0; 15]);
                    assert!(readable <= 15);
                    if let Some(place) = view.place(Ip(ip)) {
                        assert!(!place.to_string().is_empty());
                    }
                }
            }
        };
        let interesting: Vec<usize> = (0..0x110)
            .chain(0x1100..0x1300)
            .chain(0x2000..whole.len())
            .collect();
        for (i, &at) in interesting.iter().enumerate() {
            check(&whole[..at], &format!("cut{i}"));
            for value in [0, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                check(&damaged, &format!("damaged{i}-{value}"));
            }
        }
    }
}
