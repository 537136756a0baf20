#![doc = include_str!("../README.md")]
//! # The plugin
//!
//! `cofi-capture`'s build script makes a shared object of this source for each plugin API version; that is the plugin.
//! QEMU's functions are found at run time by their names; no header and no code of QEMU's is used.

pub mod layout;
mod machine;
mod plugin;
mod qemu;
mod rings;
mod signals;
mod start;
mod sys;
