//! What happened beside the trace, in order: mappings, programs, threads; and how far each stream had got by then.
//!
//! Every entry of the sideband is a [`Version`]. The order of the entries is the only clock that all of a file has;
//! what ties a stream to it is
//!
//! - an AUX record, which says how far the stream had got: whatever the sideband tells after it concerns later packets
//!   only, and whatever it tells before it has happened by then;
//! - the time, where both the stream and the record have it.
//!
//! A mapping that takes no other's place may be known too early without harm, so that it waits for neither more than
//! it must. One that does, or another program, has to be taken up at the right packet: at the first event of the
//! stream that is behind the last AUX record before it and, unless that record was written at the very same time, not
//! before its time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use cofi_image::{
    AddressSpace, CodeFile, FileStore, ImageView, JitEntry, KernelCode, Paging, PerfMap, Version,
    Within,
};
use cofi_packet::StreamOffset;
use cofi_perf::PerfTime;

use crate::Task;
use crate::apply_sideband::Applier;
use crate::code::{Before, Known};
use crate::compact;
use crate::stream::StreamKey;

/// One entry of the sideband.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'t> {
    pub(crate) time: Option<PerfTime>,
    pub(crate) what: SidebandChange<'t>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SidebandChange<'t> {
    /// A file was mapped.
    Map {
        pid: u32,
        start: u64,
        len: u64,
        offset: u64,
        path: &'t [u8],
        /// What the record itself tells.
        build_id: Option<&'t [u8]>,
    },
    /// A process generated code, or moved it: that of a jitdump.
    Generated {
        pid: u32,
        /// Which of the dumps.
        dump: usize,
        code: JitEntry,
    },
    /// The kernel changed its own code.
    Poke {
        address: u64,
        old: &'t [u8],
        new: &'t [u8],
    },
    /// The kernel has a function more, or fewer: a BPF program, or code for probes.
    KernelSymbol {
        address: u64,
        len: u32,
        is_program: bool,
        gone: bool,
        name: &'t [u8],
    },
    /// A process executes another program.
    Exec { pid: u32 },
    /// A process began as the copy of another.
    Fork { pid: u32, parent: u32 },
    /// A thread belongs to a process.
    Task(Task),
    /// A thread is called so.
    Name { tid: u32, name: &'t [u8] },
    /// A thread began with the name of the one that created it.
    InheritedName { tid: u32, creator: u32 },
    /// A stream has got so far.
    Mark { stream: StreamKey, end: u64 },
    /// A stream is about this thread, in this process, from now on: a processor's stream, or that of a guest's processor.
    Run { stream: StreamKey, task: Task },
}

/// Where code comes from that no path leads to.
#[derive(Debug)]
pub(crate) struct Sources<'a, 't> {
    pub(crate) known: &'a Known<'t>,
    pub(crate) kernel: Option<KernelCode>,
    /// Jitdumps.
    pub(crate) dumps: Vec<Arc<CodeFile>>,
    /// What the user says of address spaces.
    pub(crate) guests: Vec<(Within, AddressSpace)>,
    /// What goes for processes are address spaces of a machine.
    pub(crate) is_guest: bool,
}

/// How far a stream had got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) version: Version,
    pub(crate) time: Option<PerfTime>,
    pub(crate) end: u64,
}

/// A change that a stream has to take up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) version: Version,
    pub(crate) time: Option<PerfTime>,
    /// Whether it would do harm to take it up too early.
    pub(crate) exact: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(crate) image: AddressSpace,
    pub(crate) changes: Vec<Change>,
}

impl Space {
    /// When the change with this version was.
    pub(crate) fn time_of(&self, version: Version) -> Option<PerfTime> {
        let changes = &self.changes;
        let at = changes.partition_point(|change| change.version < version);
        changes
            .get(at)
            .filter(|change| change.version == version)?
            .time
    }
}

/// Everything the sideband tells.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) spaces: Vec<Space>,
    by_pid: HashMap<u32, usize>,
    /// The lists of what processes generated.
    pub(crate) perf_maps: Vec<Arc<PerfMap>>,
    /// Spaces that the user tells of.
    guests: Vec<(Within, usize)>,
    pub(crate) marks: HashMap<StreamKey, Vec<Mark>>,
    pub(crate) runs: HashMap<StreamKey, Vec<(Change, Task)>>,
    pub(crate) pids: HashMap<u32, u32>,
    pub(crate) names: HashMap<u32, String>,
    /// What all address spaces share: the kernel's part.
    pub(crate) kernel: Space,
    /// What goes for processes are address spaces of a machine.
    is_machine: bool,
    /// Code of which nothing is known.
    nothing: AddressSpace,
}

/// The process number under which perf tells of the kernel's code.
pub(crate) const KERNEL: u32 = u32::MAX;

impl Timeline {
    /// Sorts the entries by time and takes them in. `base` is what every process has mapped from the beginning.
    ///
    /// Entries without a time come first: perf writes such for what was there when it began.
    pub(crate) fn new(
        mut entries: Vec<Entry<'_>>,
        base: &AddressSpace,
        files: &mut FileStore,
        sources: &Sources<'_, '_>,
    ) -> Self {
        entries.sort_by_key(|entry| entry.time.unwrap_or_default());
        let mut timeline = Self {
            is_machine: sources.is_guest,
            ..Self::default()
        };
        // What belongs to no process the file tells of: space 0.
        timeline.spaces.push(Space {
            image: base.clone(),
            changes: Vec::new(),
        });
        for (within, image) in &sources.guests {
            timeline.guests.push((*within, timeline.spaces.len()));
            timeline.spaces.push(Space {
                image: image.clone(),
                changes: Vec::new(),
            });
        }
        let mut applier = Applier {
            timeline: &mut timeline,
            base,
            files,
            sources,
            before: Before::of(&entries),
        };
        for (number, entry) in (1..).zip(&entries) {
            applier.apply(entry, Version(number));
        }
        if !sources.is_guest {
            timeline.name_generated(files);
        }
        timeline
    }

    /// Gives processes the names of what they generated, where they left them.
    fn name_generated(&mut self, files: &mut FileStore) {
        let mut spaces: Vec<(u32, usize)> = self.by_pid.iter().map(|(p, s)| (*p, *s)).collect();
        spaces.sort_unstable();
        for (pid, space) in spaces {
            let path = format!("/tmp/perf-{pid}.map");
            if let Some(file) = files.existing(Path::new(&path)) {
                let names = Arc::new(PerfMap::new(file));
                self.spaces[space].image.name_generated(&names);
                self.perf_maps.push(names);
            }
        }
    }

    pub(crate) fn space_index(&mut self, pid: u32, base: &AddressSpace) -> usize {
        let next = self.spaces.len();
        let index = *self.by_pid.entry(pid).or_insert(next);
        if index == next {
            self.spaces.push(Space {
                image: base.clone(),
                changes: Vec::new(),
            });
        }
        index
    }

    /// All spaces: those of processes by their numbers, behind those that belong to none.
    pub(crate) fn by_process(&self) -> impl Iterator<Item = (Option<u32>, &Space)> {
        let mut pids: Vec<(usize, u32)> = self.by_pid.iter().map(|(p, s)| (*s, *p)).collect();
        compact::sort_by_key(&mut pids, |(space, _)| *space);
        let is_process = |space: &usize| pids.binary_search_by_key(space, |(s, _)| *s).is_ok();
        let others: Vec<usize> = (0..self.spaces.len()).filter(|s| !is_process(s)).collect();
        compact::sort_by_key(&mut pids, |(_, pid)| *pid);
        let others = others.into_iter().map(|space| (None, space));
        let processes = pids.into_iter().map(|(space, pid)| (Some(pid), space));
        let spaces = others
            .chain(processes)
            .filter_map(|(pid, space)| Some((pid, self.spaces.get(space)?)));
        spaces.chain([(None, &self.kernel)])
    }

    pub(crate) fn space_mut(&mut self, pid: u32, base: &AddressSpace) -> &mut Space {
        let index = self.space_index(pid, base);
        &mut self.spaces[index]
    }

    fn space_of(&self, pid: u32) -> usize {
        self.by_pid.get(&pid).copied().unwrap_or(0)
    }

    /// The space that the user tells of for what a processor is in: the one that names most of it.
    fn guest_space(&self, paging: &Paging) -> Option<usize> {
        let fitting = self.guests.iter().rev();
        let fitting = fitting.filter_map(|(within, space)| Some((within.fits(paging)?, *space)));
        fitting
            .max_by_key(|(count, _)| *count)
            .map(|(_, space)| space)
    }

    /// The process of a thread; a thread the file does not tell of is taken for a process's first.
    pub(crate) fn pid_of(&self, tid: u32) -> u32 {
        self.pids.get(&tid).copied().unwrap_or(tid)
    }

    /// The last name of a thread.
    pub(crate) fn name_of(&self, tid: u32) -> Option<&str> {
        self.names.get(&tid).map(String::as_str)
    }

    /// Expresses how far `stream` had got in offsets into its joined bytes.
    pub(crate) fn place_marks(&mut self, stream: StreamKey, place: impl Fn(u64) -> StreamOffset) {
        for mark in self.marks.entry(stream).or_default() {
            mark.end = place(mark.end).0;
        }
    }

    /// The code of a process and the kernel.
    pub(crate) fn view(&self, pid: u32, version: Version) -> ImageView<'_> {
        let space = &self.spaces[self.space_of(pid)];
        ImageView::new(&space.image, version).with_kernel(&self.kernel.image)
    }

    fn marks(&self, stream: StreamKey) -> &[Mark] {
        self.marks.get(&stream).map_or(&[], Vec::as_slice)
    }
}

/// Where in the timeline a stream is.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'s> {
    timeline: &'s Timeline,
    marks: &'s [Mark],
    runs: &'s [(Change, Task)],
    task: Task,
    /// The space of the thread that runs, or of the machine's page tables.
    by_sideband: usize,
    /// The one that the user tells of instead.
    by_user: Option<usize>,
    /// How many changes of the space have been taken up or passed over.
    change: usize,
    /// How many of the kernel's.
    kernel_change: usize,
    /// How many of `runs`.
    run: usize,
    version: Version,
}

impl<'s> Cursor<'s> {
    pub(crate) fn new(timeline: &'s Timeline, stream: StreamKey) -> Self {
        let task = match stream {
            StreamKey::Thread(tid) => Task {
                pid: timeline.pid_of(tid),
                tid,
            },
            // Nothing is known until the first thread is said to run.
            StreamKey::Only | StreamKey::Cpu(_) => Task { pid: 0, tid: 0 },
        };
        let runs = timeline.runs.get(&stream);
        let space = if stream == StreamKey::Only {
            0
        } else {
            timeline.space_of(task.pid)
        };
        Self {
            timeline,
            marks: timeline.marks(stream),
            runs: runs.map_or(&[], Vec::as_slice),
            task,
            by_sideband: space,
            by_user: None,
            change: 0,
            kernel_change: 0,
            run: 0,
            version: Version(0),
        }
    }

    pub(crate) fn task(&self) -> Task {
        self.task
    }

    /// The packets that follow are said to be of this thread. What the sideband tells of who runs counts more.
    pub(crate) fn assume(&mut self, task: Option<Task>) {
        let Some(task) = task.filter(|task| self.runs.is_empty() && *task != self.task) else {
            return;
        };
        self.task = task;
        self.by_sideband = self.timeline.space_of(task.pid);
        let changes = &self.timeline.spaces[self.space()].changes;
        self.change = changes.partition_point(|change| change.version <= self.version);
    }

    /// Of the code that is in place, what is not the kernel's.
    pub(crate) fn image(&self) -> &'s AddressSpace {
        &self.timeline.spaces[self.space()].image
    }

    /// The code that is in place.
    pub(crate) fn view(&self) -> ImageView<'s> {
        let view = ImageView::new(self.image(), self.version);
        // The kernel of a traced system is not that of its guests.
        if self.is_told() && !self.timeline.is_machine {
            view
        } else {
            view.with_kernel(&self.timeline.kernel.image)
        }
    }

    /// Code of which nothing is known.
    pub(crate) fn nothing(&self) -> ImageView<'s> {
        ImageView::new(&self.timeline.nothing, Version(0))
    }

    /// The processor is in another address space, or it became known in which. `is_guest` tells that address spaces take the
    /// place of processes. Whether other code holds than before.
    pub(crate) fn switch_to(&mut self, paging: &Paging, is_guest: bool) -> bool {
        let before = self.space();
        if let (true, Some(cr3)) = (is_guest, paging.cr3) {
            let pid = (cr3 >> 12) as u32 & 0x7fff_ffff;
            self.by_sideband = self.timeline.space_of(pid);
        }
        self.by_user = self.timeline.guest_space(paging);
        let space = self.space();
        if space == before {
            return false;
        }
        let changes = &self.timeline.spaces[space].changes;
        self.change = changes.partition_point(|change| change.version <= self.version);
        true
    }

    /// Whether the user tells of the address space that the processor is in.
    pub(crate) fn is_told(&self) -> bool {
        self.by_user.is_some()
    }

    fn space(&self) -> usize {
        self.by_user.unwrap_or(self.by_sideband)
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Whether nothing is left to be taken up.
    pub(crate) fn is_done(&self) -> bool {
        self.run == self.runs.len()
            && self.change == self.timeline.spaces[self.space()].changes.len()
            && self.kernel_change == self.timeline.kernel.changes.len()
    }

    /// Takes up whatever has happened by an event at `offset` and the time that `now` tells; none for a stream that
    /// never tells the time. Returns whether there was anything.
    pub(crate) fn advance(
        &mut self,
        offset: StreamOffset,
        mut now: Option<&mut dyn FnMut() -> Option<PerfTime>>,
    ) -> bool {
        let mut moved = false;
        loop {
            let change = self.timeline.spaces[self.space()].changes.get(self.change);
            let kernel = self.timeline.kernel.changes.get(self.kernel_change);
            let run = self.runs.get(self.run).map(|(run, _)| run);
            // No two of them are of the same entry.
            let candidates = [change, kernel, run].into_iter().flatten();
            let Some(&next) = candidates.min_by_key(|next| next.version) else {
                break;
            };
            if !self.has_come(next, offset, &mut now) {
                break;
            }
            moved = true;
            self.version = next.version;
            let is_next = |other: Option<&Change>| other.is_some_and(|o| o.version == next.version);
            if is_next(change) {
                self.change += 1;
            } else if is_next(kernel) {
                self.kernel_change += 1;
            } else {
                let (_, task) = self.runs[self.run];
                self.run += 1;
                self.task = task;
                self.by_sideband = self.timeline.space_of(task.pid);
                let changes = &self.timeline.spaces[self.space()].changes;
                self.change = changes.partition_point(|change| change.version < next.version);
            }
        }
        moved
    }

    fn has_come(
        &self,
        change: Change,
        offset: StreamOffset,
        now: &mut Option<&mut dyn FnMut() -> Option<PerfTime>>,
    ) -> bool {
        let after = self
            .marks
            .partition_point(|mark| mark.version < change.version);
        let before = after.checked_sub(1).and_then(|index| self.marks.get(index));
        if before.is_some_and(|mark| offset.0 < mark.end) {
            return false;
        }
        if self
            .marks
            .get(after)
            .is_some_and(|mark| offset.0 >= mark.end)
        {
            return true;
        }
        let Some(time) = change.time.filter(|_| change.exact) else {
            return true;
        };
        if before.is_some_and(|mark| mark.time == Some(time)) {
            return true;
        }
        now.as_mut()
            .is_none_or(|now| now().is_some_and(|now| now >= time))
    }
}
