//! Anything in any order, done to a trace unit: the properties of cofi-unit's tests `random_operations` and `saved_state`, whose
//! machine this is. The bytes are the processor, its world, and then one operation after the other.
#![no_main]

#[path = "../../crates/cofi-unit/tests/random/mod.rs"]
#[allow(dead_code)]
mod random;

use cofi_unit::Unit;
use libfuzzer_sys::fuzz_target;
use random::{Dice, Machine};

/// So many operations are enough for anything; and so much time a case may take.
const OPERATIONS: usize = 200;

fuzz_target!(|bytes: &[u8]| {
    let mut dice = Dice::Bytes(bytes);
    let mut machine = Machine::new(&mut dice);
    for _ in 0..OPERATIONS {
        if dice.is_empty() {
            break;
        }
        machine.step(&mut dice);
        if dice.once_in(32) {
            restore(&mut machine, &mut dice);
        }
    }
    machine.finish();
});

/// Goes on with the saved unit; or with one that was changed while saved, which may do anything but panic.
fn restore(machine: &mut Machine, dice: &mut Dice<'_>) {
    let mut bytes = machine.unit.save();
    let is_changed = dice.once_in(2);
    if is_changed {
        let index = dice.word() as usize % bytes.len();
        bytes[index] ^= dice.byte();
    }
    let (caps, choices) = (*machine.unit.capabilities(), *machine.unit.implementation());
    match Unit::restore(caps, choices, &bytes) {
        Ok(unit) => {
            assert!(
                is_changed || machine.is_broken || unit.save() == bytes,
                "the state has changed"
            );
            machine.unit = unit;
            machine.is_broken |= is_changed;
        }
        Err(error) => assert!(is_changed || machine.is_broken, "{error}"),
    }
}
