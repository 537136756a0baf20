//! Errata of what follows an OVF: SKD010 (neither FUP nor TIP.PGE, though tracing is on: a later packet tells where control is), APL11 (a TIP.PGD), APL12 (a FUP, though
//! tracing is off).

use cofi_packet::intel::{Kind, PSB};

use super::{Query, Told};
use crate::clock::Clock;
use crate::config::Errata;
use crate::error::Error;
use crate::event::{Event, ptev};
use crate::last_ip::LastIp;
use crate::packets::{Found, Packet, read_at};

/// Where the decoder goes on.
struct Resumed {
    at: usize,
    /// Where control is; none if tracing is off.
    ip: Option<u64>,
    last_ip: LastIp,
    clock: Clock,
}

impl Query {
    /// The event of an OVF, if an erratum explains what follows it. What stands before the place where the decoder goes on is lost, as the overflow may have
    /// lasted until there. Otherwise the decoder stands where it was. `resolved` is whether a FUP follows as it should.
    pub(super) fn resume(
        &mut self,
        behind: usize,
        resolved: Result<bool, Error>,
    ) -> Result<Option<Told>, Error> {
        let errata = self.config.errata;
        let clock = self.clock;
        let mut found = Ok(None);
        if errata.has(Errata::APL11 | Errata::APL12) {
            found = Ok(self.look_for_end(behind));
        }
        let unresolved = matches!(resolved, Ok(false) | Err(Error::BadContext));
        if errata.has(Errata::SKD010) && unresolved && matches!(found, Ok(None)) {
            self.clock = clock;
            found = self.look_for_place(behind);
        }
        self.clock = clock;
        self.go(behind);
        let Some(resumed) = found? else {
            return Ok(None);
        };
        self.clock = resumed.clock;
        self.last_ip = resumed.last_ip;
        self.enabled = resumed.ip.is_some();
        self.go(resumed.at);
        let event = self.clock.stamp(Event::new(ptev::OVERFLOW, [0; 3]));
        Ok(Some((event.at(resumed.ip), self.ahead())))
    }

    /// APL11 and APL12: where tracing is off although a packet follows that needs it to be on.
    fn look_for_end(&mut self, from: usize) -> Option<Resumed> {
        let errata = self.config.errata;
        self.go(from);
        loop {
            let at = self.at();
            let packet = match read_at(&self.config, at).ok()? {
                Found::Packet(packet) => packet,
                Found::Unknown(_, len) | Found::Spoilt(len) => {
                    self.go(at + len);
                    continue;
                }
            };
            let behind = at + packet.len();
            let is_off = match packet.kind {
                Kind::Tsc | Kind::Tma | Kind::Mtc | Kind::Cyc => {
                    self.timing(&packet, at).ok()?;
                    continue;
                }
                Kind::Cbr => {
                    self.clock.cbr(packet.payload()[0] as u8);
                    false
                }
                Kind::Pad => false,
                Kind::TipPgd if errata.has(Errata::APL11) => true,
                Kind::Fup if errata.has(Errata::APL12) && self.off_behind(behind) => true,
                _ => return None,
            };
            if is_off {
                let mut last_ip = LastIp::default();
                last_ip.update(&packet);
                return Some(Resumed {
                    at: behind,
                    ip: None,
                    last_ip,
                    clock: self.clock,
                });
            }
            self.go(behind);
        }
    }

    /// APL12: whether a TIP.PGE is the first that comes from an offset on, PSB+ aside.
    fn off_behind(&self, from: usize) -> bool {
        let mut at = from;
        while let Ok(Found::Packet(packet)) = read_at(&self.config, at) {
            match packet.kind {
                Kind::TipPge => return true,
                Kind::Tnt8 | Kind::Tnt64 | Kind::Tip | Kind::TipPgd | Kind::Fup | Kind::Ovf => {
                    return false;
                }
                _ => at += packet.len(),
            }
        }
        false
    }

    /// SKD010: the packet that tells where control is.
    fn look_for_place(&mut self, from: usize) -> Result<Option<Resumed>, Error> {
        let mut transaction: Option<(usize, Clock)> = None;
        self.go(from);
        loop {
            let at = self.at();
            let packet = match read_at(&self.config, at) {
                Ok(Found::Packet(packet)) => packet,
                Ok(Found::Unknown(_, len) | Found::Spoilt(len)) => {
                    self.go(at + len);
                    continue;
                }
                // (It is reported when the decoder comes to it.)
                Err(_) => return Ok(None),
            };
            let resumed = |at, ip, last_ip, clock| {
                Ok(Some(Resumed {
                    at,
                    ip,
                    last_ip,
                    clock,
                }))
            };
            let behind = at + packet.len();
            match packet.kind {
                Kind::Tsc | Kind::Tma | Kind::Mtc | Kind::Cyc => {
                    if self.timing(&packet, at).is_err() {
                        return Ok(None);
                    }
                    continue;
                }
                Kind::Cbr => self.clock.cbr(packet.payload()[0] as u8),
                Kind::ModeTsx if transaction.is_none() => transaction = Some((at, self.clock)),
                Kind::Fup | Kind::Tip => {
                    let mut last_ip = LastIp::default();
                    let ip = last_ip.told(&packet).ok_or(Error::BadContext)?;
                    let is_fup = packet.kind == Kind::Fup;
                    return match transaction {
                        // The MODE.TSX binds to the FUP, and is read again.
                        Some((at, clock)) if is_fup => {
                            resumed(at, Some(ip), LastIp::default(), clock)
                        }
                        // An event that comes from there. (The FUP of the OVF would follow it.)
                        None if is_fup => resumed(at, Some(ip), LastIp::default(), self.clock),
                        _ => resumed(behind, Some(ip), last_ip, self.clock),
                    };
                }
                Kind::TipPgd => {
                    let mut last_ip = LastIp::default();
                    last_ip.update(&packet);
                    return resumed(behind, None, last_ip, self.clock);
                }
                Kind::Psb => {
                    let Some(ip) = self.place_in_header(at + PSB.len())? else {
                        return Ok(None);
                    };
                    return resumed(at, Some(ip), LastIp::default(), self.clock);
                }
                Kind::PsbEnd => return Err(Error::BadContext),
                _ if says_nothing(&packet) => {}
                _ => return Ok(None),
            }
            self.go(behind);
        }
    }

    /// The address that the FUP of a PSB+ tells; none if it has none.
    fn place_in_header(&self, from: usize) -> Result<Option<u64>, Error> {
        let mut at = from;
        loop {
            let packet = match read_at(&self.config, at) {
                Ok(Found::Packet(packet)) => packet,
                Ok(Found::Unknown(_, len) | Found::Spoilt(len)) => {
                    at += len;
                    continue;
                }
                Err(_) => return Ok(None),
            };
            match packet.kind {
                Kind::Fup => {
                    return LastIp::default()
                        .told(&packet)
                        .ok_or(Error::BadContext)
                        .map(Some);
                }
                Kind::Tsc | Kind::Tma | Kind::Mtc | Kind::Cyc | Kind::Cbr | Kind::Ovf => {}
                Kind::ModeTsx => {}
                _ if says_nothing(&packet) => {}
                _ => return Ok(None),
            }
            at += packet.len();
        }
    }
}

/// Whether a packet neither has an address, nor waits for one, nor says that tracing is on or off.
fn says_nothing(packet: &Packet) -> bool {
    let [first, second] = packet.payload();
    match packet.kind {
        Kind::Pad | Kind::ModeExec | Kind::Pip | Kind::Vmcs | Kind::Mnt => true,
        Kind::Pwre | Kind::Pwrx => true,
        Kind::ExStop => first != 1,
        Kind::Ptw => second >> 8 != 1,
        _ => false,
    }
}
