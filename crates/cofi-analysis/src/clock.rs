//! The time as packets alone tell it, in either format.

use std::iter::Peekable;

use cofi_flow::{FlowConfig, RtitTime, TimeJump, TimeTracker, TraceFormat};
use cofi_packet::intel::IntelPt;
use cofi_packet::rtit::{Mode, Rtit};
use cofi_packet::{Format, StreamOffset, Tsc, intel, rtit};

/// The time as packets from a PSB on tell it.
#[derive(Clone, Debug)]
pub(crate) struct Clock<'s> {
    psb: usize,
    reader: Reader<'s>,
    /// Where the packet taken last begins.
    last: Option<StreamOffset>,
    /// The last overflow, and the time before it.
    pub(crate) overflow: Option<(StreamOffset, Option<Tsc>)>,
}

#[derive(Clone, Debug)]
enum Reader<'s> {
    Pt {
        packets: Peekable<intel::Packets<'s>>,
        tracker: TimeTracker,
    },
    Rtit {
        bytes: &'s [u8],
        packets: Peekable<rtit::Packets<'s>>,
        tracker: RtitTime,
    },
}

/// Where the packet that was taken begins, whether it tells of an overflow, and the time before it.
type Taken = (StreamOffset, bool, Option<Tsc>);

impl<'s> Reader<'s> {
    /// Takes the next packet if it begins where that is `wanted`; none otherwise, and at bytes that form none.
    fn take(&mut self, wanted: impl Fn(StreamOffset) -> bool) -> Option<Taken> {
        match self {
            Self::Pt { packets, tracker } => {
                let located = (*packets.peek()?).ok()?;
                let (offset, packet) = (located.offset, located.packet());
                let before = wanted(offset).then(|| tracker.now())?;
                tracker.take(&packet);
                packets.next();
                Some((offset, packet == intel::Packet::Ovf, before))
            }
            Self::Rtit {
                bytes,
                packets,
                tracker,
            } => {
                let located = (*packets.peek()?).ok()?;
                let (offset, packet) = (located.offset, located.packet());
                let before = wanted(offset).then(|| tracker.now())?;
                tracker.take(&packet, behind(bytes, &located));
                packets.next();
                let overflow = matches!(packet, rtit::Packet::FupOvf { .. });
                Some((offset, overflow, before))
            }
        }
    }
}

/// What stands behind a packet.
fn behind<'s>(bytes: &'s [u8], located: &rtit::Located) -> &'s [u8] {
    let end = located.offset.0 as usize + located.raw.len();
    bytes.get(end..).unwrap_or_default()
}

impl<'s> Clock<'s> {
    pub(crate) fn new(bytes: &'s [u8], psb: usize, config: &FlowConfig) -> Self {
        let start = StreamOffset(psb as u64);
        let reader = match config.format {
            TraceFormat::IntelPt => Reader::Pt {
                packets: intel::Packets::starting_at(bytes, start).peekable(),
                tracker: TimeTracker::new(config),
            },
            TraceFormat::Rtit(rtit) => Reader::Rtit {
                bytes,
                packets: rtit_packets(bytes, start, rtit.cycles).peekable(),
                tracker: RtitTime::new(config),
            },
        };
        Self {
            psb,
            reader,
            last: None,
            overflow: None,
        }
    }

    /// Whether it began at `psb` and has not taken what it must not take to tell the time at `offset`.
    pub(crate) fn may_go_on_to(&self, psb: usize, offset: StreamOffset, inclusive: bool) -> bool {
        let behind = |last| last < offset || inclusive && last == offset;
        self.psb == psb && self.last.is_none_or(behind)
    }

    /// Takes the packets before `offset` and, if it is to be `inclusive`, the one there; up to bytes that form none.
    pub(crate) fn run_to(&mut self, offset: StreamOffset, inclusive: bool) {
        let wanted = |at: StreamOffset| at < offset || inclusive && at == offset;
        while let Some((at, overflow, before)) = self.reader.take(wanted) {
            if overflow {
                self.overflow = Some((at, before));
            }
            self.last = Some(at);
        }
    }

    pub(crate) fn now(&self) -> Option<Tsc> {
        match &self.reader {
            Reader::Pt { tracker, .. } => tracker.now(),
            Reader::Rtit { tracker, .. } => tracker.now(),
        }
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
