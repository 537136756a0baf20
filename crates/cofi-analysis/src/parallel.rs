//! Work that several threads share, whose results are taken in order.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// So many results for each thread may wait for the one that comes next, so that memory is bounded however long that one takes.
const WAITING: usize = 4;

/// So many results are there at a time with so many threads, those that are worked on and the one that is taken included.
pub(crate) const fn waiting(threads: NonZeroUsize) -> usize {
    threads.get().saturating_mul(WAITING)
}

/// What is done but not taken, and the number of the one that is to be taken next.
struct Done<T> {
    results: BTreeMap<usize, T>,
    first: usize,
}

/// Work that several threads share.
struct Shared<T> {
    count: usize,
    /// So many results may be there before the one that is taken next.
    window: usize,
    /// What is to be done next.
    next: AtomicUsize,
    done: Mutex<Done<T>>,
    moved: Condvar,
}

impl<T> Shared<T> {
    /// Claims the next piece of work.
    fn claim(&self) -> Option<usize> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.count).then_some(number)
    }

    /// A panic elsewhere ends the scope with a panic anyway.
    fn locked(&self) -> MutexGuard<'_, Done<T>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'d>(
        &self,
        done: MutexGuard<'d, Done<T>>,
        is_to_wait: impl Fn(&Done<T>) -> bool,
    ) -> MutexGuard<'d, Done<T>> {
        let waited = self.moved.wait_while(done, |done| is_to_wait(done));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn is_far(&self, number: usize, done: &Done<T>) -> bool {
        number >= done.first.saturating_add(self.window)
    }

    fn add(&self, number: usize, result: T) {
        self.locked().results.insert(number, result);
        self.moved.notify_all();
    }

    /// Does what no other thread has claimed.
    fn help(&self, mut work: impl FnMut(usize) -> T) {
        let mut release = Release {
            shared: self,
            is_over: false,
        };
        while let Some(number) = self.claim() {
            drop(self.wait(self.locked(), |done| self.is_far(number, done)));
            self.add(number, work(number));
        }
        release.is_over = true;
    }

    /// Takes the results, and does what no other thread has claimed while the next one is not there.
    fn take(&self, mut work: impl FnMut(usize) -> T, mut take: impl FnMut(T)) {
        let mut release = Release {
            shared: self,
            is_over: false,
        };
        let mut claimed = None;
        let mut done = self.locked();
        while done.first < self.count {
            let first = done.first;
            if let Some(result) = done.results.remove(&first) {
                drop(done);
                take(result);
                done = self.locked();
                done.first = done.first.saturating_add(1);
                self.moved.notify_all();
                continue;
            }
            claimed = claimed.or_else(|| self.claim());
            if let Some(number) = claimed
                && !self.is_far(number, &done)
            {
                claimed = None;
                drop(done);
                self.add(number, work(number));
                done = self.locked();
            } else {
                // Another thread has the one that comes next.
                done = self.wait(done, |done| {
                    done.first < self.count && !done.results.contains_key(&done.first)
                });
            }
        }
        release.is_over = true;
    }
}

/// Ends the waiting of the others where a thread panics: a panic ends the scope with a panic anyway.
struct Release<'a, T> {
    shared: &'a Shared<T>,
    is_over: bool,
}

impl<T> Drop for Release<'_, T> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.locked().first = usize::MAX;
            self.shared.moved.notify_all();
        }
    }
}

/// Does the pieces of work from 0 up to `count`, and gives the result of each to `take`, in this order and on the thread that calls this. `worker` makes
/// what does them on a thread.
pub(crate) fn in_order<T: Send, W: FnMut(usize) -> T>(
    count: usize,
    threads: NonZeroUsize,
    worker: impl Fn() -> W + Sync,
    take: impl FnMut(T),
) {
    let threads = threads.get().min(count);
    let shared = Shared {
        count,
        window: NonZeroUsize::new(threads).map_or(WAITING, waiting),
        next: AtomicUsize::new(0),
        done: Mutex::new(Done {
            results: BTreeMap::new(),
            first: 0,
        }),
        moved: Condvar::new(),
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where there can be no more threads, those that there are do the work.
            let help = || shared.help(worker());
            if Builder::new().spawn_scoped(scope, help).is_err() {
                break;
            }
        }
        shared.take(worker(), take);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order() {
        for threads in 1..5 {
            let mut taken = Vec::new();
            let threads = NonZeroUsize::new(threads).unwrap();
            in_order(
                100,
                threads,
                || |number| number * 3,
                |result| taken.push(result),
            );
            assert_eq!(taken, (0..100).map(|number| number * 3).collect::<Vec<_>>());
        }
    }

    /// While one piece of work takes long, only so many others are done before it.
    #[test]
    fn what_waits_is_bounded() {
        let threads = NonZeroUsize::new(2).unwrap();
        let (begun, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let worker = || {
            |number: usize| {
                let before = begun.fetch_add(1, Ordering::SeqCst);
                if number == 0 {
                    // All that may be done before it.
                    while begun.load(Ordering::SeqCst) < 2 * WAITING {
                        std::thread::yield_now();
                    }
                }
                number.abs_diff(before)
            }
        };
        let mut taken = 0;
        in_order(1000, threads, worker, |ahead| {
            most.fetch_max(ahead, Ordering::SeqCst);
            taken += 1;
        });
        assert_eq!(taken, 1000);
        assert!(most.into_inner() <= 2 * WAITING);
    }
}
