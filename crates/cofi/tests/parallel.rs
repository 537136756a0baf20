//! What is printed does not depend on how many threads decode, nor on where a stream is cut for them.

mod common;

use common::{DYNAMIC, STATIC, Scratch, cofi, has_qemu, run};
use std::ffi::OsStr;
use std::path::Path;

/// A PSB every 2 KiB.
const OFTEN: &str = "psb_period=0";

/// What a command prints, and its status.
fn printed(command: &str, options: &[&str], input: &[&OsStr]) -> (i32, Vec<u8>, String) {
    let mut cofi = cofi();
    let ran = run(cofi.arg(command).args(options).args(input));
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    (ran.code(), ran.stdout, ran.stderr)
}

/// The commands that print lines in the order of the trace, with options that make a difference to how.
const ORDERED: [(&str, &[&str]); 9] = [
    ("insn", &["--bytes"]),
    ("insn", &["--json"]),
    ("insn", &["--json", "--symbols"]),
    ("blocks", &[]),
    ("blocks", &["--json"]),
    ("blocks", &["--json", "--symbols"]),
    ("events", &[]),
    ("events", &["--json"]),
    ("events", &["--json", "--branches", "--ticks"]),
];

/// One thread and several print the same, with as many segments as there are PSBs and with the usual ones.
fn same(input: &[&OsStr]) {
    let is_feed = |byte: &u8| *byte == b'\n';
    for (command, options) in ORDERED {
        let with = |more: &[&str]| printed(command, &[options, more].concat(), input);
        let (status, one, messages) = with(&["-j1"]);
        assert!(!one.is_empty(), "{messages}");
        for more in [&["-j3", "--segment", "1"][..], &["-j2"]] {
            let (other_status, many, other_messages) = with(more);
            // Which line differs is looked for only where one does.
            if one != many {
                let (one, many) = (one.split(is_feed), many.split(is_feed));
                let at = one.zip(many).position(|(a, b)| a != b);
                panic!("{command} {options:?} {more:?}: line {at:?} differs");
            }
            assert_eq!((status, &messages), (other_status, &other_messages));
        }
    }
    for command in ["check", "report"] {
        for options in [&["--json"][..], &[]] {
            let with = |more: &[&str]| printed(command, &[options, more].concat(), input);
            let one = with(&["-j1"]);
            assert!(!one.1.is_empty(), "{}", one.2);
            for more in [
                &["-j3"][..],
                &["-j2"],
                &["-j1", "--segment", "1"],
                &["-j3", "--segment", "1"],
            ] {
                assert_eq!(with(more), one, "{command} {options:?} {more:?}");
            }
        }
    }
}

/// Records a program of the exam, as `config` says.
fn recorded(scratch: &Scratch, file: &str, flags: &[&str], config: &str, raw: &Path) -> bool {
    let Some(program) = scratch.program(file, flags) else {
        return false;
    };
    let data = scratch.path("data");
    let mut record = cofi();
    record.args(["record", "--engine", "qemu", "--config", config, "-o"]);
    record.arg(&data).arg("--raw-output").arg(raw);
    run(record.arg("--").arg(&program));
    same(&[data.as_os_str()]);
    true
}

#[test]
fn threads_signals_and_changing_code_are_the_same_on_several_threads() {
    if !has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    for file in ["threads.c", "signals.c", "smc.c"] {
        recorded(&scratch, file, DYNAMIC, OFTEN, &scratch.path("raw"));
    }
}

/// RTIT tells nothing at its PSBs: it is decoded in one piece.
#[test]
fn rtit_is_the_same_on_several_threads() {
    if !has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    recorded(&scratch, "threads.c", DYNAMIC, "rtit", &scratch.path("raw"));
}

#[test]
fn a_damaged_trace_is_the_same_on_several_threads() {
    if !has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let raw = scratch.path("raw");
    if !recorded(&scratch, "static.c", STATIC, OFTEN, &raw) {
        return;
    }
    let program = scratch.path("static");
    let whole = std::fs::read(&raw).expect("the packets");
    let damage: [fn(&mut Vec<u8>); 3] = [
        |bytes| {
            let half = bytes.len() / 2;
            bytes[half..half + 40].fill(0xff);
        },
        |bytes| {
            let (third, half) = (bytes.len() / 3, bytes.len() / 2);
            bytes.drain(third..half);
        },
        |bytes| bytes.truncate(bytes.len() * 2 / 3),
    ];
    for damage in damage {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        let file = scratch.write("damaged", &bytes);
        let options = ["--format", "pt", "--elf"].map(OsStr::new);
        same(&[&options[..], &[program.as_os_str(), file.as_os_str()]].concat());
    }
}

/// A processor on which a thread of each of two processes runs by turns, in a bundle of LLDB.
#[test]
fn a_processor_of_several_threads_is_the_same_on_several_threads() {
    if !has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    let raw = scratch.path("0.trace");
    if !recorded(&scratch, "static.c", STATIC, OFTEN, &raw) {
        return;
    }
    let options = ["--format", "pt", "--json"].map(OsStr::new);
    let (_, lines, _) = printed("events", &[], &[&options[..], &[raw.as_os_str()]].concat());
    let lines = String::from_utf8(lines).expect("UTF-8");
    let times = lines.lines().filter_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line["tsc"].as_u64()
    });
    let times: Vec<u64> = times.collect();
    let (first, last) = (times[0], times[times.len() - 1]);
    let mut switches = Vec::new();
    for turn in 1..10 {
        let (now, next) = (5 + turn % 2, 6 - turn % 2);
        for (misc, other, task) in [(1_u16 << 13, next, now), (0, now, next)] {
            // SWITCH_CPU_WIDE, its length, the other thread, this one, and the time.
            switches.extend(15_u32.to_le_bytes());
            switches.extend([misc.to_le_bytes(), 32_u16.to_le_bytes()].concat());
            let tasks = [other, other, task, task].map(u32::to_le_bytes);
            switches.extend(tasks.concat());
            // Of two ticks a nanosecond, as the conversion below says.
            let time = (first + (last - first) / 10 * u64::from(turn)) / 2;
            switches.extend(time.to_le_bytes());
        }
    }
    scratch.write("0.switches", switches);
    let process = |pid: u32| {
        format!(
            r#"{{"pid": {pid}, "threads": [{{"tid": {pid}}}],
            "modules": [{{"systemPath": "static", "loadAddress": "0x400000"}}]}}"#
        )
    };
    let (one, two) = (process(5), process(6));
    let bundle = format!(
        r#"{{"type": "intel-pt",
        "cpuInfo": {{"vendor": "GenuineIntel", "family": 6, "model": 79, "stepping": 1}},
        "tscPerfZeroConversion": {{"timeMult": 1073741824, "timeShift": 31, "timeZero": "0x0"}},
        "processes": [{one}, {two}],
        "cpus": [{{"id": 0, "iptTrace": "0.trace", "contextSwitchTrace": "0.switches"}}]}}"#
    );
    let bundle = scratch.write("trace.json", bundle);
    let (_, report, messages) = printed("report", &["--json"], &[bundle.as_os_str()]);
    let report = String::from_utf8(report).expect("UTF-8");
    for tid in [5, 6] {
        let tid = format!("\"tid\":{tid},");
        assert!(report.contains(&tid), "{report}\n{messages}");
    }
    same(&[bundle.as_os_str()]);
}

/// Cycle counts, overflows and other processors than ours, as far as the traces are here.
#[test]
fn traces_of_real_processors_are_the_same_on_several_threads() {
    let Some(traces) = cofi_test::traces() else {
        return;
    };
    for name in ["xdc-foo", "arcus-ovf-01-ben", "lldb-trace"] {
        let folder = traces.join(name);
        let case = std::fs::read(folder.join("case.json")).expect("the case");
        let case: serde_json::Value = serde_json::from_slice(&case).expect("JSON");
        let file = |value: &serde_json::Value| folder.join(value.as_str().expect("a name"));
        let mut input: Vec<std::ffi::OsString> =
            ["--format", "pt", "--cpu", "6/79"].map(Into::into).to_vec();
        for image in case["images"].as_array().into_iter().flatten() {
            let mut spec = file(&image["file"]).into_os_string();
            spec.push(":");
            spec.push(image["base"].as_str().expect("an address"));
            input.extend(["--raw".into(), spec]);
        }
        if case["elf"].is_string() {
            input.extend(["--elf".into(), file(&case["elf"]).into()]);
        }
        input.push(file(&case["trace"]).into());
        let input: Vec<&OsStr> = input.iter().map(|word| word.as_os_str()).collect();
        same(&input);
    }
}
