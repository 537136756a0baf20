//! How packets come to be: IPs are compressed, TNT results and TIPs gathered, CYCs put before what is eligible (33.3.6, 33.4.2).

use super::Unit;
use crate::client::Client;
use crate::implementation::{IpCompression, TntForm};
use cofi_packet::Ip;
use cofi_packet::intel::{IpPayload, Kind, Packet, U48};

/// An IP whole: in 48 bits if the rest of it is their sign, and in 32 where linear addresses have no more.
fn uncompressed(ip: Ip, width: u8) -> IpPayload {
    let low = U48::truncate(ip.0);
    let is_canonical = (ip.0 << 16) as i64 >> 16 == ip.0 as i64;
    if width <= 32 {
        IpPayload::update32(ip.0 as u32)
    } else if is_canonical {
        IpPayload::sext48(low)
    } else {
        IpPayload::full(ip.0)
    }
}

impl Unit {
    /// The payload for `ip`, which becomes the Last IP.
    #[inline]
    fn ip(&mut self, ip: Ip) -> IpPayload {
        let mut ip = self.payload_ip(ip);
        let width = self.caps.max_linear_addr;
        if width <= 32 {
            // IPBytes never exceeds 010b there (33.4.2.2); a carry beyond 32 bits is not part of an address.
            ip.0 &= 0xffff_ffff;
        }
        let is_first = core::mem::take(&mut self.is_first_ip);
        let whole = is_first && !self.compresses_first_ip()
            || self.choices.ip_compression == IpCompression::Off;
        if whole {
            // The IP that follows a PSB is either uncompressed or compressed against zero (33.4.2.2). Processors send it
            // uncompressed, as far as traces of them show, and perf (6.1) relies on that: it reads the IP in a PSB+ against the
            // last one before the PSB.
            let payload = uncompressed(ip, width);
            self.last_ip.apply(payload);
            return payload;
        }
        self.last_ip.compress(ip)
    }

    /// Sends the packet that `make` makes of `ip`. If there is no room for it, the Last IP stays that of the last packet sent (33.4.2.16).
    fn emit_ip(
        &mut self,
        client: &mut impl Client,
        make: fn(IpPayload) -> Packet,
        ip: Option<Ip>,
    ) -> bool {
        let before = (self.last_ip, self.is_first_ip);
        let payload = ip.map_or(IpPayload::SUPPRESSED, |ip| self.ip(ip));
        let is_sent = self.emit(client, make(payload));
        if !is_sent {
            (self.last_ip, self.is_first_ip) = before;
        }
        is_sent
    }

    /// TIP, behind everything that waits.
    #[inline]
    pub(super) fn tip(&mut self, client: &mut impl Client, target: Ip) -> bool {
        self.flush(client);
        self.cyc(client, Kind::Tip);
        if self.buffer.is_some() && !self.regs.status.trigger_en() {
            return false;
        }
        let before = (self.last_ip, self.is_first_ip);
        let ip = self.ip(target);
        let raw = Packet::Tip { ip }.encode();
        let is_sent = self.send(client, &raw.bytes()[..raw.len()]);
        if !is_sent {
            (self.last_ip, self.is_first_ip) = before;
        }
        is_sent
    }

    /// [`Self::tip`] where nothing else may have to be sent with it ([`Cached::plain`]): with the results that wait before it in one piece, as
    /// most TIPs are. `false`, and nothing is done, if that may not be so.
    #[inline]
    pub(super) fn tip_quietly(&mut self, client: &mut impl Client, target: Ip) -> bool {
        if !self.cached.plain || self.buffer.is_some() || self.long_tnt() || self.regs.ctl.cyc_en()
        {
            return false;
        }
        if self.tnt.has(self.tnt_size()) {
            self.send_full_tnt(client);
        }
        let ip = self.ip(target);
        let tip = Packet::Tip { ip }.encode();
        let (mut word, mut len) = (tip.word(), tip.len());
        if let Some(bits) = self.tnt.take() {
            word = word << 8 | Packet::Tnt8 { bits }.encode().word();
            len += 1;
        }
        self.send_short(client, word, len)
    }

    /// TIP of a near indirect jump or call, which may wait (33.4.2.3).
    #[inline]
    pub(super) fn deferrable_tip(&mut self, client: &mut impl Client, target: Ip) {
        if self.choices.deferred_tips && !self.regs.ctl.cyc_en() {
            if !self.is_overflowing() && self.deferred.push(target) {
                self.flush(client);
            }
        } else {
            self.tip(client, target);
        }
    }

    /// TIP.PGE, and before it the mode, if the stream has told another (33.4.2.4, 33.4.2.8).
    pub(super) fn pge(&mut self, client: &mut impl Client, ip: Ip) {
        let told = self.mode_exec(client);
        self.flush(client);
        self.cyc(client, Kind::TipPge);
        if !self.emit_ip(client, |ip| Packet::TipPge { ip }, Some(ip)) && told {
            self.mode_is_lost();
        }
    }

    /// TIP.PGD; no return is compressed across it (33.4.2.2, 33.4.2.5).
    pub(super) fn pgd(&mut self, client: &mut impl Client, ip: Option<Ip>) {
        self.returns.clear();
        self.flush(client);
        self.cyc(client, Kind::TipPgd);
        self.emit_ip(client, |ip| Packet::TipPgd { ip }, ip);
    }

    /// FUP (33.4.2.6). Whether there was room for it.
    pub(super) fn fup(&mut self, client: &mut impl Client, ip: Ip) -> bool {
        self.flush(client);
        self.emit_ip(client, |ip| Packet::Fup { ip }, Some(ip))
    }

    /// MODE.Exec, unless the stream has told the same already (33.4.2.8 lets a repetition be suppressed). Whether it was sent.
    pub(super) fn mode_exec(&mut self, client: &mut impl Client) -> bool {
        let mode = self.context.mode;
        // IF is told only by processors with Event Trace. Changes of the mode count with BranchEn, those of IF with EventEn.
        let interrupt_flag = self.caps.event_trace && self.context.interrupt_flag;
        let (ctl, told) = (self.regs.ctl, self.told_mode);
        let is_told = told.is_some_and(|(told, flag)| {
            (told == mode || !ctl.branch_en()) && (flag == interrupt_flag || !ctl.event_en())
        });
        if is_told {
            return false;
        }
        let packet = Packet::ModeExec {
            mode,
            interrupt_flag,
        };
        let is_sent = self.emit_eligible(client, packet);
        if is_sent {
            self.told_mode = Some((mode, interrupt_flag));
        }
        is_sent
    }

    pub(super) fn push_tnt(&mut self, client: &mut impl Client, taken: bool) {
        if self.regs.ctl.dis_tnt() || self.is_overflowing() {
            return;
        }
        if self.tnt.is_empty() {
            // The CYC before a TNT tells when the first branch in it retired (33.3.6.2).
            self.cyc(client, Kind::Tnt8);
            if self.is_overflowing() {
                return;
            }
        }
        self.tnt.push(1, taken.into());
        self.send_full_tnt(client);
    }

    /// Whether TNT results are gathered for long packets.
    #[inline]
    pub(super) const fn long_tnt(&self) -> bool {
        !matches!(self.choices.tnt, TntForm::Short)
    }

    /// How many results a TNT packet of this processor holds.
    #[inline]
    pub(super) const fn tnt_size(&self) -> u32 {
        if self.long_tnt() { 47 } else { 6 }
    }

    /// Sends the results that fill packets, and the TIPs that waited for them.
    #[inline]
    pub(super) fn send_full_tnt(&mut self, client: &mut impl Client) {
        if !self.tnt.has(self.tnt_size()) {
            return;
        }
        if self.long_tnt() {
            while self.tnt.has(self.tnt_size()) {
                self.send_long_tnt(client);
            }
        } else {
            // They are stored together: there may be many, of a byte each.
            let (mut word, mut len) = (0, 0);
            for bits in self.tnt.take_full().rev() {
                word = word << 8 | Packet::Tnt8 { bits }.encode().word();
                len += 1;
            }
            self.send_short(client, word, len);
        }
        if !self.deferred.is_empty() {
            self.flush(client);
        }
    }

    fn send_long_tnt(&mut self, client: &mut impl Client) {
        if let Some(bits) = self.tnt.take() {
            let raw = Packet::Tnt64 { bits }.encode();
            self.send(client, &raw.bytes()[..raw.len()]);
        }
    }

    /// Sends what waits: TNT results, then TIPs.
    #[inline]
    pub(super) fn flush(&mut self, client: &mut impl Client) {
        if !self.deferred.is_empty() && self.buffer.is_some() {
            // A TNT without the TIPs that belong between its results would tell less than nothing.
            let most = 8 + 9 * self.deferred.targets().len();
            if !self.reserve(client, most) {
                return;
            }
        }
        while !self.tnt.is_empty() {
            let long = self.choices.tnt == TntForm::Long
                || self.choices.tnt == TntForm::Both && self.tnt.len() > 6;
            if long {
                self.send_long_tnt(client);
            } else if let Some(bits) = self.tnt.take() {
                let raw = Packet::Tnt8 { bits }.encode();
                self.send(client, &raw.bytes()[..raw.len()]);
            }
        }
        if !self.deferred.is_empty() {
            for target in self.deferred.take() {
                self.emit_ip(client, |ip| Packet::Tip { ip }, Some(target));
            }
        }
    }

    /// CYC, if one is due before a packet of this kind.
    #[inline]
    pub(super) fn cyc(&mut self, client: &mut impl Client, kind: Kind) {
        if self.regs.ctl.cyc_en() && !self.is_overflowing() {
            let clock = client.packet_time(kind);
            let before = self.timing;
            if let Some(cycles) = self.timing.cyc(clock, self.regs.ctl) {
                if !self.emit_cyc(client, cycles) {
                    // The counter goes on counting through an overflow (33.3.8.2).
                    self.timing = before;
                }
            }
        }
    }

    pub(super) fn emit_cyc(&mut self, client: &mut impl Client, cycles: u64) -> bool {
        let raw = Packet::Cyc { cycles }.encode();
        self.send(client, &raw.bytes()[..raw.len()])
    }

    /// Sends a packet that is CYC-eligible (33.3.6), behind everything that waits. Whether there was room for it.
    pub(super) fn emit_eligible(&mut self, client: &mut impl Client, packet: Packet) -> bool {
        self.flush(client);
        self.cyc(client, packet.kind());
        self.emit(client, packet)
    }

    /// Sends a packet behind everything that waits. Whether there was room for it.
    pub(super) fn emit(&mut self, client: &mut impl Client, packet: Packet) -> bool {
        if !self.regs.status.trigger_en() {
            return false;
        }
        self.flush(client);
        let raw = packet.encode();
        let is_sent = self.send(client, &raw.bytes()[..raw.len()]);
        if !is_sent {
            self.lost(packet.kind());
        }
        is_sent
    }

    /// Sends bytes: to the internal buffer if there is one, or on.
    #[inline(always)]
    pub(super) fn send(&mut self, client: &mut impl Client, bytes: &[u8]) -> bool {
        if self.buffer.is_some() {
            return self.send_buffered(client, bytes);
        }
        self.byte_count += bytes.len() as u64;
        if !self.output.store(&mut self.regs, &self.caps, client, bytes) {
            self.ended();
        }
        true
    }

    /// [`Self::send`] of the lowest `len` bytes of a word.
    #[inline(always)]
    fn send_short(&mut self, client: &mut impl Client, word: u128, len: usize) -> bool {
        if self.buffer.is_some() {
            return self.send_buffered(client, &word.to_le_bytes()[..len]);
        }
        self.byte_count += len as u64;
        if !self
            .output
            .store_short(&mut self.regs, &self.caps, client, word, len)
        {
            self.ended();
        }
        true
    }
}
