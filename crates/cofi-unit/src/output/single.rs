//! Single-range output (33.2.7.1): one circular region.

use super::Region;
use crate::registers::Registers;

/// The region that the registers describe; `None` is one of the three errors of 33.2.7.1.
pub(super) fn region(regs: &Registers) -> Option<Region> {
    let mask = regs.mask_ptrs.0 & 0xffff_ffff;
    let base = regs.base.0;
    let is_contiguous = mask & (mask + 1) == 0;
    let is_aligned = base & mask == 0;
    let is_inside = regs.mask_ptrs.offset() <= mask;
    (is_contiguous && is_aligned && is_inside).then_some(Region {
        base,
        size: mask + 1,
        watch: mask + 1,
        ..Region::default()
    })
}
