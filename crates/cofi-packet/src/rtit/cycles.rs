//! The cycle count that cycle-accurate mode appends (4.2.14, 4.2.15).

use crate::field::{Printed, Tail};
use crate::text::{Operands, TextError, parse_number};
use crate::value::Value;

/// A cycle count: 22 bits of RTIT_CNTP, the core clocks since the last cycle count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct CycleCount(u32);

impl CycleCount {
    const BITS: u32 = 22;

    /// The count, if it fits.
    #[must_use]
    pub const fn new(cycles: u32) -> Option<Self> {
        if cycles >> Self::BITS == 0 {
            Some(Self(cycles))
        } else {
            None
        }
    }
    /// The count.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// How many bytes the CCNT field, bits 1:0 of the first, announces; `None` for the reserved 00b.
pub(super) const fn len(first: u8) -> Option<usize> {
    match first & 3 {
        0 => None,
        len => Some(len as usize),
    }
}

impl Printed for Option<CycleCount> {
    fn value(self) -> Value {
        self.map_or(Value::Absent, |cycles| Value::Number(cycles.0.into()))
    }
    // Nothing is printed of what is not there.
    fn visit(self, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        if self.is_some() {
            f(key, self.value());
        }
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        let Some(word) = operands.key(key) else {
            return Ok(None);
        };
        u32::try_from(parse_number(word)?)
            .ok()
            .and_then(CycleCount::new)
            .map(Some)
            .ok_or_else(|| TextError::range(word, key))
    }
}

impl Tail for Option<CycleCount> {
    fn from_tail(bits: u128, len: usize) -> Option<Self> {
        if len == 0 {
            return Some(None);
        }
        let bits = bits as u32 & (u32::MAX >> (32 - 8 * len as u32));
        Some(Some(CycleCount(bits >> 2)))
    }
    fn to_tail(self) -> (u128, usize) {
        let Some(CycleCount(cycles)) = self else {
            return (0, 0);
        };
        let len = match cycles {
            0..0x40 => 1,
            0x40..0x4000 => 2,
            _ => 3,
        };
        (u128::from(cycles) << 2 | len as u128, len)
    }
}
