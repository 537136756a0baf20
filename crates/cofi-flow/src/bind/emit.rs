//! What comes of packets once they are bound: state takes effect, items become due.

use alloc::collections::VecDeque;

use cofi_packet::intel::DecodeError;
use cofi_packet::{Ip, StreamOffset, Tnt};

use crate::bind::Binder;
use crate::bind::control::Control;
use crate::events::origin::Origin;
use crate::events::replay::{LISTED, Replay};
use crate::family::{BindFamily, ReadFamily};
use crate::{AnyKind, Event, FlowError, FlowErrorKind, Item};

/// Items that are due, and what the event level wants to know of them.
#[derive(Debug)]
pub(crate) struct Emit<F: ReadFamily> {
    pub(crate) items: VecDeque<Item>,
    /// Whether somebody asks where each comes from: the event level.
    pub(crate) keeps_origins: bool,
    pub(crate) origins: VecDeque<Origin>,
    /// The packet, or the packets of a compound event, that are being dealt with.
    pub(crate) now: Origin,
    /// The packet read last.
    pub(crate) last: Option<AnyKind>,
    /// So many may be due before ticks are read twice.
    pub(crate) listed: usize,
    /// How many items were due so far, and how many of them were returned.
    noted: u64,
    pub(crate) returned: u64,
    /// What is to be read again between them.
    pub(crate) replays: VecDeque<Replay<F>>,
}

impl<F: ReadFamily> Default for Emit<F> {
    fn default() -> Self {
        Self {
            items: VecDeque::new(),
            keeps_origins: false,
            origins: VecDeque::new(),
            now: Origin::default(),
            last: None,
            listed: LISTED,
            noted: 0,
            returned: 0,
            replays: VecDeque::new(),
        }
    }
}

impl<F: ReadFamily> Emit<F> {
    /// What is to be read again behind all items that are due.
    pub(crate) fn last_replay(&mut self) -> Option<&mut Replay<F>> {
        let noted = self.noted;
        let last = self.replays.back_mut();
        last.filter(|replay| replay.before == noted)
    }

    /// Something is to be read again behind all items that are due.
    pub(crate) fn push_replay(&mut self, mut replay: Replay<F>) {
        replay.before = self.noted;
        self.replays.push_back(replay);
    }

    /// An item that comes from `origin` is due.
    #[inline]
    fn note(&mut self, origin: Origin) {
        if self.keeps_origins {
            self.origins.push_back(origin);
            self.noted += 1;
        }
    }
}

impl<F: BindFamily> Binder<'_, F> {
    /// TNT bits, for the walk, or for whoever wants to see them.
    #[inline]
    pub(crate) fn branches<W: Control>(&mut self, _: &W, bits: u64, len: u8) {
        if W::FOLLOWS_CODE {
            self.load_tnt(bits, len);
        } else if let Some(tnt) = Tnt::from_bits(bits, len.into()) {
            self.consumed();
            self.push(Event::Branches { tnt });
        }
    }

    /// An event is due, which the packets being dealt with tell.
    pub(crate) fn push(&mut self, event: Event) {
        self.push_from(event, self.emit.now);
    }

    pub(crate) fn push_from(&mut self, event: Event, origin: Origin) {
        self.emit.note(origin);
        self.emit.items.push_back(Item::Event(event));
    }

    pub(crate) fn push_error(&mut self, ip: Option<Ip>, kind: FlowErrorKind) {
        let offset = StreamOffset(self.read_at as u64);
        if self.emit.keeps_origins {
            self.emit.note(Origin {
                offset: self.read_at,
                ip,
                tsc: F::now(&mut self.reader),
                ..Origin::default()
            });
        }
        let packet = match kind {
            FlowErrorKind::Packet(_) => None,
            _ => self.reader.kind_at(self.read_at),
        };
        self.emit.items.push_back(Item::Error(FlowError {
            offset,
            ip,
            packet,
            kind,
        }));
    }

    /// Notes the place and the time of a packet, which was read just now.
    #[inline]
    pub(crate) fn note_read(&mut self, next: &Option<Result<F::Flow, DecodeError>>) {
        self.read_at = self.reader.offset();
        if self.emit.keeps_origins {
            let flow = next.as_ref().and_then(|next| next.as_ref().ok());
            // A packet that concerns the flow may have a cycle count of its own.
            let end = match next {
                None => usize::MAX,
                Some(next) => self.read_at + usize::from(next.is_ok()),
            };
            self.note_packet(flow.map(|flow| (*flow).into()), end);
        }
    }

    /// Sees to it that no more items wait than `Notes::listed` and what a few packets tell, however far is read before one is returned. Returns how many
    /// more may.
    pub(crate) fn make_room(&mut self) -> usize {
        let room = self.emit.listed.saturating_sub(self.emit.items.len());
        if let Some(ticks) = &mut self.reader.ticks {
            ticks.room = room;
        }
        room
    }

    /// Tells of the timing packets read, and notes where the packet behind them stands.
    ///
    /// What begins at `end` or behind is not to be read again with what was before.
    fn note_packet(&mut self, kind: Option<AnyKind>, end: usize) {
        while let Some(ticked) = self
            .reader
            .ticks
            .as_mut()
            .and_then(|ticks| ticks.queue.pop_front())
        {
            let origin = Origin::new(ticked.offset, ticked.kind, ticked.now);
            self.push_from(Event::Tick(ticked.tick), origin);
        }
        let rest = self
            .reader
            .ticks
            .as_mut()
            .and_then(|ticks| ticks.rest.take());
        // What is skipped is no part of it.
        let skips = F::skips_packets(&self.reader);
        if let Some(mut rest) = rest {
            match self.emit.last_replay() {
                Some(replay) if !skips => replay.end = end,
                _ => {
                    rest.end = end;
                    self.emit.push_replay(rest);
                }
            }
        }
        if let Some(kind) = kind {
            self.emit.now = Origin::new(self.read_at, kind, F::now(&mut self.reader));
            self.emit.last = Some(kind);
        }
    }
}
