//! The law for RTIT: whatever the unit emits, the decoder recovers exactly, and there are gaps only where packets were lost or where the
//! reference has the unit be silent.

mod flow;
mod levels;
mod muddled;
mod remembered;
mod setups;
mod stream;
mod unit;
