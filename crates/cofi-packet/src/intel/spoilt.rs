//! Packets that errata of processors have spoilt.

use super::{IntelPt, Kind, Packet, decode};
use crate::stream::{Packets, StreamError, StreamItem};
use crate::{DecodeError, StreamOffset};

/// The errata of a processor that spoil packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoiltBy {
    /// SKD007: an OVF may stand in place of the bytes of a CYC after its first.
    pub skd007: bool,
    /// SKZ84: a TMA may be wrong, and a stray byte stand behind it.
    pub skz84: bool,
}

/// How a packet was spoilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spoilt {
    /// Only its first byte is there (SKD007).
    Cut,
    /// It is wrong, and a byte that belongs to no packet follows (SKZ84).
    Stray,
}

impl Spoilt {
    /// The erratum.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cut => "SKD007",
            Self::Stray => "SKZ84",
        }
    }
}

impl SpoiltBy {
    /// Whether there is any to look for.
    #[must_use]
    #[inline]
    pub const fn is_any(&self) -> bool {
        self.skd007 || self.skz84
    }

    /// How `packet`, the `len` bytes at the start of `bytes`, was spoilt, if it was.
    #[must_use]
    #[inline]
    pub fn spoils(self, packet: &Packet, bytes: &[u8], len: usize) -> Option<Spoilt> {
        match packet {
            Packet::Cyc { .. } if self.skd007 && has_ovf(bytes) => Some(Spoilt::Cut),
            Packet::Tma { .. } if self.skz84 && has_stray(bytes.get(len..)?) => Some(Spoilt::Stray),
            _ => None,
        }
    }
}

/// Whether an OVF stands behind the first byte of a CYC that says to go on.
fn has_ovf(bytes: &[u8]) -> bool {
    matches!(bytes, [first, 0x02, 0xf3, ..] if first & 4 != 0)
}

/// Whether what stands behind a TMA begins with a stray byte. D9 counts as one: the processors with this erratum have no TRIG packet.
fn has_stray(behind: &[u8]) -> bool {
    let is_stray = match decode(behind) {
        Ok(raw) => raw.kind() == Kind::Trig,
        Err(error) => matches!(error, DecodeError::Unknown { .. }) || behind.first() == Some(&0xd9),
    };
    is_stray && decode(&behind[1..]).is_ok()
}

/// [`Packets`] of a processor with such errata: where bytes were spoilt that would be misread, they are an error of their own
/// ([`DecodeError::Spoilt`]), and reading goes on right behind them.
///
/// ```
/// use cofi_packet::intel::{Packet, Repaired, SpoiltBy};
///
/// // A CYC that says to go on, then OVF.
/// let bytes = [0x07, 0x02, 0xf3];
/// let by = SpoiltBy { skd007: true, ..SpoiltBy::default() };
/// let items: Vec<_> = Repaired::new(&bytes, by).collect();
/// assert_eq!(items[0].unwrap_err().size, 1);
/// assert_eq!(items[1].unwrap().packet(), Packet::Ovf);
/// ```
#[derive(Clone, Debug)]
pub struct Repaired<'a> {
    bytes: &'a [u8],
    packets: Packets<'a, IntelPt>,
    by: SpoiltBy,
    /// The next byte is a stray one.
    is_stray: bool,
}

impl<'a> Repaired<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8], by: SpoiltBy) -> Self {
        Self::starting_at(bytes, StreamOffset(0), by)
    }

    /// Reads from `offset` (at most the slice's length).
    #[must_use]
    pub fn starting_at(bytes: &'a [u8], offset: StreamOffset, by: SpoiltBy) -> Self {
        Self {
            bytes,
            packets: Packets::starting_at(bytes, offset),
            by,
            is_stray: false,
        }
    }

    /// One byte that an erratum has spoilt; reading goes on behind it.
    #[cold]
    #[inline(never)]
    fn lost(&mut self, offset: StreamOffset, spoilt: Spoilt) -> StreamItem<IntelPt> {
        let context = self.packets.context();
        let next = StreamOffset(offset.0 + 1);
        self.packets = Packets::starting_at(self.bytes, next).in_context(context);
        Err(StreamError {
            offset,
            size: 1,
            error: DecodeError::Spoilt {
                erratum: spoilt.name(),
            },
            packet: None,
        })
    }
}

impl Iterator for Repaired<'_> {
    type Item = StreamItem<IntelPt>;

    #[inline(always)]
    fn next(&mut self) -> Option<StreamItem<IntelPt>> {
        if !self.by.skd007 && !self.by.skz84 {
            return self.packets.next();
        }
        self.next_repaired()
    }
}

impl Repaired<'_> {
    #[inline(never)]
    fn next_repaired(&mut self) -> Option<StreamItem<IntelPt>> {
        if core::mem::take(&mut self.is_stray) {
            let offset = self.packets.offset();
            return Some(self.lost(offset, Spoilt::Stray));
        }
        let item = self.packets.next()?;
        let Ok(located) = item else {
            return Some(item);
        };
        let bytes = &self.bytes[located.offset.0 as usize..];
        match self.by.spoils(&located.packet(), bytes, located.raw.len()) {
            // A CYC changes no context, so what holds behind it held before.
            Some(Spoilt::Cut) => Some(self.lost(located.offset, Spoilt::Cut)),
            Some(Spoilt::Stray) => {
                self.is_stray = true;
                Some(item)
            }
            None => Some(item),
        }
    }
}
