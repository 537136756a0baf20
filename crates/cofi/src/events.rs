//! `cofi events`: what packets tell by themselves, in order.

use crate::args::EventsArgs;
use crate::item::Loss;
use crate::json::Line;
use crate::output::stdout;
use crate::{Ended, input, item};
use anyhow::Result;
use cofi_flow::{Event, Told};
use cofi_packet::StreamOffset;
use cofi_session::{Signal, Stream};
use std::io::Write;

/// Runs the command.
pub(crate) fn run(args: &EventsArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    let mut out = stdout();
    let mut errors = input::report(&session);
    let several = session.streams().len() > 1;
    let mut line = Line::default();
    for stream in session.streams() {
        if several && !args.json {
            writeln!(out, "{}", input::title(stream))?;
        }
        let mut loss = Loss::default();
        let mut events = session.events(stream);
        if args.branches {
            events = events.with_branches();
        }
        if args.ticks {
            events = events.with_ticks();
        }
        let mut signals = stream.signals_from(StreamOffset(0));
        for told in events {
            while let Some(signal) = signals.before(told.offset) {
                show_signal(signal, (args.json, stream), &mut line, &mut out)?;
            }
            errors |= told.what.is_err();
            if !args.json {
                text(&told, &mut out)?;
                continue;
            }
            describe(&told, &mut loss, &mut line);
            input::tag(stream, &mut line);
            out.write_all(line.end())?;
        }
        while let Some(signal) = signals.at_end() {
            show_signal(signal, (args.json, stream), &mut line, &mut out)?;
        }
    }
    out.flush()?;
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// Writes a signal, which no packet tells of but the recorder.
fn show_signal(
    signal: &Signal,
    (json, stream): (bool, &Stream<'_>),
    line: &mut Line,
    out: &mut impl Write,
) -> Result<()> {
    if json {
        item::describe_signal(signal, line);
        line.number("offset", signal.offset.0);
        input::tag(stream, line);
        out.write_all(line.end())?;
    } else {
        let ip = signal
            .ip
            .map_or_else(|| "-".into(), |ip| format!("{:x}", ip.0));
        let sentence = item::signal_sentence(signal);
        writeln!(
            out,
            "{:08x}: {:>15} {ip:>16}  {sentence}",
            signal.offset.0, "-"
        )?;
    }
    Ok(())
}

/// Writes what was told into `line`, all keys but those of the stream.
fn describe(told: &Told, loss: &mut Loss, line: &mut Line) {
    match &told.what {
        Ok(event) => {
            line.begin();
            item::describe_event(event, line);
            match event {
                // It says so itself.
                Event::Resync { .. } => {
                    loss.note(&(*event).into(), || (told.offset, told.tsc), Some(line))
                }
                _ => _ = line.number("offset", told.offset.0),
            }
            if let (Some(ip), true) = (told.ip, is_bare(event)) {
                line.hex("ip", ip.0);
            }
            line.text("packets", &told.packets.to_string());
        }
        Err(error) => {
            loss.note(&(*error).into(), || (told.offset, told.tsc), None);
            item::describe(&(*error).into(), line);
        }
    }
    if let Some(tsc) = told.tsc {
        line.number("tsc", tsc.0);
    }
}

/// Whether the event itself has no place for the address to which it is bound.
fn is_bare(event: &Event) -> bool {
    matches!(
        event,
        Event::Paging { .. }
            | Event::ExecMode { .. }
            | Event::Vmcs { .. }
            | Event::Mwait { .. }
            | Event::Pwre { .. }
            | Event::Pwrx { .. }
            | Event::EventData { .. }
            | Event::BlockItem { .. }
    )
}

/// Prints what was told as a line: where in the stream, when, where in the code, what, and by which packets.
fn text(told: &Told, out: &mut impl Write) -> Result<()> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let tsc = or_dash(told.tsc.map(|tsc| tsc.0.to_string()));
    let ip = or_dash(told.ip.map(|ip| format!("{:x}", ip.0)));
    let (offset, ip) = (told.offset.0, format_args!("{ip:>16}"));
    match &told.what {
        Ok(event) => writeln!(
            out,
            "{offset:08x}: {tsc:>15} {ip}  {:<44} ; {}",
            item::sentence(event),
            told.packets
        )?,
        Err(error) => writeln!(
            out,
            "{offset:08x}: {tsc:>15} {ip}  !! {}",
            item::with_advice(&error.kind)
        )?,
    }
    Ok(())
}
