//! Packets as a listing shows them: with full addresses, in the text form that the assembler reads.

use crate::format::Format;
use crate::table::{PacketKind, Raw};
use crate::text::write_operands;
use crate::{DecodeError, Ip, StreamItem, Value};
use core::fmt;

/// What a listing must remember from packet to packet: the last IP.
///
/// ```
/// use cofi_packet::Listing;
/// use cofi_packet::intel::{IntelPt, Packets};
///
/// let bytes = [0x51, 0x00, 0x10, 0x40, 0x00, 0x2d, 0x34, 0x12, 0x1c];
/// let mut listing = Listing::<IntelPt>::new();
/// let text: Vec<_> = Packets::new(&bytes)
///     .filter_map(|item| listing.item(&item))
///     .map(|listed| listed.to_string())
///     .collect();
/// assert_eq!(text, ["tip.pge 0x401000", "tip 0x401234", "tnt.8 TTN"]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listing<F: Format> {
    last_ip: F::LastIp,
}

impl<F: Format> Default for Listing<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: Format> Listing<F> {
    /// Before a stream's first packet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            last_ip: F::LastIp::default(),
        }
    }

    /// Takes note of an item, misplaced packets included; `None` if it is no packet.
    #[must_use]
    pub fn item(&mut self, item: &StreamItem<F>) -> Option<Listed<F>> {
        match item {
            Ok(located) => Some(self.next(&located.raw)),
            Err(error) => {
                let is_lost = !matches!(error.error, DecodeError::Spoilt { .. });
                if error.packet.is_none() && is_lost {
                    // An address may have been in there.
                    self.last_ip = F::LastIp::default();
                }
                error.packet.map(|raw| self.next(&raw))
            }
        }
    }

    /// Takes note of a packet; what is returned prints it. Every packet of a stream is to be shown here, those in a
    /// [`StreamError`](crate::StreamError) too: a misplaced PSB resets the last IP as any other.
    #[must_use]
    pub fn next(&mut self, raw: &Raw<F::Kind>) -> Listed<F> {
        let packet = F::packet(raw);
        Listed {
            packet,
            raw: *raw,
            ip: F::resolve(&mut self.last_ip, &packet),
        }
    }
}

/// A packet, ready to be printed. `Display` gives the text form, from which the assembler makes the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed<F: Format> {
    packet: F::Packet,
    raw: Raw<F::Kind>,
    /// The address, and whether its compression goes without saying.
    ip: Option<(Option<Ip>, bool)>,
}

impl<F: Format> Listed<F> {
    /// The packet.
    #[must_use]
    pub const fn packet(&self) -> &F::Packet {
        &self.packet
    }

    /// Its bytes.
    #[must_use]
    pub const fn raw(&self) -> &Raw<F::Kind> {
        &self.raw
    }

    /// The address in the packet: `None` without an IP field, `Some(None)` when the IP is suppressed, or completed by
    /// an earlier one that was not there.
    #[must_use]
    pub fn ip(&self) -> Option<Option<Ip>> {
        self.ip.map(|(ip, _)| ip)
    }

    /// Whether bits of an address were sent.
    fn has_payload(&self) -> bool {
        let mut has = false;
        F::visit(&self.packet, &mut |_, value| {
            has |= matches!(value, Value::Payload(Some(_)));
        });
        has
    }

    /// Hands every field to `f` as (key, value), the address as [`Value::Address`]. Of an address that is not known, because its upper
    /// bits are those of one that was not read, what was sent follows as `payload`.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, Value)) {
        F::visit(&self.packet, &mut |key, value| match (value, self.ip) {
            (Value::Payload(sent), Some((ip, _))) => {
                f(key, Value::Address(ip));
                if let (None, Some(_)) = (ip, sent) {
                    f("payload", value);
                }
            }
            _ => f(key, value),
        });
    }
}

impl<F: Format> fmt::Display for Listed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(F::kind(&self.packet).name())?;
        match self.ip {
            None => write_operands(f, |visitor| self.visit(visitor))?,
            // Of an address that is not known, there is what was sent.
            Some((None, _)) if self.has_payload() => {
                write_operands(f, |visitor| F::visit(&self.packet, visitor))?;
            }
            Some((ip, natural)) => {
                write!(f, " {}", Value::Address(ip))?;
                let mut result = Ok(());
                F::visit(&self.packet, &mut |key, value| {
                    let is_compression = matches!(key, "ipc" | "cnt" | "zext");
                    let goes_without_saying = is_compression && natural;
                    if !goes_without_saying
                        && !matches!(value, Value::Payload(_) | Value::Absent)
                        && result.is_ok()
                    {
                        result = write!(f, " {key}={value}");
                    }
                });
                result?;
            }
        }
        if self.raw != F::encode(&self.packet) {
            f.write_str(" raw=")?;
            for byte in &self.raw.bytes()[..self.raw.len()] {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}
