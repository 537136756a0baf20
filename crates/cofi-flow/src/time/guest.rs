//! The TSC of a guest (33.5.2, 33.8.3.3).

use cofi_packet::intel::Packet;

use super::Span;

/// How a guest's TSC differs from the processor's: `(tsc × multiplier >> 48) + offset`, as the guest's VMCS has it. Only TSC packets show
/// it; MTC, CYC, CBR and TMA count the processor's own clocks (33.8.3.3).
///
/// With it, times are those of the processor's own TSC, in the guest and outside. TSC packets are taken to be a guest's where the last PIP
/// had NR set. Where no PIP has told since tracing began or packets were lost, a TSC packet may be either, and the
/// interval says so. A guest that is concealed (33.5.1) cannot be told from its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmxTsc {
    /// The TSC offset.
    pub offset: u64,
    /// The TSC multiplier, with 48 bits behind the point; `1 << 48` scales by one.
    pub multiplier: u64,
}

const TSC_MASK: u64 = (1 << super::TSC_BITS) - 1;

impl VmxTsc {
    /// Between which values the processor's own TSC was when a guest's was `value`, modulo 2^56.
    fn host(self, value: u64) -> (u64, u64) {
        let scaled = u128::from(value.wrapping_sub(self.offset) & TSC_MASK);
        let by = u128::from(self.multiplier.max(1));
        let clip = |value: u128| value.min(u128::from(TSC_MASK)) as u64;
        (
            clip((scaled << 48).div_ceil(by)),
            clip(((scaled + 1) << 48).saturating_sub(1) / by),
        )
    }
}

/// Whether TSC packets are a guest's.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Guest {
    #[cfg_attr(feature = "serde", serde(skip))]
    tsc: Option<VmxTsc>,
    /// The last NR bit told; none if none was.
    told: Option<bool>,
}

impl Guest {
    pub(super) const fn new(tsc: Option<VmxTsc>) -> Self {
        Self { tsc, told: None }
    }

    /// The same of a guest with another time.
    #[cfg(feature = "serde")]
    pub(super) fn of(&mut self, tsc: Option<VmxTsc>) {
        self.tsc = tsc;
    }

    /// Whether it matters.
    pub(super) const fn is_of_use(&self) -> bool {
        self.tsc.is_some()
    }

    /// What the PIP of a PSB+ says, before the TSC packet in it is read.
    pub(super) fn set(&mut self, is_guest: Option<bool>) {
        self.told = is_guest;
    }

    /// Learns from a packet that tells no time whose TSC packets are from here on. Tracing was `on` before it.
    pub(super) fn follow(&mut self, packet: &Packet, on: bool) {
        match *packet {
            Packet::Pip { nr, .. } => self.told = Some(nr),
            // While tracing was off, an entry or exit may not have been told.
            Packet::TipPge { .. } if !on => self.told = None,
            Packet::Ovf => self.told = None,
            _ => {}
        }
    }

    /// The value of a TSC packet in the processor's own time, modulo 2^56; whether entries and exits have been told up to it (`is_told`).
    pub(super) fn read(&self, value: u64, is_told: bool) -> Span {
        let same = Span {
            low: value,
            guess: value,
            high: value,
        };
        let Some(tsc) = self.tsc else { return same };
        let (low, high) = tsc.host(value);
        match self.told.filter(|_| is_told) {
            Some(false) => same,
            Some(true) => Span {
                low,
                guess: low,
                high,
            },
            None => Span {
                low: low.min(value),
                guess: value,
                high: high.max(value),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_time_is_brought_back() {
        for (offset, multiplier) in [
            (0, 1 << 48),
            (0_u64.wrapping_sub(1 << 30), 1 << 48),
            (77, 3 << 46),
            (1 << 40, (1 << 48) * 5 / 3),
        ] {
            let tsc = VmxTsc { offset, multiplier };
            for host in [1_u64 << 31, 123_456_789_012_345, (1 << 55) - 3] {
                let guest = ((u128::from(host) * u128::from(multiplier)) >> 48) as u64;
                let (low, high) = tsc.host(guest.wrapping_add(offset) & TSC_MASK);
                assert!((low..=high).contains(&host), "{tsc:?} {host} {low} {high}");
                assert!(high - low <= 1);
            }
        }
    }
}
