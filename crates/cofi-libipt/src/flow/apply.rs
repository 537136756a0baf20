//! What an event changes.

use super::Walker;
use crate::code::{Entry, Flow, NONE};
use crate::error::Error;
use crate::event::{Event, flag, ptev};

impl Walker {
    /// Applies an event that is due, and makes it what is reported.
    pub(super) fn apply(&mut self, event: &mut Event) -> Result<(), Error> {
        let suppressed = event.has(flag::IP_SUPPRESSED);
        match event.kind {
            ptev::ENABLED => {
                if self.enabled {
                    return Err(Error::BadContext);
                }
                let ip = event.variant[0];
                event.variant[1] = u64::from(self.disabled_at == Some(ip));
                self.enabled = true;
                self.go(ip);
            }
            ptev::DISABLED => {
                if !self.enabled {
                    return Err(Error::BadContext);
                }
                self.enabled = false;
                self.disabled_at = match &self.held {
                    Some(entry) => self.returns_to(entry, suppressed),
                    None => event.ip(),
                };
                self.held = None;
            }
            ptev::ASYNC_DISABLED => {
                self.enabled = false;
                self.disabled_at = Some(event.variant[0]);
            }
            ptev::ASYNC_BRANCH => {
                let to = event.ip().ok_or(Error::IpSuppressed)?;
                self.go(to);
            }
            ptev::PAGING | ptev::ASYNC_PAGING => {
                self.asid.cr3 = event.variant[0];
                self.changed_space();
            }
            ptev::VMCS | ptev::ASYNC_VMCS => {
                self.asid.vmcs = event.variant[0];
                self.changed_space();
            }
            ptev::OVERFLOW => {
                self.speculate(false);
                self.held = None;
                self.disabled_at = None;
                match event.ip() {
                    Some(ip) => {
                        self.enabled = true;
                        self.go(ip);
                    }
                    None => self.enabled = false,
                }
            }
            ptev::EXEC_MODE => {
                let mode = event.variant[0] as u32;
                let update = event.has(flag::STATUS_UPDATE);
                if update && self.enabled && self.cursor.mode != 0 && self.cursor.mode != mode {
                    return Err(Error::BadStatusUpdate);
                }
                self.cursor.mode = mode;
                self.go(self.cursor.ip);
            }
            ptev::PTWRITE if suppressed => {
                if let Some(entry) = &self.held {
                    event.variant[0] = entry.insn.ip;
                    event.flags &= !flag::IP_SUPPRESSED;
                }
            }
            ptev::TSX => self.speculate(event.variant[1] & 1 != 0),
            _ => {}
        }
        Ok(())
    }

    /// Where tracing that goes on behind an instruction that ended it counts as resumed, if anywhere. (The block decoder has not gone on from where no address is
    /// told.)
    fn returns_to(&self, entry: &Entry, suppressed: bool) -> Option<u64> {
        let step = entry.step();
        match step.flow {
            Flow::Direct | Flow::DirectCall | Flow::Next if self.by_blocks && suppressed => {
                Some(entry.insn.ip)
            }
            Flow::Direct | Flow::DirectCall => Some(step.target),
            Flow::Next | Flow::IndirectCall => Some(step.next_ip),
            Flow::Far => entry.is_call().then_some(step.next_ip),
            Flow::Conditional | Flow::Indirect | Flow::Return => None,
        }
    }

    /// Other code may stand at the same addresses.
    fn changed_space(&mut self) {
        self.cursor.entry = NONE;
        let (image, _, asid) = self.parts();
        image.in_space(asid);
    }
}
