//! From one place to the next, forward and back.

use cofi_session::compact;

use super::Explorer;
use super::window::Window;
use crate::row::Axis;

/// So many instructions are looked at one by one at a time.
const WINDOW: u64 = 1 << 13;
/// Where no line tells another, one does not go further than this.
const FAR: u64 = 1 << 22;

/// How far a step goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// To the next instruction.
    Insn,
    /// To the next line, of whichever function.
    Line,
    /// To the next line of the same call, or of the call around it.
    Over,
    /// To the next place where a call begins.
    Call,
    /// Forward, out of the call: to where control goes on behind it. Backward, to the instruction that called it.
    Out,
}

/// Which line an instruction is of, and where it ran.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stand {
    depth: i32,
    line: Option<(String, Option<u32>)>,
}

impl Explorer<'_> {
    /// The place to which a step from another leads; none where nothing more is that way.
    pub fn step(&mut self, row: usize, at: u64, step: Step, forward: bool) -> Option<u64> {
        let insns = self.index.rows.get(row)?.insns;
        match (step, forward) {
            (Step::Insn, true) => Some(at + 1).filter(|next| *next < insns),
            (Step::Insn, false) => at.checked_sub(1),
            (Step::Out, false) => {
                let place = self.place(row, at)?;
                let begin = real_frame(&place.stack)?.begin;
                begin.checked_sub(1)
            }
            (Step::Out, true) => {
                let place = self.place(row, at)?;
                let depth = real_frame(&place.stack)?.depth;
                self.no_deeper(row, at, depth.checked_sub(1)?)
            }
            (Step::Call, _) => self.next_call(row, at, forward),
            (Step::Line | Step::Over, true) => self.next_line(row, at, step == Step::Over),
            (Step::Line | Step::Over, false) => self.line_before(row, at, step == Step::Over),
        }
    }

    /// The row and the place to which a step from another leads, if all rows are gone through in the order of time; none where
    /// nothing more is that way. Steps over calls and out of them stay in their row, and so do all where no time is known.
    ///
    /// Within what packets tell no time of, the instructions of each row are spread evenly. At the same time, rows follow each other in
    /// their order.
    pub fn step_in_time(
        &mut self,
        row: usize,
        at: u64,
        step: Step,
        forward: bool,
    ) -> Option<(usize, u64)> {
        let index = self.index.clone();
        let own = |found: Option<u64>| found.map(|found| (row, found));
        let time = index.rows.get(row)?.value(Axis::Time, at);
        let Some(time) = time.filter(|_| !matches!(step, Step::Over | Step::Out)) else {
            return own(self.step(row, at, step, forward));
        };
        // Where each other row is then, the one that comes first at first.
        let mut others: Vec<(u64, usize, u64)> = Vec::new();
        for (number, other) in index.rows.iter().enumerate() {
            if number == row || other.insns == 0 {
                continue;
            }
            let behind = other.first_from(time.saturating_add(u64::from(number < row)));
            let there = match forward {
                true => Some(behind).filter(|behind| *behind < other.insns),
                false => behind.checked_sub(1),
            };
            let when = there.and_then(|there| other.value(Axis::Time, there));
            others.extend(when.zip(there).map(|(when, there)| (when, number, there)));
        }
        compact::sort_by(&mut others, Ord::cmp);
        if !forward {
            others.reverse();
        }
        let is_before = |one: (u64, usize), other: (u64, usize)| match forward {
            true => one < other,
            false => one > other,
        };
        let when = |(number, at): (usize, u64)| {
            let time = index.rows.get(number)?.value(Axis::Time, at)?;
            Some((time, number))
        };
        let mut best = own(self.step(row, at, step, forward));
        for (bound, number, there) in others {
            if best
                .and_then(when)
                .is_some_and(|best| !is_before((bound, number), best))
            {
                break;
            }
            let insns = index.rows.get(number)?.insns;
            let found = match (step, forward) {
                (Step::Insn, _) => Some(there),
                // A thread's first and last instruction are a step of their own.
                (_, true) if there == 0 => Some(0),
                (_, true) => self.step(number, there - 1, step, true),
                (_, false) if there + 1 == insns => Some(there),
                (_, false) => self.step(number, there + 1, step, false),
            };
            let Some(found) = found.map(|found| (number, found)) else {
                continue;
            };
            let is_better = match (best.and_then(when), when(found)) {
                (Some(best), Some(found)) => is_before(found, best),
                (best, _) => best.is_none(),
            };
            if is_better {
                best = Some(found);
            }
        }
        best
    }

    fn stand(&mut self, window: &Window, at: u64) -> Option<Stand> {
        let ran = window.get(at)?;
        let line = window.line(ran, &mut self.lines);
        Some(Stand {
            depth: ran.frame_depth,
            line: line.map(|line| (line.file, line.line)),
        })
    }

    /// The next place behind one at which no more calls are open than at `depth`, inlined ones apart.
    fn no_deeper(&mut self, row: usize, at: u64, depth: i32) -> Option<u64> {
        let index = self.index.clone();
        let known = index.rows.get(row)?;
        let mut from = at + 1;
        while from < known.insns {
            let place = self.place(row, from)?;
            let deeper =
                place.stack.iter().rev().find(|frame| {
                    frame.depth > depth && frame.kind != cofi_analysis::CallKind::Inline
                });
            let Some(deeper) = deeper else {
                return Some(from);
            };
            // How long it is is known of the longest ones; others are over soon.
            let kept = known.kept.get(deeper.begin, deeper.depth, deeper.function?);
            if let Some(kept) = kept.filter(|kept| kept.end > from) {
                from = kept.end;
                continue;
            }
            let window = self.window(row, from..from.saturating_add(WINDOW))?;
            let found = window.insns.iter().find(|ran| ran.frame_depth <= depth);
            if let Some(found) = found {
                return Some(found.at);
            }
            from = window.range.end.max(from + 1);
        }
        None
    }

    fn next_call(&mut self, row: usize, at: u64, forward: bool) -> Option<u64> {
        let index = self.index.clone();
        let insns = index.rows.get(row)?.insns;
        let mut from = at;
        loop {
            let range = match forward {
                true => from..from.saturating_add(WINDOW).min(insns),
                false => from.saturating_sub(WINDOW)..(from + 1).min(insns),
            };
            let window = self.window(row, range.clone())?;
            let pairs = window.insns.windows(2);
            let begins = pairs.filter(|pair| pair[1].frame_depth > pair[0].frame_depth);
            let mut begins = begins.map(|pair| pair[1].at);
            let found = match forward {
                true => begins.find(|begin| *begin > at),
                false => begins.rfind(|begin| *begin < at),
            };
            if found.is_some() {
                return found;
            }
            match forward {
                true if range.end >= insns => return None,
                true => from = range.end - 1,
                false if range.start == 0 => return None,
                false => from = range.start,
            }
        }
    }

    fn next_line(&mut self, row: usize, at: u64, over: bool) -> Option<u64> {
        let index = self.index.clone();
        let known = index.rows.get(row)?;
        let mut window = self.window(row, at..at.saturating_add(WINDOW))?;
        let here = self.stand(&window, at)?;
        if here.line.is_none() && !over {
            return Some(at + 1).filter(|next| *next < known.insns);
        }
        let mut next = at + 1;
        while next < known.insns && next - at < FAR {
            if next >= window.range.end {
                window = self.window(row, next..next.saturating_add(WINDOW))?;
            }
            let ran = *window.get(next)?;
            if over && ran.frame_depth > here.depth {
                next = match window
                    .insns
                    .iter()
                    .find(|other| other.at > next && other.frame_depth <= here.depth)
                {
                    Some(found) => found.at,
                    None => self.no_deeper(row, next, here.depth)?,
                };
                continue;
            }
            let stand = self.stand(&window, next)?;
            // Code without lines is gone through, but for the function around.
            let is_new = stand.line.is_some() && stand != here || stand.depth < here.depth && over;
            if is_new || here.line.is_none() {
                return Some(next);
            }
            next += 1;
        }
        (next < known.insns).then_some(next)
    }

    /// The first instruction of the stretch of one line that ends before a place.
    fn line_before(&mut self, row: usize, at: u64, over: bool) -> Option<u64> {
        let mut from = at.saturating_sub(WINDOW);
        let mut window = self.window(row, from..at + 1)?;
        let here = self.stand(&window, at)?;
        if here.line.is_none() && !over {
            return at.checked_sub(1);
        }
        let mut next = at.checked_sub(1)?;
        let mut found: Option<(u64, Stand)> = None;
        loop {
            if next < from {
                from = next.saturating_sub(WINDOW);
                window = self.window(row, from..next + 1)?;
            }
            let ran = *window.get(next)?;
            if over && ran.frame_depth > here.depth {
                // Before the call that ended there.
                let place = self.place(row, next)?;
                let outer = place.stack.iter().rev().find(|frame| {
                    frame.depth > here.depth && frame.kind != cofi_analysis::CallKind::Inline
                })?;
                let Some(before) = outer.begin.checked_sub(1).filter(|before| *before < next)
                else {
                    break;
                };
                next = before;
                continue;
            }
            let stand = self.stand(&window, next)?;
            match &found {
                Some((_, of)) if stand != *of => break,
                None if stand == here && at - next < FAR => {}
                _ if stand.line.is_none() && here.line.is_some() => {}
                _ => found = Some((next, stand)),
            }
            let Some(before) = next.checked_sub(1) else {
                break;
            };
            next = before;
        }
        found.map(|(at, _)| at).or((next < at).then_some(next))
    }
}

fn real_frame(stack: &[super::StackFrame]) -> Option<&super::StackFrame> {
    let mut frames = stack.iter();
    frames.find(|frame| frame.kind != cofi_analysis::CallKind::Inline)
}
