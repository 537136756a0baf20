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

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

pub use guest::speed as speed_of_guests;
pub use machine::initrd;

use compare::Verdict;
use programs::{CONFIGS, Config, PROGRAMS, Peer, Program};
use run::{Native, Row, Tools};

/// The parts of the exam. Without one, real programs are recorded, and every decoder is compared with the truth, address by address; then the part `packets` follows, unless a
/// program or configuration is asked for.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask exam", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Compare how Cofi, libipt and perf read random streams of packets, good ones and bad ones, and how Cofi reads RTIT with what the manual says
    Packets(packets::Options),
    /// Let libipt and perf read what the trace unit writes for random machines and for the scenarios of corpus/unit, and libipt decode the machines' flow
    Unit(unit::Options),
    /// Compare the times that perf and libipt give to instructions with the intervals that Cofi states
    Time,
    /// Compare perf's instructions, branches and times of random walks with Cofi's and with the truth
    Generated(generated::Options),
    /// Damage a recording in many ways, and count what Cofi and perf lose of it and report wrongly; the table is in docs/recovery.md
    Damage(damage::Options),
    /// Record programs that people run through QEMU, and compare perf's samples with Cofi's list
    Large(Examined),
    /// Record programs whose threads change code that others run, and guests that do, while other processes work
    Jit(jit::Options),
    /// Count the calls of a large program beside callgrind and perf
    Calls(Examined),
    /// Have other programs open what `cofi export` writes
    Exports(Examined),
    /// End recordings in every way, and compare what comes of it with the table in docs/endings.md
    Endings(endings::Options),
    /// Compare the tables of instructions with the disassembler: every opcode, random bytes, the machine's own binaries or FILEs
    Insn(insn::Options),
    /// The properties of the law with many cases each
    Law(law::Options),
    /// Record whole machines, and compare a boot with QEMU's own log of it
    Machine(machine::Options),
    /// Run machines that have Intel PT: their registers against the manual, and what perf records in them against what they ran
    Guest(guest::Options),
}

/// The command under examination.
#[derive(Debug, Default, Clone, Args)]
struct Examined {
    /// The command under examination; it is built if that is left out
    #[arg(long, value_name = "PATH")]
    cofi: Option<PathBuf>,
}

impl Examined {
    fn path(&self, root: &Path) -> Result<PathBuf> {
        match &self.cofi {
            Some(path) => path
                .canonicalize()
                .with_context(|| format!("finding {}", path.display())),
            None => build::cofi(root),
        }
    }
}

/// What is booted, if anything is.
#[derive(Debug, Args)]
struct Boot {
    /// A Linux kernel, which is booted
    #[arg(long, value_name = "FILE", requires = "busybox")]
    kernel: Option<PathBuf>,
    /// A static busybox, for its shell
    #[arg(long, value_name = "FILE", requires = "kernel")]
    busybox: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Options {
    /// A program that is examined, if not all; again for each further one
    #[arg(long, value_name = "PROGRAM", value_parser = PossibleValuesParser::new(PROGRAMS.iter().map(|program| program.name)))]
    only: Vec<String>,
    /// A configuration in which programs are recorded, if not all; again for each further one
    #[arg(long = "config", value_name = "NAME", value_parser = PossibleValuesParser::new(CONFIGS.iter().map(|config| config.name)))]
    configs: Vec<String>,
    #[command(flatten)]
    cofi: Examined,
    /// Where everything written stays
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// How many recordings are made at a time; as many as there are processors
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Print the names of the programs
    #[arg(long)]
    list: bool,
}

/// What the arguments ask for.
///
/// # Errors
/// They make no sense, or ask for help; the text of that.
fn parse(arguments: &[String]) -> clap::error::Result<Cli> {
    Cli::try_parse_from(std::iter::once("exam").chain(arguments.iter().map(String::as_str)))
}

/// One entry of the work list.
struct Paper<'a> {
    program: &'a Program,
    path: &'a Path,
    arguments: &'a [String],
    native: &'a Native,
    config: &'a Config,
}

/// Holds the exam that the arguments ask for and returns whether everything that was compared held.
///
/// # Errors
/// Something that is needed is not there, or cannot be run. Arguments that make no sense end the process with status 2.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let cli = parse(arguments).unwrap_or_else(|error| error.exit());
    match cli.part {
        Some(Part::Packets(options)) => packets::run(root, &options),
        Some(Part::Unit(options)) => unit::run(root, &options),
        Some(Part::Time) => times::run(root),
        Some(Part::Generated(options)) => generated::run(root, &options),
        Some(Part::Damage(options)) => damage::run(root, &options),
        Some(Part::Large(cofi)) => large::run(root, &cofi),
        Some(Part::Jit(options)) => jit::run(root, &options),
        Some(Part::Calls(cofi)) => calls::run(root, &cofi),
        Some(Part::Exports(cofi)) => exports::run(root, &cofi),
        Some(Part::Endings(options)) => endings::run(root, &options),
        Some(Part::Insn(options)) => insn::run(root, options),
        Some(Part::Law(options)) => law::run(root, &options),
        Some(Part::Machine(options)) => machine::run(root, &options),
        Some(Part::Guest(options)) => guest::run(root, &options),
        None => of_programs(root, cli.options),
    }
}

/// Real programs, and then packets.
fn of_programs(root: &Path, options: Options) -> Result<bool> {
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
    let rows = within(options.keep.as_deref(), "exam", |folder| {
        sit(root, folder, &options, &chosen, &configs)
    })?;
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
        ..packets::Options::default()
    };
    Ok(packets::run(root, &part)? && bad == 0)
}

/// Holds a part in the folder `keep`, or in one for temporary files, which goes with it.
fn within<T>(keep: Option<&Path>, part: &str, hold: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let temporary = || std::env::temp_dir().join(format!("cofi-{part}-{}", std::process::id()));
    let folder = keep.map_or_else(temporary, Path::to_owned);
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let outcome = hold(&folder);
    if keep.is_none() {
        // What cannot be removed lies in the folder for temporary files anyway.
        let _ = fs::remove_dir_all(&folder);
    }
    outcome
}

fn sit(
    root: &Path,
    folder: &Path,
    options: &Options,
    chosen: &[&Program],
    configs: &[&Config],
) -> Result<Vec<Row>> {
    let tools = Tools {
        cofi: options.cofi.path(root)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn part(words: &str) -> clap::error::Result<Option<Part>> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        parse(&words).map(|cli| cli.part)
    }

    #[test]
    fn the_arguments_are_described_consistently() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let Ok(Some(Part::Packets(packets))) = part("packets --seed 9 --streams 2") else {
            panic!("numbers");
        };
        assert_eq!((packets.seed, packets.streams), (9, 2));
        let Ok(Some(Part::Unit(unit))) = part("unit --seed 9 --machines 2") else {
            panic!("numbers");
        };
        assert_eq!((unit.seed, unit.machines, unit.steps), (9, 2, 1500));
        let Ok(Some(Part::Generated(generated))) = part("generated --seed 9 --streams 16") else {
            panic!("numbers");
        };
        assert_eq!((generated.seed, generated.streams), (9, 16));
        let Ok(Some(Part::Insn(insn))) = part("insn --seed 7 /bin/true") else {
            panic!("a number and a file");
        };
        assert!(insn.seed == 7 && insn.files == [PathBuf::from("/bin/true")]);
        for words in [
            "packets --streams 0",
            "packets --seed",
            "packets --speed 1",
            "unit --machines 0",
            "generated --streams 15",
            "damage --cases 0",
            "damage --write --without-perf",
            "insn --random",
            "insn --seeds 1",
            "law --only nothing",
            "law --cases 0",
            "jit --only nothing",
            "jit --kernel vmlinuz",
            "machine --busybox busybox",
            "guest --load 5",
            "time 1",
            "--only nothing",
            "nothing",
        ] {
            assert!(part(words).is_err(), "{words}");
        }
    }
}
