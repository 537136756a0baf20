//! The manual's declarations, and nothing else: registers with their fields, table entries, capabilities. Behaviour lives elsewhere.

mod cpuid;
#[cfg(test)]
pub(crate) mod cpuid_tests;
pub(crate) mod fields;
pub mod msr;
mod presets;
pub mod topa;

pub use cpuid::{Capabilities, CpuidField, CpuidLeaf, CrystalRatio, Inconsistency, Signature};
pub use msr::{AddressRange, Cr3Match, Ctl, OutputBase, OutputMaskPtrs, Status};
pub use presets::{Generation, UnknownGeneration};
