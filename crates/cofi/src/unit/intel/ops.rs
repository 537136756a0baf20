//! The operations of a scenario: each is read from its table and done to the unit at once.

use super::values::{patched, remember};
use super::world::World;
use crate::unit::play::Machine;
use crate::unit::reader::{Read, Table};
use crate::unit::record::{Note, Record};
use crate::unit::values::{at, clock, flag, ip_or, later, need_ip};
use cofi_packet::Ip;
use cofi_packet::intel::{IntelPt, ItemSize, Kind, Payload};
use cofi_unit::{
    At, Context, Destination, Fault, Ptwrite, Retired, Rsm, TransitionError, Unit, XsaveArea,
};

/// A scenario under way.
pub(super) struct Run {
    pub(super) unit: Unit,
    pub(super) world: World,
    pub(super) context: Context,
    /// Where the next operation happens if it does not say.
    pub(super) ip: Ip,
    /// What XSAVES saved last.
    saved: Option<XsaveArea>,
}

impl Run {
    pub(super) fn new(unit: Unit, world: World, context: Context, ip: Ip) -> Self {
        Self {
            unit,
            world,
            context,
            ip,
            saved: None,
        }
    }

    pub(super) fn at(&self, op: &Table<'_>) -> Read<At> {
        at(op, self.ip)
    }

    pub(super) fn from(&self, op: &Table<'_>) -> Read<Ip> {
        ip_or(op, "from", self.ip)
    }

    /// The keys `to` and `context`.
    pub(super) fn to(&self, op: &Table<'_>) -> Read<Destination> {
        Ok(Destination {
            ip: need_ip(op, "to")?,
            context: self.after(op)?,
        })
    }

    /// The context that holds after an operation.
    pub(super) fn after(&self, op: &Table<'_>) -> Read<Context> {
        match op.get("context") {
            Some(field) => patched(self.context, &field),
            None => Ok(self.context),
        }
    }

    pub(super) fn go(&mut self, to: Destination) {
        self.ip = to.ip;
        self.context = to.context;
    }

    fn fault(&mut self, fault: Fault) {
        self.world.record.mark(Note::fault(fault));
    }

    pub(super) fn transition_error(&mut self, error: TransitionError) {
        let name = match error {
            TransitionError::MsrLoad { .. } => "#GP",
            _ => "vm-entry",
        };
        let rule = error.to_string();
        self.world.record.mark(Note::Fault { name, rule });
    }

    fn ptwrite(&mut self, op: &Table<'_>) -> Read<()> {
        let at = self.at(op)?;
        let size = item_size(op)?;
        let operand = Payload::truncate(size, op.need("value")?.number()?);
        let ptwrite = Ptwrite { at, operand };
        match self.unit.ptwrite(&mut self.world, ptwrite) {
            Ok(()) => self.ip = at.next,
            Err(fault) => self.fault(fault),
        }
        Ok(())
    }

    fn rsm(&mut self, op: &Table<'_>) -> Read<()> {
        let rsm = Rsm {
            to: self.to(op)?,
            trace_en: flag(op, "trace_en")?,
            lbr: flag(op, "lbr")?,
        };
        match self.unit.rsm(&mut self.world, rsm) {
            Ok(()) => self.go(rsm.to),
            Err(fault) => self.fault(fault),
        }
        Ok(())
    }
}

impl Machine for Run {
    type Format = IntelPt;

    fn record(&mut self) -> &mut Record<IntelPt> {
        &mut self.world.record
    }
    fn ip(&mut self) -> &mut Ip {
        &mut self.ip
    }

    fn prepare(&mut self, op: &Table<'_>) -> Read<()> {
        self.world.packet_times.clear();
        if let Some(field) = op.get("packet_times") {
            for field in field.table()?.all() {
                let kind = Kind::ALL.iter().find(|kind| kind.name() == field.key);
                let Some(&kind) = kind else {
                    return Err(field.mistake("there is no packet of this name"));
                };
                let table = field.table()?;
                let time = later(self.world.record.clock, clock(&table)?);
                table.finish()?;
                self.world.packet_times.push((kind, time));
            }
        }
        Ok(())
    }

    fn operate(&mut self, word: &str, op: &Table<'_>) -> Read<bool> {
        match word {
            "xsaves" => {
                let at = self.at(op)?;
                self.saved = Some(self.unit.xsaves(&mut self.world, at));
                self.ip = at.next;
            }
            "xrstors" => {
                let at = self.at(op)?;
                let initial = flag(op, "initial")?;
                let area = self.saved.filter(|_| !initial);
                match self.unit.xrstors(&mut self.world, at, area.as_ref()) {
                    Ok(()) => self.ip = at.next,
                    Err(fault) => self.fault(fault),
                }
            }
            "ptwrite" => self.ptwrite(op)?,
            "vm_entry" => self.vm_entry(op)?,
            "vm_exit" => self.vm_exit(op)?,
            "rsm" => self.rsm(op)?,
            "pebs" => self.pebs(op)?,
            "reset" => {
                let warm = flag(op, "warm")?;
                self.context = self.after(op)?;
                self.ip = ip_or(op, "ip", self.ip)?;
                self.unit.reset(warm, self.context);
            }
            "clock" => {
                self.unit.clock(&mut self.world);
            }
            "drain" => {
                let bytes = match op.get("bytes") {
                    Some(field) => field.number()?,
                    None => usize::MAX,
                };
                self.unit.drain(&mut self.world, bytes);
            }
            "memory" => remember(&mut self.world, op)?,
            _ => match self.event(word, op)? {
                Some((event, then)) => {
                    self.unit.event(&mut self.world, event);
                    self.go(then);
                }
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn retire(&mut self, insn: Retired) {
        self.unit.retire(&mut self.world, insn);
    }
    fn rdmsr(&mut self, msr: u32) -> Result<u64, Fault> {
        self.unit.rdmsr(msr)
    }
    fn wrmsr(&mut self, at: At, msr: u32, value: u64) -> Result<(), Fault> {
        self.unit.wrmsr(&mut self.world, at, msr, value)
    }
}

/// The key `size`: 8 if it is left out.
pub(super) fn item_size(op: &Table<'_>) -> Read<ItemSize> {
    match op.get("size") {
        None => Ok(ItemSize::Eight),
        Some(field) => match field.number::<u64>()? {
            4 => Ok(ItemSize::Four),
            8 => Ok(ItemSize::Eight),
            _ => Err(field.mistake("expected 4 or 8")),
        },
    }
}
