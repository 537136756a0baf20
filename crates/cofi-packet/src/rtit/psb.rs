//! Finding stream boundaries (4.2.1).

use super::Kind;
use super::table::ROWS;
use memchr::memmem;

/// The 9 bytes of a PSB packet (Figure 3).
pub const PSB: [u8; 9] = {
    let [bytes @ .., _, _, _, _, _, _, _] = ROWS[Kind::Psb as usize].value.to_le_bytes();
    bytes
};

/// Offset of the first PSB in `bytes`, aligned or not.
#[must_use]
pub fn find_psb(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, &PSB)
}

/// Offset of the last PSB in `bytes`.
#[must_use]
pub fn rfind_psb(bytes: &[u8]) -> Option<usize> {
    memmem::rfind(bytes, &PSB)
}

/// Offset of the first PSB at or after `from`, for going on after an error.
#[must_use]
pub fn sync_forward(bytes: &[u8], from: usize) -> Option<usize> {
    Some(from + find_psb(bytes.get(from..)?)?)
}

/// Offset of the last PSB that begins before `before`.
#[must_use]
pub fn sync_backward(bytes: &[u8], before: usize) -> Option<usize> {
    let end = before.min(bytes.len()).checked_sub(1)? + PSB.len();
    rfind_psb(&bytes[..end.min(bytes.len())])
}
