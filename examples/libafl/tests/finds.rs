//! A program dies of three bytes, of which nothing tells but its edges.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cofi_libafl::{EdgeMap, TracedExecutor, edge_map};
use libafl::corpus::{InMemoryCorpus, NopCorpus};
use libafl::events::NopEventManager;
use libafl::executors::{Executor, ExitKind, HasObservers};
use libafl::inputs::BytesInput;
use libafl::state::StdState;
use libafl_bolts::rands::StdRand;
use libafl_bolts::tuples::{Handled, MatchNameRef, tuple_list};

/// Compiled in a folder.
fn target(folder: &Path) -> PathBuf {
    let program = folder.join("target");
    let compiled = Command::new("cc")
        .args([
            "-O1",
            "-static",
            "-nostdlib",
            "-no-pie",
            "-fno-stack-protector",
            "-o",
        ])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/target.c"))
        .status();
    assert!(compiled.expect("a compiler").success());
    program
}

/// How the program ends with each input, and the map of its edges.
fn runs(inputs: &[&str], limit: Duration) -> Vec<(ExitKind, Vec<u8>)> {
    let folder = tempfile::tempdir().expect("a folder");
    let map = edge_map(1 << 12);
    let handle = map.handle();
    let mut executor = TracedExecutor::new(
        target(folder.path()),
        limit,
        handle.clone(),
        tuple_list!(map),
    )
    .expect("an executor");
    let corpora = (InMemoryCorpus::<BytesInput>::new(), NopCorpus::new());
    let mut state = StdState::new(
        StdRand::with_seed(0),
        corpora.0,
        corpora.1,
        &mut (),
        &mut (),
    )
    .expect("a state");
    let mut run = |input: &&str| {
        let input = BytesInput::new(input.as_bytes().to_vec());
        let manager = &mut NopEventManager::new();
        let ended = executor.run_target(&mut (), &mut state, manager, &input);
        let mut observers = executor.observers_mut();
        let map: &mut EdgeMap = observers.get_mut(&handle).expect("the map");
        let found = map.to_vec();
        map.fill(0);
        (ended.expect("it runs"), found)
    };
    inputs.iter().map(&mut run).collect()
}

#[test]
fn each_byte_that_is_right_is_a_new_edge() {
    let inputs = ["no", "none", "Lone", "LPne", "LPO", "none"];
    let found = runs(&inputs, Duration::from_secs(60));
    let ends = found.iter().map(|(ended, _)| *ended);
    let wanted = inputs.map(|input| match input {
        "LPO" => ExitKind::Crash,
        _ => ExitKind::Ok,
    });
    assert!(ends.eq(wanted));
    let maps: Vec<&Vec<u8>> = found.iter().map(|(_, map)| map).collect();
    assert_eq!(maps[1], maps[5], "the same input");
    for (one, other) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        assert_ne!(maps[one], maps[other], "{} {}", inputs[one], inputs[other]);
    }
    assert!(maps.iter().all(|map| map.iter().any(|count| *count > 0)));
}

#[test]
fn what_does_not_end_is_killed() {
    let found = runs(&["~", "~"], Duration::from_secs(1));
    assert!(found.iter().all(|(ended, _)| *ended == ExitKind::Timeout));
}

#[test]
fn the_fuzzer_finds_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let crashes = folder.path().join("crashes");
    let output = Command::new(env!("CARGO_BIN_EXE_cofi-libafl"))
        .arg(target(folder.path()))
        .arg(&crashes)
        .arg("50000")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.ends_with("1 crashes\n"), "{said}");
    let is_it = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read(entry.expect("an entry").path()).is_ok_and(|bytes| {
            let halves = bytes.iter().take(3).map(|byte| byte & 15);
            halves.eq([0xc, 0x0, 0xf])
        })
    };
    assert!(std::fs::read_dir(crashes).expect("a folder").any(is_it));
}
