//! The packet stream as the flow sees it: addresses decompressed, time kept, timing packets left out.

use cofi_packet::rtit::{Kind, LastLip, LipBytes, LipPayload, Mode, Packet, decode, sync_forward};
use cofi_packet::{DecodeError, Ip, Tsc};

use super::RtitTime;
use crate::events::replay::Ticks;
use crate::family::{ReadFamily, Rtit};
use crate::reader::clock::Stamp;
use crate::reader::{Reader, Ticked};
use crate::time::TimeJump;
use crate::{AnyKind, Event, FlowConfig, RtitFlowConfig, Tick};

/// Erratum E8 spoils no more packets than these behind a PSB.
const SPOILT: u32 = 21;

/// A packet that concerns the flow. An address is none if it is compressed against one that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Tnt { bits: u64, len: u8 },
    Tip(Option<Ip>),
    Pge(Option<Ip>),
    Pgd(Option<Ip>),
    Far(Option<Ip>),
    Ovf(Option<Ip>),
    Pip { cr3: u64, paging: bool },
    TraceStop,
    Psb,
}

impl Flow {
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Flow::Tnt { len: ..=5, .. } => Kind::TntPartial,
            Flow::Tnt { .. } => Kind::Tnt,
            Flow::Tip(_) => Kind::Tip,
            Flow::Pge(_) => Kind::FupPge,
            Flow::Pgd(_) => Kind::FupPgd,
            Flow::Far(_) => Kind::FupFar,
            Flow::Ovf(_) => Kind::FupOvf,
            Flow::Pip { .. } => Kind::Pip,
            Flow::TraceStop => Kind::TraceStop,
            Flow::Psb => Kind::Psb,
        }
    }

    /// Whether there is such a packet only of code that was traced when it ran.
    pub(super) const fn is_of_traced_code(&self) -> bool {
        matches!(
            self,
            Flow::Tnt { .. } | Flow::Tip(_) | Flow::Pgd(_) | Flow::Far(_)
        )
    }
}

impl From<Flow> for AnyKind {
    fn from(flow: Flow) -> Self {
        flow.kind().into()
    }
}

/// What came last of what tells whether code was traced up to here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// A packet that comes only of traced code: without a PSB, tracing cannot have been switched off and on.
    Traced,
    /// A PSB: it can.
    Psb,
    /// An overflow, behind which FilterEn may be clear, and a TraceStop be one that it held back (4.2.5).
    Overflow,
}

/// What it takes to read RTIT.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    mode: Mode,
    last_lip: LastLip,
    /// The same for a reader that begins at the PSB at which decoding is to end, once that has been read.
    fresh: Option<LastLip>,
    time: RtitTime,
    /// How many packets have come since the last PSB, this not counted.
    since_psb: u32,
    pub(super) since: Since,
    /// What it was before the packet last returned.
    pub(super) since_before: Since,
    /// Whether the last packet of a branch before the one last returned says that it was taken.
    pub(super) was_taken: bool,
    is_taken: bool,
    e5: bool,
    e8: bool,
}

impl Reading {
    /// Packets may be wrong, and with them the address against which the next ones are compressed.
    pub(super) fn distrust(&mut self) {
        self.last_lip = LastLip::new();
    }

    /// Whether erratum E8 may have spoilt the packet last returned.
    pub(crate) fn may_be_spoilt(&self) -> bool {
        self.e8 && self.since_psb <= SPOILT
    }

    /// A reader that begins here must know what this one does.
    pub(super) fn begin_fresh(&mut self) {
        self.fresh.get_or_insert_default();
    }

    /// Whether that reader would know the address that was read last.
    pub(super) fn is_fresh_known(&self) -> bool {
        // Of one that knows no address yet, a compressed one is not known.
        let update = LipPayload::truncate(LipBytes::Update16, 0);
        self.fresh
            .is_some_and(|mut fresh| fresh.apply(update).is_some())
    }

    fn address(&mut self, payload: LipPayload) -> Option<Ip> {
        if let Some(fresh) = &mut self.fresh {
            let _ = fresh.apply(payload);
        }
        self.last_lip.apply(payload)
    }

    /// What a packet is to the flow; none of one that tells the time alone.
    fn flow(&mut self, packet: &Packet) -> Option<Flow> {
        let flow = match *packet {
            Packet::TntPartial { bits } => Flow::Tnt {
                bits: bits.bits(),
                len: bits.len() as u8,
            },
            Packet::Tnt { bits, .. } => Flow::Tnt {
                bits: bits.tnt().bits(),
                len: 6,
            },
            Packet::Tip { ip, .. } => Flow::Tip(self.address(ip)),
            Packet::FupPge { ip, .. } => Flow::Pge(self.address(ip)),
            Packet::FupPgd { ip, .. } => Flow::Pgd(self.address(ip)),
            Packet::FupFar { ip, .. } => Flow::Far(self.address(ip)),
            Packet::FupOvf { ip, .. } => {
                // The last LIP is cleared before it is sent, and not set by it (3.3.7, 4.2.5).
                self.last_lip = LastLip::new();
                let found = self.address(ip);
                self.last_lip = LastLip::new();
                Flow::Ovf(found)
            }
            Packet::FupPcc { ip, .. } => {
                // It may be one where control never was (4.2.6).
                self.address(ip);
                return None;
            }
            Packet::Pip { cr3, pg, .. } => Flow::Pip {
                // Flags, not address (4.8).
                cr3: cr3.get() & !0x1f,
                paging: pg,
            },
            Packet::TraceStop => Flow::TraceStop,
            Packet::Psb => Flow::Psb,
            _ => return None,
        };
        Some(flow)
    }

    /// Notes that a packet was read.
    #[inline]
    fn note(&mut self, flow: Option<Flow>) {
        self.since_psb = self.since_psb.saturating_add(1);
        self.since_before = self.since;
        match flow {
            None | Some(Flow::Psb | Flow::TraceStop) => self.was_taken = self.is_taken,
            Some(flow) => {
                let is_taken = match flow {
                    Flow::Tnt { bits, .. } => bits & 1 == 1,
                    Flow::Tip(_) | Flow::Far(_) => true,
                    _ => false,
                };
                self.was_taken = core::mem::replace(&mut self.is_taken, is_taken);
            }
        }
        match flow {
            Some(Flow::Psb) => (self.since_psb, self.since) = (0, Since::Psb),
            // Its results may be older than the PSB.
            Some(Flow::Tnt { len: ..=5, .. }) if self.since == Since::Psb => {}
            Some(Flow::Ovf(_)) => self.since = Since::Overflow,
            Some(Flow::Pge(_)) => self.since = Since::Traced,
            Some(flow) if flow.is_of_traced_code() => self.since = Since::Traced,
            _ => {}
        }
    }
}

/// The TNT of up to five results that `byte` is, or the first byte of one of six.
#[inline]
fn short_tnt(byte: u8) -> Option<(u64, u8)> {
    if !(2..0x80).contains(&byte) {
        return None;
    }
    let len = 7 - byte.leading_zeros() as u8;
    Some((u64::from(byte) & ((1 << len) - 1), len))
}

impl ReadFamily for Rtit {
    type Config = RtitFlowConfig;
    type Flow = Flow;
    type Reading = Reading;
    type Replay = RtitTime;

    /// MTC and STS force no results out: those before them may stand behind them (4.2.2).
    const FULL_TNT: u8 = 6;

    fn reading(config: &FlowConfig, own: &RtitFlowConfig) -> Reading {
        Reading {
            mode: own.cycles,
            last_lip: LastLip::new(),
            fresh: None,
            time: RtitTime::new(config),
            since_psb: SPOILT,
            since: Since::Traced,
            since_before: Since::Traced,
            was_taken: false,
            is_taken: false,
            e5: config.errata.rtit_e5,
            e8: config.errata.rtit_e8,
        }
    }

    fn next(reader: &mut Reader<'_, Self>) -> Option<Result<Flow, DecodeError>> {
        if let Some((offset, flow)) = reader.back.take() {
            reader.offset = offset;
            return Some(Ok(flow));
        }
        loop {
            reader.mark_ticks();
            let reading = &mut reader.own;
            let rest = reader.bytes.get(reader.at..)?;
            let first = *rest.first()?;
            reader.offset = reader.at;
            if first == 0 && rest.iter().all(|byte| *byte == 0) {
                // Nothing was written there.
                reader.at = reader.bytes.len();
                return None;
            }
            let raw = match decode(reading.mode, rest) {
                Ok(raw) => raw,
                Err(error) => {
                    // One byte on, so that a search for a PSB makes progress.
                    reader.at += 1;
                    return Some(Err(error));
                }
            };
            let (packet, behind) = (raw.packet(), &rest[raw.len()..]);
            reader.at += raw.len();
            if !matches!(packet, Packet::TntPartial { .. }) && reading.time.take(&packet, behind) {
                reader.timing += 1;
                if reader.offset < reader.settled && reading.time.may_have_wrapped() {
                    reading.time.settle();
                }
                if let Some(Ticks {
                    queue, rest: None, ..
                }) = &mut reader.ticks
                {
                    for tick in ticks(&packet) {
                        queue.push_back(Ticked {
                            offset: reader.offset,
                            kind: raw.kind().into(),
                            tick,
                            now: reading.time.now(),
                        });
                    }
                }
            }
            if let Some(payload) = packet.lip_payload() {
                reader.is_full =
                    payload.lip_bytes().zext() || matches!(payload.lip_bytes(), LipBytes::Full);
            }
            let flow = reading.flow(&packet);
            reading.note(flow);
            match flow {
                Some(Flow::Psb) => reader.damaged = false,
                // Erratum E5: a branch during the overflow, which led where tracing goes on.
                Some(Flow::Ovf(Some(ip))) if reading.e5 => {
                    let leads_there = |packet: &Packet| match *packet {
                        Packet::Tip { ip: payload, .. } => {
                            reading.last_lip.clone().apply(payload) == Some(ip)
                        }
                        _ => false,
                    };
                    let branch = decode(reading.mode, behind).ok();
                    if let Some(raw) = branch.filter(|raw| leads_there(&raw.packet())) {
                        reader.at += raw.len();
                        if reading.time.take(&raw.packet(), &behind[raw.len()..]) {
                            reader.timing += 1;
                        }
                        reading.flow(&raw.packet());
                        reading.note(None);
                    }
                }
                _ => {}
            }
            if let Some(flow) = flow {
                return Some(Ok(flow));
            }
        }
    }

    fn find_psb(reader: &mut Reader<'_, Self>) -> Option<usize> {
        let psb = sync_forward(reader.bytes, reader.at)?;
        if psb != reader.at {
            // What is passed over may hold addresses and tell times.
            reader.own.last_lip = LastLip::new();
            reader.own.time.lost();
        }
        Some(psb)
    }

    fn go_to(reader: &mut Reader<'_, Self>, at: usize) {
        reader.at = at;
    }

    /// Erratum E5: a TIP behind an overflow.
    fn skips_packets(reader: &Reader<'_, Self>) -> bool {
        reader.own.e5
    }

    fn kind_of(reader: &Reader<'_, Self>, bytes: &[u8]) -> Option<AnyKind> {
        Some(decode(reader.own.mode, bytes).ok()?.kind().into())
    }

    fn stamps(reader: &Reader<'_, Self>) -> (Stamp<(Option<Tsc>, u64)>, Stamp<Tsc>) {
        let time = &reader.own.time;
        (
            Stamp::Known((time.now(), time.cycles())),
            Stamp::Known(time.earliest()),
        )
    }

    fn now(reader: &mut Reader<'_, Self>) -> Option<Tsc> {
        reader.own.time.now()
    }

    fn take_jump(reader: &mut Reader<'_, Self>) -> Option<TimeJump> {
        reader.own.time.take_jump()
    }

    fn search(reader: &mut Reader<'_, Self>) -> (usize, Option<Tsc>) {
        loop {
            let settled = reader.settled;
            let found = reader.search_once();
            if reader.settled == settled {
                return found;
            }
            // With what it has found out, it may find more.
            reader.own.time.settle();
        }
    }

    fn replay(reader: &mut Reader<'_, Self>) -> RtitTime {
        reader.own.time.clone()
    }

    fn read_again(
        time: &mut RtitTime,
        reader: &Reader<'_, Self>,
        at: usize,
        mut report: impl FnMut(Event, AnyKind, Option<Tsc>),
    ) -> Option<usize> {
        let rest = reader.bytes.get(at..)?;
        let raw = decode(reader.own.mode, rest).ok()?;
        let packet = raw.packet();
        let is_partial = matches!(packet, Packet::TntPartial { .. });
        if !is_partial && time.take(&packet, &rest[raw.len()..]) {
            for tick in ticks(&packet) {
                report(Event::Tick(tick), raw.kind().into(), time.now());
            }
        }
        Some(raw.len())
    }
}

impl Reader<'_, Rtit> {
    /// The next packet, if it is a TNT.
    pub(super) fn next_tnt(&mut self) -> Option<(u64, u8)> {
        if self.back.is_some() {
            return None;
        }
        let reading = &mut self.own;
        let rest = self.bytes.get(self.at..)?;
        let (bits, len) = short_tnt(*rest.first()?)?;
        let mut size = 1;
        if len == 6 {
            let raw = decode(reading.mode, rest).ok()?;
            size = raw.len();
            if reading.time.take(&raw.packet(), &rest[size..]) {
                self.timing += 1;
            }
        }
        reading.note(Some(Flow::Tnt { bits, len }));
        self.offset = self.at;
        self.at += size;
        Some((bits, len))
    }

    fn search_once(&mut self) -> (usize, Option<Tsc>) {
        let reading = &self.own;
        let (mut at, mut time) = (self.at, reading.time.clone());
        time.take_jump();
        while let Some(rest @ [first, ..]) = self.bytes.get(at..) {
            if matches!(short_tnt(*first), Some((_, ..=5))) {
                at += 1;
                continue;
            }
            let Ok(raw) = decode(reading.mode, rest) else {
                // What comes behind is looked for when reading has come past this.
                return (at + 1, None);
            };
            let packet = raw.packet();
            let before = (matches!(packet, Packet::Sts { .. }) && time.may_have_wrapped())
                .then(|| time.clone());
            let tells = time.take(&packet, &rest[raw.len()..]);
            if at < self.settled && time.may_have_wrapped() {
                time.settle();
            }
            at += raw.len();
            if before
                .is_some_and(|before| time.take_jump().is_none() && before.settles(time.anchor()))
                && at > self.settled
            {
                self.settled = at;
                return (at, None);
            }
            let latest = time.latest().filter(|_| tells);
            if latest.is_some() {
                return (at, latest);
            }
        }
        // Nothing more is known, however far is read.
        (usize::MAX, None)
    }
}

/// What a packet tells of the time.
fn ticks(packet: &Packet) -> impl Iterator<Item = Tick> + use<> {
    let own = match *packet {
        Packet::Sts {
            acbr, ecbr, tsc, ..
        } => Some(Tick::Sts {
            tsc: tsc.get(),
            actual: acbr.get() as u8,
            effective: ecbr.get() as u8,
        }),
        Packet::Mtc { range, tsc, .. } => Some(Tick::MiniTime {
            range: range.get() as u8,
            tsc,
        }),
        _ => None,
    };
    let count = packet.cycles().flatten();
    let count = count.map(|count| Tick::Cyc {
        cycles: count.get().into(),
    });
    own.into_iter().chain(count)
}
