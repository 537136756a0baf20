//! VM entries and exits, and the SMM-transfer monitor.

use super::Walk;
use cofi_unit::{At, EntryOutcome, SmmExit, SmmReturn, VmEntry, VmExit, msr};

impl Walk<'_> {
    pub(super) fn vm_entry(&mut self, at: At) {
        let place = self.anywhere(None);
        let to = self.destination(place);
        let conceal = self.rng.one_in(3) && self.setup.conceals;
        let toggles = self.rng.one_in(3);
        let traces = self.unit.rdmsr(msr::IA32_RTIT_CTL).expect("it exists") & 1 == 1;
        let outcome = match self.rng.index(8) {
            0 => EntryOutcome::EarlyFailure,
            1 => EntryOutcome::LateFailure { host: to },
            _ => EntryOutcome::Success,
        };
        let from_smm = self.vmx.monitor.then_some(SmmReturn {
            vmcs: 0x7000,
            to_root: self.rng.one_in(2),
        });
        let succeeds = outcome == EntryOutcome::Success;
        let toggles = toggles && succeeds;
        let mut entry = VmEntry::new(at, to);
        entry.conceal = conceal;
        entry.conceal_guest = self.rng.one_in(3) && self.setup.conceals;
        entry.tsc = self.setup.guest_tsc;
        entry.load_ctl = toggles.then(|| self.ctl.with_trace_en(!traces).0);
        entry.from_smm = from_smm;
        entry.outcome = outcome;
        self.shown();
        let (before, live) = (self.status().context_en(), self.status().trigger_en());
        self.act(|unit, world| unit.vm_entry(world, &entry))
            .expect("it is legal");
        match outcome {
            EntryOutcome::EarlyFailure => {
                let (program, insn) = self.at;
                self.go(program, insn + 1);
                self.follow_space(false);
                return;
            }
            EntryOutcome::LateFailure { .. } => {
                self.context = to.context;
                self.follow_space(!conceal);
                self.go(place.0, place.1);
            }
            EntryOutcome::Success => {
                self.vmx.guest = from_smm.is_none_or(|smm| !smm.to_root);
                self.vmx.conceal = entry.conceal_guest;
                self.vmx.monitor = false;
                self.context = to.context;
                self.follow_space(!conceal && live && !toggles);
                // The entry's PIP and those in the guest, a PSB+ behind it among them, may tell NR differently.
                if conceal != entry.conceal_guest {
                    self.space = None;
                }
                self.go(place.0, place.1);
            }
        }
        if live && !conceal {
            let after = self.status().context_en();
            if self.ctl.event_en() && (before || after && !toggles) {
                self.tells("event", "VmEntry None".into());
                if from_smm.is_some() && succeeds {
                    self.tells("event", "Rsm None".into());
                }
            }
        }
    }

    pub(super) fn vm_exit(&mut self) {
        if self.context.in_tx {
            self.abort();
        }
        let from = self.ip();
        let place = self.anywhere(Some(0));
        let to = self.destination(place);
        let conceal = self.rng.one_in(3) && self.setup.conceals;
        let traces = self.unit.rdmsr(msr::IA32_RTIT_CTL).expect("it exists") & 1 == 1;
        let toggles = self.rng.one_in(3);
        let smm = self.rng.one_in(6).then_some(SmmExit {
            vmcs: 0x9000,
            smi: self.rng.one_in(2),
        });
        let load = [(msr::IA32_RTIT_CTL, self.ctl.with_trace_en(true).0)];
        let vector = self.rng.one_in(3).then_some(77);
        let mut exit = VmExit::new(from, to);
        exit.conceal = conceal;
        exit.reason = 0x30;
        exit.qualification = self.rng.next_u64();
        exit.vector = vector;
        exit.clear_ctl = toggles && traces;
        exit.loads = if toggles && !traces { &load } else { &[] };
        exit.to_smm = smm;

        let (before, live) = (self.status().context_en(), self.status().trigger_en());
        self.act(|unit, world| unit.vm_exit(world, &exit))
            .expect("it is legal");
        self.vmx.guest = false;
        self.vmx.conceal = false;
        self.vmx.monitor = smm.is_some();
        self.context = to.context;
        // Where the exit sets TraceEn, tracing begins without a PIP.
        self.follow_space(!conceal && live && !toggles);
        self.go(place.0, place.1);
        let after = self.status().context_en();
        if live && !conceal && self.ctl.event_en() && (before || after) {
            if smm.is_some_and(|smm| smm.smi) {
                self.tells("event", "Smi None".into());
            }
            if smm.is_none_or(|smm| smm.smi) {
                if before {
                    self.tells("data", format!("1 {:#x}", exit.qualification));
                    self.tells("data", format!("2 {:#x}", exit.reason));
                }
                let kind = match vector {
                    Some(_) => "VmExitIntr",
                    None => "VmExit",
                };
                self.tells("event", format!("{kind} {vector:?}"));
            }
        }
    }
}
