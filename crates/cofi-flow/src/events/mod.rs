//! The event level: what packets tell without any code.

pub(crate) mod origin;
pub(crate) mod replay;
#[cfg(test)]
mod replay_tests;

use cofi_packet::{Ip, StreamOffset, Tsc};

use crate::bind::control::NoCode;
use crate::bind::{Binder, Pending, State};
use crate::decoder::{AnyBinder, on};
use crate::family::ResyncFamily;
use crate::{Event, FlowConfig, FlowError, FlowErrorKind, Item};
pub use origin::PacketKinds;

/// Something that packets tell, and where they tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocatedEvent {
    /// Where its first packet begins. Packets of other events may stand between its own, so offsets may go back.
    pub offset: StreamOffset,
    /// Its packets; none of an error.
    pub packets: PacketKinds,
    /// The address to which it is bound (33.4.1), if packets tell: where an interrupt struck, where a new mode begins to hold.
    pub ip: Option<Ip>,
    /// The time stamp counter when its first packet was made, by the timing packets before it.
    pub tsc: Option<Tsc>,
    /// What it is, or what is wrong.
    pub what: Result<Event, FlowError>,
}

/// An error that no packets tell: of who puts streams together, as [`FlowErrorKind::Missing`].
impl From<FlowError> for LocatedEvent {
    fn from(error: FlowError) -> Self {
        Self {
            offset: error.offset,
            packets: PacketKinds::default(),
            ip: None,
            tsc: None,
            what: Err(error),
        }
    }
}

/// Binds packets into events (33.4.1, tables 33-14 and 33-55 to 33-59), without any code.
///
/// An iterator over [`LocatedEvent`]s. It tells what [`FlowDecoder`](crate::FlowDecoder) does but for the instructions, and instead of these, where wanted, the
/// targets of branches and the TNT bits: a coarse view of the flow for which no code is needed.
///
/// ```
/// use cofi_flow::{Event, EventDecoder, FlowConfig};
/// use cofi_packet::{Ip, intel::PSB};
///
/// let mut trace = Vec::from(PSB);
/// trace.extend([0x02, 0x23]); // PSBEND
/// trace.extend([0x51, 0x00, 0x10, 0x00, 0x00]); // TIP.PGE 0x1000
/// trace.extend([0x3d, 0x02, 0x10]); // FUP 0x1002
/// trace.extend([0x02, 0x43, 0, 5, 0, 0, 0, 0]); // PIP
/// trace.extend([0x2d, 0x80, 0x20]); // TIP 0x2080
/// let told: Vec<_> = EventDecoder::new(&trace, FlowConfig::default()).collect();
/// let (from, to) = (Ip(0x1002), Ip(0x2080));
/// assert_eq!(told[1].what, Ok(Event::AsyncBranch { from, to }));
/// assert_eq!((told[1].offset.0, told[1].packets.to_string()), (23, "fup tip".into()));
/// // The new page tables hold from the target on.
/// assert_eq!((told[2].ip, told[2].packets.to_string()), (Some(to), "pip tip".into()));
/// ```
///
/// # What no packet tells
///
/// Nothing is guessed. Without code it is not known:
///
/// - which instruction a PIP or VMCS packet belongs to that stands outside of a compound event: a `MOV CR3`, or the far
///   transfer whose TIP comes next. Such a packet is told when it is read, bound to no address. One that follows a
///   FUP, or a MODE.Exec, belongs to the TIP behind.
/// - where a PTWRITE stood that has no FUP, and where a TIP.PGD without FUP came from.
/// - whether tracing goes on where it went off, if a TIP.PGD tells no address: then `resumed` is false.
/// - how many TNT bits belong to the instructions before a TIP: processors may defer TIPs (33.4.2.3).
/// - of RTIT, whether a FUP.FAR or FUP.PGD is a far transfer's, an event's or, the latter, a near branch's: they are told as if something had
///   struck at their address. And that tracing was switched off, where no FUP.PGD tells.
///
/// A PSB+ is told of only as far as it tells news: the first, tracing on, is [`Event::Enabled`].
#[derive(Debug)]
pub struct EventDecoder<'t> {
    /// All of it but what to do with what is bound while tracing is on.
    bind: AnyBinder<'t>,
    branches: bool,
}

impl<'t> EventDecoder<'t> {
    /// A decoder of `trace`, the bytes of one packet stream. Of `config`, what concerns format, clocks and errata matters.
    pub fn new(trace: &'t [u8], config: FlowConfig) -> Self {
        let mut bind = AnyBinder::new(trace, config);
        on!(&mut bind, bind => {
            bind.emit.keeps_origins = true;
            bind.reader.ask_always();
        });
        Self {
            bind,
            branches: false,
        }
    }

    /// With [`Event::Target`] and [`Event::Branches`].
    #[must_use]
    pub fn with_branches(mut self) -> Self {
        self.branches = true;
        self
    }

    /// With [`Event::Tick`].
    #[must_use]
    pub fn with_ticks(mut self) -> Self {
        on!(&mut self.bind, bind => bind.reader.ticks = Some(Default::default()));
        self
    }

    /// Only the part from the first PSB at or after `range.start` up to the first PSB at or after `range.end`: see
    /// [`FlowDecoder::within`](crate::FlowDecoder::within).
    #[must_use]
    pub fn within(mut self, range: core::ops::Range<StreamOffset>) -> Self {
        let usize = |offset: StreamOffset| usize::try_from(offset.0).unwrap_or(usize::MAX);
        on!(&mut self.bind, bind => bind.cut(usize(range.start)..usize(range.end)));
        self
    }
}

/// The address that is part of an event.
fn place(event: Event) -> Option<Ip> {
    match event {
        Event::Enabled { ip, .. } | Event::Target { ip } => Some(ip),
        Event::AsyncBranch { from: ip, .. } | Event::AsyncDisabled { at: ip, .. } => Some(ip),
        Event::Disabled { ip }
        | Event::Overflow { ip }
        | Event::Resync { ip, .. }
        | Event::Tsx { ip, .. }
        | Event::ExStop { ip }
        | Event::Ptwrite { ip, .. }
        | Event::Control { ip, .. }
        | Event::Block { ip, .. }
        | Event::Trigger { ip, .. } => ip,
        _ => None,
    }
}

impl<F: ResyncFamily> Binder<'_, F> {
    /// Tracing is on: what is told next happens at once, as no code must lead there first.
    fn follow(&mut self) {
        match core::mem::replace(&mut self.pending, Pending::None) {
            Pending::None => F::fetch(self, &mut NoCode),
            Pending::Tip(Some(ip)) => {
                self.consumed();
                self.push(Event::Target { ip });
                self.apply_at(ip);
            }
            Pending::Pgd(ip) => {
                self.consumed();
                self.disabled(&mut NoCode, ip, ip);
            }
            Pending::At { ip, what } => F::arrive(self, &mut NoCode, ip, what),
            Pending::Bad(kind) => self.fail(&mut NoCode, kind),
            Pending::Tip(None) => {
                self.fail(&mut NoCode, FlowErrorKind::suppressed(F::TIP));
            }
            Pending::End => self.state = State::Done,
            Pending::Own(own) => F::follow(self, own),
        }
    }

    /// What packets tell next, with or without the branches.
    fn next_told(&mut self, with_branches: bool) -> Option<LocatedEvent> {
        loop {
            let emit = &mut self.emit;
            match emit.replays.front_mut() {
                Some(replay) if replay.before == emit.returned => {
                    match replay.next(&self.reader) {
                        Some(told) => return Some(told),
                        None => _ = emit.replays.pop_front(),
                    }
                    continue;
                }
                _ => {}
            }
            if let Some(item) = self.emit.items.pop_front() {
                self.emit.returned += 1;
                let origin = self.emit.origins.pop_front().unwrap_or_default();
                let what = match item {
                    Item::Event(Event::Target { .. } | Event::Branches { .. })
                        if !with_branches =>
                    {
                        continue;
                    }
                    Item::Event(event) => Ok(event),
                    Item::Error(error) => Err(error),
                    // There is no code.
                    Item::Insn(_) => continue,
                };
                return Some(LocatedEvent {
                    offset: StreamOffset(origin.offset as u64),
                    packets: origin.kinds,
                    ip: origin.ip.or(what.ok().and_then(place)),
                    tsc: origin.tsc,
                    what,
                });
            }
            match self.state {
                State::On => self.follow(),
                State::Done => return None,
                State::Start | State::Off | State::Lost => self.go_on(&mut NoCode),
            }
        }
    }
}

impl Iterator for EventDecoder<'_> {
    type Item = LocatedEvent;

    fn next(&mut self) -> Option<LocatedEvent> {
        on!(&mut self.bind, bind => bind.next_told(self.branches))
    }
}

impl core::iter::FusedIterator for EventDecoder<'_> {}
