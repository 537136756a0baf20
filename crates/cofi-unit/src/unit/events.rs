//! The events, each with the packets that sections 33.2 to 33.7 give it.

use super::Unit;
use super::transfer::{ControlEvent, Transfer};
use crate::client::Client;
use crate::event::{At, Context, Event, Ptwrite};
use crate::registers::Fault;
use cofi_packet::Ip;
use cofi_packet::intel::{CfeType, EvdType, Packet, TsxState};

/// #PF.
const PAGE_FAULT: u8 = 14;

impl Unit {
    /// Something happened that is no near branch.
    pub fn event(&mut self, client: &mut impl Client, event: Event<'_>) {
        match event {
            Event::FarBranch { at, to } => self.transfer(client, Transfer::shown(at.ip, to)),
            Event::Iret { at, to } => {
                let event = ControlEvent::new(CfeType::IRET, Some(at.ip));
                self.transfer(client, Transfer::shown(at.ip, to).telling(event));
            }
            Event::Uiret { at, to } => {
                let event = ControlEvent::new(CfeType::UIRET, Some(at.ip));
                self.transfer(client, Transfer::shown(at.ip, to).telling(event));
            }
            Event::Interrupt {
                from,
                vector,
                page_fault,
                to,
            } => {
                let mut event = ControlEvent::new(CfeType::INTR, Some(from)).with_vector(vector);
                event.data[0] = page_fault.map(|address| (EvdType::PFA, address));
                let mut transfer = Transfer::hidden(from, to).telling(event);
                // Table 33-59, case 7: out of a context that is not traced, a page fault gives nothing.
                if vector == PAGE_FAULT && page_fault.is_some() && !self.regs.status.context_en() {
                    transfer.event = None;
                }
                self.transfer(client, transfer);
            }
            Event::UserInterrupt { from, vector, to } => {
                let event = ControlEvent::new(CfeType::UINTR, Some(from)).with_vector(vector);
                self.transfer(client, Transfer::hidden(from, to).telling(event));
            }
            Event::MovCr3 { at, cr3 } => {
                let context = Context {
                    cr3,
                    ..self.context
                };
                self.change_space(client, at, context);
            }
            Event::Flags { at, interrupt_flag } => self.flags(client, at, interrupt_flag),
            Event::TransactionBegin { at } => self.transaction(client, at, true),
            Event::TransactionCommit { at } => self.transaction(client, at, false),
            Event::TransactionAbort { from, to } => self.transaction_abort(client, from, to),
            Event::Sleep(sleep) => self.sleep(client, sleep),
            Event::Wake {
                last,
                deepest,
                reason,
            } => self.wake(client, last, deepest, reason),
            Event::ClocksResumed => self.time_resumed(client),
            Event::Frequency { stopped_at, ratio } => self.frequency(client, stopped_at, ratio),
            Event::CycleCounterReset => {
                if self.begin_anywhere(client) && self.regs.ctl.cyc_en() {
                    let now = client.now();
                    if !self.timing.has_cyc(now) {
                        self.stand_alone_cyc(client, now, u64::MAX);
                    }
                }
            }
            Event::Pebs { ip, blocks } => self.pebs(client, ip, blocks),
            Event::Init { from, to } => {
                self.waiting = false;
                let event = ControlEvent::new(CfeType::INIT, Some(from));
                self.transfer(client, Transfer::hidden(from, to).telling(event));
            }
            Event::InitToWait { from, context } => self.init_to_wait(client, from, context),
            Event::Sipi { vector, to } => self.sipi(client, vector, to),
            Event::Shutdown { at } => self.shutdown(client, at),
            Event::Smi { from, to } => self.smi(client, from, to),
            Event::EnclaveEntry { at, to } | Event::EnclaveExit { at, to } => {
                self.transfer(client, Transfer::hidden(at.ip, to));
            }
            Event::AsyncEnclaveExit {
                from,
                aep,
                vector,
                to,
            } => {
                let event = ControlEvent::new(CfeType::INTR, Some(aep)).with_vector(vector);
                self.transfer(client, Transfer::hidden(from, to).telling(event));
            }
            Event::Senter { at } => {
                if self.regs.ctl.trace_en() {
                    self.disable(client, Some(at.ip));
                }
            }
            Event::AcmBegin => self.acm_begin(client),
            Event::AcmEnd => self.acm_end(client),
            Event::Vmxon { at } => self.vmxon(client, at),
            Event::Vmxoff { at } => self.vmxoff(client, at),
            Event::Vmptrld { at, vmcs } => self.vmptrld(client, at, vmcs),
            Event::Vmclear { .. } => self.vmx.vmcs = None,
        }
    }

    /// PTWRITE retired (33.2.2; Table 33-58, whose caption the manual gives to Table 33-57).
    ///
    /// # Errors
    /// #UD on a processor without PTWRITE.
    pub fn ptwrite(&mut self, client: &mut impl Client, ptwrite: Ptwrite) -> Result<(), Fault> {
        if !self.caps.ptwrite {
            return Err(Fault::InvalidOpcode {
                rule: "PTWRITE is not supported (Table 33-11)",
            });
        }
        let Ptwrite { at, operand } = ptwrite;
        if !self.begin(client, at.ip) {
            return Ok(());
        }
        let (status, ctl) = (self.regs.status, self.regs.ctl);
        if status.context_en() && status.filter_en() && ctl.ptw_en() {
            let packet = Packet::Ptw {
                payload: operand,
                ip: ctl.fup_on_ptw(),
            };
            if self.emit_eligible(client, packet) && ctl.fup_on_ptw() {
                self.fup(client, at.ip);
            }
        }
        self.end(client, at.next);
        Ok(())
    }

    fn flags(&mut self, client: &mut impl Client, at: At, interrupt_flag: bool) {
        let is_live = self.begin(client, at.ip);
        let changes = self.context.interrupt_flag != interrupt_flag;
        self.context.interrupt_flag = interrupt_flag;
        if !is_live {
            return;
        }
        let status = self.regs.status;
        let follows = status.context_en() && status.filter_en() && !self.waiting;
        if changes {
            self.flag_changed();
        }
        if changes
            && follows
            && self.regs.ctl.event_en()
            && self.mode_exec(client)
            && !self.fup(client, at.ip)
        {
            self.mode_is_lost();
        }
        self.end(client, at.next);
    }

    /// MODE.TSX depends on ContextEn and BranchEn only, so that it tells of transactions outside of the filter, too (33.2.9.2).
    fn tells_transactions(&self) -> bool {
        self.regs.status.context_en() && self.regs.ctl.branch_en()
    }

    fn transaction(&mut self, client: &mut impl Client, at: At, in_tx: bool) {
        let is_live = self.begin(client, at.ip);
        let changes = self.context.in_tx != in_tx;
        self.context.in_tx = in_tx;
        if !is_live {
            return;
        }
        if changes && self.tells_transactions() {
            self.mode_tsx(client, self.tsx_state());
            if self.packet_en() && !self.fup(client, at.ip) {
                self.transaction_is_lost();
            }
        }
        self.end(client, at.next);
    }

    fn transaction_abort(&mut self, client: &mut impl Client, from: Ip, to: Ip) {
        let is_live = self.begin(client, from);
        self.context.in_tx = false;
        if !is_live {
            return;
        }
        let before = self.packet_en();
        if self.tells_transactions() {
            self.mode_tsx(client, TsxState::Aborted);
            if before && !self.fup(client, from) {
                self.transaction_is_lost();
            }
        }
        self.land(client, before, to);
        self.end(client, to);
    }
}
