//! What is told of a part, until it is known that it counts.

use cofi_analysis::{
    Call, CallEnd, CallMoment, CallNames, CallVisitor, PartVisitor, PiecePlaces, StretchPlace,
};
use cofi_flow::Event;
use cofi_image::CodeChange;
use cofi_insn::Class;
use cofi_packet::{StreamOffset, Tsc};
use cofi_session::Task;

use crate::collect::{Collector, StretchAt};
use crate::explore::{EventKind, kind_of};
use crate::local::{PieceRan, Stretch};

/// What was told.
#[derive(Debug)]
enum Told {
    Piece((Task, u64), u64),
    Enter(Call),
    Leave(Call, CallEnd),
    Opened(Call),
    Stretch(Box<(Stretch, StretchAt)>),
    Event(CallMoment, u16),
    Switched(Option<i64>, CallMoment),
    Mark(PiecePlaces, Option<Tsc>),
}

/// What is told of a part.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    told: Vec<Told>,
}

impl Journal {
    /// It counts.
    pub(crate) fn apply(&mut self, collector: &mut Collector, names: &CallNames) {
        for told in self.told.drain(..) {
            match told {
                Told::Piece(running, instructions) => collector.follow_at(running, instructions),
                Told::Enter(call) => collector.enter(&call, names),
                Told::Leave(call, end) => collector.leave(&call, &end, names),
                Told::Opened(call) => collector.opened(&call),
                Told::Stretch(told) => collector.stretch(&told.0, &told.1),
                Told::Event(at, bits) => collector.note_event(&at, bits),
                Told::Switched(innermost, at) => collector.switch_stack(innermost, &at),
                Told::Mark(places, tsc) => collector.mark(places, tsc),
            }
        }
    }

    /// It does not.
    pub(crate) fn clear(&mut self) {
        self.told.clear();
    }
}

impl CallVisitor for Journal {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        self.told.push(Told::Enter(*call));
    }

    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        self.told.push(Told::Leave(*call, *end));
    }

    fn switched(&mut self, innermost: Option<i64>, at: &CallMoment) {
        self.told.push(Told::Switched(innermost, *at));
    }

    fn event(&mut self, event: &Event, at: &CallMoment, _: StreamOffset, by: Option<Class>) {
        if let Some(kind) = kind_of(event, by) {
            self.told.push(Told::Event(*at, kind.bit()));
        }
    }

    fn code_changed(&mut self, _: &CodeChange, at: &CallMoment, _: StreamOffset) {
        self.told.push(Told::Event(*at, EventKind::Code.bit()));
    }
}

impl PartVisitor<Stretch> for Journal {
    fn piece(&mut self, running: (Task, u64), instructions: u64) {
        self.told.push(Told::Piece(running, instructions));
    }

    fn mark(&mut self, places: PiecePlaces, tsc: Option<Tsc>) {
        self.told.push(Told::Mark(places, tsc));
    }

    fn times(&self, stretch: &Stretch, ask: &mut dyn FnMut(StreamOffset)) {
        for (call, _, end) in &stretch.kept {
            ask(call.offset);
            ask(*end);
        }
    }

    fn stretch(&mut self, mut stretch: Stretch, place: &StretchPlace<'_>) {
        let function = |number: &mut u32| {
            let known = place.functions.get(*number as usize);
            if let Some(known) = known {
                *number = known.index() as u32;
            }
        };
        for (of, _) in &mut stretch.sums {
            function(of);
        }
        for (of, _) in &mut stretch.shares {
            function(of);
        }
        for piece in &mut stretch.pieces {
            if let PieceRan::Most(of) = &mut piece.ran {
                function(of);
            }
        }
        for (call, ..) in &mut stretch.kept {
            if let Some(known) = place.functions.get(call.function.index()) {
                call.function = *known;
            }
        }
        let times: Vec<Option<Tsc>> = place.times.iter().map(|(tsc, _)| *tsc).collect();
        let at = StretchAt {
            insns: place.insns,
            depth: place.depth,
            stack: place.stack,
            tid: place.task.tid,
            times,
        };
        self.told.push(Told::Stretch(Box::new((stretch, at))));
    }

    fn opened(&mut self, call: &Call) {
        self.told.push(Told::Opened(*call));
    }
}
