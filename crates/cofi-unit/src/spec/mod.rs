//! The manual's declarations, and nothing else: registers with their fields, capabilities. Behaviour lives elsewhere.

mod cpuid;
#[cfg(test)]
mod cpuid_tests;
pub mod msr;
mod presets;

pub use cpuid::{Capabilities, CpuidField, CpuidLeaf, CrystalRatio, Inconsistency, Signature};
pub use msr::{AddressRange, Cr3Match, Ctl, OutputBase, OutputMaskPtrs, Status};
pub use presets::{Generation, UnknownGeneration};
