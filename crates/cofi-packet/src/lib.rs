//! The packet formats of Processor Trace.
//!
//! [`intel`] holds Intel PT: one table (in [`intel::Packet`]'s module) yields the packet type, its decoder, its
//! encoder and its printer. The crate does no I/O, allocates nothing and can be used alone.
//!
//! Addresses, stream offsets and clocks have types of their own ([`Ip`], [`StreamOffset`], [`Tsc`]), which the other
//! crates share.
#![no_std]

#[cfg(test)]
extern crate std;

mod addr;
pub mod intel;

pub use addr::{ExecMode, Ip, StreamOffset, Tsc};
