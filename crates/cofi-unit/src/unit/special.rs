//! INIT and SIPI, shutdown, SMM, authenticated code (33.2.9.3, 33.2.9.6, 33.7).

use super::Unit;
use super::transfer::{ControlEvent, Pip, Transfer};
use crate::client::Client;
use crate::event::{Context, Destination, Rsm};
use crate::registers::Fault;
use cofi_packet::Ip;
use cofi_packet::intel::{CfeType, Kind};

impl Unit {
    /// INIT on a processor that waits for SIPI then: Table 33-55, case 23.
    pub(super) fn init_to_wait(&mut self, client: &mut impl Client, from: Ip, context: Context) {
        if self.begin(client, from) {
            let event = ControlEvent::new(CfeType::INIT, Some(from));
            let to = Destination { ip: from, context };
            self.announce(client, &Transfer::hidden(from, to).telling(event));
            self.enter_telling(client, context, Pip::IfChanged);
            self.flush(client);
        }
        self.context = context;
        self.waiting = true;
        self.returns.clear();
        self.configure();
    }

    /// SIPI: Table 33-55, case 24.
    pub(super) fn sipi(&mut self, client: &mut impl Client, vector: u8, to: Destination) {
        let mut transfer = Transfer::shown(to.ip, to);
        transfer.event = Some(ControlEvent::new(CfeType::SIPI, None).with_vector(vector));
        // An overflow that is resolved now goes on where execution starts: PacketEn is 0 until then.
        if self.begin(client, to.ip) {
            self.announce(client, &transfer);
            self.waiting = false;
            self.enter_telling(client, to.context, Pip::IfChanged);
            // PacketEn was 0 while it waited.
            self.land(client, false, to.ip);
            self.end(client, to.ip);
        } else {
            self.waiting = false;
            self.enter(to.context);
        }
        self.configure();
    }

    /// Entry to the shutdown state: only Event Trace tells.
    pub(super) fn shutdown(&mut self, client: &mut impl Client, at: Ip) {
        if self.begin(client, at) {
            let context = self.regs.status.context_en();
            let event = ControlEvent::new(CfeType::SHUTDOWN, Some(at));
            self.control_event(client, event, false, context);
        }
    }

    /// SMI delivery: TraceEn is cleared before CR3 and the rest change (33.2.9.3).
    pub(super) fn smi(&mut self, client: &mut impl Client, from: Ip, to: Destination) {
        if self.regs.ctl.trace_en() {
            if self.begin(client, from) {
                let event = ControlEvent::new(CfeType::SMI, Some(from));
                let mut transfer = Transfer::hidden(from, to).telling(event);
                transfer.pip = Pip::Never;
                transfer.ends = true;
                self.announce(client, &transfer);
                if self.packet_en() {
                    self.pgd(client, None);
                }
            }
            self.stop_tracing(client);
        }
        self.waiting = false;
        self.enter(to.context);
        self.configure();
    }

    /// RSM (33.2.9.3).
    ///
    /// # Errors
    /// The processor shuts down when TraceEn is set, or when it and LBRs would come to be enabled together where they
    /// exclude each other.
    pub fn rsm(&mut self, client: &mut impl Client, rsm: Rsm) -> Result<(), Fault> {
        if self.regs.ctl.trace_en() {
            return Err(Fault::Shutdown {
                rule: "TraceEn is set at RSM (33.2.9.3)",
            });
        }
        if self.caps.excludes_lbr && rsm.trace_en && rsm.lbr {
            return Err(Fault::Shutdown {
                rule: "RSM enables both Intel PT and LBRs (33.2.9.3, 33.3.1.2)",
            });
        }
        self.enter(rsm.to.context);
        self.configure();
        // SMRAM can hold what SMI delivery never saved: TraceEn on a processor that has none stays 0.
        if rsm.trace_en && self.caps.supported {
            let mut new = self.regs;
            new.ctl = new.ctl.with_trace_en(true);
            let event = ControlEvent::new(CfeType::RSM, None);
            self.commit(client, new, rsm.to.ip, Some(event));
        }
        Ok(())
    }

    /// An authenticated code module is set up: silence (33.2.9.6).
    pub(super) fn acm_begin(&mut self, client: &mut impl Client) {
        if self.acm.is_some() {
            return;
        }
        self.begin_anywhere(client);
        let (trace_en, filter_en) = (self.regs.ctl.trace_en(), self.regs.status.filter_en());
        let resolved = self.overflows();
        if trace_en {
            self.stop_tracing(client);
        }
        // Whether an OVF came just now, for one that lasted or for what was flushed.
        let overflows = self.overflows() != resolved;
        self.acm = Some((trace_en, filter_en, overflows));
    }

    /// The module is done. Only timing packets tell.
    pub(super) fn acm_end(&mut self, client: &mut impl Client) {
        let Some((true, filter, overflows)) = self.acm.take() else {
            return;
        };
        if self.regs.ctl.trace_en() {
            return;
        }
        self.stale = self.current_registers();
        self.regs.ctl = self.regs.ctl.with_trace_en(true);
        let status = self.regs.status;
        if status.error() || status.stopped() {
            return;
        }
        self.regs.status = status.with_trigger_en(true);
        if !self.output.start(&mut self.regs, &self.caps, client) {
            return self.ended();
        }
        let now = client.now();
        self.timing.start(now, self.regs.ctl, self.caps.crystal);
        let context = self.context_enabled(&self.context);
        self.regs.status = self
            .regs
            .status
            .with_context_en(context)
            .with_filter_en(filter);
        self.configure();
        self.resync_time(client);
        if overflows {
            // Its OVF came when tracing ended, and no TIP.PGE follows: another OVF, with a FUP, tells where it goes on.
            self.begin_overflow();
            if core::mem::take(&mut self.psb_owed) {
                self.lost(Kind::Psb);
            }
        }
    }
}
