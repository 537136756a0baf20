//! A page on which one sees a recording, from the whole run to one instruction: `cofi serve`.
//!
//! The page and all that it needs are in the binary. The [server](serve) listens on the loopback device alone. Its address holds a token of 128 random
//! bits: whoever does not know it is told nothing, and so is whoever comes by another name of this machine (DNS rebinding) or from another site.
//! What a trace names is shown as text, and of files only sources of code that ran.

mod api;
mod files;
mod parting;
mod query;
mod recording;
mod server;
mod source;

pub use recording::{Opened, Recording};
pub use server::{Server, serve};
