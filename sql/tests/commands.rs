//! What the tables hold is what the commands say of the same recordings.

mod common;

use common::{Recorded, Row, asked, assert_same, cofi_sql, only, said};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;
use std::process::Command;

fn with(rows: &[Row], key: &str) -> Vec<Row> {
    rows.iter()
        .filter(|row| row.contains_key(key))
        .cloned()
        .collect()
}

fn renamed(rows: Vec<Row>, from: &str, to: &str) -> Vec<Row> {
    let rename = |mut row: Row| {
        if let Some(value) = row.remove(from) {
            row.insert(to.into(), value);
        }
        row
    };
    rows.into_iter().map(rename).collect()
}

/// One value of one row.
fn one(files: &[&Path], statement: &str) -> Value {
    let rows = asked(files, statement);
    let [row] = rows.as_slice() else {
        panic!("{statement}: {rows:?}");
    };
    let mut values = row.values();
    values.next().expect("a value").clone()
}

#[test]
fn tables_hold_what_the_commands_say() {
    let recorded = Recorded::new();
    for file in recorded.both() {
        report(file);
        calls(file);
        events(file);
        check(file);
    }
    head(&recorded);
    missing(&recorded);
    sideband(&recorded);
    several(&recorded);
    forms(&recorded);
    refusals(&recorded);
}

/// An archive, and a recording of a catalogue, are read as the commands read them, with the code that is packed alone.
#[test]
fn archives_hold_what_they_were_made_of() {
    let recorded = Recorded::new();
    let folder = recorded.folder.path();
    let (archive, catalogue) = (folder.join("whole.cofi"), folder.join("catalogue"));
    let pack = |words: [&Path; 2], file: &Path| {
        let mut command = Command::new(common::cofi());
        let output = command.arg("archive").args(words).arg(file).output();
        let output = output.expect("it runs");
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    };
    pack([Path::new("-o"), &archive], &recorded.whole);
    pack([Path::new("--into"), &catalogue], &recorded.damaged);
    let kept = catalogue.join("recordings/damaged.cofi");
    let all = |file: &Path| {
        let tables = [
            "threads",
            "functions",
            "lines",
            "calls",
            "mappings",
            "processes",
            "gaps",
            "block_counts",
            "instructions()",
            "blocks()",
            "packets()",
        ];
        tables.map(|table| {
            let rows = asked(&[file], &format!("SELECT * FROM {table}"));
            let mut rows: Vec<String> = rows
                .into_iter()
                .map(|mut row| {
                    row.remove("recording");
                    format!("{row:?}")
                })
                .collect();
            rows.sort_unstable();
            assert!(!rows.is_empty() || table == "gaps", "{table}");
            rows
        })
    };
    let pairs = [(&archive, &recorded.whole), (&kept, &recorded.damaged)];
    let before = pairs.map(|(_, recording)| all(recording));
    // Whatever stands at the program's path by now.
    std::fs::write(folder.join("program"), "#!/bin/sh\n").expect("written");
    for ((packed, _), before) in pairs.into_iter().zip(before) {
        report(packed);
        calls(packed);
        events(packed);
        check(packed);
        assert!(all(packed) == before, "{}", packed.display());
    }
    // Without the code that it shares, one of a catalogue is refused.
    std::fs::remove_dir_all(catalogue.join("code")).expect("removed");
    let output = cofi_sql(&["sql"], &[&kept], "SELECT count(*) FROM calls;");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("its folder is not there"), "{said}");
}

fn report(file: &Path) {
    let report = said(&["report", "--json"], file);
    const COUNTS: &[&str] = &[
        "tid",
        "pid",
        "instructions",
        "branches",
        "taken",
        "calls",
        "returns",
        "system_calls",
        "interruptions",
        "trace_bytes",
        "gaps",
        "lost_bytes",
        "begin",
        "end",
        "name",
    ];
    let threads = renamed(with(&report, "thread"), "thread", "name");
    let told = asked(
        &[file],
        "SELECT *, begin_ns AS begin, end_ns AS end FROM threads",
    );
    assert_same(&only(&told, COUNTS), &only(&threads, COUNTS));
    let functions = with(&report, "function");
    const FUNCTION: &[&str] = &["function", "file", "address", "instructions", "entries"];
    let told = asked(&[file], "SELECT * FROM functions");
    assert_same(&only(&told, FUNCTION), &only(&functions, FUNCTION));
    // What was counted is the same however it is asked.
    let summary = &report.last().expect("a summary")["summary"];
    let sum = one(&[file], "SELECT sum(instructions) FROM functions");
    assert_eq!(sum, summary["instructions"]);
    let sum = one(&[file], "SELECT sum(self_instructions) FROM calls");
    assert_eq!(sum, summary["instructions"]);
}

fn calls(file: &Path) {
    const CALL: &[&str] = &[
        "call",
        "ip",
        "kind",
        "from",
        "file",
        "depth",
        "begin",
        "end",
        "insns",
        "self_insns",
        "left",
        "cycles",
        "tid",
    ];
    let wanted = said(&["calls", "--json"], file);
    let told = asked(
        &[file],
        "SELECT function AS call, ip, kind, from_ip AS \"from\", file, depth, begin_ns AS begin,
                end_ns AS end, instructions AS insns, self_instructions AS self_insns,
                ended_by AS left, cycles, tid FROM calls",
    );
    assert_same(&only(&told, CALL), &only(&wanted, CALL));
    // A call's total is its own, and the totals of those that it is around. (Behind a gap, what was open before is not known.)
    let wrong = "SELECT count(*) FROM calls c JOIN (
            SELECT recording, tid, era, parent, sum(instructions) AS below FROM calls
            GROUP BY recording, tid, era, parent
        ) b ON b.recording = c.recording AND b.tid = c.tid AND b.era = c.era AND b.parent = c.call
        WHERE c.instructions <> c.self_instructions + b.below AND c.kind <> 'assumed'";
    assert_eq!(one(&[file], wrong), 0);
}

fn events(file: &Path) {
    let wanted = said(&["events", "--json"], file);
    let told = asked(&[file], "SELECT *, stream_offset AS \"offset\" FROM events");
    assert_eq!(told.len(), wanted.len());
    const EVENT: &[&str] = &["tid", "offset", "tsc", "event", "packets"];
    assert_same(&only(&told, EVENT), &only(&wanted, EVENT));
    // Each value that the command shows is one of `fields`. Streams come in any order, each in its own.
    let mut places: BTreeMap<String, VecDeque<&Row>> = BTreeMap::new();
    let place = |row: &Row| format!("{} {} {:?}", row["tid"], row["offset"], row.get("event"));
    for wanted in wanted.iter().filter(|row| row.contains_key("event")) {
        places.entry(place(wanted)).or_default().push_back(wanted);
    }
    for told in told.iter().filter(|row| !row["event"].is_null()) {
        let wanted = places.get_mut(&place(told)).and_then(VecDeque::pop_front);
        let wanted = wanted.expect("such an event");
        let fields = told["fields"].as_str().expect("a text");
        let fields: Row = serde_json::from_str(fields).expect("an object");
        for (key, value) in &fields {
            assert_eq!(Some(value), wanted.get(key), "{key} of {wanted:?}");
        }
        if let Some(ip) = wanted.get("ip").filter(|_| !fields.contains_key("ip")) {
            assert_eq!(ip, &told["ip"], "{wanted:?}");
        }
    }
}

fn check(file: &Path) {
    let check = said(&["check", "--json"], file);
    let summary = &check.last().expect("a summary")["summary"];
    let gaps = with(&check, "gap");
    assert_eq!(
        one(&[file], "SELECT coalesce(sum(count), 0) FROM gaps"),
        summary["gaps"]
    );
    if !gaps.is_empty() {
        const GAP: &[&str] = &[
            "gap",
            "tid",
            "offset",
            "ip",
            "lost_bytes",
            "tsc",
            "lost_ticks",
            "time",
            "lost_time",
            "resumed_offset",
            "resumed_ip",
        ];
        let told = asked(
            &[file],
            "SELECT *, kind AS gap, stream_offset AS \"offset\", time_ns AS time,
                    lost_ns AS lost_time FROM gaps",
        );
        assert_same(&only(&told, GAP), &only(&gaps, GAP));
    }
    let name = file.file_name().unwrap_or_default();
    let is_damaged = name.to_string_lossy().starts_with("damaged");
    assert_eq!(gaps.is_empty(), !is_damaged);
    let seals = "SELECT count(*) FROM seals WHERE is_verified";
    assert_eq!(one(&[file], seals), summary["seals"]);
    let broken = "SELECT count(*) FROM seals WHERE NOT is_verified";
    assert_eq!(one(&[file], broken), summary["seals_broken"]);
    assert_eq!(summary["seals_broken"] != 0, is_damaged);
    let sealed = one(
        &[file],
        "SELECT sum(instructions) FROM seals WHERE is_verified",
    );
    assert!(sealed.as_u64() <= summary["instructions"].as_u64());
}

/// Where rows are made of a flow of which something is missing, that is said.
fn missing(recorded: &Recorded) {
    let [whole, damaged] = recorded.both();
    let from = [
        "calls",
        "threads",
        "functions",
        "lines",
        "slices",
        "block_counts",
        "seals",
        "events",
        "instructions()",
        "blocks()",
    ];
    for table in from {
        let statement = format!("SELECT count(*) FROM {table};");
        for (file, code) in [(whole, 0), (damaged, 1)] {
            let output = cofi_sql(&["sql"], &[file], &statement);
            let said = String::from_utf8(output.stderr).expect("UTF-8");
            assert_eq!(output.status.code(), Some(code), "{table}: {said}");
            let sentence = format!("{}: parts of its flow are missing", file.display());
            assert_eq!(said.contains(&sentence), code == 1, "{table}: {said}");
        }
    }
    // This one says it itself, and these have nothing of the flow.
    for table in ["gaps", "recordings", "packet_stats", "packets()"] {
        let statement = format!("SELECT count(*) FROM {table};");
        let output = cofi_sql(&["sql"], &[damaged], &statement);
        assert_eq!(output.status.code(), Some(0), "{table}");
    }
}

/// What stands before the first PSB.
fn head(recorded: &Recorded) {
    let file = recorded.whole.with_file_name("head.pt");
    let psb = [0x02, 0x82].repeat(8);
    fs::write(&file, [&[0xff; 100], &psb[..], &[0x02, 0x23]].concat()).expect("a file");
    let check = said(&["check", "--json"], &file);
    let summary = &check.last().expect("a summary")["summary"];
    let told = one(&[&file], "SELECT bytes_before_first_psb FROM recordings");
    assert_eq!(
        (told.as_u64(), &told),
        (Some(100), &summary["bytes_before_first_psb"])
    );
}

/// What the file tells beside the trace.
fn sideband(recorded: &Recorded) {
    let file = recorded.whole.as_path();
    let rows = asked(&[file], "SELECT * FROM recordings");
    let [row] = rows.as_slice() else {
        panic!("{rows:?}");
    };
    assert_eq!(row["recording"], file.display().to_string());
    assert_eq!(
        (&row["packets"], &row["engine"]),
        (&"pt".into(), &"qemu".into())
    );
    assert_eq!(row["file_bytes"], file.metadata().expect("a file").len());
    assert_eq!((&row["streams"], &row["missing"]), (&2.into(), &0.into()));
    assert_eq!(row["is_finished"], true);
    // The program is mapped where its code ran.
    let program = recorded.folder.path().join("program").display().to_string();
    let main = "SELECT count(*) FROM calls c JOIN processes p ON p.pid = c.pid
        JOIN mappings m ON m.pid = p.pid AND c.ip BETWEEN m.first AND m.last
        WHERE c.function = 'main' AND c.kind <> 'assumed' AND m.file = '{}' AND p.name = 'program'";
    assert_eq!(one(&[file], &main.replace("{}", &program)), 1);
    let processes = asked(
        &[file],
        "SELECT name, threads, traced_threads FROM processes",
    );
    let processes = processes.iter().filter(|row| row["traced_threads"] == 2);
    assert_eq!(processes.count(), 1);
    let built = "SELECT length(build_id) > 0, problem FROM code_files WHERE file = '{}'";
    let rows = asked(&[file], &built.replace("{}", &program));
    assert!(
        rows.iter().all(|row| row["problem"].is_null()) && !rows.is_empty(),
        "{rows:?}"
    );
}

/// Several recordings are told apart, and those that are not asked for are not decoded.
fn several(recorded: &Recorded) {
    let files = recorded.both();
    let each = asked(
        &files,
        "SELECT recording, sum(instructions) AS n FROM threads GROUP BY 1",
    );
    assert_eq!(each.len(), 2);
    for row in &each {
        let file = Path::new(row["recording"].as_str().expect("a text"));
        let alone = one(&[file], "SELECT sum(instructions) FROM threads");
        assert_eq!(row["n"], alone);
    }
    let plan = |condition: &str| {
        let statement = format!("EXPLAIN ANALYZE SELECT count(*) FROM calls WHERE {condition}");
        let output = cofi_sql(&["sql", "--csv"], &files, &statement);
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let whole = recorded.whole.display();
    let one = plan(&format!("recording = '{whole}'"));
    assert!(
        one.contains("parts_decoded=2") && one.contains("parts_skipped=2"),
        "{one}"
    );
    let tids = asked(&files[..1], "SELECT min(tid) AS tid FROM threads");
    let of_thread = plan(&format!(
        "tid = {} AND recording = '{whole}'",
        tids[0]["tid"]
    ));
    assert!(of_thread.contains("parts_decoded=1"), "{of_thread}");
    assert!(of_thread.contains("parts_skipped=3"), "{of_thread}");
    let none = plan("tid = 1");
    assert!(
        !none.contains("parts_decoded=1") && none.contains("parts_skipped=4"),
        "{none}"
    );
}

/// The forms of rows.
fn forms(recorded: &Recorded) {
    let file = recorded.whole.as_path();
    let statement = "SELECT 'a\tb' AS t, CAST(NULL AS BIGINT) AS n, address('0x1f') AS a, hex(address('31')) AS h";
    let said = |words: &[&str]| {
        let output = cofi_sql(&[&["sql"], words].concat(), &[file], statement);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert_eq!(said(&["--csv"]), "t,n,a,h\na\tb,,31,0x1f\n");
    assert_eq!(
        said(&["--json"]),
        "{\"t\":\"a\\tb\",\"n\":null,\"a\":31,\"h\":\"0x1f\"}\n"
    );
    assert_eq!(
        said(&[]),
        "t     n   a  h\n----  -  --  ----\na\\tb  –  31  0x1f\n(1 row)\n"
    );
    assert_eq!(said(&["--to", "text"]), said(&[]));
    // Addresses of tables are shown as everywhere; in CSV they are numbers.
    let output = cofi_sql(&["sql", "--json"], &[file], "SELECT ip FROM calls LIMIT 1");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.starts_with("{\"ip\":\"0x"), "{text}");
}

/// What is wrong is said in a sentence.
fn refusals(recorded: &Recorded) {
    let file = recorded.whole.as_path();
    for (words, statement, sentence) in [
        (&["sql"][..], "SELECT none FROM calls;", "none"),
        (&["sql"], "SELEKT 1;", "SELEKT"),
        (&["sql"], "SELECT * FROM nothing;", "nothing"),
        (&["sql"], "CREATE TABLE t AS SELECT 1;", "DDL not supported"),
        (&["sql"], "COPY (SELECT 1) TO 'x.csv';", "DML not supported"),
        (&["sql"], "SELECT address('0xq');", "address('0xq')"),
        (
            &["sql", "--to", "parquet"],
            "SELECT 1;",
            "name a file with -o",
        ),
        (
            &["sql", "--to", "xml"],
            "SELECT 1;",
            "expected text, json, csv or parquet",
        ),
        (&["sql"], "none.data", "cannot read none.data"),
    ] {
        let output = cofi_sql(words, &[file], statement);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{statement}: {said}");
        assert!(said.contains(sentence), "{statement}: {said}");
        assert!(output.stdout.is_empty());
    }
    // Of what is no recording the tables are not empty: there are none.
    let hello = file.with_file_name("hello.txt");
    fs::write(&hello, "hello").expect("a file");
    let output = cofi_sql(&["sql"], &[&hello, file], "SELECT count(*) FROM calls;");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no PSB is in it"), "{said}");
    // A file is replaced by rows that are all there.
    let rows = file.with_file_name("rows.csv");
    let wanted = rows.to_string_lossy();
    fs::write(&rows, "old").expect("a file");
    for (statement, code, content) in [
        (
            "SELECT 1 / (count(*) - count(*)) AS n FROM calls;",
            2,
            "old",
        ),
        ("SELECT count(*) > 0 AS n FROM calls;", 0, "n\ntrue\n"),
    ] {
        let output = cofi_sql(&["sql", "--csv", "-o", &*wanted], &[file], statement);
        assert_eq!(output.status.code(), Some(code), "{statement}");
        assert_eq!(fs::read_to_string(&rows).expect("the file"), content);
    }
}
