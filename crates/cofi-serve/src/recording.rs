//! A recording that is shown, and its index, from when it is begun to when it is there.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cofi_index::{ExplorerPool, Index, IndexOptions, Origin, Partial};
use cofi_session::Session;
use serde_json::Value;

/// A recording that stays open to the end of the process.
#[derive(Clone, Debug)]
pub struct Opened {
    /// What it is called.
    pub name: String,
    /// The recording.
    pub session: &'static Session<'static>,
    /// Its bytes.
    pub bytes: &'static [u8],
    /// Where its index may be kept.
    pub index: Option<PathBuf>,
}

/// How far a recording's index is.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// This is known so far.
    Building(Arc<Partial>),
    /// It is there.
    Ready(Arc<Ready>),
    /// It cannot be.
    Failed(String),
}

/// An index, and who asks it.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) index: Arc<Index>,
    pub(crate) pool: ExplorerPool,
    /// What the user should know of it.
    pub(crate) note: Option<String>,
}

/// A recording that is shown.
#[derive(Debug)]
pub struct Recording {
    pub(crate) opened: Opened,
    state: RwLock<State>,
    /// Where it and the other recording part, once that was asked for and answered.
    partings: Mutex<Option<Value>>,
}

impl Recording {
    /// So many questions are answered at a time.
    const EXPLORERS: usize = 2;

    /// Begins to build its index, or reads the one that is kept, on a thread of its own.
    ///
    /// # Errors
    ///
    /// If there can be no thread.
    pub fn open(opened: Opened, options: IndexOptions) -> std::io::Result<Arc<Self>> {
        let recording = Arc::new(Self {
            opened,
            state: RwLock::new(State::Building(Arc::default())),
            partings: Mutex::new(None),
        });
        let built = recording.clone();
        let thread = std::thread::Builder::new().name("index".to_owned());
        thread.spawn(move || built.build(&options))?;
        Ok(recording)
    }

    fn build(&self, options: &IndexOptions) {
        let Opened {
            session,
            bytes,
            index,
            ..
        } = &self.opened;
        let publish = |partial: Partial| self.set(State::Building(Arc::new(partial)));
        let path = index.as_deref();
        let never = AtomicBool::new(false);
        let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Index::at_hand(session, bytes, path, options, &never, &publish)
        }));
        let Ok(Some((index, origin))) = built else {
            return self.set(State::Failed("the index could not be built".to_owned()));
        };
        let note = match origin {
            Origin::NotKept(error) => Some(format!("the index is not kept: {error}")),
            _ => None,
        };
        let index = Arc::new(index);
        self.set(match ExplorerPool::new(session, &index, Self::EXPLORERS) {
            Ok(pool) => State::Ready(Arc::new(Ready { index, pool, note })),
            Err(error) => State::Failed(error.to_string()),
        });
    }

    /// Where it and the other recording part: found once. Who asks meanwhile waits; who is gone by then finds nothing (none), and so it is found for
    /// the next.
    pub(crate) fn partings(&self, find: impl FnOnce() -> Option<Value>) -> Option<Value> {
        // Who panicked while it was locked has found nothing.
        let known = self.partings.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            *known = find();
        }
        known.clone()
    }

    pub(crate) fn state(&self) -> State {
        // Nothing panics while it is locked.
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.clone()
    }

    fn set(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parting::partings;
    use cofi_session::SessionOptions;
    use std::sync::atomic::Ordering;

    #[test]
    fn partings_that_nobody_waits_for_are_found_for_the_next() {
        let session = Session::new(cofi_test::SMALLEST_TRACE, &SessionOptions::default());
        let session: &'static Session<'static> = Box::leak(Box::new(session.expect("a session")));
        let recording = Recording {
            opened: Opened {
                name: String::new(),
                session,
                bytes: cofi_test::SMALLEST_TRACE,
                index: None,
            },
            state: RwLock::new(State::Building(Arc::default())),
            partings: Mutex::new(None),
        };
        let cancel = Arc::new(AtomicBool::new(true));
        let find = || partings(session, session, &cancel);
        assert_eq!(recording.partings(find), None);
        cancel.store(false, Ordering::Relaxed);
        let found = recording.partings(find).expect("they are found");
        assert_eq!(found[0]["same"], true);
        // They are kept.
        assert_eq!(recording.partings(|| unreachable!()), Some(found));
    }
}
