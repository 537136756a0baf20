//! What a processor's trace unit can do: CPUID leaf 14H (Tables 33-11 and 33-12), 15H and 80000008H.

/// TSC frequency divided by core crystal clock frequency: CPUID.15H:EBX / CPUID.15H:EAX.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CrystalRatio {
    /// CPUID.15H:EBX.
    pub numerator: u32,
    /// CPUID.15H:EAX, the denominator; zero counts as one.
    pub denominator: u32,
}

impl CrystalRatio {
    /// The crystal clock (ART) at a TSC value, and the TSC ticks since its last edge (33.8.3.1).
    #[must_use]
    #[inline]
    pub fn art(self, tsc: u64) -> (u64, u64) {
        let numerator = u128::from(self.numerator.max(1));
        let denominator = u128::from(self.denominator.max(1));
        let scaled = u128::from(tsc) * denominator;
        let art = divide(scaled, numerator);
        // The first whole TSC tick at or after the edge.
        let edge = divide(art * numerator + (denominator - 1), denominator);
        (
            art as u64,
            (u128::from(tsc) - edge.min(u128::from(tsc))) as u64,
        )
    }

    /// The first TSC value at which the crystal clock stands at `art`; `None` beyond 64 bits.
    #[must_use]
    pub fn tsc(self, art: u64) -> Option<u64> {
        let numerator = u128::from(self.numerator.max(1));
        let denominator = u128::from(self.denominator.max(1));
        let scaled = u128::from(art) * numerator;
        u64::try_from(divide(scaled + (denominator - 1), denominator)).ok()
    }
}

/// A quotient, by the short way where there is one: it is asked for at every MTC.
#[inline]
fn divide(value: u128, by: u128) -> u128 {
    match (u64::try_from(value), u64::try_from(by)) {
        (Ok(value), Ok(by)) => (value / by).into(),
        _ => value / by,
    }
}

/// The capabilities that software sees in CPUID and that decide which register bits are reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// EBX bits 0: CR3 filtering.
    pub cr3_filter: bool,
    /// EBX bits 1: configurable PSB frequency and cycle-accurate mode.
    pub psb_cyc: bool,
    /// EBX bits 3: MTC packets.
    pub mtc: bool,
    /// ECX bits 2: single-range output.
    pub single_range: bool,
    /// Leaf 14H.1 EAX bits 31:16: bitmap of the MTCFreq encodings.
    pub mtc_periods: u16,
    /// Leaf 14H.1 EBX bits 15:0: bitmap of the CycThresh encodings.
    pub cycle_thresholds: u16,
    /// Leaf 14H.1 EBX bits 31:16: bitmap of the PSBFreq encodings.
    pub psb_frequencies: u16,
    /// CPUID.80000008H:EAX bits 7:0: MAXPHYADDR.
    pub max_phys_addr: u8,
    /// CPUID.15H.
    pub crystal: CrystalRatio,
    /// Whether TNT results are sent in long TNT packets ("an implementation may choose", 33.4.2.1).
    pub long_tnt: bool,
}

impl Default for Capabilities {
    /// Everything that this model has, with a 25 MHz crystal under a 2 GHz TSC.
    fn default() -> Self {
        Self {
            cr3_filter: true,
            psb_cyc: true,
            mtc: true,
            single_range: true,
            mtc_periods: 0xffff,
            cycle_thresholds: 0xffff,
            psb_frequencies: 0xffff,
            max_phys_addr: 52,
            crystal: CrystalRatio {
                numerator: 80,
                denominator: 1,
            },
            long_tnt: false,
        }
    }
}
