//! iptr's edge analyzer, with its cache: counts conditional branches, and adds up where they led.
//!
//! What is kept for a row of branches in its cache is their count and sum: less than the crate's own map of edges keeps.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::process::ExitCode;
use std::rc::Rc;

use cofi_peers::{Found, Images, Task, mix, passes};
use iptr_decoder::{DecodeOptions, decode};
use iptr_edge_analyzer::{ControlFlowTransitionKind, EdgeAnalyzer, HandleControlFlow, ReadMemory};

#[derive(Default)]
struct Count {
    all: Found,
    /// Of the row that the analyzer is about to keep.
    row: Found,
}

fn add(to: &mut Found, what: Found) {
    to.count += what.count;
    to.sum = to.sum.wrapping_add(what.sum);
}

impl HandleControlFlow for Count {
    type Error = Infallible;
    type CachedKey = Found;

    fn at_decode_begin(&mut self) -> Result<(), Infallible> {
        *self = Self::default();
        Ok(())
    }

    #[inline]
    fn on_new_block(
        &mut self,
        address: u64,
        kind: ControlFlowTransitionKind,
        cache: bool,
    ) -> Result<(), Infallible> {
        if let ControlFlowTransitionKind::ConditionalBranch = kind {
            let one = Found {
                count: 1,
                sum: mix(address),
            };
            add(&mut self.all, one);
            if cache {
                add(&mut self.row, one);
            }
        }
        Ok(())
    }

    #[inline]
    fn cache_prev_cached_key(&mut self, kept: Found) -> Result<(), Infallible> {
        add(&mut self.row, kept);
        Ok(())
    }

    #[inline]
    fn take_cache(&mut self) -> Result<Option<Found>, Infallible> {
        let row = std::mem::take(&mut self.row);
        Ok((row != Found::default()).then_some(row))
    }

    #[inline]
    fn clear_current_cache(&mut self) -> Result<(), Infallible> {
        self.row = Found::default();
        Ok(())
    }

    #[inline]
    fn on_reused_cache(&mut self, kept: &Found, _: u64) -> Result<(), Infallible> {
        add(&mut self.all, *kept);
        Ok(())
    }

    fn should_clear_all_cache(&mut self) -> Result<bool, Infallible> {
        Ok(false)
    }
}

/// There is no code at this address.
#[derive(Debug)]
struct NoCode(u64);

impl fmt::Display for NoCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no code at {:#x}", self.0)
    }
}

impl Error for NoCode {}

/// The code. The analyzer's errors want to name it, so that it cannot be borrowed.
struct Memory(Rc<Images>);

impl ReadMemory for Memory {
    type Error = NoCode;

    fn at_decode_begin(&mut self) -> Result<(), NoCode> {
        Ok(())
    }

    fn read_memory<T>(
        &mut self,
        address: u64,
        size: usize,
        callback: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, NoCode> {
        let at = self.0.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = at
            .checked_sub(1)
            .and_then(|at| self.0.get(at))
            .ok_or(NoCode(address))?;
        let rest = usize::try_from(address - start)
            .ok()
            .and_then(|offset| bytes.get(offset..))
            .filter(|rest| !rest.is_empty())
            .ok_or(NoCode(address))?;
        Ok(callback(&rest[..rest.len().min(size)]))
    }
}

fn run(task: &Task) -> Result<String, Box<dyn Error>> {
    let images = Rc::new(task.images.clone());
    passes(
        task,
        || EdgeAnalyzer::new(Count::default(), Memory(images.clone())),
        |analyzer| {
            // The last branches wait in its buffer for an address packet, and are told only by what comes behind.
            decode(&task.stream, DecodeOptions::default(), analyzer)
                .map_err(|error| chain(&error))?;
            Ok(analyzer.handler().all)
        },
    )
}

/// An error in its own words and in those of what caused it.
fn chain(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

fn main() -> ExitCode {
    cofi_peers::main(run)
}
