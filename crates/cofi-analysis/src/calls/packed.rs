//! Calls in few bytes each, as they wait for the end of those around them.

use std::fs::File;
use std::io;
use std::ops::Range;

use cofi_packet::{Ip, Tsc};
use cofi_session::Task;
use rustc_hash::FxHashMap;

use super::in_order::within;
use super::{Call, CallEnd, CallKind, CallMoment, FinishedCall, FunctionId, Left};

/// Parts are of about so many bytes.
const PART: usize = 1 << 12;

/// So many bytes of whole parts wait in memory.
const MEMORY: usize = 8 << 20;

/// So many kinds of calls have a number.
const MOST_HEADS: usize = 1 << 16;

/// Calls in the order in which they began, but for what is not known yet.
#[derive(Debug, Default)]
pub(super) struct Packed {
    heads: Heads,
    sites: Sites,
    /// The part that grows.
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// How many bytes there are of parts in memory. These are the last.
    in_memory: usize,
    file: Option<File>,
    task: Option<Task>,
    last: Option<Call>,
}

/// Calls that are read by themselves.
#[derive(Debug)]
pub(super) struct Part {
    at: PartAt,
    /// The number of its last call.
    pub(super) last: i64,
}

#[derive(Debug)]
enum PartAt {
    Memory(Vec<u8>),
    /// In the file without a name.
    File(Range<u64>),
}

/// What parts have in common.
#[derive(Debug)]
pub(super) struct Shared {
    heads: Vec<Head>,
    sites: Vec<Site>,
    task: Task,
    file: Option<File>,
}

/// What is the same of all calls from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Site {
    function: FunctionId,
    ip: Ip,
    from: Option<Ip>,
    kind: CallKind,
}

impl Site {
    const fn of(call: &Call) -> Self {
        Self {
            function: call.function,
            ip: call.ip,
            from: call.from,
            kind: call.kind,
        }
    }
}

/// What calls have in common that repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Head {
    site: u32,
    flags: u16,
    /// How much deeper it lies than the call before.
    deeper: i32,
}

/// The sites seen.
#[derive(Debug, Default)]
struct Sites {
    list: Vec<Site>,
    numbers: FxHashMap<Site, u32>,
}

impl Sites {
    fn number(&mut self, site: Site) -> u32 {
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(site).or_insert(next);
        if number == next {
            self.list.push(site);
        }
        number
    }
}

/// The heads seen, as far as they have a number.
#[derive(Debug, Default)]
struct Heads {
    list: Vec<Head>,
    numbers: FxHashMap<Head, u32>,
    /// What was found last, by a part of its hash: the search for most calls.
    recent: Vec<(Site, Head, u32)>,
}

impl Heads {
    const RECENT: usize = 1 << 10;

    /// The site and the number of a call, if it has one.
    #[inline]
    fn number(&mut self, call: &Call, flags: u16, deeper: i32, sites: &mut Sites) -> (u32, Head) {
        let site = Site::of(call);
        let from = site.from.map_or(0, |from| from.0);
        let mixed = (from ^ site.ip.0.rotate_left(24) ^ (deeper as u64) << 48 ^ u64::from(flags))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = (mixed >> 54) as usize;
        if let Some((known, head, number)) = self.recent.get(slot)
            && (head.flags, head.deeper) == (flags, deeper)
            && *known == site
        {
            return (*number, *head);
        }
        self.search(site, (flags, deeper), slot, sites)
    }

    #[inline(never)]
    fn search(
        &mut self,
        site: Site,
        (flags, deeper): (u16, i32),
        slot: usize,
        sites: &mut Sites,
    ) -> (u32, Head) {
        let head = Head {
            site: sites.number(site),
            flags,
            deeper,
        };
        let number = match self.numbers.get(&head) {
            Some(number) => *number,
            None if self.list.len() < MOST_HEADS => {
                self.list.push(head);
                let number = self.list.len() as u32;
                self.numbers.insert(head, number);
                number
            }
            None => 0,
        };
        if self.recent.is_empty() {
            self.recent = vec![(site, head, number); Self::RECENT];
        }
        if let Some(recent) = self.recent.get_mut(slot) {
            *recent = (site, head, number);
        }
        (number, head)
    }
}

/// Seven bits a byte, the low ones first.
#[inline]
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// What was packed cannot be anything else.
fn wrong() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[inline]
fn get(bytes: &mut &[u8]) -> io::Result<u64> {
    let (first, rest) = bytes.split_first().ok_or_else(wrong)?;
    *bytes = rest;
    if *first < 0x80 {
        return Ok((*first).into());
    }
    get_more(bytes, u64::from(*first & 0x7f))
}

fn get_more(bytes: &mut &[u8], mut number: u64) -> io::Result<u64> {
    let mut shift = 7_u32;
    loop {
        let (first, rest) = bytes.split_first().ok_or_else(wrong)?;
        *bytes = rest;
        number |= u64::from(first & 0x7f).checked_shl(shift).unwrap_or(0);
        shift += 7;
        if first & 0x80 == 0 {
            return Ok(number);
        }
    }
}

/// The time of a moment; 0 if it is not known.
#[inline]
fn tsc_of(moment: &CallMoment) -> u64 {
    moment.tsc.map_or(0, |tsc| tsc.0)
}

/// What of a moment is written, against another one that most often comes before it.
#[inline]
fn put_moment(
    bytes: &mut Vec<u8>,
    (is_later, has_cycles): (bool, bool),
    moment: &CallMoment,
    base: &CallMoment,
) {
    if is_later {
        put(bytes, tsc_of(moment).wrapping_sub(tsc_of(base)));
    }
    put(bytes, moment.insns.wrapping_sub(base.insns));
    if has_cycles {
        put(bytes, moment.cycles.wrapping_sub(base.cycles));
    }
}

/// Reads a moment over another one.
#[inline(always)]
fn get_moment(
    bytes: &mut &[u8],
    (has_tsc, is_later, has_cycles): (bool, bool, bool),
    moment: &mut CallMoment,
) -> io::Result<()> {
    let tsc = tsc_of(moment);
    let tsc = match is_later {
        true => tsc.wrapping_add(get(bytes)?),
        false => tsc,
    };
    moment.tsc = has_tsc.then_some(Tsc(tsc));
    moment.insns = moment.insns.wrapping_add(get(bytes)?);
    if has_cycles {
        moment.cycles = moment.cycles.wrapping_add(get(bytes)?);
    }
    Ok(())
}

const HAS_TSC: u16 = 1;
const IS_LEFT: u16 = 1 << 1;
const ENDS_WITH_TSC: u16 = 1 << 2;
/// Cycles that are not those of the call before.
const HAS_CYCLES: u16 = 1 << 3;
/// Nothing ran in it but itself.
const IS_LEAF: u16 = 1 << 4;
/// Its number is the next, its stack the same.
const IS_NEXT: u16 = 1 << 5;
/// It lies in the call before.
const IS_WITHIN: u16 = 1 << 6;
/// It lies in what the call before lies in.
const IS_BESIDE: u16 = 1 << 7;
/// All ran in it that ran until it was left.
const IS_WHOLE: u16 = 1 << 8;
/// It begins at another time than the call before.
const IS_LATER: u16 = 1 << 9;
/// It ends at another time than it begins.
const TAKES_TIME: u16 = 1 << 10;
/// How it was left stands above the flags.
const FLAGS: u32 = 11;

impl Packed {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.parts.is_empty()
    }

    /// The number of a call's site.
    pub(super) fn site(&mut self, call: &Call) -> u32 {
        self.task = Some(call.task);
        self.sites.number(Site::of(call))
    }

    pub(super) fn put(&mut self, calls: &[(Call, Option<CallEnd>)]) -> io::Result<()> {
        let last = self.last.unwrap_or(FIRST);
        let mut before = &last;
        for (call, end) in calls {
            self.put_one(call, end.as_ref(), before);
            before = call;
        }
        if let Some((call, _)) = calls.last() {
            self.task = Some(call.task);
            self.last = Some(*call);
        }
        if self.bytes.len() < PART {
            return Ok(());
        }
        self.end_part();
        if self.in_memory < MEMORY {
            return Ok(());
        }
        self.spill()
    }

    /// What comes next begins a part.
    fn end_part(&mut self) {
        if let Some(last) = self.last.take() {
            let room = self.bytes.len() + (self.bytes.len() >> 3);
            let bytes = std::mem::replace(&mut self.bytes, Vec::with_capacity(room));
            self.in_memory += bytes.len();
            self.parts.push(Part {
                at: PartAt::Memory(bytes),
                last: last.number,
            });
        }
    }

    /// Writes what is in memory to the file.
    fn spill(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(super::temporary_file()?),
        };
        let in_file = self.parts.iter().map(|part| match &part.at {
            PartAt::File(range) => range.end,
            PartAt::Memory(_) => 0,
        });
        let mut end = in_file.max().unwrap_or(0);
        for part in &mut self.parts {
            if let PartAt::Memory(bytes) = &part.at {
                cofi_host::write_all_at(file, bytes, end)?;
                let start = end;
                end += bytes.len() as u64;
                part.at = PartAt::File(start..end);
            }
        }
        self.in_memory = 0;
        Ok(())
    }

    #[inline]
    fn put_one(&mut self, call: &Call, end: Option<&CallEnd>, last: &Call) {
        let has_cycles = call.begin.cycles != last.begin.cycles
            || end.is_some_and(|end| end.end.cycles != call.begin.cycles);
        let is_next = call.number == last.number.wrapping_add(1) && call.stack == last.stack;
        let is_within = call.parent == Some(last.number);
        let is_beside = !is_within && call.parent == last.parent;
        let flag = |holds: bool, flag: u16| if holds { flag } else { 0 };
        let is_later = tsc_of(&call.begin) != tsc_of(&last.begin);
        let takes_time = end.is_some_and(|end| tsc_of(&end.end) != tsc_of(&call.begin));
        let mut flags = flag(call.begin.tsc.is_some(), HAS_TSC)
            | flag(is_later, IS_LATER)
            | flag(takes_time, TAKES_TIME)
            | flag(has_cycles, HAS_CYCLES)
            | flag(is_next, IS_NEXT)
            | flag(is_within, IS_WITHIN)
            | flag(is_beside, IS_BESIDE);
        if let Some(end) = end {
            // Most often all that ran until then.
            let all = end.end.insns.wrapping_sub(call.begin.insns);
            flags |= IS_LEFT
                | flag(end.end.tsc.is_some(), ENDS_WITH_TSC)
                | flag(end.insns == end.self_insns, IS_LEAF)
                | flag(end.insns == all, IS_WHOLE)
                | (end.left as u16) << FLAGS;
        }
        let deeper = call.depth.wrapping_sub(last.depth);
        let (number, head) = self.heads.number(call, flags, deeper, &mut self.sites);
        let bytes = &mut self.bytes;
        put(bytes, number.into());
        if number == 0 {
            put(bytes, head.site.into());
            put(bytes, flags.into());
            put(bytes, u64::from(deeper as u32));
        }
        if !is_next {
            put(bytes, call.number.wrapping_sub(last.number) as u64);
            put(bytes, call.stack.into());
        }
        if !is_within && !is_beside {
            // None is 0.
            let parent = |parent: i64| 1 + (call.number.wrapping_sub(parent) as u64);
            put(bytes, call.parent.map_or(0, parent));
        }
        put_moment(bytes, (is_later, has_cycles), &call.begin, &last.begin);
        if let Some(end) = end {
            put_moment(bytes, (takes_time, has_cycles), &end.end, &call.begin);
            if flags & IS_WHOLE == 0 {
                put(bytes, end.insns);
            }
            if flags & IS_LEAF == 0 {
                put(bytes, end.self_insns);
            }
        }
    }

    /// All parts, and what they share; none if there is no call.
    pub(super) fn finish(mut self) -> Option<(Vec<Part>, Shared)> {
        self.end_part();
        let shared = Shared {
            heads: self.heads.list,
            sites: self.sites.list,
            task: self.task?,
            file: self.file,
        };
        Some((self.parts, shared))
    }
}

/// Before the first call.
const FIRST: Call = Call {
    task: Task { pid: 0, tid: 0 },
    number: -1,
    parent: None,
    stack: 0,
    function: FunctionId(0),
    ip: Ip(0),
    depth: 0,
    kind: CallKind::Call,
    from: None,
    begin: CallMoment {
        tsc: None,
        cycles: 0,
        insns: 0,
    },
};

impl Part {
    /// Gives the calls that were left, `deeper` than they were packed. `ends` are those of calls that were packed before they were left, in order.
    pub(super) fn each(
        self,
        shared: &Shared,
        ends: Vec<(i64, CallEnd)>,
        deeper: i32,
        mut give: impl FnMut(&FinishedCall) -> io::Result<()>,
    ) -> io::Result<()> {
        let bytes = match self.at {
            PartAt::Memory(bytes) => bytes,
            PartAt::File(range) => {
                let len = usize::try_from(range.end - range.start).map_err(|_| wrong())?;
                let mut bytes = vec![0; len];
                let file = shared.file.as_ref().ok_or_else(wrong)?;
                cofi_host::read_exact_at(file, &mut bytes, range.start)?;
                bytes
            }
        };
        let mut ends = ends.into_iter().peekable();
        let mut bytes = bytes.as_slice();
        let mut finished = NOTHING;
        finished.call.task = shared.task;
        let mut depth = FIRST.depth;
        while !bytes.is_empty() {
            let is_left = take_one(&mut bytes, shared, &mut finished, &mut depth)?;
            finished.call.depth = within(depth, deeper);
            if is_left {
                give(&finished)?;
            } else if let Some((_, end)) = ends.next_if(|(n, _)| *n == finished.call.number) {
                finished.end = end;
                give(&finished)?;
            }
        }
        Ok(())
    }
}

/// Before the first call of a part.
const NOTHING: FinishedCall = FinishedCall {
    call: FIRST,
    end: CallEnd {
        end: FIRST.begin,
        insns: 0,
        self_insns: 0,
        left: Left::End,
    },
    site: 0,
};

/// Reads a call over the one before it, all but its depth. `false` if it had not been left.
#[inline]
fn take_one(
    bytes: &mut &[u8],
    shared: &Shared,
    FinishedCall { call, end, site }: &mut FinishedCall,
    depth: &mut i32,
) -> io::Result<bool> {
    let head = match get(bytes)? {
        0 => Head {
            site: get(bytes)? as u32,
            flags: get(bytes)? as u16,
            deeper: get(bytes)? as u32 as i32,
        },
        number => *shared.heads.get(number as usize - 1).ok_or_else(wrong)?,
    };
    let has = |flag: u16| head.flags & flag != 0;
    let of_site = shared.sites.get(head.site as usize).ok_or_else(wrong)?;
    (call.function, call.ip) = (of_site.function, of_site.ip);
    (call.kind, call.from) = (of_site.kind, of_site.from);
    *site = head.site;
    *depth = depth.wrapping_add(head.deeper);
    let last = call.number;
    if has(IS_NEXT) {
        call.number = last.wrapping_add(1);
    } else {
        call.number = last.wrapping_add(get(bytes)? as i64);
        call.stack = get(bytes)? as u32;
    }
    if has(IS_WITHIN) {
        call.parent = Some(last);
    } else if !has(IS_BESIDE) {
        let above = get(bytes)?.checked_sub(1);
        call.parent = above.map(|above| call.number.wrapping_sub(above as i64));
    }
    let has_cycles = has(HAS_CYCLES);
    let begins = (has(HAS_TSC), has(IS_LATER), has_cycles);
    get_moment(bytes, begins, &mut call.begin)?;
    if !has(IS_LEFT) {
        return Ok(false);
    }
    let ends = (has(ENDS_WITH_TSC), has(TAKES_TIME), has_cycles);
    // (Field by field: a copy of the whole would wait for what was just written.)
    end.end.tsc = call.begin.tsc;
    (end.end.insns, end.end.cycles) = (call.begin.insns, call.begin.cycles);
    get_moment(bytes, ends, &mut end.end)?;
    end.insns = match has(IS_WHOLE) {
        true => end.end.insns.wrapping_sub(call.begin.insns),
        false => get(bytes)?,
    };
    end.self_insns = match has(IS_LEAF) {
        true => end.insns,
        false => get(bytes)?,
    };
    let left = Left::ALL.get(usize::from(head.flags >> FLAGS));
    end.left = *left.ok_or_else(wrong)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(number: i64) -> FinishedCall {
        let insns = number as u64 * 3;
        let moment = |insns| CallMoment {
            tsc: Some(Tsc(insns / 7)),
            cycles: 0,
            insns,
        };
        FinishedCall {
            call: Call {
                number,
                // More heads than have a number.
                depth: (number * number % 100_003) as i32,
                begin: moment(insns),
                ..FIRST
            },
            end: CallEnd {
                end: moment(insns + 2),
                insns: 2,
                self_insns: 2,
                left: Left::Return,
            },
            site: 0,
        }
    }

    /// Parts are read by themselves, in any order, whether they wait in memory or in the file.
    #[test]
    fn parts_in_a_file_and_in_memory() {
        let mut packed = Packed::default();
        let calls: Vec<FinishedCall> = (0..150_000).map(finished).collect();
        for (number, some) in calls.chunks(1000).enumerate() {
            let some: Vec<_> = some.iter().map(|f| (f.call, Some(f.end))).collect();
            packed.put(&some).expect("memory");
            if number == 40 {
                packed.spill().expect("a file");
            }
        }
        assert_eq!(packed.heads.list.len(), MOST_HEADS);
        let (parts, shared) = packed.finish().expect("calls");
        let in_file = |part: &&Part| matches!(part.at, PartAt::File(_));
        let in_file = parts.iter().filter(in_file).count();
        assert!(in_file > 1 && parts.len() > in_file + 1, "{in_file}");
        let mut got = Vec::new();
        for part in parts.into_iter().rev() {
            let last = part.last;
            let begin = got.len();
            let give = |call: &FinishedCall| {
                got.push(*call);
                Ok(())
            };
            part.each(&shared, Vec::new(), 0, give).expect("reading");
            assert_eq!(got.last().map(|finished| finished.call.number), Some(last));
            got[begin..].reverse();
        }
        got.reverse();
        assert!(got == calls);
    }
}
