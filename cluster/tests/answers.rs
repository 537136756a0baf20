//! A cluster's rows are those of one machine.

mod common;

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};

use cofi_sql::{OpenOptions, Recording};

use common::{Cluster, Recorded, asked_here, assert_equal, assert_same, damage, rows_of};

/// With conditions, joins, aggregates, windows, subqueries, sets and functions of single values; in any order.
const STATEMENTS: &[&str] = &[
    "SELECT * FROM recordings",
    "SELECT * FROM processes",
    "SELECT * FROM threads",
    "SELECT * FROM mappings",
    "SELECT recording, file, build_id, problem FROM code_files",
    "SELECT * FROM functions",
    "SELECT * FROM calls",
    "SELECT * FROM block_counts",
    "SELECT * FROM slices",
    "SELECT * FROM events",
    "SELECT * FROM gaps",
    "SELECT * FROM seals",
    "SELECT * FROM packet_stats",
    "SELECT * FROM lines WHERE count > 0",
    "SELECT * FROM blocks()",
    "SELECT * FROM packets()",
    "SELECT count(*) AS n FROM instructions()",
    "SELECT recording, tid, function, count(*) AS n, count(DISTINCT ip) AS places, min(tsc) AS first, max(seq) AS most
     FROM instructions() GROUP BY recording, tid, function",
    "SELECT recording, function, sum(self_instructions) AS n FROM calls GROUP BY recording, function HAVING sum(self_instructions) > 10",
    "SELECT c.recording, c.tid, t.name, c.function, count(*) AS calls, sum(c.instructions) AS n
     FROM calls c JOIN threads t ON c.recording = t.recording AND c.tid = t.tid GROUP BY 1, 2, 3, 4",
    "SELECT b.recording, b.ip, b.n, i.n AS instructions FROM
       (SELECT recording, ip, count(*) AS n FROM blocks() WHERE gap IS NULL GROUP BY recording, ip) b
       JOIN (SELECT recording, ip, count(*) AS n FROM instructions() GROUP BY recording, ip) i
       ON b.recording = i.recording AND b.ip = i.ip",
    "SELECT recording, function FROM functions f WHERE NOT EXISTS (SELECT 1 FROM calls c WHERE c.function = f.function)",
    "SELECT function, instructions FROM functions WHERE instructions > (SELECT avg(instructions) FROM functions)",
    "SELECT recording, tid FROM threads UNION ALL SELECT recording, tid FROM packets() WHERE packet = 'psb'",
    "SELECT hex(ip) AS ip, count(*) AS n FROM blocks() WHERE ip >= address('0x1000') GROUP BY ip",
    "SELECT recording, tid, function, n, row_number() OVER (PARTITION BY recording, tid ORDER BY n DESC, function) AS place
     FROM (SELECT recording, tid, function, count(*) AS n FROM calls WHERE function IS NOT NULL GROUP BY 1, 2, 3)",
    "SELECT recording, function FROM calls WHERE function NOT IN (SELECT function FROM functions WHERE function IS NOT NULL AND instructions > 100)",
    "SELECT t.tid, c.function FROM threads t LEFT JOIN calls c ON t.tid = c.tid AND t.recording = c.recording AND c.depth = 0",
    "SELECT a.recording, a.tid, b.tid AS other FROM threads a CROSS JOIN threads b",
    "SELECT count(*) AS n FROM calls WHERE recording = 'no such recording'",
];

/// In an order.
const ORDERED: &[&str] = &[
    "SELECT recording, function, instructions FROM functions ORDER BY instructions DESC, recording, function LIMIT 7",
    "SELECT recording, tid, era, call, function, begin_ns, depth FROM calls ORDER BY recording, tid, era, call",
    "SELECT recording, tid, stream_offset, size, packet FROM packets() ORDER BY recording, tid, stream_offset",
    "SELECT recording, tid, stream_offset, seq, ip FROM instructions() WHERE gap IS NULL ORDER BY recording, tid, stream_offset, seq, ip LIMIT 1000",
    "SELECT 1 AS one",
];

fn compare(cluster: &Cluster, files: &[&Path]) {
    for statement in STATEMENTS {
        let (told, wanted) = (
            cluster.asked(files, statement),
            asked_here(files, statement),
        );
        println!("{} rows: {statement}", wanted.len());
        if wanted.is_empty() {
            assert!(told.is_empty(), "{statement}: {told:?}");
        } else {
            assert_same(&told, &wanted);
        }
    }
    for statement in ORDERED {
        let (told, wanted) = (
            cluster.asked(files, statement),
            asked_here(files, statement),
        );
        println!("{} rows: {statement}", wanted.len());
        assert_equal(&told, &wanted);
    }
}

#[test]
fn a_cluster_answers_as_one_machine_does() {
    let recorded = Recorded::new();
    let long = recorded.long();
    let cluster = Cluster::start(2, &[], &[]);
    compare(&cluster, &[&recorded.whole, &recorded.damaged, &long]);
    wrong_statements(&cluster, &recorded.whole);
    what_is_kept(&cluster, &recorded);
    drop(cluster);
    a_killed_executor(&recorded.of("longer.data", "29"));
}

/// What is kept beside recordings leaves out parts, and the rows are the same.
fn what_is_kept(cluster: &Cluster, recorded: &Recorded) {
    let statements = [
        "SELECT * FROM calls WHERE function = 'compare'",
        "SELECT * FROM calls WHERE function IN ('other', 'handler')",
        "SELECT * FROM blocks() WHERE function = 'compare'",
        "SELECT recording, tid, ip, stream_offset, seq, tsc FROM instructions() WHERE function IN ('other', 'main')",
        "SELECT function, count(*) AS n, sum(seq) AS seq, sum(tsc) AS tsc FROM instructions() WHERE function IN ('fibonacci', 'main') GROUP BY function",
    ];
    let file = &*recorded.of("kept.data", "24");
    for is_damaged in [false, true] {
        if is_damaged {
            std::fs::remove_file(file.with_extension("data.parts")).expect("removed");
            damage(file, 500, &[0xff; 24]);
        }
        let wanted: Vec<_> = statements.map(|it| asked_here(&[file], it)).into();
        let skipped = |statement| {
            let plan = format!(
                "{:?}",
                cluster.asked(&[file], &format!("EXPLAIN {statement}"))
            );
            let (_, rest) = plan.split_once("skipped=").expect("a scan");
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            digits
                .and_then(|digits| digits.parse::<usize>().ok())
                .expect("a number")
        };
        assert_eq!(skipped(statements[0]), 0);
        let mut recording = Recording::open(file, &OpenOptions::default()).expect("a recording");
        recording.keep(NonZeroUsize::MIN).expect("it is kept");
        for (statement, wanted) in statements.iter().zip(&wanted) {
            assert_same(&cluster.asked(&[file], statement), wanted);
        }
        assert!(skipped(statements[0]) > 0 && skipped(statements[2]) > 0);
    }
}

/// What is wrong is said, by the client, in a sentence.
fn wrong_statements(cluster: &Cluster, file: &Path) {
    for (statement, word) in [
        ("SELECT nothing FROM calls", "nothing"),
        ("SELECT address(recording) FROM threads", "address("),
        (
            "EXPLAIN ANALYZE SELECT count(*) FROM calls",
            "EXPLAIN ANALYZE",
        ),
        ("DROP TABLE calls", "DDL"),
    ] {
        let output = cluster.client(&[], &[file], statement).output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{statement}: {said}");
        assert!(said.contains(word), "{statement}: {said}");
    }
    let plan = cluster.asked(&[file], "EXPLAIN SELECT count(*) FROM calls");
    assert!(format!("{plan:?}").contains("CofiScan"), "{plan:?}");
    let tables = cluster.asked(&[file], "SHOW TABLES");
    assert!(tables.len() > 10, "{tables:?}");
}

/// An executor that is killed in the middle costs time, and no rows.
fn a_killed_executor(long: &Path) {
    let statement = "SELECT tid, function, class, count(*) AS n, sum(seq) AS seq FROM instructions() GROUP BY 1, 2, 3";
    let wanted = asked_here(&[long], statement);
    let mut cluster = Cluster::start(2, &[], &[]);
    let mut client = cluster
        .client(&["--pieces", "64"], &[long], statement)
        .spawn()
        .expect("it starts");
    // It has rows of a task that it has done.
    let has_rows = |work: &Path| {
        let mut folders = std::fs::read_dir(work).into_iter().flatten().flatten();
        folders.any(|folder| {
            std::fs::read_dir(folder.path().join("rows"))
                .is_ok_and(|mut rows| rows.next().is_some())
        })
    };
    let begun = Instant::now();
    while !has_rows(&cluster.work[1]) {
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "no task is done"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    cluster.executors[1].kill();
    let killed = Instant::now();
    assert!(
        client.try_wait().expect("its state").is_none(),
        "the query had ended before"
    );
    let output = client.wait_with_output().expect("it ends");
    println!(
        "an answer {:.1} s after the kill",
        killed.elapsed().as_secs_f64()
    );
    assert_same(&rows_of(&output, statement), &wanted);
    assert!(
        killed.elapsed() < Duration::from_secs(120),
        "{:?}",
        killed.elapsed()
    );
}
