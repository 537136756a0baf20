//! One record: its kind, its trailer, its fields.

use super::{Attr, Cursor};
use crate::constants::{Misc, RecordKind, SampleType};
use crate::{Error, ErrorKind, PerfTime, TimeConv};

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where it stands in the file.
    pub offset: u64,
    /// Its kind.
    pub kind: RecordKind,
    /// Its misc bits.
    pub misc: Misc,
    /// What its trailer says of where and when it comes from.
    pub id: SampleId,
    /// Its fields.
    pub body: Body<'a>,
}

/// Who, when and where: the trailer of a kernel record or the first fields of a sample, as far as it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SampleId {
    /// Process and thread.
    pub task: Option<(u32, u32)>,
    /// The time.
    pub time: Option<PerfTime>,
    /// The processor.
    pub cpu: Option<u32>,
    /// The event.
    pub id: Option<u64>,
}

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
        /// PERF_AUX_FLAG_ bits: 1 truncated, 2 overwrite, 4 partial, 8 collision.
        flags: u64,
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
    AuxtraceInfo(IntelPtInfo),
    /// TIME_CONV: how the TSC converts to time.
    TimeConv(TimeConv),
    /// SWITCH or SWITCH_CPU_WIDE: a thread was switched in or out.
    Switch {
        /// Out, not in.
        out: bool,
        /// The other thread (pid, tid): the next one when out, the previous one when in.
        other: Option<(u32, u32)>,
    },
    /// SAMPLE: an event was sampled. What else its first fields tell is in [`Record::id`].
    Sample {
        /// The instruction pointer.
        ip: Option<u64>,
    },
    /// LOST: so many records were lost.
    Lost {
        /// How many.
        count: u64,
    },
    /// Records before this one are older than those after the next.
    FinishedRound,
    /// Another kind.
    Other(&'a [u8]),
}

/// AUXTRACE_INFO of Intel PT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IntelPtInfo {
    /// The PMU's number: the `type` of its event.
    pub pmu_type: u32,
    /// How the TSC converts to perf's time, if the file says.
    pub time: Option<TimeConv>,
    /// The bit of the event's config that stands for TSC packets.
    pub tsc_bit: u64,
    /// One stream a processor, not one a thread.
    pub per_cpu: bool,
    /// How context switches are told: 0 not at all (or by ITRACE_START), 1 tracepoint, 2 SWITCH, 3 SWITCH_CPU_WIDE.
    pub have_sched_switch: u64,
    /// The AUX buffers were overwritten and saved only at snapshots.
    pub snapshot_mode: bool,
    /// The bits of the event's config that hold MTCFreq.
    pub mtc_freq_bits: u64,
    /// TSC ticks per crystal clock tick: numerator, denominator.
    pub tsc_ctc_ratio: (u32, u32),
    /// Maximum non-turbo ratio.
    pub max_nonturbo_ratio: u32,
}

impl SampleId {
    /// Reads a trailer, which is all of the cursor.
    fn trailer(c: &mut Cursor<'_>, has: SampleType) -> Option<Self> {
        let mut this = Self::default();
        if has.contains(SampleType::TID) {
            this.task = Some((c.u32()?, c.u32()?));
        }
        if has.contains(SampleType::TIME) {
            this.time = Some(PerfTime(c.u64()?));
        }
        if has.contains(SampleType::ID) {
            this.id = Some(c.u64()?);
        }
        if has.contains(SampleType::STREAM_ID) {
            c.u64()?;
        }
        if has.contains(SampleType::CPU) {
            this.cpu = cpu(c)?;
        }
        if has.contains(SampleType::IDENTIFIER) {
            this.id = Some(c.u64()?);
        }
        Some(this)
    }
}

/// A processor's number, in eight bytes.
fn cpu(c: &mut Cursor<'_>) -> Option<Option<u32>> {
    let (cpu, _reserved) = (c.u32()?, c.u32()?);
    Some((cpu != u32::MAX).then_some(cpu))
}

/// The first fields of a sample.
fn sample<'a>(c: &mut Cursor<'_>, has: SampleType) -> Option<(Body<'a>, SampleId)> {
    let mut id = SampleId::default();
    if has.contains(SampleType::IDENTIFIER) {
        id.id = Some(c.u64()?);
    }
    let mut ip = None;
    if has.contains(SampleType::IP) {
        ip = Some(c.u64()?);
    }
    if has.contains(SampleType::TID) {
        id.task = Some((c.u32()?, c.u32()?));
    }
    if has.contains(SampleType::TIME) {
        id.time = Some(PerfTime(c.u64()?));
    }
    if has.contains(SampleType::ADDR) {
        c.u64()?;
    }
    if has.contains(SampleType::ID) {
        id.id = Some(c.u64()?);
    }
    if has.contains(SampleType::STREAM_ID) {
        c.u64()?;
    }
    if has.contains(SampleType::CPU) {
        id.cpu = cpu(c)?;
    }
    Some((Body::Sample { ip }, id))
}

pub(super) fn parse<'a>(
    attr: Option<&Attr>,
    offset: u64,
    kind: RecordKind,
    misc: u16,
    body: &'a [u8],
    payload: &'a [u8],
) -> Result<Record<'a>, Error> {
    let misc = Misc(misc);
    let short = || {
        let size = body.len() as u16 + 8;
        Error::new(offset, ErrorKind::RecordShort { kind, size })
    };
    match kind {
        RecordKind::COMPRESSED | RecordKind::COMPRESSED2 => {
            return Err(Error::new(offset, ErrorKind::Compressed { kind }));
        }
        RecordKind::AUXTRACE_INFO => {
            let found = Cursor::new(body).u32().ok_or_else(short)?;
            if found != 1 {
                return Err(Error::new(offset, ErrorKind::NotIntelPt { found }));
            }
        }
        _ => {}
    }
    let layout = attr.map_or(SampleType::default(), |attr| attr.sample_type);
    let (fields, id) = if kind == RecordKind::SAMPLE {
        sample(&mut Cursor::new(body), layout)
    } else {
        let trailed = kind.is_kernel() && attr.is_some_and(Attr::has_trailer);
        let layout = if trailed {
            layout
        } else {
            SampleType::default()
        };
        let start = body.len().checked_sub(layout.trailer_size());
        start.and_then(|start| {
            let (fields, trailer) = body.split_at(start);
            let id = SampleId::trailer(&mut Cursor::new(trailer), layout)?;
            Some((fields_of(kind, misc, fields, payload)?, id))
        })
    }
    .ok_or_else(short)?;
    Ok(Record {
        offset,
        kind,
        misc,
        id,
        body: fields,
    })
}

fn fields_of<'a>(
    kind: RecordKind,
    misc: Misc,
    fields: &'a [u8],
    payload: &'a [u8],
) -> Option<Body<'a>> {
    let mut c = Cursor::new(fields);
    Some(match kind {
        RecordKind::MMAP => {
            let (pid, tid) = (c.u32()?, c.u32()?);
            let (start, len, pgoff) = (c.u64()?, c.u64()?, c.u64()?);
            Body::Mmap {
                pid,
                tid,
                start,
                len,
                pgoff,
                prot: None,
                build_id: None,
                path: c.text(),
            }
        }
        RecordKind::MMAP2 => {
            let (pid, tid) = (c.u32()?, c.u32()?);
            let (start, len, pgoff) = (c.u64()?, c.u64()?, c.u64()?);
            let identity = c.take(24)?;
            let build_id = if misc.has(Misc::MMAP_BUILD_ID) {
                let size = usize::from(*identity.first()?).min(20);
                identity.get(4..4 + size)
            } else {
                None
            };
            let (prot, _flags) = (c.u32()?, c.u32()?);
            Body::Mmap {
                pid,
                tid,
                start,
                len,
                pgoff,
                prot: Some(prot),
                build_id,
                path: c.text(),
            }
        }
        RecordKind::COMM => Body::Comm {
            pid: c.u32()?,
            tid: c.u32()?,
            exec: misc.has(Misc::EXEC),
            name: c.text(),
        },
        RecordKind::FORK => {
            let (pid, ppid, tid, ptid) = (c.u32()?, c.u32()?, c.u32()?, c.u32()?);
            Body::Fork {
                pid,
                ppid,
                tid,
                ptid,
            }
        }
        RecordKind::EXIT => {
            let (pid, _ppid, tid) = (c.u32()?, c.u32()?, c.u32()?);
            Body::Exit { pid, tid }
        }
        RecordKind::ITRACE_START => Body::ItraceStart {
            pid: c.u32()?,
            tid: c.u32()?,
        },
        RecordKind::AUX => Body::Aux {
            offset: c.u64()?,
            size: c.u64()?,
            flags: c.u64()?,
        },
        RecordKind::AUXTRACE => {
            let (stated, offset, reference) = (c.u64()?, c.u64()?, c.u64()?);
            let (idx, tid, cpu) = (c.u32()?, c.u32()?, c.u32()?);
            Body::Auxtrace {
                offset,
                reference,
                idx,
                tid,
                cpu,
                stated,
                payload,
            }
        }
        RecordKind::AUXTRACE_INFO => Body::AuxtraceInfo(info(&mut c)?),
        RecordKind::TIME_CONV => Body::TimeConv(TimeConv {
            shift: c.u64()?,
            mult: c.u64()?,
            zero: c.u64()?,
        }),
        RecordKind::SWITCH => Body::Switch {
            out: misc.has(Misc::SWITCH_OUT),
            other: None,
        },
        RecordKind::SWITCH_CPU_WIDE => Body::Switch {
            out: misc.has(Misc::SWITCH_OUT),
            other: Some((c.u32()?, c.u32()?)),
        },
        RecordKind::LOST => {
            c.u64()?;
            Body::Lost { count: c.u64()? }
        }
        RecordKind::FINISHED_ROUND => Body::FinishedRound,
        _ => Body::Other(fields),
    })
}

/// The fields have been added one by one over the years; a file of an older perf ends before the newer ones.
fn info(c: &mut Cursor<'_>) -> Option<IntelPtInfo> {
    let _type = c.u64()?;
    let pmu_type = c.u64()? as u32;
    let time = TimeConv {
        shift: c.u64()?,
        mult: c.u64()?,
        zero: c.u64()?,
    };
    let known = c.u64()? != 0;
    let tsc_bit = c.u64()?;
    let _noretcomp_bit = c.u64()?;
    let have_sched_switch = c.u64()?;
    let snapshot_mode = c.u64()? != 0;
    let per_cpu = c.u64()? != 0;
    let mut info = IntelPtInfo {
        pmu_type,
        time: (known || time.mult != 0).then_some(time),
        tsc_bit,
        per_cpu,
        have_sched_switch,
        snapshot_mode,
        ..IntelPtInfo::default()
    };
    let mut newer = || {
        let _mtc_bit = c.u64()?;
        info.mtc_freq_bits = c.u64()?;
        info.tsc_ctc_ratio = (c.u64()? as u32, c.u64()? as u32);
        let _cyc_bit = c.u64()?;
        info.max_nonturbo_ratio = c.u64()? as u32;
        Some(())
    };
    // Older files end before these.
    let _ = newer();
    Some(info)
}

impl IntelPtInfo {
    /// MTCFreq in the config of the PT event.
    #[must_use]
    pub const fn mtc_freq(&self, config: u64) -> u8 {
        if self.mtc_freq_bits == 0 {
            return 0;
        }
        ((config & self.mtc_freq_bits) >> self.mtc_freq_bits.trailing_zeros()) as u8 & 0xf
    }
}
