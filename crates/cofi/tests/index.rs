//! The index of a recording answers what a reading of all of it tells.

mod common;
#[path = "index/damaged.rs"]
mod damaged;
#[path = "index/stacks.rs"]
mod stacks;

use common::index::{CALLS, TURNS, recording, recording_of, with_session};
use common::{STATIC, Scratch, cofi, has_qemu, run};

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cofi_analysis::{Call, CallEnd, CallKind, CallNames, CallTracer, CallVisitor, RanBlock};
use cofi_index::{
    Axis, EventInfo, EventKind, Explorer, FunctionInfo, FunctionSum, FunctionTable, Hit, Index,
    IndexError, IndexOptions, Step, StripSum, Target,
};
use cofi_packet::Ip;
use cofi_session::{Fingerprint, Session};

/// A call, by the name of its function.
type Shown = (u64, i32, u64, String, CallKind);

/// What a reading of a whole stream tells.
#[derive(Default)]
struct Whole {
    calls: Vec<Shown>,
    open: HashMap<i64, u64>,
    insns: Vec<Ip>,
}

impl CallVisitor for Whole {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        self.open.insert(call.number, call.begin.insns);
    }
    fn leave(&mut self, call: &Call, end: &CallEnd, names: &CallNames) {
        let begin = self.open.remove(&call.number).expect("it began");
        let name = names.describe(call.function).to_owned();
        let end = end.end.insns;
        self.calls.push((begin, call.depth, end, name, call.kind));
    }
    fn wants_blocks(&self) -> bool {
        true
    }
    fn ran(&mut self, block: &RanBlock<'_>) {
        block.for_each(|ip, _, _| self.insns.push(ip));
    }
}

fn whole(session: &Session<'_>, row: usize) -> Whole {
    let stream = &session.streams()[row];
    let mut whole = Whole::default();
    let mut flow = session.decode(stream);
    let mut tracer = CallTracer::new(session, stream).with_inlined();
    while tracer.follow(&mut flow, &mut whole) {}
    tracer.finish(&mut whole);
    whole
        .calls
        .sort_by(|a, b| (a.0, a.1, b.2).cmp(&(b.0, b.1, a.2)));
    whole
}

fn index(session: &Session<'_>, chunk: usize) -> Index {
    let mut options = IndexOptions::default();
    options.chunk = NonZeroUsize::new(chunk).expect("a size");
    Index::build(session, &options, &AtomicBool::new(false), &|_| {}).expect("an index")
}

/// Ranges of all lengths, spread over so many places.
fn ranges(insns: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    let mut seed = 7_u64;
    let mut next = move |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % most.max(1)
    };
    (0..40).map(move |number| {
        let len = 1 << (number % 14);
        let start = next(insns);
        start..(start + next(len) + 1).min(insns)
    })
}

/// What the calls of a range did by function, by a reading of the whole.
fn sums(whole: &Whole, range: &std::ops::Range<u64>) -> BTreeMap<String, (u64, u64, u64)> {
    let mut sums = BTreeMap::<String, (u64, u64, u64)>::new();
    let mut own = vec![None; (range.end - range.start) as usize];
    let mut within = BTreeMap::<&str, Vec<bool>>::new();
    // The outer calls come first.
    for (begin, _, end, name, _) in &whole.calls {
        let (from, to) = ((*begin).max(range.start), (*end).min(range.end));
        if range.contains(begin) {
            sums.entry(name.clone()).or_default().2 += 1;
        }
        for at in from..to {
            own[(at - range.start) as usize] = Some(name.as_str());
            let all = within.entry(name).or_insert_with(|| vec![false; own.len()]);
            all[(at - range.start) as usize] = true;
        }
    }
    for name in own.into_iter().flatten() {
        sums.entry(name.to_owned()).or_default().0 += 1;
    }
    for (name, all) in within {
        let total = all.into_iter().filter(|is_in| *is_in).count() as u64;
        sums.entry(name.to_owned()).or_default().1 += total;
    }
    sums
}

#[test]
fn calls_functions_and_instructions_are_those_of_the_whole() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = Arc::new(index(session, 1));
        assert_eq!(index.rows().len(), 2);
        let mut explorer = Explorer::new(session, index.clone());
        for (number, row) in index.rows().iter().enumerate() {
            let whole = whole(session, number);
            assert_eq!(row.insns, whole.insns.len() as u64);
            let calls = whole.calls.iter();
            let real = calls.filter(|(.., kind)| *kind != CallKind::Inline).count();
            assert_eq!(row.calls, real as u64);
            let name = |function: u32| index.functions()[function as usize].name.clone();
            for range in ranges(row.insns) {
                let flame = explorer.flame(number, &range, 0);
                assert!(flame.is_whole && flame.shortest == 0);
                let mut found: Vec<Shown> = flame
                    .calls
                    .iter()
                    .map(|call| {
                        let end = call.end.min(range.end);
                        (call.begin, call.depth, end, name(call.function), call.kind)
                    })
                    .collect();
                let calls = whole.calls.iter().cloned();
                let mut wanted: Vec<Shown> = calls
                    .filter(|(begin, _, end, ..)| *begin < range.end && *end > range.start)
                    .map(|(begin, depth, end, name, kind)| {
                        (begin, depth, end.min(range.end), name, kind)
                    })
                    .collect();
                // What was open before the trace, and was not known then.
                for list in [&mut found, &mut wanted] {
                    list.retain(|(.., kind)| *kind != CallKind::Assumed);
                    list.sort_by(|a, b| (a.0, a.1, a.2, &a.3).cmp(&(b.0, b.1, b.2, &b.3)));
                }
                assert_eq!(found, wanted, "row {number}, {range:?}");

                let table = explorer.functions(&[(number, range.clone())], &|| false);
                assert_eq!(table.instructions, range.end - range.start);
                let of = |sum: &FunctionSum| (name(sum.function), (sum.own, sum.total, sum.calls));
                let mut found = BTreeMap::<String, (u64, u64, u64)>::new();
                for (name, (own, total, calls)) in table.rows.iter().map(of) {
                    let sum = found.entry(name).or_default();
                    *sum = (sum.0 + own, sum.1 + total, sum.2 + calls);
                }
                assert_eq!(found, sums(&whole, &range), "row {number}, {range:?}");

                let list = explorer.instructions(number, &range);
                let found: Vec<Ip> = list.iter().map(|insn| insn.ip).collect();
                let (from, to) = (range.start as usize, range.end as usize);
                assert_eq!(found, whole.insns[from..to]);
                assert!(list.iter().all(|insn| !insn.text.is_empty()));

                let merged = explorer.merged(&[(number, range.clone())], &|| false);
                assert_eq!(merged.nodes[0].total, range.end - range.start);
            }
        }
    });
}

#[test]
fn the_stack_of_a_place_is_that_of_the_whole() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = Arc::new(index(session, 1));
        let mut explorer = Explorer::new(session, index.clone());
        let whole = whole(session, 0);
        let name = |function: u32| index.functions()[function as usize].name.clone();
        for range in ranges(index.rows()[0].insns) {
            let at = range.start;
            let place = explorer.place(0, at).expect("a place");
            assert_eq!(place.ip, whole.insns[at as usize]);
            let (from, to) = place.time.expect("a time");
            assert!(from <= to);
            // Of calls in the program's own code, it is known from which line.
            let mut own = place.stack.iter().filter(|frame| {
                let name = frame.function.map(name);
                matches!(name.as_deref(), Some("tree" | "main" | "jumps" | "leaf"))
            });
            assert!(own.all(|frame| frame.source.is_some()), "{at}: {place:?}");
            let stack = place.stack.iter().rev();
            let found: Vec<_> = stack
                .filter(|frame| frame.kind != CallKind::Assumed)
                .map(|frame| (frame.begin, name(frame.function.expect("a function"))))
                .collect();
            let open = whole.calls.iter().filter(|(begin, _, end, _, kind)| {
                *begin <= at && *end > at && *kind != CallKind::Assumed
            });
            let mut open: Vec<_> = open.collect();
            open.sort_by_key(|(_, depth, ..)| *depth);
            let wanted: Vec<_> = open
                .into_iter()
                .map(|(begin, _, _, name, _)| (*begin, name.clone()))
                .collect();
            assert_eq!(found, wanted, "{at}");
        }
    });
}

#[test]
fn steps_lead_where_they_say() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = Arc::new(index(session, 1));
        let mut explorer = Explorer::new(session, index.clone());
        let insns = index.rows()[0].insns;
        let real = |explorer: &mut Explorer<'_>, at| {
            let place = explorer.place(0, at).expect("a place");
            let frames = place.stack.into_iter();
            frames
                .filter(|frame| frame.kind != CallKind::Inline)
                .map(|frame| (frame.begin, frame.depth))
                .collect::<Vec<_>>()
        };
        let mut seen = [0; 4];
        for range in ranges(insns).step_by(2) {
            let at = range.start.clamp(1, insns - 2);
            let stack = real(&mut explorer, at);
            let (begin, depth) = stack[0];
            let next = explorer.step(0, at, Step::Insn, true);
            assert_eq!(next, Some(at + 1));
            assert_eq!(explorer.step(0, at + 1, Step::Insn, false), Some(at));
            if begin > 0 && depth > 0 {
                assert_eq!(explorer.step(0, at, Step::Out, false), Some(begin - 1));
                let out = explorer.step(0, at, Step::Out, true).expect("a way out");
                assert!(real(&mut explorer, out)[0].1 < depth);
                // Up to there, it was never so shallow.
                let between = real(&mut explorer, out - 1)[0].1;
                assert!(between >= depth, "{at} to {out}: {between} < {depth}");
                seen[0] += 1;
            }
            for (step, forward) in [(Step::Over, true), (Step::Over, false)] {
                let Some(to) = explorer.step(0, at, step, forward) else {
                    continue;
                };
                assert!(if forward { to > at } else { to < at });
                assert!(real(&mut explorer, to)[0].1 <= depth);
                seen[1] += 1;
            }
            if let Some(to) = explorer.step(0, at, Step::Call, true) {
                let stack = real(&mut explorer, to);
                assert_eq!(stack[0].0, to, "{at}");
                seen[2] += 1;
            }
            if let Some(to) = explorer.step(0, at, Step::Call, false) {
                assert!(to < at);
                assert_eq!(real(&mut explorer, to)[0].0, to, "{at}");
                seen[3] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 5), "{seen:?}");
    });
}

/// A strip has the kinds of all events, each in the pixel where the part begins in which it was.
#[test]
fn strips_show_where_events_were() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = Arc::new(index(session, 1));
        let mut explorer = Explorer::new(session, index.clone());
        const PART: u64 = 256;
        let mut kinds = 0;
        for (number, row) in index.rows().iter().enumerate() {
            let events = explorer.events(number, &(0..u64::MAX), 1 << 20);
            assert!(events.is_whole && events.list.len() > 5);
            for count in [1, 7, 100, 5000] {
                let strip = row.strip(Axis::Instructions, &(0..row.insns), count);
                let mut wanted = vec![0; count];
                for event in &events.list {
                    let begin = event.at / PART * PART;
                    let edge = |pixel: usize| row.insns * pixel as u64 / count as u64;
                    let pixel = (0..count).rfind(|pixel| edge(*pixel) <= begin);
                    wanted[pixel.expect("a pixel")] |= event.kind.bit();
                }
                let found: Vec<u16> = strip.iter().map(|bin| bin.events).collect();
                assert_eq!(found, wanted, "row {number}, {count}");
                kinds |= found.into_iter().fold(0, |all, bits| all | bits);
            }
        }
        let bits = EventKind::Syscall.bit() | EventKind::Signal.bit() | EventKind::Tracing.bit();
        assert_eq!(kinds & bits, bits);
    });
}

/// Where a program changes code that it runs, its row has an event: in the picture of all of it, in lists of events, and among instructions.
#[test]
fn changes_of_code_are_events() {
    if !has_qemu() {
        return;
    }
    let scratch = Scratch::new();
    for file in ["smc.c", "jit_rwx.c", "jit_wx.c"] {
        let Some(program) = scratch.program(file, STATIC) else {
            return;
        };
        let data = scratch.path("changes");
        let mut command = cofi();
        command.args(["record", "--engine", "qemu", "--config", "psb_period=0"]);
        let ran = run(command.arg("-o").arg(&data).arg("--").arg(&program));
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        with_session(&data, |session, _| {
            let index = Arc::new(index(session, 1));
            let mut explorer = Explorer::new(session, index.clone());
            let row = &index.rows()[0];
            let bit = EventKind::Code.bit();
            let all = row.strip(Axis::Instructions, &(0..row.insns), 5000);
            assert!(all.iter().any(|bin| bin.events & bit != 0), "{file}");
            let events = explorer.events(0, &(0..u64::MAX), 1 << 20);
            let of_code = |event: &&EventInfo| event.kind == EventKind::Code;
            let changes: Vec<&EventInfo> = events.list.iter().filter(of_code).collect();
            assert!(changes.len() > 1, "{file}: {changes:?}");
            for change in &changes {
                assert!(change.text.starts_with("code changed at 0x"), "{change:?}");
                // Whoever begins to decode just there knows it, too, and no more.
                let here = explorer.events(0, &(change.at..change.at + 1), 1 << 20);
                let here: Vec<&EventInfo> = here.list.iter().filter(of_code).collect();
                let wanted = changes
                    .iter()
                    .filter(|other| other.at.abs_diff(change.at) <= 1);
                let wanted: Vec<&EventInfo> = wanted
                    .filter(|other| other.at >= change.at)
                    .copied()
                    .collect();
                assert_eq!(here, wanted, "{file}");
            }
            // What runs from there on begins with the change.
            let insns = explorer.instructions(0, &(changes[0].at..changes[0].at + 4));
            let first = insns.first().expect("an instruction");
            assert!(
                first
                    .events
                    .iter()
                    .any(|event| event.kind == EventKind::Code)
            );
            // Where code was mapped for the first time nothing changed.
            let is_late = changes.iter().all(|change| change.at > 0);
            assert!(is_late, "{file}: {changes:?}");
        });
    }
}

/// Questions about all of a recording end once nobody waits any more: no part of it is looked at behind that.
#[test]
fn questions_end_when_nobody_waits() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = Arc::new(index(session, 1));
        let mut explorer = Explorer::new(session, index.clone());
        let rows = index.rows().iter().enumerate();
        let ranges: Vec<_> = rows.map(|(number, row)| (number, 0..row.insns)).collect();
        let all = explorer.functions(&ranges, &|| false);
        let merged = explorer.merged(&ranges, &|| false);
        for most in [0, 1, 3] {
            let asked = Cell::new(0);
            let is_over = || {
                asked.set(asked.get() + 1);
                asked.get() > most
            };
            let table = explorer.functions(&ranges, &is_over);
            let sum = |table: &FunctionTable| table.rows.iter().map(|sum| sum.own).sum::<u64>();
            assert!(sum(&table) < sum(&all));
            // Each row notices it by itself.
            assert!(asked.get() <= most + ranges.len(), "{}", asked.get());
            asked.set(0);
            let some = explorer.merged(&ranges, &is_over);
            assert!(some.nodes[0].total < merged.nodes[0].total);
            assert!(asked.get() <= most + 2, "{}", asked.get());
        }
        assert_eq!(explorer.functions(&ranges, &|| false).rows, all.rows);
        assert_eq!(explorer.merged(&ranges, &|| false).nodes, merged.nodes);
    });
}

/// How often each instruction of a function ran is what a reading of the whole counts, in all rows and in parts of one.
#[test]
fn instructions_of_a_function_are_counted() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = Arc::new(index(session, 1));
        let mut explorer = Explorer::new(session, index.clone());
        let rows = index.rows().iter().enumerate();
        let all: Vec<_> = rows.map(|(number, row)| (number, 0..row.insns)).collect();
        let third = index.rows()[0].insns / 3;
        let wholes: Vec<Whole> = all.iter().map(|(row, _)| whole(session, *row)).collect();
        for name in ["leaf", "tree", "order"] {
            let is_it = |function: &FunctionInfo| function.name == name && !function.is_inlined;
            let function = index.functions().iter().position(is_it);
            let function = function.expect("it ran") as u32;
            for ranges in [&all[..], &all[1..], &[(0, third..2 * third + 1)]] {
                let code = explorer.code(function, ranges, &|| false);
                let insns = ranges.iter().map(|(_, range)| range.end - range.start);
                assert!(code.is_whole);
                assert_eq!(code.counted, insns.sum::<u64>());
                let mut wanted = BTreeMap::<Ip, u64>::new();
                for (row, range) in ranges {
                    for ip in &wholes[*row].insns[range.start as usize..range.end as usize] {
                        *wanted.entry(*ip).or_default() += 1;
                    }
                }
                let ran = code.insns.iter().map(|insn| insn.count).sum::<u64>();
                assert!(ran > 0 || ranges.len() == 1);
                for insn in &code.insns {
                    let count = wanted.get(&insn.ip).copied().unwrap_or(0);
                    assert_eq!(insn.count, count, "{name}: {insn:?}");
                    if let Some((taken, not)) = insn.outcomes {
                        assert!(taken + not <= count, "{name}: {insn:?}");
                    }
                }
            }
            // Nobody waits: nothing is counted.
            let code = explorer.code(function, &all, &|| true);
            assert!(!code.is_whole && code.insns.is_empty());
        }
    });
}

/// One sum over all rows is that of their strips.
#[test]
fn the_sum_of_rows_is_that_of_their_strips() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = index(session, 1);
        let time = index.time_range().expect("times");
        let middle = time.start + (time.end - time.start) / 2;
        let most = index.rows().iter().map(|row| row.insns).max().unwrap_or(0);
        for (axis, range) in [
            (Axis::Time, time.clone()),
            (Axis::Time, middle..time.end),
            (Axis::Time, 0..u64::MAX),
            (Axis::Instructions, 0..most),
            (Axis::Instructions, most / 3..most / 3 + 100),
            (Axis::Offset, 0..1 << 20),
            (Axis::Offset, 5..5),
        ] {
            for count in [1, 7, 1000] {
                let mut wanted = StripSum::new(count);
                let mut found = StripSum::new(count);
                for row in index.rows() {
                    row.add_to(axis, &range, &mut found);
                    for (at, bin) in row.strip(axis, &range, count).iter().enumerate() {
                        wanted.insns[at] += bin.insns;
                        wanted.gaps[at] |= bin.has_gap;
                    }
                }
                assert_eq!(found, wanted, "{axis:?} {range:?} {count}");
                let all: u64 = index.rows().iter().map(|row| row.insns).sum();
                if range == time || range == (0..most) {
                    assert_eq!(found.insns.iter().sum::<u64>(), all);
                }
            }
        }
    });
}

/// All rows are gone through in the order of time, forward and back.
#[test]
fn steps_over_all_rows_follow_time() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = Arc::new(index(session, 1));
        let mut explorer = Explorer::new(session, index.clone());
        let when = |(row, at): (usize, u64)| (index.rows()[row].value(Axis::Time, at), row, at);
        let mut all: Vec<(usize, u64)> = Vec::new();
        for (number, row) in index.rows().iter().enumerate() {
            all.extend((0..row.insns).map(|at| (number, at)));
        }
        all.sort_by_key(|place| when(*place));
        assert!(all.iter().any(|(row, _)| *row == 1));
        let switches = |pair: &&[(usize, u64)]| pair[0].0 != pair[1].0;
        let pairs = all.windows(2).step_by(all.len() / 200);
        for pair in pairs.chain(all.windows(2).filter(switches).take(200)) {
            let ((row, at), other) = (pair[0], pair[1]);
            let next = explorer.step_in_time(row, at, Step::Insn, true);
            assert_eq!(next, Some(other));
            let before = explorer.step_in_time(other.0, other.1, Step::Insn, false);
            assert_eq!(before, Some((row, at)));
        }
        let ((row, at), (last, end)) = (all[0], all[all.len() - 1]);
        assert_eq!(explorer.step_in_time(row, at, Step::Insn, false), None);
        assert_eq!(explorer.step_in_time(last, end, Step::Insn, true), None);
        // To where calls begin, and to the first and last instruction of the other row.
        let mut changes = 0;
        let switches = (1..all.len()).filter(|number| all[number - 1].0 != all[*number].0);
        let switches: Vec<usize> = switches.collect();
        let some = switches.iter().step_by(switches.len() / 20 + 1).copied();
        // The second thread begins and ends while the first is there, however they are scheduled: nothing of its own is before and behind.
        let ends = (0..all.len()).filter(|number| all[*number].0 == 1);
        let ends = [ends.clone().min(), ends.max()].into_iter().flatten();
        for number in ends
            .chain(some)
            .chain((0..all.len()).step_by(all.len() / 20))
        {
            let (row, at) = all[number];
            let other = 1 - row;
            let insns = index.rows()[other].insns;
            for (forward, rest) in [(true, &all[number + 1..]), (false, &all[..number])] {
                let mut rest = rest.iter().filter(|(row, _)| *row == other);
                let there = match forward {
                    true => rest.next(),
                    false => rest.next_back(),
                };
                let there = there.and_then(|(_, there)| match (forward, *there) {
                    (true, 0) => Some(0),
                    (true, there) => explorer.step(other, there - 1, Step::Call, true),
                    (false, there) if there + 1 == insns => Some(there),
                    (false, there) => explorer.step(other, there + 1, Step::Call, false),
                });
                let own = explorer.step(row, at, Step::Call, forward);
                let both = own.map(|own| (row, own)).into_iter();
                let both = both.chain(there.map(|there| (other, there)));
                let wanted = match forward {
                    true => both.min_by_key(|place| when(*place)),
                    false => both.max_by_key(|place| when(*place)),
                };
                let found = explorer.step_in_time(row, at, Step::Call, forward);
                assert_eq!(found, wanted, "{row} {at} {forward}");
                changes += u32::from(found.is_some_and(|(found, _)| found != row));
                // Over calls, one stays in the row.
                let over = explorer.step_in_time(row, at, Step::Over, forward);
                assert!(over.is_none_or(|(found, _)| found == row));
            }
        }
        assert!(changes >= 2, "{changes}");
    });
}

#[test]
fn what_is_looked_for_is_found() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = Arc::new(index(session, 1));
        let mut explorer = Explorer::new(session, index.clone());
        let whole = whole(session, 0);
        let Some(Hit::Function(tree)) = explorer.search("tree", 10).first().cloned() else {
            panic!("tree is not found");
        };
        assert_eq!(index.functions()[tree as usize].name, "tree");
        let calls = whole
            .calls
            .iter()
            .filter(|(_, _, _, name, _)| name == "tree");
        let mut begins: Vec<u64> = calls.map(|(begin, ..)| *begin).collect();
        begins.sort_unstable();
        let never = || false;
        let (ip, target) = (whole.insns[begins[5] as usize], Target::Function(tree));
        let runs = whole
            .insns
            .iter()
            .zip(0_u64..)
            .filter(|(other, _)| **other == ip);
        let runs: Vec<u64> = runs.map(|(_, at)| at).collect();
        for range in ranges(index.rows()[0].insns) {
            let at = range.start;
            for (target, all) in [(&target, &begins), (&Target::Ip(ip), &runs)] {
                let next = explorer.find(0, at, target, true, &never);
                assert_eq!(next, all.iter().copied().find(|begin| *begin > at));
                let before = explorer.find(0, at, target, false, &never);
                assert_eq!(before, all.iter().copied().rfind(|begin| *begin < at));
            }
        }
        // A line, from where it begins to run.
        let line = CALLS
            .lines()
            .position(|line| line.contains("jumps(n - 1);"));
        let text = format!("calls.c:{}", 1 + line.expect("the line"));
        let hits = explorer.search(&text, 10);
        let Some(Hit::Line { file, line }) = hits.first().cloned() else {
            panic!("{text}: {hits:?}");
        };
        let target = Target::Line { file, line };
        let (mut at, mut count) = (0, 0);
        while let Some(next) = explorer.find(0, at, &target, true, &never) {
            let source = explorer.place(0, next).and_then(|place| place.source);
            assert_eq!(source.and_then(|source| source.line), Some(line));
            (at, count) = (next, count + 1);
        }
        assert!(count >= 4 * 20, "{count}");
        // The code of a function, as often as it ran.
        let code = explorer.code(tree, &[(0, 0..u64::MAX)], &never);
        assert!(code.is_whole);
        let mut wanted = HashMap::<Ip, u64>::new();
        for ip in &whole.insns {
            *wanted.entry(*ip).or_default() += 1;
        }
        assert!(code.insns.len() > 10);
        for insn in &code.insns {
            assert_eq!(insn.count, wanted.get(&insn.ip).copied().unwrap_or(0));
            if let Some((taken, not)) = insn.outcomes {
                assert_eq!(taken + not, insn.count);
            }
        }
        // And of parts.
        let parts: Vec<_> = (0..7)
            .map(|part| index.rows()[0].insns * part / 6)
            .collect();
        let mut sums = HashMap::<Ip, u64>::new();
        for pair in parts.windows(2) {
            for insn in explorer.code(tree, &[(0, pair[0]..pair[1])], &never).insns {
                *sums.entry(insn.ip).or_default() += insn.count;
            }
        }
        for insn in &code.insns {
            assert_eq!(sums.get(&insn.ip).copied().unwrap_or(0), insn.count);
        }
    });
}

#[test]
fn axes_go_together() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = index(session, 1);
        for row in index.rows() {
            for axis in [Axis::Time, Axis::Instructions, Axis::Offset] {
                let range = row.range(axis).expect("a range");
                let mut last = 0;
                for part in 0..=100 {
                    let at = row.at(axis, range.start + (range.end - range.start) * part / 100);
                    assert!(at >= last && at <= row.insns);
                    last = at;
                    let value = row.value(axis, at).expect("a value");
                    assert!(value <= range.end, "{axis:?} {at}: {value} of {range:?}");
                }
                let strip = row.strip(axis, &range, 333);
                let sum: u64 = strip.iter().map(|bin| bin.insns).sum();
                let off = row.insns.abs_diff(sum);
                assert!(off <= row.insns / 50, "{axis:?}: {sum} of {}", row.insns);
                assert!(strip.iter().all(|bin| !bin.has_gap));
                let named = strip.iter().filter(|bin| bin.function.is_some()).count();
                assert!(named > 20, "{axis:?}: {named}");
            }
        }
    });
}

/// However many threads build an index, and whichever chunks are decoded twice, each byte of it is the same.
#[test]
fn the_same_index_is_built_each_time() {
    let scratch = Scratch::new();
    for (source, sizes) in [(CALLS, [1, 700, 1 << 14]), (TURNS, [1, 500, 1 << 14])] {
        let Some(data) = recording_of(&scratch, source) else {
            return;
        };
        with_session(&data, |session, bytes| {
            let print = Fingerprint::of(session, bytes);
            let path = scratch.path("built");
            let build = |chunk: usize, threads: usize, waiting: usize, inlined: bool| {
                let mut options = IndexOptions::default();
                options.chunk = NonZeroUsize::new(chunk).expect("a size");
                options.threads = NonZeroUsize::new(threads).expect("some");
                (options.waiting, options.inlined) = (waiting, inlined);
                let never = AtomicBool::new(false);
                let index = Index::build(session, &options, &never, &|_| {});
                let index = index.expect("an index");
                index.save(&path, &print).expect("it is written");
                (std::fs::read(&path).expect("the index"), index)
            };
            for chunk in sizes {
                for inlined in [false, true] {
                    // None are followed as parts: so this is one reading, by one thread.
                    let (wanted, whole) = build(chunk, 1, 0, inlined);
                    assert!(whole.rows()[0].insns > 10_000);
                    for (threads, waiting) in
                        [(1, 1 << 30), (2, 1 << 30), (5, 1 << 30), (3, 200_000)]
                    {
                        let (found, index) = build(chunk, threads, waiting, inlined);
                        let what =
                            format!("{chunk} bytes, {threads} threads, {waiting}, {inlined}");
                        for (found, wanted) in index.rows().iter().zip(whole.rows()) {
                            assert_eq!(format!("{found:?}"), format!("{wanted:?}"), "{what}");
                        }
                        assert_eq!(index.functions(), whole.functions(), "{what}");
                        assert!(found == wanted, "{what}");
                    }
                }
            }
        });
    }
}

/// The colour of a slice is the function that ran most there, but where pieces of 256 instructions do not tell that.
#[test]
fn slices_have_the_colour_of_what_ran_most() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, _| {
        let index = Arc::new(index(session, 1 << 14));
        let row = &index.rows()[0];
        let mut explorer = Explorer::new(session, index.clone());
        let strip = row.strip(Axis::Instructions, &(0..row.insns), 128);
        let mut wrong = 0;
        for (number, bin) in strip.iter().enumerate() {
            let edge = |number: usize| row.insns * number as u64 / 128;
            let range = edge(number)..edge(number + 1);
            let table = explorer.functions(&[(0, range)], &|| false);
            let most = table.rows.iter().map(|sum| sum.own).max().unwrap_or(0);
            let mut own = table.rows.iter();
            let own = own.find(|sum| Some(sum.function) == bin.function);
            wrong += usize::from(own.is_none_or(|sum| sum.own < most));
        }
        assert!(wrong < 128 / 16, "{wrong} of 128");
    });
}

/// Where a program switches stacks, what ran in functions themselves is what the calls tell that were left: of all, and of parts.
#[test]
fn own_instructions_are_right_where_stacks_switch() {
    let scratch = Scratch::new();
    let Some(data) = recording_of(&scratch, TURNS) else {
        return;
    };
    with_session(&data, |session, _| {
        let mut own = Own::default();
        let stream = &session.streams()[0];
        let mut flow = session.decode(stream);
        let mut tracer = CallTracer::new(session, stream).with_inlined();
        while tracer.follow(&mut flow, &mut own) {}
        tracer.finish(&mut own);
        assert!(own.stacks > 2, "{own:?}");
        for size in [1, 1 << 14] {
            let index = Arc::new(index(session, size));
            let mut explorer = Explorer::new(session, index.clone());
            let insns = index.rows()[0].insns;
            let mut table = |range: std::ops::Range<u64>| {
                let table = explorer.functions(&[(0, range)], &|| false);
                let name = |function: u32| index.functions()[function as usize].name.clone();
                let mut sums = BTreeMap::<String, u64>::new();
                for sum in table.rows.iter().filter(|sum| sum.own > 0) {
                    *sums.entry(name(sum.function)).or_default() += sum.own;
                }
                sums
            };
            assert_eq!(differing(&table(0..insns), &own.sums), [], "{size}");
            for range in ranges(insns) {
                let mut sums = table(0..range.start);
                for rest in [range.clone(), range.end..insns] {
                    for (name, own) in table(rest) {
                        *sums.entry(name).or_default() += own;
                    }
                }
                assert_eq!(differing(&sums, &own.sums), [], "{size} {range:?}");
            }
        }
    });
}

/// The functions of which two sums differ.
fn differing(
    one: &BTreeMap<String, u64>,
    other: &BTreeMap<String, u64>,
) -> Vec<(String, u64, u64)> {
    let of = |sums: &BTreeMap<String, u64>, name: &String| sums.get(name).copied().unwrap_or(0);
    let all = one.keys().chain(other.keys());
    let both = all.map(|name| (name.clone(), of(one, name), of(other, name)));
    both.filter(|(_, one, other)| one != other).collect()
}

/// What ran in functions themselves, as the calls tell it.
#[derive(Debug, Default)]
struct Own {
    sums: BTreeMap<String, u64>,
    stacks: u32,
}

impl CallVisitor for Own {
    fn enter(&mut self, call: &Call, _: &CallNames) {
        self.stacks = self.stacks.max(call.stack);
    }
    fn leave(&mut self, call: &Call, end: &CallEnd, names: &CallNames) {
        if end.self_insns > 0 {
            let name = names.describe(call.function).to_owned();
            *self.sums.entry(name).or_default() += end.self_insns;
        }
    }
}

#[test]
fn it_is_kept_and_not_taken_for_another() {
    let scratch = Scratch::new();
    let Some(data) = recording(&scratch) else {
        return;
    };
    with_session(&data, |session, bytes| {
        let built = index(session, 1 << 12);
        let print = Fingerprint::of(session, bytes);
        let path = Index::path_beside(&data);
        built.save(&path, &print).expect("it is written");
        let read = Arc::new(Index::load(&path, &print).expect("it is read"));
        assert_eq!(format!("{:?}", read.rows()), format!("{:?}", built.rows()));
        assert_eq!(read.functions(), built.functions());
        // What is asked of it has the same answer, code and names anew.
        let insns = built.rows()[0].insns;
        let (mut one, mut other) = (
            Explorer::new(session, Arc::new(built)),
            Explorer::new(session, read),
        );
        for range in ranges(insns) {
            let answers = [&mut one, &mut other].map(|explorer| {
                let flame = explorer.flame(0, &range, 0);
                let place = explorer.place(0, range.start);
                format!("{flame:?} {place:?}")
            });
            assert_eq!(answers[0], answers[1]);
        }
        // Another trace, another version, damage anywhere.
        let mut other = bytes.to_vec();
        let last = other.len() - 1;
        other[last] ^= 1;
        let other = Fingerprint::of(session, &other);
        assert!(matches!(
            Index::load(&path, &other),
            Err(IndexError::Other { .. })
        ));
        let kept = std::fs::read(&path).expect("the index");
        for at in (0..kept.len()).step_by(kept.len() / 97) {
            let mut spoilt = kept.clone();
            spoilt[at] ^= 0x10;
            std::fs::write(&path, &spoilt).expect("it is written");
            assert!(Index::load(&path, &print).is_err(), "byte {at}");
            std::fs::write(&path, &kept[..at]).expect("it is written");
            assert!(Index::load(&path, &print).is_err(), "{at} bytes");
        }
    });
}
