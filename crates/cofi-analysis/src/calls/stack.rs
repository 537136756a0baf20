//! Open calls.

use cofi_packet::Ip;

use super::inlines::InlineFrame;
use super::names::GoRole;
use super::{Call, CallMoment, FunctionId};

/// An open call.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Frame {
    pub(crate) call: Call,
    /// Where it returns to, if a call or what follows from one told.
    pub(crate) ret: Option<Ip>,
    /// Of what interrupted: where control goes on behind it.
    pub(crate) resume: Option<Ip>,
    /// The address to which a call to the next instruction would return.
    pub(crate) ghost: Option<Ip>,
    /// That call was one past an INT3, or in a thunk, when the thread had run so many instructions. The address that it pushed may be replaced by a
    /// function's soon, as in the kernel's indirect calls.
    pub(crate) filled_at: Option<u64>,
    /// Where the last call of `setjmp` in it returned to.
    pub(crate) saved: Option<Ip>,
    /// It ends in an exception: what stands behind the call is not where it returns to, but may be where that lands.
    pub(crate) throws: bool,
    /// It is the handler of a signal, or what that has jumped to.
    pub(crate) is_handler: bool,
    /// It is a call of `setjmp`, or what that has jumped to.
    pub(crate) saves: bool,
    /// What Go's runtime does in it, or did in what has jumped to it.
    pub(crate) go: Option<GoRole>,
    /// The function whose indirect jump began it.
    pub(crate) jumper: Option<FunctionId>,
    /// It is within a function, as a subroutine of that.
    pub(crate) is_inner: bool,
    /// It may be a stub: nobody was told of it, as the function may be the one to which it jumps.
    pub(crate) is_stub: bool,
    /// The instructions of its stack when it began.
    pub(crate) begin: u64,
    /// Those of the stream.
    pub(crate) at: u64,
    /// Those that ran in it and in nothing that it called.
    pub(crate) self_insns: u64,
}

/// The open calls of one stack, the innermost last.
#[derive(Debug, Default)]
pub(crate) struct Stack {
    pub(crate) frames: Vec<Frame>,
    /// The open calls of inlined functions, each in one of the frames.
    pub(crate) inlines: Vec<InlineFrame>,
    /// How many instructions of the thread ran on other stacks since this one began, or before.
    pub(crate) elsewhere: u64,
    /// How many had run when it was switched away from.
    pub(crate) since: u64,
    /// Its number, as calls have it.
    pub(crate) number: u32,
    /// When the thread began on it, or went on behind a gap, and how many instructions had run on it by then.
    pub(crate) first: Option<(CallMoment, u64)>,
    /// It began as a coroutine: the outermost function was called by nobody.
    pub(crate) is_coroutine: bool,
    /// How many of its outermost calls were taken to be left because there were so many.
    pub(crate) forgotten: u64,
}

impl Frame {
    /// Whether it would return to an address.
    pub(crate) fn returns_to(&self, ip: Ip) -> bool {
        self.ret == Some(ip) && !self.throws
    }
}

impl Stack {
    /// Whether its innermost call would return to an address.
    pub(crate) fn waits_for(&self, ip: Ip) -> bool {
        self.top().is_some_and(|top| top.returns_to(ip))
    }

    #[inline]
    pub(crate) fn top(&self) -> Option<&Frame> {
        self.frames.last()
    }

    /// The innermost inlined function of the innermost call.
    #[inline]
    pub(crate) fn inlined(&self) -> Option<&InlineFrame> {
        let inline = self.inlines.last()?;
        (inline.owner + 1 == self.frames.len()).then_some(inline)
    }

    /// The number of the innermost call, be it of an inlined function.
    #[inline]
    pub(crate) fn innermost(&self) -> Option<i64> {
        let inlined = self.inlined().map(|inline| inline.call.number);
        inlined.or_else(|| Some(self.top()?.call.number))
    }

    /// How many instructions of the thread's have run on it.
    pub(crate) const fn own(&self, total: u64) -> u64 {
        total.wrapping_sub(self.elsewhere)
    }
}
