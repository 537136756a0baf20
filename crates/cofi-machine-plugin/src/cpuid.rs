//! CPUID: what the guest finds that QEMU's processors do not have.

use cofi_unit::{Capabilities, CpuidLeaf, Signature};

/// The highest basic leaf. Behind 15H would come the processor's frequency, of which nothing is to be said.
const HIGHEST: u32 = 0x15;
/// That of processors with RTIT.
const HIGHEST_OF_RTIT: u32 = 0xb;
/// "GenuineIntel", as EBX, EDX and ECX have it.
const VENDOR: [u32; 3] = [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
/// Leaf 01H, ECX: VMX, x2APIC, the deadline timer.
const WITHOUT: u32 = 1 << 5 | 1 << 21 | 1 << 24;
/// Leaf 01H, EDX: the local APIC. ECX: PDCM.
const PDCM: u32 = 1 << 15;
/// Leaf 05H: MWAIT has states (ECX), which are C1 to C4, one of each (EDX). It does not end by interrupts that are disabled: QEMU has no such thing.
const MWAIT_STATES: [u32; 2] = [1, 0x0001_1110];
/// Leaf 07H, EBX: Intel PT.
const INTEL_PT: u32 = 1 << 25;
/// Performance monitoring, version 2: counters, their width, how many kinds of events leaf 0AH can deny.
const VERSION: u32 = 2;
pub(crate) const COUNTERS: u32 = 4;
pub(crate) const FIXED_COUNTERS: u32 = 3;
pub(crate) const COUNTER_BITS: u32 = 48;
const EVENTS: u32 = 7;
/// Of these events there are: cycles, instructions, reference cycles, branches that retired, and mispredictions, of which none ever happens. The others
/// (of the last-level cache) are denied.
const ABSENT_EVENTS: u32 = 1 << 3 | 1 << 4;

/// What CPUID returns in place of what QEMU has returned. A processor that is alone sleeps by MWAIT; others go on at once in QEMU, so nobody should
/// think of using it.
pub(crate) fn answer(
    caps: &Capabilities,
    signature: Signature,
    is_alone: bool,
    (leaf, subleaf): (u32, u32),
    mut words: CpuidLeaf,
) -> CpuidLeaf {
    match leaf {
        0 => {
            words.eax = if caps.supported {
                HIGHEST
            } else {
                HIGHEST_OF_RTIT
            };
            [words.ebx, words.edx, words.ecx] = VENDOR;
        }
        1 => {
            words.eax = signature.0;
            words.ecx &= !(WITHOUT | PDCM);
        }
        5 if is_alone && caps.power_event => [words.ecx, words.edx] = MWAIT_STATES,
        7 if subleaf == 0 => {
            words.ebx &= !INTEL_PT;
            words.ebx |= caps.leaf(7, 0).map_or(0, |leaf| leaf.ebx) & INTEL_PT;
        }
        0xa => {
            words = CpuidLeaf {
                eax: VERSION | COUNTERS << 8 | COUNTER_BITS << 16 | EVENTS << 24,
                ebx: ABSENT_EVENTS,
                ecx: 0,
                edx: FIXED_COUNTERS | COUNTER_BITS << 5,
            };
        }
        0x14 | 0x15 => words = caps.leaf(leaf, subleaf).unwrap_or_default(),
        _ => {}
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofi_unit::Generation;

    fn asked(leaf: u32, subleaf: u32) -> CpuidLeaf {
        let generation = Generation::Skylake;
        let ones = CpuidLeaf {
            eax: !0,
            ebx: !0,
            ecx: !0,
            edx: !0,
        };
        answer(
            &generation.capabilities(),
            generation.signature(),
            true,
            (leaf, subleaf),
            ones,
        )
    }

    #[test]
    fn intel_pt_is_enumerated() {
        assert_eq!(asked(0, 0).eax, HIGHEST);
        assert_eq!(asked(1, 0).eax, Generation::Skylake.signature().0);
        assert_eq!(asked(1, 0).ecx & WITHOUT, 0);
        assert_ne!(asked(7, 0).ebx & INTEL_PT, 0);
        assert_eq!(asked(0x14, 0).ebx, 0x0f);
        assert_eq!(asked(0x14, 1).eax, 0x0249_0002);
        // The crystal's frequency would become the guest's idea of its timers.
        assert_eq!(
            asked(0x15, 0),
            CpuidLeaf {
                eax: 2,
                ebx: 0xb8,
                ecx: 0,
                edx: 0
            }
        );
    }

    #[test]
    fn mwait_has_states_where_they_can_be_traced() {
        let none = CpuidLeaf::default();
        for (generation, is_alone, states) in [
            (Generation::Gracemont, true, MWAIT_STATES),
            (Generation::Gracemont, false, [0; 2]),
            (Generation::Skylake, true, [0; 2]),
        ] {
            let (caps, signature) = (generation.capabilities(), generation.signature());
            let leaf = answer(&caps, signature, is_alone, (5, 0), none);
            assert_eq!([leaf.ecx, leaf.edx], states, "{generation}");
        }
    }

    #[test]
    fn other_leaves_are_qemus() {
        assert_eq!(asked(7, 1).ebx, !0);
        assert_eq!(asked(0x8000_0001, 0).ecx, !0);
    }
}
