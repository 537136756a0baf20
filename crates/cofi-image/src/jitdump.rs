//! Code that a program generated, as it told perf: the file `jit-PID.dump`.
//!
//! The format is Linux's `tools/perf/Documentation/jitdump-specification.txt`: a header, then records, each with its size
//! and time. The bytes of the code stand in the file, so that a mapping can show them where they are.

use std::collections::HashMap;
use std::path::Path;

use crate::error::ImageError;
use crate::file::CodeFile;
use crate::symbols::Symbols;

const MAGIC: u32 = 0x4a69_5444;
const HEADER: usize = 40;
const RECORD: usize = 16;
/// The flag of the header that says that times are those of the processor's time stamp counter.
const ARCH_TIMESTAMP: u64 = 1;

const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;

/// What a jitdump tells, in the order of the file.
#[derive(Debug)]
pub struct JitDump {
    /// The process that wrote it.
    pub pid: u32,
    /// Times are values of the time stamp counter; else they are nanoseconds of the clock that perf was told to use.
    pub is_tsc: bool,
    /// What happened.
    pub entries: Vec<JitEntry>,
    /// Where the file ends in the middle of a record or makes no sense, if it does.
    pub damaged_at: Option<u64>,
}

/// Code that came, or moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JitEntry {
    /// When.
    pub time: u64,
    /// Where the code stands from then on.
    pub address: u64,
    /// How long it is.
    pub len: u64,
    /// Where in the file its bytes are.
    pub offset: u64,
    /// Where it stood until then.
    pub moved_from: Option<u64>,
}

/// Whether a mapped file of this name is a jitdump: perf's rule.
#[must_use]
pub fn is_jitdump(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let pid = name.and_then(|name| name.strip_prefix("jit-")?.strip_suffix(".dump"));
    pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Little-endian fields.
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

impl JitDump {
    /// Reads the jitdump that `file` is, and gives that file the names of the functions in it.
    ///
    /// # Errors
    /// When the file cannot be read, or is no jitdump of a little-endian machine. One that is cut off is read as far as it
    /// goes.
    pub fn read(file: &CodeFile) -> Result<Self, ImageError> {
        let bytes = file.bytes()?;
        let (dump, names) = Self::parse(&bytes).map_err(|reason| ImageError::BadJitdump {
            path: file.path().to_owned(),
            reason,
        })?;
        file.give_symbols(Symbols::of_ranges(names));
        Ok(dump)
    }

    /// The dump, and start, length and name of every function in it.
    #[allow(clippy::type_complexity)]
    fn parse(bytes: &[u8]) -> Result<(Self, Vec<(u64, u64, &str)>), &'static str> {
        let mut header = Fields(bytes);
        match header.u32() {
            Some(MAGIC) => {}
            Some(found) if found.swap_bytes() == MAGIC => {
                return Err("it was written by a big-endian machine");
            }
            _ => return Err("it does not begin like one"),
        }
        let mut fields = || {
            let (_version, size, _machine, _pad) =
                (header.u32()?, header.u32()?, header.u32()?, header.u32()?);
            let (pid, _time, flags) = (header.u32()?, header.u64()?, header.u64()?);
            Some((size, pid, flags))
        };
        let (size, pid, flags) = fields().ok_or("its header is cut off")?;
        let mut at = (size as usize).max(HEADER);
        let mut dump = Self {
            pid,
            is_tsc: flags & ARCH_TIMESTAMP != 0,
            entries: Vec::new(),
            damaged_at: None,
        };
        let mut names = Vec::new();
        // Of each code's number, where its bytes are.
        let mut known = HashMap::new();
        while at < bytes.len() {
            match dump.record(bytes, at, &mut known) {
                Some((size, name)) => {
                    names.extend(name);
                    at += size;
                }
                None => {
                    dump.damaged_at = Some(at as u64);
                    break;
                }
            }
        }
        Ok((dump, names))
    }

    /// Reads the record at `at`: its size and, if it is new code, where it stands and its name.
    #[allow(clippy::type_complexity)]
    fn record<'b>(
        &mut self,
        bytes: &'b [u8],
        at: usize,
        known: &mut HashMap<u64, (u64, u64)>,
    ) -> Option<(usize, Option<(u64, u64, &'b str)>)> {
        let mut fields = Fields(bytes.get(at..)?);
        let (kind, size, time) = (fields.u32()?, fields.u32()? as usize, fields.u64()?);
        let len = size.checked_sub(RECORD)?;
        let mut fields = Fields(fields.take(len)?);
        let name = match kind {
            CODE_LOAD => {
                let (_pid, _tid, _vma) = (fields.u32()?, fields.u32()?, fields.u64()?);
                let (address, len, index) = (fields.u64()?, fields.u64()?, fields.u64()?);
                let end = fields.0.iter().position(|byte| *byte == 0)?;
                let name = fields.take(end + 1)?;
                // The bytes are the last of the record.
                let rest = fields.0.len() as u64;
                if len > rest {
                    return None;
                }
                let offset = (at + size) as u64 - rest;
                known.insert(index, (offset, len));
                self.entries.push(JitEntry {
                    time,
                    address,
                    len,
                    offset,
                    moved_from: None,
                });
                let name = std::str::from_utf8(&name[..end]).ok();
                name.filter(|name| !name.is_empty())
                    .map(|name| (offset, len, name))
            }
            CODE_MOVE => {
                let (_pid, _tid, _vma) = (fields.u32()?, fields.u32()?, fields.u64()?);
                let (old, new) = (fields.u64()?, fields.u64()?);
                let (len, index) = (fields.u64()?, fields.u64()?);
                if let Some((offset, known)) = known.get(&index) {
                    self.entries.push(JitEntry {
                        time,
                        address: new,
                        len: len.min(*known),
                        offset: *offset,
                        moved_from: Some(old),
                    });
                }
                None
            }
            // Lines of source, tables for unwinding, the end: nothing of what stood where.
            _ => None,
        };
        Some((size, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Header, code 1 at 0x1000, a record of another kind, code 2 at 0x2000, code 1 moved to 0x3000, the end.
    fn dump() -> Vec<u8> {
        let mut out = Vec::new();
        for field in [MAGIC, 1, 40, 62, 0, 77] {
            out.extend(field.to_le_bytes());
        }
        out.extend(5u64.to_le_bytes());
        out.extend(1u64.to_le_bytes());
        let mut record = |kind: u32, time: u64, body: &[u8]| {
            out.extend(kind.to_le_bytes());
            out.extend((body.len() as u32 + 16).to_le_bytes());
            out.extend(time.to_le_bytes());
            out.extend(body);
        };
        let load = |address: u64, index: u64, name: &[u8], code: &[u8]| {
            let mut body = [77u32.to_le_bytes(), 78u32.to_le_bytes()].concat();
            for field in [address, address, code.len() as u64, index] {
                body.extend(field.to_le_bytes());
            }
            body.extend(name);
            body.push(0);
            body.extend(code);
            body
        };
        record(CODE_LOAD, 10, &load(0x1000, 1, b"first", &[0x90, 0xc3]));
        record(2, 11, &[0; 16]);
        record(CODE_LOAD, 12, &load(0x2000, 2, b"second", &[0xcc; 5]));
        let mut moved = [77u32.to_le_bytes(), 78u32.to_le_bytes()].concat();
        for field in [0x3000u64, 0x1000, 0x3000, 2, 1] {
            moved.extend(field.to_le_bytes());
        }
        record(CODE_MOVE, 13, &moved);
        record(3, 14, &[]);
        out
    }

    #[test]
    fn all_kinds_of_records() {
        let bytes = dump();
        let file = CodeFile::from_bytes("/tmp/jit-77.dump", bytes);
        let dump = JitDump::read(&file).unwrap();
        assert!((dump.pid, dump.is_tsc, dump.damaged_at) == (77, true, None));
        let seen: Vec<_> = dump
            .entries
            .iter()
            .map(|e| (e.time, e.address, e.len, e.moved_from))
            .collect();
        assert_eq!(
            seen,
            [
                (10, 0x1000, 2, None),
                (12, 0x2000, 5, None),
                (13, 0x3000, 2, Some(0x1000))
            ]
        );
        let mut code = [0; 2];
        for entry in [dump.entries[0], dump.entries[2]] {
            assert_eq!(file.read_at(entry.offset, &mut code), 2);
            assert_eq!(code, [0x90, 0xc3]);
        }
        let symbol = file.symbol_at(dump.entries[1].offset + 3).unwrap();
        assert_eq!((symbol.name, symbol.offset), ("second", 3));
    }

    #[test]
    fn names_of_dumps() {
        for (path, is) in [
            ("/tmp/jit-77.dump", true),
            ("/home/user/.debug/jit/x/jit-1.dump", true),
            ("/tmp/jit-.dump", false),
            ("/tmp/jit-7x.dump", false),
            ("/tmp/jit-77.dump.so", false),
            ("/tmp/jitted-77-1.so", false),
        ] {
            assert_eq!(is_jitdump(Path::new(path)), is, "{path}");
        }
    }

    #[test]
    fn cut_anywhere_it_is_read_as_far_as_it_goes() {
        let whole = dump();
        let mut entries = 0;
        for len in 0..whole.len() {
            match JitDump::parse(&whole[..len]) {
                Ok((dump, names)) => {
                    assert!(len >= HEADER);
                    assert!(dump.entries.len() >= entries && names.len() <= 2);
                    entries = dump.entries.len();
                }
                Err(_) => assert!(len < HEADER),
            }
        }
        assert_eq!(entries, 3);
        let mut other = whole;
        other[..4].reverse();
        assert!(JitDump::parse(&other).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(at in 0usize..300, byte: u8, cut in 0usize..300) {
            let mut bytes = dump();
            let len = bytes.len();
            bytes[at % len] = byte;
            bytes.truncate(len - cut % len);
            if let Ok((dump, names)) = JitDump::parse(&bytes) {
                for entry in dump.entries {
                    prop_assert!(entry.offset + entry.len <= bytes.len() as u64);
                }
                for (start, size, _) in names {
                    prop_assert!(start + size <= bytes.len() as u64);
                }
            }
        }
    }
}
