//! Where exceptions land: the tables that compilers write for the unwinder (`.eh_frame`, `.gcc_except_table`).

use std::collections::HashMap;
use std::sync::Arc;

use cofi_packet::Ip;
use gimli::{
    BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, Pointer, Reader, UnwindSection,
};
use object::{Object, ObjectSection};

use crate::file::CodeFile;
use crate::space::ImageView;

/// Finds the calls out of which an exception lands at an address. Each file is read once, when it is first needed; a damaged one has no
/// landing pads, or fewer.
#[derive(Default)]
pub struct LandingPads {
    /// By where the [`CodeFile`] is in memory, which is kept so long.
    files: HashMap<*const CodeFile, (Arc<CodeFile>, Vec<Site>)>,
}

/// Instructions whose calls an exception may leave, and where it lands then. Addresses are the file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Site {
    pad: u64,
    start: u64,
    end: u64,
}

impl std::fmt::Debug for LandingPads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files = self.files.values().map(|(file, _)| file.path());
        f.debug_list().entries(files).finish()
    }
}

impl LandingPads {
    /// Nothing read yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether an exception that leaves the call instruction that holds the byte at `call` lands at `pad`; none if nothing lands there.
    pub fn leads(&mut self, view: &ImageView<'_>, pad: Ip, call: Ip) -> Option<bool> {
        let place = view.place(pad)?;
        let (_, sites) = self
            .files
            .entry(Arc::as_ptr(&place.file))
            .or_insert_with(|| (place.file.clone(), sites_of(&place.file)));
        let address = place.file.address_of_offset(place.offset)?;
        // Both lie in one mapping: a function and its landing pads do.
        let call = address.wrapping_add(call.0.wrapping_sub(pad.0));
        let from = sites.partition_point(|site| site.pad < address);
        let here = sites.get(from..)?;
        let mut here = here
            .iter()
            .take_while(|site| site.pad == address)
            .peekable();
        here.peek()?;
        Some(here.any(|site| (site.start..site.end).contains(&call)))
    }
}

fn sites_of(file: &CodeFile) -> Vec<Site> {
    let bytes = file.bytes().ok();
    bytes.and_then(|bytes| parse(&bytes)).unwrap_or_default()
}

/// All sites of an ELF file, in the order of their landing pads.
fn parse(bytes: &[u8]) -> Option<Vec<Site>> {
    let file = object::File::parse(bytes).ok()?;
    let frames = file.section_by_name(".eh_frame")?;
    let tables = file.section_by_name(".gcc_except_table")?;
    let text = file
        .section_by_name(".text")
        .map_or(0, |text| text.address());
    let bases = BaseAddresses::default()
        .set_eh_frame(frames.address())
        .set_text(text);
    let mut eh_frame = EhFrame::new(frames.data().ok()?, LittleEndian);
    eh_frame.set_address_size(if file.is_64() { 8 } else { 4 });
    let table_bytes = tables.data().ok()?;
    let mut sites = Vec::new();
    let mut entries = eh_frame.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else {
            continue;
        };
        if let Some(Pointer::Direct(table)) = fde.lsda()
            && let Some(offset) = table.checked_sub(tables.address())
            && let Some(rest) = table_bytes.get(usize::try_from(offset).ok()?..)
        {
            // What can be read of a damaged table counts.
            let _ = read_table(rest, table, fde.initial_address(), &mut sites);
        }
    }
    sites.sort_unstable();
    Some(sites)
}

/// Values as long as the machine's, whose length depends on it, are not used in these tables by any compiler.
fn value(reader: &mut EndianSlice<'_, LittleEndian>, encoding: u8) -> gimli::Result<Option<u64>> {
    Ok(Some(match encoding & 0x0f {
        0x01 => reader.read_uleb128()?,
        0x02 => reader.read_u16()?.into(),
        0x03 => reader.read_u32()?.into(),
        0x00 | 0x04 | 0x0c => reader.read_u64()?,
        0x09 => reader.read_sleb128()? as u64,
        0x0a => i64::from(reader.read_i16()?) as u64,
        0x0b => i64::from(reader.read_i32()?) as u64,
        _ => return Ok(None),
    }))
}

/// Not there.
const OMITTED: u8 = 0xff;

/// Reads the table of a function's call sites, which begins at the address `at`.
fn read_table(bytes: &[u8], at: u64, function: u64, sites: &mut Vec<Site>) -> gimli::Result<()> {
    let mut reader = EndianSlice::new(bytes, LittleEndian);
    let mut base = function;
    let encoding = reader.read_u8()?;
    if encoding != OMITTED {
        let here = at.wrapping_add((bytes.len() - reader.len()) as u64);
        let Some(start) = value(&mut reader, encoding)? else {
            return Ok(());
        };
        let is_relative = encoding & 0x70 == 0x10;
        base = start.wrapping_add(if is_relative { here } else { 0 });
    }
    if reader.read_u8()? != OMITTED {
        reader.read_uleb128()?;
    }
    let encoding = reader.read_u8()?;
    let len = reader.read_uleb128()?;
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(reader.len());
    let mut reader = reader.split(len)?;
    while !reader.is_empty() {
        let (Some(start), Some(len), Some(pad)) = (
            value(&mut reader, encoding)?,
            value(&mut reader, encoding)?,
            value(&mut reader, encoding)?,
        ) else {
            return Ok(());
        };
        reader.read_uleb128()?;
        if pad != 0 {
            let start = function.wrapping_add(start);
            sites.push(Site {
                pad: base.wrapping_add(pad),
                start,
                end: start.wrapping_add(len),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_and_each_prefix_of_it() {
        // No base of its own, no types; three sites in uleb128: the second lands nowhere.
        let table = [
            0xff, 0xff, 0x01, 13, 0x10, 0x05, 0x80, 0x01, 0x01, 0x15, 0x02, 0x00, 0x00, 0x17, 0x04,
            0x40, 0x00,
        ];
        let site = |pad, start, end| Site { pad, start, end };
        let all = [site(0x1080, 0x1010, 0x1015), site(0x1040, 0x1017, 0x101b)];
        for len in 0..=table.len() {
            let mut sites = Vec::new();
            let read = read_table(&table[..len], 0x5000, 0x1000, &mut sites);
            let wanted = match len {
                0..9 => 0,
                9..17 => 1,
                _ => 2,
            };
            assert_eq!(sites, all[..wanted], "{len}");
            assert!(wanted < 2 || read.is_ok());
        }
    }

    #[test]
    fn what_is_no_program_has_none() {
        assert_eq!(parse(b"\x7fELF\x02\x01\x01"), None);
        assert!(sites_of(&CodeFile::from_bytes("bytes", vec![0x7f; 64])).is_empty());
    }
}
