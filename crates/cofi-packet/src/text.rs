//! The text form of packets: a name, operands, a comment; read here, printed by [`Value`](crate::Value)'s `Display`.
//!
//! A line is `[LABEL:] [NAME OPERAND…] [; comment]`. An operand is `KEY=VALUE`, or a bare value, which is that of the
//! packet's first field. `#` begins a comment too.

use crate::Value;
use core::fmt;

/// The most operands a line can have: more than any packet has fields.
const MAX_OPERANDS: usize = 12;

/// Why a line of text is no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextErrorKind {
    /// No packet of this format, and no directive, has this name.
    #[error("there is no packet of this name")]
    Name,
    /// The packet needs an operand that is not there.
    #[error("the operand {0} is missing")]
    Missing(&'static str),
    /// The value cannot be read.
    #[error("this cannot be read as a value")]
    Malformed,
    /// A byte is wanted.
    #[error("this is no byte: one or two hexadecimal digits, without 0x")]
    Byte,
    /// An address is to be given without a key.
    #[error("an address stands without a key; ip= is a payload as it is sent, and goes with {0}=")]
    Keyed(&'static str),
    /// The value does not fit the field.
    #[error("the value is out of range for {0}")]
    Range(&'static str),
    /// The packet has no such operand, or has it twice.
    #[error("the packet has no use for this operand")]
    Unused,
    /// More operands than any packet has.
    #[error("there are too many operands")]
    TooMany,
    /// The address cannot be sent in so few bytes, as things stand.
    #[error("the last IP does not allow this address to be sent so")]
    Compression,
    /// The packet may not stand here.
    #[error("{0}")]
    Place(&'static str),
    /// The bytes after `raw=` are not this packet.
    #[error("these bytes are not this packet")]
    Raw,
}

/// Why a line of text is no packet, and where in the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{kind}")]
pub struct TextError {
    /// What is wrong.
    pub kind: TextErrorKind,
    /// Where the word at fault begins: an address, until [`Self::located`] makes it a column.
    at: usize,
    len: usize,
}

impl TextError {
    pub(crate) fn new(kind: TextErrorKind, word: &str) -> Self {
        Self {
            kind,
            at: word.as_ptr().addr(),
            len: word.len(),
        }
    }
    pub(crate) fn range(word: &str, key: &'static str) -> Self {
        Self::new(TextErrorKind::Range(key), word)
    }
    pub(crate) fn malformed(word: &str) -> Self {
        Self::new(TextErrorKind::Malformed, word)
    }

    /// The same, its place being one in `line`, of which the word at fault is a part.
    pub(crate) fn located(self, line: &str) -> Self {
        let at = self.at.wrapping_sub(line.as_ptr().addr());
        Self {
            at: at.min(line.len()),
            ..self
        }
    }

    /// Where the word at fault begins in its line, in bytes from 0; where it should stand, if it is missing.
    #[must_use]
    pub const fn column(&self) -> usize {
        self.at
    }

    /// The word's length in bytes; 0 if it is missing.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "it is the length of a word in a line"
    )]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The column and the word at fault in `line`, which is the line that was read.
    #[must_use]
    pub fn within<'t>(&self, line: &'t str) -> (usize, &'t str) {
        match line.get(self.at..self.at.saturating_add(self.len)) {
            Some(word) => (self.at, word),
            None => (line.len(), ""),
        }
    }
}

/// A number: decimal, or hexadecimal with `0x`, or binary with `0b`; underscores are passed over.
pub(crate) fn parse_number(word: &str) -> Result<u64, TextError> {
    let (digits, radix) = if let Some(digits) = word.strip_prefix("0x").or(word.strip_prefix("0X"))
    {
        (digits, 16)
    } else if let Some(digits) = word.strip_prefix("0b").or(word.strip_prefix("0B")) {
        (digits, 2)
    } else {
        (word, 10)
    };
    let mut number = None;
    for letter in digits.chars() {
        if letter == '_' {
            continue;
        }
        number = letter
            .to_digit(radix)
            .and_then(|digit| {
                number
                    .unwrap_or(0_u64)
                    .checked_mul(radix.into())?
                    .checked_add(digit.into())
            })
            .map(Some)
            .ok_or_else(|| TextError::malformed(word))?;
    }
    number.ok_or_else(|| TextError::malformed(word))
}

pub(crate) fn parse_flag(word: &str) -> Result<bool, TextError> {
    let is = |other| word.eq_ignore_ascii_case(other);
    match word {
        "0" => Ok(false),
        "1" => Ok(true),
        _ if is("false") => Ok(false),
        _ if is("true") => Ok(true),
        _ => Err(TextError::malformed(word)),
    }
}

/// The operands of one line.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'t> {
    name: &'t str,
    words: [&'t str; MAX_OPERANDS],
    len: usize,
    used: u16,
    /// How many bytes the open block's items have, for BIP.
    pub(crate) item_size: Option<usize>,
}

impl<'t> Operands<'t> {
    /// The operands in `text`, of the packet `name`.
    pub(crate) fn new(name: &'t str, text: &'t str) -> Result<Self, TextError> {
        let mut operands = Self {
            name,
            words: [""; MAX_OPERANDS],
            len: 0,
            used: 0,
            item_size: None,
        };
        for word in text.split_ascii_whitespace() {
            let Some(place) = operands.words.get_mut(operands.len) else {
                return Err(TextError::new(TextErrorKind::TooMany, word));
            };
            *place = word;
            operands.len += 1;
        }
        Ok(operands)
    }

    /// The packet's name, as it stands in the line.
    pub(crate) fn name(&self) -> &'t str {
        self.name
    }

    fn take_where(&mut self, matches: impl Fn(&'t str) -> Option<&'t str>) -> Option<&'t str> {
        for (i, word) in self.words[..self.len].iter().enumerate() {
            if self.used >> i & 1 == 1 {
                continue;
            }
            if let Some(value) = matches(word) {
                self.used |= 1 << i;
                return Some(value);
            }
        }
        None
    }

    /// The value of `key=value`, if there is such an operand.
    pub(crate) fn key(&mut self, key: &str) -> Option<&'t str> {
        self.take_where(|word| {
            let (name, value) = word.split_once('=')?;
            name.eq_ignore_ascii_case(key).then_some(value)
        })
    }

    /// The next operand without a key.
    pub(crate) fn bare(&mut self) -> Option<&'t str> {
        self.take_where(|word| (!word.contains('=')).then_some(word))
    }

    /// The length of the longest operand without a key.
    pub(crate) fn longest_bare(&self) -> usize {
        let words = self.words[..self.len].iter();
        words
            .map(|word| word.strip_prefix("bits=").unwrap_or(word))
            .filter(|word| !word.contains('='))
            .map(str::len)
            .max()
            .unwrap_or(0)
    }

    /// The value of `key=value`, or else the next operand without a key.
    pub(crate) fn take(&mut self, key: &'static str) -> Result<&'t str, TextError> {
        match self.key(key).or_else(|| self.bare()) {
            Some(word) => Ok(word),
            None => Err(self.missing(key)),
        }
    }

    pub(crate) fn missing(&self, key: &'static str) -> TextError {
        let end = self.words[..self.len].last().unwrap_or(&self.name);
        TextError::new(TextErrorKind::Missing(key), &end[end.len()..])
    }

    /// Without `compression`, the payload `key` means nothing; and without that, an address is missing.
    pub(crate) fn lacks_compression(
        &mut self,
        key: &'static str,
        compression: &'static str,
    ) -> TextError {
        match self.key(key) {
            Some(word) => TextError::new(TextErrorKind::Keyed(compression), word),
            None => self.missing(key),
        }
    }

    /// Says what nobody took.
    pub(crate) fn finish(&mut self) -> Result<(), TextError> {
        match self.take_where(Some) {
            Some(word) => Err(TextError::new(TextErrorKind::Unused, word)),
            None => Ok(()),
        }
    }
}

/// Prints the fields that `visit` hands out. The first stands without its key if it is the only one that is no flag.
pub(crate) fn write_operands(
    f: &mut dyn fmt::Write,
    visit: impl Fn(&mut dyn FnMut(&'static str, Value)),
) -> fmt::Result {
    let (mut fields, mut first_is_one) = (0, None);
    visit(&mut |_, value| {
        let is_one = !matches!(value, Value::Bool(_) | Value::Absent);
        fields += usize::from(is_one);
        first_is_one.get_or_insert(is_one);
    });
    let mut bare = fields == 1 && first_is_one == Some(true);
    let mut result = Ok(());
    visit(&mut |key, value| {
        if result.is_ok() {
            result = match value {
                Value::Absent => Ok(()),
                _ if core::mem::take(&mut bare) => write!(f, " {value}"),
                _ => write!(f, " {key}={value}"),
            };
        }
    });
    result
}
