//! A machine with RTIT that does everything of which the programming reference knows, at random, traced by the unit, with the truth kept
//! beside. What PacketEn is at every instruction follows from [`Enables`], which says the reference's rules a second time; the walk compares.

mod code;
mod enables;
mod setup;
mod walk;
mod world;

pub use enables::{Enables, Ranges};
pub use walk::run;
pub use world::TSC_RATIO;

use crate::machine::Code;
use cofi_packet::{ExecMode, Ip, Tsc};
use cofi_unit::rtit::{Ctl, Implementation};

/// What happens on the machine, a bit each; a set can be made smaller to find out what a failure needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Features(pub u32);

crate::machine::features! {
    /// Interrupts, traps, faults.
    INTERRUPTS = 0;
    /// Tracing is disabled and enabled, with another configuration.
    TOGGLES = 1;
    /// CR3 and CR0.PG change.
    SPACES = 2;
    /// Sleep states, frequency changes, clock modulation.
    POWER = 3;
    /// Virtual machines.
    VMX = 4;
    /// SMI and RSM.
    SMM = 5;
    /// INIT and SIPI.
    INIT = 6;
    /// Address ranges limit what is traced.
    RANGES = 7;
    /// Address ranges stop tracing.
    STOPS = 8;
    /// An internal buffer that overflows.
    OVERFLOW = 9;
    /// Lines are written whole, or out of order.
    LINES = 10;
    /// Bus locks.
    LOCKS = 11;
    /// FUP.PGD does not tell that tracing was disabled, and RTIT_TNT_BUFF may be written before tracing goes on.
    SILENCE = 12;
}

/// How the trace ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// OS and User are cleared before Trace_En, so an FUP.PGD tells where.
    Told,
    /// Tracing is disabled, and RTIT_TNT_BUFF read.
    Buffered,
    /// Tracing is disabled, and RTIT_TNT_BUFF is not read.
    Silent,
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
    /// The processor's choices.
    pub choices: Implementation,
    /// RTIT_CTL, without Trace_En and TraceActive.
    pub ctl: Ctl,
    /// RTIT_PKT_CNT.Pkt_Mask; with more than 3, software asks for PSBs often.
    pub pkt_mask: u64,
    /// RTIT_LIMIT_MASK.
    pub limit_mask: u32,
    /// The mode of all code: 32 or 64 bits.
    pub mode: ExecMode,
    /// When the machine starts, in TSC ticks.
    pub start: u64,
    /// How the trace ends.
    pub ending: Ending,
}

/// An executed instruction that the trace must show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Its address.
    pub ip: Ip,
    /// The time at which it retired.
    pub tsc: Tsc,
    /// The core cycles until then.
    pub cycles: u64,
}

/// How a stretch of traced code begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// With FUP.PGE, if it was not lost.
    Enabled,
    /// With FUP.BuffOvf.
    Overflow,
}

/// How it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Packets tell.
    Told,
    /// TriggerEn was cleared, or TraceStop met, without FUP.PGD.
    Silent,
    /// An overflow began.
    Overflow,
}

/// Traced code without anything in between.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// How it begins.
    pub start: Start,
    /// The packet that tells the beginning is among these bytes of the trace.
    pub packets: (u64, u64),
    /// Where control is then.
    pub ip: Option<Ip>,
    /// Its first instruction, among the truth.
    pub from: usize,
    /// The one behind its last.
    pub to: usize,
    /// How it ends.
    pub stop: Stop,
    /// The trace tells at least of the instructions before this one.
    pub told: usize,
    /// The same, without the results that waited in RTIT_TNT_BUFF when it ended: if an overflow comes next, they are told too late.
    pub told_at_once: usize,
}

/// A trace, and what truly happened.
#[derive(Clone, Debug)]
pub struct Record {
    /// The packet stream.
    pub trace: Vec<u8>,
    /// Every instruction that retired while PacketEn was set, in order.
    pub truth: Vec<Step>,
    /// Where it was traced.
    pub stretches: Vec<Stretch>,
    /// RTIT_TNT_BUFF at the end, if it was read.
    pub tnt_buff: Option<u8>,
    /// Where the filter let tracing be on, and where tracing stopped.
    pub filter: Ranges,
    /// Where tracing stopped.
    pub stops: Ranges,
    /// Whether CR3 filtering was ever enabled.
    pub cr3_filter: bool,
    /// TraceStop packets.
    pub trace_stops: usize,
    /// The programs.
    pub codes: Vec<Code>,
}
