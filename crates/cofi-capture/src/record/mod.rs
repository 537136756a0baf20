//! The recorder: from what an engine observes to a perf.data file, through a trace unit a thread.

mod code;
mod file;
mod gates;
mod lane;
mod machine;
mod output;
mod settings;
mod sink;
pub(crate) mod thread;
mod truth;

pub(crate) use code::SavedFiles;
pub use output::write_file;
pub(crate) use output::{Output, folder_of, private_file};
pub use settings::{RecordError, Settings};
pub use truth::{Truth, TruthStream};

use crate::notice::Notices;
use crate::ptrace::sys::Dispositions;
use crate::{
    Entry, Lane, Mapping, Missing, Notice, Observer, Pid, ProcessCause, Runs, SavedCode, Signal,
};
use cofi_insn::Insn;
use cofi_packet::{ExecMode, Ip};
use cofi_perf::{Mmap2, Remark, Task};
use file::TraceFile;
use gates::Gates;
pub use gates::{Gate, Window};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Instant;
use thread::{Ring, Thread, Threads, VirtualClock};

/// So many bytes of a stream wait for the next PSB before they are written.
const CHUNK: usize = 1 << 20;

/// Takes what an engine observes, drives a trace unit for each thread, and writes the file as it goes.
#[derive(Debug)]
pub struct Recorder {
    settings: Settings,
    file: TraceFile,
    saved: SavedFiles,
    clock: VirtualClock,
    threads: Threads,
    streams: u32,
    /// Streams of threads that are gone, by number of the thread. A thread with the same number (after
    /// execve, or reused) goes on with the stream.
    ended: BTreeMap<Pid, Ended>,
    /// Where tracing begins and ends, if somebody asks for that.
    gates: Option<Gates>,
    /// Of a machine's processors: the address space that a record has told of last.
    told_space: BTreeMap<Pid, Pid>,
    instructions: u64,
    truth: Option<Truth>,
    /// The first thing that went wrong; nothing is recorded after it.
    error: Option<RecordError>,
    notices: Notices,
    /// What is missing, by thread and sentence, and how often.
    missing: BTreeMap<(Option<Pid>, String), u64>,
    /// When everything was written last.
    flushed: Instant,
    /// The files are where they belong.
    has_begun: bool,
    /// A limit of a file's size is an error, and does not end us.
    _dispositions: Dispositions,
}

/// What is left of a thread that is gone.
#[derive(Debug)]
struct Ended {
    /// Number of its stream.
    index: u32,
    /// How long that is.
    len: u64,
    /// Its last packets, if these wait.
    ring: Option<Ring>,
}

/// What was recorded.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Recorded {
    /// The engine's own lists, if they were asked for.
    pub truth: Vec<TruthStream>,
    /// How many threads were traced.
    pub streams: u32,
    /// How many instructions retired.
    pub instructions: u64,
    /// How many packet bytes were written.
    pub trace_bytes: u64,
    /// What is known to be missing, as the file says it.
    pub missing: Vec<Missing>,
    /// Functions at which tracing was to begin or end, and that no file has: a sentence each.
    pub unknown: Vec<String>,
    /// Why the file is not complete, or the bare packets are not, if so.
    pub errors: Vec<RecordError>,
}

impl Recorder {
    /// Creates the file, and checks that the trace unit takes the configuration.
    ///
    /// # Errors
    /// When the unit refuses the configuration or a file cannot be created.
    pub fn create(settings: Settings, truth: Option<Truth>) -> Result<Self, RecordError> {
        let clock = VirtualClock::new();
        Thread::start((0, 0, 0, 0), settings.setup(), clock)?;
        let mut dispositions = Dispositions::default();
        dispositions.catching(libc::SIGXFSZ);
        let file = TraceFile::create(&settings)?;
        let saved = SavedFiles::beside(&settings.file).map_err(write_error(&settings.file))?;
        let gates = settings.window.clone().map(Gates::new);
        Ok(Self {
            gates,
            settings,
            file,
            saved,
            clock,
            threads: Threads::default(),
            streams: 0,
            ended: BTreeMap::new(),
            told_space: BTreeMap::new(),
            instructions: 0,
            truth,
            error: None,
            notices: Notices::default(),
            missing: BTreeMap::new(),
            flushed: Instant::now(),
            has_begun: false,
            _dispositions: dispositions,
        })
    }

    /// Says each [`Notice`] once, as it comes, by `to`.
    pub fn on_notice(&mut self, to: impl FnMut(&Notice) + 'static) {
        self.notices.to = Some(Box::new(to));
    }

    /// Whether the program was started: the files are where they belong.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The program has been started: puts the files where they belong.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            let moved = self.saved.begin().map_err(write_error(self.saved.folder()));
            let result = moved.and_then(|()| self.file.commit());
            self.keep(result);
        }
    }

    /// Writes what is left, and completes the file. If something could not be written, the file holds what was before, and says so,
    /// and so does [`Recorded`].
    ///
    /// # Errors
    /// Nothing could be written at all.
    pub fn finish(mut self) -> Result<Recorded, RecordError> {
        let tids: Vec<Pid> = self.threads.all().map(|thread| thread.tid).collect();
        for tid in tids {
            self.end_thread(tid);
        }
        self.begin();
        self.write_rings();
        let gates = self.gates.take();
        if let Some(omitted) = gates.as_ref().and_then(Gates::omitted) {
            self.leaves_out(&omitted);
        }
        let mut errors = Vec::new();
        let mut trace_bytes = 0;
        let finished = self.file.finish();
        if let Some(bytes) = self.keep(finished) {
            trace_bytes = bytes;
        } else {
            // With the room that was kept for it.
            match self.file.finish() {
                Ok(bytes) => trace_bytes = bytes,
                Err(error) => errors.push(error),
            }
        }
        errors.extend(self.file.raw_error.take());
        let path = self.settings.file.clone();
        let truth = self
            .truth
            .map(Truth::finish)
            .transpose()
            .map_err(write_error(&path))?;
        Ok(Recorded {
            truth: truth.unwrap_or_default(),
            streams: self.streams,
            instructions: self.instructions,
            trace_bytes,
            missing: self
                .missing
                .into_iter()
                .map(|((tid, text), count)| Missing { tid, text, count })
                .collect(),
            unknown: gates.map_or_else(Vec::new, |gates| gates.unknown()),
            errors,
        })
    }

    fn keep<T>(&mut self, result: Result<T, RecordError>) -> Option<T> {
        result.map_err(|error| self.give_up(error)).ok()
    }

    /// Something cannot be written. What has gathered is, as far as there is room, and what is missing; nothing else from now on.
    fn give_up(&mut self, error: RecordError) {
        if self.error.is_some() {
            return;
        }
        let sentence = error.sentence();
        self.error = Some(error);
        let mut room = self.file.begin_last_words();
        let mut threads = self.threads.take();
        for thread in &mut threads {
            thread.stop(self.clock);
        }
        if self.settings.last.is_some() {
            for thread in threads {
                self.hold(thread);
            }
            threads = Vec::new();
        }
        // Whoever has little leaves its share to the others.
        threads.sort_by_key(Thread::waiting);
        let count = threads.len() as u64;
        for (thread, left) in threads.iter_mut().zip((1..=count).rev()) {
            let waiting = thread.waiting();
            let lost = self.file.write_last(thread, self.clock, room / left);
            let lost = lost.unwrap_or(waiting);
            room = room.saturating_sub((waiting - lost) as u64 + 128);
            if lost > 0 {
                let text = format!("its last {lost} bytes of packets found no room");
                self.misses(Missing::of(thread.tid, text));
            }
        }
        let text = format!("{sentence}; what ran from then on is not in the trace");
        self.misses(Missing::new(text));
        // If this fails as well, the file ends without having been finished.
        let _ = self.file.flush();
    }

    /// Says in the file that something is missing.
    fn misses(&mut self, missing: Missing) {
        /// Of so many threads each is named.
        const NAMED: usize = 1 << 12;
        let result = self.file.remark(&Remark::Missing(missing.remark()));
        let tid = missing.tid.filter(|_| self.missing.len() < NAMED);
        let count = self.missing.entry((tid, missing.text)).or_default();
        *count = count.saturating_add(missing.count);
        self.keep(result);
    }

    /// Writes everything, so that it is there even if we are killed: each thread's trace ends here for a moment, which sends what
    /// its unit has gathered.
    fn flush(&mut self) {
        let before = self.clock;
        let mut result = Ok(());
        // Those of a flight recorder wait for the end.
        if self.settings.last.is_none() && self.threads.all().any(Thread::is_dirty) {
            self.clock.pause();
            let clock = self.clock;
            for thread in self.threads.all_mut().filter(|thread| thread.is_dirty()) {
                thread.mark_begin(before);
                result = result
                    .and_then(|()| self.file.announce(thread, clock))
                    .and_then(|()| self.file.write_stream(thread, true));
            }
            self.clock.pause();
            for thread in self.threads.all_mut().filter(|thread| thread.is_dirty()) {
                thread.mark_end(self.clock);
                thread.flushed();
            }
        }
        let result = result.and_then(|()| self.file.flush());
        self.keep(result);
        self.flushed = Instant::now();
    }

    /// Something is about to be told that changes code or names in `pid` from here on: its threads stop tracing, and
    /// AUX records say how far they have got.
    fn mark(
        &mut self,
        pid: Pid,
        tell: impl FnOnce(&mut TraceFile, VirtualClock) -> Result<(), RecordError>,
    ) {
        let before = self.clock;
        self.clock.pause();
        let clock = self.clock;
        let mut result = Ok(());
        for thread in self.threads.all_mut().filter(|thread| thread.pid == pid) {
            thread.mark_begin(before);
            result = result.and_then(|()| self.file.announce(thread, clock));
        }
        let result = result.and_then(|()| tell(&mut self.file, clock));
        self.keep(result);
        // What comes after the record is later than it.
        self.clock.pause();
        let clock = self.clock;
        for thread in self.threads.all_mut().filter(|thread| thread.pid == pid) {
            thread.mark_end(clock);
        }
    }

    /// A thread goes on with code of this mode: where its packets do not tell that, an AUX record does.
    pub(super) fn tell_mode(&mut self, tid: Pid, mode: ExecMode) {
        let clock = self.clock;
        let Some(thread) = self.threads.get_mut(tid) else {
            return;
        };
        if !thread.owes_mode(mode) {
            return;
        }
        thread.mark_begin(clock);
        let result = self.file.announce(thread, clock);
        thread.mode_told(mode);
        thread.mark_end(clock);
        self.keep(result);
    }

    fn end_thread(&mut self, tid: Pid) {
        let Some(thread) = self.threads.get_mut(tid) else {
            return;
        };
        thread.stop(self.clock);
        let mut result = self.file.announce(thread, self.clock);
        if self.settings.last.is_none() {
            result = result.and_then(|()| self.file.write_stream(thread, true));
        }
        // If that failed, what there is room for is written with the last words of the others, and none of them is left.
        self.keep(result);
        if let Some(thread) = self.threads.remove(tid) {
            self.hold(thread);
        }
    }

    /// A thread is gone, whose stream another one with the same number may go on with.
    fn hold(&mut self, mut thread: Thread) {
        let ring = thread.take_ring();
        let (index, len) = (thread.index, thread.stream_len());
        self.ended.insert(thread.tid, Ended { index, len, ring });
    }

    /// Writes the last packets of each thread, which have waited for this.
    fn write_rings(&mut self) {
        let ended = std::mem::take(&mut self.ended).into_iter();
        let mut rings: Vec<(u32, Pid, Ring)> = ended
            .filter_map(|(tid, ended)| Some((ended.index, tid, ended.ring?)))
            .collect();
        rings.sort_by_key(|(index, ..)| *index);
        // The last packets are worth more than those before them: where there is no room for all, the oldest of each thread go.
        let dropped: Vec<u64> = rings.iter().map(|(.., ring)| ring.dropped()).collect();
        let mut lost = vec![0; rings.len()];
        while !self
            .file
            .has_room(rings.iter().map(|(.., ring)| ring.size_in_file()).sum())
        {
            let mut any = false;
            for ((.., ring), lost) in rings.iter_mut().zip(&mut lost) {
                let dropped = ring.shrink(ring.held() / 8 * 7);
                *lost += dropped;
                any |= dropped > 0;
            }
            if !any {
                break;
            }
        }
        let mut left = rings.len() as u64;
        for (((index, tid, ring), dropped), mut lost) in rings.iter_mut().zip(dropped).zip(lost) {
            if self.error.is_none() {
                let result = self.file.write_ring((*index, *tid), ring);
                self.keep(result);
            }
            if self.error.is_some() {
                // With the room that was kept for it.
                let room = self.file.begin_last_words() / left;
                lost += ring.shrink(room);
                if self.file.write_ring((*index, *tid), ring).is_err() {
                    lost += ring.shrink(0);
                }
            }
            if lost > 0 {
                let text = format!("{lost} bytes of the packets that were kept found no room");
                self.misses(Missing::of(*tid, text));
            }
            left -= 1;
            if dropped > 0 {
                let text = format!("the first {dropped} bytes of its packets (--last)");
                self.leaves_out(&Missing::of(*tid, text));
            }
        }
    }

    /// Says in the file that something was not wanted.
    fn leaves_out(&mut self, omitted: &Missing) {
        let result = self.file.remark(&Remark::Omitted(omitted.remark()));
        self.keep(result);
    }

    fn after_step(&mut self, tid: Pid) {
        if self.settings.last.is_none()
            && let Some(thread) = self.threads.get_mut(tid)
            && thread.waiting() >= CHUNK
        {
            let result = self
                .file
                .announce(thread, self.clock)
                .and_then(|()| self.file.write_stream(thread, false));
            self.keep(result);
        }
    }

    /// The instruction at `ip` is about to run: tracing may begin there, or end.
    #[inline]
    fn come_to(&mut self, tid: Pid, ip: Ip) {
        if self.gates.is_some() {
            self.pass_gate(tid, ip);
        }
    }

    fn pass_gate(&mut self, tid: Pid, ip: Ip) {
        let (Some(gates), Some(thread)) = (&mut self.gates, self.threads.get_mut(tid)) else {
            return;
        };
        let pid = thread.pid;
        let Some(on) = gates.turn(pid, ip.0) else {
            return;
        };
        let before = self.clock;
        self.clock.pause();
        let clock = if on { self.clock } else { before };
        for thread in self.threads.all_mut().filter(|thread| thread.pid == pid) {
            thread.switch(clock, on);
        }
    }

    /// An instruction retired.
    fn truth(&mut self, tid: Pid, ip: Ip) {
        self.in_lane(tid, |lane| lane.truth(ip));
    }
}

impl Observer for Recorder {
    fn notice(&mut self, notice: Notice) {
        self.notices.tell(notice);
    }

    fn process(&mut self, pid: Pid, parent: Option<Pid>, cause: ProcessCause, comm: &str) {
        self.begin();
        if let Some(gates) = &mut self.gates {
            gates.process(pid, parent, cause);
        }
        let task = Task { pid, tid: pid };
        let comm = comm.to_owned();
        self.mark(pid, |file, clock| match (cause, parent) {
            (ProcessCause::Fork, Some(parent)) => {
                file.fork(
                    task,
                    Task {
                        pid: parent,
                        tid: parent,
                    },
                    clock,
                )?;
                file.comm(task, &comm, false, clock)
            }
            _ => file.comm(task, &comm, cause == ProcessCause::Exec, clock),
        });
    }

    fn thread_start(&mut self, pid: Pid, tid: Pid, parent: Option<Pid>) {
        let task = Task { pid, tid };
        let clock = self.clock;
        // The first thread of a process came with it.
        let result = match parent {
            Some(parent) if tid != pid => self.file.fork(task, Task { pid, tid: parent }, clock),
            _ => Ok(()),
        };
        let result = result.and_then(|()| self.file.itrace_start(task, clock));
        self.keep(result);
        self.clock.pause();
        if self.error.is_some() {
            return;
        }
        let next = self.streams;
        let Ended { index, len, ring } = self.ended.remove(&tid).unwrap_or_else(|| Ended {
            index: next,
            len: 0,
            ring: self.settings.last.map(Ring::new),
        });
        self.streams += u32::from(index == next);
        let ids = (pid, tid, index, len);
        let thread = Thread::start(ids, self.settings.setup(), self.clock);
        if let Some(mut thread) = self.keep(thread.map_err(RecordError::from)) {
            thread.keep_last(ring);
            if self.gates.as_ref().is_some_and(|gates| !gates.is_on(pid)) {
                thread.begin_off(self.clock);
            }
            self.threads.insert(thread);
        }
        if let Some(truth) = &mut self.truth {
            let result = truth
                .begin(index, tid)
                .map_err(write_error(&self.settings.file));
            self.keep(result);
        }
    }

    fn thread_exit(&mut self, pid: Pid, tid: Pid) {
        self.end_thread(tid);
        let result = self.file.exit(Task { pid, tid }, self.clock);
        self.keep(result);
        self.clock.pause();
    }

    fn comm(&mut self, pid: Pid, tid: Pid, comm: &str) {
        let result = self.file.comm(Task { pid, tid }, comm, false, self.clock);
        self.keep(result);
        self.clock.pause();
    }

    fn mapped(&mut self, pid: Pid, tid: Pid, mappings: &[Mapping]) {
        if let Some(gates) = &mut self.gates {
            gates.mapped(pid, mappings);
        }
        let task = Task { pid, tid };
        self.mark(pid, |file, clock| {
            for map in mappings {
                let record = Mmap2 {
                    start: map.start,
                    len: map.end - map.start,
                    pgoff: map.offset,
                    device: map.device,
                    inode: map.inode,
                    prot: map.prot,
                    path: map.path.as_os_str().as_bytes(),
                };
                file.mmap2(task, &record, clock)?;
            }
            Ok(())
        });
    }

    fn code(&mut self, pid: Pid, tid: Pid, code: SavedCode<'_>) {
        let saved = self.saved.save(pid, code.start, code.bytes);
        let Some(path) = self.keep(saved.map_err(write_error(self.saved.folder()))) else {
            return;
        };
        let task = Task { pid, tid };
        self.mark(pid, |file, clock| {
            let record = Mmap2 {
                start: code.start,
                len: code.bytes.len() as u64,
                pgoff: 0,
                device: (0, 0),
                inode: 0,
                prot: 5,
                path: path.as_os_str().as_bytes(),
            };
            file.mmap2(task, &record, clock)
        });
    }

    fn resume_user(&mut self, tid: Pid, ip: Ip, mode: ExecMode) {
        self.tell_mode(tid, mode);
        if let Some(thread) = self.threads.get_mut(tid) {
            thread.resume_user(self.clock, ip, mode);
        }
    }

    fn watched(&self, pid: Pid) -> &[u64] {
        self.gates.as_ref().map_or(&[], |gates| gates.watched(pid))
    }

    fn retired(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip) {
        self.come_to(tid, ip);
        self.in_lane(tid, |lane| lane.retired(ip, insn, next));
    }

    fn ran(&mut self, tid: Pid, runs: &mut Runs<'_>) {
        self.in_lane(tid, |lane| lane.ran(runs));
    }

    fn far_branch(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip, mode: ExecMode) {
        self.come_to(tid, ip);
        self.in_lane(tid, |lane| lane.far_branch(ip, insn, next, mode));
        self.tell_mode(tid, mode);
    }

    fn enter_kernel(&mut self, tid: Pid, entry: Entry) {
        if let Entry::Instruction { ip, .. } | Entry::SoftwareInterrupt { ip, .. } = entry {
            self.come_to(tid, ip);
        }
        self.in_lane(tid, |lane| lane.enter_kernel(entry));
    }

    fn apart(&mut self, tids: &[Pid], tell: &mut dyn FnMut(&mut [&mut (dyn Lane + Send)])) -> bool {
        self.tell_apart(tids, tell)
    }

    fn signal(&mut self, tid: Pid, signal: Signal) {
        let clock = self.clock;
        let Some(thread) = self.threads.get_mut(tid) else {
            return;
        };
        // Where its last block ended is not known: what it ran before stands before the signal all the same.
        let in_user = thread.in_user();
        if in_user {
            thread.mark_begin(clock);
        }
        let result = self.file.signal(thread, &signal);
        if in_user && !signal.is_fatal {
            thread.mark_end(clock);
        }
        self.keep(result);
    }

    fn missing(&mut self, missing: Missing) {
        // Afterwards everything is.
        if self.error.is_none() {
            self.misses(missing);
        }
    }

    fn tick(&mut self) {
        if self.error.is_none()
            && self.has_begun
            && self.flushed.elapsed() >= self.settings.patience
        {
            self.flush();
        }
    }

    fn has_failed(&self) -> bool {
        self.error.is_some()
    }
}

fn write_error(path: &std::path::Path) -> impl FnOnce(io::Error) -> RecordError {
    let path = PathBuf::from(path);
    move |source| RecordError::Write { path, source }
}
