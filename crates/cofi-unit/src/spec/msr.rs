//! The trace configuration MSRs (33.2.8), each declared once: address, section, what it takes to be there, and every
//! field with its bits, its access and what it takes to be there. What no field covers is reserved. Every register is
//! zero after reset but for bits forced to 1.

use super::Capabilities;
use super::fields::accessors;

/// How software may access a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read and write.
    Rw,
    /// Written by the processor; what software writes there is ignored.
    ReadOnly,
    /// Always 1; what software writes there is ignored.
    ForcedOne,
}

/// What else is asked of the bits of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Nothing.
    Bits,
    /// A physical address, at its place in the register: bits from MAXPHYADDR on are reserved (33.2.8.7).
    PhysicalAddress,
    /// A linear address in canonical form (33.2.8.5).
    LinearAddress,
}

/// One field of a register.
#[derive(Clone, Copy)]
pub struct FieldSpec {
    /// The manual's name.
    pub name: &'static str,
    /// Its lowest bit.
    pub low: u32,
    /// The bit after its highest.
    pub high: u32,
    /// Who writes it.
    pub access: Access,
    /// What is asked of its bits.
    pub form: Form,
    /// Whether a processor has it; otherwise its bits are reserved.
    pub present: fn(&Capabilities) -> bool,
    /// The legal encodings as a bitmap, for fields of up to four bits; all ones where every encoding is legal. They apply
    /// where the field is present.
    pub encodings: fn(&Capabilities) -> u16,
}

impl FieldSpec {
    /// The field's bits.
    #[must_use]
    pub const fn mask(&self) -> u64 {
        (u64::MAX >> (64 - (self.high - self.low))) << self.low
    }

    /// Whether `value`, a value of the whole register, has a legal encoding in this field, on a processor that has it.
    #[must_use]
    pub fn is_legal(&self, caps: &Capabilities, value: u64) -> bool {
        let bits = (value & self.mask()) >> self.low;
        self.high - self.low > 4 || (self.encodings)(caps) >> bits & 1 != 0
    }
}

/// One register.
#[derive(Clone, Copy)]
pub struct RegisterSpec {
    /// The manual's name.
    pub name: &'static str,
    /// The MSR address.
    pub address: u32,
    /// The section that defines it.
    pub section: &'static str,
    /// Whether a processor with Intel PT has it; otherwise every access is a #GP.
    pub present: fn(&Capabilities) -> bool,
    /// Its fields.
    pub fields: &'static [FieldSpec],
}

impl RegisterSpec {
    /// The value after reset: bits that are forced to 1.
    #[must_use]
    pub fn reset(&self) -> u64 {
        self.fields
            .iter()
            .filter(|field| field.access == Access::ForcedOne)
            .fold(0, |value, field| value | field.mask())
    }
}

const fn always(_: &Capabilities) -> bool {
    true
}
const fn has_range(caps: &Capabilities, count: u8) -> bool {
    caps.ip_filter && caps.address_ranges >= count
}
const fn has_memory_output(caps: &Capabilities) -> bool {
    caps.topa || caps.single_range
}
const fn any(_: &Capabilities) -> u16 {
    u16::MAX
}

macro_rules! or {
    ($default:expr $(,)?) => {
        $default
    };
    ($default:expr, $given:expr) => {
        $given
    };
}

macro_rules! registers {
    ($(
        $(#[$doc:meta])*
        $Type:ident $CONST:ident $name:literal $address:literal $section:literal $(if $exists:expr;)? {
            $( $(#[$fdoc:meta])* $field:ident $with:ident $fname:literal $low:literal..$high:literal $ty:ident $access:ident
               $(as $form:ident)? $(if $present:expr)? $(, encodings $encodings:expr)? ; )*
        }
    )*) => {
        $(
            #[doc = concat!("Address of ", $name, " (", $section, ").")]
            pub const $CONST: u32 = $address;

            $(#[$doc])* #[doc = concat!("\n\n", $name, ", section ", $section, ".")]
            #[derive(Clone, Copy, PartialEq, Eq, Default)]
            pub struct $Type(pub u64);

            impl $Type {
                /// The register's declaration.
                pub const SPEC: RegisterSpec = RegisterSpec {
                    name: $name,
                    address: $address,
                    section: $section,
                    present: or!(always, $($exists)?),
                    fields: &[$( FieldSpec {
                        name: $fname, low: $low, high: $high, access: Access::$access,
                        form: or!(Form::Bits, $(Form::$form)?),
                        present: or!(always, $($present)?),
                        encodings: or!(any, $($encodings)?),
                    } ),*],
                };
                accessors! {
                    $( $(#[$fdoc])* $field $with $fname $low $high $ty; )*
                }
            }

            impl core::fmt::Debug for $Type {
                fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    write!(f, concat!($name, " = {:#x}"), self.0)
                }
            }
        )*
    };
}

registers! {
    /// The primary enable and control register.
    Ctl IA32_RTIT_CTL "IA32_RTIT_CTL" 0x570 "33.2.8.2" {
        /// Tracing is enabled.
        trace_en with_trace_en "TraceEn" 0..1 bool Rw;
        /// CYC packets.
        cyc_en with_cyc_en "CYCEn" 1..2 bool Rw if |c| c.psb_cyc;
        /// Trace CPL 0.
        os with_os "OS" 2..3 bool Rw;
        /// Trace CPL > 0.
        user with_user "User" 3..4 bool Rw;
        /// Power Event Trace packets.
        pwr_evt_en with_pwr_evt_en "PwrEvtEn" 4..5 bool Rw if |c| c.power_event;
        /// A FUP behind every PTW.
        fup_on_ptw with_fup_on_ptw "FUPonPTW" 5..6 bool Rw if |c| c.ptwrite;
        /// Output goes to the trace transport subsystem.
        fabric_en with_fabric_en "FabricEn" 6..7 bool Rw if |c| c.transport;
        /// Trace only where CR3 matches IA32_RTIT_CR3_MATCH.
        cr3_filter with_cr3_filter "CR3Filter" 7..8 bool Rw if |c| c.cr3_filter;
        /// Output goes by a Table of Physical Addresses.
        topa with_topa "ToPA" 8..9 bool Rw if |c| c.topa;
        /// MTC packets.
        mtc_en with_mtc_en "MTCEn" 9..10 bool Rw if |c| c.mtc;
        /// TSC packets.
        tsc_en with_tsc_en "TSCEn" 10..11 bool Rw;
        /// No RET compression.
        dis_retc with_dis_retc "DisRETC" 11..12 bool Rw;
        /// PTWRITE packets.
        ptw_en with_ptw_en "PTWEn" 12..13 bool Rw if |c| c.ptwrite;
        /// COFI-based packets.
        branch_en with_branch_en "BranchEn" 13..14 bool Rw;
        /// The ART bit whose toggling sends an MTC.
        mtc_freq with_mtc_freq "MTCFreq" 14..18 u64 Rw if |c| c.mtc, encodings |c| c.mtc_periods;
        /// CYC packets at most every 2^(n-1) cycles; 0: every cycle.
        cyc_thresh with_cyc_thresh "CycThresh" 19..23 u64 Rw if |c| c.psb_cyc, encodings |c| c.cycle_thresholds;
        /// A PSB every 2^(n+11) bytes.
        psb_freq with_psb_freq "PSBFreq" 24..28 u64 Rw if |c| c.psb_cyc, encodings |c| c.psb_frequencies;
        /// Event Trace packets.
        event_en with_event_en "EventEn" 31..32 bool Rw if |c| c.event_trace;
        /// What the first address range does.
        addr0_cfg with_addr0_cfg "ADDR0_CFG" 32..36 u64 Rw if |c| has_range(c, 1), encodings |_| 0b111;
        /// What the second address range does.
        addr1_cfg with_addr1_cfg "ADDR1_CFG" 36..40 u64 Rw if |c| has_range(c, 2), encodings |_| 0b111;
        /// What the third address range does.
        addr2_cfg with_addr2_cfg "ADDR2_CFG" 40..44 u64 Rw if |c| has_range(c, 3), encodings |_| 0b111;
        /// What the fourth address range does.
        addr3_cfg with_addr3_cfg "ADDR3_CFG" 44..48 u64 Rw if |c| has_range(c, 4), encodings |_| 0b111;
        /// No TNT packets.
        dis_tnt with_dis_tnt "DisTNT" 55..56 bool Rw if |c| c.tnt_disable;
        /// PendPSB and PendTopaPMI are used.
        inject with_inject "InjectPsbPmiOnEnable" 56..57 bool Rw if |c| c.psb_pmi_preservation;
    }
    /// What the unit is doing.
    Status IA32_RTIT_STATUS "IA32_RTIT_STATUS" 0x571 "33.2.8.4" {
        /// Tracing is allowed for the current IP.
        filter_en with_filter_en "FilterEn" 0..1 bool ReadOnly;
        /// Tracing is allowed for the current context.
        context_en with_context_en "ContextEn" 1..2 bool ReadOnly;
        /// Tracing is active.
        trigger_en with_trigger_en "TriggerEn" 2..3 bool ReadOnly;
        /// An operational error was met (33.3.10).
        error with_error "Error" 4..5 bool Rw;
        /// A stop condition was met.
        stopped with_stopped "Stopped" 5..6 bool Rw;
        /// A PSB+ is due that could not be sent.
        pend_psb with_pend_psb "PendPSB" 6..7 bool Rw if |c| c.psb_pmi_preservation;
        /// A ToPA PMI has not been handled.
        pend_topa_pmi with_pend_topa_pmi "PendTopaPMI" 7..8 bool Rw if |c| c.psb_pmi_preservation;
        /// Packet bytes sent since the last PSB.
        packet_byte_cnt with_packet_byte_cnt "PacketByteCnt" 32..49 u64 Rw if |c| c.psb_cyc;
    }
    /// The CR3 value that CR3 filtering lets through.
    Cr3Match IA32_RTIT_CR3_MATCH "IA32_RTIT_CR3_MATCH" 0x572 "33.2.8.6" if |c| c.cr3_filter; {
        /// Bits 63:5 of CR3.
        cr3 with_cr3 "CR3 address" 5..64 u64 Rw;
    }
    /// One end of an address range, A or B; the registers of all ranges are alike ([`ADDRESS_RANGES`]).
    AddressRange IA32_RTIT_ADDR0_A "IA32_RTIT_ADDR0_A" 0x580 "33.2.8.5" if |c| has_range(c, 1); {
        /// The address.
        address with_address "Address" 0..64 u64 Rw as LinearAddress;
    }
    /// Where output goes.
    OutputBase IA32_RTIT_OUTPUT_BASE "IA32_RTIT_OUTPUT_BASE" 0x560 "33.2.8.7" if has_memory_output; {
        /// The region's physical address, divided by 128.
        base with_base "BasePhysAddr" 7..64 u64 Rw as PhysicalAddress;
    }
    /// How large the output region is, and where the next byte goes.
    OutputMaskPtrs IA32_RTIT_OUTPUT_MASK_PTRS "IA32_RTIT_OUTPUT_MASK_PTRS" 0x561 "33.2.8.8" if has_memory_output; {
        /// The mask's lower seven bits.
        lower_mask with_lower_mask "LowerMask" 0..7 u64 ForcedOne;
        /// The mask's bits 31:7.
        mask with_mask "MaskOrTableOffset" 7..32 u64 Rw;
        /// Offset of the next byte in the region.
        offset with_offset "OutputOffset" 32..64 u64 Rw;
    }
}

macro_rules! address_ranges {
    ($($CONST:ident $name:literal $address:literal $count:literal;)*) => {
        $(
            #[doc = concat!("Address of ", $name, " (33.2.8.5).")]
            pub const $CONST: u32 = $address;
        )*

        /// The registers of the address ranges: A and B of each, all with the fields of [`AddressRange`].
        pub const ADDRESS_RANGES: [RegisterSpec; 8] = [
            AddressRange::SPEC,
            $(RegisterSpec {
                name: $name,
                address: $address,
                present: |caps| has_range(caps, $count),
                ..AddressRange::SPEC
            }),*
        ];
    };
}

address_ranges! {
    IA32_RTIT_ADDR0_B "IA32_RTIT_ADDR0_B" 0x581 1;
    IA32_RTIT_ADDR1_A "IA32_RTIT_ADDR1_A" 0x582 2;
    IA32_RTIT_ADDR1_B "IA32_RTIT_ADDR1_B" 0x583 2;
    IA32_RTIT_ADDR2_A "IA32_RTIT_ADDR2_A" 0x584 3;
    IA32_RTIT_ADDR2_B "IA32_RTIT_ADDR2_B" 0x585 3;
    IA32_RTIT_ADDR3_A "IA32_RTIT_ADDR3_A" 0x586 4;
    IA32_RTIT_ADDR3_B "IA32_RTIT_ADDR3_B" 0x587 4;
}

const fn all() -> [RegisterSpec; 13] {
    let mut all = [Ctl::SPEC; 13];
    all[0] = OutputBase::SPEC;
    all[1] = OutputMaskPtrs::SPEC;
    all[3] = Status::SPEC;
    all[4] = Cr3Match::SPEC;
    let mut range = 0;
    while range < ADDRESS_RANGES.len() {
        all[5 + range] = ADDRESS_RANGES[range];
        range += 1;
    }
    all
}

/// Every register, by address.
pub const ALL: &[RegisterSpec] = &all();
