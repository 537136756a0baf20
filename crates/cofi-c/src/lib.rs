//! Processor Trace for C and C++.
//!
//! `include/cofi.h` is the interface, and says what each function does; this crate is behind it. What C hands over is checked as far as it can be: null, sizes, numbers that
//! mean nothing. No panic leaves a function.
#![allow(
    unsafe_code,
    reason = "functions for C take pointers; what the caller must keep is in cofi.h, and each use says on what it relies"
)]

pub mod event;
pub mod flow;
pub mod packets;
pub mod recording;
pub mod status;
pub mod unit;
pub mod vmx;
