//! The trace configuration as XSAVES stores it (33.3.5.2): supervisor state component 8, whose layout is that of section
//! 13.5.6 of volume 1.

/// The PT state component of an XSAVE area.
///
/// It holds the control registers and the first two address ranges. Ranges beyond are no part of it: XSAVES and XRSTORS
/// leave them alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XsaveArea {
    /// IA32_RTIT_CTL, at byte 0.
    pub ctl: u64,
    /// IA32_RTIT_OUTPUT_BASE, at byte 8.
    pub output_base: u64,
    /// IA32_RTIT_OUTPUT_MASK_PTRS, at byte 16.
    pub output_mask_ptrs: u64,
    /// IA32_RTIT_STATUS, at byte 24.
    pub status: u64,
    /// IA32_RTIT_CR3_MATCH, at byte 32.
    pub cr3_match: u64,
    /// IA32_RTIT_ADDRn_A and IA32_RTIT_ADDRn_B of ranges 0 and 1, from byte 40 on.
    pub ranges: [[u64; 2]; 2],
}

impl XsaveArea {
    /// The component's number: its bit in IA32_XSS and in XSTATE_BV.
    pub const COMPONENT: u32 = 8;

    /// Its size in bytes: CPUID.0DH.8:EAX.
    pub const SIZE: usize = 128;

    /// The bytes in memory. Those from 72 on are reserved, and zero.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let [[a0, b0], [a1, b1]] = self.ranges;
        let words = [
            self.ctl,
            self.output_base,
            self.output_mask_ptrs,
            self.status,
            self.cr3_match,
            a0,
            b0,
            a1,
            b1,
        ];
        let mut bytes = [0; Self::SIZE];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads it from memory. Reserved bytes are ignored.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..][..8]);
            u64::from_le_bytes(word)
        };
        Self {
            ctl: word(0),
            output_base: word(1),
            output_mask_ptrs: word(2),
            status: word(3),
            cr3_match: word(4),
            ranges: [[word(5), word(6)], [word(7), word(8)]],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_stand_where_the_manual_puts_them() {
        let area = XsaveArea {
            ctl: 0x11,
            output_base: 0x22,
            output_mask_ptrs: 0x33,
            status: 0x44,
            cr3_match: 0x55,
            ranges: [[0x66, 0x77], [0x88, 0x99]],
        };
        let mut bytes = area.to_bytes();
        for (index, byte) in bytes.iter().enumerate() {
            let expected = if index % 8 == 0 && index < 72 {
                0x11 * (index as u8 / 8 + 1)
            } else {
                0
            };
            assert_eq!(*byte, expected, "byte {index}");
        }
        bytes[72..].fill(0xa5);
        assert_eq!(XsaveArea::from_bytes(&bytes), area);
    }
}
