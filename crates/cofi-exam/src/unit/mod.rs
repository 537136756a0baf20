//! `cargo xtask exam unit`: what the trace unit writes, read by strangers.
//!
//! The streams come from random machines, which do everything that the chapter knows (the example `machine` of `cofi-law`), and from
//! the scenarios in `corpus/unit` (`cofi unit run`). libipt's and perf's packet decoders must find the packets that Cofi finds, field by
//! field; libipt's instruction decoder must find the instructions that ran, and the events. What is kept from them stands in
//! `strangers`, with its argument; each case is also let in, to show that it must be kept out.

mod events;
mod flow;
mod machines;
mod strangers;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;

use crate::{Examined, within};

use super::build;
use super::packets::given::Panel;
use super::run::patient;
use events::Events;
use flow::{Account, Rules};
use machines::{Batch, Record};
use strangers::{FLOW, PACKETS};

/// How many differences are printed.
const SHOWN: usize = 6;
/// How many machines may be tried to show that a case must be kept out.
const PROBES: u64 = 2000;

/// What the part is asked to do.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// How many random machines
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) machines: u64,
    /// How many steps each takes
    #[arg(long, value_name = "N", default_value_t = 1500)]
    pub(super) steps: usize,
    #[command(flatten)]
    cofi: Examined,
    /// Where everything written stays
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

/// Holds this part of the exam and returns whether everything that was compared held.
pub(super) fn run(root: &Path, options: &Options) -> Result<bool> {
    within(options.keep.as_deref(), "unit", |folder| {
        hold(root, folder, options)
    })
}

fn hold(root: &Path, folder: &Path, options: &Options) -> Result<bool> {
    let started = Instant::now();
    let cofi = options.cofi.path(root)?;
    let machine = build::release(root, "cofi-law", "--example", "machine")?;
    let mut panel = Panel::new(root, folder, &cofi)?;
    let mut failed = packets(&machine, folder, options, &mut panel)?;
    failed += scenarios(root, &cofi, folder, &mut panel)?;
    failed += panel.report();
    match build::ptinsn(root, folder) {
        Ok(ptinsn) => failed += flows(&machine, &ptinsn, &cofi, folder, options, &panel)?,
        Err(reason) => println!("unit: the flow is NOT COMPARED: {reason}"),
    }
    println!(
        "unit: seeds {} to {}; {failed} failed, {:.0} s",
        options.seed,
        options.seed + options.machines - 1,
        started.elapsed().as_secs_f64()
    );
    Ok(failed == 0)
}

/// The packets of machines, of everything for perf and of what libipt knows for both; how many comparisons cannot be made.
fn packets(machine: &Path, folder: &Path, options: &Options, panel: &mut Panel) -> Result<u64> {
    let mut failed = 0;
    for (name, without) in [("everything", &[][..]), ("for libipt", &PACKETS[..])] {
        let batch = Batch {
            first: options.seed,
            count: options.machines.min(200),
            steps: options.steps,
            without: without.to_vec(),
        };
        let records = batch.run(machine, &folder.join("packets"))?;
        // Every stream begins with PSB, so some in a row are a stream; perf and the others are started less often.
        for (at, some) in records.chunks(50).enumerate() {
            let mut bytes = Vec::new();
            for record in some {
                bytes.extend(fs::read(record.folder.join("trace.pt"))?);
            }
            let file = folder.join(format!("{}-{at}.pt", name.replace(' ', "-")));
            fs::write(&file, &bytes)?;
            let label = format!("machines, {name}, part {at}");
            let outcome = panel.compare(&label, &file)?;
            println!(
                "unit: {label}: {} packets in {} streams, libipt: {}, perf: {}",
                outcome.packets,
                some.len(),
                outcome.by[0],
                outcome.by[1]
            );
            let expected = [!without.is_empty(), true];
            if outcome.by != expected && panel.complete() {
                failed += 1;
                println!("FAILED: {label}: somebody reads it who cannot, or cannot who should");
            }
        }
    }
    Ok(failed)
}

/// The packets of the scenarios; how many could not be run.
fn scenarios(root: &Path, cofi: &Path, folder: &Path, panel: &mut Panel) -> Result<u64> {
    let place = root.join("corpus/unit");
    if !place.is_dir() {
        println!("unit: there are no scenarios: no folder corpus/unit");
        return Ok(0);
    }
    let mut files: Vec<PathBuf> = fs::read_dir(&place)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    files.sort();
    let (mut failed, mut packets, mut by) = (u64::from(files.is_empty()), 0, [0, 0]);
    for file in &files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let raw = folder.join(format!("{name}.pt"));
        let output = patient(cofi)
            .args(["unit", "run", "--raw-output"])
            .arg(&raw)
            .arg(file)
            .output()
            .context("running cofi unit run")?;
        if !output.status.success() {
            failed += 1;
            let words = String::from_utf8_lossy(&output.stderr);
            let first = words.lines().next().unwrap_or_default();
            println!("FAILED: scenario {name}: {first}");
            continue;
        }
        let outcome = panel.compare(&format!("scenario {name}"), &raw)?;
        packets += outcome.packets;
        for (count, read) in by.iter_mut().zip(outcome.by) {
            *count += u64::from(read);
        }
    }
    println!(
        "unit: {} scenarios: {packets} packets; libipt reads {}, perf {}",
        files.len(),
        by[0],
        by[1]
    );
    Ok(failed)
}

/// The flow of machines; how many comparisons failed.
fn flows(
    machine: &Path,
    ptinsn: &Path,
    cofi: &Path,
    folder: &Path,
    options: &Options,
    panel: &Panel,
) -> Result<u64> {
    let compare = |records: &[Record], rules: Rules, account: &mut Account| -> Result<()> {
        for record in records {
            let file = record.folder.join("trace.pt");
            let before = flow::Before {
                leaves: &|offset| panel.disabled_before(&file, offset),
                loses_mode: &|offset| panel.mode_lost_before(&file, offset),
            };
            flow::compare(ptinsn, record, rules, account, &before)?;
        }
        Ok(())
    };
    let rules = Rules { except: None };
    let mut failed = 0;
    // Without compressed returns, streams are compared to their ends.
    for (name, more, steps) in [
        ("everything", None, options.steps),
        ("long", Some("ret-compression"), 2 * options.steps),
    ] {
        let mut without = rules.without();
        without.extend(more);
        let batch = Batch {
            first: options.seed,
            count: options.machines,
            steps,
            without,
        };
        let mut account = Account::default();
        let records = batch.run(machine, &folder.join("flows"))?;
        let mut events = Events::default();
        for record in &records {
            let whole = account.whole;
            compare(std::slice::from_ref(record), rules, &mut account)?;
            // Elsewhere libipt has gone another way.
            if account.whole > whole && account.differences.is_empty() && more.is_some() {
                events::compare(ptinsn, cofi, record, &mut events)?;
            }
        }
        if more.is_some() {
            println!("unit: machines, {name}: {}", events.summary());
        }
        failed += events.differences.len() as u64;
        for text in events.differences.iter().take(SHOWN) {
            println!("\nDIFFERENCE: {text}");
        }
        println!(
            "unit: machines, {name}: truth = libipt: {} streams, {} of them to their ends; {} instructions, {} overflows, {} other \
             events",
            account.streams, account.whole, account.steps, account.overflows, account.events
        );
        for (case, count) in &account.met {
            println!("unit:   {case}: met in {count} streams");
        }
        failed += account.differences.len() as u64;
        for text in account.differences.iter().take(SHOWN) {
            println!("\nDIFFERENCE: {text}");
        }
    }
    for case in FLOW {
        let rules = Rules {
            except: Some(case.name),
        };
        let mut account = Account::default();
        let mut tried = 0;
        while account.differences.is_empty() && tried < PROBES {
            for more in [None, Some("ret-compression")] {
                let mut without = rules.without();
                without.extend(more);
                let batch = Batch {
                    first: options.seed + tried,
                    count: 20,
                    steps: options.steps,
                    without,
                };
                let records = batch.run(machine, &folder.join("probes"))?;
                compare(&records, rules, &mut account)?;
            }
            tried += 20;
        }
        if account.differences.is_empty() {
            failed += 1;
            println!(
                "FAILED: {} need not be kept from libipt: {}",
                case.name, case.why
            );
        } else {
            println!(
                "kept from libipt: {}: {} (let in, {} of {} streams differ)",
                case.name,
                case.why,
                account.differences.len(),
                account.streams
            );
        }
    }
    Ok(failed)
}
