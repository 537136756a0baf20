//! `cargo xtask exam damage`: recordings of real programs are damaged in many ways, and Cofi and perf decode what is left. How much
//! they lose and how much they report that never ran goes into a table, which
//! `--write` puts into `docs/recovery.md`.

mod align;
mod file;
mod hurt;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{Examined, within};

use super::build;
use super::flows::{self, each_line, hex};
use super::run::{listen, patient};
use align::{Said, Score, score};
use file::{Recording, cut};
use hurt::{Damage, Kind, LONGEST};

const DOCUMENT: &str = "docs/recovery.md";
const BEGIN: &str = "<!-- made by `cargo xtask exam damage --write` -->\n";
const END: &str = "<!-- end -->\n";

/// How long the text is that the programs read: so long that their traces have some PSBs.
const TEXT: usize = 15_000;

/// The programs, each of a thread: one that mostly loops, one that mostly calls. The text's file follows.
const PROGRAMS: [&[&str]; 2] = [
    &["gzip", "-1", "-c"],
    &["awk", "{n[$1]++} END {for (i in n) print i, n[i]}"],
];

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many cases of each kind
    #[arg(long, value_name = "N", default_value_t = 26, value_parser = clap::value_parser!(u64).range(1..))]
    cases: u64,
    #[command(flatten)]
    cofi: Examined,
    /// Where everything written stays
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Put the table, which has perf's numbers, too, into docs/recovery.md
    #[arg(long = "write", conflicts_with = "is_alone")]
    writes: bool,
    /// Without perf
    #[arg(long = "without-perf")]
    is_alone: bool,
    /// Print each case
    #[arg(long = "each")]
    is_wordy: bool,
}

/// Who decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Cofi,
    Perf,
}

/// Sums over the cases of a kind.
#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    /// How many cases had an error in the flow.
    reported: usize,
    /// In how many, without one, a seal did not match.
    sealed: usize,
    lost: usize,
    wrong: usize,
    silent: usize,
    /// Lost and wrong where an error was reported.
    of_reported: (usize, usize),
}

impl Sum {
    fn add(&mut self, said: &Said, score: Score) {
        let is_reported = !said.errors.is_empty();
        self.reported += usize::from(is_reported);
        self.sealed += usize::from(!is_reported && said.seals > 0);
        self.lost += score.lost;
        self.wrong += score.wrong;
        self.silent += score.silent;
        if is_reported {
            self.of_reported.0 += score.lost;
            self.of_reported.1 += score.wrong;
        }
    }
}

/// Holds this part of the exam; whether Cofi keeps what `docs/recovery.md` promises.
pub(super) fn run(root: &Path, options: &Options) -> Result<bool> {
    if let (Err(reason), false) = (build::perf(), options.is_alone) {
        println!("exam damage: NOT COMPARED: {reason}");
        return Ok(true);
    }
    within(options.keep.as_deref(), "damage", |folder| {
        hold(root, folder, options)
    })
}

/// A recording that is damaged, and what ran.
struct Subject {
    program: String,
    recording: Recording,
    stream: Vec<u8>,
    /// Where its packets end.
    end: usize,
    truth: Vec<u64>,
    /// perf's decoder stops at the last packet, and so many instructions earlier than Cofi's.
    tail: usize,
}

fn hold(root: &Path, folder: &Path, options: &Options) -> Result<bool> {
    let started = Instant::now();
    let cofi = options.cofi.path(root)?;
    let subjects = PROGRAMS
        .iter()
        .map(|line| subject(&cofi, folder, line, options))
        .collect::<Result<Vec<Subject>>>()?;
    let decoders: &[Who] = if options.is_alone {
        &[Who::Cofi]
    } else {
        &[Who::Cofi, Who::Perf]
    };
    let work: Vec<(Kind, u64)> = Kind::ALL
        .iter()
        .flat_map(|kind| (0..options.cases).map(|number| (*kind, number)))
        .collect();
    let queue = Mutex::new(work.into_iter());
    let sums = Mutex::new([[Sum::default(); 2]; 4]);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let run_one = |worker: usize| -> Result<()> {
        let data = folder.join(format!("damaged-{worker}.data"));
        loop {
            let next = queue.lock().ok().and_then(|mut queue| queue.next());
            let Some((kind, number)) = next else {
                return Ok(());
            };
            let subject = &subjects[number as usize % subjects.len()];
            let damage = Damage::new(kind, number, options.seed, subject.end);
            let mut stream = subject.stream.clone();
            damage.apply(&mut stream);
            fs::write(&data, subject.recording.with(&stream))?;
            for who in decoders {
                let said = decode(*who, &cofi, &data)?;
                let mut found = score(&subject.truth, &said);
                if *who == Who::Perf {
                    found.lost = found.lost.saturating_sub(subject.tail);
                }
                if options.is_wordy {
                    println!(
                        "{number} {damage:?}: {who:?}: {found:?}, {} errors, {} seals",
                        said.errors.len(),
                        said.seals
                    );
                }
                if let Ok(mut sums) = sums.lock() {
                    sums[kind as usize][*who as usize].add(&said, found);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|worker| scope.spawn(move || run_one(worker)))
            .collect();
        handles
            .into_iter()
            .try_for_each(|handle| match handle.join() {
                Ok(result) => result,
                Err(_) => bail!("a worker of the exam panicked"),
            })
    })?;
    let sums = sums.into_inner().unwrap_or_default();
    let table = table(&sums, options, &subjects);
    println!("{table}");
    println!("exam damage: {:.0} s", started.elapsed().as_secs_f64());
    if options.writes {
        write(root, &table)?;
    }
    Ok(options.is_alone || judge(&sums))
}

/// What `docs/recovery.md` promises: over all damage, Cofi loses no more than perf, and reports no more that is wrong.
fn judge(sums: &[[Sum; 2]; 4]) -> bool {
    let total = |who: Who, field: fn(&Sum) -> usize| -> usize {
        sums.iter().map(|kind| field(&kind[who as usize])).sum()
    };
    let mut is_good = true;
    for (name, field) in [
        ("lost", (|sum| sum.lost) as fn(&Sum) -> usize),
        ("wrong", |sum| sum.wrong),
    ] {
        let (cofi, perf) = (total(Who::Cofi, field), total(Who::Perf, field));
        if cofi > perf {
            println!("exam damage: {name}: Cofi {cofi}, perf {perf}");
            is_good = false;
        }
    }
    is_good
}

fn table(sums: &[[Sum; 2]; 4], options: &Options, subjects: &[Subject]) -> String {
    let mut table = format!(
        "Seed {}, {} cases a kind, by turns of these recordings through QEMU:\n\n",
        options.seed, options.cases
    );
    for subject in subjects {
        let Subject { program, end, .. } = subject;
        let ran = subject.truth.len();
        table.push_str(&format!(
            "- `{program}`: {ran} instructions, {end} bytes of packets\n"
        ));
    }
    table.push_str(
        "\n| damage | decoder | reported | by a seal alone | lost | wrong | silent | lost, reported cases | wrong, reported cases |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for (kind, sums) in Kind::ALL.iter().zip(sums) {
        for who in [Who::Cofi, Who::Perf] {
            if options.is_alone && who == Who::Perf {
                continue;
            }
            let sum = &sums[who as usize];
            let name = if who == Who::Cofi { "Cofi" } else { "perf" };
            table.push_str(&format!(
                "| {} | {name} | {} | {} | {} | {} | {} | {} | {} |\n",
                kind.name(),
                sum.reported,
                sum.sealed,
                sum.lost,
                sum.wrong,
                sum.silent,
                sum.of_reported.0,
                sum.of_reported.1
            ));
        }
    }
    table
}

fn write(root: &Path, table: &str) -> Result<()> {
    let path = root.join(DOCUMENT);
    let text = fs::read_to_string(&path)?;
    let (before, rest) = text
        .split_once(BEGIN)
        .context("the document has no place for the table")?;
    let (_, after) = rest.split_once(END).context("the table has no end")?;
    fs::write(&path, format!("{before}{BEGIN}\n{table}\n{END}{after}"))?;
    Ok(())
}

/// Records a program, unless the folder has a recording already, and reads it undamaged.
fn subject(cofi: &Path, folder: &Path, line: &[&str], options: &Options) -> Result<Subject> {
    let program = line[0];
    let (data, truth) = (
        folder.join(format!("{program}.data")),
        folder.join(format!("{program}.truth")),
    );
    if !data.exists() {
        let text_file = folder.join("text");
        fs::write(&text_file, build::text(TEXT))?;
        let mut command = patient(cofi);
        command
            .args(["record", "--engine", "qemu", "-o"])
            .arg(&data);
        command.arg("--truth").arg(&truth).arg("--").args(line);
        build::tool(command.arg(&text_file)).with_context(|| format!("recording {program}"))?;
    }
    let recording = Recording::new(fs::read(&data)?)?;
    let (flows, tid) = flows::truth(BufReader::new(File::open(&truth)?))?;
    let mut stream = recording.stream();
    let end = cut(&mut stream, LONGEST)?;
    let whole = folder.join("whole.data");
    fs::write(&whole, recording.with(&stream))?;
    let said = decode(Who::Cofi, cofi, &whole)?;
    ensure!(
        said.errors.is_empty() && flows.threads[&tid].starts_with(&said.addresses),
        "{program}: Cofi reads the undamaged trace wrong"
    );
    let truth = said.addresses;
    let mut tail = 0;
    if !options.is_alone {
        let said = decode(Who::Perf, cofi, &whole)?;
        ensure!(
            said.errors.is_empty() && truth.starts_with(&said.addresses),
            "{program}: perf reads the undamaged trace wrong"
        );
        tail = truth.len() - said.addresses.len();
    }
    println!(
        "exam damage: {program}: {} instructions, {end} bytes of packets; perf ends {tail} instructions earlier",
        truth.len()
    );
    Ok(Subject {
        program: line.join(" "),
        recording,
        stream,
        end,
        truth,
        tail,
    })
}

fn decode(who: Who, cofi: &Path, data: &Path) -> Result<Said> {
    let errors = data.with_extension("err");
    let (said, ..) = match who {
        Who::Cofi => {
            let mut command = patient(cofi);
            command.args(["insn", "--json"]).arg(data);
            listen(command, &errors, by_cofi)?
        }
        Who::Perf => {
            let mut command = patient(Path::new("perf"));
            command.args(["script", "-f", "--itrace=i1ie", "-F", "tid,ip", "-i"]);
            command.arg(data);
            listen(command, &errors, by_perf)?
        }
    };
    Ok(said)
}

/// What `cofi insn --json` reports of one thread.
fn by_cofi(input: impl BufRead) -> Result<Said> {
    let mut said = Said::default();
    each_line(input, |line| {
        if let Some(rest) = line.strip_prefix("{\"insn\":\"") {
            let address = rest.split('"').next().and_then(hex);
            said.addresses.push(address.context("an address")?);
        } else if line.contains("does not match its seal") {
            said.seals += 1;
        } else if line.contains("\"kind\":\"unknown-end\"") {
            // The packets are cut off while tracing is on: Intel PT has this at the end of a stream only.
        } else if line.starts_with("{\"error\":") {
            said.errors.push(said.addresses.len());
        }
        Ok(())
    })?;
    Ok(said)
}

/// What perf reports of one thread.
fn by_perf(input: impl BufRead) -> Result<Said> {
    let mut said = Said::default();
    each_line(input, |line| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (None, ..) => {}
            (Some(_), Some(ip), None) if hex(ip).is_some() => said.addresses.extend(hex(ip)),
            _ => said.errors.push(said.addresses.len()),
        }
        Ok(())
    })?;
    Ok(said)
}
