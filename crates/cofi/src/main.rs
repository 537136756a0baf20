//! The `cofi` command.

fn main() {}
