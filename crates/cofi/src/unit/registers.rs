//! The trace registers of a format by their names, and the fields of each.

use super::reader::{Field, Read, Table};
use cofi_packet::intel::IntelPt;
use cofi_packet::rtit::Rtit;
use cofi_text::packets::Known;

/// A register.
pub(super) struct Register {
    /// The manual's name.
    pub(super) name: &'static str,
    pub(super) address: u32,
    /// The fields: name, lowest bit, the bit after the highest.
    fields: Vec<(&'static str, u32, u32)>,
}

/// A format with a trace unit.
pub(super) trait Traced: Known {
    /// What the names of its registers begin with, and a scenario may leave out.
    const PREFIX: &'static str;

    /// Its registers.
    fn registers() -> Vec<Register>;
}

macro_rules! registers {
    ($all:expr) => {
        $all.iter()
            .map(|spec| Register {
                name: spec.name,
                address: spec.address,
                fields: spec
                    .fields
                    .iter()
                    .map(|field| (field.name, field.low, field.high))
                    .collect(),
            })
            .collect()
    };
}

impl Traced for IntelPt {
    const PREFIX: &'static str = "IA32_RTIT_";

    fn registers() -> Vec<Register> {
        registers!(cofi_unit::spec::msr::ALL)
    }
}

impl Traced for Rtit {
    const PREFIX: &'static str = "RTIT_";

    fn registers() -> Vec<Register> {
        registers!(cofi_unit::rtit::msr::ALL)
    }
}

/// The MSR of this name or address.
pub(super) fn register<F: Traced>(field: &Field<'_>) -> Read<u32> {
    if field.is_number() {
        return field.number();
    }
    register_named::<F>(field.text()?)
        .ok_or_else(|| field.mistake("there is no trace register of this name"))
}

/// The address of the MSR of this name, with or without the prefix.
pub(super) fn register_named<F: Traced>(name: &str) -> Option<u32> {
    let short = name.strip_prefix(F::PREFIX).unwrap_or(name);
    let all = F::registers();
    let register = all
        .iter()
        .find(|register| register.name.strip_prefix(F::PREFIX) == Some(short))?;
    Some(register.address)
}

/// The name of the MSR at this address.
pub(super) fn register_name<F: Traced>(address: u32) -> String {
    let all = F::registers();
    let register = all.iter().find(|register| register.address == address);
    register.map_or_else(
        || format!("{address:#x}"),
        |register| register.name.to_owned(),
    )
}

/// Fields of a register, changed by name.
pub(super) fn changed<F: Traced>(msr: u32, old: u64, changes: &Table<'_>) -> Read<u64> {
    let all = F::registers();
    let register = all.iter().find(|register| register.address == msr);
    let fields = register.map_or(&[][..], |register| &register.fields);
    let mut value = old;
    for change in changes.all() {
        let field = fields.iter().find(|field| field.0 == change.key);
        let Some(&(_, low, high)) = field else {
            let names: Vec<_> = fields.iter().map(|field| field.0).collect();
            let name = register_name::<F>(msr);
            return Err(change.mistake(format!(
                "{name} has no field of this name; it has: {}",
                names.join(", ")
            )));
        };
        let new = change.number_or_flag()?;
        let width = high - low;
        let most = u64::MAX >> (64 - width);
        if new > most {
            let name = register_name::<F>(msr);
            return Err(change.mistake(format!("the field of {name} has {width} bits")));
        }
        value = value & !(most << low) | new << low;
    }
    Ok(value)
}

/// The registers that `[start]` gives: address, value, place in the text.
pub(super) fn given<F: Traced>(start: &Table<'_>) -> Read<Vec<(u32, u64, usize)>> {
    let mut writes = Vec::new();
    for field in start.all() {
        let msr = register_named::<F>(&field.key)
            .ok_or_else(|| field.mistake("there is no trace register of this name"))?;
        let value = if field.is_table() {
            changed::<F>(msr, 0, &field.table()?)?
        } else {
            field.number()?
        };
        writes.push((msr, value, field.at));
    }
    Ok(writes)
}
