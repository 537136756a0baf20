//! `cargo xtask exam packets`: random streams of packets, read by `cofi dump`, by libipt's packet decoder and by
//! `perf script -D`, and compared packet by packet and field by field; and Cofi's list with what the generator meant.
//!
//! A seed gives three streams, as no peer reads everything: one of every kind, one that perf can read, and one that libipt
//! can read (perf gets it too). What a peer does not read or reads otherwise stands in `quirks`, with its argument;
//! packets that are kept from a peer are probed one by one, so that the list shows when an excuse no longer holds.
//!
//! Traces of real processors, where there are any, are read by all three as well.

mod emit;
mod generate;
mod judge;
mod listing;
mod perf;
mod quirks;
mod readers;
mod recorded;
mod report;
mod rng;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use generate::stream;
use judge::Tally;
use quirks::{FOR_BOTH, FOR_PERF, WHOLE, Who};
use readers::Readers;
use rng::Rng;

/// How many differences are printed.
const SHOWN: usize = 24;

/// What the part is asked to do.
#[derive(Debug)]
pub(super) struct Options {
    /// The first seed.
    pub(super) seed: u64,
    /// How many seeds; each gives three streams.
    pub(super) streams: u64,
    /// About how many packets a stream has.
    pub(super) packets: usize,
    /// The folder of traces of real processors.
    pub(super) traces: PathBuf,
    /// The command under examination, if it need not be built.
    pub(super) cofi: Option<PathBuf>,
    /// Where everything written stays.
    pub(super) keep: Option<PathBuf>,
}

impl Options {
    /// What is done if nothing is said.
    pub(super) fn new(root: &Path) -> Self {
        Self {
            seed: 1,
            streams: 24,
            packets: 2000,
            traces: std::env::var_os("COFI_TRACES")
                .map_or_else(|| root.join("../shared/traces"), PathBuf::from),
            cofi: None,
            keep: None,
        }
    }
}

/// Reads the arguments of `cargo xtask exam packets`.
pub(super) fn options(root: &Path, arguments: &[String]) -> Result<Options> {
    let mut options = Options::new(root);
    for pair in arguments.chunks(2) {
        let [word, value] = pair else {
            bail!("{} wants a value", pair[0]);
        };
        let number = || {
            value
                .parse::<u64>()
                .with_context(|| format!("{word} wants a number"))
        };
        match word.as_str() {
            "--seed" => options.seed = number()?,
            "--streams" => options.streams = number()?,
            "--packets" => options.packets = number()? as usize,
            "--traces" => options.traces = PathBuf::from(value),
            "--cofi" => options.cofi = Some(PathBuf::from(value)),
            "--keep" => options.keep = Some(PathBuf::from(value)),
            _ => bail!("{word}: there is no such option"),
        }
    }
    ensure!(options.streams > 0, "--streams wants at least 1");
    Ok(options)
}

/// Holds this part of the exam and returns whether everything that was compared held.
pub(super) fn run(root: &Path, options: &Options) -> Result<bool> {
    let folder = options.keep.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("cofi-packets-{}", std::process::id()))
    });
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let outcome = hold(root, &folder, options);
    if options.keep.is_none() {
        // What cannot be removed lies in the folder for temporary files anyway.
        let _ = fs::remove_dir_all(&folder);
    }
    outcome
}

fn hold(root: &Path, folder: &Path, options: &Options) -> Result<bool> {
    let started = Instant::now();
    let readers = Readers::new(root, folder, options.cofi.as_deref())?;
    let mut tally = Tally::default();
    let mut made = 0;
    for seed in options.seed..options.seed.saturating_add(options.streams) {
        let mut rng = Rng::new(seed);
        for (profile, peers) in [
            (WHOLE, &[][..]),
            (FOR_PERF, &[Who::Perf]),
            (FOR_BOTH, &[Who::Libipt, Who::Perf]),
        ] {
            let stream = stream(Rng::new(rng.next()), profile, options.packets);
            let label = format!("seed {seed}, {}", profile.name);
            let file = folder.join(format!("{seed}.{}.pt", profile.name));
            fs::write(&file, &stream.bytes)
                .with_context(|| format!("writing {}", file.display()))?;
            made += stream.entries.len();
            let cofi = readers.cofi(&file).with_context(|| label.clone())?;
            tally.compare(Who::Intent, &label, &stream.bytes, &cofi, &stream.entries);
            for who in peers.iter().copied() {
                let theirs = readers
                    .peer(who, &file, &stream.bytes)
                    .with_context(|| format!("{label}, {}", who.name()))?;
                if let Some(theirs) = theirs {
                    tally.compare(who, &label, &stream.bytes, &cofi, &theirs);
                }
            }
        }
    }
    report::table(&tally);
    let probed = report::probes(&readers, folder)?;
    recorded::compare(&readers, folder, &options.traces, &mut tally)?;
    let mut failed = tally.differences() + probed;
    for who in Who::ALL {
        match readers.missing(who) {
            Some(reason) => println!("{}: skipped: {reason}", who.name()),
            None => {
                for what in tally.forgotten(who) {
                    failed += 1;
                    println!("FORGOTTEN: {what}");
                }
            }
        }
    }
    for text in tally.differences.iter().take(SHOWN) {
        println!("\nDIFFERENCE: {}", text.trim_end());
    }
    if tally.differences() > SHOWN as u64 {
        println!(
            "\nand {} more differences",
            tally.differences() - SHOWN as u64
        );
    }
    println!(
        "\npackets: {} streams of seeds {} to {}, {made} packets, {failed} failed, {:.0} s",
        3 * options.streams,
        options.seed,
        options.seed + options.streams - 1,
        started.elapsed().as_secs_f64()
    );
    Ok(failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            options(Path::new("/none"), &words)
        };
        let read = parse(&["--seed", "9", "--streams", "2"]).expect("numbers");
        assert_eq!((read.seed, read.streams), (9, 2));
        assert!(parse(&["--streams", "0"]).is_err());
        assert!(parse(&["--seed"]).is_err());
        assert!(parse(&["--speed", "1"]).is_err());
    }
}
