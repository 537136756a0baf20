//! The Last IP state against which IP payloads are compressed (33.4.2.2, Table 33-18).

use super::{IpBytes, IpPayload};
use crate::Ip;

/// The Last IP: the same state in whoever writes a stream and in whoever reads it.
///
/// It starts at zero and returns to zero at every PSB ([`LastIp::reset`]); a suppressed payload leaves it alone.
///
/// ```
/// use cofi_packet::{Ip, intel::{IpBytes, LastIp}};
///
/// let (mut writer, mut reader) = (LastIp::new(), LastIp::new());
/// for (ip, bytes) in [(0x7f12_3456_789a, IpBytes::Sext48), (0x7f12_3456_0000, IpBytes::Update16)] {
///     let payload = writer.compress(Ip(ip));
///     assert_eq!(payload.ip_bytes(), bytes);
///     assert_eq!(reader.apply(payload), Some(Ip(ip)));
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LastIp(u64);

#[inline(always)]
const fn sign_extend48(low: u64) -> u64 {
    ((low << 16) as i64 >> 16) as u64
}

impl LastIp {
    /// The state after a PSB.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// Back to zero, as a PSB demands.
    #[inline(always)]
    pub const fn reset(&mut self) {
        self.0 = 0;
    }

    /// The IP that was last sent or received, or zero.
    #[must_use]
    pub const fn get(&self) -> Ip {
        Ip(self.0)
    }

    /// Reads a payload: the full IP, which becomes the Last IP; `None` when the payload is suppressed.
    #[inline]
    pub const fn apply(&mut self, payload: IpPayload) -> Option<Ip> {
        let bytes = payload.ip_bytes();
        self.0 = match bytes {
            IpBytes::Suppressed => return None,
            IpBytes::Sext48 => sign_extend48(payload.payload()),
            _ => self.0 & !bytes.mask() | payload.payload(),
        };
        Some(Ip(self.0))
    }

    /// Writes an IP: its shortest payload, and the IP becomes the Last IP.
    #[inline]
    pub const fn compress(&mut self, ip: Ip) -> IpPayload {
        let (ip, differing) = (ip.0, ip.0 ^ self.0);
        self.0 = ip;
        let bytes = if differing >> 16 == 0 {
            IpBytes::Update16
        } else if differing >> 32 == 0 {
            IpBytes::Update32
        } else if sign_extend48(ip) == ip {
            IpBytes::Sext48
        } else if differing >> 48 == 0 {
            IpBytes::Update48
        } else {
            IpBytes::Full
        };
        IpPayload::truncate(bytes, ip)
    }

    /// Writes an IP in as many bytes as told, and the IP becomes the Last IP; `None`, and no change, when a reader would
    /// not get this IP from them.
    pub const fn compress_as(&mut self, ip: Ip, bytes: IpBytes) -> Option<IpPayload> {
        let payload = IpPayload::truncate(bytes, ip.0);
        let mut after = *self;
        match after.apply(payload) {
            Some(read) if read.0 == ip.0 => {
                *self = after;
                Some(payload)
            }
            _ => None,
        }
    }
}
