//! The hot paths of the decoders on generated input, for instructions to be counted: `cargo xtask bench guard`.
//!
//! `hot --list` names the scenarios, and `hot SCENARIO PASSES` goes through one, PASSES times, and prints what it has found: a number that
//! depends on all of the result. The input is the same each time and everywhere: random walks with fixed seeds, traced by the unit.

use std::error::Error;
use std::process::ExitCode;

use cofi_flow::{Block, EventDecoder, Executed, FlowConfig, FlowDecoder, FlowError, Item, Visitor};
use cofi_insn::{CodeSource, LinearDecoder};
use cofi_law::{Config, Execution, Program, run};
use cofi_packet::intel::{Encoder, IntelPt, Located, Packets, StreamError};
use cofi_packet::{Buffer, Ip, PacketVisitor};
use cofi_unit::Ctl;

/// How many instructions a walk has at most.
const STEPS: usize = 15_000;

/// What is done, and with which walk.
struct Scenario {
    name: &'static str,
    work: fn(&Execution, &FlowConfig) -> u64,
    ctl: fn(Ctl) -> Ctl,
}

const SCENARIOS: [Scenario; 12] = [
    Scenario {
        name: "packets",
        work: packets,
        ctl: |ctl| ctl,
    },
    Scenario {
        name: "packets-visited",
        work: packets_visited,
        ctl: |ctl| ctl,
    },
    Scenario {
        name: "encode",
        work: encode,
        ctl: |ctl| ctl,
    },
    Scenario {
        name: "events",
        work: events,
        ctl: |ctl| ctl,
    },
    Scenario {
        name: "blocks",
        work: blocks,
        ctl: |ctl| ctl,
    },
    Scenario {
        name: "blocks-noretcomp",
        work: blocks,
        ctl: |ctl| ctl.with_dis_retc(true),
    },
    Scenario {
        name: "blocks-timed",
        work: blocks,
        ctl: |ctl| ctl.with_tsc_en(true).with_mtc_en(true).with_cyc_en(true),
    },
    Scenario {
        name: "blocks-again",
        work: blocks_again,
        ctl: |ctl| ctl,
    },
    Scenario {
        name: "items",
        work: items,
        ctl: |ctl| ctl,
    },
    Scenario {
        name: "instructions",
        work: instructions,
        ctl: |ctl| ctl,
    },
    Scenario {
        name: "instructions-again",
        work: instructions_again,
        ctl: |ctl| ctl,
    },
    Scenario {
        name: "insn",
        work: insns,
        ctl: |ctl| ctl,
    },
];

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

fn fold(sum: u64, value: u64) -> u64 {
    sum.rotate_left(5) ^ value
}

fn packets(execution: &Execution, _: &FlowConfig) -> u64 {
    let good = Packets::new(&execution.trace).filter_map(Result::ok);
    good.fold(0, |sum, it| fold(sum, it.packet().kind() as u64))
}

#[derive(Default)]
struct Kinds(u64);

impl PacketVisitor<IntelPt> for Kinds {
    #[inline(always)]
    fn packet(&mut self, packet: Located) {
        self.0 = fold(self.0, packet.packet().kind() as u64);
    }

    fn error(&mut self, error: &StreamError) {
        unreachable!("what the unit writes is decoded: {error}");
    }
}

fn packets_visited(execution: &Execution, _: &FlowConfig) -> u64 {
    let mut kinds = Kinds::default();
    Packets::new(&execution.trace).visit(&mut kinds);
    kinds.0
}

fn encode(execution: &Execution, _: &FlowConfig) -> u64 {
    let mut out = vec![0; execution.trace.len()];
    let mut encoder = Encoder::new(Buffer::new(&mut out));
    let good = Packets::new(&execution.trace).filter_map(Result::ok);
    let done = good.filter(|it| encoder.packet(&it.packet()).is_ok());
    let count = done.count() as u64;
    let written = encoder.into_sink().into_written();
    written
        .iter()
        .fold(count, |sum, it| fold(sum, (*it).into()))
}

fn events(execution: &Execution, config: &FlowConfig) -> u64 {
    let told = EventDecoder::new(&execution.trace, *config).with_branches();
    told.fold(0, |sum, it| fold(sum, it.offset.0))
}

#[derive(Default)]
struct Sum {
    by_block: bool,
    sum: u64,
    errors: u64,
}

impl Visitor for Sum {
    fn block(&mut self, block: &Block<'_>) {
        if self.by_block {
            self.sum = fold(self.sum, block.ip().0 + block.len() as u64);
        } else {
            block.for_each(|insn| self.instruction(&insn));
        }
    }

    fn instruction(&mut self, insn: &Executed) {
        self.sum = fold(self.sum, insn.ip.0);
    }

    fn error(&mut self, error: &FlowError) {
        self.errors += 1;
        eprintln!("hot: {error}");
    }
}

fn flow(trace: &[u8], execution: &Execution, config: &FlowConfig, by_block: bool) -> u64 {
    let mut sum = Sum {
        by_block,
        ..Sum::default()
    };
    FlowDecoder::new(trace, Code(&execution.programs), *config).visit(&mut sum);
    assert_eq!(sum.errors, 0, "what the unit writes is decoded");
    sum.sum
}

fn blocks(execution: &Execution, config: &FlowConfig) -> u64 {
    flow(&execution.trace, execution, config, true)
}

/// The same execution again and again: what came before comes again.
fn blocks_again(execution: &Execution, config: &FlowConfig) -> u64 {
    flow(&execution.trace.repeat(6), execution, config, true)
}

fn items(execution: &Execution, config: &FlowConfig) -> u64 {
    let mut sum = 0;
    for item in FlowDecoder::new(&execution.trace, Code(&execution.programs), *config) {
        match item {
            Item::Insn(insn) => sum = fold(sum, insn.ip.0),
            Item::Event(_) => {}
            Item::Error(error) => unreachable!("what the unit writes is decoded: {error}"),
        }
    }
    sum
}

fn instructions(execution: &Execution, config: &FlowConfig) -> u64 {
    flow(&execution.trace, execution, config, false)
}

fn instructions_again(execution: &Execution, config: &FlowConfig) -> u64 {
    flow(&execution.trace.repeat(6), execution, config, false)
}

/// Decodes the programs from end to end.
fn insns(execution: &Execution, _: &FlowConfig) -> u64 {
    let mut sum = 0;
    for program in &execution.programs {
        for block in &program.blocks {
            let Some((last, len)) = block.insns.last() else {
                continue;
            };
            let mut bytes = vec![0; (last.0 - block.start.0) as usize + usize::from(*len)];
            let mut source = program;
            source.read(block.start, &mut bytes);
            let mut decoder = LinearDecoder::new(&bytes, block.start, program.mode);
            while !decoder.rest().is_empty() {
                let Ok(insn) = decoder.decode_next() else {
                    break;
                };
                sum = fold(sum, insn.digest.into());
            }
        }
    }
    sum
}

/// The walk of a scenario: through a small program, which is soon known, or, every other time, through a large one.
fn walk(scenario: &Scenario, seed: u64) -> Execution {
    let ctl = Ctl(0)
        .with_user(true)
        .with_branch_en(true)
        .with_mtc_freq(3)
        .with_psb_freq(2);
    run(&Config {
        seed,
        steps: STEPS,
        blocks: if seed.is_multiple_of(2) { 40 } else { 800 },
        ctl: (scenario.ctl)(ctl),
        long_tnt: false,
        deep: seed % 4 == 3,
        slowest: 3,
    })
}

fn go(arguments: &[String]) -> Result<u64, Box<dyn Error>> {
    let [name, passes] = arguments else {
        return Err("usage: hot --list | SCENARIO PASSES".into());
    };
    let scenario = SCENARIOS.iter().find(|it| it.name == name.as_str());
    let scenario = scenario.ok_or_else(|| format!("{name}: there is no such scenario"))?;
    let passes: u64 = passes.parse()?;
    let walks: Vec<Execution> = (1..5).map(|seed| walk(scenario, seed)).collect();
    let mut sum = 0;
    for _ in 0..passes {
        for walk in &walks {
            let crystal = walk.caps.crystal;
            let mut config = FlowConfig::default();
            config.tsc_art_ratio = (crystal.numerator, crystal.denominator);
            config.mtc_freq = 3;
            config.max_nonturbo_ratio = 20;
            sum = fold(sum, (scenario.work)(walk, &config));
        }
    }
    Ok(sum)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--list"] {
        for scenario in &SCENARIOS {
            println!("{}", scenario.name);
        }
        return ExitCode::SUCCESS;
    }
    match go(&arguments) {
        Ok(sum) => {
            println!("{sum:#x}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hot: {error}");
            ExitCode::from(2)
        }
    }
}
