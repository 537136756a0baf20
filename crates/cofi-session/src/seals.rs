//! Compares what is decoded with what the recorder says that ran.

use std::collections::VecDeque;

use crate::compact;
use cofi_flow::{Executed, FlowError, FlowErrorKind, Path, Run};
use cofi_insn::RunningChecksum;
use cofi_packet::StreamOffset;
use cofi_perf::Seal;

/// What came of comparing a flow with the seals of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SealCount {
    /// Stretches of which it is proven that they were decoded as they ran.
    pub verified: u64,
    /// Stretches that were decoded otherwise, or not in full.
    pub broken: u64,
    /// How many instructions of these ran, less those that were decoded.
    pub lost_instructions: u64,
}

impl SealCount {
    /// Adds what came of another part.
    pub fn add(&mut self, other: Self) {
        self.verified += other.verified;
        self.broken += other.broken;
        self.lost_instructions = self
            .lost_instructions
            .saturating_add(other.lost_instructions);
    }
}

/// Seals in the order of their stream, whose places `place` gives. What overlaps another, as no recorder writes it, is left out.
pub(crate) fn placed(mut seals: Vec<Seal>, place: impl Fn(u64) -> StreamOffset) -> Vec<Seal> {
    for seal in &mut seals {
        seal.start = place(seal.start.0);
        seal.end = place(seal.end.0);
    }
    compact::sort_by_key(&mut seals, |seal| (seal.start, seal.end));
    let mut end = StreamOffset(0);
    seals.retain(|seal| {
        let fits = end <= seal.start && seal.start <= seal.end;
        if fits {
            end = seal.end;
        }
        fits
    });
    seals
}

/// Goes along with a flow.
///
/// What ran before a place of the stream is what was decoded with packets before it. That holds at the places where stretches
/// begin and end: PSBs, whose PSB+ tells the address that comes next, and the end of the stream.
#[derive(Debug)]
pub(crate) struct SealCheck<'s> {
    /// Those whose stretch has not been passed.
    seals: &'s [Seal],
    /// Where something is to be done next; 0 while the flow is lost.
    limit: u64,
    /// The stretch of the first of them has begun.
    begun: bool,
    /// What was decoded since the stretch began.
    ran: RunningChecksum,
    /// Something else has been said to be missing in the stretch.
    excused: bool,
    /// The flow is lost.
    lost: bool,
    count: SealCount,
    /// Seals that do not match, where nothing else says why.
    broken: VecDeque<FlowError>,
}

impl<'s> SealCheck<'s> {
    pub(crate) fn new(seals: &'s [Seal]) -> Self {
        let mut this = Self {
            seals,
            limit: u64::MAX,
            begun: false,
            ran: RunningChecksum::EMPTY,
            excused: false,
            lost: false,
            count: SealCount::default(),
            broken: VecDeque::new(),
        };
        this.expect_next();
        this
    }

    /// Only what begins at `start` or later is decoded.
    pub(crate) fn restrict(&mut self, start: StreamOffset) {
        let before = self.seals.partition_point(|seal| seal.start < start);
        *self = Self::new(&self.seals[before..]);
    }

    fn expect_next(&mut self) {
        self.begun = false;
        self.set_limit();
    }

    fn set_limit(&mut self) {
        self.limit = match self.seals.first() {
            Some(seal) if self.begun => seal.end.0,
            Some(seal) => seal.start.0,
            None => u64::MAX,
        };
    }

    /// What is decoded from now on is behind the packet at `offset`.
    #[cold]
    fn pass(&mut self, offset: u64) {
        self.set_limit();
        while offset >= self.limit
            && let Some((seal, rest)) = self.seals.split_first()
        {
            if self.begun {
                self.close(seal);
                self.seals = rest;
                self.expect_next();
            } else {
                self.begun = true;
                self.limit = seal.end.0;
                self.ran = RunningChecksum::EMPTY;
                self.excused = self.lost;
            }
        }
    }

    fn close(&mut self, seal: &Seal) {
        let (instructions, sum) = (self.ran.instructions(), self.ran.sum());
        if (instructions, sum) == (seal.instructions, seal.sum) {
            self.count.verified += 1;
            return;
        }
        self.count.broken += 1;
        let lost = seal.instructions.saturating_sub(instructions);
        // (Seals of a damaged file may say anything.)
        self.count.lost_instructions = self.count.lost_instructions.saturating_add(lost);
        if !self.excused {
            let kind = FlowErrorKind::Seal {
                end: seal.end,
                ran: seal.instructions,
                decoded: instructions,
            };
            self.broken.push_back(FlowError::new(seal.start, kind));
        }
    }

    /// What is decoded now needed packets up to the one at `offset`.
    #[inline(always)]
    fn come_to(&mut self, offset: StreamOffset) {
        if offset.0 >= self.limit {
            self.pass(offset.0);
            self.lost = false;
        }
    }

    #[inline(always)]
    pub(crate) fn path(&mut self, path: &Path<'_>) {
        self.come_to(path.offset());
        path.add_to(&mut self.ran);
    }

    #[inline]
    pub(crate) fn run(&mut self, run: &Run<'_>) {
        self.come_to(run.offset());
        self.ran.add(&run.checksum());
    }

    #[inline]
    pub(crate) fn instruction(&mut self, offset: StreamOffset, insn: &Executed) {
        self.come_to(offset);
        self.ran.add(&insn.checksum());
    }

    /// The flow is lost here: that is said.
    pub(crate) fn lose(&mut self, offset: StreamOffset) {
        self.pass(offset.0);
        self.lose_here();
    }

    /// The flow is lost where it has come to: that is said.
    pub(crate) fn lose_here(&mut self) {
        self.excused = true;
        self.lost = true;
        self.limit = 0;
    }

    /// The stream ends at `end`, and how far code ran there is not known: that is said.
    pub(crate) fn lose_end(&mut self, end: StreamOffset) {
        self.lose_here();
        self.pass(end.0);
    }

    /// Everything before `end` has been decoded.
    pub(crate) fn finish(&mut self, end: StreamOffset) {
        self.pass(end.0);
    }

    /// The next seal that does not match.
    pub(crate) fn take_broken(&mut self) -> Option<FlowError> {
        self.broken.pop_front()
    }

    pub(crate) const fn count(&self) -> SealCount {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofi_insn::Checksum;
    use cofi_packet::Ip;

    fn seal(start: u64, end: u64, ips: &[u64]) -> Seal {
        let insns = ips.iter().map(|ip| Checksum::of(Ip(*ip), 7));
        let mut ran = RunningChecksum::EMPTY;
        insns.for_each(|insn| ran.add(&insn));
        Seal {
            start: StreamOffset(start),
            end: StreamOffset(end),
            instructions: ran.instructions(),
            sum: ran.sum(),
        }
    }

    fn run(check: &mut SealCheck<'_>, steps: &[(u64, u64)]) {
        for (offset, ip) in steps {
            check.come_to(StreamOffset(*offset));
            check.ran.add(&Checksum::of(Ip(*ip), 7));
        }
    }

    const SEALS: [(u64, u64, &[u64]); 3] =
        [(0, 50, &[1, 2, 3]), (50, 90, &[4]), (90, 120, &[5, 6])];

    fn seals() -> Vec<Seal> {
        SEALS.iter().map(|(a, b, ips)| seal(*a, *b, ips)).collect()
    }

    /// Found by the fuzz target `session`: the sum of what damaged seals say overflowed.
    #[test]
    fn seals_may_say_any_number_of_instructions() {
        let seals: Vec<Seal> = (0..3)
            .map(|at| Seal {
                start: StreamOffset(at),
                end: StreamOffset(at + 1),
                instructions: u64::MAX,
                sum: 0,
            })
            .collect();
        let mut check = SealCheck::new(&seals);
        check.finish(StreamOffset(9));
        let mut count = check.count();
        assert_eq!((count.broken, count.lost_instructions), (3, u64::MAX));
        count.add(check.count());
        assert_eq!(count.lost_instructions, u64::MAX);
    }

    #[test]
    fn what_matches_is_verified() {
        let seals = seals();
        let mut check = SealCheck::new(&seals);
        run(
            &mut check,
            &[(20, 1), (20, 2), (40, 3), (50, 4), (95, 5), (100, 6)],
        );
        check.finish(StreamOffset(128));
        assert_eq!((check.count().verified, check.count().broken), (3, 0));
        assert_eq!(check.take_broken(), None);
    }

    #[test]
    fn another_order_and_a_shifted_place_break_seals() {
        let seals = seals();
        let mut check = SealCheck::new(&seals);
        run(
            &mut check,
            &[(20, 1), (20, 3), (40, 2), (89, 4), (90, 5), (119, 6)],
        );
        check.finish(StreamOffset(120));
        assert_eq!((check.count().verified, check.count().broken), (2, 1));
        let error = check.take_broken().expect("a broken seal");
        assert_eq!(error.offset, StreamOffset(0));
        let mut check = SealCheck::new(&seals);
        run(
            &mut check,
            &[(20, 1), (20, 2), (50, 3), (60, 4), (90, 5), (119, 6)],
        );
        check.finish(StreamOffset(120));
        assert_eq!((check.count().verified, check.count().broken), (1, 2));
    }

    #[test]
    fn what_is_said_to_be_missing_is_not_said_twice() {
        let seals = seals();
        let mut check = SealCheck::new(&seals);
        run(&mut check, &[(20, 1)]);
        check.lose(StreamOffset(30));
        run(&mut check, &[(100, 6)]);
        check.finish(StreamOffset(120));
        assert_eq!((check.count().verified, check.count().broken), (0, 3));
        assert_eq!(check.count().lost_instructions, 2 + 1 + 1);
        assert_eq!(check.take_broken(), None);
    }

    /// A recorder that was killed has written up to a PSB, with the seal up to there: what ran behind the last packet before it is lost.
    #[test]
    fn an_unknown_end_is_no_broken_seal_beside() {
        let seals = seals();
        let mut check = SealCheck::new(&seals);
        run(&mut check, &[(20, 1), (20, 2), (40, 3), (50, 4), (95, 5)]);
        check.lose_end(StreamOffset(120));
        check.finish(StreamOffset(120));
        assert_eq!((check.count().verified, check.count().broken), (2, 1));
        assert_eq!(check.count().lost_instructions, 1);
        assert_eq!(check.take_broken(), None);
    }

    #[test]
    fn a_part_checks_the_stretches_that_begin_and_end_in_it() {
        let seals = seals();
        let mut check = SealCheck::new(&seals);
        check.restrict(StreamOffset(30));
        run(&mut check, &[(40, 3), (50, 4), (100, 5)]);
        check.finish(StreamOffset(100));
        assert_eq!((check.count().verified, check.count().broken), (1, 0));
    }
}
