//! What the table functions decode, and what is summed up of it, is what the commands say.

mod common;

use common::{
    Recorded, Row, asked, asked_in_order, assert_equal, assert_same, cofi_sql, only, said,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn functions_decode_what_the_commands_list() {
    let recorded = Recorded::new();
    for file in recorded.both() {
        for tid in tids(file) {
            instructions(file, tid);
            blocks(file, tid);
            packets(file, tid);
        }
        sums(file);
        lines(file);
        packet_stats(file);
    }
    arguments(&recorded.whole);
    let long = recorded.long();
    parts(&long);
    little_memory(&long);
    joined_in_little_memory(&long);
}

fn tids(file: &Path) -> Vec<u64> {
    let rows = asked(&[file], "SELECT tid FROM threads ORDER BY tid");
    let tids: Vec<u64> = rows.iter().filter_map(|row| row["tid"].as_u64()).collect();
    assert_eq!(tids.len(), 2);
    tids
}

/// The rows that `cofi` lists of a thread, in their order.
fn of_thread(words: &[&str], file: &Path, tid: u64) -> Vec<Row> {
    let mut rows = said(words, file);
    rows.retain(|row| row.get("tid").and_then(Value::as_u64) == Some(tid));
    assert!(!rows.is_empty());
    rows
}

/// Of the flow what ran, and the word of what is missing.
fn flow(rows: &[Row], keys: &[&str]) -> Vec<Row> {
    let is_shown = |row: &&Row| {
        row.contains_key(keys[0]) && !row[keys[0]].is_null()
            || row.get("kind").is_some_and(|kind| !kind.is_null())
            || row.get("event").is_some_and(|event| event == "overflow")
    };
    let shown: Vec<Row> = rows.iter().filter(is_shown).cloned().collect();
    only(&shown, &[keys, &["kind"]].concat())
}

fn instructions(file: &Path, tid: u64) {
    let wanted = flow(&of_thread(&["insn", "--json"], file, tid), &["insn"]);
    let ran = format!("SELECT ip AS insn, gap AS kind FROM instructions(NULL, {tid})");
    assert_equal(&asked_in_order(file, &ran), &wanted);
    if !file.ends_with("damaged.data") {
        let sorted = asked(&[file], &format!("{ran} ORDER BY stream_offset, seq"));
        assert_equal(&sorted, &wanted);
    }
}

fn blocks(file: &Path, tid: u64) {
    let keys = ["block", "end", "insns", "last"];
    let wanted = flow(&of_thread(&["blocks", "--json"], file, tid), &keys);
    let told = asked_in_order(
        file,
        &format!(
            "SELECT ip AS block, last_ip AS end, instructions AS insns, class AS last, gap AS kind
             FROM blocks(NULL, {tid})"
        ),
    );
    assert_equal(&told, &wanted);
}

fn packets(file: &Path, tid: u64) {
    let keys = ["offset", "size", "packet", "error"];
    let wanted = only(&of_thread(&["dump", "--json"], file, tid), &keys);
    let told = asked_in_order(
        file,
        &format!(
            "SELECT stream_offset AS \"offset\", size, packet, error FROM packets(NULL, {tid})"
        ),
    );
    assert_equal(&told, &wanted);
}

/// What is summed up is the same as what is summed up of single rows.
fn sums(file: &Path) {
    let keys = "tid, function, file, ip, last_ip, class";
    let wanted = asked(
        &[file],
        &format!(
            "SELECT {keys}, count(*) AS count, sum(instructions) AS instructions
             FROM blocks() WHERE gap IS NULL GROUP BY {keys}"
        ),
    );
    let told = asked(
        &[file],
        &format!("SELECT {keys}, count, instructions FROM block_counts"),
    );
    assert_same(&told, &wanted);
    let taken = asked(
        &[file],
        "SELECT tid, sum(count) AS conditional, sum(taken) AS taken FROM block_counts
         WHERE class = 'conditional' GROUP BY tid",
    );
    let wanted = asked(&[file], "SELECT tid, conditional, taken FROM threads");
    assert_same(&taken, &wanted);
    let slices = asked(
        &[file],
        "SELECT tid, sum(instructions) AS n FROM slices GROUP BY tid",
    );
    assert_same(
        &slices,
        &asked(&[file], "SELECT tid, instructions AS n FROM threads"),
    );
    let bytes = "SELECT tid, sum(end_offset - begin_offset) AS n FROM slices GROUP BY tid";
    let wanted = asked(&[file], "SELECT tid, trace_bytes AS n FROM threads");
    assert_same(&asked(&[file], bytes), &wanted);
}

fn lines(file: &Path) {
    let mut wanted = said(&["coverage", "--json", "--all"], file);
    wanted.retain(|row| row.contains_key("count"));
    for row in &mut wanted {
        let branches = row.get("branches").and_then(Value::as_array).cloned();
        let sum = |key: &str| {
            let of = |branch: &Value| branch.get(key).and_then(Value::as_u64).unwrap_or(0);
            branches.as_ref().map(|all| all.iter().map(of).sum::<u64>())
        };
        for key in ["taken", "not_taken", "unknown"] {
            row.insert(key.into(), sum(key).into());
        }
    }
    let keys = [
        "file",
        "line",
        "count",
        "insns",
        "taken",
        "not_taken",
        "unknown",
    ];
    let told = asked(
        &[file],
        "SELECT source AS file, line, sum(count) AS count, sum(instructions) AS insns,
                sum(taken) AS taken, sum(not_taken) AS not_taken, sum(unknown) AS unknown
         FROM lines GROUP BY source, line",
    );
    assert_same(&told, &only(&wanted, &keys));
    assert!(told.iter().any(|row| row["taken"].as_u64() > Some(0)));
}

fn packet_stats(file: &Path) {
    let mut wanted = Vec::new();
    for stream in said(&["dump", "--stats", "--json"], file) {
        for kind in stream["types"].as_array().expect("a list") {
            let mut row = kind.as_object().expect("an object").clone();
            row.insert("tid".into(), stream["tid"].clone());
            wanted.push(row);
        }
    }
    let told = asked(
        &[file],
        "SELECT * FROM packet_stats WHERE packet IS NOT NULL",
    );
    let keys = ["tid", "packet", "count", "bytes"];
    assert_same(&only(&told, &keys), &only(&wanted, &keys));
    let sums = asked(
        &[file],
        "SELECT tid, count(*) AS packets FROM packets() WHERE packet IS NOT NULL GROUP BY tid",
    );
    let counts =
        "SELECT tid, sum(count) AS packets FROM packet_stats WHERE packet IS NOT NULL GROUP BY tid";
    assert_same(&asked(&[file], counts), &sums);
}

/// Arguments are conditions, and what is wrong with one is said.
fn arguments(file: &Path) {
    let name = file.display();
    let count = |from: &str| asked(&[file], &format!("SELECT count(*) AS n FROM {from}"));
    assert_eq!(count("blocks()"), count(&format!("blocks('{name}')")));
    assert_eq!(count("blocks()"), count("blocks(NULL, NULL, NULL, NULL)"));
    assert_eq!(count("blocks(NULL, 1)")[0]["n"], 0);
    for (from, sentence) in [
        ("blocks('none')", "no recording is none"),
        ("blocks(1)", "recording must be a text"),
        ("blocks(NULL, 'a')", "thread must be a whole number"),
        ("blocks(NULL, NULL, 1, 2, 3)", "there are 5 arguments"),
    ] {
        let output = cofi_sql(&["sql"], &[file], &format!("SELECT * FROM {from};"));
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{from}: {said}");
        assert!(said.contains(sentence), "{from}: {said}");
    }
}

/// Sorting more than may be held in memory writes to files, and comes to the same.
fn little_memory(file: &Path) {
    let sorted = "SELECT count(*) AS n, sum(n % 1000 * (ip % 1000)) AS sum FROM (
        SELECT ip, row_number() OVER (ORDER BY tsc DESC, ip, seq, function) AS n FROM instructions())";
    let folder = tempfile::tempdir().expect("a folder");
    let spill = folder.path().display().to_string();
    let of = |memory: &str| {
        let words = [
            "sql",
            "--json",
            "--spill",
            spill.as_str(),
            "--memory",
            memory,
        ];
        let output = cofi_sql(&words, &[file], sorted);
        (output.status.code(), output.stdout, output.stderr)
    };
    let (status, wanted, _) = of("4096");
    assert_eq!(status, Some(0));
    let (status, told, said) = of("24");
    assert_eq!(
        (status, told),
        (Some(0), wanted),
        "{}",
        String::from_utf8_lossy(&said)
    );
    // It had to: more was held than is allowed.
    let explained = format!("EXPLAIN ANALYZE {sorted}");
    let words = ["sql", "--csv", "--spill", spill.as_str(), "--memory", "24"];
    let plan = cofi_sql(&words, &[file], &explained).stdout;
    let plan = String::from_utf8(plan).expect("UTF-8");
    let has_spilled = |part: &str| part.starts_with(|digit: char| ('1'..='9').contains(&digit));
    assert!(
        plan.split("spill_count=").skip(1).any(has_spilled),
        "{plan}"
    );
    // With next to nothing it is said what is missing.
    let (status, _, said) = of("0");
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("more memory than --memory says"), "{said}");
    let left = std::fs::read_dir(folder.path()).expect("a folder");
    assert_eq!(left.count(), 0, "files are left");
    // A folder that cannot be had is told of before anything is decoded.
    let words = ["sql", "--spill", "/proc/none"];
    let output = cofi_sql(&words, &[file], sorted);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot write into /proc/none"), "{said}");
}

/// A join of which no side may be held in memory is done by sorting, and comes to the same.
fn joined_in_little_memory(file: &Path) {
    let joined = "SELECT count(*) AS n, sum(a.ip % 1000 * (b.ip % 1000)) AS sum FROM instructions() AS a
        JOIN instructions() AS b ON a.stream_offset = b.stream_offset AND a.seq = b.seq AND a.function = b.function";
    let of = |memory: &str, threads: &str, statement: &str| {
        let words = ["sql", "--csv", "--memory", memory, "--threads", threads];
        let output = cofi_sql(&words, &[file], statement);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "--memory {memory}: {said}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let wanted = of("4096", "2", joined);
    let explained = format!("EXPLAIN ANALYZE {joined}");
    assert!(of("4096", "2", &explained).contains("HashJoinExec"));
    for threads in ["1", "2"] {
        assert_eq!(of("32", threads, joined), wanted);
    }
    let plan = of("32", "2", &explained);
    assert!(plan.contains("SortMergeJoinExec"), "{plan}");
}

/// How many parts a statement decoded, and how many it left out.
fn counted(file: &Path, statement: &str) -> (u64, u64) {
    let output = cofi_sql(
        &["sql", "--csv"],
        &[file],
        &format!("EXPLAIN ANALYZE {statement}"),
    );
    let plan = String::from_utf8(output.stdout).expect("UTF-8");
    let number = |key: &str| {
        let (_, rest) = plan.split_once(key)?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    (
        number("parts_decoded=").unwrap_or(0),
        number("parts_skipped=").unwrap_or(0),
    )
}

/// Only the parts are decoded that may hold rows, and the rows are those that are found when all is.
fn parts(file: &Path) {
    let slices = asked(
        &[file],
        "SELECT tid, count(*) AS n FROM slices GROUP BY tid ORDER BY n DESC",
    );
    let tid = slices[0]["tid"].as_u64().expect("a number");
    let total: u64 = slices.iter().filter_map(|row| row["n"].as_u64()).sum();
    assert!(total >= 8, "the recording has {total} parts");
    let ends = format!(
        "SELECT min(time_ns) AS a, max(time_ns) AS b, max(stream_offset) AS c FROM packets(NULL, {tid})"
    );
    let ends = &asked(&[file], &ends)[0];
    let number = |key: &str| ends[key].as_i64().expect("a number");
    let (begin, end, bytes) = (number("a"), number("b"), number("c"));
    let mut fewest = u64::MAX;
    const SUMS: &str = "count(*) AS n, count(ip) AS ips, min(stream_offset) AS first, max(stream_offset) AS last, sum(seq) AS seq, min(tsc) AS tsc";
    for tenth in [-1, 0, 4, 9, 10] {
        let at = |begin: i64, end: i64, tenth: i64| begin + (end - begin) * tenth / 10;
        let (from, to) = (at(begin, end, tenth), at(begin, end, tenth + 1));
        for function in ["instructions", "blocks"] {
            let some = format!("SELECT {SUMS} FROM {function}(NULL, {tid}, {from}, {to})");
            // What is worked out of a column narrows nothing.
            let all = format!(
                "SELECT {SUMS} FROM {function}() WHERE tid + 0 = {tid} AND time_ns + 0 >= {from} AND time_ns + 0 < {to}"
            );
            assert_eq!(asked(&[file], &some), asked(&[file], &all), "{some}");
            let (decoded, skipped) = counted(file, &some);
            assert_eq!(decoded + skipped, total, "{some}");
            assert_eq!(counted(file, &all), (total, 0), "{all}");
            fewest = fewest.min(decoded);
        }
        let (from, to) = (at(0, bytes, tenth), at(0, bytes, tenth + 1));
        let some = format!(
            "SELECT {SUMS} FROM instructions(NULL, {tid}) WHERE stream_offset >= {from} AND stream_offset < {to}"
        );
        let all = format!(
            "SELECT {SUMS} FROM instructions() WHERE tid + 0 = {tid} AND stream_offset + 0 >= {from} AND stream_offset + 0 < {to}"
        );
        assert_eq!(asked(&[file], &some), asked(&[file], &all), "{some}");
        let (decoded, skipped) = counted(file, &some);
        assert!(
            decoded <= 4 && decoded + skipped == total,
            "{some}: {decoded} of {total}"
        );
    }
    assert_eq!(fewest, 0, "before the first there is nothing to decode");
    // A row is the same whatever else is decoded.
    let mut rows: BTreeMap<String, u64> = BTreeMap::new();
    let middle = (begin + end) / 2;
    for (from, to) in [(begin, middle), (middle, end + 1)] {
        for row in asked(
            &[file],
            &format!("SELECT * FROM blocks(NULL, {tid}, {from}, {to})"),
        ) {
            *rows.entry(Value::from(row).to_string()).or_default() += 1;
        }
    }
    let whole = asked(
        &[file],
        &format!("SELECT * FROM blocks(NULL, {tid}) WHERE time_ns IS NOT NULL"),
    );
    for row in whole {
        let row = Value::from(row).to_string();
        let count = rows.get_mut(&row).filter(|count| **count > 0);
        *count.unwrap_or_else(|| panic!("{row} is missing")) -= 1;
    }
    assert!(rows.values().all(|count| *count == 0));
}
