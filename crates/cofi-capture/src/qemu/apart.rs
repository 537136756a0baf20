//! Threads of which each tells by itself what it did, several at a time.
//!
//! Most of what a thread tells is its own: only where something of its process is told, as code that nobody ran before, must the others
//! wait. So all that have told much are given long turns at the same time, each up to the first record that is not its own. What comes then
//! is told in turn, one thread after the other.

use super::blocks::Blocks;
use super::shared::Shared;
use super::thread::Thread;
use super::{LONG_TURN, Waiting};
use crate::{Lane, Observer, Pid};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::OnceLock;
use std::thread::available_parallelism;

/// No more processors than these work at what threads tell.
const MOST: usize = 8;

/// A thread's turn.
pub(super) struct Job<'a> {
    pub(super) shared: &'a Shared,
    pub(super) slot: usize,
    pub(super) thread: &'a mut Thread,
    pub(super) blocks: &'a Blocks,
    pub(super) waiting: &'a mut Waiting,
}

/// Tells what a thread has told that is its own; how many records that is.
fn tell(
    lane: &mut (dyn Lane + Send),
    thread: &mut Thread,
    blocks: &Blocks,
    waiting: &mut Waiting,
) -> usize {
    let left = waiting.left();
    let told = left.len() - thread.run_apart(lane, blocks, left).len();
    waiting.told += told;
    told
}

/// Threads of ours, for as long as a program is recorded. There are none until there is something for several to do.
#[derive(Debug)]
pub(super) struct Workers {
    count: usize,
    pool: OnceLock<Option<ThreadPool>>,
}

impl Default for Workers {
    fn default() -> Self {
        let count = available_parallelism().map_or(1, |count| count.get().min(MOST));
        let pool = OnceLock::new();
        Self { count, pool }
    }
}

impl Workers {
    /// Whether two can work at a time.
    pub(super) fn are_several(&self) -> bool {
        self.count > 1
    }

    /// Has these jobs done, if the observer takes them; how many records were told.
    pub(super) fn work(&self, observer: &mut dyn Observer, mut jobs: Vec<Job<'_>>) -> usize {
        let make = || ThreadPoolBuilder::new().num_threads(self.count).build();
        let tids: Vec<Pid> = jobs.iter().map(|job| job.thread.tid).collect();
        let mut counts = vec![0; jobs.len()];
        observer.apart(&tids, &mut |lanes| {
            // Where there can be no more threads, all is told in turn.
            let Some(pool) = self.pool.get_or_init(|| make().ok()) else {
                return;
            };
            // Who takes out of a ring is one at a time.
            for job in &mut jobs {
                job.waiting.fill(job.shared, job.slot, LONG_TURN);
            }
            let jobs = jobs.iter_mut().zip(&mut counts).zip(lanes);
            pool.in_place_scope(|scope| {
                for ((job, count), lane) in jobs {
                    let Job {
                        thread,
                        blocks,
                        waiting,
                        ..
                    } = job;
                    let blocks: &Blocks = blocks;
                    scope.spawn(move |_| *count = tell(*lane, thread, blocks, waiting));
                }
            });
        });
        counts.iter().sum()
    }
}
