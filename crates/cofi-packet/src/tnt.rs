//! Taken/not-taken results as TNT packets carry them (33.4.2.1).

use crate::field::{Field, Printed};
use crate::text::{Operands, TextError};
use crate::value::Value;

/// One to `MAX` results of conditional branches and compressed returns; `MAX` is 6 in a short TNT, 47 in a long one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tnt<const MAX: usize> {
    /// The results below a stop bit, as on the wire: the stop bit, then the oldest result, …, the youngest in bit 0.
    stopped: u64,
}

impl<const MAX: usize> Tnt<MAX> {
    /// A TNT of one result.
    #[must_use]
    #[inline]
    pub const fn new(taken: bool) -> Self {
        const {
            assert!(
                MAX >= 1 && MAX <= 62,
                "a stop bit and its results fit 63 bits"
            )
        };
        Self {
            stopped: 0b10 | taken as u64,
        }
    }

    /// The results in `iter`'s order, oldest first; `None` when there are none or more than fit.
    pub fn collect(iter: impl IntoIterator<Item = bool>) -> Option<Self> {
        let mut iter = iter.into_iter();
        let mut tnt = Self::new(iter.next()?);
        for taken in iter {
            if !tnt.push(taken) {
                return None;
            }
        }
        Some(tnt)
    }

    /// `len` results, the oldest in the highest of the low `len` bits of `bits`; `None` when there are none or more than fit.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u64, len: usize) -> Option<Self> {
        if len < 1 || len > MAX {
            return None;
        }
        let stop = 1 << len;
        Some(Self {
            stopped: bits & (stop - 1) | stop,
        })
    }

    /// Appends a younger result; `false`, and no change, when the packet is full.
    #[must_use]
    #[inline]
    pub fn push(&mut self, taken: bool) -> bool {
        let room = self.len() < MAX;
        if room {
            self.stopped = self.stopped << 1 | u64::from(taken);
        }
        room
    }

    /// How many results there are: 1 to `MAX`.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a TNT is never empty")]
    pub const fn len(&self) -> usize {
        63 - self.stopped.leading_zeros() as usize
    }

    /// Whether no more results fit.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.len() == MAX
    }

    /// The results in the low [`Self::len`] bits, the oldest in the highest of them.
    #[must_use]
    pub const fn bits(&self) -> u64 {
        self.stopped & !(1 << self.len())
    }

    /// The `index`th result, the oldest being 0; `None` past the end.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<bool> {
        let from_youngest = self.len().checked_sub(index.checked_add(1)?)?;
        Some(self.stopped >> from_youngest & 1 == 1)
    }

    /// The results, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = bool> + use<MAX> {
        let (bits, len) = (self.stopped, self.len());
        (0..len).map(move |i| bits >> (len - 1 - i) & 1 == 1)
    }
}

impl<const MAX: usize> Tnt<MAX> {
    /// The results below their stop bit, as they stand in a packet.
    #[inline(always)]
    pub(crate) const fn from_stopped(stopped: u64) -> Self {
        Self { stopped }
    }
    #[inline(always)]
    pub(crate) const fn stopped(&self) -> u64 {
        self.stopped
    }
}

impl<const MAX: usize> core::fmt::Debug for Tnt<MAX> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.value())
    }
}

impl<const MAX: usize> Printed for Tnt<MAX> {
    fn value(self) -> Value {
        Value::Tnt {
            bits: self.bits(),
            len: self.len() as u8,
        }
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        let word = operands.take(key)?;
        let mut tnt = None::<Self>;
        for letter in word.bytes() {
            let taken = match letter {
                b'T' | b't' => true,
                b'N' | b'n' => false,
                _ => return Err(TextError::malformed(word)),
            };
            match &mut tnt {
                None => tnt = Some(Self::new(taken)),
                Some(tnt) => {
                    if !tnt.push(taken) {
                        return Err(TextError::range(word, key));
                    }
                }
            }
        }
        tnt.ok_or_else(|| TextError::malformed(word))
    }
}

impl<const MAX: usize> Field for Tnt<MAX> {
    #[inline]
    fn from_bits(bits: u128) -> Option<Self> {
        const {
            assert!(
                MAX >= 1 && MAX <= 62,
                "a stop bit and its results fit 63 bits"
            )
        };
        // A stop bit somewhere above bit 0: "1 to MAX results".
        let stopped = bits as u64;
        (stopped > 1 && stopped >> (MAX + 1) == 0).then_some(Self { stopped })
    }
    #[inline]
    fn to_bits(self) -> u128 {
        u128::from(self.stopped)
    }
}
