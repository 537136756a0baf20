#![doc = include_str!("../README.md")]
//! # Parts
//!
//! [`FlowDecoder`] takes the code from a [`CodeSource`](cofi_insn::CodeSource). [`EventDecoder`] needs none, and says what the packets alone say.
//!
//! # Two formats
//!
//! [`FlowConfig::format`] says whether the packets are Intel PT's or those of RTIT, its ancestor, which say less of themselves: the execution
//! mode, the ranges and whether there are cycle counts must be told beside them. All else is the same.
//!
//! ```
//! use cofi_flow::{FlowConfig, FlowDecoder, Item, RtitFlowConfig, TraceFormat};
//! use cofi_insn::Segment;
//! use cofi_packet::{Ip, rtit::PSB};
//!
//! // nop; jne to the nop; syscall
//! let code = Segment { base: Ip(0x1000), bytes: &[0x90, 0x75, 0xfd, 0x0f, 0x05] };
//! let mut config = FlowConfig::default();
//! config.format = TraceFormat::Rtit(RtitFlowConfig::default());
//! let mut trace = Vec::from(PSB);
//! trace.extend([0x84, 0x00, 0x10]); // FUP.PGE 0x1000
//! trace.extend([0b100 | 0b10, 0x8c, 0x05, 0x10]); // TNT: taken, not taken; FUP.PGD 0x1005
//! let ips: Vec<u64> = FlowDecoder::new(&trace, code, config)
//!     .filter_map(|item| match item {
//!         Item::Insn(insn) => Some(insn.ip.0),
//!         _ => None,
//!     })
//!     .collect();
//! assert_eq!(ips, [0x1000, 0x1001, 0x1000, 0x1001, 0x1003]);
//! ```
//!
//! # What counts as executed
//!
//! Every instruction that retired, once, in order. A repeated string instruction is one entry. An instruction that
//! faulted is none (its later, successful restart is), and neither is a software interrupt: the trace tells of it
//! as of a fault. (RTIT's names the address behind it; there it is an entry.) `SYSCALL` and `SYSENTER` are entries.
//!
//! # The caller's duties
//!
//! The code source must answer with the code that stood at an address when it ran. Every event is returned before any
//! code at the address that follows it is read, so a caller may change its source at any item; it then calls
//! [`FlowDecoder::code_changed`], because decoded code is cached, or [`FlowDecoder::code_changed_to`], which keeps what may come back.
//!
//! # Errors
//!
//! A stream that contradicts the code, or itself, never stops the decoder: it yields [`Item::Error`] with the place and
//! the reason, and goes on at the next packets that tell the address of the code without needing what went before, or from
//! which enough of what follows fits the code. To find that out it reads code ahead of what it has returned.
#![no_std]

extern crate alloc;

mod bind;
mod block;
mod code;
mod config;
mod decoder;
mod edges;
mod errata;
mod error;
mod event;
mod events;
mod family;
mod fields;
mod ipc;
mod kind;
pub mod lines;
mod reader;
mod resync;
mod rtit;
mod time;
mod walk;

pub use block::{Block, Path, PathNumber, Visitor};
pub use code::shelf::{CodeCache, CodeKey};
pub use config::{Cpu, FlowConfig, IpFilter, RtitFlowConfig, StopRanges, TraceFormat};
pub use decoder::FlowDecoder;
pub use edges::{EdgeCounter, Edges};
pub use errata::{Errata, Erratum};
pub use error::{Expected, FlowError, FlowErrorKind};
pub use event::{ControlEvent, Event, Executed, Item, Part, Run, Tick};
pub use events::{EventDecoder, LocatedEvent, PacketKinds};
pub use fields::Field;
pub use ipc::{Ipc, Stretch};
pub use kind::AnyKind;
pub use rtit::RtitTime;
pub use time::{Time, TimeJump, TimeTracker, VmxTsc};
