//! The instructions of blocks, as they are kept: there may be hundreds of thousands.

use super::Step;
use cofi_insn::{Class, Insn};
use cofi_packet::Ip;
use std::iter::FusedIterator;
use std::slice;

/// Where the instructions of a block are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    begin: u32,
    end: u32,
}

/// Instructions: a word for each, and one more for the target of one that has a target.
#[derive(Clone, Debug, Default)]
pub(super) struct StepList(Vec<u64>);

/// A word's parts: the digest is the lower half.
const CLASS: u32 = 32;
const LEN: u32 = 40;
const REPEATS: u64 = 1 << 48;
const HAS_TARGET: u64 = 1 << 49;

impl StepList {
    /// Keeps instructions that stand one behind the other.
    pub(super) fn push(&mut self, steps: &[Step]) -> Place {
        let begin = self.0.len() as u32;
        for Step { insn, .. } in steps {
            let repeats = if insn.repeats { REPEATS } else { 0 };
            let has_target = insn.target.map_or(0, |_| HAS_TARGET);
            let class = (insn.class.index() as u64) << CLASS;
            let len = u64::from(insn.len) << LEN;
            self.0
                .push(u64::from(insn.digest) | class | len | repeats | has_target);
            self.0.extend(insn.target.map(|target| target.0));
        }
        let end = self.0.len() as u32;
        Place { begin, end }
    }

    /// The instructions that are kept there, of which the first stands at `start`.
    pub(super) fn get(&self, start: Ip, place: Place) -> Steps<'_> {
        let words = self.0.get(place.begin as usize..place.end as usize);
        Steps {
            ip: start,
            words: words.unwrap_or_default().iter(),
        }
    }
}

/// Instructions that stand one behind the other, in this order.
#[derive(Clone, Debug, Default)]
pub struct Steps<'a> {
    ip: Ip,
    words: slice::Iter<'a, u64>,
}

impl Iterator for Steps<'_> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        let word = *self.words.next()?;
        let has_target = word & HAS_TARGET != 0;
        let target = has_target.then(|| self.words.next().copied().map(Ip));
        let insn = Insn {
            len: (word >> LEN) as u8,
            class: Class::ALL[usize::from((word >> CLASS) as u8)],
            target: target.flatten(),
            repeats: word & REPEATS != 0,
            digest: word as u32,
        };
        let ip = self.ip;
        self.ip = Ip(ip.0.wrapping_add(insn.len.into()));
        Some(Step { ip, insn })
    }
}

impl FusedIterator for Steps<'_> {}
