//! The last IP, against which addresses are compressed (Table 33-18), with what a decoder must know of it beside the number.

use crate::error::Error;
use crate::packets::Packet;

/// The last IP.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastIp {
    ip: u64,
    known: bool,
    suppressed: bool,
}

impl LastIp {
    /// What a packet with an address makes of it.
    #[inline]
    pub(crate) fn update(&mut self, packet: &Packet) {
        let (code, bits) = packet.ip();
        let keep = match code {
            0 => {
                self.suppressed = true;
                return;
            }
            1 => !0xffff,
            2 => !0xffff_ffff,
            4 => !0xffff_ffff_ffff,
            _ => 0,
        };
        let bits = match code {
            3 => ((bits << 16) as i64 >> 16) as u64,
            _ => bits,
        };
        *self = Self {
            ip: self.ip & keep | bits,
            known: true,
            suppressed: false,
        };
    }

    /// The address that the packet tells, which becomes the last.
    #[inline]
    pub(crate) fn told(&mut self, packet: &Packet) -> Option<u64> {
        self.update(packet);
        (!self.suppressed).then_some(self.ip)
    }

    /// The address, if it is known and the last packet told one.
    #[inline]
    pub(crate) fn get(&self) -> Result<u64, Error> {
        match (self.known, self.suppressed) {
            (false, _) => Err(Error::NoIp),
            (true, true) => Err(Error::IpSuppressed),
            (true, false) => Ok(self.ip),
        }
    }
}
