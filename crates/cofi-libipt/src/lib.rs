//! A library with libipt's interface: programs that were compiled against libipt 2.0.5 run on it unchanged.
//!
//! The interface is libipt's header and manual pages, as facts: layouts, numbers, what functions take and return. What they leave open was found by
//! experiments with the library that Debian has. `docs/libipt.md` says where the two differ, and why.
#![allow(
    unsafe_code,
    reason = "functions for C take pointers; what the caller must keep is in intel-pt.h, and each use says on what it relies"
)]

pub mod block;
mod boundary;
mod clock;
pub mod code;
pub mod config;
mod decoder;
mod encode;
pub mod error;
pub mod event;
pub mod flow;
pub mod image;
mod last_ip;
pub mod packet_decoder;
pub mod packets;
pub mod query;
mod sync;
