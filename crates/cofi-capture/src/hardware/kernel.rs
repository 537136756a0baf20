//! The kernel's code as it stands in memory: copied before tracing begins, and told as perf tells it.

use crate::record::private_file;
use cofi_perf::{KernelWriter, Mmap2, Task, WriteError};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempPath;

const PAGE: u64 = 4096;
/// Sizes in ELF files, and kinds of theirs.
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const LOAD: u32 = 1;
const EXECUTABLE: u32 = 5;
/// At most so much is read of it at a time.
const CHUNK: usize = 1 << 16;
/// More code than this no kernel has.
const MOST: u64 = 1 << 30;

/// Why the kernel's code is not in the recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelProblem {
    /// The kernel does not say where its symbols are.
    #[error(
        "the kernel hides its addresses, so its code is neither named nor saved: as root, `echo 0 > /proc/sys/kernel/kptr_restrict`"
    )]
    Hidden,
    /// Its memory cannot be read.
    #[error(
        "the kernel's code is not saved ({}: {source}): root may read it, where the kernel is not locked down", path.display()
    )]
    Unreadable {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not tell how its code changes.
    #[error(
        "changes of the kernel's code are not recorded: an old kernel does not tell of them, and one where perf_event_paranoid is more than 0 \
         tells root only. It is decoded as it was when the recording began"
    )]
    NoChanges,
}

fn unreadable(path: &str) -> impl FnOnce(io::Error) -> KernelProblem {
    let path = path.into();
    |source| KernelProblem::Unreadable { path, source }
}

const KALLSYMS: &str = "/proc/kallsyms";
const MODULES: &str = "/proc/modules";
const KCORE: &str = "/proc/kcore";

/// Where the kernel and its modules are.
#[derive(Debug)]
pub(super) struct Kernel {
    kallsyms: Vec<u8>,
    modules: Vec<u8>,
    places: Places,
    /// A copy of their memory.
    copy: Option<TempPath>,
}

#[derive(Debug, PartialEq, Eq)]
struct Places {
    /// A symbol at the beginning, by which perf and others know whether another list of symbols is of the same boot.
    anchor: (&'static str, u64),
    /// First address, and the first behind it.
    text: (u64, u64),
    /// Name, first address, length.
    modules: Vec<(String, u64, u64)>,
}

impl Kernel {
    /// What there is to know of the kernel that runs. Without a copy of its code, if that cannot be had: then it is said why.
    pub(super) fn find(folder: &Path) -> Result<(Self, Option<KernelProblem>), KernelProblem> {
        let kallsyms = fs::read(KALLSYMS).map_err(unreadable(KALLSYMS))?;
        // A kernel without modules has no such file.
        let modules = fs::read(MODULES).unwrap_or_default();
        let places = Places::of(&kallsyms, &modules).ok_or(KernelProblem::Hidden)?;
        let copied = File::open(KCORE).and_then(|kcore| copy(&kcore, &places.ranges(), folder));
        let (copy, problem) = match copied {
            Ok(copy) => (Some(copy), None),
            Err(error) => (None, Some(unreadable(KCORE)(error))),
        };
        let this = Self {
            kallsyms,
            modules,
            places,
            copy,
        };
        Ok((this, problem))
    }

    /// Tells where they are.
    pub(super) fn describe<W: Write + Seek>(
        &self,
        writer: &mut KernelWriter<W>,
    ) -> Result<(), WriteError> {
        let kernel = Task {
            pid: u32::MAX,
            tid: u32::MAX,
        };
        let mut map = |start: u64, len: u64, pgoff: u64, path: &[u8]| {
            let map = Mmap2 {
                start,
                len,
                pgoff,
                device: (0, 0),
                inode: 0,
                prot: 5, // PROT_READ and PROT_EXEC
                path,
            };
            writer.known_mmap2(kernel, &map)
        };
        let (name, at) = self.places.anchor;
        let (begin, end) = self.places.text;
        let path = format!("[kernel.kallsyms]{name}");
        map(begin, end - begin, at, path.as_bytes())?;
        for (name, start, len) in &self.places.modules {
            map(*start, *len, 0, format!("[{name}]").as_bytes())?;
        }
        Ok(())
    }

    /// Whether there is something to be kept.
    pub(super) const fn has_copy(&self) -> bool {
        self.copy.is_some()
    }

    /// Puts the copy, and the kernel's own lists, into a folder, in the form of perf's kcore_dir.
    pub(super) fn keep(&mut self, folder: &Path) -> io::Result<()> {
        let Some(copy) = self.copy.take() else {
            return Ok(());
        };
        private_file(&folder.join("kallsyms"))?.write_all(&self.kallsyms)?;
        private_file(&folder.join("modules"))?.write_all(&self.modules)?;
        copy.persist(folder.join("kcore"))?;
        Ok(())
    }
}

impl Places {
    /// From the texts of kallsyms and modules; `None` if these hide the addresses.
    fn of(kallsyms: &[u8], modules: &[u8]) -> Option<Self> {
        const WANTED: [&str; 3] = ["_text", "_stext", "_etext"];
        let mut found = [None; WANTED.len()];
        for line in kallsyms.split(|byte| *byte == b'\n') {
            let mut words = line.split(|byte| byte.is_ascii_whitespace());
            let (Some(address), Some(_), Some(name), None) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            if let Some(place) = WANTED.iter().position(|wanted| wanted.as_bytes() == name) {
                found[place] = number(address, 16).filter(|address| *address != 0);
            }
        }
        let [text, stext, etext] = found;
        let begin = text.or(stext)?;
        let end = etext.filter(|end| *end > begin && *end - begin < MOST)?;
        let anchor = (if text.is_some() { "_text" } else { "_stext" }, begin);
        let mut known = Vec::new();
        for line in modules.split(|byte| *byte == b'\n') {
            // Name, size, users, their names, state, address.
            let mut words = line.split(|byte| *byte == b' ');
            let (Some(name), Some(size), Some(at)) = (words.next(), words.next(), words.nth(3))
            else {
                continue;
            };
            let address = at.strip_prefix(b"0x").and_then(|at| number(at, 16));
            if let (Some(size), Some(address @ 1..)) = (number(size, 10), address)
                && (1..MOST).contains(&size)
            {
                known.push((String::from_utf8_lossy(name).into_owned(), address, size));
            }
        }
        Some(Self {
            anchor,
            text: (begin, end),
            modules: known,
        })
    }

    /// What is to be copied: ranges of whole pages in the order of addresses, which do not meet; address and length.
    fn ranges(&self) -> Vec<(u64, u64)> {
        let text = (self.text.0, self.text.1 - self.text.0);
        let modules = self.modules.iter().map(|(_, start, len)| (*start, *len));
        let mut all: Vec<(u64, u64)> = std::iter::once(text)
            .chain(modules)
            .map(|(start, len)| {
                let end = start.saturating_add(len).next_multiple_of(PAGE);
                (start & !(PAGE - 1), end)
            })
            .collect();
        all.sort_unstable();
        let mut apart: Vec<(u64, u64)> = Vec::new();
        for (start, end) in all {
            match apart.last_mut() {
                Some((_, last)) if *last >= start => *last = end.max(*last),
                _ => apart.push((start, end)),
            }
        }
        for (start, end) in &mut apart {
            *end -= *start;
        }
        apart
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Of a core file, where in it which addresses are: address, length, offset.
fn segments(kcore: &File) -> io::Result<Vec<(u64, u64, u64)>> {
    let mut header = [0; HEADER];
    kcore.read_exact_at(&mut header, 0)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let half = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let count = usize::from(half(&header, 56));
    let mut headers = vec![0; count * PROGRAM_HEADER];
    kcore.read_exact_at(&mut headers, word(&header, 32))?;
    let headers = headers.chunks_exact(PROGRAM_HEADER);
    let loads = headers.filter(|header| header.starts_with(&LOAD.to_le_bytes()));
    Ok(loads
        .map(|header| (word(header, 16), word(header, 40), word(header, 8)))
        .collect())
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

/// Copies these ranges into a core file of its own.
fn copy(kcore: &File, wanted: &[(u64, u64)], folder: &Path) -> io::Result<TempPath> {
    let segments = segments(kcore)?;
    // What no segment has is left out.
    let parts: Vec<(u64, u64, u64)> = wanted
        .iter()
        .flat_map(|&(start, len)| {
            let end = start + len;
            segments.iter().filter_map(move |&(address, size, offset)| {
                let (from, to) = (start.max(address), end.min(address.saturating_add(size)));
                (from < to).then(|| (from, to - from, offset + (from - address)))
            })
        })
        .collect();
    if parts.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut out = tempfile::Builder::new()
        .prefix(".kcore.")
        .tempfile_in(folder)?;
    let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // A core file for x86-64, version 1.
    for half in [4_u16, 62, 1, 0] {
        head.extend(half.to_le_bytes());
    }
    for word in [0, HEADER as u64, 0] {
        head.extend(word.to_le_bytes());
    }
    head.extend([0; 4]);
    let sizes = [HEADER, PROGRAM_HEADER, parts.len(), 64, 0, 0];
    for half in sizes {
        head.extend((half as u16).to_le_bytes());
    }
    let first = (HEADER + PROGRAM_HEADER * parts.len()) as u64;
    let mut at = first.next_multiple_of(PAGE);
    for &(address, len, _) in &parts {
        for half in [LOAD, EXECUTABLE] {
            head.extend(half.to_le_bytes());
        }
        for word in [at, address, 0, len, len, PAGE] {
            head.extend(word.to_le_bytes());
        }
        at += len;
    }
    out.write_all(&head)?;
    out.seek(SeekFrom::Start(first.next_multiple_of(PAGE)))?;
    let mut bytes = vec![0; CHUNK];
    for &(_, len, offset) in &parts {
        let mut done = 0;
        while done < len {
            let chunk = &mut bytes[..(len - done).min(CHUNK as u64) as usize];
            read(kcore, chunk, offset + done)?;
            out.write_all(chunk)?;
            done += chunk.len() as u64;
        }
    }
    Ok(out.into_temp_path())
}

/// Reads page by page: what the kernel does not show of itself is zeros.
fn read(kcore: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    if kcore.read_exact_at(bytes, offset).is_ok() {
        return Ok(());
    }
    for (page, at) in bytes
        .chunks_mut(PAGE as usize)
        .zip((offset..).step_by(PAGE as usize))
    {
        match kcore.read_exact_at(page, at) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => page.fill(0),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: &[u8] = b"0000000000000000 A fixed_percpu_data\nffffffff81000000 T _text\nffffffff81000000 T _stext\n\
        ffffffff81003210 T _etext\nffffffffc0000000 t _text\t[greeter]\n";
    const LOADED: &[u8] = b"greeter 16384 0 - Live 0xffffffffc0000000\nodd 5 1 greeter,\n";

    #[test]
    fn where_the_kernel_is() {
        let places = Places::of(SYMBOLS, LOADED).unwrap();
        assert_eq!(places.anchor, ("_text", 0xffff_ffff_8100_0000));
        assert_eq!(places.text.1, 0xffff_ffff_8100_3210);
        let greeter = ("greeter".into(), 0xffff_ffff_c000_0000, 16384);
        assert_eq!(places.modules, [greeter]);
        assert_eq!(
            places.ranges(),
            [
                (0xffff_ffff_8100_0000, 0x4000),
                (0xffff_ffff_c000_0000, 0x4000)
            ]
        );
        let hidden = b"0000000000000000 T _text\n0000000000000000 T _etext\n";
        assert_eq!(Places::of(hidden, LOADED), None);
        assert_eq!(Places::of(b"", b""), None);
    }

    #[test]
    fn ranges_that_meet_are_one() {
        let module = |start, len| ("m".to_owned(), start, len);
        let places = Places {
            anchor: ("_text", 0x1000),
            text: (0x1000, 0x2001),
            modules: vec![
                module(0x8000, 1),
                module(0x2800, 0x1000),
                module(0x8800, 0x1000),
            ],
        };
        assert_eq!(places.ranges(), [(0x1000, 0x3000), (0x8000, 0x2000)]);
    }

    #[test]
    fn a_copy_holds_what_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..0x5000_u32).map(|at| (at / 16) as u8).collect();
        let path = folder.path().join("memory");
        // A core file: two segments, of which one begins in the middle of what is wanted.
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(HEADER, 0);
        file[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
        file[56..58].copy_from_slice(&2_u16.to_le_bytes());
        for (address, len, offset) in [
            (0x10_0000_u64, 0x2000_u64, 0x1000_u64),
            (0x10_3000, 0x2000, 0x3000),
        ] {
            file.extend(LOAD.to_le_bytes());
            file.extend([0; 4]);
            for word in [offset, address, 0, len, len, 0] {
                file.extend(word.to_le_bytes());
            }
        }
        file.resize(0x1000, 0);
        file.extend(&bytes[..0x4000]);
        fs::write(&path, &file).unwrap();
        let wanted = [(0x10_1000, 0x3000)];
        let made = copy(&File::open(&path).unwrap(), &wanted, folder.path()).unwrap();
        let made = File::open(&made).unwrap();
        let parts = segments(&made).unwrap();
        assert_eq!(parts.len(), 2);
        for ((address, len, offset), (expected, from)) in parts
            .into_iter()
            .zip([(0x10_1000, 0x1000), (0x10_3000, 0x2000)])
        {
            assert_eq!((address, len), (expected, 0x1000));
            let mut found = vec![0; 0x1000];
            made.read_exact_at(&mut found, offset).unwrap();
            assert_eq!(found, bytes[from..from + 0x1000]);
        }
        // Nothing of it is there.
        assert!(
            copy(
                &File::open(&path).unwrap(),
                &[(0x9000, 0x1000)],
                folder.path()
            )
            .is_err()
        );
    }
}
