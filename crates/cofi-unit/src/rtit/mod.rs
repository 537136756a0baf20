//! The trace unit of Real Time Instruction Trace, Intel PT's ancestor on Silvermont and Airmont, as an executable model
//! (programming reference 1.05, whose sections are named here).
//!
//! [`Unit`] is to RTIT what [`crate::Unit`] is to Intel PT: the embedder tells it every instruction that retires
//! ([`Unit::retire`]), every event ([`Unit::event`]) and every access to its registers ([`Unit::rdmsr`], [`Unit::wrmsr`]), in
//! program order, and gives it clock and memory through [`Client`].
//!
//! ```
//! use cofi_unit::rtit::{Client, Context, Ctl, Events, Unit, msr};
//! use cofi_unit::{At, Branch, Clock, PhysAddr, Retired};
//! use cofi_packet::Ip;
//!
//! struct Memory(Vec<u8>);
//!
//! impl Client for Memory {
//!     fn now(&mut self) -> Clock {
//!         Clock::default()
//!     }
//!     fn store(&mut self, _address: PhysAddr, bytes: &[u8]) {
//!         self.0.extend(bytes);
//!     }
//! }
//!
//! let mut memory = Memory(Vec::new());
//! let mut unit = Unit::new(Context::default());
//! let at = |ip| At { ip: Ip(ip), next: Ip(ip + 2) };
//!
//! let ctl = Ctl(unit.rdmsr(msr::RTIT_CTL)?).with_os(true).with_trace_en(true);
//! let events = Events::default().with_filter(Events::ALWAYS_ON).with_trace_stop(Events::ALWAYS_OFF);
//! unit.wrmsr(&mut memory, at(0x1000), msr::RTIT_EVENTS, events.0)?;
//! unit.wrmsr(&mut memory, at(0x1002), msr::RTIT_CTL, ctl.0)?;
//! unit.wrmsr(&mut memory, at(0x1004), msr::RTIT_CTL, ctl.with_trace_active(true).0)?;
//! let branch = Branch::IndirectJump(Ip(0x2000));
//! unit.retire(&mut memory, Retired { at: at(0x1006), branch });
//!
//! // PSB, FUP.PGE of 0x1006, TIP of 0x2000.
//! assert_eq!(memory.0, [0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0x84, 0x06, 0x10, 0xb4, 0x00, 0x20]);
//! # Ok::<(), cofi_unit::Fault>(())
//! ```
//!
//! What the reference leaves to the processor is a value, [`Implementation`]; its errata are among it ([`Errata`]).

mod event;
mod implementation;
pub mod msr;
mod output;
mod registers;
mod unit;

pub use event::{Client, Context, Destination, Event, SleepState};
pub use implementation::{Errata, Implementation, InternalBuffer, Lines};
pub use msr::{Ctl, Events, Status};
pub use unit::Unit;
