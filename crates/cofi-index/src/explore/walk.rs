//! Decoding a part of a row.

use cofi_analysis::{CallTracer, CallVisitor, OpenCall};
use cofi_packet::StreamOffset;
use cofi_session::ThreadFlow;

use super::{Explorer, PlaceRange};

/// What takes a part of a row as it is decoded.
pub(super) trait Walker: CallVisitor {
    /// Decoding begins at a place where these calls are open, the outer ones first.
    fn begin(&mut self, at: u64, open: &mut dyn Iterator<Item = OpenCall>);

    /// Before each piece of the flow: how many more instructions moments count than the row has places, and what comes next. Whether to go on.
    fn piece(&mut self, ahead: u64, tracer: &CallTracer<'_>, flow: &mut ThreadFlow<'_>) -> bool;
}

/// So many instructions behind a range are decoded at most, to know on which stack it ended.
const BEHIND: u64 = 1 << 22;

/// Whether a place is of interest to whoever asks for what ends before another: it lies within, or what runs there may tell on which stack that ended.
pub(super) const fn goes_on(tracer: &CallTracer<'_>, end: u64) -> bool {
    let at = tracer.instructions();
    at < end || (tracer.is_undecided() && at - end < BEHIND)
}

impl<'s> Explorer<'s> {
    /// Decodes from the last place at or before a range from which that is possible until a walker has enough, or the row ends. The place where
    /// decoding ended; none if there is no such row.
    pub(super) fn walk(
        &mut self,
        row: usize,
        range: &PlaceRange,
        walker: &mut dyn Walker,
    ) -> Option<u64> {
        let stream = self.stream(row)?;
        let mut tracer = self.tracer(row)?;
        let index = self.index.clone();
        let (known, states) = (index.rows.get(row)?, index.states.get(row)?);
        let mut number = known.chunk_at(range.start);
        // Where it is not known which calls are open, one begins before.
        let state = loop {
            match known.chunks.get(number)?.state {
                Some(state) => break state as usize,
                None => number = number.checked_sub(1)?,
            }
        };
        if !states.restore(state, &mut tracer) {
            return None;
        }
        let mut is_first = true;
        let end = loop {
            let bytes = known.bytes_of(number);
            let bytes = StreamOffset(bytes.start)..StreamOffset(bytes.end);
            if is_first {
                tracer.begin_at(bytes.start);
                let at = tracer.instructions();
                // It is told of the others once they are known.
                let mut open = tracer.all_open_calls().filter(|open| open.is_told);
                walker.begin(at, &mut open);
            } else {
                tracer.go_on();
            }
            is_first = false;
            let mut flow = self.session.decode_within(stream, bytes);
            let wants_more = loop {
                let ahead = tracer.running().1.wrapping_sub(tracer.instructions());
                if !walker.piece(ahead, &tracer, &mut flow) {
                    break false;
                }
                let visitor: &mut dyn CallVisitor = walker;
                if !tracer.follow_dyn(&mut flow, visitor) {
                    break true;
                }
            };
            number += 1;
            let is_over = number >= known.chunks.len();
            if is_over && wants_more {
                let visitor: &mut dyn CallVisitor = walker;
                tracer.finish(visitor);
            }
            if is_over || !wants_more || !goes_on(&tracer, range.end) {
                if !tracer.is_undecided() {
                    let visitor: &mut dyn CallVisitor = walker;
                    tracer.tell_innermost(visitor);
                }
                break tracer.instructions();
            }
        };
        self.keep(row, tracer);
        Some(end)
    }
}
