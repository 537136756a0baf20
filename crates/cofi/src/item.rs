//! One item of the flow as a line: JSON as the contract fixes it, or text.

use cofi_flow::{Event, Field, FlowError, FlowErrorKind, Item, Tick};
use cofi_packet::intel::{CState, StateValue, TsxState, WakeReason};
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_session::Signal;
use cofi_text::Line;
use cofi_text::digits::counted;

/// What is wrong, and what the user can do about it, if there is something.
pub(crate) fn with_advice(kind: &FlowErrorKind) -> String {
    let advice = match kind.name() {
        "no-code" => {
            "; give its file with --elf or --raw, or with --symfs the folder in which the files of the trace are"
        }
        "no-psb" => "; if it is something else (RTIT, say), --format tells what",
        _ => "",
    };
    format!("{kind}{advice}")
}

/// An error as a person reads it.
pub(crate) fn wrong(error: &FlowError) -> String {
    let ip = error
        .ip
        .map_or_else(String::new, |ip| format!(", instruction {ip}"));
    format!(
        "at stream offset {}{ip}: {}",
        error.offset,
        with_advice(&error.kind)
    )
}

/// From an error to where the flow is found again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loss {
    since: Option<Tsc>,
}

impl Loss {
    /// Takes note of an item and of the time at it. To `line`, which describes an item that ends a loss, it adds what was lost.
    pub(crate) fn note(
        &mut self,
        item: &Item,
        place: impl FnOnce() -> (StreamOffset, Option<Tsc>),
        line: Option<&mut Line>,
    ) {
        match item {
            Item::Error(_) if self.since.is_none() => self.since = place().1,
            Item::Event(Event::Resync { .. }) => {
                let (offset, now) = place();
                let since = self.since.take();
                let Some(line) = line else { return };
                line.number("offset", offset.0);
                if let (Some(since), Some(now)) = (since, now) {
                    line.number("tsc_from", since.0).number("tsc_to", now.0);
                }
            }
            _ => {}
        }
    }
}

fn raw(ip: Option<Ip>) -> Option<u64> {
    ip.map(|ip| ip.0)
}

/// Writes `item` into `line`, all keys but those of the stream.
pub(crate) fn describe(item: &Item, line: &mut Line) {
    line.begin();
    match item {
        Item::Insn(insn) => {
            line.hex("insn", insn.ip.0);
        }
        Item::Error(error) => {
            line.text("error", &with_advice(&error.kind))
                .number("offset", error.offset.0)
                .hex_or_null("ip", raw(error.ip))
                .text("kind", error.kind.name());
            match error.packet {
                Some(packet) => line.text("packet", packet.name()),
                None => line.null("packet"),
            };
            if let Some(expected) = error.kind.expected() {
                line.text("expected", &expected.to_string());
            }
        }
        Item::Event(event) => describe_event(event, line),
    }
}

/// Writes `event` into `line`, which has been begun.
pub(crate) fn describe_event(event: &Event, line: &mut Line) {
    line.text("event", event.name());
    event.fields(&mut |key, field| {
        match field {
            Field::Hex(value) => line.hex_or_null(key, value),
            Field::Number(Some(value)) => line.number(key, value),
            Field::Number(None) => line.null(key),
            Field::Flag(flag) => line.flag(key, flag),
            Field::Text(text) => line.text(key, &text),
            Field::Bits(bits, len) => line.tnt(key, bits, len),
            _ => line.null(key),
        };
    });
}

/// Writes a signal into `line`, all keys but those of the stream.
pub(crate) fn describe_signal(signal: &Signal, line: &mut Line) {
    line.begin()
        .text("event", "signal")
        .text("signal", &signal.name())
        .hex_or_null("ip", raw(signal.ip))
        .hex_or_null("address", signal.address)
        .flag("fatal", signal.is_fatal);
}

/// A signal as a person reads it.
pub(crate) fn signal_sentence(signal: &Signal) -> String {
    let address = match signal.address {
        Some(address) => format!(" about address {address:#x}"),
        None => String::new(),
    };
    let effect = match signal.is_fatal {
        true => "it ends the process",
        false => "its handler runs",
    };
    format!("{}{}{address}: {effect}", signal.name(), at(signal.ip))
}

fn or_nowhere(ip: Option<Ip>) -> String {
    ip.map_or_else(|| "untraced code".into(), |ip| ip.to_string())
}

/// ` at ADDRESS`, if it is known.
fn at(ip: Option<Ip>) -> String {
    ip.map_or_else(String::new, |ip| format!(" at {ip}"))
}

fn c_state(state: u8) -> String {
    CState::new(state).map_or_else(|| state.to_string(), |state| state.to_string())
}

/// An event as a person reads it.
pub(crate) fn sentence(event: &Event) -> String {
    match *event {
        Event::Enabled { ip, resumed: true } => format!("tracing resumes at {ip}"),
        Event::Enabled { ip, .. } => format!("tracing begins at {ip}"),
        Event::Disabled { ip } => format!("control goes to {}", or_nowhere(ip)),
        Event::AsyncBranch { from, to } => format!("event before {from}, to {to}"),
        Event::AsyncDisabled { at, ip } => format!("event before {at}, to {}", or_nowhere(ip)),
        Event::Overflow { ip } => {
            format!("overflow: trace was lost; it goes on at {}", or_nowhere(ip))
        }
        Event::Paging { cr3, nr } => {
            format!("CR3 = {cr3:#x}{}", if nr { ", in a guest" } else { "" })
        }
        Event::ExecMode {
            mode,
            interrupt_flag,
        } => {
            let flag = if interrupt_flag { ", IF = 1" } else { "" };
            format!("{}-bit code{flag}", mode.bits())
        }
        Event::Tsx { state, ip } => {
            let what = match state {
                TsxState::InTx => "in a transaction",
                TsxState::Aborted => "transaction aborted",
                TsxState::NotInTx => "no transaction",
            };
            format!("{what}{}", at(ip))
        }
        Event::Stop => "tracing stops: control came into a TraceStop range".into(),
        Event::Vmcs { base } => format!("VMCS = {base:#x}"),
        Event::ExStop { ip } => format!("execution stops{}", at(ip)),
        Event::Mwait { hints, ext } => format!("MWAIT, hints {hints:#x}, extensions {ext:#x}"),
        Event::Pwre {
            hw,
            state,
            sub_state,
        } => {
            let by = if hw { ", by hardware" } else { "" };
            format!("{}.{sub_state} entered{by}", c_state(state))
        }
        Event::Pwrx {
            last,
            deepest,
            wake,
        } => {
            let why = WakeReason::new(wake).map_or_else(String::new, |why| why.to_string());
            let (last, deepest) = (c_state(last), c_state(deepest));
            format!("back from {last}, {deepest} at the deepest: {why}")
        }
        Event::Ptwrite { ip, payload, .. } => format!("PTWRITE {payload:#x}{}", at(ip)),
        Event::Control { event, vector, ip } => {
            let vector = vector.map_or_else(String::new, |vector| format!(" {vector}"));
            let name = event.name().replace('_', " ");
            format!("{name}{vector}{}", at(ip))
        }
        Event::EventData { kind: 0, payload } => format!("page fault address {payload:#x}"),
        Event::EventData { kind: 1, payload } => format!("VM exit qualification {payload:#x}"),
        Event::EventData { kind: 2, payload } => format!("VM exit reason {payload:#x}"),
        Event::EventData { kind, payload } => format!("event data {kind}: {payload:#x}"),
        Event::Block { kind, ip, .. } => format!("block {kind}{}", at(ip)),
        Event::BlockItem { block, id, payload } => match StateValue::new(block, id) {
            Some(value) => format!("  {value} = {payload:#x}"),
            None => format!("  item {id} = {payload:#x}"),
        },
        Event::Trigger { vector, ip, .. } => format!("trigger {vector:#x}{}", at(ip)),
        Event::Resync { ip, lost } => {
            let place = ip.map_or_else(|| "tracing is off".into(), |ip| format!("at {ip}"));
            format!(
                "found again: {place}; {} of trace lost",
                counted(lost, "byte")
            )
        }
        Event::Maintenance { payload } => format!("maintenance {payload:#x}"),
        Event::Target { ip } => format!("branch to {ip}"),
        Event::Branches { tnt } => {
            let bits = tnt.iter().map(|taken| if taken { 'T' } else { 'N' });
            format!("branches {}", bits.collect::<String>())
        }
        Event::Tick(tick) => match tick {
            Tick::Tsc(tsc) => format!("TSC {}", tsc.0),
            Tick::Tma { ctc, fc } => {
                format!("TMA: crystal clock {ctc:#x}, {fc} TSC ticks after its edge")
            }
            Tick::Mtc { ctc } => format!("MTC: crystal clock {ctc:#x}"),
            Tick::Cyc { cycles } => format!("{cycles} cycles"),
            Tick::Cbr { ratio } => format!("core:bus ratio {ratio}"),
            _ => tick.kind().name().into(),
        },
        _ => {
            let mut line = Line::default();
            describe_event(event, line.begin());
            String::from_utf8_lossy(line.end()).trim_end().to_owned()
        }
    }
}
