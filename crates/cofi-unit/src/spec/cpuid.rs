//! What a processor's trace unit can do: CPUID leaf 14H (Tables 33-11 and 33-12), 15H and 80000008H, both as
//! [`Capabilities`] and as the words that CPUID returns.

/// TSC frequency divided by core crystal clock frequency: CPUID.15H:EBX / CPUID.15H:EAX.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CrystalRatio {
    /// CPUID.15H:EBX.
    pub numerator: u32,
    /// CPUID.15H:EAX, the denominator; zero counts as one.
    pub denominator: u32,
}

impl CrystalRatio {
    /// The crystal clock (ART) at a TSC value, and the TSC ticks since its last edge (33.8.3.1).
    #[must_use]
    #[inline]
    pub fn art(self, tsc: u64) -> (u64, u64) {
        let numerator = u128::from(self.numerator.max(1));
        let denominator = u128::from(self.denominator.max(1));
        let scaled = u128::from(tsc) * denominator;
        let art = divide(scaled, numerator);
        // The first whole TSC tick at or after the edge.
        let edge = divide(art * numerator + (denominator - 1), denominator);
        (
            art as u64,
            (u128::from(tsc) - edge.min(u128::from(tsc))) as u64,
        )
    }

    /// The first TSC value at which the crystal clock stands at `art`; `None` beyond 64 bits.
    #[must_use]
    pub fn tsc(self, art: u64) -> Option<u64> {
        let numerator = u128::from(self.numerator.max(1));
        let denominator = u128::from(self.denominator.max(1));
        let scaled = u128::from(art) * numerator;
        u64::try_from(divide(scaled + (denominator - 1), denominator)).ok()
    }
}

/// A quotient, by the short way where there is one: it is asked for at every MTC.
#[inline]
fn divide(value: u128, by: u128) -> u128 {
    match (u64::try_from(value), u64::try_from(by)) {
        (Ok(value), Ok(by)) => (value / by).into(),
        _ => value / by,
    }
}

/// The capabilities that software sees in CPUID and that decide which register bits are reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// CPUID.7.0:EBX\[25\]: the processor has Intel PT at all.
    pub supported: bool,
    /// CPUID.14H.0:EBX\[0\]: CR3 filtering.
    pub cr3_filter: bool,
    /// EBX\[1\]: configurable PSB frequency and cycle-accurate mode.
    pub psb_cyc: bool,
    /// EBX\[2\]: IP filtering, TraceStop, and registers that keep their values across a warm reset.
    pub ip_filter: bool,
    /// EBX\[3\]: MTC packets.
    pub mtc: bool,
    /// EBX\[4\]: PTWRITE.
    pub ptwrite: bool,
    /// EBX\[5\]: Power Event Trace.
    pub power_event: bool,
    /// EBX\[6\]: PSB and PMI preservation.
    pub psb_pmi_preservation: bool,
    /// EBX\[7\]: Event Trace.
    pub event_trace: bool,
    /// EBX\[8\]: TNT disable.
    pub tnt_disable: bool,
    /// ECX\[0\]: ToPA output.
    pub topa: bool,
    /// ECX\[1\]: ToPA tables may have more than one output entry.
    pub topa_multiple: bool,
    /// ECX\[2\]: single-range output.
    pub single_range: bool,
    /// ECX\[3\]: output to the trace transport subsystem.
    pub transport: bool,
    /// ECX\[31\]: IP payloads are linear addresses, with the base of CS.
    pub lip: bool,
    /// CPUID.14H.1:EAX\[2:0\]: number of address ranges, 0 to 4.
    pub address_ranges: u8,
    /// EAX\[31:16\]: bitmap of the MTCFreq encodings.
    pub mtc_periods: u16,
    /// EBX\[15:0\]: bitmap of the CycThresh encodings.
    pub cycle_thresholds: u16,
    /// EBX\[31:16\]: bitmap of the PSBFreq encodings.
    pub psb_frequencies: u16,
    /// CPUID.80000008H:EAX\[7:0\]: MAXPHYADDR.
    pub max_phys_addr: u8,
    /// CPUID.80000008H:EAX\[15:8\]: the width of linear addresses, 32, 48 or 57.
    pub max_linear_addr: u8,
    /// CPUID.15H.
    pub crystal: CrystalRatio,
    /// IA32_VMX_MISC\[14\]: Intel PT can be used in VMX operation.
    pub vmx: bool,
    /// Intel PT and LBRs exclude each other (33.3.1.2).
    pub excludes_lbr: bool,
}

/// What CPUID returns for one leaf and sub-leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuidLeaf {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// Family, model and stepping: CPUID.01H:EAX.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Signature(pub u32);

impl Signature {
    /// DisplayFamily.
    #[must_use]
    pub const fn display_family(self) -> u32 {
        let family = self.0 >> 8 & 0xf;
        if family == 0xf {
            family + (self.0 >> 20 & 0xff)
        } else {
            family
        }
    }

    /// DisplayModel.
    #[must_use]
    pub const fn display_model(self) -> u32 {
        let model = self.0 >> 4 & 0xf;
        if matches!(self.0 >> 8 & 0xf, 0x6 | 0xf) {
            model | (self.0 >> 16 & 0xf) << 4
        } else {
            model
        }
    }

    /// Whether the use of Intel PT and of LBRs exclude each other on this processor: the list of 33.3.1.2.
    #[must_use]
    pub const fn excludes_lbr(self) -> bool {
        self.display_family() == 0x6
            && matches!(
                self.display_model(),
                0x3d | 0x47 | 0x4e | 0x4f | 0x56 | 0x5e
            )
    }
}

/// A field of CPUID that holds a capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuidField {
    /// The capability: the name of its field in [`Capabilities`].
    pub name: &'static str,
    /// The leaf.
    pub leaf: u32,
    /// The sub-leaf.
    pub subleaf: u32,
    /// The field's bits, with all others zero.
    pub mask: CpuidLeaf,
}

macro_rules! from_bits {
    ($bits:expr, bool) => {
        $bits != 0
    };
    ($bits:expr, $ty:ident) => {
        $bits as $ty
    };
}

macro_rules! cpuid_fields {
    ($($leaf:literal, $subleaf:literal, $register:ident $low:literal..$high:literal: $first:ident $(.$rest:ident)? $ty:ident;)*) => {
        impl Capabilities {
            /// Where each capability stands in CPUID. All other bits of these leaves are reserved or say nothing about
            /// Intel PT, but for the number of sub-leaves in CPUID.14H.0:EAX, which follows from the rest.
            pub const CPUID: &[CpuidField] = &[$(CpuidField {
                name: concat!(stringify!($first) $(, ".", stringify!($rest))?),
                leaf: $leaf,
                subleaf: $subleaf,
                mask: CpuidLeaf {
                    $register: (u32::MAX >> (32 - ($high - $low))) << $low,
                    ..CpuidLeaf { eax: 0, ebx: 0, ecx: 0, edx: 0 }
                },
            }),*];

            /// The capabilities of this leaf as its bits.
            pub(crate) fn encode(&self, leaf: u32, subleaf: u32) -> CpuidLeaf {
                let mut words = CpuidLeaf::default();
                $(if (leaf, subleaf) == ($leaf, $subleaf) {
                    words.$register |= (self.$first$(.$rest)? as u32 & u32::MAX >> (32 - ($high - $low))) << $low;
                })*
                words
            }

            /// Takes over the capabilities that this leaf holds.
            pub(crate) fn decode(&mut self, leaf: u32, subleaf: u32, words: CpuidLeaf) {
                $(if (leaf, subleaf) == ($leaf, $subleaf) {
                    self.$first$(.$rest)? = from_bits!(words.$register >> $low & u32::MAX >> (32 - ($high - $low)), $ty);
                })*
            }
        }
    };
}

cpuid_fields! {
    0x07, 0, ebx 25..26: supported bool;
    0x14, 0, ebx 0..1: cr3_filter bool;
    0x14, 0, ebx 1..2: psb_cyc bool;
    0x14, 0, ebx 2..3: ip_filter bool;
    0x14, 0, ebx 3..4: mtc bool;
    0x14, 0, ebx 4..5: ptwrite bool;
    0x14, 0, ebx 5..6: power_event bool;
    0x14, 0, ebx 6..7: psb_pmi_preservation bool;
    0x14, 0, ebx 7..8: event_trace bool;
    0x14, 0, ebx 8..9: tnt_disable bool;
    0x14, 0, ecx 0..1: topa bool;
    0x14, 0, ecx 1..2: topa_multiple bool;
    0x14, 0, ecx 2..3: single_range bool;
    0x14, 0, ecx 3..4: transport bool;
    0x14, 0, ecx 31..32: lip bool;
    0x14, 1, eax 0..3: address_ranges u8;
    0x14, 1, eax 16..32: mtc_periods u16;
    0x14, 1, ebx 0..16: cycle_thresholds u16;
    0x14, 1, ebx 16..32: psb_frequencies u16;
    0x15, 0, eax 0..32: crystal.denominator u32;
    0x15, 0, ebx 0..32: crystal.numerator u32;
    0x8000_0008, 0, eax 0..8: max_phys_addr u8;
    0x8000_0008, 0, eax 8..16: max_linear_addr u8;
}

/// Why capabilities, written by hand, are those of no processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Inconsistency {
    /// Something of leaf 14H without Intel PT.
    #[error("capabilities of Intel PT without CPUID.7.0:EBX[25] (33.3.1)")]
    NotSupported,
    /// More address ranges than there are registers.
    #[error("{0} address ranges, and there are registers for four (33.2.8.5, Table 33-12)")]
    AddressRanges(u8),
    /// IP filtering, and nothing to filter by.
    #[error("IP filtering without an address range (Table 33-11, EBX[2])")]
    FilterWithoutRange,
    /// Address ranges, and no IP filtering that would use them.
    #[error("address ranges without IP filtering (Table 33-11, EBX[2])")]
    RangeWithoutFilter,
    /// Tables of several entries, and no tables.
    #[error("ToPA tables of several entries without ToPA (Table 33-11, ECX[1])")]
    MultipleWithoutTopa,
    /// Packets that can go nowhere.
    #[error(
        "no output scheme: neither ToPA nor single-range output nor transport (Table 33-11, ECX)"
    )]
    NoOutput,
    /// A field of IA32_RTIT_CTL could not hold the 0 that it has at reset.
    #[error(
        "encoding 0, the value at reset, is not among the supported ones of {0} (Table 33-6, Table 33-12)"
    )]
    NoEncodingZero(&'static str),
    /// MTC packets count a clock whose relation to the TSC is unknown.
    #[error("MTC packets without the crystal clock's ratio in CPUID.15H (33.8.3)")]
    NoCrystalRatio,
    /// No such MAXPHYADDR.
    #[error("physical addresses of {0} bits: 32 to 52 are possible (CPUID.80000008H:EAX[7:0])")]
    MaxPhysAddr(u8),
    /// No such width.
    #[error("linear addresses of {0} bits: 32, 48 and 57 are possible (CPUID.80000008H:EAX[15:8])")]
    MaxLinearAddr(u8),
}

impl Capabilities {
    /// A processor without Intel PT.
    pub const NONE: Self = Self {
        supported: false,
        cr3_filter: false,
        psb_cyc: false,
        ip_filter: false,
        mtc: false,
        ptwrite: false,
        power_event: false,
        psb_pmi_preservation: false,
        event_trace: false,
        tnt_disable: false,
        topa: false,
        topa_multiple: false,
        single_range: false,
        transport: false,
        lip: false,
        address_ranges: 0,
        mtc_periods: 0,
        cycle_thresholds: 0,
        psb_frequencies: 0,
        max_phys_addr: 36,
        max_linear_addr: 48,
        crystal: CrystalRatio {
            numerator: 0,
            denominator: 0,
        },
        vmx: false,
        excludes_lbr: false,
    };

    /// Everything that the chapter has, with a 25 MHz crystal under a 2 GHz TSC.
    pub const ALL: Self = Self {
        supported: true,
        cr3_filter: true,
        psb_cyc: true,
        ip_filter: true,
        mtc: true,
        ptwrite: true,
        power_event: true,
        psb_pmi_preservation: true,
        event_trace: true,
        tnt_disable: true,
        topa: true,
        topa_multiple: true,
        single_range: true,
        transport: true,
        lip: true,
        address_ranges: 4,
        mtc_periods: 0xffff,
        cycle_thresholds: 0xffff,
        psb_frequencies: 0xffff,
        max_phys_addr: 52,
        max_linear_addr: 48,
        crystal: CrystalRatio {
            numerator: 80,
            denominator: 1,
        },
        vmx: true,
        excludes_lbr: false,
    };

    /// What software finds in this leaf of CPUID, as far as Intel PT goes; `None` for leaves that say nothing of it.
    ///
    /// - 07H.0: EBX\[25\] only; whatever else the processor has there is left zero.
    /// - 14H: all of it. Sub-leaf 1 exists (EAX of sub-leaf 0 is 1) where any of its bits is set. Sub-leaves beyond are
    ///   zero, and so is all of the leaf on a processor without Intel PT.
    /// - 15H: EAX and EBX. ECX, the crystal's frequency, concerns no packet and is zero.
    /// - 80000008H: EAX\[15:0\].
    ///
    /// Two capabilities stand elsewhere: [`Capabilities::vmx`] in IA32_VMX_MISC, [`Capabilities::excludes_lbr`] in the
    /// family and model.
    #[must_use]
    pub fn leaf(&self, leaf: u32, subleaf: u32) -> Option<CpuidLeaf> {
        match leaf {
            0x14 if !self.supported => Some(CpuidLeaf::default()),
            0x14 => {
                let mut words = self.encode(leaf, subleaf);
                if subleaf == 0 {
                    words.eax = (self.encode(leaf, 1) != CpuidLeaf::default()).into();
                }
                Some(words)
            }
            // These have one sub-leaf that counts; 15H and 80000008H do not look at ECX.
            0x07 => (subleaf == 0).then(|| self.encode(leaf, 0)),
            0x15 | 0x8000_0008 => Some(self.encode(leaf, 0)),
            _ => None,
        }
    }

    /// The capabilities of a processor whose CPUID is `read`, called with leaf and sub-leaf. Reserved bits are ignored.
    /// `read` returns zeros for leaves that the processor does not have.
    ///
    /// `vmx_misc` is IA32_VMX_MISC (zero on a processor without VMX), whose bit 14 becomes [`Capabilities::vmx`];
    /// [`Capabilities::excludes_lbr`] follows from `signature`.
    #[must_use]
    pub fn from_leaves(
        mut read: impl FnMut(u32, u32) -> CpuidLeaf,
        vmx_misc: u64,
        signature: Signature,
    ) -> Self {
        let mut caps = Self {
            vmx: vmx_misc >> 14 & 1 != 0,
            excludes_lbr: signature.excludes_lbr(),
            ..Self::NONE
        };
        for leaf in [0x07, 0x15, 0x8000_0008] {
            caps.decode(leaf, 0, read(leaf, 0));
        }
        if caps.supported {
            let main = read(0x14, 0);
            caps.decode(0x14, 0, main);
            if main.eax != 0 {
                caps.decode(0x14, 1, read(0x14, 1));
            }
        }
        caps
    }

    /// Whether there can be a processor with these capabilities.
    ///
    /// Encodings of a field that the processor lacks are no contradiction: they do not apply (Table 33-12).
    ///
    /// # Errors
    /// The first contradiction.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        use Inconsistency::*;
        let leaf_14 = [0, 1].map(|subleaf| self.encode(0x14, subleaf));
        let checks = [
            (
                self.supported || leaf_14 == [CpuidLeaf::default(); 2],
                NotSupported,
            ),
            (self.address_ranges <= 4, AddressRanges(self.address_ranges)),
            (
                !self.ip_filter || self.address_ranges > 0,
                FilterWithoutRange,
            ),
            (
                self.ip_filter || self.address_ranges == 0,
                RangeWithoutFilter,
            ),
            (self.topa || !self.topa_multiple, MultipleWithoutTopa),
            (
                !self.supported || self.topa || self.single_range || self.transport,
                NoOutput,
            ),
            (
                !self.mtc || self.mtc_periods & 1 != 0,
                NoEncodingZero("MTCFreq"),
            ),
            (
                !self.psb_cyc || self.cycle_thresholds & 1 != 0,
                NoEncodingZero("CycThresh"),
            ),
            (
                !self.psb_cyc || self.psb_frequencies & 1 != 0,
                NoEncodingZero("PSBFreq"),
            ),
            (
                !self.mtc || self.crystal.numerator != 0 && self.crystal.denominator != 0,
                NoCrystalRatio,
            ),
            (
                (32..=52).contains(&self.max_phys_addr),
                MaxPhysAddr(self.max_phys_addr),
            ),
            (
                matches!(self.max_linear_addr, 32 | 48 | 57),
                MaxLinearAddr(self.max_linear_addr),
            ),
        ];
        checks
            .into_iter()
            .find(|(holds, _)| !holds)
            .map_or(Ok(()), |(_, broken)| Err(broken))
    }
}

impl Default for Capabilities {
    /// [`Capabilities::ALL`].
    fn default() -> Self {
        Self::ALL
    }
}
