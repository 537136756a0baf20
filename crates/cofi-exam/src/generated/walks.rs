//! Random walks: the example `walk` of `cofi-law` writes them, here they are read and put into a file for perf.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use cofi_perf::{Mmap2, PerfTime, PtConfig, Subject, Task, TimeConv, Writer, WriterOptions};

use super::image::Image;
use crate::flows::{each_line, hex};
use crate::run::patient;

/// Before anything that a walk does, and not 0, which perf takes for no time.
const BEGIN: PerfTime = PerfTime(1);
/// Later than anything that a walk does.
const END: PerfTime = PerfTime(1 << 42);

/// An instruction that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Its address.
    pub(super) ip: u64,
    /// The address behind it.
    pub(super) next: u64,
    /// What it is, in the letters of the example.
    pub(super) kind: char,
    /// When it retired.
    pub(super) tsc: u64,
    /// The earliest and the latest time that cofi-flow states.
    pub(super) earliest: Option<u64>,
    pub(super) latest: Option<u64>,
}

/// A program.
#[derive(Debug)]
pub(super) struct Code {
    address: u64,
    bits: u8,
    bytes: Vec<u8>,
}

/// A walk.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Its seed, and how it was traced.
    pub(super) words: String,
    /// The most ticks that an instruction takes.
    pub(super) slowest: u64,
    /// The programs.
    pub(super) codes: Vec<Code>,
    /// The packets.
    pub(super) trace: Vec<u8>,
    /// From which step on the trace has held a TSC or MTC packet with no CYC right before it.
    pub(super) lone: Option<usize>,
    /// What ran.
    pub(super) steps: Vec<Step>,
}

/// Walks with one configuration.
#[derive(Debug, Default)]
pub(super) struct Walks {
    /// The configuration.
    pub(super) config: PtConfig,
    /// The walks; each is a process of its own, numbered from 1.
    pub(super) list: Vec<Walk>,
}

fn bytes(text: &str) -> Result<Vec<u8>> {
    ensure!(text.is_ascii(), "no bytes: {text}");
    let digits = (0..text.len()).step_by(2);
    digits
        .map(|at| {
            let pair = text.get(at..at + 2).context("half a byte")?;
            u8::from_str_radix(pair, 16).context("no byte")
        })
        .collect()
}

fn perhaps(word: &str) -> Result<Option<u64>> {
    if word == "-" {
        return Ok(None);
    }
    Ok(Some(
        word.parse().with_context(|| format!("no time: {word}"))?,
    ))
}

impl Walks {
    fn line(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["config", flags @ .., period] => {
                let [tsc, mtc, cyc, noretcomp] = flags else {
                    bail!("four flags are wanted");
                };
                self.config = {
                    let mut config = PtConfig::NONE;
                    config.tsc = *tsc == "1";
                    config.mtc = *mtc == "1";
                    config.cyc = *cyc == "1";
                    config.noretcomp = *noretcomp == "1";
                    config.mtc_period = period.parse()?;
                    config.branch = true;
                    config
                };
                return Ok(());
            }
            ["stream", _, slowest, ..] => {
                self.list.push(Walk {
                    slowest: slowest.parse()?,
                    words: line.trim().to_owned(),
                    ..Walk::default()
                });
                return Ok(());
            }
            _ => {}
        }
        let walk = self.list.last_mut().context("there is no stream yet")?;
        match words.as_slice() {
            ["code", address, bits, code] => walk.codes.push(Code {
                address: hex(address).context("no address")?,
                bits: bits.parse()?,
                bytes: bytes(code)?,
            }),
            ["lone"] => {
                walk.lone.get_or_insert(walk.steps.len());
            }
            ["trace", trace] => walk.trace = bytes(trace)?,
            ["step", ip, len, kind, tsc, earliest, latest] => {
                let ip = hex(ip).context("no address")?;
                walk.steps.push(Step {
                    ip,
                    next: ip + len.parse::<u64>()?,
                    kind: kind.chars().next().unwrap_or('-'),
                    tsc: tsc.parse()?,
                    earliest: perhaps(earliest)?,
                    latest: perhaps(latest)?,
                });
            }
            _ => bail!("no line of a walk: {line}"),
        }
        Ok(())
    }

    /// Lets the example make some.
    pub(super) fn make(
        walk: &Path,
        first: u64,
        count: u64,
        steps: usize,
        group: u64,
        file: &Path,
    ) -> Result<Self> {
        let numbers = [first, count, steps as u64, group].map(|n| n.to_string());
        let output = patient(walk)
            .args(numbers)
            .arg(file)
            .output()
            .with_context(|| format!("running {}", walk.display()))?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let mut walks = Self::default();
        each_line(BufReader::new(File::open(file)?), |line| walks.line(line))?;
        Ok(walks)
    }

    /// Writes them as a perf.data file, with the programs in files beside it. One tick of the TSC is one nanosecond.
    pub(super) fn save(&self, data: &Path) -> Result<()> {
        let mut options = WriterOptions::new(
            self.config.into(),
            TimeConv {
                shift: 0,
                mult: 1,
                zero: 0,
            },
        );
        options.tsc_ctc_ratio = (80, 1);
        options.max_nonturbo_ratio = 20;
        options.subject = Subject::Processes;
        let mut wide = Image::new(true, data.with_extension("64"));
        let mut narrow = Image::new(false, data.with_extension("32"));
        let mut writer = Writer::new(BufWriter::new(File::create(data)?), options)?;
        for (walk, tid) in self.list.iter().zip(1..) {
            let task = Task { pid: tid, tid };
            writer.comm(task, b"walk", true, BEGIN)?;
            for code in &walk.codes {
                let image = if code.bits == 64 {
                    &mut wide
                } else {
                    &mut narrow
                };
                let (start, len, pgoff) = image.add(code.address, &code.bytes);
                let map = Mmap2 {
                    start,
                    len,
                    pgoff,
                    device: (8, 1),
                    inode: code.bits.into(),
                    prot: 5,
                    path: image.path().as_os_str().as_encoded_bytes(),
                };
                writer.mmap2(task, &map, BEGIN)?;
            }
            writer.itrace_start(task, BEGIN)?;
        }
        for image in [wide, narrow] {
            image.save()?;
        }
        writer.finished_round()?;
        for (walk, tid) in self.list.iter().zip(1..) {
            // Times are those of the trace; perf wants to know where it begins. Before anything ran is early enough.
            let reference = walk.steps.first().map_or(1, |step| step.tsc.max(2) - 1);
            writer.auxtrace(tid - 1, tid, Default::default(), reference, &walk.trace)?;
        }
        for (_, tid) in self.list.iter().zip(1..) {
            writer.exit(Task { pid: tid, tid }, END)?;
        }
        writer.finished_round()?;
        writer.finish()?.flush()?;
        Ok(())
    }
}
