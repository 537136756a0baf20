//! What packets tell by themselves, as `cofi events` lists it.

use std::fmt::Write;
use std::sync::Arc;

use cofi_flow::{Event, Field, LocatedEvent};
use cofi_packet::StreamOffset;
use cofi_session::Signal;

use super::{CPU, OFFSET, RECORDING, TID, head};
use crate::columns::{Column, address, number, text};
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};

/// A row for each event, signal and error.
#[derive(Debug)]
pub(super) struct Events;

const COLUMNS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    OFFSET,
    text(
        "event",
        "what: `enabled`, `async_branch`, `overflow`, `ptwrite`, `signal`, …; NULL of an error",
    ),
    text(
        "error",
        "where packets contradict themselves or something is missing: what is wrong, in a sentence; NULL of an event",
    ),
    address(
        "ip",
        "the instruction at which it was (`at` of `cofi events --json`), else the one that it names (`ip`); NULL if there is none",
    ),
    number(
        "tsc",
        "the time, in ticks of the time stamp counter, as far as packets tell",
    ),
    number(
        "time_ns",
        "the time, in perf's nanoseconds; NULL if the file does not say how to convert",
    ),
    text("packets", "the packets that tell it"),
    text(
        "fields",
        "its values, a JSON object with the names that `cofi events --json` has; addresses are texts `0x…`",
    ),
];

impl Table for Events {
    fn name(&self) -> &'static str {
        "events"
    }

    fn about(&self) -> &'static str {
        "One row for each event, signal and error, as `cofi events --json` has them. Packets are read for it, and no code."
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn units(&self, recording: &Arc<Recording>, limits: &Limits) -> Units {
        Units::streams(recording, limits)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let Some(stream) = unit.stream() else { return };
        let mut signals = stream.signals_from(StreamOffset(0));
        for told in unit.recording.session().events(stream) {
            while let Some(signal) = signals.before(told.offset) {
                put_signal(unit, signal, out);
            }
            let is_gap = matches!(told.what, Err(_) | Ok(Event::Overflow { .. }));
            unit.recording.note_gaps(is_gap.into());
            put(unit, &told, out);
            if out.is_closed() {
                return;
            }
        }
        while let Some(signal) = signals.at_end() {
            put_signal(unit, signal, out);
        }
    }
}

fn put(unit: &Unit, told: &LocatedEvent, out: &mut Outlet) {
    let Some(stream) = unit.stream() else { return };
    out.put(|row| {
        head(row, unit, stream.key(), stream.task().tid)
            .number(told.offset.0)
            .text(told.what.as_ref().ok().map(Event::name));
        let error = told.what.as_ref().err().map(|error| error.kind.to_string());
        let ip = match &told.what {
            Ok(event) => told.ip.or_else(|| ip_of(event)),
            Err(error) => error.ip,
        };
        row.text(error.as_deref())
            .address(ip.map(|ip| ip.0))
            .number(told.tsc.map(|tsc| tsc.0))
            .number(unit.recording.nanoseconds(told.tsc));
        let packets = told.what.is_ok() && row.wants_next();
        row.text(packets.then(|| told.packets.to_string()).as_deref());
        let fields = told.what.as_ref().ok().filter(|_| row.wants_next());
        row.text(fields.map(fields_of).as_deref());
    });
}

fn put_signal(unit: &Unit, signal: &Signal, out: &mut Outlet) {
    let Some(stream) = unit.stream() else { return };
    out.put(|row| {
        let address = match signal.address {
            Some(address) => format!("\"{address:#x}\""),
            None => "null".to_owned(),
        };
        let fields = format!(
            "{{\"signal\":\"{}\",\"address\":{address},\"fatal\":{}}}",
            signal.name(),
            signal.is_fatal
        );
        head(row, unit, stream.key(), stream.task().tid)
            .number(signal.offset.0)
            .text("signal")
            .text(None::<&str>)
            .address(signal.ip.map(|ip| ip.0))
            .number(None::<u64>)
            .number(None::<u64>)
            .text(None::<&str>)
            .text(fields.as_str());
    });
}

/// The address that an event has of itself.
fn ip_of(event: &Event) -> Option<cofi_packet::Ip> {
    let mut ip = None;
    event.fields(&mut |name, field| {
        if let ("ip", Field::Hex(Some(value))) = (name, field) {
            ip = Some(cofi_packet::Ip(value));
        }
    });
    ip
}

/// The values of an event as a JSON object.
fn fields_of(event: &Event) -> String {
    let mut json = String::from("{");
    event.fields(&mut |name, field| {
        if json.len() > 1 {
            json.push(',');
        }
        // Writing to a text does not fail. Names and texts of events are words of ASCII letters.
        let _ = match field {
            Field::Hex(Some(value)) => write!(json, "\"{name}\":\"{value:#x}\""),
            Field::Number(Some(value)) => write!(json, "\"{name}\":{value}"),
            Field::Flag(flag) => write!(json, "\"{name}\":{flag}"),
            Field::Text(text) => write!(json, "\"{name}\":\"{}\"", text.escape_default()),
            _ => write!(json, "\"{name}\":null"),
        };
    });
    json.push('}');
    json
}
