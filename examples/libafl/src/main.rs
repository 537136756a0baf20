//! Fuzzes a program that reads a file: `cofi-libafl PROGRAM [CRASHES] [RUNS]`.
//!
//! The program should be linked without `-pie`, or run where address randomization is off (`setarch -R`): edges are known by addresses.

use std::path::PathBuf;
use std::time::Duration;

use cofi_libafl::{TracedExecutor, edge_map};
use libafl::Error;
use libafl::corpus::{Corpus, InMemoryCorpus, OnDiskCorpus};
use libafl::events::SimpleEventManager;
use libafl::feedbacks::{CrashFeedback, MaxMapFeedback};
use libafl::fuzzer::{Evaluator, Fuzzer, StdFuzzer};
use libafl::inputs::BytesInput;
use libafl::monitors::SimpleMonitor;
use libafl::mutators::{HavocScheduledMutator, havoc_mutations};
use libafl::schedulers::QueueScheduler;
use libafl::stages::StdMutationalStage;
use libafl::state::{HasCorpus, HasExecutions, HasSolutions, StdState};
use libafl_bolts::rands::StdRand;
use libafl_bolts::tuples::{Handled, tuple_list};

/// Bytes of the map.
const MAP: usize = 1 << 16;
/// A run that takes longer is a timeout.
const LIMIT: Duration = Duration::from_secs(5);
/// Runs without another word; the stage of mutations that is under way is finished.
const RUNS: u64 = 100_000;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        return Err(Error::illegal_argument(
            "usage: cofi-libafl PROGRAM [CRASHES] [RUNS]",
        ));
    };
    let crashes = arguments.next().map_or("crashes".into(), PathBuf::from);
    let runs = match arguments.next() {
        Some(runs) => runs.to_string_lossy().parse()?,
        None => RUNS,
    };

    let map = edge_map(MAP);
    let mut feedback = MaxMapFeedback::new(&map);
    let mut objective = CrashFeedback::new();
    let mut state = StdState::new(
        StdRand::with_seed(1),
        InMemoryCorpus::<BytesInput>::new(),
        OnDiskCorpus::new(crashes)?,
        &mut feedback,
        &mut objective,
    )?;
    let mut fuzzer = StdFuzzer::new(QueueScheduler::new(), feedback, objective);
    let mut manager = SimpleEventManager::new(SimpleMonitor::new(|line| println!("{line}")));
    let mut executor = TracedExecutor::new(program, LIMIT, map.handle(), tuple_list!(map))?;
    let mut stages = tuple_list!(StdMutationalStage::new(HavocScheduledMutator::new(
        havoc_mutations()
    )));

    let seed = BytesInput::new(b"cofi".to_vec());
    fuzzer.add_input(&mut state, &mut executor, &mut manager, seed)?;
    while *state.executions() < runs && state.solutions().count() == 0 {
        fuzzer.fuzz_one(&mut stages, &mut executor, &mut state, &mut manager)?;
    }
    println!(
        "{} runs, {} inputs with new edges, {} crashes",
        state.executions(),
        state.corpus().count(),
        state.solutions().count()
    );
    Ok(())
}
