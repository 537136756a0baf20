//! What CPUID tells: the processor, a hypervisor above it, Intel PT, and whether it is one that has RTIT.

use super::{Finding, Status};
use cofi_packet::rtit::has_rtit;
use raw_cpuid::CpuIdResult;
use raw_cpuid::native_cpuid::cpuid_count;
use serde_json::Value;
use std::path::Path;

/// The folder in which Linux shows its Intel PT driver, once that has found the hardware.
const PMU: &str = "/sys/bus/event_source/devices/intel_pt";

/// Leaf 14H.0 EBX, from bit 0 on: the names of Linux's caps folder where it has one.
const EBX: [&str; 9] = [
    "cr3_filtering",
    "psb_cyc",
    "ip_filtering",
    "mtc",
    "ptwrite",
    "power_event_trace",
    "psb_pmi_preservation",
    "event_trace",
    "tnt_disable",
];
/// Leaf 14H.0 ECX: bit and name.
const ECX: [(u32, &str); 5] = [
    (0, "topa_output"),
    (1, "topa_multiple_entries"),
    (2, "single_range_output"),
    (3, "output_subsys"),
    (31, "payloads_lip"),
];

/// Hypervisors, by what leaf 40000000H says.
const HYPERVISORS: [(&str, &str); 9] = [
    ("KVMKVMKVM", "KVM"),
    ("Linux KVM Hv", "KVM"),
    ("TCGTCGTCGTCG", "QEMU without KVM"),
    ("Microsoft Hv", "Hyper-V"),
    ("VMwareVMware", "VMware"),
    ("XenVMMXenVMM", "Xen"),
    ("VBoxVBoxVBox", "VirtualBox"),
    ("bhyve bhyve ", "bhyve"),
    ("ACRNACRNACRN", "ACRN"),
];

/// The text in registers, up to the first zero byte.
fn words(registers: &[u32]) -> String {
    let bytes: Vec<u8> = registers
        .iter()
        .flat_map(|register| register.to_le_bytes())
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// A leaf, if the processor has it. Leaves beyond the last must not be asked for: Intel answers with the last one's.
fn leaf(number: u32, sub: u32) -> Option<CpuIdResult> {
    let last = cpuid_count(number & 0xf000_0000, 0).eax;
    (number <= last).then(|| cpuid_count(number, sub))
}

fn vendor() -> String {
    let leaf = cpuid_count(0, 0);
    words(&[leaf.ebx, leaf.edx, leaf.ecx])
}

fn brand() -> String {
    let leaves = (0x8000_0002..=0x8000_0004).filter_map(|number| leaf(number, 0));
    let registers: Vec<u32> = leaves
        .flat_map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])
        .collect();
    words(&registers)
}

/// Family, model and stepping, as leaf 1 EAX encodes them.
const fn signature(eax: u32) -> (u32, u32, u32) {
    let (stepping, model, family) = (eax & 15, eax >> 4 & 15, eax >> 8 & 15);
    let model = if family == 6 || family == 15 {
        model | (eax >> 16 & 15) << 4
    } else {
        model
    };
    let family = if family == 15 {
        family + (eax >> 20 & 255)
    } else {
        family
    };
    (family, model, stepping)
}

/// The hypervisor that this processor is shown by, if any.
fn hypervisor() -> Option<String> {
    if leaf(1, 0)?.ecx >> 31 == 0 {
        return None;
    }
    let leaf = cpuid_count(0x4000_0000, 0);
    let says = words(&[leaf.ebx, leaf.ecx, leaf.edx]);
    let known = HYPERVISORS
        .iter()
        .find(|(signature, _)| signature.trim() == says);
    Some(match known {
        Some((_, name)) => (*name).to_owned(),
        None if says.is_empty() => "an unnamed hypervisor".to_owned(),
        None => says,
    })
}

pub(super) fn processor() -> Finding {
    let (family, model, stepping) = signature(cpuid_count(1, 0).eax);
    let (vendor, brand) = (vendor(), brand());
    let name = if brand.is_empty() { &vendor } else { &brand };
    let says = format!("{name} (family {family}, model {model}, stepping {stepping})");
    Finding::new("processor", "processor", Status::Ok, says)
        .fact("name", name.as_str())
        .fact("vendor", vendor.as_str())
        .fact("family", family)
        .fact("model", model)
        .fact("stepping", stepping)
}

pub(super) fn virtualisation() -> Finding {
    let hypervisor = hypervisor();
    let says = match &hypervisor {
        Some(name) => format!("a guest of {name}"),
        None => "none: CPUID tells of no hypervisor".to_owned(),
    };
    Finding::new("virtualisation", "virtualisation", Status::Ok, says)
        .fact("hypervisor", hypervisor)
}

/// CPUID leaf 14H.
#[derive(Clone, Copy, Default)]
struct Leaf14 {
    /// Sub-leaf 0.
    ebx: u32,
    ecx: u32,
    /// Sub-leaf 1, zero where there is none.
    eax1: u32,
    ebx1: u32,
}

impl Leaf14 {
    /// Reads it, if the processor has Intel PT: leaf 7 EBX bit 25.
    fn read() -> Option<Self> {
        if leaf(7, 0)?.ebx >> 25 & 1 == 0 {
            return None;
        }
        // A processor that has PT without the leaf that describes it can do nothing we know of.
        let Some(zero) = leaf(0x14, 0) else {
            return Some(Self::default());
        };
        let (eax1, ebx1) = match zero.eax {
            0 => (0, 0),
            _ => {
                let one = cpuid_count(0x14, 1);
                (one.eax, one.ebx)
            }
        };
        Some(Self {
            ebx: zero.ebx,
            ecx: zero.ecx,
            eax1,
            ebx1,
        })
    }

    fn names(self) -> Vec<&'static str> {
        let low = EBX
            .iter()
            .zip(0..)
            .map(|(name, bit)| (self.ebx, bit, *name));
        let high = ECX.iter().map(|(bit, name)| (self.ecx, *bit, *name));
        low.chain(high)
            .filter(|(register, bit, _)| register >> bit & 1 == 1)
            .map(|(_, _, name)| name)
            .collect()
    }

    const fn address_ranges(self) -> u32 {
        self.eax1 & 7
    }
}

/// The numbers of the bits that are set: the values that a field of 4 bits may have.
fn encodings(bitmap: u32) -> Value {
    (0..16_u32)
        .filter(|bit| bitmap >> bit & 1 == 1)
        .collect::<Vec<_>>()
        .into()
}

pub(super) fn intel_pt() -> Finding {
    let is_intel = vendor() == "GenuineIntel";
    judge(
        Leaf14::read(),
        Path::new(PMU).exists(),
        is_intel,
        hypervisor().is_some(),
    )
}

fn judge(leaf: Option<Leaf14>, has_pmu: bool, is_intel: bool, is_guest: bool) -> Finding {
    let make = |status, says: String| Finding::new("intel_pt", "Intel PT", status, says);
    let finding = match leaf {
        Some(leaf) => {
            let names = leaf.names();
            let list = if names.is_empty() {
                "no optional capability".to_owned()
            } else {
                names.join(", ")
            };
            let ranges = leaf.address_ranges();
            let with = format!("with {list}; {ranges} address ranges");
            if has_pmu {
                let says =
                    format!("there, {with}; `cofi record --engine hardware` records with it");
                make(Status::Ok, says)
            } else {
                let hint = if is_guest {
                    "the hypervisor shows it but lets the kernel have no use of it: let it pass PT through \
                     (KVM: kvm_intel pt_mode=1)"
                } else {
                    "see what the kernel says of it (dmesg); it needs CONFIG_PERF_EVENTS and CONFIG_CPU_SUP_INTEL, and PT \
                     must not be in use by the firmware"
                };
                make(
                    Status::Limited,
                    format!("the processor has it, {with}; but Linux has no {PMU}"),
                )
                .hint(hint)
            }
        }
        None if has_pmu => make(
            Status::Limited,
            format!("Linux has {PMU}, though CPUID tells of none here"),
        ),
        None => {
            let hint = match (is_intel, is_guest) {
                (false, _) => {
                    "only Intel's processors have it; --engine ptrace and --engine qemu need none"
                }
                (true, true) => {
                    "the hypervisor may hide it; --engine ptrace and --engine qemu need none"
                }
                (true, false) => {
                    "Intel's processors have it since Broadwell; --engine ptrace and --engine qemu need none"
                }
            };
            make(Status::Missing, "not in CPUID (leaf 7 EBX bit 25)".into()).hint(hint)
        }
    };
    let found = leaf.unwrap_or_default();
    finding
        .fact("cpuid", leaf.is_some())
        .fact("pmu", has_pmu)
        .fact("capabilities", found.names())
        .fact("address_ranges", found.address_ranges())
        .fact("mtc_periods", encodings(found.eax1 >> 16))
        .fact("cycle_thresholds", encodings(found.ebx1 & 0xffff))
        .fact("psb_periods", encodings(found.ebx1 >> 16))
}

/// RTIT is not enumerated: family, model and stepping tell whether a processor has it.
pub(super) fn rtit() -> Finding {
    judge_rtit(&vendor(), signature(cpuid_count(1, 0).eax))
}

fn judge_rtit(vendor: &str, (family, model, stepping): (u32, u32, u32)) -> Finding {
    let known = vendor == "GenuineIntel"
        && u16::try_from(family).is_ok_and(|family| has_rtit(family, model as u8, stepping as u8));
    let make = |status, says: &str| Finding::new("rtit", "RTIT", status, says);
    let finding = if known {
        make(
            Status::Limited,
            "the processor is one that has it, but Linux has no driver for it; its registers from 760H on are for a debugger or a \
             kernel module",
        )
        .hint("read bare packets of it with --format rtit and --cpu; --config rtit records by software")
    } else {
        make(
            Status::Missing,
            "not one of the processors that have it (Silvermont and Airmont, by model and stepping)",
        )
        .hint("--config rtit records it by software, with --engine ptrace and --engine qemu")
    };
    finding.fact("model", known)
}

#[cfg(test)]
mod tests {
    use super::{Leaf14, Status, encodings, judge, judge_rtit, signature, words};

    #[test]
    fn registers_hold_words() {
        assert_eq!(
            words(&[0x756e_6547, 0x4965_6e69, 0x6c65_746e]),
            "GenuineIntel"
        );
        assert_eq!(words(&[0x0000_4b20, 0xffff_ffff]), "K");
    }

    #[test]
    fn signatures_of_processors() {
        // Skylake client, Ice Lake server, Zen 3, Pentium.
        assert_eq!(signature(0x0005_06e3), (6, 94, 3));
        assert_eq!(signature(0x0006_06a6), (6, 106, 6));
        assert_eq!(signature(0x00a2_0f10), (25, 33, 0));
        assert_eq!(signature(0x0000_0543), (5, 4, 3));
    }

    /// What a Skylake client says.
    const SKYLAKE: Leaf14 = Leaf14 {
        ebx: 0xf,
        ecx: 7,
        eax1: 0x0249_0002,
        ebx1: 0x003f_3fff,
    };

    #[test]
    fn capabilities_have_names() {
        let names = [
            "cr3_filtering",
            "psb_cyc",
            "ip_filtering",
            "mtc",
            "topa_output",
            "topa_multiple_entries",
            "single_range_output",
        ];
        assert_eq!(SKYLAKE.names(), names);
        assert_eq!(SKYLAKE.address_ranges(), 2);
        let all = Leaf14 {
            ebx: u32::MAX,
            ecx: u32::MAX,
            ..SKYLAKE
        };
        assert_eq!(all.names().len(), 14);
        assert_eq!(all.names()[13], "payloads_lip");
        assert_eq!(
            encodings(SKYLAKE.eax1 >> 16),
            serde_json::json!([0, 3, 6, 9])
        );
        assert_eq!(
            encodings(SKYLAKE.ebx1 >> 16),
            serde_json::json!([0, 1, 2, 3, 4, 5])
        );
    }

    #[test]
    fn pt_is_ok_only_with_its_driver() {
        let good = judge(Some(SKYLAKE), true, true, false);
        assert_eq!((good.status, good.hint), (Status::Ok, None));
        let idle = judge(Some(SKYLAKE), false, true, true);
        assert_eq!(idle.status, Status::Limited);
        assert!(idle.hint.is_some_and(|hint| hint.contains("hypervisor")));
        for (is_intel, is_guest, about) in [
            (false, true, "Intel's"),
            (true, true, "hypervisor"),
            (true, false, "Broadwell"),
        ] {
            let none = judge(None, false, is_intel, is_guest);
            assert_eq!(none.status, Status::Missing);
            assert!(none.hint.is_some_and(|hint| hint.contains(about)));
        }
        assert_eq!(judge(None, true, true, false).status, Status::Limited);
    }

    #[test]
    fn rtit_goes_by_model_and_stepping() {
        let judge = |vendor, signature| judge_rtit(vendor, signature);
        // Airmont, by its number and as CPUID encodes it.
        let airmont = judge("GenuineIntel", (6, 76, 3));
        assert_eq!(airmont, judge("GenuineIntel", signature(0x0004_06c3)));
        assert_eq!(airmont.status, Status::Limited);
        for (vendor, other) in [
            ("GenuineIntel", (6, 76, 4)),
            ("GenuineIntel", (6, 94, 3)),
            ("AuthenticAMD", (6, 76, 3)),
        ] {
            assert_eq!(judge(vendor, other).status, Status::Missing);
        }
    }
}
