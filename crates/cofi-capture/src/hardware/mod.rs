//! The hardware's own trace units, through Linux's `perf_event_open`.
//!
//! A program and all that it starts, a process that runs already, or processors with all that they run: an event a processor (and a
//! thread), with a buffer for the kernel's records and one for packets. What the kernel tells goes into the file as it is; so
//! perf reads it as one of its own.

mod event;
mod existing;
mod gates;
mod kernel;
mod launch;
mod pmu;
mod ring;
mod subject;
mod vdso;

pub use kernel::KernelProblem;

use crate::ptrace::sys::Dispositions;
use crate::ptrace::{Command, Options as RunOptions, Outcome};
use crate::record::{Gate, Output, Window, folder_of};
pub use cofi_perf::StreamPlace;
use cofi_perf::{Feature, KernelTrace, KernelWriter, PtConfig, WriteError};
use event::{Attr, Event, Owner};
use gates::Gates;
use kernel::Kernel;
use pmu::Pmu;
use ring::{Buffers, Ring, Told};
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use subject::{Events, Wanted};
use vdso::Vdso;

/// How long it is slept at most while nothing is to be read.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same while a snapshot may be asked for.
const SNAPSHOT_PATIENCE: Duration = Duration::from_millis(5);
/// The buffer by which it is tried whether anything can be recorded.
const PROBE: u64 = 1 << 16;

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
    #[error("the kernel does not let {what} be recorded {place}{hint}")]
    Refused {
        /// What.
        what: &'static str,
        /// Where.
        place: StreamPlace,
        /// What helps, in words that follow.
        hint: &'static str,
        /// Why.
        source: io::Error,
    },
    /// There is no such processor.
    #[error("there is no processor {cpu} here, or it is offline")]
    NoProcessor {
        /// Its number.
        cpu: u32,
    },
    /// There is no such process.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Its number.
        pid: u32,
    },
    /// There is no such thread.
    #[error("there is no thread {tid}")]
    NoThread {
        /// Its number.
        tid: u32,
    },
    /// An instruction by which tracing would begin or end is not there.
    #[error("{option} {gate}: {nowhere}")]
    NoInstruction {
        /// The option that names it.
        option: &'static str,
        /// As it is named.
        gate: String,
        /// Where it was looked for, in words.
        nowhere: &'static str,
    },
    /// An instruction begins and ends it.
    #[error("{address:#x} is named by two of --start-at, --stop-at and --snapshot-at")]
    Ambiguous {
        /// Its address.
        address: u64,
    },
    /// Tracing begins and ends at instructions, and threads would move between streams.
    #[error(
        "--start-at and --stop-at pause a thread's stream, or a processor's: with --engine hardware they want --per-thread, --tid, -a or --cpu"
    )]
    Unpausable,
    /// The kernel does not tell when an instruction is about to run.
    #[error("the kernel sets no breakpoint at {address:#x} {place}{hint}")]
    NoBreakpoint {
        /// The instruction.
        address: u64,
        /// Where.
        place: StreamPlace,
        /// What helps, in words that follow.
        hint: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not take the address filters.
    #[error("the kernel does not take the filter {filter:?}{hint}")]
    Filter {
        /// As the kernel was given it.
        filter: String,
        /// What helps, in words that follow.
        hint: &'static str,
        /// Why.
        source: io::Error,
    },
    /// There is no memory for the buffers.
    #[error(
        "there is no buffer for the packets {place}: /proc/sys/kernel/perf_event_mlock_kb limits those of users, and --buffer their size"
    )]
    NoBuffer {
        /// Where.
        place: StreamPlace,
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
#[derive(Debug)]
#[non_exhaustive]
pub struct Traced {
    /// How the program ended.
    pub outcome: Outcome,
    /// Bytes of packets.
    pub trace_bytes: u64,
    /// How often the kernel had no room for packets, and for its own records: there the file has gaps, and says so.
    pub lost: (u64, u64),
    /// The size of each buffer for packets.
    pub buffer: usize,
    /// Snapshots that were taken; that at the end is one.
    pub snapshots: u64,
}

/// The privilege levels that are traced: at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Levels {
    /// What runs at level 0.
    pub os: bool,
    /// What runs at the others.
    pub user: bool,
}

/// Who is recorded.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Subject<'p> {
    /// A program, and what it starts.
    Program(&'p Command),
    /// A process that runs already, and what it starts from now on.
    Process(u32),
    /// A thread that runs already, without what it starts.
    Thread {
        /// Its process.
        pid: u32,
        /// Its own number.
        tid: u32,
    },
    /// Processors, with all that they run: until this program ends, if there is one.
    Processors(Option<&'p Command>),
}

/// Which packets are kept.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Keep<'s> {
    /// All.
    All,
    /// The buffers are overwritten, and saved when this is set, and at the end.
    Snapshots(&'s AtomicBool),
    /// The buffers are overwritten, and samples end with the last packets.
    Samples(Samples),
}

/// Samples that end with packets.
#[derive(Clone, Copy, Debug)]
pub struct Samples {
    /// So many bytes of packets each, at most [`Samples::MOST`].
    pub size: u32,
    /// One for so many cycles.
    pub period: u64,
}

impl Samples {
    /// What a record, of which a sample is one, has room for.
    pub const MOST: u32 = 0xf000;
}

/// What is to be recorded.
#[derive(Debug)]
#[non_exhaustive]
pub struct Settings<'s> {
    /// The file.
    pub file: &'s Path,
    /// The packets.
    pub config: PtConfig,
    /// As it stands in the file.
    pub command_line: Vec<String>,
    /// At which privilege levels.
    pub levels: Levels,
    /// On which processors; all if it is not said.
    pub cpus: Option<Vec<u32>>,
    /// Bytes of each buffer for packets; as many as are allowed, up to 4 MiB, if it is not said.
    pub buffer: Option<u64>,
    /// Which packets are kept.
    pub keep: Keep<'s>,
    /// Address filters, in the kernel's form.
    pub filter: Option<String>,
    /// Threads alone: a program's first one, or those that a process has. Each has a stream, wherever it runs, and what it starts is not
    /// recorded.
    pub per_thread: bool,
    /// Where tracing begins and ends: of threads alone and of processors.
    pub window: Window,
    /// Where a snapshot is taken.
    pub snapshot_at: Option<Gate>,
}

impl<'s> Settings<'s> {
    /// All packets of user space.
    #[must_use]
    pub fn new(file: &'s Path, config: PtConfig) -> Self {
        Self {
            file,
            config,
            command_line: Vec::new(),
            levels: Levels {
                os: false,
                user: true,
            },
            cpus: None,
            buffer: None,
            keep: Keep::All,
            filter: None,
            per_thread: false,
            window: Window::default(),
            snapshot_at: None,
        }
    }
}

/// Whether Linux lets this process record its own with such packets. [`HardwareError::Absent`] where there is no such hardware.
///
/// # Errors
/// [`HardwareError`].
pub fn probe(config: PtConfig) -> Result<(), HardwareError> {
    let pmu = Pmu::find()?;
    let config = pmu.config(config)?;
    let cpu = pmu::online()?.first().copied().unwrap_or_default();
    let levels = Levels {
        os: false,
        user: true,
    };
    let owner = Owner::Thread(std::process::id());
    let attr = Attr::of_packets((pmu.kind, config), levels, owner, (0, false));
    let place = StreamPlace::Processor(cpu);
    let opened = Event::open(&attr, owner, place);
    let refused = subject::refused("Intel PT", place, Subject::Process(0), levels);
    let buffers = Buffers::new(Some(PROBE), false, false);
    let ring = Ring::new(place, vec![opened.map_err(refused)?], Vec::new(), buffers)?;
    ring.time().map(drop).ok_or(HardwareError::NoClock)
}

/// Records. `notice` hears of what is not as it might be.
///
/// # Errors
/// [`HardwareError`]. If nothing has been started, whatever stood at the file's place still does.
pub fn run(
    settings: &Settings<'_>,
    subject: Subject<'_>,
    options: RunOptions<'_>,
    notice: &mut dyn FnMut(&KernelProblem),
) -> Result<Traced, HardwareError> {
    let pmu = Pmu::find()?;
    let config = pmu.config(settings.config)?;
    let online = pmu::online()?;
    let cpus = processors(settings.cpus.as_deref(), &online)?;
    let program = match subject {
        Subject::Program(program) => Some(program),
        Subject::Processors(program) => program,
        Subject::Process(_) | Subject::Thread { .. } => None,
    };
    let gates = Gates::new(settings, subject)?;
    let per_thread = settings.per_thread || matches!(subject, Subject::Thread { .. });
    // The program decides what comes of Ctrl-C; the recording goes on as long as it.
    let mut dispositions = Dispositions::default();
    if program.is_some() {
        dispositions.catching(libc::SIGINT);
        dispositions.catching(libc::SIGQUIT);
    }
    let created = |source| HardwareError::Create {
        path: settings.file.to_owned(),
        source,
    };
    let (mut output, file) = Output::create(settings.file).map_err(created)?;
    let mut vdso = Vdso::beside(settings.file).map_err(created)?;
    let waiting = program.map(launch::prepare).transpose();
    let waiting = waiting.map_err(unstarted(program))?;
    let overwrite = !matches!(settings.keep, Keep::All);
    let samples = match settings.keep {
        Keep::Samples(samples) => Some(samples),
        _ => None,
    };
    let mut buffers = Buffers::new(settings.buffer, overwrite, samples.is_some());
    let (mut events, mut rings) = loop {
        let mut events = Events::open(&Wanted {
            trace: (pmu.kind, config),
            subject,
            waiting: waiting.as_ref().map(launch::Waiting::pid),
            per_thread,
            levels: settings.levels,
            cpus: &cpus,
            online: &online,
            watermark: buffers.watermark(),
            is_paused: gates.begins_paused(),
            from_exec: !gates.begins_late(),
            samples,
        })?;
        match (events.rings(buffers), buffers.smaller()) {
            (Ok(rings), _) => break (events, rings),
            (Err(HardwareError::NoBuffer { .. }), Some(smaller)) => buffers = smaller,
            (Err(error), _) => return Err(error),
        }
    };
    if let Some(filter) = &settings.filter {
        for ring in &rings {
            // (One without packets has nothing to filter.)
            ring.filter(filter).map_err(unfiltered(filter, subject))?;
        }
    }
    // Where instructions of a program are waited for, it has to be there.
    let mut started = match waiting {
        Some(waiting) if gates.are_of_program() => {
            let held = waiting.hold(|maps| gates.are_all_in(maps));
            Started::Held(held.map_err(unstarted(program))?)
        }
        Some(waiting) => Started::Waiting(waiting),
        None => Started::Nobody,
    };
    for (address, action) in gates.resolve(&started)? {
        for ring in &mut rings {
            let found = ring.watch(address, action);
            let found = found.map_err(gates::unwatched(address, action, ring.place(), subject))?;
            events.watched(found, address);
        }
    }
    let time = rings
        .first()
        .and_then(Ring::time)
        .ok_or(HardwareError::NoClock)?;
    let mut trace = KernelTrace::default();
    trace.pmu_type = pmu.kind;
    trace.time = time;
    trace.tsc_ctc_ratio = pmu.tsc_ctc_ratio;
    trace.max_nonturbo_ratio = pmu.max_nonturbo_ratio;
    trace.event_trace = pmu.has_event_trace;
    trace.whole_processors = matches!(subject, Subject::Processors(_));
    trace.per_thread = per_thread;
    trace.snapshots = matches!(settings.keep, Keep::Snapshots(_));
    trace.filter = settings.filter.clone().unwrap_or_default();
    let words = settings.command_line.clone();
    let mut writer = KernelWriter::new(BufWriter::new(file), events.described(), trace, words)?;
    writer.id_index(events.places())?;
    describe(&mut writer);
    let mut kernel = None;
    if settings.levels.os {
        match Kernel::find(folder_of(settings.file)) {
            Ok((found, problem)) => {
                problem.iter().for_each(&mut *notice);
                found.describe(&mut writer)?;
                kernel = Some(found);
            }
            Err(problem) => notice(&problem),
        }
        if !events.tells_of_changes() {
            notice(&KernelProblem::NoChanges);
        }
    }
    for pid in existing(subject) {
        existing::describe(&mut writer, pid, &mut vdso)?;
    }
    if !matches!(subject, Subject::Program(_)) || gates.begins_late() {
        rings.iter().for_each(Ring::enable);
    }
    let child = started.go().map_err(unstarted(program))?;
    output.commit().map_err(created)?;
    vdso.begin().map_err(created)?;
    if let Some(kernel) = kernel.as_mut().filter(|kernel| kernel.has_copy()) {
        let kept = vdso.kernel_folder().and_then(|folder| kernel.keep(&folder));
        kept.map_err(created)?;
    }
    if let (Some(leader), Some(child)) = (options.leader, &child) {
        leader.store(child.id(), Ordering::SeqCst);
    }
    let mut recording = Recording {
        rings,
        writer,
        vdso,
        sum: Told::default(),
        snapshots: 0,
    };
    let outcome = recording.follow(subject, child, settings.keep, options)?;
    recording.writer.finish()?;
    Ok(Traced {
        outcome,
        trace_bytes: recording.sum.bytes,
        lost: (recording.sum.truncated, recording.sum.lost),
        buffer: buffers.size(),
        snapshots: recording.snapshots,
    })
}

/// The process of a thread.
///
/// # Errors
/// [`HardwareError::NoThread`] if there is none of this number.
pub fn process_of(tid: u32) -> Result<u32, HardwareError> {
    existing::process_of(tid).ok_or(HardwareError::NoThread { tid })
}

/// The processors to be recorded.
fn processors(wanted: Option<&[u32]>, online: &[u32]) -> Result<Vec<u32>, HardwareError> {
    let wanted = wanted.unwrap_or(online);
    match wanted.iter().find(|cpu| !online.contains(cpu)) {
        Some(cpu) => Err(HardwareError::NoProcessor { cpu: *cpu }),
        None => Ok(wanted.to_vec()),
    }
}

/// The processes that were there before, and are recorded.
fn existing(subject: Subject<'_>) -> Vec<u32> {
    match subject {
        Subject::Program(_) => Vec::new(),
        Subject::Process(pid) | Subject::Thread { pid, .. } => vec![pid],
        Subject::Processors(_) => existing::processes(),
    }
}

/// What has become of the program that is to be recorded.
#[derive(Debug)]
enum Started {
    /// There is none.
    Nobody,
    /// It waits to be executed.
    Waiting(launch::Waiting),
    /// It has been executed, and is stopped.
    Held(launch::Held),
}

impl Started {
    /// Lets it go.
    fn go(&mut self) -> io::Result<Option<Child>> {
        match std::mem::replace(self, Self::Nobody) {
            Self::Nobody => Ok(None),
            Self::Waiting(waiting) => waiting.start().map(Some),
            Self::Held(held) => held.release().map(Some),
        }
    }
}

fn unstarted(program: Option<&Command>) -> impl FnOnce(io::Error) -> HardwareError {
    let program = program.map(|program| PathBuf::from(&program.program));
    let program = program.unwrap_or_default();
    |source| HardwareError::Launch { program, source }
}

/// What the kernel's refusal of a filter means.
fn unfiltered(filter: &str, subject: Subject<'_>) -> impl FnOnce(io::Error) -> HardwareError {
    let filter = filter.to_owned();
    let hint = match subject {
        Subject::Processors(_) => {
            ": of whole processors, only addresses of the kernel are filtered, with --privilege os or all"
        }
        _ => {
            ": the processors may have fewer ranges (nr_addr_filters in /sys/bus/event_source/devices/intel_pt), or the file is \
             none that can be mapped"
        }
    };
    move |source| HardwareError::Filter {
        filter,
        hint,
        source,
    }
}

/// A recording under way.
#[derive(Debug)]
struct Recording {
    rings: Vec<Ring>,
    writer: KernelWriter<BufWriter<File>>,
    vdso: Vdso,
    sum: Told,
    snapshots: u64,
}

impl Recording {
    /// Takes what comes until the end.
    fn follow(
        &mut self,
        subject: Subject<'_>,
        mut child: Option<Child>,
        keep: Keep<'_>,
        options: RunOptions<'_>,
    ) -> Result<Outcome, HardwareError> {
        let begun = Instant::now();
        let patience = match keep {
            Keep::Snapshots(_) => SNAPSHOT_PATIENCE,
            Keep::All | Keep::Samples(_) => PATIENCE,
        };
        let outcome = loop {
            ring::wait(&self.rings, patience);
            // What ran before the program's end is in the buffers when it is known to have ended.
            let ended = child.as_mut().and_then(|child| child.try_wait().ok()?);
            let is_gone = match subject {
                Subject::Process(pid) => !existing::is_alive(pid),
                Subject::Thread { pid, tid } => !existing::is_running_thread(pid, tid),
                Subject::Program(_) | Subject::Processors(_) => false,
            };
            match keep {
                Keep::Snapshots(wanted) => {
                    self.take(Some(false))?;
                    let is_called = std::mem::take(&mut self.sum.calls) > 0;
                    if wanted.swap(false, Ordering::SeqCst) || is_called {
                        self.rings.iter().for_each(Ring::pause);
                        self.take(Some(true))?;
                        // What was called for until then is in it.
                        self.sum.calls = 0;
                        self.rings.iter().for_each(Ring::enable);
                    }
                }
                Keep::Samples(_) => self.take(Some(false))?,
                Keep::All => self.take(None)?,
            }
            if let Some(status) = ended {
                break match (status.code(), status.signal()) {
                    (Some(code), _) => Outcome::Exited(code),
                    (None, signal) => Outcome::Signaled(signal.unwrap_or_default()),
                };
            }
            let is_over = options.duration.is_some_and(|long| begun.elapsed() >= long);
            if is_over || is_gone || options.stop.load(Ordering::SeqCst) {
                break Outcome::Detached;
            }
        };
        self.rings.iter().for_each(Ring::disable);
        self.take(match keep {
            Keep::All => None,
            Keep::Snapshots(_) => Some(true),
            Keep::Samples(_) => Some(false),
        })?;
        Ok(outcome)
    }

    /// Takes what is in the buffers. Of those that are overwritten, `snapshot` says whether packets are to be taken.
    fn take(&mut self, snapshot: Option<bool>) -> Result<(), WriteError> {
        let (writer, vdso, sum) = (&mut self.writer, &mut self.vdso, &mut self.sum);
        let mut any = false;
        for (index, ring) in (0..).zip(&mut self.rings) {
            any |= match snapshot {
                None => ring.drain(index, writer, vdso, sum)?,
                Some(with_packets) => ring.snapshot(index, with_packets, writer, vdso, sum)?,
            };
        }
        self.snapshots += u64::from(snapshot == Some(true));
        if any {
            writer.finished_round()?;
        }
        Ok(())
    }
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
