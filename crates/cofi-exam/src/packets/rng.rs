//! Random numbers as packets' fields want them.

pub(super) use cofi_test::Rng;

/// Numbers for the fields of packets.
pub(super) trait FieldRng {
    /// A number of at most `bits` bits (1 to 64), often one at the edge of something.
    fn edge(&mut self, bits: u32) -> u64;

    /// What stands in reserved bits: nothing, most of the time.
    fn reserved(&mut self, bits: u32) -> u64;
}

impl FieldRng for Rng {
    fn edge(&mut self, bits: u32) -> u64 {
        let all = u64::MAX >> (64 - bits);
        let top = 1 << (bits - 1);
        match self.below(10) {
            0 => 0,
            1 => all,
            2 => top,
            3 => top - 1,
            4 => 1,
            5 => all - 1,
            6 => self.next_u64() >> (64 - 1 - self.below(bits.into())),
            _ => self.next_u64() & all,
        }
    }

    fn reserved(&mut self, bits: u32) -> u64 {
        match self.below(5) {
            0 => u64::MAX >> (64 - bits),
            1 => self.next_u64() & (u64::MAX >> (64 - bits)),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_stay_within_their_bits() {
        let mut rng = Rng::new(1);
        for bits in 1..=64 {
            for _ in 0..200 {
                assert!(rng.edge(bits) <= u64::MAX >> (64 - bits), "{bits} bits");
                assert!(rng.reserved(bits) <= u64::MAX >> (64 - bits), "{bits} bits");
            }
        }
    }
}
