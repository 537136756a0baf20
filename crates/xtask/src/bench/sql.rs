//! `cargo xtask bench sql`: many recordings of ordinary programs, their tables as Parquet, and what teams ask of them, answered by `cofi sql`.
//!
//! Half of the recordings stand for an old release and half for a new one, in which gzip compresses harder. Beside that, one recording is asked in the way in which it goes
//! without Cofi: the text of `perf script` goes into a table of SQLite.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::costs::Cost;
use super::load;
use cofi_exam::build;

/// What is asked: what for, and the statement. `calls.c` is the only program with debugging information.
const QUESTIONS: [(&str, &str); 10] = [
    (
        "whose time changed between the releases",
        "SELECT file, function, sum(CASE WHEN recording LIKE '%/new/%' THEN end_ns - begin_ns END) - sum(CASE WHEN recording LIKE '%/old/%' THEN end_ns - begin_ns END) AS more_ns \
         FROM calls GROUP BY file, function ORDER BY abs(more_ns) DESC NULLS LAST LIMIT 10",
    ),
    (
        "whose instructions changed",
        "SELECT file, function, sum(CASE WHEN recording LIKE '%/new/%' THEN instructions ELSE -instructions END) AS more FROM functions GROUP BY file, function ORDER BY abs(more) DESC LIMIT 10",
    ),
    (
        "which branches went one way in some runs and never in others",
        "SELECT file, function, last_ip, sum(CASE WHEN taken > 0 THEN 1 ELSE 0 END) AS runs_taken, count(*) AS runs FROM \
         (SELECT recording, file, function, last_ip, sum(taken) AS taken FROM block_counts WHERE taken IS NOT NULL GROUP BY recording, file, function, last_ip) AS b \
         GROUP BY file, function, last_ip HAVING sum(CASE WHEN taken > 0 THEN 1 ELSE 0 END) BETWEEN 1 AND count(*) - 1 ORDER BY runs DESC, runs_taken LIMIT 10",
    ),
    (
        "which runs cover a line",
        "SELECT recording, count FROM lines WHERE source LIKE '%/calls.c' AND line = 10 AND count > 0 ORDER BY recording",
    ),
    (
        "where are gaps",
        "SELECT recording, kind, sum(count) AS n, sum(lost_bytes) AS bytes FROM gaps GROUP BY recording, kind ORDER BY bytes DESC",
    ),
    (
        "in which functions most ran",
        "SELECT file, function, sum(instructions) AS n, sum(entries) AS entries FROM functions GROUP BY file, function ORDER BY n DESC LIMIT 10",
    ),
    (
        "the slowest calls, with their callers",
        "SELECT c.recording, c.function, c.ns, p.function AS caller FROM \
         (SELECT recording, tid, era, parent, function, end_ns - begin_ns AS ns FROM calls WHERE end_ns IS NOT NULL AND parent IS NOT NULL ORDER BY ns DESC LIMIT 10) AS c \
         JOIN calls AS p ON p.recording = c.recording AND p.tid = c.tid AND p.era = c.era AND p.call = c.parent ORDER BY c.ns DESC",
    ),
    (
        "what ran how well: instructions for a byte of trace",
        "SELECT recording, name, instructions, conditional, taken, instructions * 1.0 / trace_bytes AS per_byte FROM threads ORDER BY per_byte",
    ),
    (
        "in which moments most ran",
        "SELECT recording, slice, instructions * 1000.0 / (end_ns - begin_ns) AS per_us FROM slices WHERE end_ns > begin_ns ORDER BY per_us DESC LIMIT 10",
    ),
    (
        "which packets there are",
        "SELECT packet, sum(count) AS n, sum(bytes) AS bytes FROM packet_stats GROUP BY packet ORDER BY bytes DESC",
    ),
];

/// The programs by turns; the last one, with many calls and debugging information, once in twenty.
const TURNS: [&str; 20] = [
    "gzip", "awk", "sqlite", "python", "gzip", "awk", "sqlite", "python", "gzip", "awk", "sqlite",
    "python", "gzip", "awk", "sqlite", "python", "gzip", "awk", "sqlite", "calls",
];

/// What Python runs.
const PYTHON: &str = "import sys\nd = {}\nfor i in range(int(sys.argv[1])):\n    k = 'k%d' % (i % 997)\n    d[k] = d.get(k, 0) + i % 7\nprint(sum(sorted(d.values())[:10]))\n";

struct Options {
    recordings: u64,
    millions: u64,
    folder: PathBuf,
    cofi: PathBuf,
    cofi_sql: PathBuf,
    /// A Python that has DuckDB, which then answers the same from the Parquet files.
    python: Option<PathBuf>,
    is_kept: bool,
    /// What is measured, if not everything: it takes an hour.
    only: Option<Step>,
}

/// A part of the whole, which is measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The tables as Parquet files.
    Export,
    /// The questions; to DuckDB of the files of an export that was kept.
    Ask,
    /// One recording by `perf script` and SQLite.
    Perf,
}

fn options(root: &Path, arguments: &[String]) -> Result<Options> {
    let (mut recordings, mut millions) = (100, 100);
    let mut folder = std::env::temp_dir().join("cofi-bench-sql");
    let (mut cofi, mut cofi_sql, mut python, mut is_kept) = (None, None, None, false);
    let mut only = None;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if word == "--keep" {
            is_kept = true;
            continue;
        }
        let value = words
            .next()
            .with_context(|| format!("{word} wants a value"))?;
        let path = || {
            Path::new(value)
                .canonicalize()
                .with_context(|| value.clone())
        };
        match word.as_str() {
            "--recordings" => recordings = value.parse()?,
            "--millions" => millions = value.parse()?,
            "--folder" => folder = PathBuf::from(value),
            "--cofi" => cofi = Some(path()?),
            "--cofi-sql" => cofi_sql = Some(path()?),
            // (Not canonical: an environment of Python's is known by the link.)
            "--python" => python = Some(std::path::absolute(value)?),
            "--only" => {
                only = Some(match value.as_str() {
                    "export" => Step::Export,
                    "ask" => Step::Ask,
                    "perf" => Step::Perf,
                    _ => bail!("--only export, ask or perf"),
                });
            }
            _ => bail!("{word}: there is no such option"),
        }
    }
    ensure!(
        recordings > 0 && millions > 0,
        "at least one recording of a million"
    );
    Ok(Options {
        recordings,
        millions,
        folder,
        cofi: match cofi {
            Some(cofi) => cofi,
            None => build::cofi(root)?,
        },
        cofi_sql: cofi_sql
            .context("--cofi-sql PROGRAM: its build takes long, so it is not done here")?,
        python,
        is_kept,
        only,
    })
}

/// What a command took: on a machine that others use, its processor time says more.
struct Took {
    seconds: f64,
    cost: Cost,
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2})", self.seconds, self.cost.seconds)
    }
}

/// Runs a command to its end; what it took, and what it wrote.
fn timed(command: &mut Command) -> Result<(Took, Vec<u8>)> {
    let mut time = Command::new("/usr/bin/time");
    time.args(["-q", "-f", "%U %S %M"])
        .arg(command.get_program())
        .args(command.get_args());
    let begin = Instant::now();
    let output = time.stdin(Stdio::null()).output();
    let output = output.context("running /usr/bin/time")?;
    let seconds = begin.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    let cost = Cost::of(&said).with_context(|| said.trim().to_owned())?;
    Ok((Took { seconds, cost }, output.stdout))
}

impl Options {
    /// Records run number `number`, if it is not there.
    fn record(&self, root: &Path, number: u64) -> Result<PathBuf> {
        let what = TURNS[usize::try_from(number)? % TURNS.len()];
        let is_new = number >= self.recordings / 2;
        let release = self.folder.join(if is_new { "new" } else { "old" });
        let file = release.join(format!("{what}-{number:03}.data"));
        if file.is_file() {
            return Ok(file);
        }
        let inputs = self.folder.join("inputs");
        fs::create_dir_all(&inputs)?;
        fs::create_dir_all(&release)?;
        let input = inputs.join(format!("{number:03}"));
        // No two inputs are the same.
        let length = self.millions * (1000 + number % 13 * 10) / 1000;
        let unfinished = release.join("unfinished.data");
        let mut command = Command::new(&self.cofi);
        command
            .args(["record", "--engine", "qemu", "-o"])
            .arg(&unfinished)
            .arg("--");
        let mut stdin = Stdio::null();
        match what {
            "gzip" => {
                let mut text = build::text(usize::try_from((length + number) * 7000)?);
                let text = text.split_off(usize::try_from(number * 7000)?);
                fs::write(&input, text)?;
                let level = if is_new { "-7" } else { "-6" };
                command.args(["/usr/bin/gzip", level, "-c"]).arg(&input);
            }
            "awk" => {
                command.args(["/usr/bin/mawk", "-v", &format!("n={}", length * 345), "-f"]);
                command.arg(root.join("bench/programs/work.awk"));
            }
            "python" => {
                fs::write(&input, PYTHON)?;
                command
                    .arg("/usr/bin/python3")
                    .arg(&input)
                    .arg((length * 240).to_string());
            }
            "sqlite" => {
                let (rows, step) = (length * 86, 7919 + 2 * number);
                let text = format!(
                    "CREATE TABLE t(a INTEGER PRIMARY KEY, b INT, c TEXT);\nWITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
                     INSERT INTO t SELECT i, (i * {step}) % 10007, 'row ' || i FROM n;\nCREATE INDEX ib ON t(b);\n\
                     SELECT b % 97, count(*), sum(a), max(c) FROM t GROUP BY 1 ORDER BY 2 DESC LIMIT 5;\nSELECT count(*) FROM t x JOIN t y ON x.b = y.a;\n"
                );
                fs::write(&input, text)?;
                stdin = fs::File::open(&input)?.into();
                command.args(["/usr/bin/sqlite3", ":memory:"]);
            }
            _ => {
                let program = inputs.join("calls");
                if !program.is_file() {
                    let source = root.join("bench/programs/calls.c");
                    build::tool(
                        Command::new("gcc")
                            .args(["-O1", "-g", "-o"])
                            .arg(&program)
                            .arg(source),
                    )?;
                }
                command
                    .arg(program)
                    .args([&(length * 1000).to_string(), "30"]);
            }
        }
        let output = command
            .env("LC_ALL", "C")
            .stdin(stdin)
            .stdout(Stdio::null())
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "recording {what}: {}", said.trim());
        fs::rename(&unfinished, &file)?;
        Ok(file)
    }

    fn sql(&self, files: &[PathBuf], statement: &str) -> Result<(Took, Vec<u8>)> {
        let mut command = Command::new(&self.cofi_sql);
        timed(command.args(["sql", "--csv"]).args(files).arg(statement))
    }

    /// The same from the Parquet files, by DuckDB.
    fn duckdb(&self, python: &Path, tables: &Path, statement: &str) -> Result<Took> {
        const PROGRAM: &str = "import duckdb, os, sys\nfor name in os.listdir(sys.argv[1]):\n    duckdb.sql(f\"CREATE VIEW {name} AS SELECT * FROM '{sys.argv[1]}/{name}/*.parquet'\")\n\
                               print(len(duckdb.sql(sys.argv[2]).fetchall()))\n";
        let mut command = Command::new(python);
        Ok(timed(command.args(["-c", PROGRAM]).arg(tables).arg(statement))?.0)
    }
}

/// The bytes of all files below a folder.
fn bytes_below(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let (entry, path) = entry.map(|entry| (entry.metadata(), entry.path()))?;
        let about = entry?;
        sum += if about.is_dir() {
            bytes_below(&path)?
        } else {
            about.len()
        };
    }
    Ok(sum)
}

/// Measures, and prints the tables.
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let options = options(root, arguments)?;
    let begin = Instant::now();
    let files: Vec<PathBuf> = (0..options.recordings)
        .map(|number| options.record(root, number))
        .collect::<Result<_>>()?;
    let recorded = begin.elapsed();
    let trace: u64 = files
        .iter()
        .map(|file| Ok(fs::metadata(file)?.len()))
        .sum::<Result<u64>>()?;
    let (_, counted) = options.sql(
        &files,
        "SELECT sum(instructions) AS n, count(*) AS m FROM threads",
    )?;
    let counted = String::from_utf8(counted)?;
    let instructions = counted
        .lines()
        .nth(1)
        .and_then(|line| line.split(',').next()?.parse::<u64>().ok());
    let instructions = instructions.with_context(|| counted.clone())?;
    println!(
        "{} recordings, {:.1} thousand million instructions, {:.0} MB, recorded in {:.0} s; load {}",
        files.len(),
        instructions as f64 / 1e9,
        trace as f64 / 1e6,
        recorded.as_secs_f64(),
        load()
    );
    let tables = options.folder.join("tables");
    let is_wanted = |step| options.only.is_none_or(|only| only == step);
    if is_wanted(Step::Export) {
        export(&options, &files, &tables, instructions)?;
    }
    if is_wanted(Step::Ask) {
        ask(&options, &files, &tables)?;
    }
    if is_wanted(Step::Perf) {
        by_perf(&options, &files[0])?;
    }
    if !options.is_kept {
        fs::remove_dir_all(&options.folder)?;
    }
    Ok(true)
}

/// The tables as Parquet files, of recordings with so many instructions.
fn export(options: &Options, files: &[PathBuf], tables: &Path, instructions: u64) -> Result<()> {
    let _ = fs::remove_dir_all(tables);
    let (took, _) = timed(
        Command::new(&options.cofi_sql)
            .args(["export", "-o"])
            .arg(tables)
            .args(files),
    )?;
    let all = bytes_below(tables)?;
    println!(
        "\nexported in {:.0} s ({:.0} s of processor time, {:.0} MiB): {:.1} MB, {:.4} bytes an instruction\n",
        took.seconds,
        took.cost.seconds,
        took.cost.megabytes,
        all as f64 / 1e6,
        all as f64 / instructions as f64
    );
    println!("| table | bytes | bytes an instruction |\n|---|--:|--:|");
    let mut by_table = Vec::new();
    for entry in fs::read_dir(tables)? {
        let entry = entry?;
        by_table.push((bytes_below(&entry.path())?, entry.file_name()));
    }
    by_table.sort_by(|one, other| other.cmp(one));
    for (bytes, name) in by_table {
        println!(
            "| `{}` | {bytes} | {:.5} |",
            name.to_string_lossy(),
            bytes as f64 / instructions as f64
        );
    }
    Ok(())
}

/// The questions, to all recordings, to one, and to DuckDB.
fn ask(options: &Options, files: &[PathBuf], tables: &Path) -> Result<()> {
    println!(
        "\nSeconds, in parentheses of processor time.\n\n| question | from {} recordings | MiB | from one | from the Parquet files, by DuckDB |\n|---|--:|--:|--:|--:|",
        files.len()
    );
    for (question, statement) in QUESTIONS {
        let (took, _) = options.sql(files, statement)?;
        let (of_one, _) = options.sql(&files[..1], statement)?;
        let python = options
            .python
            .as_ref()
            .map(|python| options.duckdb(python, tables, statement));
        let of_tables = python
            .transpose()?
            .map_or_else(|| "–".into(), |took| took.to_string());
        println!(
            "| {question} | {took} | {:.0} | {of_one} | {of_tables} |",
            took.cost.megabytes
        );
    }
    Ok(())
}

/// A recording asked without Cofi: every branch is a line of text, and a row.
fn by_perf(options: &Options, file: &Path) -> Result<()> {
    /// (mawk takes a ninth of the time of a regular expression of sed.)
    const BRANCHES: &str = r#"perf script -i "$1" --itrace=b -F tid,time,ip,sym,addr,flags 2>/dev/null | mawk '{
    at = index($0, " => "); n = 3; flags = $3
    while (n < NF && $(n + 1) !~ /^[0-9a-f]+$/) flags = flags " " $(++n)
    ip = $(n + 1); left = substr($0, 1, at - 1); right = substr($0, at + 4)
    sub(/^ +/, "", right); to = index(right, " ")
    print $1 "|" substr($2, 1, length($2) - 1) "|" flags "|" ip "|" substr(left, index(left, " " ip " ") + length(ip) + 2) "|" substr(right, 1, to - 1) "|" substr(right, to + 1)
}' > "$2/rows"
sqlite3 "$2/branches.db" 'CREATE TABLE branches(tid INT, time REAL, flags TEXT, ip TEXT, sym TEXT, addr TEXT, addr_sym TEXT)' ".import $2/rows branches"
rm "$2/rows""#;
    /// What rows of branches can answer: functions by calls, callers, and where a branch led.
    const ASKED: [(&str, &str); 3] = [
        (
            "functions by how often they were called",
            "SELECT addr_sym, count(*) FROM branches WHERE flags LIKE 'call%' GROUP BY 1 ORDER BY 2 DESC LIMIT 10",
        ),
        (
            "who calls whom",
            "SELECT sym, addr_sym, count(*) FROM branches WHERE flags LIKE 'call%' GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 10",
        ),
        (
            "which branches were taken how often",
            "SELECT ip, count(*) FROM branches WHERE flags LIKE 'jcc%' GROUP BY 1 ORDER BY 2 DESC LIMIT 10",
        ),
    ];
    let place = options.folder.join("perf");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place)?;
    let (took, _) = timed(
        Command::new("sh")
            .args(["-c", BRANCHES, "sh"])
            .arg(file)
            .arg(&place),
    )?;
    let database = place.join("branches.db");
    let (_, rows) = timed(
        Command::new("sqlite3")
            .arg(&database)
            .arg("SELECT count(*) FROM branches"),
    )?;
    println!(
        "\n`perf script --itrace=b` of {} into SQLite: {took} s, {} rows, a database of {:.0} MB\n\n| question | from that database |\n|---|--:|",
        file.file_name().unwrap_or_default().to_string_lossy(),
        String::from_utf8_lossy(&rows).trim(),
        fs::metadata(&database)?.len() as f64 / 1e6
    );
    for (question, statement) in ASKED {
        let (took, _) = timed(Command::new("sqlite3").arg(&database).arg(statement))?;
        println!("| {question} | {took} |");
    }
    Ok(())
}
