//! HLT and MWAIT.

use super::Processor;
use crate::code::{Detail, Step};
use crate::state::{Register, State};
use cofi_insn::Class;
use cofi_packet::intel::{CState, WakeReason};
use cofi_unit::{Event, Mwait, Retired, Sleep};

/// A processor that waits. Of Intel PT the instruction retires when it wakes: EXSTOP has the address of the oldest instruction that has not
/// completed (33.4.2.22), so no PSB+ that has the next one may come before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asleep {
    state: CState,
    insn: Option<Retired>,
}

impl Processor {
    /// Whether the block that runs ends with an instruction that waits: if QEMU says that the processor is idle, this has begun.
    pub(crate) fn waits(&self) -> bool {
        let Some(here) = self.here else { return false };
        let steps = here.code.steps(self.unit.context().mode);
        let last = steps.all().last();
        last.is_some_and(|step| step.class == Class::Wait)
    }

    /// Whether an interrupt from here came behind the block that runs: at its last instruction it would be a fault of that.
    pub(super) fn is_behind(&self, from: u64) -> bool {
        let Some(here) = self.here else { return false };
        let steps = here.code.steps(self.unit.context().mode);
        let last = steps.all().last();
        last.is_some_and(|last| from == steps.after(here.start, last))
    }

    /// It waits for an interrupt, or the machine was halted.
    pub(crate) fn idle(&mut self, has_mark: bool) {
        self.stood = self.state.map(State::snapshot);
        self.settle();
        let (Some(here), Some(state)) = (self.here, self.state) else {
            return;
        };
        if !self.unit.in_use() || !has_mark {
            return;
        }
        self.bus.tick();
        let steps = here.code.steps(self.unit.context().mode);
        let Some((last, before)) = steps.all().split_last() else {
            return;
        };
        let ip = steps.ip(here.start, last);
        self.tell(&here, steps, before.len(), ip);
        self.here = None;
        let insn = steps.retired(here.start, last, steps.after(here.start, last));
        self.sleep(last, insn, state);
    }

    /// An instruction stops execution until [`Self::wake`].
    fn sleep(&mut self, step: &Step, insn: Retired, state: State) {
        // (MWAIT leaves the registers alone.)
        let mwait = (step.detail == Detail::Mwait).then(|| Mwait {
            hints: state.get(Register::Rax) as u8,
            ext: state.get(Register::Rcx) as u8 & 3,
        });
        let hints = mwait.map_or(0, |mwait| mwait.hints);
        // (All ones are C0, of which nobody wakes: it is as good as C1.)
        let c_state = match hints >> 4 {
            0xf => CState::C1,
            deeper => CState::new(deeper).unwrap_or(CState::C1),
        };
        let mut asleep = Asleep {
            state: c_state,
            insn: Some(insn),
        };
        // RTIT has it the other way round: the instruction has retired, and nothing gives its address.
        if self.unit.is_rtit() {
            self.retires(&mut asleep);
        }
        self.asleep = Some(asleep);
        let event = Event::Sleep(Sleep {
            ip: insn.at.ip,
            mwait,
            hardware: false,
            state: c_state,
            sub_state: hints & 0xf,
        });
        self.unit.event(&mut self.bus, event);
        self.bus.flush();
    }

    /// Whether its registers are others than when it came to stand still, and it was not reset: somebody has written them, as `loadvm` does.
    pub(crate) fn has_been_changed(&mut self) -> bool {
        let (Some(stood), Some(state)) = (self.stood.take(), self.state) else {
            return false;
        };
        stood != state.snapshot() && !state.is_reset()
    }

    /// It waits no longer.
    pub(crate) fn resume(&mut self) {
        self.forbid_short_way();
        self.bus.tick_after_sleep();
        self.counters.slept(self.bus.tsc());
        self.wake(WakeReason::INTERRUPT);
    }

    fn wake(&mut self, reason: WakeReason) {
        let Some(mut asleep) = self.asleep.take() else {
            return;
        };
        if self.unit.in_use() {
            let event = Event::Wake {
                last: asleep.state,
                deepest: asleep.state,
                reason,
            };
            self.unit.event(&mut self.bus, event);
            self.retires(&mut asleep);
        }
    }

    fn retires(&mut self, asleep: &mut Asleep) {
        if let Some(insn) = asleep.insn.take() {
            self.ran(insn.at.ip.0);
            self.unit.retire(&mut self.bus, insn);
        }
    }

    /// An interrupt has come. If it has ended a wait of which QEMU told nothing, as where one thread runs all processors, that is told.
    pub(super) fn has_waited(&mut self, has_mark: bool) {
        if has_mark && self.waits() {
            self.idle(has_mark);
            self.resume();
        }
    }

    /// MWAIT went on at once, as QEMU has it where there are several processors: something was stored, for all that is known.
    pub(super) fn has_paused(&mut self, step: &Step, insn: Retired) {
        let Some(state) = self.state else { return };
        self.sleep(step, insn, state);
        self.wake(WakeReason::STORE);
    }
}
