//! Errata that show where control is compared with the packets: BDM64, SKD022, SKL014.

use super::Walker;
use crate::code::{Binds, Cursor, Entry, Flow};
use crate::config::{AddressFilter, Errata};
use crate::decoder::Decoder;
use crate::event::{Event, ptev};

/// BDM64: so many instructions without packets may lie before the place of an abort, as in libipt.
const MOST_STEPS: usize = 256;

impl Walker {
    pub(super) fn has(&self, erratum: u32) -> bool {
        self.query.config().errata.has(erratum)
    }

    /// SKD022: whether the next event, which is due, is the end of tracing by the VM entry at which it is due. Its FUP should not be there: the VM entry has
    /// executed, and the event becomes one that binds to it.
    #[inline(always)]
    pub(super) fn is_of_vm_entry(&mut self) -> bool {
        self.has(Errata::SKD022) && self.becomes_that_of_vm_entry()
    }

    #[cold]
    fn becomes_that_of_vm_entry(&mut self) -> bool {
        let Some(event) = self
            .event
            .filter(|event| event.kind == ptev::ASYNC_DISABLED)
        else {
            return false;
        };
        let (image, cursor, asid) = self.parts();
        let is_entry = image
            .look_up(cursor, asid)
            .is_ok_and(|entry| entry.binds == Binds::VmEntry);
        if is_entry {
            let to = event.variant[1];
            self.event = Some(Event {
                kind: ptev::DISABLED,
                variant: [to, 0, 0],
                ..event
            });
        }
        is_entry
    }

    /// BDM64: the target of a branch right before an abort may be wrong. Where the place of the abort cannot be reached behind the branch, control is taken to be
    /// there.
    #[inline]
    pub(super) fn mend_abort(&mut self, branch: Flow) {
        let Some(event) = self.event.as_ref().filter(|event| {
            event.kind == ptev::TSX && event.variant[1] & 2 != 0 && self.has(Errata::BDM64)
        }) else {
            return;
        };
        // (Within a block libipt looks behind no branch that needs no packet.)
        let looked_at = match branch {
            Flow::Next => false,
            Flow::Direct | Flow::DirectCall => !self.by_blocks,
            _ => true,
        };
        if let Some(ip) = event.ip().filter(|_| looked_at)
            && !self.reaches(ip)
        {
            self.go(ip);
        }
    }

    /// Whether control comes to an address by itself, soon.
    fn reaches(&mut self, ip: u64) -> bool {
        let (image, &mut cursor, asid) = self.parts();
        let mut cursor: Cursor = cursor;
        for _ in 0..MOST_STEPS {
            if cursor.ip == ip {
                return true;
            }
            let Ok(entry) = image.look_up(&mut cursor, asid) else {
                return false;
            };
            let step = entry.step();
            match step.flow {
                Flow::Next => image.follow(&mut cursor, step.next_ip, false, asid),
                Flow::Direct | Flow::DirectCall => {
                    image.follow(&mut cursor, step.target, true, asid);
                }
                _ => return false,
            }
        }
        cursor.ip == ip
    }

    /// SKL014: whether it is a direct branch that leads out of what is traced, so that a TIP.PGD without an address may be its own.
    pub(super) fn leaves_ranges_by(&self, entry: &Entry) -> bool {
        let step = entry.step();
        matches!(step.flow, Flow::Direct | Flow::DirectCall)
            && self.has(Errata::SKL014)
            && !self.query.config().filter.traces(step.target)
    }
}

impl AddressFilter {
    /// Whether code at an address is traced: it lies in no range that stops tracing, and in one of those that filter, if there are any.
    fn traces(&self, ip: u64) -> bool {
        const FILTERS: u64 = 1;
        const STOPS: u64 = 2;
        let within = |kind| {
            let ranges = self.ranges.iter().zip(0..);
            ranges
                .filter(move |(_, n)| self.config >> (4 * n) & 15 == kind)
                .map(move |([a, b], _)| (*a..=*b).contains(&ip))
        };
        let filtered = within(FILTERS).next().is_none() || within(FILTERS).any(|is_in| is_in);
        filtered && !within(STOPS).any(|is_in| is_in)
    }
}
