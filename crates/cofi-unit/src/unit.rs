//! The unit itself: what each instruction, event and register write does to the packet stream.

mod run;
#[cfg(test)]
mod run_tests;

pub use run::Gathering;

use crate::client::{Client, Clock};
use crate::clock::{Due, Timing, tsc_tma};
use crate::compress::{Results, ReturnStack};
use crate::event::{
    At, Branch, Context, Destination, Event, Ptwrite, Retired, Rsm, VmEntry, VmExit,
};
use crate::implementation::{Implementation, TntForm};
use crate::output::Output;
use crate::registers::TransitionError;
use crate::registers::{Fault, Registers, WriteContext};
use crate::spec::{Capabilities, Ctl, Status, msr};
use cofi_packet::intel::{Cr3, IpPayload, Kind, LastIp, Packet, TsxState, U48};
use cofi_packet::{ExecMode, Ip};

/// An IP whole: in 48 bits, if the rest of it is their sign.
fn uncompressed(ip: Ip) -> IpPayload {
    let low = U48::truncate(ip.0);
    let is_canonical = (ip.0 << 16).cast_signed() >> 16 == ip.0.cast_signed();
    if is_canonical {
        IpPayload::sext48(low)
    } else {
        IpPayload::full(ip.0)
    }
}

/// A logical processor's trace unit.
///
/// Feed it every instruction ([`Unit::retire`]), far transfer ([`Unit::far_transfer`]), event ([`Unit::event`]) and
/// register access; it stores packets through the [`Client`]. Instructions and events come in program order, and each
/// carries the [`Context`] that holds after it, where it changes it.
#[derive(Clone, Debug)]
pub struct Unit {
    caps: Capabilities,
    choices: Implementation,
    output: Output,
    regs: Registers,
    context: Context,
    /// Core:bus ratio.
    ratio: u8,
    timing: Timing,
    last_ip: LastIp,
    /// No IP has been sent since the last PSB.
    is_first_ip: bool,
    /// TNT results that wait for their packet (33.4.2.1); those that fill one wait only behind a [`Gathering`].
    tnt: Results,
    returns: ReturnStack,
    /// The mode that the stream has told, if it has.
    told_mode: Option<ExecMode>,
    /// Packet bytes since the last PSB.
    byte_count: u64,
}

impl Unit {
    /// A unit after reset, in a processor with these capabilities, in this context.
    #[must_use]
    pub fn new(caps: Capabilities, context: Context) -> Self {
        Self::with(caps, Implementation::default(), context)
    }

    /// As [`Unit::new`], with these choices where the manual leaves them to the processor.
    #[must_use]
    pub fn with(caps: Capabilities, choices: Implementation, context: Context) -> Self {
        Self {
            caps,
            choices,
            output: Output::default(),
            regs: Registers::new(),
            context,
            ratio: 0,
            timing: Timing::default(),
            last_ip: LastIp::new(),
            is_first_ip: true,
            tnt: Results::new(),
            returns: ReturnStack::new(),
            told_mode: None,
            byte_count: 0,
        }
    }

    /// The processor's capabilities.
    #[must_use]
    pub const fn capabilities(&self) -> &Capabilities {
        &self.caps
    }

    /// RDMSR of a trace register.
    ///
    /// # Errors
    /// #GP when the processor has no such register.
    pub fn rdmsr(&self, address: u32) -> Result<u64, Fault> {
        self.regs.read(&self.caps, address)
    }

    /// WRMSR, at `at`, of a trace register. Setting and clearing TraceEn sends the packets of Table 33-56, cases 1–3.
    ///
    /// # Errors
    /// #GP, with nothing changed, when the write breaks a rule of 33.2.8.
    pub fn wrmsr(
        &mut self,
        client: &mut impl Client,
        at: At,
        address: u32,
        value: u64,
    ) -> Result<(), Fault> {
        // VMX operation is not followed yet.
        let checked = self
            .regs
            .check(&self.caps, WriteContext::default(), address, value)?;
        let was_enabled = self.regs.ctl.trace_en();
        let enabled = if address == msr::IA32_RTIT_CTL {
            Ctl(value).trace_en()
        } else {
            was_enabled
        };
        if was_enabled && !enabled {
            self.disable(client, at);
        }
        self.regs.commit(address, checked);
        if address == msr::IA32_RTIT_STATUS {
            self.byte_count = self.regs.status.packet_byte_cnt();
        }
        if enabled && !was_enabled {
            self.enable(client, at);
        }
        Ok(())
    }

    /// PacketEn: TriggerEn and ContextEn and FilterEn and BranchEn (33.2.6.1).
    #[must_use]
    pub const fn packet_en(&self) -> bool {
        let status = self.regs.status;
        status.trigger_en()
            && status.context_en()
            && status.filter_en()
            && self.regs.ctl.branch_en()
    }

    /// An instruction that is no far transfer retired.
    pub fn retire(&mut self, client: &mut impl Client, insn: Retired) {
        if !self.begin(client) {
            return;
        }
        if self.packet_en() {
            match insn.branch {
                Branch::None | Branch::DirectJump(_) => {}
                Branch::Conditional(taken) => self.push_tnt(client, taken.is_some()),
                // A call of the next instruction reads its own address, and has no return (33.4.2.2).
                Branch::DirectCall(target) if target == insn.at.next => {}
                Branch::DirectCall(_) => self.returns.push(insn.at.next),
                Branch::IndirectJump(target) => self.tip(client, target),
                Branch::IndirectCall(target) => {
                    self.returns.push(insn.at.next);
                    self.tip(client, target);
                }
                Branch::Return(target) => {
                    let expected = self.returns.pop();
                    if expected == Some(target) && !self.regs.ctl.dis_retc() {
                        self.push_tnt(client, true);
                    } else {
                        self.tip(client, target);
                    }
                }
            }
        }
        self.end(client, insn.destination());
    }

    /// A far transfer that the binary shows (SYSCALL, SYSRET, IRET, far JMP/CALL/RET …) went to `target`, where
    /// `context` holds: Table 33-55, cases 8–10; Table 33-56, cases 5–6.
    pub fn old_far_transfer(&mut self, client: &mut impl Client, target: Ip, context: Context) {
        self.transfer(client, None, target, context);
    }

    /// An event, which the binary does not show, led from `from` to `target`, where `context` holds: Table 33-55,
    /// cases 11–13; Table 33-56, cases 5, 7 and 8. `from` is as in Table 33-23: NLIP for interrupts and traps, CLIP
    /// for faults and software interrupts.
    pub fn old_event(&mut self, client: &mut impl Client, from: Ip, target: Ip, context: Context) {
        self.transfer(client, Some(from), target, context);
    }

    /// MOV to CR3 retired: Table 33-55, case 14.
    pub fn mov_cr3(&mut self, client: &mut impl Client, at: At, cr3: u64) {
        if !self.begin(client) {
            self.context.cr3 = cr3;
            return;
        }
        let before = self.packet_en();
        self.enter(Context {
            cr3,
            ..self.context
        });
        self.pip(client);
        self.follow_enables(client, before, at.next);
        self.end(client, at.next);
    }

    /// A transaction began (`true`) or was committed at the instruction `at`: Table 33-55, cases 19 and 20.
    pub fn transaction(&mut self, client: &mut impl Client, at: At, in_tx: bool) {
        let live = self.begin(client);
        self.context.in_tx = in_tx;
        if !live {
            return;
        }
        if self.context_packets() {
            let tx = if in_tx {
                TsxState::InTx
            } else {
                TsxState::NotInTx
            };
            self.emit_eligible(client, Packet::ModeTsx { tx });
            if self.packet_en() {
                self.fup(client, at.ip);
            }
        }
        self.end(client, at.next);
    }

    /// A transaction aborted at `from`; control went to `target`: Table 33-55, case 21.
    pub fn transaction_abort(&mut self, client: &mut impl Client, from: Ip, target: Ip) {
        let live = self.begin(client);
        self.context.in_tx = false;
        if !live {
            return;
        }
        if self.context_packets() {
            self.emit_eligible(
                client,
                Packet::ModeTsx {
                    tx: TsxState::Aborted,
                },
            );
            if self.packet_en() {
                self.fup(client, from);
                self.tip(client, target);
            }
        }
        self.end(client, target);
    }

    /// The core:bus ratio changed: CBR (33.4.2.10).
    pub fn set_core_bus_ratio(&mut self, client: &mut impl Client, ratio: u8) {
        let live = self.begin(client);
        self.ratio = ratio;
        if live {
            self.flush_tnt(client);
            self.cbr(client);
        }
    }

    /// The clocks behind MTC and CYC had stopped, and run again: Table 33-55, case 25.
    pub fn clocks_resumed(&mut self, client: &mut impl Client) {
        if self.regs.status.trigger_en() {
            let clock = client.now();
            self.timing.advance(clock, self.regs.ctl, self.caps.crystal);
            self.resync_time(client);
        }
    }

    /// Something happened that is no near branch.
    pub fn event(&mut self, client: &mut impl Client, event: Event<'_>) {
        let _ = (client, event);
        todo!()
    }

    /// PTWRITE retired (33.2.2).
    ///
    /// # Errors
    /// #UD on a processor without PTWRITE.
    pub fn ptwrite(&mut self, client: &mut impl Client, ptwrite: Ptwrite) -> Result<(), Fault> {
        let _ = (client, ptwrite);
        todo!()
    }

    /// A VM entry (33.5).
    ///
    /// # Errors
    /// See [`TransitionError`].
    pub fn vm_entry(
        &mut self,
        client: &mut impl Client,
        entry: &VmEntry<'_>,
    ) -> Result<(), TransitionError> {
        let _ = (client, entry);
        todo!()
    }

    /// A VM exit (33.5).
    ///
    /// # Errors
    /// See [`TransitionError`].
    pub fn vm_exit(
        &mut self,
        client: &mut impl Client,
        exit: &VmExit<'_>,
    ) -> Result<(), TransitionError> {
        let _ = (client, exit);
        todo!()
    }

    /// RSM (33.2.9.3).
    ///
    /// # Errors
    /// The processor shuts down when TraceEn is set, or when it and LBRs would come to be enabled together where they exclude each other.
    pub fn rsm(&mut self, client: &mut impl Client, rsm: Rsm) -> Result<(), Fault> {
        let _ = (client, rsm);
        todo!()
    }

    /// A power-on or (`warm`) warm reset: nothing is sent.
    pub fn reset(&mut self, warm: bool, context: Context) {
        let _ = (warm, context);
        todo!()
    }

    /// Time has passed, and nothing has happened: timing packets that are due are sent, and the internal buffer drains.
    pub fn clock(&mut self, client: &mut impl Client) {
        let _ = client;
        todo!()
    }

    /// So many bytes of the internal buffer drain to memory, as far as they are there.
    pub fn drain(&mut self, client: &mut impl Client, bytes: usize) {
        let _ = (client, bytes);
        todo!()
    }

    /// Whether packets are being lost for want of room in the internal buffer (33.3.8).
    #[must_use]
    pub fn is_overflowing(&self) -> bool {
        todo!()
    }

    // Enabling and disabling (33.2.8.3).

    fn enable(&mut self, client: &mut impl Client, at: At) {
        self.regs.status = self.regs.status.with_filter_en(true);
        self.output.start(&mut self.regs, &self.caps, client);
        if self.regs.status.error() || self.regs.status.stopped() {
            return;
        }
        self.timing
            .start(client.now(), self.regs.ctl, self.caps.crystal);
        self.told_mode = None;
        self.regs.status = self.regs.status.with_trigger_en(true);
        self.enter(self.context);
        if self.byte_count == 0 || !self.caps.psb_cyc {
            // PacketEn becomes 1 after this, with a TIP.PGE of its own.
            self.psb_plus(client, None);
        } else {
            self.resync_time(client);
        }
        self.follow_enables(client, false, at.next);
    }

    fn disable(&mut self, client: &mut impl Client, at: At) {
        if self.begin(client) {
            self.flush_tnt(client);
            if self.packet_en() {
                self.fup(client, at.ip);
                self.pgd(client);
            }
        }
        let status = self
            .regs
            .status
            .with_trigger_en(false)
            .with_context_en(false)
            .with_filter_en(false);
        // The field has 17 bits; a longer count stays at their limit, so that it does not read as "PSB due".
        self.regs.status = if self.caps.psb_cyc {
            status.with_packet_byte_cnt(self.byte_count.min(0x1_ffff))
        } else {
            Status(status.0)
        };
        self.byte_count = self.regs.status.packet_byte_cnt();
    }

    /// Takes over a context; ContextEn follows while TriggerEn is set (33.2.6.3).
    fn enter(&mut self, context: Context) {
        self.context = context;
        let ctl = self.regs.ctl;
        if self.regs.status.trigger_en() {
            let level = if context.cpl == 0 {
                ctl.os()
            } else {
                ctl.user()
            };
            // 63:12 outside PAE paging (33.2.5.2); PAE is told apart when 16- and 32-bit systems are modelled.
            let space = !ctl.cr3_filter() || (context.cr3 ^ self.regs.cr3_match.0) >> 12 == 0;
            self.regs.status = self.regs.status.with_context_en(level && space);
        }
    }

    fn context_packets(&self) -> bool {
        self.regs.status.context_en() && self.regs.ctl.branch_en()
    }

    // One instruction or event.

    /// Time goes on to the present instruction or event; whether the unit is tracing at all.
    #[inline]
    fn begin(&mut self, client: &mut impl Client) -> bool {
        if !self.regs.status.trigger_en() {
            return false;
        }
        let now = client.now();
        if !self.timing.is_quiet(now, self.regs.ctl) {
            self.time_goes_on(client, now);
        }
        true
    }

    #[cold]
    fn time_goes_on(&mut self, client: &mut impl Client, now: Clock) {
        match self.timing.advance(now, self.regs.ctl, self.caps.crystal) {
            Due::Nothing => {}
            Due::Mtc(ctc) => self.emit_eligible(client, Packet::Mtc { ctc }),
            Due::Resync => self.resync_time(client),
        }
    }

    /// The instruction or event is complete, and control stands at `ip`: a PSB+ if one is due.
    #[inline]
    fn end(&mut self, client: &mut impl Client, ip: Ip) {
        if self.psb_due() {
            self.psb_plus(client, self.packet_en().then_some(ip));
        }
    }

    #[inline]
    fn psb_due(&self) -> bool {
        self.byte_count >= self.psb_at()
    }

    /// So many bytes are there from one PSB to the next.
    #[inline]
    fn psb_at(&self) -> u64 {
        1 << 11 << self.regs.ctl.psb_freq()
    }

    fn transfer(
        &mut self,
        client: &mut impl Client,
        from: Option<Ip>,
        target: Ip,
        context: Context,
    ) {
        if !self.begin(client) {
            self.context = context;
            return;
        }
        let before = self.packet_en();
        if let (true, Some(from)) = (before, from) {
            self.fup(client, from);
        }
        let old = self.context;
        self.enter(context);
        if old.cr3 != context.cr3 {
            self.pip(client);
        }
        if before && self.packet_en() {
            self.mode_exec(client);
            self.tip(client, target);
        } else {
            self.follow_enables(client, before, target);
        }
        self.end(client, target);
    }

    /// PacketEn may have changed: TIP.PGD or TIP.PGE tells.
    fn follow_enables(&mut self, client: &mut impl Client, before: bool, ip: Ip) {
        match (before, self.packet_en()) {
            (true, false) => self.pgd(client),
            (false, true) => {
                self.mode_exec(client);
                let ip = self.ip(ip);
                self.emit_eligible(client, Packet::TipPge { ip });
            }
            _ => {}
        }
    }

    // Packets.

    /// PSB+ (33.3.7), with the Current IP where PacketEn is set.
    fn psb_plus(&mut self, client: &mut impl Client, ip: Option<Ip>) {
        self.flush_tnt(client);
        self.byte_count = 0;
        self.emit(client, Packet::Psb);
        self.last_ip.reset();
        self.is_first_ip = true;
        self.returns.clear();
        self.told_mode = None;
        self.resync_time(client);
        self.pip(client);
        if self.context_packets() {
            let tx = if self.context.in_tx {
                TsxState::InTx
            } else {
                TsxState::NotInTx
            };
            self.emit_eligible(client, Packet::ModeTsx { tx });
        }
        if let Some(ip) = ip {
            self.mode_exec(client);
            self.fup(client, ip);
        }
        self.emit(client, Packet::PsbEnd);
    }

    /// TSC and TMA as far as they are enabled, and CBR.
    fn resync_time(&mut self, client: &mut impl Client) {
        let ctl = self.regs.ctl;
        if ctl.tsc_en() {
            let (tsc, tma) = tsc_tma(client.now(), ctl, self.caps.crystal);
            self.emit_eligible(client, tsc);
            if let Some(tma) = tma {
                self.emit(client, tma);
            }
        } else {
            self.flush_tnt(client);
        }
        self.cbr(client);
    }

    fn cbr(&mut self, client: &mut impl Client) {
        self.emit(client, Packet::Cbr { ratio: self.ratio });
    }

    fn pip(&mut self, client: &mut impl Client) {
        if self.regs.status.context_en() && self.regs.ctl.os() {
            let cr3 = Cr3::truncate(self.context.cr3);
            self.emit_eligible(client, Packet::Pip { cr3, nr: false });
        }
    }

    /// MODE.Exec, unless the stream has told the mode already (33.4.2.8 lets a repetition be suppressed).
    fn mode_exec(&mut self, client: &mut impl Client) {
        let mode = self.context.mode;
        if self.told_mode != Some(mode) {
            self.told_mode = Some(mode);
            // IF is told only by processors with Event Trace.
            self.emit_eligible(
                client,
                Packet::ModeExec {
                    mode,
                    interrupt_flag: false,
                },
            );
        }
    }

    #[inline]
    fn ip(&mut self, ip: Ip) -> IpPayload {
        if core::mem::take(&mut self.is_first_ip) {
            // The IP that follows a PSB is either uncompressed or compressed against zero (33.4.2.2). Processors send it
            // uncompressed, as far as traces of them show, and perf (6.1) relies on that: it reads the IP in a PSB+ against the
            // last one before the PSB.
            let payload = uncompressed(ip);
            self.last_ip.apply(payload);
            return payload;
        }
        self.last_ip.compress(ip)
    }

    #[inline]
    fn tip(&mut self, client: &mut impl Client, target: Ip) {
        let ip = self.ip(target);
        self.flush_tnt(client);
        self.cyc(client);
        let raw = Packet::Tip { ip }.encode();
        self.send(client, &raw.bytes()[..raw.len()]);
    }

    /// TIP.PGD where ContextEn or TraceEn is 0 afterwards, so without IP; no return is compressed across it.
    fn pgd(&mut self, client: &mut impl Client) {
        self.returns.clear();
        self.emit_eligible(
            client,
            Packet::TipPgd {
                ip: IpPayload::SUPPRESSED,
            },
        );
    }

    fn fup(&mut self, client: &mut impl Client, ip: Ip) {
        self.flush_tnt(client);
        let ip = self.ip(ip);
        self.emit(client, Packet::Fup { ip });
    }

    fn push_tnt(&mut self, client: &mut impl Client, taken: bool) {
        if self.tnt.is_empty() {
            // The CYC before a TNT tells when the first branch in it retired (33.3.6.2).
            self.cyc(client);
        }
        self.tnt.push(1, taken.into());
        self.send_full_tnt(client);
    }

    const fn long_tnt(&self) -> bool {
        matches!(self.choices.tnt, TntForm::Long)
    }

    /// How many results a TNT packet of this processor holds.
    const fn tnt_size(&self) -> u32 {
        if self.long_tnt() { 47 } else { 6 }
    }

    /// Sends the results that fill packets.
    fn send_full_tnt(&mut self, client: &mut impl Client) {
        if self.long_tnt() {
            while self.tnt.has(self.tnt_size()) {
                self.flush_long_tnt(client);
            }
            return;
        }
        // They are stored together: there may be many, of a byte each.
        let (mut bytes, mut len) = ([0; 16], 0);
        for bits in self.tnt.take_full() {
            match (Packet::Tnt8 { bits }).encode().emit(&mut bytes[len..]) {
                Ok(size) => len += size,
                Err(_) => debug_assert!(false, "so many are not gathered"),
            }
        }
        self.send(client, &bytes[..len]);
    }

    /// Sends the results that wait.
    #[inline]
    fn flush_tnt(&mut self, client: &mut impl Client) {
        while !self.tnt.is_empty() {
            if self.long_tnt() {
                self.flush_long_tnt(client);
            } else if let Some(bits) = self.tnt.take() {
                let raw = Packet::Tnt8 { bits }.encode();
                self.send(client, &raw.bytes()[..raw.len()]);
            }
        }
    }

    fn flush_long_tnt(&mut self, client: &mut impl Client) {
        if let Some(bits) = self.tnt.take() {
            let raw = Packet::Tnt64 { bits }.encode();
            self.send(client, &raw.bytes()[..raw.len()]);
        }
    }

    #[inline]
    fn cyc(&mut self, client: &mut impl Client) {
        if self.regs.ctl.cyc_en()
            && let Some(cycles) = self.timing.cyc(client.now(), self.regs.ctl)
        {
            self.emit(client, Packet::Cyc { cycles });
        }
    }

    /// Sends a packet that is CYC-eligible (33.3.6); waiting TNT results go first.
    fn emit_eligible(&mut self, client: &mut impl Client, packet: Packet) {
        self.flush_tnt(client);
        self.cyc(client);
        self.emit(client, packet);
    }

    fn emit(&mut self, client: &mut impl Client, packet: Packet) {
        debug_assert!(
            self.tnt.is_empty() || matches!(packet.kind(), Kind::Cyc),
            "waiting TNT results go first"
        );
        let raw = packet.encode();
        self.send(client, &raw.bytes()[..raw.len()]);
    }

    #[inline(always)]
    fn send(&mut self, client: &mut impl Client, bytes: &[u8]) {
        self.byte_count += bytes.len() as u64;
        self.output.store(&mut self.regs, &self.caps, client, bytes);
    }
}
