//! Streams decoded by segments, on several threads, and put together again in their order.
//!
//! Only where what was found in a segment does not lead to what was found in the next (a gap reaches across the cut, or damage hides the
//! PSB there), both are decoded again in one piece: so what is found does not depend on the cuts.

use std::num::NonZeroUsize;
use std::ops::Range;

use cofi_packet::StreamOffset;
use cofi_session::{Session, Stream};

use crate::parallel::in_order;
use crate::segments::{SegmentStart, segments};

/// A part of a stream that is decoded by itself.
#[derive(Clone, Debug)]
pub(crate) struct Segment<'s, 't> {
    /// Which stream, of those that are decoded together.
    pub(crate) number: usize,
    pub(crate) stream: &'s Stream<'t>,
    pub(crate) range: Range<StreamOffset>,
    /// Nothing stands before it.
    pub(crate) is_first: bool,
    /// Nothing stands behind it.
    pub(crate) is_last: bool,
}

impl<'s, 't> Segment<'s, 't> {
    /// All of a stream.
    pub(crate) fn whole(number: usize, stream: &'s Stream<'t>) -> Self {
        Self {
            number,
            stream,
            range: StreamOffset(0)..StreamOffset(u64::MAX),
            is_first: true,
            is_last: true,
        }
    }

    /// A stream, cut into segments of about `size` bytes.
    pub(crate) fn of(
        session: &Session<'_>,
        number: usize,
        stream: &'s Stream<'t>,
        size: NonZeroUsize,
        start: SegmentStart,
    ) -> Vec<Self> {
        let ranges = segments(session, stream, size, start);
        let count = ranges.len();
        let ranges = ranges.into_iter().enumerate();
        ranges
            .map(|(index, range)| Self {
                number,
                stream,
                range,
                is_first: index == 0,
                is_last: index + 1 == count,
            })
            .collect()
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> u64 {
        let whole = self.stream.len() as u64;
        self.range.end.0.min(whole) - self.range.start.0
    }

    /// This one and those behind it up to `last`.
    fn up_to(&self, last: &Self) -> Self {
        Self {
            range: self.range.start..last.range.end,
            is_last: last.is_last,
            ..self.clone()
        }
    }
}

/// What was found in a segment.
pub(crate) trait Found: Send {
    /// Whether it is what is found there in the whole stream, up to where `next` begins, which goes on from it.
    fn leads_to(&self, next: &Self) -> bool;

    /// This is what was found when `other`, which is of a part of the same, did not suffice.
    fn replace(&mut self, other: Self)
    where
        Self: Sized,
    {
        drop(other);
    }
}

/// What was found and waits for what comes next.
struct Pending<F> {
    /// How many segments it is of, and the first.
    count: usize,
    first: usize,
    found: F,
}

/// Decodes segments, which stand in the order of their streams. `worker` makes what decodes them on a thread. What was found in each, or in
/// several that had to be decoded in one piece, is given to `take` in their order, with the number of the stream. `progress` is called with
/// the bytes decoded since it was called last.
pub(crate) fn decode<'s, 't: 's, F, W>(
    all: &[Segment<'s, 't>],
    threads: NonZeroUsize,
    worker: impl Fn() -> W + Sync,
    progress: &(dyn Fn(u64) + Sync),
    mut take: impl FnMut(usize, F),
) where
    F: Found,
    W: FnMut(&Segment<'s, 't>) -> F,
{
    let mut pending: Option<Pending<F>> = None;
    let (mut number, mut again) = (0, None);
    let each = |found: Option<F>| {
        let index = number;
        number += 1;
        let (Some(found), Some(segment)) = (found, all.get(index)) else {
            return;
        };
        let Some(before) = pending.take() else {
            pending = Some(Pending::of(index, found));
            return;
        };
        if index < before.first + before.count {
            // It was decoded again with those before it.
            let mut before = before;
            before.found.replace(found);
            pending = Some(before);
            return;
        }
        let Some(first) = all.get(before.first) else {
            return;
        };
        if segment.is_first || before.found.leads_to(&found) {
            take(first.number, before.found);
            pending = Some(Pending::of(index, found));
            return;
        }
        // Twice as many each time, so that all of it costs no more than a few times the whole.
        let of_stream = all.get(index..).unwrap_or_default();
        let last = of_stream.iter().position(|segment| segment.is_last);
        let more = before.count.min(last.map_or(1, |last| last + 1));
        let last = of_stream.get(more - 1).unwrap_or(segment);
        let work = again.get_or_insert_with(&worker);
        let mut whole = work(&first.up_to(last));
        whole.replace(before.found);
        whole.replace(found);
        pending = Some(Pending {
            count: before.count + more,
            first: before.first,
            found: whole,
        });
    };
    let make = || {
        let mut work = worker();
        move |number: usize| {
            let segment = all.get(number)?;
            let found = work(segment);
            progress(segment.len());
            Some(found)
        }
    };
    in_order(all.len(), threads, make, each);
    if let Some(last) = pending
        && let Some(first) = all.get(last.first)
    {
        take(first.number, last.found);
    }
}

impl<F> Pending<F> {
    const fn of(first: usize, found: F) -> Self {
        Self {
            count: 1,
            first,
            found,
        }
    }
}

#[cfg(test)]
mod tests {
    use cofi_session::SessionOptions;

    use super::*;

    /// The segments that were decoded in one piece, and whether what is found at the end depends on what comes behind.
    #[derive(Debug, PartialEq, Eq)]
    struct Numbers(Range<u64>, bool);

    impl Found for Numbers {
        fn leads_to(&self, next: &Self) -> bool {
            assert_eq!(self.0.end, next.0.start);
            !self.1
        }
    }

    /// Decodes two streams of ten segments each, of which those at whose ends `is_lost` is true depend on the next.
    fn joined(threads: usize, is_lost: impl Fn(u64) -> bool + Sync) -> Vec<(usize, Numbers)> {
        let session = Session::new(&[0; 100], &SessionOptions::default()).unwrap();
        let stream = &session.streams()[0];
        let one = |number: usize| {
            (0..10).map(move |index| Segment {
                number,
                stream,
                range: StreamOffset(index)..StreamOffset(index + 1),
                is_first: index == 0,
                is_last: index == 9,
            })
        };
        let all: Vec<_> = (0..2).flat_map(one).collect();
        let mut taken = Vec::new();
        let is_lost = &is_lost;
        let worker = || {
            move |segment: &Segment<'_, '_>| {
                let (start, end) = (segment.range.start.0, segment.range.end.0);
                Numbers(start..end, is_lost(end))
            }
        };
        let threads = NonZeroUsize::new(threads).unwrap();
        decode(&all, threads, worker, &|_| {}, |number, found| {
            taken.push((number, found));
        });
        taken
    }

    #[test]
    fn what_depends_on_the_next_segment_is_decoded_with_it() {
        for threads in 1..4 {
            let ranges = |is_lost: &(dyn Fn(u64) -> bool + Sync)| {
                let taken = joined(threads, is_lost);
                let both = taken.split_at(taken.len() / 2);
                // What comes of the end of a stream is nothing to the next.
                assert!(both.0.iter().all(|(number, _)| *number == 0));
                assert!(both.1.iter().all(|(number, _)| *number == 1));
                let first = both.0.iter().map(|(_, found)| found.0.clone());
                let first: Vec<_> = first.collect();
                let second = both.1.iter().map(|(_, found)| found.0.clone());
                assert_eq!(first, second.collect::<Vec<_>>());
                first
            };
            let each: Vec<_> = (0..10).map(|start| start..start + 1).collect();
            assert_eq!(ranges(&|_| false), each);
            assert_eq!(ranges(&|end| end == 10), each);
            assert_eq!(
                ranges(&|end| end == 3),
                [&each[..2], std::slice::from_ref(&(2..4)), &each[4..]].concat()
            );
            // 2, 4, 8, and then what there is.
            assert_eq!(ranges(&|_| true), std::slice::from_ref(&(0..10)));
            // The one that was lost at 4 is found again at 6.
            assert_eq!(
                ranges(&|end| end == 3 || end == 4),
                [&each[..2], std::slice::from_ref(&(2..6)), &each[6..]].concat()
            );
        }
    }
}
