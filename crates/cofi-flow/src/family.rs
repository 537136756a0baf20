//! What differs between the families of packets, Intel PT and RTIT: layer by layer, as the decoder is built.
//!
//! The decoder is there once, generic over its family: each layer has a trait of what a family must say there, and state of the family's own.
//! What has no counterpart in the other family is code of one alone (`impl Binder<'_, IntelPt>`).

use core::fmt::Debug;

use cofi_insn::{Class, CodeSource};
use cofi_packet::{DecodeError, Ip, Tsc};

use crate::bind::control::Control;
use crate::bind::{Binder, Pending};
use crate::code::cache::BasicBlock;
use crate::code::retstack::ReturnStack;
use crate::reader::Reader;
use crate::reader::clock::Stamp;
use crate::reader::decide::Run;
use crate::resync::Certainty;
use crate::time::TimeJump;
use crate::walk::Walker;
use crate::{AnyKind, Event, Executed, Expected, FlowConfig, FlowErrorKind};

/// Intel PT, chapter 33 of the manual.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntelPt;

/// RTIT, its ancestor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtit;

/// The layer of the [`Reader`]: packets and their time.
pub(crate) trait ReadFamily: Copy + Debug + 'static {
    /// What must be known beside the packets, in this family alone.
    type Config: Copy + Debug;
    /// A packet that concerns the flow.
    type Flow: Copy + Debug + Into<AnyKind>;
    /// What it takes to read packets, beside what every reader has.
    type Reading: Clone + Debug;
    /// What it takes to read timing packets a second time.
    type Replay: Clone + Debug;

    /// What forced out a TNT of fewer bits than these comes behind it, and not the timing packets before it.
    const FULL_TNT: u8;

    fn reading(config: &FlowConfig, own: &Self::Config) -> Self::Reading;

    /// The next packet that concerns the flow; `None` at the end of the stream. After an error the caller skips to the
    /// next PSB.
    fn next(reader: &mut Reader<'_, Self>) -> Option<Result<Self::Flow, DecodeError>>;

    /// The next PSB, to which reading skips.
    fn find_psb(reader: &mut Reader<'_, Self>) -> Option<usize>;

    /// Reading goes on elsewhere, outside of any packet.
    fn go_to(reader: &mut Reader<'_, Self>, at: usize);

    /// Nothing has been read yet: the time of the packets between `from` and the place where reading begins is followed, too.
    fn follow_time_from(_: &mut Reader<'_, Self>, _from: usize) {}

    /// Whether errata have the reader skip packets that would tell the time.
    fn skips_packets(_: &Reader<'_, Self>) -> bool {
        false
    }

    /// What packet `bytes` begin with, for messages.
    fn kind_of(reader: &Reader<'_, Self>, bytes: &[u8]) -> Option<AnyKind>;

    /// The clock has been shown all packets read so far from here on.
    fn show_all(_: &mut Reader<'_, Self>) {}

    /// The time and the core cycles at the packet just read, and when that was made at the earliest.
    fn stamps(reader: &Reader<'_, Self>) -> (Stamp<(Option<Tsc>, u64)>, Stamp<Tsc>);

    /// The estimate of the time when the packet last returned was made.
    fn now(reader: &mut Reader<'_, Self>) -> Option<Tsc>;

    /// Whether the time was set back.
    fn take_jump(reader: &mut Reader<'_, Self>) -> Option<TimeJump>;

    /// Up to where it was searched for the next packet that bounds the time, and what it tells.
    fn search(reader: &mut Reader<'_, Self>) -> (usize, Option<Tsc>);

    /// Timing packets are to be read a second time from where `reader` is.
    fn replay(reader: &mut Reader<'_, Self>) -> Self::Replay;

    /// Reads a packet, or padding, at `at` for the second time, and gives `report` what it tells. Returns the size; none if there is none, which
    /// was reported as an error behind this part.
    fn read_again(
        replay: &mut Self::Replay,
        reader: &Reader<'_, Self>,
        at: usize,
        report: impl FnMut(Event, AnyKind, Option<Tsc>),
    ) -> Option<usize>;
}

/// The layer of the [code](crate::code): where runs of instructions end because there is more to ask there than their class tells.
pub(crate) trait CodeRules: Debug {
    /// Whether a call to the next instruction counts as any other, though it may only read the instruction pointer.
    const NOTES_EVERY_CALL: bool = false;

    /// Whether control that walks on to `ip` may leave the traced code.
    fn is_limit(&self, ip: Ip) -> bool {
        let _ = ip;
        false
    }

    /// Whether an instruction of this class and direct target, with `next` behind it, may end tracing or have packets that its class does not tell.
    fn is_special(&self, class: Class, target: Option<Ip>, next: Ip) -> bool {
        let _ = (class, target, next);
        false
    }
}

/// There is nothing to ask.
impl CodeRules for IntelPt {}

/// The layer of the [`Binder`]: what packets mean together.
pub(crate) trait BindFamily: ReadFamily {
    /// Where runs of instructions end.
    type Rules: CodeRules;
    /// What may wait for the walk, beside what [may in every family](Pending).
    type Pending: Copy + Debug;
    /// What may happen at an address that a packet gives.
    type AtIp: Copy + Debug + Into<AnyKind>;
    /// What the binder must know, beside what every binder does.
    type Binding: Debug;

    /// The kind of the packets that tell where an indirect branch led.
    const TIP: AnyKind;

    fn binding(config: &FlowConfig, own: &Self::Config) -> Self::Binding;

    fn rules(binding: &Self::Binding) -> &Self::Rules;

    /// Whether state waits for the next packet that tells an address.
    #[inline]
    fn has_bound(_: &Binder<'_, Self>) -> bool {
        false
    }

    /// Control has got to an address that a packet gave: what was bound to it takes effect.
    #[inline]
    fn apply_at(_: &mut Binder<'_, Self>, _: Ip) {}

    /// Tracing is off, and control is at `ip` if packets tell: what still holds of that takes effect.
    fn apply_off(_: &mut Binder<'_, Self>, _: Option<Ip>) {}

    /// Code is not what it was.
    fn code_changed(_: &mut Self::Binding) {}

    /// Reads packets until something is pending, TNT bits are there, or an event is due at once.
    fn fetch<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W);

    /// Reads what decides where control goes next, if it is a TNT, whose bits are in the register then, or a TIP with an address, which is pending,
    /// and nothing comes before it; `false` if it is something else, which is left where it is.
    fn reads_decision(bind: &mut Binder<'_, Self>) -> bool;

    /// Begins to use the bits that are left and, if nothing else matters, the packets behind them.
    #[inline]
    fn begin_run<'t>(bind: &Binder<'t, Self>) -> Run<'t> {
        Run::of_bits(bind.tnt, bind.tnt_len, bind.offset)
    }

    /// Goes on behind a run.
    #[inline]
    fn end_run(bind: &mut Binder<'_, Self>, run: &Run<'_>) {
        (bind.tnt, bind.tnt_len) = (run.tnt, run.tnt_len);
    }

    /// The walk has come to the address that a packet gave.
    fn arrive<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W, ip: Ip, what: Self::AtIp);

    /// The event level: this happens, which is told otherwise in each family.
    fn follow(bind: &mut Binder<'_, Self>, own: Self::Pending);

    /// Where a conditional branch led that ended tracing, if its packet does not tell, and that can be found out.
    fn left_ranges(_: &Binder<'_, Self>, next: Ip, target: Ip) -> Option<Ip> {
        let _ = (next, target);
        None
    }

    /// The kind of what comes next, of which the walk made no use.
    fn pending_kind(bind: &Binder<'_, Self>) -> AnyKind;
}

/// The same where control is not followed.
pub(crate) trait ResyncFamily: BindFamily {
    /// Reads on while tracing is off.
    fn while_off<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W);

    /// Reads on, control being lost, up to packets that tell where it is without need of what was lost. What else happens is told, wherever
    /// it is.
    fn while_lost<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W);

    /// An error was reported, which may cast doubt on the packets. `false` if reading can go on only at the next PSB.
    fn doubt<W: Control>(
        bind: &mut Binder<'_, Self>,
        walk: &mut W,
        kind: FlowErrorKind,
        is_doubtful: bool,
    ) -> bool;

    /// Control is about to be lost in doubt: these calls may still be returned from.
    fn keep_callers(_: &mut Binder<'_, Self>, _: &ReturnStack) {}

    /// Control was lost while this was pending: goes on where it tells the address, if it does.
    fn recover<W: Control>(
        bind: &mut Binder<'_, Self>,
        walk: &mut W,
        pending: Pending<Self>,
        certainty: Certainty,
    );
}

/// The layer of the [`Walker`]: how code ran.
pub(crate) trait WalkFamily: ResyncFamily {
    /// Whether returns use up return addresses.
    const HAS_STACK: bool;

    /// Before a block: this is pending. Where the walk is to stop, if anywhere; `None` if it does not go on.
    fn enter<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        own: Self::Pending,
    ) -> Option<Option<Ip>>;

    /// After a block's plain instructions: what ends it. Returns the instruction if it has executed and nothing else is to be returned before it.
    fn finish<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        block: &BasicBlock,
        insn: Executed,
    ) -> Option<Executed>;

    /// A branch needs what is `expected`, and this is pending.
    fn unclaimed<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        own: Self::Pending,
        expected: Expected,
    );

    /// Where an indirect branch led before which there are TNT bits that are not used yet.
    fn target_behind_bits<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
    ) -> Option<Ip>;

    /// Code goes on like this for ever, while this is pending.
    fn endless<C: CodeSource>(
        walk: &mut Walker<C>,
        bind: &mut Binder<'_, Self>,
        _: Self::Pending,
        kind: FlowErrorKind,
    ) {
        bind.fail(walk, kind);
    }

    /// Something was fetched: errata may have it that control is elsewhere.
    #[inline(always)]
    fn heed_errata<C: CodeSource>(_: &mut Walker<C>, _: &mut Binder<'_, Self>) {}

    /// Where a compressed return led whose call is not known, if that can be found out.
    fn lost_caller<C: CodeSource>(_: &mut Walker<C>, _: &mut Binder<'_, Self>) -> Option<Ip> {
        None
    }
}
