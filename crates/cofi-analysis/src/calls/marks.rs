//! Where pieces of a part begin, and when.

use cofi_packet::{StreamOffset, Tsc};

use super::StreamClock;
use super::parts::PartVisitor;

/// Places one after the other, each so many instructions behind the one before.
#[derive(Clone, Debug)]
pub struct PiecePlaces {
    next: u64,
    every: u64,
    count: u64,
}

impl Iterator for PiecePlaces {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        self.count = self.count.checked_sub(1)?;
        let next = self.next;
        self.next = next.saturating_add(self.every);
        Some(next)
    }
}

impl PiecePlaces {
    /// Those up to a place; they are none of these then.
    fn split_to(&mut self, at: u64) -> Self {
        let reached = match at.checked_sub(self.next) {
            Some(ahead) => (ahead / self.every.max(1)).saturating_add(1),
            None => 0,
        };
        let these = Self {
            count: reached.min(self.count),
            ..self.clone()
        };
        self.count -= these.count;
        self.next = self.next.saturating_add(these.count * self.every);
        these
    }

    /// The same, before which so many more instructions ran.
    fn behind(self, more: u64) -> Self {
        let next = self.next.saturating_add(more);
        Self { next, ..self }
    }
}

/// Where pieces begin, and the packet that led to the blocks that run there: long loops without a branch have many for one packet.
#[derive(Clone, Debug)]
pub struct PieceMark {
    /// How many instructions of the part ran before.
    places: PiecePlaces,
    offset: StreamOffset,
}

impl PieceMark {
    pub(super) const fn offset(&self) -> StreamOffset {
        self.offset
    }

    /// The same places, where so many instructions ran before the part.
    pub(super) fn places_behind(&self, begin: u64) -> PiecePlaces {
        self.places.clone().behind(begin)
    }
}

/// Gathers marks.
#[derive(Debug, Default)]
pub(super) struct MarkList(Vec<PieceMark>);

impl MarkList {
    /// A piece of so many instructions begins, which comes next.
    pub(super) fn push(&mut self, at: u64, every: u64, offset: StreamOffset) {
        if let Some(last) = self.0.last_mut()
            && last.offset == offset
        {
            last.places.count += 1;
            return;
        }
        let (next, count) = (at, 1);
        let places = PiecePlaces { next, every, count };
        self.0.push(PieceMark { places, offset });
    }

    pub(super) fn list(&self) -> &[PieceMark] {
        &self.0
    }
}

/// Where the worker's pieces begin that were not told of yet.
#[derive(Debug)]
pub(super) struct Marks<'m> {
    left: std::slice::Iter<'m, PieceMark>,
    /// Of the one at hand, those that are left.
    now: Option<PieceMark>,
    /// How many instructions of the stream ran before the part.
    pub(super) begin: u64,
}

impl<'m> Marks<'m> {
    pub(super) fn new(list: &'m MarkList, begin: u64) -> Self {
        let mut left = list.0.iter();
        let now = left.next().cloned();
        Self { left, now, begin }
    }

    /// The next of those up to a place.
    pub(super) fn next_to(&mut self, at: u64) -> Option<PieceMark> {
        let now = self.now.as_mut()?;
        let places = now.places.split_to(at);
        if places.count == 0 {
            return None;
        }
        let offset = now.offset;
        if now.places.count == 0 {
            self.now = self.left.next().cloned();
        }
        Some(PieceMark { places, offset })
    }

    pub(super) fn tell<S>(
        &mut self,
        at: u64,
        clock: &mut StreamClock<'_>,
        visitor: &mut impl PartVisitor<S>,
    ) {
        while let Some(mark) = self.next_to(at) {
            let tsc: Option<Tsc> = clock.at(mark.offset).0;
            visitor.mark(mark.places_behind(self.begin), tsc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(list: &MarkList, ends: &[u64]) -> Vec<Vec<(u64, u64)>> {
        let mut marks = Marks::new(list, 1000);
        let mut to = |end: u64| {
            let mut told = Vec::new();
            while let Some(mark) = marks.next_to(end) {
                let places = mark.places_behind(1000);
                told.extend(places.map(|at| (at, mark.offset().0)));
            }
            told
        };
        ends.iter().map(|end| to(*end)).collect()
    }

    #[test]
    fn marks_of_one_packet_are_one_and_told_one_by_one() {
        let mut list = MarkList::default();
        for (at, offset) in [(0, 7), (4, 7), (8, 7), (12, 9), (16, 11), (20, 11)] {
            list.push(at, 4, StreamOffset(offset));
        }
        assert_eq!(list.list().len(), 3);
        let all: [&[(u64, u64)]; 5] = [
            &[(1000, 7)],
            &[(1004, 7)],
            &[],
            &[(1008, 7), (1012, 9), (1016, 11)],
            &[(1020, 11)],
        ];
        assert_eq!(told(&list, &[0, 4, 7, 19, u64::MAX]), all);
    }
}
