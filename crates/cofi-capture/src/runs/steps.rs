//! The instructions of blocks, as they are kept: there may be hundreds of thousands.

use super::Step;
use cofi_insn::{Class, Insn};
use cofi_packet::Ip;
use std::iter::FusedIterator;
use std::ops::Range;
use std::slice;

/// Where the instructions of a block are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    begin: u32,
    end: u32,
}

/// Instructions of many blocks.
#[derive(Clone, Debug)]
pub(super) enum StepList {
    /// A word for each, and one more for the target of one that has a target.
    Packed(Vec<u64>),
    /// As they are: in three times the memory, for who wants them often.
    AtHand(Vec<Step>),
}

impl Default for StepList {
    fn default() -> Self {
        Self::Packed(Vec::new())
    }
}

/// A word's parts: the digest is the lower half.
const CLASS: u32 = 32;
const LEN: u32 = 40;
const REPEATS: u64 = 1 << 48;
const HAS_TARGET: u64 = 1 << 49;

impl StepList {
    /// Keeps instructions that stand one behind the other.
    pub(super) fn push(&mut self, steps: &[Step]) -> Place {
        let begin = self.len();
        match self {
            Self::Packed(words) => steps.iter().for_each(|step| pack(words, &step.insn)),
            Self::AtHand(all) => all.extend_from_slice(steps),
        }
        let end = self.len();
        Place { begin, end }
    }

    fn len(&self) -> u32 {
        match self {
            Self::Packed(words) => words.len() as u32,
            Self::AtHand(all) => all.len() as u32,
        }
    }

    /// The instructions that are kept there, of which the first stands at `start`.
    pub(super) fn get(&self, start: Ip, place: Place) -> Steps<'_> {
        match self {
            Self::Packed(words) => Steps(Kept::Packed {
                ip: start,
                words: words.get(place.range()).unwrap_or_default().iter(),
            }),
            Self::AtHand(_) => Steps(Kept::AtHand(self.at_hand(place).iter())),
        }
    }

    /// The same, if they are at hand; else none.
    #[inline]
    pub(super) fn at_hand(&self, place: Place) -> &[Step] {
        match self {
            Self::Packed(_) => &[],
            Self::AtHand(all) => all.get(place.range()).unwrap_or_default(),
        }
    }
}

impl Place {
    #[inline]
    const fn range(self) -> Range<usize> {
        self.begin as usize..self.end as usize
    }
}

fn pack(words: &mut Vec<u64>, insn: &Insn) {
    let repeats = if insn.repeats { REPEATS } else { 0 };
    let has_target = insn.target.map_or(0, |_| HAS_TARGET);
    let class = (insn.class.index() as u64) << CLASS;
    let len = u64::from(insn.len) << LEN;
    words.push(u64::from(insn.digest) | class | len | repeats | has_target);
    words.extend(insn.target.map(|target| target.0));
}

fn unpack(words: &mut slice::Iter<'_, u64>) -> Option<Insn> {
    let word = *words.next()?;
    let has_target = word & HAS_TARGET != 0;
    let target = has_target.then(|| words.next().copied().map(Ip));
    Some(Insn {
        len: (word >> LEN) as u8,
        class: Class::ALL[usize::from((word >> CLASS) as u8)],
        target: target.flatten(),
        repeats: word & REPEATS != 0,
        digest: word as u32,
    })
}

/// Instructions that stand one behind the other, in this order.
#[derive(Clone, Debug, Default)]
pub struct Steps<'a>(Kept<'a>);

#[derive(Clone, Debug)]
enum Kept<'a> {
    Packed { ip: Ip, words: slice::Iter<'a, u64> },
    AtHand(slice::Iter<'a, Step>),
}

impl Default for Kept<'_> {
    fn default() -> Self {
        Self::AtHand([].iter())
    }
}

impl Iterator for Steps<'_> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        let (ip, words) = match &mut self.0 {
            Kept::Packed { ip, words } => (ip, words),
            Kept::AtHand(steps) => return steps.next().copied(),
        };
        let insn = unpack(words)?;
        let step = Step { ip: *ip, insn };
        ip.0 = ip.0.wrapping_add(insn.len.into());
        Some(step)
    }
}

impl FusedIterator for Steps<'_> {}
