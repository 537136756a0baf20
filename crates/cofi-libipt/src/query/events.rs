//! Packets to events.

use cofi_packet::intel::Kind;

use super::header::exec_mode;
use super::{Behind, Next, Query, Reader, Told};
use crate::error::Error;
use crate::event::{Event, ptev};
use crate::packets::Packet;

impl Query {
    /// The next event, which is written where it is to be kept, and the error that reading ahead behind it found.
    pub(crate) fn event(&mut self, told: &mut Event) -> Result<Behind, Error> {
        if self.tnt_left > 0 {
            return Err(Error::BadQuery);
        }
        loop {
            if matches!(self.next, Next::Status | Next::Tip | Next::Event) {
                self.asked_at = self.clock.moment();
            }
            let packet = self.packet;
            match (self.next, packet.kind) {
                (Next::Event, Kind::TipPge) => return self.enabling(&packet, told),
                (Next::Event, Kind::TipPgd) => return Ok(self.disabling(&packet, told)),
                (Next::Event, _) => {
                    if let Some((event, behind)) = self.of_packet(&packet)? {
                        *told = event;
                        return Ok(behind);
                    }
                }
                (Next::Status, _) => return Ok(self.status_update(told)),
                (Next::Tip, _) if !self.at_tip.is_empty() => {
                    return Ok(self.at_tip(&packet, told));
                }
                _ => return Err(self.no_answer(Reader::Event)),
            }
        }
    }

    /// Reads ahead; the time of the event is that before.
    pub(super) fn ahead(&mut self) -> Result<(), Error> {
        self.asked_at = self.clock.moment();
        self.read_ahead()
    }

    /// The event with the time where the decoder stands.
    fn stamped(&self, event: Event) -> Event {
        self.clock.stamp(event)
    }

    /// What a PSB+ told of.
    fn status_update(&mut self, told: &mut Event) -> Behind {
        let event = self.at_psbend.pop().unwrap_or_default();
        *told = self.stamped(event);
        told.set_ip(self.last_ip.get().ok());
        match self.at_psbend.is_empty() {
            true => self.ahead(),
            false => Ok(()),
        }
    }

    /// An event that binds to a TIP. The TIP answers a question afterwards, unless it is that of an asynchronous branch.
    fn at_tip(&mut self, packet: &Packet, told: &mut Event) -> Behind {
        let mut last_ip = self.last_ip;
        let ip = last_ip.told(packet);
        *told = self.at_tip.pop().unwrap_or_default();
        told.set_ip(ip);
        self.consume |= told.kind == ptev::ASYNC_BRANCH;
        if self.at_tip.is_empty() && std::mem::take(&mut self.consume) {
            self.last_ip = last_ip;
            self.go(self.at() + packet.len());
            return self.ahead();
        }
        Ok(())
    }

    /// An event that the packet makes at once, which turns tracing neither on nor off; none if it binds to a later packet.
    #[inline(never)]
    fn of_packet(&mut self, packet: &Packet) -> Result<Option<Told>, Error> {
        let [first, second] = packet.payload();
        let clock = self.clock.moment();
        // (Power events and PTW have no time in libipt.)
        let update = |kind, variant| clock.stamp(Event::new(kind, variant));
        let alone = match packet.kind {
            Kind::Fup => return Ok(Some(self.at_fup(packet))),
            Kind::Ovf => return self.overflow(),
            Kind::ModeExec => {
                self.at_tip
                    .push(update(ptev::EXEC_MODE, [exec_mode(first), 0, 0]))?;
                None
            }
            Kind::ModeTsx => {
                let event = update(ptev::TSX, [0, first >> 32, 0]);
                self.bound_to_fup(event, self.enabled)?
            }
            Kind::Pip => match self.at_tip.has(ptev::ASYNC_BRANCH) {
                true => {
                    self.at_tip
                        .push(update(ptev::ASYNC_PAGING, [first, second, 0]))?;
                    None
                }
                false => Some(update(ptev::PAGING, [first, second, 0])),
            },
            Kind::Vmcs => match self.at_tip.has(ptev::ASYNC_BRANCH) {
                true => {
                    self.at_tip
                        .push_before(update(ptev::ASYNC_VMCS, [first, 0, 0]), ptev::ASYNC_PAGING)?;
                    None
                }
                false => Some(update(ptev::VMCS, [first, 0, 0])),
            },
            Kind::TraceStop => Some(update(ptev::STOP, [0; 3])),
            Kind::Cbr => {
                self.clock.cbr(first as u8);
                Some(update(ptev::CBR, [first, 0, 0]))
            }
            Kind::ExStop => self.bound_to_fup(Event::new(ptev::EXSTOP, [0; 3]), first == 1)?,
            Kind::Mwait => self.bound_to_fup(Event::new(ptev::MWAIT, [0, first, 0]), true)?,
            Kind::Pwre => Some(Event::new(ptev::PWRE, [first, 0, 0])),
            Kind::Pwrx => Some(Event::new(ptev::PWRX, [first, 0, 0])),
            Kind::Ptw => {
                let (code, has_fup) = (second & 0xff, second >> 8 == 1);
                let size = if code == 0 { 4 } else { 8 };
                let event = Event::new(ptev::PTWRITE, [0, size, first]);
                self.bound_to_fup(event, has_fup)?
            }
            Kind::Mnt => Some(update(ptev::MNT, [first, 0, 0])),
            _ => return Err(Error::Internal),
        };
        self.go(self.at() + packet.len());
        let behind = self.ahead();
        match alone {
            Some(event) => Ok(Some((event, behind))),
            None => behind.map(|()| None),
        }
    }

    /// An event that waits for a FUP, if one follows; or has no address.
    fn bound_to_fup(&mut self, event: Event, follows: bool) -> Result<Option<Event>, Error> {
        if !follows {
            return Ok(Some(event.at(None)));
        }
        self.at_fup.push(event)?;
        Ok(None)
    }

    /// A FUP for which events wait.
    fn at_fup(&mut self, packet: &Packet) -> Told {
        let mut last_ip = self.last_ip;
        let ip = last_ip.told(packet);
        let event = self.at_fup.pop().unwrap_or_default().at(ip);
        // The FUP of an abort is also where its asynchronous branch comes from.
        let aborted = event.kind == ptev::TSX && event.variant[1] & 2 != 0;
        if let (true, Some(from)) = (aborted, ip) {
            let branch = Event::new(ptev::ASYNC_BRANCH, [from, 0, 0]);
            if let Err(error) = self.at_tip.push(self.stamped(branch)) {
                return (event, Err(error));
            }
        }
        let mut behind = Ok(());
        if self.at_fup.is_empty() {
            self.last_ip = last_ip;
            self.go(self.at() + packet.len());
            behind = self.ahead();
        }
        (event, behind)
    }

    /// Tracing is on: that first, and what waits for the address behind it.
    #[inline]
    fn enabling(&mut self, packet: &Packet, told: &mut Event) -> Result<Behind, Error> {
        let mut last_ip = self.last_ip;
        let ip = last_ip.told(packet).ok_or(Error::BadPacket)?;
        if self.begun {
            *told = self.at_tip.pop().unwrap_or_default();
            if told.kind == ptev::ASYNC_BRANCH {
                return Err(Error::BadContext);
            }
            told.set_ip(Some(ip));
        } else {
            *told = self.stamped(Event::new(ptev::ENABLED, [ip, 0, 0]));
        }
        self.begun = true;
        self.enabled = true;
        Ok(self.end_of_tip(packet, last_ip))
    }

    /// Tracing is off: what waits for the address, or that alone.
    #[inline]
    fn disabling(&mut self, packet: &Packet, told: &mut Event) -> Behind {
        let mut last_ip = self.last_ip;
        let ip = last_ip.told(packet);
        match self.at_tip.pop() {
            Some(event) if event.kind == ptev::ASYNC_BRANCH => {
                *told = event;
                told.kind = ptev::ASYNC_DISABLED;
                told.set_ip(ip);
            }
            // What else waits there gets no address.
            Some(event) => {
                *told = event;
                told.set_ip(None);
            }
            None => {
                *told = self.stamped(Event::new(ptev::DISABLED, [0; 3]));
                told.set_ip(ip);
            }
        }
        self.enabled = false;
        self.end_of_tip(packet, last_ip)
    }

    /// Goes on behind a TIP.PGE or TIP.PGD when nothing waits for it any more.
    fn end_of_tip(&mut self, packet: &Packet, last_ip: crate::last_ip::LastIp) -> Behind {
        if !self.at_tip.is_empty() {
            return Ok(());
        }
        self.begun = false;
        self.last_ip = last_ip;
        self.go(self.at() + packet.len());
        self.ahead()
    }
}
