//! Single-range output (33.2.7.1).

use crate::client::{Client, PhysAddr};
use crate::registers::Registers;

/// Whether the output registers describe a region that can be written; if not, an operational error is due (33.3.10).
pub(crate) fn is_legal(regs: &Registers) -> bool {
    let mask = regs.mask_ptrs.0 & 0xffff_ffff;
    let contiguous = mask & (mask + 1) == 0;
    contiguous && regs.base.0 & mask == 0 && regs.mask_ptrs.offset() <= mask
}

/// Stores `bytes` at the write pointer and moves it, around the region's end if need be.
#[inline]
pub(crate) fn store(regs: &mut Registers, client: &mut impl Client, mut bytes: &[u8]) {
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
}
