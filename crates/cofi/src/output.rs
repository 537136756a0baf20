//! Standard output, buffered and in colour; standard error.

use clap::ValueEnum;
use std::fmt::Arguments;
use std::io::{BufWriter, IsTerminal, StdoutLock, Write};

/// A buffered, locked standard output.
pub(crate) type Stdout = BufWriter<StdoutLock<'static>>;

/// Standard output. Flush it at the end, so that errors show.
pub(crate) fn stdout() -> Stdout {
    BufWriter::with_capacity(1 << 16, std::io::stdout().lock())
}

/// Says a sentence on standard error; if that is closed, nobody wants to hear it.
pub(crate) fn tell(sentence: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "cofi: {sentence}");
}

/// When to use colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Whether standard output is to have colours.
pub(crate) fn is_coloured(color: Color) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            std::io::stdout().is_terminal()
                && !set("NO_COLOR")
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
    }
}
