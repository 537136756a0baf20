//! Where control is: what the binder tells whoever follows it, and asks.

use cofi_insn::Insn;
use cofi_packet::{ExecMode, Ip};

use crate::family::IntelPt;
use crate::reader::Reader;
use crate::rtit::Ranges;

/// Whether code comes to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coming {
    Never,
    Surely,
    /// A direct branch before it may have ended tracing; or it is too far to see.
    Perhaps,
}

/// Who follows control, as the [binder](crate::bind::Binder) sees it.
///
/// What is given here is what one does who follows no code: the event level.
pub(crate) trait Control {
    /// Whether code is followed: then TNT bits and the targets of TIPs are for the walk, and else they are events.
    const FOLLOWS_CODE: bool = false;

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

    /// Control is about to be lost in doubt: calls that are known may still be returned from, those of losses before only `and_older`.
    fn keep_callers(&mut self, and_older: bool) {
        let _ = and_older;
    }

    /// Whether the branch that led here was taken.
    fn set_taken(&mut self, is_taken: bool) {
        let _ = is_taken;
    }

    /// The instruction at an address.
    fn instruction_at(&mut self, ip: Ip, mode: ExecMode) -> Option<Insn> {
        let _ = (ip, mode);
        None
    }

    /// Whether a [trial](crate::walk::trial) confirms that control is at `ip`, `reader` having read the packet that says so.
    fn confirms(&mut self, reader: &Reader<'_, IntelPt>, ip: Ip, mode: ExecMode) -> bool {
        let _ = (reader, ip, mode);
        false
    }

    /// Whether code leads from here to an address, or to a direct branch that has it behind it, without a packet.
    fn comes_to(&mut self, behind: Ip, mode: ExecMode, ranges: &Ranges) -> Coming {
        let _ = (behind, mode, ranges);
        Coming::Perhaps
    }
}

/// Nobody follows control.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoCode;

impl Control for NoCode {}
