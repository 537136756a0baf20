//! The machinery that makes type, decoder, encoder, printer and parser of one table a format.
//!
//! A packet is at most 16 bytes, so it is handled as one little-endian 128-bit word: byte 0 is bits 7:0. A row gives
//! the packet's name and section, its constant head bytes (`value / mask`, the mask being ff when left out), the size
//! of its fixed part, its fields as bit ranges of the word, and what follows the fixed part in a length that the packet
//! itself does not tell (`tail`). Whatever neither the head nor a field covers is reserved: ignored by the decoder,
//! kept in [`Raw`], zero from the encoder.

use crate::word::{MAX_PACKET, first_bytes};
use core::fmt;

/// A row of a packet table.
#[derive(Clone, Copy)]
pub struct Row {
    pub(crate) name: &'static str,
    pub(crate) section: &'static str,
    pub(crate) value: u128,
    pub(crate) mask: u128,
    pub(crate) fields: u128,
    /// Whether a tail may follow.
    pub(crate) tail: bool,
}

impl Row {
    pub(crate) const fn first_byte_matches(&self, byte: u8) -> bool {
        byte & self.mask as u8 == self.value as u8
    }
}

/// Which packet it is: a row of a table.
pub trait PacketKind: Copy + Eq + fmt::Debug + 'static {
    /// Every kind of the format, in the table's order.
    const ALL: &'static [Self];

    /// The row.
    #[doc(hidden)]
    fn row(self) -> &'static Row;

    /// The packet's name as `cofi dump` prints it.
    #[must_use]
    fn name(self) -> &'static str {
        self.row().name
    }

    /// The section of the manual that defines the packet.
    #[must_use]
    fn section(self) -> &'static str {
        self.row().section
    }
}

/// A packet's bytes with every bit kept, reserved ones included.
///
/// It is made by decoding or encoding, so that its typed packet always exists: `packet()` gives it.
#[derive(Clone, Copy)]
pub struct Raw<K> {
    /// The packet, and behind it whatever follows: a little-endian word in two halves.
    halves: [u64; 2],
    len: u8,
    kind: K,
}

impl<K: PacketKind> Raw<K> {
    #[inline(always)]
    pub(crate) const fn new(kind: K, word: u128, len: usize) -> Self {
        Self {
            halves: [word as u64, (word >> 64) as u64],
            len: len as u8,
            kind,
        }
    }

    /// Which packet it is.
    #[must_use]
    #[inline(always)]
    pub const fn kind(&self) -> K {
        self.kind
    }

    /// The size in bytes, 1 to [`MAX_PACKET`].
    #[must_use]
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "a packet is never empty")]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    #[inline(always)]
    pub(crate) const fn unmasked_word(&self) -> u128 {
        self.halves[0] as u128 | (self.halves[1] as u128) << 64
    }

    /// The packet as a little-endian word: byte 0 is bits 7:0, and the bits above the packet are zero.
    #[must_use]
    #[inline]
    pub const fn word(&self) -> u128 {
        first_bytes(self.unmasked_word(), self.len())
    }

    /// The bytes; those after [`Self::len`] are zero.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> [u8; MAX_PACKET] {
        self.word().to_le_bytes()
    }

    /// The reserved bits, at their places in [`Self::word`]. They are not all that the typed packet may leave out: a count
    /// can be longer than it needs be, and RTIT's Zext bit says nothing above six bytes.
    #[must_use]
    pub fn reserved(&self) -> u128 {
        let row = self.kind.row();
        let tail = if row.tail { u128::MAX << 8 } else { 0 };
        self.word() & !row.mask & !row.fields & !tail
    }

    /// Writes the packet to the start of `buffer` and tells its size; the bytes after it stay as they were.
    ///
    /// # Errors
    /// [`Full`](crate::Full) when it does not fit; nothing is written then.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, crate::Full> {
        let room = buffer.len();
        let Some(place) = buffer.get_mut(..self.len()) else {
            return Err(crate::Full {
                need: self.len(),
                room,
            });
        };
        place.copy_from_slice(&self.unmasked_word().to_le_bytes()[..self.len()]);
        Ok(self.len())
    }
}

impl<K: PacketKind> PartialEq for Raw<K> {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, self.len, self.word()) == (other.kind, other.len, other.word())
    }
}

impl<K: PacketKind> Eq for Raw<K> {}

impl<K: PacketKind> fmt::Debug for Raw<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{:02x?}]", self.kind, &self.bytes()[..self.len()])
    }
}

pub(crate) const NONE: u8 = 0xff;

/// Row by first byte; the row with the most constant bits in it wins, as 02 is no TNT and 00 is PAD. `skip` is a row
/// that the first byte does not tell.
pub(crate) const fn first_table(rows: &[Row], skip: usize) -> [u8; 256] {
    let mut table = [NONE; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut row, mut best) = (0, 0);
        while row < rows.len() {
            let constant = (rows[row].mask as u8).count_ones();
            if row != skip && rows[row].first_byte_matches(byte as u8) && constant > best {
                best = constant;
                table[byte] = row as u8;
            }
            row += 1;
        }
        byte += 1;
    }
    table
}

/// Row by second byte, of the packets that begin with the byte `first`.
pub(crate) const fn second_table(rows: &[Row], first: u8) -> [u8; 256] {
    let mut table = [NONE; 256];
    let mut byte = 0;
    while byte < 256 {
        // The most constant bits so far, and one more.
        let (mut row, mut best) = (0, 0);
        while row < rows.len() {
            let (value, mask) = ((rows[row].value >> 8) as u8, (rows[row].mask >> 8) as u8);
            if rows[row].mask as u8 == 0xff
                && rows[row].value as u8 == first
                && byte as u8 & mask == value
            {
                let constant = mask.count_ones() + 1;
                assert!(constant != best, "two rows claim the same two bytes");
                if constant > best {
                    best = constant;
                    table[byte] = row as u8;
                }
            }
            row += 1;
        }
        byte += 1;
    }
    table
}

macro_rules! mask_or_ff {
    () => {
        0xff
    };
    ($mask:literal) => {
        $mask
    };
}
pub(crate) use mask_or_ff;

macro_rules! codec {
    () => {
        $crate::field::Own
    };
    ($via:ty) => {
        $via
    };
}
pub(crate) use codec;

macro_rules! packets {
    (
        $(#[$packet_doc:meta])*
        context $Context:ty, size $Size:ty, tail $tail_len:path, never $Never:ident;
        $(
            $(#[$doc:meta])*
            $Kind:ident $name:literal $section:literal [$($value:literal $(/ $mask:literal)?),+] $size:expr
            $(, { $( $(#[$fdoc:meta])*
                     $field:ident $key:literal: $ty:ty = $low:literal..$high:literal $(via $via:ty)? ),+
                  $(; $(#[$tdoc:meta])* $tail:ident $tkey:literal: $tty:ty)? })?;
        )*
    ) => {
        $(#[$packet_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Packet {
            $( $(#[$doc])* #[doc = concat!("\n\nSection ", $section, ".")]
               $Kind $({ $( $(#[$fdoc])* $field: $ty, )+ $( $(#[$tdoc])* $tail: $tty, )? })? ),*
        }

        /// Which packet it is.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Kind {
            $( $(#[$doc])* #[doc = concat!("\n\nSection ", $section, ".")] $Kind ),*
        }

        pub(super) const ROWS: &[$crate::table::Row] = &[$({
            const HEAD: (u128, u128) =
                $crate::word::head(&[$(($value, $crate::table::mask_or_ff!($($mask)?))),+]);
            #[allow(unused_mut, unused_assignments)]
            const TAIL: bool = {
                let mut tail = false;
                $($( tail = !$tkey.is_empty(); )?)?
                tail
            };
            $crate::table::Row {
                name: $name,
                section: $section,
                value: HEAD.0,
                mask: HEAD.1,
                fields: 0 $($(| $crate::word::range_mask($low, $high))+)?,
                tail: TAIL,
            }
        }),*];

        /// How the sizes of the packets' fixed parts follow, in the table's order.
        #[allow(dead_code)]
        const SIZES: &[$Size] = &[$($size),*];

        const KINDS: &[Kind] = &[$(Kind::$Kind),*];

        impl $crate::PacketKind for Kind {
            const ALL: &'static [Self] = KINDS;
            fn row(self) -> &'static $crate::table::Row {
                &ROWS[self as usize]
            }
        }

        impl Kind {
            /// Every kind, in the table's order.
            pub const ALL: &'static [Self] = KINDS;

            /// The packet's name as `cofi dump` prints it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                ROWS[self as usize].name
            }

            /// The section of the manual that defines the packet.
            #[must_use]
            pub const fn section(self) -> &'static str {
                ROWS[self as usize].section
            }
        }

        impl Packet {
            const NEVER: Self = Self::$Never;

            /// Which packet it is.
            #[must_use]
            #[inline(always)]
            pub const fn kind(&self) -> Kind {
                match self { $( Self::$Kind { .. } => Kind::$Kind ),* }
            }

            /// Encodes the packet; reserved bits are zero.
            #[must_use]
            #[inline(always)]
            pub fn encode(&self) -> $crate::Raw<Kind> {
                match *self {
                    $( Self::$Kind $({ $($field,)+ $($tail,)? })? => {
                        const ROW: $crate::table::Row = ROWS[Kind::$Kind as usize];
                        #[allow(unused_mut)]
                        let mut word = ROW.value $($(
                            | <$crate::table::codec!($($via)?) as $crate::field::Codec<$ty>>::to_bits($field) << $low
                        )+)?;
                        // A typed packet's size bits are never reserved ones.
                        #[allow(unused_mut)]
                        let mut len = <$Size>::of(&$size, word).unwrap_or(1);
                        $($(
                            let (bits, bytes) = $crate::field::Tail::to_tail($tail);
                            word |= bits << (8 * len);
                            len += bytes;
                        )?)?
                        $crate::Raw::new(Kind::$Kind, word, len)
                    } ),*
                }
            }

            /// Hands every field to `f` as (key, value), in the table's order. The keys are those of `cofi dump`.
            pub fn visit(&self, f: &mut dyn FnMut(&'static str, $crate::Value)) {
                match *self {
                    $( Self::$Kind $({ $($field,)+ $($tail,)? })? => {
                        $( $( <$crate::table::codec!($($via)?) as $crate::field::Codec<$ty>>::visit($field, $key, f); )+
                           $( $crate::field::Printed::visit($tail, $tkey, f); )? )?
                    } ),*
                }
            }

            /// Reads the packet `kind` from operands, as `Display` prints it.
            pub(crate) fn parse(
                kind: Kind,
                operands: &mut $crate::text::Operands<'_>,
            ) -> Result<Self, $crate::text::TextError> {
                let packet = match kind {
                    $( Kind::$Kind => Self::$Kind $({
                        $( $field: <$crate::table::codec!($($via)?) as $crate::field::Codec<$ty>>::parse($key, operands)?, )+
                        $( $tail: $crate::field::Printed::parse($tkey, operands)?, )?
                    })? ),*
                };
                operands.finish()?;
                Ok(packet)
            }

            /// The size of the packet `kind`, of which `have` bytes are in `word`, if it is one.
            #[inline(always)]
            fn measure(
                kind: Kind,
                word: u128,
                have: usize,
                context: $Context,
            ) -> Result<usize, $crate::DecodeError> {
                match kind {
                    $( Kind::$Kind => {
                        const ROW: $crate::table::Row = ROWS[Kind::$Kind as usize];
                        // The first two bytes have led here.
                        if ROW.mask >> 16 != 0
                            && (word ^ ROW.value) & ROW.mask & $crate::word::first_bytes(u128::MAX, have) != 0
                        {
                            return Err($crate::DecodeError::unknown(word));
                        }
                        let base = match <$Size>::of(&$size, word) {
                            Ok(size) => size,
                            Err(value) => return Err($crate::DecodeError::reserved($name, "size", value, 1)),
                        };
                        if have < base {
                            return Err($crate::DecodeError::truncated(have, base));
                        }
                        #[allow(unused_mut)]
                        let mut size = base;
                        $($(
                            let len = $tail_len(context, $name, word, base, have)?;
                            size += len;
                            if have < size {
                                return Err($crate::DecodeError::truncated(have, size));
                            }
                            if <$tty as $crate::field::Tail>::from_tail(word >> (8 * base), len).is_none() {
                                return Err($crate::DecodeError::reserved(
                                    $name, $tkey, (word >> (8 * base)) as u64, size,
                                ));
                            }
                        )?)?
                        $($(
                            let bits = $crate::word::bits(word, $low, $high);
                            if <$crate::table::codec!($($via)?) as $crate::field::Codec<$ty>>::from_bits(bits).is_none() {
                                return Err($crate::DecodeError::reserved($name, $key, bits as u64, size));
                            }
                        )+)?
                        Ok(size)
                    } ),*
                }
            }

            /// The packet `kind` in `word`, which [`Self::measure`] has found to be one of `_size` bytes; `None` if it
            /// has not.
            #[inline(always)]
            fn typed(kind: Kind, word: u128, _size: usize) -> Option<Self> {
                Some(match kind {
                    $( Kind::$Kind => Self::$Kind $({
                        $( $field: {
                            let bits = $crate::word::bits(word, $low, $high);
                            <$crate::table::codec!($($via)?) as $crate::field::Codec<$ty>>::from_bits(bits)?
                        }, )+
                        $( $tail: {
                            let _ = $tkey;
                            let base = <$Size>::of(&$size, word).ok()?;
                            let len = _size.checked_sub(base)?;
                            <$tty as $crate::field::Tail>::from_tail(word >> (8 * base), len)?
                        }, )?
                    })? ),*
                })
            }
        }

        impl $crate::Raw<Kind> {
            /// The typed packet.
            #[must_use]
            #[inline(always)]
            pub fn packet(&self) -> Packet {
                // Only what was measured becomes a `Raw`, so there is a packet.
                Packet::typed(self.kind(), self.unmasked_word(), self.len()).unwrap_or(Packet::NEVER)
            }
        }

        impl core::fmt::Display for Packet {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.kind().name())?;
                $crate::text::write_operands(f, |visitor| self.visit(visitor))
            }
        }
    };
}
pub(crate) use packets;
