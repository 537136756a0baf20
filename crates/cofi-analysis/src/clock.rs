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
    /// The PSB from which the time at `offset` is to be worked out; none if there is none before it.
    pub(crate) fn psb_before(
        bytes: &[u8],
        offset: StreamOffset,
        config: &FlowConfig,
    ) -> Option<usize> {
        match config.format {
            TraceFormat::IntelPt => IntelPt::sync_backward(bytes, usize::try_from(offset.0).ok()?),
            // The time need not be told again behind a PSB.
            TraceFormat::Rtit(_) => {
                let psb = Rtit::find_psb(bytes)?;
                ((psb as u64) < offset.0).then_some(psb)
            }
        }
    }

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
