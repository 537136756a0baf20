#![doc = include_str!("../README.md")]
//! # Two things in one
//!
//! The crate is two things. As a library it is [`layout`]: the shared memory through which plugin and recorder talk. As the
//! shared object that `cofi-capture`'s build script makes of the same source, once for each plugin API version, it is
//! also the plugin (`plugin`).
//!
//! QEMU's functions are found at run time by their names; no header and no code of QEMU's is used.

pub mod layout;
mod machine;
mod plugin;
mod qemu;
mod rings;
mod signals;
mod start;
mod sys;
