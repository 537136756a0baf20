//! What perf and Cofi say of walks, thread by thread.

use std::collections::BTreeMap;
use std::io::BufRead;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::flows::{each_line, hex};

/// What a decoder says, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// An instruction, with the time if the decoder gives one.
    Insn { ip: u64, time: Option<u64> },
    /// A branch; 0 is nowhere. perf's flags, in its words, without its spaces.
    Branch { from: u64, to: u64, flags: String },
    /// Another event of Cofi's that moves the flow.
    Event(Event),
}

/// How the flow moves without an instruction that branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Tracing goes on there.
    Enabled(u64),
    /// Tracing ends with the instruction before.
    Disabled,
    /// An interrupt.
    Async(u64, u64),
    /// Tracing ends before an instruction.
    AsyncDisabled(u64),
}

/// What is said of each thread, and what no thread is named for or is an error.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    pub(super) threads: BTreeMap<u32, Vec<Said>>,
    pub(super) errors: Vec<String>,
}

fn address(value: &Value) -> Result<u64> {
    let text = value.as_str().context("an address is wanted")?;
    hex(text).with_context(|| format!("no address: {text}"))
}

/// What `cofi insn --json` says.
pub(super) fn cofi(input: impl BufRead) -> Result<Hearing> {
    let mut hearing = Hearing::default();
    each_line(input, |line| {
        let value: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let tid = value["tid"].as_u64().unwrap_or(1) as u32;
        let said = if !value["insn"].is_null() {
            let ip = address(&value["insn"])?;
            Said::Insn { ip, time: None }
        } else {
            let event = match value["event"].as_str() {
                Some("enabled") => Event::Enabled(address(&value["ip"])?),
                Some("disabled") => Event::Disabled,
                Some("async_branch") => {
                    Event::Async(address(&value["from"])?, address(&value["to"])?)
                }
                Some("async_disabled") => Event::AsyncDisabled(address(&value["at"])?),
                Some("exec_mode" | "paging") => return Ok(()),
                _ => {
                    hearing.errors.push(line.trim().to_owned());
                    return Ok(());
                }
            };
            Said::Event(event)
        };
        hearing.threads.entry(tid).or_default().push(said);
        Ok(())
    })?;
    Ok(hearing)
}

/// A time in seconds with nine digits behind the point.
fn nanoseconds(word: &str) -> Option<u64> {
    let (seconds, rest) = word.strip_suffix(':')?.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    Some(seconds * 1_000_000_000 + rest.parse::<u64>().ok()?)
}

/// A line of `perf script -F tid,time,event,ip,addr,flags --ns`: `TID [TIME:] EVENT: FLAGS… ADDR IP` for
/// instructions, `… FROM => TO` for branches.
fn sample(line: &str) -> Result<(u32, Said)> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    if words.len() < 4 {
        bail!("no sample");
    }
    let tid = words.remove(0).parse().context("no thread")?;
    let time = nanoseconds(words[0]);
    if time.is_some() {
        words.remove(0);
    }
    let event = words.remove(0);
    let last = words.pop().and_then(hex).context("no address")?;
    let arrow = words.pop_if(|word| *word == "=>").is_some();
    let other = words.pop().and_then(hex).context("no other address")?;
    let flags = words.join(" ");
    match event.split(':').next() {
        Some("instructions") if !arrow => Ok((tid, Said::Insn { ip: last, time })),
        Some("branches") if arrow => {
            let (from, to) = (other, last);
            Ok((tid, Said::Branch { from, to, flags }))
        }
        _ => bail!("no event"),
    }
}

/// What perf says; every line that is neither a sample nor blank is an error.
pub(super) fn perf(input: impl BufRead) -> Result<Hearing> {
    let mut hearing = Hearing::default();
    each_line(input, |line| {
        match sample(line) {
            Ok((tid, said)) => hearing.threads.entry(tid).or_default().push(said),
            Err(_) if line.trim().is_empty() => {}
            Err(why) => hearing.errors.push(format!("{why}: {}", line.trim())),
        }
        Ok(())
    })?;
    Ok(hearing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfs_samples_are_told_apart() {
        let text = b"    2    15.409575753:     branches:u:   tr end  async              7f1234567036 =>                0\n\
            2    15.000000001: instructions:u:   call                      7f1234567031     7f1234567002\n\
            3 instructions:u:                                        0           550000\n\
            instruction trace error type 1 code 5: Failed\n";
        let heard = perf(&text[..]).expect("readable");
        let (from, to, flags) = (0x7f12_3456_7036, 0, "tr end async".to_owned());
        let (ip, time) = (0x7f12_3456_7002, Some(15_000_000_001));
        let two = [Said::Branch { from, to, flags }, Said::Insn { ip, time }];
        assert_eq!(heard.threads[&2], two);
        let (ip, time) = (0x55_0000, None);
        assert_eq!(heard.threads[&3], [Said::Insn { ip, time }]);
        assert_eq!(heard.errors.len(), 1);
    }

    #[test]
    fn cofis_errors_are_kept() {
        let text = b"{\"insn\":\"0x1\",\"tid\":4}\n{\"event\":\"disabled\",\"ip\":null,\"tid\":4}\n{\"error\":\"lost\",\"tid\":4}\n";
        let heard = cofi(&text[..]).expect("well formed");
        assert_eq!(heard.threads[&4].len(), 2);
        assert_eq!(heard.errors.len(), 1);
    }
}
