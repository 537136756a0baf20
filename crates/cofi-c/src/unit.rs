//! The trace unit for emulators and hypervisors.

use crate::packets::fill;
use crate::status::{
    Growing, Status, because, bytes, given, given_mut, guarded, hand_out, invalid, take_back,
    taken, text,
};
use cofi_packet::intel::Payload;
use cofi_packet::{ExecMode, Ip};
use cofi_unit::{
    At, Branch, Capabilities, Client, Clock, Context, CpuidLeaf, Destination, Fault, Generation,
    Implementation, PhysAddr, Ptwrite, Retired, Rsm, Unit,
};
use core::mem::offset_of;
use std::ffi::{c_char, c_void};

/// `cofi_client`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Callbacks {
    size: u32,
    reserved: u32,
    context: *mut c_void,
    now: Option<unsafe extern "C" fn(*mut c_void, *mut u64, *mut u64)>,
    store: Option<unsafe extern "C" fn(*mut c_void, u64, *const u8, usize)>,
    load: Option<unsafe extern "C" fn(*mut c_void, u64) -> u64>,
    topa_pmi: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// The callbacks while one of the unit's functions runs.
pub(crate) struct World {
    callbacks: Callbacks,
    now: unsafe extern "C" fn(*mut c_void, *mut u64, *mut u64),
    store: unsafe extern "C" fn(*mut c_void, u64, *const u8, usize),
}

impl Client for World {
    #[inline]
    fn now(&mut self) -> Clock {
        let mut clock = Clock::default();
        // SAFETY: the caller's function, which stores two numbers.
        unsafe {
            (self.now)(
                self.callbacks.context,
                &raw mut clock.tsc,
                &raw mut clock.cycles,
            );
        }
        clock
    }

    fn store(&mut self, PhysAddr(address): PhysAddr, bytes: &[u8]) {
        // SAFETY: the caller's function, which reads so many bytes.
        unsafe { (self.store)(self.callbacks.context, address, bytes.as_ptr(), bytes.len()) }
    }

    fn load(&mut self, PhysAddr(address): PhysAddr) -> u64 {
        match self.callbacks.load {
            // SAFETY: the caller's function.
            Some(load) => unsafe { load(self.callbacks.context, address) },
            // As from memory where there is none.
            None => u64::MAX,
        }
    }

    fn topa_pmi(&mut self) {
        if let Some(topa_pmi) = self.callbacks.topa_pmi {
            // SAFETY: the caller's function.
            unsafe { topa_pmi(self.callbacks.context) }
        }
    }
}

/// `cofi_unit`.
#[derive(Debug)]
pub struct Owned {
    unit: Unit,
    callbacks: Callbacks,
}

// SAFETY note for all of these: a unit is used by one thread at a time, as cofi.h says.
impl Owned {
    /// The unit, and the world that it asks. (That both callbacks are there was checked when it was made.)
    pub(crate) fn parts(&mut self) -> Result<(&mut Unit, World), Status> {
        let callbacks = self.callbacks;
        let (Some(now), Some(store)) = (callbacks.now, callbacks.store) else {
            return Err(invalid("client.now or client.store is null"));
        };
        let world = World {
            callbacks,
            now,
            store,
        };
        Ok((&mut self.unit, world))
    }
}

// SAFETY: numbers, pointers, and functions that may be null.
unsafe impl Growing for Callbacks {
    const FIRST: usize = 48;
}

/// Whether what is reserved is 0, so that it may get a meaning.
pub(crate) fn zero(are_zero: &[bool], name: &str) -> Result<(), Status> {
    match are_zero.iter().all(|is_zero| *is_zero) {
        true => Ok(()),
        false => Err(invalid(format_args!("{name}.reserved is not 0"))),
    }
}

/// `cofi_context`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct State {
    cr3: u64,
    cs_base: u64,
    mode: u8,
    cpl: u8,
    pae: u8,
    interrupt_flag: u8,
    in_tx: u8,
    reserved: [u8; 3],
}

impl State {
    pub(crate) fn context(&self) -> Result<Context, Status> {
        let mode = match self.mode {
            16 => ExecMode::Bits16,
            32 => ExecMode::Bits32,
            64 => ExecMode::Bits64,
            other => {
                return Err(invalid(format_args!(
                    "mode is {other}, and must be 16, 32 or 64"
                )));
            }
        };
        zero(&[self.reserved == [0; 3]], "context")?;
        if self.cpl > 3 {
            return Err(invalid(format_args!(
                "cpl is {}, and must be 0 to 3",
                self.cpl
            )));
        }
        Ok(Context {
            cpl: self.cpl,
            cr3: self.cr3,
            pae: self.pae != 0,
            mode,
            cs_base: self.cs_base,
            interrupt_flag: self.interrupt_flag != 0,
            in_tx: self.in_tx != 0,
            ..Context::default()
        })
    }

    pub(crate) fn destination(&self, to: u64) -> Result<Destination, Status> {
        Ok(Destination {
            ip: Ip(to),
            context: self.context()?,
        })
    }
}

/// Settings as text: `NAME=VALUE`, several with commas between; null is none.
///
/// # Safety
/// As `text`, but for null.
unsafe fn settings<'a>(
    words: *const c_char,
    name: &str,
) -> Result<impl Iterator<Item = Result<(&'a str, &'a str), Status>>, Status> {
    let words = match words.is_null() {
        true => "",
        // SAFETY: as the caller says.
        false => unsafe { text(words, name)? },
    };
    let all = words.split(',').filter(|word| !word.is_empty());
    Ok(all.map(|word| {
        word.split_once('=')
            .ok_or_else(|| invalid(format_args!("{word:?} is no NAME=VALUE")))
    }))
}

/// A processor: what it has, and what it chooses.
///
/// # Safety
/// As `settings`, and the processor's name as `text`.
unsafe fn processor(
    name: *const c_char,
    caps: *const c_char,
    options: *const c_char,
) -> Result<(Capabilities, Implementation), Status> {
    // SAFETY: as the caller says.
    let name = unsafe { text(name, "processor")? };
    let generation: Generation = name
        .parse()
        .map_err(|error| invalid(format_args!("{name:?}: {error}")))?;
    let (mut all, mut choices) = (generation.capabilities(), Implementation::default());
    // SAFETY: as the caller says.
    for setting in unsafe { settings(caps, "caps")? } {
        let (name, word) = setting?;
        all.set(name, word)
            .map_err(|error| invalid(format_args!("{name}={word}: {error}")))?;
    }
    // SAFETY: as the caller says.
    for setting in unsafe { settings(options, "options")? } {
        let (name, word) = setting?;
        choices
            .set(name, word)
            .map_err(|error| invalid(format_args!("{name}={word}: {error}")))?;
    }
    Ok((all, choices))
}

/// # Safety
/// As `taken`.
unsafe fn callbacks(client: *const Callbacks) -> Result<Callbacks, Status> {
    // SAFETY: as the caller says.
    let client = unsafe { taken(client, "client")? };
    zero(&[client.reserved == 0], "client")?;
    if client.now.is_none() || client.store.is_none() {
        return Err(invalid("client.now or client.store is null"));
    }
    Ok(client)
}

/// `cofi_unit_new`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_new(
    name: *const c_char,
    caps: *const c_char,
    options: *const c_char,
    client: *const Callbacks,
    state: *const State,
    out: *mut *mut Owned,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let ((caps, choices), callbacks, context, out) = unsafe {
            (
                processor(name, caps, options)?,
                callbacks(client)?,
                given(state, "context")?.context()?,
                given_mut(out, "out")?,
            )
        };
        let unit = Unit::with(caps, choices, context);
        hand_out(Owned { unit, callbacks }, out);
        Ok(())
    })
}

/// `cofi_unit_restore`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_restore(
    name: *const c_char,
    caps: *const c_char,
    options: *const c_char,
    client: *const Callbacks,
    saved: *const u8,
    len: usize,
    out: *mut *mut Owned,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let ((caps, choices), callbacks, saved, out) = unsafe {
            (
                processor(name, caps, options)?,
                callbacks(client)?,
                bytes(saved, len)?,
                given_mut(out, "out")?,
            )
        };
        let unit = Unit::restore(caps, choices, saved).map_err(invalid)?;
        hand_out(Owned { unit, callbacks }, out);
        Ok(())
    })
}

/// `cofi_unit_save`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_save(
    unit: *const Owned,
    buffer: *mut u8,
    len: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (owned, len) = unsafe { (given(unit, "unit")?, given_mut(len, "len")?) };
        // SAFETY: as the caller says.
        unsafe { fill(&owned.unit.save(), buffer, len) }
    })
}

/// `cofi_unit_free`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_free(unit: *mut Owned) {
    // SAFETY: as the caller says.
    unsafe { take_back(unit) }
}

fn fault(fault: Fault) -> Status {
    because(Status::Fault, fault)
}

/// `cofi_unit_rdmsr`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_rdmsr(
    unit: *const Owned,
    register: u32,
    value: *mut u64,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (owned, value) = unsafe { (given(unit, "unit")?, given_mut(value, "value")?) };
        *value = owned.unit.rdmsr(register).map_err(fault)?;
        Ok(())
    })
}

/// `cofi_at`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Place {
    ip: u64,
    next: u64,
}

impl Place {
    pub(crate) const fn at(self) -> At {
        At {
            ip: Ip(self.ip),
            next: Ip(self.next),
        }
    }
}

/// `cofi_unit_wrmsr`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_wrmsr(
    unit: *mut Owned,
    at: Place,
    register: u32,
    value: u64,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (unit, mut world) = unsafe { given_mut(unit, "unit")? }.parts()?;
        unit.wrmsr(&mut world, at.at(), register, value)
            .map_err(fault)
    })
}

/// `cofi_unit_cpuid`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_cpuid(
    unit: *const Owned,
    leaf: u32,
    subleaf: u32,
    registers: *mut [u32; 4],
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (owned, registers) =
            unsafe { (given(unit, "unit")?, given_mut(registers, "registers")?) };
        let words = owned.unit.capabilities().leaf(leaf, subleaf);
        let words = words.ok_or_else(|| {
            invalid(format_args!(
                "leaf {leaf:#x}, sub-leaf {subleaf} tells nothing of Intel PT"
            ))
        })?;
        let CpuidLeaf { eax, ebx, ecx, edx } = words;
        *registers = [eax, ebx, ecx, edx];
        Ok(())
    })
}

/// `cofi_unit_packet_en`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_packet_en(unit: *const Owned) -> u32 {
    // SAFETY: as the caller says.
    unsafe { unit.as_ref() }
        .is_some_and(|owned| owned.unit.packet_en())
        .into()
}

/// `cofi_unit_in_use`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_in_use(unit: *const Owned) -> u32 {
    // SAFETY: as the caller says.
    unsafe { unit.as_ref() }
        .is_some_and(|owned| owned.unit.in_use())
        .into()
}

/// `cofi_unit_check_output`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_check_output(unit: *const Owned) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let owned = unsafe { given(unit, "unit")? };
        let checked = owned.unit.check_output();
        checked.map_err(|error| because(Status::Lost, error))
    })
}

/// `cofi_unit_reset`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_reset(
    unit: *mut Owned,
    warm: u32,
    state: *const State,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (owned, state) = unsafe { (given_mut(unit, "unit")?, given(state, "context")?) };
        owned.unit.reset(warm != 0, state.context()?);
        Ok(())
    })
}

/// `cofi_unit_clock`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_clock(unit: *mut Owned) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (unit, mut world) = unsafe { given_mut(unit, "unit")? }.parts()?;
        unit.clock(&mut world);
        Ok(())
    })
}

/// `cofi_unit_retire`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_retire(
    unit: *mut Owned,
    at: Place,
    branch: u32,
    target: u64,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (unit, mut world) = unsafe { given_mut(unit, "unit")? }.parts()?;
        let to = Ip(target);
        let branch = match branch {
            0 => Branch::None,
            1 => Branch::Conditional(None),
            2 => Branch::Conditional(Some(to)),
            3 => Branch::DirectJump(to),
            4 => Branch::DirectCall(to),
            5 => Branch::IndirectJump(to),
            6 => Branch::IndirectCall(to),
            7 => Branch::Return(to),
            other => return Err(invalid(format_args!("there is no branch {other}"))),
        };
        let at = at.at();
        unit.retire(&mut world, Retired { at, branch });
        Ok(())
    })
}

/// `cofi_unit_ptwrite`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_ptwrite(
    unit: *mut Owned,
    at: Place,
    operand: u64,
    len: u32,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (unit, mut world) = unsafe { given_mut(unit, "unit")? }.parts()?;
        let operand = match len {
            4 => Payload::Four(operand as u32),
            8 => Payload::Eight(operand),
            other => {
                return Err(invalid(format_args!(
                    "the operand has {other} bytes, and must have 4 or 8"
                )));
            }
        };
        let at = at.at();
        unit.ptwrite(&mut world, Ptwrite { at, operand })
            .map_err(fault)
    })
}

/// `cofi_unit_rsm`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_rsm(
    unit: *mut Owned,
    to: u64,
    state: *const State,
    trace_en: u32,
    lbr: u32,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (owned, state) = unsafe { (given_mut(unit, "unit")?, given(state, "context")?) };
        let to = state.destination(to)?;
        let (unit, mut world) = owned.parts()?;
        let rsm = Rsm {
            to,
            trace_en: trace_en != 0,
            lbr: lbr != 0,
        };
        unit.rsm(&mut world, rsm).map_err(fault)
    })
}

/// Sizes and members' places, for who compares with cofi.h.
#[must_use]
pub fn layout() -> Vec<usize> {
    vec![
        size_of::<Callbacks>(),
        offset_of!(Callbacks, context),
        offset_of!(Callbacks, now),
        offset_of!(Callbacks, store),
        offset_of!(Callbacks, load),
        offset_of!(Callbacks, topa_pmi),
        size_of::<State>(),
        offset_of!(State, cr3),
        offset_of!(State, cs_base),
        offset_of!(State, mode),
        offset_of!(State, cpl),
        offset_of!(State, pae),
        offset_of!(State, interrupt_flag),
        offset_of!(State, in_tx),
        size_of::<Place>(),
        offset_of!(Place, ip),
        offset_of!(Place, next),
    ]
}
