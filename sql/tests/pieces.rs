//! A stream that is decoded in pieces has the rows that it has in one, also where it is damaged.

mod common;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use cofi_sql::scan::Pieces;
use cofi_sql::{Engine, EngineOptions, Form, OpenOptions, Recording, write};
use datafusion::prelude::{SessionConfig, SessionContext};

use common::{Recorded, Row, damage, rows};

/// In so many pieces, at most.
const PIECES: NonZeroUsize = NonZeroUsize::new(11).expect("not zero");

/// An engine that decodes in one piece or in several.
fn engine(recordings: &[Arc<Recording>], pieces: Pieces) -> Engine {
    let config = SessionConfig::new().with_target_partitions(PIECES.get());
    let context = SessionContext::new_with_config(config);
    Engine::within(context, recordings, pieces).expect("an engine")
}

/// The rows of a statement, decoded by several threads.
fn asked_by_threads(recordings: &[Arc<Recording>], statement: &str) -> Vec<String> {
    let options = EngineOptions {
        threads: Some(PIECES.get()),
        ..EngineOptions::default()
    };
    let engine = Engine::new(recordings, &options).expect("an engine");
    let plan = rows_of(&engine, &format!("EXPLAIN {statement}"));
    // There are two streams.
    assert!(!format!("{plan:?}").contains("pieces=2,"), "{plan:?}");
    lines_of(&engine, statement)
}

/// The rows of a statement as they are written, in an order of their own: there are too many to take each apart.
fn lines_of(engine: &Engine, statement: &str) -> Vec<String> {
    let text = String::from_utf8(written(engine, statement)).expect("UTF-8");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

fn rows_of(engine: &Engine, statement: &str) -> Vec<Row> {
    rows(&written(engine, statement))
}

fn written(engine: &Engine, statement: &str) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build();
    let mut out = Vec::new();
    runtime.expect("threads").block_on(async {
        let query = engine.query(statement).await.expect("a statement");
        let stream = query.execute_stream().await.expect("rows");
        write(stream, Form::Json, &mut out).await.expect("written");
    });
    out
}

/// That two lists have the same rows.
fn assert_lines(told: &[String], wanted: &[String]) {
    assert!(!wanted.is_empty(), "nothing is compared");
    let mut pairs = told.iter().zip(wanted);
    let first = pairs.find(|(told, wanted)| told != wanted);
    let counts = (told.len(), wanted.len());
    assert!(told == wanted, "{counts:?} rows, {first:?}");
}

fn compare(file: &Path) {
    let options = OpenOptions::default();
    let recordings = Recording::open_all(&[file.to_path_buf()], &options).expect("recordings");
    for statement in [
        // There are millions of rows: they are compared in sums over few packets each.
        "SELECT tid, stream_offset / 64 AS place, function, class, gap, reason, count(*) AS n, sum(seq) AS seq, sum(ip) AS ip, sum(tsc) AS tsc,
           sum(stream_offset) AS bytes FROM instructions() GROUP BY 1, 2, 3, 4, 5, 6",
        "SELECT tid, stream_offset / 64 AS place, function, class, gap, reason, count(*) AS n, sum(seq) AS seq, sum(ip) AS ip, sum(last_ip) AS last,
           sum(instructions) AS instructions, sum(tsc) AS tsc, sum(stream_offset) AS bytes FROM blocks() GROUP BY 1, 2, 3, 4, 5, 6",
        "SELECT tid, stream_offset / 8 AS place, packet, error, count(*) AS n, sum(size) AS size, min(text) AS first, max(text) AS last,
           sum(tsc) AS tsc, sum(stream_offset) AS bytes FROM packets() GROUP BY 1, 2, 3, 4",
    ] {
        let wanted = lines_of(&engine(&recordings, Pieces::One), statement);
        let told = engine(&recordings, Pieces::Several(PIECES));
        assert_lines(&lines_of(&told, statement), &wanted);
        assert_lines(&asked_by_threads(&recordings, statement), &wanted);
    }
}

/// How many parts the longest stream has.
fn parts_of(file: &Path) -> Option<u64> {
    let recordings = Recording::open_all(&[file.to_path_buf()], &OpenOptions::default());
    let slices = "SELECT count(*) AS n FROM slices GROUP BY tid ORDER BY n DESC";
    let engine = engine(&recordings.expect("recordings"), Pieces::One);
    rows_of(&engine, slices)[0]["n"].as_u64()
}

#[test]
fn pieces_have_the_rows_of_the_whole() {
    let recorded = Recorded::new();
    let whole = recorded.of("pieces.data", "26");
    // A piece has eight at least.
    assert!(parts_of(&whole) >= Some(8 * 3));
    compare(&whole);
    // Behind a branch that went another way, returns that are bits of a TNT are others.
    damage(&whole, 500, &[6]);
    compare(&whole);
    // Otherwise damaged is one with fewer instructions and no fewer parts.
    let whole = recorded.with_returns("damaged pieces.data", "23");
    assert!(parts_of(&whole) >= Some(8 * 3));
    // No packet; a packet that takes what follows for its payload; an overflow; another branch.
    let spoilt: [&[u8]; 4] = [&[0xff; 24], &[2, 0x62], &[2, 0xf3], &[6]];
    let bytes = std::fs::read(&whole).expect("a recording");
    for (number, place) in [333, 500, 640, 901].into_iter().enumerate() {
        std::fs::write(&whole, &bytes).expect("written");
        damage(&whole, place, spoilt[number % spoilt.len()]);
        compare(&whole);
    }
    // In several places at once.
    for place in [112, 480] {
        damage(&whole, place, spoilt[place % spoilt.len()]);
        compare(&whole);
    }
}

/// A window without an order of its own has that of the stream, by however many threads.
#[test]
fn windows_have_the_order_of_the_stream() {
    let recorded = Recorded::new();
    let file = recorded.with_returns("windows.data", "23");
    let recordings = Recording::open_all(&[file], &OpenOptions::default()).expect("recordings");
    let options = EngineOptions {
        threads: Some(PIECES.get()),
        ..EngineOptions::default()
    };
    let engine = Engine::new(&recordings, &options).expect("an engine");
    let backwards = "SELECT count(*) AS n FROM (SELECT tid, stream_offset AS place, lag(tid) OVER () AS of, lag(stream_offset) OVER () AS before FROM blocks())
       WHERE tid = of AND place < before";
    let rows = rows_of(&engine, backwards);
    assert_eq!(rows[0]["n"], 0);
    // Of those with an order each thread may have a piece.
    let plan = "EXPLAIN SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY stream_offset, seq) AS n FROM blocks())";
    let plan = rows_of(&engine, plan);
    assert!(!format!("{plan:?}").contains("pieces=2,"), "{plan:?}");
}
