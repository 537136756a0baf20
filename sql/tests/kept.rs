//! With what is kept beside a recording, conditions on functions and addresses decode only the parts that hold them, and the rows are those that are found
//! when all is decoded: also where the recording is damaged.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Row, asked, assert_same, cofi_sql, damage, record, rows, well};

/// Much work, in which some functions run seldom: one of them with calls of its own, one deep, one that is left by a jump, one in a handler.
const PROGRAM: &str = r"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
static volatile unsigned seed = 1, sum;
static jmp_buf back;
__attribute__((noinline)) static unsigned next(void) { seed = seed * 1103515245 + 12345; return seed >> 16; }
__attribute__((noinline)) static void work(int rounds) {
    for (int i = 0; i < rounds; i++) {
        unsigned random = next();
        if (random & 1) sum += random;
        if (random & 2) sum ^= random;
        if (random & 4) sum -= 3;
    }
}
__attribute__((noinline)) static unsigned leaf(unsigned n) { return n * 3 + sum; }
__attribute__((noinline)) static unsigned rare(unsigned n) { unsigned one = leaf(n); work(40); return one + leaf(n + 1); }
__attribute__((noinline)) static unsigned around(unsigned n) { unsigned one = leaf(n); work(6000); return one + rare(n); }
__attribute__((noinline)) static unsigned deep(unsigned n) { return n ? deep(n - 1) + 1 : rare(7); }
__attribute__((noinline)) static void away(void) { work(30); longjmp(back, 1); }
__attribute__((noinline)) static void handler(int number) { sum += leaf(number); }
static void *other(void *unused) { work(3000); sum += rare(1); return unused; }
int main(void) {
    pthread_t thread;
    signal(SIGUSR1, handler);
    for (int i = 0; i < 60; i++) {
        work(2000);
        if (i % 20 == 4) sum += rare(i);
        if (i == 12) sum += around(i);
        if (i == 17) raise(SIGUSR1);
        if (i == 20) sum += deep(70);
        if (i == 24 && !setjmp(back)) away();
        if (i == 26) { pthread_create(&thread, 0, other, 0); pthread_join(thread, 0); }
    }
    return 0;
}
";

/// A recording, with nothing kept beside it.
fn recorded(folder: &Path) -> PathBuf {
    let [source, program, data] = ["program.c", "program", "a.data"].map(|name| folder.join(name));
    std::fs::write(&source, PROGRAM).expect("written");
    let mut compiler = Command::new("gcc");
    let compiler = compiler.args(["-O1", "-g", "-pthread", "-o"]);
    well(compiler.arg(&program).arg(&source));
    record(&data, &program, &[]);
    data
}

fn kept(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".parts");
    name.into()
}

/// The rows of a statement, with what is kept beside the recording; made if it is not there.
fn asked_keeping(file: &Path, statement: &str) -> Vec<Row> {
    let output = cofi_sql(&["sql", "--json", "--keep-parts"], &[file], statement);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!said.contains("--keep-parts"), "{said}");
    rows(&output.stdout)
}

/// The rows of a statement as they are written, in an order of their own: there may be a hundred thousand.
fn lines_of(file: &Path, statement: &str) -> Vec<String> {
    let output = cofi_sql(&["sql", "--json"], &[file], statement);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// How many parts a statement decoded, and how many it left out.
fn counted(file: &Path, statement: &str) -> (u64, u64) {
    let explained = format!("EXPLAIN ANALYZE {statement}");
    let output = cofi_sql(&["sql", "--csv"], &[file], &explained);
    let plan = String::from_utf8(output.stdout).expect("UTF-8");
    let number = |key: &str| {
        let (_, rest) = plan.split_once(key)?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let counts = (number("parts_decoded="), number("parts_skipped="));
    (counts.0.unwrap_or(0), counts.1.unwrap_or(0))
}

/// What is told of instructions and blocks: the columns by which rows are grouped, and sums over them.
const BY: [&str; 4] = ["tid", "stream_offset / 64 AS place", "function", "class"];
const INSTRUCTIONS: &[[&str; 2]] = &[
    ["n", "count(*)"],
    ["seq", "sum(seq)"],
    ["ip", "sum(ip)"],
    ["tsc", "sum(tsc)"],
    ["bytes", "sum(stream_offset)"],
    ["length", "sum(length)"],
];
const BLOCKS: &[[&str; 2]] = &[
    ["n", "count(*)"],
    ["seq", "sum(seq)"],
    ["ip", "sum(ip)"],
    ["last", "sum(last_ip)"],
    ["instructions", "sum(instructions)"],
    ["tsc", "sum(tsc)"],
    ["bytes", "sum(stream_offset)"],
];

/// What has no condition on code: the times of parts are kept, and calls are followed by several threads from calls on that are kept.
const WHOLE: [&str; 2] = [
    "SELECT * FROM slices",
    "SELECT tid, pid, era, call, parent, depth, function, file, address, ip, from_ip, kind, ended_by, begin_tsc, end_tsc, begin_ns, end_ns, instructions,
       self_instructions, cycles, stack, count(*) AS n FROM calls GROUP BY ALL",
];

/// Conditions that leave out parts, each with one that says the same of a value that is worked out, which leaves out nothing.
fn conditions(file: &Path) -> Vec<[String; 2]> {
    let mut all = Vec::new();
    for function in ["rare", "leaf", "deep", "away", "none"] {
        all.push([
            format!("function = '{function}'"),
            format!("concat(function, '') = '{function}'"),
        ]);
    }
    all.push([
        "function IN ('deep', 'away') AND file IS NOT NULL".into(),
        "concat(function, '') IN ('deep', 'away')".into(),
    ]);
    let places =
        "SELECT function, min(ip) AS ip FROM calls WHERE function = 'rare' GROUP BY function";
    let places = asked(&[file], places);
    assert_eq!(places.len(), 1, "{places:?}");
    for place in places {
        let number = place["ip"].as_u64().expect("an address");
        let ip = format!("{number:#x}");
        all.push([format!("ip = address('{ip}')"), format!("hex(ip) = '{ip}'")]);
        // The bytes behind it: no instruction begins at each, and blocks may end there.
        let (from, to) = (number + 1, number + 24);
        all.push([
            format!("ip BETWEEN {from} AND {to}"),
            format!("address(hex(ip)) + 0 BETWEEN {from} AND {to}"),
        ]);
    }
    all
}

/// The sums of a table within a condition.
fn sums_within(table: &str, sums: &[[&str; 2]], condition: &str) -> String {
    let sums: Vec<_> = sums
        .iter()
        .map(|[name, sum]| format!("{sum} AS {name}"))
        .collect();
    let (by, sums) = (BY.join(", "), sums.join(", "));
    format!("SELECT {by}, {sums} FROM {table} WHERE {condition} GROUP BY 1, 2, 3, 4")
}

/// That one of several conditions holds. (Nothing is left out for them: each is about a value that is worked out.)
fn any_of(conditions: &[&str]) -> String {
    format!("({})", conditions.join(") OR ("))
}

/// The same for each of several conditions, of one statement that decodes everything once.
fn sums_of_all(file: &Path, table: &str, sums: &[[&str; 2]], conditions: &[&str]) -> Vec<Vec<Row>> {
    let mut columns = BY.map(str::to_owned).to_vec();
    for (number, condition) in conditions.iter().enumerate() {
        let sums = sums.iter();
        let sums =
            sums.map(|[name, sum]| format!("{sum} FILTER (WHERE {condition}) AS {name}_{number}"));
        columns.extend(sums);
    }
    let (columns, any) = (columns.join(", "), any_of(conditions));
    let all = asked(
        &[file],
        &format!("SELECT {columns} FROM {table} WHERE {any} GROUP BY 1, 2, 3, 4"),
    );
    let of = |number: usize| {
        let of_row = |row: &Row| {
            if row[&format!("n_{number}")] == 0 {
                return None;
            }
            let by = ["tid", "place", "function", "class"].map(|key| (key, key.to_owned()));
            let sums = sums
                .iter()
                .map(|[name, _]| (*name, format!("{name}_{number}")));
            // (A value that is NULL is not in the row.)
            let pairs = by.into_iter().chain(sums);
            let pairs =
                pairs.filter_map(|(name, key)| Some((name.to_owned(), row.get(&key)?.clone())));
            Some(pairs.collect())
        };
        all.iter().filter_map(of_row).collect()
    };
    (0..conditions.len()).map(of).collect()
}

/// The calls within each of several conditions, of a statement that follows all of them once.
fn calls_of_all(file: &Path, conditions: &[&str]) -> Vec<Vec<Row>> {
    let flags = conditions.iter().enumerate();
    let flags: Vec<_> = flags
        .map(|(number, condition)| format!("({condition}) AS within_{number}"))
        .collect();
    let all = asked(
        &[file],
        &format!(
            "SELECT *, {} FROM calls WHERE {}",
            flags.join(", "),
            any_of(conditions)
        ),
    );
    let of = |number: usize| {
        let is_within = |row: &&Row| row.get(&format!("within_{number}")) == Some(&true.into());
        let bare = |row: &Row| {
            let mut row = row.clone();
            row.retain(|key, _| !key.starts_with("within_"));
            row
        };
        all.iter().filter(is_within).map(bare).collect()
    };
    (0..conditions.len()).map(of).collect()
}

/// That all statements have the same rows whether parts are left out or not. Nothing is kept beside the recording before.
fn compare(file: &Path) {
    assert!(!kept(file).exists());
    let conditions = conditions(file);
    let all: Vec<&str> = conditions.iter().map(|[_, all]| all.as_str()).collect();
    let instructions = sums_of_all(file, "instructions()", INSTRUCTIONS, &all);
    let blocks = sums_of_all(file, "blocks()", BLOCKS, &all);
    let calls = calls_of_all(file, &all);
    let whole = WHOLE.map(|statement| lines_of(file, statement));
    assert!(whole.iter().all(|lines| lines.len() > 10));
    let mut compared = 0;
    let mut told_as = |statement: &str, wanted: &[Row]| {
        let told = asked_keeping(file, statement);
        if wanted.is_empty() {
            assert_eq!(told.len(), 0, "{statement}");
        } else {
            assert_same(&told, wanted);
            compared += 1;
        }
    };
    let wanted = instructions.iter().zip(&blocks).zip(&calls);
    for ([condition, _], ((instructions, blocks), calls)) in conditions.iter().zip(wanted) {
        told_as(
            &sums_within("instructions()", INSTRUCTIONS, condition),
            instructions,
        );
        told_as(&sums_within("blocks()", BLOCKS, condition), blocks);
        told_as(&format!("SELECT * FROM calls WHERE {condition}"), calls);
    }
    assert!(compared >= 18, "{compared}");
    for (statement, wanted) in WHOLE.iter().zip(&whole) {
        let told = lines_of(file, statement);
        let first = told
            .iter()
            .zip(wanted)
            .find(|(told, wanted)| told != wanted);
        let counts = (told.len(), wanted.len());
        assert!(told == *wanted, "{statement}: {counts:?} rows, {first:?}");
    }
    assert!(kept(file).exists());
    std::fs::remove_file(kept(file)).expect("removed");
}

#[test]
fn what_is_left_out_has_no_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = recorded(folder.path());
    compare(&file);
    // No packet; a packet that takes what follows for its payload; an overflow; another branch: in the places of the longest stream, in thousandths.
    let whole = std::fs::read(&file).expect("a recording");
    let places: [(usize, &[u8]); 4] = [
        (150, &[0xff; 24]),
        (437, &[2, 0x62]),
        (668, &[2, 0xf3]),
        (905, &[6]),
    ];
    for (place, spoilt) in [places[0], places[2]] {
        std::fs::write(&file, &whole).expect("written");
        damage(&file, place, spoilt);
        compare(&file);
    }
    std::fs::write(&file, &whole).expect("written");
    for (place, spoilt) in places {
        damage(&file, place, spoilt);
    }
    compare(&file);
}

/// Few parts are decoded for what runs seldom, and it is said how many.
#[test]
fn few_parts_are_decoded() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = recorded(folder.path());
    let all = [
        "SELECT count(*) FROM calls WHERE function = 'rare'",
        "SELECT * FROM calls WHERE function = 'away'",
        "SELECT count(*), sum(instructions) FROM blocks() WHERE function = 'deep'",
        "SELECT count(*) FROM instructions() WHERE function = 'handler'",
    ];
    let parts = "SELECT count(*) AS n FROM slices";
    let parts = asked(&[&file], parts)[0]["n"].as_u64().expect("a number");
    assert!(parts >= 20, "{parts}");
    for statement in all {
        let (_, skipped) = counted(&file, statement);
        assert_eq!(skipped, 0, "{statement}");
    }
    let wanted: Vec<_> = all
        .iter()
        .map(|statement| asked(&[&file], statement))
        .collect();
    assert_eq!(asked_keeping(&file, all[0]), wanted[0]);
    for (statement, wanted) in all.iter().zip(&wanted) {
        // What is kept is used without being asked for.
        let (decoded, skipped) = counted(&file, statement);
        assert!(
            decoded > 0 && decoded * 2 <= parts && decoded + skipped == parts,
            "{statement}: {decoded} of {parts}, {skipped} left out"
        );
        assert_eq!(&asked(&[&file], statement), wanted, "{statement}");
    }
    let none = "SELECT count(*) FROM blocks() WHERE function = 'none'";
    assert_eq!(counted(&file, none), (0, parts));
    // With a condition on time, what both leave out is left out.
    let bounds = "SELECT min(begin_ns) AS a, max(begin_ns) AS b FROM slices";
    let bounds = &asked(&[&file], bounds)[0];
    let [begin, end] = ["a", "b"].map(|key| bounds[key].as_i64().expect("a number"));
    let middle = (begin + end) / 2;
    for (from, to) in [(begin, middle), (middle, end)] {
        let some =
            format!("SELECT * FROM instructions(NULL, NULL, {from}, {to}) WHERE function = 'leaf'");
        let all = format!(
            "SELECT * FROM instructions() WHERE time_ns + 0 >= {from} AND time_ns + 0 < {to} AND concat(function, '') = 'leaf'"
        );
        assert_same(&asked(&[&file], &some), &asked(&[&file], &all));
        let (decoded, skipped) = counted(&file, &some);
        assert!(decoded < parts / 2 && decoded + skipped == parts, "{some}");
    }
}

/// Nothing is read of what is left out: whatever stands there, the times of what comes behind it are the same.
#[test]
fn what_is_left_out_is_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = recorded(folder.path());
    let bounds = "SELECT max(end_ns) - 1000 AS a FROM slices";
    let from = &asked(&[&file], bounds)[0]["a"];
    let statements = [
        "SELECT * FROM calls WHERE function = 'away'".to_owned(),
        format!("SELECT count(*), sum(seq) FROM blocks(NULL, NULL, {from})"),
    ];
    let wanted: Vec<_> = statements
        .iter()
        .map(|it| asked_keeping(&file, it))
        .collect();
    assert!(!wanted[0].is_empty(), "{wanted:?}");
    // A TSC packet of a time to come, after which the time stands still.
    damage(&file, 213, &[0x19, 0, 0, 0, 0, 0, 0, 0x7f]);
    for (statement, wanted) in statements.iter().zip(&wanted) {
        assert_same(&asked(&[&file], statement), wanted);
    }
    std::fs::remove_file(kept(&file)).expect("removed");
    assert_ne!(asked(&[&file], &statements[0]), wanted[0]);
}

/// Branches that went another way, so that what the recorder says of a stretch does not hold: wherever that is found, also where a part begins.
#[test]
fn times_behind_what_does_not_hold() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = recorded(folder.path());
    let whole = std::fs::read(&file).expect("a recording");
    let statement = "SELECT count(*), sum(call), sum(begin_tsc), sum(end_tsc), sum(cycles), sum(instructions) FROM calls";
    let mut others = 0;
    let undamaged = asked(&[&file], statement);
    for place in (20..1000).step_by(41) {
        std::fs::write(&file, &whole).expect("written");
        damage(&file, place, &[0xaa]);
        let wanted = asked(&[&file], statement);
        others += usize::from(wanted != undamaged);
        assert_same(&asked_keeping(&file, statement), &wanted);
        assert_same(&asked(&[&file], statement), &wanted);
        std::fs::remove_file(kept(&file)).expect("removed");
    }
    assert!(others > 12, "{others}");
}

/// By several threads: each follows the calls of parts that are the others' neighbours.
#[test]
fn calls_are_divided() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = recorded(folder.path());
    let pieces = || {
        let explained = "EXPLAIN SELECT function, count(*) FROM calls GROUP BY function";
        let threads = ["sql", "--csv", "--threads", "3"];
        let output = cofi_sql(&threads, &[&file], explained);
        let plan = String::from_utf8(output.stdout).expect("UTF-8");
        let (_, rest) = plan.split_once("pieces=").expect("a scan");
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
        digits
            .and_then(|digits| digits.parse::<usize>().ok())
            .expect("a number")
    };
    // Two threads of the program.
    assert_eq!(pieces(), 2);
    asked_keeping(&file, "SELECT count(*) FROM calls");
    assert!(pieces() > 4, "{}", pieces());
}

/// What is damaged, of another recording or of other code is not used, and made anew if that is asked for.
#[test]
fn what_does_not_belong_is_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = recorded(folder.path());
    let statement = "SELECT * FROM calls WHERE function = 'rare'";
    let wanted = asked(&[&file], statement);
    assert_same(&asked_keeping(&file, statement), &wanted);
    let path = kept(&file);
    let good = std::fs::read(&path).expect("what is kept");
    let is_used = || counted(&file, statement).1 > 0;
    assert!(is_used());
    for at in [0, 15, 20, 50, 53, 60, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(&path, bad).expect("written");
        assert!(!is_used(), "byte {at} is spoilt");
        assert_same(&asked(&[&file], statement), &wanted);
    }
    for len in [0, 16, 48, 52, 56, good.len() / 2, good.len() - 1] {
        std::fs::write(&path, &good[..len]).expect("written");
        assert!(!is_used(), "{len} bytes");
    }
    assert_same(&asked_keeping(&file, statement), &wanted);
    assert!(is_used());
    assert_eq!(std::fs::read(&path).expect("what is kept"), good);
    // Another recording of the same program.
    let other = folder.path().join("b.data");
    record(&other, &folder.path().join("program"), &[]);
    std::fs::copy(&path, kept(&other)).expect("copied");
    assert_eq!(counted(&other, statement).1, 0);
    // Where nothing can be written, that is said, and the rows are there.
    let nowhere = folder.path().join("gone.data");
    std::fs::copy(&file, &nowhere).expect("copied");
    std::fs::create_dir(kept(&nowhere)).expect("a folder");
    let output = cofi_sql(&["sql", "--json", "--keep-parts"], &[&nowhere], statement);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--keep-parts"));
    assert_eq!(rows(&output.stdout).len(), wanted.len());
    // Other code: the program was built anew.
    well(
        Command::new("touch")
            .args(["-d", "2001-01-01"])
            .arg(folder.path().join("program")),
    );
    assert!(!is_used());
}
