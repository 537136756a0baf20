//! Explorers on threads of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use cofi_session::Session;

use super::Explorer;
use crate::index::Index;

type Job = Box<dyn FnOnce(&mut Explorer<'static>) + Send>;

/// Explorers of a recording that stays open to the end of the process. Questions wait for the first one that is free.
#[derive(Debug)]
pub struct ExplorerPool {
    jobs: Mutex<Sender<Job>>,
}

impl ExplorerPool {
    /// So many of them.
    ///
    /// # Errors
    ///
    /// If there can be no thread.
    pub fn new(
        session: &'static Session<'static>,
        index: &Arc<Index>,
        count: usize,
    ) -> std::io::Result<Self> {
        let (jobs, waiting) = channel::<Job>();
        let waiting = Arc::new(Mutex::new(waiting));
        for number in 0..count.max(1) {
            let (waiting, index) = (waiting.clone(), index.clone());
            let thread = std::thread::Builder::new().name(format!("explorer {number}"));
            thread.spawn(move || {
                let mut explorer = Explorer::new(session, index.clone());
                loop {
                    let next = {
                        // A job that panicked was not waiting.
                        let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                        waiting.recv()
                    };
                    match next {
                        Ok(job) => {
                            // What a question has left half done is not asked again.
                            if catch_unwind(AssertUnwindSafe(|| job(&mut explorer))).is_err() {
                                explorer = Explorer::new(session, index.clone());
                            }
                        }
                        Err(_) => return,
                    }
                }
            })?;
        }
        Ok(Self {
            jobs: Mutex::new(jobs),
        })
    }

    /// Asks, and waits for the answer; none if the question panicked. Others are answered nevertheless.
    pub fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Explorer<'static>) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = channel();
        let job: Job = Box::new(move |explorer| {
            // Whoever asked may be gone.
            let _ = answer.send(question(explorer));
        });
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .send(job)
            .ok()?;
        answered.recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofi_session::SessionOptions;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_question_that_panics_ends_no_other() {
        let session = Session::new(cofi_test::SMALLEST_TRACE, &SessionOptions::default());
        let session: &'static Session<'static> = Box::leak(Box::new(session.expect("a session")));
        let never = AtomicBool::new(false);
        let index = Index::build(session, &crate::IndexOptions::default(), &never, &|_| {});
        let index = Arc::new(index.expect("an index"));
        let pool = ExplorerPool::new(session, &index, 2).expect("threads");
        for _ in 0..4 {
            assert_eq!(
                pool.ask(|_| -> u32 { panic!("a question of this test") }),
                None
            );
        }
        assert_eq!(pool.ask(|explorer| explorer.search("", 1).len()), Some(0));
    }
}
