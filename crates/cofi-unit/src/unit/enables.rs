//! TraceEn, TriggerEn, ContextEn, FilterEn, TraceStop (33.2.5, 33.2.6, 33.2.8.3).

use super::Unit;
use super::region::Region;
use super::transfer::ControlEvent;
use crate::client::Client;
use crate::event::{Context, Enclave};
use cofi_packet::Ip;
use cofi_packet::intel::Packet;

/// What an ADDRn_CFG field makes of its range (Table 33-6).
const FILTER: u64 = 1;
const STOP: u64 = 2;

impl Unit {
    /// TraceEn was set; the next instruction is at `next` (33.2.8.3; Table 33-56, cases 1, 2 and 10).
    pub(super) fn enable(
        &mut self,
        client: &mut impl Client,
        next: Ip,
        event: Option<ControlEvent>,
    ) {
        self.stale = self.current_registers();
        self.tnt = Default::default();
        self.deferred.clear();
        self.returns.clear();
        self.told_mode = None;
        let status = self.regs.status;
        self.regs.status = status
            .with_trigger_en(false)
            .with_context_en(false)
            .with_filter_en(false);
        self.configure();
        let is_barred = status.error() || status.stopped();
        self.regs.status = self.regs.status.with_trigger_en(!is_barred);
        if !self.output.start(&mut self.regs, &self.caps, client) {
            if !is_barred {
                self.ended();
            }
            return;
        }
        let filters = self.ranges(FILTER).next().is_some();
        self.regs.status = self.regs.status.with_filter_en(!filters);
        let now = client.now();
        self.timing.start(now, self.regs.ctl, self.caps.crystal);
        if let Some(buffer) = &mut self.buffer {
            buffer.start(now);
        }
        self.plan_drain();
        // PacketEn becomes 1 after this, with a TIP.PGE of its own.
        let context = self.context_enabled(&self.context);
        self.regs.status = self.regs.status.with_context_en(context);
        let pending = self.regs.ctl.inject() && self.regs.status.pend_psb();
        // MODE.TSX stands in PSB+ only, when a transaction has ended or begun meanwhile.
        let owes = self.told_tx != self.context.in_tx || self.psb_owed || self.psb_in_context;
        if self.byte_count == 0 || !self.caps.psb_cyc || pending || owes {
            self.psb_plus(client, None);
        } else {
            self.resync_time(client);
        }
        // Out of context it does not tell all.
        self.psb_in_context = owes && !context;
        self.plan_psb();
        if let Some(event) = event {
            self.control_event(client, event, false, context);
        }
        let stops = self.arrive(next);
        self.refresh();
        if self.packet_en() {
            self.pge(client, next);
        } else if self.choices.mode_exec_on_enable {
            self.mode_exec(client);
        }
        if stops {
            self.trace_stop(client);
        }
    }

    /// TraceEn is cleared: FUP with `fup` and TIP.PGD where PacketEn is set (Table 33-56, cases 3 and 9), and all that is
    /// buffered goes to memory.
    pub(super) fn disable(&mut self, client: &mut impl Client, fup: Option<Ip>) {
        let is_live = match fup {
            Some(ip) => self.begin(client, ip),
            None => self.regs.status.trigger_en(),
        };
        if is_live {
            self.flush(client);
            if self.packet_en() {
                if let Some(ip) = fup {
                    self.fup(client, ip);
                }
                self.pgd(client, None);
            }
        }
        self.stop_tracing(client);
    }

    /// TraceEn is cleared, with no more packets than are there.
    pub(super) fn stop_tracing(&mut self, client: &mut impl Client) {
        self.flush(client);
        self.empty_buffer(client);
        self.pend_psb();
        self.regs = self.current_registers();
        self.regs.ctl = self.regs.ctl.with_trace_en(false);
        self.regs.status = self
            .regs
            .status
            .with_trigger_en(false)
            .with_context_en(false)
            .with_filter_en(false);
        self.byte_count = self.regs.status.packet_byte_cnt();
        self.tnt = Default::default();
        self.deferred.clear();
        self.returns.clear();
        self.configure();
    }

    /// TriggerEn is cleared while a PSB is due: it is preserved, if asked for (33.3.7).
    fn pend_psb(&mut self) {
        if self.regs.ctl.inject() && self.regs.status.trigger_en() && self.psb_due() {
            self.regs.status = self.regs.status.with_pend_psb(true);
        }
    }

    /// The output has ended tracing: Stopped or Error is set. What was buffered is lost (33.2.7.2).
    #[cold]
    pub(super) fn ended(&mut self) {
        if self.regs.ctl.inject() && self.psb_due() {
            self.regs.status = self.regs.status.with_pend_psb(true);
        }
        self.regs.status = self.regs.status.with_trigger_en(false);
        self.tnt = Default::default();
        self.deferred.clear();
        self.returns.clear();
        if let Some(buffer) = &mut self.buffer {
            buffer.clear();
        }
        self.plan_drain();
        // A packet may be cut off: only a PSB tells a reader where the next begins.
        self.psb_owed = true;
        self.refresh();
    }

    /// ContextEn, as it would be in `context` (33.2.6.3).
    pub(super) fn context_enabled(&self, context: &Context) -> bool {
        let ctl = self.regs.ctl;
        let level = if context.cpl == 0 {
            ctl.os()
        } else {
            ctl.user()
        };
        // Bits 63:12, and 63:5 under PAE paging (33.2.5.2).
        let low = if context.pae { 5 } else { 12 };
        let space = !ctl.cr3_filter() || (context.cr3 ^ self.regs.cr3_match.0) >> low == 0;
        level && space && context.enclave != Enclave::Production
    }

    /// Takes over a context; ContextEn follows while TriggerEn is set.
    pub(super) fn enter(&mut self, context: Context) {
        self.context = context;
        self.cached.ip_base = if self.caps.lip { 0 } else { context.cs_base };
        if self.regs.status.trigger_en() {
            let enabled = self.context_enabled(&context);
            self.regs.status = self.regs.status.with_context_en(enabled);
            self.refresh();
            if self.psb_in_context {
                // It comes when the event is complete.
                self.plan_psb();
            }
        }
    }

    /// The configured ranges of a kind, both ends included.
    fn ranges(&self, kind: u64) -> impl Iterator<Item = (u64, u64)> + use<'_> {
        (0..4).filter_map(move |n| {
            let [from, to] = self.regs.ranges[n];
            (self.regs.ctl.0 >> (32 + 4 * n) & 0xf == kind).then_some((from.0, to.0))
        })
    }

    /// Whether `ip` lies in a TraceStop range.
    pub(super) fn in_stop_range(&self, ip: Ip) -> bool {
        let Ip(ip) = self.payload_ip(ip);
        self.ranges(STOP)
            .any(|(from, to)| (from..=to).contains(&ip))
    }

    /// A taken branch or an event led to `ip`, where ContextEn already holds: FilterEn follows (33.2.6.5), and `true` says
    /// that tracing is to stop (33.2.5.3). Walking into a range or out of it changes nothing until such a moment.
    pub(super) fn arrive(&mut self, ip: Ip) -> bool {
        let status = self.regs.status;
        if !self.cached.has_ranges || !status.trigger_en() || !status.context_en() {
            return false;
        }
        let payload = self.payload_ip(ip);
        if self.cached.region.has(payload) {
            debug_assert!(
                self.enables_at(ip) == (status.filter_en(), false),
                "{ip:x?} is not in the region that is remembered"
            );
            return false;
        }
        let (filter_en, stops) = self.enables_at(ip);
        let Ip(payload) = payload;
        self.regs.status = status.with_filter_en(filter_en);
        self.cached.region = if stops {
            Region::UNKNOWN
        } else {
            Region::around(payload, self.ranges(FILTER).chain(self.ranges(STOP)))
        };
        self.refresh();
        stops
    }

    /// What FilterEn is once a taken branch or an event led to `ip`, and whether tracing is to stop there.
    fn enables_at(&self, ip: Ip) -> (bool, bool) {
        let stops = self.in_stop_range(ip);
        let Ip(payload) = self.payload_ip(ip);
        let (mut none, mut inside) = (true, false);
        for (from, to) in self.ranges(FILTER) {
            none = false;
            inside |= (from..=to).contains(&payload);
        }
        // Where ranges overlap, TraceStop rules; and it forces FilterEn to 0 (33.4.2.9).
        ((none || inside) && !stops, stops)
    }

    /// TraceStop: the packet, and tracing ends until software clears Stopped (33.2.5.3).
    pub(super) fn trace_stop(&mut self, client: &mut impl Client) {
        if !self.regs.status.trigger_en() {
            return;
        }
        if !self.stop_in_overflow() {
            self.emit(client, Packet::TraceStop);
        }
        self.pend_psb();
        self.regs.status = self
            .regs
            .status
            .with_stopped(true)
            .with_trigger_en(false)
            .with_filter_en(false);
        self.returns.clear();
        self.refresh();
    }
}
