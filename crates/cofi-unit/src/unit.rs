//! The unit itself: its state, its registers, and what a near branch does. Each other kind of event has a file below.

mod buffer;
mod enables;
mod events;
mod packets;
mod power;
mod psb;
mod queue;
mod region;
mod run;
#[cfg(test)]
mod run_tests;
mod saved;
mod special;
mod time;
mod transfer;
mod vmx;

pub use run::Gathering;

use crate::client::{Client, Clock};
use crate::clock::Timing;
use crate::compress::{Deferred, Results, ReturnStack};
use crate::event::{At, Branch, Context, Retired};
use crate::implementation::{Implementation, IpCompression};
use crate::output::Output;
use crate::registers::{Fault, Registers};
use crate::spec::{Capabilities, Status, msr};
use crate::xsave::XsaveArea;
use buffer::Buffer;
use cofi_packet::intel::LastIp;
use cofi_packet::{ExecMode, Ip};
use region::Region;
use vmx::Vmx;

/// A logical processor's trace unit.
///
/// Feed it every instruction ([`Unit::retire`]), every event ([`Unit::event`] and the few that can fail:
/// [`Unit::ptwrite`], [`Unit::rsm`], [`Unit::vm_entry`], [`Unit::vm_exit`]) and every access to its registers
/// ([`Unit::rdmsr`], [`Unit::wrmsr`], [`Unit::xsaves`], [`Unit::xrstors`]), in program order; it stores packets through the
/// [`Client`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    caps: Capabilities,
    choices: Implementation,
    regs: Registers,
    output: Output,
    context: Context,
    vmx: Vmx,
    /// Core:bus ratio.
    ratio: u8,
    timing: Timing,
    /// Asleep: the clocks behind MTC and CYC stand still.
    asleep: bool,
    /// After INIT, waiting for SIPI: nothing runs, so PacketEn is 0.
    waiting: bool,
    /// In an authenticated code module: what TraceEn and FilterEn were before, and whether packets were being lost.
    acm: Option<(bool, bool, bool)>,
    last_ip: LastIp,
    /// No IP has been sent since the last PSB.
    is_first_ip: bool,
    /// TNT results that wait for their packet (33.4.2.1); those that fill one wait only behind a [`Gathering`].
    tnt: Results,
    /// TIPs that wait for the TNT packet to be full (33.4.2.3).
    deferred: Deferred,
    returns: ReturnStack,
    /// The mode and RFLAGS.IF that the stream has told, if it has.
    told_mode: Option<(ExecMode, bool)>,
    /// The stream has told that a transaction is under way.
    told_tx: bool,
    /// Packet bytes since the last PSB.
    byte_count: u64,
    /// A PSB+ is to begin the trace when TraceEn is set, whatever PacketByteCnt says: packets were lost, or state changed, meanwhile.
    psb_owed: bool,
    /// A PSB+ is to come when ContextEn is set: packets were lost that told of state in a traced context.
    psb_in_context: bool,
    /// The internal buffer, where it is modelled.
    buffer: Option<Buffer>,
    /// What stale reads return.
    stale: Registers,
    cached: Cached,
}

/// What follows from the rest, kept because every instruction asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Cached {
    /// PacketEn.
    packet_en: bool,
    /// An address range is configured.
    has_ranges: bool,
    /// Where in memory taken branches and events change neither FilterEn nor tracing: everywhere without address ranges.
    region: Region,
    /// As time passes, more must be looked after than MTCs and the internal buffer: the cycle counter's width, or sleep.
    restless: bool,
    /// From this core cycle on the internal buffer must be looked after.
    buffer_due: u64,
    /// Only what [`Gathering`] knows of can happen at near branches.
    plain: bool,
    /// So it is at those that stay in `region`.
    plain_inside: bool,
    /// So many results fill a TNT packet.
    full: Results,
    /// So many bytes are there from one PSB to the next.
    psb_at: u64,
    /// What is subtracted from a linear address to make an IP payload: the base of CS, where payloads are RIPs (33.3.1.1).
    ip_base: u64,
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
        let mut unit = Self {
            caps,
            choices,
            regs: Registers::new(),
            output: Output::default(),
            context,
            vmx: Vmx::default(),
            ratio: 0,
            timing: Timing::default(),
            asleep: false,
            waiting: false,
            acm: None,
            last_ip: LastIp::new(),
            is_first_ip: true,
            tnt: Results::new(),
            deferred: Deferred::new(),
            returns: ReturnStack::new(),
            told_mode: None,
            told_tx: false,
            byte_count: 0,
            psb_owed: false,
            psb_in_context: false,
            buffer: choices.buffer.map(Buffer::new),
            stale: Registers::new(),
            cached: Cached::default(),
        };
        unit.configure();
        unit
    }

    /// The processor's capabilities.
    #[must_use]
    pub const fn capabilities(&self) -> &Capabilities {
        &self.caps
    }

    /// The processor's choices.
    #[must_use]
    pub const fn implementation(&self) -> &Implementation {
        &self.choices
    }

    /// The processor's state, as last told.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// PacketEn: TriggerEn and ContextEn and FilterEn and BranchEn (33.2.6.1). It is 0, too, while the processor waits for
    /// SIPI.
    #[must_use]
    #[inline]
    pub const fn packet_en(&self) -> bool {
        self.cached.packet_en
    }

    /// Whether an agent uses the trace registers already, as far as they tell: TraceEn is set (33.8.2). Others should leave
    /// them alone then.
    #[must_use]
    pub const fn in_use(&self) -> bool {
        self.regs.in_use()
    }

    /// RDMSR of a trace register.
    ///
    /// # Errors
    /// #GP when the processor has no such register.
    pub fn rdmsr(&self, address: u32) -> Result<u64, Fault> {
        let current = self.current_registers();
        let value = current.read(&self.caps, address)?;
        if !(self.choices.stale_reads && self.regs.ctl.trace_en()) {
            return Ok(value);
        }
        match address {
            msr::IA32_RTIT_OUTPUT_BASE | msr::IA32_RTIT_OUTPUT_MASK_PTRS => {
                self.stale.read(&self.caps, address)
            }
            msr::IA32_RTIT_STATUS => {
                let stale = self.stale.status.packet_byte_cnt();
                Ok(Status(value).with_packet_byte_cnt(stale).0)
            }
            _ => Ok(value),
        }
    }

    /// The registers with PacketByteCnt up to date.
    fn current_registers(&self) -> Registers {
        let mut regs = self.regs;
        if self.caps.psb_cyc && regs.ctl.trace_en() {
            // The field has 17 bits; a longer count stays at their limit, so that it does not read as "PSB due".
            regs.status = regs
                .status
                .with_packet_byte_cnt(self.byte_count.min(0x1_ffff));
        }
        regs
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
        let mut new = self.regs;
        self.write_register(&mut new, address, value)?;
        let was_enabled = self.regs.ctl.trace_en();
        if was_enabled && !new.ctl.trace_en() {
            self.disable(client, Some(at.ip));
        }
        // Clearing TraceEn has moved the output registers: the write is done to what they are now.
        let mut new = self.regs;
        self.write_register(&mut new, address, value)?;
        self.commit(client, new, at.next, None);
        Ok(())
    }

    /// The rules for writes, applied to `regs`.
    fn write_register(&self, regs: &mut Registers, address: u32, value: u64) -> Result<(), Fault> {
        regs.write(&self.caps, self.write_context(), address, value)
    }

    const fn write_context(&self) -> crate::registers::WriteContext {
        crate::registers::WriteContext {
            in_vmx_operation: self.vmx.in_operation,
        }
    }

    /// Takes over `new` registers, TraceEn being 0 or staying as it is; if it becomes 1, tracing begins before the instruction at `next`, with
    /// `rsm` if an RSM does it.
    fn commit(
        &mut self,
        client: &mut impl Client,
        new: Registers,
        next: Ip,
        rsm: Option<transfer::ControlEvent>,
    ) {
        let was_enabled = self.regs.ctl.trace_en();
        self.regs = new;
        if !was_enabled {
            self.byte_count = self.regs.status.packet_byte_cnt();
            if new.ctl.trace_en() {
                self.enable(client, next, rsm);
            }
        }
    }

    /// XSAVES of state component 8 (33.3.5.2), at `at`: what goes to memory. TraceEn is 0 after it.
    pub fn xsaves(&mut self, client: &mut impl Client, at: At) -> XsaveArea {
        let ctl = self.regs.ctl;
        if ctl.trace_en() {
            self.disable(client, Some(at.ip));
        }
        let mut saved = self.regs;
        saved.ctl = ctl;
        saved.save_component(&self.caps)
    }

    /// XRSTORS of state component 8 (33.3.5.2), at `at`, from memory; `None` is the component's initial configuration.
    ///
    /// # Errors
    /// #GP, with nothing changed, when TraceEn is set or a value breaks a rule of 33.2.8.
    pub fn xrstors(
        &mut self,
        client: &mut impl Client,
        at: At,
        area: Option<&XsaveArea>,
    ) -> Result<(), Fault> {
        let new = self
            .regs
            .check_component(&self.caps, self.write_context(), area)?;
        self.commit(client, new, at.next, None);
        Ok(())
    }

    /// A power-on reset, or (`warm`) a warm one (33.2.8.1, 33.3.4). Nothing is sent, and what was still buffered is lost.
    /// The trace that begins after it begins with a PSB+.
    pub fn reset(&mut self, warm: bool, context: Context) {
        let (caps, choices, ratio) = (self.caps, self.choices, self.ratio);
        let mut regs = self.current_registers();
        if warm {
            regs.warm_reset(&caps);
        } else {
            regs = Registers::new();
        }
        let (last_ip, is_first_ip) = (self.last_ip, self.is_first_ip);
        *self = Self::with(caps, choices, context);
        self.regs = regs;
        self.byte_count = regs.status.packet_byte_cnt();
        (self.ratio, self.psb_owed) = (ratio, true);
        (self.last_ip, self.is_first_ip) = (last_ip, is_first_ip);
        self.configure();
    }

    /// An instruction that is no far transfer retired.
    #[inline]
    pub fn retire(&mut self, client: &mut impl Client, insn: Retired) {
        if !self.regs.status.trigger_en() {
            return;
        }
        // Most instructions do no more than this.
        let is_plain = self.cached.plain && self.is_quiet(client.now());
        if !(is_plain && self.retire_quietly(insn)) {
            self.retire_otherwise(client, insn);
        }
    }

    /// The rest of [`Self::retire`]: packets, timing, address ranges.
    #[inline(never)]
    fn retire_otherwise(&mut self, client: &mut impl Client, insn: Retired) {
        if self.cached.has_ranges {
            let is_plain =
                self.cached.plain_inside && self.is_quiet(client.now()) && self.stays(insn);
            if is_plain && self.retire_quietly(insn) || self.is_silent(client, insn) {
                return;
            }
        }
        self.retire_whole(client, insn);
    }

    /// Whether the instruction is in code that a filter leaves out, and nothing happens but that time passes.
    #[inline]
    fn is_silent(&self, client: &mut impl Client, insn: Retired) -> bool {
        !self.regs.status.filter_en()
            && !self.cached.restless
            && !self.psb_due()
            && self.is_quiet_at(client.now())
            && self.stays(insn)
    }

    /// What an instruction does at which nothing is due, and only what [`Gathering`] knows of can happen. `false`, and nothing is
    /// done, if it makes a packet.
    ///
    /// What most instructions are is one question, as a processor cannot predict which of them comes.
    #[inline(always)]
    fn retire_quietly(&mut self, insn: Retired) -> bool {
        let is_direct = matches!(
            insn.branch,
            Branch::None | Branch::DirectJump(_) | Branch::Conditional(_)
        );
        if is_direct {
            let conditional = matches!(insn.branch, Branch::Conditional(_));
            let taken = matches!(insn.branch, Branch::Conditional(Some(_)));
            return self.push_quietly(conditional, taken);
        }
        match insn.branch {
            Branch::DirectCall(target) => {
                if target != insn.at.next {
                    self.call(insn.at.next);
                }
                true
            }
            Branch::Return(target) => {
                let is_done = self.is_expected_return(target) && self.push_quietly(true, true);
                if is_done {
                    self.returns.pop();
                }
                is_done
            }
            _ => false,
        }
    }

    /// Puts the result of a `conditional` branch to those that wait; `false`, and nothing is done, if that makes a packet.
    #[inline(always)]
    fn push_quietly(&mut self, conditional: bool, taken: bool) -> bool {
        let mut results = self.tnt;
        results.push(conditional.into(), (conditional & taken).into());
        let wants_cyc = conditional & self.tnt.is_empty() & self.regs.ctl.cyc_en();
        if results.reach(self.cached.full) | wants_cyc {
            return false;
        }
        self.tnt = results;
        true
    }

    /// An instruction retired that is no branch, a direct jump, or (`conditional`) a conditional branch, `taken` or not. `false`, and nothing is done, if that asks for
    /// [`Unit::retire`], as nearly none does: this is for embedders that call it from generated code.
    #[inline(always)]
    #[must_use]
    pub fn retire_direct(
        &mut self,
        client: &mut impl Client,
        conditional: bool,
        taken: bool,
    ) -> bool {
        self.cached.plain && self.is_quiet(client.now()) && self.push_quietly(conditional, taken)
    }

    /// Whether FilterEn does not change at this instruction, nor is TraceStop met, as far as one comparison can tell.
    #[inline(always)]
    fn stays(&self, insn: Retired) -> bool {
        // Not only where a branch is taken: whether it is, no processor that runs this can predict.
        self.cached.region.has(self.payload_ip(insn.destination()))
    }

    /// Whether nothing is due at the present time, in code that is traced.
    #[inline(always)]
    fn is_quiet(&self, now: Clock) -> bool {
        self.packet_en() && !self.psb_due() && self.is_quiet_at(now)
    }

    /// Whether no timing packet is due, nor anything about the internal buffer.
    #[inline]
    fn is_quiet_at(&self, now: Clock) -> bool {
        self.timing.is_quiet(now, self.regs.ctl) && now.cycles < self.cached.buffer_due
    }

    #[inline(always)]
    fn retire_whole(&mut self, client: &mut impl Client, insn: Retired) {
        if !self.begin(client, insn.at.ip) {
            return;
        }
        if self.packet_en() && (!self.cached.has_ranges || self.stays(insn)) {
            self.branch(client, insn);
        } else {
            self.retire_filtered(client, insn);
        }
        if self.psb_due() {
            self.psb_in_flow(client, insn.destination());
        }
    }

    /// A near branch retired in traced code, and stays there.
    #[inline(always)]
    fn branch(&mut self, client: &mut impl Client, insn: Retired) {
        match insn.branch {
            Branch::Conditional(taken) => self.push_tnt(client, taken.is_some()),
            Branch::None | Branch::DirectJump(_) => {}
            _ => self.branch_elsewhere(client, insn),
        }
    }

    /// A call, an indirect branch or a return.
    #[inline(never)]
    fn branch_elsewhere(&mut self, client: &mut impl Client, insn: Retired) {
        if let Branch::Return(target) = insn.branch {
            if self.pop_return(target) {
                self.push_tnt(client, true);
            } else {
                self.tip(client, target);
            }
            return;
        }
        let next = insn.at.next;
        // A call of the next instruction reads its own address, and has no return (33.4.2.2).
        let calls = match insn.branch {
            Branch::DirectCall(target) => target != next,
            Branch::IndirectCall(_) => true,
            _ => false,
        };
        if calls {
            self.call(next);
        }
        if let Branch::IndirectJump(target) | Branch::IndirectCall(target) = insn.branch {
            self.deferrable_tip(client, target);
        }
    }

    /// An instruction retired that is not traced, or where address ranges may change that (33.2.5.3, 33.2.6.5).
    #[cold]
    fn retire_filtered(&mut self, client: &mut impl Client, insn: Retired) {
        // Walking into a range or out of it changes nothing.
        let is_taken = !matches!(insn.branch, Branch::None | Branch::Conditional(None));
        if !(self.cached.has_ranges && is_taken) {
            if self.packet_en() {
                self.branch(client, insn);
            }
            return;
        }
        let target = insn.destination();
        let before = self.packet_en();
        let stops = self.arrive(target);
        match (before, self.packet_en()) {
            (true, true) => self.branch(client, insn),
            // It replaces the TIP or the TNT bit; where a conditional branch went, the binary tells (Table 33-21).
            (true, false) => {
                let is_conditional = matches!(insn.branch, Branch::Conditional(_));
                self.pgd(client, (!is_conditional).then_some(target));
            }
            (false, true) => self.pge(client, target),
            (false, false) => self.resume_events(client, target),
        }
        if stops {
            self.trace_stop(client);
        }
    }

    /// A near CALL retired that is to return to `next`.
    #[inline]
    fn call(&mut self, next: Ip) {
        let next = self.payload_ip(next);
        self.returns.push(next);
    }

    /// A near RET retired to `target`: whether it may be compressed (33.4.2.2).
    #[inline]
    fn pop_return(&mut self, target: Ip) -> bool {
        let is_expected = self.is_expected_return(target);
        self.returns.pop();
        is_expected
    }

    /// Whether a near RET to `target` may be compressed.
    #[inline]
    fn is_expected_return(&self, target: Ip) -> bool {
        let target = self.payload_ip(target);
        let matches = match self.returns.expected() {
            Some(expected) if expected == target => true,
            // Narrower code pops less than a wider caller may have pushed.
            Some(Ip(expected)) => {
                self.context.mode != ExecMode::Bits64 && expected & 0xffff_ffff == target.0
            }
            None => false,
        };
        matches && !self.regs.ctl.dis_retc()
    }

    /// What a packet tells of a linear address: that, or its offset from the base of CS (33.3.1.1).
    #[inline]
    const fn payload_ip(&self, ip: Ip) -> Ip {
        Ip(ip.0.wrapping_sub(self.cached.ip_base))
    }

    const fn compresses_first_ip(&self) -> bool {
        matches!(self.choices.ip_compression, IpCompression::AgainstZero)
    }

    /// What follows from registers, choices and context.
    fn configure(&mut self) {
        let ctl = self.regs.ctl;
        self.cached.has_ranges = (ctl.0 >> 32) as u16 != 0;
        let counts = ctl.cyc_en() && self.choices.cycle_counter_bits.is_some();
        self.cached.region = if self.cached.has_ranges {
            Region::UNKNOWN
        } else {
            Region::EVERYWHERE
        };
        self.cached.full = Results::zeros(self.tnt_size());
        self.cached.restless = counts || self.asleep;
        let defers = self.choices.deferred_tips && !ctl.cyc_en();
        self.cached.plain_inside = !(self.cached.restless || defers || ctl.dis_tnt())
            && self.choices.ip_compression != IpCompression::Off;
        self.cached.plain = self.cached.plain_inside && !self.cached.has_ranges;
        self.cached.ip_base = if self.caps.lip {
            0
        } else {
            self.context.cs_base
        };
        self.plan_psb();
        self.plan_drain();
        self.refresh();
    }

    /// PacketEn follows its parts.
    #[inline]
    fn refresh(&mut self) {
        let status = self.regs.status;
        self.cached.packet_en = status.trigger_en()
            && status.context_en()
            && status.filter_en()
            && self.regs.ctl.branch_en()
            && !self.waiting;
    }
}
