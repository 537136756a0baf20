//! What an engine or a recorder knows to be missing.

use crate::Pid;
use std::fmt;

/// Something that ran, or may have run, and that is not told.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Missing {
    /// Of which thread, if of one.
    pub tid: Option<Pid>,
    /// What is missing and why, of one of them: a sentence without a full stop.
    pub text: String,
    /// How many there are of what the text says.
    pub count: u64,
}

impl Missing {
    /// One.
    pub fn new(text: impl Into<String>) -> Self {
        Self::several(1, text)
    }

    /// So many.
    pub fn several(count: u64, text: impl Into<String>) -> Self {
        Self {
            tid: None,
            text: text.into(),
            count,
        }
    }

    /// One of this thread.
    pub fn of(tid: Pid, text: impl Into<String>) -> Self {
        Self {
            tid: Some(tid),
            ..Self::new(text)
        }
    }

    /// As a file has it.
    pub(crate) fn remark(&self) -> cofi_perf::MissingRemark<'_> {
        cofi_perf::MissingRemark {
            tid: self.tid,
            count: self.count,
            text: self.text.as_bytes(),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.remark().fmt(f)
    }
}

/// The program ran on when tracing was stopped.
pub(crate) const STOPPED: &str =
    "tracing was stopped while the program ran: what it did from then on is not in the trace";
/// Others ran on when the first process had ended.
pub(crate) const OUTLIVED: &str =
    "a process ran on when the first one had ended: what it did from then on is not in the trace";
