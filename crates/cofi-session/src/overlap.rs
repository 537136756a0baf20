//! Snapshots of a ring that overlap: what of a later one was in the one before.
//!
//! A recorder that overwrites its buffer saves all of it at each snapshot (`perf record -S`), or its last bytes with each
//! sample (`--aux-sample`). Where the ring is in time nobody says; but what two of them have in common they have byte for
//! byte: the end of the one is the beginning of the other.

use cofi_packet::intel::{PSB, find_psb};

/// How the second of two pieces continues the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    /// How many bytes of the first to keep: all but its padding.
    pub(crate) keep: usize,
    /// How many bytes of the second are in the first already.
    pub(crate) skip: usize,
}

/// perf pads a piece to a multiple of eight bytes.
const PADDING: usize = 7;

/// Finds what two pieces have in common: at the end of the first and at the beginning of the second. None if nothing
/// is, or less than tells anything.
///
/// Something in common counts only from the second's first PSB on, and with it: nothing before that is decoded of a
/// piece that stands alone, and nothing shorter is sure to be more than chance. Takes time in proportion to the bytes.
pub(crate) fn join(first: &[u8], second: &[u8]) -> Option<Join> {
    let psb = find_psb(second)?;
    // The beginning of what could be in common is no longer than the first piece.
    let pattern = &second[psb..];
    let pattern = &pattern[..pattern.len().min(first.len())];
    let fallback = fallbacks(pattern)?;
    let zeros = first.iter().rev().take_while(|byte| **byte == 0).count();
    let padded_from = first.len() - zeros.min(PADDING);
    let mut best: Option<Join> = None;
    // How much of the pattern the bytes so far end with.
    let mut len = 0;
    for (index, byte) in first.iter().enumerate() {
        while len > 0 && pattern.get(len) != Some(byte) {
            len = fallback[len - 1] as usize;
        }
        if pattern.get(len) == Some(byte) {
            len += 1;
        }
        let keep = index + 1;
        let skip = psb + len;
        if keep >= padded_from && len >= PSB.len() && best.is_none_or(|best| skip > best.skip) {
            best = Some(Join { keep, skip });
        }
    }
    best
}

/// For each beginning of a pattern, how long a shorter one it ends with.
fn fallbacks(pattern: &[u8]) -> Option<Vec<u32>> {
    u32::try_from(pattern.len()).ok()?;
    let mut fallback = vec![0_u32; pattern.len()];
    let mut len = 0;
    for index in 1..pattern.len() {
        while len > 0 && pattern[len] != pattern[index] {
            len = fallback[len - 1] as usize;
        }
        if pattern[len] == pattern[index] {
            len += 1;
        }
        fallback[index] = len as u32;
    }
    Some(fallback)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes with a PSB every hundred, none of which are alike.
    fn stream(len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in (0_u64..).take_while(|number| *number < len as u64 / 100 + 1) {
            bytes.extend(PSB);
            bytes.extend(std::iter::repeat_n(number.to_le_bytes(), 10).flatten());
            bytes.extend([0; 4]);
        }
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn what_is_there_twice_is_found() {
        let bytes = stream(3000);
        let (first, second) = (&bytes[..2000], &bytes[1450..]);
        let found = join(first, second).unwrap();
        assert_eq!((found.keep, found.skip), (2000, 550));
        let whole = [&first[..found.keep], &second[found.skip..]].concat();
        assert_eq!(whole, bytes);
        // All of the second, and the same again.
        assert_eq!(join(first, &bytes[1450..2000]).unwrap().skip, 550);
        assert_eq!(join(first, first).unwrap().skip, 2000);
    }

    #[test]
    fn what_is_not_there_twice_is_not_found() {
        let bytes = stream(3000);
        assert_eq!(join(&bytes[..1000], &bytes[1000..]), None);
        assert_eq!(join(&bytes[..1000], &bytes[1200..]), None);
        // In common, but without a PSB.
        assert_eq!(join(&bytes[..1090], &bytes[1020..]), None);
        assert_eq!(join(&[], &bytes), None);
        assert_eq!(join(&bytes, &[]), None);
        assert_eq!(join(&bytes, &[1; 100]), None);
    }

    proptest! {
        #[test]
        fn joined_pieces_are_the_stream(begin in 0_usize..1800, end in 2000_usize..2500, pad in 0_usize..8) {
            let bytes = stream(2600);
            let mut first = bytes[..2000].to_vec();
            // Padding that is no part of the stream.
            first.extend(std::iter::repeat_n(0, pad));
            let second = &bytes[begin..end];
            let found = join(&first, second).unwrap();
            let whole = [&first[..found.keep], &second[found.skip..]].concat();
            prop_assert!(whole[2000..] == bytes[2000..end] && whole[..2000] == bytes[..2000]);
        }

        #[test]
        fn no_pieces_panic(
            first in prop::collection::vec(prop_oneof![Just(0x02_u8), Just(0x82), Just(0), any::<u8>()], 0..300),
            second in prop::collection::vec(prop_oneof![Just(0x02_u8), Just(0x82), Just(0), any::<u8>()], 0..300),
        ) {
            if let Some(found) = join(&first, &second) {
                let common = found.skip - find_psb(&second).unwrap();
                prop_assert_eq!(&first[found.keep - common..found.keep], &second[found.skip - common..found.skip]);
                prop_assert!(first[found.keep..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
