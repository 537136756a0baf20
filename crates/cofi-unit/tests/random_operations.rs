//! Random operations in any order on random processors, with time that jumps and runs backwards: nothing panics, a fault changes
//! nothing, the enables depend on each other as 33.2.6 says, and what is stored is packets.

mod random;

use proptest::prelude::*;
use random::{Dice, Machine};

/// `COFI_CASES` asks for more.
fn cases() -> u32 {
    let asked = std::env::var("COFI_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(512)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anything_may_happen_in_any_order(machine: u64, steps in prop::collection::vec(any::<u64>(), 1..120)) {
        let mut machine = Machine::new(&mut Dice::Seed(machine));
        for step in steps {
            machine.step(&mut Dice::Seed(step));
        }
        machine.finish();
    }
}

/// One case again, as its machine and steps: `COFI_CASE="1 2 3"`, and `-- --ignored`; `COFI_LOUD` tells what is done in it.
#[test]
#[ignore = "a tool: COFI_CASE names the case"]
fn one_case_again() {
    let case = std::env::var("COFI_CASE").expect("COFI_CASE names the case");
    let mut seeds = case
        .split_whitespace()
        .map(|seed| seed.parse().expect("a number"));
    let machine = seeds.next().expect("a machine");
    let mut machine = Machine::new(&mut Dice::Seed(machine));
    for step in seeds {
        machine.step(&mut Dice::Seed(step));
    }
    machine.finish();
}
