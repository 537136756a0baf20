//! The hardware's own trace units, through Linux's `perf_event_open`.
//!
//! A program and all that it starts are traced in user space, on whichever processor they run: an event a processor, which children
//! inherit, with a buffer for the kernel's records and one for packets. What the kernel tells goes into the file as it is; so
//! perf reads it as one of its own.

mod event;
mod launch;
mod pmu;
mod ring;
mod vdso;

use crate::ptrace::sys::Dispositions;
use crate::ptrace::{Command, Options as RunOptions, Outcome};
use crate::record::Output;
use cofi_perf::{Feature, KernelEvent, KernelTrace, KernelWriter, PtConfig, WriteError};
use event::Event;
use pmu::Pmu;
use ring::{Ring, Told};
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vdso::Vdso;

/// How long it is slept at most while nothing is to be read.
const PATIENCE: Duration = Duration::from_millis(100);

/// Why the hardware does not record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HardwareError {
    /// The kernel has no driver for it here.
    #[error("this machine has no Intel PT that Linux can use ({} is not there): `cofi doctor` says more", path.display())]
    Absent {
        /// What is not there.
        path: PathBuf,
    },
    /// What the kernel says of it cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The processors do not have what is asked for.
    #[error("the processors' Intel PT has no {setting}")]
    Unsupported {
        /// The setting of `--config`.
        setting: &'static str,
    },
    /// Packets without the time.
    #[error("tsc=0: in a recording of several processors, packets find their programs by the time")]
    Timeless,
    /// The kernel's clock cannot be had from the time stamp counter.
    #[error(
        "the kernel does not say how the time stamp counter becomes its time, as where it does not trust it"
    )]
    NoClock,
    /// The kernel refuses an event.
    #[error("the kernel does not let {what} be recorded on processor {cpu}{hint}")]
    Refused {
        /// What.
        what: &'static str,
        /// Where.
        cpu: u32,
        /// What helps, in words that follow.
        hint: &'static str,
        /// Why.
        source: io::Error,
    },
    /// There is no memory for the buffers.
    #[error(
        "there is no buffer for processor {cpu}: /proc/sys/kernel/perf_event_mlock_kb limits them"
    )]
    NoBuffer {
        /// Where.
        cpu: u32,
        /// Why.
        source: io::Error,
    },
    /// The program cannot be started.
    #[error("cannot run {}", program.display())]
    Launch {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be written to its end.
    #[error("the recording is not complete")]
    Write(#[from] WriteError),
}

/// What was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Traced {
    /// How the program ended.
    pub outcome: Outcome,
    /// Bytes of packets.
    pub trace_bytes: u64,
    /// How often the kernel had no room for packets, and for its own records: there the file has gaps, and says so.
    pub lost: (u64, u64),
}

/// What is to be recorded.
#[derive(Debug)]
pub struct Settings<'s> {
    /// The file.
    pub file: &'s Path,
    /// The packets.
    pub config: PtConfig,
    /// As it stands in the file.
    pub command_line: Vec<String>,
}

/// Whether Linux lets this process record its own with such packets. [`HardwareError::Absent`] where there is no such hardware.
///
/// # Errors
/// [`HardwareError`].
pub fn probe(config: PtConfig) -> Result<(), HardwareError> {
    let pmu = Pmu::find()?;
    let config = pmu.config(config)?;
    let cpu = pmu::online()?.first().copied().unwrap_or_default();
    Event::of_packets(pmu.kind, config, std::process::id(), cpu).map(drop)
}

/// Records a program and what it starts.
///
/// # Errors
/// [`HardwareError`]. If the program has not been started, whatever stood at the file's place still does.
pub fn run(
    settings: &Settings<'_>,
    program: &Command,
    options: RunOptions<'_>,
) -> Result<Traced, HardwareError> {
    let pmu = Pmu::find()?;
    let config = pmu.config(settings.config)?;
    // The program decides what comes of Ctrl-C; the recording goes on as long as it.
    let mut dispositions = Dispositions::default();
    dispositions.catching(libc::SIGINT);
    dispositions.catching(libc::SIGQUIT);
    let cpus = pmu::online()?;
    let created = |source| HardwareError::Create {
        path: settings.file.to_owned(),
        source,
    };
    let (mut output, file) = Output::create(settings.file).map_err(created)?;
    let mut vdso = Vdso::beside(settings.file).map_err(created)?;
    let waiting = launch::prepare(program).map_err(|source| launch_error(program, source))?;
    let mut rings = Vec::new();
    let (mut traced, mut told) = (Vec::new(), Vec::new());
    for &cpu in &cpus {
        let packets = Event::of_packets(pmu.kind, config, waiting.pid(), cpu)?;
        let records = Event::of_records(waiting.pid(), cpu)?;
        traced.push(packets.id()?);
        told.push(records.id()?);
        rings.push(Ring::new(cpu, packets, records)?);
    }
    let time = rings
        .first()
        .and_then(Ring::time)
        .ok_or(HardwareError::NoClock)?;
    let events = vec![
        KernelEvent {
            attr: event::of_packets(pmu.kind, config).0,
            ids: traced,
            name: "intel_pt//u".into(),
        },
        KernelEvent {
            attr: event::of_records().0,
            ids: told,
            name: "dummy:u".into(),
        },
    ];
    let trace = KernelTrace {
        pmu_type: pmu.kind,
        time,
        tsc_ctc_ratio: pmu.tsc_ctc_ratio,
        max_nonturbo_ratio: pmu.max_nonturbo_ratio,
        event_trace: pmu.has_event_trace,
    };
    let words = settings.command_line.clone();
    let mut writer = KernelWriter::new(BufWriter::new(file), events, trace, words)?;
    describe(&mut writer);
    let mut child = waiting
        .start()
        .map_err(|source| launch_error(program, source))?;
    output.commit().map_err(created)?;
    vdso.begin().map_err(created)?;
    if let Some(leader) = options.leader {
        leader.store(child.id(), Ordering::SeqCst);
    }
    let begun = Instant::now();
    let mut sum = Told::default();
    let outcome = loop {
        ring::wait(&rings, PATIENCE);
        // What ran before the program's end is in the buffers when it is known to have ended.
        let ended = child.try_wait().ok().flatten();
        drain(&mut rings, &mut writer, &mut vdso, &mut sum)?;
        if let Some(status) = ended {
            break match (status.code(), status.signal()) {
                (Some(code), _) => Outcome::Exited(code),
                (None, signal) => Outcome::Signaled(signal.unwrap_or_default()),
            };
        }
        let is_over = options.duration.is_some_and(|long| begun.elapsed() >= long);
        if is_over || options.stop.load(Ordering::SeqCst) {
            break Outcome::Detached;
        }
    };
    for ring in &rings {
        ring.disable();
    }
    drain(&mut rings, &mut writer, &mut vdso, &mut sum)?;
    writer.finish()?;
    Ok(Traced {
        outcome,
        trace_bytes: sum.bytes,
        lost: (sum.truncated, sum.lost),
    })
}

fn launch_error(program: &Command, source: io::Error) -> HardwareError {
    HardwareError::Launch {
        program: (&program.program).into(),
        source,
    }
}

/// Takes what is in the buffers.
fn drain(
    rings: &mut [Ring],
    writer: &mut KernelWriter<BufWriter<File>>,
    vdso: &mut Vdso,
    sum: &mut Told,
) -> Result<(), WriteError> {
    let mut any = false;
    for (index, ring) in rings.iter_mut().enumerate() {
        any |= ring.drain(index as u32, writer, vdso, sum)?;
    }
    if any {
        writer.finished_round()?;
    }
    Ok(())
}

/// Tells what decoders and people want to know of the machine.
fn describe(writer: &mut KernelWriter<BufWriter<File>>) {
    if let Some(cpuid) = pmu::cpuid() {
        writer.describe(Feature::CPUID, &cpuid);
    }
    for (feature, path) in [
        (Feature::HOSTNAME, "/proc/sys/kernel/hostname"),
        (Feature::OSRELEASE, "/proc/sys/kernel/osrelease"),
    ] {
        if let Ok(text) = std::fs::read_to_string(path) {
            writer.describe(feature, text.trim());
        }
    }
    writer.describe(
        Feature::VERSION,
        concat!("cofi ", env!("CARGO_PKG_VERSION")),
    );
}
