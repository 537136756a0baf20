//! Work that several threads share, whose results are taken in order.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

/// Does the pieces of work from 0 up to `count`, and gives the result of each to `take`, in this order.
pub(crate) fn in_order<T: Send>(
    count: usize,
    threads: NonZeroUsize,
    work: impl Fn(usize) -> T + Sync,
    take: impl FnMut(T) + Send,
) {
    let next = AtomicUsize::new(0);
    // What is done but not taken, the number of the one that is to be taken next, and who takes it.
    let done = Mutex::new((BTreeMap::new(), 0, take));
    let worker = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let result = work(number);
            // A panic elsewhere ends the scope with a panic anyway.
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            let (results, first, take) = &mut *done;
            results.insert(number, result);
            while let Some(result) = results.remove(&*first) {
                take(result);
                *first += 1;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.get().min(count) {
            // Where there can be no more threads, those that there are do the work.
            if Builder::new().spawn_scoped(scope, worker).is_err() {
                break;
            }
        }
        worker();
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
                |number| number * 3,
                |result| taken.push(result),
            );
            assert_eq!(taken, (0..100).map(|number| number * 3).collect::<Vec<_>>());
        }
    }
}
