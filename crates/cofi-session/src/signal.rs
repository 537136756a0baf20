//! Signals that interrupted threads or ended processes, at their places in the streams.

use cofi_packet::{Ip, StreamOffset};

use crate::Task;

/// A signal that interrupted a thread, or ended its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signal {
    /// The thread.
    pub task: Task,
    /// Up to which byte the thread's stream is about what came before it.
    pub offset: StreamOffset,
    /// Its number.
    pub number: u32,
    /// Its `si_code`.
    pub code: i32,
    /// Where the thread was, if that is known.
    pub ip: Option<Ip>,
    /// The address that a fault was about, if it was a fault and the address is known.
    pub address: Option<u64>,
    /// It ended the process; else a handler ran.
    pub is_fatal: bool,
}

/// The names of signals on x86-64, by number.
const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

impl Signal {
    /// Its name: `SIGSEGV`, `SIGRTMIN+2`; a number that is no signal's by itself.
    #[must_use]
    pub fn name(&self) -> String {
        /// Two are the C library's own, below the SIGRTMIN that programs see.
        const FIRST_REAL_TIME: u32 = 34;
        let known = self
            .number
            .checked_sub(1)
            .and_then(|i| NAMES.get(i as usize));
        match (known, self.number) {
            (Some(name), _) => (*name).to_owned(),
            (None, FIRST_REAL_TIME) => "SIGRTMIN".to_owned(),
            (None, 35..=64) => format!("SIGRTMIN+{}", self.number - FIRST_REAL_TIME),
            (None, number) => format!("signal {number}"),
        }
    }
}

/// The signals of a stream as its flow goes by: whoever shows the flow asks before each event or error which came before it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signals<'s> {
    rest: &'s [Signal],
}

impl<'s> Signals<'s> {
    /// Those of a list in the order of the stream that come at or behind `start`.
    pub(crate) fn new(all: &'s [Signal], start: StreamOffset) -> Self {
        let first = all.partition_point(|signal| signal.offset < start);
        Self {
            rest: &all[first..],
        }
    }

    /// The next one, each once, that came before an item whose last packet is at `offset` (see
    /// [`ThreadFlow::offset`](crate::ThreadFlow::offset)).
    pub fn before(&mut self, offset: StreamOffset) -> Option<&'s Signal> {
        let (first, rest) = self.rest.split_first()?;
        if first.offset > offset {
            return None;
        }
        self.rest = rest;
        Some(first)
    }

    /// The next one, each once, behind the end of the flow.
    pub fn at_end(&mut self) -> Option<&'s Signal> {
        self.before(StreamOffset(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(number: u32, offset: u64) -> Signal {
        Signal {
            task: Task { pid: 1, tid: 1 },
            offset: StreamOffset(offset),
            number,
            code: 0,
            ip: None,
            address: None,
            is_fatal: false,
        }
    }

    #[test]
    fn names() {
        let names = [1, 11, 31, 33, 34, 36, 64, 65].map(|number| signal(number, 0).name());
        let wanted = [
            "SIGHUP",
            "SIGSEGV",
            "SIGSYS",
            "signal 33",
            "SIGRTMIN",
            "SIGRTMIN+2",
            "SIGRTMIN+30",
            "signal 65",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn each_comes_once_and_before_what_is_behind_it() {
        let all = [(10, 5), (14, 9), (10, 9), (9, 20)].map(|(n, at)| signal(n, at));
        let mut signals = Signals::new(&all, StreamOffset(0));
        let mut before = |offset| {
            let mut numbers = Vec::new();
            while let Some(signal) = signals.before(StreamOffset(offset)) {
                numbers.push(signal.number);
            }
            numbers
        };
        assert!(before(4).is_empty());
        assert_eq!(before(8), [10]);
        assert_eq!(before(9), [14, 10]);
        assert_eq!(before(u64::MAX), [9]);
        assert!(before(u64::MAX).is_empty());
        let mut later = Signals::new(&all, StreamOffset(9));
        assert_eq!(later.at_end().map(|signal| signal.number), Some(14));
    }
}
