//! What ran in a chunk, by function.

use cofi_session::compact;
use serde::{Deserialize, Serialize};

use crate::row::FunctionNumber;

/// What a function did in a part of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FunctionSum {
    /// The function.
    pub function: FunctionNumber,
    /// The instructions that ran in itself.
    pub own: u64,
    /// Those that ran while it was open, each once however often it was.
    pub total: u64,
    /// How many calls of it began.
    pub calls: u64,
}

/// The functions of a chunk, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkSums(pub(crate) Vec<FunctionSum>);

impl ChunkSums {
    pub(crate) fn get(&self, function: FunctionNumber) -> Option<&FunctionSum> {
        let index = self.0.binary_search_by_key(&function, |sum| sum.function);
        self.0.get(index.ok()?)
    }

    pub(crate) fn is_sound(&self, functions: usize) -> bool {
        let is_sorted = self.0.is_sorted_by(|a, b| a.function < b.function);
        is_sorted
            && self
                .0
                .last()
                .is_none_or(|last| (last.function as usize) < functions)
    }
}

/// Sums of several parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    list: Vec<FunctionSum>,
}

impl Sums {
    fn entry(&mut self, function: FunctionNumber) -> &mut FunctionSum {
        let index = function as usize;
        if self.list.len() <= index {
            let from = self.list.len() as u32;
            let new = (from..=function).map(|function| FunctionSum {
                function,
                ..FunctionSum::default()
            });
            self.list.extend(new);
        }
        &mut self.list[index]
    }

    pub(crate) fn add(&mut self, sum: &FunctionSum) {
        let entry = self.entry(sum.function);
        entry.own += sum.own;
        entry.total += sum.total;
        entry.calls += sum.calls;
    }

    /// Those of functions that took part, most instructions in total first.
    pub(crate) fn finish(self) -> Vec<FunctionSum> {
        let all = self.list.into_iter();
        let mut list: Vec<_> = all
            .filter(|sum| (sum.own, sum.total, sum.calls) != (0, 0, 0))
            .collect();
        compact::sort_by_key(&mut list, |sum| {
            (std::cmp::Reverse((sum.total, sum.own)), sum.function)
        });
        list
    }
}
