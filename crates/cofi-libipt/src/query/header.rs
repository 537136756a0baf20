//! PSB+: what it tells becomes status updates, which are reported at its end.

use cofi_packet::intel::{Kind, PSB};

use super::{Next, Query, pads};
use crate::config::Errata;
use crate::error::Error;
use crate::event::{Event, flag, ptev};
use crate::last_ip::LastIp;
use crate::packets::{Found, Packet, read_at};

impl Query {
    /// Reads the PSB+ at which the decoder stands, up to what ends it: its PSBEND, or an OVF in that place. There the decoder stands then.
    pub(super) fn header(&mut self) -> Result<(), Error> {
        self.last_ip = LastIp::default();
        self.clock.psb();
        self.go(self.at() + PSB.len());
        self.header_packets()?;
        // (That no FUP is there does not say that tracing is off.)
        self.enabled |= self.last_ip.get().is_ok();
        Ok(())
    }

    fn header_packets(&mut self) -> Result<(), Error> {
        loop {
            let at = self.at();
            let packet = match read_at(&self.config, at)? {
                Found::Packet(packet) => packet,
                Found::Unknown(_, len) | Found::Spoilt(len) => {
                    self.go(at + len);
                    continue;
                }
            };
            match packet.kind {
                Kind::PsbEnd | Kind::Ovf => return Ok(()),
                Kind::Tsc => self.clock.tsc_of_psb(packet.payload()[0]),
                Kind::Tma | Kind::Mtc | Kind::Cyc => {
                    self.timing(&packet, at)?;
                    continue;
                }
                Kind::Pad => {
                    self.go(at + pads(&self.config.bytes()[at..]));
                    continue;
                }
                Kind::Fup => {
                    // (Behind a FUP that told an address, each counts.)
                    let first = self.last_ip.get() == Err(Error::NoIp);
                    if !first || !self.spurious_fup(at + packet.len())? {
                        self.last_ip.update(&packet);
                    }
                }
                _ => {
                    let event = self.header_event(&packet).ok_or(Error::BadContext)?;
                    self.at_psbend.push(event)?;
                }
            }
            self.go(at + packet.len());
        }
    }

    /// What a packet of a PSB+ tells of the state; none if it may not stand there.
    fn header_event(&mut self, packet: &Packet) -> Option<Event> {
        let [first, second] = packet.payload();
        let update = flag::STATUS_UPDATE;
        Some(match packet.kind {
            Kind::ModeExec => Event::new(ptev::EXEC_MODE, [exec_mode(first), 0, 0]).with(update),
            Kind::ModeTsx => Event::new(ptev::TSX, [0, first >> 32, 0]).with(update),
            Kind::Pip => Event::new(ptev::ASYNC_PAGING, [first, second, 0]).with(update),
            Kind::Vmcs => Event::new(ptev::ASYNC_VMCS, [first, 0, 0]).with(update),
            Kind::Cbr => {
                self.clock.cbr(first as u8);
                Event::new(ptev::CBR, [first, 0, 0]).with(update)
            }
            Kind::Mnt => Event::new(ptev::MNT, [first, 0, 0]),
            _ => return None,
        })
    }

    /// BDM70: whether a FUP of a PSB+ says nothing, because control is told by a TIP.PGE next. MODE.Exec, which stands before most of them, and other
    /// packets of state do not decide; whatever needs tracing to be on, another FUP or an OVF says that it is on. An error of the search is one of the PSB+,
    /// as in libipt.
    fn spurious_fup(&self, behind: usize) -> Result<bool, Error> {
        if !self.config.errata.has(Errata::BDM70) {
            return Ok(false);
        }
        let mut at = behind;
        loop {
            let packet = match read_at(&self.config, at) {
                Ok(Found::Packet(packet)) => packet,
                Ok(Found::Unknown(..) | Found::Spoilt(_)) | Err(Error::End) => return Ok(false),
                Err(error) => return Err(error),
            };
            match packet.kind {
                Kind::TipPge => return Ok(true),
                Kind::PsbEnd | Kind::Pad | Kind::Tsc | Kind::Tma | Kind::Mtc | Kind::Cyc => {}
                Kind::Cbr | Kind::ModeExec | Kind::ModeTsx | Kind::Pip | Kind::Vmcs => {}
                Kind::Mnt => {}
                _ => return Ok(false),
            }
            at += packet.len();
        }
    }

    /// A PSB behind which the decoder is to go on.
    pub(super) fn psb_on_the_way(&mut self, at: usize) -> Result<Option<Next>, Error> {
        // (An event that waits for a TIP could make a difference behind it. There are six at most.)
        if self.leads_nowhere == Some(at) && self.at_tip.is_empty() {
            self.go(self.config.len());
            return Ok(Some(Next::End));
        }
        let clock = self.clock;
        match self.header() {
            Ok(()) => Ok((!self.at_psbend.is_empty()).then_some(Next::Status)),
            // Its end is missing.
            Err(Error::End) => {
                self.clock = clock;
                self.go(self.config.len());
                Ok(Some(Next::End))
            }
            Err(error) => {
                self.go(at);
                Err(error)
            }
        }
    }
}

/// `enum pt_exec_mode` of a MODE.Exec.
pub(super) fn exec_mode(payload: u64) -> u64 {
    match payload >> 32 {
        0 => 1,
        1 => 3,
        2 => 2,
        _ => 0,
    }
}
