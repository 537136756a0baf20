//! Where a program switches stacks, a place has the calls of the stack in use.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;

use cofi_analysis::{Call, CallEnd, CallKind, CallMoment, CallNames, CallTracer, CallVisitor};
use cofi_index::Explorer;
use cofi_session::Session;

use super::common::index::{TURNS, recording_by_qemu, recording_of, with_session};
use super::common::{STATIC, Scratch, has_qemu};
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

/// A program in which most runs in a function that no symbol names any more: whether it is a stub's call is known late.
const NAMELESS: &str = r#"
static volatile unsigned sum;
__attribute__((noipa)) static void leaf(int n) { for (int i = 0; i < n; i++) sum += i & 3 ? i : 7; }
__attribute__((noipa)) static void mid(int n) { leaf(n); sum++; leaf(n / 2); }
__attribute__((noipa)) static void outer(int n) { mid(n); sum += 3; }
int main(void) { for (int i = 0; i < 3; i++) { outer(40000); mid(50); } return 0; }
"#;

/// Looks at places: whether the calls around them are those that a reading of the whole tells. How many of these were deep.
fn places_are_those_of(whole: &Around, session: &Session<'_>, insns: u64, every: usize) -> usize {
    let mut deep = 0;
    for size in [1, 1 << 14] {
        let index = Arc::new(index(session, size));
        let mut explorer = Explorer::new(session, index.clone());
        let name = |function: u32| index.functions()[function as usize].name.clone();
        // Some anywhere, and those around some of the changes.
        let changes = whole.changes.iter().step_by(every).map(|(at, _)| *at);
        let near = changes.flat_map(|at| [at.saturating_sub(1), at, at + 1]);
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
            // Each call around it is in a picture of it, once.
            let mut calls = explorer.flame(0, &(at..at + 1), 0).calls;
            calls.retain(|call| call.kind != CallKind::Assumed);
            let of_stack = calls.iter().rev().map(|call| Some(name(call.function)));
            let of_stack: Vec<_> = of_stack.collect();
            let is_whole = wanted.iter().all(|name| of_stack.contains(name));
            assert!(is_whole, "{size} {at}: {of_stack:?} {wanted:?}");
            let mut places: Vec<_> = calls.iter().map(|call| (call.begin, call.depth)).collect();
            places.dedup();
            assert_eq!(places.len(), calls.len(), "{size} {at}: {calls:?}");
        }
    }
    deep
}

fn read(session: &Session<'_>) -> (Around, u64) {
    let mut whole = Around::default();
    let stream = &session.streams()[0];
    let mut flow = session.decode(stream);
    let mut tracer = CallTracer::new(session, stream).with_inlined();
    while tracer.follow(&mut flow, &mut whole) {}
    let insns = tracer.instructions();
    tracer.finish(&mut whole);
    (whole, insns)
}

#[test]
fn a_place_has_the_calls_of_one_stack() {
    let scratch = Scratch::new();
    let Some(data) = recording_of(&scratch, TURNS) else {
        return;
    };
    with_session(&data, |session, _| {
        let (whole, insns) = read(session);
        assert!(whole.switches > 200, "{}", whole.switches);
        let deep = places_are_those_of(&whole, session, insns, 37);
        assert!(deep > 100, "{deep}");
    });
}

#[test]
fn a_place_has_the_calls_of_code_without_a_name() {
    let scratch = Scratch::new();
    if !has_qemu() {
        return;
    }
    for removed in [&["--strip-symbol=leaf"][..], &["--strip-all"]] {
        let source = scratch.write("nameless.c", NAMELESS);
        let flags = [STATIC, &["-O2"]].concat();
        let Some(program) = scratch.compile(&source, &flags) else {
            return;
        };
        let stripped = Command::new("strip").args(removed).arg(&program).status();
        assert!(stripped.expect("binutils are there").success());
        let data = recording_by_qemu(&scratch, &program);
        with_session(&data, |session, _| {
            let (whole, insns) = read(session);
            let deep = places_are_those_of(&whole, session, insns, 5);
            assert!(deep > 20 || removed[0] == "--strip-all", "{deep}");
        });
    }
}
