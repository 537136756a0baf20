//! A packet as one little-endian 128-bit word: byte 0 is bits 7:0.

/// The longest packet of either format, in bytes: the PSB of Intel PT.
pub const MAX_PACKET: usize = 16;

/// Bits `low..high` of a word.
#[inline(always)]
pub(crate) const fn bits(word: u128, low: u32, high: u32) -> u128 {
    word << (128 - high) >> (128 - high + low)
}

/// A mask of bits `low..high`.
pub(crate) const fn range_mask(low: u32, high: u32) -> u128 {
    if low == high {
        0
    } else {
        bits(u128::MAX, 0, high - low) << low
    }
}

/// The first `len` bytes of a word; the others become zero.
#[inline(always)]
pub(crate) const fn first_bytes(word: u128, len: usize) -> u128 {
    if len >= MAX_PACKET {
        word
    } else {
        range_mask(0, 8 * len as u32) & word
    }
}

/// Constant bytes `value / mask` as a word each.
pub(crate) const fn head(bytes: &[(u8, u8)]) -> (u128, u128) {
    let (mut value, mut mask, mut i) = (0, 0, 0);
    while i < bytes.len() {
        value |= (bytes[i].0 as u128) << (8 * i);
        mask |= (bytes[i].1 as u128) << (8 * i);
        i += 1;
    }
    (value, mask)
}

/// The first 16 bytes; what lies behind the end is zero.
#[inline(always)]
pub(crate) fn load(bytes: &[u8]) -> u128 {
    match bytes.first_chunk::<MAX_PACKET>() {
        Some(chunk) => u128::from_le_bytes(*chunk),
        None => load_short(bytes),
    }
}

#[cold]
fn load_short(bytes: &[u8]) -> u128 {
    let mut padded = [0; MAX_PACKET];
    padded[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(padded)
}
