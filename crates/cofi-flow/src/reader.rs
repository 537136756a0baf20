//! The packet stream as the flow sees it: addresses decompressed, time kept, padding and maintenance left out.

use alloc::collections::VecDeque;

use cofi_packet::intel::{
    Block, BlockType, CfeType, DecodeError, IpBytes, IpPayload, Kind, LastIp, Packet, TsxState,
    decode, decode_in, sync_forward,
};
use cofi_packet::{ExecMode, Ip, Tsc};

use crate::events::notes::Run;
use crate::rtit::Reading;
use crate::time::{TimeJump, TimeTracker};
use crate::{FlowConfig, PacketKind, Tick, TraceFormat};

/// A packet that concerns the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Tnt {
        bits: u64,
        len: u8,
    },
    Tip(Option<Ip>),
    Pge(Option<Ip>),
    Pgd(Option<Ip>),
    Fup(Option<Ip>),
    Pip {
        cr3: u64,
        nr: bool,
    },
    ModeExec {
        mode: ExecMode,
        interrupt_flag: bool,
    },
    ModeTsx(TsxState),
    TraceStop,
    Vmcs(u64),
    Ovf,
    Psb,
    PsbEnd,
    ExStop {
        ip: bool,
    },
    Mwait {
        hints: u8,
        ext: u8,
    },
    Pwre {
        hw: bool,
        state: u8,
        sub_state: u8,
    },
    Pwrx {
        last: u8,
        deepest: u8,
        wake: u8,
    },
    Cfe {
        ip: bool,
        kind: CfeType,
        vector: u8,
    },
    Evd {
        kind: u8,
        payload: u64,
    },
    Ptw {
        payload: u64,
        size: u8,
        ip: bool,
    },
    Mnt(u64),
    Bbp {
        kind: BlockType,
        size: u8,
    },
    Bip {
        block: BlockType,
        id: u8,
        payload: u64,
    },
    Bep {
        ip: bool,
    },
    Trig {
        ip: bool,
        multiple: bool,
        vector: u8,
        count: Option<u16>,
    },
}

impl Flow {
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Flow::Tnt { len: ..=6, .. } => Kind::Tnt8,
            Flow::Tnt { .. } => Kind::Tnt64,
            Flow::Tip(_) => Kind::Tip,
            Flow::Pge(_) => Kind::TipPge,
            Flow::Pgd(_) => Kind::TipPgd,
            Flow::Fup(_) => Kind::Fup,
            Flow::Pip { .. } => Kind::Pip,
            Flow::ModeExec { .. } => Kind::ModeExec,
            Flow::ModeTsx(_) => Kind::ModeTsx,
            Flow::TraceStop => Kind::TraceStop,
            Flow::Vmcs(_) => Kind::Vmcs,
            Flow::Ovf => Kind::Ovf,
            Flow::Psb => Kind::Psb,
            Flow::PsbEnd => Kind::PsbEnd,
            Flow::ExStop { .. } => Kind::ExStop,
            Flow::Mwait { .. } => Kind::Mwait,
            Flow::Pwre { .. } => Kind::Pwre,
            Flow::Pwrx { .. } => Kind::Pwrx,
            Flow::Cfe { .. } => Kind::Cfe,
            Flow::Evd { .. } => Kind::Evd,
            Flow::Ptw { .. } => Kind::Ptw,
            Flow::Mnt(_) => Kind::Mnt,
            Flow::Bbp { .. } => Kind::Bbp,
            Flow::Bip { .. } => Kind::Bip,
            Flow::Bep { .. } => Kind::Bep,
            Flow::Trig { .. } => Kind::Trig,
        }
    }
}

/// A timing packet that was read, for those who want to see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticked {
    pub(crate) offset: usize,
    pub(crate) kind: PacketKind,
    pub(crate) tick: Tick,
    /// The time that it tells.
    pub(crate) now: Option<Tsc>,
}

/// What came of asking for the next packet.
pub(crate) type Next = Option<Result<Flow, DecodeError>>;

/// Reads packets in order.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'t> {
    pub(crate) bytes: &'t [u8],
    pub(crate) at: usize,
    /// Where the packet last returned began.
    pub(crate) offset: usize,
    /// What it takes to read RTIT; none for Intel PT.
    pub(crate) rtit: Option<Reading>,
    last_ip: LastIp,
    /// Whether packets since the last PSB may be wrong.
    pub(crate) damaged: bool,
    /// Whether the last IP is in doubt: then an address counts only if it is told in full.
    pub(crate) doubt: bool,
    /// Whether the address told last was told in full, or since a PSB, behind which nothing is in doubt.
    pub(crate) is_full: bool,
    block: Block,
    /// What the block that is open holds.
    block_type: BlockType,
    /// The time when the packet last returned was made.
    pub(crate) time: TimeTracker,
    /// How many packets have been read that concern the time.
    pub(crate) timing: u64,
    /// Up to where a search for the next timing packet went, and what it found.
    pub(crate) searched: (usize, Option<Tsc>),
    /// The same for the next TSC or MTC packet: what it tells may bound the time better than a CYC before it.
    ahead: (usize, Option<Tsc>),
    /// Up to here it is certain that MTC packets have not wrapped where packets were lost.
    pub(crate) settled: usize,
    /// A packet that was read too early and is to be returned again.
    back: Option<(usize, Flow)>,
    /// The timing packets read since they were last taken out; none if nobody wants them.
    pub(crate) ticks: Option<VecDeque<Ticked>>,
    skd007: bool,
    skz84: bool,
}

impl<'t> Reader<'t> {
    pub(crate) fn new(bytes: &'t [u8], config: &FlowConfig) -> Self {
        let rtit = match &config.format {
            TraceFormat::IntelPt => None,
            TraceFormat::Rtit(rtit) => Some(Reading::new(rtit, config)),
        };
        Self {
            rtit,
            bytes,
            at: 0,
            offset: 0,
            last_ip: LastIp::new(),
            damaged: false,
            doubt: false,
            is_full: false,
            block: Block::Outside,
            block_type: BlockType::GPR,
            time: TimeTracker::new(config),
            timing: 0,
            searched: (0, None),
            ahead: (0, None),
            settled: 0,
            back: None,
            ticks: None,
            skd007: config.errata.skd007,
            skz84: config.errata.skz84,
        }
    }

    /// Whether the packets are RTIT's.
    #[inline]
    pub(crate) fn is_rtit(&self) -> bool {
        self.rtit.is_some()
    }

    /// Where the packet last returned began.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Gives the packet last returned back, to be returned again.
    pub(crate) fn put_back(&mut self, flow: Flow) {
        self.back = Some((self.offset, flow));
    }

    /// Drops a packet that was given back.
    pub(crate) fn drop_back(&mut self) {
        // Behind a PSB nothing is in doubt.
        self.back = self.back.filter(|(_, flow)| matches!(flow, Flow::Psb));
    }

    /// Goes on at the next PSB, which is returned next; `false` if there is none.
    pub(crate) fn skip_to_psb(&mut self) -> bool {
        self.back = None;
        self.block = Block::Outside;
        let psb = match &mut self.rtit {
            None => sync_forward(self.bytes, self.at),
            Some(reading) => reading.skip_to_psb(self.bytes, self.at),
        };
        match psb {
            Some(psb) => {
                self.at = psb;
                true
            }
            None => {
                self.at = self.bytes.len();
                false
            }
        }
    }

    /// Reads from `offset` on.
    pub(crate) fn start_at(&mut self, offset: usize) {
        self.at = offset.min(self.bytes.len());
    }

    pub(crate) fn is_at_start(&self) -> bool {
        self.at == 0
    }

    /// Whether the stream holds nothing but padding.
    pub(crate) fn only_padding(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == 0)
    }

    /// The address in a packet; none if it is suppressed, or compressed against one that is in doubt.
    fn address(&mut self, payload: IpPayload) -> Option<Ip> {
        let ip = self.last_ip.apply(payload);
        self.is_full = matches!(payload.ip_bytes(), IpBytes::Sext48 | IpBytes::Full);
        self.doubt &= !self.is_full;
        ip.filter(|_| !self.doubt)
    }

    /// What the packet last returned means for a TIP that comes next.
    pub(crate) fn run(&self) -> Run {
        if self.is_rtit() {
            return Run::Clear;
        }
        let bytes = self.bytes.get(self.offset..).unwrap_or_default();
        let len = match decode(bytes).map(|raw| raw.packet()) {
            Ok(Packet::Tnt8 { bits }) => bits.len() % 6,
            Ok(Packet::Tnt64 { bits }) => bits.len() % 47,
            Ok(Packet::Tip { .. }) | Err(_) => 0,
            Ok(_) => return Run::Clear,
        };
        match len {
            0 => Run::Unknown,
            _ => Run::Partial(self.timing),
        }
    }

    /// What stands at an offset, for messages.
    pub(crate) fn kind_at(&self, offset: usize) -> Option<PacketKind> {
        let bytes = self.bytes.get(offset..)?;
        Some(match &self.rtit {
            None => decode(bytes).ok()?.kind().into(),
            Some(reading) => reading.kind_of(bytes)?.into(),
        })
    }

    /// The estimate of the time when the packet last returned was made.
    pub(crate) fn now(&self) -> Option<Tsc> {
        match &self.rtit {
            None => self.time.now(),
            Some(reading) => reading.time.now(),
        }
    }

    /// No packet that comes is older.
    pub(crate) fn earliest(&self) -> Tsc {
        match &self.rtit {
            None => self.time.earliest(),
            Some(reading) => reading.time.earliest(),
        }
    }

    /// The core cycles told of so far.
    pub(crate) fn cycles(&self) -> u64 {
        match &self.rtit {
            None => self.time.cycles(),
            Some(reading) => reading.time.cycles(),
        }
    }

    pub(crate) fn take_jump(&mut self) -> Option<TimeJump> {
        match &mut self.rtit {
            None => self.time.take_jump(),
            Some(reading) => reading.time.take_jump(),
        }
    }

    /// The time by which everything read so far had happened, as the next timing packet tells that can.
    ///
    /// Searches ahead, but each part of the stream only twice.
    pub(crate) fn latest(&mut self) -> Option<Tsc> {
        if self.searched.0 <= self.at && self.is_rtit() {
            self.searched = self.search_rtit();
        } else if self.searched.0 <= self.at {
            if self.ahead.0 <= self.at {
                self.ahead = self.search(true);
            }
            let (at, latest) = self.search(false);
            let latest = match (latest, self.ahead.1) {
                (Some(latest), Some(ahead)) => Some(latest.min(ahead)),
                (latest, ahead) => latest.or(ahead),
            };
            self.searched = (at, latest);
        }
        self.searched.1
    }

    /// The next timing packet that bounds the time, or the next that does so `for_good`: whatever the core's clock did.
    fn search(&mut self, for_good: bool) -> (usize, Option<Tsc>) {
        loop {
            let settled = self.settled;
            let found = self.search_once(for_good);
            if self.settled == settled {
                return found;
            }
            // With what it has found out, it may find more.
            self.time.settle();
        }
    }

    fn search_once(&mut self, for_good: bool) -> (usize, Option<Tsc>) {
        let (mut at, mut time, mut block) = (self.at, self.time.clone(), self.block);
        time.take_jump();
        loop {
            let rest = self.bytes.get(at..).unwrap_or_default();
            let Some(padding) = rest.iter().position(|byte| *byte != 0) else {
                break;
            };
            let rest = &rest[padding..];
            at += padding;
            if block == Block::Outside && short_tnt(rest[0]).is_some() {
                at += 1;
                continue;
            }
            let Ok(decoded) = decode_in(block, rest) else {
                // What comes behind is looked for when reading has come past this.
                return (at + 1, None);
            };
            let packet = decoded.packet();
            if let Some(len) = self.left_out(&packet, rest, decoded.len()) {
                at += len;
                continue;
            }
            let before = (matches!(packet, Packet::Tsc { .. }) && time.may_have_wrapped())
                .then(|| time.clone());
            let is_timing = self.show(&mut time, &packet, at);
            at += decoded.len();
            (block, _) = block.after(&packet);
            if before
                .is_some_and(|before| time.take_jump().is_none() && before.settles(time.anchor()))
            {
                self.settled = at;
                return (at, None);
            }
            let bounds = match packet {
                Packet::Tsc { .. } | Packet::Mtc { .. } => true,
                // The counter may have wrapped while packets were lost (33.3.8.2).
                Packet::Cyc { .. } => {
                    !for_good && !rest[decoded.len()..].starts_with(&[0x02, 0xf3])
                }
                _ => false,
            };
            if is_timing
                && bounds
                && let Some(latest) = time.latest()
            {
                return (at, Some(latest));
            }
        }
        // Nothing more is known, however far is read.
        (usize::MAX, None)
    }

    /// The next packet, if it is a short TNT: the quick way to the most frequent one.
    #[inline]
    pub(crate) fn next_short_tnt(&mut self) -> Option<(u64, u8)> {
        if self.back.is_some() || self.block != Block::Outside {
            return None;
        }
        if self.is_rtit() {
            return self.next_tnt_rtit();
        }
        let mut byte = *self.bytes.get(self.at)?;
        while byte == 0 {
            self.at += 1;
            byte = *self.bytes.get(self.at)?;
        }
        let Flow::Tnt { bits, len } = short_tnt(byte)? else {
            return None;
        };
        self.offset = self.at;
        self.at += 1;
        Some((bits, len))
    }

    /// Shows the packet at `at` to a clock; whether it is a timing packet.
    #[inline]
    fn show(&self, time: &mut TimeTracker, packet: &Packet, at: usize) -> bool {
        let is_timing = time.take(packet);
        match packet {
            Packet::Ovf if at < self.settled => time.settle(),
            Packet::Psb if time.wants_guest() => time.psb_is_guest(pip_in_psb(&self.bytes[at..])),
            _ => {}
        }
        is_timing
    }

    /// How much is to be left out, if an erratum has spoiled this packet of `len` bytes, with which `rest` begins.
    #[inline]
    fn left_out(&self, packet: &Packet, rest: &[u8], len: usize) -> Option<usize> {
        if self.skd007 && is_cut_cyc(packet, rest) {
            return Some(1);
        }
        (self.skz84 && is_corrupt_tma(packet, &rest[len..])).then_some(len + 1)
    }

    /// The next packet that concerns the flow; `None` at the end of the stream. After an error the caller skips to the
    /// next PSB.
    pub(crate) fn next(&mut self) -> Next {
        if let Some((offset, flow)) = self.back.take() {
            self.offset = offset;
            if matches!(flow, Flow::Psb) {
                (self.damaged, self.doubt) = (false, false);
            }
            return Some(Ok(flow));
        }
        loop {
            let rest = self.bytes.get(self.at..)?;
            let padding = rest.iter().position(|byte| *byte != 0)?;
            let rest = &rest[padding..];
            self.at += padding;
            self.offset = self.at;
            // Most packets are short TNTs: spare them the general decoder.
            if self.block == Block::Outside
                && let Some(flow) = short_tnt(rest[0])
            {
                self.at += 1;
                return Some(Ok(flow));
            }
            let decoded = match decode_in(self.block, rest) {
                Ok(decoded) => decoded,
                Err(error) => {
                    // One byte on, so that a search for a PSB makes progress.
                    self.at += 1;
                    return Some(Err(error));
                }
            };
            let packet = decoded.packet();
            if let Some(len) = self.left_out(&packet, rest, decoded.len()) {
                self.at += len;
                continue;
            }
            self.at += decoded.len();
            let (block, allowed) = self.block.after(&packet);
            self.block = block;
            if !allowed {
                // The packet is read again, outside of the block, whose end is missing.
                self.at = self.offset;
                return Some(Err(DecodeError::InBlock {
                    packet: decoded.kind().name(),
                }));
            }
            if self.time.take(&packet) {
                self.timing += 1;
                if let Some(ticks) = &mut self.ticks
                    && let Some(tick) = Tick::from_packet(&decoded.packet())
                {
                    ticks.push_back(Ticked {
                        offset: self.offset,
                        kind: tick.kind(),
                        tick,
                        now: self.time.now(),
                    });
                }
                continue;
            }
            match packet {
                Packet::Ovf => {
                    // Some of what was told of the time before holds no longer.
                    self.timing += 1;
                    if self.offset < self.settled {
                        self.time.settle();
                    }
                }
                Packet::Psb if self.time.wants_guest() => {
                    self.time
                        .psb_is_guest(pip_in_psb(&self.bytes[self.offset..]));
                }
                _ => {}
            }
            let flow = match packet {
                Packet::Tnt8 { bits } => Flow::Tnt {
                    bits: bits.bits(),
                    len: bits.len() as u8,
                },
                Packet::Tnt64 { bits } => Flow::Tnt {
                    bits: bits.bits(),
                    len: bits.len() as u8,
                },
                Packet::Tip { ip } => Flow::Tip(self.address(ip)),
                Packet::TipPge { ip } => Flow::Pge(self.address(ip)),
                Packet::TipPgd { ip } => Flow::Pgd(self.address(ip)),
                Packet::Fup { ip } => Flow::Fup(self.address(ip)),
                Packet::Pip { cr3, nr } => Flow::Pip { cr3: cr3.get(), nr },
                Packet::ModeExec {
                    mode,
                    interrupt_flag,
                } => Flow::ModeExec {
                    mode,
                    interrupt_flag,
                },
                Packet::ModeTsx { tx } => Flow::ModeTsx(tx),
                Packet::TraceStop => Flow::TraceStop,
                Packet::Vmcs { base } => Flow::Vmcs(base.get()),
                Packet::Ovf => Flow::Ovf,
                Packet::Psb => {
                    self.last_ip.reset();
                    (self.damaged, self.doubt) = (false, false);
                    Flow::Psb
                }
                Packet::PsbEnd => Flow::PsbEnd,
                Packet::ExStop { ip } => Flow::ExStop { ip },
                Packet::Mwait { hints, ext } => Flow::Mwait {
                    hints,
                    ext: ext.get() as u8,
                },
                Packet::Pwre {
                    hw,
                    state,
                    sub_state,
                } => Flow::Pwre {
                    hw,
                    state: state.get(),
                    sub_state: sub_state.get() as u8,
                },
                Packet::Pwrx {
                    last,
                    deepest,
                    wake,
                } => Flow::Pwrx {
                    last: last.get(),
                    deepest: deepest.get(),
                    wake: wake.get(),
                },
                Packet::Cfe { ip, kind, vector } => Flow::Cfe { ip, kind, vector },
                Packet::Evd { kind, payload } => Flow::Evd {
                    kind: kind.get(),
                    payload: payload.0,
                },
                Packet::Ptw { payload, ip } => Flow::Ptw {
                    payload: payload.get(),
                    size: payload.size().bytes() as u8,
                    ip,
                },
                Packet::Mnt { payload } => Flow::Mnt(payload.0),
                Packet::Bbp { size, kind } => {
                    self.block_type = kind;
                    Flow::Bbp {
                        kind,
                        size: size.bytes() as u8,
                    }
                }
                Packet::Bip { id, payload } => Flow::Bip {
                    block: self.block_type,
                    id: id.get() as u8,
                    payload: payload.get(),
                },
                Packet::Bep { ip } => Flow::Bep { ip },
                Packet::Trig {
                    ip,
                    mult,
                    vector,
                    count,
                } => Flow::Trig {
                    ip,
                    multiple: mult,
                    vector,
                    count,
                },
                _ => continue,
            };
            return Some(Ok(flow));
        }
    }
}

/// What the PIP says of NR in the PSB+ with which `bytes` begin, if there is one.
fn pip_in_psb(mut bytes: &[u8]) -> Option<bool> {
    // No more than so many packets are in any.
    for _ in 0..64 {
        let padding = bytes.iter().position(|byte| *byte != 0)?;
        let decoded = decode(&bytes[padding..]).ok()?;
        match decoded.packet() {
            Packet::Pip { nr, .. } => return Some(nr),
            Packet::PsbEnd | Packet::Ovf => return None,
            _ => bytes = &bytes[padding + decoded.len()..],
        }
    }
    None
}

/// Erratum SKD007: an OVF (02 f3) stands in a CYC packet after its first byte.
fn is_cut_cyc(packet: &Packet, bytes: &[u8]) -> bool {
    matches!(packet, Packet::Cyc { .. })
        && bytes[0] & 4 != 0
        && bytes[1..].starts_with(&[0x02, 0xf3])
}

/// Erratum SKZ84: a stray byte stands behind a corrupt TMA. `behind` are the bytes after the packet. D9 counts as one: the
/// processors with this erratum have no TRIG packet.
fn is_corrupt_tma(packet: &Packet, behind: &[u8]) -> bool {
    matches!(packet, Packet::Tma { .. })
        && match decode(behind) {
            Ok(raw) => raw.kind() == Kind::Trig,
            Err(error) => {
                matches!(error, DecodeError::Unknown { .. }) || behind.first() == Some(&0xd9)
            }
        }
        && decode(&behind[1..]).is_ok()
}

/// The short TNT that `byte` is, if it is one (table 33-16): even, not the first byte of a longer packet, and not PAD.
#[inline]
fn short_tnt(byte: u8) -> Option<Flow> {
    if byte & 1 != 0 || byte <= 2 {
        return None;
    }
    let len = 6 - byte.leading_zeros() as u8;
    Some(Flow::Tnt {
        bits: u64::from(byte >> 1) & ((1 << len) - 1),
        len,
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::Errata;

    fn kinds(bytes: &[u8], errata: &Errata) -> Vec<Option<Kind>> {
        let config = FlowConfig {
            errata: *errata,
            ..FlowConfig::default()
        };
        let mut reader = Reader::new(bytes, &config);
        core::iter::from_fn(|| reader.next())
            .take(8)
            .map(|next| next.ok().map(|flow| flow.kind()))
            .collect()
    }

    #[test]
    fn erratum_skd007_an_overflow_within_a_cyc() {
        // A CYC that claims to go on, then OVF, then TIP.PGE without IP.
        let bytes = [0x07, 0x02, 0xf3, 0x11];
        let errata = Errata {
            skd007: true,
            ..Errata::default()
        };
        assert_eq!(
            kinds(&bytes, &errata),
            [Some(Kind::Ovf), Some(Kind::TipPge)]
        );
        // Without the workaround the overflow would go unnoticed: 07 02 and F3 are CYC packets too.
        assert_eq!(kinds(&bytes, &Errata::default()), [Some(Kind::TipPge)]);
    }

    #[test]
    fn erratum_skz84_a_stray_byte_behind_a_tma() {
        let errata = Errata {
            skz84: true,
            ..Errata::default()
        };
        // TMA, a byte that begins no packet, or none on these processors, OVF.
        for stray in [0x05, 0xd9] {
            let bytes = [0x02, 0x73, 1, 0, 0, 0, 0, stray, 0x02, 0xf3];
            assert_eq!(kinds(&bytes, &errata), [Some(Kind::Ovf)]);
            assert_ne!(kinds(&bytes, &Errata::default()), [Some(Kind::Ovf)]);
        }
    }

    #[test]
    fn short_tnts_are_what_the_packet_table_says() {
        for byte in 0..=255_u8 {
            let by_table = match decode(&[byte, 0xff]) {
                Ok(decoded) => match decoded.packet() {
                    Packet::Tnt8 { bits } => Some(Flow::Tnt {
                        bits: bits.bits(),
                        len: bits.len() as u8,
                    }),
                    _ => None,
                },
                Err(_) => None,
            };
            assert_eq!(short_tnt(byte), by_table, "{byte:#04x}");
        }
    }
}
