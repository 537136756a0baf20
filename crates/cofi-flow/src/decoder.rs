//! The decoder's state, and what it does while the place of control is not known or tracing is off.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use cofi_insn::{Class, CodeSource, advance};
use cofi_packet::intel::{Kind, TsxState};
use cofi_packet::{ExecMode, Ip, StreamOffset, Tsc};

use crate::cache::{Cache, NONE};
use crate::pending::{AtIp, Bound, Pending, PsbPlus, Status, held};
use crate::reader::{Flow, Reader};
use crate::retstack::ReturnStack;
use crate::time::{Time, TimeTracker};
use crate::walk::Guard;
use crate::{Event, Executed, Expected, FlowConfig, FlowError, FlowErrorKind, Item, Part, Run};

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

/// Decodes a packet stream and the code that ran into the flow of instructions and events.
///
/// An iterator over [`Item`]s. See the [crate's documentation](crate) for an example.
#[derive(Debug)]
pub struct FlowDecoder<'t, C> {
    pub(crate) reader: Reader<'t>,
    pub(crate) code: C,
    pub(crate) config: FlowConfig,
    pub(crate) cache: Cache,
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
    pub(crate) held: Vec<Event>,
    /// Whether one of them is certain to have a FUP of its own.
    pub(crate) claimed: bool,
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
    /// Where the packet read last began.
    pub(crate) read_at: usize,
    /// Decoding ends at the first PSB from here on.
    pub(crate) end: usize,
    offset: usize,
    clock: Clock,
}

/// The time of the items returned.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    /// The best guess.
    now: Option<Tsc>,
    /// No item is older.
    low: Tsc,
    /// When the packet used last was made, at the earliest.
    packet_low: Tsc,
    /// How many timing packets had been read when the last TNT was.
    tnt: Option<u64>,
    /// How many timing packets had been read when `now` was taken.
    timing: u64,
}

impl<'t, C: CodeSource> FlowDecoder<'t, C> {
    /// A decoder of `trace`, the bytes of one packet stream, whose code is in `code`.
    pub fn new(trace: &'t [u8], code: C, config: FlowConfig) -> Self {
        Self {
            reader: Reader::new(trace, TimeTracker::new(&config), config.errata.skd007),
            code,
            cache: Cache::new(config.cache_limit),
            returns: ReturnStack::new(),
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
            out: VecDeque::new(),
            body: 0..0,
            after_body: Ip(0),
            left: (NONE, 0),
            guard: Guard::default(),
            resume_at: None,
            read_at: 0,
            end: usize::MAX,
            offset: 0,
            clock: Clock::default(),
            config,
        }
    }

    /// Decodes only the part from the first PSB at or after `range.start` up to the first PSB at or after `range.end`.
    ///
    /// Nothing needs to be known across a PSB (33.3.7). So a stream may be cut into ranges that are decoded apart, on
    /// several threads for example: their instructions, one range after the other, are those of the whole stream. A
    /// range that begins in running code begins with an [`Event::Enabled`] (and events that tell its mode and paging)
    /// that the whole stream does not have there. Offsets still count from the stream's start.
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
        let tsc = self.clock.now?;
        let high = self.reader.latest().map_or(u64::MAX, |latest| latest.0);
        let uncertainty = match high {
            u64::MAX => u64::MAX,
            high => tsc.0.abs_diff(self.clock.low.0).max(high.abs_diff(tsc.0)),
        };
        Some(Time { tsc, uncertainty })
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

    /// Forgets decoded code. To be called when the code source answers otherwise than before.
    pub fn code_changed(&mut self) {
        self.cache.clear();
        self.body = 0..0;
        self.phase = Phase::Enter;
        self.left = (NONE, 0);
    }

    /// The next piece of the flow: the same as iterating over items, but with as many instructions at a time as stand
    /// and ran one after the other, which is much faster. Both ways may be mixed.
    pub fn next_part(&mut self) -> Option<Part<'_>> {
        loop {
            if self.body.is_empty() {
                if let Some(item) = self.out.pop_front() {
                    return Some(match item {
                        Item::Insn(insn) => Part::Run(Run {
                            ip: insn.ip,
                            mode: insn.mode,
                            plain: &[],
                            last: Some(insn),
                        }),
                        Item::Event(event) => Part::Event(event),
                        Item::Error(error) => Part::Error(error),
                    });
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
            let last = match self.phase {
                Phase::End(block) if self.state == State::On && self.out.is_empty() => {
                    self.finish(block)
                }
                _ => None,
            };
            if last.is_some() || !plain.is_empty() {
                let plain = self.cache.lens(plain);
                return Some(Part::Run(Run {
                    ip,
                    mode,
                    plain,
                    last,
                }));
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
    fn go_on(&mut self) {
        match self.state {
            State::On | State::Done => {}
            State::Off => self.while_off(),
            State::Lost => self.while_lost(),
            State::Start => self.start(),
        }
    }

    /// The next of a block's plain instructions.
    #[inline]
    fn step(&mut self) -> Option<Item> {
        let index = self.body.next()?;
        let len = self.cache.len_at(index);
        let ip = self.ip;
        self.ip = advance(ip, len, self.mode);
        Some(Item::Insn(Executed {
            ip,
            len,
            class: Class::Other,
            mode: self.mode,
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
        self.tick();
        // A TIP right behind a TNT may have been deferred: it may be as old as the TNT's first bit.
        if self.clock.tnt != Some(self.reader.timing) {
            self.clock.low = self.clock.packet_low;
        }
    }

    /// Takes the time of the packet read last.
    #[inline]
    fn tick(&mut self) {
        if self.clock.timing != self.reader.timing {
            self.clock.timing = self.reader.timing;
            self.clock.now = self.reader.time.now();
            self.clock.packet_low = self.reader.time.earliest();
        }
    }

    #[inline]
    pub(crate) fn load_tnt(&mut self, bits: u64, len: u8) {
        self.tnt = bits << (64 - u32::from(len));
        self.tnt_len = len;
        self.pending = Pending::None;
        self.offset = self.read_at;
        self.guard.reset();
        // Its first bits may be older than the timing packets before it: no older, though, than the packet before.
        self.clock.low = self.clock.packet_low;
        self.tick();
        self.clock.tnt = Some(self.reader.timing);
    }

    /// Tracing is on, from `ip`.
    fn turn_on(&mut self, ip: Ip) {
        self.consumed();
        self.state = State::On;
        self.phase = Phase::Enter;
        self.ip = ip;
        self.body = 0..0;
        self.pending = Pending::None;
        let resumed = self.resume_at.take() == Some(ip);
        self.push(Event::Enabled { ip, resumed });
        let bound = core::mem::take(&mut self.bound);
        self.apply(bound, Some(ip));
    }

    /// Tracing is off.
    pub(crate) fn turn_off(&mut self, resume_at: Option<Ip>) {
        self.state = State::Off;
        self.phase = Phase::Enter;
        self.body = 0..0;
        self.pending = Pending::None;
        self.bound = Bound::default();
        self.resume_at = resume_at;
    }

    fn error(&mut self, ip: Option<Ip>, kind: FlowErrorKind) {
        let offset = StreamOffset(self.read_at as u64);
        self.out
            .push_back(Item::Error(FlowError { offset, ip, kind }));
        if matches!(kind, FlowErrorKind::Packet(_)) && !self.reader.skip_to_psb() {
            self.state = State::Done;
        }
    }

    /// Control is lost at `ip`: reports it and goes on where what is pending tells the address, if it does.
    pub(crate) fn fail(&mut self, kind: FlowErrorKind) {
        self.state = State::Lost;
        self.phase = Phase::Enter;
        self.body = 0..0;
        self.tnt_len = 0;
        self.returns.clear();
        self.resume_at = None;
        self.error(Some(self.ip), kind);
        match core::mem::replace(&mut self.pending, Pending::None) {
            Pending::At {
                what: AtIp::Status(status),
                ..
            }
            | Pending::Status(status) => self.synchronise(status),
            Pending::At {
                what: AtIp::Branch { to },
                ..
            } => {
                self.release_held(None);
                self.turn_on(to);
            }
            Pending::At {
                what: AtIp::Disable { ip },
                ..
            } => {
                self.release_held(None);
                self.turn_off(None);
                self.push(Event::Disabled { ip });
            }
            Pending::At {
                ip,
                what: AtIp::Events,
            } => {
                self.release_held(Some(ip));
                self.turn_on(ip);
            }
            Pending::Pge(Some(ip)) => self.turn_on(ip),
            Pending::Pgd(ip) => {
                self.turn_off(None);
                self.push(Event::Disabled { ip });
            }
            Pending::Overflow => self.overflow(),
            Pending::End => self.state = State::Done,
            Pending::None
            | Pending::Tip(_)
            | Pending::Pge(None)
            | Pending::Paging { .. }
            | Pending::Vmcs(_)
            | Pending::Bad(_) => {}
        }
        self.held.clear();
        self.claimed = false;
    }

    fn start(&mut self) {
        let whole = self.reader.is_at_start();
        if self.reader.skip_to_psb() {
            self.state = State::Lost;
            return;
        }
        self.state = State::Done;
        if whole && !self.reader.only_padding() {
            self.error(None, FlowErrorKind::NoPsb);
        }
    }

    /// Takes up the place that a PSB+ tells, nothing being known before.
    fn synchronise(&mut self, status: Status) {
        if status.last {
            self.state = State::Done;
            return;
        }
        self.consumed();
        self.returns.clear();
        self.bound = Bound::default();
        match status.ip {
            Some(ip) if !(self.config.errata.bdm70 && self.pge_is_next()) => {
                self.turn_on(ip);
                self.apply_status(status);
            }
            _ => {
                self.turn_off(None);
                self.apply_status(status);
            }
        }
    }

    /// The next packet while tracing is off or control is lost; errors and the end are dealt with.
    fn next_while_away(&mut self) -> Option<Flow> {
        match self.next_flow() {
            Ok(Some(flow)) => Some(flow),
            Ok(None) => {
                self.release_held(None);
                self.state = State::Done;
                None
            }
            Err(error) => {
                self.state = State::Lost;
                self.error(None, error.into());
                None
            }
        }
    }

    /// Reads on while tracing is off.
    fn while_off(&mut self) {
        let Some(flow) = self.next_while_away() else {
            return;
        };
        if self.hold(flow) {
            return;
        }
        if let (Flow::Fup(place), true) = (flow, self.claimed) {
            self.consumed();
            self.release_held(place);
            return;
        }
        self.release_held(None);
        match flow {
            Flow::Pge(Some(ip)) => {
                // No return is compressed across this, but processors and decoders differ in whether they forget.
                self.turn_on(ip);
            }
            Flow::ModeExec {
                mode,
                interrupt_flag,
            } => {
                self.bound.mode = Some((mode, interrupt_flag));
                return;
            }
            Flow::ModeTsx(state) => {
                self.bound.tsx = Some(state).filter(|_| self.known.tsx != Some(state));
                return;
            }
            Flow::Pip { cr3, nr } => {
                self.apply(
                    Bound {
                        paging: Some((cr3, nr)),
                        ..Bound::default()
                    },
                    None,
                );
            }
            Flow::Vmcs(base) => self.apply(
                Bound {
                    vmcs: Some(base),
                    ..Bound::default()
                },
                None,
            ),
            Flow::TraceStop => self.push(Event::Stop),
            Flow::ExStop { .. } => self.push(Event::ExStop { ip: None }),
            Flow::Pwrx {
                last,
                deepest,
                wake,
            } => self.push(Event::Pwrx {
                last,
                deepest,
                wake,
            }),
            Flow::Ovf => self.overflow(),
            Flow::Psb if self.at_end() => self.state = State::Done,
            Flow::Psb => {
                let resume_at = self.resume_at;
                match self.read_psb_plus() {
                    PsbPlus::Complete(status)
                        if status.ip.is_some() && !self.config.errata.bdm70 =>
                    {
                        self.synchronise(status);
                    }
                    PsbPlus::Complete(mut status) => {
                        self.returns.clear();
                        status.state.mode = None;
                        self.apply_status(status);
                        self.resume_at = resume_at;
                    }
                    PsbPlus::Overflow => self.overflow(),
                    PsbPlus::End => self.state = State::Done,
                    PsbPlus::Bad(kind) => self.lose(kind),
                }
            }
            Flow::Pge(None) => self.lose(FlowErrorKind::SuppressedIp {
                packet: Kind::TipPge,
            }),
            Flow::Pgd(_) => self.error(None, unexpected(flow, Expected::TipPge)),
            Flow::Fup(_) => {
                self.lose(unexpected(flow, Expected::TipPge));
                self.reader.put_back(flow);
            }
            Flow::Tnt { .. } | Flow::Tip(_) | Flow::PsbEnd => {
                self.lose(unexpected(flow, Expected::TipPge))
            }
            // `hold` has taken these.
            Flow::Mwait { .. } | Flow::Pwre { .. } | Flow::Cfe { .. } | Flow::Evd { .. } => {}
        }
        self.note_used();
    }

    fn lose(&mut self, kind: FlowErrorKind) {
        self.state = State::Lost;
        self.returns.clear();
        self.error(None, kind);
    }

    /// Reads on, control being lost, up to packets that tell where it is without need of what was lost: a PSB+, an
    /// enabling of tracing, the end of an asynchronous branch (a FUP lets no TNT bits wait), an overflow.
    fn while_lost(&mut self) {
        let Some(flow) = self.next_while_away() else {
            return;
        };
        let claimed = core::mem::take(&mut self.claimed);
        match flow {
            Flow::Psb if self.at_end() => self.state = State::Done,
            Flow::Psb => match self.read_psb_plus() {
                PsbPlus::Complete(status) => self.synchronise(status),
                PsbPlus::Overflow => self.overflow(),
                PsbPlus::End => self.state = State::Done,
                PsbPlus::Bad(kind) => self.error(None, kind),
            },
            Flow::Pge(Some(ip)) => self.turn_on(ip),
            Flow::Pgd(ip) => {
                self.turn_off(None);
                self.push(Event::Disabled { ip });
                self.note_used();
            }
            Flow::Fup(Some(ip)) => {
                let alone = claimed || self.bound.mode.is_some();
                let aborts = self.bound.tsx == Some(TsxState::Aborted);
                if (alone || self.bound.tsx.is_some()) && !aborts {
                    self.turn_on(ip);
                    return;
                }
                match self.read_compound() {
                    Ok(AtIp::Branch { to }) => self.turn_on(to),
                    Ok(AtIp::Disable { ip }) => {
                        self.turn_off(None);
                        self.push(Event::Disabled { ip });
                        self.note_used();
                    }
                    Ok(AtIp::Events | AtIp::Status(_)) => {}
                    Err(kind) => self.error(None, kind),
                }
            }
            Flow::Ovf => self.overflow(),
            Flow::ModeExec {
                mode,
                interrupt_flag,
            } => self.bound.mode = Some((mode, interrupt_flag)),
            Flow::ModeTsx(state) => self.bound.tsx = Some(state),
            Flow::Pip { cr3, nr } => self.bound.paging = Some((cr3, nr)),
            Flow::Vmcs(base) => self.bound.vmcs = Some(base),
            Flow::Tip(_) => {
                // A far transfer has used up what was bound, though nobody knows where.
                let bound = core::mem::take(&mut self.bound);
                self.apply(Bound { tsx: None, ..bound }, None);
            }
            Flow::ExStop { ip } | Flow::Cfe { ip, .. } => self.claimed = ip,
            Flow::Mwait { .. } | Flow::Pwre { .. } | Flow::Evd { .. } => self.claimed = claimed,
            Flow::Tnt { .. }
            | Flow::Fup(None)
            | Flow::Pge(None)
            | Flow::TraceStop
            | Flow::PsbEnd
            | Flow::Pwrx { .. } => {}
        }
    }

    /// After an OVF: where tracing goes on (33.3.8).
    pub(crate) fn overflow(&mut self) {
        self.tnt_len = 0;
        self.returns.clear();
        self.bound = Bound::default();
        self.held.clear();
        self.claimed = false;
        let errata = self.config.errata;
        let mut status = None;
        loop {
            let flow = match self.next_flow() {
                Ok(Some(flow)) => flow,
                Ok(None) => {
                    self.note_used();
                    self.push(Event::Overflow { ip: None });
                    self.state = State::Done;
                    return;
                }
                Err(error) => {
                    self.push(Event::Overflow { ip: None });
                    self.lose(error.into());
                    return;
                }
            };
            match flow {
                Flow::Ovf => {}
                Flow::Psb if self.at_end() => {
                    self.push(Event::Overflow { ip: None });
                    self.state = State::Done;
                    return;
                }
                Flow::Psb => match self.read_psb_plus() {
                    PsbPlus::Complete(found) if found.ip.is_some() => {
                        self.after_overflow(found.ip, Some(found));
                        return;
                    }
                    PsbPlus::Complete(found) => status = Some(found),
                    PsbPlus::Overflow | PsbPlus::End => {}
                    PsbPlus::Bad(kind) => {
                        self.push(Event::Overflow { ip: None });
                        self.lose(kind);
                        return;
                    }
                },
                Flow::Fup(Some(ip)) => {
                    let off = errata.apl12 && self.pge_is_next();
                    self.after_overflow(Some(ip).filter(|_| !off), status);
                    return;
                }
                Flow::Pgd(_) if errata.apl11 => {
                    self.after_overflow(None, status);
                    return;
                }
                Flow::Tnt { .. } | Flow::Tip(_) | Flow::Pgd(_) | Flow::Fup(None) | Flow::PsbEnd => {
                    self.push(Event::Overflow { ip: None });
                    if errata.skd010 {
                        self.state = State::Lost;
                    } else {
                        self.lose(unexpected(flow, Expected::FupOrTipPge));
                    }
                    self.reader.put_back(flow);
                    return;
                }
                _ => {
                    self.reader.put_back(flow);
                    self.after_overflow(None, status);
                    return;
                }
            }
        }
    }

    fn after_overflow(&mut self, ip: Option<Ip>, status: Option<Status>) {
        self.consumed();
        self.push(Event::Overflow { ip });
        match ip {
            Some(ip) => {
                self.state = State::On;
                self.phase = Phase::Enter;
                self.ip = ip;
                self.body = 0..0;
                self.pending = Pending::None;
                self.resume_at = None;
            }
            None => self.turn_off(None),
        }
        if let Some(status) = status {
            self.apply_status(status);
        }
    }
}

pub(crate) fn unexpected(found: Flow, expected: Expected) -> FlowErrorKind {
    FlowErrorKind::Unexpected {
        found: found.kind(),
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
}

impl<C: CodeSource> core::iter::FusedIterator for FlowDecoder<'_, C> {}
