//! Where packets go (33.2.7): one range of memory (33.2.7.1), the transport subsystem (33.2.7.3).

use crate::client::{Client, PhysAddr};
use crate::registers::Registers;
use crate::spec::Capabilities;

/// The output scheme in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Output {
    live: bool,
}

impl Output {
    /// TraceEn was set. `false`: an operational error (33.3.10) is logged in the status register, and nothing is stored.
    pub(crate) fn start(
        &mut self,
        regs: &mut Registers,
        _caps: &Capabilities,
        _client: &mut impl Client,
    ) -> bool {
        let mask = regs.mask_ptrs.0 & 0xffff_ffff;
        let contiguous = mask & (mask + 1) == 0;
        self.live = contiguous && regs.base.0 & mask == 0 && regs.mask_ptrs.offset() <= mask;
        if !self.live {
            regs.status = regs.status.with_error(true).with_trigger_en(false);
        }
        self.live
    }

    /// Stores `bytes` at the write pointer and moves it. `false`: tracing has ended by this, for good or until software acts;
    /// the status register says why (Error or Stopped, and TriggerEn is 0), and nothing more is stored.
    #[inline(always)]
    pub(crate) fn store(
        &mut self,
        regs: &mut Registers,
        _caps: &Capabilities,
        client: &mut impl Client,
        mut bytes: &[u8],
    ) -> bool {
        let mask = regs.mask_ptrs.0 & 0xffff_ffff;
        while !bytes.is_empty() {
            let offset = regs.mask_ptrs.offset() & mask;
            let room = usize::try_from(mask + 1 - offset).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            client.store(PhysAddr((regs.base.0 & !mask) + offset), now);
            regs.mask_ptrs = regs
                .mask_ptrs
                .with_offset((offset + now.len() as u64) & mask);
            bytes = later;
        }
        true
    }
}
