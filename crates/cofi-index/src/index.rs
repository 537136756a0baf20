//! The index as a whole.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use cofi_analysis::{CallDictionary, CallStates};
use cofi_session::Session;
use serde::{Deserialize, Serialize};

use crate::build::{IndexOptions, Partial, build};
use crate::row::{FunctionNumber, Row};
use crate::sums::FunctionSum;

/// A function that ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FunctionInfo {
    /// Its name, demangled; or what code that no symbol names belongs to.
    pub name: String,
    /// The file that holds it.
    pub file: Option<String>,
    /// A symbol names it.
    pub is_named: bool,
    /// Its code was inlined: it is a part of other functions.
    pub is_inlined: bool,
    /// How many instructions ran in itself.
    pub instructions: u64,
    /// How many calls of it began.
    pub calls: u64,
}

/// What was found of a recording: which function ran where, what calls are open at places that can be decoded from, the longest calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Index {
    pub(crate) rows: Vec<Row>,
    pub(crate) functions: Vec<FunctionInfo>,
    /// For each row, the numbers of its functions among all.
    pub(crate) numbers: Vec<Vec<FunctionNumber>>,
    pub(crate) dictionaries: Vec<CallDictionary>,
    pub(crate) states: Vec<CallStates>,
    pub(crate) with_inlined: bool,
    pub(crate) is_in_ticks: bool,
}

impl Index {
    /// So many rows can be looked at. An index may have more, at some 9 KB each.
    pub const MOST_ROWS: usize = 1 << 16;

    /// Builds the index of a recording, or gives none if `cancel` is set meanwhile. What is known so far is given to `publish`, a few times a
    /// second, so that it can be shown.
    #[must_use]
    pub fn build(
        session: &Session<'_>,
        options: &IndexOptions,
        cancel: &AtomicBool,
        publish: &(dyn Fn(Partial) + Sync),
    ) -> Option<Self> {
        build(session, options, cancel, publish)
    }

    pub(crate) fn empty(with_inlined: bool, is_in_ticks: bool) -> Self {
        Self {
            with_inlined,
            is_in_ticks,
            ..Self::default()
        }
    }

    /// The streams, in the session's order.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The functions that ran, by their numbers.
    #[must_use]
    pub fn functions(&self) -> &[FunctionInfo] {
        &self.functions
    }

    /// Whether times are TSC ticks, since nothing tells how to convert them.
    #[must_use]
    pub const fn is_in_ticks(&self) -> bool {
        self.is_in_ticks
    }

    /// Whether calls of inlined functions are in it.
    #[must_use]
    pub const fn with_inlined(&self) -> bool {
        self.with_inlined
    }

    /// From the first time known in any row to the last.
    #[must_use]
    pub fn time_range(&self) -> Option<Range<u64>> {
        let begin = self.rows.iter().filter_map(|row| row.begin).min()?;
        let end = self.rows.iter().filter_map(|row| row.end).max()?;
        Some(begin..end.max(begin))
    }

    /// What a function did in all rows together, without decoding anything.
    #[must_use]
    pub fn sum(&self, function: FunctionNumber) -> FunctionSum {
        let mut sum = FunctionSum {
            function,
            ..FunctionSum::default()
        };
        for found in self.rows.iter().flat_map(|row| &row.sums) {
            if let Some(found) = found.get(function) {
                sum.own += found.own;
                sum.total += found.total;
                sum.calls += found.calls;
            }
        }
        sum
    }

    /// Whether what was read from a file means something.
    pub(crate) fn is_sound(&self) -> bool {
        let count = self.rows.len();
        let functions = self.functions.len();
        let lens = [
            self.numbers.len(),
            self.dictionaries.len(),
            self.states.len(),
        ];
        let parts = self
            .dictionaries
            .iter()
            .zip(&self.states)
            .zip(&self.numbers);
        lens == [count; 3]
            && self
                .rows
                .iter()
                .zip(&self.states)
                .all(|(row, states)| row.is_sound(functions, states.len()))
            && { parts }.all(|((dictionary, states), numbers)| {
                states.is_sound(dictionary)
                    && numbers.iter().all(|number| (*number as usize) < functions)
            })
    }

    /// What is not kept in the file.
    pub(crate) fn prepare(&mut self) {
        for row in &mut self.rows {
            row.kept.finish();
        }
    }
}
