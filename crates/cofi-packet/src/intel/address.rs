//! Physical addresses of which a packet carries the upper bits.

use crate::field::{Field, Printed};
use crate::text::{Operands, TextError, parse_number};
use crate::value::Value;

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

        impl Printed for $name {
            fn value(self) -> Value {
                Value::Hex(self.0)
            }
            fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
                let word = operands.take(key)?;
                let address = parse_number(word)?;
                if address & !Self::MASK == 0 {
                    Ok(Self(address))
                } else {
                    Err(TextError::range(word, key))
                }
            }
        }

        impl Field for $name {
            fn from_bits(bits: u128) -> Option<Self> {
                Some(Self::truncate((bits as u64) << $low))
            }
            fn to_bits(self) -> u128 {
                (self.0 >> $low).into()
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
