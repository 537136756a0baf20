//! What the part prints: the account of what was compared, of what was excused, and the probes behind the excuses.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::errors::{self, Account};
use super::judge::{Count, Tally};
use super::listing::{Entry, KINDS, What};
use super::quirks::{ADAPTED, BLIND, QUIRKS, RIFTS, Who, knows};
use super::readers::Readers;

/// What was compared, kind by kind, and what was excused.
pub(super) fn table(tally: &Tally) {
    println!(
        "{:<10} {:>17}   {:>24}   {:>24}",
        "", "cofi = generator", "cofi = libipt", "cofi = perf"
    );
    println!(
        "{:<10} {:>8} {:>8}   {:>8} {:>7} {:>7}   {:>8} {:>7} {:>7}",
        "kind", "packets", "fields", "packets", "fields", "excused", "packets", "fields", "excused"
    );
    let line = |name: &str, of: &dyn Fn(Who) -> Option<Count>| {
        let intent = of(Who::Intent).unwrap_or_default();
        print!("{name:<10} {:>8} {:>8}", intent.packets, intent.fields);
        for who in [Who::Libipt, Who::Perf] {
            match of(who) {
                Some(c) => print!("   {:>8} {:>7} {:>7}", c.packets, c.fields, c.excused),
                None => print!("   {:>8} {:>7} {:>7}", "-", "-", "-"),
            }
        }
        println!();
    };
    for (kind, _) in KINDS {
        line(kind, &|who| {
            knows(who, kind).then(|| tally.count(who, kind))
        });
    }
    line("all", &|who| Some(tally.total(who)));
    println!("-: the peer does not know the packet (see below)");
    for (who, what) in ADAPTED {
        println!("adapted, {}: {what}", who.name());
    }
    for (at, quirk) in QUIRKS.iter().enumerate() {
        println!(
            "excused, {} times: {} of {} by {}: {}",
            tally.seen(at),
            quirk.key,
            quirk.kind,
            quirk.who.name(),
            quirk.why
        );
    }
}

/// What was compared of streams with errors in them.
pub(super) fn errors(account: &Account, wrong: u64) {
    println!("corrupted: {wrong} things wrong");
    for who in [Who::Libipt, Who::Perf] {
        let errors::Count {
            packets,
            errors,
            resumed,
        } = account.count(who);
        println!(
            "corrupted: cofi = {}: {packets} packets, {errors} errors in the same places, {resumed} times the same way on",
            who.name()
        );
    }
    println!(
        "corrupted: perf goes on at the next byte and not at the next PSB; where that leads it past the PSB, the \
         comparison begins again at the first PSB that both list"
    );
    for (at, rift) in RIFTS.iter().enumerate() {
        println!(
            "corrupted: {} times: {} is a packet for one only, Cofi or {}: {}",
            account.seen(at),
            rift.what,
            rift.who.name(),
            rift.why
        );
    }
}

/// Shows that each packet which is kept from a peer is one that it cannot read, and that Cofi can.
pub(super) fn probes(readers: &Readers, folder: &Path) -> Result<u64> {
    let mut failed = 0;
    for (at, blind) in BLIND.iter().enumerate() {
        let Some((last, before)) = blind.probe.split_last() else {
            continue;
        };
        let mut bytes = [0x02, 0x82].repeat(8);
        bytes.extend(before.concat());
        let place = bytes.len() as u64;
        bytes.extend(*last);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let file = folder.join(format!("probe-{at}.pt"));
        fs::write(&file, &bytes).with_context(|| format!("writing {}", file.display()))?;
        let there = |list: &[Entry]| list.iter().find(|e| e.offset == place).cloned();
        let ours = there(&readers.cofi(&file)?);
        let right = ours
            .as_ref()
            .is_some_and(|e| matches!(e.what, What::Packet(..)) && e.size == last.len() as u64);
        if !right {
            failed += 1;
            println!("PROBE: cofi does not read {}: {ours:?}", blind.what);
        }
        let Some(theirs) = readers.peer(blind.who, &file, &bytes)? else {
            continue;
        };
        let theirs = there(&theirs);
        let outcome = match theirs.as_ref().map(|e| &e.what) {
            Some(What::Error(error)) => format!("says \"{error}\""),
            Some(What::Packet(..)) if theirs == ours => {
                "reads it, ALTHOUGH IT IS KEPT FROM IT".into()
            }
            Some(What::Packet(name, _)) => format!("takes it for {name}"),
            None => "has nothing there".into(),
        };
        println!(
            "kept from {}: {}: {}; {} {outcome}",
            blind.who.name(),
            blind.what,
            blind.why,
            blind.who.name()
        );
    }
    Ok(failed)
}
