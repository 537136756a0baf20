//! What the errata that a caller names change is what they change in libipt.

use std::fs;

use cofi_packet::assemble;
use cofi_packet::intel::IntelPt;

use crate::program::{Program, words};

/// Where the code stands.
const BASE: u64 = 0x1000;

/// A program that reads streams of packets beside code, and counts on how many the erratum made a difference.
struct Bench {
    program: Program,
    erratum: &'static str,
    differences: usize,
}

impl Bench {
    fn new(erratum: &'static str) -> Option<Self> {
        Some(Self {
            program: Program::new("tests/c/flow.c", &[])?,
            erratum,
            differences: 0,
        })
    }

    /// Packets, one in a line or behind a semicolon, are read alike by both libraries, with the erratum and without it.
    fn read(&mut self, level: &str, options: &str, packets: &str, code: &[u8]) {
        self.read_bytes(level, options, &bytes(packets), code);
    }

    fn read_bytes(&mut self, level: &str, options: &str, packets: &[u8], code: &[u8]) {
        let (stream, file) = (self.program.path("stream.pt"), self.program.path("code"));
        fs::write(&stream, packets).expect("it can be written");
        fs::write(&file, code).expect("it can be written");
        let len = code.len();
        let line = format!("{level} {options} {stream} {file}:0:{len}:{BASE:#x}");
        let without = self.program.same(&words(&line));
        let erratum = self.erratum;
        let with = self
            .program
            .same(&words(&format!("{line} --errata {erratum}")));
        self.differences += usize::from(with != without);
    }
}

fn bytes(packets: &str) -> Vec<u8> {
    let lines = packets.replace(';', "\n");
    assemble::<IntelPt, _>(&lines, Default::default()).expect("packets")
}

/// NOPs, with instructions at offsets; behind them nothing that would go on without packets.
fn code(parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut code = vec![0x90; 0x200];
    // jmp rax
    code.extend([0xff, 0xe0].repeat(8));
    for (at, part) in parts {
        code[*at..at + part.len()].copy_from_slice(part);
    }
    code
}

#[test]
fn skd022_a_vm_entry_ends_tracing_with_a_fup() {
    let Some(mut bench) = Bench::new("skd022") else {
        return;
    };
    let code = code(&[
        (0x10, &[0x0f, 0x01, 0xc2]),
        (0x20, &[0x0f, 0x01, 0xc3]),
        (0x30, &[0xff, 0xe0]),
    ]);
    for level in ["insns", "blocks"] {
        for at in ["0x100e", "0x1010", "0x1020"] {
            for end in [
                "fup 0x1010;tip.pgd -",
                "fup 0x1020;tip.pgd 0x5000",
                "fup 0x100f;tip.pgd -",
                "fup 0x1010;tip 0x1030",
                "tip.pgd -",
            ] {
                for next in ["0x1013", "0x1030"] {
                    let packets = format!("psb;fup {at};mode.exec 64;psbend;{end};tip.pge {next}");
                    bench.read(level, "", &packets, &code);
                }
            }
        }
    }
    assert!(bench.differences >= 10, "{}", bench.differences);
}

#[test]
fn bdm64_the_place_of_an_abort_is_believed() {
    let Some(mut bench) = Bench::new("bdm64") else {
        return;
    };
    let begin = "psb;fup 0x1000;mode.exec 64;psbend;mode.tsx intx=1 abort=0;fup 0x1000";
    let abort = "mode.tsx intx=0 abort=1";
    for level in ["insns", "blocks"] {
        // jne 1102, which is taken or not; a call and a jump on the way.
        let branches = code(&[
            (0, &[0x0f, 0x85, 0xfc, 0, 0, 0]),
            (0x10, &[0xe8, 1, 0, 0, 0]),
            (0x20, &[0xeb, 1]),
        ]);
        for taken in ["T", "N"] {
            for to in [
                0x1006, 0x1008, 0x1012, 0x1022, 0x1030, 0x1102, 0x1140, 0x11ff, 0x1202,
            ] {
                let packets =
                    format!("{begin};tnt {taken};{abort};fup {to:#x};tip 0x1200;tip.pgd -");
                bench.read(level, "", &packets, &branches);
            }
        }
        for branch in [
            &[0xff, 0xd0][..],
            &[0xff, 0xe0],
            &[0xc3],
            &[0x0f, 0x05],
            &[0x48, 0xcf],
        ] {
            let packets = format!("{begin};tip 0x1100;{abort};fup 0x1040;tip.pgd -;tip.pge 0x1200");
            bench.read(level, "", &packets, &code(&[(0, branch)]));
        }
        // No branch came before.
        let packets = format!("{begin};{abort};fup 0x1040;tip 0x1200;tip.pgd -");
        bench.read(level, "", &packets, &code(&[(4, &[0xff, 0xe0])]));
        // How far is looked: 256 instructions.
        for steps in [250, 255, 256] {
            let packets = format!(
                "{begin};tnt N;{abort};fup {:#x};tip 0x1200;tip.pgd -",
                0x1002 + steps
            );
            bench.read(level, "", &packets, &code(&[(0, &[0x75, 0])]));
        }
    }
    let packets = format!("{begin};{abort};fup 0x1040;tip 0x1200;tip.pgd -");
    for branch in [&[0xeb, 0x7e][..], &[0xe8, 0x7b, 0, 0, 0]] {
        bench.read(
            "insns",
            "",
            &packets,
            &code(&[(0, branch), (0x80, &[0xff, 0xe0])]),
        );
    }
    assert!(bench.differences >= 20, "{}", bench.differences);
}

#[test]
fn skl014_a_direct_branch_leaves_the_ranges_without_an_address() {
    let Some(mut bench) = Bench::new("skl014") else {
        return;
    };
    let jump = &[0xe9, 0x30, 0, 0, 0][..];
    let (call, two) = (
        &[0xe8, 0x30, 0, 0, 0][..],
        &[0xeb, 2, 0x90, 0x90, 0xe9, 0x30, 0, 0, 0][..],
    );
    let (conditional, indirect) = (&[0x0f, 0x84, 0x30, 0, 0, 0][..], &[0xff, 0xe0][..]);
    for ranges in [
        "",
        "--range 0,1,1000,102f",
        "--range 0,1,1000,1039",
        "--range 3,1,1000,102f",
        "--range 0,2,1030,1050",
        "--range 0,1,2000,3000 --range 1,1,1000,102f",
        "--range 0,1,1000,1fff --range 1,2,1030,1050",
        "--range 0,3,1000,1020",
    ] {
        for branch in [jump, call, two, conditional, indirect, &[0x0f, 0x22, 0xd8]] {
            let code = code(&[(4, branch), (0x100, &[0xff, 0xe0])]);
            for (to, next) in [
                ("-", "0x1009"),
                ("-", "0x1004"),
                ("0x1039", "0x1039"),
                ("0x1100", "0x1020"),
            ] {
                let packets = format!(
                    "psb;fup 0x1000;mode.exec 64;psbend;tip.pgd {to};tip.pge {next};tip.pgd -"
                );
                for level in ["insns", "blocks"] {
                    bench.read(level, ranges, &packets, &code);
                }
            }
        }
    }
    assert!(bench.differences >= 30, "{}", bench.differences);
}

#[test]
fn skd010_a_later_packet_says_where_control_is_behind_an_overflow() {
    let Some(mut bench) = Bench::new("skd010") else {
        return;
    };
    let begin = "psb;mode.exec 64;psbend;tip.pge 0x1000;tnt T";
    let between = [
        "cyc 4",
        "tsc 500",
        "cbr 5",
        "mode.exec 32",
        "pip 0x1000",
        "vmcs 0x1000",
        "ptw 5",
        "mnt 5",
        "mwait 1 1",
        "exstop",
        "pwre hw=1 state=C6 sub_state=1",
        "pwrx last=C3 deepest=C6 wake=INTERRUPT",
        "exstop ip=1",
        "ptw size=4 payload=5 ip=1",
        "tracestop",
        "mtc 3",
        "mode.tsx intx=1 abort=0",
        "tnt T",
        "psb;psbend",
        "psb;cbr 3;fup 0x1030;psbend",
        "ovf",
        "pad",
        "psb;tsc 700;mode.exec 64;fup 0x1020;psbend",
        "tip.pgd -",
        "psbend",
        "psb;mode.exec 64",
        "psb;fup -;psbend",
    ];
    let code = code(&[(0x20, &[0x75, 0x0e]), (0x30, &[0xff, 0xe0])]);
    for first in between {
        for second in [
            "pad",
            "tsc 600;tma 4 4",
            "mode.tsx intx=1 abort=0",
            "pip 0x2000",
        ] {
            for place in [
                "tip 0x1020",
                "fup 0x1020",
                "tip.pgd -",
                "tip.pge 0x1020",
                "tip -",
                "tnt N",
            ] {
                let packets = format!("{begin};ovf;{first};{second};{place};tnt N");
                bench.read("queries", "--no-time", &packets, &[]);
            }
        }
        let packets = format!("{begin};ovf;{first};tip 0x1020;tnt N;tip.pgd -");
        bench.read("queries", "", &packets, &[]);
    }
    for place in [
        "tip 0x1020",
        "cbr 4;tip 0x1020",
        "mode.tsx intx=1 abort=0;fup 0x1020",
        "psb;mode.exec 64;fup 0x1020;psbend",
        "tip.pgd -;tip.pge 0x1020",
    ] {
        for level in ["insns", "blocks"] {
            let packets = format!("{begin};ovf;{place};tnt N;tip.pgd -");
            bench.read(level, "", &packets, &code);
        }
    }
    assert!(bench.differences >= 100, "{}", bench.differences);
}

#[test]
fn skl168_a_lost_mtc_behind_a_psb_measures_nothing() {
    let Some(mut bench) = Bench::new("skl168") else {
        return;
    };
    let begin = "psb;tsc 100000;tma 8 0;cbr 20;fup 0x1000;psbend;cyc 10;tnt T;mtc 2;tnt T;cyc 400;tnt T;mtc 3;cyc 400;mtc 4;tnt T";
    for psb in [
        "psb;fup 0x1000;psbend",
        "psb;cbr 20;fup 0x1000;psbend",
        "psb;tsc 101500;tma 35 0;fup 0x1000;psbend",
    ] {
        for mtc in 5..10 {
            for behind in ["", "--nom-freq 20"] {
                let packets = format!(
                    "{begin};cyc 100;{psb};cyc 50;tnt T;mtc {mtc};tnt T;cyc 40;tnt T;cyc 360;tnt T;mtc {};tnt T;cyc 40;tnt T;cyc 30;tnt T",
                    mtc + 1
                );
                let options = format!("--mtc-freq 3 --cpuid-15 2,100 {behind}");
                bench.read("queries", &options, &packets, &[]);
            }
        }
    }
    assert!(bench.differences >= 20, "{}", bench.differences);
}

#[test]
fn apl11_and_apl12_tracing_is_off_behind_an_overflow() {
    let begin = "psb;mode.exec 64;psbend;tip.pge 0x1000;tnt T;ovf";
    let code = code(&[(0x20, &[0x75, 0x0e]), (0x30, &[0xff, 0xe0])]);
    for (erratum, packet) in [
        ("apl11", "tip.pgd -"),
        ("apl11", "tip.pgd 0x1020"),
        ("apl12", "fup 0x1020"),
    ] {
        let Some(mut bench) = Bench::new(erratum) else {
            return;
        };
        for before in [
            "pad",
            "cyc 4",
            "tsc 500;cbr 5",
            "mode.exec 32",
            "pip 0x2000",
        ] {
            for behind in [
                "pad",
                "mode.exec 64",
                "psb;psbend",
                "psb;fup 0x1030;psbend",
                "tsc 600",
                "tnt N",
                "pip 0x3000",
            ] {
                let packets =
                    format!("{begin};{before};{packet};{behind};tip.pge 0x1020;tnt N;tip.pgd -");
                bench.read("queries", "--no-time", &packets, &[]);
            }
        }
        for before in ["pad", "cyc 4", "tsc 500;cbr 5"] {
            let packets =
                format!("{begin};{before};{packet};mode.exec 64;tip.pge 0x1020;tnt N;tip.pgd -");
            for level in ["insns", "blocks"] {
                bench.read(level, "--no-time", &packets, &code);
            }
        }
        assert!(bench.differences >= 20, "{}", bench.differences);
    }
}

#[test]
fn skd007_an_overflow_stands_in_a_cyc() {
    let Some(mut bench) = Bench::new("skd007") else {
        return;
    };
    for cyc in [&[0x0f][..], &[0x07], &[0xff], &[0xff, 0x03]] {
        for behind in [
            "fup 0x1020;tnt T",
            "tip.pge 0x1020;tnt T",
            "psb;psbend;tnt T",
        ] {
            let begin = bytes("psb;mode.exec 64;psbend;tip.pge 0x1000;tnt T");
            let packets = [&begin, cyc, &[0x02, 0xf3], &bytes(behind)].concat();
            bench.read_bytes("queries", "--no-time", &packets, &[]);
        }
    }
    assert!(bench.differences >= 6, "{}", bench.differences);
}

#[test]
fn skz84_a_corrupted_tma_has_a_byte_too_many() {
    let Some(mut bench) = Bench::new("skz84") else {
        return;
    };
    for tma in [
        [1, 2, 0x80, 3, 1],
        [1, 2, 0, 3, 0x80],
        [0x8c, 1, 0x78, 0x9b, 0xbd],
        [1, 2, 0, 3, 1],
    ] {
        // (Behind a TMA that could be sound, a byte that begins no packet is an error in libipt.)
        for byte in [0x05, 0x00, 0x06]
            .into_iter()
            .skip(usize::from(tma[4] == 1 && tma[2] == 0))
        {
            let tma = [&[0x02, 0x73][..], &tma, &[byte]].concat();
            let begin = bytes("psb;mode.exec 64;psbend;tip.pge 0x1000;tnt T;tsc 5");
            let in_psb = [
                &bytes("psb;tsc 600"),
                &tma,
                &bytes("fup 0x1000;psbend;tnt T")[..],
            ];
            for packets in [
                [&begin, &tma, &bytes("tnt T;cyc 3;tnt T")[..]].concat(),
                in_psb.concat(),
            ] {
                for level in ["packets", "queries"] {
                    bench.read_bytes(level, "--no-time", &packets, &[]);
                }
            }
        }
    }
    assert!(bench.differences >= 30, "{}", bench.differences);
}
