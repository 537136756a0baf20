//! Random numbers that a seed repeats: SplitMix64.

/// A generator of random numbers.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    /// The sequence that belongs to a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True once in `n` times.
    pub(super) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of them.
    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A number of at most `bits` bits (1 to 64), often one at the edge of something.
    pub(super) fn edge(&mut self, bits: u32) -> u64 {
        let all = u64::MAX >> (64 - bits);
        let top = 1 << (bits - 1);
        match self.below(10) {
            0 => 0,
            1 => all,
            2 => top,
            3 => top - 1,
            4 => 1,
            5 => all - 1,
            6 => self.next() >> (64 - 1 - self.below(bits.into())),
            _ => self.next() & all,
        }
    }

    /// What stands in reserved bits: nothing, most of the time.
    pub(super) fn reserved(&mut self, bits: u32) -> u64 {
        match self.below(5) {
            0 => u64::MAX >> (64 - bits),
            1 => self.next() & (u64::MAX >> (64 - bits)),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        // The first outputs for seed 1234567, as the algorithm's author published them.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next(), 3_203_168_211_198_807_973);
    }

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
