//! VM entries and exits, of which the trace unit is told.

use crate::status::{Growing, Status, array, because, given_mut, guarded, invalid, taken};
use crate::unit::{Owned, Place, State, zero};
use cofi_packet::Ip;
use cofi_unit::{EntryOutcome, GuestTsc, SmmExit, SmmReturn, TransitionError, VmEntry, VmExit};
use core::mem::offset_of;

/// `cofi_msr_load`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MsrLoad {
    msr: u32,
    reserved: u32,
    value: u64,
}

/// The registers of an MSR-load area.
///
/// # Safety
/// As `array`.
unsafe fn loads(loads: *const MsrLoad, count: usize) -> Result<Vec<(u32, u64)>, Status> {
    // SAFETY: as the caller says.
    let loads = unsafe { array(loads, count, "loads")? };
    loads
        .iter()
        .map(|load| {
            zero(&[load.reserved == 0], "loads")?;
            Ok((load.msr, load.value))
        })
        .collect()
}

/// A transition that cannot be done, as its instruction's fault.
fn failed(error: TransitionError) -> Status {
    because(Status::Fault, error)
}

/// `cofi_vm_entry`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Entry {
    size: u32,
    outcome: u32,
    at: Place,
    to: u64,
    state: State,
    host_to: u64,
    host: State,
    tsc_multiplier: u64,
    tsc_offset: u64,
    ctl: u64,
    loads: *const MsrLoad,
    load_count: usize,
    vmcs: u64,
    conceal: u8,
    conceal_guest: u8,
    load_ctl: u8,
    from_smm: u8,
    to_root: u8,
    reserved: [u8; 3],
}

// SAFETY: numbers and a pointer.
unsafe impl Growing for Entry {
    const FIRST: usize = 144;
}

impl Entry {
    fn entry<'e>(&self, loads: &'e [(u32, u64)]) -> Result<VmEntry<'e>, Status> {
        zero(&[self.reserved == [0; 3]], "entry")?;
        let mut entry = VmEntry::new(self.at.at(), self.state.destination(self.to)?);
        entry.outcome = match self.outcome {
            0 => EntryOutcome::Success,
            1 => EntryOutcome::EarlyFailure,
            2 => EntryOutcome::LateFailure {
                host: self.host.destination(self.host_to)?,
            },
            other => return Err(invalid(format_args!("there is no outcome {other}"))),
        };
        entry.tsc = GuestTsc {
            multiplier: match self.tsc_multiplier {
                0 => GuestTsc::default().multiplier,
                multiplier => multiplier,
            },
            offset: self.tsc_offset,
        };
        entry.conceal = self.conceal != 0;
        entry.conceal_guest = self.conceal_guest != 0;
        entry.load_ctl = (self.load_ctl != 0).then_some(self.ctl);
        entry.loads = loads;
        entry.from_smm = (self.from_smm != 0).then_some(SmmReturn {
            vmcs: self.vmcs,
            to_root: self.to_root != 0,
        });
        Ok(entry)
    }
}

/// `cofi_unit_vm_entry`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_vm_entry(unit: *mut Owned, entry: *const Entry) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (owned, entry) = unsafe { (given_mut(unit, "unit")?, taken(entry, "entry")?) };
        // SAFETY: as the caller says.
        let loads = unsafe { loads(entry.loads, entry.load_count)? };
        let entry = entry.entry(&loads)?;
        let (unit, mut world) = owned.parts()?;
        unit.vm_entry(&mut world, &entry).map_err(failed)
    })
}

/// `cofi_vm_exit`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Exit {
    size: u32,
    reserved: u32,
    from: u64,
    to: u64,
    state: State,
    reason: u64,
    qualification: u64,
    loads: *const MsrLoad,
    load_count: usize,
    vmcs: u64,
    vector: u8,
    has_vector: u8,
    conceal: u8,
    clear_ctl: u8,
    to_smm: u8,
    smi: u8,
    abort: u8,
    reserved_too: u8,
}

// SAFETY: numbers and a pointer.
unsafe impl Growing for Exit {
    const FIRST: usize = 96;
}

impl Exit {
    fn exit<'e>(&self, loads: &'e [(u32, u64)]) -> Result<VmExit<'e>, Status> {
        zero(&[self.reserved == 0, self.reserved_too == 0], "exit")?;
        let mut exit = VmExit::new(Ip(self.from), self.state.destination(self.to)?);
        exit.conceal = self.conceal != 0;
        exit.reason = self.reason;
        exit.qualification = self.qualification;
        exit.vector = (self.has_vector != 0).then_some(self.vector);
        exit.clear_ctl = self.clear_ctl != 0;
        exit.loads = loads;
        exit.to_smm = (self.to_smm != 0).then_some(SmmExit {
            vmcs: self.vmcs,
            smi: self.smi != 0,
        });
        exit.abort = self.abort != 0;
        Ok(exit)
    }
}

/// `cofi_unit_vm_exit`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_vm_exit(unit: *mut Owned, exit: *const Exit) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (owned, exit) = unsafe { (given_mut(unit, "unit")?, taken(exit, "exit")?) };
        // SAFETY: as the caller says.
        let loads = unsafe { loads(exit.loads, exit.load_count)? };
        let exit = exit.exit(&loads)?;
        let (unit, mut world) = owned.parts()?;
        unit.vm_exit(&mut world, &exit).map_err(failed)
    })
}

/// Sizes and members' places, for who compares with cofi.h.
#[must_use]
pub fn layout() -> Vec<usize> {
    vec![
        size_of::<MsrLoad>(),
        offset_of!(MsrLoad, msr),
        offset_of!(MsrLoad, value),
        size_of::<Entry>(),
        offset_of!(Entry, outcome),
        offset_of!(Entry, at),
        offset_of!(Entry, to),
        offset_of!(Entry, state),
        offset_of!(Entry, host_to),
        offset_of!(Entry, host),
        offset_of!(Entry, tsc_multiplier),
        offset_of!(Entry, tsc_offset),
        offset_of!(Entry, ctl),
        offset_of!(Entry, loads),
        offset_of!(Entry, load_count),
        offset_of!(Entry, vmcs),
        offset_of!(Entry, conceal),
        offset_of!(Entry, conceal_guest),
        offset_of!(Entry, load_ctl),
        offset_of!(Entry, from_smm),
        offset_of!(Entry, to_root),
        size_of::<Exit>(),
        offset_of!(Exit, from),
        offset_of!(Exit, to),
        offset_of!(Exit, state),
        offset_of!(Exit, reason),
        offset_of!(Exit, qualification),
        offset_of!(Exit, loads),
        offset_of!(Exit, load_count),
        offset_of!(Exit, vmcs),
        offset_of!(Exit, vector),
        offset_of!(Exit, has_vector),
        offset_of!(Exit, conceal),
        offset_of!(Exit, clear_ctl),
        offset_of!(Exit, to_smm),
        offset_of!(Exit, smi),
        offset_of!(Exit, abort),
    ]
}
