#![doc = include_str!("../README.md")]

mod adapter;
mod breakpoints;
mod message;

pub use adapter::{Open, Recorded, run};
pub use message::MessageError;
