//! What the engine costs above a bare single-step loop: traced instructions per second, measured in turn.
//!
//! `cargo bench -p cofi-capture` prints the medians of several rounds: the bare loop (step, wait, read the registers)
//! over a busy shell, the engine with an observer that only counts, and the engine with the recorder: stopping at every
//! instruction, and at branches. Quote the ratios.

use cofi_capture::ptrace::{self, Command, Options, Outcome, Stops, Target};
use cofi_capture::record::{Recorder, Settings};
use cofi_capture::{Entry, Mapping, Observer, Pid, ProcessCause, SavedCode};
use cofi_insn::Insn;
use cofi_packet::{ExecMode, Ip};
use cofi_perf::PtConfig;
use nix::sys::ptrace as raw;
use nix::sys::wait::{WaitStatus, waitpid};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const PROGRAM: &str = "/bin/true";
const ROUNDS: usize = 5;

/// Steps of the bare loop in a round.
const STEPS: u64 = 100_000;

/// Steps a busy program; how many steps that were.
fn bare_loop() -> u64 {
    let mut child = std::process::Command::new("/bin/sh")
        .args(["-c", "while :; do :; done"])
        .spawn()
        .expect("a shell");
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    raw::seize(pid, raw::Options::empty()).expect("ptrace works here");
    raw::interrupt(pid).expect("the child is there");
    let mut steps = 0;
    while steps < STEPS {
        let status = waitpid(pid, None).expect("a child to wait for");
        assert!(
            matches!(
                status,
                WaitStatus::Stopped(..) | WaitStatus::PtraceEvent(..)
            ),
            "{status:?}"
        );
        std::hint::black_box(raw::getregs(pid).expect("a stopped child"));
        steps += 1;
        raw::step(pid, None).expect("a stopped child");
    }
    child.kill().expect("the child is there");
    child.wait().expect("the child can be waited for");
    steps
}

#[derive(Default)]
struct Counter(u64);

impl Observer for Counter {
    fn process(&mut self, _: Pid, _: Option<Pid>, _: ProcessCause, _: &str) {}
    fn thread_start(&mut self, _: Pid, _: Pid, _: Option<Pid>) {}
    fn thread_exit(&mut self, _: Pid, _: Pid) {}
    fn comm(&mut self, _: Pid, _: Pid, _: &str) {}
    fn mapped(&mut self, _: Pid, _: Pid, _: &[Mapping]) {}
    fn code(&mut self, _: Pid, _: Pid, _: SavedCode<'_>) {}
    fn resume_user(&mut self, _: Pid, _: Ip, _: ExecMode) {}
    fn retired(&mut self, _: Pid, _: Ip, _: &Insn, _: Ip) {
        self.0 += 1;
    }
    fn far_branch(&mut self, _: Pid, _: Ip, _: &Insn, _: Ip, _: ExecMode) {
        self.0 += 1;
    }
    fn enter_kernel(&mut self, _: Pid, entry: Entry) {
        self.0 += u64::from(matches!(entry, Entry::Instruction { .. }));
    }
}

fn engine(stops: Stops, observer: &mut dyn Observer) {
    let stop = AtomicBool::new(false);
    let command = Command {
        program: PROGRAM.into(),
        args: Vec::new(),
    };
    let outcome = ptrace::run_by(
        stops,
        Target::Launch(command),
        Options::new(&stop),
        observer,
    );
    assert!(matches!(outcome, Ok(Outcome::Exited(0))), "{outcome:?}");
}

fn counted(stops: Stops) -> u64 {
    let mut counter = Counter::default();
    engine(stops, &mut counter);
    counter.0
}

fn recorded(stops: Stops) -> u64 {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = Settings::new(folder.path().join("trace"), PtConfig::default(), "ptrace");
    let mut recorder = Recorder::create(settings, None).expect("a file");
    engine(stops, &mut recorder);
    recorder.finish().expect("a complete file").instructions
}

fn main() {
    type Run = fn() -> u64;
    let kinds: [(&str, Run); 5] = [
        ("bare loop", bare_loop),
        ("steps, counting", || counted(Stops::Instructions)),
        ("steps, recording", || recorded(Stops::Instructions)),
        ("branches, counting", || counted(Stops::Branches)),
        ("branches, recording", || recorded(Stops::Branches)),
    ];
    let mut speeds = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        for ((_, run), speeds) in kinds.iter().zip(&mut speeds) {
            let start = Instant::now();
            let steps = run();
            assert!(
                steps > 10_000,
                "{PROGRAM} runs so many instructions: {steps}"
            );
            speeds.push(steps as f64 / start.elapsed().as_secs_f64());
        }
    }
    let median = |speeds: &mut Vec<f64>| {
        speeds.sort_by(f64::total_cmp);
        speeds[speeds.len() / 2]
    };
    let bare = median(&mut speeds[0]);
    for ((name, _), speeds) in kinds.iter().zip(&mut speeds) {
        let speed = median(speeds);
        println!(
            "{name:<19} {:>7.1} k instructions/s, {:.2} of the bare loop",
            speed / 1000.0,
            speed / bare
        );
    }
}
