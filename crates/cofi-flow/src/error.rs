//! Where and why the flow was lost.

use core::fmt;

use cofi_insn::InsnError;
use cofi_packet::{DecodeError, Ip, StreamOffset};
use thiserror::Error;

use crate::AnyKind;

/// Where and why the flow was lost.
///
/// What was lost is told where the flow is found again: [`Event::Resync`](crate::Event::Resync).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("at stream offset {offset}{}: {kind}", At(*ip))]
#[non_exhaustive]
pub struct FlowError {
    /// Where the packet begins that was being used, or the bytes that form none.
    pub offset: StreamOffset,
    /// The instruction that had been reached, if that is known.
    pub ip: Option<Ip>,
    /// The packet that was being used; none if the bytes form none.
    pub packet: Option<AnyKind>,
    /// What is wrong.
    pub kind: FlowErrorKind,
}

impl FlowError {
    /// An error of which neither instruction nor packet is known.
    #[must_use]
    pub const fn new(offset: StreamOffset, kind: FlowErrorKind) -> Self {
        Self {
            offset,
            ip: None,
            packet: None,
            kind,
        }
    }
}

struct At(Option<Ip>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ip) => write!(f, ", instruction {ip}"),
            None => Ok(()),
        }
    }
}

struct Missing(Option<u64>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(1) => f.write_str("one byte of the trace is"),
            Some(bytes) => write!(f, "{bytes} bytes of the trace are"),
            None => f.write_str("a part of the trace is"),
        }
    }
}

struct Decoded {
    ran: u64,
    decoded: u64,
}

impl fmt::Display for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ran, decoded } = *self;
        if ran == decoded {
            write!(f, "other instructions ran than the {ran} that were decoded")
        } else {
            write!(f, "{ran} instructions ran and {decoded} were decoded")
        }
    }
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FlowErrorKind {
    /// The bytes form no packet.
    #[error("{0}")]
    Packet(#[from] DecodeError),
    /// A part of the stream is missing here: its recorder lost it, or the file does not hold it. Reported by who puts streams
    /// together; decoding goes on at the next PSB.
    #[error("{} missing here; decoding goes on at the next PSB", Missing(*bytes))]
    Missing {
        /// How many bytes, if that is known.
        bytes: Option<u64>,
    },
    /// What was decoded of a stretch of the stream, from the offset of this error on, is not what its recorder says that ran. Reported
    /// by who knows that, once the stretch has been decoded.
    #[error(
        "up to {end} the trace does not match its seal: {}", Decoded { ran: *ran, decoded: *decoded }
    )]
    Seal {
        /// Where the stretch ends.
        end: StreamOffset,
        /// How many instructions ran.
        ran: u64,
        /// How many were decoded.
        decoded: u64,
    },
    /// A guest runs here, whose code is not known. Reported by who knows what code there is; what follows in the guest is not
    /// decoded, and nothing more is said of it.
    #[error(
        "a guest runs from here on, whose code is not in the file; the flow goes on when the host does"
    )]
    GuestCode,
    /// The code cannot be read, or is none.
    #[error("{}", Code(*.0))]
    Code(#[from] InsnError),
    /// The next packet does not fit the instruction or the packets before it.
    #[error("found {} where {expected} was expected", found.name())]
    Unexpected {
        /// The packet found.
        found: AnyKind,
        /// What would have fitted.
        expected: Expected,
    },
    /// An IP packet came without the IP that is needed.
    #[error("{} came without an IP", packet.name())]
    SuppressedIp {
        /// The packet.
        packet: AnyKind,
    },
    /// The code walked never reaches the address that a packet gives.
    #[error("the code does not lead to {target}, where {} says that control was", packet.name())]
    Unreachable {
        /// The address.
        target: Ip,
        /// The packet.
        packet: AnyKind,
    },
    /// A return that the trace calls compressed, while no call is known to which it could return.
    #[error("a compressed return without a call that it could return from")]
    EmptyReturnStack,
    /// A compressed return that the trace calls not taken.
    #[error("a compressed return that is said not to be taken")]
    ReturnNotTaken,
    /// The code goes in circles without a branch that needs a packet, while the trace has further packets.
    #[error("the code loops without using up a packet; next is {}", next.name())]
    EndlessLoop {
        /// The packet that the code never gets to.
        next: AnyKind,
    },
    /// Too much code that needs no packet.
    #[error("{insns} instructions without using up a packet")]
    EndlessCode {
        /// How many instructions were walked.
        insns: u32,
    },
    /// The stream ends while tracing is on, so nothing proves that anything behind its last packet ran. Of RTIT also: tracing was switched
    /// off without a packet that reports where (4.2.8).
    #[error("tracing ended here or later, at a place that no packet tells")]
    UnknownEnd,
    /// The stream has no PSB, so that no packet boundary in it is known.
    #[error("the stream has no PSB to begin at")]
    NoPsb,
}

impl FlowErrorKind {
    /// A packet was found where another was expected.
    pub(crate) fn unexpected(found: impl Into<AnyKind>, expected: Expected) -> Self {
        let found = found.into();
        Self::Unexpected { found, expected }
    }

    /// A packet came without an address.
    pub(crate) fn suppressed(packet: impl Into<AnyKind>) -> Self {
        let packet = packet.into();
        Self::SuppressedIp { packet }
    }

    /// A word for the kind of error, which does not change.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Packet(_) => "packet",
            Self::Missing { .. } => "missing",
            Self::Seal { .. } => "seal",
            Self::GuestCode => "guest-code",
            Self::Code(InsnError::Truncated { available: 0, .. }) => "no-code",
            Self::Code(_) => "code",
            Self::Unexpected { .. } => "unexpected",
            Self::SuppressedIp { .. } => "suppressed-ip",
            Self::Unreachable { .. } => "unreachable",
            Self::EmptyReturnStack => "empty-return-stack",
            Self::ReturnNotTaken => "return-not-taken",
            Self::EndlessLoop { .. } => "endless-loop",
            Self::EndlessCode { .. } => "endless-code",
            Self::UnknownEnd => "unknown-end",
            Self::NoPsb => "no-psb",
        }
    }

    /// What would have fitted, if it was a packet that did not.
    #[must_use]
    pub const fn expected(&self) -> Option<Expected> {
        match self {
            Self::Unexpected { expected, .. } => Some(*expected),
            _ => None,
        }
    }

    /// Whether the packets themselves may be wrong, and with them what they were decompressed against.
    ///
    /// Not if code is missing, a return goes back to before a loss, or tracing ended without a word: a whole trace has these.
    pub(crate) const fn casts_doubt(&self) -> bool {
        !matches!(
            self,
            Self::Code(InsnError::Truncated { .. })
                | Self::EmptyReturnStack
                | Self::UnknownEnd
                | Self::NoPsb
        )
    }
}

/// Missing code as a sentence.
struct Code(InsnError);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            InsnError::Truncated { ip, available: 0 } => write!(f, "no code is known at {ip}"),
            error => error.fmt(f),
        }
    }
}

/// What would have fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expected {
    /// A TNT bit for a conditional branch.
    Tnt,
    /// A TIP packet for an indirect branch.
    Tip,
    /// A TNT bit or a TIP packet for a return.
    TntOrTip,
    /// A TIP or TIP.PGD packet for a far transfer.
    FarTip,
    /// TIP.PGE, as tracing is off.
    TipPge,
    /// FUP or TIP.PGE, after an overflow.
    FupOrTipPge,
    /// The packets of a PSB+.
    PsbPlus,
    /// A FUP with the address of the packet before.
    Fup,
    /// Anything but TIP.PGE, as tracing is on.
    TracingOn,
    /// The CFE that belongs to the EVD before it.
    CfeOfData,
    /// The CFE that an EVD announces.
    CfeBehindData,
    /// In a PSB+, the mode that was told before.
    SameMode,
    /// Of RTIT: FUP.PGE, as tracing is off.
    FupPge,
    /// Of RTIT: FUP.FAR or FUP.PGD for a far transfer.
    FupFar,
    /// Of RTIT: the TIP that follows a FUP.FAR.
    FarTarget,
    /// Of RTIT: FUP.PGD for the way out of the traced ranges.
    FupPgd,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tnt => "a TNT bit for a conditional branch",
            Self::Tip => "a TIP for an indirect branch",
            Self::TntOrTip => "a TNT bit or a TIP for a return",
            Self::FarTip => "a TIP or TIP.PGD for a far transfer",
            Self::TipPge => "TIP.PGE, tracing being off,",
            Self::FupOrTipPge => "FUP or TIP.PGE after an overflow",
            Self::PsbPlus => "a packet of PSB+ or PSBEND",
            Self::Fup => "a FUP for the packet before",
            Self::TracingOn => "a packet for code being traced",
            Self::CfeOfData => "the CFE of the EVD before it",
            Self::CfeBehindData => "a CFE behind the EVD",
            Self::SameMode => "a PSB+ with the mode told before",
            Self::FupPge => "FUP.PGE, tracing being off,",
            Self::FupFar => "a FUP.FAR or FUP.PGD for a far transfer",
            Self::FarTarget => "the TIP of a FUP.FAR",
            Self::FupPgd => "a FUP.PGD for the way out of the traced ranges",
        })
    }
}
