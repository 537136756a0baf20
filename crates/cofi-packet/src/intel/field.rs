//! What stands between a packet's wire bits and the typed value: one [`Field`] a kind of content.

use super::value::Value;
use crate::ExecMode;

/// A packet field: made of wire bits, or refused.
pub trait Field: Copy {
    /// The value that these bits encode; `None` when the encoding is reserved.
    fn from_bits(bits: u128) -> Option<Self>;
    /// The bits that encode this value.
    fn to_bits(self) -> u128;
    /// What a printer shows.
    fn value(self) -> Value;
    /// Hands every printed (key, value) pair to `f`; most fields print as one pair under their own key.
    fn visit(self, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        f(key, self.value());
    }
}

macro_rules! uint_fields {
    ($($t:ty)*) => {$(
        impl Field for $t {
            fn from_bits(bits: u128) -> Option<Self> {
                <$t>::try_from(bits).ok()
            }
            fn to_bits(self) -> u128 {
                self.into()
            }
            fn value(self) -> Value {
                Value::Number(self.into())
            }
        }
    )*};
}
uint_fields!(u8 u16 u32 u64);

impl Field for bool {
    fn from_bits(bits: u128) -> Option<Self> {
        Some(bits != 0)
    }
    fn to_bits(self) -> u128 {
        self.into()
    }
    fn value(self) -> Value {
        Value::Bool(self)
    }
}

/// An unsigned number of `BITS` bits, such as the TSC packet's 56 or the TMA packet's 9-bit fast counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Uint<const BITS: u32>(u64);

impl<const BITS: u32> Uint<BITS> {
    const MASK: u64 = u64::MAX >> (64 - BITS);

    /// The number, if it fits.
    #[must_use]
    pub const fn new(value: u64) -> Option<Self> {
        if value & !Self::MASK == 0 {
            Some(Self(value))
        } else {
            None
        }
    }
    /// The number's low `BITS` bits, as hardware cuts a wider counter.
    #[must_use]
    pub const fn truncate(value: u64) -> Self {
        Self(value & Self::MASK)
    }
    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl<const BITS: u32> Field for Uint<BITS> {
    fn from_bits(bits: u128) -> Option<Self> {
        Self::new(bits as u64)
    }
    fn to_bits(self) -> u128 {
        self.0.into()
    }
    fn value(self) -> Value {
        Value::Number(self.0)
    }
}

/// An opaque 64-bit payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hex64(pub u64);

impl Field for Hex64 {
    fn from_bits(bits: u128) -> Option<Self> {
        Some(Self(bits as u64))
    }
    fn to_bits(self) -> u128 {
        self.0.into()
    }
    fn value(self) -> Value {
        Value::Hex(self.0)
    }
}

macro_rules! aligned_addresses {
    ($($(#[$doc:meta])* $name:ident[$low:literal..$high:literal];)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        pub struct $name(u64);

        impl $name {
            const MASK: u64 = (1 << $high) - (1 << $low);

            /// The part of `address` that the packet carries; the other bits are dropped.
            #[must_use]
            pub const fn truncate(address: u64) -> Self {
                Self(address & Self::MASK)
            }
            /// The physical address.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl Field for $name {
            fn from_bits(bits: u128) -> Option<Self> {
                let shifted = bits << $low;
                (shifted & !u128::from(Self::MASK) == 0).then_some(Self(shifted as u64))
            }
            fn to_bits(self) -> u128 {
                (self.0 >> $low).into()
            }
            fn value(self) -> Value {
                Value::Hex(self.0)
            }
        }
    )*};
}
aligned_addresses! {
    /// The address part of CR3: bits 51:5 (Table 33-24). Bits 11:5 are zero outside PAE paging.
    Cr3[5..52];
    /// A VMCS pointer: bits 51:12 (Table 33-34).
    VmcsBase[12..52];
}

impl Field for ExecMode {
    // Bit 0 is CS.L & LMA, bit 1 is CS.D; both set is "N/A" in Table 33-26.
    fn from_bits(bits: u128) -> Option<Self> {
        match bits {
            0 => Some(Self::Bits16),
            1 => Some(Self::Bits64),
            2 => Some(Self::Bits32),
            _ => None,
        }
    }
    fn to_bits(self) -> u128 {
        match self {
            Self::Bits16 => 0,
            Self::Bits64 => 1,
            Self::Bits32 => 2,
        }
    }
    fn value(self) -> Value {
        Value::Mode(self)
    }
}

/// InTX and TXAbort of a MODE.TSX packet (Table 33-27).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TsxState {
    /// Transaction committed, or not executing transactionally.
    #[default]
    NotInTx,
    /// Transaction begins, or executing transactionally.
    InTx,
    /// Transaction aborted.
    Aborted,
}

impl Field for TsxState {
    fn from_bits(bits: u128) -> Option<Self> {
        match bits {
            0 => Some(Self::NotInTx),
            1 => Some(Self::InTx),
            2 => Some(Self::Aborted),
            _ => None,
        }
    }
    fn to_bits(self) -> u128 {
        match self {
            Self::NotInTx => 0,
            Self::InTx => 1,
            Self::Aborted => 2,
        }
    }
    fn value(self) -> Value {
        Value::Number(self.to_bits() as u64)
    }
    fn visit(self, _key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        f("intx", Value::Bool(self == Self::InTx));
        f("abort", Value::Bool(self == Self::Aborted));
    }
}
