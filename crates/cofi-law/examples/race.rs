//! Decodes bare packets against images of the code: Cofi's part in the race with decoders that have other results than instructions.
//!
//! ```text
//! race [--level instructions|blocks|branches|edges] [--warm] [--passes N] [--cpu FAMILY/MODEL/STEPPING] [--cpuid-15 EAX,EBX]
//!     [--mtc-freq N] [--nom-freq N] STREAM [FILE:OFFSET:SIZE:ADDRESS]...
//! ```
//!
//! The command line and the line that is printed are those of the peers' programs (`bench/peers/src/lib.rs`): what a pass counts,
//! a checksum, and the processor time of each pass.
//!
//! - `instructions`, by a visitor: their number, and the sum of their addresses.
//! - `blocks`, by a visitor: the number of instructions, and the sum of the blocks' addresses.
//! - `branches`: conditional branches, and the mixed addresses to which they led. It is what iptr has to find.
//! - `edges`: what ptcov has to find. Each conditional, indirect or far branch or return that a packet decided is an edge from the address behind it to
//!   where it led. The checksum is over a map of 65,536 counts.
//!
//! With `--warm` a pass decodes the stream twice in a row with one decoder, and the time of the second counts.

#[path = "../../cofi-flow/examples/words/cpu.rs"]
mod cpu;
#[path = "../../cofi-flow/examples/words/mod.rs"]
mod words;

use std::error::Error;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use cofi_flow::{
    Errata, Event, Executed, FlowConfig, FlowDecoder, FlowError, Part, Path, Run, Visitor,
};
use cofi_insn::{Class, CodeSource, advance};
use cofi_packet::{Ip, StreamOffset};
use cpu::cpu;
use nix::time::{ClockId, clock_gettime};
use words::{number, section};

/// Entries of the map of edges.
const MAP: usize = 1 << 16;

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

/// What a pass finds.
trait Count: Visitor + Default {
    /// A run of instructions that came by itself.
    fn run(&mut self, run: &Run<'_>);

    /// The count and the checksum.
    fn found(&self) -> (u64, u64);

    fn errors(&self) -> u64;
}

#[derive(Default)]
struct Instructions {
    count: u64,
    sum: u64,
    errors: u64,
}

impl Visitor for Instructions {
    #[inline]
    fn instruction(&mut self, insn: &Executed) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(insn.ip.0);
    }

    fn error(&mut self, error: &FlowError) {
        self.errors += 1;
        eprintln!("race: {error}");
    }
}

impl Count for Instructions {
    fn run(&mut self, run: &Run<'_>) {
        run.for_each(|insn| self.instruction(&insn));
    }

    fn found(&self) -> (u64, u64) {
        (self.count, self.sum)
    }

    fn errors(&self) -> u64 {
        self.errors
    }
}

#[derive(Default)]
struct Blocks(Instructions);

impl Visitor for Blocks {
    #[inline(always)]
    fn path(&mut self, path: &Path<'_>) {
        // (Sums in registers: one in memory has to be there before the next block can be added to it.)
        let (mut count, mut sum) = (0, 0_u64);
        path.for_each(|block| {
            count += block.len() as u64;
            sum = sum.wrapping_add(block.ip().0);
        });
        self.0.count += count;
        self.0.sum = self.0.sum.wrapping_add(sum);
    }

    fn error(&mut self, error: &FlowError) {
        self.0.error(error);
    }
}

impl Count for Blocks {
    fn run(&mut self, run: &Run<'_>) {
        self.0.count += run.len() as u64;
        self.0.sum = self.0.sum.wrapping_add(run.ip().0);
    }

    fn found(&self) -> (u64, u64) {
        self.0.found()
    }

    fn errors(&self) -> u64 {
        self.0.errors
    }
}

/// The finalizer of MurmurHash3, as in `bench/peers/src/lib.rs`.
const fn mix(mut key: u64) -> u64 {
    key ^= key >> 33;
    key = key.wrapping_mul(0xff51_afd7_ed55_8ccd);
    key ^= key >> 33;
    key = key.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}

/// What ran last, and where the branches led.
#[derive(Default)]
struct Branches {
    /// The branch that has executed, if where it led is not known yet.
    last: Option<Executed>,
    conditional: Instructions,
    /// How often each edge was taken; empty until the first.
    map: Vec<u64>,
    edges: u64,
}

impl Branches {
    fn insn(&mut self, insn: &Executed) {
        if insn.class != Class::Other {
            self.lead(insn.ip);
            self.last = Some(*insn);
        } else if self.last.is_some() {
            self.lead(insn.ip);
        }
    }

    /// The last branch led here.
    fn lead(&mut self, to: Ip) {
        let Some(last) = self.last.take() else {
            return;
        };
        match last.class {
            Class::Conditional => {
                self.conditional.count += 1;
                self.conditional.sum = self.conditional.sum.wrapping_add(mix(to.0));
            }
            Class::IndirectJump
            | Class::IndirectCall
            | Class::Return
            | Class::FarCall
            | Class::FarJump
            | Class::FarReturn
            | Class::Syscall
            | Class::SoftwareInterrupt => {}
            _ => return,
        }
        let from = advance(last.ip, last.len, last.mode);
        self.map.resize(MAP, 0);
        self.map[(mix(from.0) ^ mix(to.0)) as usize & (MAP - 1)] += 1;
        self.edges += 1;
    }
}

impl Visitor for Branches {
    fn instruction(&mut self, insn: &Executed) {
        self.insn(insn);
    }

    fn event(&mut self, event: &Event, _: StreamOffset) {
        match event {
            // What struck did so where the branch had led.
            Event::AsyncBranch { from, .. } => self.lead(*from),
            Event::AsyncDisabled { at, .. } => self.lead(*at),
            Event::Enabled { .. } | Event::Disabled { .. } | Event::Overflow { .. } => {
                self.last = None;
            }
            _ => {}
        }
    }

    fn error(&mut self, error: &FlowError) {
        self.last = None;
        self.conditional.error(error);
    }
}

impl Count for Branches {
    fn run(&mut self, run: &Run<'_>) {
        run.for_each(|insn| self.insn(&insn));
    }

    fn found(&self) -> (u64, u64) {
        self.conditional.found()
    }

    fn errors(&self) -> u64 {
        self.conditional.errors
    }
}

#[derive(Default)]
struct Edges(Branches);

impl Visitor for Edges {
    fn instruction(&mut self, insn: &Executed) {
        self.0.insn(insn);
    }

    fn event(&mut self, event: &Event, offset: StreamOffset) {
        self.0.event(event, offset);
    }

    fn error(&mut self, error: &FlowError) {
        self.0.error(error);
    }
}

impl Count for Edges {
    fn run(&mut self, run: &Run<'_>) {
        self.0.run(run);
    }

    fn found(&self) -> (u64, u64) {
        let sum = (1..).zip(&self.0.map).fold(0_u64, |sum, (at, count)| {
            sum.wrapping_add(count.wrapping_mul(mix(at)))
        });
        (self.0.edges, sum)
    }

    fn errors(&self) -> u64 {
        self.0.errors()
    }
}

/// What the command line says.
struct Task {
    level: String,
    warm: bool,
    passes: u64,
    stream: Vec<u8>,
    images: Images,
    config: FlowConfig,
}

fn task(mut words: impl Iterator<Item = String>) -> Result<Task, Box<dyn Error>> {
    let (mut stream, mut images) = (None, Vec::new());
    let mut config = FlowConfig::default();
    let (mut level, mut warm, mut passes) = ("blocks".to_owned(), false, 1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} wants a value"));
        match word.as_str() {
            "--level" => level = value()?,
            "--warm" => warm = true,
            "--passes" => passes = number(&value()?)?,
            "--cpu" => config.errata = Errata::for_cpu(cpu(&value()?)?),
            "--cpuid-15" => {
                let value = value()?;
                let (eax, ebx) = value.split_once(',').ok_or("--cpuid-15 wants EAX,EBX")?;
                config.tsc_art_ratio = (number(ebx)?.try_into()?, number(eax)?.try_into()?);
            }
            "--mtc-freq" => config.mtc_freq = number(&value()?)?.try_into()?,
            "--nom-freq" => config.max_nonturbo_ratio = number(&value()?)?.try_into()?,
            _ if word.starts_with("--") => return Err(format!("{word}: unknown").into()),
            _ if stream.is_none() => {
                stream = Some(fs::read(&word).map_err(|error| format!("{word}: {error}"))?);
            }
            _ => images.push(section(&word)?),
        }
    }
    Ok(Task {
        level,
        warm,
        passes,
        stream: stream.ok_or("which stream?")?,
        images: Images(images),
        config,
    })
}

/// The processor time that this process has used.
fn processor_time() -> Result<Duration, Box<dyn Error>> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// One pass: what it finds, and how long it took.
fn pass<V: Count>(task: &Task, stream: &[u8]) -> Result<(V, Duration), Box<dyn Error>> {
    let mut visitor = V::default();
    let mut before = processor_time()?;
    let mut flow = FlowDecoder::new(stream, &task.images, task.config);
    if task.warm {
        // The first of the two copies: decoded, and not counted.
        let second = StreamOffset(task.stream.len() as u64);
        while let Some(part) = flow.next_part() {
            let begun = match part {
                Part::Run(run) => (run.offset() >= second)
                    .then(|| visitor.run(&run))
                    .is_some(),
                Part::Event(_) | Part::Error(_) => flow.offset() >= second,
            };
            if begun {
                break;
            }
        }
        before = processor_time()?;
    }
    flow.visit(&mut visitor);
    drop(flow);
    Ok((visitor, processor_time()? - before))
}

/// The passes of a level; the line to print, and how many errors there were.
fn passes<V: Count>(task: &Task) -> Result<(String, u64), Box<dyn Error>> {
    let stream = task.stream.repeat(if task.warm { 2 } else { 1 });
    let (mut seconds, mut errors) = (Vec::new(), 0);
    let mut found = (0, 0);
    for _ in 0..task.passes.max(1) {
        let (visitor, time) = pass::<V>(task, &stream)?;
        found = visitor.found();
        errors += visitor.errors();
        seconds.push(format!("{:.6}", time.as_secs_f64()));
    }
    let (count, sum) = found;
    let line = format!(
        "{{\"count\":{count},\"sum\":\"{sum:#x}\",\"seconds\":[{}]}}",
        seconds.join(",")
    );
    Ok((line, errors))
}

fn run() -> Result<u64, Box<dyn Error>> {
    let task = task(std::env::args().skip(1))?;
    let (line, errors) = match task.level.as_str() {
        "instructions" => passes::<Instructions>(&task),
        "blocks" => passes::<Blocks>(&task),
        "branches" => passes::<Branches>(&task),
        "edges" => passes::<Edges>(&task),
        other => Err(format!("{other}: there is no such level").into()),
    }?;
    println!("{line}");
    Ok(errors)
}

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("race: {error}");
            ExitCode::from(2)
        }
    }
}
