//! Capabilities and CPUID are two forms of the same thing.

use super::{Capabilities, CpuidLeaf, CrystalRatio, Generation, Inconsistency, Signature};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A signature on the list of 33.3.1.2, and one that is not.
fn signature(excludes_lbr: bool) -> Signature {
    Signature(if excludes_lbr {
        0x0004_06f1
    } else {
        0x0009_0672
    })
}

fn read_back(caps: &Capabilities, noise: CpuidLeaf) -> Capabilities {
    Capabilities::from_leaves(
        |leaf, subleaf| {
            let words = caps.leaf(leaf, subleaf).unwrap();
            let known = Capabilities::CPUID
                .iter()
                .filter(|field| (field.leaf, field.subleaf) == (leaf, subleaf))
                .fold(CpuidLeaf::default(), |known, field| CpuidLeaf {
                    eax: known.eax | field.mask.eax,
                    ebx: known.ebx | field.mask.ebx,
                    ecx: known.ecx | field.mask.ecx,
                    edx: known.edx | field.mask.edx,
                });
            let counts_sub_leaves = (leaf, subleaf) == (0x14, 0);
            CpuidLeaf {
                eax: if counts_sub_leaves {
                    words.eax
                } else {
                    words.eax | noise.eax & !known.eax
                },
                ebx: words.ebx | noise.ebx & !known.ebx,
                ecx: words.ecx | noise.ecx & !known.ecx,
                edx: words.edx | noise.edx & !known.edx,
            }
        },
        u64::from(caps.vmx) << 14,
        signature(caps.excludes_lbr),
    )
}

prop_compose! {
    /// Any capabilities that are consistent.
    pub(crate) fn consistent()(
        flags in any::<[bool; 17]>(),
        ranges in 1u8..=4,
        bitmaps in any::<[u16; 3]>(),
        max_phys_addr in 32u8..=52,
        max_linear_addr in prop_oneof![Just(32u8), Just(48), Just(57)],
        numerator in 1..=u32::MAX,
        denominator in 1..=u32::MAX,
        supported in prop::bool::weighted(0.95),
    ) -> Capabilities {
        let [cr3_filter, psb_cyc, ip_filter, mtc, ptwrite, power_event, psb_pmi_preservation, event_trace, tnt_disable,
            topa, topa_multiple, single_range, transport, lip, vmx, excludes_lbr, _] = flags;
        let addresses = Capabilities {
            max_phys_addr,
            max_linear_addr,
            crystal: CrystalRatio { numerator, denominator },
            vmx,
            excludes_lbr,
            ..Capabilities::NONE
        };
        if !supported {
            return addresses;
        }
        Capabilities {
            supported,
            cr3_filter, psb_cyc, ip_filter, mtc, ptwrite, power_event, psb_pmi_preservation, event_trace, tnt_disable,
            topa,
            topa_multiple: topa && topa_multiple,
            single_range: single_range || !topa && !transport,
            transport,
            lip,
            address_ranges: if ip_filter { ranges } else { 0 },
            mtc_periods: bitmaps[0] | 1,
            cycle_thresholds: bitmaps[1] | 1,
            psb_frequencies: bitmaps[2] | 1,
            ..addresses
        }
    }
}

proptest! {
    #[test]
    fn leaves_give_the_capabilities_back_and_reserved_bits_are_ignored(
        caps in consistent(),
        noise in any::<[u32; 4]>(),
    ) {
        prop_assert_eq!(caps.validate(), Ok(()));
        prop_assert_eq!(read_back(&caps, CpuidLeaf::default()), caps);
        let [eax, ebx, ecx, edx] = noise;
        prop_assert_eq!(read_back(&caps, CpuidLeaf { eax, ebx, ecx, edx }), caps);
    }
}

#[test]
fn each_field_has_bits_of_its_own_and_decides_one_capability() {
    let zero = CpuidLeaf::default();
    let mut seen = BTreeSet::new();
    for field in Capabilities::CPUID {
        let CpuidLeaf { eax, ebx, ecx, edx } = field.mask;
        for (register, bits) in [eax, ebx, ecx, edx].into_iter().enumerate() {
            for bit in (0..32).filter(|bit| bits >> bit & 1 != 0) {
                assert!(
                    seen.insert((field.leaf, field.subleaf, register, bit)),
                    "{}",
                    field.name
                );
            }
        }
        // Only this field, beside what makes the leaf be looked at.
        let caps = Capabilities::from_leaves(
            |leaf, subleaf| {
                let mut words = if (leaf, subleaf) == (field.leaf, field.subleaf) {
                    field.mask
                } else {
                    zero
                };
                words.ebx |= u32::from(leaf == 0x07) << 25;
                words.eax |= u32::from((leaf, subleaf) == (0x14, 0));
                words
            },
            0,
            Signature(0),
        );
        let words = caps.leaf(field.leaf, field.subleaf).unwrap();
        assert_eq!(words, field.mask, "{}", field.name);
    }
    // Tables 33-11 and 33-12: 9 bits, 5 bits, 3 + 16, 16 + 16.
    assert_eq!(
        seen.iter().filter(|(leaf, ..)| *leaf == 0x14).count(),
        9 + 5 + 19 + 32
    );
}

/// Tables 33-11 and 33-12, with what the words say.
#[test]
fn each_capability_stands_where_the_tables_put_it() {
    let (eax, ebx, ecx) = (0, 1, 2);
    type Take = fn(&Capabilities) -> u32;
    #[rustfmt::skip]
    let table: [(u32, u32, usize, u32, Take); 23] = [
        (0x07, 0, ebx, 1 << 25, |c| c.supported.into()),
        (0x14, 0, ebx, 1 << 0, |c| c.cr3_filter.into()),
        (0x14, 0, ebx, 1 << 1, |c| c.psb_cyc.into()),
        (0x14, 0, ebx, 1 << 2, |c| c.ip_filter.into()),
        (0x14, 0, ebx, 1 << 3, |c| c.mtc.into()),
        (0x14, 0, ebx, 1 << 4, |c| c.ptwrite.into()),
        (0x14, 0, ebx, 1 << 5, |c| c.power_event.into()),
        (0x14, 0, ebx, 1 << 6, |c| c.psb_pmi_preservation.into()),
        (0x14, 0, ebx, 1 << 7, |c| c.event_trace.into()),
        (0x14, 0, ebx, 1 << 8, |c| c.tnt_disable.into()),
        (0x14, 0, ecx, 1 << 0, |c| c.topa.into()),
        (0x14, 0, ecx, 1 << 1, |c| c.topa_multiple.into()),
        (0x14, 0, ecx, 1 << 2, |c| c.single_range.into()),
        (0x14, 0, ecx, 1 << 3, |c| c.transport.into()),
        (0x14, 0, ecx, 1 << 31, |c| c.lip.into()),
        (0x14, 1, eax, 1 << 0, |c| c.address_ranges.into()),
        (0x14, 1, eax, 1 << 16, |c| c.mtc_periods.into()),
        (0x14, 1, ebx, 1 << 0, |c| c.cycle_thresholds.into()),
        (0x14, 1, ebx, 1 << 16, |c| c.psb_frequencies.into()),
        (0x15, 0, eax, 1 << 0, |c| c.crystal.denominator),
        (0x15, 0, ebx, 1 << 0, |c| c.crystal.numerator),
        (0x8000_0008, 0, eax, 1 << 0, |c| c.max_phys_addr.into()),
        (0x8000_0008, 0, eax, 1 << 8, |c| c.max_linear_addr.into()),
    ];
    for (index, (leaf, subleaf, register, bit, _)) in table.into_iter().enumerate() {
        let caps = Capabilities::from_leaves(
            |l, s| {
                let mut words = [0; 4];
                words[ebx] = u32::from(l == 0x07) << 25;
                words[eax] = u32::from((l, s) == (0x14, 0));
                if (l, s) == (leaf, subleaf) {
                    words[register] |= bit;
                }
                let [eax, ebx, ecx, edx] = words;
                CpuidLeaf { eax, ebx, ecx, edx }
            },
            0,
            Signature(0),
        );
        for (other, (.., take)) in table.into_iter().enumerate() {
            // Intel PT as such is there in every case.
            let expected = u32::from(index == other || other == 0);
            assert_eq!(take(&caps), expected, "rows {index} and {other}");
        }
    }
}

#[test]
fn a_leaf_beyond_says_nothing() {
    let caps = Capabilities::default();
    assert_eq!(caps.leaf(0x14, 0).unwrap().eax, 1);
    assert_eq!(caps.leaf(0x14, 2), Some(CpuidLeaf::default()));
    assert_eq!(caps.leaf(0x07, 1), None);
    assert_eq!(caps.leaf(0x0d, 8), None);
    assert_eq!(Capabilities::NONE.leaf(0x14, 0), Some(CpuidLeaf::default()));
    let off = Capabilities {
        supported: false,
        ..caps
    };
    assert_eq!(off.leaf(0x14, 1), Some(CpuidLeaf::default()));
}

#[test]
fn contradictions_are_named() {
    use Inconsistency::*;
    let all = Capabilities::default();
    assert_eq!(all.validate(), Ok(()));
    assert_eq!(Capabilities::NONE.validate(), Ok(()));
    let no_crystal = CrystalRatio {
        numerator: 0,
        denominator: 1,
    };
    #[rustfmt::skip]
    let broken = [
        (Capabilities { supported: false, ..all }, NotSupported),
        (Capabilities { address_ranges: 5, ..all }, AddressRanges(5)),
        (Capabilities { address_ranges: 0, ..all }, FilterWithoutRange),
        (Capabilities { ip_filter: false, ..all }, RangeWithoutFilter),
        (Capabilities { topa: false, ..all }, MultipleWithoutTopa),
        (Capabilities { supported: true, ..Capabilities::NONE }, NoOutput),
        (Capabilities { mtc_periods: 0xfffe, ..all }, NoEncodingZero("MTCFreq")),
        (Capabilities { cycle_thresholds: 0, ..all }, NoEncodingZero("CycThresh")),
        (Capabilities { psb_frequencies: 2, ..all }, NoEncodingZero("PSBFreq")),
        (Capabilities { crystal: no_crystal, ..all }, NoCrystalRatio),
        (Capabilities { max_phys_addr: 31, ..all }, MaxPhysAddr(31)),
        (Capabilities { max_phys_addr: 53, ..all }, MaxPhysAddr(53)),
        (Capabilities { max_linear_addr: 47, ..all }, MaxLinearAddr(47)),
    ];
    for (caps, error) in broken {
        assert_eq!(caps.validate(), Err(error));
    }
    // Encodings of what is not there do not apply.
    let without = Capabilities {
        mtc: false,
        mtc_periods: 2,
        ..all
    };
    assert_eq!(without.validate(), Ok(()));
}

#[test]
fn signatures_are_read_as_family_and_model() {
    for (signature, family, model, excludes) in [
        (0x0003_06d4, 0x6, 0x3d, true),
        (0x0004_0671, 0x6, 0x47, true),
        (0x0004_06e3, 0x6, 0x4e, true),
        (0x0004_06f1, 0x6, 0x4f, true),
        (0x0005_0663, 0x6, 0x56, true),
        (0x0005_06e3, 0x6, 0x5e, true),
        (0x0005_06c9, 0x6, 0x5c, false),
        (0x0009_0672, 0x6, 0x97, false),
        (0x0000_0f4a, 0xf, 0x04, false),
        (0x0080_0f82, 0x17, 0x08, false),
        (0x0003_05d4, 0x5, 0x0d, false),
    ] {
        let signature = Signature(signature);
        assert_eq!(
            (
                signature.display_family(),
                signature.display_model(),
                signature.excludes_lbr()
            ),
            (family, model, excludes)
        );
    }
}

#[test]
fn generations_have_names_and_consistent_capabilities() {
    let mut names = BTreeSet::new();
    for &generation in Generation::ALL {
        let caps = generation.capabilities();
        assert_eq!(caps.validate(), Ok(()), "{generation}");
        assert!(caps.supported && caps.cr3_filter && caps.topa);
        assert!(names.insert(generation.name()));
        assert_eq!(generation.name().parse(), Ok(generation));
        assert_eq!(caps.excludes_lbr, generation.signature().excludes_lbr());
    }
    assert!("pentium".parse::<Generation>().is_err());

    let broadwell = Generation::Broadwell.capabilities();
    assert!(!broadwell.topa_multiple && !broadwell.single_range && !broadwell.mtc);
    assert!(!broadwell.psb_cyc && !broadwell.ip_filter && !broadwell.vmx);
    assert!(broadwell.excludes_lbr && broadwell.address_ranges == 0);

    let skylake = Generation::Skylake.capabilities();
    assert!(skylake.excludes_lbr && skylake.vmx && skylake.single_range && !skylake.lip);
    assert_eq!(
        (skylake.address_ranges, skylake.mtc_periods),
        (2, 0b10_0100_1001)
    );
    assert_eq!((skylake.max_phys_addr, skylake.max_linear_addr), (39, 48));
    assert_eq!(skylake.crystal.tsc(1), Some(92));

    assert!(Generation::GoldmontPlus.capabilities().power_event);
    assert!(Generation::Gracemont.capabilities().event_trace);
    assert!(!Generation::AlderLake.capabilities().lip);
    let server = Generation::SapphireRapids.capabilities();
    assert_eq!((server.max_phys_addr, server.max_linear_addr), (52, 57));
}
