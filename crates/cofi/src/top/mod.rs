//! `cofi top`: the functions, lines, instructions or branches in which most ran, of one recording or several.

mod callees;
mod code;
mod functions;
mod lines;
mod open_calls;

use crate::Ended;
use crate::args::{TopArgs, TopOf};
use crate::output::Stdout;
use anyhow::Result;
use cofi_text::digits::grouped;
use std::io::Write;

/// So many rows are printed for people, unless another number is asked for.
const MOST: usize = 25;

/// Runs the command.
pub(crate) fn run(args: &TopArgs) -> Result<Ended> {
    match args.of {
        TopOf::Functions => functions::run(args),
        TopOf::Lines => lines::run(args),
        TopOf::Instructions | TopOf::Branches => code::run(args),
    }
}

/// Says how many rows there are that are not printed. `what` they are, one and several.
fn more(all: usize, shown: usize, [one, several]: [&str; 2], out: &mut Stdout) -> Result<()> {
    match all.saturating_sub(shown) as u64 {
        0 => {}
        1 => writeln!(out, " … and 1 more {one}")?,
        more => writeln!(out, " … and {} more {several}", grouped(more))?,
    }
    Ok(())
}

/// A part of all instructions, in percent.
fn share(part: u64, all: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / all.max(1) as f64)
}
