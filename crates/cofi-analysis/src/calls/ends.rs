//! How calls ended, of those that were packed before that was known.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::ops::Range;

use cofi_packet::Tsc;

use super::{CallEnd, CallMoment, Left};

/// So many wait in memory.
const RECENT: usize = 1 << 18;

/// What an end takes in the file.
const SIZE: usize = 7 * 8;

/// So many bytes are read at once.
const READ: usize = 256 * SIZE;

/// Ends of calls in the order in which these are left. They come back in the order in which these began.
#[derive(Debug)]
pub(super) struct Ends {
    recent: Vec<(i64, CallEnd)>,
    most: usize,
    /// Sorted ones, in the file without a name.
    runs: Vec<Range<u64>>,
    file: Option<File>,
}

impl Default for Ends {
    fn default() -> Self {
        Self::with_room(RECENT)
    }
}

impl Ends {
    fn with_room(most: usize) -> Self {
        Self {
            recent: Vec::new(),
            most,
            runs: Vec::new(),
            file: None,
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.recent.is_empty() && self.runs.is_empty()
    }

    pub(super) fn push(&mut self, number: i64, end: CallEnd) -> io::Result<()> {
        self.recent.push((number, end));
        if self.recent.len() < self.most {
            return Ok(());
        }
        self.recent.sort_unstable_by_key(|(number, _)| *number);
        let bytes: Vec<u8> = self
            .recent
            .iter()
            .flat_map(|(n, end)| packed(*n, end))
            .collect();
        self.recent.clear();
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(super::temporary_file()?),
        };
        let start = self.runs.last().map_or(0, |run| run.end);
        cofi_host::write_all_at(file, &bytes, start)?;
        self.runs.push(start..start + bytes.len() as u64);
        Ok(())
    }

    /// All of them.
    pub(super) fn sorted(mut self) -> io::Result<Sorted> {
        self.recent.sort_unstable_by_key(|(number, _)| *number);
        let in_memory = Run {
            left: 0..0,
            bytes: self
                .recent
                .iter()
                .flat_map(|(n, end)| packed(*n, end))
                .collect(),
            at: 0,
        };
        let in_file = self.runs.into_iter().map(|left| Run {
            left,
            bytes: Vec::new(),
            at: 0,
        });
        let mut sorted = Sorted {
            runs: in_file.chain([in_memory]).collect(),
            file: self.file,
            next: BinaryHeap::new(),
        };
        for run in 0..sorted.runs.len() {
            sorted.advance(run)?;
        }
        Ok(sorted)
    }
}

/// Ends in order.
#[derive(Debug)]
pub(super) struct Sorted {
    runs: Vec<Run>,
    file: Option<File>,
    /// The next number of each run.
    next: BinaryHeap<Reverse<(i64, usize)>>,
}

/// Ends in order, in the file or in memory.
#[derive(Debug)]
struct Run {
    /// What of the file has not been read.
    left: Range<u64>,
    bytes: Vec<u8>,
    /// How many of the bytes are used.
    at: usize,
}

impl Sorted {
    /// The ends of calls up to this number that were not taken yet.
    pub(super) fn take_through(&mut self, last: i64) -> io::Result<Vec<(i64, CallEnd)>> {
        let mut ends = Vec::new();
        while let Some(Reverse((number, run))) = self.next.peek().copied()
            && number <= last
        {
            self.next.pop();
            if let Some(run) = self.runs.get_mut(run) {
                let end = run.bytes.get(run.at..).and_then(unpacked);
                ends.extend(end.map(|end| (number, end)));
                run.at += SIZE;
            }
            self.advance(run)?;
        }
        Ok(ends)
    }

    /// Has the next number of a run ready.
    fn advance(&mut self, number: usize) -> io::Result<()> {
        let Some(run) = self.runs.get_mut(number) else {
            return Ok(());
        };
        if run.at >= run.bytes.len()
            && let Some(file) = &self.file
        {
            let len = run.left.end.saturating_sub(run.left.start).min(READ as u64);
            run.bytes.resize(len as usize, 0);
            cofi_host::read_exact_at(file, &mut run.bytes, run.left.start)?;
            run.left.start += len;
            run.at = 0;
        }
        if let Some(first) = run.bytes.get(run.at..).and_then(|bytes| word(bytes, 0)) {
            self.next.push(Reverse((first as i64, number)));
        }
        Ok(())
    }
}

fn packed(number: i64, end: &CallEnd) -> [u8; SIZE] {
    let CallEnd {
        end: CallMoment { tsc, cycles, insns },
        left,
        ..
    } = *end;
    let flags = (left as u64) << 1 | u64::from(tsc.is_some());
    let tsc = tsc.map_or(0, |tsc| tsc.0);
    let words = [
        number as u64,
        flags,
        tsc,
        cycles,
        insns,
        end.insns,
        end.self_insns,
    ];
    let mut bytes = [0; SIZE];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn word(bytes: &[u8], index: usize) -> Option<u64> {
    let word = bytes.get(index * 8..index * 8 + 8)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

fn unpacked(bytes: &[u8]) -> Option<CallEnd> {
    let flags = word(bytes, 1)?;
    let tsc = Tsc(word(bytes, 2)?);
    Some(CallEnd {
        end: CallMoment {
            tsc: (flags & 1 != 0).then_some(tsc),
            cycles: word(bytes, 3)?,
            insns: word(bytes, 4)?,
        },
        insns: word(bytes, 5)?,
        self_insns: word(bytes, 6)?,
        left: *Left::ALL.get((flags >> 1) as usize)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However they came, and however few there is room for in memory, they come back by number.
    #[test]
    fn ends_come_back_by_number() {
        let end = |n: u64| CallEnd {
            end: CallMoment {
                tsc: (!n.is_multiple_of(3)).then_some(Tsc(n * 7)),
                cycles: n / 2,
                insns: n + 1,
            },
            insns: n * 3,
            self_insns: n,
            left: Left::ALL[(n % 5) as usize],
        };
        for room in [7, 64, 5000] {
            let mut ends = Ends::with_room(room);
            // Every number below 2003 once, out of order.
            let numbers = (0..2003_u64).map(|n| n * 1234 % 2003);
            for n in numbers.filter(|n| n % 4 != 1) {
                ends.push(n as i64, end(n)).expect("a file");
            }
            let mut sorted = ends.sorted().expect("a file");
            for first in (0..2003).step_by(10) {
                let numbers = first..(first + 10).min(2003);
                let got = sorted.take_through(numbers.end as i64 - 1);
                let wanted = numbers.filter(|n| n % 4 != 1).map(|n| (n as i64, end(n)));
                let wanted: Vec<_> = wanted.collect();
                assert_eq!(got.expect("the file"), wanted, "room for {room}");
            }
            assert!(sorted.next.is_empty());
        }
    }
}
