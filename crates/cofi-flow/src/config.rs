//! What the decoder must be told about the processor and its configuration.

use cofi_packet::{ExecMode, Ip, rtit};

use crate::{Errata, VmxTsc};

/// Which format the packets have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceFormat {
    /// Intel Processor Trace.
    #[default]
    IntelPt,
    /// Real Time Instruction Trace, which says less of itself: what must be known beside the packets.
    Rtit(RtitFlowConfig),
}

/// How RTIT was configured, as far as its packets do not tell and [`FlowConfig`] does not have it for Intel PT too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RtitFlowConfig {
    /// RTIT_CTL.Cycle_Acc: whether packets are followed by cycle counts.
    pub cycles: rtit::Mode,
    /// RTIT_TNT_BUFF as it was read when the trace had ended, bits 6:0: results of branches that no packet holds (4.2.8, 4.2.11). 1
    /// says that there are none.
    pub tnt_buff: Option<u8>,
    /// The TraceStop ranges: they tell where tracing ended, which the TraceStop packet does not.
    pub stop: StopRanges,
}

/// What the decoder must be told about the processor and how it was configured.
///
/// The default suits a trace without timing packets from a processor without errata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowConfig {
    /// The format of the packets.
    pub format: TraceFormat,
    /// CPUID leaf 15H: TSC ticks per tick of the crystal clock, as (EBX, EAX); a zero means unknown.
    pub tsc_art_ratio: (u32, u32),
    /// IA32_RTIT_CTL.MTCFreq: an MTC packet comes every `1 << mtc_freq` ticks of the crystal clock.
    pub mtc_freq: u8,
    /// The ratio of the TSC's frequency to the bus clock (MSR_PLATFORM_INFO\[15:8\]), in the unit of CBR and STS packets; zero
    /// means unknown.
    pub max_nonturbo_ratio: u8,
    /// How the TSC of guests differs from the processor's, for traces of both. Without it, times in a guest are the guest's.
    pub vmx_tsc: Option<VmxTsc>,
    /// Whether tracing is limited to one CR3: then a `MOV CR3` may switch it off even after its PIP packet, and of RTIT without one.
    pub cr3_filter: bool,
    /// The IP filter ranges. Intel PT needs them for errata that concern them and to tell where a conditional branch left them, RTIT to tell
    /// which branch did.
    pub filter: IpFilter,
    /// The mode before the first MODE.Exec packet; of RTIT, which has none, the mode of all code.
    pub initial_mode: ExecMode,
    /// The errata to work around.
    pub errata: Errata,
    /// How many instructions may be walked without using up a packet before the code is taken for garbage.
    pub max_packetless_run: u32,
    /// How much memory the cache of decoded code may use, in bytes, roughly.
    pub cache_limit: usize,
    /// How many branches are walked for each stretch of code between two of them before paths through the code are kept, by which more than one
    /// branch at a time is walked; and how often the instructions of such a stretch are asked for before they are kept as they are handed out. That
    /// pays only for code that runs often; with zero, both are done at once.
    pub warm_after: u32,
}

impl Default for FlowConfig {
    fn default() -> Self {
        Self {
            format: TraceFormat::default(),
            tsc_art_ratio: (0, 0),
            mtc_freq: 0,
            max_nonturbo_ratio: 0,
            vmx_tsc: None,
            cr3_filter: false,
            filter: IpFilter::default(),
            initial_mode: ExecMode::Bits64,
            errata: Errata::default(),
            max_packetless_run: 1 << 24,
            cache_limit: 256 << 20,
            warm_after: 32,
        }
    }
}

/// Up to four ranges of addresses, both ends included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ranges([Option<(Ip, Ip)>; 4]);

impl Ranges {
    fn new(ranges: &[(Ip, Ip)]) -> Self {
        let mut kept = [None; 4];
        for (slot, range) in kept.iter_mut().zip(ranges) {
            *slot = Some(*range);
        }
        Self(kept)
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    fn iter(&self) -> impl Iterator<Item = (Ip, Ip)> {
        self.0.iter().flatten().copied()
    }

    fn contains(&self, ip: Ip) -> bool {
        self.iter()
            .any(|(first, last)| (first..=last).contains(&ip))
    }
}

/// The ranges in which IP filtering lets tracing be on. Without a range there is no filtering: every address is traced.
///
/// Not to be mixed up with [`StopRanges`], where no range means no address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFilter {
    ranges: Ranges,
}

impl IpFilter {
    /// The first four of `ranges`, each (first address, last address).
    #[must_use]
    pub fn new(ranges: &[(Ip, Ip)]) -> Self {
        let ranges = Ranges::new(ranges);
        Self { ranges }
    }

    /// Whether there is no range, so that every address is traced.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether code at `ip` is traced.
    #[must_use]
    pub fn contains(&self, ip: Ip) -> bool {
        self.is_empty() || self.ranges.contains(ip)
    }

    /// Whether control that goes on at `ip` leaves a range.
    pub(crate) fn ends_before(&self, ip: Ip) -> bool {
        let mut ranges = self.ranges.iter();
        !self.contains(ip) && ranges.any(|(_, last)| last.0.wrapping_add(1) == ip.0)
    }
}

/// The ranges that end tracing when control enters them (TraceStop), as far as they are known. Without a range no address is known to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopRanges {
    ranges: Ranges,
}

impl StopRanges {
    /// The first four of `ranges`, each (first address, last address).
    #[must_use]
    pub fn new(ranges: &[(Ip, Ip)]) -> Self {
        let ranges = Ranges::new(ranges);
        Self { ranges }
    }

    /// Whether no range is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether tracing is known to end where control enters `ip`.
    #[must_use]
    pub fn contains(&self, ip: Ip) -> bool {
        self.ranges.contains(ip)
    }

    /// The first addresses.
    pub(crate) fn bases(&self) -> impl Iterator<Item = Ip> {
        self.ranges.iter().map(|(first, _)| first)
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

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const RANGES: [(Ip, Ip); 2] = [(Ip(0x1000), Ip(0x1fff)), (Ip(0x3000), Ip(0x3000))];

    fn inside(contains: impl Fn(Ip) -> bool) -> Vec<u64> {
        let around = [0xfff, 0x1000, 0x1fff, 0x2000, 0x3000, 0x3001];
        let inside = around.into_iter().filter(|ip| contains(Ip(*ip)));
        inside.collect()
    }

    #[test]
    fn both_ends_of_a_range_belong_to_it() {
        let filter = IpFilter::new(&RANGES);
        let stop = StopRanges::new(&RANGES);
        assert!(!filter.is_empty() && !stop.is_empty());
        assert_eq!(inside(|ip| filter.contains(ip)), [0x1000, 0x1fff, 0x3000]);
        assert_eq!(inside(|ip| stop.contains(ip)), [0x1000, 0x1fff, 0x3000]);
    }

    #[test]
    fn no_range_lets_all_be_traced_and_stops_nothing() {
        assert!(IpFilter::default().contains(Ip(0)));
        assert!(!StopRanges::default().contains(Ip(0)));
    }
}
