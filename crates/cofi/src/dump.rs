//! `cofi dump`: the packets of a trace, in order.

use crate::Ended;
use crate::args::DumpArgs;
use crate::input;
use crate::json::Line;
use crate::output::stdout;
use anyhow::Result;
use cofi_packet::intel::{Item, LastIp, Packet, Packets, Value};
use cofi_session::Stream;
use std::io::Write;

/// Runs the command.
pub(crate) fn run(args: &DumpArgs) -> Result<Ended> {
    let bytes = input::read(&args.input.file)?;
    let session = input::open(&args.input, &bytes)?;
    let mut out = stdout();
    let mut errors = input::report(&session);
    let several = session.streams().len() > 1;
    for stream in session.streams() {
        errors |= dump(stream, several, args.json, &mut out)?;
    }
    out.flush()?;
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// Prints one stream; whether it holds errors.
fn dump(stream: &Stream<'_>, several: bool, json: bool, out: &mut impl Write) -> Result<bool> {
    let mut line = Line::default();
    let mut last_ip = LastIp::new();
    let mut errors = false;
    if several && !json {
        writeln!(out, "{}", input::title(stream))?;
    }
    for item in Packets::new(stream.bytes()) {
        errors |= item.result.is_err();
        if json {
            line.begin()
                .number("offset", item.offset.0)
                .number("size", item.size as u64);
            describe(&item, &mut last_ip, &mut line);
            if several {
                input::tag(stream, &mut line);
            }
            out.write_all(line.end())?;
        } else {
            print(&item, &mut last_ip, out)?;
        }
    }
    Ok(errors)
}

fn describe(item: &Item, last_ip: &mut LastIp, line: &mut Line) {
    let packet = match item.result {
        Ok(packet) => packet,
        Err(error) => {
            line.text("error", &error.to_string());
            return;
        }
    };
    if packet == Packet::Psb {
        last_ip.reset();
    }
    line.text("packet", packet.kind().name());
    packet.visit(&mut |key, value| {
        match value {
            Value::Bool(flag) => line.flag(key, flag),
            Value::Number(number) => line.number(key, number),
            Value::Hex(number) => line.hex(key, number),
            Value::Tnt { .. } => line.text(key, &value.to_string()),
            Value::Ip(payload) => line.hex_or_null(key, last_ip.apply(payload).map(|ip| ip.0)),
            Value::Mode(mode) => line.number(key, mode.bits()),
        };
    });
}

fn print(item: &Item, last_ip: &mut LastIp, out: &mut impl Write) -> Result<()> {
    write!(out, "{:8x}  ", item.offset.0)?;
    match item.result {
        Err(error) => write!(out, "error: {error}; {} bytes passed over", item.size)?,
        Ok(packet) => {
            if packet == Packet::Psb {
                last_ip.reset();
            }
            write!(out, "{:<9}", packet.kind().name())?;
            let mut result = Ok(());
            packet.visit(&mut |key, value| {
                if result.is_err() {
                    return;
                }
                result = match value {
                    Value::Ip(payload) => match last_ip.apply(payload) {
                        Some(ip) => write!(out, " {ip}"),
                        None => write!(out, " suppressed"),
                    },
                    Value::Tnt { .. } => write!(out, " {value}"),
                    _ if key == "ipc" => Ok(()),
                    _ => write!(out, " {key} {value}"),
                };
            });
            result?;
        }
    }
    writeln!(out)?;
    Ok(())
}
