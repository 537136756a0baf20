//! `cargo xtask bench`: Cofi, libipt, iptr and ptcov on the same packets, cold and warm.
//!
//! Each takes part where it has a result that can be checked against Cofi's: packets (a checksum of all their fields), instructions (their number,
//! and the sum of their addresses), blocks (the number of their instructions), and, for those who find no more than that, branches or edges, against
//! Cofi's blocks. Where a peer's result is wrong there is no ratio, but what it found. Libipt's must be Cofi's, or the race has failed.
//!
//! Everyone runs in a process of its own, by turns, and tells its own processor time. Ratios are of two that ran one behind the other.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::libipt::{BLOCKS_ONLY, REAL, Trace, real};
use super::racers::{Answer, Racer, Racers};
use super::recordings::{RECORDINGS, Recorder};
use super::{load, median, traces};
use cofi_exam::build;

/// Where the results are written, below the project's root.
const RESULTS: &str = "bench/RESULTS.md";
/// The size of a recording for a quick look, and for results.
const SIZES: [u64; 2] = [24, 256];
/// Libipt takes minutes for the instructions of a large recording: they are raced for on one of this size at most.
const INSTRUCTIONS_SIZE: u64 = 10;
/// About how many bytes of a small trace one process decodes, in as many passes as that takes.
const BYTES: u64 = 4_000_000;
/// The levels, in the order of the tables.
const LEVELS: [&str; 4] = ["packets", "instructions", "blocks", "coverage"];

#[derive(Debug)]
struct Options {
    rounds: usize,
    megabytes: u64,
    levels: Vec<String>,
    /// The names of the traces, all if empty.
    only: Vec<String>,
    write: bool,
    traces: PathBuf,
    cofi: Option<PathBuf>,
}

fn options(root: &Path, arguments: &[String]) -> Result<Options> {
    let write = arguments.iter().any(|word| word == "--write");
    let mut options = Options {
        rounds: 5,
        megabytes: SIZES[usize::from(write)],
        levels: Vec::new(),
        only: Vec::new(),
        write,
        traces: traces(root),
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
            "--size" => options.megabytes = number()?,
            "--level" => {
                ensure!(
                    LEVELS.contains(&value.as_str()),
                    "--level wants one of {}",
                    LEVELS.join(", ")
                );
                options.levels.push(value.clone());
            }
            "--only" => options.only.push(value.clone()),
            "--traces" => options.traces = PathBuf::from(value),
            "--cofi" => options.cofi = Some(PathBuf::from(value)),
            _ => bail!("{word}: there is no such option"),
        }
    }
    if options.levels.is_empty() {
        options.levels = LEVELS.map(str::to_owned).to_vec();
    }
    Ok(options)
}

/// What came of a peer beside Cofi.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// Seconds a pass, and Cofi's times that: the median and the range.
    Raced { seconds: f64, ratios: Vec<f64> },
    /// It finds something else, or gives up.
    Wrong(String),
}

/// A row: one trace, cold or warm.
struct Row {
    seconds: f64,
    peers: Vec<Outcome>,
}

/// A median of ratios with its range.
fn spread(ratios: &[f64]) -> String {
    let mut ratios = ratios.to_vec();
    ratios.sort_by(f64::total_cmp);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    format!("{:.2} ({least:.2}–{most:.2})", median(ratios))
}

/// What is wrong with an answer.
fn difference(found: &Answer, expected: &Answer, sums: bool) -> Option<String> {
    if found.count != expected.count {
        return Some(format!("finds {} of {}", found.count, expected.count));
    }
    (sums && found.sum != expected.sum).then(|| format!("{}, but not the right ones", found.count))
}

/// Who races on one trace.
struct Field<'r> {
    cofi: &'r Racer,
    /// Each peer, and what it must find.
    peers: Vec<(&'r Racer, Answer)>,
    /// Whether checksums must be equal too.
    sums: bool,
}

impl Field<'_> {
    /// The rounds of one row. Whoever is wrong in the first takes no part in the others.
    fn race(&self, trace: &Trace, warm: bool, passes: u64, rounds: usize) -> Result<Row> {
        let mut ours = Vec::new();
        let mut peers = Vec::new();
        for _ in &self.peers {
            peers.push(Outcome::Raced {
                seconds: 0.0,
                ratios: Vec::new(),
            });
        }
        let mut theirs = vec![Vec::new(); self.peers.len()];
        for round in 0..rounds {
            for (at, (racer, expected)) in self.peers.iter().enumerate() {
                let Outcome::Raced { ratios, .. } = &mut peers[at] else {
                    continue;
                };
                // Who goes first changes from round to round.
                let mut pair = [None, None];
                for turn in 0..2 {
                    let who = (turn + round) % 2;
                    let said = [self.cofi, racer][who].run(trace, warm, passes)?;
                    pair[who] = Some(said);
                }
                let [Some(cofi), Some(peer)] = pair else {
                    bail!("two ran, and two have an answer");
                };
                let cofi = cofi.map_err(anyhow::Error::msg).context("Cofi")?;
                match peer {
                    Err(words) => peers[at] = Outcome::Wrong(format!("fails: {words}")),
                    Ok(answer) => match difference(&answer, expected, self.sums) {
                        Some(words) => peers[at] = Outcome::Wrong(words),
                        None => {
                            ratios.push(answer.seconds / cofi.seconds);
                            theirs[at].push(answer.seconds);
                        }
                    },
                }
                ours.push(cofi.seconds);
            }
        }
        for (outcome, times) in peers.iter_mut().zip(theirs) {
            if let Outcome::Raced { seconds, .. } = outcome {
                *seconds = median(times);
            }
        }
        Ok(Row {
            seconds: median(ours),
            peers,
        })
    }
}

/// Prints what is to be read, and keeps it for the file.
#[derive(Default)]
struct Report(String);

impl Report {
    fn line(&mut self, line: &str) {
        println!("{line}");
        self.0.push_str(line);
        self.0.push('\n');
    }

    /// The head of a table.
    fn table(&mut self, counted: &str, peers: &[&str]) {
        let mut head = format!("| trace | MB | {counted} | | Cofi MB/s | Cofi M/s |");
        let mut rule = "|---|---:|---:|---|---:|---:|".to_owned();
        for peer in peers {
            let _ = write!(head, " {peer} MB/s | Cofi : {peer} |");
            rule.push_str("---:|---:|");
        }
        self.line(&head);
        self.line(&rule);
    }

    fn row(&mut self, trace: &Trace, bytes: u64, count: u64, warm: bool, row: &Row) {
        let mega = bytes as f64 / 1e6;
        let mut line = format!(
            "| {} | {mega:.3} | {count} | {} | {:.1} | {:.1} |",
            trace.name,
            if warm { "warm" } else { "cold" },
            mega / row.seconds,
            count as f64 / 1e6 / row.seconds,
        );
        for peer in &row.peers {
            let _ = match peer {
                Outcome::Raced { seconds, ratios } => {
                    write!(line, " {:.1} | {} |", mega / seconds, spread(ratios))
                }
                Outcome::Wrong(words) => write!(line, " – | {} |", words.replace('|', "/")),
            };
        }
        self.line(&line);
    }
}

/// The race, ready to begin.
struct Race<'r> {
    options: &'r Options,
    racers: Racers,
    report: Report,
    good: bool,
}

impl Race<'_> {
    /// One row, or how it failed.
    fn row(&mut self, trace: &Trace, field: &Field<'_>, count: u64, warm: bool) -> Result<()> {
        let bytes = fs::metadata(&trace.stream)?.len();
        let passes = (BYTES / bytes.max(1)).clamp(1, 200);
        match field.race(trace, warm, passes, self.options.rounds) {
            Ok(row) => {
                let (libipt, others) = (row.peers.first(), field.peers.first());
                // It is complete: who differs from it may as well be Cofi.
                if let (Some(Outcome::Wrong(words)), Some((racer, _))) = (libipt, others)
                    && racer.name == "libipt"
                {
                    self.good = false;
                    println!("bench: FAILED: {}: libipt {words}", trace.name);
                }
                self.report.row(trace, bytes, count, warm, &row);
            }
            Err(error) => {
                self.good = false;
                let name = &trace.name;
                self.report.line(&format!("| {name} | FAILED: {error:#} |"));
            }
        }
        Ok(())
    }

    fn level(&mut self, level: &str, traces: &[Trace]) -> Result<()> {
        let racers = &self.racers;
        self.report.line(&format!("\n## {level}\n"));
        let (cofi, peers, counted) = match level {
            "packets" => (
                racers.cofi_packets.clone(),
                vec![racers.libipt_packets.clone(), racers.iptr_packets.clone()],
                "packets",
            ),
            "instructions" => (
                racers.cofi_instructions.clone(),
                vec![racers.libipt_instructions.clone()],
                "instructions",
            ),
            "blocks" => (
                racers.cofi_blocks.clone(),
                vec![racers.libipt_blocks.clone()],
                "instructions",
            ),
            _ => {
                return self.coverage(traces);
            }
        };
        let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
        self.report.table(counted, &names);
        for trace in traces {
            if level == "instructions" && BLOCKS_ONLY.contains(&trace.name.as_str()) {
                continue;
            }
            let expected = cofi.run(trace, false, 1)?;
            let expected = expected
                .map_err(anyhow::Error::msg)
                .with_context(|| trace.name.clone())?;
            let field = Field {
                cofi: &cofi,
                peers: peers.iter().map(|it| (it, expected.clone())).collect(),
                // Where a block ends is for each decoder to say.
                sums: level != "blocks",
            };
            for warm in [false, true] {
                // Nothing of packets is kept from one pass to the next.
                if !(warm && level == "packets") {
                    self.row(trace, &field, expected.count, warm)?;
                }
            }
        }
        Ok(())
    }

    /// Cofi's blocks, beside decoders that find only branches or edges.
    fn coverage(&mut self, traces: &[Trace]) -> Result<()> {
        self.report.table("instructions", &["iptr", "ptcov"]);
        let cofi = self.racers.cofi_blocks.clone();
        let iptr = self.racers.iptr_edges.clone();
        for trace in traces {
            let ask = |racer: &Racer| -> Result<Answer> {
                let said = racer.run(trace, false, 1)?;
                said.map_err(anyhow::Error::msg)
                    .with_context(|| trace.name.clone())
            };
            let blocks = ask(&cofi)?;
            let branches = ask(&self.racers.cofi_branches)?;
            let edges = ask(&self.racers.cofi_edges)?;
            // Of its two builds the faster one, if that is right.
            let [plain, with_returns] = self.racers.ptcov.clone();
            let is_right = match plain.run(trace, false, 1)? {
                Ok(found) => difference(&found, &edges, true).is_none(),
                Err(_) => false,
            };
            let ptcov = if is_right { plain } else { with_returns };
            let field = Field {
                cofi: &cofi,
                peers: vec![(&iptr, branches), (&ptcov, edges)],
                sums: true,
            };
            for warm in [false, true] {
                self.row(trace, &field, blocks.count, warm)?;
            }
        }
        Ok(())
    }
}

/// What the file begins with: what was measured, on what, and how to do it again.
fn preface(options: &Options) -> Result<String> {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("a processor without a name", |name| {
            name.trim_start_matches([' ', '\t', ':'])
        });
    let cores = std::thread::available_parallelism()?;
    let said = |program: &str, words: &[&str]| -> String {
        build::tool(Command::new(program).args(words)).map_or_else(
            |_| format!("{program}: unknown"),
            |out| String::from_utf8_lossy(&out).trim().to_owned(),
        )
    };
    Ok(format!(
        "# Results of the race\n\n\
         Written by `cargo xtask bench --write --size {} --rounds {}` on {}; what is measured, and how: [README.md](README.md).\n\n\
         Machine: {processor}, {cores} processors, load {} at the beginning. {}. Commit {}. libipt {}, iptr-decoder 0.1.3,\n\
         iptr-edge-analyzer 0.3.0, ptcov 0.2.0. One thread each; medians of {} rounds, and the range of the ratios.\n",
        options.megabytes,
        options.rounds,
        said("date", &["-u", "+%Y-%m-%d"]),
        load(),
        said("rustc", &["--version"]),
        said("git", &["describe", "--always", "--dirty"]),
        said("dpkg-query", &["-W", "-f=${Version}", "libipt-dev"]),
        options.rounds,
    ))
}

/// Races on every trace, and returns whether Cofi and libipt agreed everywhere.
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let options = options(root, arguments)?;
    let folder = std::env::temp_dir().join(format!("cofi-race-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let outcome = hold(root, &folder, &options);
    // What cannot be removed lies in the folder for temporary files anyway.
    let _ = fs::remove_dir_all(&folder);
    outcome
}

fn hold(root: &Path, folder: &Path, options: &Options) -> Result<bool> {
    let racers = Racers::build(root, folder)?;
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|it| it == name);
    let (mut large, mut small, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let mut cofi = options.cofi.clone();
    for recording in RECORDINGS.iter().filter(|it| wanted(it.name)) {
        let cofi = match &cofi {
            Some(path) => path,
            None => cofi.insert(build::cofi(root)?),
        };
        let recorder = Recorder { root, cofi };
        large.push(recorder.recording(recording, options.megabytes)?);
        let least = options.megabytes.min(INSTRUCTIONS_SIZE);
        small.push(recorder.recording(recording, least)?);
    }
    for name in REAL.into_iter().filter(|name| wanted(name)) {
        if options.traces.join(name).is_dir() {
            others.push(real(&options.traces, name).with_context(|| name.to_owned())?);
        } else {
            println!(
                "bench: no {name} in {}: NOT MEASURED (--traces FOLDER or COFI_TRACES says where the traces of real \
                 processors are)",
                options.traces.display()
            );
        }
    }
    let mut race = Race {
        options,
        racers,
        report: Report::default(),
        good: true,
    };
    race.report.line(&preface(options)?);
    large.extend(others.iter().cloned());
    small.extend(others);
    for level in &options.levels {
        let traces = if level == "instructions" {
            &small
        } else {
            &large
        };
        race.level(level, traces)?;
    }
    if options.write {
        let file = root.join(RESULTS);
        fs::write(&file, &race.report.0).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(race.good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(count: u64, sum: u64) -> Answer {
        Answer {
            count,
            sum,
            seconds: 1.0,
        }
    }

    #[test]
    fn a_wrong_result_has_no_ratio() {
        let expected = answer(234_320, 7);
        let words = difference(&answer(52_220, 7), &expected, true);
        assert_eq!(words.as_deref(), Some("finds 52220 of 234320"));
        assert!(difference(&answer(234_320, 8), &expected, true).is_some());
        assert_eq!(difference(&answer(234_320, 8), &expected, false), None);
        assert_eq!(difference(&expected, &expected, true), None);
    }

    #[test]
    fn a_row_says_what_a_peer_found_instead() {
        let mut report = Report::default();
        let trace = Trace {
            name: "a".to_owned(),
            stream: PathBuf::new(),
            options: Vec::new(),
            sections: Vec::new(),
        };
        let row = Row {
            seconds: 0.5,
            peers: vec![
                Outcome::Wrong("finds 1 of 2".to_owned()),
                Outcome::Raced {
                    seconds: 1.0,
                    ratios: vec![3.0, 2.0, 1.5],
                },
            ],
        };
        report.row(&trace, 1_000_000, 4_000_000, true, &row);
        assert_eq!(
            report.0,
            "| a | 1.000 | 4000000 | warm | 2.0 | 8.0 | – | finds 1 of 2 | 1.0 | 2.00 (1.50–3.00) |\n"
        );
    }

    #[test]
    fn results_are_of_large_recordings_unless_said_otherwise() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            options(Path::new("/none"), &words)
        };
        assert_eq!(parse(&[]).expect("nothing").megabytes, 24);
        assert_eq!(parse(&["--write"]).expect("a flag").megabytes, 256);
        let both = parse(&["--size", "3", "--write", "--rounds", "1"]).expect("all three");
        assert_eq!((both.megabytes, both.rounds, both.write), (3, 1, true));
        assert!(parse(&["--size", "0"]).is_err());
        assert!(parse(&["--size"]).is_err());
        assert!(parse(&["--level", "bits"]).is_err());
        assert!(parse(&["--speed", "1"]).is_err());
    }
}
