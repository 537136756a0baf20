//! Why bytes are no instruction.

use core::fmt;

use cofi_packet::{ExecMode, Ip, counted};
use thiserror::Error;

use crate::MAX_INSN_LEN;

/// Why [`decode`](crate::decode) found no instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InsnError {
    /// The bytes end before the instruction does.
    #[error(
        "the instruction at {ip} is longer than the {bytes} of code known there",
        bytes = counted((*available).into(), "byte")
    )]
    Truncated {
        /// Where the instruction starts.
        ip: Ip,
        /// How many bytes there were.
        available: u8,
    },
    /// The bytes are no instruction in this mode.
    #[error("no {}-bit instruction at {ip}: {bytes}", mode.bits())]
    Invalid {
        /// Where the bytes stand.
        ip: Ip,
        /// The mode they were decoded in.
        mode: ExecMode,
        /// The bytes looked at.
        bytes: InvalidBytes,
    },
}

impl InsnError {
    pub(crate) fn invalid(ip: Ip, mode: ExecMode, bytes: &[u8]) -> Self {
        let mut copy = [0; MAX_INSN_LEN];
        let len = bytes.len().min(MAX_INSN_LEN);
        copy[..len].copy_from_slice(&bytes[..len]);
        InsnError::Invalid {
            ip,
            mode,
            bytes: InvalidBytes {
                bytes: copy,
                len: len as u8,
            },
        }
    }

    /// Where the instruction would have started.
    #[must_use]
    pub fn ip(&self) -> Ip {
        match *self {
            InsnError::Truncated { ip, .. } | InsnError::Invalid { ip, .. } => ip,
        }
    }
}

/// The bytes of an [`InsnError::Invalid`]; prints them in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBytes {
    bytes: [u8; MAX_INSN_LEN],
    len: u8,
}

impl InvalidBytes {
    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for InvalidBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.as_slice().iter().enumerate() {
            if i != 0 {
                f.write_str(" ")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
