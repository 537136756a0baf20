//! Events as names and values: how listings in JSON, and other languages, have them.

use alloc::string::{String, ToString};
use cofi_packet::Ip;
use cofi_packet::intel::{StateValue, TsxState};

use crate::{ControlEvent, Event, Tick};

/// A value of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// An address, or something else that is read in hexadecimal; none if it is not known.
    Hex(Option<u64>),
    /// A number; none if it is not known.
    Number(Option<u64>),
    /// Whether something is so.
    Flag(bool),
    /// Words.
    Text(String),
    /// Outcomes of branches, the oldest in the highest of so many bits.
    Bits(u64, u8),
}

impl From<Ip> for Field {
    fn from(ip: Ip) -> Self {
        Self::Hex(Some(ip.0))
    }
}

impl From<Option<Ip>> for Field {
    fn from(ip: Option<Ip>) -> Self {
        Self::Hex(ip.map(|ip| ip.0))
    }
}

impl From<bool> for Field {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

fn hex(value: u64) -> Field {
    Field::Hex(Some(value))
}

fn number(value: impl Into<u64>) -> Field {
    Field::Number(Some(value.into()))
}

impl ControlEvent {
    /// Its name in listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Iret => "iret",
            Self::Smi => "smi",
            Self::Rsm => "rsm",
            Self::Sipi => "sipi",
            Self::Init => "init",
            Self::VmEntry => "vmentry",
            Self::VmExit => "vmexit",
            Self::VmExitIntr => "vmexit_intr",
            Self::Shutdown => "shutdown",
            Self::Uintr => "uintr",
            Self::Uiret => "uiret",
            Self::SoftwareInterrupt => "swintr",
            Self::Syscall => "syscall",
            Self::Reserved(_) => "control",
        }
    }
}

impl Event {
    /// Its name in listings: `enabled`, `async_branch`, …
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Enabled { .. } => "enabled",
            Self::Disabled { .. } => "disabled",
            Self::AsyncBranch { .. } => "async_branch",
            Self::AsyncDisabled { .. } => "async_disabled",
            Self::PagingEnabled { .. } => "paging_enabled",
            Self::Paging { .. } => "paging",
            Self::Overflow { .. } => "overflow",
            Self::ExecMode { .. } => "exec_mode",
            Self::Tsx { .. } => "tsx",
            Self::Stop => "stop",
            Self::Vmcs { .. } => "vmcs",
            Self::ExStop { .. } => "exstop",
            Self::Mwait { .. } => "mwait",
            Self::Pwre { .. } => "pwre",
            Self::Pwrx { .. } => "pwrx",
            Self::Ptwrite { .. } => "ptwrite",
            Self::Control { event, .. } => event.name(),
            Self::EventData { .. } => "data",
            Self::Block { .. } => "block",
            Self::BlockItem { .. } => "block_item",
            Self::Trigger { .. } => "trigger",
            Self::Resync { .. } => "resync",
            Self::Maintenance { .. } => "mnt",
            Self::Target { .. } => "target",
            Self::Branches { .. } => "branches",
            Self::Tick(_) => "tick",
        }
    }

    /// Calls `tell` with the name and the value of each of its parts.
    pub fn fields(&self, tell: &mut impl FnMut(&'static str, Field)) {
        match *self {
            Self::Enabled { ip, resumed } => {
                tell("ip", ip.into());
                tell("resumed", resumed.into());
            }
            Self::AsyncBranch { from, to } => {
                tell("from", from.into());
                tell("to", to.into());
            }
            Self::AsyncDisabled { at, ip } => {
                tell("at", at.into());
                tell("ip", ip.into());
            }
            Self::PagingEnabled { on } => tell("on", on.into()),
            Self::Paging { cr3, nr } => {
                tell("cr3", hex(cr3));
                tell("nr", nr.into());
            }
            Self::Disabled { ip } | Self::Overflow { ip } | Self::ExStop { ip } => {
                tell("ip", ip.into());
            }
            Self::ExecMode {
                mode,
                interrupt_flag,
            } => {
                tell("mode", number(mode.bits()));
                tell("if", interrupt_flag.into());
            }
            Self::Tsx { state, ip } => {
                tell("intx", (state == TsxState::InTx).into());
                tell("abort", (state == TsxState::Aborted).into());
                tell("ip", ip.into());
            }
            Self::Stop => {}
            Self::Vmcs { base } => tell("base", hex(base)),
            Self::Mwait { hints, ext } => {
                tell("hints", number(hints));
                tell("ext", number(ext));
            }
            Self::Pwre {
                hw,
                state,
                sub_state,
            } => {
                tell("hw", hw.into());
                tell("state", number(state));
                tell("sub_state", number(sub_state));
            }
            Self::Pwrx {
                last,
                deepest,
                wake,
            } => {
                tell("last", number(last));
                tell("deepest", number(deepest));
                tell("wake", number(wake));
            }
            Self::Ptwrite { ip, payload, size } => {
                tell("ip", ip.into());
                tell("payload", hex(payload));
                tell("size", number(size));
            }
            Self::Control { event, vector, ip } => {
                if let ControlEvent::Reserved(kind) = event {
                    tell("type", number(kind));
                }
                if let Some(vector) = vector {
                    tell("vector", number(vector));
                }
                tell("ip", ip.into());
            }
            Self::EventData { kind, payload } => {
                tell("type", number(kind));
                tell("payload", hex(payload));
            }
            Self::Block { kind, size, ip } => {
                tell("type", number(kind.get()));
                tell("type_name", Field::Text(kind.to_string()));
                tell("size", number(size));
                tell("ip", ip.into());
            }
            Self::BlockItem { block, id, payload } => {
                tell("type", number(block.get()));
                tell("id", number(id));
                if let Some(value) = StateValue::new(block, id) {
                    tell("id_name", Field::Text(value.to_string()));
                }
                tell("payload", hex(payload));
            }
            Self::Trigger {
                vector,
                multiple,
                count,
                ip,
            } => {
                tell("vector", number(vector));
                tell("mult", multiple.into());
                tell("icnt", Field::Number(count.map(u64::from)));
                tell("ip", ip.into());
            }
            Self::Resync { ip, lost } => {
                tell("ip", ip.into());
                tell("lost_bytes", number(lost));
            }
            Self::Maintenance { payload } => tell("payload", hex(payload)),
            Self::Target { ip } => tell("ip", ip.into()),
            Self::Branches { tnt } => tell("bits", Field::Bits(tnt.bits(), tnt.len() as u8)),
            Self::Tick(tick) => tick.fields(tell),
        }
    }
}

impl Tick {
    fn fields(self, tell: &mut impl FnMut(&'static str, Field)) {
        tell("tick", Field::Text(self.kind().name().to_string()));
        match self {
            Self::Tsc(tsc) => tell("value", number(tsc.0)),
            Self::Tma { ctc, fc } => {
                tell("ctc", number(ctc));
                tell("fc", number(fc));
            }
            Self::Mtc { ctc } => tell("ctc", number(ctc)),
            Self::Cyc { cycles } => tell("cycles", number(cycles)),
            Self::Cbr { ratio } => tell("ratio", number(ratio)),
            // (Of RTIT; listings have their kind alone.)
            Self::Sts { .. } | Self::MiniTime { .. } => {}
        }
    }
}
