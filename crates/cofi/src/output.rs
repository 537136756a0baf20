//! Standard output, buffered.

use std::io::{BufWriter, StdoutLock};

/// A buffered, locked standard output. Flush it at the end, so that errors show.
pub(crate) fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, std::io::stdout().lock())
}
