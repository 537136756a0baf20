//! What comes of packets once they are bound: state takes effect, items become due.

use alloc::collections::VecDeque;

use cofi_packet::intel::{DecodeError, Kind, TsxState};
use cofi_packet::{ExecMode, Ip, StreamOffset, Tnt};

use crate::bind::control::Control;
use crate::bind::intel::Own;
use crate::bind::{Binder, Bound, Pending, Status};
use crate::events::origin::{BoundOrigins, Origin};
use crate::events::replay::{LISTED, Replay};
use crate::family::{BindFamily, IntelPt, ReadFamily};
use crate::reader::intel::Flow;
use crate::{Event, Expected, FlowError, FlowErrorKind, Item, PacketKind};

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
    pub(crate) last: Option<PacketKind>,
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
    fn last_replay(&mut self) -> Option<&mut Replay<F>> {
        let noted = self.noted;
        let last = self.replays.back_mut();
        last.filter(|replay| replay.before == noted)
    }

    /// Something is to be read again behind all items that are due.
    fn push_replay(&mut self, mut replay: Replay<F>) {
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

    /// Applies state that was bound to an address, control having got there.
    #[inline]
    pub(crate) fn apply(&mut self, state: Bound, place: Option<Ip>) {
        if !state.is_empty() {
            self.apply_bound(state, place);
        }
    }

    /// Applies the state packets before a TIP, control having got to its target.
    ///
    /// The branch's kind does not matter: a MODE.Exec binds to the next TIP (33.4.2.8). Left over, it would claim the next FUP.
    #[inline]
    pub(crate) fn apply_at(&mut self, target: Ip) {
        if !self.bound.is_empty() {
            let bound = core::mem::take(&mut self.bound);
            self.apply_bound(bound, Some(target));
        }
    }

    fn apply_bound(&mut self, state: Bound, place: Option<Ip>) {
        // The packet read last gave the address.
        let gives = self.emit.last.unwrap_or(F::TIP);
        let BoundOrigins {
            mode,
            tsx,
            paging,
            vmcs,
        } = self.origins;
        let origins = BoundOrigins {
            mode: mode.at(place, gives),
            tsx: tsx.at(place, gives),
            paging: paging.at(place, gives),
            vmcs: vmcs.at(place, gives),
        };
        self.apply_from(state, place, &origins);
    }

    fn apply_from(&mut self, state: Bound, place: Option<Ip>, origins: &BoundOrigins) {
        if let Some(mode) = state.mode {
            self.set_mode(mode, origins.mode);
        }
        if let Some(tsx) = state.tsx {
            self.known.tsx = Some(if tsx == TsxState::Aborted {
                TsxState::NotInTx
            } else {
                tsx
            });
            let event = Event::Tsx {
                state: tsx,
                ip: place,
            };
            self.push_from(event, origins.tsx);
        }
        if let Some((cr3, nr)) = state.paging {
            self.known.paging = state.paging;
            self.push_from(Event::Paging { cr3, nr }, origins.paging);
        }
        if let Some(base) = state.vmcs {
            self.known.vmcs = state.vmcs;
            self.push_from(Event::Vmcs { base }, origins.vmcs);
        }
    }

    /// Applies the state that a PSB+ reports, which says nothing of what is known already.
    pub(crate) fn apply_status(&mut self, status: Status) {
        self.loss.note_psb();
        let mut news = status.state;
        news.tsx = news.tsx.filter(|_| news.tsx != self.known.tsx);
        news.paging = news.paging.filter(|_| news.paging != self.known.paging);
        news.vmcs = news.vmcs.filter(|_| news.vmcs != self.known.vmcs);
        self.loss.is_mode_certain |= news.mode.is_some();
        let origins = BoundOrigins::all(Origin {
            ip: status.ip,
            ..self.emit.now
        });
        self.apply_from(news, status.ip, &origins);
    }

    pub(crate) fn set_mode(&mut self, (mode, interrupt_flag): (ExecMode, bool), origin: Origin) {
        self.mode = mode;
        self.loss.note_mode(mode);
        if self.known.mode != Some((mode, interrupt_flag)) {
            self.known.mode = Some((mode, interrupt_flag));
            let event = Event::ExecMode {
                mode,
                interrupt_flag,
            };
            self.push_from(event, origin);
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
    fn note_packet(&mut self, kind: Option<PacketKind>, end: usize) {
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

impl Binder<'_, IntelPt> {
    /// Takes a state packet that binds to the next address packet.
    pub(crate) fn bind(&mut self, flow: Flow) {
        let (bound, origins) = (&mut self.bound, &mut self.origins);
        let origin = match flow {
            Flow::ModeExec {
                mode,
                interrupt_flag,
            } => {
                bound.mode = Some((mode, interrupt_flag));
                self.loss.is_mode_certain = true;
                &mut origins.mode
            }
            Flow::ModeTsx(state) => {
                bound.tsx = Some(state);
                &mut origins.tsx
            }
            Flow::Pip { cr3, nr } => {
                bound.paging = Some((cr3, nr));
                &mut origins.paging
            }
            Flow::Vmcs(base) => {
                bound.vmcs = Some(base);
                &mut origins.vmcs
            }
            _ => return,
        };
        *origin = self.emit.now;
    }

    /// Whatever MODE.TSX came before this FUP belongs to it (33.4.2.8).
    pub(crate) fn bind_tsx(&mut self, ip: Ip) {
        let origin = &mut self.origins.tsx;
        *origin = origin.at(Some(ip), Kind::Fup);
    }

    /// Whether a PSB+ in traced code tells another mode than packets have told before, and none was lost that could have told of the change.
    pub(crate) fn contradicts_mode(&self, status: &Status) -> bool {
        match (self.known.mode, status.state.mode) {
            (Some((before, _)), Some((mode, _))) if self.bound.mode.is_none() => {
                self.loss.is_mode_certain && before != mode
            }
            _ => false,
        }
    }

    /// Reports that, and takes the PSB+ at its word.
    pub(crate) fn refuse_mode<W: Control>(&mut self, walk: &mut W, status: Status) {
        self.pending = Pending::Own(Own::Status(status));
        self.fail(
            walk,
            FlowErrorKind::unexpected(Kind::ModeExec, Expected::SameMode),
        );
    }

    /// The processor wakes: where it went to sleep (33.4.2.25).
    pub(crate) fn wake(&mut self, event: Event) {
        let ip = self.own.awaiting.asleep_at.take();
        let origin = Origin {
            ip,
            ..self.emit.now
        };
        self.push_from(event, origin);
    }

    /// The next packet that matters to the flow, its place and time noted. What belongs to no instruction is due at once.
    pub(crate) fn next_flow(&mut self) -> Result<Option<Flow>, DecodeError> {
        loop {
            // MNT packets are kept no longer than ticks, either.
            if self.make_room() == 0 && self.emit.keeps_origins && self.emit.last_replay().is_none()
            {
                self.emit.push_replay(Replay::new(&mut self.reader));
            }
            let next = self.reader.next();
            self.note_read(&next);
            match next {
                Some(Ok(Flow::Mnt(payload))) => {
                    let end = self.reader.at;
                    match self.emit.last_replay() {
                        Some(replay) => replay.end = end,
                        None => self.push(Event::Maintenance { payload }),
                    }
                }
                Some(Err(error @ DecodeError::InBlock { .. })) => {
                    self.release_block();
                    return Err(error);
                }
                next => return next.transpose(),
            }
        }
    }
}
