//! Plain counts.

use std::ops::AddAssign;

use cofi_insn::Class;
use cofi_packet::Tsc;

use crate::gap::{Gap, GapCause};

/// How often what was executed. A far transfer is neither a call nor a return here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Instructions that retired.
    pub instructions: u64,
    /// Branches of all kinds among them, system calls and other far transfers included.
    pub branches: u64,
    /// Conditional branches among those.
    pub conditional: u64,
    /// Conditional branches that did not go on with the next instruction.
    pub taken: u64,
    /// Near calls, direct and indirect.
    pub calls: u64,
    /// Calls whose target is in a register or memory.
    pub indirect_calls: u64,
    /// Near returns.
    pub returns: u64,
    /// Jumps whose target is in a register or memory.
    pub indirect_jumps: u64,
    /// `SYSCALL` and `SYSENTER`, and `INT 0x80`, which the flow does not list as an instruction.
    pub system_calls: u64,
    /// Times control left or went elsewhere between two instructions: interrupts, faults, signals' deliveries.
    pub interruptions: u64,
}

impl Counts {
    /// Adds `times` executions of an instruction of class `class`, but for the instruction itself.
    pub(crate) fn add_class(&mut self, class: Class, times: u64) {
        if class.is_branch() {
            self.branches += times;
        }
        match class {
            Class::Conditional => self.conditional += times,
            Class::DirectCall => self.calls += times,
            Class::IndirectCall => {
                self.calls += times;
                self.indirect_calls += times;
            }
            Class::Return => self.returns += times,
            Class::IndirectJump => self.indirect_jumps += times,
            Class::Syscall => self.system_calls += times,
            _ => {}
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.branches += other.branches;
        self.conditional += other.conditional;
        self.taken += other.taken;
        self.calls += other.calls;
        self.indirect_calls += other.indirect_calls;
        self.returns += other.returns;
        self.indirect_jumps += other.indirect_jumps;
        self.system_calls += other.system_calls;
        self.interruptions += other.interruptions;
    }
}

/// The places where a part of the flow is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gaps {
    /// How often the flow was lost because the trace or the code contradicted itself.
    pub errors: u64,
    /// How often the processor could not store packets.
    pub overflows: u64,
    /// Bytes of the stream that are there but could not be used.
    pub lost_bytes: u64,
    /// How long they lasted together, in TSC ticks, as far as that is known.
    pub lost_ticks: u64,
    /// The first few of both.
    pub first: Vec<Gap>,
}

impl Gaps {
    /// How many gaps are listed one by one.
    pub const LISTED: usize = 16;

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.errors + self.overflows
    }

    /// Adds those that come later.
    pub(crate) fn join(&mut self, next: Self) {
        self.errors += next.errors;
        self.overflows += next.overflows;
        self.lost_bytes += next.lost_bytes;
        self.lost_ticks = self.lost_ticks.saturating_add(next.lost_ticks);
        let room = Self::LISTED.saturating_sub(self.first.len());
        self.first.extend(next.first.into_iter().take(room));
    }

    pub(crate) fn add(&mut self, gap: Gap) {
        match gap.cause {
            GapCause::Overflow => self.overflows += 1,
            GapCause::Error(_) => self.errors += 1,
        }
        self.lost_bytes += gap.bytes;
        self.lost_ticks = self.lost_ticks.saturating_add(gap.ticks().unwrap_or(0));
        if self.first.len() < Self::LISTED {
            self.first.push(gap);
        }
    }
}

/// When a thread was traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// The first time that packets tell.
    pub first: Option<Tsc>,
    /// The last.
    pub last: Option<Tsc>,
    /// How many TSC ticks tracing was on, as far as packets tell when it went on and off. In between, the thread did not run or ran
    /// code that is not traced.
    pub on_ticks: u64,
    /// The core cycles that CYC packets tell of; zero without such packets.
    pub cycles: u64,
}

impl Times {
    /// How many TSC ticks lie between the first time and the last.
    #[must_use]
    pub fn ticks(&self) -> Option<u64> {
        Some(self.last?.0.saturating_sub(self.first?.0))
    }

    /// How many instructions there were to a core cycle, if there are CYC packets.
    #[must_use]
    pub fn per_cycle(&self, instructions: u64) -> Option<f64> {
        (self.cycles != 0).then(|| instructions as f64 / self.cycles as f64)
    }
}
