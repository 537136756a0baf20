//! `cargo xtask bench costs`: processor time and memory of each command that asks something of a trace, beside `cofi blocks --json -j1`.
//!
//! A command that reads two recordings is set beside two runs of that. Every command runs in a process of its own, all of them by turns; what counts is the least of the rounds, as the machine may be busy. Output goes to
//! /dev/null. GNU time tells the processor time and the largest memory.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::load;
use cofi_exam::build;

/// Where the results are written, below the project's root.
const RESULTS: &str = "docs/costs.md";
/// The table stands behind this line there.
const MARK: &str = "<!-- written by `cargo xtask bench costs --write` -->";

/// What others are measured by.
const BASE: &str = "blocks --json -j1";
/// No more than so many times that is wanted.
const MOST: f64 = 2.0;

/// The commands: `FILE` is the recording, `OTHER` one of the same program with more to do, `FUNCTION` one of its functions.
const COMMANDS: [&str; 34] = [
    BASE,
    "calls --depth 4 -j1 FILE",
    "calls --json -j1 FILE",
    "calls --json --inline -j1 FILE",
    "calls --json -j1 --function FUNCTION FILE",
    "calls -j1 --callers FUNCTION FILE",
    "last FILE",
    "top -j1 FILE",
    "top -j1 --by total FILE",
    "top -j1 --by calls FILE",
    "top -j1 --of lines FILE",
    "top -j1 --of lines --by calls FILE",
    "top -j1 --of lines --by total FILE",
    "top -j1 --of instructions FILE",
    "top -j1 --of instructions --by total FILE",
    "top -j1 --of branches FILE",
    "annotate -j1 FUNCTION FILE",
    "coverage -j1 FILE",
    "coverage -j1 --lcov /dev/null FILE",
    "coverage -j1 --cobertura /dev/null FILE",
    "coverage -j1 --afl /dev/null FILE",
    "diff FILE FILE",
    "diff FILE OTHER",
    "diff --by functions FILE OTHER",
    "export --to folded -o - FILE",
    "export --to svg -o - FILE",
    "export --to callgrind -o - FILE",
    "export --to pprof -o - FILE",
    "export --to speedscope -o - FILE",
    "export --to chrome -o - FILE",
    "export --to perfetto -o - FILE",
    "export --to csv -o - FILE",
    "export --to firefox -o - FILE",
    "export --to lcov -o - FILE",
];

/// A program that is recorded.
struct Work {
    name: &'static str,
    what: &'static str,
    /// One of its functions, if it has symbols.
    function: Option<&'static str>,
}

/// Calls and little else; an ordinary program; one with much debugging information.
const WORKS: [Work; 3] = [
    Work {
        name: "calls",
        what: "`bench/programs/calls.c`: qsort and a recursion",
        function: Some("fib"),
    },
    Work {
        name: "gzip",
        what: "`gzip -9`",
        function: None,
    },
    Work {
        name: "cofi",
        what: "`cofi blocks --json` of a small trace: a program with 15 MB of line tables and more",
        function: Some("main"),
    },
];

#[derive(Debug)]
struct Options {
    rounds: usize,
    /// About so many millions of instructions are recorded.
    millions: u64,
    /// Only commands that hold one of these words, all if there is none.
    only: Vec<String>,
    /// Only these recordings, all if there is none.
    of: Vec<String>,
    write: bool,
    cofi: Option<PathBuf>,
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        rounds: 5,
        millions: 300,
        only: Vec::new(),
        of: Vec::new(),
        write: arguments.iter().any(|word| word == "--write"),
        cofi: None,
    };
    let mut words = arguments.iter().filter(|word| *word != "--write");
    while let Some(word) = words.next() {
        let value = words
            .next()
            .with_context(|| format!("{word} wants a value"))?;
        let number = || {
            let number = value.parse::<u64>().ok().filter(|n| *n > 0);
            number.with_context(|| format!("{word} wants a number, at least 1"))
        };
        match word.as_str() {
            "--rounds" => options.rounds = usize::try_from(number()?)?,
            "--millions" => options.millions = number()?,
            "--only" => options.only.push(value.clone()),
            "--of" => {
                let names = WORKS.map(|work| work.name);
                ensure!(
                    names.contains(&value.as_str()),
                    "--of wants one of {}",
                    names.join(", ")
                );
                options.of.push(value.clone());
            }
            "--cofi" => options.cofi = Some(PathBuf::from(value).canonicalize()?),
            _ => bail!("{word}: there is no such option"),
        }
    }
    let is_all = options.only.is_empty() && options.of.is_empty();
    ensure!(
        is_all || !options.write,
        "--write is for all commands and recordings"
    );
    Ok(options)
}

/// Processor time, and the largest memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    pub(super) megabytes: f64,
}

impl Cost {
    const MOST: Self = Self {
        seconds: f64::INFINITY,
        megabytes: f64::INFINITY,
    };

    /// What this is for so many recordings.
    fn times(self, recordings: f64) -> Self {
        Self {
            seconds: self.seconds * recordings,
            megabytes: self.megabytes * recordings,
        }
    }

    /// The less of both.
    fn least(self, other: Self) -> Self {
        Self {
            seconds: self.seconds.min(other.seconds),
            megabytes: self.megabytes.min(other.megabytes),
        }
    }

    /// What GNU time says of user time, system time and memory, in its last line.
    pub(super) fn of(text: &str) -> Option<Self> {
        let mut words = text.lines().last()?.split(' ');
        let mut number = || words.next()?.parse::<f64>().ok();
        Some(Self {
            seconds: number()? + number()?,
            megabytes: number()? / 1024.0,
        })
    }
}

/// What was recorded, twice: the second time with more to do.
struct Recordings {
    first: PathBuf,
    other: PathBuf,
    millions: u64,
    megabytes: u64,
}

struct Bench {
    cofi: PathBuf,
    folder: PathBuf,
}

impl Bench {
    /// Makes the recordings of a program, if they are not there.
    fn recordings(&self, root: &Path, work: &Work, millions: u64) -> Result<Recordings> {
        let folder = self.folder.join(format!("{}-{millions}", work.name));
        fs::create_dir_all(&folder)?;
        let [first, other] = ["first.data", "other.data"].map(|name| folder.join(name));
        for (more, file) in [(0, &first), (1, &other)] {
            if !file.is_file() {
                self.record(root, work, (millions, more), &folder, file)
                    .with_context(|| format!("recording {}", work.name))?;
            }
        }
        let text = build::tool(
            Command::new(&self.cofi)
                .args(["check", "--json"])
                .arg(&first),
        )?;
        let text = String::from_utf8(text)?;
        let last = text.lines().last().context("cofi check says nothing")?;
        let summary: serde_json::Value = serde_json::from_str(last)?;
        let instructions = summary["summary"]["instructions"].as_u64();
        Ok(Recordings {
            millions: instructions.context("no instructions")? / 1_000_000,
            megabytes: fs::metadata(&first)?.len() / 1_000_000,
            first,
            other,
        })
    }

    fn record(
        &self,
        root: &Path,
        work: &Work,
        (millions, more): (u64, u64),
        folder: &Path,
        file: &Path,
    ) -> Result<()> {
        let mut command = Command::new(&self.cofi);
        // What is half written is not taken for a recording.
        let unfinished = folder.join("unfinished.data");
        command
            .args(["record", "--engine", "qemu", "-o"])
            .arg(&unfinished)
            .arg("--");
        match work.name {
            "calls" => {
                let program = folder.join("calls");
                let source = root.join("bench/programs/calls.c");
                let compile = ["-O1", "-g", "-o"];
                build::tool(Command::new("gcc").args(compile).arg(&program).arg(source))?;
                let length = (millions * 1000 + more * 50).to_string();
                command.arg(program).args([&length, "30"]);
            }
            "gzip" => {
                let text = folder.join("text");
                let length = usize::try_from((millions + more) * 7000)?;
                fs::write(&text, build::text(length))?;
                command.args(["/usr/bin/gzip", "-9", "-c"]).arg(text);
            }
            _ => {
                let small = folder.join("small.data");
                let word = (millions * 40_000 + more * 1000).to_string();
                let program = ["/usr/bin/head", "-c", &word, "/dev/zero"];
                let small_work = ["record", "--engine", "qemu", "-o"];
                build::tool(
                    Command::new(&self.cofi)
                        .args(small_work)
                        .arg(&small)
                        .arg("--")
                        .args(program),
                )?;
                command.arg(&self.cofi).args(["blocks", "--json", "-j1"]);
                command.arg(small);
            }
        }
        let output = command
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .context("running cofi record")?;
        ensure!(
            output.status.success(),
            "cofi record ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        fs::rename(&unfinished, file)?;
        Ok(())
    }

    /// Runs a command once.
    fn cost(&self, command: &str, work: &Work, recordings: &Recordings) -> Result<Cost> {
        let mut run = Command::new("/usr/bin/time");
        run.args(["-q", "-f", "%U %S %M"]).arg(&self.cofi);
        for word in command.split(' ') {
            match word {
                "FILE" => run.arg(&recordings.first),
                "OTHER" => run.arg(&recordings.other),
                "FUNCTION" => run.args(work.function),
                word => run.arg(word),
            };
        }
        if command == BASE {
            run.arg(&recordings.first);
        }
        let output = run
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .context("running /usr/bin/time")?;
        let said = String::from_utf8_lossy(&output.stderr);
        // That two recordings differ is a status of 1.
        let is_good = matches!(output.status.code(), Some(0 | 1));
        ensure!(is_good, "cofi {command}: {}", said.trim());
        Cost::of(&said).with_context(|| format!("cofi {command}: {}", said.trim()))
    }
}

/// How many recordings a command reads: what reads two is set beside two runs of what others are measured by.
fn recordings_of(command: &str) -> f64 {
    let files = command
        .split(' ')
        .filter(|word| ["FILE", "OTHER"].contains(word));
    files.count().max(1) as f64
}

/// A row of the table.
fn row(command: &str, cost: Cost, base: Cost) -> String {
    let ratio = |value: f64, base: f64| {
        let ratio = value / base;
        // What is more than is wanted stands out.
        let mark = if ratio > MOST { "**" } else { "" };
        format!("{mark}{ratio:.2}{mark}")
    };
    format!(
        "| `{command}` | {:.2} | {} | {:.0} | {} |",
        cost.seconds,
        ratio(cost.seconds, base.seconds),
        cost.megabytes,
        ratio(cost.megabytes, base.megabytes)
    )
}

/// Measures, and prints the tables.
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let options = options(arguments)?;
    let bench = Bench {
        cofi: match &options.cofi {
            Some(cofi) => cofi.clone(),
            None => build::cofi(root)?,
        },
        folder: root.join("target/costs"),
    };
    let mut text = String::new();
    let wanted =
        |work: &&Work| options.of.is_empty() || options.of.iter().any(|of| of == work.name);
    for work in WORKS.iter().filter(wanted) {
        let recordings = bench.recordings(root, work, options.millions)?;
        let is_wanted = |command: &&str| {
            let mut only = options.only.iter();
            let is_asked = options.only.is_empty()
                || **command == *BASE
                || only.any(|only| command.contains(only));
            is_asked && (work.function.is_some() || !command.contains("FUNCTION"))
        };
        let commands: Vec<&str> = COMMANDS.iter().copied().filter(is_wanted).collect();
        let mut costs = vec![Cost::MOST; commands.len()];
        for _ in 0..options.rounds {
            for (command, cost) in commands.iter().zip(&mut costs) {
                *cost = cost.least(bench.cost(command, work, &recordings)?);
            }
        }
        let mut table = format!(
            "\n## {}\n\n{} million instructions, a recording of {} MB; the least of {} rounds, load {}.\n\n\
             | command | seconds | × | MB | × |\n|---|--:|--:|--:|--:|\n",
            work.what,
            recordings.millions,
            recordings.megabytes,
            options.rounds,
            load()
        );
        for (command, cost) in commands.iter().zip(&costs) {
            writeln!(
                table,
                "{}",
                row(command, *cost, costs[0].times(recordings_of(command)))
            )?;
        }
        print!("{table}");
        text += &table;
    }
    if options.write {
        let path = root.join(RESULTS);
        let page = fs::read_to_string(&path).with_context(|| format!("reading {RESULTS}"))?;
        let (head, _) = page
            .split_once(MARK)
            .with_context(|| format!("{RESULTS} has no line {MARK}"))?;
        fs::write(&path, format!("{head}{MARK}\n{text}"))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gnu_time_says() {
        let said = "cofi: something\n1.50 0.25 2048\n";
        let cost = Cost::of(said).expect("three numbers");
        assert_eq!((cost.seconds, cost.megabytes), (1.75, 2.0));
        assert_eq!(Cost::of("cofi: no such file\n"), None);
    }

    #[test]
    fn what_is_more_than_wanted_stands_out() {
        let base = Cost {
            seconds: 2.0,
            megabytes: 50.0,
        };
        let cost = Cost {
            seconds: 5.0,
            megabytes: 100.0,
        };
        assert_eq!(
            row("last FILE", cost, base),
            "| `last FILE` | 5.00 | **2.50** | 100 | 2.00 |"
        );
    }

    #[test]
    fn what_reads_two_recordings_is_set_beside_two() {
        let counts = [
            BASE,
            "last FILE",
            "diff FILE FILE",
            "diff --by functions FILE OTHER",
        ];
        assert_eq!(counts.map(recordings_of), [1.0, 1.0, 2.0, 2.0]);
        let base = Cost {
            seconds: 1.5,
            megabytes: 40.0,
        };
        assert_eq!(base.times(2.0).seconds, 3.0);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            options(&words)
        };
        assert!(parse(&["--write"]).is_ok_and(|options| options.write));
        assert!(parse(&["--write", "--only", "calls"]).is_err());
        assert!(parse(&["--of", "nothing"]).is_err());
        assert!(parse(&["--rounds", "0"]).is_err());
    }
}
