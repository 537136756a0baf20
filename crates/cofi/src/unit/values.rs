//! Values that stand in several places of a scenario, whatever the unit.

use super::reader::{Read, Table};
use cofi_packet::Ip;
use cofi_unit::{At, Branch, Clock, Retired};

/// How long an instruction is if nothing is said.
const LENGTH: u64 = 4;

/// Reads fields of a struct, each under its own name.
macro_rules! fields {
    ($table:ident, $target:expr, $read:ident: $($name:ident)*) => {$(
        if let Some(field) = $table.get(stringify!($name)) {
            $target.$name = field.$read()?;
        }
    )*};
}

pub(super) use fields;

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

/// This long after a time.
pub(super) fn later(clock: Clock, by: Clock) -> Clock {
    Clock {
        tsc: clock.tsc.saturating_add(by.tsc),
        cycles: clock.cycles.saturating_add(by.cycles),
    }
}

pub(super) fn get_ip<'t>(op: &Table<'t>, key: &'t str) -> Read<Option<Ip>> {
    match op.get(key) {
        Some(field) => Ok(Some(Ip(field.number()?))),
        None => Ok(None),
    }
}

pub(super) fn need_ip<'t>(op: &Table<'t>, key: &'t str) -> Read<Ip> {
    Ok(Ip(op.need(key)?.number()?))
}

pub(super) fn ip_or<'t>(op: &Table<'t>, key: &'t str, default: Ip) -> Read<Ip> {
    Ok(get_ip(op, key)?.unwrap_or(default))
}

/// A flag that is false if it is left out.
pub(super) fn flag<'t>(op: &Table<'t>, key: &'t str) -> Read<bool> {
    match op.get(key) {
        Some(field) => field.flag(),
        None => Ok(false),
    }
}

/// The keys `ip`, and `next` or `len`, of an instruction where control stands at `here`.
pub(super) fn at(op: &Table<'_>, here: Ip) -> Read<At> {
    let ip = ip_or(op, "ip", here)?;
    let length = match op.get("len") {
        Some(field) => field.number_in(1..=15)?,
        None => LENGTH,
    };
    let next = ip_or(op, "next", ip.wrapping_add(length))?;
    Ok(At { ip, next })
}

/// The instruction `word`, if it is one that a unit is told as retired: a near branch, or none of interest.
pub(super) fn retired(word: &str, op: &Table<'_>, here: Ip) -> Read<Option<Retired>> {
    let known = [
        "plain",
        "jcc",
        "jmp",
        "call",
        "jmp_indirect",
        "call_indirect",
        "ret",
    ];
    if !known.contains(&word) {
        return Ok(None);
    }
    let at = at(op, here)?;
    let branch = match word {
        "plain" => Branch::None,
        "jcc" => Branch::Conditional(get_ip(op, "to")?),
        "jmp" => Branch::DirectJump(need_ip(op, "to")?),
        "call" => Branch::DirectCall(need_ip(op, "to")?),
        "jmp_indirect" => Branch::IndirectJump(need_ip(op, "to")?),
        "call_indirect" => Branch::IndirectCall(need_ip(op, "to")?),
        _ => Branch::Return(need_ip(op, "to")?),
    };
    Ok(Some(Retired { at, branch }))
}

/// The keys `size`, `drain_bytes` and `drain_cycles` of an internal buffer of at least `least` bytes.
pub(super) fn buffer(table: &Table<'_>, least: u64) -> Read<[u32; 3]> {
    let number = |key| match table.get(key) {
        Some(field) => field.number(),
        None => Ok(0),
    };
    let size = table.need("size")?.number_in(least..=1 << 24)? as u32;
    Ok([size, number("drain_bytes")?, number("drain_cycles")?])
}
