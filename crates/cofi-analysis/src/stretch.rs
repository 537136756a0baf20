//! What was counted of a stretch of a stream, and how stretches are put together.
//!
//! What an instruction or an event counts for may depend on what stood before: whether a branch was taken, with which page tables code ran, for
//! how long tracing was on. At the beginning of a stretch that is left open, and settled when it is put behind the one before.

use cofi_image::Place;
use cofi_packet::{Ip, Tsc};
use cofi_session::{SealCount, Task};
use rustc_hash::FxHashMap;

use crate::block_table::Outcomes;
use crate::count::{Counts, Gaps, Times};
use crate::coverage::{CodeCounts, EdgeStretch};
use crate::flow_state::FlowState;
use crate::functions::Functions;
use crate::joined::Found;

/// Instructions of one stream by page tables.
#[derive(Debug)]
pub(crate) struct Spaces {
    /// The first of them are the tables in use at the beginning, which are not known here.
    list: Vec<(Option<u64>, u64)>,
    numbers: FxHashMap<u64, usize>,
    /// The page tables in use.
    now: usize,
}

impl Default for Spaces {
    /// Nothing tells of page tables before the first packet that does.
    fn default() -> Self {
        Self {
            list: vec![(None, 0)],
            numbers: FxHashMap::default(),
            now: 0,
        }
    }
}

impl Spaces {
    /// CR3 has got this value.
    pub(crate) fn switch_to(&mut self, cr3: u64) {
        // The lower bits are flags, or tell the processor which entries of its caches to use.
        let cr3 = cr3 & !0xfff;
        let next = self.list.len();
        self.now = *self.numbers.entry(cr3).or_insert(next);
        if self.now == next {
            self.list.push((Some(cr3), 0));
        }
    }

    pub(crate) fn count(&mut self, instructions: u64) {
        if let Some((_, count)) = self.list.get_mut(self.now) {
            *count += instructions;
        }
    }

    /// The page tables, and how many instructions ran with each.
    pub(crate) fn list(&self) -> &[(Option<u64>, u64)] {
        &self.list
    }

    fn join(&mut self, next: &Self) {
        let last = next.list.get(next.now).and_then(|(cr3, _)| *cr3);
        for (cr3, instructions) in &next.list {
            if let Some(cr3) = cr3 {
                self.switch_to(*cr3);
            }
            // What comes first ran with the tables that were in use before.
            self.count(*instructions);
        }
        if let Some(cr3) = last {
            self.switch_to(cr3);
        }
    }
}

/// Since when tracing has been on, as of when the time was taken last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// The time was not taken yet.
    Before,
    /// Since then, if it was on before the stretch.
    IfBefore(Tsc),
    /// Since then; none if it is off, or nobody knows since when it is on.
    Known(Option<Tsc>),
}

/// For how long tracing was on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    since: Since,
    /// The time that was taken first; none inside if none was known.
    first: Option<Option<Tsc>>,
    /// For so long, if it was on before the stretch.
    if_before: u64,
}

impl Default for Ticks {
    /// At the beginning of a stream.
    fn default() -> Self {
        Self {
            since: Since::Known(None),
            first: None,
            if_before: 0,
        }
    }
}

impl Ticks {
    /// At the beginning of a stretch before which another stands.
    pub(crate) fn behind() -> Self {
        Self {
            since: Since::Before,
            ..Self::default()
        }
    }

    /// What comes next is not known to follow what came last.
    pub(crate) fn forget(&mut self) {
        self.since = Since::Known(None);
    }

    /// Takes the time, if it is known. From now on tracing is on or off; as before, if that is not told. For how long it was on since the time
    /// was taken last, as far as that is certain.
    pub(crate) fn take(&mut self, now: Option<Tsc>, is_on: Option<bool>) -> u64 {
        self.first.get_or_insert(now);
        let ticks = |since: Tsc| now.map_or(0, |now| now.0.saturating_sub(since.0));
        let mut certain = 0;
        match self.since {
            Since::Known(Some(since)) => certain = ticks(since),
            Since::IfBefore(since) => self.if_before += ticks(since),
            Since::Known(None) | Since::Before => {}
        }
        self.since = match (now, is_on, self.since) {
            (None, ..) | (_, Some(false), _) | (_, None, Since::Known(None)) => Since::Known(None),
            (Some(now), Some(true), _) | (Some(now), None, Since::Known(Some(_))) => {
                Since::Known(Some(now))
            }
            (Some(now), None, Since::Before | Since::IfBefore(_)) => Since::IfBefore(now),
        };
        certain
    }

    /// Puts what comes next behind what begins with a stream. For how long tracing was on beside what each of them tells.
    fn join(&mut self, next: &Self) -> u64 {
        let Since::Known(since) = self.since else {
            return 0;
        };
        let Some(first) = next.first else {
            return 0;
        };
        self.since = match next.since {
            Since::Known(next) => Since::Known(next),
            Since::IfBefore(next) => Since::Known(since.and(Some(next))),
            Since::Before => self.since,
        };
        let to_first = |since: Tsc| first.map_or(0, |first| first.0.saturating_sub(since.0));
        since.map_or(0, |since| to_first(since) + next.if_before)
    }
}

/// Where control went at the beginning of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// To this address.
    To(Ip),
    /// Out of what is traced.
    Out,
    /// Nobody knows.
    Unknown,
}

/// A conditional branch whose outcome stands behind the stretch.
#[derive(Clone, Debug)]
pub(crate) struct LastBranch {
    /// Where control goes on if it is not taken.
    pub(crate) not_taken: Ip,
    /// Where it stands, if instructions are counted each by itself.
    pub(crate) place: Option<Place>,
}

/// What was counted of a thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskCount {
    pub(crate) counts: Counts,
    pub(crate) gaps: Gaps,
    pub(crate) times: Times,
}

impl TaskCount {
    fn join(&mut self, next: Self) {
        self.counts += next.counts;
        self.gaps.join(next.gaps);
        let (times, next) = (&mut self.times, next.times);
        times.first = times.first.or(next.first);
        times.last = next.last.or(times.last);
        times.on_ticks += next.on_ticks;
        times.cycles += next.cycles;
    }
}

/// What was counted of a stretch of a stream.
#[derive(Debug, Default)]
pub(crate) struct StretchCount {
    /// The threads that ran, in the order in which they came.
    pub(crate) tasks: Vec<(Task, TaskCount)>,
    pub(crate) spaces: Spaces,
    pub(crate) functions: Functions,
    pub(crate) seals: SealCount,
    /// If it is of one thread: for how long tracing was on.
    pub(crate) ticks: Ticks,
    /// The core cycles up to its end that come behind the time taken last.
    pub(crate) cycles_left: u64,
    /// Where control went first.
    pub(crate) entry: Option<Entry>,
    /// A conditional branch at the end.
    pub(crate) branch: Option<LastBranch>,
    /// How often which instruction ran, if that is counted.
    pub(crate) code: CodeCounts,
    /// Steps between blocks, if they are counted.
    pub(crate) edges: Option<EdgeStretch>,
    /// What was true of the flow at the beginning and at the end.
    pub(crate) start: FlowState,
    pub(crate) end: FlowState,
    /// No gap reaches to the end or further.
    pub(crate) is_clean: bool,
    /// Nothing is of another thread than the one whose stream it is.
    pub(crate) is_of_one: bool,
}

impl Found for StretchCount {
    fn leads_to(&self, next: &Self) -> bool {
        let is_of_one = self.is_of_one && next.is_of_one;
        self.is_clean && is_of_one && self.end.is_on() && self.end == next.start
    }
}

impl StretchCount {
    /// Nothing stands behind this stretch: where the branch at its end led is not known.
    pub(crate) fn finish(&mut self) {
        let branch = self.branch.take();
        self.count_last(branch, false, true);
    }

    /// Counts the outcome of a branch that was the last of a stretch.
    fn count_last(&mut self, branch: Option<LastBranch>, is_taken: bool, is_unknown: bool) {
        let outcomes = Outcomes {
            taken: is_taken.into(),
            unknown: is_unknown.into(),
        };
        if let Some(place) = branch.and_then(|branch| branch.place) {
            self.code.add_outcomes(&place, outcomes);
        }
    }

    /// Puts the next stretch of the stream behind this one.
    pub(crate) fn join(&mut self, mut next: Self) {
        let ticks = self.ticks.join(&next.ticks);
        self.spaces.join(&next.spaces);
        self.functions.merge(next.functions);
        self.seals.add(next.seals);
        let is_taken = match (&self.branch, next.entry) {
            (Some(branch), Some(Entry::To(ip))) => ip != branch.not_taken,
            (Some(_), Some(Entry::Out)) => true,
            _ => false,
        };
        self.code.merge(next.code);
        if let (Some(edges), Some(next)) = (&mut self.edges, &next.edges) {
            edges.join(next);
        }
        if next.entry.is_some() {
            let is_unknown = next.entry == Some(Entry::Unknown);
            let branch = std::mem::replace(&mut self.branch, next.branch);
            self.count_last(branch, is_taken, is_unknown);
        }
        self.entry = self.entry.or(next.entry);
        if let Some((_, first)) = next.tasks.first_mut() {
            first.counts.taken += u64::from(is_taken);
            first.times.on_ticks += ticks;
            // Cycles count up to when the time is taken.
            if first.times.first.is_some() {
                first.times.cycles += std::mem::take(&mut self.cycles_left);
            }
        }
        self.cycles_left += next.cycles_left;
        for (task, count) in next.tasks {
            match self.tasks.iter_mut().find(|(known, _)| *known == task) {
                Some((_, known)) => known.join(count),
                None => self.tasks.push((task, count)),
            }
        }
        self.end = next.end;
        self.is_clean = next.is_clean;
        self.is_of_one &= next.is_of_one;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is taken at a time, or in which a stretch ends.
    type Step = (Option<u64>, Option<bool>, bool);

    /// For how long tracing was on, of all in one piece or with a stretch for each step that begins one.
    fn on(steps: &[Step], is_cut: bool) -> u64 {
        let (mut all, mut last) = (Ticks::default(), None);
        let mut sum = 0;
        for (now, is_on, begins) in steps {
            if *begins && is_cut {
                let before = last.replace(Ticks::behind());
                sum += before.map_or(0, |before| all.join(&before));
            }
            sum += last.as_mut().unwrap_or(&mut all).take(now.map(Tsc), *is_on);
        }
        sum + last.map_or(0, |last| all.join(&last))
    }

    proptest! {
        /// Wherever a stream is cut, tracing was on for as long.
        #[test]
        fn ticks_do_not_depend_on_the_cuts(
            steps in prop::collection::vec(
                (prop::option::of(0..1000_u64), prop::option::of(any::<bool>()), any::<bool>()),
                0..40,
            )
        ) {
            prop_assert_eq!(on(&steps, true), on(&steps, false));
        }

        /// Nor does with which page tables how much ran.
        #[test]
        fn spaces_do_not_depend_on_the_cuts(
            steps in prop::collection::vec((prop::option::of(0..4_u64), 0..9_u64, any::<bool>()), 0..40)
        ) {
            let (mut whole, mut joined, mut last) = (Spaces::default(), Spaces::default(), Spaces::default());
            for (cr3, instructions, begins) in steps {
                if begins {
                    joined.join(&std::mem::take(&mut last));
                }
                for spaces in [&mut whole, &mut last] {
                    if let Some(cr3) = cr3 {
                        spaces.switch_to(cr3 << 12);
                    }
                    spaces.count(instructions);
                }
            }
            joined.join(&last);
            let sorted = |spaces: &Spaces| {
                let mut list: Vec<_> = spaces.list().iter().filter(|(_, count)| *count > 0).copied().collect();
                list.sort_unstable();
                list
            };
            prop_assert_eq!(sorted(&joined), sorted(&whole));
        }
    }
}
