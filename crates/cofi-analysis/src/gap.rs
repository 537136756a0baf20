//! Places where a part of a flow is missing, and what is lost at each.

use std::collections::VecDeque;

use cofi_flow::{Event, FlowConfig, FlowError, FlowErrorKind};
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_session::{Session, Stream, Task, ThreadFlow};

use crate::clock::{Clock, PsbSearch};

/// Why a part of the flow is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GapCause {
    /// The processor could not store packets fast enough.
    Overflow,
    /// The trace, or trace and code, contradict themselves.
    Error(FlowErrorKind),
}

impl GapCause {
    /// A word for the kind of gap: `overflow`, or the error's [name](FlowErrorKind::name).
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Overflow => "overflow",
            Self::Error(kind) => kind.name(),
        }
    }
}

impl std::fmt::Display for GapCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Overflow => f.write_str("the processor could not store packets fast enough"),
            Self::Error(kind) => kind.fmt(f),
        }
    }
}

/// Where a flow is known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resumed {
    /// The packet that tells it.
    pub offset: StreamOffset,
    /// The instruction that comes next; none where all that is known is that tracing is off.
    pub ip: Option<Ip>,
    /// The time, as far as packets tell.
    pub time: Option<Tsc>,
}

/// A place where a part of a flow is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// The thread, as far as that is known.
    pub task: Task,
    /// Where in the stream: the packet that was lost or does not fit.
    pub offset: StreamOffset,
    /// The instruction reached last; none for an overflow.
    pub ip: Option<Ip>,
    /// Why.
    pub cause: GapCause,
    /// The last time that packets tell before it.
    pub time: Option<Tsc>,
    /// Bytes of the stream that are there but could not be used. What an overflow lost is not in the stream.
    pub bytes: u64,
    /// Where the flow goes on; none if it does not before the next gap, or the end.
    pub resumed: Option<Resumed>,
}

impl Gap {
    /// How long it lasted, in TSC ticks: from the last time known before to the first behind.
    #[must_use]
    pub fn ticks(&self) -> Option<u64> {
        let resumed = self.resumed?.time?;
        Some(resumed.0.saturating_sub(self.time?.0))
    }

    /// Ends the gap where something is known again, or where the next one begins.
    pub(crate) fn close(&mut self, end: StreamOffset, resumed: Option<Resumed>) {
        if self.cause != GapCause::Overflow {
            self.bytes = end.0.saturating_sub(self.offset.0);
        }
        self.resumed = resumed;
    }
}

/// What comes of the piece of a flow that was told last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Instructions, from this one on, and the packet used for it.
    Run(Ip, StreamOffset),
    /// An event.
    Event(Event),
    /// The flow was lost.
    Error(FlowError),
}

/// Finds the gaps of a stream as its flow goes by.
#[derive(Debug)]
pub(crate) struct GapFinder<'s> {
    bytes: &'s [u8],
    config: FlowConfig,
    open: Option<Gap>,
    psbs: PsbSearch<'s>,
    /// Where the last questions left off, the youngest last.
    clocks: VecDeque<Clock<'s>>,
}

/// A question is seldom about a place before more than one other.
const CLOCKS: usize = 4;

impl<'s> GapFinder<'s> {
    pub(crate) fn new(session: &Session<'_>, stream: &'s Stream<'_>) -> Self {
        let config = session.flow_config();
        Self {
            bytes: stream.bytes(),
            config,
            open: None,
            psbs: PsbSearch::new(stream.bytes(), &config),
            clocks: VecDeque::with_capacity(CLOCKS),
        }
    }

    /// Whether a gap is open, so that instructions end it; if not, only events and errors matter.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes the next piece, and gives the gaps that ended with it to `ended`.
    pub(crate) fn step(
        &mut self,
        step: &Step,
        flow: &mut ThreadFlow<'_>,
        mut ended: impl FnMut(Gap),
    ) {
        let mut offset = flow.offset();
        let resumed = match *step {
            Step::Run(ip, at) => {
                offset = at;
                Some(Some(ip))
            }
            Step::Event(Event::Enabled { ip, .. }) => Some(Some(ip)),
            Step::Event(Event::Resync { ip, .. }) => Some(ip),
            Step::Event(Event::Disabled { .. } | Event::AsyncDisabled { .. }) => Some(None),
            Step::Event(Event::AsyncBranch { to, .. }) => Some(Some(to)),
            Step::Event(Event::Overflow { ip }) => {
                let (offset, time) = self.before(flow.offset(), true);
                self.end_at(offset, None).map(&mut ended);
                self.open = Some(Gap {
                    task: flow.task(),
                    offset,
                    ip: None,
                    cause: GapCause::Overflow,
                    time,
                    bytes: 0,
                    resumed: None,
                });
                // Without an address, tracing goes on elsewhere, later.
                ip.map(Some)
            }
            // The flow goes on: what is wrong lies behind.
            Step::Error(FlowError {
                offset,
                kind: kind @ FlowErrorKind::Seal { .. },
                ..
            }) => {
                let (_, time) = self.before(offset, false);
                ended(Gap {
                    task: flow.task(),
                    offset,
                    ip: None,
                    cause: GapCause::Error(kind),
                    time,
                    bytes: 0,
                    resumed: None,
                });
                None
            }
            Step::Error(error) => {
                self.end_at(error.offset, None).map(&mut ended);
                let (_, time) = self.before(error.offset, false);
                self.open = Some(Gap {
                    task: flow.task(),
                    offset: error.offset,
                    ip: error.ip,
                    cause: GapCause::Error(error.kind),
                    time,
                    bytes: 0,
                    resumed: None,
                });
                None
            }
            Step::Event(_) => None,
        };
        if let Some(ip) = resumed
            && self.is_open()
        {
            let (_, time) = self.before(offset, false);
            let resumed = Resumed { offset, ip, time };
            self.end_at(resumed.offset, Some(resumed)).map(&mut ended);
        }
    }

    /// The gap that is open at the end of the stream, where it ends.
    pub(crate) fn take_open(&mut self) -> Option<Gap> {
        let mut gap = self.open.take()?;
        gap.close(StreamOffset(self.bytes.len() as u64), None);
        Some(gap)
    }

    fn end_at(&mut self, end: StreamOffset, resumed: Option<Resumed>) -> Option<Gap> {
        let mut gap = self.open.take()?;
        gap.close(end, resumed);
        Some(gap)
    }

    /// The last time that packets tell before `offset`; with `overflow`, before the last overflow that is not behind it, and where that
    /// is.
    ///
    /// Worked out from one PSB on alone, so that it is the same whatever was decoded before. From one question to the next it goes on
    /// where it was, so that many gaps behind one PSB cost no more than one; and RTIT has but one PSB from which on the time is known.
    fn before(&mut self, offset: StreamOffset, overflow: bool) -> (StreamOffset, Option<Tsc>) {
        let Some(psb) = self.psbs.before(offset) else {
            return (offset, None);
        };
        let mut known = self.clocks.iter().rev();
        let known = known.find(|known| known.may_go_on_to(psb, offset, overflow));
        let mut clock = match known {
            Some(known) => known.clone(),
            None => Clock::new(self.bytes, psb, &self.config),
        };
        clock.run_to(offset, overflow);
        let told = if overflow {
            clock.overflow.unwrap_or((offset, None))
        } else {
            (offset, clock.now())
        };
        if self.clocks.len() == CLOCKS {
            self.clocks.pop_front();
        }
        self.clocks.push_back(clock);
        told
    }
}

#[cfg(test)]
mod tests {
    use cofi_packet::intel::{IpPayload, PSB, Packet, U48};
    use cofi_session::SessionOptions;

    use super::*;

    /// However many overflows stand behind one PSB, the search for it reads each byte of the stream no more than a few times.
    #[test]
    fn many_overflows_behind_one_psb_cost_no_more_than_the_stream() {
        let ip = IpPayload::sext48(U48::truncate(0x1000));
        let mut bytes = PSB.to_vec();
        let overflow = [Packet::Ovf, Packet::Fup { ip }];
        for packet in [Packet::PsbEnd, Packet::TipPge { ip }]
            .iter()
            .chain(overflow.iter().cycle().take(4000))
        {
            let raw = packet.encode();
            bytes.extend_from_slice(&raw.bytes()[..raw.len()]);
        }
        let session = Session::new(&bytes, &SessionOptions::default()).unwrap();
        let stream = &session.streams()[0];
        let (mut finder, mut gaps) = (GapFinder::new(&session, stream), 0);
        let mut flow = session.decode(stream);
        while let Some(item) = flow.next() {
            let step = match item {
                cofi_flow::Item::Event(event) => Step::Event(event),
                cofi_flow::Item::Error(error) => Step::Error(error),
                cofi_flow::Item::Insn(_) => continue,
            };
            finder.step(&step, &mut flow, |_| gaps += 1);
        }
        assert!(gaps >= 2000, "{gaps} gaps");
        let (searched, len) = (finder.psbs.searched, bytes.len() as u64);
        assert!(
            searched <= 4 * len,
            "{searched} bytes were searched in a stream of {len}"
        );
    }
}
