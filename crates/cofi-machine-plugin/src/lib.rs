#![doc = include_str!("../README.md")]
//! # How it is made
//!
//! QEMU runs the guest; the plugin is what its processors lack. It answers CPUID, RDMSR and WRMSR where they concern Intel PT and the
//! performance monitoring that its driver needs (`cpuid`, `msr`), tells a [`cofi_unit::Unit`] a processor, or a
//! [`cofi_unit::rtit::Unit`] (`unit`), what retires (`processor`), and is memory and interrupt controller to it (`bus`). QEMU is not changed: it is asked through the interface for
//! plugins, version 7 (QEMU 11.1), of which no header and no code is used (`qemu`).
//!
//! What a plugin can and cannot do decides how this is made:
//!
//! - A callback comes *before* an instruction. What CPUID, RDTSC and RDMSR return is therefore put right at the next callback: that of the next
//!   instruction, of the next block, or of an interrupt between them (`After`).
//! - No plugin raises an exception. A #GP of a trace register is made by letting QEMU access a register that faults (800H, as the processors have
//!   no x2APIC); the handler finds RCX as it was.
//! - One translation of code runs at many linear addresses. So the address is read when a block begins, from the state of the processor,
//!   whose address is in RBP when QEMU's generated code calls a plugin (`state`).
//!
//! Nothing of Rust's standard library is in it, but the C library, which QEMU has loaded already (`runtime`).
#![no_std]
#![cfg_attr(
    test,
    allow(dead_code, reason = "without QEMU, some of it has no user")
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bus;
mod clock;
mod code;
mod count;
mod counters;
mod cpuid;
mod frame;
mod list;
mod msr;
mod operand;
mod options;
mod plugin;
mod processor;
mod qemu;
#[cfg(cofi_plugin)]
mod runtime;
mod state;
mod sync;
mod tell;
mod unit;
mod vectors;
