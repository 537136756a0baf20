//! The event level: what packets tell without any code.

pub(crate) mod notes;
pub(crate) mod replay;
#[cfg(test)]
mod replay_tests;

use cofi_insn::CodeSource;
use cofi_packet::intel::Kind;
use cofi_packet::{Ip, StreamOffset, Tsc};

use crate::decoder::{FlowDecoder, State};
use crate::pending::{Bound, Pending};
use crate::{Event, Expected, FlowConfig, FlowError, FlowErrorKind, Item};
pub use notes::PacketKinds;

/// Something that packets tell, and where they tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
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

/// Binds packets into events (33.4.1, tables 33-14 and 33-55 to 33-59), without any code.
///
/// An iterator over [`Told`]s. It tells what [`FlowDecoder`] does but for the instructions, and instead of these, where wanted, the
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
    /// Does all but follow code while tracing is on.
    flow: FlowDecoder<'t, NoCode>,
    branches: bool,
}

/// There is none.
#[derive(Clone, Copy, Debug)]
struct NoCode;

impl CodeSource for NoCode {
    fn read(&mut self, _: Ip, _: &mut [u8]) -> usize {
        0
    }
}

impl<'t> EventDecoder<'t> {
    /// A decoder of `trace`, the bytes of one packet stream. Of `config`, what concerns format, clocks and errata matters.
    pub fn new(trace: &'t [u8], config: FlowConfig) -> Self {
        let config = FlowConfig {
            cache_limit: 0,
            ..config
        };
        let mut flow = FlowDecoder::new(trace, NoCode, config);
        flow.notes.tells = true;
        flow.reader.ask_always();
        Self {
            flow,
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
        self.flow.reader.ticks = Some(Default::default());
        self
    }

    /// Only the part from the first PSB at or after `range.start` up to the first PSB at or after `range.end`: see
    /// [`FlowDecoder::within`].
    #[must_use]
    pub fn within(mut self, range: core::ops::Range<StreamOffset>) -> Self {
        self.flow = self.flow.within(range);
        self
    }

    /// Tracing is on: what is told next happens at once, as no code must lead there first.
    fn follow(&mut self) {
        let flow = &mut self.flow;
        match core::mem::replace(&mut flow.pending, Pending::None) {
            Pending::None => flow.fetch(),
            Pending::Tip(Some(ip)) => {
                flow.consumed();
                flow.push(Event::Target { ip });
                let bound = core::mem::take(&mut flow.bound);
                flow.apply(bound, Some(ip));
            }
            Pending::Pgd(ip) => {
                flow.consumed();
                let bound = core::mem::take(&mut flow.bound);
                flow.turn_off(ip);
                flow.push(Event::Disabled { ip });
                flow.apply(Bound { tsx: None, ..bound }, ip);
            }
            Pending::Pip(cr3) => {
                flow.consumed();
                flow.push_paging(cr3);
            }
            Pending::Paging { cr3, nr } => {
                flow.consumed();
                flow.push(Event::Paging { cr3, nr });
                flow.known.paging = Some((cr3, nr));
            }
            Pending::Vmcs(base) => {
                flow.consumed();
                flow.push(Event::Vmcs { base });
                flow.known.vmcs = Some(base);
            }
            Pending::Ptwrite { payload, size } => {
                flow.consumed();
                flow.push(Event::Ptwrite {
                    ip: None,
                    payload,
                    size,
                });
            }
            Pending::At { ip, what } => {
                flow.ip = ip;
                flow.arrive(ip, what);
            }
            Pending::Overflow => {
                flow.note_used();
                flow.overflow();
            }
            Pending::Status(status) if flow.contradicts_mode(&status) => flow.refuse_mode(status),
            Pending::Status(status) if status.last => flow.state = State::Done,
            Pending::Status(status) => {
                flow.consumed();
                flow.apply_status(status);
            }
            Pending::Bad(kind) => flow.fail(kind),
            Pending::Tip(None) => flow.fail(FlowErrorKind::SuppressedIp {
                packet: flow.tip_kind(),
            }),
            pending @ (Pending::OverflowAt(_) | Pending::Ends(_)) => flow.follow_rtit(pending),
            pge @ Pending::Pge(_) if flow.reader.is_rtit() => flow.follow_rtit(pge),
            pge @ Pending::Pge(_) => {
                flow.pending = pge;
                flow.fail(FlowErrorKind::Unexpected {
                    found: Kind::TipPge.into(),
                    expected: Expected::TracingOn,
                });
            }
            Pending::End => flow.state = State::Done,
        }
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

impl Iterator for EventDecoder<'_> {
    type Item = Told;

    fn next(&mut self) -> Option<Told> {
        loop {
            let notes = &mut self.flow.notes;
            if let Some(replay) = notes.replays.front_mut()
                && replay.before == notes.returned
            {
                match replay.next(&self.flow.reader) {
                    Some(told) => return Some(told),
                    None => _ = notes.replays.pop_front(),
                }
                continue;
            }
            if let Some(item) = self.flow.out.pop_front() {
                self.flow.notes.returned += 1;
                let origin = self.flow.notes.due.pop_front().unwrap_or_default();
                let what = match item {
                    Item::Event(Event::Target { .. } | Event::Branches { .. })
                        if !self.branches =>
                    {
                        continue;
                    }
                    Item::Event(event) => Ok(event),
                    Item::Error(error) => Err(error),
                    // There is no code.
                    Item::Insn(_) => continue,
                };
                return Some(Told {
                    offset: StreamOffset(origin.offset as u64),
                    packets: origin.kinds,
                    ip: origin.ip.or(what.ok().and_then(place)),
                    tsc: origin.tsc,
                    what,
                });
            }
            match self.flow.state {
                State::On => self.follow(),
                State::Done => return None,
                State::Start | State::Off | State::Lost => self.flow.go_on(),
            }
        }
    }
}

impl core::iter::FusedIterator for EventDecoder<'_> {}
