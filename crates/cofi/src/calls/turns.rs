//! Work that several threads share, and whose output has an order.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::Builder;

/// Who may write: one after the other, by number.
#[derive(Debug, Default)]
pub(super) struct Turns {
    now: Mutex<usize>,
    changed: Condvar,
}

impl Turns {
    /// The turn of this number. Each number up to the last must have one, and end it.
    pub(super) const fn of(&self, number: usize) -> Turn<'_> {
        Turn {
            turns: self,
            number,
        }
    }
}

/// A turn. It ends when it is dropped, and not before those of lower numbers.
#[derive(Debug)]
pub(super) struct Turn<'t> {
    turns: &'t Turns,
    number: usize,
}

impl Turn<'_> {
    /// Returns once all lower numbers are done.
    pub(super) fn wait(&self) {
        let now = self.turns.now.lock();
        let now = now.unwrap_or_else(PoisonError::into_inner);
        let is_early = |now: &mut usize| *now < self.number;
        drop(self.turns.changed.wait_while(now, is_early));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.wait();
        let now = self.turns.now.lock();
        *now.unwrap_or_else(PoisonError::into_inner) = self.number + 1;
        self.turns.changed.notify_all();
    }
}

/// A part of the work, and where its text goes.
type Task<T> = (T, SyncSender<io::Result<Vec<u8>>>);

/// Writes what `worker` makes of each part, in the order of the parts. There is only so much text at a time as a few parts have.
pub(super) fn write_parts<T: Send, W: FnMut(T, &mut Vec<u8>) -> io::Result<()>>(
    threads: NonZeroUsize,
    mut next: impl FnMut() -> io::Result<Option<T>>,
    worker: impl Fn() -> W + Sync,
    out: &mut impl Write,
) -> io::Result<()> {
    let (Some(first), second) = (next()?, next()?) else {
        return Ok(());
    };
    let mut parts = VecDeque::from([first]);
    parts.extend(second);
    if threads.get() == 1 || parts.len() == 1 {
        return write_alone(parts, next, worker(), out);
    }
    let (tasks, waiting) = channel::<Task<T>>();
    let waiting = Mutex::new(waiting);
    let spare: Mutex<Vec<Vec<u8>>> = Mutex::default();
    let take = || lock::<Receiver<Task<T>>>(&waiting).recv().ok();
    let run = || {
        let mut work = worker();
        while let Some((part, texts)) = take() {
            let mut text = lock(&spare).pop().unwrap_or_default();
            text.clear();
            let made = work(part, &mut text);
            // Nobody may want to know any more.
            let _ = texts.send(made.map(|()| text));
        }
    };
    std::thread::scope(|scope| {
        let started = (0..threads.get())
            .map_while(|_| Builder::new().spawn_scoped(scope, run).ok())
            .count();
        if started == 0 {
            return write_alone(parts, next, worker(), out);
        }
        // Without tasks the threads end.
        let tasks = tasks;
        let mut texts = VecDeque::new();
        loop {
            while texts.len() <= started {
                let part = match parts.pop_front() {
                    Some(part) => Some(part),
                    None => next()?,
                };
                let Some(part) = part else { break };
                let (sender, receiver) = sync_channel(1);
                if tasks.send((part, sender)).is_ok() {
                    texts.push_back(receiver);
                }
            }
            let Some(text) = texts.pop_front() else {
                return Ok(());
            };
            let text = text.recv().map_err(io::Error::other)??;
            out.write_all(&text)?;
            lock(&spare).push(text);
        }
    })
}

fn write_alone<T>(
    first: VecDeque<T>,
    mut next: impl FnMut() -> io::Result<Option<T>>,
    mut work: impl FnMut(T, &mut Vec<u8>) -> io::Result<()>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut text = Vec::new();
    let mut first = first.into_iter();
    loop {
        let part = match first.next() {
            Some(part) => Some(part),
            None => next()?,
        };
        let Some(part) = part else { return Ok(()) };
        text.clear();
        work(part, &mut text)?;
        out.write_all(&text)?;
    }
}

/// A panic elsewhere ends the scope of the threads with a panic anyway.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_order() {
        let wanted: String = (0..300).map(|n| format!("{n}\n")).collect();
        for threads in 1..5 {
            for count in [0, 1, 2, 300] {
                let mut parts = 0..count;
                let mut out = Vec::new();
                let worker = || {
                    |part: i32, text: &mut Vec<u8>| {
                        // Later ones are done earlier.
                        let turns = (300 - part) * 100;
                        std::hint::black_box((0..turns).sum::<i32>());
                        writeln!(text, "{part}")
                    }
                };
                let threads = NonZeroUsize::new(threads).expect("some");
                let written = write_parts(threads, || Ok(parts.next()), worker, &mut out);
                written.expect("memory");
                let text = String::from_utf8(out).expect("digits");
                assert!(wanted.starts_with(&text));
                assert_eq!(text.lines().count(), count as usize);
            }
        }
    }

    #[test]
    fn an_error_ends_it() {
        for threads in [1, 3] {
            let mut parts = 0..100;
            let mut out = Vec::new();
            let worker = || {
                |part: i32, text: &mut Vec<u8>| match part {
                    50 => Err(io::ErrorKind::InvalidData.into()),
                    part => writeln!(text, "{part}"),
                }
            };
            let threads = NonZeroUsize::new(threads).expect("some");
            let written = write_parts(threads, || Ok(parts.next()), worker, &mut out);
            let kind = written.map_err(|error| error.kind());
            assert_eq!(kind, Err(io::ErrorKind::InvalidData));
            assert!(out.ends_with(b"\n49\n"));
        }
    }

    #[test]
    fn turns_come_in_order() {
        let turns = Turns::default();
        let out = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in (0..20).rev() {
                let (turns, out) = (&turns, &out);
                scope.spawn(move || {
                    let turn = turns.of(number);
                    // Some have nothing to write.
                    if number % 3 != 0 {
                        turn.wait();
                        lock(out).push(number);
                    }
                });
            }
        });
        let wanted: Vec<usize> = (0..20).filter(|number| number % 3 != 0).collect();
        assert_eq!(*lock(&out), wanted);
    }
}
