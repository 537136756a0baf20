//! The QEMU engine: a program runs under QEMU's user mode, whose plugin tells which blocks of code ran.
//!
//! The plugin (`cofi-qemu-plugin`) is carried in this library and written to a folder of its own for each run. It puts a number a
//! block into a ring of memory for each thread; [`run`] takes them out on another processor, and tells an observer what
//! retired.

mod blocks;
mod launch;
mod shared;
mod thread;

pub use launch::{Qemu, QemuError};

use crate::ptrace::{Command, EngineError, Options, Outcome, parse_mapping};
use crate::{Observer, Pid, ProcessCause};
use blocks::Blocks;
use cofi_packet::Ip;
use cofi_qemu_plugin::layout::{self, BlockHead, record};
use shared::Shared;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use thread::{Signal, Thread};

/// Records taken from one thread before another has its turn.
const TURN: usize = 1 << 14;
/// How long to sleep when nobody has done anything.
const NAP: Duration = Duration::from_micros(200);
/// How often to look for new processes and for the end.
const LOOK: Duration = Duration::from_millis(5);

/// What QEMU could not tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Unknown {
    /// How often control went where nothing explains; the trace has an interrupt there, before the block in question.
    pub unexplained: u64,
    /// Threads that were killed: their last block is not in the trace.
    pub cut: u64,
    /// Programs that were started by `exec`: they ran without being traced.
    pub escaped: u64,
    /// Threads that are not in the trace, because there were too many at a time.
    pub untraced: u64,
}

/// One traced process.
struct Process {
    pid: Pid,
    shared: Shared,
    blocks: Blocks,
    /// Its threads, by virtual processor.
    threads: BTreeMap<usize, Thread>,
    /// Slots that have been used, from the first on.
    slots: usize,
    /// A record was taken whose operands are still to come.
    rest: BTreeMap<usize, Vec<u32>>,
}

struct Engine<'o> {
    observer: &'o mut dyn Observer,
    processes: BTreeMap<Pid, Process>,
    comm: String,
    unknown: Unknown,
    code: Vec<u8>,
    records: Vec<u32>,
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
    let (mut child, path) = qemu.launch(command)?;
    let comm = path
        .file_name()
        .map(|name| name.to_string_lossy().chars().take(15).collect())
        .unwrap_or_default();
    let mut engine = Engine {
        observer,
        processes: BTreeMap::new(),
        comm,
        unknown: Unknown::default(),
        code: Vec::new(),
        records: Vec::new(),
    };
    let begin = Instant::now();
    let mut looked = None::<Instant>;
    let mut status = None;
    let outcome = loop {
        if looked.is_none_or(|at| at.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            engine.look_for_processes(&qemu.folder())?;
            let late = options.duration.is_some_and(|most| begin.elapsed() >= most);
            if late || options.stop.load(Ordering::Relaxed) || engine.observer.has_failed() {
                break Outcome::Detached;
            }
            if status.is_none() {
                status = child.try_wait()?;
            }
        }
        if !engine.take_turns() {
            if let Some(status) = status {
                break match (status.code(), status.signal()) {
                    (Some(code), _) => Outcome::Exited(code),
                    (None, signal) => Outcome::Signaled(signal.unwrap_or(0)),
                };
            }
            std::thread::sleep(NAP);
        }
    };
    engine.end(outcome);
    Ok((outcome, engine.unknown))
}

impl Engine<'_> {
    /// Takes up processes whose plugin has made its memory.
    fn look_for_processes(&mut self, folder: &Path) -> io::Result<()> {
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
        let mut shared = Vec::new();
        for path in fresh {
            shared.push(Shared::open(&path)?);
            // Both sides have it mapped; nobody else is to find it.
            fs::remove_file(&path)?;
        }
        // A parent before its child: the child has its blocks.
        while !shared.is_empty() {
            let has_parent = |child: &Shared| {
                let parent = child.parent().map(|(pid, _)| pid);
                shared.iter().any(|other| parent == Some(other.pid()))
            };
            let first = shared.iter().position(|one| !has_parent(one));
            self.begin_process(shared.swap_remove(first.unwrap_or(0)));
        }
        Ok(())
    }

    fn begin_process(&mut self, shared: Shared) {
        let pid = shared.pid();
        let parent = shared.parent();
        let mut blocks = Blocks::default();
        if let Some((parent, inherited)) = parent {
            self.catch_up(parent, inherited);
            if let Some(parent) = self.processes.get(&parent) {
                blocks = parent.blocks.inherit(inherited as usize);
            }
        }
        let cause = match parent {
            Some(_) => ProcessCause::Fork,
            None => ProcessCause::Launch,
        };
        let parent = parent.map(|(pid, _)| pid);
        self.observer.process(pid, parent, cause, &self.comm);
        self.processes.insert(
            pid,
            Process {
                pid,
                shared,
                blocks,
                threads: BTreeMap::new(),
                slots: 0,
                rest: BTreeMap::new(),
            },
        );
    }

    /// Takes blocks of a process until there are `count`.
    fn catch_up(&mut self, pid: Pid, count: u64) {
        if let Some(process) = self.processes.get_mut(&pid) {
            while (process.blocks.len() as u64) < count
                && process.next_block(self.observer, &mut self.code)
            {}
        }
    }

    /// Gives every thread of every process a turn; whether any had something to tell.
    fn take_turns(&mut self) -> bool {
        let mut any = false;
        for process in self.processes.values_mut() {
            while process.slots < layout::SLOTS && process.shared.is_used(process.slots) {
                process.slots += 1;
            }
            for slot in 0..process.slots {
                process.shared.take(slot, &mut self.records, TURN);
                if !self.records.is_empty() {
                    any = true;
                    process.take(
                        slot,
                        &self.records,
                        self.observer,
                        &mut self.code,
                        &mut self.unknown,
                    );
                }
            }
        }
        any
    }

    /// The first process has ended, or tracing is stopped: what still runs is let go.
    fn end(&mut self, outcome: Outcome) {
        if outcome != Outcome::Detached {
            // What was told before the end, and by others until now.
            self.take_turns();
        }
        for process in self.processes.values_mut() {
            process.shared.stop();
            self.unknown.untraced += u64::from(process.shared.untraced());
            for thread in process.threads.values_mut() {
                let whole = thread.end(self.observer, &process.blocks);
                self.unknown.cut += u64::from(!whole && outcome != Outcome::Detached);
                self.unknown.unexplained += thread.unexplained;
                self.observer.thread_exit(process.pid, thread.tid);
            }
        }
    }
}

impl Process {
    /// Takes the next translated block; `false` if there is none.
    fn next_block(&mut self, observer: &mut dyn Observer, code: &mut Vec<u8>) -> bool {
        while let Some(block) = self.shared.next_block(code) {
            if block.instructions != BlockHead::MAPPING {
                self.blocks.add(observer, self.pid, block.address, code);
                return true;
            }
            if let Some(mapping) = parse_mapping(code) {
                self.blocks.map(observer, self.pid, block.address, mapping);
            }
        }
        false
    }

    /// Takes what a virtual processor has done.
    fn take(
        &mut self,
        slot: usize,
        records: &[u32],
        observer: &mut dyn Observer,
        code: &mut Vec<u8>,
        unknown: &mut Unknown,
    ) {
        let mut kept = self.rest.remove(&slot).unwrap_or_default();
        let records = if kept.is_empty() {
            records
        } else {
            kept.extend_from_slice(records);
            &kept
        };
        let mut rest = records;
        while let [first, behind @ ..] = rest {
            let operands = match first {
                record::SPECIAL.. => record::operands(*first),
                _ => 0,
            };
            let Some((operands, behind)) = behind.split_at_checked(operands) else {
                break;
            };
            rest = behind;
            match (*first, operands) {
                (record::THREAD, [tid]) => {
                    let parent = self.threads.values().next().map(|thread| thread.tid);
                    observer.thread_start(self.pid, *tid, parent);
                    self.threads.insert(slot, Thread::new(*tid));
                }
                (record::EXIT, _) => {
                    if let Some(mut thread) = self.threads.remove(&slot) {
                        unknown.cut += u64::from(!thread.end(observer, &self.blocks));
                        unknown.unexplained += thread.unexplained;
                        observer.thread_exit(self.pid, thread.tid);
                    }
                }
                (record::SIGNAL, [low, high, number, signal_code]) => {
                    if let Some(thread) = self.threads.get_mut(&slot) {
                        thread.signal(Signal {
                            ip: Ip(u64::from(*low) | u64::from(*high) << 32),
                            number: *number,
                            code: *signal_code as i32,
                        });
                    }
                }
                (record::SYSCALL, [number]) => {
                    let number = libc::c_long::from(*number);
                    unknown.escaped +=
                        u64::from(number == libc::SYS_execve || number == libc::SYS_execveat);
                    if let Some(thread) = self.threads.get_mut(&slot) {
                        thread.system_call();
                    }
                }
                (block, _) => {
                    while self.blocks.len() <= block as usize && self.next_block(observer, code) {}
                    if let Some(thread) = self.threads.get_mut(&slot) {
                        thread.enter(observer, &self.blocks, block);
                    }
                }
            }
        }
        if !rest.is_empty() {
            let rest = rest.to_vec();
            self.rest.insert(slot, rest);
        }
    }
}
