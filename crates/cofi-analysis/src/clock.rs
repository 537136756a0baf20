//! The time as packets alone tell it, in either format.

use cofi_flow::{FlowConfig, RtitTime, TimeJump, TimeTracker, TraceFormat};
use cofi_packet::intel::IntelPt;
use cofi_packet::rtit::{Mode, Rtit};
use cofi_packet::{Format, StreamOffset, Tsc, intel, rtit};

/// Takes the packets of a stream one after the other, and follows the time that they tell.
#[derive(Clone, Debug)]
pub(crate) struct TimedPackets<'s>(Reader<'s>);

#[derive(Clone, Debug)]
enum Reader<'s> {
    Pt {
        packets: intel::Packets<'s>,
        tracker: TimeTracker,
    },
    Rtit {
        bytes: &'s [u8],
        packets: rtit::Packets<'s>,
        tracker: RtitTime,
    },
}

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
                packets: intel::Packets::starting_at(bytes, start),
                tracker: TimeTracker::new(config),
            },
            TraceFormat::Rtit(rtit) => Reader::Rtit {
                bytes,
                packets: rtit_packets(bytes, start, rtit.cycles),
                tracker: RtitTime::new(config),
            },
        })
    }

    /// Where the next packet begins.
    fn offset(&self) -> StreamOffset {
        match &self.0 {
            Reader::Pt { packets, .. } => packets.offset(),
            Reader::Rtit { packets, .. } => packets.offset(),
        }
    }

    fn take(&mut self) -> Taken {
        match &mut self.0 {
            Reader::Pt { packets, tracker } => match packets.next() {
                Some(Ok(located)) => {
                    let packet = located.packet();
                    tracker.take(&packet);
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

    /// Takes the packets that begin at `offset` or before. Bytes that form none are skipped.
    pub(crate) fn take_through(&mut self, offset: StreamOffset) {
        if let Reader::Pt { packets, tracker } = &mut self.0 {
            // Most packets are TNTs, of which the first behind another packet matters: a CYC that stands before it was made for it.
            let mut is_behind_tnt = false;
            while packets.offset() <= offset {
                match packets.next() {
                    Some(Ok(located)) => {
                        let is_tnt = located.raw.kind() == intel::Kind::Tnt8;
                        if !(is_tnt && is_behind_tnt) {
                            tracker.take(&located.packet());
                        }
                        is_behind_tnt = is_tnt;
                    }
                    Some(Err(_)) => {}
                    None => return,
                }
            }
            return;
        }
        while self.offset() <= offset {
            if self.take() == Taken::End {
                return;
            }
        }
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
