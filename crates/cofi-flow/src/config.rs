//! What the decoder must be told about the processor and its configuration.

use cofi_packet::{ExecMode, Ip};

/// What the decoder must be told about the processor and how it was configured.
///
/// The default suits a trace without timing packets from a processor without errata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// CPUID leaf 15H: TSC ticks per tick of the crystal clock, as (EBX, EAX); a zero means unknown.
    pub tsc_art_ratio: (u32, u32),
    /// IA32_RTIT_CTL.MTCFreq: an MTC packet comes every `1 << mtc_freq` ticks of the crystal clock.
    pub mtc_freq: u8,
    /// The ratio of the TSC's frequency to the bus clock (MSR_PLATFORM_INFO\[15:8\]), in the unit of CBR packets; zero
    /// means unknown.
    pub max_nonturbo_ratio: u8,
    /// Whether tracing is limited to one CR3: then a `MOV CR3` may switch it off even after its PIP packet.
    pub cr3_filter: bool,
    /// The IP filter ranges; needed only for errata that concern them.
    pub filter: FilterRanges,
    /// The mode before the first MODE.Exec packet.
    pub initial_mode: ExecMode,
    /// The errata to work around.
    pub errata: Errata,
    /// How many instructions may be walked without using up a packet before the code is taken for garbage.
    pub max_packetless_run: u32,
    /// How much memory the cache of decoded code may use, in bytes, roughly.
    pub cache_limit: usize,
}

impl Default for FlowConfig {
    fn default() -> Self {
        Self {
            tsc_art_ratio: (0, 0),
            mtc_freq: 0,
            max_nonturbo_ratio: 0,
            cr3_filter: false,
            filter: FilterRanges::default(),
            initial_mode: ExecMode::Bits64,
            errata: Errata::default(),
            max_packetless_run: 1 << 24,
            cache_limit: 256 << 20,
        }
    }
}

/// The ranges in which IP filtering lets tracing be on: up to four, both ends included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterRanges {
    ranges: [Option<(Ip, Ip)>; 4],
}

impl FilterRanges {
    /// The first four of `ranges`, each (first address, last address).
    #[must_use]
    pub fn new(ranges: &[(Ip, Ip)]) -> Self {
        let mut kept = [None; 4];
        for (slot, range) in kept.iter_mut().zip(ranges) {
            *slot = Some(*range);
        }
        Self { ranges: kept }
    }

    /// Whether there is no range, so that every address is traced.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.iter().all(Option::is_none)
    }

    /// Whether code at `ip` is traced.
    #[must_use]
    pub fn contains(&self, ip: Ip) -> bool {
        self.is_empty()
            || self
                .ranges
                .iter()
                .flatten()
                .any(|(first, last)| (*first..=*last).contains(&ip))
    }
}

/// A processor, as CPUID leaf 1 names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cpu {
    /// Family, extended family added.
    pub family: u16,
    /// Model, extended model included.
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
}

/// Published errata of processors that a decoder can work around, each a switch.
///
/// [`Errata::for_cpu`] chooses them by processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errata {
    /// BDM70 (also SKD024, SKL021, KBL021), "PSB+ packets may contain unexpected packets".
    ///
    /// Problem: a PSB+ just before a TIP.PGE may hold a FUP and a MODE.Exec although tracing is still off.
    /// Workaround: when the first control packet after a PSB+ is TIP.PGE, the PSB+'s FUP does not switch tracing on.
    pub bdm70: bool,
    /// BDM64, "an incorrect LBR or Processor Trace packet may be recorded following a transactional abort".
    ///
    /// Problem: when a transaction aborts right after a branch, the branch's target in the trace may be wrong.
    /// Workaround: if the abort's FUP cannot be reached from there without further packets, go to it at once.
    pub bdm64: bool,
    /// SKD007 (also SKL049, KBL041), "buffer overflow may result in incorrect packets".
    ///
    /// Problem: an OVF may stand in place of the bytes of a CYC packet after its first.
    /// Workaround: a CYC whose second byte starts an OVF is cut to its first byte.
    pub skd007: bool,
    /// SKD022 (also SKL024, KBL023), "VM entry that clears TraceEn may generate a FUP".
    ///
    /// Problem: a FUP precedes the TIP.PGD of a VM entry that switches tracing off by an MSR load.
    /// Workaround: if that FUP names a VM entry, the entry executed and took tracing with it.
    pub skd022: bool,
    /// SKD010 (also SKD014, SKL033, KBL030), "FUP may be dropped after OVF".
    ///
    /// Problem: neither FUP nor TIP.PGE may follow an OVF.
    /// Workaround: the place after the overflow is unknown; decoding goes on silently at the next packets that tell it.
    pub skd010: bool,
    /// SKL014 (also KBL014), "TIP.PGD may not have target IP payload".
    ///
    /// Problem: a direct unconditional branch that leaves the filter ranges may give a TIP.PGD without IP.
    /// Workaround: with [`FlowConfig::filter`] known, such a TIP.PGD binds to a direct branch that leaves the ranges.
    pub skl014: bool,
    /// APL12, "OVF may be followed by an unexpected FUP packet".
    ///
    /// Problem: a FUP may follow an OVF although IP filtering keeps tracing off.
    /// Workaround: when the next control packet after that FUP is TIP.PGE, tracing is taken as off.
    pub apl12: bool,
    /// APL11, "OVF packet may be followed by TIP.PGD packet".
    ///
    /// Problem: when tracing is switched off just as an overflow ends, a TIP.PGD follows the OVF.
    /// Workaround: tracing is off after such an overflow.
    pub apl11: bool,
    /// SKZ84, "use of VMX TSC scaling or TSC offsetting will result in corrupted packets".
    ///
    /// Problem: in a guest with TSC scaling or offsetting, TMA packets are wrong and a stray byte follows each.
    /// Workaround: a TMA behind which stands a byte that begins no packet is ignored, and that byte with it. (Where
    /// the byte happens to look like a packet, that cannot be told.)
    pub skz84: bool,
}

impl Errata {
    /// The errata of `cpu`, an Intel processor, as its specification updates list them.
    #[must_use]
    pub fn for_cpu(cpu: Cpu) -> Self {
        let mut errata = Self::default();
        if cpu.family != 6 {
            return errata;
        }
        let model = cpu.model;
        // Broadwell: client, Xeon E3, E5/E7 and D.
        let broadwell = matches!(model, 0x3d | 0x47 | 0x4f | 0x56);
        // Skylake, Kaby Lake, Coffee Lake and Comet Lake clients.
        let skylake = matches!(model, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6);
        // Skylake, Ice Lake and Sapphire Rapids servers.
        let server = matches!(model, 0x55 | 0x6a | 0x6c | 0x8f);
        // Cannon Lake, Ice Lake, Tiger Lake and Rocket Lake clients.
        let later = matches!(model, 0x66 | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 | 0xa8);
        // Alder Lake and its kin, with both kinds of cores.
        let hybrid = matches!(model, 0x97 | 0x9a | 0xbf);
        // Goldmont; Goldmont Plus and Tremont.
        let goldmont = matches!(model, 0x5c | 0x5f);
        let small = goldmont || matches!(model, 0x7a | 0x86 | 0x96 | 0x9c);

        errata.bdm64 = broadwell;
        errata.bdm70 = broadwell || skylake || server || later || hybrid;
        errata.skd007 = skylake;
        errata.skd010 = skylake;
        errata.skd022 = skylake || server || later || hybrid;
        errata.skl014 = errata.skd022;
        errata.skz84 = server;
        errata.apl11 = small || hybrid;
        errata.apl12 = goldmont;
        errata
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn errata_by_processor() {
        let errata = |family, model| {
            Errata::for_cpu(Cpu {
                family,
                model,
                stepping: 1,
            })
        };
        let broadwell = Errata {
            bdm70: true,
            bdm64: true,
            ..Errata::default()
        };
        assert_eq!(errata(6, 79), broadwell);
        assert_eq!(errata(15, 79), Errata::default());
        assert_eq!(errata(6, 0x1a), Errata::default());
        assert_eq!(
            errata(6, 0x5c),
            Errata {
                apl11: true,
                apl12: true,
                ..Errata::default()
            }
        );
        assert!(errata(6, 0x5e).skd010 && !errata(6, 0x55).skd010 && errata(6, 0x55).skz84);
    }

    #[test]
    fn filter_ranges() {
        assert!(FilterRanges::default().contains(Ip(0)));
        let ranges = FilterRanges::new(&[(Ip(0x1000), Ip(0x1fff)), (Ip(0x3000), Ip(0x3000))]);
        assert!(!ranges.is_empty());
        let inside: Vec<u64> = [0xfff, 0x1000, 0x1fff, 0x2000, 0x3000, 0x3001]
            .into_iter()
            .filter(|ip| ranges.contains(Ip(*ip)))
            .collect();
        assert_eq!(inside, [0x1000, 0x1fff, 0x3000]);
    }
}
