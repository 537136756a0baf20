//! The executable mappings of a process, from /proc.

use super::sys;
use crate::{Mapping, MappingKind, Pid};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const PROT_READ: u32 = 1;
pub(super) const PROT_WRITE: u32 = 2;
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
pub(crate) fn parse(line: &[u8]) -> Option<Mapping> {
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
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        prot,
        device: (hex(major)? as u32, hex(minor)? as u32),
        inode,
        path: PathBuf::from(OsString::from_vec(name)),
        kind,
    })
}

/// Whether a line of /proc/PID/maps is of memory that others may map too.
pub(crate) fn is_shared(line: &[u8]) -> bool {
    let mut words = line.split(|b| *b == b' ');
    words
        .nth(1)
        .is_some_and(|flags| flags.get(3) == Some(&b's'))
}

/// The executable mappings of one process, by address.
#[derive(Clone, Debug, Default)]
pub(super) struct Mappings {
    executable: Vec<Mapping>,
    /// What other processes may write too: start and end, by address.
    shared: Vec<(u64, u64)>,
}

/// How the mappings have changed.
#[derive(Debug)]
pub(super) struct Change {
    /// Executable mappings from files that were not there before.
    pub(super) fresh: Vec<Mapping>,
    /// Everything that is mapped now, executable or not: start and end, by address.
    mapped: Vec<(u64, u64)>,
}

impl Change {
    /// Whether anything is mapped at an address.
    pub(super) fn is_mapped(&self, at: u64) -> bool {
        let after = self.mapped.partition_point(|range| range.0 <= at);
        self.mapped[..after]
            .last()
            .is_some_and(|range| at < range.1)
    }
}

impl Mappings {
    /// Reads the mappings of `pid` anew; how they have changed, if what is executable has.
    pub(super) fn refresh(&mut self, pid: Pid) -> Option<Change> {
        let text = fs::read(format!("/proc/{pid}/maps")).ok()?;
        let mut executable = Vec::new();
        let mut mapped = Vec::new();
        self.shared.clear();
        for line in text.split(|b| *b == b'\n') {
            let Some(mut mapping) = parse(line) else {
                continue;
            };
            mapped.push((mapping.start, mapping.end));
            if is_shared(line) {
                self.shared.push((mapping.start, mapping.end));
            }
            if mapping.prot & PROT_EXEC == 0 {
                continue;
            }
            if mapping.kind == MappingKind::File && mapping.prot & PROT_WRITE != 0 {
                mapping.kind = MappingKind::Memory;
            }
            executable.push(mapping);
        }
        if self.executable == executable {
            return None;
        }
        let old = std::mem::replace(&mut self.executable, executable);
        let fresh = self
            .executable
            .iter()
            .filter(|new| new.kind == MappingKind::File && !old.contains(new))
            .cloned()
            .collect();
        Some(Change { fresh, mapped })
    }

    /// The executable mapping that holds `ip`.
    pub(super) fn find(&self, ip: u64) -> Option<&Mapping> {
        let after = self.executable.partition_point(|m| m.start <= ip);
        self.executable[..after].last().filter(|m| ip < m.end)
    }

    /// Whether an executable mapping overlaps a range.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.executable
            .iter()
            .any(|m| m.start < end && start < m.end)
    }

    /// Whether memory that is shared with other processes overlaps a range.
    pub(super) fn shares(&self, start: u64, end: u64) -> bool {
        self.shared.iter().any(|m| m.0 < end && start < m.1)
    }
}

/// The name of a thread.
pub(crate) fn comm(tid: Pid) -> String {
    let bytes = fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned()
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

/// Whether `tid` is a thread of process `pid`.
pub(super) fn is_thread(pid: Pid, tid: Pid) -> bool {
    std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// The value of a field of /proc/TID/status.
fn status(tid: Pid, field: &str) -> Option<String> {
    let text = fs::read(format!("/proc/{tid}/status")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// The process to which a thread belongs.
pub(crate) fn process_of(tid: Pid) -> Option<Pid> {
    status(tid, "Tgid")?.parse().ok()
}

/// Whether a thread has ended, and only its parent has not heard of it yet.
pub(crate) fn has_ended(tid: Pid) -> bool {
    status(tid, "State").is_some_and(|state| state.starts_with(['Z', 'X']))
}

/// The thread that traces a thread.
pub(super) fn tracer_of(tid: Pid) -> Option<Pid> {
    status(tid, "TracerPid")?.parse().ok()
}

/// Whether a process ignores SIGTRAP.
pub(super) fn ignores_trap(pid: Pid) -> bool {
    is_in(pid, "SigIgn", libc::SIGTRAP)
}

/// Whether a signal is in one of the masks of /proc/TID/status.
fn is_in(tid: Pid, mask: &str, signal: i32) -> bool {
    status(tid, mask)
        .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}

/// What a signal that is about to be delivered does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// It ends the process.
    Ends,
    /// A handler runs.
    Handled,
    /// Nothing, or it stops the process for a while.
    Nothing,
}

/// What a signal does that is about to be delivered to a thread.
pub(super) fn action(tid: Pid, signal: i32) -> Action {
    if is_in(tid, "SigCgt", signal) {
        return Action::Handled;
    }
    let is_harmless = matches!(
        signal,
        libc::SIGCHLD
            | libc::SIGCONT
            | libc::SIGURG
            | libc::SIGWINCH
            | libc::SIGSTOP
            | libc::SIGTSTP
            | libc::SIGTTIN
            | libc::SIGTTOU
    );
    if is_harmless || is_in(tid, "SigIgn", signal) {
        Action::Nothing
    } else {
        Action::Ends
    }
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
        let mapping = parse(line).expect("a mapping");
        assert_eq!(
            (mapping.start, mapping.end, mapping.offset, mapping.inode),
            (0x7f00, 0x7f80, 0x1000, 42)
        );
        assert_eq!(
            (mapping.prot, mapping.device, mapping.kind),
            (5, (8, 2), MappingKind::File)
        );
        assert_eq!(mapping.path.as_os_str(), "/lib/a b c\n");
        let kind = |line: &[u8]| parse(line).expect("a mapping").kind;
        assert_eq!(kind(b"1-2 rwxp 0 00:00 0 "), MappingKind::Memory);
        assert_eq!(kind(b"1-2 r-xp 0 00:00 0 [vdso]"), MappingKind::Vdso);
        assert_eq!(kind(b"1-2 r-xs 0 08:02 4 /a"), MappingKind::Memory);
        assert_eq!(
            kind(b"1-2 r-xp 0 08:02 4 /a (deleted)"),
            MappingKind::Memory
        );
        assert!(parse(b"nonsense").is_none() && parse(b"").is_none());
        assert!(is_shared(b"1-2 rw-s 0 08:02 4 /a") && !is_shared(b"1-2 rw-p 0 08:02 4 /a"));
    }
}
