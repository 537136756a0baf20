//! perf.data files as `perf record` makes them of real machines, put together record by record.
#![allow(dead_code, unreachable_pub)]

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use cofi_flow::{Event, Item};
use cofi_insn::Class;
use cofi_packet::intel::{Cr3, IpPayload, Packet, U48, Uint};
use cofi_session::{Session, SessionOptions, StreamKey, Task};

#[path = "../../../cofi-perf/tests/support/mod.rs"]
pub mod support;
use support::{Event as Attr, Fields, SAMPLE_ID_ALL, file, record};

pub const PT_ID: u64 = 70;
pub const DUMMY_ID: u64 = 80;
pub const SCHED_ID: u64 = 90;
/// IP, TID, TIME, CPU, IDENTIFIER; and that with RAW.
const LAYOUT: u64 = 0x10087;
const RAW: u64 = 1 << 10;
const AUX: u64 = 1 << 20;

pub mod kind {
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const AUX: u32 = 11;
    pub const ITRACE_START: u32 = 12;
    pub const LOST_SAMPLES: u32 = 13;
    pub const SWITCH: u32 = 14;
    pub const KSYMBOL: u32 = 17;
    pub const TEXT_POKE: u32 = 20;
    pub const SWITCH_CPU_WIDE: u32 = 15;
    pub const FINISHED_ROUND: u32 = 68;
    pub const AUXTRACE_INFO: u32 = 70;
    pub const AUXTRACE: u32 = 71;
    pub const TIME_CONV: u32 = 79;
}

/// SWITCH: out.
pub const OUT: u16 = 1 << 13;
pub const NONE: u32 = u32::MAX;

/// How a file is recorded.
#[derive(Clone, Copy, Default)]
pub struct Settings {
    pub per_cpu: bool,
    pub sched_switch: u64,
    pub snapshot: bool,
    /// What stands behind the type of AUXTRACE_INFO.
    pub mark: u32,
    /// Flags of the PT event beside `sample_id_all`.
    pub flags: u64,
    /// Samples hold a piece of the AUX area.
    pub aux_samples: bool,
}

/// A file in the making.
pub struct Machine {
    pub folder: tempfile::TempDir,
    settings: Settings,
    pub data: Vec<u8>,
    formats: Vec<u8>,
    /// Features by their numbers, above that of tracing data.
    pub features: Vec<(u32, Vec<u8>)>,
}

/// The TSC is a time, at two ticks a nanosecond.
pub fn time_of(tsc: u64) -> u64 {
    tsc / 2
}

impl Machine {
    pub fn new(settings: Settings) -> Self {
        let mut this = Self {
            folder: tempfile::tempdir().unwrap(),
            settings,
            data: Vec::new(),
            formats: Vec::new(),
            features: Vec::new(),
        };
        let info = Fields::default().u32(1).u32(settings.mark).u64(8);
        // A TSC of 2 GHz; TSC and NORETCOMP bits.
        let info = info
            .u64(31)
            .u64(1 << 30)
            .u64(0)
            .u64(1)
            .u64(0x400)
            .u64(0x800);
        let info = info
            .u64(settings.sched_switch)
            .u64(settings.snapshot.into());
        let info = info.u64(settings.per_cpu.into()).u64(0x200).u64(0x3c000);
        let info = info.u64(80).u64(1).u64(2).u64(20).u64(0).u64(0);
        this.push(kind::AUXTRACE_INFO, 0, info);
        let conv = Fields::default().u64(31).u64(1 << 30).u64(0);
        this.push(kind::TIME_CONV, 0, conv);
        this
    }

    pub fn push(&mut self, kind: u32, misc: u16, body: Fields) {
        self.data.extend(record(kind, misc, body));
    }

    /// A record of the kernel's, by a thread on a processor at a time.
    pub fn kernel(&mut self, kind: u32, misc: u16, body: Fields, at: (Task, u32, u64), id: u64) {
        let (task, cpu, tsc) = at;
        let body = body.u32(task.pid).u32(task.tid).u64(time_of(tsc));
        self.push(kind, misc, body.u32(cpu).u32(0).u64(id));
    }

    /// A process whose code at 0x1000 has `plain` plain instructions.
    pub fn process(&mut self, pid: u32, plain: usize) -> Task {
        let task = Task { pid, tid: pid };
        let body = Fields::default().u32(pid).u32(pid).text(b"proc");
        self.kernel(kind::COMM, OUT, body, (task, 0, 10), DUMMY_ID);
        self.map(task, plain, 2);
        task
    }

    /// Code with `plain` plain instructions at 0x1000, of a user (2), or a guest's user (5).
    pub fn map(&mut self, task: Task, plain: usize, misc: u16) {
        let path = self.code(plain);
        let map = Fields::default().u32(task.pid).u32(task.tid);
        let map = map.u64(0x1000).u64(0x1000).u64(0).u32(0).u32(0);
        let map = map.u64(0).u64(0).u32(5).u32(2);
        let map = map.text(path.as_os_str().as_bytes());
        self.kernel(kind::MMAP2, misc, map, (task, 0, 10), DUMMY_ID);
    }

    fn code(&self, plain: usize) -> PathBuf {
        let path = self.folder.path().join(format!("code-{plain}"));
        let mut bytes = vec![0x90; plain];
        bytes.extend([0x0f, 0x05]);
        bytes.resize(0x1000, 0xcc);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// A sample of sched_switch: `next` comes in.
    pub fn sched_switch(&mut self, from: Task, next: u32, cpu: u32, tsc: u64) {
        let mut raw = [0; 68];
        raw[56..60].copy_from_slice(&next.to_le_bytes());
        let body = Fields::default().u64(SCHED_ID).u64(0xffff_ffff_8100_0000);
        let body = body.u32(from.pid).u32(from.tid).u64(time_of(tsc));
        let body = body.u32(cpu).u32(0).u32(raw.len() as u32).bytes(&raw);
        self.push(kind::SAMPLE, 1, body);
        self.formats =
            b"name: sched_switch\nID: 314\n\tfield:pid_t next_pid;\toffset:56;\tsize:4;\n".to_vec();
    }

    /// A sample with the packets before it.
    pub fn aux_sample(&mut self, task: Task, cpu: u32, tsc: u64, packets: &[u8]) {
        let body = Fields::default().u64(SCHED_ID).u64(0x1000);
        let body = body.u32(task.pid).u32(task.tid).u64(time_of(tsc));
        let mut body = body
            .u32(cpu)
            .u32(0)
            .u64(packets.len().next_multiple_of(8) as u64);
        body.0.extend(packets);
        body.0.resize(body.0.len().next_multiple_of(8), 0);
        self.push(kind::SAMPLE, 2, body);
    }

    /// A stream's piece: of a thread, a processor, or of one thread on a processor.
    pub fn auxtrace(
        &mut self,
        (tid, cpu): (u32, u32),
        offset: u64,
        reference: u64,
        packets: &[u8],
    ) {
        let size = packets.len().next_multiple_of(8);
        let idx = if cpu == NONE { 0 } else { cpu };
        let body = Fields::default()
            .u64(size as u64)
            .u64(offset)
            .u64(reference);
        self.push(kind::AUXTRACE, 0, body.u32(idx).u32(tid).u32(cpu).u32(0));
        self.data.extend(packets);
        self.data.resize(self.data.len() + size - packets.len(), 0);
    }

    /// A stream has grown.
    pub fn aux(
        &mut self,
        (task, cpu): (Task, u32),
        (offset, size): (u64, u64),
        flags: u64,
        tsc: u64,
    ) {
        let body = Fields::default().u64(offset).u64(size).u64(flags);
        self.kernel(kind::AUX, 0, body, (task, cpu, tsc), PT_ID);
    }

    pub fn finish(&mut self) -> Vec<u8> {
        self.push(kind::FINISHED_ROUND, 0, Fields::default());
        // pt, branch, tsc, mtc; context_switch, comm, mmap2 and the like.
        let pt = Attr {
            kind: 8,
            config: 0x2601,
            sample_type: LAYOUT,
            flags: SAMPLE_ID_ALL | self.settings.flags,
            ids: &[PT_ID],
        };
        let dummy = Attr {
            kind: 1,
            config: 9,
            flags: SAMPLE_ID_ALL | 0x180_2300 | 1 << 26,
            ids: &[DUMMY_ID],
            ..pt.clone()
        };
        // Cycles, or a tracepoint.
        let (kind, config, more) = match self.settings.aux_samples {
            true => (0, 0, AUX),
            false => (2, 314, RAW),
        };
        let sched = Attr {
            kind,
            config,
            sample_type: LAYOUT | more,
            ids: &[SCHED_ID],
            ..pt.clone()
        };
        let with_more = self.settings.aux_samples || !self.formats.is_empty();
        let attrs = [pt, dummy, sched];
        let attrs = if with_more { &attrs[..] } else { &attrs[..2] };
        let formats = Some((1, self.formats.as_slice())).filter(|(_, bytes)| !bytes.is_empty());
        let others = self
            .features
            .iter()
            .map(|(number, bytes)| (*number, bytes.as_slice()));
        let features: Vec<_> = formats.into_iter().chain(others).collect();
        file(attrs, &self.data, &features)
    }
}

pub fn encode(packet: Packet) -> Vec<u8> {
    let raw = packet.encode();
    raw.bytes()[..raw.len()].to_vec()
}

pub fn tsc(tsc: u64) -> Vec<u8> {
    encode(Packet::Tsc {
        tsc: Uint::truncate(tsc),
    })
}

/// PSB+ with the time, while tracing is off.
pub fn psb(time: u64) -> Vec<u8> {
    [encode(Packet::Psb), tsc(time), encode(Packet::PsbEnd)].concat()
}

pub fn begin(ip: u64) -> Vec<u8> {
    encode(Packet::TipPge {
        ip: IpPayload::sext48(U48::truncate(ip)),
    })
}

pub fn end() -> Vec<u8> {
    encode(Packet::TipPgd {
        ip: IpPayload::SUPPRESSED,
    })
}

pub fn pip(cr3: u64, nr: bool) -> Vec<u8> {
    encode(Packet::Pip {
        cr3: Cr3::truncate(cr3),
        nr,
    })
}

/// The code at 0x1000 runs once.
pub fn visit(time: u64) -> Vec<u8> {
    [tsc(time), begin(0x1000), end()].concat()
}

pub fn open(bytes: &[u8]) -> Session<'_> {
    Session::new(bytes, &SessionOptions::default()).unwrap()
}

pub fn stream<'s, 't>(session: &'s Session<'t>, key: StreamKey) -> &'s cofi_session::Stream<'t> {
    session
        .streams()
        .iter()
        .find(|stream| stream.key() == key)
        .unwrap()
}

/// What a stream shows: the thread and the plain instructions of each visit, and the errors in their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Visit(u32, usize),
    Error(String),
}

pub fn seen(session: &Session<'_>, key: StreamKey) -> Vec<Seen> {
    let mut seen: Vec<Seen> = Vec::new();
    let mut flow = session.decode(stream(session, key));
    while let Some(item) = flow.next() {
        match item {
            Item::Event(Event::Enabled { .. }) => seen.push(Seen::Visit(flow.task().tid, 0)),
            Item::Insn(insn) if insn.class == Class::Other => match seen.last_mut() {
                Some(Seen::Visit(_, plain)) => *plain += 1,
                _ => seen.push(Seen::Visit(flow.task().tid, 1)),
            },
            Item::Error(error) => seen.push(Seen::Error(error.kind.to_string())),
            _ => {}
        }
    }
    seen
}

/// Only the visits, as thread and plain instructions.
pub fn visits(session: &Session<'_>, key: StreamKey) -> Vec<(u32, usize)> {
    let seen = seen(session, key).into_iter();
    seen.map(|seen| match seen {
        Seen::Visit(tid, plain) => (tid, plain),
        Seen::Error(error) => panic!("{error}"),
    })
    .collect()
}

/// perf finds the same threads at the same instructions.
pub fn as_perf_sees_it(session: &Session<'_>, key: StreamKey, machine: &Machine, bytes: &[u8]) {
    let path = machine.folder.path().join("perf.data");
    std::fs::write(&path, bytes).unwrap();
    if !cofi_test::has_program("perf") {
        return;
    }
    let output = std::process::Command::new("perf")
        .args(["script", "--itrace=i1i", "-F", "tid,ip", "-i"])
        .arg(&path)
        .output();
    let output = output.expect("perf runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let text = String::from_utf8_lossy(&output.stdout);
    let perfs: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let mut ours = Vec::new();
    let mut flow = session.decode(stream(session, key));
    while let Some(item) = flow.next() {
        if let Item::Insn(insn) = item {
            ours.push(vec![
                flow.task().tid.to_string(),
                format!("{:x}", insn.ip.0),
            ]);
        }
    }
    assert_eq!(perfs, ours, "{told}");
}
