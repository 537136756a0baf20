//! PSB+ (33.3.7) and the packets that tell the processor's state in it.

use super::Unit;
use super::run::{MOST_RESULTS, SHORT};
use crate::client::Client;
use cofi_packet::Ip;
use cofi_packet::intel::{Cr3, Packet, TsxState, VmcsBase};

impl Unit {
    #[inline]
    pub(super) fn psb_due(&self) -> bool {
        self.byte_count >= self.psb_at()
    }

    /// Whether a PSB is further away than any TNTs that are gathered.
    #[inline]
    pub(super) fn is_far_from_psb(&self) -> bool {
        self.psb_at().saturating_sub(self.byte_count) >= u64::from(MOST_RESULTS / SHORT)
    }

    /// So many bytes are there from one PSB to the next; none where one is to come at once.
    #[inline]
    pub(super) fn psb_at(&self) -> u64 {
        self.cached.psb_at
    }

    /// [`Self::psb_at`] follows from registers, context and what is owed.
    pub(super) fn plan_psb(&mut self) {
        let is_due = self.psb_in_context && self.regs.status.context_en();
        self.cached.psb_at = if is_due {
            0
        } else {
            1 << 11 << self.regs.ctl.psb_freq()
        };
    }

    /// PSB+, with the Current IP where PacketEn is set.
    pub(super) fn psb_plus(&mut self, client: &mut impl Client, ip: Option<Ip>) {
        self.flush(client);
        if self.regs.ctl.inject() {
            self.regs.status = self.regs.status.with_pend_psb(true);
        }
        self.byte_count = 0;
        if !self.emit(client, Packet::Psb) {
            return;
        }
        self.psb_owed = false;
        self.psb_in_context &= !self.regs.status.context_en();
        self.plan_psb();
        self.last_ip.reset();
        self.is_first_ip = true;
        self.returns.clear();
        // Without BranchEn it has no MODE.Exec: a change of RFLAGS.IF that is not told yet remains to be told (33.4.2.8).
        let (branches, flag) = (self.regs.ctl.branch_en(), self.context.interrupt_flag);
        self.told_mode = self.told_mode.filter(|told| !branches && told.1 != flag);
        self.resync_time(client);
        self.pip(client, self.context_is_non_root());
        self.vmcs_in_psb(client);
        if self.regs.status.context_en() && self.regs.ctl.branch_en() {
            self.mode_tsx(client, self.tsx_state());
        }
        if let Some(ip) = ip {
            self.mode_exec(client);
            self.fup(client, ip);
        }
        self.emit(client, Packet::PsbEnd);
        if self.regs.ctl.inject() && !self.is_overflowing() {
            self.regs.status = self.regs.status.with_pend_psb(false);
        }
    }

    /// Whether a transaction is under way, in the words of MODE.TSX.
    pub(super) const fn tsx_state(&self) -> TsxState {
        if self.context.in_tx {
            TsxState::InTx
        } else {
            TsxState::NotInTx
        }
    }

    /// MODE.TSX (33.4.2.8).
    pub(super) fn mode_tsx(&mut self, client: &mut impl Client, tx: TsxState) {
        if self.emit_eligible(client, Packet::ModeTsx { tx }) {
            self.told_tx = tx == TsxState::InTx;
        }
    }

    /// PIP (33.4.2.7), where ContextEn and OS let it.
    pub(super) fn pip(&mut self, client: &mut impl Client, nr: bool) {
        if self.regs.status.context_en() && self.regs.ctl.os() {
            // Bits 11:5 are part of the address under PAE paging only.
            let kept = if self.context.pae { !0 } else { !0xfff };
            let cr3 = Cr3::truncate(self.context.cr3 & kept);
            self.emit_eligible(client, Packet::Pip { cr3, nr });
        }
    }

    /// VMCS (33.4.2.15), where ContextEn lets it. Without a VMCS pointer all its bits are set.
    pub(super) fn vmcs_packet(&mut self, client: &mut impl Client) {
        if self.regs.status.context_en() {
            let base = VmcsBase::truncate(self.vmx.vmcs.unwrap_or(u64::MAX));
            self.emit_eligible(client, Packet::Vmcs { base });
        }
    }
}
