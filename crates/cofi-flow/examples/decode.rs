//! Decodes bare packets against images of the code, as often as asked, and tells how long it took.
//!
//! ```text
//! decode [--level items|instructions|blocks] [--cpu FAMILY/MODEL/STEPPING] [--cpuid-15 EAX,EBX] [--mtc-freq N] [--nom-freq N]
//!     [--count N | --times] STREAM [FILE:OFFSET:SIZE:ADDRESS]...
//! ```
//!
//! The level says how: by a loop over items (the default), by a visitor of instructions, or by a visitor of blocks.
//!
//! Each pass begins with nothing decoded or cached. One line is printed: the instructions of one pass, the sum of their
//! addresses (modulo 2^64; of blocks, of each one's first instruction), and the processor time of all passes in seconds. Errors of
//! the flow go to standard error; the status is then 1. With `--times`, a line is printed for each instruction instead: its address, and the earliest, likely and latest time at
//! which it retired, in TSC ticks, `-` where there is none. `cargo xtask bench` runs this against the same on libipt.

#[path = "words/cpu.rs"]
mod cpu;
mod words;

use std::error::Error;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use cofi_flow::{Block, Errata, Executed, FlowConfig, FlowDecoder, FlowError, Item, Visitor};
use cofi_insn::CodeSource;
use cofi_packet::Ip;

use cpu::cpu;
use nix::time::{ClockId, clock_gettime};
use words::{number, section};

/// The code: each piece with its address.
struct Images(Vec<(u64, Vec<u8>)>);

impl Images {
    /// The bytes from `at` to the end of the piece that holds it, the latest piece first.
    fn rest(&self, at: u64) -> Option<&[u8]> {
        self.0.iter().rev().find_map(|(base, bytes)| {
            let start = usize::try_from(at.checked_sub(*base)?).ok()?;
            bytes.get(start..).filter(|rest| !rest.is_empty())
        })
    }
}

impl CodeSource for &Images {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let Some(rest) = self.rest(ip.0.wrapping_add(done as u64)) else {
                break;
            };
            let len = rest.len().min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&rest[..len]);
            done += len;
        }
        done
    }
}

/// How to go through the flow.
#[derive(Clone, Copy)]
enum Level {
    Items,
    Instructions,
    Blocks,
}

/// What one pass finds.
#[derive(Default)]
struct Found {
    instructions: u64,
    sum: u64,
    errors: u64,
}

impl Found {
    fn error(&mut self, error: &FlowError) {
        self.errors += 1;
        eprintln!("decode: {error}");
    }

    fn instruction(&mut self, insn: &Executed) {
        self.instructions += 1;
        self.sum = self.sum.wrapping_add(insn.ip.0);
    }
}

struct ByInstruction(Found);

impl Visitor for ByInstruction {
    fn instruction(&mut self, insn: &Executed) {
        self.0.instruction(insn);
    }

    fn error(&mut self, error: &FlowError) {
        self.0.error(error);
    }
}

struct ByBlock(Found);

impl Visitor for ByBlock {
    fn block(&mut self, block: &Block<'_>) {
        self.0.instructions += block.len() as u64;
        self.0.sum = self.0.sum.wrapping_add(block.ip().0);
    }

    fn error(&mut self, error: &FlowError) {
        self.0.error(error);
    }
}

fn pass(task: &Task) -> Found {
    let mut flow = FlowDecoder::new(&task.stream, &task.images, task.config);
    match task.level {
        Level::Items => {
            let mut found = Found::default();
            for item in flow {
                match item {
                    Item::Insn(insn) => found.instruction(&insn),
                    Item::Event(_) => {}
                    Item::Error(error) => found.error(&error),
                }
            }
            found
        }
        Level::Instructions => {
            let mut visitor = ByInstruction(Found::default());
            flow.visit(&mut visitor);
            visitor.0
        }
        Level::Blocks => {
            let mut visitor = ByBlock(Found::default());
            flow.visit(&mut visitor);
            visitor.0
        }
    }
}

/// What the command line says.
struct Task {
    level: Level,
    stream: Vec<u8>,
    images: Images,
    config: FlowConfig,
    passes: u64,
    times: bool,
}

fn task(mut words: impl Iterator<Item = String>) -> Result<Task, Box<dyn Error>> {
    let (mut stream, mut images) = (None, Vec::new());
    let (mut config, mut passes, mut times) = (FlowConfig::default(), 1, false);
    let mut level = Level::Items;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} wants a value"));
        match word.as_str() {
            "--level" => {
                level = match value()?.as_str() {
                    "items" => Level::Items,
                    "instructions" => Level::Instructions,
                    "blocks" => Level::Blocks,
                    other => return Err(format!("{other}: there is no such level").into()),
                };
            }
            "--cpu" => config.errata = Errata::for_cpu(cpu(&value()?)?),
            "--cpuid-15" => {
                let value = value()?;
                let (eax, ebx) = value.split_once(',').ok_or("--cpuid-15 wants EAX,EBX")?;
                config.tsc_art_ratio = (number(ebx)?.try_into()?, number(eax)?.try_into()?);
            }
            "--mtc-freq" => config.mtc_freq = number(&value()?)?.try_into()?,
            "--nom-freq" => config.max_nonturbo_ratio = number(&value()?)?.try_into()?,
            "--times" => times = true,
            "--count" => passes = number(&value()?)?,
            _ if stream.is_none() => {
                stream = Some(fs::read(&word).map_err(|error| format!("{word}: {error}"))?);
            }
            _ => images.push(section(&word)?),
        }
    }
    Ok(Task {
        level,
        stream: stream.ok_or("which stream?")?,
        images: Images(images),
        config,
        passes,
        times,
    })
}

/// The processor time this process has used.
fn processor_time() -> Result<Duration, Box<dyn Error>> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Prints the instructions with their times; whether there was no error.
fn print_times(task: &Task) -> bool {
    let mut is_well = true;
    let mut decoder = FlowDecoder::new(&task.stream, &task.images, task.config);
    while let Some(item) = decoder.next() {
        match item {
            Item::Insn(insn) => {
                let told = decoder.time().map_or("- - -".into(), |time| {
                    let latest = time.latest.map_or("-".into(), |it| it.0.to_string());
                    format!("{} {} {latest}", time.earliest.0, time.tsc.0)
                });
                println!("{:#x} {told}", insn.ip.0);
            }
            Item::Event(_) => {}
            Item::Error(error) => {
                is_well = false;
                eprintln!("decode: {error}");
            }
        }
    }
    is_well
}

fn run() -> Result<bool, Box<dyn Error>> {
    let task = task(std::env::args().skip(1))?;
    if task.times {
        return Ok(print_times(&task));
    }
    let (mut found, mut errors) = (Found::default(), 0);
    let before = processor_time()?;
    for _ in 0..task.passes {
        found = pass(&task);
        errors += found.errors;
    }
    let seconds = (processor_time()? - before).as_secs_f64();
    println!("{} {} {seconds:.6}", found.instructions, found.sum);
    Ok(errors == 0)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("decode: {error}");
            ExitCode::from(2)
        }
    }
}
