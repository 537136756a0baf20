//! Work that several threads share, whose results are taken in order.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// So many results for each thread may wait for the one that comes next, so that memory is bounded however long that one takes.
const WAITING: usize = 4;

/// What is done but not taken, the number of the one that is to be taken next, and who takes it.
struct Done<T, F> {
    results: BTreeMap<usize, T>,
    first: usize,
    take: F,
}

/// Ends the waiting of the others where a thread panics: a panic ends the scope with a panic anyway.
struct Release<'a, T, F> {
    done: &'a Mutex<Done<T, F>>,
    moved: &'a Condvar,
    is_over: bool,
}

impl<T, F> Drop for Release<'_, T, F> {
    fn drop(&mut self) {
        if !self.is_over {
            locked(self.done).first = usize::MAX;
            self.moved.notify_all();
        }
    }
}

/// A panic elsewhere ends the scope with a panic anyway.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does the pieces of work from 0 up to `count`, and gives the result of each to `take`, in this order. `worker` makes what does them on a
/// thread.
pub(crate) fn in_order<T: Send, W: FnMut(usize) -> T>(
    count: usize,
    threads: NonZeroUsize,
    worker: impl Fn() -> W + Sync,
    take: impl FnMut(T) + Send,
) {
    let threads = threads.get().min(count);
    let window = threads.saturating_mul(WAITING);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Done {
        results: BTreeMap::new(),
        first: 0,
        take,
    });
    let moved = Condvar::new();
    let run = || {
        let mut release = Release {
            done: &done,
            moved: &moved,
            is_over: false,
        };
        let mut work = worker();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            // Who has the one that comes next does not wait.
            let is_far = |done: &mut Done<_, _>| number >= done.first.saturating_add(window);
            drop(moved.wait_while(locked(&done), is_far));
            let result = work(number);
            let mut done = locked(&done);
            let Done {
                results,
                first,
                take,
            } = &mut *done;
            results.insert(number, result);
            while let Some(result) = results.remove(&*first) {
                take(result);
                *first += 1;
            }
            moved.notify_all();
        }
        release.is_over = true;
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where there can be no more threads, those that there are do the work.
            if Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
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
