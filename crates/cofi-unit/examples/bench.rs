//! Measures how many operations a second the trace unit does.
//!
//! `bench SCENARIO OPERATIONS` does so many operations and prints one JSON object: scenario, operations, trace bytes, and the
//! processor time. `bench --list` prints the scenarios. `cargo xtask bench unit` runs them all, and counts instructions too.

use cofi_packet::{ExecMode, Ip};
use cofi_unit::spec::topa::Entry;
use cofi_unit::{
    At, Branch, Capabilities, Client, Clock, Context, Ctl, Implementation, InternalBuffer,
    PhysAddr, Retired, Unit, msr,
};
use nix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

/// Output regions: 64K, as Linux would like them.
const REGION: u64 = 1 << 16;
const TABLE: u64 = 4 * REGION;
const CODE: u64 = 0x40_0000;

/// Memory for the trace, and a clock that the loop sets.
struct World {
    clock: Clock,
    memory: Vec<u8>,
    bytes: u64,
    pmis: u64,
}

impl Client for World {
    #[inline]
    fn now(&mut self) -> Clock {
        self.clock
    }

    #[inline]
    fn store(&mut self, PhysAddr(address): PhysAddr, bytes: &[u8]) {
        let start = address as usize;
        self.memory[start..start + bytes.len()].copy_from_slice(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn load(&mut self, PhysAddr(address): PhysAddr) -> u64 {
        let start = address as usize;
        let mut entry = [0; 8];
        entry.copy_from_slice(&self.memory[start..start + 8]);
        u64::from_le_bytes(entry)
    }

    fn topa_pmi(&mut self) {
        self.pmis += 1;
    }
}

/// What retires.
#[derive(Clone, Copy, PartialEq)]
enum Program {
    /// Conditional branches only.
    Conditional,
    /// 70 % conditional branches, 10 % calls and returns that are compressed, 5 % indirect jumps, the rest no branches.
    Mixed,
}

/// How it is told.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Retire,
    Gather,
    /// Gathered, and conditional branches by [`cofi_unit::Gathering::direct`].
    Direct,
}

struct Scenario {
    name: &'static str,
    program: Program,
    way: Way,
    ctl: Ctl,
    buffer: bool,
}

const PLAIN: Ctl = Ctl(0)
    .with_trace_en(true)
    .with_user(true)
    .with_branch_en(true);
const TOPA: Ctl = PLAIN.with_topa(true);
/// As perf asks for it.
const TIMED: Ctl = PLAIN.with_tsc_en(true).with_mtc_en(true).with_mtc_freq(3);
const CYC: Ctl = TIMED.with_cyc_en(true);
const FILTER: Ctl = PLAIN.with_addr0_cfg(1);
/// A range around nothing that runs.
const FILTERED_OUT: Ctl = PLAIN.with_addr1_cfg(1);

const fn scenario(name: &'static str, program: Program, way: Way, ctl: Ctl) -> Scenario {
    Scenario {
        name,
        program,
        way,
        ctl,
        buffer: false,
    }
}

const SCENARIOS: &[Scenario] = &[
    scenario("off", Program::Conditional, Way::Retire, Ctl(0)),
    scenario("conditional", Program::Conditional, Way::Retire, PLAIN),
    scenario(
        "conditional-gather",
        Program::Conditional,
        Way::Gather,
        PLAIN,
    ),
    scenario(
        "conditional-direct",
        Program::Conditional,
        Way::Direct,
        PLAIN,
    ),
    scenario("mixed", Program::Mixed, Way::Retire, PLAIN),
    scenario("mixed-gather", Program::Mixed, Way::Gather, PLAIN),
    scenario("topa", Program::Mixed, Way::Retire, TOPA),
    scenario("topa-gather", Program::Mixed, Way::Gather, TOPA),
    scenario("mtc-tsc", Program::Mixed, Way::Retire, TIMED),
    scenario("mtc-tsc-gather", Program::Mixed, Way::Gather, TIMED),
    scenario("cyc", Program::Mixed, Way::Retire, CYC),
    scenario("cyc-gather", Program::Mixed, Way::Gather, CYC),
    scenario("filter", Program::Mixed, Way::Retire, FILTER),
    scenario("filter-gather", Program::Mixed, Way::Gather, FILTER),
    scenario("filtered-out", Program::Mixed, Way::Retire, FILTERED_OUT),
    Scenario {
        buffer: true,
        ..scenario("buffer", Program::Mixed, Way::Retire, PLAIN)
    },
    Scenario {
        buffer: true,
        ..scenario("buffer-gather", Program::Mixed, Way::Gather, PLAIN)
    },
];

/// A stretch of instructions that is repeated; returns go where their calls came from.
fn instructions(program: Program) -> Vec<Retired> {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut insns, mut calls) = (Vec::new(), Vec::new());
    while insns.len() < 4096 {
        let ip = Ip(CODE + random(1 << 16));
        let at = At {
            ip,
            next: Ip(ip.0 + 5),
        };
        let to = Ip(CODE + random(1 << 16));
        let kind = match program {
            Program::Conditional => 0,
            Program::Mixed => random(100),
        };
        let branch = match kind {
            0..70 => Branch::Conditional((random(3) > 0).then_some(to)),
            70..80 => match calls.pop() {
                Some(next) if calls.len() > 30 || random(2) == 0 => Branch::Return(next),
                last => {
                    calls.extend(last);
                    calls.push(at.next);
                    Branch::DirectCall(to)
                }
            },
            80..85 => Branch::IndirectJump(to),
            _ => Branch::None,
        };
        insns.push(Retired { at, branch });
    }
    // As deep in the end as in the beginning.
    for next in calls.into_iter().rev() {
        let at = At { ip: next, next };
        let branch = Branch::Return(next);
        insns.push(Retired { at, branch });
    }
    insns
}

fn ready(scenario: &Scenario) -> (Unit, World) {
    let mut world = World {
        clock: Clock::default(),
        memory: vec![0; 5 * REGION as usize],
        bytes: 0,
        pmis: 0,
    };
    let buffer = scenario.buffer.then_some(InternalBuffer {
        size: 4096,
        drain_bytes: 16,
        drain_cycles: 16,
        resume_at: 2048,
    });
    let mut choices = Implementation::default();
    choices.buffer = buffer;
    let context = Context {
        cpl: 3,
        mode: ExecMode::Bits64,
        ..Context::default()
    };
    let mut unit = Unit::with(Capabilities::default(), choices, context);
    let entries = (0..4).map(|n| Entry::region(n * REGION, REGION).expect("such a size is known"));
    for (n, entry) in entries.chain([Entry::table(TABLE)]).enumerate() {
        let start = TABLE as usize + 8 * n;
        world.memory[start..start + 8].copy_from_slice(&entry.with_int_unless_end().to_le_bytes());
    }
    let (base, ptrs) = if scenario.ctl.topa() {
        (TABLE, 0x7f)
    } else {
        (0, REGION - 1)
    };
    for (register, value) in [
        (msr::IA32_RTIT_OUTPUT_BASE, base),
        (msr::IA32_RTIT_OUTPUT_MASK_PTRS, ptrs),
        (msr::IA32_RTIT_ADDR0_A, 0),
        (msr::IA32_RTIT_ADDR0_B, u64::MAX >> 17),
        (msr::IA32_RTIT_CTL, scenario.ctl.0),
    ] {
        unit.wrmsr(&mut world, At::default(), register, value)
            .expect("a legal value");
    }
    (unit, world)
}

/// INT in regions, none in END entries.
trait WithInt {
    fn with_int_unless_end(self) -> u64;
}

impl WithInt for Entry {
    fn with_int_unless_end(self) -> u64 {
        if self.is_end() {
            self.0
        } else {
            self.with_int().0
        }
    }
}

/// One clock cycle an instruction.
#[inline]
fn tick(world: &mut World) {
    world.clock.tsc += 1;
    world.clock.cycles += 1;
}

fn run(scenario: &Scenario, operations: u64) -> (World, u64) {
    let (mut unit, mut world) = ready(scenario);
    let insns = instructions(scenario.program);
    let mut done = 0;
    while done < operations {
        let insns = black_box(insns.as_slice());
        match scenario.way {
            Way::Retire => {
                for insn in insns {
                    tick(&mut world);
                    unit.retire(&mut world, *insn);
                }
            }
            Way::Gather => {
                let mut unit = unit.gather(world.clock.tsc);
                for insn in insns {
                    tick(&mut world);
                    unit.retire(&mut world, *insn);
                }
            }
            Way::Direct => {
                let mut unit = unit.gather(world.clock.tsc);
                for insn in insns {
                    tick(&mut world);
                    let taken = matches!(insn.branch, Branch::Conditional(Some(_)));
                    if !unit.direct(world.clock.tsc, true, taken) {
                        unit.retire(&mut world, *insn);
                    }
                }
            }
        }
        done += insns.len() as u64;
    }
    (world, done)
}

/// The processor time that this process has used.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map(Duration::from)
        .expect("every process has such a clock")
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["--list"] => {
            for scenario in SCENARIOS {
                println!("{}", scenario.name);
            }
            return ExitCode::SUCCESS;
        }
        [name, operations] => {
            let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
            if let (Some(scenario), Ok(operations)) = (scenario, operations.parse()) {
                let begun = processor_time();
                let (world, operations) = run(scenario, operations);
                let seconds = (processor_time() - begun).as_secs_f64();
                println!(
                    "{{\"scenario\":\"{name}\",\"operations\":{operations},\"bytes\":{},\"pmis\":{},\"seconds\":{seconds:.6}}}",
                    world.bytes, world.pmis
                );
                return ExitCode::SUCCESS;
            }
        }
        _ => {}
    }
    eprintln!("usage: bench SCENARIO OPERATIONS | bench --list");
    ExitCode::from(2)
}
