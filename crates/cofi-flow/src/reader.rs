//! The packet stream as the flow sees it: addresses decompressed, padding, timing and maintenance left out.

mod clock;
pub(crate) mod decide;
#[cfg(test)]
mod tests;

use cofi_packet::intel::{
    Block, BlockType, CfeType, DecodeError, IpBytes, IpPayload, Kind, LastIp, Packet, Spoilt,
    SpoiltBy, TsxState, decode, decode_in, sync_forward,
};
use cofi_packet::{ExecMode, Ip, Tsc};

use crate::bind::loss::Run;
use crate::events::replay::{Replay, Ticks};
use crate::rtit::Reading;
use crate::time::TimeTracker;
use crate::{FlowConfig, PacketKind, Tick, TraceFormat};
use clock::Clock;

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
    /// Whether the last IP is in doubt: then an address counts only if it is told in full, or a trial confirms it.
    pub(crate) doubt: bool,
    /// Whether the address told last was told in full, or since a PSB, behind which nothing is in doubt.
    pub(crate) is_full: bool,
    /// The address told last even if it is in doubt; none if it was suppressed.
    pub(crate) likely: Option<Ip>,
    /// Where the last PSB stands.
    psb: usize,
    pub(crate) block: Block,
    /// What the block that is open holds.
    block_type: BlockType,
    /// When what was returned ran.
    pub(crate) clock: Clock,
    /// How many packets have been read that concern the time.
    pub(crate) timing: u64,
    /// Up to where a search for the next timing packet went, and what it found.
    pub(crate) searched: (usize, Option<Tsc>),
    /// The same for the next TSC or MTC packet: what it tells may bound the time better than a CYC before it.
    ahead: (usize, Option<Tsc>),
    /// Up to here it is certain that MTC packets have not wrapped where packets were lost.
    pub(crate) settled: usize,
    /// Here stands what is neither a TNT nor a TIP with an address.
    other: usize,
    /// A packet that was read too early and is to be returned again.
    back: Option<(usize, Flow)>,
    /// The timing packets read since they were last taken out; none if nobody wants them.
    pub(crate) ticks: Option<Ticks>,
    spoilt_by: SpoiltBy,
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
            likely: None,
            psb: 0,
            block: Block::Outside,
            block_type: BlockType::GPR,
            clock: Clock::new(config),
            timing: 0,
            searched: (0, None),
            ahead: (0, None),
            settled: 0,
            other: usize::MAX,
            back: None,
            ticks: None,
            spoilt_by: SpoiltBy {
                skd007: config.errata.skd007,
                skz84: config.errata.skz84,
            },
        }
    }

    /// Whether the packets are RTIT's.
    #[inline]
    pub(crate) fn is_rtit(&self) -> bool {
        self.rtit.is_some()
    }

    /// Where the stream ends.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
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
        let psb = match &mut self.rtit {
            None => sync_forward(self.bytes, self.at),
            Some(reading) => reading.skip_to_psb(self.bytes, self.at),
        };
        self.go_to(psb.unwrap_or(self.bytes.len()), Block::Outside);
        psb.is_some()
    }

    /// Reads from `offset` on.
    pub(crate) fn start_at(&mut self, offset: usize) {
        self.go_to(offset.min(self.bytes.len()), self.block);
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
        self.note_address(ip, payload.ip_bytes());
        ip.filter(|_| !self.doubt)
    }

    /// A packet gave this address, in so many bytes.
    #[inline]
    fn note_address(&mut self, ip: Option<Ip>, bytes: IpBytes) {
        self.likely = ip;
        self.is_full = matches!(bytes, IpBytes::Sext48 | IpBytes::Full);
        self.doubt &= !self.is_full;
    }

    /// Where the last PSB stands that was read.
    pub(crate) fn psb_at(&self) -> usize {
        self.psb.min(self.at)
    }

    pub(crate) fn last_ip(&self) -> Ip {
        self.last_ip.get()
    }

    /// Takes another address for the one against which the address told last was compressed, and makes `likely` what it is then;
    /// `false` if that is the same.
    pub(crate) fn assume_last_ip(&mut self, last: Ip) -> bool {
        let Some(Ok(raw)) = self.bytes.get(self.offset..).map(decode) else {
            return false;
        };
        let (Packet::Tip { ip } | Packet::TipPge { ip }) = raw.packet() else {
            return false;
        };
        let mut assumed = LastIp::new();
        assumed.compress(last);
        let likely = assumed.apply(ip);
        if likely.is_none() || likely == self.likely {
            return false;
        }
        (self.last_ip, self.likely) = (assumed, likely);
        true
    }

    /// Whether a block that is open counts no longer: packets are looked for as outside of any.
    pub(crate) fn outside_block(&mut self) {
        self.go_to(self.at, Block::Outside);
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
            self.clock.tracker.settle();
        }
    }

    fn search_once(&mut self, for_good: bool) -> (usize, Option<Tsc>) {
        self.show_all();
        let (mut at, mut time, mut block) = (self.at, self.clock.tracker.clone(), self.block);
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
            let is_timing = show(&mut time, &packet, &self.bytes[at..], at < self.settled);
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
                // The counter may have wrapped while packets were lost (33.3.8.2), and was reset if tracing was off before a
                // TSC (33.3.6.1), which bounds the time by itself.
                Packet::Cyc { .. } => {
                    let next = &rest[decoded.len()..];
                    !for_good && !next.starts_with(&[0x02, 0xf3]) && !next.starts_with(&[0x19])
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

    /// Where no more ticks may be kept, notes from where on they are to be read again.
    #[inline]
    pub(crate) fn mark_ticks(&mut self) {
        if let Some(Ticks {
            queue,
            room,
            rest: None,
        }) = &self.ticks
            && queue.len() >= *room
        {
            let rest = Replay::new(self);
            if let Some(ticks) = &mut self.ticks {
                ticks.rest = Some(rest);
            }
        }
    }

    /// Keeps the timing packet just read, if somebody wants to see it.
    #[inline]
    fn note_tick(&mut self, packet: &Packet) {
        if !matches!(&self.ticks, Some(Ticks { rest: None, .. })) {
            return;
        }
        let now = self.now();
        if let (Some(ticks), Some(tick)) = (&mut self.ticks, Tick::from_packet(packet)) {
            ticks.queue.push_back(Ticked {
                offset: self.offset,
                kind: tick.kind(),
                tick,
                now,
            });
        }
    }

    /// How much is to be left out, if an erratum has spoiled this packet of `len` bytes, with which `rest` begins.
    #[inline]
    pub(crate) fn left_out(&self, packet: &Packet, rest: &[u8], len: usize) -> Option<usize> {
        Some(match self.spoilt_by.spoils(packet, rest, len)? {
            Spoilt::Cut => 1,
            _ => len + 1,
        })
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
            self.mark_ticks();
            let shows = self.shows_at_once();
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
                if shows {
                    self.clock_is_here();
                }
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
            if shows {
                self.show_at_once(&packet);
            }
            if TimeTracker::tells_time(&packet) {
                self.timing += 1;
                self.note_tick(&packet);
                continue;
            }
            if matches!(packet, Packet::Ovf) {
                // Some of what was told of the time before holds no longer.
                self.timing += 1;
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
                    self.psb = self.offset;
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

/// Shows a packet, with which `bytes` begin, to a tracker; whether it is a timing packet. If it `is_settled`, no payload of an MTC has gone
/// round where packets were lost.
#[inline]
pub(crate) fn show(
    tracker: &mut TimeTracker,
    packet: &Packet,
    bytes: &[u8],
    is_settled: bool,
) -> bool {
    let is_timing = tracker.take(packet);
    match packet {
        Packet::Ovf if is_settled => tracker.settle(),
        Packet::Psb if tracker.wants_guest() => tracker.psb_is_guest(pip_in_psb(bytes)),
        _ => {}
    }
    is_timing
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

/// The short TNT that `byte` is, if it is one (table 33-16): even, not the first byte of a longer packet, and not PAD.
#[inline]
pub(crate) fn short_tnt(byte: u8) -> Option<Flow> {
    if byte & 1 != 0 || byte <= 2 {
        return None;
    }
    let len = 6 - byte.leading_zeros() as u8;
    Some(Flow::Tnt {
        bits: u64::from(byte >> 1) & ((1 << len) - 1),
        len,
    })
}
