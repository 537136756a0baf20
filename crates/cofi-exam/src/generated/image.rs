//! The programs of walks as ELF files. Cofi would be content with their bytes; perf learns from the class of the file (which it looks at
//! only when there are symbols) whether code has 64 or 32 bits.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PAGE: u64 = 4096;

/// A file of programs, one after another on pages of their own.
#[derive(Debug)]
pub(super) struct Image {
    wide: bool,
    path: PathBuf,
    bytes: Vec<u8>,
}

/// Fields, as wide as the class has them.
struct Fields<'i> {
    wide: bool,
    bytes: &'i mut Vec<u8>,
}

impl Fields<'_> {
    fn half(&mut self, value: u16) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }
    fn word(&mut self, value: u32) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }
    /// An address, an offset, or a size.
    fn address(&mut self, value: u64) -> &mut Self {
        let len = if self.wide { 8 } else { 4 };
        self.bytes.extend(&value.to_le_bytes()[..len]);
        self
    }
}

impl Image {
    /// Nothing yet.
    pub(super) fn new(wide: bool, path: PathBuf) -> Self {
        Self {
            wide,
            path,
            bytes: vec![0; PAGE as usize],
        }
    }

    /// Where it will lie.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes a program in; its pages: address, length, offset in the file.
    pub(super) fn add(&mut self, address: u64, code: &[u8]) -> (u64, u64, u64) {
        let start = address / PAGE * PAGE;
        let len = (address - start + code.len() as u64).next_multiple_of(PAGE);
        let at = self.bytes.len();
        let from = at + (address - start) as usize;
        self.bytes.resize(at + len as usize, 0);
        self.bytes[from..from + code.len()].copy_from_slice(code);
        (start, len, at as u64)
    }

    fn fields(&mut self) -> Fields<'_> {
        let wide = self.wide;
        let bytes = &mut self.bytes;
        Fields { wide, bytes }
    }

    /// Completes and writes it: code as one section, and a table with a symbol.
    pub(super) fn save(mut self) -> Result<()> {
        let wide = self.wide;
        let code_end = self.bytes.len() as u64;
        // One symbol, a function, behind the null symbol.
        let symbol = if wide { 24 } else { 16 };
        self.bytes.resize(self.bytes.len() + symbol, 0);
        let mut fields = self.fields();
        if wide {
            fields.word(1).half(0x12).half(1).address(PAGE).address(1);
        } else {
            fields.word(1).address(PAGE).address(1).half(0x12).half(1);
        }
        let names_at = self.bytes.len() as u64;
        let names = b"\0walk\0.text\0.symtab\0.strtab\0";
        self.bytes.extend(names);
        let len = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(len, 0);
        let (symbols, word) = (2 * symbol as u64, if wide { 8 } else { 4 });
        let mut fields = self.fields();
        // Name, type, flags, address, offset, size, link, info, alignment, size of an entry.
        let sections = [
            (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
            (6, 1, 6, PAGE, PAGE, code_end - PAGE, 0, 0, PAGE, 0),
            (12, 2, 0, 0, code_end, symbols, 3, 1, word, symbol as u64),
            (20, 3, 0, 0, names_at, names.len() as u64, 0, 0, 1, 0),
        ];
        for (name, kind, flags, address, offset, size, link, info, align, entry) in sections {
            fields.word(name).word(kind).address(flags).address(address);
            fields.address(offset).address(size).word(link).word(info);
            fields.address(align).address(entry);
        }
        let mut header = b"\x7fELF".to_vec();
        header.extend([if wide { 2 } else { 1 }, 1, 1]);
        header.resize(16, 0);
        let mut fields = Fields {
            wide,
            bytes: &mut header,
        };
        let (machine, size, entry) = if wide { (62, 64, 64) } else { (3, 52, 40) };
        // ET_DYN: offsets are addresses.
        fields.half(3).half(machine).word(1).address(PAGE);
        fields.address(0).address(len as u64).word(0).half(size);
        fields.half(0).half(0).half(entry).half(4).half(3);
        self.bytes[..header.len()].copy_from_slice(&header);
        fs::write(&self.path, &self.bytes)
            .with_context(|| format!("writing {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_lie_on_pages_of_their_own() {
        let mut image = Image::new(false, PathBuf::new());
        assert_eq!(
            image.add(0xf7f0_fff0, &[0x90; 32]),
            (0xf7f0_f000, 8192, 4096)
        );
        assert_eq!(image.add(0x40_0000, &[0xcc]), (0x40_0000, 4096, 12288));
        assert_eq!(image.bytes[4096 + 0xff0..][..32], [0x90; 32]);
        assert_eq!(image.bytes[12288], 0xcc);
    }
}
