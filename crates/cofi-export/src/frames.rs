//! The functions of all streams.

use std::path::{Path, PathBuf};

use cofi_analysis::{CallNames, FunctionId};
use rustc_hash::FxHashMap;

/// A function of [`Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Its name, demangled, or else what its code belongs to.
    pub name: String,
    /// The file that holds its code.
    pub file: Option<PathBuf>,
}

/// Functions by number: those of one name in one file are one, whichever stream they ran in.
#[derive(Debug, Default)]
pub struct Frames {
    list: Vec<Frame>,
    numbers: FxHashMap<Frame, FrameId>,
    /// Those of the stream at hand.
    known: FxHashMap<FunctionId, FrameId>,
}

impl Frames {
    /// Another stream begins, which numbers its functions anew.
    pub(crate) fn begin_stream(&mut self) {
        self.known.clear();
    }

    /// The number of a function of the stream at hand.
    pub(crate) fn number(&mut self, function: FunctionId, names: &CallNames) -> FrameId {
        let Self {
            list,
            numbers,
            known,
        } = self;
        *known.entry(function).or_insert_with(|| {
            let frame = Frame {
                name: names.describe(function).to_owned(),
                file: names.file(function).map(Path::to_path_buf),
            };
            let next = FrameId(list.len() as u32);
            *numbers.entry(frame).or_insert_with_key(|frame| {
                list.push(frame.clone());
                next
            })
        })
    }

    /// A function.
    #[must_use]
    pub fn get(&self, frame: FrameId) -> Option<&Frame> {
        self.list.get(frame.0 as usize)
    }

    /// A function's name.
    #[must_use]
    pub fn name(&self, frame: FrameId) -> &str {
        self.get(frame).map_or("?", |frame| frame.name.as_str())
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Frame> {
        self.list.iter()
    }
}
