//! `cofi unit`: the software trace unit by itself.

mod check;
mod cpuid;
mod expect;
mod intel;
mod matching;
mod play;
mod reader;
mod record;
mod registers;
mod rtit;
mod scenario;
mod show;
mod values;

pub(crate) use cpuid::{cpuid, generations};

use crate::args::UnitRunArgs;
use crate::output::{is_coloured, stdout, tell};
use crate::{Ended, input};
use anyhow::{Context, Result, anyhow, bail};
use reader::Table;
use record::Record;
use registers::Traced;
use scenario::{Expected, UnitName};
use std::io::Write;

/// Runs `cofi unit run`.
pub(crate) fn run(args: &UnitRunArgs) -> Result<Ended> {
    let name = args.scenario.display();
    let bytes = input::read(&args.scenario)?;
    let text = String::from_utf8(bytes).map_err(|_| anyhow!("{name} is not UTF-8"))?;
    let wrong = |mistake: reader::Mistake| anyhow!("{name}:{}", mistake.told(&text));
    let document = reader::parse(&text).map_err(wrong)?;
    let table = Table::new("the scenario", 0..0, document.get_ref());
    let (unit, expect, ip) = scenario::about(&table).map_err(wrong)?;
    let out = Out {
        args,
        text: &text,
        expect,
    };
    match unit {
        UnitName::IntelPt => {
            let record = intel::play(&table, ip).map_err(wrong)?;
            table.finish().map_err(wrong)?;
            out.print(&record)
        }
        UnitName::Rtit => {
            let record = rtit::play(&table, ip).map_err(wrong)?;
            table.finish().map_err(wrong)?;
            out.print(&record)
        }
    }
}

/// What to do with what came out.
struct Out<'a> {
    args: &'a UnitRunArgs,
    /// The scenario's text.
    text: &'a str,
    expect: Expected,
}

impl Out<'_> {
    fn print<F: Traced>(&self, record: &Record<F>) -> Result<Ended> {
        let args = self.args;
        let name = args.scenario.display();
        if let Some(path) = &args.raw_output {
            std::fs::write(path, &record.stream)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let mut out = stdout();
        let errors = if args.check {
            if self.expect.start.is_none() && self.expect.operations.is_none() {
                bail!("{name}: there is nothing to check: the scenario has no key `expect`");
            }
            let difference = check::difference(record, &self.expect)
                .map_err(|mistake| anyhow!("{name}:{}", mistake.told(self.text)))?;
            if let Some(difference) = &difference {
                out.write_all(difference.as_bytes())?;
                tell(format_args!("{name}: the output is not as expected"));
            }
            difference.is_some()
        } else {
            show::show(record, args.json, is_coloured(args.color), &mut out)?
        };
        out.flush()?;
        for error in record.errors.iter().filter(|_| !args.check) {
            tell(format_args!("{name}: {error}"));
        }
        Ok(if errors {
            Ended::WithErrors
        } else {
            Ended::Well
        })
    }
}
