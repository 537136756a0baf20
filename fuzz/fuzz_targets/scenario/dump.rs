//! What `cofi unit` needs of `cofi dump`.

#[allow(dead_code)]
#[path = "../../../crates/cofi/src/dump/known.rs"]
pub(crate) mod known;
