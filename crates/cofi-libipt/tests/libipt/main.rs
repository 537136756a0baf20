//! Programs that are compiled against Debian's libipt run on this library as they do there.
//!
//! Each is compiled once, with `intel-pt.h` and `-lipt`, and run twice: as it is, and with a folder before it in which `libipt.so.2` is this library.

mod errata;
mod program;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

// (The library is built because the test depends on it.)
use cofi_libipt as _;
use cofi_packet::intel::{Kind, Packets};
use program::{Program, built, words};

#[test]
fn both_libraries_export_the_same_functions() {
    let functions = |library: &Path| -> Option<Vec<String>> {
        let nm = Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library)
            .output()
            .ok()?;
        let text = String::from_utf8(nm.stdout).ok()?;
        let names = text
            .lines()
            .filter_map(|line| line.split_whitespace().last());
        let mut names: Vec<String> = names
            .filter(|name| name.starts_with("pt_"))
            .map(str::to_owned)
            .collect();
        names.sort_unstable();
        Some(names)
    };
    let theirs = Path::new("/usr/lib/x86_64-linux-gnu/libipt.so.2");
    if !theirs.exists() {
        return cofi_test::skip("there is no libipt");
    }
    let (Some(theirs), Some(ours)) = (functions(theirs), functions(&built())) else {
        return cofi_test::skip("there is no nm");
    };
    assert_eq!(theirs, ours);
    assert_eq!(ours.len(), 76);
}

#[test]
fn every_function_returns_the_same() {
    if let Some(program) = Program::new("tests/c/everything.c", &[]) {
        program.same(&[program.path("")]);
    }
}

#[test]
fn nothing_is_leaked_or_read_amiss() {
    if !cofi_test::has_program("valgrind") {
        return cofi_test::skip("there is no valgrind");
    }
    let Some(program) = Program::new("tests/c/everything.c", &["-g"]) else {
        return;
    };
    let valgrind = [
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
    ];
    let printed = program.run(&valgrind, &[program.path("")]);
    assert!(printed.contains("insn 1010"), "{printed}");
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    if let Some(program) = Program::new(
        "tests/c/everything.c",
        &["-g", "-fsanitize=address,undefined"],
    ) {
        let printed = program.run(&[], &[program.path("")]);
        assert!(printed.contains("insn 1010"), "{printed}");
    }
}

/// A stream of packets as they may come, and as they may not.
fn random_stream(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    let mut bytes = [[0x02, 0x82]; 8].concat();
    bytes.extend([0x02, 0x23]);
    for _ in 0..60 {
        match random(20) {
            0..=4 => bytes.push((random(63) as u8 + 2) << 1),
            kind @ 5..=9 => {
                let opcode = [0x0d, 0x0d, 0x11, 0x01, 0x1d][kind as usize - 5];
                let (code, len) = [(1, 2), (2, 4), (3, 6), (6, 8), (0, 0)][random(5) as usize];
                bytes.push(opcode | code << 5);
                bytes.extend((0x40_1000 + random(64)).to_le_bytes().iter().take(len));
            }
            10 => bytes.extend([0x99, random(3) as u8]),
            11 => bytes.extend([0x99, 0x20 | random(3) as u8]),
            12 => bytes.extend([0x02, 0x43, 0, random(256) as u8, random(256) as u8, 0, 0, 0]),
            13 => bytes.extend([0x02, 0xc8, random(256) as u8, 1, 0, 0, 0]),
            14 => bytes.extend([0x02, 0x12 | (random(4) as u8) << 6 & 0x80, 1, 2, 3, 4]),
            15 => bytes.extend([0x02, 0x62 | (random(2) as u8) << 7]),
            16 => bytes.extend([0x02, 0xc2, random(256) as u8, 0, 0, 0, 1, 0, 0, 0]),
            17 => bytes.extend([0x02, 0x22, 0, random(256) as u8]),
            18 => bytes.extend([0x02, 0x03, random(40) as u8 + 1, 0]),
            _ => bytes.extend([0x02, [0x83, 0x23][random(2) as usize]]),
        }
    }
    bytes
}

#[test]
fn random_streams_give_the_same_packets_and_events() {
    let Some(program) = Program::new("tests/c/flow.c", &[]) else {
        return;
    };
    let stream = program.path("stream.pt");
    for seed in 0..40 {
        fs::write(&stream, random_stream(seed)).expect("it can be written");
        for level in ["packets", "queries"] {
            program.same(&words(&format!("{level} --no-time {stream}")));
            program.same(&words(&format!(
                "{level} --no-time --unknown --damage {seed},8 {stream}"
            )));
        }
    }
}

/// BDM70, OVF and PSB+ that follow each other: where control is behind a PSB+.
#[test]
fn the_addresses_of_psb_are_the_same() {
    let Some(program) = Program::new("tests/c/flow.c", &[]) else {
        return;
    };
    let psb = [[0x02, 0x82]; 8].concat();
    let (a, b) = (
        &[0x7d, 0, 0x10, 0x40, 0, 0, 0][..],
        &[0x7d, 0, 0x20, 0x40, 0, 0, 0][..],
    );
    let (suppressed, end, ovf) = (&[0x1d][..], &[0x02, 0x23][..], &[0x02, 0xf3][..]);
    let (mode, pge, unknown) = (
        &[0x99, 1][..],
        &[0x71, 0, 0x10, 0x40, 0, 0, 0][..],
        &[0xd9][..],
    );
    let stream = program.path("stream.pt");
    for parts in [
        &[a, end, pge][..],
        &[a, end, mode, pge],
        &[a, mode, end, pge],
        &[a, b, end, pge],
        &[a, suppressed, end, pge],
        &[suppressed, a, end, pge],
        &[a, unknown, end, pge],
        &[a, end, unknown, pge],
        &[a, ovf, end, pge],
        &[a, end, ovf, mode, pge],
        &[a, end, b, pge],
        &[a, end, &psb, end, pge],
        &[end, &psb, a, end, mode, pge],
        &[a, end],
    ] {
        let mut bytes = psb.clone();
        bytes.extend(parts.concat());
        bytes.push(6);
        fs::write(&stream, bytes).expect("it can be written");
        for options in ["", "--cpu 6/79", "--cpu 6/79 --unknown"] {
            program.same(&words(&format!("queries {options} {stream}")));
        }
    }
}

/// A real trace's stream and code, as flow.c wants them.
fn real(folder: &Path) -> Option<String> {
    let stream = folder.join("trace.pt");
    let mut words = stream.to_str()?.to_owned();
    for entry in fs::read_dir(folder).ok()? {
        let path = entry.ok()?.path();
        let Some(base) = path.file_name()?.to_str()?.strip_suffix(".bin") else {
            continue;
        };
        let len = fs::metadata(&path).ok()?.len();
        words += &format!(" {}:0:{len}:0x{base}", path.to_str()?);
    }
    (stream.is_file() && words.contains(' ')).then_some(words)
}

/// The real trace that is as long as all others together.
const LARGEST: &str = "xdc-mruby";

fn gives_the_same_on_every_level(program: &Program, trace: &str) {
    for level in ["packets", "queries", "insns", "blocks"] {
        program.same(&words(&format!("{level} --digest --cpu 6/79 {trace}")));
    }
    program.same(&words(&format!(
        "queries --digest --no-time --damage 2,40 {trace}"
    )));
    for options in [
        "--callback",
        "--plain",
        "--no-time --damage 1,10",
        "--no-time --damage 3,40",
    ] {
        // (libipt walks on over bytes that are no instruction: docs/libipt.md.)
        if options.ends_with("3,40") && !trace.contains("unzip") {
            continue;
        }
        program.same(&words(&format!(
            "insns --digest --cpu 6/79 {options} {trace}"
        )));
    }
}

#[test]
fn real_traces_give_the_same_on_every_level() {
    let (Some(program), Some(traces)) = (Program::new("tests/c/flow.c", &[]), cofi_test::traces())
    else {
        return;
    };
    let mut seen = 0;
    for entry in fs::read_dir(traces).expect("the traces") {
        let folder = entry.expect("a trace").path();
        if folder.ends_with(LARGEST) {
            continue;
        }
        if let Some(trace) = real(&folder) {
            gives_the_same_on_every_level(&program, &trace);
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen}");
}

/// (By itself, and named so that it begins early: it runs beside the others.)
#[test]
fn all_levels_are_the_same_on_the_largest_real_trace() {
    let (Some(program), Some(traces)) = (Program::new("tests/c/flow.c", &[]), cofi_test::traces())
    else {
        return;
    };
    let trace = real(&traces.join(LARGEST)).expect("a trace that is there");
    gives_the_same_on_every_level(&program, &trace);
}

/// The stream with a TSC packet before every third packet that decides branches, on average: the traces at hand have none.
fn clocked(stream: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rng, mut tsc) = (Vec::new(), cofi_test::Rng::new(1), 1000_u64);
    for item in Packets::new(stream) {
        let (offset, len) = cofi_packet::extent(&item);
        let decides = item.is_ok_and(|packet| matches!(packet.raw.kind(), Kind::Tnt8 | Kind::Tip));
        if decides && rng.one_in(3) {
            // (Some tell the time of the one before.)
            tsc += rng.below(3);
            bytes.push(0x19);
            bytes.extend(&tsc.to_le_bytes()[..7]);
        }
        let begin = offset.0 as usize;
        bytes.extend(&stream[begin..begin + len]);
    }
    bytes
}

#[test]
fn ticks_are_the_same() {
    let (Some(program), Some(traces)) = (Program::new("tests/c/flow.c", &[]), cofi_test::traces())
    else {
        return;
    };
    for name in ["xdc-foo", "xdc-unzip", "arcus-int-01-poc"] {
        let trace = real(&traces.join(name)).expect("a trace that is there");
        let (stream, code) = trace.split_once(' ').expect("its code");
        let with_time = program.path("clocked.pt");
        let stream = fs::read(stream).expect("its packets");
        fs::write(&with_time, clocked(&stream)).expect("it can be written");
        for level in ["insns", "blocks"] {
            let line = format!("{level} --cpu 6/79 {with_time} {code}");
            assert!(!program.same(&words(&line)).contains("event tick"));
            let count = program
                .same(&words(&format!("{line} --ticks")))
                .matches("event tick")
                .count();
            assert!(count > 500, "{name}, {level}: {count}");
        }
    }
}

/// Wherever control is: within what is at hand, before an event, behind an instruction to which one binds.
#[test]
fn images_that_change_meanwhile_give_the_same() {
    let (Some(program), Some(traces)) = (Program::new("tests/c/flow.c", &[]), cofi_test::traces())
    else {
        return;
    };
    for name in ["xdc-foo", "xdc-unzip", "arcus-int-01-poc"] {
        let trace = real(&traces.join(name)).expect("a trace that is there");
        for level in ["insns", "blocks"] {
            for every in [7, 101] {
                let options = format!("--cpu 6/79 --change {every}");
                program.same(&words(&format!("{level} --digest {options} {trace}")));
            }
        }
    }
}

/// A branch across a section's end ends its block; what is kept of a section that went away is not handed out.
#[test]
fn sections_end_and_go_away_alike() {
    let Some(program) = Program::new("tests/c/sections.c", &[]) else {
        return;
    };
    let file = program.path("code");
    let split = program.same(&words(&format!("split {file}")));
    assert!(split.contains("split 1000..1000 1 class"), "{split}");
    assert!(split.contains("truncated 5 bytes e9"), "{split}");
    let goes = program.same(&words(&format!("goes {file}")));
    assert!(goes.contains("refused -> -13"), "{goes}");
    assert!(goes.contains("then 1001 class 5 -> 0"), "{goes}");
}

/// Where blocks end, and the class of what stands there, as flow.c prints them.
fn block_ends(text: &str) -> Vec<(&str, u32)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("end "));
    lines
        .map(|line| {
            let (ip, class) = line.split_once(" class ").expect("a class");
            (ip, class.parse().expect("a number"))
        })
        .collect()
}

/// Elsewhere libipt ends blocks as its cache has it.
#[test]
fn blocks_have_the_same_classes_and_end_at_the_same_calls_and_jumps() {
    const CALL: u32 = 2;
    const JUMP: u32 = 4;
    let (Some(program), Some(traces)) = (Program::new("tests/c/flow.c", &[]), cofi_test::traces())
    else {
        return;
    };
    let mut seen = 0;
    for name in ["xdc-foo", "xdc-unzip", "arcus-int-01-poc"] {
        let trace = real(&traces.join(name)).expect("a trace that is there");
        for (options, ending) in [
            ("", &[][..]),
            ("--end-on-call", &[CALL]),
            ("--end-on-jump", &[JUMP]),
            ("--end-on-call --end-on-jump", &[CALL, JUMP]),
        ] {
            let line = format!("blocks --ends --cpu 6/79 {options} {trace}");
            let [theirs, ours] = program.both(&words(&line));
            let (theirs, ours) = (block_ends(&theirs), block_ends(&ours));
            let classes: HashMap<&str, u32> = ours.iter().copied().collect();
            assert!(classes.values().all(|class| *class != 0), "each is known");
            for (ip, class) in theirs.iter().filter(|(_, class)| *class != 0) {
                // (Where it ends in libipt alone, nothing is to be compared.)
                if let Some(our) = classes.get(ip) {
                    assert_eq!(our, class, "{name} {options}: {ip}");
                    seen += 1;
                }
            }
            let at = |ends: &[(&str, u32)]| -> Vec<String> {
                let all = ends
                    .iter()
                    .filter(|(ip, _)| classes.get(ip).is_some_and(|class| ending.contains(class)));
                all.map(|(ip, _)| (*ip).to_owned()).collect()
            };
            let (theirs, ours) = (at(&theirs), at(&ours));
            assert!(theirs == ours, "{name} {options}");
            assert!(
                ending.is_empty() || ours.len() > 50,
                "{name}: {}",
                ours.len()
            );
        }
    }
    assert!(seen > 10_000, "{seen}");
}

#[test]
fn the_programs_of_the_exam_run_unchanged() {
    let (Some(insns), Some(packets), Some(traces)) = (
        Program::new("../../exam/libipt/ptinsn.c", &[]),
        Program::new("../../exam/libipt/ptpackets.c", &[]),
        cofi_test::traces(),
    ) else {
        return;
    };
    let trace = real(&traces.join("xdc-foo")).expect("a trace that is there");
    insns.same(&words(&format!("--cpu 6/79/1 --events --times {trace}")));
    let stream = trace.split(' ').next().expect("its packets");
    packets.same(&words(&format!("dump {stream}")));
}
