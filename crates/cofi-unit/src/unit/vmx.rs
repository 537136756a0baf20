//! VMX operation (33.2.9.4, 33.5) and the SMM-transfer monitor (33.6).

use super::Unit;
use super::transfer::{ControlEvent, Pip, Transfer};
use crate::client::Client;
use crate::event::{At, Destination, EntryOutcome, GuestTsc, VmEntry, VmExit};
use crate::registers::{Registers, TransitionError};
use crate::spec::msr;
use cofi_packet::intel::{CfeType, EvdType};

/// What of VMX the unit must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Vmx {
    pub(super) in_operation: bool,
    pub(super) non_root: bool,
    /// "Conceal VMX from PT", the VM-execution control.
    pub(super) conceal: bool,
    /// The guest's TSC.
    pub(super) tsc: GuestTsc,
    /// The current-VMCS pointer.
    pub(super) vmcs: Option<u64>,
}

/// What a transition's register loads make of TraceEn.
struct Loads {
    /// The registers after them.
    regs: Registers,
    /// TraceEn was 1 before them and 0 at some time.
    clear: bool,
}

impl Unit {
    /// The NR bit of PIPs that a CR3 write gives now (Table 33-52).
    pub(super) fn context_is_non_root(&self) -> bool {
        self.vmx.non_root && !self.vmx.conceal
    }

    /// VMCS in PSB+ (33.3.7).
    pub(super) fn vmcs_in_psb(&mut self, client: &mut impl Client) {
        let told = !self.vmx.non_root || !self.vmx.conceal;
        if self.vmx.in_operation && told {
            self.vmcs_packet(client);
        }
    }

    pub(super) fn vmxon(&mut self, client: &mut impl Client, at: At) {
        if !self.caps.vmx && self.regs.ctl.trace_en() {
            self.disable(client, Some(at.ip));
        }
        self.vmx = Vmx {
            in_operation: true,
            ..Vmx::default()
        };
    }

    pub(super) fn vmxoff(&mut self, client: &mut impl Client, at: At) {
        self.begin(client, at.ip);
        self.vmx = Vmx::default();
    }

    pub(super) fn vmptrld(&mut self, client: &mut impl Client, at: At, vmcs: u64) {
        self.vmx.vmcs = Some(vmcs);
        if self.begin(client, at.ip) {
            self.vmcs_packet(client);
            self.end(client, at.next);
        }
    }

    /// What the register loads of a transition come to.
    fn loads(&self, control: Option<u64>, area: &[(u32, u64)]) -> Result<Loads, TransitionError> {
        // The MSRs stand still from here on.
        let mut regs = self.regs;
        let mut clear = false;
        let control = control.map(|value| (msr::IA32_RTIT_CTL, value));
        let loads = control.into_iter().map(|load| (0, load));
        let loads = loads.chain((1..).zip(area.iter().copied()));
        for (index, (address, value)) in loads {
            self.write_register(&mut regs, address, value)
                .map_err(|fault| TransitionError::MsrLoad { index, fault })?;
            clear |= self.regs.ctl.trace_en() && !regs.ctl.trace_en();
        }
        Ok(Loads { regs, clear })
    }

    /// A transition arrives: with its packets where tracing goes on, and with its register loads where TraceEn is 0, which may be by
    /// them: clearing it has moved the output registers, so the loads are done anew.
    fn complete(
        &mut self,
        client: &mut impl Client,
        transfer: Transfer,
        control: Option<u64>,
        area: &[(u32, u64)],
    ) {
        if self.regs.status.trigger_en() {
            return self.carry_out(client, transfer);
        }
        self.enter(transfer.to.context);
        if self.regs.ctl.trace_en() {
            return;
        }
        match self.loads(control, area) {
            Ok(loads) => self.commit(client, loads.regs, transfer.to.ip, None),
            Err(_) => debug_assert!(false, "they were checked, and TraceEn is clear"),
        }
    }

    /// A VM entry (33.5; Tables 33-53, 33-54; Table 33-56, cases 10 and 12).
    ///
    /// An event that the entry injects is told after it, as an event that is taken at the guest's first instruction.
    ///
    /// # Errors
    /// See [`TransitionError`]; nothing has been done then, and the embedder tells how the entry fails by a second call.
    pub fn vm_entry(
        &mut self,
        client: &mut impl Client,
        entry: &VmEntry<'_>,
    ) -> Result<(), TransitionError> {
        if (entry.conceal || entry.conceal_guest) && !self.caps.vmx {
            return Err(TransitionError::Controls);
        }
        match entry.outcome {
            EntryOutcome::EarlyFailure => {
                // TIP(NextIP): the decoder expects a packet of the instruction (Table 33-54).
                let to = Destination {
                    ip: entry.at.next,
                    context: self.context,
                };
                self.transfer(client, Transfer::shown(entry.at.ip, to));
                return Ok(());
            }
            EntryOutcome::LateFailure { host } => {
                self.fail_late(client, entry, host);
                return Ok(());
            }
            EntryOutcome::Success => {}
        }
        let loads = self.loads(entry.load_ctl, entry.loads)?;
        if self.begin(client, entry.at.ip) {
            let mut transfer = self.entry_transfer(entry);
            transfer.ends = loads.clear;
            self.announce(client, &transfer);
            if let (Some(_), true) = (entry.from_smm, !entry.conceal) {
                let after = !loads.clear && self.context_enabled(&entry.to.context);
                let event = ControlEvent::new(CfeType::RSM, None);
                self.control_event(client, event, false, after);
            }
        }
        if loads.clear {
            // The binary shows the VM entry: no FUP (Table 33-53).
            self.disable(client, None);
        }
        let non_root = entry.from_smm.is_none_or(|smm| !smm.to_root);
        self.vmx.non_root = non_root;
        self.vmx.conceal = entry.conceal_guest;
        self.vmx.tsc = if non_root {
            entry.tsc
        } else {
            GuestTsc::default()
        };
        if let Some(smm) = entry.from_smm {
            self.vmx.vmcs = Some(smm.vmcs);
        }
        let transfer = self.entry_transfer(entry);
        self.complete(client, transfer, entry.load_ctl, entry.loads);
        Ok(())
    }

    fn entry_transfer(&self, entry: &VmEntry<'_>) -> Transfer {
        let mut transfer = Transfer::shown(entry.at.ip, entry.to);
        transfer.pip = Pip::Never;
        if !entry.conceal {
            // To the executive monitor itself, the one exception of Table 33-52.
            let nr = entry.from_smm.is_none_or(|smm| !smm.to_root);
            transfer.pip = Pip::Always { nr };
            transfer.vmcs = entry.from_smm.is_some();
            transfer.event = Some(ControlEvent::new(CfeType::VMENTRY, Some(entry.at.ip)));
        }
        transfer
    }

    /// The entry fails when guest state is loaded, and ends like a VM exit (Table 33-54). Of what that table leaves open, the PIP of the
    /// guest's CR3 is not sent, and the trace registers are as they were: they would have been loaded last.
    fn fail_late(&mut self, client: &mut impl Client, entry: &VmEntry<'_>, host: Destination) {
        let mut transfer = Transfer::shown(entry.at.ip, host);
        transfer.pip = Pip::Never;
        if !entry.conceal && entry.load_ctl.is_none() && entry.loads.is_empty() {
            transfer.pip = Pip::Always { nr: false };
            transfer.event = Some(ControlEvent::new(CfeType::VMENTRY, Some(entry.at.ip)));
        }
        self.transfer(client, transfer);
    }

    /// A VM exit (33.5; Table 33-53; Table 33-56, cases 9 and 11).
    ///
    /// # Errors
    /// See [`TransitionError`]; nothing has been done then, and the embedder tells the VMX abort by a second call.
    pub fn vm_exit(
        &mut self,
        client: &mut impl Client,
        exit: &VmExit<'_>,
    ) -> Result<(), TransitionError> {
        let control = exit.clear_ctl.then_some(0);
        let loads = if exit.abort {
            None
        } else {
            Some(self.loads(control, exit.loads)?)
        };
        let mut transfer = self.exit_transfer(exit);
        transfer.ends = loads.as_ref().is_none_or(|loads| loads.clear);
        if self.begin(client, exit.from) {
            if !exit.conceal && exit.to_smm.is_some_and(|smm| smm.smi) {
                // It shares the FUP that BranchEn makes for the exit; where that makes none, it has one of its own (Table 33-49).
                let event = ControlEvent::new(CfeType::SMI, Some(exit.from));
                let after = !transfer.ends && self.context_enabled(&exit.to.context);
                self.control_event(client, event, self.packet_en(), after);
            }
            self.announce(client, &transfer);
        }
        let Some(loads) = loads else {
            // "Any expected TIP, TIP.PGE, or TIP.PGD may be dropped" (33.5.2.6): nothing runs any more, so tracing ends.
            self.returns.clear();
            self.waiting = true;
            self.configure();
            return Ok(());
        };
        if loads.clear {
            if self.packet_en() {
                self.pgd(client, None);
            }
            self.stop_tracing(client);
        }
        self.vmx.non_root = false;
        self.vmx.conceal = false;
        self.vmx.tsc = GuestTsc::default();
        if let Some(smm) = exit.to_smm {
            self.vmx.vmcs = Some(smm.vmcs);
        }
        self.complete(client, transfer, control, exit.loads);
        Ok(())
    }

    fn exit_transfer(&self, exit: &VmExit<'_>) -> Transfer {
        let mut transfer = Transfer::hidden(exit.from, exit.to);
        transfer.pip = Pip::Never;
        if !exit.conceal {
            transfer.pip = Pip::Always { nr: false };
            transfer.vmcs = exit.to_smm.is_some();
            // An exit that VMCALL makes to the monitor is not told (33.6).
            if exit.to_smm.is_none_or(|smm| smm.smi) {
                let (kind, vector) = match exit.vector {
                    Some(vector) => (CfeType::VMEXIT_INTR, vector),
                    None => (CfeType::VMEXIT, 0),
                };
                let mut event = ControlEvent::new(kind, Some(exit.from)).with_vector(vector);
                event.data = [
                    Some((EvdType::VMXQ, exit.qualification)),
                    Some((EvdType::VMXR, exit.reason)),
                ];
                transfer.event = Some(event);
            }
        }
        transfer
    }
}
