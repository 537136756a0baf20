//! Blocks of instructions, and runs of them that an engine hands on as a whole: nobody is asked anything for each of them.

mod steps;

pub use self::steps::Steps;

use self::steps::{Place, StepList};
use cofi_insn::{Checksum, Class, Insn};
use cofi_packet::{ExecMode, Ip};
use std::sync::atomic::{AtomicU32, Ordering};

/// An instruction and where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Its address.
    pub ip: Ip,
    /// What it is.
    pub insn: Insn,
}

/// How a block can be part of a run. Those that may go on where another one was left in the middle are the last: it takes one
/// comparison to tell them from the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Manner {
    /// Only its last instruction may be a branch: a jump, conditional or not, that is direct.
    Direct,
    /// Only its last instruction is a branch: a call, a return, or an indirect jump. No far one.
    Near,
    /// Not at all.
    Special,
    /// As [`Self::Direct`], but not to be part of a run as things are.
    StaleDirect,
    /// As [`Self::Near`], likewise.
    StaleNear,
    /// As [`Self::Direct`], but it may go on where another one was left in the middle.
    Resumed,
    /// As [`Self::Resumed`], but not to be part of a run as things are.
    StaleResumed,
}

impl Manner {
    const fn stale(self) -> Self {
        match self {
            Self::Direct => Self::StaleDirect,
            Self::Near => Self::StaleNear,
            Self::Resumed => Self::StaleResumed,
            other => other,
        }
    }

    const fn fresh(self) -> Self {
        match self {
            Self::StaleDirect => Self::Direct,
            Self::StaleNear => Self::Near,
            Self::StaleResumed => Self::Resumed,
            other => other,
        }
    }
}

/// The number of no block.
const NONE: u32 = u32::MAX;

/// A block's number that is found out once, by whoever comes there first. Several may at a time, for themselves: nothing else depends on it.
#[derive(Debug)]
struct Known(AtomicU32);

impl Known {
    const fn none() -> Self {
        Self(AtomicU32::new(NONE))
    }

    #[inline(always)]
    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, number: u32) {
        self.0.store(number, Ordering::Relaxed);
    }
}

impl Clone for Known {
    fn clone(&self) -> Self {
        Self(AtomicU32::new(self.get()))
    }
}

/// The checksum of instructions that run one after the other.
pub(crate) fn checksum_of(steps: &[Step]) -> Checksum {
    steps.iter().fold(Checksum::EMPTY, |sum, step| {
        sum.then(Checksum::of(step.ip, step.insn.digest))
    })
}

/// A block of instructions. It is read whenever it runs, so it is in one line of the cache.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Block {
    /// The numbers of blocks that came behind it, one to which a conditional branch led and one to which control went else, as long as it may
    /// be part of a run. That one is the next costs two comparisons.
    known: [Known; 2],
    start: Ip,
    /// The address behind it.
    after: Ip,
    /// Where its last instruction leads, if that is a direct branch; else the address behind it.
    target: Ip,
    /// Of its checksum.
    sums: [u64; 2],
    count: u16,
    /// Length and class of the last instruction.
    len: u8,
    class: Class,
    manner: Manner,
    is_direct: bool,
    is_conditional: bool,
    /// In which state of the processor it runs: no branch of a run leads from one to another.
    state: u8,
}

const _: () = assert!(size_of::<Block>() == 64, "a line of the cache");

impl Block {
    fn new(start: Ip, steps: &[Step], is_resumed: bool) -> Self {
        let plain = |step: &Step| step.insn.class == Class::Other && !step.insn.repeats;
        let Some((last, body)) = steps.split_last() else {
            return Self {
                known: [const { Known::none() }; 2],
                start,
                after: start,
                target: start,
                sums: Checksum::EMPTY.sums(),
                count: 0,
                len: 0,
                class: Class::Other,
                manner: Manner::Special,
                is_direct: false,
                is_conditional: false,
                state: 0,
            };
        };
        let after = last.insn.next_ip(last.ip, ExecMode::Bits64);
        let target = last.insn.target;
        let (target, manner) = match last.insn.class {
            Class::Conditional | Class::DirectJump if target.is_some() => (target, Manner::Direct),
            Class::DirectCall if target.is_some() => (target, Manner::Near),
            Class::IndirectJump | Class::IndirectCall | Class::Return => (None, Manner::Near),
            Class::Other if plain(last) && is_resumed => (None, Manner::Resumed),
            Class::Other if plain(last) => (None, Manner::Direct),
            _ => (None, Manner::Special),
        };
        let (manner, count) = match u16::try_from(steps.len()) {
            Ok(count) if body.iter().all(plain) => (manner, count),
            _ => (Manner::Special, 0),
        };
        Self {
            known: [const { Known::none() }; 2],
            start,
            after,
            target: target.unwrap_or(after),
            sums: checksum_of(steps).sums(),
            count,
            len: last.insn.len,
            class: last.insn.class,
            manner,
            is_direct: matches!(manner, Manner::Direct | Manner::Resumed),
            is_conditional: last.insn.class == Class::Conditional,
            state: 0,
        }
    }

    pub(crate) fn start(&self) -> Ip {
        self.start
    }

    /// It is one instruction that by itself ends no block.
    #[inline(always)]
    pub(crate) fn is_resumed(&self) -> bool {
        self.manner >= Manner::Resumed
    }

    /// Whether it may be part of a run.
    pub(crate) fn is_fresh(&self) -> bool {
        matches!(self.manner, Manner::Direct | Manner::Near | Manner::Resumed)
    }

    /// Whether it may be part of a run, if it is of a kind that can. It costs the runs nothing.
    fn set_fresh(&mut self, is_fresh: bool) {
        self.manner = match is_fresh {
            true => self.manner.fresh(),
            false => self.manner.stale(),
        };
        self.is_direct = matches!(self.manner, Manner::Direct | Manner::Resumed);
        self.known = [const { Known::none() }; 2];
    }

    #[inline(always)]
    fn checksum(&self) -> Checksum {
        Checksum::new(self.count.into(), self.sums)
    }

    /// Whether control went to the block of this number when it had run to its end, by a branch or without: as far as it has gone there before.
    #[inline(always)]
    fn is_known_to_lead_to(&self, number: u32) -> Option<bool> {
        let [by_branch, without] = &self.known;
        let (a, b) = (number ^ by_branch.get(), number ^ without.get());
        // No question that is answered by the data: which way a branch goes is as good as random.
        let is_known = u64::from(a) * u64::from(b) == 0;
        is_known.then_some(a == 0)
    }

    /// The same where it has not; then it has.
    fn comes_to_lead_to(&self, number: u32, next: &Self) -> bool {
        if !self.leads_directly_to(next) {
            return false;
        }
        let is_taken = self.is_conditional && next.start != self.after;
        self.known[usize::from(!is_taken)].set(number);
        true
    }

    /// Whether it ran to its end, and control went to `next`, by a direct jump if any.
    #[inline(always)]
    fn leads_directly_to(&self, next: &Self) -> bool {
        // No question that is answered by the data: which way a branch goes is as good as random.
        let follows =
            (next.start == self.target) | (self.is_conditional & (next.start == self.after));
        follows & self.is_direct & !next.is_resumed() & (self.state == next.state)
    }

    /// Whether it ran to its end, and control went to `next`, in the simplest way.
    #[inline(always)]
    fn simply_leads_to(&self, next: &Self) -> bool {
        self.leads_directly_to(next)
            || self.manner == Manner::Near
                && (self.class != Class::DirectCall || next.start == self.target)
                && self.state == next.state
                && !next.is_resumed()
    }
}

/// Blocks by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockList {
    blocks: Vec<Block>,
    /// Where the instructions of each are in `steps`.
    places: Vec<Place>,
    steps: StepList,
}

impl BlockList {
    /// Whose instructions are at hand, and take three times the memory.
    pub(crate) fn with_steps_at_hand() -> Self {
        Self {
            steps: StepList::AtHand(Vec::new()),
            ..Self::default()
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn truncate(&mut self, count: usize) {
        self.blocks.truncate(count);
        self.places.truncate(count);
        // Other blocks will have the numbers of those that are left out.
        for block in &mut self.blocks {
            block.known = [const { Known::none() }; 2];
        }
    }

    pub(crate) fn push(&mut self, start: Ip, steps: &[Step], is_resumed: bool) {
        self.blocks.push(Block::new(start, steps, is_resumed));
        self.places.push(self.steps.push(steps));
    }

    /// Adds a block that is the same as another one.
    pub(crate) fn push_again(&mut self, number: u32) {
        let number = number as usize;
        if let (Some(block), Some(place)) = (self.blocks.get(number), self.places.get(number)) {
            let (block, place) = (block.clone(), *place);
            self.blocks.push(block);
            self.places.push(place);
        }
    }

    /// In which state of the processor a block runs, if there are several: it is 0 for those of which nothing is said.
    pub(crate) fn set_state(&mut self, number: u32, state: u8) {
        if let Some(block) = self.blocks.get_mut(number as usize) {
            block.state = state;
        }
    }

    /// Whether a block may be part of a run: else the runs end before it.
    pub(crate) fn set_fresh(&mut self, number: u32, is_fresh: bool) {
        if let Some(block) = self.blocks.get_mut(number as usize) {
            block.set_fresh(is_fresh);
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Block> {
        self.blocks.get(number as usize)
    }

    /// The instructions of a block; none, where there is none of this number.
    pub(crate) fn steps(&self, number: u32) -> Steps<'_> {
        let number = number as usize;
        match (self.blocks.get(number), self.places.get(number)) {
            (Some(block), Some(place)) => self.steps.get(block.start, *place),
            _ => Steps::default(),
        }
    }

    /// The same, if they are at hand; else none.
    #[inline]
    pub(crate) fn steps_at_hand(&self, number: u32) -> &[Step] {
        let place = self.places.get(number as usize);
        place.map_or(&[], |place| self.steps.at_hand(*place))
    }

    /// The checksum of a block, if only its last instruction may be a branch.
    #[inline]
    pub(crate) fn checksum(&self, number: u32) -> Option<Checksum> {
        let block = self.get(number)?;
        (block.count > 0).then(|| block.checksum())
    }

    /// The runs of `before` and of the blocks of these numbers, of which each was entered behind the one before it.
    pub(crate) fn runs<'a>(&'a self, before: u32, numbers: &'a [u32]) -> Option<Runs<'a>> {
        Some(Runs {
            list: self,
            block: self.blocks.get(before as usize)?,
            number: before,
            numbers,
        })
    }
}

/// Who takes runs for which little is to be done. Each says whether it took one, and else has done nothing.
pub(crate) trait Taker {
    /// A run with this checksum ends with a jump, conditional or not, that is direct, or with no branch.
    fn direct(&mut self, checksum: &Checksum, conditional: bool, taken: bool) -> bool;

    /// A run ends with a call, a return or an indirect jump.
    fn near(&mut self, run: &Run<'_>) -> bool;
}

/// Blocks that ran one after the other, as far as all is simple.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    list: &'a BlockList,
    /// The next one that ran.
    block: &'a Block,
    number: u32,
    /// Those that were entered behind it.
    numbers: &'a [u32],
}

impl Runs<'_> {
    /// Has runs taken, up to the first that `taker` does not take. This is for speed; [`Self::next`] gives the same ones, too.
    #[inline(always)]
    pub(crate) fn take_quickly(&mut self, taker: &mut impl Taker) {
        let blocks = &self.list.blocks[..];
        let (mut block, mut numbers) = (self.block, self.numbers.iter());
        loop {
            let mut unknown = None;
            while let Some(&number) = numbers.as_slice().first()
                && let Some(next) = blocks.get(number as usize)
            {
                let Some(is_taken) = block.is_known_to_lead_to(number) else {
                    unknown = Some((number, next));
                    break;
                };
                if !taker.direct(&block.checksum(), block.is_conditional, is_taken) {
                    break;
                }
                block = next;
                numbers.next();
            }
            let Some((number, next)) = unknown else { break };
            if block.is_direct {
                if !block.comes_to_lead_to(number, next) {
                    break;
                }
            } else {
                let run = Run {
                    list: self.list,
                    block,
                    number,
                    next: next.start,
                };
                if !block.simply_leads_to(next) || !taker.near(&run) {
                    break;
                }
                block = next;
                numbers.next();
            }
        }
        let numbers = numbers.as_slice();
        if let Some(last) = (self.numbers.len() - numbers.len()).checked_sub(1) {
            self.number = self.numbers[last];
        }
        (self.block, self.numbers) = (block, numbers);
    }

    /// Where the program stands.
    pub(crate) fn ip(&self) -> Ip {
        self.block.start
    }

    /// How many of the numbers given are left.
    pub(crate) fn left(&self) -> usize {
        self.numbers.len()
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Run<'a>> {
        let (&number, numbers) = self.numbers.split_first()?;
        let next = self.list.blocks.get(number as usize)?;
        if !self.block.simply_leads_to(next) {
            return None;
        }
        let run = Run {
            list: self.list,
            block: self.block,
            number: self.number,
            next: next.start,
        };
        (self.block, self.number, self.numbers) = (next, number, numbers);
        Some(run)
    }
}

/// Instructions that retired one after the other, of which only the last may be a branch, and no far one.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    list: &'a BlockList,
    block: &'a Block,
    number: u32,
    /// Where control went then, in user space.
    pub next: Ip,
}

impl<'a> Run<'a> {
    /// How many there are, at least one.
    #[must_use]
    #[inline(always)]
    pub fn instructions(&self) -> u64 {
        self.block.count.into()
    }

    /// Their checksum.
    #[must_use]
    #[inline(always)]
    pub fn checksum(&self) -> Checksum {
        self.block.checksum()
    }

    /// The address of the last.
    #[must_use]
    #[inline(always)]
    pub fn last(&self) -> Ip {
        Ip(self.block.after.0.wrapping_sub(self.block.len.into()))
    }

    /// The address behind the last.
    #[must_use]
    #[inline(always)]
    pub fn after(&self) -> Ip {
        self.block.after
    }

    /// The class of the last.
    #[must_use]
    #[inline(always)]
    pub fn class(&self) -> Class {
        self.block.class
    }

    /// All of them.
    #[must_use]
    pub fn steps(&self) -> Steps<'a> {
        self.list.steps(self.number)
    }
}

#[cfg(test)]
mod tests;
