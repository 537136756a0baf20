//! `cargo xtask bench libipt`: the decoding speed of Cofi and of libipt, in the same run, on the same packets and code.
//!
//! Both are small programs that decode a stream several times, each time from nothing, look at the address of every instruction
//! or of every block, and tell their own processor time. They take turns; what counts is the median over the rounds. A trace on
//! which they do not find the same instructions is a failure, not a result.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{LS, counted, load, median, traces};
use cofi_exam::programs::{CONFIGS, Config, PROGRAMS};
use cofi_exam::{build, flows, sideband};

/// The exam's programs that are recorded on the spot.
const RECORDED: [&str; 2] = ["static", "dynamic"];
/// The configurations of the exam that they are recorded in.
const CONFIGURATIONS: [&str; 2] = ["default", "noretcomp"];
/// The traces of real processors.
pub(super) const REAL: [&str; 6] = [
    "xdc-mruby",
    "xdc-unzip",
    "xdc-avscript32",
    "xdc-foo",
    "arcus-int-01-poc",
    "arcus-ovf-01-ben",
];

/// How a trace is gone through, and with which options the two decoders do so.
#[derive(Debug)]
struct Level {
    name: &'static str,
    cofi: &'static [&'static str],
    libipt: &'static [&'static str],
    /// Whether the addresses add up to the same. Where a block ends is for each decoder to say.
    sums: bool,
}

const LEVELS: [Level; 3] = [
    Level {
        name: "instructions",
        cofi: &["--level", "instructions"],
        libipt: &[],
        sums: true,
    },
    Level {
        name: "blocks",
        cofi: &["--level", "blocks"],
        libipt: &["--blocks"],
        sums: false,
    },
    Level {
        name: "items",
        cofi: &["--level", "items"],
        libipt: &[],
        sums: true,
    },
];

#[derive(Debug)]
struct Options {
    /// The names of the levels to race at.
    levels: Vec<String>,
    /// Count instructions instead of measuring time.
    counted: bool,
    rounds: usize,
    /// About how many instructions one process shall decode.
    instructions: u64,
    traces: PathBuf,
    cofi: Option<PathBuf>,
}

/// Traces in which libipt 2.0.5's instruction decoder breaks off, though its block decoder does not.
pub(super) const BLOCKS_ONLY: [&str; 2] = ["arcus-int-01-poc", "arcus-ovf-01-ben"];

fn options(root: &Path, arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        levels: vec!["instructions".to_owned(), "blocks".to_owned()],
        counted: false,
        rounds: 7,
        instructions: 20_000_000,
        traces: traces(root),
        cofi: None,
    };
    let (flags, arguments): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|word| *word == "--counted");
    options.counted = !flags.is_empty();
    for pair in arguments.chunks(2) {
        let [word, value] = pair else {
            bail!("{} wants a value", pair[0]);
        };
        match word.as_str() {
            "--level" => {
                ensure!(
                    LEVELS.iter().any(|level| level.name == value.as_str()),
                    "--level wants one of {}",
                    LEVELS.map(|level| level.name).join(", ")
                );
                options.levels = vec![(*value).clone()];
            }
            "--rounds" => options.rounds = value.parse().context("--rounds wants a number")?,
            "--instructions" => {
                options.instructions = value.parse().context("--instructions wants a number")?;
            }
            "--traces" => options.traces = PathBuf::from(value),
            "--cofi" => options.cofi = Some(PathBuf::from(value)),
            _ => bail!("{word}: there is no such option"),
        }
    }
    ensure!(options.rounds > 0, "--rounds wants at least 1");
    Ok(options)
}

/// A trace, in the words both decoders understand.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    pub(super) name: String,
    pub(super) stream: PathBuf,
    /// Before the stream.
    pub(super) options: Vec<String>,
    /// After it: FILE:OFFSET:SIZE:ADDRESS.
    pub(super) sections: Vec<String>,
}

/// What a decoder says of its passes over a trace.
#[derive(Debug, PartialEq)]
struct Answer {
    instructions: u64,
    sum: u64,
    seconds: f64,
}

fn answer(line: &str) -> Option<Answer> {
    let mut words = line.split_whitespace();
    let answer = Answer {
        instructions: words.next()?.parse().ok()?,
        sum: words.next()?.parse().ok()?,
        seconds: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(answer)
}

fn command(decoder: &Path, level: &[&str], trace: &Trace, passes: u64) -> Command {
    let mut command = Command::new(decoder);
    command
        .args(level)
        .args(&trace.options)
        .args(["--count", &passes.to_string()])
        .arg(&trace.stream)
        .args(&trace.sections);
    command
}

/// Runs one decoder once.
fn decode(decoder: &Path, level: &[&str], trace: &Trace, passes: u64) -> Result<Answer> {
    let output = command(decoder, level, trace, passes)
        .output()
        .with_context(|| format!("running {}", decoder.display()))?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} on {}: {}",
        decoder.display(),
        trace.name,
        words.lines().next().unwrap_or("it failed without a word")
    );
    answer(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("{} says nothing of use", decoder.display()))
}

/// The instructions that each decoder takes for a pass over one trace; the line of the table.
fn count(trace: &Trace, level: &Level, decoders: [&Path; 2]) -> Result<String> {
    const PASSES: [u64; 2] = [1, 3];
    let mut each = [0.0; 2];
    let mut found = [0; 2];
    for (who, decoder) in decoders.into_iter().enumerate() {
        let words = [level.cofi, level.libipt][who];
        let mut counts = [0.0; 2];
        for (count, passes) in counts.iter_mut().zip(PASSES) {
            let (said, instructions) = counted::run(&command(decoder, words, trace, passes))?;
            found[who] = answer(&said).context("no answer")?.instructions;
            *count = instructions as f64;
        }
        each[who] = (counts[1] - counts[0]) / (PASSES[1] - PASSES[0]) as f64;
    }
    ensure!(found[0] == found[1], "they find {found:?} instructions");
    let [cofi, libipt] = each;
    let insns = found[0] as f64;
    Ok(format!(
        "{:<20} {:>9} {:>10.2} {:>10.2} {:>6.2}",
        trace.name,
        found[0],
        cofi / insns,
        libipt / insns,
        libipt / cofi
    ))
}

/// The decoders take turns on one trace; the line of the table, or how their answers differ.
fn race(
    trace: &Trace,
    level: &Level,
    [cofi, libipt]: [&Path; 2],
    options: &Options,
) -> Result<String> {
    let expected = decode(cofi, level.cofi, trace, 1)?;
    ensure!(expected.instructions > 0, "{}: no instructions", trace.name);
    let passes = options.instructions.div_ceil(expected.instructions).max(1);
    let (mut seconds, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for round in 0..options.rounds {
        let mut both = [0.0; 2];
        // Who goes first changes from round to round.
        for turn in 0..2 {
            let who = (turn + round) % 2;
            let said = decode(
                [cofi, libipt][who],
                [level.cofi, level.libipt][who],
                trace,
                passes,
            )?;
            let same_sum = said.sum == expected.sum || !level.sums;
            ensure!(
                said.instructions == expected.instructions && same_sum,
                "{}: {} finds {} instructions (addresses add up to {:#x}), Cofi's first pass {} ({:#x})",
                trace.name,
                ["Cofi", "libipt"][who],
                said.instructions,
                said.sum,
                expected.instructions,
                expected.sum
            );
            both[who] = said.seconds / passes as f64;
            seconds[who].push(both[who]);
        }
        ratios.push(both[1] / both[0]);
    }
    let bytes = fs::metadata(&trace.stream)?.len() as f64 / 1e6;
    let [cofi, libipt] = seconds.map(median);
    let millions = expected.instructions as f64 / 1e6;
    ratios.sort_by(f64::total_cmp);
    Ok(format!(
        "{:<20} {:>9} {:>7.3} {:>10.1} {:>8.2} {:>10.1} {:>8.2} {:>6.2} {:>6.2}-{:.2}",
        trace.name,
        expected.instructions,
        bytes,
        millions / cofi,
        bytes / cofi,
        millions / libipt,
        bytes / libipt,
        median(ratios.clone()),
        ratios[0],
        ratios[ratios.len() - 1],
    ))
}

/// Records a program and finds out what code its first thread ran.
fn record(
    cofi: &Path,
    program: (&str, &Path, &[String]),
    config: &Config,
    folder: &Path,
    vdso: &Path,
) -> Result<Trace> {
    let (name, path, arguments) = program;
    let name = format!("{name} {}", config.name);
    let place = folder.join(name.replace(' ', "."));
    fs::create_dir_all(&place)?;
    let (data, stream, truth) = (
        place.join("bench.data"),
        place.join("raw.pt"),
        place.join("truth"),
    );
    let mut command = Command::new(cofi);
    command.args(["record", "--engine", "ptrace"]);
    if let Some(value) = config.value {
        command.args(["--config", value]);
    }
    let output = command
        .arg("-o")
        .arg(&data)
        .arg("--raw-output")
        .arg(&stream)
        .arg("--truth")
        .arg(&truth)
        .arg("--")
        .arg(path)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .context("running cofi record")?;
    // The program's own status is handed through: whether there is a recording shows in its files.
    let list = fs::read(&truth).with_context(|| {
        format!(
            "{name}: no recording: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )
    })?;
    let (_, first) = flows::truth(list.as_slice())?;
    let (options, sections) =
        timeless(sideband::ptinsn_arguments(&data, first, vdso)?).with_context(|| name.clone())?;
    Ok(Trace {
        name,
        stream,
        options,
        sections,
    })
}

/// The options and sections among the arguments of `ptinsn`, when it was of no importance when a section came: no two
/// different ones overlap.
pub(super) fn timeless(arguments: Vec<String>) -> Result<(Vec<String>, Vec<String>)> {
    let (mut options, mut sections) = (Vec::new(), Vec::<String>::new());
    let mut ranges = Vec::<(u64, u64)>::new();
    let mut arguments = arguments.into_iter();
    while let Some(word) = arguments.next() {
        match word.as_str() {
            "--clear" => {}
            "--at" => drop(arguments.next()),
            "--cpuid-15" | "--mtc-freq" => {
                options.push(word);
                options.extend(arguments.next());
            }
            _ if sections.contains(&word) => {}
            _ => {
                let mut fields = word.rsplit(':').map(|field| {
                    u64::from_str_radix(field.trim_start_matches("0x"), 16)
                        .with_context(|| format!("{word} is no section"))
                });
                let mut field = || fields.next().context("a section ends too soon")?;
                let (address, size) = (field()?, field()?);
                let end = address.saturating_add(size);
                ensure!(
                    ranges.iter().all(|(a, e)| end <= *a || *e <= address),
                    "the code at {address:#x} changes with time, which is not for the race"
                );
                ranges.push((address, end));
                sections.push(word);
            }
        }
    }
    Ok((options, sections))
}

/// The processor in "family 6 model 79 …", as both decoders want it.
fn cpu(words: &str) -> Option<String> {
    let words: Vec<&str> = words.split_whitespace().collect();
    let after = |key| {
        let at = words.iter().position(|word| *word == key)?;
        words.get(at + 1)?.parse::<u16>().ok()
    };
    let stepping = after("stepping").unwrap_or(0);
    Some(format!(
        "{}/{}/{stepping}",
        after("family")?,
        after("model")?
    ))
}

/// Reads the `case.json` of a trace of a real processor.
pub(super) fn real(folder: &Path, name: &str) -> Result<Trace> {
    let case = folder.join(name);
    let text = fs::read_to_string(case.join("case.json"))?;
    let json: Value = serde_json::from_str(&text)?;
    let mut sections = Vec::new();
    for image in json["images"].as_array().context("no images")? {
        let file = case.join(image["file"].as_str().context("an image without file")?);
        let base = image["base"].as_str().context("an image without base")?;
        let size = fs::metadata(&file)?.len();
        sections.push(format!("{}:0:{size}:{base}", file.display()));
    }
    let cpu = json["cpu"].as_str().and_then(cpu);
    Ok(Trace {
        name: name.to_owned(),
        stream: case.join(json["trace"].as_str().context("no trace")?),
        options: cpu.map_or_else(Vec::new, |cpu| vec!["--cpu".to_owned(), cpu]),
        sections,
    })
}

/// Races on every trace, and returns whether the decoders agreed everywhere.
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let options = options(root, arguments)?;
    let folder = std::env::temp_dir().join(format!("cofi-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let outcome = hold(root, &folder, &options);
    // What cannot be removed lies in the folder for temporary files anyway.
    let _ = fs::remove_dir_all(&folder);
    outcome
}

fn hold(root: &Path, folder: &Path, options: &Options) -> Result<bool> {
    let libipt = build::ptinsn(root, folder).map_err(anyhow::Error::msg)?;
    let decoder = build::release(root, "cofi-flow", "--example", "decode")?;
    let cofi = match &options.cofi {
        Some(path) => path.clone(),
        None => build::cofi(root)?,
    };
    let vdso = sideband::dump_vdso(&folder.join("vdso"))?;
    let sources = root.join("exam/programs");

    let mut traces = Vec::new();
    let exam = PROGRAMS.iter().filter(|p| RECORDED.contains(&p.name));
    for program in exam.chain([&LS]) {
        let path = build::program(&sources, folder, program)?;
        let arguments: Vec<String> = program
            .arguments
            .iter()
            .map(|a| a.replace("@PROGRAMS", &sources.display().to_string()))
            .collect();
        for config in CONFIGS.iter().filter(|c| CONFIGURATIONS.contains(&c.name)) {
            let what = (program.name, path.as_path(), arguments.as_slice());
            traces.push(record(&cofi, what, config, folder, &vdso)?);
        }
    }
    for name in REAL {
        if options.traces.join(name).is_dir() {
            traces.push(real(&options.traces, name).with_context(|| name.to_owned())?);
        } else {
            println!(
                "bench: no {name} in {}: NOT MEASURED (--traces FOLDER or COFI_TRACES says where the traces of real \
                 processors are)",
                options.traces.display()
            );
        }
    }

    if !options.counted {
        println!(
            "bench: {} rounds of about {} million instructions a process; medians; processor time; load {}",
            options.rounds,
            options.instructions / 1_000_000,
            load()
        );
    }
    let mut good = true;
    let levels = options.levels.iter();
    for level in levels.filter_map(|name| LEVELS.iter().find(|level| level.name == name)) {
        if options.counted {
            println!(
                "\n{} (processor instructions for each traced one)",
                level.name
            );
            println!(
                "{:<20} {:>9} {:>10} {:>10} {:>6}",
                "trace", "insns", "cofi", "libipt", "ratio"
            );
            for trace in at_level(&traces, level) {
                match count(trace, level, [&decoder, &libipt]) {
                    Ok(line) => println!("{line}"),
                    Err(error) => {
                        good = false;
                        println!("{:<20} FAILED: {error:#}", trace.name);
                    }
                }
            }
            continue;
        }
        println!(
            "\n{:<20} {:>9} {:>7} {:>10} {:>8} {:>10} {:>8} {:>6} {:>11}",
            level.name, "", "", "cofi", "cofi", "libipt", "libipt", "", "ratio"
        );
        println!(
            "{:<20} {:>9} {:>7} {:>10} {:>8} {:>10} {:>8} {:>6} {:>11}",
            "trace", "insns", "MB", "M insn/s", "MB/s", "M insn/s", "MB/s", "ratio", "min-max"
        );
        for trace in at_level(&traces, level) {
            match race(trace, level, [&decoder, &libipt], options) {
                Ok(line) => println!("{line}"),
                Err(error) => {
                    good = false;
                    println!("{:<20} FAILED: {error:#}", trace.name);
                }
            }
        }
    }
    Ok(good)
}

/// The traces that both decoders read at a level.
fn at_level<'t>(traces: &'t [Trace], level: &Level) -> impl Iterator<Item = &'t Trace> {
    let by_instruction = level.sums;
    let breaks_off = |trace: &&Trace| BLOCKS_ONLY.contains(&trace.name.as_str());
    traces
        .iter()
        .filter(move |trace| !(by_instruction && breaks_off(trace)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_three_numbers_and_nothing_else() {
        let expected = Answer {
            instructions: 12,
            sum: u64::MAX,
            seconds: 0.25,
        };
        assert_eq!(answer("12 18446744073709551615 0.250000\n"), Some(expected));
        assert_eq!(answer("12 5"), None);
        assert_eq!(answer("12 5 0.5 more"), None);
        assert_eq!(answer("0x401000"), None);
    }

    #[test]
    fn times_may_go_only_if_no_code_replaces_other_code() {
        let split = |words: &str| timeless(words.split(' ').map(str::to_owned).collect());
        let words = "--cpuid-15 1,80 a:0x0:0x1000:0x4000 --at 7 --clear a:0x0:0x1000:0x4000 b:0x0:0x10:0x5000";
        let (options, sections) = split(words).expect("nothing overlaps");
        assert_eq!(options, ["--cpuid-15", "1,80"]);
        assert_eq!(sections, ["a:0x0:0x1000:0x4000", "b:0x0:0x10:0x5000"]);
        assert!(split("a:0x0:0x1001:0x4000 --at 7 b:0x0:0x10:0x5000").is_err());
        assert!(split("nonsense").is_err());
    }

    #[test]
    fn a_processor_is_named_with_slashes() {
        let words = "family 6 model 79 (the PSB+ errata apply)";
        assert_eq!(cpu(words).as_deref(), Some("6/79/0"));
        assert_eq!(
            cpu("family 6 model 85 stepping 4").as_deref(),
            Some("6/85/4")
        );
        assert_eq!(cpu("unknown"), None);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            options(Path::new("/none"), &words)
        };
        assert_eq!(parse(&["--rounds", "3"]).expect("a number").rounds, 3);
        assert!(parse(&["--rounds", "0"]).is_err());
        assert!(parse(&["--rounds"]).is_err());
        assert!(parse(&["--speed", "1"]).is_err());
        assert_eq!(
            parse(&["--level", "items"]).expect("a level").levels,
            ["items"]
        );
        assert!(parse(&["--level", "bits"]).is_err());
    }
}
