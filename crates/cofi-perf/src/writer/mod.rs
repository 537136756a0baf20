//! Writes a perf.data file that stock perf decodes.

mod info;
mod kernel;
mod records;

pub use kernel::{IdPlace, KernelEvent, KernelTrace, KernelWriter, StreamPlace};

use crate::constants::{Feature, RecordKind, SampleType};
use crate::{PerfTime, Remark, TimeConv, TraceConfig, WriteError};
use cofi_packet::StreamOffset;
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};

/// What the file says of the trace as a whole.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriterOptions {
    /// The trace's configuration, which says of which format it is.
    pub config: TraceConfig,
    /// How TSC values convert to perf's time.
    pub time: TimeConv,
    /// CPUID leaf 15H: TSC ticks per crystal clock tick, numerator and denominator. RTIT has no use for it.
    pub tsc_ctc_ratio: (u32, u32),
    /// Maximum non-turbo ratio: TSC ticks per tick of the bus clock.
    pub max_nonturbo_ratio: u32,
    /// The recorded command line.
    pub command_line: Vec<String>,
    /// Whose trace it is.
    pub subject: Subject,
}

impl WriterOptions {
    /// Of a trace of processes, with nothing else known.
    #[must_use]
    pub const fn new(config: TraceConfig, time: TimeConv) -> Self {
        Self {
            config,
            time,
            tsc_ctc_ratio: (0, 0),
            max_nonturbo_ratio: 0,
            command_line: Vec::new(),
            subject: Subject::Processes,
        }
    }
}

/// Whose trace a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Subject {
    /// Processes of this system, in user space.
    #[default]
    Processes,
    /// A whole machine that runs within this system: a guest only (`exclude_host`). Its address spaces take the place of
    /// processes; their numbers are those of the page frames to which CR3 points.
    Guest {
        /// What it does at privilege level 0 is traced.
        os: bool,
        /// What it does at the other levels is traced.
        user: bool,
    },
}

impl Subject {
    /// What perf would call the events.
    const fn event_names(self, config: TraceConfig) -> (&'static str, &'static str) {
        match (config, self) {
            (TraceConfig::Pt(_), Self::Processes) => ("intel_pt//u", "dummy:u"),
            (TraceConfig::Pt(_), Self::Guest { .. }) => ("intel_pt//G", "dummy:G"),
            (TraceConfig::Rtit(_), Self::Processes) => ("rtit//u", "dummy:u"),
            (TraceConfig::Rtit(_), Self::Guest { .. }) => ("rtit//G", "dummy:G"),
        }
    }

    /// Flags of `perf_event_attr`, but for `disabled` and the like.
    const fn flags(self) -> u64 {
        const EXCLUDE_USER: u64 = 1 << 4;
        const EXCLUDE_KERNEL: u64 = 1 << 5;
        const EXCLUDE_HV: u64 = 1 << 6;
        const EXCLUDE_HOST: u64 = 1 << 19;
        match self {
            Self::Processes => EXCLUDE_KERNEL | EXCLUDE_HV,
            Self::Guest { os, user } => {
                EXCLUDE_HOST
                    | if user { 0 } else { EXCLUDE_USER }
                    | if os { 0 } else { EXCLUDE_KERNEL }
            }
        }
    }
}

/// A thread of a process, as records name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Task {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

/// An executable mapping, as MMAP2 tells it.
#[derive(Clone, Debug)]
pub struct Mmap2<'a> {
    /// Its first address.
    pub start: u64,
    /// Its length.
    pub len: u64,
    /// Its offset in the file.
    pub pgoff: u64,
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// The inode.
    pub inode: u64,
    /// PROT_ bits.
    pub prot: u32,
    /// The file.
    pub path: &'a [u8],
}

/// Number of the PT event among the file's ids, and of the dummy event that carries the sideband.
const PT_ID: u64 = 1;
const DUMMY_ID: u64 = 2;
/// The PMU's number: what it is does not matter, but every place must agree.
const PMU_TYPE: u32 = 8;
/// disabled, inherit, enable_on_exec, sample_id_all.
const PT_FLAGS: u64 = 0x4_1003;
/// And mmap, comm, task, mmap2, comm_exec.
const DUMMY_FLAGS: u64 = PT_FLAGS | 0x180_2300;
const ATTR_SIZE: u32 = 128;
const HEADER_SIZE: u64 = 104;
/// Header, two ids, two attributes with their id sections, data.
const IDS_AT: u64 = HEADER_SIZE;
const ATTRS_AT: u64 = IDS_AT + 2 * 8;
const ATTR_ENTRY: u64 = ATTR_SIZE as u64 + 16;
const DATA_AT: u64 = ATTRS_AT + 2 * ATTR_ENTRY;
const MAGIC: &[u8; 8] = b"PERFILE2";
const NO_CPU: u32 = u32::MAX;

/// Writes the file as records come; nothing but an index of the AUXTRACE records (eight bytes each) is kept in memory.
///
/// The header keeps up with the packets and rounds: a file whose writing stopped before [`finish`](Self::finish) is
/// still read by perf and by Cofi, up to the last of these.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    options: WriterOptions,
    at: u64,
    auxtraces: Vec<u64>,
    descriptions: BTreeMap<Feature, String>,
}

/// How far a file had got: see [`Writer::mark`].
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Bytes that were written.
    pub at: u64,
    auxtraces: usize,
}

/// Little-endian bytes, one after another.
#[derive(Debug, Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Bytes {
    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(crate) fn u64s(&mut self, values: &[u64]) -> &mut Self {
        for value in values {
            self.u64(*value);
        }
        self
    }
    pub(crate) fn pad_to(&mut self, multiple: usize) -> &mut Self {
        self.0.resize(self.0.len().next_multiple_of(multiple), 0);
        self
    }
    /// A text that ends with NUL, padded.
    pub(crate) fn text(&mut self, text: &[u8], multiple: usize) -> &mut Self {
        self.0.extend(text);
        self.0.push(0);
        self.pad_to(multiple)
    }
    /// A feature's text: its padded length, then itself.
    fn counted_text(&mut self, text: &str) -> &mut Self {
        let len = (text.len() + 1).next_multiple_of(64);
        self.u32(len as u32).text(text.as_bytes(), 1);
        self.0.resize(self.0.len() + len - text.len() - 1, 0);
        self
    }
}

/// The file header: where the attributes and the data are, each with its length.
fn header_of(attrs: (u64, u64), data: (u64, u64), features: &[u64; 4]) -> Vec<u8> {
    let mut header = Bytes(MAGIC.to_vec());
    header.u64s(&[HEADER_SIZE, ATTR_ENTRY, attrs.0, attrs.1]);
    header.u64s(&[data.0, data.1, 0, 0]).u64s(features);
    header.0
}

fn header(data_size: u64, features: &[u64; 4]) -> Vec<u8> {
    header_of((ATTRS_AT, 2 * ATTR_ENTRY), (DATA_AT, data_size), features)
}

/// Where the AUXTRACE records are, as the feature of that name tells.
fn index(auxtraces: &[u64]) -> Vec<u8> {
    let mut index = Bytes::default();
    index.u64(auxtraces.len() as u64);
    for at in auxtraces {
        index.u64s(&[*at, 48]);
    }
    index.0
}

/// What stands behind the data, which ends at `at`: the table of the features and they themselves; and the header's bits of them.
fn sections(at: u64, features: &BTreeMap<Feature, Vec<u8>>) -> ([u64; 4], Vec<u8>) {
    let mut bitmap = [0_u64; 4];
    let mut sections = Bytes::default();
    let mut at = at + 16 * features.len() as u64;
    for (feature, payload) in features {
        bitmap[feature.0 as usize / 64] |= 1 << (feature.0 % 64);
        sections.u64s(&[at, payload.len() as u64]);
        at += payload.len() as u64;
    }
    for payload in features.values() {
        sections.0.extend(payload);
    }
    (bitmap, sections.0)
}

impl<W: Write + Seek> Writer<W> {
    /// Begins a file: header, events, and the records that describe the trace.
    ///
    /// # Errors
    /// When the output fails.
    pub fn new(out: W, options: WriterOptions) -> Result<Self, WriteError> {
        let mut this = Self {
            out,
            options,
            at: 0,
            auxtraces: Vec::new(),
            descriptions: BTreeMap::new(),
        };
        // Written again at the end, when sizes are known.
        this.put(&header(0, &[0; 4]))?;
        this.put(Bytes::default().u64s(&[PT_ID, DUMMY_ID]).0.as_slice())?;
        let pt = this.event_config();
        let subject = this.options.subject.flags();
        this.attr(PMU_TYPE, pt, PT_FLAGS | subject, IDS_AT)?;
        // PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY
        this.attr(1, 9, DUMMY_FLAGS | subject, IDS_AT + 8)?;
        debug_assert_eq!(this.at, DATA_AT);
        this.auxtrace_info()?;
        if !this.is_timeless() {
            let TimeConv { shift, mult, zero } = this.options.time;
            this.record(
                RecordKind::TIME_CONV,
                0,
                Bytes::default().u64s(&[shift, mult, zero]),
            )?;
        }
        this.checkpoint()?;
        Ok(this)
    }

    /// `attr.config` of the event.
    fn event_config(&self) -> u64 {
        match self.options.config {
            TraceConfig::Pt(config) => config.bits() | 1,
            TraceConfig::Rtit(config) => config.bits(),
        }
    }

    fn is_timeless(&self) -> bool {
        self.options.config.is_timeless()
    }

    fn sample_type(&self) -> u64 {
        let always =
            SampleType::IP.0 | SampleType::TID.0 | SampleType::CPU.0 | SampleType::IDENTIFIER.0;
        if self.is_timeless() {
            always
        } else {
            always | SampleType::TIME.0
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.out.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Lets the header tell of everything written so far, and hands all of it to the system.
    ///
    /// # Errors
    /// When the output fails.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.checkpoint()?;
        Ok(self.out.flush()?)
    }

    /// The output.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// How far the file has got.
    pub fn mark(&self) -> Mark {
        Mark {
            at: self.at,
            auxtraces: self.auxtraces.len(),
        }
    }

    /// Forgets what was written after a mark, where writing has failed: the output's position is to be there again.
    pub fn back_to(&mut self, mark: Mark) {
        self.at = mark.at;
        self.auxtraces.truncate(mark.auxtraces);
    }

    /// Lets the header tell of everything written so far.
    fn checkpoint(&mut self) -> Result<(), WriteError> {
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header(self.at - DATA_AT, &[0; 4]))?;
        self.out.seek(SeekFrom::Start(self.at))?;
        Ok(())
    }

    fn attr_fields(&self, kind: u32, config: u64, flags: u64) -> Bytes {
        let mut attr = Bytes::default();
        // period 1, read_format ID
        attr.u32(kind)
            .u32(ATTR_SIZE)
            .u64s(&[config, 1, self.sample_type(), 4, flags]);
        attr.0.resize(ATTR_SIZE as usize, 0);
        attr
    }

    fn attr(&mut self, kind: u32, config: u64, flags: u64, ids_at: u64) -> Result<(), WriteError> {
        let mut attr = self.attr_fields(kind, config, flags);
        attr.u64s(&[ids_at, 8]);
        self.put(&attr.0)
    }

    fn auxtrace_info(&mut self) -> Result<(), WriteError> {
        let mut info = info::of(&self.options);
        self.record(RecordKind::AUXTRACE_INFO, 0, &mut info)
    }

    fn record(&mut self, kind: RecordKind, misc: u16, body: &mut Bytes) -> Result<(), WriteError> {
        let size = body.0.len() + 8;
        let stated = u16::try_from(size).map_err(|_| WriteError::RecordTooLong { kind, size })?;
        let mut header = Vec::with_capacity(size);
        header.extend(kind.0.to_le_bytes());
        header.extend(misc.to_le_bytes());
        header.extend(stated.to_le_bytes());
        header.append(&mut body.0);
        self.put(&header)
    }

    /// A record as the kernel writes it: with the trailer that `sample_id_all` asks for.
    fn kernel(
        &mut self,
        kind: RecordKind,
        misc: u16,
        body: &mut Bytes,
        task: Task,
        time: PerfTime,
        id: u64,
    ) -> Result<(), WriteError> {
        body.u32(task.pid).u32(task.tid);
        if !self.is_timeless() {
            body.u64(time.0);
        }
        body.u32(NO_CPU).u32(0).u64(id);
        self.record(kind, misc, body)
    }

    /// A thread has a name; `exec`: because its process has executed a program.
    ///
    /// # Errors
    /// When the output fails.
    pub fn comm(
        &mut self,
        task: Task,
        name: &[u8],
        exec: bool,
        time: PerfTime,
    ) -> Result<(), WriteError> {
        let (misc, mut body) = (u16::from(exec) << 13, records::comm(task, name));
        self.kernel(RecordKind::COMM, misc, &mut body, task, time, DUMMY_ID)
    }

    /// Code has been mapped.
    ///
    /// # Errors
    /// When the path is not one that perf takes, or the output fails.
    pub fn mmap2(&mut self, task: Task, map: &Mmap2<'_>, time: PerfTime) -> Result<(), WriteError> {
        let (misc, mut body) = records::mmap2(task, map)?;
        self.kernel(RecordKind::MMAP2, misc, &mut body, task, time, DUMMY_ID)
    }

    fn birth_or_death(
        &mut self,
        kind: RecordKind,
        task: Task,
        parent: Task,
        time: PerfTime,
    ) -> Result<(), WriteError> {
        let mut body = records::fork(task, parent, time);
        self.kernel(kind, 0, &mut body, task, time, DUMMY_ID)
    }

    /// A thread was created (of the same process, or as the first of a new one).
    ///
    /// # Errors
    /// When the output fails.
    pub fn fork(&mut self, task: Task, parent: Task, time: PerfTime) -> Result<(), WriteError> {
        self.birth_or_death(RecordKind::FORK, task, parent, time)
    }

    /// A thread has ended.
    ///
    /// # Errors
    /// When the output fails.
    pub fn exit(&mut self, task: Task, time: PerfTime) -> Result<(), WriteError> {
        self.birth_or_death(RecordKind::EXIT, task, task, time)
    }

    /// Tracing of a thread begins.
    ///
    /// # Errors
    /// When the output fails.
    pub fn itrace_start(&mut self, task: Task, time: PerfTime) -> Result<(), WriteError> {
        let mut body = Bytes::default();
        body.u32(task.pid).u32(task.tid);
        self.kernel(RecordKind::ITRACE_START, 0, &mut body, task, time, PT_ID)
    }

    /// A stream has grown by `size` bytes from `offset` on.
    ///
    /// # Errors
    /// When the output fails.
    pub fn aux(
        &mut self,
        task: Task,
        offset: StreamOffset,
        size: u64,
        flags: u64,
        time: PerfTime,
    ) -> Result<(), WriteError> {
        let mut body = Bytes::default();
        body.u64s(&[offset.0, size, flags]);
        self.kernel(RecordKind::AUX, 0, &mut body, task, time, PT_ID)
    }

    /// A piece of stream `index`, which belongs to thread `tid`; `reference` is the TSC where it begins.
    ///
    /// # Errors
    /// When `reference` is 0 although timestamps are on, or the output fails.
    pub fn auxtrace(
        &mut self,
        index: u32,
        tid: u32,
        offset: StreamOffset,
        reference: u64,
        payload: &[u8],
    ) -> Result<(), WriteError> {
        if reference == 0 && !self.is_timeless() {
            return Err(WriteError::ZeroReference { offset: offset.0 });
        }
        let reference = if self.is_timeless() { 0 } else { reference };
        self.auxtraces.push(self.at);
        let padded = payload.len().next_multiple_of(8);
        let mut body = Bytes::default();
        body.u64s(&[padded as u64, offset.0, reference])
            .u32(index)
            .u32(tid)
            .u32(NO_CPU)
            .u32(0);
        self.record(RecordKind::AUXTRACE, 0, &mut body)?;
        self.put(payload)?;
        self.put(&[0; 8][..padded - payload.len()])?;
        self.checkpoint()
    }

    /// Says what perf has no record for. perf skips it.
    ///
    /// # Errors
    /// When the output fails.
    pub fn remark(&mut self, remark: &Remark<'_>) -> Result<(), WriteError> {
        self.record(RecordKind::HEADER_EVENT_TYPE, 0, &mut remark.write())
    }

    /// Tells something of the machine: one of the features that are a text.
    ///
    /// `Feature::CPUID` wants perf's form, `GenuineIntel,6,94,3`: decoders work around a processor's errata by it.
    /// The features are `HOSTNAME`, `OSRELEASE`, `VERSION` (of the recording program), `CPUDESC` and `CPUID`; another
    /// is not written, and gives `false`.
    pub fn describe(&mut self, feature: Feature, text: &str) -> bool {
        let known = matches!(
            feature,
            Feature::HOSTNAME
                | Feature::OSRELEASE
                | Feature::VERSION
                | Feature::CPUDESC
                | Feature::CPUID
        );
        if known {
            self.descriptions.insert(feature, text.to_owned());
        }
        known
    }

    /// All records so far are complete and may be sorted.
    ///
    /// # Errors
    /// When the output fails.
    pub fn finished_round(&mut self) -> Result<(), WriteError> {
        self.record(RecordKind::FINISHED_ROUND, 0, &mut Bytes::default())?;
        self.checkpoint()
    }

    /// Completes the file: feature sections and the header.
    ///
    /// # Errors
    /// When the output fails.
    pub fn finish(mut self) -> Result<W, WriteError> {
        let data_end = self.at;
        let mut arch = Bytes::default();
        arch.counted_text("x86_64");
        let mut command = Bytes::default();
        command.u32(self.options.command_line.len() as u32);
        for word in &self.options.command_line {
            command.counted_text(word);
        }
        let mut events = Bytes::default();
        events.u32(2).u32(ATTR_SIZE);
        let subject = self.options.subject;
        let (pt_name, dummy_name) = subject.event_names(self.options.config);
        let pt = self.event_config();
        for (kind, config, flags, name, id) in [
            (PMU_TYPE, pt, PT_FLAGS | subject.flags(), pt_name, PT_ID),
            (1, 9, DUMMY_FLAGS | subject.flags(), dummy_name, DUMMY_ID),
        ] {
            events
                .0
                .append(&mut self.attr_fields(kind, config, flags).0);
            events.u32(1).counted_text(name).u64(id);
        }
        let mut features: BTreeMap<Feature, Vec<u8>> = BTreeMap::new();
        for (feature, text) in &self.descriptions {
            let mut payload = Bytes::default();
            payload.counted_text(text);
            features.insert(*feature, payload.0);
        }
        features.insert(Feature::ARCH, arch.0);
        if !self.options.command_line.is_empty() {
            features.insert(Feature::CMDLINE, command.0);
        }
        features.insert(Feature::EVENT_DESC, events.0);
        features.insert(Feature::AUXTRACE, index(&self.auxtraces));
        let (bitmap, sections) = sections(data_end, &features);
        self.put(&sections)?;
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header(data_end - DATA_AT, &bitmap))?;
        self.out.flush()?;
        Ok(self.out)
    }
}
