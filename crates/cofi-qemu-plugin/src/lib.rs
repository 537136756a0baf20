#![doc = include_str!("../README.md")]
//! # The plugin
//!
//! `cofi-capture`'s build script makes a shared object of this source for each plugin API version; that is the plugin.
//! QEMU's functions are found at run time by their names; no header and no code of QEMU's is used.
//!
//! Nothing of Rust's standard library is in it, but the C library, which QEMU has loaded already: with std it would have four times the bytes (`runtime`).
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod files;
pub mod layout;
mod machine;
mod plugin;
mod qemu;
mod rings;
#[cfg(cofi_plugin)]
mod runtime;
mod signals;
mod start;
mod sync;
mod sys;
mod tell;
