//! AUXTRACE_INFO: how the trace was taken.

use super::Cursor;
use crate::TimeConv;

/// What this project's recorder writes into the reserved field behind the type: "cofi".
pub(crate) const BY_COFI: u32 = u32::from_le_bytes(*b"cofi");

/// AUXTRACE_INFO of Intel PT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IntelPtInfo {
    /// The PMU's number: the `type` of its event.
    pub pmu_type: u32,
    /// How the TSC converts to perf's time, if the file says.
    pub time: Option<TimeConv>,
    /// The bit of the event's config that stands for TSC packets.
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
    /// Maximum non-turbo ratio.
    pub max_nonturbo_ratio: u32,
}

/// The fields have been added one by one over the years; a file of an older perf ends before the newer ones.
pub(super) fn info(c: &mut Cursor<'_>) -> Option<IntelPtInfo> {
    let (_type, mark) = (c.u32()?, c.u32()?);
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
    let mut info = IntelPtInfo {
        pmu_type,
        time: (known || time.mult != 0).then_some(time),
        tsc_bit,
        per_cpu,
        have_sched_switch,
        snapshot_mode,
        by_cofi: mark == BY_COFI,
        ..IntelPtInfo::default()
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

impl IntelPtInfo {
    /// MTCFreq in the config of the PT event.
    #[must_use]
    pub const fn mtc_freq(&self, config: u64) -> u8 {
        if self.mtc_freq_bits == 0 {
            return 0;
        }
        ((config & self.mtc_freq_bits) >> self.mtc_freq_bits.trailing_zeros()) as u8 & 0xf
    }
}
