//! Where the ranges of RTIT end a run of instructions: control may leave what is traced there, or enter what stops tracing.

use cofi_insn::Class;
use cofi_packet::Ip;

use crate::family::CodeRules;
use crate::{IpFilter, StopRanges};

/// The ranges of which RTIT's packets do not tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ranges {
    /// Those that are traced.
    pub(super) filter: IpFilter,
    /// Those of TraceStop.
    pub(super) stop: StopRanges,
}

impl CodeRules for Ranges {
    /// The one return address that is remembered is that of any call (4.2.3.2).
    const NOTES_EVERY_CALL: bool = true;

    fn is_limit(&self, ip: Ip) -> bool {
        self.filter.ends_before(ip)
    }

    fn is_special(&self, class: Class, target: Option<Ip>, next: Ip) -> bool {
        let may_end_at = |ip| !self.filter.contains(ip) || self.stop.contains(ip);
        self.is_limit(next)
            || match class {
                Class::Conditional | Class::DirectJump | Class::DirectCall => {
                    target.is_some_and(may_end_at)
                }
                Class::Return | Class::IndirectJump | Class::IndirectCall => {
                    !self.filter.is_empty() || !self.stop.is_empty()
                }
                // (INTO may have been no transfer, and been interrupted behind: what a FUP tells of it is told behind it.)
                Class::MovCr3 => true,
                class => class.is_far(),
            }
    }
}
