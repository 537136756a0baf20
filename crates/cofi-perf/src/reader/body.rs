//! What a record says, by kind.

use crate::constants::Feature;
use crate::reader::{Attr, BuildIdEntry, TraceInfo};
use crate::{PerfTime, Remark, TimeConv};
use cofi_packet::{ExecMode, Tsc};

/// The fields of a record, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body<'a> {
    /// MMAP or MMAP2: a file was mapped.
    Mmap {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// First address.
        start: u64,
        /// Length.
        len: u64,
        /// Offset in the file.
        pgoff: u64,
        /// PROT_ bits; none in MMAP, which is for code unless its misc bits say data.
        prot: Option<u32>,
        /// The file's build-id, if the record carries one.
        build_id: Option<&'a [u8]>,
        /// The file.
        path: &'a [u8],
    },
    /// COMM: a thread has a name.
    Comm {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// Because its process has executed a program.
        exec: bool,
        /// The name.
        name: &'a [u8],
    },
    /// FORK: a thread was created.
    Fork {
        /// The process.
        pid: u32,
        /// The process that created it.
        ppid: u32,
        /// The thread.
        tid: u32,
        /// The thread that created it.
        ptid: u32,
        /// The record is perf's own, of a process that was there before it began: its mappings are told apart, and not those of
        /// the process that created it.
        apart: bool,
    },
    /// EXIT: a thread has ended.
    Exit {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// ITRACE_START: tracing of a thread begins.
    ItraceStart {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// AUX: a stream has grown.
    Aux {
        /// From this offset on.
        offset: u64,
        /// By so many bytes.
        size: u64,
        /// What the kernel says of them.
        flags: AuxFlags,
    },
    /// AUXTRACE: a piece of a stream.
    Auxtrace {
        /// Its offset in the stream.
        offset: u64,
        /// The time of its beginning, as its source tells time.
        reference: u64,
        /// Number of the stream.
        idx: u32,
        /// The thread, or `u32::MAX`.
        tid: u32,
        /// The processor, or `u32::MAX`.
        cpu: u32,
        /// How many bytes the record says it has.
        stated: u64,
        /// The bytes that are there.
        payload: &'a [u8],
    },
    /// AUXTRACE_INFO: how the trace was taken.
    AuxtraceInfo(TraceInfo),
    /// TIME_CONV: how the TSC converts to time.
    TimeConv {
        /// The conversion.
        conv: TimeConv,
        /// The counter is narrower than 64 bits: what is to be done with its values first.
        short: Option<ShortClock>,
    },
    /// SWITCH or SWITCH_CPU_WIDE: a thread was switched in or out.
    Switch {
        /// Out, not in.
        out: bool,
        /// The other thread (pid, tid): the next one when out, the previous one when in.
        other: Option<(u32, u32)>,
    },
    /// SAMPLE: an event was sampled. What else its first fields tell is in [`Record::id`](super::Record::id).
    Sample {
        /// The instruction pointer.
        ip: Option<u64>,
        /// The raw data: for a tracepoint, its fields.
        raw: Option<&'a [u8]>,
        /// A piece of the AUX area, with which the time of the sample ends (`perf record --aux-sample`).
        aux: Option<&'a [u8]>,
    },
    /// LOST: so many records were lost.
    Lost {
        /// How many.
        count: u64,
    },
    /// LOST_SAMPLES: so many samples were lost.
    LostSamples {
        /// How many.
        count: u64,
    },
    /// THROTTLE or UNTHROTTLE: an event stopped counting because it was too frequent, or goes on.
    Throttle {
        /// Goes on, not stopped.
        over: bool,
        /// When.
        time: PerfTime,
    },
    /// NAMESPACES: those a process is in.
    Namespaces {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// Device and inode of each: network, UTS, IPC, PID, user, mount, control group.
        links: Vec<(u64, u64)>,
    },
    /// KSYMBOL: code of the kernel's that no file holds appeared or went away.
    Ksymbol {
        /// First address.
        address: u64,
        /// Length.
        len: u32,
        /// What it is: 1 BPF program, 2 out-of-line code (probes, trampolines of ftrace).
        kind: u16,
        /// It went away.
        gone: bool,
        /// Its name.
        name: &'a [u8],
    },
    /// BPF_EVENT: a BPF program was loaded or unloaded.
    BpfEvent {
        /// 1 loaded, 2 unloaded.
        kind: u16,
        /// The program's number.
        id: u32,
        /// The program's tag, part of its name as a symbol.
        tag: [u8; 8],
    },
    /// CGROUP: a control group has a name.
    Cgroup {
        /// Its number.
        id: u64,
        /// Its path.
        path: &'a [u8],
    },
    /// TEXT_POKE: the kernel changed its own code.
    TextPoke {
        /// Where.
        address: u64,
        /// The bytes that stood there; none for code that is new.
        old: &'a [u8],
        /// The bytes that stand there from now on; none for code that went away.
        new: &'a [u8],
    },
    /// AUX_OUTPUT_HW_ID: the hardware's number of an event whose samples are in the AUX area (PEBS through PT).
    AuxOutputHwId {
        /// The number.
        hw_id: u64,
    },
    /// HEADER_ATTR: an event (pipe mode; already among [`File::attrs`](super::File::attrs)).
    HeaderAttr(Attr),
    /// HEADER_EVENT_TYPE, as Cofi's recorder uses it: what perf has no record for.
    Remark(Remark<'a>),
    /// HEADER_FEATURE: a feature section (pipe mode; already there through [`File::feature`](super::File::feature)).
    HeaderFeature {
        /// Which.
        feature: Feature,
        /// Its payload.
        payload: &'a [u8],
    },
    /// HEADER_BUILD_ID: the build id of a binary (pipe mode).
    HeaderBuildId(BuildIdEntry<'a>),
    /// HEADER_TRACING_DATA: formats of tracepoints.
    TracingData(&'a [u8]),
    /// ID_INDEX: whose records the events' ids stand for.
    IdIndex(Vec<IdEntry>),
    /// AUXTRACE_ERROR: what perf found wrong when it decoded the trace.
    AuxtraceError {
        /// 1: of an instruction trace.
        kind: u32,
        /// Its number, as the decoder has it.
        code: u32,
        /// The processor, or `u32::MAX`.
        cpu: u32,
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The address.
        ip: u64,
        /// The time, if told.
        time: Option<PerfTime>,
        /// What is wrong, in words.
        text: &'a [u8],
    },
    /// THREAD_MAP: the threads that were to be recorded (`u64::MAX` for all), with their names.
    ThreadMap(Vec<(u64, &'a [u8])>),
    /// CPU_MAP: the processors that were to be recorded.
    CpuMap(Vec<u16>),
    /// COMPRESSED, COMPRESSED2: a part of a zstd stream that holds further records.
    Compressed(&'a [u8]),
    /// FINISHED_INIT: what perf made up of the time before the recording ends here.
    FinishedInit,
    /// Records before this one are older than those after the next.
    FinishedRound,
    /// Another kind.
    Other(&'a [u8]),
}

/// The flags of an AUX record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct AuxFlags(pub u64);

impl AuxFlags {
    /// What came after these bytes was lost: the buffer was full.
    pub const TRUNCATED: Self = Self(1);
    /// The buffer is a ring that is overwritten: the size is the whole ring's.
    pub const OVERWRITE: Self = Self(2);
    /// Something may be missing within these bytes: the trace was stopped meanwhile (a guest that uses the tracer itself).
    pub const PARTIAL: Self = Self(4);
    /// A sample collided with another.
    pub const COLLISION: Self = Self(8);

    /// Which bits tell of a format, in perf's words (PERF_AUX_FLAG_PMU_FORMAT_TYPE_MASK): of RTIT, the execution mode.
    const FORMAT: u32 = 8;

    /// The flags that tell of this execution mode, where packets do not.
    #[must_use]
    pub const fn of_mode(mode: ExecMode) -> Self {
        let format = match mode {
            ExecMode::Bits64 => 0,
            ExecMode::Bits32 => 1,
            ExecMode::Bits16 => 2,
        };
        Self(format << Self::FORMAT)
    }

    /// The execution mode that they tell in a trace of RTIT.
    #[must_use]
    pub const fn mode(self) -> ExecMode {
        match (self.0 >> Self::FORMAT) as u8 {
            1 => ExecMode::Bits32,
            2 => ExecMode::Bits16,
            _ => ExecMode::Bits64,
        }
    }

    /// Whether these flags are all there. Bits that tell of a format (of CoreSight, for example) are nothing to this.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A counter that wraps at fewer bits than 64 (`cap_user_time_short`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct ShortClock {
    /// A value of the counter when the conversion was determined.
    pub cycles: u64,
    /// The bits that the counter has.
    pub mask: u64,
}

impl ShortClock {
    /// The value that a counter without this limit would have.
    ///
    /// ```
    /// let clock = cofi_perf::ShortClock { cycles: 0x1_fff0, mask: 0xffff };
    /// assert_eq!(clock.widen(cofi_packet::Tsc(0x0005)), cofi_packet::Tsc(0x2_0005));
    /// ```
    #[must_use]
    pub const fn widen(self, tsc: Tsc) -> Tsc {
        let since = tsc.0.wrapping_sub(self.cycles) & self.mask;
        Tsc(self.cycles.wrapping_add(since))
    }
}

/// An entry of ID_INDEX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub struct IdEntry {
    /// The event's id.
    pub id: u64,
    /// The number of the buffer.
    pub idx: u64,
    /// The processor, or `u64::MAX`.
    pub cpu: u64,
    /// The thread, or `u64::MAX`.
    pub tid: u64,
}
