//! Ticks that are read a second time instead of being kept.
//!
//! The event level reports timing packets where they stand, but the decoder reads on over them up to a packet that decides something. What
//! lies between may be megabytes of CYC packets. So only [`LISTED`] items wait as such; of the rest is kept where it begins, and how the clock
//! stood there, and it is read again when its turn comes.

use alloc::collections::VecDeque;

use cofi_packet::StreamOffset;
use cofi_packet::intel::{Block, Packet, decode_in};
use cofi_packet::rtit;

use crate::events::Told;
use crate::events::origin::Origin;
use crate::reader::{Reader, Ticked, short_tnt, show};
use crate::rtit::ticks;
use crate::time::{RtitTime, TimeTracker};
use crate::{Event, PacketKind, Tick};

/// So many items wait at the most before ticks are read twice.
pub(crate) const LISTED: usize = 256;

/// A part of the stream whose timing packets, and MNT packets among them, are to be reported.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    at: usize,
    /// What begins here or behind is not part of it.
    pub(crate) end: usize,
    /// How many other items come first.
    pub(crate) before: u64,
    clock: Clock,
    /// What a packet tells beside what was reported of it.
    more: VecDeque<Told>,
}

/// What is needed to read on.
#[derive(Clone, Debug)]
enum Clock {
    Pt { time: TimeTracker, block: Block },
    Rtit { time: RtitTime, mode: rtit::Mode },
}

impl Replay {
    /// From where `reader` stands on.
    pub(crate) fn new(reader: &mut Reader<'_>) -> Self {
        reader.show_all();
        let clock = match &reader.rtit {
            None => Clock::Pt {
                time: reader.clock.tracker.clone(),
                block: reader.block,
            },
            Some(reading) => Clock::Rtit {
                time: reading.time.clone(),
                mode: reading.mode,
            },
        };
        Self {
            at: reader.at,
            end: reader.at,
            before: 0,
            clock,
            more: VecDeque::new(),
        }
    }

    /// What comes next of it.
    pub(crate) fn next(&mut self, reader: &Reader<'_>) -> Option<Told> {
        loop {
            if let Some(told) = self.more.pop_front() {
                return Some(told);
            }
            let rest = reader.bytes.get(self.at..)?;
            self.at += match &self.clock {
                Clock::Pt { .. } => rest.iter().position(|byte| *byte != 0)?,
                Clock::Rtit { .. } => 0,
            };
            if self.at >= self.end {
                return None;
            }
            self.at += self.read(reader)?;
        }
    }

    /// Reads the packet that comes next; its size, or none if there is none, which was reported as an error behind this part.
    fn read(&mut self, reader: &Reader<'_>) -> Option<usize> {
        let rest = reader.bytes.get(self.at..)?;
        let offset = self.at;
        let told = |event, kind: PacketKind, tsc| Told {
            offset: StreamOffset(offset as u64),
            packets: Origin::new(offset, kind, tsc).kinds,
            ip: None,
            tsc,
            what: Ok(event),
        };
        match &mut self.clock {
            Clock::Pt { time, block } => {
                if *block == Block::Outside && short_tnt(*rest.first()?).is_some() {
                    return Some(1);
                }
                let raw = decode_in(*block, rest).ok()?;
                let packet = raw.packet();
                if let Some(len) = reader.left_out(&packet, rest, raw.len()) {
                    return Some(len);
                }
                (*block, _) = block.after(&packet);
                show(time, &packet, rest, offset < reader.settled);
                let event = match (packet, Tick::from_packet(&packet)) {
                    (Packet::Mnt { payload }, _) => Some(Event::Maintenance { payload: payload.0 }),
                    (_, tick) => tick.map(Event::Tick),
                };
                let event = event.map(|event| told(event, raw.kind().into(), time.now()));
                self.more.extend(event);
                Some(raw.len())
            }
            Clock::Rtit { time, mode } => {
                let raw = rtit::decode(*mode, rest).ok()?;
                let packet = raw.packet();
                let is_partial = matches!(packet, rtit::Packet::TntPartial { .. });
                if !is_partial && time.take(&packet, &rest[raw.len()..]) {
                    let now = time.now();
                    let ticks = ticks(&packet).map(Event::Tick);
                    self.more
                        .extend(ticks.map(|event| told(event, raw.kind().into(), now)));
                }
                Some(raw.len())
            }
        }
    }
}

/// The timing packets that a reader has read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ticks {
    pub(crate) queue: VecDeque<Ticked>,
    /// How many more may be kept.
    pub(crate) room: usize,
    /// Where those begin that are not: none as long as all are.
    pub(crate) rest: Option<Replay>,
}
