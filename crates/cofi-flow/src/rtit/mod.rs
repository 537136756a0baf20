//! RTIT: what its packets mean for the flow.
//!
//! Code is walked as for Intel PT; what differs is which packets there are, and what they bind to:
//!
//! - results of branches wait in the processor until six are there or a FUP, TIP or PIP needs them out (4.2.2). So a TNT may hold
//!   results older than an MTC, STS, PSB or TraceStop before it, but never younger ones than the packet behind it: no TIP is deferred.
//! - a far transfer has a FUP.FAR with the address behind it, an event one with the address at which it struck (Table 1); a TIP
//!   follows. Where the transfer ends tracing, a FUP.PGD comes in place of the FUP.FAR, and the TIP only if ContextEn is still set.
//! - a near branch that ends tracing has a FUP.PGD with the address behind it: which branch that was follows from the IP filter.
//! - a return to behind the call before it is a TNT bit; one address is remembered, and stays.
//! - a PSB says nothing of the state. Where control is, is known from the first TIP, FUP.PGE or FUP.BuffOvf on.
//! - tracing may end without a word, by TraceStop or the clearing of RTIT_CTL bits. Then what ran after the last branch is known only
//!   up to a TraceStop range.

mod bind;
mod code;
mod end;
mod reader;
mod resync;
mod time;
#[cfg(test)]
mod time_tests;
mod walk;

use cofi_packet::Ip;
use cofi_packet::rtit::Kind;

use crate::config::RtitFlowConfig;
use crate::{AnyKind, FlowConfig};
use code::Ranges;
use reader::Flow;
pub use time::RtitTime;

/// What may wait for the walk of RTIT alone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Own {
    /// Tracing goes on, though it is on.
    Pge(Option<Ip>),
    /// A new CR3 or CR0.PG, at the next MOV to one of them.
    Pip(u64),
    /// Packets were lost, and tracing goes on at an address, if it does.
    OverflowAt(Option<Ip>),
    /// Tracing ended, or the trace, without a packet that tells where.
    Ends(Ends),
}

/// What happens at an address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtIp {
    /// FUP.FAR: control goes elsewhere; where is lost if an overflow or the end comes next.
    Far { to: Option<Ip> },
    /// FUP.PGD: tracing goes off, with the address that a TIP behind it tells; or a TraceStop behind it says why.
    Pgd { to: Option<Ip>, stops: bool },
    /// Behind a MOV to CR0, which may be the one that a PIP is of.
    Paging { cr3: u64 },
}

impl From<AtIp> for AnyKind {
    /// The packet that gave the address, for messages.
    fn from(what: AtIp) -> Self {
        match what {
            AtIp::Far { .. } => Kind::FupFar,
            AtIp::Pgd { .. } => Kind::FupPgd,
            AtIp::Paging { .. } => Kind::Pip,
        }
        .into()
    }
}

/// What says that tracing ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sign {
    /// The trace does.
    #[default]
    EndOfTrace,
    TraceStop,
    /// A FUP.PGD that need not be of the code here (erratum E2), or does not say how it was left.
    Pgd,
}

/// How tracing, or the trace, ends without a packet that tells where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Results of branches that had executed by then, the oldest in the highest of `len` bits.
    bits: u8,
    len: u8,
    sign: Sign,
    /// Control was followed up to it, so that it ended where a TraceStop range begins to count.
    exact: bool,
}

impl Ends {
    fn by_pgd() -> Self {
        Self {
            sign: Sign::Pgd,
            ..Self::default()
        }
    }
}

/// What the binder must know of RTIT.
#[derive(Debug, Default)]
pub(crate) struct Binding {
    ranges: Ranges,
    /// What RTIT_TNT_BUFF held at the end: bits and their number.
    buffered: Option<(u8, u8)>,
    /// Where a near branch can leave the traced ranges.
    is_confined: bool,
    /// The PSB at which decoding is to end has been read.
    is_over: bool,
    /// And also the packet by which a decoder that begins there knows where control is.
    is_last: bool,
    /// A branch out of the traced ranges has executed, of which a FUP.PGD tells.
    is_leaving: bool,
    /// Tracing was stopped: results that are sent later were known by then.
    is_stopped: bool,
    /// A PSB has come since the last TraceStop, if there was any: tracing may have been switched on again.
    may_resume: bool,
    /// Up to where it has been looked whether code was traced, and whether it was.
    looked: (usize, bool),
    /// Up to here an overflow stands behind each TraceStop.
    overflow_at: usize,
    /// CR3, as the last PIP has told.
    cr3: Option<u64>,
    /// Paging is off, as it has told, too.
    is_unpaged: bool,
    /// All code has been traced since then: only a MOV to CR0 that is seen can have changed it.
    knows_paging: bool,
    /// Where the packet used last begins, if only PIPs follow it that may be of later instructions than those they were bound to.
    doubt_since: Option<usize>,
    /// So says the PIP read last, which may still have to find its place.
    told_unpaged: bool,
}

impl Binding {
    fn new(config: &FlowConfig, own: &RtitFlowConfig) -> Self {
        let buffered = own.tnt_buff.map(|value| value & 0x7f).and_then(|value| {
            let len = value.checked_ilog2()? as u8;
            Some((value & !(1 << len), len))
        });
        Self {
            ranges: Ranges {
                filter: config.filter,
                stop: own.stop,
            },
            buffered,
            is_confined: !config.filter.is_empty(),
            ..Self::default()
        }
    }

    /// Whether the PIP read last tells that paging was switched on or off.
    fn switches_paging(&self) -> bool {
        self.is_unpaged != self.told_unpaged
    }
}
