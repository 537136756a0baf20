//! AUXTRACE_INFO, as `crate::reader::TraceInfo` reads it.

use super::{Bytes, PMU_TYPE, Subject, WriterOptions};
use crate::reader::{BY_COFI, INTEL_PT, RTIT};
use crate::{PtConfig, RtitConfig, TimeConv, TraceConfig};

pub(super) fn of(options: &WriterOptions) -> Bytes {
    match options.config {
        TraceConfig::Pt(_) => intel_pt(options),
        TraceConfig::Rtit(config) => rtit(options, config),
    }
}

fn intel_pt(options: &WriterOptions) -> Bytes {
    let (n, d) = options.tsc_ctc_ratio;
    let TimeConv { shift, mult, zero } = options.time;
    let mut info = Bytes::default();
    info.u32(INTEL_PT).u32(BY_COFI).u64s(&[
        PMU_TYPE.into(),
        shift,
        mult,
        zero,
        u64::from(!options.config.is_timeless()),
        PtConfig::TSC_BIT,
        PtConfig::NORETCOMP_BIT,
        0, // have_sched_switch
        0, // snapshot_mode
        0, // per_cpu_mmaps
        PtConfig::MTC_BIT,
        PtConfig::MTC_FREQ_BITS,
        n.into(),
        d.into(),
        PtConfig::CYC_BIT,
        options.max_nonturbo_ratio.into(),
        0, // filter_len
        0, // cap_event_trace
    ]);
    info
}

fn rtit(options: &WriterOptions, config: RtitConfig) -> Bytes {
    /// RTIT_EVENTS: FilterEn is always set, nothing stops tracing (Table 7).
    const EVENTS: u64 = 0b110_111;
    let TimeConv { shift, mult, zero } = options.time;
    let mut info = Bytes::default();
    info.u32(RTIT).u32(BY_COFI).u64s(&[
        PMU_TYPE.into(),
        shift,
        mult,
        zero,
        u64::from(!config.is_timeless()),
        RtitConfig::STS_BIT,
        options.max_nonturbo_ratio.into(),
        config.bits() | privilege(options.subject),
        config.pkt_cnt(),
        EVENTS,
        0, // RTIT_LIP0 to RTIT_LIP3
        0,
        0,
        0,
        0, // RTIT_CR3_MATCH
        0, // family, model and stepping of hardware
        0,
        0,
    ]);
    info
}

/// The bits of RTIT_CTL that choose the privilege levels.
const fn privilege(subject: Subject) -> u64 {
    const OS: u64 = 1 << 2;
    const USER: u64 = 1 << 3;
    match subject {
        Subject::Processes => USER,
        Subject::Guest { os, user } => (if os { OS } else { 0 }) | if user { USER } else { 0 },
    }
}
