//! VM entries and VM exits.

use super::ops::{Run, Vmx};
use crate::unit::reader::{Read, Table};
use crate::unit::registers::register;
use crate::unit::values::flag;
use cofi_packet::intel::IntelPt;
use cofi_unit::{Destination, EntryOutcome, GuestTsc, SmmExit, SmmReturn, VmEntry, VmExit};

impl Run {
    pub(super) fn vm_entry(&mut self, op: &Table<'_>) -> Read<()> {
        let at = self.at(op)?;
        let to = self.to(op)?;
        let mut then = to;
        let outcome = match op.get("outcome") {
            None => EntryOutcome::Success,
            Some(field) => {
                match field.choice(&[("success", 0), ("early failure", 1), ("late failure", 2)])? {
                    0 => EntryOutcome::Success,
                    1 => {
                        then = Destination {
                            ip: at.next,
                            context: self.context,
                        };
                        EntryOutcome::EarlyFailure
                    }
                    _ => {
                        let table = op.need("host")?.table()?;
                        let host = self.to(&table)?;
                        table.finish()?;
                        then = host;
                        EntryOutcome::LateFailure { host }
                    }
                }
            }
        };
        let tsc = match op.get("guest_tsc") {
            Some(field) => {
                let table = field.table()?;
                let mut tsc = GuestTsc::default();
                if let Some(field) = table.get("multiplier") {
                    tsc.multiplier = field.number()?;
                }
                if let Some(field) = table.get("offset") {
                    tsc.offset = field.number()?;
                }
                table.finish()?;
                tsc
            }
            None => GuestTsc::default(),
        };
        let from_smm = match op.get("from_smm") {
            Some(field) => {
                let table = field.table()?;
                let smm = SmmReturn {
                    vmcs: table.need("vmcs")?.number()?,
                    to_root: flag(&table, "to_root")?,
                };
                table.finish()?;
                Some(smm)
            }
            None => None,
        };
        let loads = loads(op)?;
        let mut entry = VmEntry::new(at, to);
        entry.conceal = flag(op, "conceal")?;
        entry.conceal_guest = flag(op, "conceal_guest")?;
        entry.tsc = tsc;
        entry.load_ctl = match op.get("load_ctl") {
            Some(field) => Some(field.number()?),
            None => None,
        };
        entry.loads = &loads;
        entry.from_smm = from_smm;
        entry.outcome = outcome;
        match self.unit.vm_entry(&mut self.world, &entry) {
            Ok(()) => {
                let to_root = from_smm.is_some_and(|smm| smm.to_root);
                self.vmx = match outcome {
                    EntryOutcome::Success if !to_root => Vmx::NonRoot,
                    _ => Vmx::Root,
                };
                self.go(then);
            }
            Err(error) => self.transition_error(error),
        }
        Ok(())
    }

    pub(super) fn vm_exit(&mut self, op: &Table<'_>) -> Read<()> {
        let to = self.to(op)?;
        let number = |key| match op.get(key) {
            Some(field) => field.number(),
            None => Ok(0),
        };
        let to_smm = match op.get("to_smm") {
            Some(field) => {
                let table = field.table()?;
                let smm = SmmExit {
                    vmcs: table.need("vmcs")?.number()?,
                    smi: flag(&table, "smi")?,
                };
                table.finish()?;
                Some(smm)
            }
            None => None,
        };
        match (self.vmx, to_smm) {
            (Vmx::NonRoot, _) | (Vmx::Root, Some(_)) => {}
            (Vmx::Root, None) => {
                return Self::impossible(
                    op,
                    "in VMX root operation only an SMM VM exit comes, with `to_smm`",
                );
            }
            (Vmx::Off, _) => {
                return Self::impossible(
                    op,
                    "no `vm_entry` came before, so the processor is not in VMX non-root operation",
                );
            }
        }
        let loads = loads(op)?;
        let mut exit = VmExit::new(self.from(op)?, to);
        exit.conceal = flag(op, "conceal")?;
        exit.reason = number("reason")?;
        exit.qualification = number("qualification")?;
        exit.vector = match op.get("vector") {
            Some(field) => Some(field.number()?),
            None => None,
        };
        exit.clear_ctl = flag(op, "clear_ctl")?;
        exit.loads = &loads;
        exit.to_smm = to_smm;
        exit.abort = flag(op, "abort")?;
        match self.unit.vm_exit(&mut self.world, &exit) {
            Ok(()) => {
                self.vmx = Vmx::Root;
                self.go(to);
            }
            Err(error) => self.transition_error(error),
        }
        Ok(())
    }
}

/// The key `loads`: registers and values.
fn loads(op: &Table<'_>) -> Read<Vec<(u32, u64)>> {
    let Some(field) = op.get("loads") else {
        return Ok(Vec::new());
    };
    let mut loads = Vec::new();
    for load in field.array()? {
        let [msr, value] = load.members()?;
        loads.push((register::<IntelPt>(&msr)?, value.number()?));
    }
    Ok(loads)
}
