//! `cofi unit`: the software trace unit by itself.

mod check;
mod events;
mod ops;
mod reader;
mod scenario;
mod show;
mod values;
mod vmx;
mod world;

use crate::args::UnitRunArgs;
use crate::output::{is_coloured, stdout, tell};
use crate::{Ended, input};
use anyhow::{Context, Result, anyhow, bail};
use reader::Table;
use std::io::Write;

/// Runs `cofi unit run`.
pub(crate) fn run(args: &UnitRunArgs) -> Result<Ended> {
    let name = args.scenario.display();
    let bytes = input::read(&args.scenario)?;
    let text = String::from_utf8(bytes).map_err(|_| anyhow!("{name} is not UTF-8"))?;
    let wrong = |mistake: reader::Mistake| anyhow!("{name}:{}", mistake.told(&text));
    let document = reader::parse(&text).map_err(wrong)?;
    let table = Table::new("the scenario", 0..0, document.get_ref());
    let played = scenario::play(&table).map_err(wrong)?;
    if let Some(path) = &args.raw_output {
        std::fs::write(path, &played.world.stream)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut out = stdout();
    let errors = if args.check {
        let Some(expect) = &played.expect else {
            bail!("{name}: there is nothing to check: the scenario has no key `expect`");
        };
        let difference = check::difference(&played.world, expect).map_err(wrong)?;
        if let Some(difference) = &difference {
            out.write_all(difference.as_bytes())?;
            tell(format_args!("{name}: the output is not as expected"));
        }
        difference.is_some()
    } else {
        show::show(&played.world, args.json, is_coloured(args.color), &mut out)?
    };
    out.flush()?;
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}
