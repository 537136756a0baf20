//! Whole perf.data files, written by the project's own writer.

use std::io::Cursor;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use cofi_flow::{Event, Item};
use cofi_insn::Class;
use cofi_packet::intel::{Cr3, IpPayload, Packet, U48, Uint};
use cofi_packet::{StreamOffset, Tsc};
use cofi_perf::{Mmap2, PerfTime, PtConfig, Subject, Task, TimeConv, Writer, WriterOptions};
use cofi_session::{Diagnostic, Session, SessionOptions, StreamKey};
use proptest::prelude::*;

const TIME: TimeConv = TimeConv {
    shift: 31,
    mult: 1 << 30,
    zero: 0,
};

/// Writes a file as the recorder does, with visits to code at 0x1000 for its threads' flow.
struct Recording {
    folder: tempfile::TempDir,
    writer: Writer<Cursor<Vec<u8>>>,
    timeless: bool,
    clock: u64,
    streams: Vec<(Task, Vec<u8>, u64)>,
}

impl Recording {
    fn new(config: PtConfig) -> Self {
        Self::of(config, Subject::Processes)
    }

    fn of(config: PtConfig, subject: Subject) -> Self {
        let mut options = WriterOptions::new(config.into(), TIME);
        options.tsc_ctc_ratio = (80, 1);
        options.max_nonturbo_ratio = 20;
        options.command_line = vec!["test".into()];
        options.subject = subject;
        Self {
            folder: tempfile::tempdir().unwrap(),
            writer: Writer::new(Cursor::new(Vec::new()), options).unwrap(),
            timeless: config.is_timeless(),
            clock: 1000,
            streams: Vec::new(),
        }
    }

    fn now(&self) -> PerfTime {
        TIME.time_of(Tsc(self.clock)).unwrap()
    }

    fn thread(&mut self, pid: u32, tid: u32) -> usize {
        let task = Task { pid, tid };
        self.writer.itrace_start(task, self.now()).unwrap();
        let mut bytes = encode(Packet::Psb);
        bytes.extend(encode(Packet::PsbEnd));
        self.streams.push((task, bytes, 0));
        self.streams.len() - 1
    }

    /// Runs the code at 0x1000 once.
    fn visit(&mut self, stream: usize) {
        self.clock += 100;
        let bytes = &mut self.streams[stream].1;
        if !self.timeless {
            bytes.extend(encode(Packet::Tsc {
                tsc: Uint::truncate(self.clock),
            }));
        }
        bytes.extend(encode(Packet::TipPge {
            ip: IpPayload::sext48(U48::truncate(0x1000)),
        }));
        bytes.extend(encode(Packet::TipPgd {
            ip: IpPayload::SUPPRESSED,
        }));
    }

    fn announce(&mut self) {
        let now = self.now();
        for (task, bytes, told) in &mut self.streams {
            let size = bytes.len() as u64 - *told;
            if size > 0 {
                self.writer
                    .aux(*task, StreamOffset(*told), size, 0, now)
                    .unwrap();
                *told = bytes.len() as u64;
            }
        }
    }

    fn code(&self, plain: usize) -> PathBuf {
        let path = self.folder.path().join(format!("code-{plain}"));
        let mut bytes = vec![0x90; plain];
        bytes.extend([0x0f, 0x05]);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Puts code with `plain` plain instructions at 0x1000.
    fn map(&mut self, pid: u32, plain: usize) {
        self.clock += 100;
        self.announce();
        let path = self.code(plain);
        let map = Mmap2 {
            start: 0x1000,
            len: 0x1000,
            pgoff: 0,
            device: (0, 0),
            inode: 0,
            prot: 5,
            path: path.as_os_str().as_bytes(),
        };
        self.writer
            .mmap2(Task { pid, tid: pid }, &map, self.now())
            .unwrap();
        self.clock += 100;
    }

    fn exec(&mut self, pid: u32, name: &[u8]) {
        self.clock += 100;
        self.announce();
        self.writer
            .comm(Task { pid, tid: pid }, name, true, self.now())
            .unwrap();
        self.clock += 100;
    }

    fn finish(mut self) -> (Vec<u8>, tempfile::TempDir) {
        self.announce();
        for (index, (task, bytes, _)) in self.streams.iter().enumerate() {
            self.writer
                .auxtrace(index as u32, task.tid, StreamOffset(0), 1000, bytes)
                .unwrap();
            self.writer.exit(*task, PerfTime(self.clock / 2)).unwrap();
        }
        self.writer.finished_round().unwrap();
        (self.writer.finish().unwrap().into_inner(), self.folder)
    }
}

fn encode(packet: Packet) -> Vec<u8> {
    let raw = packet.encode();
    raw.bytes()[..raw.len()].to_vec()
}

/// How many plain instructions each visit ran; an error is 99.
fn decoded(session: &Session<'_>, stream: usize) -> Vec<usize> {
    let mut visits = Vec::new();
    for item in session.decode(&session.streams()[stream]) {
        match item {
            Item::Event(Event::Enabled { .. }) => visits.push(0),
            Item::Insn(insn) if insn.class == Class::Other => *visits.last_mut().unwrap() += 1,
            Item::Error(_) => *visits.last_mut().unwrap_or(&mut 0) = 99,
            _ => {}
        }
    }
    visits
}

/// Two processes, three threads, changing code, another program.
fn example(config: PtConfig) -> (Vec<u8>, tempfile::TempDir) {
    let mut r = Recording::new(config);
    r.exec(1, b"one");
    r.map(1, 1);
    let main = r.thread(1, 1);
    r.visit(main);
    let (one, two) = (Task { pid: 1, tid: 1 }, Task { pid: 1, tid: 2 });
    r.writer.fork(two, one, r.now()).unwrap();
    let second = r.thread(1, 2);
    r.visit(second);
    r.visit(main);
    r.map(1, 2);
    r.visit(main);
    r.visit(main);
    r.writer
        .fork(Task { pid: 3, tid: 3 }, one, r.now())
        .unwrap();
    let child = r.thread(3, 3);
    r.visit(child);
    r.map(1, 3);
    r.visit(child);
    r.visit(second);
    r.exec(3, b"three");
    r.map(3, 4);
    r.visit(child);
    r.visit(main);
    r.finish()
}

#[test]
fn files_of_our_own_recorder() {
    for config in [PtConfig::default(), {
        let mut config = PtConfig::default();
        config.tsc = false;
        config.mtc = false;
        config
    }] {
        let (bytes, _folder) = example(config);
        let session = Session::new(&bytes, &SessionOptions::default()).unwrap();
        assert_eq!(session.diagnostics(), []);
        let keys: Vec<_> = session
            .streams()
            .iter()
            .map(|stream| stream.key())
            .collect();
        assert_eq!(
            keys,
            [
                StreamKey::Thread(1),
                StreamKey::Thread(2),
                StreamKey::Thread(3)
            ]
        );
        assert_eq!(decoded(&session, 0), [1, 1, 2, 2, 3]);
        assert_eq!(decoded(&session, 1), [1, 3]);
        assert_eq!(decoded(&session, 2), [2, 2, 4]);
        let pids: Vec<_> = session
            .streams()
            .iter()
            .map(|stream| stream.task().pid)
            .collect();
        assert_eq!(pids, [1, 1, 3]);
        assert_eq!(session.streams()[2].comm(), Some("three"));
        assert_eq!(session.code_problems().count(), 0);
        assert_eq!(session.time_conversion().is_some(), config.tsc);
    }
}

#[test]
fn cut_files_are_decoded_as_far_as_they_go() {
    let (bytes, _folder) = example(PtConfig::default());
    let mut opened = 0;
    for len in 0..bytes.len() {
        let mut options = SessionOptions::default();
        options.format = Some(cofi_session::FileFormat::Perf);
        let Ok(session) = Session::new(&bytes[..len], &options) else {
            continue;
        };
        opened += 1;
        let visits: usize = (0..session.streams().len())
            .map(|stream| decoded(&session, stream).len())
            .sum();
        assert!(visits <= 10);
        assert!(
            !session.diagnostics().is_empty(),
            "cut at {len} of {} and nothing said",
            bytes.len()
        );
    }
    assert!(opened > 100);
}

#[test]
fn other_files_are_refused_with_a_reason() {
    let mut options = SessionOptions::default();
    options.format = Some(cofi_session::FileFormat::Perf);
    let error = Session::new(b"#!/bin/sh", &options).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("not a readable perf.data file"),
        "{error}"
    );
    // The header alone, with no trace in it.
    let writer = Writer::new(Cursor::new(Vec::new()), {
        let mut options = WriterOptions::new(PtConfig::default().into(), TIME);
        options.tsc_ctc_ratio = (80, 1);
        options.max_nonturbo_ratio = 20;
        options.command_line = Vec::new();
        options.subject = Subject::Processes;
        options
    })
    .unwrap();
    let bytes = writer.finish().unwrap().into_inner();
    let session = Session::new(&bytes, &SessionOptions::default()).unwrap();
    assert!(session.streams().is_empty());
    assert!(
        !session.diagnostics().contains(&Diagnostic::NoTrace),
        "an empty trace is one"
    );
}

/// Where all address spaces of a guest have their kernel, and by which number perf knows it.
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const SHARED: u32 = u32::MAX;
const USER: u64 = 0x1000;

/// A guest, whose kernel enters address spaces one after the other.
impl Recording {
    fn guest(os: bool) -> Self {
        Self::of(PtConfig::default(), Subject::Guest { os, user: true })
    }

    /// Puts plain instructions and others at an address of a guest.
    fn place(&mut self, space: u32, start: u64, plain: usize, others: &[u8]) {
        self.clock += 100;
        self.announce();
        let path = self.folder.path().join(format!("{}", self.clock));
        let mut bytes = vec![0x90; plain];
        bytes.extend(others);
        std::fs::write(&path, bytes).unwrap();
        let map = Mmap2 {
            start,
            len: 0x1000,
            pgoff: 0,
            device: (0, 0),
            inode: 0,
            prot: 5,
            path: path.as_os_str().as_bytes(),
        };
        let task = Task {
            pid: space,
            tid: space,
        };
        self.writer.mmap2(task, &map, self.now()).unwrap();
        self.clock += 100;
    }

    /// A kernel of so many plain instructions, that loads CR3 and returns to user space.
    fn kernel(&mut self, plain: usize) {
        self.place(SHARED, KERNEL, plain, &[0x0f, 0x22, 0xd8, 0x48, 0xcf]);
    }

    /// A program of so many plain instructions, that makes a system call.
    fn program(&mut self, space: u32, plain: usize) {
        self.place(space, USER, plain, &[0x0f, 0x05]);
    }

    fn packets(&mut self, stream: usize, packets: &[Packet]) {
        for packet in packets {
            self.streams[stream].1.extend(encode(*packet));
        }
    }

    /// Tracing begins (again), in the kernel.
    fn begin(&mut self, stream: usize) {
        self.clock += 100;
        let tsc = Uint::truncate(self.clock);
        let ip = ip(KERNEL);
        self.packets(stream, &[Packet::Tsc { tsc }, Packet::TipPge { ip }]);
    }

    /// The kernel goes to the program in an address space, and that back to the kernel.
    fn round(&mut self, stream: usize, space: u64) {
        let pip = Packet::Pip {
            cr3: Cr3::truncate(space << 12),
            nr: false,
        };
        let (to_user, back) = (Packet::Tip { ip: ip(USER) }, Packet::Tip { ip: ip(KERNEL) });
        self.packets(stream, &[pip, to_user, back]);
    }

    /// Tracing ends (for a while), at the kernel's beginning.
    fn pause(&mut self, stream: usize) {
        let (at, ip) = (ip(KERNEL), IpPayload::SUPPRESSED);
        self.packets(stream, &[Packet::Fup { ip: at }, Packet::TipPgd { ip }]);
    }
}

fn ip(address: u64) -> IpPayload {
    IpPayload::sext48(U48::truncate(address))
}

/// How many plain instructions ran before each far transfer.
fn between_far_transfers(session: &Session<'_>) -> Vec<usize> {
    let (mut counts, mut plain) = (Vec::new(), 0);
    for item in session.decode(&session.streams()[0]) {
        match item {
            Item::Insn(insn) if insn.class.is_far() => counts.push(std::mem::take(&mut plain)),
            Item::Insn(insn) if insn.class == Class::Other => plain += 1,
            Item::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
    counts
}

#[test]
fn a_guests_address_space_is_the_one_that_cr3_names() {
    let mut r = Recording::guest(true);
    let cpu = r.thread(9, 1);
    r.kernel(1);
    r.program(5, 2);
    r.program(6, 3);
    r.begin(cpu);
    for space in [5, 6, 5, 5] {
        r.round(cpu, space);
    }
    r.pause(cpu);
    // Another program in the one space, while the processor is in the other.
    r.program(6, 4);
    r.begin(cpu);
    r.round(cpu, 5);
    r.round(cpu, 6);
    r.pause(cpu);
    let (bytes, _folder) = r.finish();
    let session = Session::new(&bytes, &SessionOptions::default()).unwrap();
    assert!(session.is_guest());
    assert_eq!(session.diagnostics(), []);
    assert_eq!(
        between_far_transfers(&session),
        [1, 2, 1, 3, 1, 2, 1, 2, 1, 2, 1, 4]
    );
    let cpu = session.streams()[0].key();
    assert_eq!(cpu, StreamKey::Thread(1));
}

#[test]
fn all_of_a_guests_address_spaces_have_its_kernel() {
    let mut r = Recording::guest(true);
    let cpu = r.thread(9, 1);
    r.program(5, 2);
    r.kernel(1);
    r.begin(cpu);
    r.round(cpu, 5);
    r.pause(cpu);
    r.kernel(6);
    r.begin(cpu);
    r.round(cpu, 5);
    r.pause(cpu);
    // One that comes later has the kernel too, as it is then and as it comes to be.
    r.program(6, 3);
    r.begin(cpu);
    r.round(cpu, 6);
    r.pause(cpu);
    r.kernel(7);
    r.begin(cpu);
    r.round(cpu, 5);
    r.round(cpu, 6);
    r.pause(cpu);
    let (bytes, _folder) = r.finish();
    let session = Session::new(&bytes, &SessionOptions::default()).unwrap();
    assert_eq!(
        between_far_transfers(&session),
        [1, 2, 6, 2, 6, 3, 7, 2, 7, 3]
    );
}

#[test]
fn a_guests_kernel_changes_before_a_programs_first_code_is_known() {
    let mut r = Recording::guest(true);
    // The processor is in the space 6 from the beginning.
    let cpu = r.thread(6, 1);
    r.kernel(1);
    r.begin(cpu);
    r.pause(cpu);
    r.kernel(2);
    r.begin(cpu);
    r.round(cpu, 6);
    r.pause(cpu);
    r.kernel(4);
    r.program(6, 3);
    r.begin(cpu);
    r.round(cpu, 6);
    r.pause(cpu);
    let (bytes, _folder) = r.finish();
    let session = Session::new(&bytes, &SessionOptions::default()).unwrap();
    let mut counts = Vec::new();
    let mut plain = 0;
    for item in session.decode(&session.streams()[0]) {
        match item {
            Item::Insn(insn) if insn.class == Class::MovCr3 => {
                counts.push(std::mem::take(&mut plain));
            }
            Item::Insn(insn) if insn.class == Class::Other => plain += 1,
            Item::Insn(_) => plain = 0,
            _ => {}
        }
    }
    assert_eq!(counts, [2, 4]);
}

#[test]
fn records_name_the_address_space_where_the_kernel_is_not_traced() {
    let mut r = Recording::guest(false);
    let cpu = r.thread(5, 1);
    r.program(5, 2);
    r.program(6, 3);
    r.visit(cpu);
    for space in [6, 5] {
        r.clock += 100;
        r.announce();
        let task = Task { pid: space, tid: 1 };
        r.writer.itrace_start(task, r.now()).unwrap();
        r.visit(cpu);
        r.visit(cpu);
    }
    let (bytes, _folder) = r.finish();
    let session = Session::new(&bytes, &SessionOptions::default()).unwrap();
    assert!(session.is_guest());
    assert_eq!(session.diagnostics(), []);
    assert_eq!(decoded(&session, 0), [2, 3, 3, 2, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_files_do_no_harm(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let (mut bytes, _folder) = example(PtConfig::default());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(session) = Session::new(&bytes, &SessionOptions::default()) {
            let total: usize = session.streams().iter().map(|stream| stream.len()).sum();
            prop_assert!(total <= bytes.len());
            for stream in session.streams() {
                // Damaged streams may run the code any number of times, but not without packets.
                let items = session.decode(stream).take(200_000).count();
                prop_assert!(items < 200_000);
            }
        }
    }
}

/// A perf.data file of a processor that kept one stream for each of its CPUs, though for one thread only. It is not part
/// of this repository: `COFI_TRACES` names the folder of traces.
#[test]
fn a_file_of_real_hardware() {
    let Some(traces) = cofi_test::traces() else {
        return;
    };
    let path = traces.join("quipper-perf-data/perf.data");
    let bytes = std::fs::read(&path).unwrap();
    let session = Session::new(&bytes, &SessionOptions::beside(&path)).unwrap();
    assert_eq!(session.diagnostics(), []);
    let keys: Vec<_> = session
        .streams()
        .iter()
        .map(|stream| (stream.key(), stream.len()))
        .collect();
    assert_eq!(
        keys,
        [(StreamKey::Cpu(0), 0x2fd0), (StreamKey::Cpu(3), 0x21a00)]
    );
    assert_eq!(session.flow_config().mtc_freq, 3);
    assert_eq!(session.flow_config().tsc_art_ratio, (100, 2));
    for stream in session.streams() {
        let mut flow = session.decode(stream);
        let mut enabled = 0;
        while let Some(item) = flow.next() {
            if matches!(item, Item::Event(Event::Enabled { .. })) {
                enabled += 1;
                assert_eq!(
                    flow.task(),
                    cofi_session::Task {
                        pid: 3174,
                        tid: 3174
                    }
                );
                let at = flow.perf_time().unwrap().0;
                assert!((641_256_000_000..641_259_000_000).contains(&at), "{at}");
            }
        }
        assert!(enabled > 0);
    }
}
