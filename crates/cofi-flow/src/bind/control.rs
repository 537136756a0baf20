//! Where control is: what the binder tells whoever follows it, and asks.

use cofi_insn::CodeSource;
use cofi_packet::{ExecMode, Ip};

use crate::code::cache::BasicBlock;
use crate::code::retstack::ReturnStack;
use crate::family::CodeRules;

/// Whether code comes to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coming {
    Never,
    Surely,
    /// It may have done something else before; or it is too far to see.
    Perhaps,
}

/// Who follows control, as the [binder](crate::bind::Binder) sees it.
///
/// What is given here is what one does who follows no code: the event level.
pub(crate) trait Control {
    /// Whether code is followed: then TNT bits and the targets of TIPs are for the walk, and else they are events.
    const FOLLOWS_CODE: bool = false;

    /// The code, as far as there is any.
    type Code: CodeSource;

    fn code(&mut self) -> &mut Self::Code;

    /// Where control is; none if that is not followed.
    fn at(&self) -> Option<Ip> {
        None
    }

    /// Tracing is on, and control is at `ip`, where a branch led or not.
    fn go_to(&mut self, ip: Ip, is_branch: bool) {
        let _ = (ip, is_branch);
    }

    /// Tracing is off, or control is lost.
    fn stop(&mut self) {}

    /// No compressed return refers to a call before this.
    fn forget_callers(&mut self) {}

    /// The calls that compressed returns may refer to.
    fn callers(&self) -> Option<&ReturnStack> {
        None
    }

    /// Whether the branch that led here was taken.
    fn set_taken(&mut self, is_taken: bool) {
        let _ = is_taken;
    }

    /// Whether code leads from here to an address without a packet. What the end of a block on the way, with or without a packet, says of that,
    /// the caller may know better.
    fn comes_to<R: CodeRules>(
        &mut self,
        stop: Ip,
        mode: ExecMode,
        rules: &R,
        at_end: impl Fn(&BasicBlock) -> Option<Coming>,
    ) -> Coming {
        let _ = (stop, mode, rules, at_end);
        Coming::Perhaps
    }
}

/// Nobody follows control.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoCode;

impl Control for NoCode {
    type Code = Self;

    fn code(&mut self) -> &mut Self {
        self
    }
}

impl CodeSource for NoCode {
    fn read(&mut self, _: Ip, _: &mut [u8]) -> usize {
        0
    }
}
