//! `cargo xtask bench packets`: how many bytes a second Cofi and libipt decode and encode packet by packet, and how fast they find
//! PSBs, beside the speed of memcpy.
//!
//! The streams are recorded ones in a row until there are enough bytes: those of real processors and two made on the spot
//! with times. Processors write a good part of PADs, which a decoder can be quick about, so everything is measured
//! once more without them; and each of the two with times by itself, as they are full of CYC. `ptpackets bench`
//! (exam/libipt) and the example `bench` of cofi-packet take turns; both tell their own processor time, and a checksum of what they
//! found that must be the same.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{LS, median};
use cofi_exam::build;
use cofi_exam::programs::{CONFIGS, PROGRAMS};

/// What is recorded on the spot besides `ls -l`, and in which configuration of the exam.
const RECORDED: (&str, &str) = ("dynamic", "timed");
const PSB: [u8; 16] = [
    2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82,
];

#[derive(Debug)]
struct Options {
    rounds: usize,
    /// How large a stream is at least, in units of 2^20 bytes.
    megabytes: usize,
    traces: PathBuf,
    cofi: Option<PathBuf>,
}

fn options(root: &Path, arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        rounds: 5,
        megabytes: 256,
        traces: super::traces(root),
        cofi: None,
    };
    for pair in arguments.chunks(2) {
        let [word, value] = pair else {
            bail!("{} wants a value", pair[0]);
        };
        let number = || {
            let number = value.parse().ok().filter(|n| *n > 0);
            number.with_context(|| format!("{word} wants a number, at least 1"))
        };
        match word.as_str() {
            "--rounds" => options.rounds = number()?,
            "--megabytes" => options.megabytes = number()?,
            "--traces" => options.traces = PathBuf::from(value),
            "--cofi" => options.cofi = Some(PathBuf::from(value)),
            _ => bail!("{word}: there is no such option"),
        }
    }
    Ok(options)
}

/// How many passes a process makes; what counts is their median. Search and copy are over soon, and the first copy touches
/// memory that is not there yet.
fn passes(mode: &str) -> &'static str {
    match mode {
        "sync" | "memcpy" => "9",
        _ => "1",
    }
}

/// What a program says of its passes.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    packets: u64,
    checksum: String,
    seconds: f64,
}

fn answer(line: &str) -> Result<Answer> {
    let json: Value = serde_json::from_str(line)?;
    let number = |key: &str| json[key].as_u64().with_context(|| format!("no {key}"));
    ensure!(number("errors")? == 0, "{} errors", json["errors"]);
    // Slices that did not come out as they went in: who does not count them is known by the checksum.
    ensure!(
        json["differing"].as_u64().unwrap_or(0) == 0,
        "{} slices come out otherwise than they went in",
        json["differing"]
    );
    let seconds: Vec<f64> = json["seconds"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_f64)
        .collect();
    ensure!(!seconds.is_empty(), "no seconds");
    Ok(Answer {
        packets: number("packets")?,
        checksum: json["checksum"].as_str().context("no checksum")?.to_owned(),
        seconds: median(seconds),
    })
}

/// One who takes part.
struct Racer {
    name: &'static str,
    program: PathBuf,
    /// What stands before STREAM ROUNDS MODE on its command line.
    words: &'static [&'static str],
}

impl Racer {
    /// One process.
    fn measure(&self, stream: &Path, mode: &str) -> Result<Answer> {
        let output = Command::new(&self.program)
            .args(self.words)
            .arg(stream)
            .args([passes(mode), mode])
            .output()
            .with_context(|| format!("running {}", self.program.display()))?;
        ensure!(
            output.status.success(),
            "{}: {}",
            self.program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        answer(&String::from_utf8_lossy(&output.stdout))
            .with_context(|| format!("{} {mode}", self.name))
    }
}

/// A recorded stream, from its first PSB to its last one (what follows may end in the middle of a packet).
struct Piece {
    name: String,
    /// Whether it was recorded on the spot, with times.
    timed: bool,
    bytes: Vec<u8>,
}

/// Cuts a recording; `None` when there is nothing between two PSBs.
fn cut(bytes: &[u8]) -> Option<&[u8]> {
    let mut psbs =
        (0..bytes.len().saturating_sub(PSB.len() - 1)).filter(|at| bytes[*at..].starts_with(&PSB));
    let first = psbs.next()?;
    let last = psbs.next_back()?;
    (first < last).then(|| &bytes[first..last])
}

/// Records a program with times; its packets.
fn record(
    cofi: &Path,
    program: &Path,
    arguments: &[String],
    config: &str,
    folder: &Path,
) -> Result<Vec<u8>> {
    let raw = folder.join("recorded.pt");
    let output = Command::new(cofi)
        .args(["record", "--engine", "ptrace", "--config", config, "-o"])
        .arg(folder.join("recorded.data"))
        .arg("--raw-output")
        .arg(&raw)
        .arg("--")
        .arg(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .context("running cofi record")?;
    // The program's own status is handed through: whether there is a recording shows in its files.
    let bytes = fs::read(&raw).with_context(|| {
        let words = String::from_utf8_lossy(&output.stderr);
        format!("{}: no recording: {}", program.display(), words.trim())
    })?;
    fs::remove_file(raw)?;
    Ok(bytes)
}

/// All recordings there are.
fn pieces(root: &Path, folder: &Path, options: &Options) -> Result<Vec<Piece>> {
    let mut found = Vec::new();
    let mut names: Vec<PathBuf> = fs::read_dir(&options.traces)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("trace.pt")))
        .filter(|path| path.is_file())
        .collect();
    names.sort();
    if names.is_empty() {
        println!(
            "bench: no traces of real processors in {}: the streams are all Cofi's own (--traces FOLDER or COFI_TRACES \
             says where they are)",
            options.traces.display()
        );
    }
    for path in names {
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let name = path.parent().and_then(Path::file_name);
        let name = name.map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        found.push((name, false, bytes));
    }
    let cofi = match &options.cofi {
        Some(path) => path.clone(),
        None => build::cofi(root)?,
    };
    let sources = root.join("exam/programs");
    let config = CONFIGS
        .iter()
        .find(|c| c.name == RECORDED.1)
        .and_then(|c| c.value)
        .context("the exam has no such configuration")?;
    for program in PROGRAMS
        .iter()
        .filter(|p| p.name == RECORDED.0)
        .chain([&LS])
    {
        let path = build::program(&sources, folder, program)?;
        let arguments: Vec<String> = program
            .arguments
            .iter()
            .map(|a| a.replace("@PROGRAMS", &sources.display().to_string()))
            .collect();
        let bytes = record(&cofi, &path, &arguments, config, folder)?;
        found.push((program.name.to_owned(), true, bytes));
    }
    let mut pieces = Vec::new();
    for (name, timed, bytes) in found {
        match cut(&bytes) {
            Some(bytes) => pieces.push(Piece {
                name,
                timed,
                bytes: bytes.to_vec(),
            }),
            None => println!("bench: {name} has fewer than two PSBs and is left out"),
        }
    }
    Ok(pieces)
}

/// What libipt finds in a piece: how many packets of each kind, and where the PADs are.
fn survey(
    ptpackets: &Path,
    folder: &Path,
    piece: &Piece,
) -> Result<(BTreeMap<String, u64>, Vec<u64>)> {
    let file = folder.join("piece.pt");
    fs::write(&file, &piece.bytes)?;
    let output = Command::new(ptpackets).arg("dump").arg(&file).output()?;
    ensure!(
        output.status.success(),
        "{}: libipt finds errors in it",
        piece.name
    );
    let (mut kinds, mut pads) = (BTreeMap::new(), Vec::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let json: Value = serde_json::from_str(line)?;
        let kind = json["packet"].as_str().context("no packet")?;
        *kinds.entry(kind.to_owned()).or_default() += 1;
        if kind == "pad" {
            pads.push(json["offset"].as_u64().context("no offset")?);
        }
    }
    Ok((kinds, pads))
}

/// Writes the pieces in a row, again and again, until there are enough bytes; how many there are.
fn lay(file: &Path, pieces: &[Vec<u8>], least: usize) -> Result<u64> {
    let round: usize = pieces.iter().map(Vec::len).sum();
    ensure!(round > 0, "there is nothing to build a stream of");
    let mut out = BufWriter::new(File::create(file)?);
    let times = least.div_ceil(round);
    for _ in 0..times {
        for piece in pieces {
            out.write_all(piece)?;
        }
    }
    out.flush()?;
    Ok((times * round) as u64)
}

/// "pad 55.1 %, …", the most frequent kinds first.
fn mix(kinds: &BTreeMap<String, u64>) -> String {
    let all: u64 = kinds.values().sum();
    let mut list: Vec<_> = kinds.iter().collect();
    list.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let words: Vec<String> = list
        .iter()
        .map(|(kind, n)| format!("{kind} {:.2} %", **n as f64 * 100.0 / all as f64))
        .collect();
    words.join(", ")
}

/// A median of ratios with its range.
fn spread(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    format!("{:.2} ({least:.2}-{most:.2})", median(ratios))
}

/// The programs take turns on one stream in every mode.
fn race(racers: &[Racer; 2], stream: &Path, bytes: u64, rounds: usize) -> Result<()> {
    let cofi = &racers[0];
    let mega = bytes as f64 / 1e6;
    let mut sync = Vec::new();
    for mode in ["decode", "encode", "sync"] {
        let (mut seconds, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        let mut first: Option<Answer> = None;
        for round in 0..rounds {
            let mut both = [0.0; 2];
            // Who goes first changes from round to round.
            for turn in 0..2 {
                let who = (turn + round) % 2;
                let said = racers[who].measure(stream, mode)?;
                let expected = first.get_or_insert_with(|| said.clone());
                ensure!(
                    (said.packets, &said.checksum) == (expected.packets, &expected.checksum),
                    "{mode}: {} finds {} packets ({}), the first pass {} ({})",
                    racers[who].name,
                    said.packets,
                    said.checksum,
                    expected.packets,
                    expected.checksum
                );
                both[who] = said.seconds;
                seconds[who].push(said.seconds);
            }
            ratios.push(both[1] / both[0]);
        }
        let packets = first.map_or(0, |a| a.packets);
        let [ours, theirs] = seconds.map(|s| mega / median(s));
        println!(
            "{mode:<8} {packets:>11} {ours:>10.0} {theirs:>10.0}   {}",
            spread(ratios)
        );
        if mode == "sync" {
            // memcpy right behind the search, in the same number of rounds.
            for _ in 0..rounds {
                let search = cofi.measure(stream, "sync")?.seconds;
                let copy = cofi.measure(stream, "memcpy")?.seconds;
                sync.push((search, copy));
            }
        }
    }
    let copies = sync.iter().map(|(_, copy)| mega / copy).collect();
    let ratios = sync.iter().map(|(search, copy)| copy / search).collect();
    println!("{:<8} {:>11} {:>10.0}", "memcpy", "", median(copies));
    println!(
        "PSB search by Cofi at {} times the speed of memcpy",
        spread(ratios)
    );
    Ok(())
}

/// Measures, and returns whether both found the same packets.
pub(super) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let options = options(root, arguments)?;
    let folder = std::env::temp_dir().join(format!("cofi-bench-packets-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let outcome = hold(root, &folder, &options);
    // What cannot be removed lies in the folder for temporary files anyway.
    let _ = fs::remove_dir_all(&folder);
    outcome
}

fn hold(root: &Path, folder: &Path, options: &Options) -> Result<bool> {
    let libipt = build::libipt_program(root, folder, "ptpackets").map_err(anyhow::Error::msg)?;
    let racers = [
        Racer {
            name: "Cofi",
            program: build::release(root, "cofi-packet", "--example", "bench")?,
            words: &[],
        },
        Racer {
            name: "libipt",
            program: libipt.clone(),
            words: &["bench"],
        },
    ];
    let pieces = pieces(root, folder, options)?;
    let (mut kinds, mut whole, mut bare) = (BTreeMap::<String, u64>::new(), Vec::new(), Vec::new());
    let mut timed = Vec::new();
    for piece in pieces {
        let (counts, pads) = survey(&libipt, folder, &piece)?;
        println!(
            "bench: {:<20} {:>8} bytes, {:>7} packets",
            piece.name,
            piece.bytes.len(),
            counts.values().sum::<u64>()
        );
        let with_times = piece.timed.then(|| mix(&counts));
        for (kind, count) in counts {
            *kinds.entry(kind).or_default() += count;
        }
        let mut pads = pads.into_iter().peekable();
        let kept = (0..piece.bytes.len())
            .filter(|at| pads.next_if_eq(&(*at as u64)).is_none())
            .map(|at| piece.bytes[at])
            .collect();
        if let Some(mix) = with_times {
            timed.push((piece.name, mix, piece.bytes.clone()));
        }
        bare.push(kept);
        whole.push(piece.bytes);
    }
    println!(
        "bench: {} rounds, medians; processor time; load {}",
        options.rounds,
        super::load()
    );
    let all = mix(&kinds);
    kinds.remove("pad");
    let mut streams = vec![
        ("everything, as recorded".to_owned(), all, whole),
        ("everything, without PADs".to_owned(), mix(&kinds), bare),
    ];
    // Streams full of CYC are a matter of their own.
    let timed = timed.into_iter().map(|(name, mix, bytes)| {
        (
            format!("{name}, recorded with times, alone"),
            mix,
            vec![bytes],
        )
    });
    streams.extend(timed);
    let mut good = true;
    for (name, mix, pieces) in streams {
        let file = folder.join("stream.pt");
        let bytes = lay(&file, &pieces, options.megabytes << 20)?;
        println!("\n{name}: {:.1} MB; {mix}", bytes as f64 / 1e6);
        println!(
            "{:<8} {:>11} {:>10} {:>10}   libipt's time / Cofi's",
            "", "packets", "cofi MB/s", "libipt"
        );
        if let Err(error) = race(&racers, &file, bytes, options.rounds) {
            good = false;
            println!("FAILED: {error:#}");
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_cut_from_psb_to_psb() {
        let mut bytes = vec![0x55; 3];
        bytes.extend(PSB);
        bytes.extend([0x02, 0x23, 0x06]);
        assert_eq!(cut(&bytes), None);
        bytes.extend(PSB);
        bytes.extend([0x02]);
        assert_eq!(cut(&bytes), Some(&bytes[3..22]));
    }

    #[test]
    fn an_answer_with_errors_is_none() {
        let line = |errors: u64| {
            format!(
                r#"{{"mode":"decode","bytes":8,"packets":3,"errors":{errors},"differing":0,"checksum":"0x5","seconds":[9.5,0.25,0.25]}}"#
            )
        };
        let good = answer(&line(0)).expect("an answer");
        assert!(answer(&line(0).replace("\"differing\":0", "\"differing\":1")).is_err());
        assert_eq!(
            (good.packets, good.checksum.as_str(), good.seconds),
            (3, "0x5", 0.25)
        );
        assert!(answer(&line(1)).is_err());
        assert!(answer("{}").is_err());
    }

    #[test]
    fn the_mix_names_the_most_frequent_first() {
        let kinds = BTreeMap::from([("pad".to_owned(), 1), ("tnt.8".to_owned(), 3)]);
        assert_eq!(mix(&kinds), "tnt.8 75.00 %, pad 25.00 %");
    }
}
