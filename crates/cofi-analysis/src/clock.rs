//! The time as packets alone tell it, in either format.

use cofi_flow::{FlowConfig, RtitTime, TimeJump, TimeTracker, TraceFormat};
use cofi_packet::intel::IntelPt;
use cofi_packet::rtit::{Mode, Rtit};
use cofi_packet::{Format, MAX_PACKET, StreamOffset, Tsc, intel, rtit};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Takes the packets of a stream one after the other, and follows the time that they tell.
#[derive(Clone, Debug)]
pub(crate) struct TimedPackets<'s>(Reader<'s>);

#[derive(Clone, Debug)]
enum Reader<'s> {
    Pt {
        bytes: &'s [u8],
        packets: intel::Packets<'s>,
        tracker: TimeTracker,
        /// What was taken since the last packet that may tell something.
        quiet: Quiet,
    },
    Rtit {
        bytes: &'s [u8],
        packets: rtit::Packets<'s>,
        tracker: RtitTime,
    },
}

/// Of which of the packets that tell no time one was taken: another one tells nothing more, as long as no others come between.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Quiet {
    /// A CYC that stands before a TNT was made for it.
    tnt: bool,
    /// A TIP tells that tracing is on.
    tip: bool,
}

/// Short TNTs and TIPs, which are what most streams consist of, by the byte with which they begin, and their lengths: as the packets' own table has it, but without its way to each.
static BY_FIRST_BYTE: LazyLock<[Option<(intel::Kind, usize)>; 256]> = LazyLock::new(|| {
    std::array::from_fn(|byte| {
        let mut longest = [0; MAX_PACKET];
        longest[0] = byte as u8;
        let packet = intel::Packets::new(&longest).next()?.ok()?;
        let kind = packet.raw.kind();
        matches!(kind, intel::Kind::Tnt8 | intel::Kind::Tip).then(|| (kind, packet.raw.len()))
    })
});

impl Quiet {
    /// Whether one more of this kind tells nothing.
    const fn holds(self, kind: intel::Kind) -> bool {
        match kind {
            intel::Kind::Tnt8 => self.tnt,
            intel::Kind::Tip => self.tip,
            _ => false,
        }
    }

    /// Skips packets that tell nothing more, of those that begin at `most` or before.
    fn skip<'s>(self, bytes: &'s [u8], packets: &mut intel::Packets<'s>, most: StreamOffset) {
        // Within a block of PEBS records bytes mean something else.
        if packets.context() != Default::default() {
            return;
        }
        let begin = packets.offset();
        let mut at = begin.0 as usize;
        let end = bytes.len().min(most.0.saturating_add(1) as usize);
        let by_first_byte = &*BY_FIRST_BYTE;
        while at < end {
            let Some((kind, len)) = by_first_byte[usize::from(bytes[at])] else {
                break;
            };
            if !self.holds(kind) || at + len > bytes.len() {
                break;
            }
            at += len;
        }
        if at > begin.0 as usize {
            *packets = intel::Packets::starting_at(bytes, StreamOffset(at as u64));
        }
    }

    /// One of this kind was taken.
    fn note(&mut self, kind: intel::Kind) {
        match kind {
            intel::Kind::Tnt8 => self.tnt = true,
            intel::Kind::Tip => self.tip = true,
            // It tells the time, and nothing of what stands before or behind it.
            intel::Kind::Mtc => {}
            _ => *self = Self::default(),
        }
    }
}

/// What is known of the time where the next packet of a stream of Intel PT begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedTime {
    offset: StreamOffset,
    tracker: TimeTracker,
    quiet: Quiet,
}

/// So many bytes at most are read ahead of what was asked for.
const AHEAD: u64 = 1 << 12;

/// What was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Packet {
        is_overflow: bool,
    },
    /// Bytes that form no packet.
    Error,
    /// There is nothing left.
    End,
}

impl<'s> TimedPackets<'s> {
    /// From `start` on, where a packet begins.
    pub(crate) fn new(bytes: &'s [u8], start: StreamOffset, config: &FlowConfig) -> Self {
        Self(match config.format {
            TraceFormat::IntelPt => Reader::Pt {
                bytes,
                packets: intel::Packets::starting_at(bytes, start),
                tracker: TimeTracker::new(config),
                quiet: Quiet::default(),
            },
            TraceFormat::Rtit(rtit) => Reader::Rtit {
                bytes,
                packets: rtit_packets(bytes, start, rtit.cycles),
                tracker: RtitTime::new(config),
            },
        })
    }

    /// All that is known where the next packet begins, if it is no more than what can be kept: not of RTIT, nor in a block of PEBS records.
    pub(crate) fn saved(&self) -> Option<SavedTime> {
        match &self.0 {
            Reader::Pt {
                packets,
                tracker,
                quiet,
                ..
            } if packets.context() == Default::default() => Some(SavedTime {
                offset: packets.offset(),
                tracker: tracker.clone(),
                quiet: *quiet,
            }),
            _ => None,
        }
    }

    /// As it was when it was saved, in the same stream. None if it cannot have been.
    pub(crate) fn restored(
        bytes: &'s [u8],
        saved: &SavedTime,
        config: &FlowConfig,
    ) -> Option<Self> {
        let is_pt = config.format == TraceFormat::IntelPt;
        if !is_pt || saved.offset.0 > bytes.len() as u64 {
            return None;
        }
        Some(Self(Reader::Pt {
            bytes,
            packets: intel::Packets::starting_at(bytes, saved.offset),
            tracker: saved.tracker.clone().restored(config)?,
            quiet: saved.quiet,
        }))
    }

    /// Where the next packet begins.
    pub(crate) fn offset(&self) -> StreamOffset {
        match &self.0 {
            Reader::Pt { packets, .. } => packets.offset(),
            Reader::Rtit { packets, .. } => packets.offset(),
        }
    }

    fn take(&mut self) -> Taken {
        match &mut self.0 {
            Reader::Pt {
                packets,
                tracker,
                quiet,
                ..
            } => match packets.next() {
                Some(Ok(located)) => {
                    let packet = located.packet();
                    tracker.take(&packet);
                    quiet.note(located.raw.kind());
                    let is_overflow = packet == intel::Packet::Ovf;
                    Taken::Packet { is_overflow }
                }
                Some(Err(_)) => Taken::Error,
                None => Taken::End,
            },
            Reader::Rtit {
                bytes,
                packets,
                tracker,
            } => match packets.next() {
                Some(Ok(located)) => {
                    let packet = located.packet();
                    tracker.take(&packet, behind(bytes, &located));
                    let is_overflow = matches!(packet, rtit::Packet::FupOvf { .. });
                    Taken::Packet { is_overflow }
                }
                Some(Err(_)) => Taken::Error,
                None => Taken::End,
            },
        }
    }

    /// Takes the packets that begin at `offset` or before, and those behind them that tell nothing more. Bytes that form none are skipped.
    pub(crate) fn take_through(&mut self, offset: StreamOffset) {
        let Reader::Pt {
            bytes,
            packets,
            tracker,
            quiet,
        } = &mut self.0
        else {
            while self.offset() <= offset {
                if self.take() == Taken::End {
                    return;
                }
            }
            return;
        };
        while packets.offset() <= offset {
            match packets.next() {
                Some(Ok(located)) => {
                    let kind = located.raw.kind();
                    if !quiet.holds(kind) {
                        tracker.take(&located.packet());
                        quiet.note(kind);
                    }
                }
                Some(Err(_)) => {}
                None => return,
            }
            quiet.skip(bytes, packets, offset);
        }
        // Most packets are such, and most questions are of the next one.
        let most = StreamOffset(offset.0.saturating_add(AHEAD));
        quiet.skip(bytes, packets, most);
    }

    /// The estimated time, if packets have told one.
    pub(crate) fn now(&self) -> Option<Tsc> {
        match &self.0 {
            Reader::Pt { tracker, .. } => tracker.now(),
            Reader::Rtit { tracker, .. } => tracker.now(),
        }
    }

    /// The core cycles told of so far. Of RTIT, they are part of the time.
    pub(crate) fn cycles(&self) -> u64 {
        match &self.0 {
            Reader::Pt { tracker, .. } => tracker.cycles(),
            Reader::Rtit { .. } => 0,
        }
    }
}

/// What stands behind a packet.
fn behind<'s>(bytes: &'s [u8], located: &rtit::Located) -> &'s [u8] {
    let end = located.offset.0 as usize + located.raw.len();
    bytes.get(end..).unwrap_or_default()
}

/// The time as packets from a PSB on tell it, up to bytes that form none.
#[derive(Clone, Debug)]
pub(crate) struct Clock<'s> {
    psb: usize,
    packets: TimedPackets<'s>,
    /// Where the packet taken last begins.
    last: Option<StreamOffset>,
    /// The last overflow, and the time before it.
    pub(crate) overflow: Option<(StreamOffset, Option<Tsc>)>,
    /// It has come to the end, or to bytes that form no packet.
    is_over: bool,
}

impl<'s> Clock<'s> {
    pub(crate) fn new(bytes: &'s [u8], psb: usize, config: &FlowConfig) -> Self {
        Self {
            psb,
            packets: TimedPackets::new(bytes, StreamOffset(psb as u64), config),
            last: None,
            overflow: None,
            is_over: false,
        }
    }

    /// Whether it began at `psb` and has not taken what it must not take to tell the time at `offset`.
    pub(crate) fn may_go_on_to(&self, psb: usize, offset: StreamOffset, inclusive: bool) -> bool {
        let behind = |last| last < offset || inclusive && last == offset;
        self.psb == psb && self.last.is_none_or(behind)
    }

    /// Takes the packets before `offset` and, if it is to be `inclusive`, the one there; up to bytes that form none.
    pub(crate) fn run_to(&mut self, offset: StreamOffset, inclusive: bool) {
        while !self.is_over {
            let at = self.packets.offset();
            if at > offset || at == offset && !inclusive {
                return;
            }
            let before = self.packets.now();
            match self.packets.take() {
                Taken::Packet { is_overflow } => {
                    if is_overflow {
                        self.overflow = Some((at, before));
                    }
                    self.last = Some(at);
                }
                Taken::Error | Taken::End => self.is_over = true,
            }
        }
    }

    pub(crate) fn now(&self) -> Option<Tsc> {
        self.packets.now()
    }
}

/// Finds the PSB from which the time at a place is to be worked out.
///
/// Questions come in about the order of the stream. Each starts from the answer to the last one, so that many of them behind one PSB cost
/// no more than one.
#[derive(Debug)]
pub(crate) struct PsbSearch<'s> {
    bytes: &'s [u8],
    is_rtit: bool,
    /// Before which place was searched last, and what was found.
    last: Option<(usize, Option<usize>)>,
    /// How many bytes were searched so far.
    pub(crate) searched: u64,
}

impl<'s> PsbSearch<'s> {
    pub(crate) fn new(bytes: &'s [u8], config: &FlowConfig) -> Self {
        Self {
            bytes,
            is_rtit: matches!(config.format, TraceFormat::Rtit(_)),
            last: None,
            searched: 0,
        }
    }

    /// The PSB from which the time at `offset` is to be worked out; none if there is none before it.
    pub(crate) fn before(&mut self, offset: StreamOffset) -> Option<usize> {
        // Nothing lies behind the end.
        let offset =
            usize::try_from(offset.0).map_or(self.bytes.len(), |at| at.min(self.bytes.len()));
        if self.is_rtit {
            // The time need not be told again behind a PSB.
            let (_, first) = *self.last.get_or_insert_with(|| {
                let first = Rtit::find_psb(self.bytes);
                self.searched += first.unwrap_or(self.bytes.len()) as u64;
                (0, first)
            });
            return first.filter(|psb| *psb < offset);
        }
        let (from, known) = match self.last {
            Some((at, known)) if at <= offset => (at, known),
            // There is no other between that one and the place from which it was found.
            Some((_, Some(known))) if known < offset => return Some(known),
            _ => (0, None),
        };
        let found = IntelPt::sync_backward(&self.bytes[from..], offset - from);
        let found = found.map(|psb| from + psb);
        self.searched += (offset - found.unwrap_or(from)) as u64;
        let found = found.or(known);
        self.last = Some((offset, found));
        found
    }
}

fn rtit_packets(bytes: &[u8], start: StreamOffset, mode: Mode) -> rtit::Packets<'_> {
    rtit::Packets::starting_at(bytes, start).in_context(mode)
}

/// Calls `told` wherever in a stream the time goes back, until that answers that it has heard enough.
pub(crate) fn each_jump(
    bytes: &[u8],
    config: &FlowConfig,
    mut told: impl FnMut(StreamOffset, TimeJump) -> bool,
) {
    match config.format {
        TraceFormat::IntelPt => {
            let mut time = TimeTracker::new(config);
            for located in intel::Packets::new(bytes).flatten() {
                if time.take(&located.packet())
                    && let Some(jump) = time.take_jump()
                    && !told(located.offset, jump)
                {
                    return;
                }
            }
        }
        TraceFormat::Rtit(rtit) => {
            let mut time = RtitTime::new(config);
            for located in rtit_packets(bytes, StreamOffset(0), rtit.cycles).flatten() {
                if time.take(&located.packet(), behind(bytes, &located))
                    && let Some(jump) = time.take_jump()
                    && !told(located.offset, jump)
                {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofi_packet::intel::PSB;

    /// What is left out tells nothing: the time at each place is that of all packets up to it, wherever was asked before.
    #[test]
    fn the_time_is_that_of_all_packets() {
        // TNTs, TIPs without an address and with one, CYCs, MTCs, TSCs and an OVF, in many orders.
        let packets: [&[u8]; 8] = [
            &[0x06],
            &[0x0d],
            &[0x2d, 0x59, 0x11],
            &[0x04],
            &[0x2b],
            &[0x59, 0x11],
            &[0x19, 1, 2, 3, 4, 5, 6, 7],
            &[0x02, 0xf3],
        ];
        let mut bytes = PSB.to_vec();
        bytes.extend([0x19, 0, 0, 0, 1, 0, 0, 0, 0x02, 0x23]);
        let mut seed = 1_u64;
        for _ in 0..4000 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            // Mostly those that tell nothing.
            let which = (seed >> 58) as usize;
            bytes.extend(packets[if which < 8 { which } else { which % 4 }]);
        }
        let config = FlowConfig::default();
        let start = StreamOffset(0);
        let mut all = TimedPackets::new(&bytes, start, &config);
        let mut step = 1;
        let mut some = TimedPackets::new(&bytes, start, &config);
        let mut is_told = false;
        loop {
            let at = all.offset();
            if all.take() == Taken::End {
                break;
            }
            step = step * 5 % 17;
            if step < 6 {
                some.take_through(at);
                assert_eq!(
                    (some.now(), some.cycles()),
                    (all.now(), all.cycles()),
                    "{at:?}"
                );
                is_told |= some.cycles() > 0;
                // Whoever goes on from what was saved knows the same.
                let saved = some.saved().expect("it is of Intel PT");
                some = TimedPackets::restored(&bytes, &saved, &config).expect("it is sound");
            }
        }
        assert!(is_told);
    }

    /// Whatever was asked before, the answer is that of a search of its own.
    #[test]
    fn a_psb_is_found_from_wherever_the_last_was() {
        let bytes = [
            &[0x82][..],
            &PSB,
            &[0; 40],
            &PSB,
            &PSB[..6],
            &[0x19; 30],
            &PSB,
        ]
        .concat();
        let config = FlowConfig::default();
        let places = 0..=bytes.len();
        for first in places.clone() {
            for second in places.clone() {
                let mut search = PsbSearch::new(&bytes, &config);
                for at in [first, second] {
                    let found = search.before(StreamOffset(at as u64));
                    assert_eq!(
                        found,
                        IntelPt::sync_backward(&bytes, at),
                        "{first} {second}"
                    );
                }
            }
        }
    }
}
