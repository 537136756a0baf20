//! `cofi insn`: the executed instructions of a trace, in order.

use crate::Ended;
use crate::args::InsnArgs;
use crate::item::Loss;
use crate::json::Line;
use crate::output::stdout;
use crate::{input, item};
use anyhow::Result;
use cofi_flow::{Executed, Item};
use cofi_session::{Session, Stream, ThreadFlow};
use std::io::Write;

/// Runs the command.
pub(crate) fn run(args: &InsnArgs) -> Result<Ended> {
    let bytes = input::read(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    let mut out = stdout();
    let mut errors = input::report(&session);
    let several = session.streams().len() > 1;
    for stream in session.streams() {
        if several && !args.json {
            writeln!(out, "{}", input::title(stream))?;
        }
        errors |= if args.json {
            json(&session, stream, several, &mut out)?
        } else {
            text(&session, stream, &mut out)?
        };
    }
    out.flush()?;
    errors |= input::report_code(&session);
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// Prints a stream's flow as JSON; whether it holds errors.
fn json(
    session: &Session<'_>,
    stream: &Stream<'_>,
    several: bool,
    out: &mut impl Write,
) -> Result<bool> {
    let mut line = Line::default();
    let mut errors = false;
    let mut loss = Loss::default();
    let mut flow = session.decode(stream);
    while let Some(item) = flow.next() {
        errors |= matches!(item, Item::Error(_));
        item::describe(&item, &mut line);
        let place = || (flow.offset(), flow.time().map(|time| time.tsc));
        loss.note(&item, place, Some(&mut line));
        if several {
            input::tag(stream, &mut line);
        }
        out.write_all(line.end())?;
    }
    Ok(errors)
}

/// Prints a stream's flow as text; whether it holds errors.
fn text(session: &Session<'_>, stream: &Stream<'_>, out: &mut impl Write) -> Result<bool> {
    let mut flow = session.decode(stream);
    let mut errors = false;
    while let Some(item) = flow.next() {
        match item {
            Item::Insn(insn) => writeln!(out, "{}", line(&mut flow, &insn))?,
            Item::Event(event) => writeln!(out, "  -- {}", item::sentence(&event))?,
            Item::Error(error) => {
                errors = true;
                writeln!(out, "  !! {}", item::wrong(&error))?;
            }
        }
    }
    Ok(errors)
}

/// An instruction as a person reads it: address, place, text.
pub(crate) fn line(flow: &mut ThreadFlow<'_>, insn: &Executed) -> String {
    let mut bytes = [0; 15];
    let len = flow.read_code(insn.ip, &mut bytes).min(insn.len.into());
    let text = cofi_insn::text(&bytes[..len], insn.ip, insn.mode);
    let place = flow
        .place(insn.ip)
        .map(|place| place.to_string())
        .unwrap_or_default();
    format!("{:16x}  {:<36} {text}", insn.ip.0, place)
}
