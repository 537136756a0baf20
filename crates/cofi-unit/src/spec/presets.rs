//! Processor generations by name, each as the CPUID words that a processor of it was seen to return.
//!
//! The sources are dumps that the projects libcpuid (its directory `tests/intel`), InstLatx64 and rust-cpuid publish; each
//! generation names the processor. What no dump shows is marked as inferred. Firmware and microcode differ: hybrid
//! processors in particular report less on one kind of core than that kind has by itself.

use super::cpuid::{Capabilities, CpuidLeaf, Signature};

/// What one processor returned.
#[derive(Clone, Copy)]
struct Dump {
    /// CPUID.01H:EAX.
    signature: u32,
    /// CPUID.14H.0: EBX and ECX.
    main: [u32; 2],
    /// CPUID.14H.1: EAX and EBX.
    sub_leaf: [u32; 2],
    /// CPUID.15H: EAX and EBX.
    crystal: [u32; 2],
    /// CPUID.80000008H: EAX.
    address_sizes: u32,
    /// IA32_VMX_MISC.
    vmx_misc: u64,
}

/// IA32_VMX_MISC where no dump shows it: bit 14 alone, "Intel PT can be used in VMX operation".
const VMX_INFERRED: u64 = 1 << 14;

impl Dump {
    fn leaf(&self, leaf: u32, subleaf: u32) -> CpuidLeaf {
        let [eax, ebx, ecx] = match (leaf, subleaf) {
            (0x07, 0) => [0, 1 << 25, 0],
            (0x14, 0) => [(self.sub_leaf != [0; 2]).into(), self.main[0], self.main[1]],
            (0x14, 1) => [self.sub_leaf[0], self.sub_leaf[1], 0],
            (0x15, _) => [self.crystal[0], self.crystal[1], 0],
            (0x8000_0008, _) => [self.address_sizes, 0, 0],
            _ => [0; 3],
        };
        CpuidLeaf {
            eax,
            ebx,
            ecx,
            edx: 0,
        }
    }
}

/// No generation has this name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no such processor generation")]
pub struct UnknownGeneration;

macro_rules! generations {
    ($($(#[$doc:meta])* $Variant:ident $name:literal: $signature:literal, $main:expr, $sub_leaf:expr, $crystal:expr,
       $address_sizes:literal, $vmx_misc:expr;)*) => {
        /// A processor generation with Intel PT. The ratio of the crystal clock is that of one model of it.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Generation {
            $($(#[$doc])* $Variant),*
        }

        impl Generation {
            /// All of them, oldest first for each kind of core.
            pub const ALL: &[Self] = &[$(Self::$Variant),*];

            /// Its name: lower case, words joined by `-`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name),*
                }
            }

            const fn dump(self) -> Dump {
                match self {
                    $(Self::$Variant => Dump {
                        signature: $signature,
                        main: $main,
                        sub_leaf: $sub_leaf,
                        crystal: $crystal,
                        address_sizes: $address_sizes,
                        vmx_misc: $vmx_misc,
                    }),*
                }
            }
        }
    };
}

generations! {
    /// 5th generation Core. From libcpuid's Core i7-6950X (Broadwell-E): CR3 filtering, ToPA tables of one entry, nothing
    /// else; there is no leaf 15H. Inferred: IA32_VMX_MISC\[14\] is 0, as 33.2.9.4 has it for the first implementations.
    Broadwell "broadwell":
        0x0004_06f1, [0x01, 0x01], [0, 0], [0, 0], 0x302e, 0;
    /// 6th generation Core; Coffee Lake reports the same (libipt, issue 67). All from InstLatx64's Core i5-6400T, with
    /// IA32_VMX_MISC.
    Skylake "skylake":
        0x0005_06e3, [0x0f, 0x07], [0x0249_0002, 0x003f_3fff], [2, 0xb8], 0x3027, 0x7004_c1e7;
    /// Xeon Scalable, 1st and 2nd generation. From Cascade Lake: libcpuid's Xeon Platinum 8269C, whose sub-leaf 1 is not
    /// shown and taken from rust-cpuid's Xeon Gold 6252. Inferred: that Skylake-SP equals Cascade Lake; IA32_VMX_MISC.
    SkylakeServer "skylake-server":
        0x0005_0656, [0x0f, 0x07], [0x0249_0002, 0x003f_3fff], [2, 0xc8], 0x302e, VMX_INFERRED;
    /// 10th generation Core (Sunny Cove). From libcpuid's Core i3-1005G1. Inferred: IA32_VMX_MISC.
    IceLake "ice-lake":
        0x0007_06e5, [0x0f, 0x07], [0x0249_0002, 0x003f_1fff], [2, 0x3e], 0x3027, VMX_INFERRED;
    /// Xeon Scalable, 3rd generation. From libcpuid's Xeon D-1718T, under a hypervisor that passes these leaves on; QEMU's
    /// constants for Ice Lake agree. Inferred: IA32_VMX_MISC.
    IceLakeServer "ice-lake-server":
        0x0006_06c1, [0x0f, 0x07], [0x0249_0002, 0x003f_1fff], [2, 0xd0], 0x392e, VMX_INFERRED;
    /// 11th generation Core, desktop (Cypress Cove). From libcpuid's Core i7-11700KF. Inferred: IA32_VMX_MISC.
    RocketLake "rocket-lake":
        0x000a_0671, [0x0f, 0x07], [0x0249_0002, 0x003f_1fff], [2, 0x12c], 0x3027, VMX_INFERRED;
    /// 11th generation Core, mobile (Willow Cove). From libcpuid's Core i5-1135G7. Inferred: IA32_VMX_MISC.
    TigerLake "tiger-lake":
        0x0008_06c1, [0x4f, 0x07], [0x0249_0002, 0x003f_1fff], [2, 0x7e], 0x3027, VMX_INFERRED;
    /// 12th generation Core, a performance core (Golden Cove). From libcpuid's Core i9-12900K. Inferred: IA32_VMX_MISC.
    AlderLake "alder-lake":
        0x0009_0672, [0x5f, 0x07], [0x0249_0002, 0x003f_003f], [2, 0xa6], 0x302e, VMX_INFERRED;
    /// 13th generation Core, a performance core (Raptor Cove). From libcpuid's Core i7-13700K. Inferred: IA32_VMX_MISC.
    RaptorLake "raptor-lake":
        0x000b_0671, [0x5f, 0x07], [0x0249_0002, 0x003f_003f], [2, 0xb2], 0x302e, VMX_INFERRED;
    /// Xeon Scalable, 4th generation (Golden Cove). From libcpuid's Xeon w7-2475X. Inferred: IA32_VMX_MISC.
    SapphireRapids "sapphire-rapids":
        0x0008_06f8, [0x5f, 0x07], [0x0249_0002, 0x003f_003f], [2, 0xd8], 0x3934, VMX_INFERRED;
    /// Core Ultra 200V, a performance core (Lion Cove). From libcpuid's Core Ultra 9 288V. Inferred: IA32_VMX_MISC.
    LunarLake "lunar-lake":
        0x000b_06d1, [0x015f, 0x07], [0x0249_0002, 0x003f_003f], [2, 0xac], 0x302a, VMX_INFERRED;
    /// Apollo Lake: the first with IP payloads that hold linear addresses. All from InstLatx64's Pentium N4200, with
    /// IA32_VMX_MISC.
    Goldmont "goldmont":
        0x0005_06c9, [0x0f, 0x8000_0007], [0x0249_0002, 0x003f_ffff], [3, 0xab], 0x3027, 0x6004_c1e7;
    /// Gemini Lake: the first with PTWRITE and Power Event Trace. All from InstLatx64's Pentium Silver N5030, with
    /// IA32_VMX_MISC.
    GoldmontPlus "goldmont-plus":
        0x0007_06a8, [0x3f, 0x8000_0007], [0x0249_0002, 0x003f_ffff], [3, 0xab], 0x3027, 0x6004_c1e7;
    /// Elkhart Lake. All from InstLatx64's Celeron J6412, with IA32_VMX_MISC. Lakefield, which is hybrid, reports less.
    Tremont "tremont":
        0x0009_0661, [0x7f, 0x8000_0007], [0x0249_0002, 0x003f_ffff], [2, 0x68], 0x3027, 0x7004_c1e7;
    /// Alder Lake-N: everything but output to the transport subsystem. From libcpuid's N95. Inferred: IA32_VMX_MISC. The
    /// efficiency cores of hybrid Alder Lakes report less: EBX is 5FH, and fewer cycle thresholds.
    Gracemont "gracemont":
        0x000b_06e0, [0x01ff, 0x8000_0007], [0x0249_0002, 0x003f_ffff], [2, 0x58], 0x3027, VMX_INFERRED;
}

impl Generation {
    /// The processor whose CPUID the capabilities were taken from.
    #[must_use]
    pub const fn signature(self) -> Signature {
        Signature(self.dump().signature)
    }

    /// What processors of this generation can do.
    #[must_use]
    pub fn capabilities(self) -> Capabilities {
        let dump = self.dump();
        Capabilities::from_leaves(
            |leaf, subleaf| dump.leaf(leaf, subleaf),
            dump.vmx_misc,
            self.signature(),
        )
    }
}

impl core::fmt::Display for Generation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

impl core::str::FromStr for Generation {
    type Err = UnknownGeneration;

    fn from_str(name: &str) -> Result<Self, UnknownGeneration> {
        Self::ALL
            .iter()
            .copied()
            .find(|generation| generation.name() == name)
            .ok_or(UnknownGeneration)
    }
}
