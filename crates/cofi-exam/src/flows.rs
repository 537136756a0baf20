//! The flow of every thread as lists of addresses, from the words of each decoder.

use std::collections::BTreeMap;
use std::io::BufRead;

use anyhow::{Context, Result};

/// The addresses a decoder found, in order, and the errors it told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// By thread; a decoder that names none has everything under 0.
    pub threads: BTreeMap<u32, Vec<u64>>,
    /// How many errors.
    pub errors: u64,
    /// The first of them, word for word.
    pub first_error: Option<String>,
}

impl Flows {
    fn push(&mut self, tid: u32, address: u64) {
        self.threads.entry(tid).or_default().push(address);
    }

    /// Notes an error.
    pub fn complain(&mut self, words: &str) {
        self.errors += 1;
        self.first_error
            .get_or_insert_with(|| words.trim().to_owned());
    }

    /// How many instructions in all.
    pub fn instructions(&self) -> usize {
        self.threads.values().map(Vec::len).sum()
    }
}

/// A number in hexadecimal, with `0x` or without.
#[must_use]
pub fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Calls `each` for every line, of which what is no UTF-8 is replaced.
///
/// # Errors
/// A line cannot be read, or `each` fails.
pub fn each_line(mut input: impl BufRead, mut each: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if input
            .read_until(b'\n', &mut line)
            .context("reading a decoder's output")?
            == 0
        {
            return Ok(());
        }
        each(&String::from_utf8_lossy(&line))?;
    }
}

/// The truth file: `TID 0xADDRESS` a line, in the order of the first instruction of each thread's first line.
///
/// Gives also the thread that comes first.
pub fn truth(input: impl BufRead) -> Result<(Flows, u32)> {
    let mut flows = Flows::default();
    let mut first = None;
    each_line(input, |line| {
        let (tid, address) = line
            .trim()
            .split_once(' ')
            .with_context(|| format!("no truth: {line}"))?;
        let tid = tid.parse().with_context(|| format!("no thread: {line}"))?;
        first.get_or_insert(tid);
        flows.push(
            tid,
            hex(address).with_context(|| format!("no address: {line}"))?,
        );
        Ok(())
    })?;
    Ok((flows, first.context("the truth is empty")?))
}

/// What `cofi insn --json` says.
pub fn cofi(input: impl BufRead) -> Result<Flows> {
    let mut flows = Flows::default();
    each_line(input, |line| {
        if let Some(rest) = line.strip_prefix("{\"insn\":\"") {
            let (address, rest) = rest
                .split_once('"')
                .with_context(|| format!("no address: {line}"))?;
            let tid = match rest.split_once("\"tid\":") {
                Some((_, tid)) => {
                    let end = tid.find(|c: char| !c.is_ascii_digit()).unwrap_or(tid.len());
                    tid[..end]
                        .parse()
                        .with_context(|| format!("no thread: {line}"))?
                }
                None => 0,
            };
            flows.push(
                tid,
                hex(address).with_context(|| format!("no address: {line}"))?,
            );
        } else if line.contains("\"error\":") {
            flows.complain(line);
        }
        Ok(())
    })?;
    Ok(flows)
}

/// What `perf script --itrace=i1i -F tid,ip` says. Every line that is neither a sample nor blank counts as an error.
pub fn perf(input: impl BufRead) -> Result<Flows> {
    let mut flows = Flows::default();
    each_line(input, |line| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (None, ..) => {}
            (Some(tid), Some(ip), None) => match (tid.parse(), hex(ip)) {
                (Ok(tid), Some(ip)) => flows.push(tid, ip),
                _ => flows.complain(line),
            },
            _ => flows.complain(line),
        }
        Ok(())
    })?;
    Ok(flows)
}

/// What `ptinsn` says: one thread, an address a line.
pub fn ptinsn(input: impl BufRead) -> Result<Flows> {
    let mut flows = Flows::default();
    each_line(input, |line| {
        flows.push(
            0,
            hex(line.trim()).with_context(|| format!("no address: {line}"))?,
        );
        Ok(())
    })?;
    Ok(flows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_truth_keeps_threads_apart_and_names_the_first() {
        let (flows, first) =
            truth(&b"12 0x401000\n7 0x10\n12 0x401002\n"[..]).expect("well formed");
        assert_eq!(first, 12);
        assert_eq!(flows.threads[&12], [0x40_1000, 0x40_1002]);
        assert_eq!(flows.threads[&7], [0x10]);
        assert!(truth(&b"12 401000x\n"[..]).is_err());
        assert!(truth(&b""[..]).is_err());
    }

    #[test]
    fn cofi_events_are_passed_over_and_errors_counted() {
        let text = b"{\"event\":\"enabled\",\"ip\":\"0x1\"}\n{\"insn\":\"0x1\"}\n{\"insn\":\"0x2\",\"len\":3,\"tid\":44}\n\
                     {\"error\":\"lost\",\"offset\":3,\"ip\":null}\n";
        let flows = cofi(&text[..]).expect("well formed");
        assert_eq!(flows.threads[&0], [1]);
        assert_eq!(flows.threads[&44], [2]);
        assert_eq!((flows.errors, flows.instructions()), (1, 2));
    }

    #[test]
    fn a_trace_error_of_perf_is_an_error() {
        let text = b"  123   7f0012345678\n\n instruction trace error type 1 time 0 cpu -1 pid 1 tid 1 ip 0 code 5: Failed\n";
        let flows = perf(&text[..]).expect("readable");
        assert_eq!(flows.threads[&123], [0x7f00_1234_5678]);
        assert_eq!(flows.errors, 1);
        assert!(
            flows
                .first_error
                .is_some_and(|e| e.starts_with("instruction trace error"))
        );
    }
}
