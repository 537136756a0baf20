//! Why bytes form no packet.

/// Why bytes form no packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The input ends inside a packet.
    #[error("the input ends inside a packet: {have} of {need} bytes")]
    Truncated {
        /// Bytes that are there.
        have: u8,
        /// Bytes that the packet needs, as far as those that are there tell.
        need: u8,
    },
    /// No packet begins so.
    #[error("no packet begins with the bytes {first:02x} {second:02x}")]
    Unknown {
        /// The first byte.
        first: u8,
        /// The second byte (zero when there is none).
        second: u8,
    },
    /// A field holds a reserved encoding.
    #[error("{packet}: {field} holds the reserved value {value:#x}")]
    Reserved {
        /// The packet's name.
        packet: &'static str,
        /// The field's key.
        field: &'static str,
        /// The bits found.
        value: u64,
        /// The packet's size in bytes, as far as it is known; at least 1.
        size: u8,
    },
    /// A PSB begins inside a packet: the rest of that packet was lost, as a PSB is nowhere else in a stream (33.4.2.17).
    #[error("a PSB begins inside {packet}: {have} of {need} bytes")]
    Cut {
        /// The packet's name.
        packet: &'static str,
        /// Bytes that stand before the PSB.
        have: u8,
        /// The packet's size.
        need: u8,
    },
    /// A byte that an erratum of the processor has spoilt; reading goes on behind it.
    #[error("spoilt by erratum {erratum}")]
    Spoilt {
        /// The number under which the erratum was first published.
        erratum: &'static str,
    },
    /// A packet of Table 33-15 stands between BBP and BEP. The packet itself was read, and the block counts as ended.
    #[error("{packet} may not stand between bbp and bep")]
    InBlock {
        /// The packet's name.
        packet: &'static str,
    },
}

// Out of line, so that the decoder's way through good packets stays short.
impl DecodeError {
    #[cold]
    pub(crate) fn truncated(have: usize, need: usize) -> Self {
        Self::Truncated {
            have: have as u8,
            need: need as u8,
        }
    }
    #[cold]
    pub(crate) fn unknown(word: u128) -> Self {
        Self::Unknown {
            first: word as u8,
            second: (word >> 8) as u8,
        }
    }
    #[cold]
    pub(crate) fn cut(packet: &'static str, have: usize, need: usize) -> Self {
        Self::Cut {
            packet,
            have: have as u8,
            need: need as u8,
        }
    }
    #[cold]
    pub(crate) fn reserved(
        packet: &'static str,
        field: &'static str,
        value: u64,
        size: usize,
    ) -> Self {
        Self::Reserved {
            packet,
            field,
            value,
            size: size as u8,
        }
    }
}
