//! `cargo xtask exam`: real programs, recorded by `cofi record`; every address that `cofi insn`, `perf script` and
//! libipt then print is compared with the list of instructions that the recorder saw the processor execute. `packets` is
//! the part about the packets themselves.

pub mod build;
mod calls;
mod compare;
mod damage;
mod endings;
mod exports;
pub mod flows;
mod generated;
mod guest;
mod insn;
mod jit;
mod large;
mod law;
mod machine;
mod packets;
pub mod programs;
mod rtit;
mod run;
pub mod sideband;
mod times;
mod unit;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};

pub use guest::speed as speed_of_guests;
pub use machine::initrd;

use compare::Verdict;
use programs::{CONFIGS, Config, PROGRAMS, Peer, Program};
use run::{Native, Row, Tools};

#[derive(Debug, Default)]
struct Options {
    only: Vec<String>,
    configs: Vec<String>,
    cofi: Option<PathBuf>,
    keep: Option<PathBuf>,
    jobs: Option<usize>,
    list: bool,
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut options = Options::default();
    let mut arguments = arguments.iter();
    while let Some(word) = arguments.next() {
        if word == "--list" {
            options.list = true;
            continue;
        }
        let value = arguments
            .next()
            .with_context(|| format!("{word} wants a value"))?
            .clone();
        match word.as_str() {
            "--only" if PROGRAMS.iter().any(|p| p.name == value) => options.only.push(value),
            "--config" if CONFIGS.iter().any(|c| c.name == value) => options.configs.push(value),
            "--cofi" => options.cofi = Some(PathBuf::from(value)),
            "--keep" => options.keep = Some(PathBuf::from(value)),
            "--jobs" => options.jobs = Some(value.parse().context("--jobs wants a number")?),
            _ => bail!("{word} {value}: there is no such thing"),
        }
    }
    Ok(options)
}

/// One entry of the work list.
struct Paper<'a> {
    program: &'a Program,
    path: &'a Path,
    arguments: &'a [String],
    native: &'a Native,
    config: &'a Config,
}

/// Runs the exam and returns whether everything that was compared held.
///
/// # Errors
/// The arguments make no sense, or something that is needed cannot be run.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    if let Some((_, rest)) = arguments
        .split_first()
        .filter(|(word, _)| *word == "packets")
    {
        return packets::run(root, &packets::options(root, rest)?);
    }
    if let Some((_, rest)) = arguments.split_first().filter(|(word, _)| *word == "unit") {
        return unit::run(root, &unit::options(rest)?);
    }
    if let Some((_, rest)) = arguments.split_first().filter(|(word, _)| *word == "time") {
        return times::run(root, rest);
    }
    if let Some((_, rest)) = arguments
        .split_first()
        .filter(|(word, _)| *word == "generated")
    {
        return generated::run(root, &generated::options(rest)?);
    }
    if let Some((_, rest)) = arguments
        .split_first()
        .filter(|(word, _)| *word == "damage")
    {
        return damage::run(root, rest);
    }
    if let Some((_, rest)) = arguments.split_first().filter(|(word, _)| *word == "jit") {
        return jit::run(root, rest);
    }
    if let Some((_, rest)) = arguments
        .split_first()
        .filter(|(word, _)| *word == "endings")
    {
        return endings::run(root, rest);
    }
    if let Some((_, rest)) = arguments.split_first().filter(|(word, _)| *word == "calls") {
        return calls::run(root, rest);
    }
    if let Some((_, rest)) = arguments
        .split_first()
        .filter(|(word, _)| *word == "exports")
    {
        return exports::run(root, rest);
    }
    if let Some((_, rest)) = arguments.split_first().filter(|(word, _)| *word == "insn") {
        return insn::run(root, rest);
    }
    if let Some((_, rest)) = arguments.split_first().filter(|(word, _)| *word == "law") {
        return law::run(root, rest);
    }
    if let Some((_, rest)) = arguments.split_first().filter(|(word, _)| *word == "large") {
        return large::run(root, rest);
    }
    if let Some((_, rest)) = arguments.split_first().filter(|(word, _)| *word == "guest") {
        return guest::run(root, &guest::options(rest)?);
    }
    if let Some((_, rest)) = arguments
        .split_first()
        .filter(|(word, _)| *word == "machine")
    {
        return machine::run(root, &machine::options(rest)?);
    }
    let options = options(arguments)?;
    let chosen: Vec<&Program> = PROGRAMS
        .iter()
        .filter(|p| options.only.is_empty() || options.only.iter().any(|o| o == p.name))
        .collect();
    let configs: Vec<&Config> = CONFIGS
        .iter()
        .filter(|c| options.configs.is_empty() || options.configs.iter().any(|o| o == c.name))
        .collect();
    if options.list {
        for program in chosen {
            println!("{}", program.name);
        }
        return Ok(true);
    }
    let started = Instant::now();
    let folder = options
        .keep
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("cofi-exam-{}", std::process::id())));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let outcome = sit(root, &folder, &options, &chosen, &configs);
    if options.keep.is_none() {
        // What cannot be removed lies in the folder for temporary files anyway.
        let _ = fs::remove_dir_all(&folder);
    }
    let rows = outcome?;
    let bad = report(&rows);
    println!(
        "exam: {} recordings of {} programs, {} instructions, {bad} failed, {:.0} s",
        rows.len(),
        chosen.len(),
        rows.iter().map(|r| r.instructions).sum::<usize>(),
        started.elapsed().as_secs_f64()
    );
    // Who asks for one program does not ask for this part.
    if !options.only.is_empty() || !options.configs.is_empty() {
        return Ok(bad == 0);
    }
    println!();
    let part = packets::Options {
        cofi: options.cofi,
        keep: options.keep.map(|folder| folder.join("packets")),
        ..packets::Options::new(root)
    };
    Ok(packets::run(root, &part)? && bad == 0)
}

fn sit(
    root: &Path,
    folder: &Path,
    options: &Options,
    chosen: &[&Program],
    configs: &[&Config],
) -> Result<Vec<Row>> {
    let tools = Tools {
        cofi: match &options.cofi {
            Some(path) => path.clone(),
            None => build::cofi(root)?,
        },
        perf: build::perf(),
        ptinsn: build::ptinsn(root, folder),
        vdso: sideband::dump_vdso(&folder.join("vdso"))?,
    };
    match &tools.perf {
        Ok(version) => println!("exam: {version}"),
        Err(reason) => println!("exam: {reason}"),
    }
    let sources = root.join("exam/programs");
    let place = sources.display().to_string();
    let mut prepared = Vec::new();
    for program in chosen {
        let path = build::program(&sources, folder, program)?;
        let arguments: Vec<String> = program
            .arguments
            .iter()
            .map(|a| a.replace("@PROGRAMS", &place))
            .collect();
        let native = run::native(&path, &arguments)?;
        prepared.push((*program, path, arguments, native));
    }
    let qemu = std::process::Command::new("qemu-x86_64")
        .arg("--version")
        .output();
    if qemu.is_err() && configs.iter().any(|config| config.engine == "qemu") {
        println!(
            "exam: no qemu-x86_64: recordings through QEMU are NOT EXAMINED (Debian's package qemu-user has it)"
        );
    }
    let may = |program: &Program, config: &Config| {
        if config.engine != "qemu" || qemu.is_err() {
            return config.engine != "qemu";
        }
        if let Some(why) = program.not_for_qemu {
            println!("exam: {} through QEMU: not examined: {why}", program.name);
        }
        program.not_for_qemu.is_none()
    };
    let papers: VecDeque<Paper<'_>> = prepared
        .iter()
        .flat_map(|(program, path, arguments, native)| {
            let configs = configs.iter().filter(|config| may(program, config));
            configs.map(move |config| Paper {
                program,
                path,
                arguments,
                native,
                config,
            })
        })
        .collect();
    let order: Vec<(&str, &str)> = papers
        .iter()
        .map(|p| (p.program.name, p.config.name))
        .collect();
    let workers = options
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
        .max(1);
    let (queue, rows) = (Mutex::new(papers), Mutex::new(Vec::new()));
    let failure = std::thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let Some(paper) = queue.lock().ok().and_then(|mut q| q.pop_front()) else {
                    return Ok(());
                };
                let place = folder.join(format!("{}.{}", paper.program.name, paper.config.name));
                let row = run::examine(
                    &tools,
                    paper.program,
                    paper.path,
                    paper.arguments,
                    paper.native,
                    paper.config,
                    &place,
                )
                .with_context(|| format!("{} ({})", paper.program.name, paper.config.name))?;
                if options.keep.is_none() {
                    let _ = fs::remove_dir_all(&place);
                }
                print_row(&row);
                if let Ok(mut rows) = rows.lock() {
                    rows.push(row);
                }
            }
        };
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut failure = None;
        for handle in handles {
            match handle.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(anyhow::anyhow!("a worker of the exam panicked")),
            }
        }
        failure
    });
    if let Some(error) = failure {
        return Err(error);
    }
    let mut rows = rows.into_inner().unwrap_or_default();
    rows.sort_by_key(|row| order.iter().position(|o| *o == (row.program, row.config)));
    Ok(rows)
}

fn word(verdict: &Verdict, excused: bool) -> &'static str {
    match verdict {
        Verdict::Exact(_) => "exact",
        Verdict::Differs(_) if excused => "differs*",
        Verdict::Differs(_) => "DIFFERS",
        Verdict::Skipped(_) => "skipped",
    }
}

fn is_excused(row: &Row, peer: Peer) -> bool {
    row.excused.iter().any(|(p, _)| *p == peer)
}

/// Progress, as it happens.
fn print_row(row: &Row) {
    println!("{}", line(row));
}

fn line(row: &Row) -> String {
    let record = match word(&row.record, false) {
        "exact" => "good",
        other => other,
    };
    format!(
        "{:<11} {:<10} {:>9} {:>7} {:>9} {:>7.1} {:<8} {:<8} {:<8} {:<8}",
        row.program,
        row.config,
        row.instructions,
        row.threads,
        row.bytes,
        row.seconds,
        record,
        word(&row.cofi, false),
        word(&row.perf, is_excused(row, Peer::Perf)),
        word(&row.libipt, is_excused(row, Peer::Libipt)),
    )
}

/// Prints the table with everything that needs words, and returns how many rows failed.
fn report(rows: &[Row]) -> usize {
    println!();
    println!(
        "{:<11} {:<10} {:>9} {:>7} {:>9} {:>7} {:<8} {:<8} {:<8} {:<8}",
        "program",
        "config",
        "insns",
        "threads",
        "bytes¹",
        "seconds",
        "record",
        "cofi",
        "perf",
        "libipt¹"
    );
    for row in rows {
        println!("{}", line(row));
    }
    println!(
        "¹ the first thread only: bare packets hold one thread. Of RTIT: a plain reader made from its reference and objdump's listing"
    );
    for row in rows {
        for (name, verdict, peer) in [
            ("record", &row.record, None),
            ("cofi", &row.cofi, None),
            ("perf", &row.perf, Some(Peer::Perf)),
            ("libipt", &row.libipt, Some(Peer::Libipt)),
        ] {
            let excuse = row
                .excused
                .iter()
                .find(|(p, _)| Some(*p) == peer)
                .map(|(_, why)| *why);
            let place = format!("{} ({}), {name}", row.program, row.config);
            match (verdict, excuse) {
                (Verdict::Differs(what), None) => {
                    println!("\n{place}: DIFFERS\n{}", what.trim_end())
                }
                (Verdict::Differs(what), Some(why)) => {
                    println!(
                        "\n{place}: differs, and is excused: {why}\n  ({})",
                        what.lines().next().unwrap_or_default()
                    );
                }
                // No stranger reads RTIT; that need not be said in each row.
                (Verdict::Skipped(_), _) if row.is_rtit => {}
                (Verdict::Skipped(why), _) => println!("\n{place}: skipped: {why}"),
                (Verdict::Exact(_), Some(_)) => {
                    println!("\n{place}: exact, although it is excused")
                }
                (Verdict::Exact(_), None) => {}
            }
        }
    }
    println!();
    rows.iter().filter(|row| !row.good()).count()
}
