//! The kind of a packet, whichever format it is of.

use core::fmt;

use cofi_packet::{intel, rtit};

/// The kind of a packet, whichever format it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnyKind {
    /// Of Intel PT.
    IntelPt(intel::Kind),
    /// Of RTIT.
    Rtit(rtit::Kind),
}

impl AnyKind {
    /// Its name, as packets are listed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IntelPt(kind) => kind.name(),
            Self::Rtit(kind) => kind.name(),
        }
    }
}

impl fmt::Display for AnyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<intel::Kind> for AnyKind {
    fn from(kind: intel::Kind) -> Self {
        Self::IntelPt(kind)
    }
}

impl From<rtit::Kind> for AnyKind {
    fn from(kind: rtit::Kind) -> Self {
        Self::Rtit(kind)
    }
}
