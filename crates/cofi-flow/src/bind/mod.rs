//! From packets to what the walk has to reach next.
//!
//! Packets bind to instructions (33.4.1): some to the next branch of their kind, some to an address that a FUP gives,
//! some to nothing. [`BindFamily::fetch`] reads as many packets as make up one such thing.

mod awaiting_fup;
pub(crate) mod control;
pub(crate) mod emit;
pub(crate) mod intel;
pub(crate) mod state;

use cofi_packet::{ExecMode, Ip};

use crate::bind::emit::Emit;
use crate::family::BindFamily;
use crate::reader::Reader;
use crate::{Executed, FlowConfig, FlowErrorKind, Item};

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

/// What the walk has to reach next, once the TNT bits are used up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending<F: BindFamily> {
    /// Nothing has been read yet.
    None,
    /// The target of the next indirect branch or far transfer.
    Tip(Option<Ip>),
    /// Tracing goes off at the next instruction that fits (table 33-21).
    Pgd(Option<Ip>),
    /// Something at an address.
    At { ip: Ip, what: F::AtIp },
    /// Packets that make no sense, which matter only once the walk needs another.
    Bad(FlowErrorKind),
    /// No more packets.
    End,
    /// Something that waits in this family alone.
    Own(F::Pending),
}

impl<F: BindFamily> Pending<F> {
    /// Whether this tells how the next branch went.
    #[inline]
    pub(crate) const fn is_decision(&self) -> bool {
        matches!(self, Pending::Tip(Some(_)) | Pending::Pgd(_))
    }
}

/// Binds packets to what they mean together (33.4.1): TNT bits, a target, an event at its place, the end of tracing, a loss.
///
/// It knows whether tracing is on, and where it goes on; where control is in between, only who [follows](control::Control) it does.
#[derive(Debug)]
pub(crate) struct Binder<'t, F: BindFamily> {
    pub(crate) config: FlowConfig,
    pub(crate) reader: Reader<'t, F>,
    pub(crate) state: State,
    pub(crate) mode: ExecMode,
    /// TNT bits not used yet: the oldest on top.
    pub(crate) tnt: u64,
    pub(crate) tnt_len: u8,
    pub(crate) pending: Pending<F>,
    /// Where control was lost, until it is found again.
    pub(crate) lost_at: Option<usize>,
    pub(crate) emit: Emit<F>,
    /// Where control was when tracing went off.
    pub(crate) resume_at: Option<Ip>,
    /// What the binder must know beside, in this family.
    pub(crate) own: F::Binding,
    /// Where the packet read last began.
    pub(crate) read_at: usize,
    /// Where the packet used last began.
    pub(crate) offset: usize,
    /// How many packets and TNT bits were used.
    pub(crate) used: u64,
    /// Decoding ends at the first PSB from here on.
    pub(crate) end: usize,
}

impl<'t, F: BindFamily> Binder<'t, F> {
    pub(crate) fn new(trace: &'t [u8], config: FlowConfig, own: &F::Config) -> Self {
        Self {
            reader: Reader::new(trace, &config, own),
            state: State::Start,
            mode: config.initial_mode,
            tnt: 0,
            tnt_len: 0,
            pending: Pending::None,
            lost_at: None,
            emit: Emit::default(),
            resume_at: None,
            own: F::binding(&config, own),
            read_at: 0,
            offset: 0,
            used: 0,
            end: usize::MAX,
            config,
        }
    }

    /// Only what lies between the first PSBs from these places on is decoded.
    pub(crate) fn cut(&mut self, range: core::ops::Range<usize>) {
        let start = range.start.min(self.reader.len());
        F::go_to(&mut self.reader, start);
        self.end = range.end;
    }

    /// The time is followed from `from` on, which lies before where reading begins.
    pub(crate) fn follow_time_from(&mut self, from: usize) {
        F::follow_time_from(&mut self.reader, from);
    }

    /// Where runs of instructions end.
    #[inline]
    pub(crate) fn rules(&self) -> &F::Rules {
        F::rules(&self.own)
    }

    /// Notes that the packets read so far are used.
    #[inline]
    pub(crate) fn consumed(&mut self) {
        self.note_used();
        self.used += 1;
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
        self.used += 1;
        self.reader.time_of_tnt(len);
    }

    /// What is pending is dealt with, or given up.
    #[inline]
    pub(crate) fn drop_pending(&mut self) {
        self.pending = Pending::None;
    }

    /// TNT bits are left that belong to branches behind a loss.
    pub(crate) fn drop_bits(&mut self) {
        self.tnt_len = 0;
    }

    /// A TIP was read, which the walk has to reach.
    #[inline]
    pub(crate) fn await_tip(&mut self, ip: Ip) {
        self.pending = Pending::Tip(Some(ip));
    }

    /// What is pending turns out to be bound to an address.
    pub(crate) fn await_at(&mut self, ip: Ip, what: F::AtIp) {
        self.pending = Pending::At { ip, what };
    }

    /// Nothing more is to be decoded.
    pub(crate) fn finish(&mut self) {
        self.state = State::Done;
    }

    /// An instruction is due, behind events that come before it.
    pub(crate) fn emit_insn(&mut self, insn: Executed) {
        self.emit.items.push_back(Item::Insn(insn));
    }

    /// What is pending has happened.
    pub(crate) fn use_pending(&mut self) {
        self.consumed();
        self.pending = Pending::None;
    }

    #[inline]
    pub(crate) fn take_bit(&mut self) -> bool {
        let taken = self.tnt >> 63 == 1;
        self.tnt <<= 1;
        self.tnt_len -= 1;
        self.used += 1;
        taken
    }

    /// Control has got to an address that a packet gave: what was bound to it takes effect.
    #[inline]
    pub(crate) fn apply_at(&mut self, ip: Ip) {
        F::apply_at(self, ip);
    }

    /// Whether the PSB just read is where decoding is to end.
    pub(crate) fn at_end(&self) -> bool {
        self.read_at >= self.end
    }
}
