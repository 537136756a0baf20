//! What stands between a packet's wire bits and the typed value: bits, text and back.

use crate::ExecMode;
use crate::text::{Operands, TextError, parse_flag, parse_number};
use crate::value::Value;

/// A typed value of a packet that can be printed and read from text.
pub(crate) trait Printed: Copy {
    /// What a printer shows.
    fn value(self) -> Value;

    /// Hands every printed (key, value) pair to `f`; most fields print as one pair under their own key.
    fn visit(self, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        f(key, self.value());
    }

    /// Reads the value from the operands of a line of text, as `visit` and `value` print it.
    ///
    /// # Errors
    /// A [`TextError`] when the operand is missing, malformed or out of range.
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError>;
}

/// A field at a fixed place: made of wire bits, or refused.
pub(crate) trait Field: Printed {
    /// The value that these bits encode; `None` when the encoding is reserved.
    fn from_bits(bits: u128) -> Option<Self>;
    /// The bits that encode this value.
    fn to_bits(self) -> u128;
}

/// What follows a packet's fixed part, in a length that the fixed part does not tell.
pub(crate) trait Tail: Printed {
    /// The value in `len` bytes; `None` when they encode none.
    fn from_tail(bits: u128, len: usize) -> Option<Self>;
    /// The bits and the number of bytes.
    fn to_tail(self) -> (u128, usize);
}

/// How a value of type `T` stands in a packet where that is not `T`'s own way.
pub(crate) trait Codec<T> {
    fn from_bits(bits: u128) -> Option<T>;
    fn to_bits(value: T) -> u128;
    fn visit(value: T, key: &'static str, f: &mut dyn FnMut(&'static str, Value));
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<T, TextError>;
}

/// A field's own way.
pub(crate) enum Own {}

impl<T: Field> Codec<T> for Own {
    #[inline(always)]
    fn from_bits(bits: u128) -> Option<T> {
        T::from_bits(bits)
    }
    #[inline(always)]
    fn to_bits(value: T) -> u128 {
        value.to_bits()
    }
    fn visit(value: T, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        value.visit(key, f);
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<T, TextError> {
        T::parse(key, operands)
    }
}

/// The operand `key` as a number that `T` can hold.
pub(crate) fn number<T: Field>(
    key: &'static str,
    operands: &mut Operands<'_>,
) -> Result<T, TextError> {
    let word = operands.take(key)?;
    T::from_bits(parse_number(word)?.into()).ok_or_else(|| TextError::range(word, key))
}

macro_rules! uint_fields {
    ($($t:ty)*) => {$(
        impl Printed for $t {
            fn value(self) -> Value {
                Value::Number(self.into())
            }
            fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
                let word = operands.take(key)?;
                parse_number(word)?.try_into().map_err(|_| TextError::range(word, key))
            }
        }
        impl Field for $t {
            #[inline(always)]
            fn from_bits(bits: u128) -> Option<Self> {
                Some(bits as Self)
            }
            #[inline(always)]
            fn to_bits(self) -> u128 {
                self.into()
            }
        }
    )*};
}
uint_fields!(u8 u16 u32 u64);

impl Printed for bool {
    fn value(self) -> Value {
        Value::Bool(self)
    }
    // A flag that is not mentioned is clear.
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        operands.key(key).map_or(Ok(false), parse_flag)
    }
}

impl Field for bool {
    #[inline(always)]
    fn from_bits(bits: u128) -> Option<Self> {
        Some(bits != 0)
    }
    #[inline(always)]
    fn to_bits(self) -> u128 {
        self.into()
    }
}

macro_rules! wrapped_numbers {
    ($($(#[$doc:meta])* $name:ident prints $value:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        pub struct $name<const BITS: u32>(u64);

        impl<const BITS: u32> $name<BITS> {
            const MASK: u64 = u64::MAX >> (64 - BITS);

            /// The number, if it fits.
            #[must_use]
            #[inline(always)]
            pub const fn new(value: u64) -> Option<Self> {
                if value & !Self::MASK == 0 {
                    Some(Self(value))
                } else {
                    None
                }
            }
            /// The number's low `BITS` bits, as hardware cuts a wider one.
            #[must_use]
            #[inline(always)]
            pub const fn truncate(value: u64) -> Self {
                Self(value & Self::MASK)
            }
            /// The number.
            #[must_use]
            #[inline(always)]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl<const BITS: u32> Printed for $name<BITS> {
            fn value(self) -> Value {
                Value::$value(self.0)
            }
            fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
                let word = operands.take(key)?;
                Self::new(parse_number(word)?).ok_or_else(|| TextError::range(word, key))
            }
        }

        impl<const BITS: u32> Field for $name<BITS> {
            #[inline(always)]
            fn from_bits(bits: u128) -> Option<Self> {
                Some(Self::truncate(bits as u64))
            }
            #[inline(always)]
            fn to_bits(self) -> u128 {
                self.0.into()
            }
        }
    )*};
}
wrapped_numbers! {
    /// An unsigned number of `BITS` bits, such as the TSC packet's 56 or the TMA packet's 9-bit fast counter.
    Uint prints Number;
    /// An opaque number of `BITS` bits, printed in hexadecimal.
    Hex prints Hex;
}

/// An opaque 64-bit payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hex64(pub u64);

impl Printed for Hex64 {
    fn value(self) -> Value {
        Value::Hex(self.0)
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        number(key, operands)
    }
}

impl Field for Hex64 {
    #[inline(always)]
    fn from_bits(bits: u128) -> Option<Self> {
        Some(Self(bits as u64))
    }
    #[inline(always)]
    fn to_bits(self) -> u128 {
        self.0.into()
    }
}

impl Printed for ExecMode {
    fn value(self) -> Value {
        Value::Mode(self)
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        let word = operands.take(key)?;
        match parse_number(word)? {
            16 => Ok(Self::Bits16),
            32 => Ok(Self::Bits32),
            64 => Ok(Self::Bits64),
            _ => Err(TextError::range(word, key)),
        }
    }
}

impl Field for ExecMode {
    // Bit 0 is CS.L & LMA, bit 1 is CS.D; both set is "N/A" in Table 33-26.
    #[inline]
    fn from_bits(bits: u128) -> Option<Self> {
        match bits {
            0 => Some(Self::Bits16),
            1 => Some(Self::Bits64),
            2 => Some(Self::Bits32),
            _ => None,
        }
    }
    #[inline]
    fn to_bits(self) -> u128 {
        match self {
            Self::Bits16 => 0,
            Self::Bits64 => 1,
            Self::Bits32 => 2,
        }
    }
}

/// Fields whose encodings have names: a number that keeps every encoding, and the names that the manual gives.
macro_rules! named_numbers {
    ($(
        $(#[$doc:meta])*
        $Name:ident: $bits:literal bits { $( $(#[$vdoc:meta])* $CONST:ident $text:literal = $value:literal; )* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $Name(u8);

        impl $Name {
            $( $(#[$vdoc])* pub const $CONST: Self = Self($value); )*

            /// Every encoding that has a name.
            pub const NAMED: &[Self] = &[$(Self::$CONST),*];

            /// The value so encoded, named or not; `None` if it takes more bits than the field has.
            #[must_use]
            pub const fn new(value: u8) -> Option<Self> {
                if value >> $bits == 0 { Some(Self(value)) } else { None }
            }
            /// The encoding.
            #[must_use]
            #[inline(always)]
            pub const fn get(self) -> u8 {
                self.0
            }
            /// The name; `None` for an encoding that the manual reserves.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some($text), )*
                    #[allow(unreachable_patterns)]
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($Name), "({})"), self.0),
                }
            }
        }

        impl core::fmt::Display for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(&$crate::field::Printed::value(*self), f)
            }
        }

        impl $crate::field::Printed for $Name {
            fn value(self) -> $crate::Value {
                $crate::Value::Named(self.0.into(), self.name())
            }
            fn parse(
                key: &'static str,
                operands: &mut $crate::text::Operands<'_>,
            ) -> Result<Self, $crate::text::TextError> {
                let word = operands.take(key)?;
                $( if word.eq_ignore_ascii_case($text) { return Ok(Self::$CONST); } )*
                u8::try_from($crate::text::parse_number(word)?)
                    .ok()
                    .and_then(Self::new)
                    .ok_or_else(|| $crate::text::TextError::range(word, key))
            }
        }

        impl $crate::field::Field for $Name {
            #[inline(always)]
            fn from_bits(bits: u128) -> Option<Self> {
                Some(Self(bits as u8 & (0xff >> (8 - $bits))))
            }
            #[inline(always)]
            fn to_bits(self) -> u128 {
                self.0.into()
            }
        }
    )*};
}
pub(crate) use named_numbers;
