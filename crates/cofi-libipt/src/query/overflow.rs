//! OVF: what comes behind tells whether tracing is on, and where control is.

use cofi_packet::intel::Kind;

use super::{Next, Query, Reader, Told};
use crate::error::Error;
use crate::event::{Event, ptev};
use crate::last_ip::LastIp;
use crate::packets::{Found, read_at};

impl Query {
    /// The OVF at which the decoder stands. If a FUP says where control is, the event waits for it; what comes between is read as usual.
    pub(super) fn overflow(&mut self) -> Result<Option<Told>, Error> {
        let behind = self.at() + 2;
        self.at_tip.clear();
        self.at_fup.clear();
        self.last_ip = LastIp::default();
        self.clock.overflow();
        self.go(behind);
        let overflow = self.clock.stamp(Event::new(ptev::OVERFLOW, [0; 3]));
        let resolved = self.resolves_at_fup(behind);
        if let Some(resumed) = self.resume(behind, resolved)? {
            return Ok(Some(resumed));
        }
        match resolved {
            Ok(true) => {
                self.enabled = true;
                self.at_fup.push(overflow)?;
                self.ahead()?;
                Ok(None)
            }
            Ok(false) => {
                self.enabled = false;
                let behind = self.ahead();
                Ok(Some((overflow.at(None), behind)))
            }
            Err(error) => {
                self.next = Next::Bad(error, Reader::Anybody, 0);
                Err(error)
            }
        }
    }

    /// Whether tracing is on behind an OVF, which a FUP tells; timing packets may stand before it.
    fn resolves_at_fup(&self, from: usize) -> Result<bool, Error> {
        let mut at = from;
        while at < self.config.len() {
            let packet = match read_at(&self.config, at)? {
                Found::Packet(packet) => packet,
                Found::Unknown(_, len) | Found::Spoilt(len) => {
                    at += len;
                    continue;
                }
            };
            at += packet.len();
            match packet.kind {
                Kind::Fup if packet.ip().0 == 0 => return Err(Error::NoIp),
                Kind::Fup => return Ok(true),
                Kind::Pad | Kind::Tsc | Kind::Tma | Kind::Mtc | Kind::Cyc => {}
                Kind::Cbr | Kind::Mnt => {}
                Kind::Tnt8 | Kind::Tnt64 | Kind::Tip | Kind::TipPgd | Kind::PsbEnd => {
                    return Err(Error::BadContext);
                }
                _ => return Ok(false),
            }
        }
        Ok(false)
    }
}
