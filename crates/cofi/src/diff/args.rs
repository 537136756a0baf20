//! The arguments of `cofi diff`.

use crate::args::{FlowInput, Parallel};
use crate::output::Color;
use crate::point::Point;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// How finely `cofi diff` compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum DiffLevel {
    /// Each instruction; in functions that another build has otherwise, each line.
    Insns,
    /// Each line of the source; each function where lines are not known.
    Lines,
    /// Each function, in the order in which they run.
    Functions,
}

/// Arguments of `cofi diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// One JSON object with the first place where the recordings part, then one for each function that ran oftener in one.
    #[arg(long)]
    pub(crate) json: bool,
    /// How many places where they part are shown.
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    pub(crate) number: usize,
    /// How finely they are compared.
    #[arg(long, value_name = "LEVEL", default_value = "insns")]
    pub(crate) by: DiffLevel,
    /// Only code of files (programs and libraries) whose path contains TEXT is compared.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// Other ways through `strcmp`, `memcpy` and the like, which depend on where data lies, are differences, too.
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) parallel: Parallel,
    /// Begin in each recording at the first item at or after POINT: `sym:NAME` (that the function's first instruction runs),
    /// `time:1.234567` or `time:-10ms` (before the end), `tsc:N`, `offset:N`, `ip:0x…`.
    #[arg(long, value_name = "POINT")]
    pub(crate) from: Option<Point>,
    /// End in each before the first item at or after POINT; with `ip:0x…` and `sym:NAME`, with that instruction.
    #[arg(long, value_name = "POINT")]
    pub(crate) to: Option<Point>,
    /// Only this thread, of either recording, and the one that is compared with it; may be given several times.
    #[arg(long, value_name = "TID")]
    pub(crate) tid: Vec<u32>,
    /// When to use colours.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
    /// The second recording, if FILE is the first. Without it the first is what `cofi record` has kept as FILE.old, and FILE the second.
    #[arg(value_name = "B")]
    pub(crate) other: Option<PathBuf>,
}
