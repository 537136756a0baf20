//! Packets: how they are made, compressed and counted, and the PSBs between them.

use super::Unit;
use crate::compress::Results;
use crate::rtit::event::Client;
use crate::rtit::implementation::Implementation;
use crate::rtit::msr::{LastCallNlip, LastLipRegister};
use crate::rtit::registers::sign_extended;
use cofi_packet::rtit::{FullTnt, Kind, LastLip, LipBytes, LipPayload, PSB, Packet};
use cofi_packet::{Ip, Tnt};

/// What RTIT_LAST_LIP holds, as what packets are compressed against.
fn last_lip(register: LastLipRegister) -> LastLip {
    let mut last = LastLip::new();
    if register.valid() {
        let lip = register.high() << 32 | register.low() << 16;
        last.apply(LipPayload::truncate(LipBytes::Full, lip));
    }
    last
}

impl Unit {
    /// Sends a packet; `false` if it is lost, because the internal buffer overflows or has no room.
    pub(super) fn emit(&mut self, client: &mut impl Client, packet: &Packet) -> bool {
        match self.send(client, packet) {
            Some(len) => {
                self.count_packet(client, len);
                true
            }
            None => false,
        }
    }

    /// Sends a packet, and returns its length; it is not counted yet.
    fn send(&mut self, client: &mut impl Client, packet: &Packet) -> Option<u64> {
        let raw = packet.encode();
        let is_sent =
            !self.regs.status.buffer_overflow() && self.put(client, &raw.bytes()[..raw.len()]);
        if is_sent && matches!(packet.cycles(), Some(Some(_))) {
            self.restart_count();
        }
        is_sent.then_some(raw.len() as u64)
    }

    /// A packet of `len` bytes was sent; or, with 0, RTIT_PKT_CNT was written. A PSB may be due (3.3.9).
    pub(super) fn count_packet(&mut self, client: &mut impl Client, len: u64) {
        if len != 0 {
            self.clear_after_psb();
        }
        let register = self.regs.pkt_cnt;
        let count = register.count() + len;
        let is_due = count >> (11 + register.mask()) & 1 != 0;
        self.regs.pkt_cnt = register.with_count(count);
        if self.psb_late || self.psb_owed {
            self.psb(client);
        } else if is_due && len != 0 && self.choices.errata.e3 && self.sometimes() {
            self.psb_late = true;
        } else if is_due {
            self.psb(client);
        }
    }

    /// A PSB that Pkt_Mask asks for.
    fn psb(&mut self, client: &mut impl Client) {
        if !self.regs.status.trigger_en() {
            return;
        }
        if self.regs.status.buffer_overflow() || !self.put_psb(client) {
            self.psb_owed = true;
            return;
        }
        match self
            .choices
            .psb_effect_delay
            .min(Implementation::MOST_PSB_DELAY)
        {
            0 => self.clear_compression(),
            packets => self.psb_clears_in = Some(packets),
        }
    }

    /// The PSB of TriggerEn becoming 1. It comes even in a buffer overflow, as what was buffered has drained (4.2.5); and as no packet
    /// asked for it, it takes effect at once.
    pub(super) fn psb_on_enable(&mut self, client: &mut impl Client) {
        self.put_psb(client);
        self.clear_compression();
        if self.choices.errata.e7 && self.sometimes() {
            self.spoil_mtc();
        }
    }

    fn put_psb(&mut self, client: &mut impl Client) -> bool {
        self.end_scramble(client);
        if !self.put(client, &PSB) {
            return false;
        }
        (self.psb_owed, self.psb_late) = (false, false);
        self.regs.pkt_cnt = self.regs.pkt_cnt.with_count(PSB.len() as u64);
        self.begin_scramble();
        true
    }

    /// Of the packets after a PSB for which it has not taken effect, one more was sent.
    fn clear_after_psb(&mut self) {
        match self.psb_clears_in {
            None => {}
            Some(..=1) => self.clear_compression(),
            Some(packets) => self.psb_clears_in = Some(packets - 1),
        }
    }

    /// RTIT_LAST_LIP and RTIT_LAST_CALL_NLIP are cleared (3.3.7, 3.3.14).
    pub(super) fn clear_compression(&mut self) {
        self.regs.last_lip = LastLipRegister(0);
        self.regs.last_call_nlip = LastCallNlip(0);
        self.psb_clears_in = None;
    }

    /// A result for the TNT packet; a full one is sent.
    pub(super) fn push_tnt(&mut self, client: &mut impl Client, taken: bool) {
        if self.regs.status.buffer_overflow() || self.tnt.has(6) && !self.flush_tnt(client) {
            return;
        }
        self.tnt.push(1, taken.into());
        if self.tnt.has(6) {
            self.flush_tnt(client);
        }
    }

    /// Sends the results that wait, if there are any. `false`: there was no room, and they go on waiting.
    pub(super) fn flush_tnt(&mut self, client: &mut impl Client) -> bool {
        let mut results = self.tnt;
        let packet = if results.has(6) {
            let full: Option<Tnt<6>> = results.take();
            full.and_then(|tnt| FullTnt::try_from(tnt).ok())
                .map(|bits| Packet::Tnt {
                    bits,
                    cycles: self.cycle_count(),
                })
        } else {
            results.take().map(|bits| Packet::TntPartial { bits })
        };
        let Some(packet) = packet else {
            return true;
        };
        let Some(len) = self.send(client, &packet) else {
            return false;
        };
        self.tnt = Results::new();
        self.count_packet(client, len);
        true
    }

    /// TIP or FUP of `ip`, and before it the results that wait.
    pub(super) fn lip(&mut self, client: &mut impl Client, kind: Kind, ip: Ip) {
        if self.regs.status.buffer_overflow() || !self.flush_tnt(client) {
            return;
        }
        let lip = sign_extended(ip.0);
        let cycles = self.cycle_count();
        let payload = last_lip(self.regs.last_lip).compress(Ip(lip));
        let packet = payload.and_then(|payload| Packet::with_lip(kind, payload, cycles));
        let Some(packet) = packet else {
            return;
        };
        let Some(len) = self.send(client, &packet) else {
            return;
        };
        // That of an overflow leaves none behind (3.3.7).
        if kind != Kind::FupOvf {
            self.regs.last_lip = LastLipRegister(0)
                .with_low(lip >> 16)
                .with_high(lip >> 32)
                .with_valid(true);
        }
        self.count_packet(client, len);
    }

    pub(super) fn tip(&mut self, client: &mut impl Client, target: Ip) {
        self.lip(client, Kind::Tip, target);
    }

    pub(super) fn pge(&mut self, client: &mut impl Client, ip: Ip) {
        self.lip(client, Kind::FupPge, ip);
    }

    pub(super) fn pgd(&mut self, client: &mut impl Client, ip: Ip) {
        self.lip(client, Kind::FupPgd, ip);
    }
}
