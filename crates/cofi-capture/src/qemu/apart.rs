//! Threads of which each tells by itself what it did, several at a time.
//!
//! Most of what a thread tells is its own: only where something of its process is told, as code that nobody ran before, must the others
//! wait. So all that have told much are given long turns at the same time, each up to the first record that is not its own. What comes then
//! is told in turn, one thread after the other.

use super::Waiting;
use super::blocks::Blocks;
use super::thread::Thread;
use crate::{Lane, Observer, Pid};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::OnceLock;
use std::thread::available_parallelism;

/// No more processors than these work at what threads tell.
const MOST: usize = 8;

/// A thread's turn.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) thread: &'a mut Thread,
    pub(super) blocks: &'a Blocks,
    pub(super) waiting: &'a mut Waiting,
}

impl Job<'_> {
    /// How many records were told.
    fn run(&mut self, lane: &mut (dyn Lane + Send)) -> usize {
        let left = self.waiting.left();
        let rest = self.thread.run_apart(lane, self.blocks, left);
        let told = left.len() - rest.len();
        self.waiting.told += told;
        told
    }
}

/// Threads of ours, for as long as a program is recorded. There are none until there is something for several to do.
#[derive(Debug, Default)]
pub(super) struct Workers(OnceLock<Option<ThreadPool>>);

impl Workers {
    /// Has these jobs done, if the observer takes them; how many records were told.
    pub(super) fn work(&self, observer: &mut dyn Observer, mut jobs: Vec<Job<'_>>) -> usize {
        let pool = self.0.get_or_init(|| {
            let count = available_parallelism().map_or(1, |count| count.get().min(MOST));
            // Without them one after the other does.
            (count > 1).then(|| ThreadPoolBuilder::new().num_threads(count).build().ok())?
        });
        let Some(pool) = pool else { return 0 };
        let tids: Vec<Pid> = jobs.iter().map(|job| job.thread.tid).collect();
        let mut counts = vec![0; jobs.len()];
        observer.apart(&tids, &mut |lanes| {
            let jobs = jobs.iter_mut().zip(&mut counts).zip(lanes);
            pool.in_place_scope(|scope| {
                for ((job, count), lane) in jobs {
                    scope.spawn(move |_| *count = job.run(*lane));
                }
            });
        });
        counts.iter().sum()
    }
}
