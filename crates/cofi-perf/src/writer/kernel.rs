//! A file of what the kernel tells itself: its records as they are, and its trace units' packets.

use super::records;
use super::{ATTR_SIZE, Bytes, HEADER_SIZE, Mmap2, Task, header_of, index, sections};
use crate::constants::{Feature, RecordKind};
use crate::reader::INTEL_PT;
use crate::{PtConfig, TimeConv, WriteError};
use cofi_packet::StreamOffset;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{Seek, SeekFrom, Write};

/// An event, as the kernel was asked for it.
#[derive(Clone, Debug)]
pub struct KernelEvent {
    /// `perf_event_attr`, of which the first 128 bytes are written.
    pub attr: Vec<u8>,
    /// The kernel's numbers of it.
    pub ids: Vec<u64>,
    /// What perf calls it.
    pub name: String,
}

/// What AUXTRACE_INFO says of Intel PT on this machine, and of the recording.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KernelTrace {
    /// The PMU's number.
    pub pmu_type: u32,
    /// How TSC values convert to perf's time.
    pub time: TimeConv,
    /// CPUID leaf 15H: TSC ticks per crystal clock tick, numerator and denominator.
    pub tsc_ctc_ratio: (u32, u32),
    /// Maximum non-turbo ratio.
    pub max_nonturbo_ratio: u32,
    /// The processor has Event Trace.
    pub event_trace: bool,
    /// Whole processors are recorded, with all that they run; else tasks.
    pub whole_processors: bool,
    /// Each thread has a stream; else each processor.
    pub per_thread: bool,
    /// The buffers are overwritten, and saved at snapshots.
    pub snapshots: bool,
    /// Address filters, as the kernel was given them.
    pub filter: String,
}

/// Where the packets of a stream, or an event, come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamPlace {
    /// A processor, whichever threads it runs.
    Processor(u32),
    /// A thread, whichever processors it runs on.
    Thread(u32),
}

impl fmt::Display for StreamPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor(cpu) => write!(f, "on processor {cpu}"),
            Self::Thread(tid) => write!(f, "of thread {tid}"),
        }
    }
}

impl StreamPlace {
    /// The processor, if it is one.
    pub const fn cpu(self) -> Option<u32> {
        match self {
            Self::Processor(cpu) => Some(cpu),
            Self::Thread(_) => None,
        }
    }

    /// The thread, if it is one.
    pub const fn tid(self) -> Option<u32> {
        match self {
            Self::Processor(_) => None,
            Self::Thread(tid) => Some(tid),
        }
    }
}

/// Whose an event is, and where.
#[derive(Clone, Copy, Debug)]
pub struct IdPlace {
    /// The kernel's number of the event.
    pub id: u64,
    /// The number of the stream.
    pub index: u32,
    /// The processor, if it is on one.
    pub cpu: Option<u32>,
    /// The thread, if it is of one.
    pub tid: Option<u32>,
}

/// Writes the file as records come.
#[derive(Debug)]
pub struct KernelWriter<W> {
    out: W,
    events: Vec<KernelEvent>,
    command_line: Vec<String>,
    descriptions: BTreeMap<Feature, String>,
    at: u64,
    attrs_at: u64,
    data_at: u64,
    auxtraces: Vec<u64>,
}

impl<W: Write + Seek> KernelWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// When the output fails.
    pub fn new(
        out: W,
        events: Vec<KernelEvent>,
        trace: KernelTrace,
        command_line: Vec<String>,
    ) -> Result<Self, WriteError> {
        let ids: usize = events.iter().map(|event| event.ids.len()).sum();
        let attrs_at = HEADER_SIZE + 8 * ids as u64;
        let mut this = Self {
            out,
            data_at: attrs_at + Self::entries(&events),
            events,
            command_line,
            descriptions: BTreeMap::new(),
            at: 0,
            attrs_at,
            auxtraces: Vec::new(),
        };
        let mut begin = Bytes(this.header(0, &[0; 4]));
        for event in &this.events {
            begin.u64s(&event.ids);
        }
        let mut ids_at = HEADER_SIZE;
        for event in &this.events {
            let len = 8 * event.ids.len() as u64;
            begin.0.append(&mut attr(event).0);
            begin.u64s(&[ids_at, len]);
            ids_at += len;
        }
        this.put(&begin.0)?;
        debug_assert_eq!(this.at, this.data_at);
        let TimeConv { shift, mult, zero } = trace.time;
        let (n, d) = trace.tsc_ctc_ratio;
        let mut info = Bytes::default();
        info.u32(INTEL_PT).u32(0).u64s(&[
            trace.pmu_type.into(),
            shift,
            mult,
            zero,
            1, // cap_user_time_zero
            PtConfig::TSC_BIT,
            PtConfig::NORETCOMP_BIT,
            match (trace.whole_processors, trace.per_thread) {
                (true, _) => 3,      // have_sched_switch: SWITCH_CPU_WIDE records
                (false, false) => 2, // SWITCH records
                // A thread's stream is its own: perf would ask who runs on its processor, of which there is none.
                (false, true) => 0,
            },
            trace.snapshots.into(),
            (!trace.per_thread).into(), // per_cpu_mmaps
            PtConfig::MTC_BIT,
            PtConfig::MTC_FREQ_BITS,
            n.into(),
            d.into(),
            PtConfig::CYC_BIT,
            trace.max_nonturbo_ratio.into(),
        ]);
        let mut filter = Bytes::default();
        if !trace.filter.is_empty() {
            filter.text(trace.filter.as_bytes(), 8);
        }
        info.u64(filter.0.len() as u64).0.extend(&filter.0);
        info.u64(trace.event_trace.into());
        this.record(RecordKind::AUXTRACE_INFO, &info.0)?;
        let conv = Bytes::default().u64s(&[shift, mult, zero]).0.clone();
        this.record(RecordKind::TIME_CONV, &conv)?;
        this.checkpoint()?;
        Ok(this)
    }

    fn entries(events: &[KernelEvent]) -> u64 {
        events.len() as u64 * (u64::from(ATTR_SIZE) + 16)
    }

    fn header(&self, data_size: u64, features: &[u64; 4]) -> Vec<u8> {
        let attrs = (self.attrs_at, Self::entries(&self.events));
        header_of(attrs, (self.data_at, data_size), features)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.out.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn record(&mut self, kind: RecordKind, body: &[u8]) -> Result<(), WriteError> {
        let mut record = Vec::with_capacity(8 + body.len());
        record.extend(kind.0.to_le_bytes());
        record.extend([0; 2]);
        record.extend(((body.len() + 8) as u16).to_le_bytes());
        record.extend(body);
        self.put(&record)
    }

    /// Lets the header tell of everything written so far.
    fn checkpoint(&mut self) -> Result<(), WriteError> {
        let header = self.header(self.at - self.data_at, &[0; 4]);
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header)?;
        self.out.seek(SeekFrom::Start(self.at))?;
        Ok(())
    }

    /// Records as they lay in the kernel's buffer: whole ones.
    ///
    /// # Errors
    /// When the output fails.
    pub fn records(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.put(bytes)
    }

    /// A record of what was there before the events were, made as the kernel makes its own: it has no time, and no event.
    fn known(&mut self, kind: RecordKind, misc: u16, body: &Bytes) -> Result<(), WriteError> {
        let size = body.0.len() + Self::TRAILER + 8;
        let stated = u16::try_from(size).map_err(|_| WriteError::RecordTooLong { kind, size })?;
        let mut record = Vec::with_capacity(size);
        record.extend(kind.0.to_le_bytes());
        record.extend(misc.to_le_bytes());
        record.extend(stated.to_le_bytes());
        record.extend(&body.0);
        record.resize(size, 0);
        self.put(&record)
    }

    /// TID, TIME, CPU and IDENTIFIER, which the events ask for.
    const TRAILER: usize = 32;

    /// A thread that was there has a name.
    ///
    /// # Errors
    /// When the output fails.
    pub fn known_comm(&mut self, task: Task, name: &[u8]) -> Result<(), WriteError> {
        self.known(RecordKind::COMM, 0, &records::comm(task, name))
    }

    /// Code that was mapped: of a process's or, if that is `u32::MAX`, of the kernel's.
    ///
    /// # Errors
    /// When the path is not one that perf takes, or the output fails.
    pub fn known_mmap2(&mut self, task: Task, map: &Mmap2<'_>) -> Result<(), WriteError> {
        let (misc, body) = records::mmap2(task, map)?;
        self.known(RecordKind::MMAP2, misc, &body)
    }

    /// Of events whose samples hold packets, where the kernel's number of each belongs: by it perf gives the packets to their stream.
    ///
    /// # Errors
    /// When the output fails.
    pub fn id_index(&mut self, places: &[IdPlace]) -> Result<(), WriteError> {
        // As many as a record has room for.
        for places in places.chunks(2000) {
            let mut body = Bytes::default();
            body.u64(places.len() as u64);
            for place in places {
                let number = |of: Option<u32>| of.map_or(u64::MAX, u64::from);
                let (cpu, tid) = (number(place.cpu), number(place.tid));
                body.u64s(&[place.id, place.index.into(), cpu, tid]);
            }
            self.record(RecordKind::ID_INDEX, &body.0)?;
        }
        Ok(())
    }

    /// Packets from this offset of their stream on; `reference` is a TSC value at about that time, not 0.
    ///
    /// # Errors
    /// When the output fails, or `reference` is 0.
    pub fn auxtrace(
        &mut self,
        index: u32,
        place: StreamPlace,
        offset: StreamOffset,
        reference: u64,
        payload: [&[u8]; 2],
    ) -> Result<(), WriteError> {
        if reference == 0 {
            return Err(WriteError::ZeroReference { offset: offset.0 });
        }
        self.auxtraces.push(self.at);
        let len = payload[0].len() + payload[1].len();
        let padded = len.next_multiple_of(8);
        let mut body = Bytes::default();
        body.u64s(&[padded as u64, offset.0, reference])
            .u32(index)
            .u32(place.tid().unwrap_or(u32::MAX))
            .u32(place.cpu().unwrap_or(u32::MAX))
            .u32(0);
        self.record(RecordKind::AUXTRACE, &body.0)?;
        self.put(payload[0])?;
        self.put(payload[1])?;
        self.put(&[0; 8][..padded - len])
    }

    /// All records so far are complete and may be sorted.
    ///
    /// # Errors
    /// When the output fails.
    pub fn finished_round(&mut self) -> Result<(), WriteError> {
        self.record(RecordKind::FINISHED_ROUND, &[])?;
        self.checkpoint()
    }

    /// Tells something of the machine: one of the features that are a text.
    pub fn describe(&mut self, feature: Feature, text: &str) {
        self.descriptions.insert(feature, text.to_owned());
    }

    /// Completes the file: feature sections and the header.
    ///
    /// # Errors
    /// When the output fails.
    pub fn finish(mut self) -> Result<W, WriteError> {
        let data_end = self.at;
        let mut features: BTreeMap<Feature, Vec<u8>> = BTreeMap::new();
        for (feature, text) in &self.descriptions {
            let mut payload = Bytes::default();
            payload.counted_text(text);
            features.insert(*feature, payload.0);
        }
        let mut arch = Bytes::default();
        arch.counted_text("x86_64");
        features.insert(Feature::ARCH, arch.0);
        let mut command = Bytes::default();
        command.u32(self.command_line.len() as u32);
        for word in &self.command_line {
            command.counted_text(word);
        }
        features.insert(Feature::CMDLINE, command.0);
        let mut described = Bytes::default();
        described.u32(self.events.len() as u32).u32(ATTR_SIZE);
        for event in &self.events {
            described.0.append(&mut attr(event).0);
            described
                .u32(event.ids.len() as u32)
                .counted_text(&event.name)
                .u64s(&event.ids);
        }
        features.insert(Feature::EVENT_DESC, described.0);
        features.insert(Feature::AUXTRACE, index(&self.auxtraces));
        let (bitmap, sections) = sections(data_end, &features);
        self.put(&sections)?;
        let header = self.header(data_end - self.data_at, &bitmap);
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// An event's `perf_event_attr`, with the size that all versions of perf take.
fn attr(event: &KernelEvent) -> Bytes {
    let mut attr = Bytes(event.attr.clone());
    attr.0.resize(ATTR_SIZE as usize, 0);
    attr.0[4..8].copy_from_slice(&ATTR_SIZE.to_le_bytes());
    attr
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, File};
    use std::io::Cursor;

    #[test]
    fn what_is_written_is_read() {
        let event = |ids: &[u64], name: &str| {
            let mut attr = Bytes::default();
            attr.u32(8).u32(0).u64s(&[0x2401, 1, 0x1_0087, 4, 0x4_1003]);
            KernelEvent {
                attr: attr.0,
                ids: ids.to_vec(),
                name: name.into(),
            }
        };
        let trace = KernelTrace {
            pmu_type: 8,
            time: TimeConv {
                shift: 31,
                mult: 1 << 30,
                zero: 5,
            },
            tsc_ctc_ratio: (184, 2),
            max_nonturbo_ratio: 24,
            event_trace: true,
            filter: "filter 0x10/0x20@/bin/true".into(),
            ..KernelTrace::default()
        };
        let time = trace.time;
        let events = vec![event(&[11, 12], "intel_pt//u"), event(&[13, 14], "dummy:u")];
        let words = vec!["cofi".into(), "record".into()];
        let mut writer = KernelWriter::new(Cursor::new(Vec::new()), events, trace, words).unwrap();
        // ITRACE_START of processor 1, as a kernel writes it.
        let mut start = Bytes::default();
        start.u32(12).u32(48 << 16).u32(7).u32(7);
        start.u32(7).u32(7).u64(900).u32(1).u32(0).u64(12);
        writer.records(&start.0).unwrap();
        let task = Task { pid: 7, tid: 8 };
        let map = Mmap2 {
            start: 0x1000,
            len: 0x2000,
            pgoff: 0,
            device: (8, 1),
            inode: 5,
            prot: 5,
            path: b"/bin/true",
        };
        let place = IdPlace {
            id: 12,
            index: 1,
            cpu: Some(3),
            tid: None,
        };
        writer.id_index(&[place; 2001]).unwrap();
        writer.known_comm(task, b"worker").unwrap();
        writer.known_mmap2(task, &map).unwrap();
        let on_one = StreamPlace::Processor(1);
        writer
            .auxtrace(1, on_one, StreamOffset(0x40), 5, [&[1, 2, 3], &[4, 5]])
            .unwrap();
        let of_thread = StreamPlace::Thread(9);
        writer
            .auxtrace(2, of_thread, StreamOffset(0), 5, [&[6; 8], &[]])
            .unwrap();
        assert!(
            writer
                .auxtrace(1, on_one, StreamOffset(0x48), 0, [&[], &[]])
                .is_err()
        );
        writer.finished_round().unwrap();
        writer.describe(Feature::CPUID, "GenuineIntel,6,94,3");
        let bytes = writer.finish().unwrap().into_inner();
        let file = File::parse(&bytes).unwrap();
        assert!(file.problems().is_empty(), "{:?}", file.problems());
        assert_eq!(file.attrs().len(), 2);
        assert_eq!(file.attrs()[1].ids, [13, 14]);
        let mut seen = Vec::new();
        for record in file.records() {
            match record.unwrap().body {
                Body::AuxtraceInfo(info) => {
                    assert_eq!(info.time, Some(time));
                    assert!(!info.by_cofi && !info.snapshot_mode && info.per_cpu);
                }
                Body::ItraceStart { .. } => seen.push("start".into()),
                Body::Auxtrace {
                    offset,
                    cpu,
                    tid,
                    payload,
                    ..
                } => seen.push(format!("{cpu} {tid} {offset} {payload:?}")),
                Body::Comm { tid, name, .. } => {
                    seen.push(format!("{tid} {}", String::from_utf8_lossy(name)));
                }
                Body::IdIndex(index) => {
                    let last = index.last().unwrap();
                    seen.push(format!("{} ids, {} on {}", index.len(), last.id, last.cpu));
                }
                Body::Mmap { start, path, .. } => {
                    seen.push(format!("{start:#x} {}", String::from_utf8_lossy(path)));
                }
                _ => {}
            }
        }
        let all = [
            "start",
            "2000 ids, 12 on 3",
            "1 ids, 12 on 3",
            "8 worker",
            "0x1000 /bin/true",
            "1 4294967295 64 [1, 2, 3, 4, 5, 0, 0, 0]",
            "4294967295 9 0 [6, 6, 6, 6, 6, 6, 6, 6]",
        ];
        assert_eq!(seen, all);
    }
}
