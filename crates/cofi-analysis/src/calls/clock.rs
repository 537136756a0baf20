//! The time at places of a stream that come one after the other.

use std::iter::Peekable;

use cofi_flow::{FlowConfig, RtitTime, TimeTracker, TraceFormat};
use cofi_packet::{StreamOffset, Tsc, intel, rtit};

/// Follows the timing packets of a stream, which the flow has read already: its blocks know their offset, and not their time.
#[derive(Debug)]
pub(crate) struct StreamClock<'s> {
    reader: Reader<'s>,
    /// All packets before this were taken.
    at: StreamOffset,
}

#[derive(Debug)]
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

impl<'s> StreamClock<'s> {
    /// From `start` on, where a packet begins.
    pub(crate) fn new(bytes: &'s [u8], start: StreamOffset, config: &FlowConfig) -> Self {
        let reader = match config.format {
            TraceFormat::IntelPt => Reader::Pt {
                packets: intel::Packets::starting_at(bytes, start).peekable(),
                tracker: TimeTracker::new(config),
            },
            TraceFormat::Rtit(rtit) => Reader::Rtit {
                bytes,
                packets: rtit::Packets::starting_at(bytes, start)
                    .in_context(rtit.cycles)
                    .peekable(),
                tracker: RtitTime::new(config),
            },
        };
        Self { reader, at: start }
    }

    /// The time when the packet at `offset` was made, and the core cycles told of by then. Places that were passed have the last answer.
    pub(crate) fn at(&mut self, offset: StreamOffset) -> (Option<Tsc>, u64) {
        if self.at <= offset {
            self.at = StreamOffset(offset.0.saturating_add(1));
            match &mut self.reader {
                Reader::Pt { packets, tracker } => {
                    // Bytes that form no packet are passed over.
                    while let Some(item) = packets.next_if(|item| match item {
                        Ok(located) => located.offset <= offset,
                        Err(_) => true,
                    }) {
                        if let Ok(located) = item {
                            tracker.take(&located.packet());
                        }
                    }
                }
                Reader::Rtit {
                    bytes,
                    packets,
                    tracker,
                } => {
                    while let Some(item) = packets.next_if(|item| match item {
                        Ok(located) => located.offset <= offset,
                        Err(_) => true,
                    }) {
                        if let Ok(located) = item {
                            let end = located.offset.0 as usize + located.raw.len();
                            let behind = bytes.get(end..).unwrap_or_default();
                            tracker.take(&located.packet(), behind);
                        }
                    }
                }
            }
        }
        match &self.reader {
            Reader::Pt { tracker, .. } => (tracker.now(), tracker.cycles()),
            // Of RTIT, the cycles are part of the time.
            Reader::Rtit { tracker, .. } => (tracker.now(), 0),
        }
    }
}
