//! Payloads of four or eight bytes: PTW and the items of a block.

use crate::field::{Codec, Field, Printed, Tail};
use crate::text::{Operands, TextError, parse_number};
use crate::value::Value;

/// A payload of four or eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Payload {
    /// Four bytes.
    Four(u32),
    /// Eight bytes.
    Eight(u64),
}

impl Payload {
    /// The payload, zero-extended.
    #[must_use]
    pub const fn get(self) -> u64 {
        match self {
            Self::Four(payload) => payload as u64,
            Self::Eight(payload) => payload,
        }
    }
    /// How many bytes it has: 4 or 8.
    #[must_use]
    pub const fn size(self) -> ItemSize {
        match self {
            Self::Four(_) => ItemSize::Four,
            Self::Eight(_) => ItemSize::Eight,
        }
    }
    /// A payload of `size`; the low four bytes of `value` if that is four (as Table 33-47 says of block items).
    #[must_use]
    pub const fn truncate(size: ItemSize, value: u64) -> Self {
        match size {
            ItemSize::Four => Self::Four(value as u32),
            ItemSize::Eight => Self::Eight(value),
        }
    }
}

fn parse_payload(size: ItemSize, operands: &mut Operands<'_>) -> Result<Payload, TextError> {
    let word = operands.take("payload")?;
    let value = parse_number(word)?;
    match size {
        ItemSize::Four => match u32::try_from(value) {
            Ok(value) => Ok(Payload::Four(value)),
            Err(_) => Err(TextError::range(word, "payload")),
        },
        ItemSize::Eight => Ok(Payload::Eight(value)),
    }
}

impl Printed for Payload {
    fn value(self) -> Value {
        Value::Hex(self.get())
    }
    // As a block's item: the size is that of the block.
    fn parse(_key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        let size = match operands.item_size {
            Some(4) => ItemSize::Four,
            _ => ItemSize::Eight,
        };
        parse_payload(size, operands)
    }
}

impl Tail for Payload {
    #[inline(always)]
    fn from_tail(bits: u128, len: usize) -> Option<Self> {
        match len {
            4 => Some(Self::Four(bits as u32)),
            8 => Some(Self::Eight(bits as u64)),
            _ => None,
        }
    }
    #[inline(always)]
    fn to_tail(self) -> (u128, usize) {
        (self.get().into(), self.size().bytes())
    }
}

/// The payload of a PTW packet, from PayloadBytes (Table 33-40) on: bits 1:0 that field, bit 2 the IP bit, then the
/// payload.
pub(crate) enum Ptw {}

impl Codec<Payload> for Ptw {
    #[inline(always)]
    fn from_bits(bits: u128) -> Option<Payload> {
        match bits & 3 {
            0 => Some(Payload::Four((bits >> 3) as u32)),
            1 => Some(Payload::Eight((bits >> 3) as u64)),
            _ => None,
        }
    }
    #[inline(always)]
    fn to_bits(payload: Payload) -> u128 {
        u128::from(payload.get()) << 3 | u128::from(payload.size() == ItemSize::Eight)
    }
    fn visit(payload: Payload, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        f("size", Value::Number(payload.size().bytes() as u64));
        f(key, payload.value());
    }
    fn parse(_key: &'static str, operands: &mut Operands<'_>) -> Result<Payload, TextError> {
        let size = match operands.key("size") {
            Some(word) => ItemSize::from_word(word)?,
            None => ItemSize::Eight,
        };
        parse_payload(size, operands)
    }
}

/// How long the payloads in a block are (the SZ bit of Table 33-45).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ItemSize {
    /// Four bytes: SZ = 1.
    Four,
    /// Eight bytes: SZ = 0.
    Eight,
}

impl ItemSize {
    /// 4 or 8.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    fn from_word(word: &str) -> Result<Self, TextError> {
        match word {
            "4" => Ok(Self::Four),
            "8" => Ok(Self::Eight),
            _ => Err(TextError::range(word, "size")),
        }
    }
}

impl Printed for ItemSize {
    fn value(self) -> Value {
        Value::Number(self.bytes() as u64)
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        Self::from_word(operands.take(key)?)
    }
}

impl Field for ItemSize {
    #[inline(always)]
    fn from_bits(bits: u128) -> Option<Self> {
        Some(if bits == 0 { Self::Eight } else { Self::Four })
    }
    #[inline(always)]
    fn to_bits(self) -> u128 {
        u128::from(self == Self::Four)
    }
}

/// The instruction count of a TRIG packet, from ICNTV on: bit 0 says whether it is there, bits 25:10 are it.
pub(crate) enum Icnt {}

impl Codec<Option<u16>> for Icnt {
    fn from_bits(bits: u128) -> Option<Option<u16>> {
        Some((bits & 1 != 0).then_some((bits >> 10) as u16))
    }
    fn to_bits(count: Option<u16>) -> u128 {
        count.map_or(0, |count| u128::from(count) << 10 | 1)
    }
    fn visit(count: Option<u16>, key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        f(
            key,
            count.map_or(Value::Absent, |count| Value::Number(count.into())),
        );
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Option<u16>, TextError> {
        match operands.key(key) {
            None => Ok(None),
            Some(word) => match u16::try_from(parse_number(word)?) {
                Ok(count) => Ok(Some(count)),
                Err(_) => Err(TextError::range(word, key)),
            },
        }
    }
}
