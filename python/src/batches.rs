//! Batches that a thread of its own makes, while Python uses the one before.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

/// What several threads of Python may use, one at a time.
pub(crate) struct Turn<T>(Mutex<T>);

impl<T: Send> Turn<T> {
    pub(crate) const fn new(state: T) -> Self {
        Self(Mutex::new(state))
    }

    /// Works on it, and lets other threads of Python run meanwhile.
    pub(crate) fn take<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut T) -> R + Send) -> R {
        py.detach(|| self.take_alone(work))
    }

    /// Works on it, whoever waits for that.
    fn take_alone<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut state)
    }
}

/// Nobody wants more batches.
struct Unwanted;

/// Where batches go.
pub(crate) struct Outlet<T>(SyncSender<Option<T>>);

impl<T> Outlet<T> {
    /// Waits until the one before has been taken. If nobody wants any, the work is left where it stands: a decoder that calls back cannot be told to stop otherwise.
    pub(crate) fn put(&self, batch: T) {
        if self.0.send(Some(batch)).is_err() {
            resume_unwind(Box::new(Unwanted));
        }
    }
}

/// The batches that are made.
pub(crate) struct Batches<T> {
    /// What they come from; nothing once the last has come.
    from: Turn<Option<Receiver<Option<T>>>>,
}

impl<T: Send + 'static> Batches<T> {
    /// Begins to make them.
    ///
    /// # Errors
    /// There can be no thread.
    pub(crate) fn begin(work: impl FnOnce(&Outlet<T>) + Send + 'static) -> std::io::Result<Self> {
        let (to, from) = sync_channel(1);
        let thread = std::thread::Builder::new().name("cofi".to_owned());
        thread.spawn(move || {
            let outlet = Outlet(to);
            // (What unwinds is dropped: the decoder does not hand on what it had decoded, and what the recording shares is locked for moments, in none of which batches are put.)
            if catch_unwind(AssertUnwindSafe(|| work(&outlet))).is_ok() {
                // That was all; and perhaps nobody waits for it.
                let _ = outlet.0.send(None);
            }
        })?;
        Ok(Self {
            from: Turn::new(Some(from)),
        })
    }

    /// The next one; none at the end.
    pub(crate) fn next(&self, py: Python<'_>) -> PyResult<Option<T>> {
        py.detach(|| self.receive())
            .map_err(|failed| PyRuntimeError::new_err(failed.to_string()))
    }

    /// The next one, for who has nothing to do with Python; none at the end.
    pub(crate) fn receive(&self) -> Result<Option<T>, Failed> {
        self.from.take_alone(|from| {
            let received = match from {
                Some(from) => from.recv(),
                None => Ok(None),
            };
            if let Ok(None) = received {
                *from = None;
            }
            received.map_err(|_| Failed)
        })
    }
}

/// The thread that decodes is gone before it was done.
#[derive(Debug)]
pub(crate) struct Failed;

impl std::fmt::Display for Failed {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("the thread that decodes has failed: this is not all")
    }
}

impl std::error::Error for Failed {}
