//! What is remembered of a loss, until it is known again where control is.

use cofi_packet::ExecMode;

use crate::family::IntelPt;
use crate::reader::Reader;
use crate::reader::intel::Flow;

/// What stands before a TIP: may some of the TNT bits there belong to branches after it?
///
/// A processor may defer TIPs (33.4.2.3): it sends TNT bits when they fill a packet or when another packet forces them out, then the
/// TIPs, then that other packet. So bits may belong to branches after the TIPs behind them. They cannot if there are none; nor
/// if the TNT is not full and what comes behind the TIPs is a TNT: then the last TIP itself forced them out, that of a RET, which is never
/// deferred; or the processor does not defer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Run {
    /// They may, for all that is known.
    #[default]
    Unknown,
    /// There are no bits.
    Clear,
    /// A TNT that is not full, when so many timing packets had been read. (Whether timing packets force bits out, the manual leaves open.)
    Partial(u64),
}

impl Run {
    /// Whether all TNT bits before the TIP that was just read are those of branches before it.
    pub(crate) fn ends(self, reader: &Reader<'_, IntelPt>) -> bool {
        match self {
            Run::Unknown => false,
            Run::Clear => true,
            Run::Partial(timing) => {
                let mut ahead = reader.clone();
                matches!(ahead.next(), Some(Ok(Flow::Tnt { .. }))) && ahead.timing == timing
            }
        }
    }
}

/// What is remembered of losses, and of the modes that packets have told of.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    /// Control was lost while tracing was on, and no packet in between is in doubt.
    pub(crate) was_on: bool,
    /// What stands before a TIP that comes next.
    pub(crate) run: Run,
    /// After an error: code may run in another mode than is known.
    pub(crate) is_mode_doubtful: bool,
    /// A packet has told the mode, and none was lost since that could have told another.
    pub(crate) is_mode_certain: bool,
    /// The modes that packets have told of, a bit each.
    modes: u8,
    /// Those since the last PSB, with its own, and how often they were told.
    modes_since_psb: (u8, u8),
}

impl Loss {
    /// A packet tells the mode.
    pub(crate) fn note_mode(&mut self, mode: ExecMode) {
        self.modes |= 1 << (mode.bits() / 32);
        let (modes, count) = &mut self.modes_since_psb;
        *modes |= 1 << (mode.bits() / 32);
        *count = count.saturating_add(1);
        self.is_mode_doubtful = false;
    }

    /// A PSB+ tells the state anew.
    pub(crate) fn note_psb(&mut self) {
        self.modes_since_psb = (0, 0);
    }

    /// Whether the last PSB+ and packets since have told one mode, and more than once: one packet may be wrong.
    pub(crate) fn is_one_mode_told_again(&self) -> bool {
        let (modes, count) = self.modes_since_psb;
        modes.count_ones() == 1 && count >= 2
    }

    /// Whether all packets have told the same mode.
    pub(crate) fn has_one_mode(&self) -> bool {
        self.modes.count_ones() <= 1
    }

    /// Where control is, is not known from here on, nor whether tracing is on; this stands before a TIP that comes next.
    pub(crate) fn forget_control(&mut self, run: Run) {
        (self.run, self.was_on, self.is_mode_certain) = (run, false, false);
    }
}
