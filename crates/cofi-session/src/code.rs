//! What a trace tells of its code besides where it was mapped, and where the rest of it comes from.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofi_host::path_of;
use cofi_image::{
    BuildId, CodeFile, FileStore, ImageError, JitDump, Kallsyms, KernelCode, KernelHints, Places,
    is_jitdump,
};
use cofi_packet::Tsc;
use cofi_perf::{Feature, File, PerfTime, TimeConv};

use crate::bpf;
use crate::compact;
use crate::timeline::{Entry, KERNEL, SidebandChange};

/// Where code comes from that the paths of a trace do not lead to.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CodeOptions {
    /// Where to look for files.
    pub places: Places,
    /// A copy of the kernel's memory: a file, or a folder with the files kcore and kallsyms.
    pub kcore: Option<PathBuf>,
    /// The file that the kernel was linked to.
    pub vmlinux: Option<PathBuf>,
    /// Files in which a process told what code it generated.
    pub jitdumps: Vec<PathBuf>,
    /// Files that were packed with the trace. No others are used then.
    pub packed: Option<PackedCode>,
}

/// A file of which a trace consists: its path, and its bytes.
pub type TraceFile = (PathBuf, Arc<[u8]>);

/// Code that was packed with a trace.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PackedCode {
    /// Files, by their names and build ids.
    pub files: Vec<Arc<CodeFile>>,
    /// The kernel's memory: what [`Session::kernel_core`](crate::Session::kernel_core) gave.
    pub kernel: Option<Arc<CodeFile>>,
    /// The files of which the trace consists: what [`Session::parts`](crate::Session::parts) named.
    pub parts: Vec<TraceFile>,
}

/// What a trace file tells.
#[derive(Debug, Default)]
pub(crate) struct Known<'t> {
    build_ids: HashMap<&'t [u8], BuildId>,
    /// Code of BPF programs, by its address.
    programs: BTreeMap<u64, &'t [u8]>,
    /// How values of the time stamp counter become perf's time.
    pub(crate) clock: Option<TimeConv>,
    release: Option<&'t str>,
}

impl<'t> Known<'t> {
    /// What the features of a file tell.
    pub(crate) fn of(file: &'t File<'_>) -> Self {
        let mut this = Self {
            release: file.feature_text(Feature::OSRELEASE),
            programs: file
                .feature(Feature::BPF_PROG_INFO)
                .map(|info| bpf::programs(info).collect())
                .unwrap_or_default(),
            ..Self::default()
        };
        for id in file.build_ids().flatten() {
            this.add_build_id(&id);
        }
        this
    }

    pub(crate) fn add_build_id(&mut self, found: &cofi_perf::BuildIdEntry<'t>) {
        if let Some(id) = BuildId::new(found.id) {
            self.build_ids.insert(found.path, id);
        }
    }

    /// The build id of what was mapped, as far as the mapping or the file's table tells.
    pub(crate) fn build_id(&self, path: &[u8], told: Option<&[u8]>) -> Option<BuildId> {
        told.and_then(BuildId::new)
            .or_else(|| self.build_ids.get(path).copied())
    }

    #[cfg(test)]
    pub(crate) fn add_program(&mut self, address: u64, code: &'t [u8]) {
        self.programs.insert(address, code);
    }

    /// The code of a BPF program that stands at `address`.
    pub(crate) fn program(&self, address: u64) -> Option<&'t [u8]> {
        self.programs.get(&address).copied()
    }

    /// Where files are looked for, with what the trace tells of the machine.
    pub(crate) fn places(&self, options: &CodeOptions) -> Places {
        let mut places = options.places.clone();
        // A name of a folder, as it becomes part of a path.
        let is_name = |name: &&str| !name.contains('/') && *name != ".." && !name.is_empty();
        if let Some(release) = self.release.filter(is_name) {
            places.vdso = Some(Path::new("/lib/modules").join(release).join("vdso"));
        }
        places
    }

    /// The kernel's code, and the names that go with it.
    ///
    /// # Errors
    /// When a file that the user names is of no use.
    pub(crate) fn kernel(
        &self,
        entries: &[Entry<'t>],
        options: &CodeOptions,
        files: &mut FileStore,
    ) -> Result<Option<KernelCode>, ImageError> {
        let maps = entries.iter().filter_map(|entry| match entry.what {
            SidebandChange::Map {
                pid: KERNEL,
                offset,
                path,
                build_id,
                ..
            } => Some((offset, path, build_id)),
            _ => None,
        });
        let mut hints = KernelHints::default();
        for (offset, path, told) in maps {
            // perf puts the name of a symbol behind the name of the kernel, and its address in the place of the offset.
            let Some(anchor) = path.strip_prefix(KALLSYMS) else {
                continue;
            };
            if let Ok(name @ ("_text" | "_stext")) = std::str::from_utf8(anchor) {
                hints.anchor = Some((name.to_owned(), offset));
            }
            hints.build_id = self
                .build_id(path, told)
                .or_else(|| self.build_id(KALLSYMS, None));
            break;
        }
        if let Some(path) = &options.kcore {
            return KernelCode::kcore(path, &hints, files).map(Some);
        }
        if let Some(path) = &options.vmlinux {
            return KernelCode::vmlinux(path, &hints, &options.places, files).map(Some);
        }
        if let Some(packed) = &options.packed {
            return packed.kernel.clone().map(KernelCode::packed).transpose();
        }
        Ok(KernelCode::find(&hints, &options.places, files))
    }

    /// Adds what jitdumps tell to the entries: those that the trace names, and those that the user does.
    ///
    /// # Errors
    /// When a file that the user names is of no use.
    pub(crate) fn read_jitdumps(
        &self,
        entries: &mut Vec<Entry<'t>>,
        dumps: &mut Vec<Arc<CodeFile>>,
        options: &CodeOptions,
        files: &mut FileStore,
    ) -> Result<Vec<String>, ImageError> {
        let mut told = Vec::new();
        let mut known = HashSet::new();
        let mut found: Vec<(Option<u32>, Arc<CodeFile>)> = Vec::new();
        for entry in entries.iter() {
            if let SidebandChange::Map { pid, path, .. } = entry.what
                && pid != KERNEL
                && is_jitdump(&path_of(path))
            {
                let file = files.file(&path_of(path));
                if known.insert(Arc::as_ptr(&file)) {
                    found.push((Some(pid), file));
                }
            }
        }
        for path in &options.jitdumps {
            found.push((None, files.named(path)));
        }
        for (pid, file) in found {
            let dump = match JitDump::read(&file) {
                Ok(dump) => dump,
                Err(error) if pid.is_none() => return Err(error),
                Err(error) => {
                    told.push(error.to_string());
                    continue;
                }
            };
            if let Some(at) = dump.damaged_at {
                let path = file.path().display();
                told.push(format!("{path}: cut off or damaged at offset {at:#x}"));
            }
            let number = dumps.len();
            for code in dump.entries {
                let time = match (dump.is_tsc, self.clock) {
                    (true, Some(clock)) => clock.time_of(Tsc(code.time)),
                    (true, None) => None,
                    (false, _) => Some(PerfTime(code.time)),
                };
                let what = SidebandChange::Generated {
                    pid: pid.unwrap_or(dump.pid),
                    dump: number,
                    code,
                };
                entries.push(Entry { time, what });
            }
            dumps.push(file);
        }
        Ok(told)
    }
}

/// perf's name of the kernel's code.
const KALLSYMS: &[u8] = b"[kernel.kallsyms]";

/// The addresses at which the kernel and its modules were: first address and length of ranges that do not meet.
pub(crate) fn kernel_ranges(entries: &[Entry<'_>]) -> Vec<(u64, u64)> {
    let mut told: Vec<(u64, u64)> = entries
        .iter()
        .filter_map(|entry| match entry.what {
            SidebandChange::Map {
                pid: KERNEL,
                start,
                len,
                path,
                ..
            } if is_kernel_only(path) => Some((start, len)),
            _ => None,
        })
        .collect();
    compact::sort_by(&mut told, Ord::cmp);
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (start, len) in told {
        match ranges.last_mut() {
            Some((first, covered)) if start - *first <= *covered => {
                *covered = (*covered).max((start - *first).saturating_add(len));
            }
            _ => ranges.push((start, len)),
        }
    }
    ranges
}

/// Whether a mapping of the kernel's names no file that holds the code as it stands in memory.
pub(crate) fn is_kernel_only(path: &[u8]) -> bool {
    // A module's file is linked only when it is loaded.
    let is_module = path
        .rsplit(|byte| *byte == b'/')
        .next()
        .is_some_and(|name| name.windows(3).any(|part| part == b".ko"));
    path.starts_with(b"[") || is_module
}

/// The names of a kernel's symbols that lie beside its code.
pub(crate) fn names_beside(kernel: &KernelCode) -> Option<Arc<Kallsyms>> {
    let text = std::fs::read(kernel.kallsyms.as_ref()?).ok()?;
    Kallsyms::parse(&text).ok().map(Arc::new)
}

/// What stood in the kernel's code before it was first changed, byte by byte.
#[derive(Debug, Default)]
pub(crate) struct Before(BTreeMap<u64, u8>);

impl Before {
    /// From entries in the order of time.
    pub(crate) fn of(entries: &[Entry<'_>]) -> Self {
        let mut this = Self::default();
        for entry in entries {
            if let SidebandChange::Poke { address, old, .. } = entry.what {
                for (at, byte) in (address..).zip(old) {
                    this.0.entry(at).or_insert(*byte);
                }
            }
        }
        this
    }

    /// The runs of bytes among the `len` from `start`.
    pub(crate) fn within(&self, start: u64, len: u64) -> Vec<(u64, Vec<u8>)> {
        let last = start.saturating_add(len.saturating_sub(1));
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (at, byte) in self.0.range(start..=last) {
            match runs.last_mut() {
                Some((from, run)) if from.checked_add(run.len() as u64) == Some(*at) => {
                    run.push(*byte);
                }
                _ => runs.push((*at, vec![*byte])),
            }
        }
        runs
    }
}
