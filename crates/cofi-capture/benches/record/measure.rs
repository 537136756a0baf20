//! What a run takes: time, and memory of this process.

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What a run took: by the clock on the wall, of its program, and of this thread.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Took {
    pub(crate) wall: f64,
    pub(crate) program: f64,
    pub(crate) thread: f64,
}

impl Took {
    pub(crate) fn json(&self) -> Value {
        json!({ "wall": self.wall, "program": self.program, "recorder": self.thread })
    }
}

pub(crate) fn time(run: impl FnOnce()) -> Took {
    let (begun, program, thread) = (Instant::now(), of_children(), of_thread());
    run();
    Took {
        wall: begun.elapsed().as_secs_f64(),
        program: of_children() - program,
        thread: of_thread() - thread,
    }
}

/// What children have worked so far.
fn of_children() -> f64 {
    let usage: Usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("a clock");
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// What this thread has worked so far.
fn of_thread() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    Duration::from(time).as_secs_f64()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Forgets the peak of this process's memory. (Of a kernel that cannot, the peak is that of all runs until now.)
pub(crate) fn forget_peak() {
    // 5 sets VmHWM to what is in memory now: proc_pid_clear_refs(5).
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The most memory that this process had since the peak was forgotten, in KiB: with what is left of runs before, and with the
/// memory that is shared with QEMU.
pub(crate) fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
