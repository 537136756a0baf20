//! `cofi dump`: the packets of a trace, in order.

use crate::Ended;
use crate::args::{DumpArgs, Format as FileFormat};
use crate::input;
use crate::json::Line;
use crate::output::stdout;
use anyhow::Result;
use cofi_packet::intel::IntelPt;
use cofi_packet::rtit::{Mode, Rtit};
use cofi_packet::{Format, Item, Listed, Listing, PacketKind, Packets, Value, extent};
use std::io::Write;

/// Runs the command.
pub(crate) fn run(args: &DumpArgs) -> Result<Ended> {
    let bytes = input::read(&args.input.file)?;
    let mut out = stdout();
    let errors = if args.input.format == Some(FileFormat::Rtit) {
        let mode = if args.cycle_accurate {
            Mode::CycleAccurate
        } else {
            Mode::Plain
        };
        let packets = Packets::<Rtit>::new(&bytes).in_context(mode);
        dump(packets, |_| {}, args.json, &mut out)?
    } else {
        let session = input::open(&args.input, &bytes)?;
        let mut errors = input::report(&session);
        let several = session.streams().len() > 1;
        for stream in session.streams() {
            if several && !args.json {
                writeln!(out, "; {}", input::title(stream))?;
            }
            let packets = Packets::<IntelPt>::new(stream.bytes());
            let tag = |line: &mut Line| {
                if several {
                    input::tag(stream, line);
                }
            };
            errors |= dump(packets, tag, args.json, &mut out)?;
        }
        errors
    };
    out.flush()?;
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// Prints one stream; whether it holds errors.
fn dump<F: Format>(
    packets: Packets<'_, F>,
    tag: impl Fn(&mut Line),
    json: bool,
    out: &mut impl Write,
) -> Result<bool> {
    let mut line = Line::default();
    let mut listing = Listing::<F>::new();
    let mut errors = false;
    for item in packets {
        errors |= item.is_err();
        if json {
            describe(&item, &mut listing, line.begin());
            tag(&mut line);
            out.write_all(line.end())?;
        } else {
            print(&item, &mut listing, out)?;
        }
    }
    Ok(errors)
}

fn listed<F: Format>(item: &Item<F>, listing: &mut Listing<F>) -> Option<Listed<F>> {
    match item {
        Ok(located) => Some(listing.next(&located.raw)),
        Err(error) => error.packet.map(|raw| listing.next(&raw)),
    }
}

fn describe<F: Format>(item: &Item<F>, listing: &mut Listing<F>, line: &mut Line) {
    let (offset, size) = extent(item);
    line.number("offset", offset.0);
    let listed = listed(item, listing);
    // PTW and BBP have a field called size, which the contract lists as theirs.
    let mut has_size = false;
    if let Some(listed) = &listed {
        listed.visit(&mut |key, _| has_size |= key == "size");
    }
    line.number(if has_size { "length" } else { "size" }, size as u64);
    if let Some(listed) = listed {
        line.text("packet", listed.raw().kind().name());
        listed.visit(&mut |key, value| {
            match value {
                Value::Bool(flag) => line.flag(key, flag),
                Value::Number(number) | Value::Named(number, _) => line.number(key, number),
                Value::Hex(number) => line.hex(key, number),
                Value::Address(ip) => line.hex_or_null(key, ip.map(|ip| ip.0)),
                Value::Payload(bits) => line.hex_or_null(key, bits),
                Value::Mode(mode) => line.number(key, mode.bits()),
                Value::Absent => line.null(key),
                _ => line.text(key, &value.to_string()),
            };
        });
    }
    if let Err(error) = item {
        line.text("error", &error.error.to_string());
    }
}

fn print<F: Format>(item: &Item<F>, listing: &mut Listing<F>, out: &mut impl Write) -> Result<()> {
    let (offset, size) = extent(item);
    write!(out, "{:8x}: ", offset.0)?;
    let listed = listed(item, listing);
    if let Some(listed) = &listed {
        write!(out, "{listed}")?;
    }
    match item {
        Ok(_) => {}
        Err(error) if listed.is_some() => write!(out, " ; error: {}", error.error)?,
        Err(error) => write!(out, "; error: {}; {size} bytes passed over", error.error)?,
    }
    writeln!(out)?;
    Ok(())
}
