//! The formats.

mod aggregate;
mod callgrind;
mod chrome;
mod firefox;
mod folded;
mod perfetto;
mod pprof;
mod speedscope;
mod svg;
mod table;
mod text;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::str::FromStr;

use aggregate::Aggregate;
use cofi_packet::Tsc;

use crate::{Exporter, Weight};

/// Who writes, for formats that have a place for it.
const CREATOR: &str = concat!("cofi ", env!("CARGO_PKG_VERSION"));

/// A text as JSON has it.
fn quoted(text: &str) -> serde_json::Value {
    serde_json::Value::from(text)
}

/// A format of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// A line for each distinct stack: its functions, and what it weighs.
    Folded,
    /// A flame graph.
    Svg,
    /// speedscope's own, with events.
    Speedscope,
    /// Trace events as JSON.
    Chrome,
    /// Callgrind's.
    Callgrind,
    /// The Firefox Profiler's processed profile.
    Firefox,
    /// Perfetto's traces.
    Perfetto,
    /// pprof's profiles.
    Pprof,
    /// A row for each call.
    Csv,
}

impl ExportFormat {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Folded,
        Self::Svg,
        Self::Speedscope,
        Self::Chrome,
        Self::Callgrind,
        Self::Firefox,
        Self::Perfetto,
        Self::Pprof,
        Self::Csv,
    ];

    /// Whether it shows what ran when, and does not add up alike stacks.
    #[must_use]
    pub const fn is_timeline(self) -> bool {
        !matches!(
            self,
            Self::Folded | Self::Svg | Self::Callgrind | Self::Pprof
        )
    }

    /// Formats that are wanted and do not exist yet.
    const MISSING: &[&str] = &["parquet"];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Folded => "folded",
            Self::Svg => "svg",
            Self::Speedscope => "speedscope",
            Self::Chrome => "chrome",
            Self::Callgrind => "callgrind",
            Self::Firefox => "firefox",
            Self::Perfetto => "perfetto",
            Self::Pprof => "pprof",
            Self::Csv => "csv",
        }
    }
}

impl FromStr for ExportFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|format| format.name() == text);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|format| format.name()).collect();
            let names = names.join(", ");
            match Self::MISSING.contains(&text) {
                true => format!("{text} does not exist yet; these do: {names}"),
                false => format!("no such format; there are {names}"),
            }
        })
    }
}

/// Begins to write a format. `time` converts the time stamp counter to nanoseconds.
pub fn open<'a>(
    format: ExportFormat,
    weight: Weight,
    time: impl Fn(Tsc) -> Option<u64> + 'a,
    out: impl Write + 'a,
) -> Box<dyn Exporter + 'a> {
    let tree = match format {
        ExportFormat::Speedscope => return Box::new(speedscope::Speedscope::new(weight, out)),
        ExportFormat::Chrome => return Box::new(chrome::Chrome::new(weight, out)),
        ExportFormat::Firefox => return Box::new(firefox::Firefox::new(weight, out)),
        ExportFormat::Perfetto => return Box::new(perfetto::Perfetto::new(out)),
        ExportFormat::Csv => return Box::new(table::Table::new(Box::new(time), out)),
        ExportFormat::Folded => folded::write,
        ExportFormat::Svg => svg::write,
        ExportFormat::Callgrind => callgrind::write,
        ExportFormat::Pprof => pprof::write,
    };
    Box::new(Aggregate::new(weight, out, tree))
}
