//! libipt's events beside Cofi's, over the streams of random machines that libipt reads to their ends: kind by kind, in order, with their
//! addresses.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::machines::Record;
use crate::run::patient;

/// What came of comparisons, by kind of event.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Told by both.
    both: BTreeMap<String, u64>,
    /// Told by Cofi alone.
    alone: BTreeMap<String, u64>,
    /// Differences, ready to print.
    pub(super) differences: Vec<String>,
}

impl Events {
    /// The sums, in a line.
    pub(super) fn summary(&self) -> String {
        let total: u64 = self.both.values().sum();
        format!(
            "{total} events told alike ({:?}); by Cofi alone, what a PSB+ tells: {:?}",
            self.both, self.alone
        )
    }
}

/// An event of Cofi in the words of `ptinsn`.
fn words(object: &Value) -> Option<(String, String)> {
    let kind = object["event"].as_str()?;
    let text = |key: &str| object[key].as_str().unwrap_or("-");
    let number = |key: &str| object[key].as_u64().unwrap_or_default();
    let flag = |key: &str| u8::from(object[key] == true);
    let words = match kind {
        "enabled" | "disabled" | "overflow" | "exstop" => text("ip").to_owned(),
        "async_disabled" => format!("{} {}", text("ip"), text("at")),
        "async_branch" => format!("{} {}", text("to"), text("from")),
        "paging" => format!("{} {}", text("cr3"), flag("nr")),
        "tsx" => format!("{} {} {}", text("ip"), flag("intx"), flag("abort")),
        "stop" => String::new(),
        "vmcs" => text("base").to_owned(),
        "mwait" => format!("{} {}", number("hints"), number("ext")),
        "pwre" => format!("{} {}", number("state"), number("sub_state")),
        "pwrx" => format!("{} {}", number("last"), number("deepest")),
        "ptwrite" => format!("{} {}", text("ip"), text("payload")),
        _ => return None,
    };
    Some((kind.to_owned(), words))
}

/// libipt leaves out the address of a PTWRITE that the binary shows.
fn agree(theirs: &str, ours: &str) -> bool {
    let tail = |words: &str| words.split_once(' ').map(|(_, tail)| tail.to_owned());
    theirs == ours || theirs.starts_with("- 0x") && tail(theirs) == tail(ours)
}

type Lists = BTreeMap<String, Vec<String>>;

fn ours(cofi: &Path, record: &Record) -> Result<Lists> {
    let mut command = patient(cofi);
    command
        .args(["insn", "--json"])
        .arg(record.folder.join("trace.pt"));
    for (address, file) in &record.codes {
        let file = record.folder.join(file);
        command
            .arg("--raw")
            .arg(format!("{}:{address:#x}", file.display()));
    }
    let output = command.output().context("running cofi insn")?;
    let mut lists = Lists::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let object: Value = serde_json::from_str(line)?;
        if let Some((kind, words)) = words(&object) {
            lists.entry(kind).or_default().push(words);
        }
    }
    Ok(lists)
}

fn theirs(ptinsn: &Path, record: &Record) -> Result<Lists> {
    let mut command = patient(ptinsn);
    command.args(["--events", "--mtc-freq", "3", "--nom-freq", "20"]);
    command.args(["--cpuid-15", "1,80"]);
    command.arg(record.folder.join("trace.pt"));
    for (address, file) in &record.codes {
        let file = record.folder.join(file);
        let size = fs::metadata(&file)?.len();
        command.arg(format!("{}:0:{size}:{address:#x}", file.display()));
    }
    let output = command.output().context("running ptinsn")?;
    let mut lists = Lists::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let (kind, words) = line.split_once(' ').unwrap_or((line, ""));
        if kind != "insn" {
            lists
                .entry(kind.to_owned())
                .or_default()
                .push(words.to_owned());
        }
    }
    Ok(lists)
}

/// Compares the events of one stream, which libipt reads to its end.
pub(super) fn compare(
    ptinsn: &Path,
    cofi: &Path,
    record: &Record,
    events: &mut Events,
) -> Result<()> {
    let (ours, theirs) = (ours(cofi, record)?, theirs(ptinsn, record)?);
    for (kind, theirs) in &theirs {
        let ours = ours.get(kind).map_or(&[][..], Vec::as_slice);
        let mut rest = ours.iter();
        // A PSB+ tells state that libipt passes over as a mere update of status; at the end of a stream it waits for a FUP in vain.
        let is_state = matches!(
            kind.as_str(),
            "paging" | "tsx" | "vmcs" | "exstop" | "mwait" | "pwre"
        );
        for words in theirs {
            if !rest.any(|ours| agree(words, ours)) {
                let place = record.folder.display();
                let text = format!("{place}: {kind} {words}, which Cofi does not tell");
                events.differences.push(text);
                return Ok(());
            }
        }
        let (told, alone) = (theirs.len() as u64, (ours.len() - theirs.len()) as u64);
        *events.both.entry(kind.clone()).or_default() += told;
        if alone > 0 {
            *events.alone.entry(kind.clone()).or_default() += alone;
        }
        if alone > 0 && !is_state {
            let place = record.folder.display();
            let text = format!("{place}: {alone} events {kind} that libipt does not tell");
            events.differences.push(text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_put_in_libipts_words() {
        let put = |text: &str| words(&serde_json::from_str(text).expect("JSON"));
        let is = |kind: &str, words: &str| Some((kind.to_owned(), words.to_owned()));
        assert_eq!(
            put(r#"{"event":"async_branch","from":"0x1","to":"0x2"}"#),
            is("async_branch", "0x2 0x1")
        );
        assert_eq!(
            put(r#"{"event":"disabled","ip":null}"#),
            is("disabled", "-")
        );
        assert_eq!(
            put(r#"{"event":"tsx","intx":false,"abort":true,"ip":"0x5"}"#),
            is("tsx", "0x5 0 1")
        );
        assert_eq!(put(r#"{"insn":"0x5"}"#), None);
        assert!(agree("- 0x7", "0x1000 0x7") && !agree("- 0x8", "0x1000 0x7"));
    }
}
