#![doc = include_str!("../README.md")]

pub mod digits;
mod json;
pub mod packets;

pub use json::Line;
