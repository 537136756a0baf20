//! A random walk through programs, traced by the unit, with the truth kept beside.

use crate::{End, Program, Rng, Units};
use cofi_packet::{ExecMode, Ip, Tsc};
use cofi_unit::{
    At, Branch, Capabilities, Context, Ctl, Event, Implementation, Retired, TntForm, msr,
};

/// What to generate and how to trace it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Seed of the programs and of the walk.
    pub seed: u64,
    /// How many instructions to walk.
    pub steps: usize,
    /// Blocks a program.
    pub blocks: usize,
    /// IA32_RTIT_CTL, without TraceEn.
    pub ctl: Ctl,
    /// Long TNT packets.
    pub long_tnt: bool,
    /// Programs made of calls and returns, walked down and up again deeper than a return stack holds.
    pub deep: bool,
    /// The most time, in TSC ticks, that an instruction takes.
    pub slowest: u64,
}

/// An executed instruction that the trace must show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Its address.
    pub ip: Ip,
    /// The time at which it retired.
    pub tsc: Tsc,
}

/// A trace, and what truly happened.
#[derive(Clone, Debug)]
pub struct Execution {
    /// The packet stream.
    pub trace: Vec<u8>,
    /// The packet stream of a unit that was told of many instructions at a time.
    pub at_once: Vec<u8>,
    /// Every instruction that retired while PacketEn was set, in order.
    pub truth: Vec<Step>,
    /// The 64-bit and the 32-bit program.
    pub programs: [Program; 2],
    /// The capabilities traced with.
    pub caps: Capabilities,
}

struct Walk<'c> {
    config: &'c Config,
    rng: Rng,
    units: Units,
    programs: [Program; 2],
    truth: Vec<Step>,
    context: Context,
    /// Real return addresses.
    stack: Vec<Ip>,
    /// In a deep program: on the way up.
    ascending: bool,
    /// Program, block and instruction that run next.
    at: (usize, usize, usize),
}

const KERNEL: Ip = Ip(0xffff_ffff_8100_0000);

/// Generates two programs from the seed, walks them, and traces the walk.
#[must_use]
pub fn run(config: &Config) -> Execution {
    let mut rng = Rng::new(config.seed);
    let low = if rng.one_in(2) {
        0x40_0000
    } else {
        0xf7f0_fff0
    };
    let high = if rng.one_in(2) {
        0x7f12_3456_7000
    } else {
        0x55_0000
    };
    let programs = [
        Program::random(
            &mut rng,
            config.blocks,
            Ip(high),
            ExecMode::Bits64,
            config.deep,
        ),
        Program::random(
            &mut rng,
            config.blocks,
            Ip(low),
            ExecMode::Bits32,
            config.deep,
        ),
    ];
    let caps = Capabilities::default();
    let mut choices = Implementation::default();
    choices.tnt = if config.long_tnt {
        TntForm::Long
    } else {
        TntForm::Short
    };
    let context = Context {
        cpl: 3,
        cr3: 0x1000,
        mode: ExecMode::Bits64,
        ..Context::default()
    };
    let start = 1 + rng.next_u64() % (1 << 40);
    let mut walk = Walk {
        config,
        units: Units::new(caps, choices, context, start, config.seed),
        programs,
        truth: Vec::new(),
        context,
        stack: Vec::new(),
        ascending: false,
        at: (0, 0, 0),
        rng,
    };
    let entry = walk.ip();
    let here = At {
        ip: entry,
        next: entry,
    };
    let legal = "the configuration is legal";
    walk.units.with(|unit, world| {
        unit.wrmsr(world, here, msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0xfff)
            .expect(legal);
        let event = Event::Frequency {
            stopped_at: None,
            ratio: 20,
        };
        unit.event(world, event);
    });
    walk.set_trace_en(true);
    for _ in 0..config.steps {
        walk.step();
    }
    walk.set_trace_en(false);
    let [trace, at_once] = walk.units.finish();
    Execution {
        trace,
        at_once,
        truth: walk.truth,
        programs: walk.programs,
        caps,
    }
}

impl Walk<'_> {
    fn ip(&self) -> Ip {
        let (program, block, insn) = self.at;
        self.programs[program].blocks[block].insns[insn].0
    }

    fn start_of(&self, program: usize, block: usize) -> Ip {
        self.programs[program].blocks[block].start
    }

    fn set_trace_en(&mut self, on: bool) {
        let here = At {
            ip: self.ip(),
            next: self.ip(),
        };
        let ctl = self.config.ctl.with_trace_en(on).0;
        self.units.with(|unit, world| {
            unit.wrmsr(world, here, msr::IA32_RTIT_CTL, ctl)
                .expect("the configuration is legal");
        });
    }

    fn pass_time(&mut self) {
        let ticks = self.rng.next_u64() % (self.config.slowest + 1);
        self.units.pass(ticks);
    }

    /// Goes to the block that begins at or holds `ip` as an instruction of the running program.
    fn go(&mut self, program: usize, ip: Ip) {
        let blocks = &self.programs[program].blocks;
        let block = blocks.partition_point(|b| b.start <= ip) - 1;
        let insn = blocks[block]
            .insns
            .iter()
            .position(|i| i.0 == ip)
            .expect("jumps lead to instructions");
        self.at = (program, block, insn);
        self.context.mode = self.programs[program].mode;
    }

    fn random_block(&mut self, program: usize) -> Ip {
        let mut block = self.rng.index(self.config.blocks);
        if self.config.deep {
            // Odd blocks return, even ones call.
            self.ascending ^= self.rng.one_in(100);
            block = (block & !1 | usize::from(self.ascending)).min(self.config.blocks - 1);
        }
        self.start_of(program, block)
    }

    /// An event, at an instruction that has not run: to a handler in the traced world, or to the kernel and back.
    fn event(&mut self) {
        let from = self.ip();
        let program = self.rng.index(2);
        if self.rng.one_in(2) {
            let handler = self.random_block(program);
            let mode = self.programs[program].mode;
            let context = Context {
                mode,
                ..self.context
            };
            self.units.interrupt(from, handler, context);
            self.go(program, handler);
        } else {
            let kernel = Context {
                cpl: 0,
                mode: ExecMode::Bits64,
                ..self.context
            };
            self.units.interrupt(from, KERNEL, kernel);
            self.return_to_user(from);
        }
    }

    /// Back from the kernel: to `ip`, or (a signal handler) elsewhere.
    fn return_to_user(&mut self, ip: Ip) {
        self.pass_time();
        // Where the kernel is traced too, an IRET of its own would have to be shown: there is no kernel code here.
        let program = if self.rng.one_in(4) {
            self.rng.index(2)
        } else {
            self.at.0
        };
        let to = if program == self.at.0 && !self.rng.one_in(4) {
            ip
        } else {
            self.random_block(program)
        };
        let mode = self.programs[program].mode;
        let context = Context {
            mode,
            cpl: 3,
            ..self.context
        };
        self.units.far(to, context);
        self.go(program, to);
    }

    fn step(&mut self) {
        self.pass_time();
        match self.rng.index(if self.config.deep { 5000 } else { 150 }) {
            0 => return self.event(),
            1 if self.rng.one_in(4) => {
                self.set_trace_en(false);
                self.pass_time();
                self.set_trace_en(true);
            }
            2 if self.rng.one_in(4) => self.units.event(Event::ClocksResumed),
            _ => {}
        }
        let (program, block, insn) = self.at;
        let this = &self.programs[program].blocks[block];
        let (ip, len) = this.insns[insn];
        let next = ip.wrapping_add(len.into());
        let at = At { ip, next };
        let is_end = insn + 1 == this.insns.len() && this.end != End::FallThrough;
        let end = if is_end { this.end } else { End::FallThrough };
        let branch = match end {
            End::FallThrough => Branch::None,
            End::Conditional(to) => Branch::Conditional(
                self.rng
                    .one_in(2)
                    .then_some(self.programs[program].blocks[to].start),
            ),
            End::ShortLoop => Branch::Conditional((!self.rng.one_in(4)).then_some(this.start)),
            End::Jump(to) => Branch::DirectJump(self.programs[program].blocks[to].start),
            End::Call(to) => {
                self.stack.push(next);
                Branch::DirectCall(self.programs[program].blocks[to].start)
            }
            End::CallNext => Branch::DirectCall(next),
            End::IndirectCall => {
                self.stack.push(next);
                Branch::IndirectCall(self.random_block(program))
            }
            End::IndirectJump => Branch::IndirectJump(self.random_block(program)),
            End::Return => {
                // Mostly to the caller; sometimes the stack has been tampered with.
                let matched = self
                    .stack
                    .pop()
                    .filter(|_| !self.rng.one_in(if self.config.deep { 300 } else { 10 }));
                let inside = matched.filter(|&ip| self.holds(program, ip));
                let to = inside.unwrap_or_else(|| self.random_block(program));
                Branch::Return(to)
            }
            End::FarReturn | End::Syscall | End::Breakpoint => {
                return self.far(end, at);
            }
        };
        if self.units.packet_en() {
            self.truth.push(Step {
                ip,
                tsc: self.units.tsc(),
            });
        }
        let retired = Retired { at, branch };
        self.units.retire(retired);
        if branch == Branch::None && insn + 1 < self.programs[program].blocks[block].insns.len() {
            self.at.2 += 1;
        } else {
            self.go(program, retired.destination());
        }
    }

    fn holds(&self, program: usize, ip: Ip) -> bool {
        self.programs[program]
            .blocks
            .iter()
            .any(|b| b.insns.iter().any(|i| i.0 == ip))
    }

    fn far(&mut self, end: End, at: At) {
        // An INT3 is told by a FUP, like a fault, and is no entry of the flow.
        if self.units.packet_en() && end != End::Breakpoint {
            self.truth.push(Step {
                ip: at.ip,
                tsc: self.units.tsc(),
            });
        }
        let kernel = Context {
            cpl: 0,
            mode: ExecMode::Bits64,
            ..self.context
        };
        match end {
            End::FarReturn => {
                let program = self.rng.index(2);
                let to = self.random_block(program);
                let mode = self.programs[program].mode;
                let context = Context {
                    mode,
                    ..self.context
                };
                self.units.far(to, context);
                self.go(program, to);
            }
            End::Syscall => {
                self.units.far(KERNEL, kernel);
                let back = if self.holds(self.at.0, at.next) {
                    at.next
                } else {
                    self.start_of(self.at.0, 0)
                };
                self.return_to_user(back);
            }
            _ => {
                self.units.interrupt(at.ip, KERNEL, kernel);
                let back = if self.holds(self.at.0, at.next) {
                    at.next
                } else {
                    self.start_of(self.at.0, 0)
                };
                self.return_to_user(back);
            }
        }
    }
}
