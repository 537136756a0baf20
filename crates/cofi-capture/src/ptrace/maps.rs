//! The executable mappings of a process, from /proc.

use super::sys;
use crate::{Mapping, MappingKind, Pid};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const PROT_READ: u32 = 1;
const PROT_WRITE: u32 = 2;
const PROT_EXEC: u32 = 4;

/// Undoes the octal escapes (`\040`) with which the kernel writes white space in paths.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let digits = tail
            .get(..3)
            .filter(|d| *first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        if let Some(digits) = digits {
            out.push(
                digits
                    .iter()
                    .fold(0_u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')),
            );
            rest = &tail[3..];
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

/// One line of /proc/PID/maps, whatever it maps; `None` if it is none.
fn parse(line: &[u8]) -> Option<(Mapping, bool)> {
    let mut rest = line;
    let mut word = || {
        let start = rest.iter().position(|b| *b != b' ')?;
        let tail = &rest[start..];
        let end = tail.iter().position(|b| *b == b' ').unwrap_or(tail.len());
        rest = &tail[end..];
        std::str::from_utf8(&tail[..end]).ok()
    };
    let (start, end) = word()?.split_once('-')?;
    let flags = word()?.as_bytes();
    let offset = word()?;
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    let name = rest
        .iter()
        .position(|b| *b != b' ')
        .map_or(&[][..], |at| &rest[at..]);
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut prot = 0;
    for (at, flag, bit) in [
        (0, b'r', PROT_READ),
        (1, b'w', PROT_WRITE),
        (2, b'x', PROT_EXEC),
    ] {
        if flags.get(at) == Some(&flag) {
            prot |= bit;
        }
    }
    let private = flags.get(3) == Some(&b'p');
    let name = unescape(name);
    let kind = if name == b"[vdso]" {
        MappingKind::Vdso
    } else if inode != 0 && private && name.starts_with(b"/") && !name.ends_with(b" (deleted)") {
        MappingKind::File
    } else {
        MappingKind::Memory
    };
    let mapping = Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        prot,
        device: (hex(major)? as u32, hex(minor)? as u32),
        inode,
        path: PathBuf::from(OsString::from_vec(name)),
        kind,
    };
    Some((mapping, prot & PROT_WRITE != 0))
}

/// The executable mappings of one process, and what has been writable in it: what once was may have been changed, so
/// its code is compared with the saved bytes each time it runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Mappings {
    executable: Vec<Mapping>,
    /// Executable file mappings that have been writable: their files may not hold the code.
    suspect: Vec<(u64, u64)>,
}

impl Mappings {
    /// Reads the mappings of `pid` anew; those from files that were not there before.
    pub(super) fn refresh(&mut self, pid: Pid) -> Vec<Mapping> {
        let Ok(text) = fs::read(format!("/proc/{pid}/maps")) else {
            return Vec::new();
        };
        let mut executable = Vec::new();
        let mut mapped = Vec::new();
        for (mut mapping, writable) in text.split(|b| *b == b'\n').filter_map(parse) {
            let range = (mapping.start, mapping.end);
            mapped.push(range);
            if writable && mapping.kind == MappingKind::File {
                self.suspect.push(range);
            }
            let suspect = |s: &(u64, u64)| s.0 < range.1 && range.0 < s.1;
            if mapping.prot & PROT_EXEC == 0 {
                continue;
            }
            if mapping.kind == MappingKind::File && (writable || self.suspect.iter().any(suspect)) {
                mapping.kind = MappingKind::Memory;
            }
            executable.push(mapping);
        }
        // What is not mapped any more does not make its successor suspect.
        self.suspect
            .retain(|s| mapped.iter().any(|m| m.0 < s.1 && s.0 < m.1));
        self.suspect.sort_unstable();
        self.suspect.dedup();
        let old = std::mem::replace(&mut self.executable, executable);
        self.executable
            .iter()
            .filter(|new| new.kind == MappingKind::File && !old.contains(new))
            .cloned()
            .collect()
    }

    /// The executable mapping that holds `ip`.
    pub(super) fn find(&self, ip: u64) -> Option<&Mapping> {
        let after = self.executable.partition_point(|m| m.start <= ip);
        self.executable[..after].last().filter(|m| ip < m.end)
    }
}

/// The name of a thread.
pub(super) fn comm(tid: Pid) -> String {
    let bytes = fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned()
}

/// Whether a SIGTRAP waits to be delivered to a stopped thread.
pub(super) fn trap_is_pending(tid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let mask = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (libc::SIGTRAP - 1) & 1 == 1)
}

/// The threads of a process.
pub(super) fn threads(pid: Pid) -> std::io::Result<Vec<Pid>> {
    let mut tids = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        tids.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<Pid>().ok()),
        );
    }
    tids.sort_unstable();
    Ok(tids)
}

/// Reads up to `len` bytes at `start`, as far as they can be read.
pub(super) fn read(tid: Pid, start: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let read = sys::read_memory(tid as i32, start, &mut bytes);
    bytes.truncate(read);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_maps() {
        let line = b"7f00-7f80 r-xp 00001000 08:02 42                 /lib/a b\\040c\\012";
        let (mapping, writable) = parse(line).expect("a mapping");
        assert_eq!(
            (mapping.start, mapping.end, mapping.offset, mapping.inode),
            (0x7f00, 0x7f80, 0x1000, 42)
        );
        assert_eq!(
            (mapping.prot, mapping.device, mapping.kind),
            (5, (8, 2), MappingKind::File)
        );
        assert_eq!(mapping.path.as_os_str(), "/lib/a b c\n");
        assert!(!writable);
        let kind = |line: &[u8]| parse(line).expect("a mapping").0.kind;
        assert_eq!(kind(b"1-2 rwxp 0 00:00 0 "), MappingKind::Memory);
        assert_eq!(kind(b"1-2 r-xp 0 00:00 0 [vdso]"), MappingKind::Vdso);
        assert_eq!(kind(b"1-2 r-xs 0 08:02 4 /a"), MappingKind::Memory);
        assert_eq!(
            kind(b"1-2 r-xp 0 08:02 4 /a (deleted)"),
            MappingKind::Memory
        );
        assert!(parse(b"nonsense").is_none() && parse(b"").is_none());
    }
}
