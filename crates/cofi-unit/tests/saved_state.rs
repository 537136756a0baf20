//! Saved units: they go on as if nothing had been, saved ones of old are still read, and no bytes do harm.

mod random;

use cofi_unit::Unit;
use proptest::prelude::*;
use random::{Dice, Machine};

/// The machine with its unit saved and restored.
fn moved(machine: &Machine) -> Machine {
    let bytes = machine.unit.save();
    let unit = Unit::restore(
        *machine.unit.capabilities(),
        *machine.unit.implementation(),
        &bytes,
    );
    let unit = unit.unwrap_or_else(|error| panic!("{error}: {:?}", machine.unit));
    assert_eq!(unit.save(), bytes);
    Machine {
        unit,
        ..machine.clone()
    }
}

/// `COFI_CASES` asks for more.
fn cases() -> u32 {
    let asked = std::env::var("COFI_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(256)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_unit_goes_on_as_the_saved_one(
        machine: u64,
        before in prop::collection::vec(any::<u64>(), 1..80),
        after in prop::collection::vec(any::<u64>(), 1..40),
    ) {
        let mut machine = Machine::new(&mut Dice::Seed(machine));
        for step in before {
            machine.step(&mut Dice::Seed(step));
        }
        let mut moved = moved(&machine);
        for step in after {
            machine.step(&mut Dice::Seed(step));
            moved.step(&mut Dice::Seed(step));
            prop_assert_eq!(&machine.world, &moved.world);
            prop_assert_eq!(machine.registers(), moved.registers());
        }
        machine.finish();
        moved.finish();
        prop_assert_eq!(machine.world, moved.world);
    }

    #[test]
    fn no_bytes_make_a_unit_that_panics(
        machine: u64,
        before in prop::collection::vec(any::<u64>(), 1..60),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        after in prop::collection::vec(any::<u64>(), 1..40),
    ) {
        let mut machine = Machine::new(&mut Dice::Seed(machine));
        for step in before {
            machine.step(&mut Dice::Seed(step));
        }
        let mut bytes = machine.unit.save();
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let (caps, choices) = (*machine.unit.capabilities(), *machine.unit.implementation());
        match Unit::restore(caps, choices, &bytes) {
            Ok(unit) => {
                machine.unit = unit;
                machine.is_broken = true;
                for step in after {
                    machine.step(&mut Dice::Seed(step));
                }
                machine.finish();
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
