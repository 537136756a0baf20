//! The kinds of damage, and where they are done.

use cofi_test::Rng;

/// What is done to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One bit is another.
    Flip,
    /// Bytes are missing.
    Drop,
    /// Bytes are zero.
    Zero,
    /// Bytes are there twice.
    Duplicate,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Flip, Self::Drop, Self::Zero, Self::Duplicate];

    /// Its name in the table.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Flip => "one bit flipped",
            Self::Drop => "1 to 32 bytes dropped",
            Self::Zero => "1 to 32 bytes zeroed",
            Self::Duplicate => "1 to 32 bytes duplicated",
        }
    }
}

/// The longest range that is damaged.
pub(super) const LONGEST: usize = 32;

/// One damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) kind: Kind,
    pub(super) at: usize,
    /// How many bytes; of a flip, which bit.
    pub(super) amount: usize,
}

impl Damage {
    /// The `number`th of its kind, which seed and number decide. It lies within the first `len` bytes, behind the first packets.
    pub(super) fn new(kind: Kind, number: u64, seed: u64, len: usize) -> Self {
        let seed = (seed.wrapping_mul(4).wrapping_add(kind as u64) << 24) ^ number;
        let mut rng = Rng::new(seed);
        let from = 64.min(len / 2);
        let at = from + rng.index((len - from - LONGEST).max(1));
        let amount = match kind {
            Kind::Flip => rng.index(8),
            _ => 1 + rng.index(LONGEST),
        };
        Self { kind, at, amount }
    }

    /// Damages a stream, whose length stays: it ends with PADs, of which some go or to which some come.
    pub(super) fn apply(self, stream: &mut [u8]) {
        let Self { kind, at, amount } = self;
        let len = stream.len();
        match kind {
            Kind::Flip => stream[at] ^= 1 << amount,
            Kind::Zero => stream[at..at + amount].fill(0),
            Kind::Drop => {
                stream.copy_within(at + amount.., at);
                stream[len - amount..].fill(0);
            }
            Kind::Duplicate => stream.copy_within(at..len - amount, at + amount),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_does_what_it_says() {
        let stream: Vec<u8> = (1..=8).chain([0; 4]).collect();
        let after = |kind, amount| {
            let mut stream = stream.clone();
            Damage {
                kind,
                at: 2,
                amount,
            }
            .apply(&mut stream);
            stream
        };
        assert_eq!(after(Kind::Flip, 3), [1, 2, 11, 4, 5, 6, 7, 8, 0, 0, 0, 0]);
        assert_eq!(after(Kind::Drop, 2), [1, 2, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(after(Kind::Zero, 2), [1, 2, 0, 0, 5, 6, 7, 8, 0, 0, 0, 0]);
        assert_eq!(
            after(Kind::Duplicate, 3),
            [1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 0]
        );
    }

    #[test]
    fn the_seed_decides() {
        let all = |seed| -> Vec<Damage> {
            let numbers = 0..50;
            numbers
                .map(|number| Damage::new(Kind::Drop, number, seed, 9000))
                .collect()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        assert!(all(3).iter().all(|damage| damage.at + LONGEST <= 9000));
    }
}
