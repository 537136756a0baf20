//! Control has come to where packets are bound: what they tell takes effect.

use cofi_insn::Class;
use cofi_packet::Ip;

use crate::bind::State;
use crate::bind::control::Control;
use crate::bind::{AtIp, Binder, Bound, Pending};
use crate::reader::Flow;
use crate::{Event, Executed, FlowErrorKind, Item};

impl Binder<'_> {
    /// The walk has come to the address that a packet gave.
    pub(crate) fn arrive<W: Control>(&mut self, walk: &mut W, ip: Ip, what: AtIp) {
        if matches!(
            what,
            AtIp::Far { .. } | AtIp::Pgd { .. } | AtIp::Paging { .. }
        ) {
            return self.arrive_rtit(walk, ip, what);
        }
        self.consumed();
        self.pending = Pending::None;
        let bound = core::mem::take(&mut self.bound);
        let (before, after) = (
            Bound {
                tsx: bound.tsx,
                ..Bound::default()
            },
            Bound { tsx: None, ..bound },
        );
        match what {
            AtIp::Branch { to } => {
                self.release_held(Some(ip));
                self.apply(before, Some(ip));
                self.push(Event::AsyncBranch { from: ip, to });
                walk.go_to(to, false);
                self.apply(after, Some(to));
            }
            AtIp::Disable { ip: to } => {
                self.release_held(Some(ip));
                self.apply(before, Some(ip));
                if self.config.errata.skd022
                    && let Some(insn) = walk.instruction_at(ip, self.mode)
                    && insn.class == Class::VmEntry
                {
                    let (len, class, mode) = (insn.len, insn.class, self.mode);
                    let digest = insn.digest;
                    self.emit.items.push_back(Item::Insn(Executed {
                        ip,
                        len,
                        class,
                        mode,
                        digest,
                    }));
                    self.turn_off(walk, Some(insn.next_ip(ip, mode)));
                    self.push(Event::Disabled { ip: to });
                } else {
                    self.turn_off(walk, Some(ip));
                    self.push(Event::AsyncDisabled { at: ip, ip: to });
                }
                self.apply(after, to);
            }
            AtIp::Events => {
                self.release_held(Some(ip));
                self.apply(bound, Some(ip));
            }
            AtIp::Ptwrite => {
                // Each packet is one execution of the instruction here: it is due next.
                if let Some((payload, size)) = self.awaiting.ptwrite
                    && let Some(insn) = walk.instruction_at(ip, self.mode)
                    && insn.class == Class::Ptwrite
                {
                    self.awaiting.ptwrite = None;
                    self.pending = Pending::Ptwrite { payload, size };
                }
                self.release_held(Some(ip));
                self.apply(bound, Some(ip));
            }
            AtIp::Status(status) if bound.mode.is_none() && self.contradicts_mode(&status) => {
                self.refuse_mode(walk, status);
            }
            AtIp::Status(status) if status.last => self.state = State::Done,
            AtIp::Status(status) => {
                walk.forget_callers();
                self.bound = bound;
                self.apply_status(status);
            }
            // See above.
            AtIp::Far { .. } | AtIp::Pgd { .. } | AtIp::Paging { .. } => {}
        }
    }

    /// An instruction took tracing with it: control goes to `ip`, or else to `next` or where nobody knows.
    pub(crate) fn end_tracing<W: Control>(&mut self, walk: &mut W, next: Ip, ip: Option<Ip>) {
        self.use_pending();
        let bound = core::mem::take(&mut self.bound);
        self.turn_off(walk, Some(ip.unwrap_or(next)));
        self.push(Event::Disabled { ip });
        self.apply(Bound { tsx: None, ..bound }, ip);
    }

    /// What is pending is dealt with, or given up.
    #[inline]
    pub(crate) fn drop_pending(&mut self) {
        self.pending = Pending::None;
    }

    /// TNT bits are left that belong to branches behind a loss.
    pub(crate) fn drop_bits(&mut self) {
        self.tnt_len = 0;
    }

    /// A TIP was read, which the walk has to reach.
    #[inline]
    pub(crate) fn await_tip(&mut self, ip: Ip) {
        self.pending = Pending::Tip(Some(ip));
    }

    /// What is pending turns out to be bound to an address.
    pub(crate) fn await_at(&mut self, ip: Ip, what: AtIp) {
        self.pending = Pending::At { ip, what };
    }

    /// New page tables belong to a transfer whose TIP or TIP.PGD follows.
    pub(crate) fn bind_paging(&mut self, cr3: u64, nr: bool) {
        self.bound.paging = Some((cr3, nr));
    }

    /// A new VMCS pointer does.
    pub(crate) fn bind_vmcs(&mut self, base: u64) {
        self.bound.vmcs = Some(base);
    }

    /// Nothing more is to be decoded.
    pub(crate) fn finish(&mut self) {
        self.state = State::Done;
    }

    /// An instruction is due, behind events that come before it.
    pub(crate) fn emit_insn(&mut self, insn: Executed) {
        self.emit.items.push_back(Item::Insn(insn));
    }

    /// What is pending has happened.
    pub(crate) fn use_pending(&mut self) {
        self.consumed();
        self.pending = Pending::None;
    }

    #[inline]
    pub(crate) fn take_bit(&mut self) -> bool {
        let taken = self.tnt >> 63 == 1;
        self.tnt <<= 1;
        self.tnt_len -= 1;
        self.used += 1;
        taken
    }

    /// Where a conditional branch led that ended tracing, whose TIP.PGD has no IP (33.2.6.5): out of the ranges, if these are known and only
    /// one of its ways leads out. A TraceStop may be another reason, and is lost if an overflow comes next.
    pub(crate) fn left_ranges(&self, next: Ip, target: Ip) -> Option<Ip> {
        let filter = &self.config.filter;
        let place = match (filter.contains(next), filter.contains(target)) {
            (true, false) => target,
            (false, true) => next,
            _ => return None,
        };
        let may_stop = matches!(
            self.reader.clone().next(),
            Some(Ok(Flow::TraceStop | Flow::Ovf) | Err(_))
        );
        (!may_stop).then_some(place)
    }

    /// The stream ends while tracing is on: no packet shows that anything behind the last one ran.
    pub(crate) fn end_of_stream<W: Control>(&mut self, walk: &mut W) {
        if W::FOLLOWS_CODE {
            // No packet tells of this, and none is lost.
            self.read_at = self.reader.len();
            self.error(walk, walk.at(), FlowErrorKind::UnknownEnd);
        }
        self.state = State::Done;
    }
}
