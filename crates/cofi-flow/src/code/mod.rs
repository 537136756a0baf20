//! Code that was decoded: what the walk goes over.

pub(crate) mod cache;
#[cfg(test)]
mod cache_tests;
pub(crate) mod flat;
pub(crate) mod graph;
mod graph_build;
pub(crate) mod index;
pub(crate) mod memo;
pub(crate) mod phrase;
pub(crate) mod retstack;
pub(crate) mod shelf;
