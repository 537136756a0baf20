//! lcov's tracefile, which genhtml and many services read.

use super::sources::{Source, Sources};
use super::{Totals, outcomes};
use std::io::{Result, Write};

/// Writes all source files.
pub(crate) fn write(sources: &Sources, out: &mut impl Write) -> Result<()> {
    writeln!(out, "TN:")?;
    for source in &sources.list {
        write_source(source, out)?;
    }
    Ok(())
}

fn write_source(source: &Source, out: &mut impl Write) -> Result<()> {
    let totals = Totals::of(source);
    writeln!(out, "SF:{}", source.path)?;
    for function in &source.functions {
        writeln!(out, "FN:{},{}", function.line, function.name)?;
    }
    for function in &source.functions {
        writeln!(out, "FNDA:{},{}", function.calls, function.name)?;
    }
    writeln!(out, "FNF:{}", totals.functions.all)?;
    writeln!(out, "FNH:{}", totals.functions.ran)?;
    for (line, count) in &source.lines {
        for (block, branch) in count.branches.iter().enumerate() {
            for (number, times) in outcomes(branch).into_iter().enumerate() {
                match branch.times {
                    0 => writeln!(out, "BRDA:{line},{block},{number},-")?,
                    _ => writeln!(out, "BRDA:{line},{block},{number},{times}")?,
                }
            }
        }
    }
    writeln!(out, "BRF:{}", totals.outcomes.all)?;
    writeln!(out, "BRH:{}", totals.outcomes.ran)?;
    for (line, count) in &source.lines {
        writeln!(out, "DA:{line},{}", count.count)?;
    }
    writeln!(out, "LF:{}", totals.lines.all)?;
    writeln!(out, "LH:{}", totals.lines.ran)?;
    writeln!(out, "end_of_record")
}
