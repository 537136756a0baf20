//! How each entry of the sideband changes what is known.

use std::sync::Arc;

use cofi_host::path_of;
use cofi_image::{AddressSpace, CodeFile, FileStore, Version};
use cofi_perf::PerfTime;

use crate::code::{Before, is_kernel_only};
use crate::timeline::{Change, Entry, KERNEL, Mark, SidebandChange, Sources, Timeline};

/// Longer code for probes than this is not looked at.
const OUT_OF_LINE_LIMIT: u32 = 1 << 20;

/// The name under which code goes that the kernel put in the place of other code.
const POKED: &str = "[kernel.text_poke]";

type When = (Version, Option<PerfTime>);

/// Takes entries into a timeline.
pub(crate) struct Applier<'a, 't> {
    pub(crate) timeline: &'a mut Timeline,
    /// What every process has mapped from the beginning.
    pub(crate) base: &'a AddressSpace,
    pub(crate) files: &'a mut FileStore,
    pub(crate) sources: &'a Sources<'a, 't>,
    pub(crate) before: Before,
}

impl Applier<'_, '_> {
    pub(crate) fn apply(&mut self, entry: &Entry<'_>, version: Version) {
        let time = entry.time;
        let when = (version, time);
        let exact = |exact| Change {
            version,
            time,
            exact,
        };
        let base = self.base;
        match entry.what {
            SidebandChange::Map {
                pid: KERNEL,
                start,
                len,
                offset,
                path,
                build_id,
            } => self.map_kernel((start, len, offset), path, build_id, when),
            SidebandChange::Map {
                pid,
                start,
                len,
                offset,
                path,
                build_id,
            } => {
                let id = self.sources.known.build_id(path, build_id);
                let file = self.files.file_of(&path_of(path), id);
                self.map(pid, (start, len, offset), &file, when);
            }
            SidebandChange::Generated { pid, dump, code } => {
                let Some(file) = self.sources.dumps.get(dump) else {
                    return;
                };
                if let Some(old) = code.moved_from {
                    let space = self.timeline.space_mut(pid, base);
                    space.image.unmap(old, code.len, version);
                    space.changes.push(exact(true));
                }
                self.map(pid, (code.address, code.len, code.offset), file, when);
            }
            SidebandChange::Poke { address, old, new } => {
                if new.len() < old.len() {
                    self.unmap_shared(address, old.len() as u64, when);
                }
                let file = CodeFile::from_bytes(POKED, new.to_vec());
                self.map_shared((address, new.len() as u64, 0), &file, when);
            }
            SidebandChange::KernelSymbol {
                address,
                len,
                is_program,
                gone,
                name,
            } => {
                if gone {
                    return self.unmap_shared(address, len.into(), when);
                }
                let file = self.kernel_function(address, len, is_program, name);
                self.map_shared((address, len.into(), 0), &file, when);
            }
            SidebandChange::Exec { pid } => {
                let timeline = &mut *self.timeline;
                let index = timeline.space_index(pid, base);
                let space = &mut timeline.spaces[index];
                let overlaps = space.image.overlaps(0, u64::MAX);
                space.image.inherit(base, version);
                space.changes.push(exact(overlaps));
            }
            SidebandChange::Fork { pid, parent } if pid != parent => {
                let timeline = &mut *self.timeline;
                let (parent, child) = (
                    timeline.space_index(parent, base),
                    timeline.space_index(pid, base),
                );
                if let Ok([parent, child]) = timeline.spaces.get_disjoint_mut([parent, child]) {
                    // Only a process number that is used again has something in it.
                    let used = !child.changes.is_empty();
                    child.image.inherit(&parent.image, version);
                    child.changes.push(exact(used));
                }
            }
            SidebandChange::Fork { .. } => {}
            SidebandChange::Task(task) => {
                self.timeline.pids.insert(task.tid, task.pid);
            }
            SidebandChange::Name { tid, name } => {
                let name = String::from_utf8_lossy(name).into_owned();
                self.timeline.names.insert(tid, name);
            }
            SidebandChange::InheritedName { tid, creator } => {
                let names = &mut self.timeline.names;
                // perf tells of threads that were there before it began in any order, and without a time.
                if tid != creator
                    && (time.is_some() || !names.contains_key(&tid))
                    && let Some(name) = names.get(&creator).cloned()
                {
                    names.insert(tid, name);
                }
            }
            SidebandChange::Mark { stream, end } => {
                let marks = self.timeline.marks.entry(stream).or_default();
                let end = marks.last().map_or(end, |last| last.end.max(end));
                marks.push(Mark { version, time, end });
            }
            SidebandChange::Run { stream, task } => {
                self.timeline.pids.insert(task.tid, task.pid);
                let runs = self.timeline.runs.entry(stream).or_default();
                runs.push((exact(true), task));
            }
        }
    }

    /// Code of one process's.
    fn map(
        &mut self,
        pid: u32,
        (start, len, offset): (u64, u64, u64),
        file: &Arc<CodeFile>,
        (version, time): When,
    ) {
        let space = self.timeline.space_mut(pid, self.base);
        let exact = space.image.overlaps(start, len);
        space.image.map(start, len, file, offset, version);
        space.changes.push(Change {
            version,
            time,
            exact,
        });
    }

    /// The kernel, or a module of it: from a copy of its memory where there is one, and as it was before it was changed.
    fn map_kernel(
        &mut self,
        (start, len, offset): (u64, u64, u64),
        path: &[u8],
        told: Option<&[u8]>,
        when: When,
    ) {
        let sources = self.sources;
        match &sources.kernel {
            Some(kernel) if is_kernel_only(path) => {
                for part in kernel.parts(start, len) {
                    self.map_shared(part, kernel.file(), when);
                }
            }
            _ => {
                let id = sources.known.build_id(path, told);
                let file = if is_kernel_only(path) {
                    self.files.kernel_file(&path_of(path))
                } else {
                    self.files.file_of(&path_of(path), id)
                };
                self.map_shared((start, len, offset), &file, when);
            }
        }
        for (at, bytes) in self.before.within(start, len) {
            let len = bytes.len() as u64;
            let file = CodeFile::from_bytes(POKED, bytes);
            self.map_shared((at, len, 0), &file, when);
        }
    }

    /// A BPF program, or code that the kernel made for probes.
    fn kernel_function(
        &mut self,
        address: u64,
        len: u32,
        is_program: bool,
        name: &[u8],
    ) -> Arc<CodeFile> {
        let name = String::from_utf8_lossy(name);
        let owner = if is_program { "[bpf]" } else { "[kernel]" };
        let bytes = if is_program {
            self.sources.known.program(address).map(<[u8]>::to_vec)
        } else if len <= OUT_OF_LINE_LIMIT {
            // What was poked there just before.
            let kernel = &self.timeline.kernel.image;
            kernel.last_bytes(address, len as usize)
        } else {
            None
        };
        match bytes {
            Some(bytes) => CodeFile::function(owner, &name, bytes),
            None => {
                let file = CodeFile::without_code(format!("{owner} {name}"), &name, len.into());
                // For its problem to be told if it is needed.
                self.files.add(file.clone());
                file
            }
        }
    }

    /// Code of the kernel's, which all address spaces have.
    fn map_shared(
        &mut self,
        (start, len, offset): (u64, u64, u64),
        file: &Arc<CodeFile>,
        when: When,
    ) {
        self.change_shared(start, len, when, |image| {
            image.map(start, len, file, offset, when.0);
        });
    }

    fn unmap_shared(&mut self, start: u64, len: u64, when: When) {
        self.change_shared(start, len, when, |image| image.unmap(start, len, when.0));
    }

    fn change_shared(
        &mut self,
        start: u64,
        len: u64,
        (version, time): When,
        change: impl FnOnce(&mut AddressSpace),
    ) {
        let kernel = &mut self.timeline.kernel;
        let exact = kernel.image.overlaps(start, len);
        change(&mut kernel.image);
        kernel.changes.push(Change {
            version,
            time,
            exact,
        });
    }
}
