//! The manual's declarations, and nothing else: registers with their fields, table entries, capabilities. Behaviour lives elsewhere.

mod cpuid;
pub mod msr;
pub mod topa;

pub use cpuid::{Capabilities, CrystalRatio};
pub use msr::{AddressRange, Cr3Match, Ctl, OutputBase, OutputMaskPtrs, Status};
