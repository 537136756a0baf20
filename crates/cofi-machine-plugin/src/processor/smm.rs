//! System management mode, in which nothing is traced that was configured outside (33.2.9.3).

use super::Processor;
use crate::state::State;
use cofi_packet::{ExecMode, Ip};
use cofi_unit::{At, Destination};

/// Where an SMI saves the state of a processor with long mode, from its handler on: RIP, and the base of CS.
const SAVED_RIP: u64 = 0x7f78;
const SAVED_CS_BASE: u64 = 0x7e18;

impl Processor {
    /// An SMI has led to `next` while TraceEn was set, which is cleared, and remembered. (QEMU does not tell it as an interrupt.)
    #[cold]
    pub(super) fn smi(&mut self, state: State, next: u64, has_mark: bool) {
        self.has_smi = true;
        self.has_waited(has_mark);
        self.bus.tick();
        let read = |distance| {
            let mut bytes = [0; 8];
            let address = next.wrapping_add(distance);
            let is_read = self.bus.qemu().read_linear(address, &mut bytes);
            is_read.then_some(u64::from_le_bytes(bytes))
        };
        let (rip, base) = (read(SAVED_RIP), read(SAVED_CS_BASE));
        let mut from = match (rip, base) {
            // (Not so if the block's last instruction has changed the mode: then the place is none of the block's.)
            (Some(rip), _) if self.unit.context().mode == ExecMode::Bits64 => rip,
            (Some(rip), Some(base)) => base.wrapping_add(rip) & 0xffff_ffff,
            _ => next,
        };
        if let Some(here) = self.here.take() {
            from = self.leave(&here, from, has_mark);
        }
        let to = Destination {
            ip: Ip(next),
            context: state.context(),
        };
        self.unit.smi(&mut self.bus, Ip(from), to);
        self.bus.flush();
    }

    /// RSM has led to `next`, behind an SMI that cleared TraceEn: it is as it was.
    #[cold]
    pub(super) fn rsm(&mut self, state: State, next: u64) {
        self.has_smi = false;
        let here = self.here.take();
        if state.is_reset() {
            return;
        }
        self.bus.tick();
        let mut at = At {
            ip: Ip(next),
            next: Ip(next),
        };
        if let Some(here) = here
            && self.unit.in_use()
        {
            // What the handler ran.
            let steps = here.code.steps(self.unit.context().mode);
            if let Some(last_index) = steps.all().len().checked_sub(1) {
                at = steps.at(here.start, &steps.all()[last_index]);
                self.tell(&here, steps, last_index, at.ip.0);
            }
        }
        let to = Destination {
            ip: Ip(next),
            context: state.context(),
        };
        if self.unit.rsm(&mut self.bus, at, to, state.has_paging()) {
            // The processor would have shut down.
            self.totals.is_unexplained(at.ip.0, next);
        }
        self.is_unfiltered = self.unit.is_unfiltered();
    }
}
