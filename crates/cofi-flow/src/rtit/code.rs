//! Where the ranges of RTIT end a run of instructions: control may leave what is traced there, or enter what stops tracing.

use cofi_insn::Class;
use cofi_packet::Ip;

use crate::FilterRanges;
use crate::family::CodeRules;

/// The ranges of which RTIT's packets do not tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ranges {
    /// Those that are traced; none if all is.
    pub(super) filter: FilterRanges,
    /// Those of TraceStop.
    pub(super) stop: FilterRanges,
}

impl CodeRules for Ranges {
    /// The one return address that is remembered is that of any call (4.2.3.2).
    const NOTES_EVERY_CALL: bool = true;

    fn is_limit(&self, ip: Ip) -> bool {
        self.filter.ends_before(ip)
    }

    fn is_special(&self, class: Class, target: Option<Ip>, next: Ip) -> bool {
        let may_end_at = |ip| !self.filter.contains(ip) || self.stop.contains_any(ip);
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

impl FilterRanges {
    /// The first addresses.
    pub(super) fn bases(&self) -> impl Iterator<Item = Ip> {
        self.iter().map(|(first, _)| first)
    }

    /// Whether an address is in one of the ranges, none being no range.
    pub(super) fn contains_any(&self, ip: Ip) -> bool {
        !self.is_empty() && self.contains(ip)
    }

    /// Whether control that goes on at `ip` leaves a range.
    pub(super) fn ends_before(&self, ip: Ip) -> bool {
        !self.contains(ip) && self.iter().any(|(_, last)| last.0.wrapping_add(1) == ip.0)
    }
}
