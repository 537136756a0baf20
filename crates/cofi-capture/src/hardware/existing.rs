//! What was there before the events were: threads with their names, and the code that their processes have mapped.

use super::vdso::Vdso;
use cofi_perf::{KernelWriter, Mmap2, Task, WriteError};
use std::fs;
use std::io::{Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Tells of a process that runs.
pub(super) fn describe<W: Write + Seek>(
    writer: &mut KernelWriter<W>,
    pid: u32,
    vdso: &mut Vdso,
) -> Result<(), WriteError> {
    let folder = folder_of(pid);
    for tid in threads(pid) {
        // What has ended meanwhile is not told of.
        if let Ok(name) = fs::read(folder.join("task").join(tid.to_string()).join("comm")) {
            writer.known_comm(Task { pid, tid }, name.trim_ascii_end())?;
        }
    }
    let maps = fs::read(folder.join("maps")).unwrap_or_default();
    for line in maps.split(|byte| *byte == b'\n') {
        let Some((mut map, path)) = parse(line) else {
            continue;
        };
        let saved = vdso.promised(&path, map.start, map.len);
        map.path = saved
            .as_ref()
            .map_or(&path, |saved| saved.as_os_str().as_bytes());
        writer.known_mmap2(Task { pid, tid: pid }, &map)?;
    }
    Ok(())
}

fn folder_of(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

fn numbers(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    all.sort_unstable();
    all
}

/// The processes of the system.
pub(super) fn processes() -> Vec<u32> {
    numbers(Path::new("/proc"))
}

/// The threads of a process; none if it is not there.
pub(super) fn threads(pid: u32) -> Vec<u32> {
    numbers(&folder_of(pid).join("task"))
}

/// Whether one of a process's threads still runs.
pub(super) fn is_alive(pid: u32) -> bool {
    let folder = folder_of(pid).join("task");
    threads(pid).into_iter().any(|tid| {
        let stat = fs::read(folder.join(tid.to_string()).join("stat")).unwrap_or_default();
        is_running(&stat)
    })
}

/// Whether this thread of a process still runs.
pub(super) fn is_running_thread(pid: u32, tid: u32) -> bool {
    let path = folder_of(pid)
        .join("task")
        .join(tid.to_string())
        .join("stat");
    is_running(&fs::read(path).unwrap_or_default())
}

/// The process of a thread, if there is such a thread.
pub(super) fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(folder_of(tid).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line?.trim().parse().ok()
}

/// By the text of /proc/PID/stat. The name in it may hold anything.
fn is_running(stat: &[u8]) -> bool {
    let state = stat
        .iter()
        .rposition(|byte| *byte == b')')
        .and_then(|end| stat.get(end + 2));
    state.is_some_and(|state| !b"ZXx".contains(state))
}

/// A line of /proc/PID/maps, if it is about code, and its path.
fn parse(line: &[u8]) -> Option<(Mmap2<'static>, Vec<u8>)> {
    let text = |word: &[u8]| std::str::from_utf8(word).ok().map(str::to_owned);
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let range = text(words.next()?)?;
    let rights = words.next()?;
    if rights.get(2) != Some(&b'x') {
        return None;
    }
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let (begin, end) = range.split_once('-')?;
    let (start, end) = (hex(begin)?, hex(end)?);
    let pgoff = hex(&text(words.next()?)?)?;
    let device = text(words.next()?)?;
    let (major, minor) = device.split_once(':')?;
    let inode = text(words.next()?)?.parse().ok()?;
    let path = words.next().unwrap_or_default().trim_ascii_start();
    let path = match path {
        b"" => b"//anon".to_vec(),
        path => unescaped(path),
    };
    let right = |at: usize, letter, bit| match rights.get(at) {
        Some(byte) if *byte == letter => bit,
        _ => 0,
    };
    let map = Mmap2 {
        start,
        len: end.checked_sub(start)?,
        pgoff,
        device: (hex(major)? as u32, hex(minor)? as u32),
        inode,
        prot: right(0, b'r', 1) | right(1, b'w', 2) | 4,
        path: b"",
    };
    Some((map, path))
}

/// A newline in a path is written as `\012`.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, behind @ ..] = rest {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = after;
        } else {
            out.push(*first);
            rest = behind;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code() {
        let line = b"7f0012340000-7f0012345000 r-xp 00003000 fe:0a 1234                   /lib/a b\\012c (deleted)";
        let (map, path) = parse(line).unwrap();
        assert_eq!(
            (map.start, map.len, map.pgoff),
            (0x7f00_1234_0000, 0x5000, 0x3000)
        );
        assert_eq!((map.device, map.inode, map.prot), ((0xfe, 10), 1234, 5));
        assert_eq!(path, b"/lib/a b\nc (deleted)");
        let (map, path) = parse(b"1000-2000 rwxp 00000000 00:00 0 ").unwrap();
        assert_eq!((map.prot, &path[..]), (7, &b"//anon"[..]));
        for line in [
            &b"1000-2000 rw-p 00000000 00:00 0 "[..],
            b"",
            b"x-y r-xp 0 0:0 0",
        ] {
            assert!(parse(line).is_none());
        }
    }

    #[test]
    fn who_runs() {
        assert!(is_running(b"7 (a) b) S 1 1"));
        assert!(!is_running(b"7 (a) Z 1 1"));
        assert!(!is_running(b""));
        let own = std::process::id();
        assert!(is_running_thread(own, own) && !is_running_thread(own, 1));
        assert_eq!(process_of(own), Some(own));
        assert_eq!(process_of(u32::MAX), None);
        assert!(is_alive(own) && threads(own).contains(&own) && processes().contains(&own));
    }
}
