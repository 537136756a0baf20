//! `cofi unit run`: the scenarios of corpus/unit come out as they expect, and what is no scenario is refused in one sentence.

mod common;
mod scenarios;

use common::{cofi, run_with};
use scenarios::{check_all, check_listing, text};
use std::path::PathBuf;

/// How many scenarios there are: one that got lost is noticed.
const SCENARIOS: usize = 272;

const FOLDER: &str = "corpus/unit";

fn scenarios() -> Vec<PathBuf> {
    scenarios::scenarios(FOLDER)
}

#[test]
fn every_scenario_comes_out_as_expected() {
    check_all(FOLDER, SCENARIOS);
}

#[test]
fn every_row_of_the_tables_has_a_scenario() {
    let mut rows = Vec::new();
    for file in scenarios() {
        let scenario = std::fs::read_to_string(&file).expect("a scenario");
        let name = file.display();
        assert!(text(&scenario, "title").is_some(), "{name} has no title");
        let row = text(&scenario, "table").or(text(&scenario, "section"));
        rows.push(row.expect("a table or a section").to_owned());
        assert!(
            scenario.contains("\nnote = "),
            "{name} does not say what it shows"
        );
        assert!(scenario.contains("\nexpect = "), "{name} expects nothing");
    }
    let cases = |table: &'static str, cases: std::ops::RangeInclusive<u32>| {
        cases.map(move |case| format!("{table} case {case}"))
    };
    let wanted = cases("33-55", 1..=27)
        .chain(cases("33-56", 1..=12))
        .chain(cases("33-57", 1..=7))
        .chain(cases("33-58", 1..=3))
        // The manual has no cases 8 and 9 here.
        .chain(cases("33-59", 1..=7))
        .chain(cases("33-59", 10..=22))
        .chain(
            [
                "33-2",
                "33-10 transaction begin",
                "33-10 transaction commit",
                "33-10 transaction abort",
                "33-10 other",
                "33-13 threshold 0",
                "33-13 threshold 16",
                "33-13 threshold 32",
                "33-13 threshold 64",
                "33-19 non-deferred",
                "33-19 deferred",
                "33-52 execution control 0",
                "33-52 execution control 1",
                "33-52 exit control 0",
                "33-52 exit control 1",
                "33-52 entry control 0",
                "33-52 entry control 1",
                "33-53 VM exit",
                "33-53 VM entry",
                "33-54 system-wide, early failure",
                "33-54 system-wide, late failure",
                "33-54 VMM only, early failure",
                "33-54 VMM only, late failure",
                "33-54 VM only, early failure",
                "33-54 VM only, late failure",
                "Example 33-1",
                "Example 33-2",
            ]
            .map(str::to_owned),
        );
    for row in wanted {
        assert!(rows.contains(&row), "no scenario shows {row}");
    }
}

#[test]
fn every_scenario_is_listed() {
    for file in scenarios() {
        check_listing(&file, &[]);
    }
}

/// Runs a scenario that is none, and gives the sentence, without the name.
fn refused(text: &str) -> String {
    let ran = run_with(cofi().args(["unit", "run", "-"]), text.as_bytes());
    assert_eq!(ran.code(), 2, "{text}\n{}", ran.text());
    assert_eq!(ran.text(), "", "{text}");
    let sentence = ran.stderr.strip_prefix("cofi: -:").expect(&ran.stderr);
    let sentence = sentence.strip_suffix('\n').expect("a line");
    assert!(!sentence.contains('\n'), "more than a line: {sentence}");
    sentence.to_owned()
}

#[test]
fn what_is_no_scenario_is_refused() {
    let op = "[[op]]\nop = \"plain\"\n";
    for (text, wanted) in [
        ("ip = ", "1:6: this is no TOML: "),
        ("ip = 1\nip = 2\n", "2:1: this is no TOML: duplicate key"),
        ("ip = 1\n", "1:1: there are no operations: [[op]]"),
        ("op = 1\n", "1:6: `op`: expected a list, found 1"),
        ("op = [1]\n", "1:7: `op`: expected a table, found 1"),
        ("[[op]]\nip = 1\n", "1:1: `op` needs the key `op`"),
        (
            "[[op]]\nop = \"frob\"\n",
            "2:6: `op`: there is no operation \"frob\"",
        ),
        (
            "[[op]]\nop = \"jmp\"\n",
            "1:1: the operation `jmp` needs the key `to`",
        ),
        (
            "[[op]]\nop = \"jcc\"\nto = true\n",
            "3:6: `to`: expected a number of at most 64 bits, found true",
        ),
        (
            "[[op]]\nop = \"jcc\"\nto = -1\n",
            "3:6: `to`: expected a number of at most 64 bits, found -1",
        ),
        (
            "[[op]]\nop = \"jcc\"\ntoo = 1\n",
            "3:1: the operation `jcc` has no key `too`; it may have: op, times, after, time, packet_times, ip, len, next, to",
        ),
        (
            "[[op]]\nop = \"plain\"\ntimes = 1_000_001\n",
            "3:9: `times`: expected a number from 1 to 1000000, found 1000001",
        ),
        (
            "[[op]]\nop = \"repeat\"\ntimes = 1_000_000\nops = [{ op = \"plain\" }]\n",
            "2:6: `op`: the scenario has more than 1000000 operations",
        ),
        (
            "[[op]]\nop = \"plain\"\ntime = { cycles = 0x2_0000_0000 }\n",
            "1:1: more than 4294967296 cycles pass before this operation",
        ),
        (
            "[clock]\ncycles = 5\n[[op]]\nop = \"plain\"\ntime = { cycles = 4 }\n",
            "5:8: `time`: the clock does not run backwards",
        ),
        (
            "[[op]]\nop = \"rdmsr\"\nmsr = \"IA32_RTIT_CTRL\"\n",
            "3:7: `msr`: there is no trace register of this name",
        ),
        (
            "[start]\nCTL = { TraceOn = 1 }\n",
            "2:9: `TraceOn`: IA32_RTIT_CTL has no field of this name; it has: TraceEn, ",
        ),
        (
            "[start]\nCTL = { MTCFreq = 16 }\n",
            "2:9: `MTCFreq`: the field of IA32_RTIT_CTL has 4 bits",
        ),
        (
            "[start]\nCTL = \"0xffffffffffffffff\"\n",
            "2:1: [start] faults: #GP: MSR 0x570, value 0xffffffffffffffff: ",
        ),
        (
            "[implementation]\ntnt = \"wide\"\n",
            "2:7: `tnt`: expected one of \"short\", \"long\", \"both\", found \"wide\"",
        ),
        (
            "[context]\ncpl = 4\n",
            "2:7: `cpl`: expected a number from 0 to 3, found 4",
        ),
        (
            "[[memory]]\nat = 4\nqwords = []\n",
            "2:6: `at`: the address is no multiple of 8",
        ),
    ] {
        let text = if text.contains("op") || text == "ip = 1\n" || text.starts_with("ip") {
            text.to_owned()
        } else {
            format!("{text}{op}")
        };
        let told = refused(&text);
        assert!(told.starts_with(wanted), "{text}\n{told}\nnot\n{wanted}");
    }
    let unknown = refused(&format!("frob = 1\n{op}"));
    assert!(
        unknown.starts_with("1:1: the scenario has no key `frob`; it may have: title, "),
        "{unknown}"
    );
}

#[test]
fn what_cannot_be_expected_is_refused() {
    let check = |expect: &str| {
        let text = format!("expect = \"\"\"\n{expect}\n\"\"\"\n[[op]]\nop = \"plain\"\n");
        run_with(
            cofi().args(["unit", "run", "--check", "-"]),
            text.as_bytes(),
        )
    };
    for (expect, wanted) in [
        ("frob 12", "`expect`, line 1: `frob 12`: there is no packet"),
        ("psb\nfault", "`expect`, line 2: `fault` needs one of #GP, "),
        (
            "msr FROB = 1",
            "`expect`, line 1: expected `msr NAME = VALUE`",
        ),
        ("pmi pmi", "`expect`, line 1: `pmi pmi`: there is too much"),
    ] {
        let ran = check(expect);
        assert_eq!(ran.code(), 2, "{expect}");
        assert!(ran.stderr.contains(wanted), "{}", ran.stderr);
    }
    let ran = check("# nothing\n ; at all");
    assert_eq!((ran.code(), ran.text().as_str()), (0, ""), "{}", ran.stderr);
    let ran = check("pmi");
    assert_eq!(ran.code(), 1);
    assert_eq!(ran.text(), "- expected\n+ came out\n\n- pmi\n");
    let none = run_with(
        cofi().args(["unit", "run", "--check", "-"]),
        b"[[op]]\nop = \"plain\"\n",
    );
    assert_eq!(none.code(), 2);
}

#[test]
fn a_file_that_is_not_there_or_not_text_is_refused() {
    let ran = run_with(cofi().args(["unit", "run", "/nonexistent.toml"]), b"");
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("/nonexistent.toml"), "{}", ran.stderr);
    let ran = run_with(cofi().args(["unit", "run", "-"]), b"\xff\xfe");
    assert_eq!((ran.code(), ran.text().as_str()), (2, ""));
    let deep = format!("x = {}", "[".repeat(100_000));
    let ran = run_with(cofi().args(["unit", "run", "-"]), deep.as_bytes());
    assert_eq!((ran.code(), ran.text().as_str()), (2, ""));
}
