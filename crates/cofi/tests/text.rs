//! `cofi asm` and `cofi dump` as each other's inverse; their messages, filters, statistics and colours.

mod common;

use common::{Ran, Scratch, cofi, run, run_with};
use proptest::prelude::*;
use serde_json::Value;

const PT: &[&str] = &["--format", "pt"];
const RTIT: &[&str] = &["--format", "rtit"];
const RTIT_CYCLES: &[&str] = &["--format", "rtit", "--cycle-accurate"];

/// A stream with everything that the options choose from.
const TEXT: &str = "\
start:  psb
        psbend
enter:  tip.pge 0x401000        ; main
        tnt TNNT
        tip 0x401234
        tnt TNNTTNTNN           # a long one
        bbp size=4 type=GPR
        bip 2 0x1234
        tnt T                   ; may not stand here
        fup 0x401240
        tip.pgd -
        psb
        .byte 05 77
        psb
        psbend
";

fn asm(options: &[&str], text: &[u8]) -> Ran {
    run_with(cofi().arg("asm").args(options).arg("-"), text)
}

fn dump(options: &[&str], bytes: &[u8]) -> Ran {
    run_with(cofi().arg("dump").args(options).arg("-"), bytes)
}

fn assembled() -> Vec<u8> {
    let ran = asm(PT, TEXT.as_bytes());
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    ran.stdout
}

/// The packets' names in the text that `cofi dump` prints.
fn names(ran: &Ran) -> Vec<String> {
    let word = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    ran.text().lines().filter_map(word).collect()
}

#[test]
fn dump_of_what_was_assembled() {
    let bytes = assembled();
    let ran = dump(&[], &bytes);
    assert_eq!((ran.code(), ran.stderr.as_str()), (1, ""));
    let wanted = [
        "       0: psb",
        "      10: psbend",
        "      12: tip.pge 0x401000",
        "      17: tnt.8 TNNT",
        "      18: tip 0x401234",
        "      1b: tnt.64 TNNTTNTNN",
        "      23: bbp size=4 type=GPR",
        "      26: bip id=2 payload=0x1234 ; R/EAX",
        "      2b: tnt.8 T ; error: tnt.8 may not stand between bbp and bep",
        "      2c: fup 0x401240",
        "      2f: tip.pgd -",
        "      30: psb",
        "      40: ; error: no packet begins with the bytes 05 77; 2 bytes passed over",
        "      40: .byte 05 77",
        "      42: psb",
        "      52: psbend",
    ];
    assert_eq!(ran.text().lines().collect::<Vec<_>>(), wanted);
    let again = asm(PT, &ran.stdout);
    assert_eq!((again.code(), again.stdout), (0, bytes));
}

#[test]
fn labels() {
    let scratch = Scratch::new();
    let (text, out, list) = (
        scratch.write("text", TEXT),
        scratch.path("out"),
        scratch.path("labels"),
    );
    let ran = run(cofi().args(["asm", "--labels", "-o"]).arg(&out).arg(&text));
    assert_eq!(ran.code(), 0);
    assert_eq!(ran.stderr, "start 0\nenter 12\n");
    assert!(ran.stdout.is_empty());
    assert_eq!(std::fs::read(&out).expect("the packets"), assembled());

    let option = format!("--labels={}", list.display());
    let ran = run(cofi().args(["asm", &option, "-o"]).arg(&out).arg(&text));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let list = std::fs::read_to_string(&list).expect("the labels");
    assert_eq!(list, "start 0\nenter 12\n");

    // What looks like an offset of `cofi dump` may come as often as it likes.
    assert_eq!(asm(PT, b"1f0: pad\n1f0: pad\n").stdout, [0, 0]);
    // The last line needs no line feed, and lines may come from other systems.
    assert_eq!(asm(PT, b"a: pad\r\n\r\nb: tnt T").stdout, [0, 6]);
}

#[test]
fn every_wrong_line_is_told() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let text = scratch.write(
        "wrong",
        "psb\n\ttip.pge 0x40zz ; why\nloop: pad\n  loop: pad\nµs: cbr\nfrob 1\n: pad\n",
    );
    let ran = run(cofi().args(["asm", "-o"]).arg(&out).arg(&text));
    assert_eq!(ran.code(), 1);
    assert!(ran.stdout.is_empty() && !out.exists());
    let name = text.display();
    let wanted = format!(
        "{name}:2:10: this cannot be read as a value\n    \ttip.pge 0x40zz ; why\n    \t        ^^^^^^\n\
         {name}:4:3: line 3 has this label already\n      loop: pad\n      ^^^^\n\
         {name}:5:8: the operand ratio is missing\n    µs: cbr\n           ^\n\
         {name}:6:1: there is no packet of this name\n    frob 1\n    ^^^^\n\
         {name}:7:1: there is no name before the colon\n    : pad\n    ^\n\
         cofi: nothing was written: 5 of 7 lines cannot be assembled\n"
    );
    assert_eq!(ran.stderr, wanted);

    let ran = asm(PT, b"psb\n\xff\xfe psb\n");
    assert_eq!(ran.code(), 1);
    assert!(
        ran.stderr.contains("<stdin>:2:1: the line is not UTF-8"),
        "{}",
        ran.stderr
    );
    // Neither a long line nor a control character reaches the terminal.
    let ran = asm(
        PT,
        format!("tip {}\ntip \x1b[31m\n", "9".repeat(5000)).as_bytes(),
    );
    assert!(
        ran.stderr.len() < 300 && !ran.stderr.contains('\x1b'),
        "{}",
        ran.stderr
    );
}

#[test]
fn asm_used_wrongly() {
    let scratch = Scratch::new();
    let text = scratch.write("text", "pad");
    for options in [
        vec!["/no/such/file"],
        vec!["--format", "perf", "-"],
        vec!["-o", "/no/such/folder/out", text.to_str().expect("a path")],
        vec![],
    ] {
        let ran = run(cofi().arg("asm").args(&options));
        assert_eq!(ran.code(), 2, "{options:?}: {}", ran.stderr);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty());
    }
}

#[test]
fn filters() {
    let bytes = assembled();
    let ran = dump(&["--filter", "TIP*,fup"], &bytes);
    assert_eq!(ran.code(), 1);
    assert_eq!(names(&ran), ["tip.pge", "tip", "fup", "tip.pgd"]);
    // The address of the FUP, which has two bytes, needs the packets that are not shown.
    let ran = dump(&["--filter", "fup", "--json"], &bytes);
    assert!(ran.text().contains("\"ip\":\"0x401240\""), "{}", ran.text());
    assert_eq!(ran.stderr, "cofi: 2 errors in the trace, not listed\n");
    assert_eq!(
        names(&dump(&["--filter", "tnt"], &bytes)),
        ["tnt.8", "tnt.64", "tnt.8"]
    );
    let ran = dump(&["--filter", "error", "--json"], &bytes);
    assert_eq!(ran.text().lines().count(), 2);
    assert!(ran.text().lines().all(|line| line.contains("\"error\":")));
    // Once with the error, and the packet's keys too.
    let first: Value =
        serde_json::from_str(ran.text().lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["packet"], "tnt.8");
    assert_eq!(first["bits"], "T");

    let ran = dump(&["--filter", "tip,nonsense"], &bytes);
    assert_eq!(ran.code(), 2);
    assert!(ran.stdout.is_empty());
    for word in ["\"nonsense\"", "tip.pge", "error"] {
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
}

#[test]
fn a_part_of_a_stream() {
    let bytes = assembled();
    let offsets = |options: &[&str]| -> Vec<u64> {
        let ran = dump(&[&["--json"], options].concat(), &bytes);
        let offset =
            |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["offset"].as_u64();
        ran.text().lines().filter_map(offset).collect()
    };
    assert_eq!(offsets(&["--offset", "0x13", "--count", "2"]), [0x17, 0x18]);
    assert_eq!(offsets(&["--offset", "66"]), [0x42, 0x52]);
    assert_eq!(offsets(&["--count", "1", "--filter", "tip"]), [0x18]);
    assert_eq!(offsets(&["--count", "0"]), [0; 0]);
    assert_eq!(offsets(&["--offset", "0x1000"]), [0; 0]);
    // The state is that of the whole stream.
    let ran = dump(&["--offset", "0x18", "--count", "1"], &bytes);
    assert_eq!(ran.text(), "      18: tip 0x401234\n");
    for wrong in ["--offset=12z", "--offset=-1", "--count=x", "--color=blue"] {
        assert_eq!(dump(&[wrong], &bytes).code(), 2, "{wrong}");
    }
    assert_eq!(dump(&["--stats", "--filter", "tip"], &bytes).code(), 2);
}

#[test]
fn statistics() {
    let bytes = assembled();
    let ran = dump(&["--stats", "--json"], &bytes);
    assert_eq!((ran.code(), ran.stderr.as_str()), (1, ""));
    let stats: Value = serde_json::from_str(&ran.text()).expect("one object");
    assert_eq!(stats["bytes"], bytes.len());
    assert_eq!(
        (&stats["packets"], &stats["errors"], &stats["error_bytes"]),
        (&14.into(), &2.into(), &2.into())
    );
    let types = stats["types"].as_array().expect("a list");
    assert_eq!(types[0]["packet"], "psb");
    assert_eq!(
        (&types[0]["count"], &types[0]["bytes"]),
        (&3.into(), &48.into())
    );
    let share: f64 = types.iter().filter_map(|kind| kind["share"].as_f64()).sum();
    assert!((share - 82.0 / 84.0).abs() < 1e-4, "{share}");
    let psb = serde_json::json!({
        "count": 3, "min_distance": 0x12, "mean_distance": 33.0, "max_distance": 0x30,
    });
    assert_eq!(stats["psb"], psb);
    let ip = serde_json::json!({
        "count": 3, "bytes": 8, "full_bytes": 24, "ratio": 0.333333, "suppressed": 1, "forms": [
            {"form": "ipc=0", "count": 1, "bytes": 0},
            {"form": "ipc=1", "count": 2, "bytes": 4},
            {"form": "ipc=2", "count": 1, "bytes": 4},
        ],
    });
    assert_eq!(stats["ip"], ip);

    let ran = dump(&["--stats"], &bytes);
    assert_eq!(ran.code(), 1);
    for line in [
        "PSBs: 3; from one to the next 18 to 48 bytes, 33.0 on average",
        "Addresses: 3 in 8 bytes, 33.3 % of the 24 bytes that they have; 1 suppressed",
        "Errors: 2; 2 bytes passed over, 1 packet where it may not stand",
    ] {
        assert!(
            ran.text().lines().any(|told| told == line),
            "{}",
            ran.text()
        );
    }
    // Of nothing there is nothing to tell.
    let ran = dump(&["--stats", "--json"], b"");
    let stats: Value = serde_json::from_str(&ran.text()).expect("one object");
    assert_eq!(
        (&stats["bytes"], &stats["ip"]["ratio"]),
        (&0.into(), &Value::Null)
    );
    assert!(dump(&["--stats"], b"").text().contains("PSBs: 0\n"));

    let rtit = asm(
        RTIT,
        b"psb\nfup.pge 0x401000\ntnt TNTTNT\ntnt T\ntip 0x401002\n",
    );
    let ran = dump(&[RTIT, &["--stats", "--json"]].concat(), &rtit.stdout);
    let stats: Value = serde_json::from_str(&ran.text()).expect("one object");
    assert_eq!(stats["ip"]["ratio"], 0.5);
    let tnt = stats["types"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|kind| kind["packet"] == "tnt");
    assert_eq!(
        tnt.map(|kind| kind["count"].as_u64()).collect::<Vec<_>>(),
        [Some(2)]
    );
}

#[test]
fn colours() {
    let bytes = assembled();
    let coloured = dump(&["--color", "always"], &bytes);
    assert!(
        coloured
            .text()
            .contains("\x1b[36mtip.pge\x1b[0m 0x401000\n"),
        "{}",
        coloured.text()
    );
    let mut plain = String::new();
    for part in coloured.text().split('\x1b') {
        plain += part
            .strip_prefix('[')
            .and_then(|part| Some(part.split_once('m')?.1))
            .unwrap_or(part);
    }
    for options in [&[][..], &["--color", "never"], &["--color", "auto"]] {
        assert_eq!(dump(options, &bytes).text(), plain);
    }
    assert!(
        !dump(&["--json", "--color", "always"], &bytes)
            .text()
            .contains('\x1b')
    );
}

#[test]
fn many_bytes_that_form_no_packet() {
    let lines = |len: usize, options: &[&str]| {
        let ran = dump(options, &vec![0xff; len]);
        assert_eq!(ran.code(), 1);
        let again = asm(PT, &ran.stdout);
        assert_eq!(again.code(), 0, "{}", again.stderr);
        (ran.text().lines().count(), again.stdout.len())
    };
    assert_eq!(lines(256, &[]), (1 + 16, 256));
    assert_eq!(lines(257, &[]), (1 + 2 + 1, 32));
    assert_eq!(lines(257, &["--bytes"]), (1 + 17, 257));
    let ran = dump(&[], &[0xff; 300]);
    assert!(
        ran.text()
            .ends_with("      20: ; 268 more bytes, which --bytes would show\n"),
        "{}",
        ran.text()
    );
}

#[test]
fn cycle_counts_are_for_rtit() {
    let ran = dump(&["--cycle-accurate"], &[0]);
    assert_eq!((ran.code(), ran.text().as_str()), (0, "       0: pad\n"));
    assert!(ran.stderr.contains("--format rtit"), "{}", ran.stderr);
}

/// Bytes among which there are packets: heads, boundaries, and anything.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let boundary = Just([0x02, 0x82].repeat(8));
    let boundary_rtit = Just([&[0xc0_u8][..], &[0; 8]].concat());
    let head = (
        prop::sample::select(vec![0x02_u8, 0x99, 0xd9, 0xc3, 0x63]),
        any::<u8>(),
    )
        .prop_map(|(first, second)| vec![first, second]);
    let second = prop::sample::select(vec![
        0x23_u8, 0x83, 0xa3, 0x43, 0x03, 0x73, 0xc8, 0xf3, 0xc3, 0x12, 0x32, 0x92, 0x62, 0xc2,
        0x22, 0xa2, 0x63, 0x33, 0xb3, 0x13, 0x53,
    ]);
    // What follows an extended opcode is short, so that several packets stand in a row.
    let extended = (second, prop::collection::vec(any::<u8>(), 1..11))
        .prop_map(|(second, rest)| [&[0x02, second][..], &rest].concat());
    let block = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..40))
        .prop_map(|(four, rest)| [&[0x02, 0x63, u8::from(four) << 7 | 1][..], &rest].concat());
    let anything = prop::collection::vec(any::<u8>(), 1..12);
    let part = prop_oneof![2 => boundary, 2 => boundary_rtit, 2 => head, 4 => extended, 2 => block, 6 => anything];
    prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn asm_of_dump_is_the_same_file(bytes in bytes()) {
        for format in [PT, RTIT, RTIT_CYCLES] {
            let dumped = dump(&[format, &["--bytes"]].concat(), &bytes);
            prop_assert!(dumped.code() <= 1, "{}", dumped.stderr);
            let again = asm(format, &dumped.stdout);
            prop_assert_eq!((again.code(), again.stderr.as_str()), (0, ""), "{}", dumped.text());
            prop_assert!(again.stdout == bytes, "{:?}\n{}", format, dumped.text());
        }
    }

    #[test]
    fn asm_of_anything(text in "([a-z0-9.:;=# x-]{0,40}\n){0,20}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for format in [PT, RTIT, RTIT_CYCLES] {
            for text in [text.as_bytes(), &bytes] {
                let ran = asm(format, text);
                prop_assert!(ran.code() <= 1, "{}", ran.stderr);
                prop_assert!(ran.code() == 0 || ran.stdout.is_empty());
            }
        }
    }
}
