//! Streams that come from elsewhere, read by everybody.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::judge::Tally;
use super::listing::{Entry, What};
use super::quirks::{Who, knows};
use super::readers::Readers;

/// Everybody who reads packets, and the account of it.
pub(crate) struct Panel {
    readers: Readers,
    tally: Tally,
    /// What could not be asked.
    skipped: Vec<String>,
}

/// What came of one stream.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Outcome {
    /// Packets in it.
    pub(crate) packets: usize,
    /// Whether libipt and perf read it.
    pub(crate) by: [bool; 2],
}

impl Panel {
    /// Builds the readers, except for a `cofi` that is there already.
    pub(crate) fn new(root: &Path, folder: &Path, cofi: &Path) -> Result<Self> {
        let readers = Readers::new(root, folder, cofi);
        let missing = |who: Who| {
            Some(format!(
                "{}: skipped: {}",
                who.name(),
                readers.missing(who)?
            ))
        };
        let skipped = [Who::Libipt, Who::Perf].into_iter().filter_map(missing);
        Ok(Self {
            skipped: skipped.collect(),
            tally: Tally::default(),
            readers,
        })
    }

    /// Whether nobody is missing.
    pub(crate) fn complete(&self) -> bool {
        self.skipped.is_empty()
    }

    /// Lets everybody read a stream who knows its packets.
    pub(crate) fn compare(&mut self, label: &str, file: &Path) -> Result<Outcome> {
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let cofi = self.readers.cofi(file).with_context(|| label.to_owned())?;
        let mut outcome = Outcome {
            packets: cofi.len(),
            by: [false; 2],
        };
        for (at, who) in [Who::Libipt, Who::Perf].into_iter().enumerate() {
            if !cofi.iter().all(|entry| knows(who, entry.name())) {
                continue;
            }
            let theirs = self
                .readers
                .peer(who, file, &bytes)
                .with_context(|| format!("{label}, {}", who.name()))?;
            if let Some(mut theirs) = theirs {
                // perf.data is filled up to whole words of eight bytes.
                theirs.retain(|entry| entry.offset < bytes.len() as u64);
                self.tally.compare(who, label, &bytes, &cofi, &theirs);
                outcome.by[at] = true;
            }
        }
        // What is no packet at all is an error of the stream, and not of a reader.
        if let Some(at) = cofi.iter().position(|e| matches!(e.what, What::Error(_))) {
            let entry = cofi.get(at);
            self.tally
                .differ(Who::Manual, label, &cofi, at, entry, None);
        }
        Ok(outcome)
    }

    /// Whether the last packet of the flow before an offset of a stream is a TIP.PGD without IP, for libipt.
    pub(crate) fn disabled_before(&self, file: &Path, offset: u64) -> bool {
        self.flow_before(file, offset, &[])
            .last()
            .is_some_and(|entry| {
                entry.name() == "tip.pgd" && entry.field("ip").is_some_and(|ip| ip.is_null())
            })
    }

    /// Whether the last packets of the flow before an offset are a MODE.Exec and an OVF, which swallowed what the first belonged to.
    pub(crate) fn mode_lost_before(&self, file: &Path, offset: u64) -> bool {
        let flow = self.flow_before(file, offset, &["mode.exec", "ovf"]);
        let mut names = flow.iter().rev().map(Entry::name);
        names.next() == Some("ovf") && names.next() == Some("mode.exec")
    }

    /// The packets of control flow, and `more`, before an offset, as libipt reads them.
    fn flow_before(&self, file: &Path, offset: u64, more: &[&str]) -> Vec<Entry> {
        let flow = ["tnt.8", "tnt.64", "tip", "tip.pge", "tip.pgd", "fup"];
        let list = fs::read(file)
            .map_err(anyhow::Error::from)
            .and_then(|bytes| self.readers.peer(Who::Libipt, file, &bytes));
        let mut list: Vec<Entry> = list.ok().flatten().unwrap_or_default();
        list.retain(|entry| {
            let name = entry.name();
            entry.offset < offset && (flow.contains(&name) || more.contains(&name))
        });
        list
    }

    /// Prints the account; how many differences there are.
    pub(crate) fn report(&self) -> u64 {
        for who in [Who::Libipt, Who::Perf] {
            let total = self.tally.total(who);
            println!(
                "unit: cofi = {}: {} packets, {} fields, {} excused",
                who.name(),
                total.packets,
                total.fields,
                total.excused
            );
        }
        for text in &self.skipped {
            println!("unit: {text}");
        }
        for text in self.tally.differences.iter().take(super::SHOWN) {
            println!("\nDIFFERENCE: {}", text.trim_end());
        }
        self.tally.differences()
    }
}
