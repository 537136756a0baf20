//! What proves that a trace was decoded as it ran.

use cofi_session::{SealCount, Stream};

/// How far the seals of a trace prove its decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Proof {
    /// What came of comparing with the seals.
    pub seals: SealCount,
    /// Bytes of packets.
    pub bytes: u64,
    /// Bytes of which no seal says what ran: all of them, but for streams that Cofi recorded.
    pub unsealed: u64,
}

impl Proof {
    /// Of a stream, before anything is decoded.
    pub(crate) fn of(stream: &Stream<'_>) -> Self {
        /// The last piece of a stream is padded to a multiple of so many bytes.
        const PADDING: u64 = 8;
        let bytes = stream.len() as u64;
        let seals = stream.seals();
        let sealed: u64 = seals.iter().map(|seal| seal.end.0 - seal.start.0).sum();
        let end = seals.last().map_or(0, |seal| seal.end.0);
        let padding = Some(bytes.saturating_sub(end)).filter(|rest| *rest < PADDING);
        Self {
            seals: SealCount::default(),
            bytes,
            unsealed: bytes.saturating_sub(sealed + padding.unwrap_or(0)),
        }
    }

    /// Adds that of another stream.
    pub fn add(&mut self, other: Self) {
        self.seals.add(other.seals);
        self.bytes += other.bytes;
        self.unsealed += other.unsealed;
    }

    /// Whether anything is proven at all.
    #[must_use]
    pub const fn has_seals(&self) -> bool {
        self.seals.verified + self.seals.broken > 0
    }

    /// Whether every packet is covered by a seal, and all of them match.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.has_seals() && self.seals.broken == 0 && self.unsealed == 0
    }
}
