//! A processor in which anything happens in any order, as far as its trace unit can be told: what the tests of random operations and
//! of saved states, and the fuzz target `unit`, have in common.

mod machine;
mod operations;
mod values;
mod world;

pub(crate) use machine::Machine;
pub(crate) use values::Dice;
use values::{capabilities, choices};
use world::World;
