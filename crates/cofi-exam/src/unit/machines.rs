//! Random machines: the example `machine` of `cofi-law` runs them and writes what they did; here it is read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::run::patient;

/// Some machines to run.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    /// The first seed.
    pub(super) first: u64,
    /// How many.
    pub(super) count: u64,
    /// Instructions and events of each.
    pub(super) steps: usize,
    /// What they are without.
    pub(super) without: Vec<&'static str>,
}

/// An instruction that ran, in the words of the record and of `ptinsn --events`: address, width, transaction.
pub(super) type Step = String;

/// What a machine did.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Where it lies.
    pub(super) folder: PathBuf,
    /// How it was traced.
    pub(super) setup: String,
    /// Programs: address and file.
    pub(super) codes: Vec<(u64, String)>,
    /// What ran.
    pub(super) steps: Vec<Step>,
    /// For each overflow, the step that the trace shows first behind it, if tracing was on then or off.
    pub(super) resumed: Vec<(usize, usize)>,
    /// Steps from which on somebody may be lost, with the reason.
    pub(super) cuts: Vec<(String, usize)>,
    /// What else the trace tells, by kind.
    pub(super) told: BTreeMap<String, Vec<String>>,
}

impl Batch {
    /// Runs them and reads what they did.
    pub(super) fn run(&self, program: &Path, folder: &Path) -> Result<Vec<Record>> {
        let _ = fs::remove_dir_all(folder);
        let mut command = patient(program);
        let numbers = [self.first, self.count, self.steps as u64].map(|n| n.to_string());
        command.args(numbers).arg(folder).args(&self.without);
        let output = command
            .output()
            .with_context(|| format!("running {}", program.display()))?;
        ensure!(
            output.status.success(),
            "{}: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        (self.first..self.first + self.count)
            .map(|seed| {
                let place = folder.join(seed.to_string());
                let text = fs::read_to_string(place.join("record.txt"))?;
                parse(place, &text).with_context(|| format!("seed {seed}"))
            })
            .collect()
    }
}

fn hex(word: &str) -> Result<u64> {
    let digits = word.strip_prefix("0x").context("no hexadecimal number")?;
    Ok(u64::from_str_radix(digits, 16)?)
}

fn parse(folder: PathBuf, text: &str) -> Result<Record> {
    let mut record = Record {
        folder,
        ..Record::default()
    };
    for line in text.lines() {
        let (kind, rest) = line.split_once(' ').context("a line of one word")?;
        let words: Vec<&str> = rest.split(' ').collect();
        match (kind, words.as_slice()) {
            ("setup", _) => record.setup = rest.to_owned(),
            ("step", _) => record.steps.push(rest.to_owned()),
            ("told", [kind, what @ ..]) => {
                let list = record.told.entry((*kind).to_owned()).or_default();
                list.push(what.join(" "));
            }
            ("code", [address, _, file]) => {
                record.codes.push((hex(address)?, (*file).to_owned()));
            }
            ("resumed", [on, off]) => record.resumed.push((on.parse()?, off.parse()?)),
            ("cut", [name, step]) => record.cuts.push(((*name).to_owned(), step.parse()?)),
            _ => bail!("a line that makes no sense: {line}"),
        }
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read() {
        let text = "setup x y\ncode 0x1000 16 a.bin\nstep 0x1000 16 0\nresumed 0 1\ncut uncompressed-ret 1\n\
                    told stop \ntold power pwre false 2 3\n";
        let record = parse(PathBuf::new(), text).expect("a record");
        assert_eq!(record.codes, [(0x1000, "a.bin".to_owned())]);
        assert_eq!(record.steps, ["0x1000 16 0"]);
        assert_eq!((record.resumed, record.cuts.len()), (vec![(0, 1)], 1));
        assert_eq!(record.told["stop"], [""]);
        assert_eq!(record.told["power"], ["pwre false 2 3"]);
        assert!(parse(PathBuf::new(), "walk 0x1000 16\n").is_err());
    }
}
