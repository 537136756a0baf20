//! Power Event Trace (33.2.3; Table 33-57, whose caption the manual gives to Table 33-58), and PEBS records (33.4.1.1).

use super::Unit;
use crate::client::Client;
use crate::event::{Block, Sleep};
use cofi_packet::Ip;
use cofi_packet::intel::{CState, ItemSize, Packet, Payload, Uint, WakeReason};

impl Unit {
    pub(super) fn sleep(&mut self, client: &mut impl Client, sleep: Sleep) {
        if self.begin(client, sleep.ip) && self.regs.ctl.pwr_evt_en() {
            let context = self.regs.status.context_en() && !self.asleep;
            if let (true, Some(mwait)) = (context, sleep.mwait) {
                let packet = Packet::Mwait {
                    hints: mwait.hints,
                    ext: Uint::truncate(mwait.ext.into()),
                };
                self.emit_eligible(client, packet);
            }
            let packet = Packet::Pwre {
                hw: sleep.hardware,
                state: sleep.state,
                sub_state: Uint::truncate(sleep.sub_state.into()),
            };
            self.emit(client, packet);
            // From one C-state to another, execution has stopped already (33.4.2.24).
            if !self.asleep {
                self.execution_stops(client, sleep.ip);
            }
        }
        // What waits goes out, for the time at which it happened.
        if self.regs.status.trigger_en() {
            self.flush(client);
        }
        self.asleep = true;
        self.configure();
    }

    /// EXSTOP, with the IP where ContextEn lets it (33.4.2.22).
    fn execution_stops(&mut self, client: &mut impl Client, ip: Ip) {
        let context = self.regs.status.context_en();
        if self.emit_eligible(client, Packet::ExStop { ip: context }) && context {
            self.fup(client, ip);
        }
    }

    pub(super) fn wake(
        &mut self,
        client: &mut impl Client,
        last: CState,
        deepest: CState,
        wake: WakeReason,
    ) {
        self.asleep = false;
        self.configure();
        self.time_resumed(client);
        if self.regs.ctl.pwr_evt_en() {
            let packet = Packet::Pwrx {
                last,
                deepest,
                wake,
            };
            self.emit(client, packet);
        }
    }

    pub(super) fn frequency(
        &mut self,
        client: &mut impl Client,
        stopped_at: Option<Ip>,
        ratio: u8,
    ) {
        let is_live = match stopped_at {
            Some(ip) => self.begin(client, ip),
            None => self.begin_anywhere(client),
        };
        self.ratio = ratio;
        if !is_live {
            return;
        }
        match stopped_at {
            Some(ip) => {
                if self.regs.ctl.pwr_evt_en() {
                    self.execution_stops(client, ip);
                }
                self.time_resumed(client);
            }
            None => self.cbr(client),
        }
    }

    /// A PEBS record: its groups, each begun by a BBP, and a BEP (33.4.2.26–28).
    pub(super) fn pebs(&mut self, client: &mut impl Client, ip: Ip, blocks: &[Block<'_>]) {
        if blocks.is_empty() || !self.begin(client, ip) {
            return;
        }
        for block in blocks {
            let packet = Packet::Bbp {
                size: block.size,
                kind: block.kind,
            };
            // Once a packet of it is lost, so is the rest: generation does not resume in the middle of a block (33.4.1.1).
            if !self.emit(client, packet) {
                return;
            }
            for &(id, value) in block.items {
                let payload = match block.size {
                    ItemSize::Four => Payload::Four(value as u32),
                    ItemSize::Eight => Payload::Eight(value),
                };
                let id = Uint::truncate(id.into());
                if !self.emit(client, Packet::Bip { id, payload }) {
                    return;
                }
            }
        }
        let context = self.regs.status.context_en();
        if self.emit(client, Packet::Bep { ip: context }) && context {
            self.fup(client, ip);
        }
        self.end(client, ip);
    }
}
