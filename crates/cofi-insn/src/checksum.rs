//! A checksum over instructions that ran: who records and who decodes come to the same number.

use cofi_packet::Ip;

/// An odd number without a pattern (the golden ratio's), so that every bit of a product depends on many.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// Another one.
const FACTOR: u64 = 0xd129_42f2_5ae0_17cd;

/// The digest of an instruction's bytes, of which at most [`MAX_INSN_LEN`](crate::MAX_INSN_LEN) count.
pub(crate) fn digest(bytes: &[u8]) -> u32 {
    let mut word = [0; 16];
    let len = bytes.len().min(word.len());
    word[..len].copy_from_slice(&bytes[..len]);
    digest_of_word(u128::from_le_bytes(word), len as u32)
}

/// The [`digest`] of the first `len` bytes, 1 to 15.
#[inline]
pub(crate) fn digest_of_window(window: &[u8; 16], len: u32) -> u32 {
    digest_of_word(u128::from_le_bytes(*window) & MASKS[len as usize % 16], len)
}

/// Ones in as many bytes as the index says.
static MASKS: [u128; 16] = {
    let mut masks = [0; 16];
    let mut len = 1;
    while len < masks.len() {
        masks[len] = masks[len - 1] << 8 | 0xff;
        len += 1;
    }
    masks
};

#[inline]
fn digest_of_word(word: u128, len: u32) -> u32 {
    let (low, high) = (word as u64, (word >> 64) as u64);
    let mixed = (low ^ high.wrapping_mul(FACTOR))
        .wrapping_add(u64::from(len))
        .wrapping_mul(MIX);
    (mixed >> 32) as u32
}

/// A checksum over the addresses and bytes of instructions, in their order, and how many there are.
///
/// It does not depend on where a flow is divided: `a.then(b)` is that of what `a` and `b` are of, one after the other. So it
/// can be kept for each piece of code, and costs little when that runs ([`RunningChecksum::add`]).
///
/// ```
/// use cofi_insn::{Checksum, decode};
/// use cofi_packet::{ExecMode, Ip};
///
/// let at = |ip, bytes| Checksum::of(ip, decode(bytes, ip, ExecMode::Bits64).expect("an instruction").digest);
/// let (nop, ret) = (at(Ip(0x1000), &[0x90]), at(Ip(0x1001), &[0xc3]));
/// assert_ne!(nop.then(ret), ret.then(nop));
/// assert_eq!(nop.then(ret).then(nop), nop.then(ret.then(nop)));
/// // Other bytes, another address.
/// assert_ne!(nop, at(Ip(0x1000), &[0x91]));
/// assert_ne!(nop, at(Ip(0x1001), &[0x90]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Checksum {
    instructions: u64,
    /// The sum of their numbers.
    plain: u64,
    /// The sum of their numbers, each as often as there are instructions before it.
    weighted: u64,
}

impl Checksum {
    /// Of nothing.
    pub const EMPTY: Self = Self {
        instructions: 0,
        plain: 0,
        weighted: 0,
    };

    /// Of one instruction at `ip`, of whose bytes this is the [digest](crate::Insn::digest).
    #[inline]
    #[must_use]
    pub const fn of(ip: Ip, digest: u32) -> Self {
        let mixed = (ip.0 ^ (digest as u64).rotate_left(33)).wrapping_mul(MIX);
        Self {
            instructions: 1,
            plain: mixed ^ mixed >> 29,
            weighted: 0,
        }
    }

    /// Of so many instructions, from the numbers that [`Self::sums`] gave of them.
    #[inline]
    #[must_use]
    pub const fn new(instructions: u64, sums: [u64; 2]) -> Self {
        let [plain, weighted] = sums;
        Self {
            instructions,
            plain,
            weighted,
        }
    }

    /// Of how many instructions it is.
    #[inline]
    #[must_use]
    pub const fn instructions(self) -> u64 {
        self.instructions
    }

    /// Two numbers that, with how many instructions there are, are all of it.
    #[inline]
    #[must_use]
    pub const fn sums(self) -> [u64; 2] {
        [self.plain, self.weighted]
    }

    /// Of this and what ran behind it.
    #[inline]
    #[must_use]
    pub const fn then(self, next: Self) -> Self {
        let before = self.instructions.wrapping_mul(next.plain);
        Self {
            instructions: self.instructions.wrapping_add(next.instructions),
            plain: self.plain.wrapping_add(next.plain),
            weighted: self
                .weighted
                .wrapping_add(before)
                .wrapping_add(next.weighted),
        }
    }
}

/// What ran so far: how many instructions, and a number that tells which, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunningChecksum {
    /// The number by which the next instruction counts: one more than ran, so that the first one counts, too.
    weight: u64,
    sum: u64,
}

impl RunningChecksum {
    /// Nothing.
    pub const EMPTY: Self = Self { weight: 1, sum: 0 };

    /// These instructions ran. No step of this waits for a multiplication of the one before.
    #[inline(always)]
    pub const fn add(&mut self, next: &Checksum) {
        self.sum = self
            .sum
            .wrapping_add(self.weight.wrapping_mul(next.plain))
            .wrapping_add(next.weighted);
        self.weight = self.weight.wrapping_add(next.instructions);
    }

    /// How many instructions ran.
    #[inline]
    #[must_use]
    pub const fn instructions(&self) -> u64 {
        self.weight - 1
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }
}

impl Default for RunningChecksum {
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::{Checksum, RunningChecksum, digest, digest_of_window};
    use cofi_packet::Ip;

    #[test]
    fn every_byte_and_the_length_count() {
        let bytes: [u8; 15] = core::array::from_fn(|i| i as u8 * 17);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes;
                other[at] ^= 1 << bit;
                assert_ne!(digest(&other), digest(&bytes), "byte {at}, bit {bit}");
            }
        }
        assert_ne!(digest(&[0x90]), digest(&[0x90, 0]));
    }

    #[test]
    fn a_window_has_the_digest_of_its_bytes() {
        let window: [u8; 16] = core::array::from_fn(|i| 0xf5 - i as u8 * 13);
        for len in 1..=15 {
            let expected = digest(&window[..len]);
            assert_eq!(
                digest_of_window(&window, len as u32),
                expected,
                "{len} bytes"
            );
        }
    }

    fn insns<const N: usize>() -> [Checksum; N] {
        core::array::from_fn(|i| Checksum::of(Ip(0x1000 + 3 * i as u64), i as u32 / 4))
    }

    fn piece(part: &[Checksum]) -> Checksum {
        part.iter().copied().fold(Checksum::EMPTY, Checksum::then)
    }

    fn running(pieces: &[Checksum]) -> RunningChecksum {
        let mut running = RunningChecksum::EMPTY;
        pieces.iter().for_each(|piece| running.add(piece));
        running
    }

    #[test]
    fn it_is_the_same_however_the_flow_is_divided() {
        let insns = insns::<7>();
        let whole = running(&insns);
        assert_eq!(whole.instructions(), 7);
        for cut in 0..insns.len() {
            let (begin, end) = insns.split_at(cut);
            let (begin, end) = (piece(begin), piece(end));
            assert_eq!(begin.then(end), piece(&insns), "cut at {cut}");
            assert_eq!(running(&[begin, end]), whole, "cut at {cut}");
            assert_eq!(Checksum::new(begin.instructions(), begin.sums()), begin);
        }
    }

    #[test]
    fn the_order_counts() {
        let insns = insns::<6>();
        // A loop's rounds, as two TNT bits in the wrong order would give them.
        let (short, long) = (piece(&insns[..2]), piece(&insns[2..]));
        let truth = running(&[short, long, short, long]);
        assert_ne!(running(&[long, short, short, long]), truth);
        assert_ne!(running(&[short, short, long, long]), truth);
        for at in 1..insns.len() {
            let mut other = insns;
            other.swap(at - 1, at);
            assert_ne!(running(&other), running(&insns));
        }
        assert_ne!(running(&insns[..1]), running(&insns[1..2]));
    }
}
