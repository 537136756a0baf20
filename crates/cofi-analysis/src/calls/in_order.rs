//! Finished calls in the order in which they began.
//!
//! What a call comes to is known at its end, when all that began in it has long been known. So calls wait, in a compact form, and beyond
//! some amount in a file without a name.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use cofi_packet::{Ip, Tsc};
use cofi_session::Task;
use rustc_hash::{FxHashMap, FxHashSet};

use super::ends::Ends;
use super::{Call, CallEnd, CallKind, CallMoment, FunctionId, Left};

/// So many calls are kept as they are. Those that are left by the time when there are so many need no more room elsewhere.
const CHUNK: usize = 1 << 12;

/// So many bytes wait in memory.
const MEMORY: usize = 64 << 20;

/// A call that has begun and ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedCall {
    /// How it began. The outermost call is at depth 0.
    pub call: Call,
    /// How it ended.
    pub end: CallEnd,
}

/// Takes calls as they begin and are left, and gives them back in the order in which they began.
///
/// The calls of one thread, or some of them.
#[derive(Debug, Default)]
pub struct CallsInOrder {
    /// Calls that were open before the trace, the innermost first.
    outer: Vec<(Call, Option<CallEnd>)>,
    /// The calls that began last.
    chunk: Vec<(Call, Option<CallEnd>)>,
    /// Those before them, but for what is not known yet.
    packed: Packed,
    /// Calls that were packed and have not been left.
    open: FxHashSet<i64>,
    /// Ends of calls that were packed before they were left.
    ends: Ends,
    failed: Option<io::Error>,
}

impl CallsInOrder {
    /// A call begins.
    pub fn enter(&mut self, call: &Call) {
        if call.number < 0 {
            self.outer.push((*call, None));
            return;
        }
        self.chunk.push((*call, None));
        if self.chunk.len() >= CHUNK {
            let packed = self.packed.put(&self.chunk);
            self.note(packed);
            let open = self.chunk.iter().filter(|(_, end)| end.is_none());
            self.open.extend(open.map(|(call, _)| call.number));
            self.chunk.clear();
        }
    }

    /// A call that has [begun](Self::enter) is left.
    pub fn leave(&mut self, call: &Call, end: &CallEnd) {
        if call.number < 0 {
            let is_it = |(other, _): &&mut (Call, _)| other.number == call.number;
            if let Some((_, slot)) = self.outer.iter_mut().rev().find(is_it) {
                *slot = Some(*end);
            }
            return;
        }
        match self.chunk.first() {
            Some((first, _)) if first.number <= call.number => {
                // It is most often one of the last.
                let len = self.chunk.len();
                let mut reach = 1;
                while reach < len
                    && let Some((other, _)) = self.chunk.get(len - reach)
                    && other.number > call.number
                {
                    reach *= 2;
                }
                let from = len.saturating_sub(reach);
                let part = self.chunk.get_mut(from..).unwrap_or_default();
                let found = part.binary_search_by_key(&call.number, |(other, _)| other.number);
                if let Some((_, slot)) = found.ok().and_then(|index| part.get_mut(index)) {
                    *slot = Some(*end);
                }
            }
            _ if self.open.remove(&call.number) => {
                let pushed = self.ends.push(call.number, *end);
                self.note(pushed);
            }
            // It was not among those that were wanted.
            _ => {}
        }
    }

    /// Keeps what went wrong first.
    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    /// Gives all calls, which must have been left, and begins anew.
    ///
    /// # Errors
    /// What `emit` says, and what the file without a name says if there was need of it.
    pub fn drain(
        &mut self,
        mut emit: impl FnMut(&FinishedCall) -> io::Result<()>,
    ) -> io::Result<()> {
        let Self {
            mut outer,
            chunk,
            packed,
            ends,
            failed,
            ..
        } = std::mem::take(self);
        if let Some(error) = failed {
            return Err(error);
        }
        outer.sort_unstable_by_key(|(call, _)| call.number);
        let lowest = outer.iter().map(|(call, _)| call.depth).min().unwrap_or(0);
        let mut give = |mut call: Call, end: CallEnd| {
            call.depth = call.depth.saturating_sub(lowest.min(0)).max(0);
            emit(&FinishedCall { call, end })
        };
        for (call, end) in outer {
            if let Some(end) = end {
                give(call, end)?;
            }
        }
        let mut ends = ends.sorted()?;
        packed.each(|call, end| {
            let end = match end {
                Some(end) => Some(end),
                None => ends.take(call.number)?,
            };
            end.map_or(Ok(()), |end| give(call, end))
        })?;
        for (call, end) in chunk {
            if let Some(end) = end {
                give(call, end)?;
            }
        }
        Ok(())
    }
}

/// Calls in few bytes each.
#[derive(Debug, Default)]
struct Packed {
    /// What calls have in common that are called from one place.
    sites: Vec<Site>,
    numbers: FxHashMap<Site, u32>,
    bytes: Vec<u8>,
    /// Where in the file pieces end that were in memory once, each of whole calls.
    pieces: Vec<u64>,
    file: Option<File>,
    task: Option<Task>,
    last: Option<Call>,
}

/// What is the same of all calls from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Site {
    function: FunctionId,
    ip: Ip,
    from: Option<Ip>,
    kind: CallKind,
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
    let (mut number, mut shift) = (0_u64, 0_u32);
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

/// A difference, small ones in either direction as small numbers.
const fn difference(number: u64, base: u64) -> u64 {
    let difference = number.wrapping_sub(base) as i64;
    (difference << 1 ^ difference >> 63) as u64
}

const fn from_difference(number: u64, base: u64) -> u64 {
    base.wrapping_add(number >> 1 ^ (number & 1).wrapping_neg())
}

/// What of a moment is written, against another one.
#[inline]
fn put_moment(bytes: &mut Vec<u8>, has_cycles: bool, moment: &CallMoment, base: &CallMoment) {
    let tsc = |moment: &CallMoment| moment.tsc.map_or(0, |tsc| tsc.0);
    put(bytes, difference(tsc(moment), tsc(base)));
    put(bytes, difference(moment.insns, base.insns));
    if has_cycles {
        put(bytes, difference(moment.cycles, base.cycles));
    }
}

#[inline]
fn get_moment(
    bytes: &mut &[u8],
    (has_tsc, has_cycles): (bool, bool),
    base: &CallMoment,
) -> io::Result<CallMoment> {
    let before = base.tsc.map_or(0, |tsc| tsc.0);
    let tsc = Tsc(from_difference(get(bytes)?, before));
    let insns = from_difference(get(bytes)?, base.insns);
    let cycles = match has_cycles {
        true => from_difference(get(bytes)?, base.cycles),
        false => base.cycles,
    };
    Ok(CallMoment {
        tsc: has_tsc.then_some(tsc),
        cycles,
        insns,
    })
}

const HAS_TSC: u64 = 1;
const IS_LEFT: u64 = 2;
const ENDS_WITH_TSC: u64 = 4;
/// Cycles that are not those of the call before.
const HAS_CYCLES: u64 = 8;
/// Nothing ran in it but itself.
const IS_LEAF: u64 = 16;
/// Its number is the next, its parent is the call before or unknown, its stack the same.
const IS_PLAIN: u64 = 32;
const FLAGS: u32 = 6;

impl Packed {
    fn put(&mut self, calls: &[(Call, Option<CallEnd>)]) -> io::Result<()> {
        for (call, end) in calls {
            self.put_one(call, end.as_ref());
        }
        if self.bytes.len() >= MEMORY {
            let file = match &mut self.file {
                Some(file) => file,
                None => self.file.insert(tempfile::tempfile()?),
            };
            file.write_all(&self.bytes)?;
            let before = self.pieces.last().copied().unwrap_or(0);
            self.pieces.push(before + self.bytes.len() as u64);
            self.bytes.clear();
        }
        Ok(())
    }

    fn put_one(&mut self, call: &Call, end: Option<&CallEnd>) {
        self.task = Some(call.task);
        let site = Site {
            function: call.function,
            ip: call.ip,
            from: call.from,
            kind: call.kind,
        };
        let next = self.sites.len() as u32;
        let number = *self.numbers.entry(site).or_insert(next);
        if number == next {
            self.sites.push(site);
        }
        let bytes = &mut self.bytes;
        let last = self.last.unwrap_or(FIRST);
        let is_plain = call.number == last.number + 1 && call.stack == last.stack;
        let has_cycles = call.begin.cycles != last.begin.cycles
            || end.is_some_and(|end| end.end.cycles != call.begin.cycles);
        let is_leaf = end.is_some_and(|end| end.insns == end.self_insns);
        let flag = |holds: bool, flag: u64| if holds { flag } else { 0 };
        let ends_with_tsc = end.is_some_and(|end| end.end.tsc.is_some());
        let flags = flag(call.begin.tsc.is_some(), HAS_TSC)
            | flag(end.is_some(), IS_LEFT)
            | flag(ends_with_tsc, ENDS_WITH_TSC)
            | flag(has_cycles, HAS_CYCLES)
            | flag(is_leaf, IS_LEAF)
            | flag(is_plain, IS_PLAIN);
        let left = end.map_or(0, |end| end.left as u64);
        put(bytes, left << FLAGS | flags);
        put(bytes, number.into());
        put(bytes, difference(call.depth as u64, last.depth as u64));
        // None is 0.
        let parent = |parent: i64| 1 + difference(parent as u64, call.number as u64);
        put(bytes, call.parent.map_or(0, parent));
        if !is_plain {
            put(bytes, difference(call.number as u64, last.number as u64));
            put(bytes, call.stack.into());
        }
        put_moment(bytes, has_cycles, &call.begin, &last.begin);
        if let Some(end) = end {
            put_moment(bytes, has_cycles, &end.end, &call.begin);
            // Most often all that ran until then.
            let all = end.end.insns.wrapping_sub(call.begin.insns);
            put(bytes, difference(end.insns, all));
            if !is_leaf {
                put(bytes, end.self_insns);
            }
        }
        self.last = Some(*call);
    }

    fn each(self, mut give: impl FnMut(Call, Option<CallEnd>) -> io::Result<()>) -> io::Result<()> {
        let Self {
            sites,
            bytes,
            pieces,
            file,
            task,
            ..
        } = self;
        let Some(task) = task else {
            return Ok(());
        };
        let mut last = Call { task, ..FIRST };
        let mut read = |mut bytes: &[u8]| -> io::Result<()> {
            while !bytes.is_empty() {
                let (call, end) = one(&mut bytes, &sites, &last)?;
                last = call;
                give(call, end)?;
            }
            Ok(())
        };
        if let Some(mut file) = file {
            file.seek(SeekFrom::Start(0))?;
            let mut piece = Vec::new();
            let mut from = 0;
            for to in pieces {
                piece.resize(usize::try_from(to - from).map_err(|_| wrong())?, 0);
                file.read_exact(&mut piece)?;
                read(&piece)?;
                from = to;
            }
        }
        read(&bytes)
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

/// The next call.
fn one(bytes: &mut &[u8], sites: &[Site], last: &Call) -> io::Result<(Call, Option<CallEnd>)> {
    let head = get(bytes)?;
    let has = |flag: u64| head & flag != 0;
    let site = sites.get(get(bytes)? as usize).ok_or_else(wrong)?;
    let depth = from_difference(get(bytes)?, last.depth as u64) as i32;
    let parent = get(bytes)?.checked_sub(1);
    let (number, stack) = match has(IS_PLAIN) {
        true => (last.number + 1, last.stack),
        false => (
            from_difference(get(bytes)?, last.number as u64) as i64,
            get(bytes)? as u32,
        ),
    };
    let has_cycles = has(HAS_CYCLES);
    let call = Call {
        task: last.task,
        number,
        parent: parent.map(|parent| from_difference(parent, number as u64) as i64),
        stack,
        function: site.function,
        ip: site.ip,
        depth,
        kind: site.kind,
        from: site.from,
        begin: get_moment(bytes, (has(HAS_TSC), has_cycles), &last.begin)?,
    };
    if !has(IS_LEFT) {
        return Ok((call, None));
    }
    let end = get_moment(bytes, (has(ENDS_WITH_TSC), has_cycles), &call.begin)?;
    let all = end.insns.wrapping_sub(call.begin.insns);
    let insns = from_difference(get(bytes)?, all);
    let self_insns = match has(IS_LEAF) {
        true => insns,
        false => get(bytes)?,
    };
    let left = Left::ALL.get((head >> FLAGS) as usize);
    let end = CallEnd {
        end,
        insns,
        self_insns,
        left: *left.ok_or_else(wrong)?,
    };
    Ok((call, Some(end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Calls nested at random: at each step one begins, or the innermost is left.
    fn history(steps: &[(bool, u64, u64)]) -> (Vec<FinishedCall>, CallsInOrder) {
        let (mut all, mut order) = (Vec::new(), CallsInOrder::default());
        let mut open: Vec<(usize, Call)> = Vec::new();
        let (mut next, mut outer) = (0, 0);
        let leave = |open: &mut Vec<(usize, Call)>,
                     all: &mut Vec<FinishedCall>,
                     order: &mut CallsInOrder,
                     x: u64| {
            if let Some((index, call)) = open.pop() {
                let end = CallEnd {
                    end: CallMoment {
                        tsc: (!x.is_multiple_of(3)).then_some(Tsc(x)),
                        cycles: x >> 3,
                        insns: x >> 1,
                    },
                    insns: x,
                    self_insns: x / 2,
                    left: Left::ALL[(x % 5) as usize],
                };
                order.leave(&call, &end);
                all[index].end = end;
            }
        };
        for (is_call, x, y) in steps {
            if !is_call {
                leave(&mut open, &mut all, &mut order, *x);
                continue;
            }
            let is_outer = open.is_empty() && x.is_multiple_of(7);
            // Not every number is there.
            next += 1 + (y % 2) as i64;
            outer -= i64::from(is_outer);
            let call = Call {
                task: Task { pid: 1, tid: 2 },
                number: if is_outer { outer } else { next },
                parent: open.last().map(|(_, call)| call.number),
                stack: (x % 3) as u32,
                function: FunctionId(*y as u32),
                ip: Ip(*x),
                depth: if is_outer {
                    outer as i32
                } else {
                    open.len() as i32
                },
                kind: [CallKind::Call, CallKind::Tail, CallKind::Signal][(x % 3) as usize],
                from: x.is_multiple_of(2).then_some(Ip(*y)),
                begin: CallMoment {
                    tsc: (!y.is_multiple_of(5)).then_some(Tsc(*y)),
                    cycles: y / 3,
                    insns: *x,
                },
            };
            order.enter(&call);
            open.push((all.len(), call));
            all.push(FinishedCall {
                call,
                end: CallEnd {
                    end: CallMoment::default(),
                    insns: 0,
                    self_insns: 0,
                    left: Left::End,
                },
            });
        }
        while !open.is_empty() {
            leave(&mut open, &mut all, &mut order, 99);
        }
        all.sort_by_key(|finished| finished.call.number);
        let lowest = outer as i32;
        for finished in &mut all {
            finished.call.depth -= lowest;
        }
        (all, order)
    }

    fn drained(order: &mut CallsInOrder) -> Vec<FinishedCall> {
        let mut got = Vec::new();
        let drained = order.drain(|call| {
            got.push(*call);
            Ok(())
        });
        drained.expect("memory does not fail");
        got
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn calls_come_back_as_they_began(
            steps in prop::collection::vec((any::<bool>(), any::<u64>(), any::<u64>()), 0..400)
        ) {
            let (wanted, mut order) = history(&steps);
            prop_assert_eq!(drained(&mut order), wanted);
            prop_assert!(drained(&mut order).is_empty());
        }
    }

    /// More than a chunk, with calls that are open across its ends.
    #[test]
    fn calls_that_were_packed_while_open() {
        let mut steps: Vec<(bool, u64, u64)> = Vec::new();
        for n in 1..3 * CHUNK as u64 {
            // Two calls begin for each that is left, up to some depth.
            steps.push((!n.is_multiple_of(3), n * 77 + 1, n * 1001 + 3));
            if n.is_multiple_of(1000) {
                steps.extend(std::iter::repeat_n((false, n, n), 300));
            }
        }
        let (wanted, mut order) = history(&steps);
        assert!(wanted.len() > CHUNK && !order.packed.bytes.is_empty() && !order.ends.is_empty());
        let got = drained(&mut order);
        assert_eq!(got.len(), wanted.len());
        assert!(got == wanted);
    }

    #[test]
    fn calls_that_wait_in_a_file() {
        let mut packed = Packed::default();
        let (wanted, _) = history(&[(true, 1, 2), (false, 8, 0), (true, 3, 4), (false, 7, 0)]);
        let calls: Vec<_> = wanted.iter().map(|f| (f.call, Some(f.end))).collect();
        packed.put(&calls[..1]).expect("memory");
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&packed.bytes).expect("writing");
        packed.pieces.push(packed.bytes.len() as u64);
        packed.bytes.clear();
        packed.file = Some(file);
        packed.put(&calls[1..]).expect("memory");
        let mut got = Vec::new();
        let read = packed.each(|call, end| {
            got.push((call, end));
            Ok(())
        });
        read.expect("reading");
        assert_eq!(got, calls);
    }
}
