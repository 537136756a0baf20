//! The decoder's state, and how its parts take turns.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use cofi_insn::{Class, CodeSource, advance};
use cofi_packet::intel::TsxState;
use cofi_packet::{ExecMode, Ip, StreamOffset};

use crate::cache::{Cache, End};
use crate::events::notes::Notes;
use crate::held::{Held, held};
use crate::index::NONE;
use crate::pending::{Bound, Pending};
use crate::reader::{Flow, Reader};
use crate::retstack::ReturnStack;
use crate::rtit;
use crate::shelf::Shelf;
use crate::time::{Time, TimeJump};
use crate::trial::Trials;
use crate::walk::Guard;
use crate::{Executed, Expected, FlowConfig, FlowErrorKind, Item, Part, Run};

/// What is known of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The stream's first PSB has not been found yet.
    Start,
    /// Tracing is on and control is at `ip`.
    On,
    /// Tracing is off.
    Off,
    /// Where control is, is unknown.
    Lost,
    /// The stream is used up.
    Done,
}

/// Where the walk is within a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the block at `ip`.
    Enter,
    /// After its plain instructions, before the one that ends it.
    End(u32),
}

/// A [`Part`] whose instructions are still in the cache.
pub(crate) enum Piece {
    /// Anything that stands alone.
    Item(Item),
    /// Instructions that ran one after the other.
    Run {
        ip: Ip,
        mode: ExecMode,
        /// Where in the cache the lengths of the plain ones are.
        plain: core::ops::Range<usize>,
        last: Option<Executed>,
        /// Where the packet used last begins.
        offset: usize,
    },
}

/// Decodes a packet stream and the code that ran into the flow of instructions and events.
///
/// An iterator over [`Item`]s. See the [crate's documentation](crate) for an example.
#[derive(Debug)]
pub struct FlowDecoder<'t, C> {
    pub(crate) reader: Reader<'t>,
    pub(crate) code: C,
    pub(crate) config: FlowConfig,
    pub(crate) cache: Cache,
    pub(crate) shelf: Shelf,
    pub(crate) returns: ReturnStack,
    pub(crate) state: State,
    pub(crate) phase: Phase,
    /// The instruction that comes next.
    pub(crate) ip: Ip,
    pub(crate) mode: ExecMode,
    /// TNT bits not used yet: the oldest on top.
    pub(crate) tnt: u64,
    pub(crate) tnt_len: u8,
    pub(crate) pending: Pending,
    /// State that binds to the next address packet.
    pub(crate) bound: Bound,
    /// State as last reported.
    pub(crate) known: Bound,
    /// Events that wait for a FUP to tell their place.
    pub(crate) held: Vec<Held>,
    /// Whether one of them is certain to have a FUP of its own.
    pub(crate) claimed: bool,
    /// The value and size of a PTW packet whose FUP is to come.
    pub(crate) ptwrite: Option<(u64, u8)>,
    /// What the event level wants to know beside.
    pub(crate) notes: Notes,
    /// Items that are due.
    pub(crate) out: VecDeque<Item>,
    /// The plain instructions that are due: indices of their lengths in the cache.
    pub(crate) body: core::ops::Range<usize>,
    /// The address after them.
    pub(crate) after_body: Ip,
    /// The block walked last, and the way it was left.
    pub(crate) left: (u32, usize),
    pub(crate) guard: Guard,
    /// Where control was when tracing went off.
    pub(crate) resume_at: Option<Ip>,
    /// What RTIT needs beside.
    pub(crate) rtit: rtit::State,
    pub(crate) trials: Trials,
    /// Where the packet read last began.
    pub(crate) read_at: usize,
    /// Decoding ends at the first PSB from here on.
    pub(crate) end: usize,
    pub(crate) offset: usize,
}

impl<'t, C: CodeSource> FlowDecoder<'t, C> {
    /// A decoder of `trace`, the bytes of one packet stream, whose code is in `code`.
    pub fn new(trace: &'t [u8], code: C, config: FlowConfig) -> Self {
        Self {
            reader: Reader::new(trace, &config),
            code,
            cache: Cache::new(&config),
            shelf: Shelf::default(),
            returns: ReturnStack::new(&config.format),
            state: State::Start,
            phase: Phase::Enter,
            ip: Ip(0),
            mode: config.initial_mode,
            tnt: 0,
            tnt_len: 0,
            pending: Pending::None,
            bound: Bound::default(),
            known: Bound {
                tsx: Some(TsxState::NotInTx),
                ..Bound::default()
            },
            held: held(),
            claimed: false,
            ptwrite: None,
            notes: Notes::default(),
            out: VecDeque::new(),
            body: 0..0,
            after_body: Ip(0),
            left: (NONE, 0),
            guard: Guard::default(),
            resume_at: None,
            rtit: rtit::State::new(&config),
            trials: Trials::new(&config),
            read_at: 0,
            end: usize::MAX,
            offset: 0,
            config,
        }
    }

    /// Decodes only the part from the first PSB at or after `range.start` up to the first PSB at or after `range.end`.
    ///
    /// Nothing needs to be known across a PSB (33.3.7). So a stream may be cut into ranges that are decoded apart, on
    /// several threads for example: their instructions, one range after the other, are those of the whole stream. A
    /// range that begins in running code begins with an [`Event::Enabled`](crate::Event::Enabled) (and events that tell its mode and paging)
    /// that the whole stream does not have there. Offsets still count from the stream's start.
    ///
    /// A PSB of RTIT tells no address, and results that are older may stand behind it. There a range begins with the first packet behind its PSB
    /// that tells where control is without need of an address before it, and the range before goes on up to that. What remains is that a
    /// compressed return of a call from before is an error, up to the next packet that tells an address.
    #[must_use]
    pub fn within(mut self, range: core::ops::Range<StreamOffset>) -> Self {
        let usize = |offset: StreamOffset| usize::try_from(offset.0).unwrap_or(usize::MAX);
        self.reader.start_at(usize(range.start));
        self.end = usize(range.end);
        self
    }

    /// Where in the stream the last packet begins that was used for the items returned so far.
    #[must_use]
    pub fn offset(&self) -> StreamOffset {
        StreamOffset(self.offset as u64)
    }

    /// The time of the last item, as far as timing packets tell; none before the first of them.
    ///
    /// Most instructions have no packet of their own: they ran some time between two timing packets, and the
    /// uncertainty says how far apart those are. To know, this looks ahead in the stream to the next timing packet.
    pub fn time(&mut self) -> Option<Time> {
        self.reader.time_of_items()
    }

    /// Whether a TSC packet has set the time back since this was asked last; of several, the last. It is told as soon as the packet has been
    /// read.
    pub fn time_jump(&mut self) -> Option<TimeJump> {
        self.reader.take_jump()
    }

    /// The core cycles that CYC packets have told of up to the packet used last (33.3.6).
    pub fn cycles(&mut self) -> u64 {
        self.reader.cycles_of_items()
    }

    /// The mode in which code runs now.
    #[must_use]
    pub fn mode(&self) -> ExecMode {
        self.mode
    }

    /// The code source.
    pub fn code_mut(&mut self) -> &mut C {
        &mut self.code
    }

    /// The next instruction is looked up anew.
    pub(crate) fn restart_walk(&mut self) {
        self.body = 0..0;
        self.phase = Phase::Enter;
        self.left = (NONE, 0);
    }

    /// The next piece of the flow: the same as iterating over items, but with as many instructions at a time as stand
    /// and ran one after the other, which is much faster. Both ways may be mixed.
    pub fn next_part(&mut self) -> Option<Part<'_>> {
        Some(match self.next_piece()? {
            Piece::Item(Item::Insn(insn)) => Part::Run(Run::single(insn, self.offset)),
            Piece::Item(Item::Event(event)) => Part::Event(event),
            Piece::Item(Item::Error(error)) => Part::Error(error),
            Piece::Run {
                ip,
                mode,
                plain,
                last,
                offset,
            } => Part::Run(Run {
                ip,
                mode,
                plain: self.cache.lens(plain.clone()),
                digests: self.cache.digests(plain),
                last,
                offset,
            }),
        })
    }

    pub(crate) fn next_piece(&mut self) -> Option<Piece> {
        loop {
            if self.body.is_empty() {
                if let Some(item) = self.out.pop_front() {
                    return Some(Piece::Item(item));
                }
                if self.state != State::On {
                    self.go_on();
                    if self.state == State::Done && self.out.is_empty() {
                        return None;
                    }
                    continue;
                }
                if self.phase == Phase::Enter {
                    self.enter();
                }
            }
            let (ip, mode) = (self.ip, self.mode);
            let plain = core::mem::replace(&mut self.body, 0..0);
            if !plain.is_empty() {
                self.ip = self
                    .cache
                    .lens(plain.clone())
                    .iter()
                    .fold(ip, |ip, len| advance(ip, *len, mode));
            }
            let before = self.offset;
            let last = match self.phase {
                Phase::End(block)
                    if self.state == State::On
                        && self.out.is_empty()
                        // Where code is missing it is asked for again, which may empty the cache.
                        && (plain.is_empty() || self.cache.block(block).end != End::Fault) =>
                {
                    self.finish(block)
                }
                _ => None,
            };
            if last.is_some() || !plain.is_empty() {
                return Some(Piece::Run {
                    ip,
                    mode,
                    plain,
                    last,
                    // What the last instruction would have needed may have been read in vain.
                    offset: if last.is_some() { self.offset } else { before },
                });
            }
        }
    }

    /// The next item that is not one of a block's plain instructions.
    fn advance(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.out.pop_front() {
                return Some(item);
            }
            match self.state {
                State::On => match self.phase {
                    Phase::Enter => {
                        self.enter();
                        if !self.body.is_empty() {
                            return self.step();
                        }
                    }
                    Phase::End(block) => {
                        if let Some(insn) = self.finish(block) {
                            return Some(Item::Insn(insn));
                        }
                    }
                },
                State::Done => return None,
                _ => self.go_on(),
            }
        }
    }

    /// Reads on while control is not being followed.
    pub(crate) fn go_on(&mut self) {
        match self.state {
            State::On | State::Done => {}
            State::Off if self.reader.is_rtit() => self.while_off_rtit(),
            State::Lost if self.reader.is_rtit() => self.while_lost_rtit(),
            State::Off => self.while_off(),
            State::Lost => self.while_lost(),
            State::Start => self.start(),
        }
    }

    /// The next of a block's plain instructions.
    #[inline]
    fn step(&mut self) -> Option<Item> {
        let index = self.body.next()?;
        let (len, digest) = (self.cache.len_at(index), self.cache.digest_at(index));
        let ip = self.ip;
        self.ip = advance(ip, len, self.mode);
        Some(Item::Insn(Executed {
            ip,
            len,
            class: Class::Other,
            mode: self.mode,
            digest,
        }))
    }

    /// Notes that the packets read so far are used.
    #[inline]
    pub(crate) fn consumed(&mut self) {
        self.note_used();
        self.guard.reset();
    }

    /// Notes that a packet without effect on control is used.
    #[inline]
    pub(crate) fn note_used(&mut self) {
        self.offset = self.read_at;
        self.reader.time_used();
    }

    #[inline]
    pub(crate) fn load_tnt(&mut self, bits: u64, len: u8) {
        self.tnt = bits << (64 - u32::from(len));
        self.tnt_len = len;
        self.pending = Pending::None;
        self.offset = self.read_at;
        self.guard.reset();
        self.reader.time_of_tnt(len);
    }
}

pub(crate) fn unexpected(found: Flow, expected: Expected) -> FlowErrorKind {
    FlowErrorKind::Unexpected {
        found: found.kind().into(),
        expected,
    }
}

impl<C: CodeSource> Iterator for FlowDecoder<'_, C> {
    type Item = Item;

    #[inline]
    fn next(&mut self) -> Option<Item> {
        match self.step() {
            Some(item) => Some(item),
            None => self.advance(),
        }
    }

    /// Goes through the rest, which is much faster than a loop.
    fn fold<B, F: FnMut(B, Item) -> B>(mut self, init: B, mut f: F) -> B {
        let mut state = Some(init);
        let mut give = |item| state = state.take().map(|state| f(state, item));
        while let Some(item) = self.blocks(|block| block.for_each(|insn| give(Item::Insn(insn)))) {
            give(item);
        }
        match state {
            Some(state) => state,
            None => unreachable!("it is put back after each item"),
        }
    }
}

impl<C: CodeSource> core::iter::FusedIterator for FlowDecoder<'_, C> {}
