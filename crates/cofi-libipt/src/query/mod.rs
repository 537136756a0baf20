//! The query decoder: what the stream answers to a decoder that walks code.
//!
//! It reads ahead to the next packet that answers a question or makes an event (`Next`), and stands there. A TNT packet is read when its first result
//! is asked for; what its results leave behind is read ahead at once.

pub mod capi;
mod events;
mod header;
mod overflow;
mod queue;
mod resume;

use std::ffi::c_int;

use cofi_packet::intel::Kind;

use crate::clock::{Clock, Moment};
use crate::config::{Config, Errata};
use crate::decoder::Decoder;
use crate::error::Error;
use crate::event::{Event, status};
use crate::last_ip::LastIp;
use crate::packets::{Found, Packet, read_at, read_short};
use crate::sync::Place;
use queue::Queue;

/// What stands where the decoder reads next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// A TNT.
    Tnt,
    /// A TIP, which was read.
    Tip,
    /// A packet that makes or ends an event, which was read.
    Event,
    /// The end of a PSB+, with events that it told of.
    Status,
    /// The end of the stream.
    End,
    /// No packet that could be read, who would have read it, and the flags of its place.
    Bad(Error, Reader, c_int),
}

/// Who reads a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reader {
    Anybody,
    CondBranch,
    IndirectBranch,
    Event,
}

/// An address, if one is told, and the error that reading ahead behind it found.
pub(crate) type Answer = (Option<u64>, Behind);

/// The error that reading ahead behind something found.
pub(crate) type Behind = Result<(), Error>;

/// An event, and the error that reading ahead behind it found.
pub(crate) type Told = (Event, Behind);

/// `struct pt_query_decoder`.
pub struct Query {
    config: Config,
    place: Place,
    next: Next,
    /// The packet there, if it was read.
    packet: Packet,
    /// TNT results; the next is the highest of `tnt_left` bits.
    tnt: u64,
    tnt_left: u8,
    /// The packet at which it stands gave an event already, and others wait.
    begun: bool,
    /// The TIP at which it stands belongs to an event that was reported.
    consume: bool,
    /// Whether tracing is on.
    enabled: bool,
    last_ip: LastIp,
    clock: Clock,
    /// The time when the last question was asked.
    asked_at: Moment,
    /// Events that wait for the end of the PSB+, for a FUP, for a TIP.
    at_psbend: Queue,
    at_fup: Queue,
    at_tip: Queue,
    /// A PSB from which reading ahead comes to where a search backward began.
    leads_nowhere: Option<usize>,
}

impl Decoder for Query {
    fn place(&self) -> &Place {
        &self.place
    }

    fn config(&self) -> &Config {
        &self.config
    }
}

impl Query {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            clock: Clock::new(&config),
            asked_at: Moment::default(),
            config,
            place: Place::default(),
            next: Next::End,
            packet: Packet::default(),
            tnt: 0,
            tnt_left: 0,
            begun: false,
            consume: false,
            enabled: false,
            last_ip: LastIp::default(),
            at_psbend: Queue::default(),
            at_fup: Queue::default(),
            at_tip: Queue::default(),
            leads_nowhere: None,
        }
    }

    /// The time at the last question.
    pub(crate) fn time(&self) -> &Moment {
        &self.asked_at
    }

    fn at(&self) -> usize {
        self.place.at.unwrap_or(0)
    }

    fn go(&mut self, to: usize) {
        self.place.at = Some(to);
    }

    /// Begins at a PSB, of which it reads the PSB+; the address there, if tracing is on.
    pub(crate) fn begin(&mut self, at: usize) -> Result<Answer, Error> {
        self.begin_before(at, None)
    }

    /// As [`Self::begin`]; reading ahead ends at a PSB from which it would come to where a search backward began.
    fn begin_before(&mut self, at: usize, leads_nowhere: Option<usize>) -> Result<Answer, Error> {
        match read_at(&self.config, at)? {
            Found::Packet(packet) if packet.kind == Kind::Psb => {}
            _ => return Err(Error::NoSync),
        }
        *self = Self::new(self.config);
        self.leads_nowhere = leads_nowhere;
        self.place = Place {
            at: Some(at),
            sync: Some(at),
        };
        if let Err(error) = self.header() {
            self.go(at);
            self.next = Next::Bad(error, Reader::Anybody, 0);
            return Err(error);
        }
        let told = self.last_ip.get().ok();
        let behind = match self.at_psbend.is_empty() {
            true => self.read_ahead(),
            false => {
                self.next = Next::Status;
                Ok(())
            }
        };
        // (If it tells none, another PSB that was gone over may.)
        Ok((told.or_else(|| self.last_ip.get().ok()), behind))
    }

    /// The decoder, if it was synchronised.
    pub(crate) fn synchronised(&mut self) -> Result<&mut Self, Error> {
        self.place.offset().map(|_| self)
    }

    /// Begins at the PSB at an offset.
    pub(crate) fn begin_at(&mut self, offset: u64) -> Result<Answer, Error> {
        let at = usize::try_from(offset).ok();
        let at = at.filter(|at| *at < self.config.len()).ok_or(Error::End)?;
        self.begin(at)
    }

    /// Begins at the next PSB.
    pub(crate) fn begin_forward(&mut self) -> Result<Answer, Error> {
        let at = self.place.forward(self.config.bytes())?;
        self.begin(at)
    }

    /// Begins at the PSB before the last synchronisation point. If reading ahead from there comes to that point again, it is no other place, and the one
    /// before is tried, which need not be followed further than to the one that was no other place. So each packet is read a few times at most.
    pub(crate) fn begin_backward(&mut self) -> Result<Answer, Error> {
        let start = self.place.sync.unwrap_or(self.config.len());
        let mut place = Place {
            at: Some(start),
            sync: Some(start),
        };
        let mut rejected = None;
        loop {
            let at = match (place.backward(self.config.bytes()), rejected) {
                (Ok(at), _) => at,
                (Err(error), None) => return Err(error),
                (Err(error), Some(first)) => {
                    // (There the decoder stands then, and was led to the end of its way.)
                    let _ = self.begin(first);
                    return Err(error);
                }
            };
            let answer = self.begin_before(at, rejected);
            self.leads_nowhere = None;
            let answer = answer?;
            if self.at() < start || start == self.config.len() {
                return Ok(answer);
            }
            rejected = Some(at);
            place.at = Some(at);
        }
    }

    /// Reads ahead to the next packet that matters: most often a TNT, or a TIP of some kind, behind padding.
    #[inline]
    pub(crate) fn read_ahead(&mut self) -> Result<(), Error> {
        let mut at = self.at();
        let mut rest = self.config.bytes().get(at..).unwrap_or_default();
        if rest.first() == Some(&0) {
            at += pads(rest);
            self.go(at);
            rest = self.config.bytes().get(at..).unwrap_or_default();
        }
        if rest.first().is_some_and(|first| is_short_tnt(*first)) {
            self.next = Next::Tnt;
            return Ok(());
        }
        if let Some(packet) = read_short(rest)
            && let Some(next) = next_of_tip(packet.kind)
        {
            (self.packet, self.next) = (packet, next);
            return Ok(());
        }
        self.read_further()
    }

    /// As [`Self::read_ahead`], over whatever stands there.
    #[inline(never)]
    fn read_further(&mut self) -> Result<(), Error> {
        loop {
            let at = self.at();
            let rest = self.config.bytes().get(at..).unwrap_or_default();
            let next = match rest.first() {
                None => Next::End,
                Some(0) => {
                    self.go(at + pads(rest));
                    continue;
                }
                Some(byte) if is_short_tnt(*byte) => Next::Tnt,
                Some(_) => {
                    let found = match read_short(rest) {
                        Some(packet) => self.meet(packet, at),
                        None => self.step(at),
                    };
                    match found {
                        Ok(None) => continue,
                        Ok(Some(next)) => next,
                        Err(error) => {
                            self.next = Next::Bad(error, Reader::Anybody, 0);
                            return Err(error);
                        }
                    }
                }
            };
            self.next = next;
            return Ok(());
        }
    }

    /// Goes over what stands at an offset; or says what the decoder must stop for.
    fn step(&mut self, at: usize) -> Result<Option<Next>, Error> {
        match read_at(&self.config, at) {
            Ok(Found::Packet(packet)) => self.meet(packet, at),
            Ok(Found::Unknown(_, len) | Found::Spoilt(len)) => {
                self.go(at + len);
                Ok(None)
            }
            Err(error) => match self.postponed(at) {
                Some((reader, flags)) => Ok(Some(Next::Bad(error, reader, flags))),
                None => Err(error),
            },
        }
    }

    /// Goes over one packet; or says that the decoder must stop for it.
    #[inline(always)]
    fn meet(&mut self, packet: Packet, at: usize) -> Result<Option<Next>, Error> {
        match packet.kind {
            Kind::Tnt8 | Kind::Tnt64 => Ok(Some(Next::Tnt)),
            Kind::Tip => {
                self.packet = packet;
                Ok(Some(Next::Tip))
            }
            Kind::Pad | Kind::PsbEnd => {
                self.go(at + packet.len());
                Ok(None)
            }
            Kind::Tsc | Kind::Tma | Kind::Mtc | Kind::Cyc => self.timing(&packet, at),
            Kind::Psb => self.psb_on_the_way(at),
            Kind::Fup if self.at_fup.is_empty() => self.asynchronous(&packet, at),
            _ => {
                self.packet = packet;
                Ok(Some(Next::Event))
            }
        }
    }

    /// A FUP for which nothing waits: where an asynchronous branch comes from.
    fn asynchronous(&mut self, packet: &Packet, at: usize) -> Result<Option<Next>, Error> {
        let mut last_ip = self.last_ip;
        last_ip.update(packet);
        let from = last_ip.get()?;
        self.last_ip = last_ip;
        let event = Event::new(crate::event::ptev::ASYNC_BRANCH, [from, 0, 0]);
        self.at_tip.push(self.clock.stamp(event))?;
        self.go(at + packet.len());
        Ok(None)
    }

    /// Of a packet that cannot be read, whether a question or an event would read it, so that its error waits for that: the flags of its place.
    fn postponed(&self, at: usize) -> Option<(Reader, c_int)> {
        const EVENT: (Reader, c_int) = (Reader::Event, status::EVENT_PENDING);
        match self.config.bytes().get(at..).unwrap_or_default() {
            [0x99, ..] => Some(EVENT),
            // TNT.64.
            [0x02, 0xa3, ..] => Some((Reader::CondBranch, 0)),
            // PSB and PSBEND are gone over, TMA too.
            [0x02, 0x82 | 0x23 | 0x73, ..] => None,
            [0x02, 0x63 | 0x33 | 0xb3 | 0x13 | 0x53, ..] => None,
            [0x02, 0xc3, third, ..] => (*third == 0x88).then_some(EVENT),
            [0x02, second, ..] => {
                let known = matches!(second & 0x1f, 0x02 | 0x03 | 0x12 | 0x08 | 0x13);
                known.then_some(EVENT)
            }
            [first, ..] => match first & 0x1f {
                0x0d => Some((Reader::IndirectBranch, 0)),
                0x11 | 0x01 => Some(EVENT),
                _ => None,
            },
            [] => None,
        }
    }

    /// A timing packet.
    fn timing(&mut self, packet: &Packet, at: usize) -> Result<Option<Next>, Error> {
        let errata = &self.config.errata;
        let mut behind = at + packet.len();
        let [payload, _] = packet.payload();
        match packet.kind {
            Kind::Tsc => self.clock.tsc(payload),
            Kind::Mtc => self.clock.mtc(payload as u8),
            Kind::Tma => {
                let (ctc, fast) = (payload as u16, (payload >> 16) as u16);
                if errata.has(Errata::SKZ84) && self.begins_nothing(behind) {
                    behind += 1;
                } else {
                    self.clock.tma(ctc, fast)?;
                }
            }
            _ => {
                // SKD007: an OVF stands in place of all bytes but the first.
                let bytes = self.config.bytes().get(at + 1..).unwrap_or_default();
                if errata.has(Errata::SKD007)
                    && packet.len() > 1
                    && bytes.starts_with(&[0x02, 0xf3])
                {
                    self.go(at + 1);
                    return Ok(None);
                }
                self.clock.cyc(payload);
            }
        }
        self.go(behind);
        Ok(None)
    }

    /// Whether no packet begins at an offset.
    fn begins_nothing(&self, at: usize) -> bool {
        matches!(read_at(&self.config, at), Err(Error::BadOpcode))
    }

    /// The flags of where it stands.
    #[inline]
    pub(crate) fn status(&self) -> c_int {
        if self.tnt_left > 0 {
            return 0;
        }
        match self.next {
            Next::Tnt => 0,
            Next::Tip if self.at_tip.is_empty() => 0,
            Next::Tip | Next::Event | Next::Status => status::EVENT_PENDING,
            Next::End => status::END,
            Next::Bad(_, _, flags) => flags,
        }
    }

    /// Whether an event waits.
    #[inline]
    pub(crate) fn event_pending(&self) -> bool {
        self.status() & status::EVENT_PENDING != 0
    }

    /// Why a question has no answer here.
    fn no_answer(&self, asked: Reader) -> Error {
        match self.next {
            Next::Bad(error, reader, _) if reader == asked || reader == Reader::Anybody => error,
            Next::End => Error::End,
            _ => Error::BadQuery,
        }
    }

    /// The next TNT result.
    #[inline]
    pub(crate) fn cond_branch(&mut self) -> Result<bool, Error> {
        if self.tnt_left == 0 {
            self.take_tnt()?;
        }
        self.tnt_left -= 1;
        Ok(self.tnt >> self.tnt_left & 1 == 1)
    }

    /// Whether the packet at which the decoder stands answers a question and makes no event.
    #[inline(always)]
    fn stands_at_answer(&self) -> bool {
        match self.next {
            Next::Tnt => true,
            Next::Tip => self.at_tip.is_empty(),
            _ => false,
        }
    }

    /// Whether the next question must be one for an address.
    #[inline(always)]
    pub(crate) fn stands_at_tip(&self) -> bool {
        self.tnt_left == 0 && matches!(self.next, Next::Tip) && self.at_tip.is_empty()
    }

    /// The next TNT result, if it is known that another answer follows.
    #[inline(always)]
    pub(crate) fn result_in_hand(&self) -> Option<bool> {
        let follows = self.tnt_left > 1 || self.tnt_left == 1 && self.stands_at_answer();
        follows.then(|| self.tnt >> (self.tnt_left - 1) & 1 == 1)
    }

    /// Goes behind that result.
    #[inline(always)]
    pub(crate) fn take_result_in_hand(&mut self) {
        self.tnt_left -= 1;
    }

    /// Whether the next question reads a TNT packet.
    #[inline(always)]
    pub(crate) fn wants_tnt(&self) -> bool {
        self.tnt_left == 0 && matches!(self.next, Next::Tnt)
    }

    /// Reads a short TNT behind which another one stands; `false` if it is something else.
    #[inline(always)]
    pub(crate) fn take_tnt_of_two(&mut self) -> bool {
        if !self.wants_tnt() {
            return false;
        }
        let at = self.at();
        let Some(&[first, second]) = self.config.bytes().get(at..at + 2) else {
            return false;
        };
        if !is_short_tnt(first) || !is_short_tnt(second) {
            return false;
        }
        self.asked_at = self.clock.moment();
        (self.tnt_left, self.tnt) = short_tnt(first);
        self.go(at + 1);
        true
    }

    /// Reads the TNT packet at which the decoder stands.
    pub(crate) fn take_tnt(&mut self) -> Result<(), Error> {
        if !matches!(self.next, Next::Tnt) {
            return Err(self.no_answer(Reader::CondBranch));
        }
        self.asked_at = self.clock.moment();
        let at = self.at();
        let bytes = self.config.bytes();
        let first = bytes.get(at).copied().unwrap_or(0);
        if first == 2 {
            let Found::Packet(packet) = read_at(&self.config, at)? else {
                return Err(Error::BadQuery);
            };
            (self.tnt_left, self.tnt) = packet.tnt();
            self.go(at + packet.len());
        } else {
            (self.tnt_left, self.tnt) = short_tnt(first);
            self.go(at + 1);
        }
        self.read_ahead()
    }

    /// The target of the next indirect branch, if it is told. What could not be read behind is an error beside it.
    pub(crate) fn indirect_branch(&mut self) -> Result<Answer, Error> {
        // A deferred TIP comes behind TNT results of later branches (33.4.2.3), which wait.
        if self.tnt_left == 0 && matches!(self.next, Next::Tnt) {
            self.take_tnt()?;
        }
        if !matches!(self.next, Next::Tip) {
            return Err(self.no_answer(Reader::IndirectBranch));
        }
        if !self.at_tip.is_empty() {
            return Err(Error::BadQuery);
        }
        Ok(self.take_tip())
    }

    /// What the TIP tells at which the decoder stands, and which belongs to no event.
    #[inline(always)]
    pub(crate) fn take_tip(&mut self) -> Answer {
        self.asked_at = self.clock.moment();
        let to = self.last_ip.told(&self.packet);
        self.go(self.at() + self.packet.len());
        (to, self.read_ahead())
    }
}

/// What the decoder stands at where a TIP of this kind is, whatever came before it; none if it is another packet.
#[inline(always)]
fn next_of_tip(kind: Kind) -> Option<Next> {
    match kind {
        Kind::Tip => Some(Next::Tip),
        Kind::TipPge | Kind::TipPgd => Some(Next::Event),
        _ => None,
    }
}

/// A short TNT is even, and no other packet's first byte.
#[inline(always)]
fn is_short_tnt(first: u8) -> bool {
    first & 1 == 0 && first > 2
}

/// How many results a short TNT has, and these.
#[inline(always)]
fn short_tnt(byte: u8) -> (u8, u64) {
    let len = 6 - (byte.leading_zeros() as u8).min(6);
    (len, u64::from(byte >> 1))
}

/// How many bytes of padding there are, of which the first is one.
#[inline]
fn pads(bytes: &[u8]) -> usize {
    let mut words = bytes.chunks_exact(8);
    let mut before = 0;
    for word in &mut words {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        if word != 0 {
            return before + word.trailing_zeros() as usize / 8;
        }
        before += 8;
    }
    let rest = words.remainder();
    before + rest.iter().take_while(|byte| **byte == 0).count()
}

#[cfg(test)]
mod tests;
