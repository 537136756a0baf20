//! Where an event comes from: its packets, its address, its time.

use alloc::collections::VecDeque;
use core::fmt;

use cofi_packet::intel::Kind;
use cofi_packet::{ExecMode, Ip, Tsc};

use crate::PacketKind;
use crate::events::replay::{LISTED, Replay};
use crate::reader::{Flow, Reader};

/// More packets than this are never noted for one event. A compound event has at most five (table 33-14).
const MAX_KINDS: usize = 6;

/// The packets of an event, in the order of the stream.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PacketKinds {
    kinds: [Option<PacketKind>; MAX_KINDS],
}

impl PacketKinds {
    /// The packets.
    pub fn iter(&self) -> impl Iterator<Item = PacketKind> + use<> {
        self.kinds.into_iter().flatten()
    }

    fn push(&mut self, kind: PacketKind) {
        if let Some(slot) = self.kinds.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(kind);
        }
    }
}

impl fmt::Display for PacketKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, kind) in self.iter().enumerate() {
            let blank = if place == 0 { "" } else { " " };
            write!(f, "{blank}{}", kind.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for PacketKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

/// Where an event comes from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    /// Where its first packet begins.
    pub(crate) offset: usize,
    pub(crate) kinds: PacketKinds,
    /// The address to which it is bound.
    pub(crate) ip: Option<Ip>,
    /// The estimate of the time when its first packet was made.
    pub(crate) tsc: Option<Tsc>,
}

impl Origin {
    pub(crate) fn new(offset: usize, kind: impl Into<PacketKind>, tsc: Option<Tsc>) -> Self {
        let mut kinds = PacketKinds::default();
        kinds.push(kind.into());
        Self {
            offset,
            kinds,
            ip: None,
            tsc,
        }
    }

    /// With a further packet.
    pub(crate) fn and(mut self, kind: impl Into<PacketKind>) -> Self {
        self.kinds.push(kind.into());
        self
    }

    /// Bound to an address that a packet of this kind gave, if one did and none had before.
    pub(crate) fn at(self, ip: Option<Ip>, kind: impl Into<PacketKind>) -> Self {
        match (ip, self.ip) {
            (Some(_), None) => Self {
                ip,
                ..self.and(kind)
            },
            _ => self,
        }
    }
}

/// Where the state comes from that waits for the next address packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BoundOrigins {
    pub(crate) mode: Origin,
    pub(crate) tsx: Origin,
    pub(crate) paging: Origin,
    pub(crate) vmcs: Origin,
}

impl BoundOrigins {
    /// All from the same packets.
    pub(crate) fn all(origin: Origin) -> Self {
        Self {
            mode: origin.and(Kind::ModeExec),
            tsx: origin.and(Kind::ModeTsx),
            paging: origin.and(Kind::Pip),
            vmcs: origin.and(Kind::Vmcs),
        }
    }
}

/// What stands before a TIP: may some of the TNT bits there belong to branches after it?
///
/// A processor may defer TIPs (33.4.2.3): it sends TNT bits when they fill a packet or when another packet forces them out, then the
/// TIPs, then that other packet. So bits may belong to branches after the TIPs behind them. They cannot if there are none; nor
/// if the TNT is not full and what comes behind the TIPs is a TNT: then the last TIP itself forced them out, that of a RET, which is never
/// deferred; or the processor does not defer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Run {
    /// They may, for all that is known.
    #[default]
    Unknown,
    /// There are no bits.
    Clear,
    /// A TNT that is not full, when so many timing packets had been read. (Whether timing packets force bits out, the manual leaves open.)
    Partial(u64),
}

impl Run {
    /// Whether all TNT bits before the TIP that was just read are those of branches before it.
    pub(crate) fn ends(self, reader: &Reader<'_>) -> bool {
        match self {
            Run::Unknown => false,
            Run::Clear => true,
            Run::Partial(timing) => {
                let mut ahead = reader.clone();
                matches!(ahead.next(), Some(Ok(Flow::Tnt { .. }))) && ahead.timing == timing
            }
        }
    }
}

/// What is remembered of losses, and for the event level.
#[derive(Debug)]
pub(crate) struct Notes {
    /// Where the flow was lost, until it is found again.
    pub(crate) lost_at: Option<usize>,
    /// Control was lost while tracing was on, and no packet in between is in doubt.
    pub(crate) was_on: bool,
    /// The modes that packets have told of, a bit each.
    modes: u8,
    /// Those since the last PSB, with its own, and how often they were told.
    modes_since_psb: (u8, u8),
    /// After an error: code may run in another mode than is known.
    pub(crate) is_mode_doubtful: bool,
    /// A packet has told the mode, and none was lost since that could have told another.
    pub(crate) is_mode_certain: bool,
    /// While control is lost: what stands before a TIP that comes next.
    pub(crate) run: Run,
    /// Whether this is the event level: it wants to know the rest.
    pub(crate) tells: bool,
    /// The packet, or the packets of a compound event, that are being dealt with.
    pub(crate) now: Origin,
    /// Where the processor went to sleep.
    pub(crate) power: Option<Ip>,
    /// The packet read last.
    pub(crate) last: Option<PacketKind>,
    pub(crate) bound: BoundOrigins,
    /// The PTW packet whose FUP is to come.
    pub(crate) ptwrite: Origin,
    /// Of the items that are due.
    pub(crate) due: VecDeque<Origin>,
    /// So many may be due before ticks are read twice.
    pub(crate) listed: usize,
    /// How many items were due so far, and how many of them were returned.
    pub(crate) noted: u64,
    pub(crate) returned: u64,
    /// What is to be read again between them.
    pub(crate) replays: VecDeque<Replay>,
}

impl Default for Notes {
    fn default() -> Self {
        Self {
            lost_at: None,
            was_on: false,
            modes: 0,
            modes_since_psb: (0, 0),
            is_mode_doubtful: false,
            is_mode_certain: false,
            run: Run::default(),
            tells: false,
            now: Origin::default(),
            power: None,
            last: None,
            bound: BoundOrigins::default(),
            ptwrite: Origin::default(),
            due: VecDeque::new(),
            listed: LISTED,
            noted: 0,
            returned: 0,
            replays: VecDeque::new(),
        }
    }
}

impl Notes {
    /// A packet tells the mode.
    pub(crate) fn note_mode(&mut self, mode: ExecMode) {
        self.modes |= 1 << (mode.bits() / 32);
        let (modes, count) = &mut self.modes_since_psb;
        *modes |= 1 << (mode.bits() / 32);
        *count = count.saturating_add(1);
        self.is_mode_doubtful = false;
    }

    /// A PSB+ tells the state anew.
    pub(crate) fn note_psb(&mut self) {
        self.modes_since_psb = (0, 0);
    }

    /// Whether the last PSB+ and packets since have told one mode, and more than once: one packet may be wrong.
    pub(crate) fn is_one_mode_told_again(&self) -> bool {
        let (modes, count) = self.modes_since_psb;
        modes.count_ones() == 1 && count >= 2
    }

    /// Whether all packets have told the same mode.
    pub(crate) fn has_one_mode(&self) -> bool {
        self.modes.count_ones() <= 1
    }

    /// What is to be read again behind all items that are due.
    pub(crate) fn last_replay(&mut self) -> Option<&mut Replay> {
        let noted = self.noted;
        let last = self.replays.back_mut();
        last.filter(|replay| replay.before == noted)
    }

    /// Something is to be read again behind all items that are due.
    pub(crate) fn push_replay(&mut self, mut replay: Replay) {
        replay.before = self.noted;
        self.replays.push_back(replay);
    }

    /// An item that comes from `origin` is due.
    #[inline]
    pub(crate) fn note(&mut self, origin: Origin) {
        if self.tells {
            self.due.push_back(origin);
            self.noted += 1;
        }
    }
}
