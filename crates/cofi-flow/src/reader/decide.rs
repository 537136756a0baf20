//! The short way to what decides where control goes: TNT packets, TIP packets with an address, and what may stand between them.

use cofi_packet::Ip;
use cofi_packet::intel::{
    Block, IpBytes, IpPayload, Kind, LastIp, Packet, decode, decode_short, short_cyc,
};

use super::Reader;
use super::clock::RunTime;
use super::intel::{Flow, short_tnt};
use crate::code::phrase::{Phrase, WINDOW};
use crate::family::IntelPt;

/// A TIP, TIP.PGD or TIP.PGE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tip {
    /// The last IP behind it.
    last_ip: LastIp,
    ip_bytes: IpBytes,
    /// How many bytes it has.
    len: usize,
}

impl Tip {
    /// The last IP behind it, which is its address if it tells one.
    #[inline]
    pub(crate) const fn ip(&self) -> Ip {
        self.last_ip.get()
    }

    /// The address, if it tells one.
    #[inline]
    pub(crate) fn told(&self) -> Option<Ip> {
        (self.ip_bytes != IpBytes::Suppressed).then(|| self.ip())
    }
}

/// What comes next, as far as it decides where control goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Decision {
    /// TNT bits, which are in the register.
    Tnt,
    /// A TIP that tells an address.
    Tip(Tip),
    /// Tracing ends.
    Pgd(Tip),
    /// Tracing goes on, at an address that is told.
    Pge(Tip),
    /// Something else, which is still to be read.
    Other,
}

/// Packets that are used one after the other, none of which is anything but a TNT, a TIP that tells an address, the end of tracing and where
/// it goes on, a timing packet or padding.
///
/// It is what a [`Reader`] and its user must know of them, in one place and as little as can be: the fastest walk is one loop over this.
#[derive(Debug)]
pub(crate) struct Run<'t> {
    bytes: &'t [u8],
    /// Behind the packet read last.
    at: usize,
    /// Where the packet used last begins.
    pub(crate) offset: usize,
    /// TNT bits not used yet: the oldest on top.
    pub(crate) tnt: u64,
    pub(crate) tnt_len: u8,
    last_ip: LastIp,
    /// How the last TIP told its address, if there was one.
    told: Option<IpBytes>,
    time: RunTime,
    /// Here stands something else.
    other: usize,
    /// Whether further packets may be read: nothing else than these matters.
    pub(crate) reads_on: bool,
    /// How many were used, phrases as one.
    pub(crate) used: u64,
}

impl Run<'_> {
    /// Bits alone, of the packet that begins at `offset`.
    pub(crate) fn of_bits(tnt: u64, tnt_len: u8, offset: usize) -> Self {
        Self {
            bytes: &[],
            at: 0,
            offset,
            tnt,
            tnt_len,
            last_ip: LastIp::new(),
            told: None,
            time: RunTime::default(),
            other: usize::MAX,
            reads_on: false,
            used: 0,
        }
    }

    /// Reads the packet that comes next, over padding and timing packets; a TNT is used then. What is no TNT is left where it is.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Decision {
        self.read(true)
    }

    /// The same while tracing is off: there are no TNTs then.
    #[inline(always)]
    pub(crate) fn next_while_off(&mut self) -> Decision {
        self.read(false)
    }

    #[inline(always)]
    fn read(&mut self, is_on: bool) -> Decision {
        let bytes = self.bytes;
        while let Some(&first) = bytes.get(self.at) {
            match short_tnt(first) {
                Some(Flow::Tnt { bits, len }) if is_on => {
                    self.use_tnt(bits, len, 1);
                    return Decision::Tnt;
                }
                _ => {}
            }
            if first == 0 {
                self.pass_padding();
                continue;
            }
            let three = bytes.get(self.at..self.at + 3);
            if let Some(size) = three.and_then(|three| short_cyc([first, three[1], three[2]])) {
                self.at += size;
                self.time.timing += 1;
                continue;
            }
            let rest = &bytes[self.at..];
            let raw = match decode_short(rest) {
                Some(raw) => raw,
                None => match decode(rest) {
                    Ok(raw) => raw,
                    Err(_) => break,
                },
            };
            if matches!(
                raw.kind(),
                Kind::Cyc | Kind::Mtc | Kind::Tsc | Kind::Tma | Kind::Cbr
            ) {
                self.at += raw.len();
                self.time.timing += 1;
                continue;
            }
            return match raw.packet() {
                Packet::Tip { ip } if ip.ip_bytes() != IpBytes::Suppressed => {
                    Decision::Tip(self.tip(ip, raw.len()))
                }
                Packet::TipPgd { ip } => Decision::Pgd(self.tip(ip, raw.len())),
                Packet::TipPge { ip } if ip.ip_bytes() != IpBytes::Suppressed => {
                    Decision::Pge(self.tip(ip, raw.len()))
                }
                Packet::Tnt64 { bits } if is_on => {
                    self.use_tnt(bits.bits(), bits.len() as u8, raw.len());
                    Decision::Tnt
                }
                _ => self.stop(),
            };
        }
        self.stop()
    }

    /// The bits of the short TNT that comes next, as [`Memo::first_bits`](crate::code::memo::Memo::first_bits) has them, if there are at least
    /// three and nothing comes before it; it is not used yet.
    #[inline(always)]
    pub(crate) fn short_tnt(&self) -> Option<u32> {
        let first = *self.bytes.get(self.at)?;
        (first & 1 == 0 && first >= 1 << 4).then(|| u32::from(first >> 1))
    }

    /// A short TNT is used, which comes next: so many bits of it are left.
    #[inline(always)]
    pub(crate) fn use_short_tnt(&mut self, bits: u32, left: u8) {
        self.offset = self.at;
        self.at += 1;
        (self.tnt, self.tnt_len) = (u64::from(bits) << 1 << (63 - left), left);
        self.used += 1;
        self.time.use_tnt(self.at);
    }

    /// Passes over padding, which begins here.
    #[inline]
    fn pass_padding(&mut self) {
        self.at += match self
            .bytes
            .get(self.at..)
            .and_then(|rest| rest.first_chunk())
        {
            Some(eight) => u64::from_le_bytes(*eight).trailing_zeros() as usize / 8,
            None => 1,
        };
    }

    #[cold]
    fn stop(&mut self) -> Decision {
        self.other = self.at;
        Decision::Other
    }

    #[inline]
    fn use_tnt(&mut self, bits: u64, len: u8, size: usize) {
        self.offset = self.at;
        self.at += size;
        (self.tnt, self.tnt_len) = (bits << (64 - u32::from(len)), len);
        self.used += 1;
        self.time.use_tnt(self.at);
    }

    #[inline]
    fn tip(&self, ip: IpPayload, len: usize) -> Tip {
        let mut last_ip = self.last_ip;
        last_ip.apply(ip);
        Tip {
            last_ip,
            ip_bytes: ip.ip_bytes(),
            len,
        }
    }

    /// The TIP that comes next is used.
    #[inline]
    pub(crate) fn use_tip(&mut self, tip: &Tip) {
        self.offset = self.at;
        self.at += tip.len;
        (self.last_ip, self.told) = (tip.last_ip, Some(tip.ip_bytes));
        self.used += 1;
        self.time.use_tip(self.at);
    }

    /// Where the packet that comes next begins, padding and timing packets having been read.
    #[inline]
    pub(crate) fn next_offset(&self) -> usize {
        self.at
    }

    /// The packets that come next, if they may be a phrase, and the last IP before them: no timing packet has come since the packet used last.
    #[inline]
    pub(crate) fn window(&mut self) -> Option<([u8; WINDOW], LastIp)> {
        if !self.time.is_used() {
            return None;
        }
        // How much of it is here is a matter of chance, and would make many windows of one.
        while self.bytes.get(self.at) == Some(&0) {
            self.pass_padding();
        }
        let window = self.bytes.get(self.at..)?.first_chunk()?;
        Some((*window, self.last_ip))
    }

    /// A phrase is used, which comes next.
    #[inline]
    pub(crate) fn use_phrase(&mut self, phrase: &Phrase) {
        self.offset = self.at + usize::from(phrase.last);
        self.at += usize::from(phrase.size);
        if phrase.tip != IpBytes::Suppressed {
            (self.last_ip, self.told) = (phrase.last_ip, Some(phrase.tip));
        }
        self.used += 1;
        self.time.use_phrase(phrase.has_tnt);
    }
}

impl<'t> Reader<'t, IntelPt> {
    /// Whether nothing has to be known of packets before the next one.
    pub(crate) fn is_plain(&self) -> bool {
        self.back.is_none()
            && self.own.block == Block::Outside
            && !self.own.doubt
            && self.ticks.is_none()
            && !self.own.spoilt_by.is_any()
    }

    /// Begins a run with what comes next. Only where reading [is plain](Self::is_plain).
    #[inline]
    pub(crate) fn begin_run(&self) -> Run<'t> {
        Run {
            bytes: self.bytes,
            at: self.at,
            offset: self.offset,
            tnt: 0,
            tnt_len: 0,
            last_ip: self.own.last_ip,
            told: None,
            time: self.begin_time(),
            other: self.own.other,
            reads_on: true,
            used: 0,
        }
    }

    /// Whether something else than a TNT or a TIP with an address is known to come next.
    #[inline]
    pub(crate) fn is_at_other(&self) -> bool {
        self.at == self.own.other
    }

    /// Reads a TIP or TIP.PGD to which a run has come.
    pub(crate) fn read_tip(&mut self, tip: &Tip) {
        self.offset = self.at;
        self.at += tip.len;
        self.own.last_ip = tip.last_ip;
        self.note_address(tip.told(), tip.ip_bytes);
    }

    /// Goes on behind a run.
    #[inline]
    pub(crate) fn end_run(&mut self, run: &Run<'_>) {
        if run.used != 0 {
            self.offset = run.offset;
        }
        (self.at, self.own.other) = (run.at, run.other);
        if let Some(ip_bytes) = run.told {
            let is_told = ip_bytes != IpBytes::Suppressed;
            self.own.last_ip = run.last_ip;
            self.note_address(is_told.then(|| run.last_ip.get()), ip_bytes);
        }
        self.end_time(&run.time);
    }
}
