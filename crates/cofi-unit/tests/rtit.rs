//! The RTIT unit, rule by rule (docs/unit-rtit.md says which test is for which).

#[path = "rtit/enables.rs"]
mod enables;
#[path = "rtit/errata.rs"]
mod errata;
#[path = "rtit/machine.rs"]
mod machine;
#[path = "rtit/operations.rs"]
mod operations;
#[path = "rtit/output.rs"]
mod output;
#[path = "rtit/overflow.rs"]
mod overflow;
#[path = "rtit/packets.rs"]
mod packets;
#[path = "rtit/random.rs"]
mod random;
#[path = "rtit/registers.rs"]
mod registers;
#[path = "rtit/time.rs"]
mod time;
