//! Contexts and memory.

use super::world::World;
use crate::unit::reader::{Field, Read, Table};
use crate::unit::values::fields;
use cofi_packet::ExecMode;
use cofi_unit::{Context, Enclave};

/// So many qwords of memory can be given at once.
const MOST_QWORDS: usize = 1 << 16;

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
