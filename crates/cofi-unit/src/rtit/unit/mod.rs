//! The unit itself: its state, its registers, and what a near branch does. Each other kind of event has a file below.

mod enables;
mod errata;
mod events;
mod overflow;
mod packets;
mod saved;
mod time;

use super::event::{Client, Context};
use super::implementation::Implementation;
use super::msr::{self, Events};
use super::output::{Dice, Output};
use super::registers::Registers;
use crate::compress::Results;
use crate::event::{At, Branch, Retired};
use crate::registers::Fault;
use cofi_packet::Ip;
use errata::Scramble;
use overflow::{Buffer, HeldStop};
use time::Timing;

/// A logical processor's RTIT unit.
///
/// Two are equal if they have made the same choices and go on alike: what is [saved](Unit::save) of them is the same.
#[derive(Clone, Debug)]
pub struct Unit {
    choices: Implementation,
    regs: Registers,
    output: Output,
    dice: Dice,
    context: Context,
    /// In SMM.
    smm: bool,
    /// In VMX root operation.
    vmx_root: bool,
    /// In a sleep state.
    asleep: bool,
    /// Actual and effective core/bus ratio.
    ratios: (u8, u8),
    /// Where INIT led: there SIPI finds the processor.
    init_ip: Ip,
    timing: Timing,
    /// TNT results that wait for their packet: RTIT_TNT_BUFF.
    tnt: Results,
    /// A PSB is due that had no room.
    psb_owed: bool,
    /// A PSB comes one packet late (E3).
    psb_late: bool,
    /// After so many packets a PSB clears what packets are compressed against (3.3.9).
    psb_clears_in: Option<u8>,
    /// A TraceStop that was met in a buffer overflow.
    held_stop: Option<HeldStop>,
    /// How many overflows have been resolved.
    overflows: u64,
    /// The internal buffer, where it is modelled.
    buffer: Option<Buffer>,
    /// Packets after a PSB that E8 is to muddle.
    scramble: Option<Scramble>,
    cached: Cached,
}

// Not derived: part of what is kept follows from the rest at one moment, and from what is told next at another.
impl PartialEq for Unit {
    fn eq(&self, other: &Self) -> bool {
        self.choices == other.choices && self.save() == other.save()
    }
}

impl Eq for Unit {}

/// What follows from the rest, kept because every instruction asks for it.
#[derive(Clone, Copy, Debug, Default)]
struct Cached {
    packet_en: bool,
    /// PacketEn is set and stays so; nothing but the passing of time and a full TNT makes a packet at near branches that make none
    /// themselves.
    plain: bool,
    /// So it is at least, with PacketEn set or not, where control neither enters nor leaves a range.
    plain_ahead: bool,
}

/// What held when an instruction or event began.
#[derive(Clone, Copy)]
struct Before {
    packet_en: bool,
    status: msr::Status,
    /// It is an instruction in which a buffer overflow is resolved.
    resolves: bool,
}

impl Unit {
    /// A unit after reset, in this context.
    #[must_use]
    pub fn new(context: Context) -> Self {
        Self::with(Implementation::default(), context)
    }

    /// As [`Unit::new`], with these choices where the reference leaves them to the processor.
    #[must_use]
    pub fn with(choices: Implementation, context: Context) -> Self {
        let mut unit = Self {
            choices,
            regs: Registers::default(),
            output: Output::new(choices.lines),
            dice: Dice(choices.seed),
            context,
            smm: false,
            vmx_root: false,
            asleep: false,
            ratios: (0, 0),
            init_ip: Ip(0),
            timing: Timing::default(),
            tnt: Results::new(),
            psb_owed: false,
            psb_late: false,
            psb_clears_in: None,
            held_stop: None,
            overflows: 0,
            buffer: choices.buffer.map(Buffer::new),
            scramble: None,
            cached: Cached::default(),
        };
        unit.refresh();
        unit
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

    /// PacketEn: TriggerEn and ContextEn and FilterEn (2.1).
    #[must_use]
    #[inline]
    pub const fn packet_en(&self) -> bool {
        self.cached.packet_en
    }

    /// Trace_En: as long as it is 0, nothing that an embedder could tell makes a packet.
    #[must_use]
    #[inline]
    pub const fn in_use(&self) -> bool {
        self.regs.ctl.trace_en()
    }

    /// RDMSR of an RTIT register. RTIT_CNTP is that of the last moment at which the unit was told anything.
    ///
    /// # Errors
    /// #GP for any but RTIT_CTL as long as that has not been read (3.3.1), and where there is no such register.
    pub fn rdmsr(&mut self, address: u32) -> Result<u64, Fault> {
        let mut regs = self.current_registers();
        let value = regs.read(address);
        self.regs.unlocked = regs.unlocked;
        value
    }

    /// The registers with what is kept elsewhere.
    fn current_registers(&self) -> Registers {
        let mut regs = self.regs;
        regs.cntp.0 = self.cycles();
        regs.tnt_buff.0 = self.tnt.stopped();
        regs
    }

    /// WRMSR, at `at`, of an RTIT register: it stands for the instruction's own retirement.
    ///
    /// # Errors
    /// #GP, with nothing changed, when the write breaks a rule of 3.3.
    pub fn wrmsr(
        &mut self,
        client: &mut impl Client,
        at: At,
        address: u32,
        value: u64,
    ) -> Result<(), Fault> {
        let new = self.regs.check(address, value)?;
        let mut before = self.begin(client, Some(at.next));
        match address {
            msr::RTIT_CTL => self.drain_all(client),
            msr::RTIT_BASE_ADDR | msr::RTIT_LIMIT_MASK | msr::RTIT_OFFSET => self.fence(client),
            msr::RTIT_STATUS => before.resolves = false,
            _ => {}
        }
        match address {
            msr::RTIT_TNT_BUFF => self.tnt = Results::from_stopped(new, 6).unwrap_or_default(),
            _ => self.regs.commit(address, new),
        }
        if address == msr::RTIT_CTL {
            self.note_tsc();
        }
        self.refresh();
        if !before.status.trigger_en() && self.regs.status.trigger_en() {
            self.psb_on_enable(client);
        }
        if address == msr::RTIT_PKT_CNT {
            self.count_packet(client, 0);
        }
        self.walk(client, before, at);
        if self.cached.packet_en && self.tnt.has(6) {
            // By software, or held by an overflow that software ended.
            self.flush_tnt(client);
        }
        if address == msr::RTIT_CTL {
            self.drain_all(client);
        }
        Ok(())
    }

    /// A reset: every register has its reset value, and must be unlocked anew. What was still buffered is lost. The core/bus ratios
    /// stay what [`Event::Frequency`](super::Event::Frequency) told last: the clocks are not RTIT's. The reference names warm and cold
    /// resets together (3.3.4), and knows no difference.
    pub fn reset(&mut self, warm: bool, context: Context) {
        // Only the embedder's clocks could tell them apart.
        let _ = warm;
        *self = Self {
            ratios: self.ratios,
            ..Self::with(self.choices, context)
        };
    }

    /// An instruction that is no far transfer retired.
    #[inline]
    pub fn retire(&mut self, client: &mut impl Client, insn: Retired) {
        if !self.regs.ctl.trace_en() {
            return;
        }
        // Most instructions are among these, and do no more than this.
        let cached = self.cached;
        let is_plain = cached.plain
            || cached.plain_ahead
                && match insn.branch {
                    Branch::None | Branch::Conditional(None) => !self.is_end_of_range(insn.at.next),
                    _ => self.stays(insn.destination()),
                };
        if !is_plain || !self.is_quiet(client.now()) {
            return self.retire_whole(client, insn);
        }
        match insn.branch {
            _ if !cached.packet_en => {}
            Branch::None | Branch::DirectJump(_) => {}
            Branch::Conditional(target) if !self.tnt.has(5) => {
                self.tnt.push(1, target.is_some().into());
            }
            _ => {
                self.settle_cycles();
                self.branch(client, insn);
            }
        }
    }

    #[inline(never)]
    fn retire_whole(&mut self, client: &mut impl Client, insn: Retired) {
        let before = self.begin(client, Some(insn.at.next));
        let is_taken = !matches!(insn.branch, Branch::None | Branch::Conditional(None));
        let to = insn.destination();
        let is_indirect = before.packet_en && self.branch(client, insn);
        let stops = self.arrive(to, is_taken);
        self.turn(client, before, insn.at.next, to, stops);
        self.end(client, before, to, stops, is_indirect);
    }

    /// A near branch that began with PacketEn set retired; whether it made a TIP.
    #[inline]
    fn branch(&mut self, client: &mut impl Client, insn: Retired) -> bool {
        let target = match insn.branch {
            Branch::None | Branch::DirectJump(_) => return false,
            Branch::Conditional(taken) => {
                self.push_tnt(client, taken.is_some());
                return false;
            }
            Branch::DirectCall(_) => {
                self.call(insn.at.next);
                return false;
            }
            Branch::IndirectJump(target) => target,
            Branch::IndirectCall(target) => {
                self.call(insn.at.next);
                target
            }
            Branch::Return(target) if self.is_last_call(target) => {
                self.push_tnt(client, true);
                return false;
            }
            Branch::Return(target) => target,
        };
        self.tip(client, target);
        true
    }

    /// A near CALL that began with PacketEn set retired (4.2.3.2).
    fn call(&mut self, next: Ip) {
        if self.regs.ctl.cmprs_ret() && !self.regs.status.buffer_overflow() {
            self.regs.last_call_nlip = msr::LastCallNlip(0).with_nlip(next.0).with_valid(true);
        }
    }

    /// Whether a near RET to `target` is compressed.
    fn is_last_call(&self, target: Ip) -> bool {
        let last = self.regs.last_call_nlip;
        self.regs.ctl.cmprs_ret() && last.valid() && last.with_nlip(target.0) == last
    }

    /// What an instruction does that is no branch, behind its own packets.
    fn walk(&mut self, client: &mut impl Client, before: Before, at: At) {
        let stops = self.arrive(at.next, false);
        self.turn(client, before, at.next, at.next, stops);
        self.extra_pgd(client, before, at.next, stops);
        self.end(client, before, at.next, stops, false);
    }

    /// Something begins: time is looked at; and if it is an instruction, with `next` behind it, what is due at one. Who executes or is
    /// interrupted is awake.
    fn begin(&mut self, client: &mut impl Client, next: Option<Ip>) -> Before {
        if self.asleep {
            self.wake(client);
        } else {
            self.look_at_time(client);
        }
        if let Some(next) = next {
            self.periodic_count(client, next);
        }
        let status = self.regs.status;
        Before {
            packet_en: self.cached.packet_en,
            status,
            resolves: next.is_some()
                && status.buffer_overflow()
                && status.trigger_en()
                && status.context_en()
                && self.is_drained(),
        }
    }

    /// PacketEn may have changed, in going from the instruction before `next` to `to`.
    fn turn(&mut self, client: &mut impl Client, before: Before, next: Ip, to: Ip, stops: bool) {
        let stays = self.cached.packet_en && !stops;
        match (before.packet_en, stays) {
            (true, false) if self.sends_pgd(stops) => self.pgd(client, next),
            (false, true) => self.pge(client, to),
            _ => {}
        }
    }

    /// Something ends, with control at `to`.
    fn end(
        &mut self,
        client: &mut impl Client,
        before: Before,
        to: Ip,
        stops: bool,
        is_indirect: bool,
    ) {
        // What it sent itself may have overflowed.
        if stops && self.regs.status.buffer_overflow() {
            self.hold_stop();
        } else if stops {
            self.trace_stop(client);
        }
        self.resolve(client, before, to, is_indirect);
        self.act_on_held_stop(client, to);
    }

    /// Whether FUP.PGD tells that PacketEn became 0: perhaps not, when TriggerEn did (4.2.8).
    const fn sends_pgd(&self, stops: bool) -> bool {
        self.regs.status.trigger_en() && !stops || self.choices.pgd_on_disable
    }

    /// What follows from registers and context.
    fn refresh(&mut self) {
        self.settle_cycles();
        let (ctl, events) = (self.regs.ctl, self.regs.events);
        let trigger_en = ctl.trace_en() && ctl.trace_active();
        self.regs.status = self
            .regs
            .status
            .with_trigger_en(trigger_en)
            .with_context_en(self.context_en());
        let status = self.regs.status;
        let packet_en = trigger_en && status.context_en() && status.filter_en();
        let is_range = |id: u64| id <= Events::RANGE0_OR_1;
        let (filter, stop) = (events.filter(), events.trace_stop());
        let is_everywhere = filter == Events::ALWAYS_ON;
        // Other than behind a TraceStop, what needs no range is as it should be.
        let is_settled =
            is_range(filter) || !status.context_en() || status.filter_en() == is_everywhere;
        let plain_ahead = is_settled
            && stop != Events::ALWAYS_ON
            && !(self.buffer.is_some() || status.buffer_overflow() || self.asleep);
        self.cached = Cached {
            packet_en,
            plain: plain_ahead && packet_en && is_everywhere && !is_range(stop),
            plain_ahead,
        };
        self.plan_counts();
    }
}
