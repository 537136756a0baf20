//! Values that stand in several places of a scenario: contexts, clocks, memory, registers.

use super::reader::{Field, Read, Table};
use super::world::World;
use cofi_packet::ExecMode;
use cofi_unit::spec::msr::{self, RegisterSpec};
use cofi_unit::{Clock, Context, Enclave};

/// So many qwords of memory can be given at once.
const MOST_QWORDS: usize = 1 << 16;
/// What the names of all trace registers begin with.
const PREFIX: &str = "IA32_RTIT_";

/// Reads fields of a struct, each under its own name.
macro_rules! fields {
    ($table:ident, $target:expr, $read:ident: $($name:ident)*) => {$(
        if let Some(field) = $table.get(stringify!($name)) {
            $target.$name = field.$read()?;
        }
    )*};
}

pub(super) use fields;

/// A context with some of its parts changed.
pub(super) fn patched(old: Context, field: &Field<'_>) -> Read<Context> {
    let mut context = old;
    let table = field.table()?;
    if let Some(field) = table.get("cpl") {
        context.cpl = field.number_in(0..=3)? as u8;
    }
    fields!(table, context, number: cr3 cs_base);
    fields!(table, context, flag: pae in_tx);
    if let Some(field) = table.get("if") {
        context.interrupt_flag = field.flag()?;
    }
    if let Some(field) = table.get("mode") {
        context.mode = match field.number()? {
            16_u64 => ExecMode::Bits16,
            32 => ExecMode::Bits32,
            64 => ExecMode::Bits64,
            _ => return Err(field.mistake("expected 16, 32 or 64")),
        };
    }
    if let Some(field) = table.get("enclave") {
        context.enclave = field.choice(&[
            ("none", Enclave::None),
            ("production", Enclave::Production),
            ("debug", Enclave::Debug),
        ])?;
    }
    table.finish()?;
    Ok(context)
}

/// The keys `tsc` and `cycles`; zero if they are left out.
pub(super) fn clock(table: &Table<'_>) -> Read<Clock> {
    let number = |key| match table.get(key) {
        Some(field) => field.number(),
        None => Ok(0),
    };
    Ok(Clock {
        tsc: number("tsc")?,
        cycles: number("cycles")?,
    })
}

/// Puts `qwords` into memory from the address `at` on.
pub(super) fn remember(world: &mut World, table: &Table<'_>) -> Read<()> {
    let place = table.need("at")?;
    let at = place.number::<u64>()?;
    let list = table.need("qwords")?;
    let qwords = list.array()?;
    if at & 7 != 0 {
        return Err(place.mistake("the address is no multiple of 8"));
    }
    if world.memory.len() + qwords.len() > MOST_QWORDS {
        return Err(list.mistake(format!("more than {MOST_QWORDS} qwords of memory")));
    }
    for (index, qword) in qwords.iter().enumerate() {
        let address = at.wrapping_add(8 * index as u64);
        world.memory.insert(address, qword.number()?);
    }
    Ok(())
}

/// The MSR of this name or address.
pub(super) fn register(field: &Field<'_>) -> Read<u32> {
    if field.is_number() {
        return field.number();
    }
    register_named(field.text()?)
        .ok_or_else(|| field.mistake("there is no trace register of this name"))
}

/// The address of the MSR of this name, with or without `IA32_RTIT_`.
pub(super) fn register_named(name: &str) -> Option<u32> {
    let short = name.strip_prefix(PREFIX).unwrap_or(name);
    let spec = msr::ALL
        .iter()
        .find(|spec| spec.name.strip_prefix(PREFIX) == Some(short))?;
    Some(spec.address)
}

/// The name of the MSR at this address.
pub(super) fn register_name(address: u32) -> String {
    let spec = msr::ALL.iter().find(|spec| spec.address == address);
    spec.map_or_else(|| format!("{address:#x}"), |spec| spec.name.to_owned())
}

/// Fields of a register, changed by name.
pub(super) fn changed(msr: u32, old: u64, changes: &Table<'_>) -> Read<u64> {
    let spec: Option<&RegisterSpec> = msr::ALL.iter().find(|spec| spec.address == msr);
    let mut value = old;
    for change in changes.all() {
        let field = spec.and_then(|spec| spec.fields.iter().find(|field| field.name == change.key));
        let (Some(field), Some(spec)) = (field, spec) else {
            let names = spec.map_or(Vec::new(), |spec| {
                spec.fields.iter().map(|field| field.name).collect()
            });
            let name = register_name(msr);
            return Err(change.mistake(format!(
                "{name} has no field of this name; it has: {}",
                names.join(", ")
            )));
        };
        let new = change.number_or_flag()?;
        if new > field.mask() >> field.low {
            let (name, width) = (spec.name, field.high - field.low);
            return Err(change.mistake(format!("the field of {name} has {width} bits")));
        }
        value = value & !field.mask() | new << field.low;
    }
    Ok(value)
}
