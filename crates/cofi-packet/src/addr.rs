//! The kinds of numbers that must never be mixed up: addresses, stream offsets, clocks.

use core::fmt;

/// A linear instruction pointer of the traced program.
///
/// Deliberately without arithmetic operators: an address moves only by [`Ip::wrapping_add`] (an instruction's length)
/// or by taking a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ip(pub u64);

impl Ip {
    /// The address `bytes` further on, wrapping at 2^64.
    #[must_use]
    pub const fn wrapping_add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

/// Offset of a byte in one packet stream, counted from the stream's start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StreamOffset(pub u64);

/// A time stamp counter value, in TSC ticks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tsc(pub u64);

macro_rules! formats {
    ($($name:ident $plain:literal;)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $plain, self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $plain, ")"), self.0)
            }
        }
        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    )*};
}
formats! {
    Ip "{:#x}";
    StreamOffset "{}";
    Tsc "{}";
}

/// The width in which the processor decodes instructions: CS.D and (CS.L & IA32_EFER.LMA) of Table 33-26.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ExecMode {
    /// CS.D = 0 and CS.L & LMA = 0.
    Bits16,
    /// CS.D = 1 and CS.L & LMA = 0.
    Bits32,
    /// CS.D = 0 and CS.L & LMA = 1.
    #[default]
    Bits64,
}

impl ExecMode {
    /// 16, 32 or 64.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Bits16 => 16,
            Self::Bits32 => 32,
            Self::Bits64 => 64,
        }
    }
}
