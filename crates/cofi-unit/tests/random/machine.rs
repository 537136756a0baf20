//! The unit in its world, and what must hold after everything that is done to it.

use super::{Dice, World, capabilities, choices};
use cofi_unit::{Ctl, Destination, Event, Status, Unit, msr};
use std::fmt::Debug;

/// A unit and the world around it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) unit: Unit,
    pub(crate) world: World,
    /// Print what is done.
    pub(crate) is_loud: bool,
    /// What is done may break what must hold, as the state is not one that came about by itself.
    pub(crate) is_broken: bool,
    /// What is done next loads registers, and so may end tracing, begin it anew and stop it, all in one.
    pub(crate) is_loading: bool,
}

impl Machine {
    pub(crate) fn new(dice: &mut Dice<'_>) -> Self {
        let (caps, choices) = (capabilities(dice), choices(dice));
        let world = World::new(dice);
        let context = Self::context(dice);
        Self {
            unit: Unit::with(caps, choices, context),
            world,
            is_loud: std::env::var_os("COFI_LOUD").is_some(),
            is_broken: false,
            is_loading: false,
        }
    }

    pub(crate) fn ctl(&self) -> Ctl {
        Ctl(self.unit.rdmsr(msr::IA32_RTIT_CTL).unwrap_or(0))
    }

    pub(crate) fn status(&self) -> Status {
        Status(self.unit.rdmsr(msr::IA32_RTIT_STATUS).unwrap_or(0))
    }

    /// All registers.
    pub(crate) fn registers(&self) -> Vec<u64> {
        let read = |spec: &msr::RegisterSpec| self.unit.rdmsr(spec.address).unwrap_or(0);
        msr::ALL.iter().map(read).collect()
    }

    /// Does something to the unit, and checks what must hold after it. An error must have changed nothing.
    pub(crate) fn act<E: Debug>(
        &mut self,
        what: impl Debug,
        act: impl FnOnce(&mut Unit, &mut World) -> Result<(), E>,
    ) {
        if !self.ctl().trace_en() {
            self.world.stored.clear();
            self.world.is_cut = false;
        }
        let before = self.clone();
        let result = act(&mut self.unit, &mut self.world);
        let loads = std::mem::take(&mut self.is_loading);
        if self.is_loud {
            eprintln!(
                "{what:x?}: {:?}, {:?}, {:?}, buffered {}",
                result.as_ref().err(),
                self.ctl(),
                self.status(),
                self.unit.buffered()
            );
        }
        if self.is_broken {
            return;
        }
        if let Err(error) = result {
            assert_eq!(self.registers(), before.registers(), "{error:?}");
            assert!(self.unit == before.unit, "{error:?}: the unit has changed");
            assert!(
                self.world == before.world,
                "{error:?}: the world has changed"
            );
        }
        self.check(&before, loads);
    }

    fn check(&mut self, before: &Self, loads: bool) {
        let (ctl, status) = (self.ctl(), self.status());
        let (old_ctl, old) = (before.ctl(), before.status());
        let choices = *self.unit.implementation();
        if status.trigger_en() {
            assert!(ctl.trace_en(), "TriggerEn without TraceEn");
            assert!(!status.stopped(), "TriggerEn and Stopped");
            assert!(!status.error(), "TriggerEn and Error");
        }
        // The processor need not update ContextEn and FilterEn when TriggerEn is 0 (33.2.6.3, 33.2.6.5); but clearing TraceEn clears
        // all of them.
        assert!(
            !(status.context_en() || status.filter_en()) || ctl.trace_en(),
            "ContextEn or FilterEn without TraceEn"
        );
        if self.unit.packet_en() {
            let all = status.trigger_en() && status.context_en() && status.filter_en();
            assert!(
                all && ctl.branch_en(),
                "PacketEn without its parts (33.2.6.1)"
            );
        }
        if !ctl.trace_en() {
            assert_eq!(
                self.unit.buffered(),
                0,
                "clearing TraceEn empties the buffer"
            );
            assert!(
                !self.unit.is_overflowing(),
                "clearing TraceEn ends an overflow"
            );
        }
        let size = choices.buffer.map_or(0, |buffer| buffer.size.max(64));
        assert!(
            self.unit.buffered() <= size as usize,
            "the buffer has grown"
        );

        let news = self.world.stored.len() - before.world.stored.len();
        let has_stopped = (status.stopped(), status.error()) != (old.stopped(), old.error());
        if !old.trigger_en() && !status.trigger_en() && !has_stopped && !loads {
            let drains = choices.buffer.is_some() && old_ctl.trace_en();
            assert!(news == 0 || drains, "{news} bytes while TriggerEn is 0");
        }
        // Some packet may have been cut off at the end of a region.
        self.world.is_cut |= has_stopped;
        if old_ctl.trace_en() && !ctl.trace_en() && !self.world.is_cut {
            let psb = self.world.check_stream();
            if let (Some(psb), None, true) = (psb, choices.buffer, self.unit.capabilities().psb_cyc)
            {
                let since = self.world.stored.len() - psb;
                assert_eq!(
                    status.packet_byte_cnt(),
                    since.min(0x1_ffff) as u64,
                    "PacketByteCnt is another than the bytes since the last PSB (33.3.5.1)"
                );
            }
        }
    }

    /// Ends tracing in any state.
    pub(crate) fn finish(&mut self) {
        let context = *self.unit.context();
        let to = Destination {
            context,
            ..Destination::default()
        };
        let event = Event::Smi { from: to.ip, to };
        self.event(event);
        assert!(self.is_broken || !self.ctl().trace_en());
    }
}
