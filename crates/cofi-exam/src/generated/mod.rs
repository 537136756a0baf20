//! `cargo xtask exam generated`: instructions, branches and times of thousands of random walks, as perf tells them, as Cofi tells them, and
//! as they were.

mod compare;
mod image;
mod said;
mod walks;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::Args;

use crate::{Examined, within};

use super::build;
use super::run::{listen, patient};
use compare::{Account, EXPLAINED};
use said::Hearing;
use walks::Walks;

/// How many differences are printed.
const SHOWN: usize = 6;
/// Configurations that the example knows.
const GROUPS: u64 = 16;

/// What the part is asked to do.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// How many walks, one a configuration at least
    #[arg(long, value_name = "N", default_value_t = 3200, value_parser = clap::value_parser!(u64).range(GROUPS..))]
    pub(super) streams: u64,
    /// How many steps each takes
    #[arg(long, value_name = "N", default_value_t = 700)]
    pub(super) steps: usize,
    #[command(flatten)]
    cofi: Examined,
    /// Where everything written stays
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

/// Holds this part of the exam and returns whether everything that was compared held.
pub(super) fn run(root: &Path, options: &Options) -> Result<bool> {
    if let Err(reason) = build::perf() {
        println!("generated: NOT COMPARED: {reason}");
        return Ok(true);
    }
    within(options.keep.as_deref(), "generated", |folder| {
        hold(root, folder, options)
    })
}

fn hold(root: &Path, folder: &Path, options: &Options) -> Result<bool> {
    let cofi = options.cofi.path(root)?;
    let walk = build::release(root, "cofi-law", "--example", "walk")?;
    let started = Instant::now();
    let mut account = Account::default();
    for group in 0..GROUPS {
        let count = options.streams / GROUPS + u64::from(group < options.streams % GROUPS);
        let first = options.seed + group * options.streams;
        let data = folder.join(format!("group-{group}.data"));
        let text = data.with_extension("walks");
        let walks = Walks::make(&walk, first, count, options.steps, group, &text)?;
        walks.save(&data)?;
        let (perf, cofi) = (by_perf(&walks, &data)?, by_cofi(&cofi, &data)?);
        judge(&mut account, group, &walks, &perf, &cofi);
    }
    for text in account.differences.iter().take(SHOWN) {
        println!("\nDIFFERENCE: {text}");
    }
    println!(
        "generated: seeds from {}: truth = Cofi = perf: {} streams in {GROUPS} configurations, {} instructions, {} branches; within Cofi's \
         intervals: {} times of perf, {} true times",
        options.seed,
        account.streams,
        account.instructions,
        account.branches,
        account.times[0],
        account.times[1]
    );
    for (name, why) in EXPLAINED {
        let count = account.met.get(name).copied().unwrap_or_default();
        println!("generated:   {name}: {count} times: {why}");
    }
    let blind = spoiled(&walk, folder, options)?;
    let failed = account.differences.len() + usize::from(blind);
    let seconds = started.elapsed().as_secs_f64();
    println!("generated: {failed} failed, {seconds:.0} s");
    Ok(failed == 0)
}

/// Whether nobody notices that one bit of every trace is another.
fn spoiled(walk: &Path, folder: &Path, options: &Options) -> Result<bool> {
    let data = folder.join("spoiled.data");
    let text = data.with_extension("walks");
    let mut walks = Walks::make(walk, options.seed, 32, options.steps, 1, &text)?;
    for walk in &mut walks.list {
        let middle = walk.trace.len() / 2;
        if let Some(byte) = walk.trace.get_mut(middle) {
            *byte ^= 4;
        }
    }
    walks.save(&data)?;
    let perf = by_perf(&walks, &data)?;
    let none = Vec::new();
    let noticed = walks.list.iter().zip(1..).filter(|(walk, tid)| {
        let said = perf.threads.get(tid).unwrap_or(&none);
        compare::addresses(said) != compare::truth(walk)
    });
    let noticed = noticed.count();
    println!(
        "generated: with one bit of each changed, perf's instructions differ in {noticed} of {} streams",
        walks.list.len()
    );
    Ok(noticed == 0)
}

/// Compares the walks of a file.
fn judge(account: &mut Account, group: u64, walks: &Walks, perf: &Hearing, cofi: &Hearing) {
    for (name, hearing) in [("perf", perf), ("Cofi", cofi)] {
        for error in &hearing.errors {
            let text = format!("group {group}: {name}: {error}");
            account.differences.push(text);
        }
        let strange = hearing.threads.keys().find(|tid| {
            let at = (**tid as usize).checked_sub(1);
            at.is_none_or(|at| at >= walks.list.len())
        });
        if let Some(tid) = strange {
            let text = format!("group {group}: {name}: there is no thread {tid}");
            account.differences.push(text);
        }
    }
    let none = Vec::new();
    for (walk, tid) in walks.list.iter().zip(1..) {
        let of = |hearing: &'_ Hearing| hearing.threads.get(&tid).unwrap_or(&none).clone();
        account.compare(walk, &of(perf), &of(cofi), &walks.config);
    }
}

fn by_perf(walks: &Walks, data: &Path) -> Result<Hearing> {
    let mut command = patient(Path::new("perf"));
    let fields = if walks.config.tsc {
        "tid,time,event,ip,addr,flags"
    } else {
        "tid,event,ip,addr,flags"
    };
    command.args(["script", "-f", "--ns", "--itrace=bi1i", "-F", fields, "-i"]);
    command.arg(data);
    let errors = data.with_extension("perf.err");
    let (mut hearing, status, words) = listen(command, &errors, said::perf)?;
    complain(&mut hearing, status.success(), &words);
    Ok(hearing)
}

fn by_cofi(cofi: &Path, data: &Path) -> Result<Hearing> {
    let mut command = patient(cofi);
    command.args(["insn", "--json"]).arg(data);
    let errors = data.with_extension("cofi.err");
    let (mut hearing, status, words) = listen(command, &errors, said::cofi)?;
    complain(&mut hearing, status.success(), &words);
    Ok(hearing)
}

/// What a decoder says beside its list counts, too.
fn complain(hearing: &mut Hearing, good: bool, words: &str) {
    let lines = words.lines().filter(|line| !line.trim().is_empty());
    hearing.errors.extend(lines.map(str::to_owned));
    if !good && hearing.errors.is_empty() {
        hearing.errors.push("a bad exit status".to_owned());
    }
}
