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
    /// CPUID.7.0:EBX\[25\]: the processor has Intel PT at all.
    pub supported: bool,
    /// CPUID.14H.0:EBX\[0\]: CR3 filtering.
    pub cr3_filter: bool,
    /// EBX\[1\]: configurable PSB frequency and cycle-accurate mode.
    pub psb_cyc: bool,
    /// EBX\[2\]: IP filtering, TraceStop, and registers that keep their values across a warm reset.
    pub ip_filter: bool,
    /// EBX\[3\]: MTC packets.
    pub mtc: bool,
    /// EBX\[4\]: PTWRITE.
    pub ptwrite: bool,
    /// EBX\[5\]: Power Event Trace.
    pub power_event: bool,
    /// EBX\[6\]: PSB and PMI preservation.
    pub psb_pmi_preservation: bool,
    /// EBX\[7\]: Event Trace.
    pub event_trace: bool,
    /// EBX\[8\]: TNT disable.
    pub tnt_disable: bool,
    /// ECX\[0\]: ToPA output.
    pub topa: bool,
    /// ECX\[1\]: ToPA tables may have more than one output entry.
    pub topa_multiple: bool,
    /// ECX\[2\]: single-range output.
    pub single_range: bool,
    /// ECX\[3\]: output to the trace transport subsystem.
    pub transport: bool,
    /// ECX\[31\]: IP payloads are linear addresses, with the base of CS.
    pub lip: bool,
    /// CPUID.14H.1:EAX\[2:0\]: number of address ranges, 0 to 4.
    pub address_ranges: u8,
    /// EAX\[31:16\]: bitmap of the MTCFreq encodings.
    pub mtc_periods: u16,
    /// EBX\[15:0\]: bitmap of the CycThresh encodings.
    pub cycle_thresholds: u16,
    /// EBX\[31:16\]: bitmap of the PSBFreq encodings.
    pub psb_frequencies: u16,
    /// CPUID.80000008H:EAX\[7:0\]: MAXPHYADDR.
    pub max_phys_addr: u8,
    /// CPUID.80000008H:EAX\[15:8\]: the width of linear addresses, 32, 48 or 57.
    pub max_linear_addr: u8,
    /// CPUID.15H.
    pub crystal: CrystalRatio,
    /// IA32_VMX_MISC\[14\]: Intel PT can be used in VMX operation.
    pub vmx: bool,
    /// Intel PT and LBRs exclude each other (33.3.1.2).
    pub excludes_lbr: bool,
}

impl Default for Capabilities {
    /// Everything that the chapter has, with a 25 MHz crystal under a 2 GHz TSC.
    fn default() -> Self {
        Self {
            supported: true,
            cr3_filter: true,
            psb_cyc: true,
            ip_filter: true,
            mtc: true,
            ptwrite: true,
            power_event: true,
            psb_pmi_preservation: true,
            event_trace: true,
            tnt_disable: true,
            topa: true,
            topa_multiple: true,
            single_range: true,
            transport: true,
            lip: true,
            address_ranges: 4,
            mtc_periods: 0xffff,
            cycle_thresholds: 0xffff,
            psb_frequencies: 0xffff,
            max_phys_addr: 52,
            max_linear_addr: 48,
            crystal: CrystalRatio {
                numerator: 80,
                denominator: 1,
            },
            vmx: true,
            excludes_lbr: false,
        }
    }
}
