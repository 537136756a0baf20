#![doc = include_str!("../README.md")]
//! # What is modelled
//!
//! [`Unit`] is told what happens; through [`Client`] it asks for the clock and the memory. [`guide`] says step by step how an emulator comes by it. The unit knows
//! nothing of operating systems, files or ptrace, and reads no clock.
//!
//! By section of the manual (chapter 33 of volume 3):
//!
//! | what | sections |
//! |---|---|
//! | enables, filtering by CPL, CR3 and IP, TraceStop | 33.2.5, 33.2.6 |
//! | output to a single range, by Tables of Physical Addresses, to the trace transport subsystem; restricted memory | 33.2.7 |
//! | all registers, with every rule for writes; resets; XSAVES | 33.2.8, 33.3.4, 33.3.5 |
//! | transactions, SMM, VMX operation, enclaves, authenticated code | 33.2.9, 33.5, 33.6 |
//! | CPUID, and named generations of processors | 33.3.1 |
//! | timing: TSC, TMA, MTC, CYC, CBR | 33.3.6, 33.8.3 |
//! | PSB+, with its preservation | 33.3.7 |
//! | the internal buffer and its overflows | 33.3.8 |
//! | operational errors | 33.3.10 |
//! | every packet, with IP and RET compression, short and long TNTs, deferred TIPs | 33.4.2 |
//! | PTWRITE, Power Event Trace, Event Trace, PEBS records | 33.2.2, 33.2.3, 33.4.1, 33.7 |
//!
//! What the manual leaves to the processor is a value, [`Implementation`].
//!
//! [`rtit`] is the same for Real Time Instruction Trace, Intel PT's ancestor: a unit of its own, with the same kinds of parts.
#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

mod client;
mod clock;
mod compress;
mod drain;
mod event;
#[doc = include_str!("guide.md")]
pub mod guide {}
mod implementation;
mod output;
mod registers;
pub mod rtit;
mod settings;
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
pub use output::OutputError;
pub use registers::{Fault, TransitionError};
pub use settings::SettingError;
pub use spec::{
    AddressRange, Capabilities, CpuidField, CpuidLeaf, CrystalRatio, Ctl, Generation,
    Inconsistency, OutputBase, OutputMaskPtrs, Signature, Status, UnknownGeneration, msr,
};
pub use state::RestoreError;
pub use unit::{Gathering, Unit};
pub use xsave::XsaveArea;

#[cfg(test)]
mod tests;
