//! Whether tracing is on, as far as packets tell it without the program's code.

use cofi_packet::intel::Packet;

/// Followed by all packets but TNTs. Where it is not certain that tracing is on, it is taken to be off.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct On {
    on: bool,
    /// The next FUP belongs to a packet that came before it.
    claims_fup: bool,
    in_psb: bool,
}

impl On {
    /// Tracing has been on since the last TIP or TIP.PGE, so that all cycles, VM entries and VM exits since then have been told.
    pub(super) const fn is_on(&self) -> bool {
        self.on
    }

    pub(super) const fn in_psb(&self) -> bool {
        self.in_psb
    }

    pub(super) fn tip(&mut self) {
        *self = Self {
            on: true,
            ..Self::default()
        };
    }

    pub(super) fn follow(&mut self, packet: &Packet) {
        match *packet {
            Packet::Psb => self.in_psb = true,
            Packet::PsbEnd => self.in_psb = false,
            Packet::Ovf => *self = Self::default(),
            Packet::Tip { .. } | Packet::TipPge { .. } => self.tip(),
            Packet::TipPgd { .. } | Packet::TraceStop => self.on = false,
            Packet::Ptw { ip: true, .. }
            | Packet::ExStop { ip: true }
            | Packet::Bep { ip: true } => self.claims_fup = true,
            // One with no TIP behind it is INIT's (Table 33-55, case 23): tracing is off then, and no packet tells when TraceEn is cleared.
            // The FUP in a PSB+ does not say that tracing is on: without BranchEn no packet tells when it ends.
            Packet::Fup { .. } if !self.in_psb => {
                self.on &= core::mem::take(&mut self.claims_fup);
            }
            _ => {}
        }
    }
}
