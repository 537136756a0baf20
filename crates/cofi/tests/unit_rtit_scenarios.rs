//! `cofi unit run` for RTIT: the scenarios of corpus/rtit come out as they expect, and none is missing.

mod common;
mod scenarios;

use common::{cofi, repository, run_with};
use scenarios::{check_all, check_listing, stem, text};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How many scenarios there are: one that got lost is noticed.
const SCENARIOS: usize = 300;

const FOLDER: &str = "corpus/rtit";

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
    let readme = std::fs::read_to_string(repository().join("corpus/rtit/README.md"));
    let readme = readme.expect("corpus/rtit/README.md");
    for file in scenarios() {
        let scenario = std::fs::read_to_string(&file).expect("a scenario");
        let name = stem(&file);
        assert!(text(&scenario, "title").is_some(), "{name} has no title");
        let row = text(&scenario, "table").or(text(&scenario, "section"));
        rows.push(row.expect("a table or a section").to_owned());
        assert!(
            scenario.contains("\nnote = "),
            "{name} does not say what it shows"
        );
        assert!(scenario.contains("\nexpect = "), "{name} expects nothing");
        assert!(
            readme.contains(&format!("`{name}`")),
            "README.md does not name {name}"
        );
    }
    let numbered = |table: &'static str, rows: std::ops::RangeInclusive<u32>| {
        rows.map(move |row| format!("{table} row {row}"))
    };
    let sections = [
        "3", "Figure 6", "Figure 7", "2.1.2", "2.1.3", "2.3", "2.3.2", "2.4.1", "2.4.2", "2.4.3",
        "2.6.1", "2.6.2", "3.3", "3.3.1", "3.3.2", "3.3.3", "3.3.4", "3.3.5", "3.3.6", "3.3.7",
        "3.3.8", "3.3.9", "3.3.10", "3.3.11", "3.3.12", "3.3.13", "3.3.14", "4.2.1", "4.2.2",
        "4.2.3.1", "4.2.3.2", "4.2.5", "4.2.6", "4.2.8", "4.2.10", "4.2.11", "4.2.12", "4.2.13",
        "4.2.14", "4.2.15", "4.3.2", "A", "B 4.1.1", "B 4.1.2", "B 4.1.3", "B 4.1.4", "B 4.2.1",
        "B 4.2.2", "B 4.2.3",
    ];
    let wanted = numbered("1", 1..=9)
        .chain(numbered("2", 1..=3))
        .chain(numbered("17", 1..=12))
        .chain(numbered("18", 1..=7))
        .chain(numbered("19", 1..=44))
        .chain(sections.map(str::to_owned));
    for row in wanted {
        assert!(rows.contains(&row), "no scenario shows {row}");
    }
    let names: Vec<_> = scenarios().iter().map(|file| stem(file)).collect();
    for erratum in 1..=8 {
        for state in ["on", "off"] {
            let name = format!("erratum-{erratum}-{state}");
            assert!(names.contains(&name), "no scenario {name}");
        }
    }
    for named in readme.split('`').skip(1).step_by(2) {
        if named.starts_with(|c: char| c.is_ascii_lowercase()) && !named.contains([' ', '/']) {
            let is_state = ["on", "off", "not-now"].contains(&named);
            assert!(
                is_state || names.iter().any(|name| name == named),
                "README.md names {named}, which is not there"
            );
        }
    }
}

#[test]
fn every_scenario_is_listed() {
    for file in scenarios() {
        let scenario = std::fs::read_to_string(&file).expect("a scenario");
        if scenario.contains("\noutput = \"stores\"") {
            continue;
        }
        let is_counted = scenario.contains("Cycle_Acc = 1");
        let cycles = is_counted.then_some("--cycle-accurate");
        let options: Vec<_> = ["--format", "rtit"].into_iter().chain(cycles).collect();
        check_listing(&file, &options);
    }
}

/// The stores of a scenario in order: address and bytes.
fn stores(scenario: &str) -> Vec<(u64, Vec<u8>)> {
    let ran = run_with(
        cofi().args(["unit", "run", "--json", "-"]),
        scenario.as_bytes(),
    );
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    ran.text()
        .lines()
        .filter_map(|line| {
            let object: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let address = object.get("store")?.as_str()?.strip_prefix("0x")?;
            let bytes: Vec<_> = object["bytes"]
                .as_str()?
                .split(' ')
                .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"))
                .collect();
            assert_eq!(object["size"].as_u64(), Some(bytes.len() as u64));
            Some((u64::from_str_radix(address, 16).expect("hex"), bytes))
        })
        .collect()
}

/// 2.3.2: before a line, younger ones may be written up to the next iteration of the lines before it, but no younger iteration of
/// itself. Sorted so, the bytes are those that a processor writes that stores every byte at once.
#[test]
fn lines_are_reordered_as_far_as_the_reference_allows() {
    const LINES: u64 = 4;
    let scenario = |lines: &str, seed: u64| {
        format!(
            "unit = \"rtit\"\noutput = \"stores\"\n[implementation]\nlines = \"{lines}\"\nseed = {seed}\n\
             [start]\nBASE_ADDR = 0x10000000\nLIMIT_MASK = {:#x}\n\
             CTL = {{ Trace_En = 1, TraceActive = 1, OS = 1 }}\n\
             [[op]]\nop = \"repeat\"\ntimes = 300\nops = [\n\
             {{ op = \"jmp_indirect\", to = 0x12345678 }},\n{{ op = \"far_branch\", to = 0x1000 }},\n]\n\
             [[op]]\nop = \"wrmsr\"\nmsr = \"RTIT_CTL\"\nset = {{ TraceActive = 0 }}\n",
            64 * LINES - 1
        )
    };
    let at_once: Vec<u8> = stores(&scenario("immediate", 1))
        .into_iter()
        .flat_map(|(_, bytes)| bytes)
        .collect();
    let mut moved = 0;
    for seed in 1..=20 {
        // By number of the line, as if the region did not wrap; several parts of one line come in order.
        let mut written: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut done = vec![0_u64; LINES as usize];
        let mut youngest = 0;
        for (address, bytes) in stores(&scenario("reordered", seed)) {
            let index = (address >> 6) % LINES;
            let slot = &mut done[index as usize];
            let number = *slot * LINES + index;
            let line = written.entry(number).or_default();
            assert_eq!(address & 63, line.len() as u64, "seed {seed}");
            line.extend(bytes);
            if line.len() == 64 {
                *slot += 1;
            }
            moved += u32::from(number < youngest);
            assert!(
                number + LINES > youngest,
                "seed {seed}: {number} behind {youngest}"
            );
            youngest = youngest.max(number);
        }
        let sorted: Vec<u8> = written.into_values().flatten().collect();
        assert_eq!(sorted, at_once, "seed {seed}");
    }
    assert!(moved > 100, "only {moved} lines out of order");
}

/// Runs a scenario that is none, and gives the sentence, without the name.
fn refused(text: &str) -> String {
    let text = format!("unit = \"rtit\"\n{text}");
    let ran = run_with(
        cofi().args(["unit", "run", "--check", "-"]),
        text.as_bytes(),
    );
    assert_eq!(ran.code(), 2, "{text}\n{}", ran.text());
    let sentence = ran.stderr.strip_prefix("cofi: -:").expect(&ran.stderr);
    sentence.strip_suffix('\n').expect("a line").to_owned()
}

#[test]
fn what_is_no_scenario_is_refused() {
    let op = "[[op]]\nop = \"plain\"\n";
    for (text, wanted) in [
        (
            "[[op]]\nop = \"ptwrite\"\n",
            "3:6: `op`: there is no operation \"ptwrite\"",
        ),
        (
            "capabilities = {}\n[[op]]\nop = \"plain\"\n",
            "2:1: the scenario has no key `capabilities`; it may have: title, ",
        ),
        (
            "implementation = { errata = [\"E9\"] }\n",
            "2:30: `errata`: expected one of \"E1\", \"E2\", ",
        ),
        (
            "implementation = { psb_effect_delay = 5 }\n",
            "2:39: `psb_effect_delay`: expected a number from 0 to 4, found 5",
        ),
        (
            "implementation = { buffer = { size = 31 } }\n",
            "2:38: `size`: expected a number from 32 to 16777216, found 31",
        ),
        (
            "output = \"lines\"\n",
            "2:10: `output`: expected one of \"packets\", \"stores\"",
        ),
        (
            "start = { CTL = { TraceEn = 1 } }\n",
            "2:19: `TraceEn`: RTIT_CTL has no field of this name; it has: Trace_En, ",
        ),
        (
            "start = { IA32_RTIT_CTL = 1 }\n",
            "2:11: `IA32_RTIT_CTL`: there is no trace register of this name",
        ),
        (
            "start = { CTL = 0x20 }\n",
            "2:11: [start] faults: #GP: MSR 0x768, value 0x20: ",
        ),
        (
            "[[op]]\nop = \"sleep\"\nstate = \"C3\"\n",
            "4:9: `state`: expected one of \"C1\", ",
        ),
        (
            "expect = \"store 0x0: 00\"\n",
            "2:10: `expect`, line 1: `store 0x0: 00`: ",
        ),
        (
            "output = \"stores\"\nexpect = \"psb\"\n",
            "3:10: `expect`, line 1: `psb`: no packets are listed",
        ),
        (
            "output = \"stores\"\nexpect = \"store 0: 00\"\n",
            "3:10: `expect`, line 1: expected `store ADDRESS: BYTES`, in hexadecimal",
        ),
    ] {
        let text = if text.contains("[[op]]") {
            text.to_owned()
        } else {
            format!("{text}{op}")
        };
        let told = refused(&text);
        assert!(told.starts_with(wanted), "{text}\n{told}\nnot\n{wanted}");
    }
}

#[test]
fn the_unit_is_named() {
    let check = |unit: &str| {
        let text = format!("{unit}\nexpect = \"\"\n[[op]]\nop = \"plain\"\n");
        run_with(
            cofi().args(["unit", "run", "--check", "-"]),
            text.as_bytes(),
        )
    };
    assert_eq!(check("unit = \"pt\"").code(), 0);
    assert_eq!(check("unit = \"rtit\"").code(), 0);
    let told = check("unit = \"etm\"").stderr;
    let wanted = "cofi: -:1:8: `unit`: expected one of \"pt\", \"rtit\", found \"etm\"";
    assert!(told.starts_with(wanted), "{told}");
}
