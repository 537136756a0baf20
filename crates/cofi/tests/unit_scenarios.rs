//! `cofi unit run`: the scenarios of corpus/unit come out as they expect, and what is no scenario is refused in one sentence.

mod common;
mod scenarios;

use common::{cofi, run_with};
use scenarios::{check_all, check_listing, text};
use std::path::PathBuf;

/// How many scenarios there are: one that got lost is noticed.
const SCENARIOS: usize = 285;

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
        let scenario = std::fs::read_to_string(&file).expect("a scenario");
        if !scenario.contains("\noutput = \"stores\"") {
            check_listing(&file, &[]);
        }
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

/// What no processor does is no operation: neither what never happens nor what cannot follow what the scenario has done.
#[test]
fn what_is_impossible_is_refused() {
    let exit = "[[op]]\nop = \"vm_exit\"\nto = 0x8000\n";
    let entry = "[[op]]\nop = \"vm_entry\"\nto = 0x2000\n";
    let smi = "[[op]]\nop = \"smi\"\nto = 0x38000\n";
    let rsm = "[[op]]\nop = \"rsm\"\nto = 0x1000\n";
    let vmxon = "[[op]]\nop = \"vmxon\"\n";
    let sleep = |state: &str| format!("[[op]]\nop = \"sleep\"\nstate = {state}\n");
    let wake = "[[op]]\nop = \"wake\"\nlast = \"C1\"\ndeepest = \"C1\"\nreason = \"INTERRUPT\"\n";
    let init = "[[op]]\nop = \"init\"\nto = 0x1000\n";
    let init_to_wait = "[[op]]\nop = \"init_to_wait\"\n";
    let sipi = "[[op]]\nop = \"sipi\"\nvector = 1\nto = 0x1000\n";
    let plain = "[[op]]\nop = \"plain\"\n";
    let op = |word: &str| format!("[[op]]\nop = \"{word}\"\n");
    let (begin, commit) = (op("transaction_begin"), op("transaction_commit"));
    let abort = "[[op]]\nop = \"transaction_abort\"\nto = 0x1000\n";
    for (scenario, wanted) in [
        (
            rsm.to_owned(),
            "2:6: `op`: impossible here: RSM outside SMM is #UD, ",
        ),
        (
            format!("{smi}{rsm}{rsm}"),
            "8:6: `op`: impossible here: RSM outside SMM",
        ),
        (
            format!("{smi}{smi}"),
            "5:6: `op`: impossible here: SMIs are blocked",
        ),
        (
            exit.to_owned(),
            "2:6: `op`: impossible here: no `vm_entry` came before",
        ),
        (
            format!("{vmxon}{exit}"),
            "4:6: `op`: impossible here: in VMX root operation only an SMM VM exit",
        ),
        (
            format!("{vmxon}{entry}{exit}{exit}"),
            "10:6: `op`: impossible here: in VMX root operation",
        ),
        (
            format!("{vmxon}{entry}{entry}"),
            "7:6: `op`: impossible here: in VMX non-root operation",
        ),
        (
            format!("{vmxon}{entry}{vmxon}"),
            "7:6: `op`: impossible here: in VMX non-root operation",
        ),
        (
            entry.to_owned(),
            "2:6: `op`: impossible here: outside VMX operation VMLAUNCH and VMRESUME are #UD, and no `vmxon` came before",
        ),
        (
            format!("{vmxon}{}{entry}", op("vmxoff")),
            "6:6: `op`: impossible here: outside VMX operation",
        ),
        (
            wake.to_owned(),
            "2:6: `op`: impossible here: the processor is awake, as no `sleep` came before",
        ),
        (
            format!("{}{wake}{wake}", sleep("\"C1\"")),
            "10:6: `op`: impossible here: the processor is awake",
        ),
        (
            sipi.to_owned(),
            "2:6: `op`: impossible here: the processor does not wait for SIPI, as no `init_to_wait` came before",
        ),
        (
            format!("{init}{sipi}"),
            "5:6: `op`: impossible here: the processor does not wait for SIPI",
        ),
        (
            format!("{init_to_wait}{sipi}{sipi}"),
            "8:6: `op`: impossible here: the processor does not wait for SIPI",
        ),
        (
            commit.clone(),
            "2:6: `op`: impossible here: outside a transaction XEND is #GP, and no `transaction_begin` came before",
        ),
        (
            format!("{begin}{commit}{commit}"),
            "6:6: `op`: impossible here: outside a transaction",
        ),
        (
            format!("{begin}{abort}{abort}"),
            "7:6: `op`: impossible here: outside a transaction nothing aborts",
        ),
        (sleep("\"C0\""), "3:9: `state`: C0 is no sleep"),
        (sleep("15"), "3:9: `state`: C0 is no sleep"),
    ] {
        let told = refused(&scenario);
        assert!(
            told.starts_with(wanted),
            "{scenario}\n{told}\nnot\n{wanted}"
        );
    }
    let smm = "[[op]]\nop = \"vm_exit\"\nto = 0x8000\nto_smm = { vmcs = 0x9000, smi = true }\n";
    for scenario in [
        format!("{smi}{rsm}{smi}{rsm}"),
        format!("{vmxon}{entry}{exit}{entry}{exit}"),
        format!("{vmxon}{smm}{entry}"),
        format!("{vmxon}{entry}{smm}{entry}{exit}"),
        format!("{}{wake}{}{wake}", sleep("\"C1\""), sleep("\"C6\"")),
        format!("{init_to_wait}{sipi}{plain}{init_to_wait}{sipi}"),
        format!("{begin}{begin}{commit}{begin}{abort}"),
        format!("[context]\nin_tx = true\n{commit}"),
        sleep("\"C1\""),
    ] {
        let ran = run_with(cofi().args(["unit", "run", "-"]), scenario.as_bytes());
        assert_eq!(ran.code(), 0, "{scenario}\n{}", ran.stderr);
    }
}

/// The same for RTIT, whose scenarios may begin in a guest.
#[test]
fn what_is_impossible_with_rtit_is_refused() {
    let op = |word: &str| format!("[[op]]\nop = \"{word}\"\n");
    let to = |word: &str| format!("[[op]]\nop = \"{word}\"\nto = 0x1000\n");
    let sleep = "[[op]]\nop = \"sleep\"\nstate = \"C1\"\n";
    let (wake, smi, plain) = (op("wake"), op("smi"), op("plain"));
    let (vmxon, exit, entry) = (op("vmxon"), op("vm_exit"), to("vm_entry"));
    let (init, sipi, rsm) = (to("init"), to("sipi"), to("rsm"));
    for (ops, wanted) in [
        (rsm.clone(), "3:6: `op`: impossible here: RSM outside SMM"),
        (
            format!("{smi}{smi}"),
            "5:6: `op`: impossible here: SMIs are blocked",
        ),
        (
            entry.clone(),
            "3:6: `op`: impossible here: VM entries are of VMX root operation",
        ),
        (
            format!("{vmxon}{exit}"),
            "5:6: `op`: impossible here: in VMX root operation",
        ),
        (
            wake.clone(),
            "3:6: `op`: impossible here: the processor is awake",
        ),
        (
            format!("{sleep}{plain}{wake}"),
            "8:6: `op`: impossible here: the processor is awake",
        ),
        (
            sipi.clone(),
            "3:6: `op`: impossible here: the processor does not wait for SIPI",
        ),
        (
            format!("{init}{plain}{sipi}"),
            "8:6: `op`: impossible here: the processor does not wait for SIPI",
        ),
    ] {
        let scenario = format!("unit = \"rtit\"\n{ops}");
        let told = refused(&scenario);
        assert!(
            told.starts_with(wanted),
            "{scenario}\n{told}\nnot\n{wanted}"
        );
    }
    for ops in [
        format!("{smi}{rsm}{smi}{rsm}"),
        format!("{exit}{entry}{exit}"),
        format!("{vmxon}{entry}{exit}"),
        format!("{sleep}{wake}{plain}{sleep}{wake}"),
        format!("{init}{sipi}{init}{plain}"),
    ] {
        let scenario = format!("unit = \"rtit\"\n{ops}");
        let ran = run_with(cofi().args(["unit", "run", "-"]), scenario.as_bytes());
        assert_eq!(ran.code(), 0, "{scenario}\n{}", ran.stderr);
    }
}

/// What is wrong with the output registers is said: a fault by its rule, and an error, of which the trace tells nothing, on standard error.
#[test]
fn a_misaligned_output_base_is_explained() {
    let scenario = |ctl: &str, base: &str, pointers: &str| {
        format!(
            "[start]\nOUTPUT_BASE = {base}\nOUTPUT_MASK_PTRS = {pointers}\nCTL = {{ TraceEn = 1, OS = 1{ctl} }}\n\
             [[op]]\nop = \"rdmsr\"\nmsr = \"STATUS\"\n"
        )
    };
    let fault = refused(&scenario("", "0x10000001", "0xffff"));
    let wanted = "2:1: [start] faults: #GP: MSR 0x560, value 0x10000001: a reserved bit is set: bits 6:0 are, so the base is a multiple of 128 (33.2.8.7, ";
    assert!(fault.starts_with(wanted), "{fault}");
    for (ctl, base, pointers, wanted) in [
        (
            "",
            "0x10000080",
            "0xffff",
            "OUTPUT_BASE 0x10000080 is no multiple of 0x10000, ",
        ),
        (
            "",
            "0x10000000",
            "0x1ff7f",
            "the mask 0x1ff7f in OUTPUT_MASK_PTRS is not contiguous (33.2.7.1)",
        ),
        (
            "",
            "0x10000000",
            "0x100000000007f",
            "the output offset 0x10000 is beyond the mask 0x7f ",
        ),
        (
            ", ToPA = 1",
            "0x8080",
            "0x7f",
            "OUTPUT_BASE 0x8080 is where a ToPA table begins, and no multiple of 4096 ",
        ),
        (
            ", ToPA = 1",
            "0x8000",
            "0xff",
            "look at the ToPA entry at 0x8008, which is 0x102, and at ",
        ),
    ] {
        let scenario =
            scenario(ctl, base, pointers) + "[[memory]]\nat = 0x8008\nqwords = [0x102]\n";
        let ran = run_with(cofi().args(["unit", "run", "-"]), scenario.as_bytes());
        assert_eq!(
            (ran.code(), ran.text().as_str()),
            (0, "; 1: rdmsr\n          msr IA32_RTIT_STATUS = 0x10\n")
        );
        let told = ran.stderr.strip_prefix(
            "cofi: -: [start]: IA32_RTIT_STATUS.Error is set, and nothing is traced: ",
        );
        let told = told.unwrap_or_else(|| panic!("{}", ran.stderr));
        assert!(told.starts_with(wanted), "{told}");
    }
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
