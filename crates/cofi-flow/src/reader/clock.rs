//! When the items returned ran, worked out as soon as somebody asks, and no sooner.
//!
//! Timing packets may be most of a stream, and most who read a flow never ask for the time. So reading passes over them, and notes only where
//! in the stream each time is to be taken; the tracker is shown the packets up to there when one of them is asked for.

use cofi_packet::Tsc;
use cofi_packet::intel::{Block, Kind, Packet, decode_in, decode_short, sync_forward};

use super::Reader;
use super::intel::{short_tnt, show};
use crate::FlowConfig;
use crate::family::{IntelPt, ReadFamily};
use crate::time::{Time, TimeJump, TimeTracker};

/// Something that the tracker knows when it has been shown all packets before a place in the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stamp<T> {
    At(usize),
    Known(T),
}

impl<T: Copy> Stamp<T> {
    /// Where the tracker has to come for it; none if it is known.
    const fn place(&self) -> Option<usize> {
        match self {
            Self::At(place) => Some(*place),
            Self::Known(_) => None,
        }
    }

    fn resolve(&mut self, at: usize, value: T) {
        if self.place().is_some_and(|place| place <= at) {
            *self = Self::Known(value);
        }
    }
}

/// So many jumps are remembered until the tracker has to follow.
const JUMPS: usize = 4;

/// Reading went on elsewhere.
#[derive(Clone, Copy, Debug)]
struct Jump {
    from: usize,
    to: usize,
    /// The block that is open there.
    block: Block,
}

/// The time of the items returned.
///
/// Invariant: `low` is to be taken no later in the stream than `packet_low`, and that no later than `now`.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// The best guess, and the core cycles told of.
    now: Stamp<(Option<Tsc>, u64)>,
    /// No item is older.
    low: Stamp<Tsc>,
    /// When the packet used last was made, at the earliest.
    packet_low: Stamp<Tsc>,
    /// The time of each packet will be asked for: showing it as it is read is cheaper.
    asked: bool,
    /// How many timing packets had been read when `now` was taken.
    pub(super) timing: u64,
    /// How many timing packets had been read when the last TNT was.
    tnt: Option<u64>,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            now: Stamp::Known((None, 0)),
            low: Stamp::Known(Tsc(0)),
            packet_low: Stamp::Known(Tsc(0)),
            asked: false,
            timing: 0,
            tnt: None,
        }
    }
}

/// Of [`RunTime`]: as it was before.
const AS_BEFORE: usize = usize::MAX;
/// What `packet_low` was before.
const AS_PACKET: usize = AS_BEFORE - 1;

/// The time of packets that are used one after the other: what becomes of a [`Clock`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunTime {
    /// How many timing packets have been read.
    pub(super) timing: u64,
    /// As in [`Clock`].
    used: u64,
    tnt: Option<u64>,
    /// Where `low` and `packet_low` are to be taken, and `now` with it.
    low: usize,
    packet_low: usize,
}

impl RunTime {
    /// Whether no timing packet has come since the packet used last.
    #[inline]
    pub(super) const fn is_used(&self) -> bool {
        self.timing == self.used
    }

    #[inline]
    fn tick(&mut self, at: usize) {
        if self.used != self.timing {
            (self.used, self.packet_low) = (self.timing, at);
        }
    }

    /// A TNT that ends at `at` is used: see [`Reader::time_of_tnt`].
    #[inline]
    pub(super) fn use_tnt(&mut self, at: usize) {
        self.low = self.packet_low;
        self.tick(at);
        self.tnt = Some(self.timing);
    }

    /// A TIP that ends at `at` is used: see [`Reader::time_used`].
    #[inline]
    pub(super) fn use_tip(&mut self, at: usize) {
        self.tick(at);
        self.low_of_tip();
    }

    #[inline]
    fn low_of_tip(&mut self) {
        if self.tnt != Some(self.timing) {
            self.low = self.packet_low;
        }
    }

    /// Packets are used without timing packets between them or before the first.
    #[inline]
    pub(super) fn use_phrase(&mut self, has_tnt: bool) {
        self.low_of_tip();
        if has_tnt {
            self.low = self.packet_low;
            self.tnt = Some(self.timing);
        }
    }
}

impl<F: ReadFamily> Reader<'_, F> {
    /// The time at which a run begins.
    #[inline]
    pub(super) fn begin_time(&self) -> RunTime {
        RunTime {
            timing: self.timing,
            used: self.clock.timing,
            tnt: self.clock.tnt,
            low: AS_BEFORE,
            packet_low: AS_PACKET,
        }
    }

    /// Goes on behind a run.
    #[inline]
    pub(super) fn end_time(&mut self, run: &RunTime) {
        let clock = &mut self.clock;
        match run.low {
            AS_BEFORE => {}
            AS_PACKET => clock.low = clock.packet_low,
            place => clock.low = Stamp::At(place),
        }
        if run.packet_low != AS_PACKET {
            clock.now = Stamp::At(run.packet_low);
            clock.packet_low = Stamp::At(run.packet_low);
        }
        (clock.timing, clock.tnt) = (run.used, run.tnt);
        self.timing = run.timing;
    }

    /// Takes the time of the packet read last.
    #[inline]
    fn tick(&mut self) {
        if self.clock.timing == self.timing {
            return;
        }
        self.clock.timing = self.timing;
        (self.clock.now, self.clock.packet_low) = F::stamps(self);
    }

    /// The packet read last is used, and is no TNT.
    #[inline]
    pub(crate) fn time_used(&mut self) {
        self.tick();
        // A TIP right behind a TNT may have been deferred: it may be as old as the TNT's first bit.
        if self.clock.tnt != Some(self.timing) {
            self.clock.low = self.clock.packet_low;
        }
    }

    /// The packet read last is a TNT of so many bits, which is used from here on.
    #[inline]
    pub(crate) fn time_of_tnt(&mut self, len: u8) {
        // Its first bits may be older than the timing packets before it: no older, though, than the packet before.
        self.clock.low = self.clock.packet_low;
        if len < F::FULL_TNT {
            self.clock.tnt = None;
            return;
        }
        self.tick();
        self.clock.tnt = Some(self.timing);
    }

    /// What runs next may be older than the packet read last, and than the timing packets before that.
    pub(crate) fn stays_older(&mut self) {
        self.clock.packet_low = self.clock.low;
    }

    /// The time of the items returned last.
    pub(crate) fn time_of_items(&mut self) -> Option<Time> {
        F::show_all(self);
        let (Stamp::Known((Some(now), _)), Stamp::Known(low)) = (self.clock.now, self.clock.low)
        else {
            return None;
        };
        let latest = self.latest();
        Some(Time::new(now, low, latest))
    }

    /// The core cycles told of up to the packet used last.
    pub(crate) fn cycles_of_items(&mut self) -> u64 {
        F::show_all(self);
        match self.clock.now {
            Stamp::Known((_, cycles)) => cycles,
            Stamp::At(_) => 0,
        }
    }

    /// Whether the time was set back.
    pub(crate) fn take_jump(&mut self) -> Option<TimeJump> {
        F::take_jump(self)
    }

    /// The time of each packet will be asked for.
    pub(crate) fn ask_always(&mut self) {
        self.clock.asked = true;
    }
}

/// How far Intel PT's packets have been shown to the tracker of the time: not up to the first of the places for which the [`Clock`] waits.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) tracker: TimeTracker,
    /// The tracker has been shown all packets that begin before this, the last of them in this block.
    pub(super) at: usize,
    block: Block,
    /// Where reading went on elsewhere, or in another block, since then.
    jumps: [Option<Jump>; JUMPS],
    /// Packets before this are not read: only the time is followed there.
    unread: usize,
}

impl Shown {
    pub(super) fn new(config: &FlowConfig) -> Self {
        Self {
            tracker: TimeTracker::new(config),
            at: 0,
            block: Block::Outside,
            jumps: [None; JUMPS],
            unread: 0,
        }
    }

    /// The tracker begins at `from`, reading at `at`.
    pub(super) fn begin_before(&mut self, from: usize, at: usize) {
        (self.at, self.block) = (from.min(at), Block::Outside);
        self.jumps = [None; JUMPS];
        self.unread = at;
    }

    /// What stands at `offset` is no packet. Where it was read, reading goes on elsewhere; in front of that, it would have at the next PSB.
    fn skip(&mut self, bytes: &[u8], offset: usize) {
        self.at = offset + 1;
        if offset < self.unread {
            let psb = sync_forward(&bytes[..self.unread], self.at);
            (self.at, self.block) = (psb.unwrap_or(self.unread), Block::Outside);
            self.tracker.take(&Packet::Ovf);
        }
    }
}

impl Reader<'_, IntelPt> {
    /// Goes on from where `before` is, which has been shown all that was read, behind lost packets.
    pub(crate) fn follow_loss(&mut self, before: &Self) {
        self.clock = before.clock.clone();
        self.own.shown = before.own.shown.clone();
        self.own.shown.tracker.take(&Packet::Ovf);
        self.clock_is_here();
    }

    /// Where the tracker has to come first for what is not known yet.
    pub(super) fn next_place(&self) -> Option<usize> {
        let jump = self.own.shown.jumps[0].map(|jump| jump.from);
        let places = [
            jump,
            self.clock.low.place(),
            self.clock.packet_low.place(),
            self.clock.now.place(),
        ];
        places.into_iter().flatten().min()
    }

    pub(super) fn resolve(&mut self) {
        let (clock, shown) = (&mut self.clock, &mut self.own.shown);
        clock.low.resolve(shown.at, shown.tracker.earliest());
        clock.packet_low.resolve(shown.at, shown.tracker.earliest());
        let now = (shown.tracker.now(), shown.tracker.cycles());
        clock.now.resolve(shown.at, now);
        while let Some(jump) = shown.jumps[0].filter(|jump| jump.from <= shown.at) {
            (shown.at, shown.block) = (jump.to, jump.block);
            shown.jumps.rotate_left(1);
            shown.jumps[JUMPS - 1] = None;
        }
    }

    /// Whether the next packet is to be shown as it is read: somebody asks for the time of each, and the tracker has been shown all before.
    #[inline]
    pub(super) fn shows_at_once(&self) -> bool {
        self.clock.asked && self.own.shown.at == self.at && self.own.shown.jumps[0].is_none()
    }

    /// Shows the packet that was read just now.
    #[inline]
    pub(super) fn show_at_once(&mut self, packet: &Packet) {
        self.resolve();
        let bytes = self.bytes.get(self.offset..).unwrap_or_default();
        let settles = self.offset < self.settled;
        show(&mut self.own.shown.tracker, packet, bytes, settles);
        self.clock_is_here();
    }

    /// The tracker has been shown all that was read.
    #[inline]
    pub(super) fn clock_is_here(&mut self) {
        (self.own.shown.at, self.own.shown.block) = (self.at, self.own.block);
    }

    /// Reading goes on elsewhere, or in another block.
    pub(super) fn jump_to(&mut self, at: usize, block: Block) {
        let jump = Jump {
            from: self.at,
            to: at,
            block,
        };
        match self.own.shown.jumps.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(jump),
            None => {
                IntelPt::show_all(self);
                (self.own.shown.at, self.own.shown.block) = (at, block);
            }
        }
        (self.at, self.own.block) = (at, block);
    }

    /// Shows the next packet to the tracker, which reads just as [`ReadFamily::next`] does, and decisions before it; or decisions up to `stop`, if
    /// there is nothing else.
    pub(super) fn show_next(&mut self, stop: usize) {
        self.pass_over_decisions(stop);
        if self.own.shown.at >= stop {
            return;
        }
        let rest = self.bytes.get(self.own.shown.at..).unwrap_or_default();
        let Some(padding) = rest.iter().position(|byte| *byte != 0) else {
            self.own.shown.at = self.at;
            return;
        };
        let rest = &rest[padding..];
        let offset = self.own.shown.at + padding;
        let block = self.own.shown.block;
        // (Where an erratum may have spoilt packets, none was passed over.)
        if block == Block::Outside && short_tnt(rest[0]).is_some() {
            self.own.shown.at = offset + 1;
            return;
        }
        let Ok(decoded) = decode_in(block, rest) else {
            self.own.shown.skip(self.bytes, offset);
            return;
        };
        let packet = decoded.packet();
        if let Some(len) = self.left_out(&packet, rest, decoded.len()) {
            self.own.shown.at = offset + len;
            return;
        }
        let (block, is_allowed) = block.after(&packet);
        self.own.shown.block = block;
        if !is_allowed {
            self.own.shown.at = offset;
            return;
        }
        self.own.shown.at = offset + decoded.len();
        let settles = offset < self.settled;
        let bytes = self.bytes.get(offset..).unwrap_or_default();
        show(&mut self.own.shown.tracker, &packet, bytes, settles);
    }

    /// Passes over the short TNTs and TIPs that are next to be shown: most packets are.
    fn pass_over_decisions(&mut self, stop: usize) {
        let (is_spoilt, shown) = (self.own.spoilt_by.is_any(), &mut self.own.shown);
        if shown.block != Block::Outside || is_spoilt {
            return;
        }
        let mut has_tips = false;
        let bytes = self.bytes.get(..stop).unwrap_or_default();
        while let Some(&first) = bytes.get(shown.at) {
            if first == 0 || short_tnt(first).is_some() {
                shown.at += 1;
                continue;
            }
            match decode_short(&self.bytes[shown.at..]) {
                Some(raw) if raw.kind() == Kind::Tip => shown.at += raw.len(),
                _ => break,
            }
            has_tips = true;
        }
        if has_tips {
            shown.tracker.take_tips();
        }
    }
}
