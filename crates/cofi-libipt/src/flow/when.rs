//! When an event is due: at an address, behind an instruction, or at once.

use super::Walker;
use crate::code::{Binds, Entry, Flow};
use crate::error::Error;
use crate::event::{Event, flag, ptev};

impl Walker {
    /// Whether an event is due where control is.
    #[inline]
    pub(super) fn is_due(&self, event: &Event) -> bool {
        let here = event.ip().is_none_or(|ip| ip == self.cursor.ip);
        let update = event.has(flag::STATUS_UPDATE);
        match event.kind {
            ptev::ENABLED | ptev::OVERFLOW | ptev::STOP | ptev::CBR | ptev::MNT | ptev::TICK => {
                true
            }
            ptev::PWRE | ptev::PWRX => true,
            // Behind an instruction.
            ptev::DISABLED => !self.enabled,
            ptev::PAGING | ptev::VMCS => !self.enabled,
            ptev::PTWRITE => !self.enabled,
            ptev::ASYNC_DISABLED | ptev::ASYNC_BRANCH => event.variant[0] == self.cursor.ip,
            ptev::EXSTOP | ptev::MWAIT if !self.enabled => true,
            _ if update && !self.enabled => event.has(flag::IP_SUPPRESSED),
            _ => here,
        }
    }

    /// Whether tracing ended where control is, for the block decoder: it stops where the first instruction stands that was not traced.
    pub(super) fn left_ranges(&self, event: &Event) -> bool {
        event.kind == ptev::DISABLED && event.ip() == Some(self.cursor.ip)
    }

    /// Whether another event, of another type, is due behind an instruction.
    pub(super) fn binds_another(&mut self, entry: &Entry) -> Result<bool, Error> {
        self.fetch_event()?;
        match &self.event {
            Some(event) if self.bound & 1 << event.kind == 0 => self.binds_event(entry),
            _ => Ok(false),
        }
    }

    /// Whether the next event is due behind an instruction, before control goes on.
    pub(super) fn binds_event(&mut self, entry: &Entry) -> Result<bool, Error> {
        self.fetch_event()?;
        let Some(event) = &self.event else {
            return Ok(false);
        };
        self.due = match event.kind {
            ptev::DISABLED => {
                ends_tracing(entry, event.ip(), self.by_blocks)
                    || event.ip().is_none() && self.leaves_ranges_by(entry)
            }
            ptev::PAGING => entry.binds == Binds::Paging || entry.is_far(),
            ptev::VMCS => entry.binds == Binds::Vmcs || entry.is_far(),
            ptev::PTWRITE => match event.ip() {
                Some(ip) => entry.insn.ip == ip,
                None => entry.binds == Binds::Ptwrite,
            },
            _ => false,
        };
        Ok(self.due)
    }
}

/// Whether tracing may have ended behind an instruction, control having gone to `ip` if that is told. If it is not, libipt's block decoder takes any
/// branch for the end whose outcome the stream would tell, its instruction decoder only far ones.
fn ends_tracing(entry: &Entry, ip: Option<u64>, by_blocks: bool) -> bool {
    let step = entry.step();
    match (step.flow, ip) {
        (Flow::Next, None) => entry.binds == Binds::Paging,
        (Flow::Next, Some(_)) => false,
        (Flow::Far, _) => true,
        (Flow::Direct | Flow::DirectCall, None) => false,
        (_, None) => by_blocks,
        (Flow::Direct | Flow::DirectCall, Some(ip)) => step.target == ip,
        (Flow::Conditional, Some(_)) => true,
        (Flow::Indirect | Flow::IndirectCall | Flow::Return, Some(_)) => true,
    }
}
