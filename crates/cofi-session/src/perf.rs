//! What a session needs of a perf.data file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cofi_flow::{Cpu, FlowConfig, IpFilter, RtitFlowConfig, StopRanges, TraceFormat};
use cofi_packet::rtit::Mode;
use cofi_packet::{ExecMode, Ip};
use cofi_perf::{
    Attr, Body, CpuMode, Feature, File, PerfTime, Record, Remark, RtitInfo, Seal, TraceInfo,
};

use crate::Task;
use crate::aux_records::Streams;
use crate::clock::Clock;
use crate::code::Known;
use crate::error::Diagnostic;
use crate::lldb::Module;
use crate::recording::{Recording, Said};
use crate::sched::Sched;
use crate::signal::Signal;
use crate::stream::{RawStream, StreamKey};
use crate::timeline::{Entry, SidebandChange};

/// What a trace file holds.
#[derive(Debug)]
pub(crate) struct Contents<'f, 't> {
    pub(crate) entries: Vec<Entry<'f>>,
    pub(crate) streams: Vec<(StreamKey, RawStream<'t>)>,
    pub(crate) diagnostics: Vec<Diagnostic>,
    pub(crate) flow: FlowConfig,
    pub(crate) time: Option<Clock>,
    pub(crate) cpu: Option<Cpu>,
    /// The trace is of a guest: address spaces, which CR3 chooses, take the place of processes.
    pub(crate) is_guest: bool,
    /// Only what guests of this machine did was traced, of whose code nothing is known.
    pub(crate) only_guests: bool,
    /// Code that was mapped before anything else.
    pub(crate) modules: Vec<Module>,
    /// From which byte of a stream on code runs in another mode, where packets do not tell it.
    pub(crate) modes: BTreeMap<StreamKey, Vec<(u64, ExecMode)>>,
    /// What the recorder says that ran in stretches of each stream.
    pub(crate) seals: BTreeMap<StreamKey, Vec<Seal>>,
    /// Other files of which the trace consists, that were read.
    pub(crate) parts: Vec<PathBuf>,
    /// What the recorder says of the recording.
    pub(crate) recording: Option<Recording>,
    /// What the file tells of the code besides where it was mapped.
    pub(crate) code: Known<'f>,
    /// Signals by stream, with offsets into it.
    pub(crate) signals: BTreeMap<StreamKey, Vec<Signal>>,
    /// Threads in the order in which they ended.
    pub(crate) ended: Vec<Task>,
    /// The process that the file tells of first.
    pub(crate) first_process: Option<u32>,
}

impl Contents<'_, '_> {
    /// Nothing yet.
    pub(crate) fn new(flow: FlowConfig) -> Self {
        Self {
            entries: Vec::new(),
            streams: Vec::new(),
            diagnostics: Vec::new(),
            flow,
            time: None,
            cpu: None,
            is_guest: false,
            only_guests: false,
            modules: Vec::new(),
            modes: BTreeMap::new(),
            seals: BTreeMap::new(),
            parts: Vec::new(),
            recording: None,
            code: Known::default(),
            signals: BTreeMap::new(),
            ended: Vec::new(),
            first_process: None,
        }
    }
}

/// The processor in the file's CPUID feature: "GenuineIntel,6,94,3".
fn cpu_of(text: &str) -> Option<Cpu> {
    let mut words = text.strip_prefix("GenuineIntel,")?.split(',');
    let mut number = || words.next()?.trim().parse::<u16>().ok();
    let (family, model, stepping) = (number()?, number()?, number()?);
    Some(Cpu {
        family,
        model: model.try_into().ok()?,
        stepping: stepping.try_into().ok()?,
    })
}

/// Reads the records of a perf.data file.
pub(crate) fn read<'f, 't>(file: &'f File<'t>, flow: FlowConfig) -> Contents<'f, 't> {
    let mut contents = Contents::new(flow);
    contents.diagnostics.extend(
        file.problems()
            .iter()
            .map(|p| Diagnostic::Perf(p.to_string())),
    );
    contents.cpu = file.feature_text(Feature::CPUID).and_then(cpu_of);
    contents.code = Known::of(file);
    let mut reading = Reading {
        file,
        info: None,
        is_machine: false,
        streams: Streams::default(),
        runs: Sched::new(file),
        guest_maps: 0,
        said: Said::default(),
        contents,
    };
    for record in file.records() {
        match record {
            Ok(record) => reading.take(&record),
            Err(error) => reading.tell(Diagnostic::Perf(error.to_string())),
        }
    }
    reading.finish()
}

/// What has been read so far of a file.
struct Reading<'f, 't> {
    file: &'f File<'t>,
    info: Option<TraceInfo>,
    /// The trace is of a machine, as this project's recorder makes it.
    is_machine: bool,
    streams: Streams<'t>,
    runs: Sched,
    /// How many mappings of guests' code there were.
    guest_maps: u64,
    said: Said,
    contents: Contents<'f, 't>,
}

impl<'f, 't> Reading<'f, 't> {
    fn tell(&mut self, diagnostic: Diagnostic) {
        self.contents.diagnostics.push(diagnostic);
    }

    fn push(&mut self, time: Option<PerfTime>, what: SidebandChange<'f>) {
        self.contents.entries.push(Entry { time, what });
    }

    fn take(&mut self, record: &Record<'f>) {
        self.streams
            .take(record, self.file, self.info, &mut self.contents);
        self.runs.take(
            record,
            self.info,
            self.is_machine,
            &mut self.contents.entries,
        );
        self.code(record);
        match record.body {
            Body::AuxtraceInfo(info) => {
                self.info = Some(info);
                self.is_machine =
                    self.attr().is_some_and(Attr::is_guest_only) && is_ours(self.file, info);
            }
            Body::Remark(Remark::Signal(signal)) => self.signal(&signal),
            Body::Remark(ref remark) => self.said.take(remark),
            Body::TimeConv { conv, short } => self.contents.time = Some(Clock { conv, short }),
            Body::Lost { count } => self.tell(Diagnostic::Lost {
                count,
                cpu: record.id.cpu,
                time: record.id.time,
            }),
            Body::LostSamples { count } => self.tell(Diagnostic::LostSamples {
                count,
                cpu: record.id.cpu,
                time: record.id.time,
            }),
            Body::Exit { pid, tid } => self.contents.ended.push(Task { pid, tid }),
            Body::AuxtraceError { text, .. } => {
                let text = String::from_utf8_lossy(text).into_owned();
                self.tell(Diagnostic::Perf(format!("perf found in the trace: {text}")));
            }
            _ => {}
        }
    }

    fn signal(&mut self, signal: &cofi_perf::SignalRemark) {
        let (pid, tid) = (signal.pid, signal.tid);
        let list = self.contents.signals.entry(StreamKey::Thread(tid));
        list.or_default().push(Signal {
            task: Task { pid, tid },
            offset: signal.offset,
            number: signal.signal,
            code: signal.code,
            ip: signal.ip.map(Ip),
            address: signal.address,
            is_fatal: signal.is_fatal,
        });
    }

    /// The event whose packets the file holds.
    fn attr(&self) -> Option<&'f Attr> {
        self.file.attr_of_pmu(self.info?.pmu_type)
    }

    /// What a record tells of code and of processes.
    fn code(&mut self, record: &Record<'f>) {
        const PROT_EXEC: u32 = 4;
        const DATA: u16 = 1 << 13;
        let time = record.id.time;
        let what = match record.body {
            // Guests have processes of their own, whose numbers mean others here.
            Body::Mmap { .. }
                if matches!(
                    record.misc.cpu_mode(),
                    CpuMode::GuestKernel | CpuMode::GuestUser
                ) =>
            {
                self.guest_maps += 1;
                return;
            }
            Body::Mmap {
                pid,
                start,
                len,
                pgoff,
                prot,
                build_id,
                path,
                ..
            } => {
                if prot.is_some_and(|prot| prot & PROT_EXEC == 0)
                    || prot.is_none() && record.misc.0 & DATA != 0
                {
                    return;
                }
                SidebandChange::Map {
                    pid,
                    start,
                    len,
                    offset: pgoff,
                    path,
                    build_id,
                }
            }
            Body::TextPoke { address, old, new } => SidebandChange::Poke { address, old, new },
            Body::Ksymbol {
                address,
                len,
                kind,
                gone,
                name,
            } => SidebandChange::KernelSymbol {
                address,
                len,
                is_program: kind == 1,
                gone,
                name,
            },
            Body::HeaderBuildId(build_id) => {
                self.contents.code.add_build_id(&build_id);
                return;
            }
            Body::Comm {
                pid,
                tid,
                exec,
                name,
            } => {
                self.contents.first_process.get_or_insert(pid);
                self.push(time, SidebandChange::Task(Task { pid, tid }));
                if exec {
                    self.push(time, SidebandChange::Exec { pid });
                }
                SidebandChange::Name { tid, name }
            }
            Body::Fork {
                pid,
                tid,
                apart: true,
                ..
            } => SidebandChange::Task(Task { pid, tid }),
            Body::Fork {
                pid,
                ppid,
                tid,
                ptid,
                ..
            } => {
                self.push(time, SidebandChange::Task(Task { pid, tid }));
                self.push(time, SidebandChange::InheritedName { tid, creator: ptid });
                SidebandChange::Fork { pid, parent: ppid }
            }
            _ => return,
        };
        self.push(time, what);
    }

    fn finish(mut self) -> Contents<'f, 't> {
        let attr = self.attr();
        let contents = &mut self.contents;
        match self.info {
            Some(info) => {
                contents.is_guest = self.is_machine;
                contents.only_guests = !self.is_machine && attr.is_some_and(Attr::is_guest_only);
                if let Some(registers) = info.rtit {
                    rtit(&registers, contents);
                }
                let config = attr.map(|attr| attr.config);
                contents.flow.mtc_freq = info.mtc_freq(config.unwrap_or(0));
                contents.flow.tsc_art_ratio = info.tsc_ctc_ratio;
                contents.flow.max_nonturbo_ratio = info.max_nonturbo_ratio.try_into().unwrap_or(0);
                // Packets that never tell the time cannot be compared with records that do.
                let timeless = config.is_some_and(|config| config & info.tsc_bit == 0);
                let told = info.time.map(|conv| Clock { conv, short: None });
                let clock = contents.time.or(told);
                contents.code.clock = clock.map(|clock| clock.conv);
                contents.time = clock.filter(|_| !timeless);
            }
            None => contents.diagnostics.push(Diagnostic::NoTrace),
        }
        if contents.only_guests {
            contents.diagnostics.push(Diagnostic::OnlyGuests);
        } else if self.guest_maps > 0 {
            let count = self.guest_maps;
            contents.diagnostics.push(Diagnostic::GuestCode { count });
        }
        self.runs
            .finish(&mut contents.entries, self.streams.only_thread());
        contents.modes = self.streams.take_modes();
        contents.seals = self.streams.take_seals();
        let streams = match self.info.and_then(|info| info.rtit) {
            Some(_) => self.streams.without_padding(),
            None => self.streams,
        };
        contents.streams = streams.finish();
        contents.recording = self.said.finish();
        self.contents
    }
}

/// What the registers of RTIT tell.
fn rtit(registers: &RtitInfo, contents: &mut Contents<'_, '_>) {
    let flow = &mut contents.flow;
    // What the user knows of the end of the trace stays.
    let given = match flow.format {
        TraceFormat::Rtit(given) => given,
        TraceFormat::IntelPt => RtitFlowConfig::default(),
    };
    flow.format = TraceFormat::Rtit({
        let mut rtit = given;
        rtit.cycles = match registers.is_cycle_accurate() {
            true => Mode::CycleAccurate,
            false => Mode::Plain,
        };
        rtit.stop = StopRanges::new(&registers.stop());
        rtit
    });
    flow.filter = IpFilter::new(&registers.filter());
    flow.cr3_filter = registers.has_cr3_filter();
    let (family, model, stepping) = registers.processor;
    if family != 0 {
        contents.cpu = Some(Cpu {
            family,
            model,
            stepping,
        });
    }
}

/// Whether a file was made by this project's recorder: it says so; older ones are known by the ids of their events, which
/// the kernel never gives.
fn is_ours(file: &File<'_>, info: TraceInfo) -> bool {
    let ids = file.attrs().iter().map(|attr| attr.ids.as_slice());
    info.by_cofi || ids.eq([[1].as_slice(), &[2]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_as_perf_writes_it() {
        let cpu = cpu_of("GenuineIntel,6,79,1").expect("a processor");
        assert_eq!((cpu.family, cpu.model, cpu.stepping), (6, 79, 1));
        assert!(cpu_of("AuthenticAMD,23,1,2").is_none() && cpu_of("GenuineIntel,6").is_none());
    }
}
