//! How often each instruction ran, and what follows from it for lines, branches and functions of the source.
//!
//! [`Tally::with_code`](crate::Tally::with_code) counts; an instruction is known by its file and its place there, so that counts of several
//! recordings add up wherever the file was loaded. [`FileCode`] is what was counted of a file, [`SourceCover`] what its debugging information
//! makes of that.

mod counts;
mod edges;
mod file;
mod source;

pub use counts::CodeCounts;
pub(crate) use counts::CodeRuns;
pub use edges::EdgeMap;
pub(crate) use edges::{EdgeStretch, Edges};
pub use file::{FileCode, FileKey, InsnCount};
pub use source::{FunctionCover, LineCount, SourceCover, SourceLines, SourcePlace};
