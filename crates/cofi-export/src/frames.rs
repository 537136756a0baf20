//! The functions of all streams.

use std::path::{Path, PathBuf};

use cofi_analysis::{Call, CallNames, FunctionId};
use cofi_packet::Ip;
use rustc_hash::FxHashMap;

/// A function of [`Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Frame {
    /// Its name, demangled, or else where it begins in which file.
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
    known: FxHashMap<(FunctionId, Option<Ip>), FrameId>,
}

impl Frames {
    /// Another stream begins, which numbers its functions anew.
    pub(crate) fn begin_stream(&mut self) {
        self.known.clear();
    }

    /// The number of the function of a call of the stream at hand.
    pub(crate) fn number(&mut self, call: &Call, names: &CallNames) -> FrameId {
        let Self {
            list,
            numbers,
            known,
        } = self;
        let key = (call.function, names.entry(call));
        *known.entry(key).or_insert_with(|| {
            let frame = Frame {
                name: names.label(call).into_owned(),
                file: names.file(call.function).map(Path::to_path_buf),
            };
            let next = FrameId(list.len() as u32);
            *numbers.entry(frame).or_insert_with_key(|frame| {
                list.push(frame.clone());
                next
            })
        })
    }

    /// Functions by themselves, numbered in their order.
    #[cfg(test)]
    pub(crate) fn of(list: Vec<Frame>) -> Self {
        Self {
            list,
            ..Self::default()
        }
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
