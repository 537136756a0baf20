//! TNT packets that are read before the bits of those before them are used, so that most steps find a whole register of bits.
//!
//! Only what lies between TNT packets and means nothing to control is read over: padding and timing packets. Whoever stops walking before all
//! bits are used gives back the packets of which none was: from outside, no packet is read before it is needed.

use cofi_packet::Ip;
use cofi_packet::intel::{Block, Kind, Packet, decode, decode_short, short_cyc};

use super::Reader;
use super::intel::{Flow, short_tnt};
use crate::code::phrase::{Phrase, WINDOW};
use crate::family::IntelPt;

/// So many packets are remembered: the one in use, and 64 others, each with a bit in the register; a power of two, for speed.
const MOST: usize = 128;
/// So many packets are read ahead at most.
const REACH: usize = 64;

/// No place in a stream.
pub(super) const NOWHERE: usize = usize::MAX;

/// A TNT packet that was read ahead.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    /// How many bits had been read before it.
    first: u64,
    /// Where it begins.
    pub(crate) offset: usize,
    /// Where it ends, and how many timing packets had been read by then.
    at: usize,
    timing: u64,
    /// Where the last TNT packet of the run ends that has timing packets before it, or [`NOWHERE`]: up to the packet before this one, and up
    /// to this one.
    timed: [usize; 2],
}

/// A run of TNT packets: where the bits in the register come from.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    marks: [Mark; MOST],
    /// How many packets of the run there have been.
    count: usize,
    /// How many bits of the run have been read.
    read: u64,
    /// Where the last of them begins.
    offset: usize,
    /// As [`Mark::timed`], of the last.
    timed: [usize; 2],
    /// Whether something else than TNT packets stands behind the run: at this place, with so many timing packets before it.
    is_at_end: bool,
    stop: (usize, u64),
    /// So many packets a run may have before it is used up: few where much was given back, so that little is read twice.
    reach: usize,
    /// Here stands something else than a TNT or a TIP with an address.
    other: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            marks: [Mark::default(); MOST],
            count: 0,
            read: 0,
            offset: 0,
            timed: [NOWHERE; 2],
            is_at_end: false,
            stop: (0, 0),
            reach: REACH,
            other: NOWHERE,
        }
    }
}

impl Ahead {
    /// Whether there is no run.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether further packets may be read.
    #[inline]
    pub(crate) const fn goes_on(&self) -> bool {
        !self.is_at_end && self.count < self.reach
    }

    /// The number of the bit that comes next, where `left` are in the register.
    #[inline]
    pub(crate) const fn next_bit(&self, left: u8) -> u64 {
        self.read - left as u64
    }

    /// The packet that is in use where `left` bits are in the register, and how many of them are its own; none if there is no run.
    pub(crate) fn in_use(&self, left: u8) -> Option<(Mark, u8)> {
        if self.is_empty() {
            return None;
        }
        let next = self.next_bit(left);
        let found = self.of_bit(next.saturating_sub(1));
        debug_assert!(found.is_some(), "the packet in use is remembered");
        let (number, end) = found?;
        let own = end.saturating_sub(next) as u8;
        Some((self.marks[number % MOST], own))
    }

    /// Where the packet begins that a bit is of which is in the register, by its number in the run.
    pub(crate) fn offset(&self, bit: u64) -> usize {
        let found = self.of_bit(bit);
        debug_assert!(
            found.is_some(),
            "the packets of the register are remembered"
        );
        found.map_or(self.offset, |(number, _)| self.marks[number % MOST].offset)
    }

    /// The number in the run of the packet that a bit of the register is of, and the number of the first bit behind it.
    fn of_bit(&self, bit: u64) -> Option<(usize, u64)> {
        let mut end = self.read;
        for number in (self.count.saturating_sub(MOST)..self.count).rev() {
            let mark = &self.marks[number % MOST];
            if mark.first <= bit {
                return Some((number, end));
            }
            end = mark.first;
        }
        None
    }

    #[inline]
    fn push(&mut self, mark: Mark, len: u8) {
        self.marks[self.count % MOST] = mark;
        self.count += 1;
        self.read += u64::from(len);
    }
}

/// What comes next, as far as reading ahead tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// TNT bits in the register.
    Tnt,
    /// A TIP that tells an address.
    Tip(Ip),
    /// Something else, which is still to be read.
    Other,
}

impl Reader<'_, IntelPt> {
    /// Whether nothing has to be known of packets before the next one.
    pub(crate) fn may_read_ahead(&self) -> bool {
        self.back.is_none()
            && self.own.block == Block::Outside
            && !self.own.doubt
            && self.ticks.is_none()
            && !self.own.spoilt_by.is_any()
    }

    /// Reads TNT packets as long as the register has room. Returns the bits that it holds then, the oldest at the top, and how many they are.
    pub(crate) fn read_ahead(
        &mut self,
        ahead: &mut Ahead,
        mut bits: u64,
        mut len: u8,
    ) -> (u64, u8) {
        let (mut at, mut timing) = (self.at, self.timing);
        // That of the TNT packet before, or of what was used last.
        let mut known = if ahead.is_empty() {
            self.clock.timing
        } else {
            timing
        };
        let bytes = self.bytes;
        while let Some(&first) = bytes.get(at) {
            let (more, count, size) = if let Some(Flow::Tnt { bits, len }) = short_tnt(first) {
                (bits, len, 1)
            } else if first == 0 {
                at += 1;
                continue;
            } else if let Some(bytes) = bytes.get(at..at + 3)
                && let Some(size) = short_cyc([first, bytes[1], bytes[2]])
            {
                at += size;
                timing += 1;
                continue;
            } else {
                let rest = &bytes[at..];
                let Some(raw) = decode_short(rest).or_else(|| decode(rest).ok()) else {
                    break;
                };
                match raw.kind() {
                    Kind::Cyc | Kind::Mtc | Kind::Tsc | Kind::Tma | Kind::Cbr => {
                        at += raw.len();
                        timing += 1;
                        continue;
                    }
                    Kind::Tnt64 => {}
                    _ => break,
                }
                match raw.packet() {
                    Packet::Tnt64 { bits } => (bits.bits(), bits.len() as u8, raw.len()),
                    _ => break,
                }
            };
            if count > 64 - len {
                return (bits, len);
            }
            ahead.timed[0] = ahead.timed[1];
            if timing != known {
                known = timing;
                ahead.timed[1] = at + size;
            }
            ahead.offset = at;
            let mark = Mark {
                first: ahead.read,
                offset: at,
                at: at + size,
                timing,
                timed: ahead.timed,
            };
            ahead.push(mark, count);
            len += count;
            bits |= more << (64 - len);
            at += size;
            (self.at, self.timing) = (at, timing);
            if ahead.count >= ahead.reach {
                return (bits, len);
            }
        }
        (ahead.stop, ahead.is_at_end) = ((at, timing), true);
        (bits, len)
    }

    /// Reads the TNT packets that come next, as many as the register has room for, or else a TIP. What is neither is left where it is.
    ///
    /// Only where [it may](Self::may_read_ahead).
    #[inline]
    pub(crate) fn next_run(&mut self, ahead: &mut Ahead, tnt: &mut (u64, u8)) -> Decision {
        if self.at == ahead.other {
            return Decision::Other;
        }
        if !ahead.is_at_end {
            *tnt = self.read_ahead(ahead, 0, 0);
            if tnt.1 != 0 {
                return Decision::Tnt;
            }
        }
        ahead.is_at_end = false;
        (self.at, self.timing) = ahead.stop;
        ahead.other = self.at;
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let raw = decode_short(rest).or_else(|| decode(rest).ok());
        let Some(raw) = raw.filter(|raw| raw.kind() == Kind::Tip) else {
            return Decision::Other;
        };
        let Packet::Tip { ip } = raw.packet() else {
            return Decision::Other;
        };
        match self.address(ip) {
            Some(ip) => {
                self.offset = self.at;
                self.at += raw.len();
                Decision::Tip(ip)
            }
            // It changes nothing, so it may be read once more.
            None => Decision::Other,
        }
    }

    /// The packets that come next, as far as they may be a phrase, and where they begin: no timing packet has come since the packet used last.
    #[inline]
    pub(crate) fn window(&self, ahead: &Ahead) -> Option<([u8; WINDOW], usize)> {
        let (at, timing) = if ahead.is_at_end {
            ahead.stop
        } else {
            (self.at, self.timing)
        };
        let bytes = self.bytes.get(at..)?.first_chunk()?;
        (timing == self.clock.timing).then_some((*bytes, at))
    }

    /// A phrase that begins at `at` is used.
    #[inline]
    pub(crate) fn use_phrase(&mut self, ahead: &mut Ahead, phrase: &Phrase, at: usize) {
        ahead.is_at_end = false;
        self.offset = at + usize::from(phrase.last);
        self.at = at + usize::from(phrase.size);
        if let Some((last_ip, bytes)) = phrase.tip {
            self.own.last_ip = last_ip;
            self.note_address(Some(last_ip.get()), bytes);
        }
        self.time_of_phrase(phrase.has_tnt);
    }

    /// The run is used up; where its last packet begins.
    #[inline]
    pub(crate) fn end_run(&mut self, ahead: &mut Ahead) -> usize {
        let [before, own] = ahead.timed;
        self.time_of_run(before, own);
        self.offset = ahead.offset;
        (ahead.count, ahead.read, ahead.timed) = (0, 0, [NOWHERE; 2]);
        ahead.reach = REACH.min(ahead.reach * 2);
        ahead.offset
    }

    /// What was read behind this packet, the last of a run, is given back.
    pub(crate) fn give_back(&mut self, ahead: &mut Ahead, last: &Mark) {
        (self.at, self.timing) = (last.at, last.timing);
        let count = ahead.count;
        (ahead.offset, ahead.timed) = (last.offset, last.timed);
        ahead.is_at_end = false;
        let used = ahead.of_bit(last.first).map_or(0, |(number, _)| number + 1);
        self.end_run(ahead);
        if used < count {
            ahead.reach = used.clamp(1, REACH);
        }
    }
}
