//! What Linux says of the processors' Intel PT.

use super::HardwareError;
use cofi_perf::PtConfig;
use std::fs;
use std::path::PathBuf;

const FOLDER: &str = "/sys/bus/event_source/devices/intel_pt";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The driver's answers.
#[derive(Debug)]
pub(super) struct Pmu {
    /// The number by which events name it.
    pub(super) kind: u32,
    pub(super) tsc_ctc_ratio: (u32, u32),
    pub(super) max_nonturbo_ratio: u32,
    pub(super) has_event_trace: bool,
    has_mtc: bool,
    has_cyc: bool,
}

fn read(name: &str) -> Result<String, HardwareError> {
    let path = PathBuf::from(FOLDER).join(name);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(HardwareError::Unreadable { path, source }),
    }
}

impl Pmu {
    pub(super) fn find() -> Result<Self, HardwareError> {
        if !PathBuf::from(FOLDER).is_dir() {
            return Err(HardwareError::Absent {
                path: FOLDER.into(),
            });
        }
        let number = |text: String| text.parse::<u32>().unwrap_or_default();
        let has = |name: &str| read(name).is_ok_and(|text| text == "1");
        // Older kernels do not tell the ratio; the processor does.
        let ratio = read("tsc_art_ratio").ok().and_then(|text| {
            let (n, d) = text.split_once(':')?;
            Some((n.parse().ok()?, d.parse().ok()?))
        });
        Ok(Self {
            kind: number(read("type")?),
            tsc_ctc_ratio: ratio.unwrap_or_else(ratio_of_processor),
            max_nonturbo_ratio: read("max_nonturbo_ratio").map(number).unwrap_or_default(),
            has_event_trace: has("caps/event_trace"),
            has_mtc: has("caps/mtc"),
            has_cyc: has("caps/psb_cyc"),
        })
    }

    /// The event's configuration.
    pub(super) fn config(&self, wanted: PtConfig) -> Result<u64, HardwareError> {
        if !wanted.tsc {
            return Err(HardwareError::Timeless);
        }
        if wanted.cyc && !self.has_cyc {
            return Err(HardwareError::Unsupported { setting: "cyc" });
        }
        let mut wanted = wanted;
        // It is there if not refused, and of the oldest processors it is not asked for.
        wanted.mtc &= self.has_mtc;
        Ok(wanted.bits() | 1)
    }
}

/// CPUID leaf 15H: TSC ticks per crystal clock tick.
#[allow(unsafe_code, reason = "older compilers have the intrinsic so")]
fn ratio_of_processor() -> (u32, u32) {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    // SAFETY: every x86-64 processor has the instruction.
    #[allow(unused_unsafe, reason = "newer compilers have it without")]
    let (highest, leaf) = unsafe { (__cpuid(0).eax, __cpuid_count(0x15, 0)) };
    if highest < 0x15 {
        return (0, 0);
    }
    (leaf.ebx, leaf.eax)
}

/// The processors that are online.
pub(super) fn online() -> Result<Vec<u32>, HardwareError> {
    let path = PathBuf::from(ONLINE);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(list(&text)),
        Err(source) => Err(HardwareError::Unreadable { path, source }),
    }
}

/// Numbers as in "0-3,5".
fn list(text: &str) -> Vec<u32> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// The processor, in perf's form.
pub(super) fn cpuid() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let field = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    let (vendor, family) = (field("vendor_id")?, field("cpu family")?);
    let (model, stepping) = (field("model")?, field("stepping")?);
    let hex: u32 = model.parse().ok()?;
    Some(format!("{vendor},{family},{hex},{stepping}"))
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn ranges_of_processors() {
        assert_eq!(list("0-3,5\n"), [0, 1, 2, 3, 5]);
        assert_eq!(list("0"), [0]);
        assert_eq!(list(""), [0_u32; 0]);
    }
}
