//! What Cofi's recorder says of the recording as a whole.

use std::collections::BTreeMap;
use std::fmt;

use cofi_perf::Remark;

/// What a recording says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recording {
    /// The engine that ran the program.
    pub engine: String,
    /// What the recorder knew to be missing, each once.
    pub missing: Vec<Missing>,
    /// What the recorder was asked not to keep, each once.
    pub omitted: Vec<Missing>,
    /// The recorder came to its end: it has said all that is missing.
    pub is_finished: bool,
}

/// Something that ran, or may have run, and that is not in the trace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Missing {
    /// Of which thread, if of one.
    pub tid: Option<u32>,
    /// What is missing and why, of one of them.
    pub text: String,
    /// How many there are of what the text says.
    pub count: u64,
}

/// One sentence, without a full stop.
impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = cofi_perf::MissingRemark {
            tid: self.tid,
            count: self.count,
            text: self.text.as_bytes(),
        };
        missing.fmt(f)
    }
}

/// What is missing of a recording that did not come to its end.
const UNFINISHED: &str = "the recording did not come to its end, as if it was killed: what ran last is not in the trace, nor is it known \
     what else is missing";

impl Recording {
    /// Whether the recording holds everything, as far as the recorder knows.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_finished && self.missing.is_empty()
    }

    /// All that was not wanted, in one sentence each.
    pub fn omissions(&self) -> impl Iterator<Item = String> {
        self.omitted.iter().map(ToString::to_string)
    }

    /// All that is missing, in one sentence each.
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        let unfinished = (!self.is_finished).then(|| UNFINISHED.to_owned());
        let missing = self.missing.iter().map(ToString::to_string);
        missing.chain(unfinished)
    }
}

/// Sentences, in the order in which they were said first.
#[derive(Debug, Default)]
struct List {
    all: Vec<Missing>,
    /// Where each is.
    known: BTreeMap<(Option<u32>, String), usize>,
}

impl List {
    fn take(&mut self, said: &cofi_perf::MissingRemark<'_>) {
        let (tid, text) = (said.tid, String::from_utf8_lossy(said.text).into_owned());
        let at = *self.known.entry((tid, text.clone())).or_insert_with(|| {
            self.all.push(Missing {
                tid,
                text,
                count: 0,
            });
            self.all.len() - 1
        });
        if let Some(known) = self.all.get_mut(at) {
            known.count = known.count.saturating_add(said.count.max(1));
        }
    }
}

/// What has been read of it so far.
#[derive(Debug, Default)]
pub(crate) struct Said {
    engine: Option<String>,
    missing: List,
    omitted: List,
    is_finished: bool,
}

impl Said {
    pub(crate) fn take(&mut self, remark: &Remark<'_>) {
        match remark {
            Remark::Began { engine } => {
                self.engine = Some(String::from_utf8_lossy(engine).into_owned());
            }
            Remark::Missing(missing) => self.missing.take(missing),
            Remark::Omitted(omitted) => self.omitted.take(omitted),
            Remark::Finished => self.is_finished = true,
            _ => {}
        }
    }

    /// What the file says; `None` if a recorder that says such things has not written it.
    pub(crate) fn finish(self) -> Option<Recording> {
        if self.engine.is_none() && self.missing.all.is_empty() && !self.is_finished {
            return None;
        }
        Some(Recording {
            engine: self.engine.unwrap_or_default(),
            missing: self.missing.all,
            omitted: self.omitted.all,
            is_finished: self.is_finished,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(tid: Option<u32>, count: u64, text: &[u8]) -> Remark<'_> {
        Remark::Missing(cofi_perf::MissingRemark { tid, count, text })
    }

    #[test]
    fn who_says_nothing_is_no_recording_of_ours() {
        assert_eq!(Said::default().finish(), None);
    }

    #[test]
    fn what_is_said_twice_is_counted_and_said_once() {
        let mut said = Said::default();
        let remarks = [
            Remark::Began { engine: b"qemu" },
            missing(None, 2, b"a thread is away"),
            missing(Some(7), 1, b"it was killed"),
            missing(None, 1, b"a thread is away"),
        ];
        remarks.iter().for_each(|remark| said.take(remark));
        let recording = said.finish().expect("a recording");
        assert!(!recording.is_whole() && !recording.is_finished);
        let sentences: Vec<_> = recording.sentences().collect();
        assert_eq!(sentences.len(), 3);
        assert_eq!(sentences[0], "a thread is away (3 times)");
        assert_eq!(sentences[1], "thread 7: it was killed");
        assert!(sentences[2].contains("did not come to its end"));
    }

    #[test]
    fn a_recording_is_whole_that_ended_and_misses_nothing() {
        let mut said = Said::default();
        said.take(&Remark::Began { engine: b"ptrace" });
        said.take(&Remark::Finished);
        let recording = said.finish().expect("a recording");
        assert!(recording.is_whole());
        assert_eq!(recording.sentences().count(), 0);
        assert_eq!(recording.engine, "ptrace");
    }
}
