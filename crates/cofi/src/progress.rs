//! A progress bar on standard error for work that takes long, where that is a terminal.

use cofi_packet::StreamOffset;
use cofi_session::Stream;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

/// The bar that is shown.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A bar over `bytes` of trace.
pub(crate) fn decoding(bytes: u64) -> ProgressBar {
    // indicatif draws nothing where standard error is no terminal.
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("decoding {bar:40} {bytes}/{total_bytes} {eta}");
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
    bar
}

/// Takes the bar that is shown from the terminal.
pub(crate) fn clear() {
    let bar = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

/// How far the streams are that are printed one after the other. Nothing is shown where the lines themselves go to a terminal.
#[derive(Debug)]
pub(crate) struct Printing {
    bar: ProgressBar,
    /// Bytes of the streams before.
    before: u64,
}

impl Printing {
    /// Before the first of these streams.
    pub(crate) fn of<'s>(streams: impl IntoIterator<Item = &'s Stream<'s>>) -> Self {
        let bar = match std::io::stdout().is_terminal() {
            true => ProgressBar::hidden(),
            false => decoding(streams.into_iter().map(|stream| stream.len() as u64).sum()),
        };
        Self { bar, before: 0 }
    }

    /// All up to here is printed of the stream.
    pub(crate) fn reached(&self, offset: StreamOffset) {
        self.bar.set_position(self.before + offset.0);
    }

    /// So many bytes more are decoded, of whatever stream.
    pub(crate) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// All of the stream is printed.
    pub(crate) fn finish(&mut self, stream: &Stream<'_>) {
        self.before += stream.len() as u64;
        self.bar.set_position(self.before);
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        clear();
    }
}
