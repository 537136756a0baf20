//! The operations of a scenario one after the other, and the time between them.

use super::reader::{Field, Read, Table};
use super::record::{MOST_BYTES, Note, Record};
use super::registers::{Traced, changed, register};
use super::values::{clock, later, retired};
use cofi_packet::Ip;
use cofi_unit::{At, Fault, Retired};

/// A scenario of more operations than these, repetitions counted, is not run to its end.
const MOST_OPERATIONS: u64 = 1_000_000;
/// An operation comes at most so many cycles after the last.
const LONGEST_PAUSE: u64 = 1 << 32;

/// A trace unit under a scenario.
pub(super) trait Machine {
    /// What its packets are.
    type Format: Traced;

    fn record(&mut self) -> &mut Record<Self::Format>;
    /// Where the next operation happens if it does not say.
    fn ip(&mut self) -> &mut Ip;

    /// Reads what every operation may say beside the time.
    fn prepare(&mut self, op: &Table<'_>) -> Read<()> {
        let _ = op;
        Ok(())
    }
    /// Does the operation `word`; `false` if there is none of this name.
    fn operate(&mut self, word: &str, op: &Table<'_>) -> Read<bool>;

    /// Looks what the operation has done to the output.
    fn conclude(&mut self) {}

    fn retire(&mut self, insn: Retired);
    fn rdmsr(&mut self, msr: u32) -> Result<u64, Fault>;
    fn wrmsr(&mut self, at: At, msr: u32, value: u64) -> Result<(), Fault>;
}

/// Does the operations of `[[op]]`.
pub(super) fn list(machine: &mut impl Machine, list: &Field<'_>) -> Read<()> {
    for op in list.array()? {
        machine.record().op += 1;
        operation(machine, &op)?;
    }
    Ok(())
}

fn operation(machine: &mut impl Machine, op: &Field<'_>) -> Read<()> {
    let mut table = op.table()?;
    let name = table.need("op")?;
    let word = name.text()?;
    table.rename(format!("the operation `{word}`"));
    let times = match table.get("times") {
        Some(field) => field.number_in(1..=MOST_OPERATIONS)?,
        None => 1,
    };
    for _ in 0..times {
        machine.record().done += 1;
        if machine.record().done > MOST_OPERATIONS {
            let what = format!("the scenario has more than {MOST_OPERATIONS} operations");
            return Err(name.mistake(what));
        }
        time(machine.record(), &table)?;
        machine.prepare(&table)?;
        if word == "repeat" {
            for op in table.need("ops")?.array()? {
                operation(machine, &op)?;
            }
        } else {
            machine.record().mark(Note::Begin(word.to_owned()));
            one(machine, &name, word, &table)?;
            machine.conclude();
        }
        table.finish()?;
        if machine.record().is_full {
            let what = format!("the scenario makes more than {MOST_BYTES} bytes of packets");
            return Err(name.mistake(what));
        }
    }
    Ok(())
}

/// The clock goes on, as the keys `after` and `time` say.
fn time<F: Traced>(record: &mut Record<F>, op: &Table<'_>) -> Read<()> {
    let now = record.clock;
    if let Some(field) = op.get("after") {
        let table = field.table()?;
        let after = clock(&table)?;
        table.finish()?;
        record.clock = later(now, after);
    }
    if let Some(field) = op.get("time") {
        let table = field.table()?;
        let mut time = clock(&table)?;
        if table.get("tsc").is_none() {
            time.tsc = record.clock.tsc;
        }
        if table.get("cycles").is_none() {
            time.cycles = record.clock.cycles;
        }
        table.finish()?;
        if time.tsc < record.clock.tsc || time.cycles < record.clock.cycles {
            return Err(field.mistake("the clock does not run backwards"));
        }
        record.clock = time;
    }
    if record.clock.cycles.wrapping_sub(now.cycles) > LONGEST_PAUSE {
        let what = format!("more than {LONGEST_PAUSE} cycles pass before this operation");
        return Err(op.mistake(what));
    }
    Ok(())
}

fn one<M: Machine>(machine: &mut M, name: &Field<'_>, word: &str, op: &Table<'_>) -> Read<()> {
    let ip = *machine.ip();
    match word {
        "rdmsr" => {
            let msr = register::<M::Format>(&op.need("msr")?)?;
            let note = match machine.rdmsr(msr) {
                Ok(value) => Note::Read {
                    msr,
                    value,
                    mask: u64::MAX,
                },
                Err(fault) => Note::fault(fault),
            };
            machine.record().mark(note);
        }
        "wrmsr" => {
            let msr = register::<M::Format>(&op.need("msr")?)?;
            let at = super::values::at(op, ip)?;
            let value = match op.get("set") {
                Some(field) => {
                    let old = machine.rdmsr(msr).unwrap_or(0);
                    changed::<M::Format>(msr, old, &field.table()?)?
                }
                None => op.need("value")?.number()?,
            };
            match machine.wrmsr(at, msr, value) {
                Ok(()) => *machine.ip() = at.next,
                Err(fault) => machine.record().mark(Note::fault(fault)),
            }
        }
        _ => match retired(word, op, ip)? {
            Some(insn) => {
                machine.retire(insn);
                *machine.ip() = insn.destination();
            }
            None => {
                if !machine.operate(word, op)? {
                    return Err(name.mistake(format!("there is no operation {word:?}")));
                }
            }
        },
    }
    Ok(())
}
