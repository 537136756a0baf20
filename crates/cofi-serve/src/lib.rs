#![doc = include_str!("../README.md")]

mod api;
mod files;
mod parting;
mod query;
mod recording;
mod server;
mod source;

pub use recording::{Opened, Recording};
pub use server::{Server, serve};
