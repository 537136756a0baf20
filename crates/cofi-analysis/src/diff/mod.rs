//! Two recordings of a program, set side by side: where they part, and where they come together again.
//!
//! [`FileMatches`] says which code of one recording is which of the other: of the same file by offset, wherever it was loaded; of another build
//! by function. [`compare`] takes the flows of two threads, each decoded by a thread of its own that feeds a [`Feed`], and goes along both as
//! long as they are the same. Where they part it looks ahead on both sides for where they are the same again.
//!
//! What it looks at there are only the calls that were open where the flows parted: the same instruction of the same one of these calls, with a
//! number of others behind it, is where they come together. What they called in between is not looked at. So a signal's handler, a function
//! called oftener or another one called instead cost nothing, and what runs in it by chance on both sides is not taken for the same. If
//! nothing is found within bounds, the innermost call is given up, and the search goes on where it has returned on both sides.

mod align;
mod feed;
mod files;
mod marks;
mod pairs;
mod paths;
mod side;
#[cfg(test)]
mod tests;
mod tokens;
mod walk;

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;

use cofi_image::Place;
use cofi_packet::{ExecMode, Ip, StreamOffset, Tsc};

use crate::calls::CallKind;
use crate::gap::GapCause;
use align::Differ;
use tokens::Tokens;

pub use feed::Feed;
pub use files::{ComparedFile, FileMatch, FileMatches};
pub use pairs::{ThreadPair, match_threads};

/// How finely flows are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Instruction by instruction; of functions that were built anew, by line.
    #[default]
    Instructions,
    /// Line by line; where lines are not known, function by function.
    Lines,
    /// Which function ran after which.
    Functions,
}

/// What is asked of a comparison. By default only whether the recordings differ.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct DiffOptions {
    /// So many places are told in detail.
    pub partings: usize,
    /// Other ways through string functions, which depend on where data lies, count as differences too.
    pub strict: bool,
    /// The streams are those of one thread each, so that calls are known.
    pub has_calls: bool,
}

/// An instruction of one recording.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Spot {
    /// Its address there.
    pub ip: Ip,
    /// Where in which file.
    pub place: Option<Place>,
    /// Its mode.
    pub mode: ExecMode,
    /// Its length.
    pub len: u8,
}

impl Spot {
    /// The instruction's bytes, if they are there.
    #[must_use]
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let place = self.place.as_ref()?;
        let mut bytes = vec![0; self.len.into()];
        let read = place.file.read_at(place.offset, &mut bytes);
        (read == bytes.len()).then_some(bytes)
    }

    /// Whether it compares in wide registers: PCMPEQ, PMOVMSKB, or AVX.
    fn compares_wide(&self) -> bool {
        let bytes = self.bytes().unwrap_or_default();
        let is_prefix = |byte: &&u8| matches!(byte, 0x66 | 0xf2 | 0xf3 | 0x40..=0x4f);
        let rest = bytes.get(bytes.iter().take_while(is_prefix).count()..);
        matches!(
            rest,
            Some([0xc4 | 0xc5 | 0x62, ..]) | Some([0x0f, 0x74..=0x76 | 0xd7, ..])
        )
    }

    /// Whether it is of SSE or AVX: those have wide registers.
    fn is_wide(&self) -> bool {
        let bytes = self.bytes().unwrap_or_default();
        let is_prefix = |byte: &&u8| matches!(byte, 0x66 | 0xf2 | 0xf3 | 0x40..=0x4f);
        let rest = bytes.get(bytes.iter().take_while(is_prefix).count()..);
        matches!(
            rest,
            Some([0xc4 | 0xc5 | 0x62, ..])
                | Some([0x0f, 0x10..=0x17 | 0x28..=0x2f | 0x50..=0x7f | 0xd0..=0xfe, ..])
        )
    }
}

/// An open call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Frame {
    /// The function, or what its code belongs to.
    pub name: String,
    /// It is a function's name.
    pub is_named: bool,
    /// The file that holds it.
    pub file: Option<PathBuf>,
    /// How it began.
    pub kind: CallKind,
}

/// What one side did where the two part.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Turn {
    /// How many instructions of the thread are before it.
    pub before: u64,
    /// The instructions that come, the first few, up to a gap; none if the thread has ended.
    pub coming: Vec<Spot>,
    /// The open calls, innermost first.
    pub frames: Vec<Frame>,
    /// About when: when the innermost call began.
    pub tsc: Option<Tsc>,
    /// How many instructions ran before the two came together again, or up to the end.
    pub skipped: u64,
    /// The functions that were called meanwhile, the first few, each once, without those that these called.
    pub entered: Vec<Frame>,
    /// What is missing of the flow there and meanwhile.
    pub missing: Vec<(GapCause, StreamOffset)>,
}

/// Why two flows part, as far as it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartingCause {
    /// Another instruction came.
    Other,
    /// In a function of the C library that goes through memory, and whose way depends on where that lies: both returned to the same place, and
    /// neither called anything.
    Strings,
    /// In a function that waits for other threads: which way it takes depends on who came first.
    Lock,
    /// A signal's handler ran on the first side, or on the second, and nothing else differs.
    Signal(usize),
    /// The first side ended, or the second.
    End(usize),
    /// A part of the flow is missing.
    Gap,
}

/// A place where two flows part.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Parting {
    /// How many instructions of the first side were the same as on the second before it.
    pub index: u64,
    /// The last instruction before it, on both sides, if they were together.
    pub last: Option<[Spot; 2]>,
    /// What each side did.
    pub turns: [Turn; 2],
    /// Why.
    pub cause: PartingCause,
    /// Where they come together again, on both sides; none if they do not, or that was not found.
    pub together: Option<[Spot; 2]>,
}

/// What came of the comparison of two threads.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ThreadDiff {
    /// How many instructions ran on each side.
    pub insns: [u64; 2],
    /// How many of them were found the same.
    pub equal: [u64; 2],
    /// How many stand between those and were not compared: code that was left out, or of which nothing is known to go by.
    pub left_out: [u64; 2],
    /// The first places where they part, without those that are set aside.
    pub partings: Vec<Parting>,
    /// How many there are.
    pub count: u64,
    /// How many other ways through string functions there were that are set aside, and how many instructions of each side that concerns.
    pub aside: u64,
    /// See there.
    pub aside_insns: [u64; 2],
    /// How often flow is missing on each side.
    pub gaps: [u64; 2],
    /// Where, the first few.
    pub missing: [Vec<(GapCause, StreamOffset)>; 2],
    /// So many distinct instructions of generated code without a name were compared by their bytes, without what may be addresses.
    pub by_bytes: u64,
}

impl ThreadDiff {
    /// Whether no difference was found and nothing is missing.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.count == 0 && !self.has_gaps()
    }

    /// Whether flow is missing on a side.
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        self.gaps.iter().any(|gaps| *gaps > 0)
    }
}

/// Compares two flows. `a` and `b` are called in threads of their own, and have to feed all that is to be compared of theirs.
pub fn compare<X: Send, Y: Send>(
    files: &mut FileMatches,
    options: &DiffOptions,
    a: impl FnOnce(&mut Feed) -> X + Send,
    b: impl FnOnce(&mut Feed) -> Y + Send,
) -> (ThreadDiff, X, Y) {
    /// So many batches may wait.
    const WAITING: usize = 8;
    std::thread::scope(|scope| {
        let (send_a, receive_a) = sync_channel(WAITING);
        let (send_b, receive_b) = sync_channel(WAITING);
        let has_calls = options.has_calls;
        let a = scope.spawn(move || {
            let mut feed = Feed::new(send_a, has_calls);
            let value = a(&mut feed);
            feed.finish();
            value
        });
        let b = scope.spawn(move || {
            let mut feed = Feed::new(send_b, has_calls);
            let value = b(&mut feed);
            feed.finish();
            value
        });
        let diff = Differ::new([receive_a, receive_b], Tokens::new(files), options).run();
        let a = a.join().unwrap_or_else(|panic| resume_unwind(panic));
        let b = b.join().unwrap_or_else(|panic| resume_unwind(panic));
        (diff, a, b)
    })
}
