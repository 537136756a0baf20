//! The operations of a scenario for RTIT's unit.

use super::patched;
use crate::unit::play::Machine;
use crate::unit::reader::{Read, Table};
use crate::unit::record::{Record, Where};
use crate::unit::values::{at, flag, ip_or, need_ip};
use cofi_packet::Ip;
use cofi_packet::rtit::{Mode, Rtit};
use cofi_unit::rtit::{Client, Context, Ctl, Destination, Event, SleepState, Unit, msr};
use cofi_unit::{At, Clock, Fault, PhysAddr, Retired};

/// The unit's client.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) record: Record<Rtit>,
}

impl Client for World {
    fn now(&mut self) -> Clock {
        self.record.clock
    }
    fn store(&mut self, address: PhysAddr, bytes: &[u8]) {
        self.record.output(Where::Memory(address.0), bytes);
    }
}

/// A scenario under way.
pub(super) struct Run {
    pub(super) unit: Unit,
    pub(super) world: World,
    context: Context,
    /// Where the next operation happens if it does not say.
    pub(super) ip: Ip,
    state: State,
}

/// What the scenario has done to the processor, as far as it decides which operations are possible.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    in_smm: bool,
    /// In VMX root operation. If not, in a guest or outside VMX operation: a scenario may begin in either.
    in_vmx_root: bool,
    asleep: bool,
    /// Behind an INIT, before anything else.
    after_init: bool,
}

impl State {
    /// Why no processor does this operation here.
    fn impossible(self, word: &str) -> Option<&'static str> {
        Some(match word {
            "rsm" if !self.in_smm => "RSM outside SMM is #UD, and no `smi` came before",
            "smi" if self.in_smm => "SMIs are blocked in SMM, until `rsm`",
            "vm_entry" if !self.in_vmx_root => {
                "VM entries are of VMX root operation, and no `vmxon` or `vm_exit` came before"
            }
            "vm_exit" if self.in_vmx_root => {
                "in VMX root operation there is no guest to exit from; `vm_entry` comes first"
            }
            "wake" if !self.asleep => {
                "the processor is awake, as no `sleep` came before, or it woke since"
            }
            "sipi" if !self.after_init => {
                "the processor does not wait for SIPI, as no `init` came right before"
            }
            _ => return None,
        })
    }

    fn follow(&mut self, event: &Event) {
        match event {
            Event::Frequency { .. } => return,
            Event::Smi { .. } => self.in_smm = true,
            Event::Rsm { .. } => self.in_smm = false,
            Event::Vmxon { .. } | Event::VmExit { .. } => self.in_vmx_root = true,
            Event::Vmxoff { .. } | Event::VmEntry { .. } => self.in_vmx_root = false,
            _ => {}
        }
        self.asleep = matches!(event, Event::Sleep(_));
        self.after_init = matches!(event, Event::Init { .. });
    }

    /// An instruction runs.
    fn runs(&mut self) {
        (self.asleep, self.after_init) = (false, false);
    }
}

impl Run {
    pub(super) fn new(unit: Unit, world: World, context: Context, ip: Ip) -> Self {
        Self {
            unit,
            world,
            context,
            ip,
            state: State::default(),
        }
    }

    pub(super) fn read(&mut self, msr: u32) -> Result<u64, Fault> {
        self.unit.rdmsr(msr)
    }

    pub(super) fn write(&mut self, at: At, msr: u32, value: u64) -> Result<(), Fault> {
        self.unit.wrmsr(&mut self.world, at, msr, value)?;
        if msr == msr::RTIT_CTL && Ctl(value).cycle_acc() {
            // A stream does not tell where it carries cycle counts: it is read as if it did everywhere.
            self.world.record.context = Mode::CycleAccurate;
        }
        Ok(())
    }

    fn from(&self, op: &Table<'_>) -> Read<Ip> {
        ip_or(op, "from", self.ip)
    }

    /// The keys `to` and `context`.
    fn to(&self, op: &Table<'_>) -> Read<Destination> {
        Ok(Destination {
            ip: need_ip(op, "to")?,
            context: self.after(op)?,
        })
    }

    /// The context that holds after an operation.
    fn after(&self, op: &Table<'_>) -> Read<Context> {
        match op.get("context") {
            Some(field) => patched(self.context, &field),
            None => Ok(self.context),
        }
    }

    /// The event that an operation names, and what holds after it; `None` if there is none of this name.
    fn event(&self, word: &str, op: &Table<'_>) -> Read<Option<(Event, Destination)>> {
        let mut then = Destination {
            ip: self.ip,
            context: self.context,
        };
        let event = match word {
            "far_branch" => {
                let at = at(op, self.ip)?;
                then = self.to(op)?;
                let prefixes = match op.get("prefixes") {
                    Some(field) => field.number_in(0..=14)? as u8,
                    None => 0,
                };
                Event::FarBranch {
                    at,
                    to: then,
                    prefixes,
                }
            }
            "interrupt" => {
                then = self.to(op)?;
                let from = self.from(op)?;
                Event::Interrupt { from, to: then }
            }
            "mov_cr3" => {
                let at = at(op, self.ip)?;
                let cr3 = op.need("cr3")?.number()?;
                then.ip = at.next;
                then.context.cr3 = cr3;
                Event::MovCr3 { at, cr3 }
            }
            "mov_cr0" => {
                let at = at(op, self.ip)?;
                let paging = op.need("paging")?.flag()?;
                then.ip = at.next;
                then.context.paging = paging;
                Event::MovCr0 { at, paging }
            }
            "smi" => Event::Smi {
                from: self.from(op)?,
            },
            "rsm" => {
                then = self.to(op)?;
                Event::Rsm { to: then }
            }
            "vmxon" | "vmxoff" => {
                let at = at(op, self.ip)?;
                then.ip = at.next;
                match word {
                    "vmxon" => Event::Vmxon { at },
                    _ => Event::Vmxoff { at },
                }
            }
            "vm_exit" => Event::VmExit {
                from: self.from(op)?,
            },
            "vm_entry" => {
                then = self.to(op)?;
                Event::VmEntry { to: then }
            }
            "init" => {
                then = self.to(op)?;
                let from = self.from(op)?;
                Event::Init { from, to: then }
            }
            "sipi" => {
                then = self.to(op)?;
                Event::Sipi { to: then }
            }
            "sleep" => Event::Sleep(op.need("state")?.choice(&[
                ("C1", SleepState::C1),
                ("C2", SleepState::C2),
                ("C4", SleepState::C4),
                ("C6", SleepState::C6),
                ("S0i", SleepState::S0i),
            ])?),
            "wake" => Event::Wake,
            "frequency" => Event::Frequency {
                actual: op.need("actual")?.number_in(0..=63)? as u8,
                effective: op.need("effective")?.number_in(0..=63)? as u8,
            },
            _ => return Ok(None),
        };
        Ok(Some((event, then)))
    }
}

impl Machine for Run {
    type Format = Rtit;

    fn record(&mut self) -> &mut Record<Rtit> {
        &mut self.world.record
    }
    fn ip(&mut self) -> &mut Ip {
        &mut self.ip
    }

    fn operate(&mut self, word: &str, op: &Table<'_>) -> Read<bool> {
        if let Some(why) = self.state.impossible(word) {
            return Err(op.need("op")?.mistake(format!("impossible here: {why}")));
        }
        match word {
            "reset" => {
                let warm = flag(op, "warm")?;
                self.context = self.after(op)?;
                self.ip = ip_or(op, "ip", self.ip)?;
                self.unit.reset(warm, self.context);
                self.state = State::default();
            }
            "fence" => self.unit.fence(&mut self.world),
            "drain" => {
                let bytes = match op.get("bytes") {
                    Some(field) => field.number()?,
                    None => usize::MAX,
                };
                self.unit.drain(&mut self.world, bytes);
            }
            _ => match self.event(word, op)? {
                Some((event, then)) => {
                    self.state.follow(&event);
                    self.unit.event(&mut self.world, event);
                    self.ip = then.ip;
                    self.context = then.context;
                }
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn retire(&mut self, insn: Retired) {
        self.state.runs();
        self.unit.retire(&mut self.world, insn);
    }
    fn rdmsr(&mut self, msr: u32) -> Result<u64, Fault> {
        self.read(msr)
    }
    fn wrmsr(&mut self, at: At, msr: u32, value: u64) -> Result<(), Fault> {
        self.write(at, msr, value)
    }
}
