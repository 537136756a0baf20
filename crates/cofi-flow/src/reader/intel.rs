//! The packets of Intel PT.

use cofi_packet::intel::{
    Block, BlockType, DecodeError, IpBytes, IpPayload, LastIp, Packet, Spoilt, SpoiltBy, decode,
    decode_in, sync_forward,
};
use cofi_packet::{Ip, Tsc};

use super::clock::{Shown, Stamp};
pub(crate) use super::intel_flow::{Flow, Report};
use super::{Reader, Ticked};
use crate::events::replay::Ticks;
use crate::family::{IntelPt, ReadFamily};
use crate::resync::loss::Run;
use crate::time::{TimeJump, TimeTracker};
use crate::{AnyKind, Event, FlowConfig, Tick};

/// What it takes to read Intel PT.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// The last IP (33.4.2.2).
    pub(crate) last_ip: LastIp,
    /// Whether the last IP is in doubt: then an address counts only if it is told in full, or a trial confirms it.
    pub(crate) doubt: bool,
    /// The address told last even if it is in doubt; none if it was suppressed.
    pub(crate) likely: Option<Ip>,
    /// Where the last PSB stands.
    psb: usize,
    pub(crate) block: Block,
    /// What the block that is open holds.
    block_type: BlockType,
    pub(crate) shown: Shown,
    /// Up to where a search for the next TSC or MTC packet went, and what it found: that may bound the time better than a CYC before it.
    ahead: (usize, Option<Tsc>),
    /// Here stands what is neither a TNT nor a TIP with an address.
    pub(super) other: usize,
    pub(crate) spoilt_by: SpoiltBy,
}

impl ReadFamily for IntelPt {
    type Config = ();
    type Flow = Flow;
    type Reading = Reading;
    type Replay = (TimeTracker, Block);

    const FULL_TNT: u8 = 0;

    fn reading(config: &FlowConfig, (): &()) -> Reading {
        Reading {
            last_ip: LastIp::new(),
            doubt: false,
            likely: None,
            psb: 0,
            block: Block::Outside,
            block_type: BlockType::GPR,
            shown: Shown::new(config),
            ahead: (0, None),
            other: usize::MAX,
            spoilt_by: SpoiltBy {
                skd007: config.errata.skd007,
                skz84: config.errata.skz84,
            },
        }
    }

    fn next(reader: &mut Reader<'_, Self>) -> Option<Result<Flow, DecodeError>> {
        if let Some((offset, flow)) = reader.back.take() {
            reader.offset = offset;
            if matches!(flow, Flow::Psb) {
                (reader.damaged, reader.own.doubt) = (false, false);
            }
            return Some(Ok(flow));
        }
        loop {
            reader.mark_ticks();
            let shows = reader.shows_at_once();
            let rest = reader.bytes.get(reader.at..)?;
            let padding = rest.iter().position(|byte| *byte != 0)?;
            let rest = &rest[padding..];
            reader.at += padding;
            reader.offset = reader.at;
            // Most packets are short TNTs: spare them the general decoder.
            if reader.own.block == Block::Outside {
                if let Some(flow) = short_tnt(rest[0]) {
                    reader.at += 1;
                    if shows {
                        reader.clock_is_here();
                    }
                    return Some(Ok(flow));
                }
            }
            let decoded = match decode_in(reader.own.block, rest) {
                Ok(decoded) => decoded,
                Err(error) => {
                    // One byte on, so that a search for a PSB makes progress.
                    reader.at += 1;
                    return Some(Err(error));
                }
            };
            let packet = decoded.packet();
            if let Some(len) = reader.left_out(&packet, rest, decoded.len()) {
                reader.at += len;
                continue;
            }
            reader.at += decoded.len();
            let (block, allowed) = reader.own.block.after(&packet);
            reader.own.block = block;
            if !allowed {
                // The packet is read again, outside of the block, whose end is missing.
                reader.at = reader.offset;
                return Some(Err(DecodeError::InBlock {
                    packet: decoded.kind().name(),
                }));
            }
            if shows {
                reader.show_at_once(&packet);
            }
            if TimeTracker::tells_time(&packet) {
                reader.timing += 1;
                reader.note_tick(&packet);
                continue;
            }
            if matches!(packet, Packet::Ovf) {
                // Some of what was told of the time before holds no longer.
                reader.timing += 1;
            }
            if let Some(flow) = reader.flow_of(packet) {
                return Some(Ok(flow));
            }
        }
    }

    fn find_psb(reader: &mut Reader<'_, Self>) -> Option<usize> {
        sync_forward(reader.bytes, reader.at)
    }

    fn go_to(reader: &mut Reader<'_, Self>, at: usize) {
        reader.jump_to(at, Block::Outside);
    }

    fn follow_time_from(reader: &mut Reader<'_, Self>, from: usize) {
        reader.own.shown.begin_before(from, reader.at);
    }

    fn kind_of(_: &Reader<'_, Self>, bytes: &[u8]) -> Option<AnyKind> {
        Some(decode(bytes).ok()?.kind().into())
    }

    /// Shows all packets read so far to the tracker.
    fn show_all(reader: &mut Reader<'_, Self>) {
        loop {
            reader.resolve();
            if reader.own.shown.at >= reader.at {
                return;
            }
            let stop = reader.next_place().unwrap_or(reader.at).min(reader.at);
            while reader.own.shown.at < stop {
                reader.show_next(stop);
            }
        }
    }

    #[inline]
    fn stamps(reader: &Reader<'_, Self>) -> (Stamp<(Option<Tsc>, u64)>, Stamp<Tsc>) {
        (Stamp::At(reader.at), Stamp::At(reader.at))
    }

    fn now(reader: &mut Reader<'_, Self>) -> Option<Tsc> {
        Self::show_all(reader);
        reader.own.shown.tracker.now()
    }

    fn take_jump(reader: &mut Reader<'_, Self>) -> Option<TimeJump> {
        Self::show_all(reader);
        reader.own.shown.tracker.take_jump()
    }

    /// Searches each part of the stream only twice.
    fn search(reader: &mut Reader<'_, Self>) -> (usize, Option<Tsc>) {
        if reader.own.ahead.0 <= reader.at {
            reader.own.ahead = reader.search(true);
        }
        let (at, latest) = reader.search(false);
        let latest = match (latest, reader.own.ahead.1) {
            (Some(latest), Some(ahead)) => Some(latest.min(ahead)),
            (latest, ahead) => latest.or(ahead),
        };
        (at, latest)
    }

    fn replay(reader: &mut Reader<'_, Self>) -> Self::Replay {
        Self::show_all(reader);
        (reader.own.shown.tracker.clone(), reader.own.block)
    }

    fn read_again(
        (time, block): &mut Self::Replay,
        reader: &Reader<'_, Self>,
        at: usize,
        mut report: impl FnMut(Event, AnyKind, Option<Tsc>),
    ) -> Option<usize> {
        let rest = reader.bytes.get(at..)?;
        let padding = rest.iter().position(|byte| *byte != 0)?;
        if padding != 0 {
            return Some(padding);
        }
        if *block == Block::Outside && short_tnt(*rest.first()?).is_some() {
            return Some(1);
        }
        let raw = decode_in(*block, rest).ok()?;
        let packet = raw.packet();
        if let Some(len) = reader.left_out(&packet, rest, raw.len()) {
            return Some(len);
        }
        (*block, _) = block.after(&packet);
        show(time, &packet, rest, at < reader.settled);
        let event = match (packet, Tick::from_packet(&packet)) {
            (Packet::Mnt { payload }, _) => Some(Event::Maintenance { payload: payload.0 }),
            (_, tick) => tick.map(Event::Tick),
        };
        if let Some(event) = event {
            report(event, raw.kind().into(), time.now());
        }
        Some(raw.len())
    }
}

impl Reader<'_, IntelPt> {
    /// Drops a packet that was given back.
    pub(crate) fn drop_back(&mut self) {
        // Behind a PSB nothing is in doubt.
        self.back = self.back.filter(|(_, flow)| matches!(flow, Flow::Psb));
    }

    /// The address in a packet; none if it is suppressed, or compressed against one that is in doubt.
    pub(super) fn address(&mut self, payload: IpPayload) -> Option<Ip> {
        let ip = self.own.last_ip.apply(payload);
        self.note_address(ip, payload.ip_bytes());
        ip.filter(|_| !self.own.doubt)
    }

    /// What a packet that was read tells the flow, if it does.
    #[inline]
    fn flow_of(&mut self, packet: Packet) -> Option<Flow> {
        Some(match packet {
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
                self.own.last_ip.reset();
                self.own.psb = self.offset;
                (self.damaged, self.own.doubt) = (false, false);
                Flow::Psb
            }
            Packet::PsbEnd => Flow::PsbEnd,
            Packet::ExStop { ip } => Flow::ExStop { ip },
            Packet::Pwrx {
                last,
                deepest,
                wake,
            } => Flow::Pwrx {
                last: last.get(),
                deepest: deepest.get(),
                wake: wake.get(),
            },
            Packet::Ptw { payload, ip } => Flow::Ptw {
                payload: payload.get(),
                size: payload.size().bytes() as u8,
                ip,
            },
            Packet::Mnt { payload } => Flow::Mnt(payload.0),
            packet => Flow::Report(self.report_of(packet)?),
        })
    }

    fn report_of(&mut self, packet: Packet) -> Option<Report> {
        Some(match packet {
            Packet::Mwait { hints, ext } => Report::Mwait {
                hints,
                ext: ext.get() as u8,
            },
            Packet::Pwre {
                hw,
                state,
                sub_state,
            } => Report::Pwre {
                hw,
                state: state.get(),
                sub_state: sub_state.get() as u8,
            },
            Packet::Cfe { ip, kind, vector } => Report::Cfe { ip, kind, vector },
            Packet::Evd { kind, payload } => Report::Evd {
                kind: kind.get(),
                payload: payload.0,
            },
            Packet::Bbp { size, kind } => {
                self.own.block_type = kind;
                Report::Bbp {
                    kind,
                    size: size.bytes() as u8,
                }
            }
            Packet::Bip { id, payload } => Report::Bip {
                block: self.own.block_type,
                id: id.get() as u8,
                payload: payload.get(),
            },
            Packet::Bep { ip } => Report::Bep { ip },
            Packet::Trig {
                ip,
                mult,
                vector,
                count,
            } => Report::Trig {
                ip,
                multiple: mult,
                vector,
                count,
            },
            _ => return None,
        })
    }

    /// A packet gave this address, in so many bytes.
    #[inline]
    pub(super) fn note_address(&mut self, ip: Option<Ip>, bytes: IpBytes) {
        self.own.likely = ip;
        self.is_full = matches!(bytes, IpBytes::Sext48 | IpBytes::Full);
        self.own.doubt &= !self.is_full;
    }

    /// Where the last PSB stands that was read.
    pub(crate) fn psb_at(&self) -> usize {
        self.own.psb.min(self.at)
    }

    pub(crate) fn last_ip(&self) -> Ip {
        self.own.last_ip.get()
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
        if likely.is_none() || likely == self.own.likely {
            return false;
        }
        (self.own.last_ip, self.own.likely) = (assumed, likely);
        true
    }

    /// Reads again from `offset` on, outside of any block.
    pub(crate) fn start_at(&mut self, offset: usize) {
        self.jump_to(offset.min(self.bytes.len()), Block::Outside);
    }

    /// Whether a block that is open counts no longer: packets are looked for as outside of any.
    pub(crate) fn outside_block(&mut self) {
        self.jump_to(self.at, Block::Outside);
    }

    /// What the packet last returned means for a TIP that comes next.
    pub(crate) fn run(&self) -> Run {
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

    /// The next timing packet that bounds the time, or the next that does so `for_good`: whatever the core's clock did.
    fn search(&mut self, for_good: bool) -> (usize, Option<Tsc>) {
        loop {
            let settled = self.settled;
            let found = self.search_once(for_good);
            if self.settled == settled {
                return found;
            }
            // With what it has found out, it may find more.
            self.own.shown.tracker.settle();
        }
    }

    fn search_once(&mut self, for_good: bool) -> (usize, Option<Tsc>) {
        IntelPt::show_all(self);
        let (mut at, mut time, mut block) =
            (self.at, self.own.shown.tracker.clone(), self.own.block);
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
            let latest = time.latest().filter(|_| is_timing && bounds);
            if latest.is_some() {
                return (at, latest);
            }
        }
        // Nothing more is known, however far is read.
        (usize::MAX, None)
    }

    /// Keeps the timing packet just read, if somebody wants to see it.
    #[inline]
    fn note_tick(&mut self, packet: &Packet) {
        if !matches!(&self.ticks, Some(Ticks { rest: None, .. })) {
            return;
        }
        let now = IntelPt::now(self);
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
        Some(match self.own.spoilt_by.spoils(packet, rest, len)? {
            Spoilt::Cut => 1,
            _ => len + 1,
        })
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
