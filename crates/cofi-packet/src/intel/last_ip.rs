//! The Last IP state against which IP payloads are compressed (33.4.2.2, Table 33-18).

use super::{IpPayload, U48};
use crate::Ip;

/// The Last IP: the same state in whoever writes a stream and in whoever reads it.
///
/// It starts at zero and returns to zero at every PSB ([`LastIp::reset`]); a suppressed payload leaves it alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LastIp(u64);

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
    pub fn reset(&mut self) {
        self.0 = 0;
    }

    /// The IP that was last sent or received, or zero.
    #[must_use]
    pub const fn get(&self) -> Ip {
        Ip(self.0)
    }

    /// Reads a payload: the full IP, which becomes the Last IP; `None` when the payload is suppressed.
    pub fn apply(&mut self, payload: IpPayload) -> Option<Ip> {
        let low = payload.payload();
        self.0 = match payload {
            IpPayload::Suppressed => return None,
            IpPayload::Update16(_) => self.0 & !0xffff | low,
            IpPayload::Update32(_) => self.0 & !0xffff_ffff | low,
            IpPayload::Sext48(_) => sign_extend48(low),
            IpPayload::Update48(_) => self.0 & !0xffff_ffff_ffff | low,
            IpPayload::Full(_) => low,
        };
        Some(Ip(self.0))
    }

    /// Writes an IP: its shortest payload, and the IP becomes the Last IP.
    pub fn compress(&mut self, ip: Ip) -> IpPayload {
        let (ip, differing) = (ip.0, ip.0 ^ self.0);
        self.0 = ip;
        if differing >> 16 == 0 {
            IpPayload::Update16(ip as u16)
        } else if differing >> 32 == 0 {
            IpPayload::Update32(ip as u32)
        } else if sign_extend48(ip) == ip {
            IpPayload::Sext48(U48::truncate(ip))
        } else if differing >> 48 == 0 {
            IpPayload::Update48(U48::truncate(ip))
        } else {
            IpPayload::Full(ip)
        }
    }
}
