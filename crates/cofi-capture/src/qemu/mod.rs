//! The QEMU engine: a program runs under QEMU's user mode, whose plugin tells which blocks of code ran.
//!
//! The plugin (`cofi-qemu-plugin`) is carried in this library and written to a folder of its own for each run. It puts a number a
//! block into a ring of memory for each thread; [`run`] takes them out on another processor, and tells an observer what
//! retired.

mod apart;
mod blocks;
mod death;
mod exec;
mod follow;
mod isa;
mod launch;
pub mod machine;
mod plugins;
mod program;
mod runtime_dir;
mod shared;
mod thread;
mod told;

pub use launch::{Qemu, QemuError, Stage};
pub use program::Unfit;

use crate::ptrace::sys::{self, Dispositions};
use crate::ptrace::{
    Command, EngineError, Options, Outcome, is_shared_mapping, maps, parse_mapping,
};
use crate::{Change, Missing, Notice, Observer, Pid, ProcessCause, missing};
use apart::{Job, Workers};
use blocks::Blocks;
use cofi_packet::Ip;
use cofi_qemu_plugin::layout::{self, BlockHead, record};
use death::Death;
use follow::{Gone, News};
use shared::{Presence, Shared};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use thread::{Signal, Thread};

/// Records taken from one thread before another has its turn. So many stay in a first-level cache.
const TURN: usize = 1 << 12;
/// Records that wait for a thread's turn, at most, where several threads have theirs at a time.
const LONG_TURN: usize = 1 << 16;
/// How long to sleep when nobody has done much: far less than it takes to fill a ring. Who looks all the time only takes from the
/// program's processor what that is about to write to.
const NAP: Duration = Duration::from_micros(50);
/// How long to sleep when nobody has done anything.
const LONG_NAP: Duration = Duration::from_micros(200);
/// How often to look for new processes and for the end.
const LOOK: Duration = Duration::from_millis(5);
/// How long to wait at the end for processes that QEMU has just begun to run.
const GRACE: Duration = Duration::from_secs(2);

/// Why a process cannot tell of itself.
const NO_MEMORY: &str = "a thread or process is not in the trace: it could not share memory with Cofi (none was left, or \
     after chroot or setuid)";
/// Why a thread cannot.
const NO_PLACE: &str = "a thread is not in the trace: too many ran at a time, or no memory was left to share with Cofi";

/// What QEMU could not tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Unknown {
    /// How often control went where nothing explains; the trace has an interrupt there, before the block in question.
    pub unexplained: u64,
    /// Threads that were killed: their last block is not in the trace.
    pub cut: u64,
    /// Programs that were started but cannot run under QEMU (32-bit ones): they ran without being traced.
    pub escaped: u64,
    /// Threads that are not in the trace, because there were too many at a time, and processes that could not tell of
    /// themselves, as after `chroot`.
    pub untraced: u64,
    /// Processes that ran code in memory which can be mapped a second time: what is written through another mapping, QEMU does not
    /// notice. It goes on with the code that it knows, and so does the trace.
    pub shared_code: u64,
}

/// One traced process.
struct Process {
    pid: Pid,
    /// The name of what it runs.
    program: String,
    shared: Shared,
    blocks: Blocks,
    /// Its threads, by virtual processor.
    threads: BTreeMap<usize, Thread>,
    /// What was taken of each virtual processor, and not told yet.
    waiting: BTreeMap<usize, Waiting>,
    /// The thread that executed this program, which the observer knows already.
    goes_on: Option<Pid>,
    /// It has run code in memory that can be mapped twice.
    has_shared_code: bool,
}

/// Records that were taken, and wait for their turn.
#[derive(Debug, Default)]
struct Waiting {
    records: Vec<u32>,
    /// How many of them have had it.
    told: usize,
}

impl Waiting {
    /// Those that have not.
    fn left(&self) -> &[u32] {
        self.records.get(self.told..).unwrap_or_default()
    }

    /// Takes as many more as it takes for `most` to wait; whether any do.
    fn fill(&mut self, shared: &Shared, slot: usize, most: usize) -> bool {
        let missing = most.saturating_sub(self.left().len());
        if missing > 0 && shared.in_ring(slot) > 0 {
            // What is left moves to the front, and so does no record often.
            if self.told >= self.records.len() / 2 {
                self.records.drain(..self.told);
                self.told = 0;
            }
            shared.take(slot, &mut self.records, missing);
        }
        let any = !self.left().is_empty();
        if !any && self.records.capacity() > TURN {
            // It has told much, and may never again.
            *self = Self::default();
        }
        any
    }
}

struct Engine<'o> {
    observer: &'o mut dyn Observer,
    processes: BTreeMap<Pid, Process>,
    news: &'o News,
    /// Processes that have ended, but may be parents of others that have not told of themselves yet.
    gone: Vec<Gone>,
    unknown: Unknown,
    code: Vec<u8>,
    workers: Workers,
}

/// Runs a program until it ends or the options say stop, and tells `observer` what happens. Processes that outlive the first
/// one are let go, and run on.
///
/// # Errors
/// When the program cannot be started, or QEMU's shared memory cannot be read.
pub fn run(
    qemu: &Qemu,
    command: &Command,
    options: Options<'_>,
    observer: &mut dyn Observer,
) -> Result<(Outcome, Unknown), EngineError> {
    let mut dispositions = Dispositions::default();
    dispositions.interrupting(sys::wake_signal());
    let news = News::default();
    let announced =
        fs::create_dir_all(qemu.folder()).and_then(|()| Presence::announce(&qemu.folder()));
    let mut presence = Some(announced.map_err(EngineError::Trace)?);
    let mut engine = Engine {
        observer,
        news: &news,
        gone: Vec::new(),
        processes: BTreeMap::new(),
        unknown: Unknown::default(),
        code: Vec::new(),
        workers: Workers::default(),
    };
    std::thread::scope(|scope| {
        let ignored = &mut dispositions;
        let follower = scope.spawn(|| follow::follow(qemu, command, &news, ignored, options));
        let is_over = || follower.is_finished();
        // Should the recorder panic, the program does not wait for it.
        let leaving = Leaving(&news);
        let result = engine.record(&qemu.folder(), options, is_over);
        let untraced = presence.as_ref().map_or(0, Presence::untraced);
        if engine.observer.has_failed() {
            // Nobody waits for us then.
            presence = None;
            engine.wait_untraced(options, is_over);
        }
        drop(leaving);
        let outcome = match follower.join() {
            Ok(outcome) => outcome?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        result?;
        let untraced = presence.as_ref().map_or(untraced, Presence::untraced);
        engine.untraced(untraced.into(), NO_MEMORY);
        engine.end(outcome);
        engine.unknown.untraced += news.untraced.load(Ordering::Relaxed);
        engine.unknown.escaped = news.escaped.load(Ordering::Relaxed);
        engine.tell_missing();
        Ok((outcome, engine.unknown))
    })
}

/// Has the tracer end when it is dropped.
struct Leaving<'a>(&'a News);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Engine<'_> {
    /// Takes what is told until the program has ended (`is_over`) or the options say stop.
    fn record(
        &mut self,
        folder: &Path,
        options: Options<'_>,
        is_over: impl Fn() -> bool,
    ) -> io::Result<()> {
        let begin = Instant::now();
        let mut looked = None::<Instant>;
        let mut ending = None::<Instant>;
        loop {
            let over = is_over();
            if over || looked.is_none_or(|at| at.elapsed() >= LOOK) {
                looked = Some(Instant::now());
                self.observer.tick();
                self.look_for_processes(folder)?;
                self.tell_missing();
                let late = options.duration.is_some_and(|most| begin.elapsed() >= most);
                if self.observer.has_failed() {
                    return Ok(());
                }
                let stop = late || options.stop.load(Ordering::Relaxed);
                // Who is half way to QEMU runs into what is not there any more, if we end now.
                if stop || self.news.is_ending() {
                    self.news.stop();
                    if ending.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                        return Ok(());
                    }
                }
            }
            if over {
                // What was told until now. Others may go on without end.
                let most = (layout::RECORDS + LONG_TURN) / TURN + 1;
                let _ = (0..most).all(|_| self.take_turns() != 0);
                return Ok(());
            }
            match self.take_turns() {
                0 => std::thread::sleep(LONG_NAP),
                1..TURN => std::thread::sleep(NAP),
                _ => {}
            }
        }
    }

    /// Nothing more can be recorded: all run on, and the first one is waited for.
    fn wait_untraced(&mut self, options: Options<'_>, is_over: impl Fn() -> bool) {
        for process in self.processes.values_mut() {
            process.shared.stop();
        }
        self.news.wait();
        while !is_over() && !options.stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
        }
    }

    /// Takes up processes whose plugin has made its memory, and ends those that are gone.
    fn look_for_processes(&mut self, folder: &Path) -> io::Result<()> {
        // Who is gone by now has told all, and of itself, too.
        let gone = self.news.gone();
        self.pass_on_notices();
        self.find_processes(folder)?;
        for process in gone {
            for before in &mut self.gone {
                before.unborn.remove(&process.pid);
            }
            if self.processes.contains_key(&process.pid) {
                self.end_threads(process.pid, false, process.death);
                self.gone.push(process);
            }
        }
        for process in std::mem::take(&mut self.gone) {
            if process.unborn.is_empty() {
                self.processes.remove(&process.pid);
                self.news.forget(process.pid);
            } else {
                self.gone.push(process);
            }
        }
        Ok(())
    }

    fn pass_on_notices(&mut self) {
        for notice in self.news.take_notices() {
            self.observer.notice(notice);
        }
    }

    /// Takes up processes whose plugin has made its memory.
    fn find_processes(&mut self, folder: &Path) -> io::Result<()> {
        let Ok(entries) = fs::read_dir(folder) else {
            return Ok(());
        };
        let mut fresh = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path
                .file_name()
                .is_some_and(|name| !name.to_string_lossy().starts_with('.'))
            {
                fresh.push(path);
            }
        }
        // Their names begin with the time: a parent comes before its child, and what a process ran first before what it
        // executed then.
        fresh.sort();
        for path in fresh {
            let shared = Shared::open(&path);
            if let Err(error) = &shared {
                // It goes on, but waits for nobody.
                Shared::refuse(&path)?;
                let text =
                    format!("a process is not in the trace: its memory cannot be shared ({error})");
                self.untraced(1, &text);
            }
            // Both sides have it mapped; nobody else is to find it.
            fs::remove_file(&path)?;
            if let Ok(shared) = shared {
                self.begin_process(shared);
            }
        }
        Ok(())
    }

    fn begin_process(&mut self, shared: Shared) {
        let pid = shared.pid();
        let parent = shared.parent();
        self.news.born(pid, parent.is_none());
        for gone in &mut self.gone {
            gone.unborn.remove(&pid);
        }
        self.gone.retain(|gone| gone.pid != pid);
        let mut comm = self.news.comm(pid);
        let mut blocks = Blocks::default();
        let mut goes_on = None;
        let cause = if let Some((parent, inherited)) = parent {
            // If another one had the number before, that is over.
            if self.processes.contains_key(&pid) {
                self.end_threads(pid, false, None);
            }
            self.catch_up(parent, inherited);
            if let Some(parent) = self.processes.get(&parent) {
                blocks = parent.blocks.inherit(inherited as usize);
            }
            comm = comm.or_else(|| self.news.comm(parent));
            ProcessCause::Fork
        } else if self.processes.contains_key(&pid) {
            goes_on = self.end_program(pid);
            ProcessCause::Exec
        } else {
            ProcessCause::Launch
        };
        let (parent, comm) = (parent.map(|(pid, _)| pid), comm.unwrap_or_default());
        self.observer.process(pid, parent, cause, &comm);
        let process = Process {
            pid,
            program: comm,
            shared,
            blocks,
            threads: BTreeMap::new(),
            waiting: BTreeMap::new(),
            goes_on,
            has_shared_code: false,
        };
        self.processes.insert(pid, process);
    }

    /// A process has executed another program: its threads are gone but for the one that goes on under the process's own
    /// number, if that was traced.
    fn end_program(&mut self, pid: Pid) -> Option<Pid> {
        let goes_on = self.end_threads(pid, true, None);
        self.processes.remove(&pid);
        goes_on
    }

    /// Takes what a process that runs no more has told, and ends its threads, the one that it died of, or its first, last. If it
    /// `goes_on` with another program, the one of the process's own number does, which is returned.
    fn end_threads(&mut self, pid: Pid, goes_on: bool, death: Option<Death>) -> Option<Pid> {
        let process = self.processes.get_mut(&pid)?;
        while process.turn(self.observer, &mut self.code, &mut self.unknown) != 0 {}
        process.find_untraced(self.observer, &mut self.unknown);
        let mut first = None;
        let mut threads: Vec<Thread> = std::mem::take(&mut process.threads).into_values().collect();
        let last = death.map_or(pid, |death| death.tid);
        threads.sort_by_key(|thread| (thread.tid == last, thread.tid == pid));
        let count = threads.len();
        for (i, mut thread) in threads.into_iter().enumerate() {
            // Of a thread that another one's exec, or a signal, has killed, the last block is not known.
            let whole = match death {
                Some(death) if i + 1 == count => {
                    let ip = (thread.tid == death.tid).then_some(death.ip).flatten();
                    let (ip, whole) = thread.die(self.observer, &mut process.blocks, ip);
                    self.observer.signal(thread.tid, death.signal(ip));
                    whole
                }
                _ => thread.end(self.observer, &mut process.blocks),
            };
            self.unknown.gone(self.observer, &thread, whole);
            if goes_on && thread.tid == pid && whole {
                first = Some(pid);
            } else {
                self.observer.thread_exit(pid, thread.tid);
            }
        }
        first
    }

    /// Takes blocks of a process until there are `count`.
    fn catch_up(&mut self, pid: Pid, count: u64) {
        if let Some(process) = self.processes.get_mut(&pid) {
            while (process.blocks.len() as u64) < count
                && process.next_block(&mut self.code, &mut self.unknown)
            {}
        }
    }

    /// Gives every thread of every process a turn; how many records there were.
    fn take_turns(&mut self) -> usize {
        let mut count = self.take_turns_apart();
        for process in self.processes.values_mut() {
            count += process.turn(self.observer, &mut self.code, &mut self.unknown);
        }
        count
    }

    /// Gives those that have much to tell a long turn, all at the same time, if there are several; how many records there were.
    fn take_turns_apart(&mut self) -> usize {
        let busy = || self.processes.values().map(Process::busy).sum::<usize>();
        if !self.workers.are_several() || busy() < 2 {
            return 0;
        }
        let jobs = self.processes.values_mut().flat_map(Process::jobs);
        self.workers.work(self.observer, jobs.collect())
    }

    /// The first process has ended, or tracing is stopped: what still runs is let go.
    fn end(&mut self, outcome: Outcome) {
        self.pass_on_notices();
        if outcome != Outcome::Detached {
            // What was told before the end, and by others until now.
            self.take_turns();
        }
        let mut outlived = 0;
        for process in self.processes.values_mut() {
            process.shared.stop();
            process.find_untraced(self.observer, &mut self.unknown);
            let runs_on =
                maps::process_of(process.pid) == Some(process.pid) && !maps::has_ended(process.pid);
            outlived += u64::from(runs_on && !process.threads.is_empty());
            for thread in process.threads.values_mut() {
                // Of one that runs on nothing is cut.
                let whole = thread.end(self.observer, &mut process.blocks) || runs_on;
                self.unknown.gone(self.observer, thread, whole);
                self.observer.thread_exit(process.pid, thread.tid);
            }
        }
        if outlived > 0 {
            self.observer.missing(match outcome {
                Outcome::Detached => Missing::new(missing::STOPPED),
                _ => Missing::several(outlived, missing::OUTLIVED),
            });
        }
    }

    /// These are not in the trace.
    fn untraced(&mut self, count: u64, text: &str) {
        self.unknown.untraced += count;
        if count > 0 {
            self.observer.missing(Missing::several(count, text));
        }
    }

    /// Hands on what the tracer has found.
    fn tell_missing(&mut self) {
        for missing in self.news.missing() {
            self.observer.missing(missing);
        }
    }
}

impl Unknown {
    /// A thread has ended; its last block is known, or not.
    fn gone(&mut self, observer: &mut dyn Observer, thread: &Thread, is_whole: bool) {
        if !is_whole {
            self.cut += 1;
            let text = "it was killed: the block that it was in is not in the trace";
            observer.missing(Missing::of(thread.tid, text));
        }
        let count = thread.unexplained;
        if count > 0 {
            self.unexplained += count;
            let text = "control went where QEMU does not say why; the trace has an interrupt there";
            let missing = Missing::of(thread.tid, text);
            observer.missing(Missing { count, ..missing });
        }
    }
}

impl Process {
    /// Asks for threads that found no place since the last time.
    fn find_untraced(&self, observer: &mut dyn Observer, unknown: &mut Unknown) {
        let count = u64::from(self.shared.take_untraced());
        if count > 0 {
            unknown.untraced += count;
            observer.missing(Missing::several(count, NO_PLACE));
        }
    }

    /// How many of its threads have told so much that it takes a turn of its own.
    fn busy(&self) -> usize {
        let is_busy = |slot: &&usize| self.shared.in_ring(**slot) >= TURN;
        self.threads.keys().filter(is_busy).count()
    }

    /// What these threads are to do.
    fn jobs(&mut self) -> Vec<Job<'_>> {
        let (shared, blocks) = (&self.shared, &self.blocks);
        let mut waiting = self.waiting.iter_mut();
        let threads = self.threads.iter_mut();
        threads
            .filter_map(|(slot, thread)| {
                // Both are in the order of slots.
                let (_, waiting) = waiting.find(|(of, _)| *of == slot)?;
                (shared.in_ring(*slot) >= TURN).then_some(Job {
                    shared,
                    slot: *slot,
                    thread,
                    blocks,
                    waiting,
                })
            })
            .collect()
    }

    /// Gives every thread a turn; how many records there were.
    fn turn(
        &mut self,
        observer: &mut dyn Observer,
        code: &mut Vec<u8>,
        unknown: &mut Unknown,
    ) -> usize {
        let mut count = 0;
        let used = self.shared.used_slots().unwrap_or_else(|_| {
            // Who is not read must not wait. What it did until now is not in the trace either.
            self.shared.stop();
            unknown.untraced += 1;
            let text =
                "a process is not in the trace from some time on: its memory could not be mapped";
            observer.missing(Missing::new(text));
            0
        });
        for slot in 0..used {
            // Most threads of a large process have nothing to tell.
            if !self
                .waiting
                .entry(slot)
                .or_default()
                .fill(&self.shared, slot, TURN)
            {
                continue;
            }
            let Some(mut waiting) = self.waiting.remove(&slot) else {
                continue;
            };
            let left = waiting.left();
            let turn = &left[..left.len().min(TURN)];
            let told = turn.len() - self.take(slot, turn, observer, code, unknown).len();
            count += told;
            waiting.told += told;
            self.waiting.insert(slot, waiting);
        }
        count
    }

    /// Takes the next translated block; `false` if there is none.
    fn next_block(&mut self, code: &mut Vec<u8>, unknown: &mut Unknown) -> bool {
        while let Some(block) = self.shared.next_block(code) {
            if block.instructions != BlockHead::MAPPING {
                self.blocks.add(block.address, code);
                return true;
            }
            if let Some(mapping) = parse_mapping(code) {
                let first = is_shared_mapping(code) && !self.has_shared_code;
                unknown.shared_code += u64::from(first);
                self.has_shared_code |= first;
                self.blocks.map(mapping);
            }
        }
        false
    }

    /// Takes what a virtual processor has done; what is left is a record whose operands are still to come.
    fn take<'r>(
        &mut self,
        slot: usize,
        records: &'r [u32],
        observer: &mut dyn Observer,
        code: &mut Vec<u8>,
        unknown: &mut Unknown,
    ) -> &'r [u32] {
        let mut thread = self.threads.remove(&slot);
        let mut rest = records;
        loop {
            if let Some(thread) = &mut thread {
                rest = thread.run(observer, &self.blocks, rest);
            }
            let [first, behind @ ..] = rest else { break };
            if *first < record::SPECIAL {
                rest = behind;
                while self.blocks.len() <= *first as usize && self.next_block(code, unknown) {}
                if let Some(thread) = &mut thread {
                    thread.enter(observer, &mut self.blocks, *first);
                }
                continue;
            }
            let Some((operands, behind)) = behind.split_at_checked(record::operands(*first)) else {
                break;
            };
            rest = behind;
            match (*first, operands) {
                (record::THREAD, [tid]) => {
                    let parent = self.threads.values().next().map(|thread| thread.tid);
                    if self.goes_on.take() != Some(*tid) {
                        observer.thread_start(self.pid, *tid, parent);
                    }
                    thread = Some(Thread::new(self.pid, *tid));
                }
                (record::EXIT, _) => {
                    if let Some(mut thread) = thread.take() {
                        let whole = thread.end(observer, &mut self.blocks);
                        unknown.gone(observer, &thread, whole);
                        observer.thread_exit(self.pid, thread.tid);
                    }
                }
                (record::SIGNAL, [ip @ .., number, signal_code, low, high]) => {
                    if let (Some(thread), [ip_low, ip_high]) = (&mut thread, ip) {
                        let whole = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
                        thread.signal(Signal {
                            ip: Ip(whole(*ip_low, *ip_high)),
                            number: *number,
                            code: *signal_code as i32,
                            address: whole(*low, *high),
                        });
                    }
                }
                (record::SYSCALL, [number]) => {
                    if let Some(thread) = &mut thread {
                        thread.system_call();
                    }
                    if let Some(change) = Change::by_call(*number) {
                        let program = self.program.clone();
                        observer.notice(Notice { program, change });
                    }
                }
                // Of another version: there is none.
                _ => {}
            }
        }
        if let Some(thread) = thread {
            self.threads.insert(slot, thread);
        }
        rest
    }
}
