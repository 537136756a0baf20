//! A machine that does everything of which chapter 33 knows, at random, traced by the unit, with the truth kept beside.

pub(crate) mod code;
mod setup;
mod walk;
mod world;

pub use code::{Code, Insn, Kind};
pub use walk::run;

use cofi_packet::{ExecMode, Ip, Tsc};
use cofi_unit::{Capabilities, Ctl, GuestTsc, Implementation};
use std::collections::BTreeMap;

/// What happens on the machine, a bit each; a set can be made smaller to find out what a failure needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Features(pub u32);

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        impl Features {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*
            /// Everything.
            pub const ALL: Self = Self(0 $(| 1 << $bit)*);

            /// Whether all of `other` is in it.
            #[must_use]
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }
        impl core::fmt::Debug for Features {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("Features(")?;
                $(if self.has(Self::$name) { f.write_str(concat!(stringify!($name), " "))?; })*
                f.write_str(")")
            }
        }
    };
}
pub(crate) use features;
features! {
    /// Interrupts and exceptions.
    INTERRUPTS = 0;
    /// TraceEn is cleared and set, with another configuration.
    TOGGLES = 1;
    /// CR3 changes.
    SPACES = 2;
    /// Transactions.
    TRANSACTIONS = 3;
    /// Sleep states, frequency changes, clocks that stop.
    POWER = 4;
    /// PTWRITE.
    PTWRITE = 5;
    /// PEBS records.
    PEBS = 6;
    /// Virtual machines.
    VMX = 7;
    /// SMI and RSM.
    SMM = 8;
    /// Enclaves.
    ENCLAVES = 9;
    /// INIT and SIPI.
    INIT = 10;
    /// Authenticated code, SENTER.
    ACM = 11;
    /// Address ranges: filters and TraceStop.
    RANGES = 12;
    /// An internal buffer that overflows.
    OVERFLOW = 13;
    /// CLI, STI, and RFLAGS.IF at far transfers.
    FLAGS = 14;
    /// 16-bit and 32-bit code.
    MODES = 15;
}

/// What to run and how to trace it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Of programs, walk and configurations.
    pub seed: u64,
    /// How many instructions and events.
    pub steps: usize,
    /// What happens.
    pub features: Features,
    /// The processor.
    pub caps: Capabilities,
    /// The processor's choices.
    pub choices: Implementation,
    /// IA32_RTIT_CTL, without TraceEn and the address ranges.
    pub ctl: Ctl,
    /// When the machine starts, in TSC ticks; at random if `None`.
    pub start: Option<u64>,
    /// The TSC of its guests.
    pub guest_tsc: GuestTsc,
    /// Whether VMX transitions and guests may be concealed (33.5.1).
    pub conceals: bool,
    /// The base of the code segment, from which the trace counts its addresses where the processor reports RIPs.
    pub cs_base: u64,
}

/// An executed instruction that the trace must show, and the state in which it ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Its address.
    pub ip: Ip,
    /// The time at which it retired.
    pub tsc: Tsc,
    /// The core cycles until then.
    pub cycles: u64,
    /// The width it ran in.
    pub mode: ExecMode,
    /// CR3 and NR, as PIPs tell them; `None` where none has told.
    pub space: Option<(u64, bool)>,
    /// In a transaction.
    pub in_tx: bool,
}

/// A trace, and what truly happened.
#[derive(Clone, Debug)]
pub struct Record {
    /// The packet stream.
    pub trace: Vec<u8>,
    /// Every instruction that the trace must show, if no packet was lost.
    pub truth: Vec<Step>,
    /// For each overflow that was resolved: the index, among these, of the first that the trace shows again; if tracing was on then,
    /// and if it was off.
    pub resumed: Vec<(usize, usize)>,
    /// What else the trace must tell, by kind, in order.
    pub told: BTreeMap<&'static str, Vec<String>>,
    /// The programs.
    pub codes: Vec<Code>,
}
