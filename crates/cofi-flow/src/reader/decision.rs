//! The short way to what decides where control goes: past padding and timing packets to the next TNT or TIP.

use cofi_packet::Ip;
use cofi_packet::intel::{Block, Kind, Packet, decode};

use super::{Flow, Reader, short_tnt};

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A TNT: its bits, and how many.
    Tnt(u64, u8),
    /// A TIP that tells an address.
    Tip(Ip),
    /// Something else, which is still to be read.
    Other,
}

impl Reader<'_> {
    /// The next packet that is no padding and tells no time, if it is a TNT or a TIP with an address; others are left where they are.
    ///
    /// It is what [`next`](Self::next) returns, and leaves the reader as that does.
    #[inline]
    pub(crate) fn next_decision(&mut self) -> Decision {
        if self.back.is_some() || self.block != Block::Outside {
            return Decision::Other;
        }
        if self.is_rtit() {
            return match self.next_tnt_rtit() {
                Some((bits, len)) => Decision::Tnt(bits, len),
                None => Decision::Other,
            };
        }
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let Some(&first) = rest.first() else {
                return Decision::Other;
            };
            if let Some(Flow::Tnt { bits, len }) = short_tnt(first) {
                self.offset = self.at;
                self.at += 1;
                return Decision::Tnt(bits, len);
            }
            if first == 0 {
                self.at += 1;
                continue;
            }
            if self.doubt || self.ticks.is_some() || self.spoilt_by.is_any() {
                return Decision::Other;
            }
            let Ok(raw) = decode(rest) else {
                return Decision::Other;
            };
            let decision = match raw.kind() {
                Kind::Cyc | Kind::Mtc | Kind::Tsc | Kind::Tma | Kind::Cbr => {
                    self.at += raw.len();
                    self.timing += 1;
                    continue;
                }
                Kind::Tip => match raw.packet() {
                    Packet::Tip { ip } => self.address(ip).map(Decision::Tip),
                    _ => None,
                },
                Kind::Tnt64 => match raw.packet() {
                    Packet::Tnt64 { bits } => Some(Decision::Tnt(bits.bits(), bits.len() as u8)),
                    _ => None,
                },
                _ => None,
            };
            let Some(decision) = decision else {
                return Decision::Other;
            };
            self.offset = self.at;
            self.at += raw.len();
            return decision;
        }
    }
}
