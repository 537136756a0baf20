//! The trace unit of Processor Trace as an executable model.
//!
//! [`Unit`] is what a processor with Intel PT has beside its pipeline: registers that software writes, and a stream of
//! packets that follows from the instructions which retire and the events which happen. The embedder (an emulator, a
//! hypervisor, a single-stepping engine) tells it both and provides, through [`Client`], the clock and the memory.
//!
//! The unit knows nothing of operating systems, files or ptrace; it reads no clock and allocates nothing.
//!
//! What is modelled so far, by section of the manual: enables and CPL/CR3 filtering (33.2.5.1–2, 33.2.6), single-range
//! output (33.2.7.1), IA32_RTIT_CTL, STATUS, OUTPUT_BASE, OUTPUT_MASK_PTRS and CR3_MATCH (33.2.8), control-flow packets
//! with IP and RET compression (33.4.2), PSB+ (33.3.7), timing packets (33.3.6, 33.4.2.11–14). IP filtering, ToPA,
//! PTWRITE, power and event trace are enumerated as absent, so enabling them is the #GP that the manual names.
#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

mod client;
mod clock;
mod compress;
mod event;
mod implementation;
mod output;
mod registers;
pub mod spec;
mod state;
mod unit;
mod xsave;

pub use client::{Client, Clock, PhysAddr};
pub use compress::ReturnStack;
pub use event::{
    At, Block, Branch, Context, Destination, Enclave, EntryOutcome, Event, GuestTsc, Mwait,
    Ptwrite, Retired, Rsm, Sleep, SmmExit, SmmReturn, VmEntry, VmExit,
};
pub use implementation::{Implementation, InternalBuffer, IpCompression, TntForm};
pub use registers::{Fault, TransitionError};
pub use spec::{
    AddressRange, Capabilities, CpuidField, CpuidLeaf, CrystalRatio, Ctl, Generation,
    Inconsistency, OutputBase, OutputMaskPtrs, Signature, Status, UnknownGeneration, msr,
};
pub use state::RestoreError;
pub use unit::{Gathering, Unit};
pub use xsave::XsaveArea;

#[cfg(test)]
mod tests;
