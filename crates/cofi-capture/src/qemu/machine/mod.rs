//! The engine for whole machines: QEMU's system emulation, whose plugin tells which blocks of code each processor ran.

mod blocks;
mod launch;
#[cfg(test)]
mod log;
mod pages;
mod processor;

pub use launch::{MachineError, MachineQemu};

use super::shared::{Presence, Shared};
use super::{NAP, TURN};
use crate::ptrace::{Options, Outcome};
use crate::{MachineObserver, Missing, Pid, missing};
use blocks::{Blocks, cpl_of, mode_of};
use cofi_packet::Ip;
use cofi_qemu_plugin::layout::record;
use pages::Pages;
use processor::{Interrupted, Processor};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often to see whether the machine has ended.
const LOOK: Duration = Duration::from_millis(5);

/// What of a machine is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MachineUnknown {
    /// How often control went where nothing explains, as by a reset: the trace has a gap there.
    pub unexplained: u64,
    /// Processors that ran when the machine ended: the block that each was in is not in the trace.
    pub cut: u64,
    /// Processors that are not in the trace: their state is not where it is expected, or there are too many.
    pub untraced: u64,
}

impl MachineUnknown {
    /// Adds what is not known of a processor that is gone.
    fn add(&mut self, observer: &mut dyn MachineObserver, gone: &Processor) {
        let count = gone.unexplained;
        if count > 0 {
            self.unexplained += count;
            let text =
                "control went where nothing explains (as by a reset); the trace has a gap there";
            let missing = Missing::of(gone.cpu(), text);
            observer.missing(Missing { count, ..missing });
        }
        if !gone.is_told() {
            self.cut += 1;
            let text = "the processor ran when the machine ended: the block that it was in is not in the trace";
            observer.missing(Missing::of(gone.cpu(), text));
        }
    }

    fn find_untraced(&mut self, observer: &mut dyn MachineObserver, count: u32) {
        if count > 0 {
            self.untraced += u64::from(count);
            let text = "a processor is not in the trace: there are too many, or QEMU keeps their state in an unknown way";
            observer.missing(Missing::several(count.into(), text));
        }
    }
}

struct Machine {
    pid: Pid,
    shared: Shared,
    blocks: Blocks,
    pages: Pages,
    /// By slot.
    processors: BTreeMap<usize, Processor>,
    /// What processors have told could not be mapped.
    unmapped: bool,
    /// Records whose operands are still to come.
    rest: BTreeMap<usize, Vec<u32>>,
    code: Vec<u8>,
    records: Vec<u32>,
    unknown: MachineUnknown,
}

/// Runs a machine with QEMU's arguments until it ends or the options say stop, and tells `observer` what its processors do.
///
/// # Errors
/// When QEMU cannot be started, or its shared memory cannot be read.
pub fn run(
    qemu: &MachineQemu,
    args: &[OsString],
    options: Options<'_>,
    observer: &mut dyn MachineObserver,
) -> Result<(Outcome, MachineUnknown), MachineError> {
    let folder = qemu.folder();
    fs::create_dir_all(&folder).map_err(MachineError::Memory)?;
    let presence = Presence::announce(&folder).map_err(MachineError::Memory)?;
    let mut child = qemu
        .command(args)?
        .spawn()
        .map_err(|source| MachineError::Launch {
            path: qemu.path().into(),
            source,
        })?;
    let pid = child.id();
    if let Some(leader) = options.leader {
        leader.store(pid, Ordering::SeqCst);
    }
    let result =
        record(&folder, pid, &mut child, options, observer).and_then(|(found, unknown)| {
            if found == Outcome::Detached && observer.has_failed() {
                // Nothing more can be recorded: the machine runs on, and is waited for.
                return Ok((wait_untraced(&mut child, options)?, unknown));
            }
            Ok((found, unknown))
        });
    if result.is_err() {
        // Nobody would take what it tells.
        let _ = child.kill();
        let _ = child.wait();
    }
    let (outcome, mut unknown) = result.map_err(MachineError::Memory)?;
    // A machine that could not share memory is none that was seen.
    unknown.find_untraced(observer, presence.untraced());
    if outcome == Outcome::Detached {
        observer.missing(Missing::new(missing::STOPPED));
    }
    Ok((outcome, unknown))
}

fn wait_untraced(child: &mut Child, options: Options<'_>) -> io::Result<Outcome> {
    while !options.stop.load(Ordering::Relaxed) {
        if let Some(status) = child.try_wait()? {
            return Ok(outcome(status));
        }
        std::thread::sleep(LOOK);
    }
    Ok(Outcome::Detached)
}

fn outcome(status: ExitStatus) -> Outcome {
    match (status.code(), status.signal()) {
        (_, Some(signal)) => Outcome::Signaled(signal),
        (code, None) => Outcome::Exited(code.unwrap_or(1)),
    }
}

fn record(
    folder: &Path,
    pid: Pid,
    child: &mut Child,
    options: Options<'_>,
    observer: &mut dyn MachineObserver,
) -> io::Result<(Outcome, MachineUnknown)> {
    let begin = Instant::now();
    let mut looked = None::<Instant>;
    let mut machine = None;
    let outcome = loop {
        let is_due = looked.is_none_or(|at| at.elapsed() >= LOOK);
        if is_due {
            looked = Some(Instant::now());
            observer.tick();
            if machine.is_none() {
                machine = Machine::find(folder, pid)?;
            }
            if let Some(status) = child.try_wait()? {
                if let Some(leader) = options.leader {
                    leader.store(0, Ordering::SeqCst);
                }
                if machine.is_none() {
                    machine = Machine::find(folder, pid)?;
                }
                // What was told until now is all.
                while machine
                    .as_mut()
                    .is_some_and(|machine| machine.turn(observer))
                {}
                break outcome(status);
            }
            let late = options.duration.is_some_and(|most| begin.elapsed() >= most);
            if late || options.stop.load(Ordering::Relaxed) || observer.has_failed() {
                break Outcome::Detached;
            }
        }
        if !machine
            .as_mut()
            .is_some_and(|machine| machine.turn(observer))
        {
            std::thread::sleep(NAP);
        }
    };
    let unknown = machine.map_or_else(MachineUnknown::default, |machine| machine.end(observer));
    Ok((outcome, unknown))
}

impl Machine {
    /// The machine, once its plugin has made the shared memory.
    fn find(folder: &Path, pid: Pid) -> io::Result<Option<Self>> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with('.'))
            {
                continue;
            }
            let shared = Shared::open(&path)?;
            fs::remove_file(&path)?;
            return Ok(Some(Self {
                pid,
                shared,
                blocks: Blocks::default(),
                pages: Pages::default(),
                processors: BTreeMap::new(),
                unmapped: false,
                rest: BTreeMap::new(),
                code: Vec::new(),
                records: Vec::new(),
                unknown: MachineUnknown::default(),
            }));
        }
        Ok(None)
    }

    /// Gives every processor a turn; whether any had something to tell.
    fn turn(&mut self, observer: &mut dyn MachineObserver) -> bool {
        let mut any = false;
        let used = self.shared.used_slots().unwrap_or_else(|_| {
            // Who is not read must not wait. What it did until now is not in the trace either.
            self.shared.stop();
            self.unmapped = true;
            0
        });
        for slot in 0..used {
            let mut records = std::mem::take(&mut self.records);
            records.clear();
            self.shared.take(slot, &mut records, TURN);
            if !records.is_empty() {
                any = true;
                self.take(observer, slot, &records);
            }
            self.records = records;
        }
        any
    }

    fn next_block(&mut self) -> bool {
        match self.shared.next_block(&mut self.code) {
            Some(head) => {
                self.blocks.add(head.address, head.instructions, &self.code);
                true
            }
            None => false,
        }
    }

    fn take(&mut self, observer: &mut dyn MachineObserver, slot: usize, records: &[u32]) {
        let mut kept = self.rest.remove(&slot).unwrap_or_default();
        let mut rest = if kept.is_empty() {
            records
        } else {
            kept.extend_from_slice(records);
            &kept
        };
        let mut processor = self.processors.remove(&slot);
        loop {
            if let Some(processor) = &mut processor {
                rest = processor.run(observer, &self.blocks, rest);
            }
            let [first, behind @ ..] = rest else { break };
            if *first < record::SPECIAL {
                rest = behind;
                while self.blocks.len() <= *first as usize && self.next_block() {}
                if let Some(processor) = &mut processor {
                    processor.enter(observer, &mut self.blocks, &mut self.pages, *first);
                }
                continue;
            }
            let Some((operands, behind)) = behind.split_at_checked(record::operands(*first)) else {
                break;
            };
            rest = behind;
            let address = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
            let place = |low: u32, high: u32, bits: u32| Interrupted {
                ip: Ip(address(low, high)),
                mode: mode_of(bits),
                cpl: cpl_of(bits),
            };
            match (*first, operands, &mut processor) {
                (record::THREAD, [cpu], none) => {
                    *none = Some(Processor::new(self.pid, *cpu));
                }
                (record::EXIT, _, some) => {
                    if let Some(gone) = some.take() {
                        self.unknown.add(observer, &gone);
                        observer.thread_exit(self.pid, gone.cpu());
                    }
                }
                (record::CR3, [low, high], Some(processor)) => {
                    processor.cr3(address(*low, *high));
                }
                (record::INTERRUPT, [low, high, bits], Some(processor)) => {
                    processor.interrupt(place(*low, *high, *bits));
                }
                (record::INTERRUPT_TO, [a, b, bits, c, d], Some(processor)) => {
                    processor.interrupt_to(place(*a, *b, *bits), Ip(address(*c, *d)));
                }
                (record::UNFINISHED, _, Some(processor)) => processor.unfinished(),
                (record::IDLE, _, Some(processor)) => {
                    processor.idle(observer, &mut self.blocks, &mut self.pages);
                }
                _ => {}
            }
        }
        if !rest.is_empty() {
            self.rest.insert(slot, rest.to_vec());
        }
        if let Some(processor) = processor {
            self.processors.insert(slot, processor);
        }
    }

    /// The machine has ended, or tracing.
    fn end(mut self, observer: &mut dyn MachineObserver) -> MachineUnknown {
        self.shared.stop();
        let untraced = self.shared.take_untraced() + u32::from(self.unmapped);
        self.unknown.find_untraced(observer, untraced);
        for processor in self.processors.values() {
            self.unknown.add(observer, processor);
            observer.thread_exit(self.pid, processor.cpu());
        }
        self.pages.flush(observer);
        self.unknown
    }
}
