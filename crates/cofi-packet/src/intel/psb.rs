//! Finding stream boundaries (33.4.2.17).

use super::Kind;
use super::table::ROWS;

/// The 16 bytes of a PSB packet (Table 33-36).
pub const PSB: [u8; 16] = ROWS[Kind::Psb as usize].value.to_le_bytes();

const PAIR: [u8; 2] = [PSB[0], PSB[1]];
/// Four bytes of a PSB, from an even and from an odd place on.
const EVEN: u32 = u32::from_le_bytes([PSB[0], PSB[1], PSB[0], PSB[1]]);
const ODD: u32 = EVEN.swap_bytes();

/// Bytes of a word that is looked at.
const WORD: usize = 4;
/// From word to word. Any 16 bytes hold a whole one.
const STRIDE: usize = PSB.len() - WORD;

#[inline(always)]
fn may_be_psb(bytes: &[u8], at: usize) -> bool {
    bytes
        .get(at..at + WORD)
        .and_then(|word| word.first_chunk())
        .is_some_and(|word| matches!(u32::from_le_bytes(*word), EVEN | ODD))
}

/// The places where a PSB can begin that holds the word at `at`.
fn places(at: usize) -> core::ops::RangeInclusive<usize> {
    at.saturating_sub(PSB.len() - WORD)..=at
}

/// The first place in `bytes` where 16 bytes equal a PSB.
fn first_match(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at + WORD <= bytes.len() {
        if may_be_psb(bytes, at) {
            let psb = places(at).find(|&psb| bytes[psb..].starts_with(&PSB));
            if psb.is_some() {
                return psb;
            }
        }
        at += STRIDE;
    }
    None
}

/// The last place in `bytes` where 16 bytes equal a PSB.
fn last_match(bytes: &[u8]) -> Option<usize> {
    let mut end = bytes.len();
    while let Some(at) = end.checked_sub(WORD) {
        if may_be_psb(bytes, at) {
            let psb = places(at).rfind(|&psb| bytes[psb..].starts_with(&PSB));
            if psb.is_some() {
                return psb;
            }
        }
        end = end.saturating_sub(STRIDE);
    }
    None
}

fn pair_at(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..at + 2) == Some(&PAIR)
}

/// Whether a PSB may begin inside a packet whose last byte this is, and go on behind it.
#[inline(always)]
pub(super) const fn may_hold_psb(last: u8) -> bool {
    matches!(last, 0x02 | 0x82)
}

/// How many bytes decide whether a PSB begins inside a packet of `len` bytes: the PSB's, and those that would make the run longer.
pub(super) const fn decisive(len: usize) -> usize {
    len - 1 + PSB.len() + PAIR.len()
}

/// Where in the packet of `len` bytes at the start of `bytes` a PSB begins, if one does.
#[cold]
pub(super) fn psb_inside(bytes: &[u8], len: usize) -> Option<usize> {
    (1..len).find(|&at| {
        bytes.get(at..).is_some_and(|rest| rest.starts_with(&PSB))
            && !pair_at(bytes, at + PSB.len())
    })
}

/// Offset of the first PSB in `bytes`, aligned or not.
///
/// A run of `02 82` longer than one PSB ends with the PSB: the sixteen bytes before are what another packet (or a
/// lost one) left there, so the last full PSB of a run is the one that counts.
///
/// ```
/// use cofi_packet::intel::{PSB, find_psb, rfind_psb};
///
/// let mut bytes = vec![0x82, 0x02, 0x82];
/// bytes.extend(PSB);
/// assert_eq!(find_psb(&bytes), Some(3));
/// assert_eq!(rfind_psb(&bytes), Some(3));
/// ```
#[must_use]
pub fn find_psb(bytes: &[u8]) -> Option<usize> {
    let mut at = first_match(bytes)?;
    while pair_at(bytes, at + PSB.len()) {
        at += 2;
    }
    Some(at)
}

/// Offset of the last PSB in `bytes`.
#[must_use]
pub fn rfind_psb(bytes: &[u8]) -> Option<usize> {
    last_match(bytes)
}

/// Offset of the first PSB at or after `from`, for going on after an error.
#[must_use]
pub fn sync_forward(bytes: &[u8], from: usize) -> Option<usize> {
    Some(from + find_psb(bytes.get(from..)?)?)
}

/// Offset of the last PSB that begins before `before`.
///
/// Of a run longer than one PSB only the last full one counts, here too: from there on, the run is passed over.
#[must_use]
pub fn sync_backward(bytes: &[u8], before: usize) -> Option<usize> {
    let mut before = before.min(bytes.len());
    loop {
        let end = bytes.len().min(before.checked_sub(1)? + PSB.len());
        let psb = last_match(&bytes[..end])?;
        if !pair_at(bytes, psb + PSB.len()) {
            return Some(psb);
        }
        // The run goes on at or after `before`: nothing of it counts.
        before = psb;
        while before >= 2 && pair_at(bytes, before - 2) {
            before -= 2;
        }
    }
}
