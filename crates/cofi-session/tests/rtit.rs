//! perf.data files with RTIT: what the file tells of the packets, and where they end.

use std::io::Cursor;
use std::os::unix::ffi::OsStrExt;

use cofi_flow::{Item, TraceFormat};
use cofi_packet::rtit::{LipBytes, LipPayload, Mode, PSB, Packet};
use cofi_packet::{ExecMode, StreamOffset, Tsc, Uint};
use cofi_perf::{
    AuxFlags, Mmap2, PerfTime, RtitConfig, Subject, Task, TimeConv, Writer, WriterOptions,
};
use cofi_session::{Session, SessionOptions};

const TASK: Task = Task { pid: 7, tid: 7 };
const TIME: TimeConv = TimeConv {
    shift: 31,
    mult: 1 << 30,
    zero: 0,
};

/// In 32-bit code DEC EAX, NOP, INC EAX, NOP; in 64-bit code the first of each two is a prefix.
const CODE: [u8; 4] = [0x48, 0x90, 0x40, 0x90];

fn lip(ip: u64) -> LipPayload {
    LipPayload::truncate(LipBytes::Zext32, ip)
}

fn push(bytes: &mut Vec<u8>, packet: Packet) {
    let raw = packet.encode();
    bytes.extend_from_slice(&raw.bytes()[..raw.len()]);
}

fn visit(bytes: &mut Vec<u8>) {
    let (ip, cycles) = (lip(0x1000), None);
    push(bytes, Packet::FupPge { ip, cycles });
    // It ends with zeros, which are no padding.
    let ip = lip(0x1004);
    push(bytes, Packet::FupPgd { ip, cycles });
}

/// One thread that runs the code in 64-bit mode, twice in 32-bit mode, and in 64-bit mode.
fn example() -> (Vec<u8>, Vec<u8>, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("code");
    std::fs::write(&path, CODE).expect("a file");
    let mut options = WriterOptions::new(RtitConfig::default().into(), TIME);
    options.tsc_ctc_ratio = (0, 0);
    options.max_nonturbo_ratio = 20;
    options.command_line = Vec::new();
    options.subject = Subject::Processes;
    let time = PerfTime(1000);
    let mut writer = Writer::new(Cursor::new(Vec::new()), options).expect("memory");
    let map = Mmap2 {
        start: 0x1000,
        len: 0x1000,
        pgoff: 0,
        device: (0, 0),
        inode: 0,
        prot: 5,
        path: path.as_os_str().as_bytes(),
    };
    writer.mmap2(TASK, &map, time).expect("memory");
    writer.itrace_start(TASK, time).expect("memory");
    let mut bytes = PSB.to_vec();
    let sts = Packet::Sts {
        acbr: Uint::truncate(20),
        ecbr: Uint::truncate(20),
        tsc: Uint::truncate(3000),
        cycles: None,
    };
    push(&mut bytes, sts);
    let ratio = Packet::Sts {
        acbr: Uint::truncate(21),
        ecbr: Uint::truncate(21),
        tsc: Uint::truncate(3000),
        cycles: None,
    };
    push(&mut bytes, ratio);
    let mut told = 0;
    for (mode, visits) in [
        (ExecMode::Bits64, 1),
        (ExecMode::Bits32, 2),
        (ExecMode::Bits64, 1),
    ] {
        for _ in 0..visits {
            visit(&mut bytes);
        }
        let size = bytes.len() as u64 - told;
        let flags = AuxFlags::of_mode(mode).0;
        writer
            .aux(TASK, StreamOffset(told), size, flags, time)
            .expect("memory");
        told = bytes.len() as u64;
    }
    writer
        .auxtrace(0, TASK.tid, StreamOffset(0), 3000, &bytes)
        .expect("memory");
    writer.finished_round().expect("memory");
    let file = writer.finish().expect("memory").into_inner();
    (file, bytes, folder)
}

#[test]
fn the_file_says_how_the_packets_are_to_be_read() {
    let (file, bytes, _folder) = example();
    let session = Session::new(&file, &SessionOptions::default()).expect("a session");
    assert_eq!(session.diagnostics(), []);
    let TraceFormat::Rtit(config) = session.flow_config().format else {
        panic!("it is RTIT");
    };
    assert_eq!(config.cycles, Mode::Plain);
    assert_eq!(session.flow_config().max_nonturbo_ratio, 20);
    let [stream] = session.streams() else {
        panic!("one stream");
    };
    assert!(bytes.len() % 8 != 0, "so that the file has padding");
    assert_eq!(stream.bytes(), bytes);
}

#[test]
fn modes_are_those_of_the_aux_records() {
    const NARROW: [u64; 4] = [0x1000, 0x1001, 0x1002, 0x1003];
    const WIDE: [u64; 2] = [0x1000, 0x1002];
    let (file, _, _folder) = example();
    let session = Session::new(&file, &SessionOptions::default()).expect("a session");
    let stream = &session.streams()[0];
    let mut flow = session.decode(stream);
    let mut found = Vec::new();
    let mut times = Vec::new();
    while let Some(item) = flow.next() {
        match item {
            Item::Insn(insn) => found.push(insn.ip.0),
            Item::Event(_) => times.extend(flow.perf_time()),
            Item::Error(error) => panic!("{error}"),
        }
    }
    assert_eq!(
        found,
        [&WIDE[..], &NARROW, &NARROW, &WIDE].concat(),
        "{found:x?}"
    );
    assert_eq!(times, vec![TIME.time_of(Tsc(3000)).expect("a time"); 8]);
}
