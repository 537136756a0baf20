//! AUXTRACE_INFO: how the trace was taken.

use super::Cursor;
use crate::TimeConv;
use cofi_packet::Ip;

/// What this project's recorder writes into the reserved field behind the type: "cofi".
pub(crate) const BY_COFI: u32 = u32::from_le_bytes(*b"cofi");

/// The type of Intel PT.
pub(crate) const INTEL_PT: u32 = 1;
/// The type of RTIT, "RTIT": one of this project's own, which perf does not know and refuses.
pub(crate) const RTIT: u32 = u32::from_le_bytes(*b"RTIT");

/// AUXTRACE_INFO of Intel PT or RTIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TraceInfo {
    /// The PMU's number: the `type` of its event.
    pub pmu_type: u32,
    /// How the TSC converts to perf's time, if the file says.
    pub time: Option<TimeConv>,
    /// The bit of the event's config that stands for packets that tell the TSC.
    pub tsc_bit: u64,
    /// One stream a processor, not one a thread.
    pub per_cpu: bool,
    /// How context switches are told: 0 not at all (or by ITRACE_START), 1 tracepoint, 2 SWITCH, 3 SWITCH_CPU_WIDE.
    pub have_sched_switch: u64,
    /// The AUX buffers were overwritten and saved only at snapshots.
    pub snapshot_mode: bool,
    /// This project's recorder made the file, and says so in a field that perf leaves 0. A trace of guests only is then of a
    /// machine, with its code; and no packets were lost where something was not recorded.
    pub by_cofi: bool,
    /// The bits of the event's config that hold MTCFreq.
    pub mtc_freq_bits: u64,
    /// TSC ticks per crystal clock tick: numerator, denominator.
    pub tsc_ctc_ratio: (u32, u32),
    /// Maximum non-turbo ratio: TSC ticks per tick of the bus clock.
    pub max_nonturbo_ratio: u32,
    /// What the registers were, where the trace is RTIT.
    pub rtit: Option<RtitInfo>,
}

/// How an RTIT trace was taken: its registers (3.3) when tracing began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RtitInfo {
    /// RTIT_CTL.
    pub ctl: u64,
    /// RTIT_PKT_CNT.
    pub pkt_cnt: u64,
    /// RTIT_EVENTS.
    pub events: u64,
    /// RTIT_LIP0 to RTIT_LIP3.
    pub lips: [Ip; 4],
    /// RTIT_CR3_MATCH.
    pub cr3_match: u64,
    /// Family, model and stepping of the processor; zeros of a trace unit in software, which has no errata.
    pub processor: (u16, u8, u8),
}

impl RtitInfo {
    /// RTIT_CTL.Cycle_Acc: cycle counts follow packets.
    #[must_use]
    pub const fn is_cycle_accurate(&self) -> bool {
        self.ctl & 1 << 1 != 0
    }

    /// RTIT_CTL.CR3En: only one address space is traced.
    #[must_use]
    pub const fn has_cr3_filter(&self) -> bool {
        self.ctl & 1 << 7 != 0
    }

    /// The ranges outside of which FilterEn is clear, first and last address; none where that is always set.
    #[must_use]
    pub fn filter(&self) -> Vec<(Ip, Ip)> {
        self.ranges(self.events & 7)
    }

    /// The ranges that end tracing when control enters them, first and last address.
    #[must_use]
    pub fn stop(&self) -> Vec<(Ip, Ip)> {
        self.ranges(self.events >> 3 & 7)
    }

    /// The ranges of an event (Table 7): RANGE0, RANGE1 or both. The address in the second register of each is the first one
    /// behind it.
    fn ranges(&self, event: u64) -> Vec<(Ip, Ip)> {
        let [base0, base1, limit0, limit1] = self.lips;
        let chosen = match event {
            0 => [true, false],
            1 => [false, true],
            2 => [true, true],
            _ => [false, false],
        };
        chosen
            .into_iter()
            .zip([(base0, limit0), (base1, limit1)])
            .filter(|(chosen, (base, limit))| *chosen && base < limit)
            .map(|(_, (base, limit))| (base, Ip(limit.0 - 1)))
            .collect()
    }
}

/// Reads the record, whose type is one of the two.
pub(super) fn info(c: &mut Cursor<'_>) -> Option<TraceInfo> {
    let (kind, mark) = (c.u32()?, c.u32()?);
    let info = match kind {
        RTIT => rtit(c)?,
        _ => intel_pt(c)?,
    };
    Some(TraceInfo {
        by_cofi: mark == BY_COFI,
        ..info
    })
}

fn rtit(c: &mut Cursor<'_>) -> Option<TraceInfo> {
    let pmu_type = c.u64()? as u32;
    let time = TimeConv {
        shift: c.u64()?,
        mult: c.u64()?,
        zero: c.u64()?,
    };
    let known = c.u64()? != 0;
    let tsc_bit = c.u64()?;
    let max_nonturbo_ratio = c.u64()? as u32;
    let registers = RtitInfo {
        ctl: c.u64()?,
        pkt_cnt: c.u64()?,
        events: c.u64()?,
        lips: [Ip(c.u64()?), Ip(c.u64()?), Ip(c.u64()?), Ip(c.u64()?)],
        cr3_match: c.u64()?,
        processor: (c.u64()? as u16, c.u64()? as u8, c.u64()? as u8),
    };
    Some(TraceInfo {
        pmu_type,
        time: known.then_some(time),
        tsc_bit,
        max_nonturbo_ratio,
        rtit: Some(registers),
        ..TraceInfo::default()
    })
}

/// The fields have been added one by one over the years; a file of an older perf ends before the newer ones.
fn intel_pt(c: &mut Cursor<'_>) -> Option<TraceInfo> {
    let pmu_type = c.u64()? as u32;
    let time = TimeConv {
        shift: c.u64()?,
        mult: c.u64()?,
        zero: c.u64()?,
    };
    let known = c.u64()? != 0;
    let tsc_bit = c.u64()?;
    let _noretcomp_bit = c.u64()?;
    let have_sched_switch = c.u64()?;
    let snapshot_mode = c.u64()? != 0;
    let per_cpu = c.u64()? != 0;
    let mut info = TraceInfo {
        pmu_type,
        time: (known || time.mult != 0).then_some(time),
        tsc_bit,
        per_cpu,
        have_sched_switch,
        snapshot_mode,
        ..TraceInfo::default()
    };
    let mut newer = || {
        let _mtc_bit = c.u64()?;
        info.mtc_freq_bits = c.u64()?;
        info.tsc_ctc_ratio = (c.u64()? as u32, c.u64()? as u32);
        let _cyc_bit = c.u64()?;
        info.max_nonturbo_ratio = c.u64()? as u32;
        Some(())
    };
    // Older files end before these.
    let _ = newer();
    Some(info)
}

impl TraceInfo {
    /// MTCFreq in the config of the PT event.
    #[must_use]
    pub const fn mtc_freq(&self, config: u64) -> u8 {
        if self.mtc_freq_bits == 0 {
            return 0;
        }
        ((config & self.mtc_freq_bits) >> self.mtc_freq_bits.trailing_zeros()) as u8 & 0xf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_events() {
        let info = |events| RtitInfo {
            events,
            lips: [Ip(0x1000), Ip(0x3000), Ip(0x2000), Ip(0x3001)],
            ..RtitInfo::default()
        };
        let first = (Ip(0x1000), Ip(0x1fff));
        let second = (Ip(0x3000), Ip(0x3000));
        assert_eq!(info(0b010_000).filter(), [first]);
        assert_eq!(info(0b010_000).stop(), [first, second]);
        assert_eq!(info(0b000_001).filter(), [second]);
        // Always on, always off: no range.
        assert_eq!(info(0b110_111).filter(), []);
        assert_eq!(info(0b110_111).stop(), []);
        // After a reset the first range holds nothing.
        assert_eq!(RtitInfo::default().filter(), []);
    }
}
