//! Where a program switches stacks, a place has the calls of the stack in use.

use std::collections::HashMap;
use std::sync::Arc;

use cofi_analysis::{Call, CallEnd, CallKind, CallMoment, CallNames, CallTracer, CallVisitor};
use cofi_index::Explorer;

use super::common::Scratch;
use super::common::index::{TURNS, recording_of, with_session};
use super::{index, ranges};

/// The calls around each place, as a reading of the whole tells them.
#[derive(Default)]
struct Around {
    /// Open calls: the call around, and the function.
    open: HashMap<i64, (Option<i64>, String, CallKind)>,
    innermost: Option<i64>,
    /// From which place on which calls are open, the innermost first.
    changes: Vec<(u64, Vec<String>)>,
    switches: usize,
}

impl Around {
    fn note(&mut self, at: &CallMoment) {
        let (mut names, mut next) = (Vec::new(), self.innermost);
        while let Some((parent, name, kind)) = next.and_then(|number| self.open.get(&number)) {
            if *kind != CallKind::Assumed {
                names.push(name.clone());
            }
            next = *parent;
        }
        self.changes.push((at.insns, names));
    }

    fn at(&self, place: u64) -> &[String] {
        let behind = self.changes.partition_point(|(at, _)| *at <= place);
        let last = behind.checked_sub(1).map(|last| &self.changes[last].1[..]);
        last.unwrap_or_default()
    }
}

impl CallVisitor for Around {
    fn enter(&mut self, call: &Call, names: &CallNames) {
        let name = names.describe(call.function).to_owned();
        self.open
            .insert(call.number, (call.parent, name, call.kind));
        self.innermost = Some(call.number);
        self.note(&call.begin);
    }
    fn leave(&mut self, call: &Call, end: &CallEnd, _: &CallNames) {
        self.open.remove(&call.number);
        if self.innermost == Some(call.number) {
            self.innermost = call.parent;
        }
        self.note(&end.end);
    }
    fn switched(&mut self, innermost: Option<i64>, at: &CallMoment) {
        self.innermost = innermost;
        self.switches += 1;
        self.note(at);
    }
}

#[test]
fn a_place_has_the_calls_of_one_stack() {
    let scratch = Scratch::new();
    let Some(data) = recording_of(&scratch, TURNS) else {
        return;
    };
    with_session(&data, |session, _| {
        let mut whole = Around::default();
        let stream = &session.streams()[0];
        let mut flow = session.decode(stream);
        let mut tracer = CallTracer::new(session, stream).with_inlined();
        while tracer.follow(&mut flow, &mut whole) {}
        let insns = tracer.instructions();
        assert!(whole.switches > 200, "{}", whole.switches);
        let mut deep = 0;
        for size in [1, 1 << 14] {
            let index = Arc::new(index(session, size));
            let mut explorer = Explorer::new(session, index.clone());
            let name = |function: u32| index.functions()[function as usize].name.clone();
            // Some anywhere, and those around each tenth of the switches.
            let switches = whole.changes.iter().step_by(37).map(|(at, _)| *at);
            let near = switches.flat_map(|at| [at.saturating_sub(1), at, at + 1]);
            let anywhere = ranges(insns).map(|range| range.start);
            for at in near.chain(anywhere).filter(|at| *at < insns) {
                let place = explorer.place(0, at).expect("a place");
                let frames = place.stack.iter();
                let shown = frames.filter(|frame| frame.kind != CallKind::Assumed);
                let found: Vec<_> = shown.map(|frame| frame.function.map(name)).collect();
                let wanted: Vec<_> = whole.at(at).iter().cloned().map(Some).collect();
                assert_eq!(found, wanted, "{size} {at}");
                deep += usize::from(found.len() > 3);
                // A picture of it alone shows what one of all shows.
                let alone = explorer.instructions(0, &(at..at + 1));
                let among = explorer.instructions(0, &(at.saturating_sub(50)..at + 50));
                let among = among.iter().find(|insn| insn.at == at).expect("it ran");
                assert_eq!(
                    (alone[0].function, alone[0].depth),
                    (among.function, among.depth),
                    "{size} {at}"
                );
            }
        }
        assert!(deep > 100, "{deep}");
    });
}
