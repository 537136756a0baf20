//! One item of the flow as a line: JSON as the contract fixes it, or text.

use crate::json::Line;
use cofi_flow::{ControlEvent, Event, Item};
use cofi_packet::Ip;
use cofi_packet::intel::TsxState;

const fn control_name(event: ControlEvent) -> &'static str {
    match event {
        ControlEvent::Interrupt => "interrupt",
        ControlEvent::Iret => "iret",
        ControlEvent::Smi => "smi",
        ControlEvent::Rsm => "rsm",
        ControlEvent::Sipi => "sipi",
        ControlEvent::Init => "init",
        ControlEvent::VmEntry => "vmentry",
        ControlEvent::VmExit => "vmexit",
        ControlEvent::VmExitIntr => "vmexit_intr",
        ControlEvent::Shutdown => "shutdown",
        ControlEvent::Uintr => "uintr",
        ControlEvent::Uiret => "uiret",
        ControlEvent::SoftwareInterrupt => "swintr",
        ControlEvent::Syscall => "syscall",
        _ => "control",
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
            line.text("error", &error.kind.to_string())
                .number("offset", error.offset.0)
                .hex_or_null("ip", raw(error.ip));
        }
        Item::Event(event) => describe_event(event, line),
    }
}

fn describe_event(event: &Event, line: &mut Line) {
    match *event {
        Event::Enabled { ip, resumed } => line
            .text("event", "enabled")
            .hex("ip", ip.0)
            .flag("resumed", resumed),
        Event::Disabled { ip } => line.text("event", "disabled").hex_or_null("ip", raw(ip)),
        Event::AsyncBranch { from, to } => line
            .text("event", "async_branch")
            .hex("from", from.0)
            .hex("to", to.0),
        Event::AsyncDisabled { at, ip } => line
            .text("event", "async_disabled")
            .hex("at", at.0)
            .hex_or_null("ip", raw(ip)),
        Event::Paging { cr3, nr } => line.text("event", "paging").hex("cr3", cr3).flag("nr", nr),
        Event::Overflow { ip } => line.text("event", "overflow").hex_or_null("ip", raw(ip)),
        Event::ExecMode { mode, .. } => line.text("event", "exec_mode").number("mode", mode.bits()),
        Event::Tsx { state, ip } => line
            .text("event", "tsx")
            .flag("intx", state == TsxState::InTx)
            .flag("abort", state == TsxState::Aborted)
            .hex_or_null("ip", raw(ip)),
        Event::Stop => line.text("event", "stop"),
        Event::Vmcs { base } => line.text("event", "vmcs").hex("base", base),
        Event::ExStop { ip } => line.text("event", "exstop").hex_or_null("ip", raw(ip)),
        Event::Mwait { hints, ext } => line
            .text("event", "mwait")
            .number("hints", hints)
            .number("ext", ext),
        Event::Pwre {
            hw,
            state,
            sub_state,
        } => line
            .text("event", "pwre")
            .flag("hw", hw)
            .number("state", state)
            .number("sub_state", sub_state),
        Event::Pwrx {
            last,
            deepest,
            wake,
        } => line
            .text("event", "pwrx")
            .number("last", last)
            .number("deepest", deepest)
            .number("wake", wake),
        Event::Ptwrite { ip, payload, size } => line
            .text("event", "ptwrite")
            .hex_or_null("ip", raw(ip))
            .hex("payload", payload)
            .number("size", size),
        Event::Control { event, vector, ip } => {
            line.text("event", control_name(event));
            if let ControlEvent::Reserved(kind) = event {
                line.number("type", kind);
            }
            if let Some(vector) = vector {
                line.number("vector", vector);
            }
            line.hex_or_null("ip", raw(ip))
        }
        Event::EventData { kind, payload } => line
            .text("event", "data")
            .number("type", kind)
            .hex("payload", payload),
        _ => line.text("event", "unknown"),
    };
}

fn or_nowhere(ip: Option<Ip>) -> String {
    ip.map_or_else(|| "untraced code".into(), |ip| ip.to_string())
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
        Event::Paging { cr3, .. } => format!("CR3 = {cr3:#x}"),
        Event::ExecMode { mode, .. } => format!("{}-bit code", mode.bits()),
        _ => {
            let mut line = Line::default();
            describe_event(event, line.begin());
            String::from_utf8_lossy(line.end()).trim_end().to_owned()
        }
    }
}
