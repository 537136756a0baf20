//! Bytes of packets: a part of the trace file, or of another file that several streams may share.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// The bytes of a file that stays in memory, or mapped, as long as a session needs it.
pub type FileBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Gets the bytes of a file; see [`SessionOptions::open`](crate::SessionOptions::open).
pub type OpenFile = fn(&Path) -> io::Result<FileBytes>;

/// Puts pieces of files one behind the other; see [`SessionOptions::join`](crate::SessionOptions::join).
pub type JoinPieces = fn(&[&[u8]]) -> Option<FileBytes>;

/// Bytes that are borrowed from the trace file or shared; a clone copies none of them.
#[derive(Clone)]
pub(crate) enum Bytes<'t> {
    Borrowed(&'t [u8]),
    Shared {
        file: FileBytes,
        range: Range<usize>,
    },
}

impl Bytes<'_> {
    pub(crate) fn shared(file: FileBytes) -> Self {
        let range = 0..file.as_ref().as_ref().len();
        Self::Shared { file, range }
    }

    /// Takes bytes away from the beginning and the end.
    pub(crate) fn narrow(&mut self, kept: Range<usize>) {
        match self {
            Self::Borrowed(bytes) => *bytes = &bytes[kept],
            Self::Shared { range, .. } => {
                *range = range.start + kept.start..range.start + kept.end;
            }
        }
    }
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Shared { file, range } => {
                // What was mapped may have become shorter, as far as the caller's type lets it.
                let bytes = file.as_ref().as_ref();
                bytes.get(range.clone()).unwrap_or_default()
            }
        }
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl<'t> From<Cow<'t, [u8]>> for Bytes<'t> {
    fn from(bytes: Cow<'t, [u8]>) -> Self {
        match bytes {
            Cow::Borrowed(bytes) => Self::Borrowed(bytes),
            Cow::Owned(bytes) => Self::shared(Arc::new(bytes)),
        }
    }
}

impl<'t> From<&'t [u8]> for Bytes<'t> {
    fn from(bytes: &'t [u8]) -> Self {
        Self::Borrowed(bytes)
    }
}

impl From<FileBytes> for Bytes<'_> {
    fn from(file: FileBytes) -> Self {
        Self::shared(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_narrowed_alike() {
        let all: Vec<u8> = (0..10).collect();
        let mut kinds = [
            Bytes::from(all.as_slice()),
            Bytes::from(Cow::Owned(all.clone())),
        ];
        for bytes in &mut kinds {
            bytes.narrow(2..9);
            bytes.narrow(1..3);
            assert_eq!(**bytes, [3, 4]);
            assert_eq!(format!("{bytes:?}"), "2 bytes");
        }
    }
}
