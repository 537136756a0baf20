//! Writes many random walks through random programs in one file, each with its trace and the truth, for decoders that know nothing of
//! this project.
//!
//! ```text
//! walk FIRST COUNT STEPS GROUP FILE
//! ```
//!
//! The walks are those of the seeds from FIRST on, COUNT of them, of at most STEPS instructions. GROUP, 0 to 15, chooses what they have in
//! common, as a perf.data file says it once for all: TSC (1), MTC (2), CYC (4), DisRETC (8). FILE gets lines of words:
//!
//! ```text
//! config TSC MTC CYC NORETCOMP MTC_PERIOD    0 or 1 each, and the encoded period
//! stream SEED SLOWEST WORDS                  a walk begins; the most ticks of the TSC that an instruction takes; the rest is for people
//! code ADDRESS BITS HEX                      a program
//! trace HEX                                  the packets
//! lone                                       a TSC or MTC packet with no CYC packet right before it, other than the first
//! step ADDRESS LEN KIND TSC EARLIEST LATEST  an executed instruction, its time, and the interval that cofi-flow states, `-` if none
//! ```
//!
//! KIND is `-` for no branch, `c` conditional (`x` if it leads to the next instruction either way), `j` jump, `l` call, `J` and `C` the same
//! through a register, `r` return, `i` IRET, `s` SYSCALL.

use cofi_flow::{FlowConfig, FlowDecoder, Item};
use cofi_insn::CodeSource;
use cofi_law::{Block, Config, End, Execution, Program, Rng, run};
use cofi_packet::intel::{Packet, Packets};
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_unit::Ctl;
use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

struct Code<'p>(&'p [Program; 2]);

impl CodeSource for Code<'_> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        let [mut a, mut b] = [&self.0[0], &self.0[1]];
        match a.read(ip, buf) {
            0 => b.read(ip, buf),
            len => len,
        }
    }
}

/// What all walks of a group have in common.
fn common(group: u64) -> Ctl {
    let bit = |n: u64| group >> n & 1 != 0;
    Ctl(0)
        .with_user(true)
        .with_branch_en(true)
        .with_tsc_en(bit(0))
        .with_mtc_en(bit(1))
        .with_cyc_en(bit(2))
        .with_dis_retc(bit(3))
        .with_mtc_freq((group * 5 + 3) % 8)
}

fn config(seed: u64, steps: usize, ctl: Ctl) -> Config {
    let mut rng = Rng::new(!seed);
    Config {
        seed,
        steps: 1 + rng.index(steps),
        blocks: 2 + rng.index(58),
        ctl: ctl
            .with_cyc_thresh(rng.next_u64() % 10)
            .with_psb_freq(rng.next_u64() % 3),
        long_tnt: rng.one_in(2),
        deep: rng.one_in(4),
        slowest: [1, 40, 3000][rng.index(3)],
    }
}

/// The letter of the branch at the end of a block.
fn letter(program: &Program, block: &Block, next: u64) -> char {
    match block.end {
        End::FallThrough | End::Breakpoint => '-',
        End::Conditional(to) if program.blocks[to].start.0 == next => 'x',
        End::Conditional(_) | End::ShortLoop => 'c',
        End::Jump(_) => 'j',
        End::Call(_) | End::CallNext => 'l',
        End::IndirectJump => 'J',
        End::IndirectCall => 'C',
        End::Return => 'r',
        End::FarReturn => 'i',
        End::Syscall => 's',
    }
}

/// Length and letter of every instruction.
fn kinds(execution: &Execution) -> HashMap<u64, (u8, char)> {
    let mut kinds = HashMap::new();
    for program in &execution.programs {
        for block in &program.blocks {
            for (at, (ip, len)) in block.insns.iter().enumerate() {
                let next = ip.0 + u64::from(*len);
                let last = at + 1 == block.insns.len();
                let kind = if last {
                    letter(program, block, next)
                } else {
                    '-'
                };
                kinds.insert(ip.0, (*len, kind));
            }
        }
    }
    kinds
}

fn hex(out: &mut String, bytes: &[u8]) -> std::fmt::Result {
    for byte in bytes {
        write!(out, "{byte:02x}")?;
    }
    writeln!(out)
}

fn code(out: &mut String, program: &Program) -> Result<(), Box<dyn Error>> {
    let first = program.blocks.first().ok_or("a program without blocks")?;
    let last = program.blocks.last().and_then(|block| block.insns.last());
    let (ip, len) = last.ok_or("a program without an end")?;
    let mut bytes = vec![0; (ip.0 - first.start.0) as usize + usize::from(*len)];
    let mut source = program;
    if source.read(first.start, &mut bytes) != bytes.len() {
        return Err("a program has fewer bytes than instructions".into());
    }
    let bits = match program.mode {
        ExecMode::Bits64 => 64,
        _ => 32,
    };
    write!(out, "code {:#x} {bits} ", first.start.0)?;
    Ok(hex(out, &bytes)?)
}

/// Where TSC and MTC packets stand with no CYC right before them, but for the first.
fn lone(trace: &[u8]) -> Vec<StreamOffset> {
    let (mut lone, mut after_cyc) = (Vec::new(), false);
    for located in Packets::new(trace).filter_map(Result::ok) {
        let packet = located.packet();
        if !after_cyc && matches!(packet, Packet::Tsc { .. } | Packet::Mtc { .. }) {
            lone.push(located.offset);
        }
        after_cyc = matches!(packet, Packet::Cyc { .. });
    }
    lone.split_off(lone.len().min(1))
}

fn stream(out: &mut String, config: &Config) -> Result<(), Box<dyn Error>> {
    let execution = run(config);
    writeln!(out, "stream {} {} {config:?}", config.seed, config.slowest)?;
    for program in &execution.programs {
        code(out, program)?;
    }
    write!(out, "trace ")?;
    hex(out, &execution.trace)?;
    let crystal = execution.caps.crystal;
    let mut read = FlowConfig::default();
    read.tsc_art_ratio = (crystal.numerator, crystal.denominator);
    read.mtc_freq = config.ctl.mtc_freq() as u8;
    read.max_nonturbo_ratio = 20;
    let mut decoder = FlowDecoder::new(&execution.trace, Code(&execution.programs), read);
    let kinds = kinds(&execution);
    let mut lone = lone(&execution.trace).into_iter().peekable();
    let mut truth = execution.truth.iter();
    while let Some(item) = decoder.next() {
        let insn = match item {
            Item::Insn(insn) => insn,
            Item::Event(_) => continue,
            Item::Error(error) => return Err(format!("seed {}: {error}", config.seed).into()),
        };
        let step = truth.next().filter(|step| step.ip == insn.ip);
        let step = step.ok_or_else(|| format!("seed {}: not {insn:?}", config.seed))?;
        while lone.next_if(|at| *at <= decoder.offset()).is_some() {
            writeln!(out, "lone")?;
        }
        let (len, kind) = kinds.get(&step.ip.0).ok_or("a step beside the programs")?;
        write!(out, "step {:#x} {len} {kind} {} ", step.ip.0, step.tsc.0)?;
        match decoder.time() {
            None => writeln!(out, "- -")?,
            Some(time) => match time.latest {
                None => writeln!(out, "{} -", time.earliest.0)?,
                Some(latest) => writeln!(out, "{} {}", time.earliest.0, latest.0)?,
            },
        }
    }
    match truth.next() {
        Some(step) => Err(format!("seed {}: {step:?} is not told", config.seed).into()),
        None => Ok(()),
    }
}

fn write(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [first, count, steps, group, file] = arguments else {
        return Err("usage: walk FIRST COUNT STEPS GROUP FILE".into());
    };
    let (first, count): (u64, u64) = (first.parse()?, count.parse()?);
    let (steps, group): (usize, u64) = (steps.parse()?, group.parse()?);
    let ctl = common(group);
    let flags = [ctl.tsc_en(), ctl.mtc_en(), ctl.cyc_en(), ctl.dis_retc()];
    let mut out = String::from("config");
    for flag in flags {
        write!(out, " {}", u8::from(flag))?;
    }
    writeln!(out, " {}", ctl.mtc_freq())?;
    for seed in first..first + count {
        stream(&mut out, &config(seed, steps.max(1), ctl))?;
    }
    Ok(std::fs::write(file, out)?)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match write(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("walk: {error}");
            ExitCode::from(2)
        }
    }
}
