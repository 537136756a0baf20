//! `cargo xtask exam packets`: random streams of packets, read by `cofi dump`, by libipt's packet decoder and by
//! `perf script -D`, and compared packet by packet and field by field; and Cofi's list with what the generator meant.
//!
//! A seed gives three streams, as no peer reads everything: one of every kind, one that perf can read, and one that libipt
//! can read (perf gets it too). What a peer does not read or reads otherwise stands in `quirks`, with its argument;
//! packets that are kept from a peer are probed one by one, so that the list shows when an excuse no longer holds.
//!
//! The same streams, with bytes turned, lost and added, show whether all find the same errors and go on in the same places:
//! `corrupt` and `errors`. Traces of real processors, where there are any, are read by all three as well.
//!
//! RTIT is read by nobody but Cofi. Its lists are compared with those of `rtit`, a reader made from the manual alone.

mod corrupt;
mod emit;
mod errors;
mod generate;
pub(super) mod given;
mod judge;
mod listing;
mod perf;
mod quirks;
mod readers;
mod recorded;
mod report;
mod rng;
mod rtit;
mod rtit_streams;

/// All packets of an RTIT stream, as the reader made from the reference lists them.
pub(super) use rtit::list as plain_rtit;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{Examined, within};

use errors::Account;
use generate::stream;
use judge::Tally;
use listing::Entry;
use quirks::{FOR_BOTH, FOR_PERF, WHOLE, Who};
use readers::Readers;
use rng::Rng;

/// How many differences are printed.
const SHOWN: usize = 24;

/// What the part is asked to do.
#[derive(Debug, Clone, Args)]
pub(super) struct Options {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// How many seeds; each gives three streams of packets, two with errors, four of RTIT
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) streams: u64,
    /// About how many packets a stream has
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(super) packets: usize,
    /// The folder of traces of real processors; that which COFI_TRACES names, or ../shared/traces
    #[arg(long, value_name = "FOLDER")]
    pub(super) traces: Option<PathBuf>,
    #[command(flatten)]
    pub(super) cofi: Examined,
    /// Where everything written stays
    #[arg(long, value_name = "FOLDER")]
    pub(super) keep: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            streams: 24,
            packets: 2000,
            traces: None,
            cofi: Examined::default(),
            keep: None,
        }
    }
}

impl Options {
    fn seeds(&self) -> std::ops::Range<u64> {
        self.seed..self.seed.saturating_add(self.streams)
    }

    fn traces(&self, root: &Path) -> PathBuf {
        let named = || std::env::var_os("COFI_TRACES").map(PathBuf::from);
        let traces = self.traces.clone().or_else(named);
        traces.unwrap_or_else(|| root.join("../shared/traces"))
    }
}

/// Holds this part of the exam and returns whether everything that was compared held.
pub(super) fn run(root: &Path, options: &Options) -> Result<bool> {
    within(options.keep.as_deref(), "packets", |folder| {
        hold(root, folder, options)
    })
}

/// Random streams of packets, read by everybody; how many packets.
fn valid(readers: &Readers, folder: &Path, options: &Options, tally: &mut Tally) -> Result<usize> {
    let mut made = 0;
    for seed in options.seeds() {
        let mut rng = Rng::new(seed);
        for (profile, peers) in [
            (WHOLE, &[][..]),
            (FOR_PERF, &[Who::Perf]),
            (FOR_BOTH, &[Who::Libipt, Who::Perf]),
        ] {
            let stream = stream(Rng::new(rng.next_u64()), profile, options.packets);
            let label = format!("seed {seed}, {}", profile.name);
            let file = folder.join(format!("{seed}.{}.pt", profile.name));
            write(&file, &stream.bytes)?;
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
    Ok(made)
}

/// Streams with errors in them; how many.
fn corrupted(
    readers: &Readers,
    folder: &Path,
    options: &Options,
    tally: &mut Tally,
    account: &mut Account,
) -> Result<u64> {
    let (mut own, mut wrong) = (Tally::default(), 0);
    for seed in options.seeds() {
        let mut rng = Rng::new(!seed);
        for (profile, peers) in [
            (FOR_PERF, &[Who::Perf][..]),
            (FOR_BOTH, &[Who::Libipt, Who::Perf]),
        ] {
            let stream = stream(Rng::new(rng.next_u64()), profile, options.packets);
            let (bytes, count) = corrupt::corrupt(&mut rng, &stream);
            wrong += count;
            let label = format!("seed {seed}, {}, corrupted", profile.name);
            let file = folder.join(format!("{seed}.{}.corrupted.pt", profile.name));
            write(&file, &bytes)?;
            let cofi = readers.cofi(&file).with_context(|| label.clone())?;
            for who in peers.iter().copied() {
                let theirs = readers
                    .peer(who, &file, &bytes)
                    .with_context(|| format!("{label}, {}", who.name()))?;
                if let Some(theirs) = theirs {
                    account.compare(&mut own, who, &label, &bytes, &cofi, &theirs);
                }
            }
        }
    }
    // Their packets are counted apart.
    tally.take_differences(own);
    Ok(wrong)
}

/// Streams of RTIT, good and bad, in both modes, against the list made from the manual; how many packets and errors.
fn rtit(
    readers: &Readers,
    folder: &Path,
    options: &Options,
    tally: &mut Tally,
) -> Result<(u64, u64)> {
    let (mut packets, mut errors) = (0, 0);
    for seed in options.seeds() {
        let mut rng = Rng::new(seed.rotate_left(32));
        for cycle_accurate in [false, true] {
            let good = rtit_streams::good(&mut rng, options.packets, cycle_accurate);
            let bad = rtit_streams::bad(&mut rng, options.packets, cycle_accurate);
            for (name, bytes) in [("good", good), ("bad", bad)] {
                let file = folder.join(format!("{seed}.{cycle_accurate}.{name}.rtit"));
                write(&file, &bytes)?;
                let label = format!("seed {seed}, {name} RTIT, cycle-accurate: {cycle_accurate}");
                let cofi = readers
                    .rtit(&file, cycle_accurate)
                    .with_context(|| label.clone())?;
                let manual = rtit::list(&bytes, cycle_accurate);
                let is_error = |entry: &&Entry| entry.name() == "error";
                let found = manual.iter().filter(is_error).count() as u64;
                ensure!(found == 0 || name == "bad", "{label}: an error in it");
                errors += found;
                packets += manual.len() as u64 - found;
                let length = cofi.len().max(manual.len());
                let differing = |at: &usize| match (cofi.get(*at), manual.get(*at)) {
                    (Some(ours), Some(theirs)) => !rtit::same(ours, theirs),
                    _ => true,
                };
                // Behind the first difference nothing need be right.
                if let Some(at) = (0..length).find(differing) {
                    tally.differ(Who::Manual, &label, &cofi, at, cofi.get(at), manual.get(at));
                }
            }
        }
    }
    Ok((packets, errors))
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(file, bytes).with_context(|| format!("writing {}", file.display()))
}

fn hold(root: &Path, folder: &Path, options: &Options) -> Result<bool> {
    let started = Instant::now();
    let readers = Readers::new(root, folder, &options.cofi.path(root)?);
    let mut tally = Tally::default();
    let made = valid(&readers, folder, options, &mut tally)?;
    report::table(&tally);
    let probed = report::probes(&readers, folder)?;
    let mut account = Account::default();
    let wrong = corrupted(&readers, folder, options, &mut tally, &mut account)?;
    report::errors(&account, wrong);
    let (packets, errors) = rtit(&readers, folder, options, &mut tally)?;
    println!("RTIT: cofi = the manual: {packets} packets, {errors} errors");
    recorded::compare(&readers, folder, &options.traces(root), &mut tally)?;
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
        "\npackets: seeds {} to {}: {made} packets in {} streams, {wrong} things wrong in {} more, {} streams of RTIT; \
         {failed} failed, {:.0} s",
        options.seed,
        options.seed + options.streams - 1,
        3 * options.streams,
        2 * options.streams,
        4 * options.streams,
        started.elapsed().as_secs_f64()
    );
    Ok(failed == 0)
}
