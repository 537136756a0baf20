//! The RTIT registers (3.3), each declared once: address, section, reset value, and every field with its bits and its access. What no
//! field covers is reserved.

use crate::spec::fields::accessors;

/// How software may access a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read and write.
    Rw,
    /// Written by the processor; what software writes there is ignored.
    ReadOnly,
    /// Bits 63:48 of an address: they read as bit 47, and what software writes there is ignored.
    SignExtension,
    /// Reserved as 1: a write that would clear a bit faults.
    ReservedOne,
}

/// One field of a register.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// The reference's name.
    pub name: &'static str,
    /// Its lowest bit.
    pub low: u32,
    /// The bit after its highest.
    pub high: u32,
    /// Who writes it.
    pub access: Access,
}

impl FieldSpec {
    /// The field's bits.
    #[must_use]
    pub const fn mask(&self) -> u64 {
        (u64::MAX >> (64 - (self.high - self.low))) << self.low
    }
}

/// One register.
#[derive(Clone, Copy, Debug)]
pub struct RegisterSpec {
    /// The reference's name.
    pub name: &'static str,
    /// The MSR address.
    pub address: u32,
    /// The section that defines it.
    pub section: &'static str,
    /// The value after reset.
    pub reset: u64,
    /// Its fields.
    pub fields: &'static [FieldSpec],
}

impl RegisterSpec {
    /// The bits of all fields with this access.
    #[must_use]
    pub const fn mask(&self, access: Access) -> u64 {
        let (mut mask, mut index) = (0, 0);
        while index < self.fields.len() {
            if self.fields[index].access as u8 == access as u8 {
                mask |= self.fields[index].mask();
            }
            index += 1;
        }
        mask
    }
}

macro_rules! registers {
    ($(
        $(#[$doc:meta])*
        $Type:ident $CONST:ident $name:literal $address:literal $section:literal reset $reset:literal {
            $( $(#[$fdoc:meta])* $field:ident $with:ident $fname:literal $low:literal..$high:literal $ty:ident $access:ident; )*
        }
    )*) => {
        $(
            #[doc = concat!("Address of ", $name, " (", $section, ").")]
            pub const $CONST: u32 = $address;

            $(#[$doc])* #[doc = concat!("\n\n", $name, ", section ", $section, ".")]
            #[derive(Clone, Copy, PartialEq, Eq)]
            pub struct $Type(pub u64);

            impl $Type {
                /// The register's declaration.
                pub const SPEC: RegisterSpec = RegisterSpec {
                    name: $name,
                    address: $address,
                    section: $section,
                    reset: $reset,
                    fields: &[$( FieldSpec {
                        name: $fname, low: $low, high: $high, access: Access::$access,
                    } ),*],
                };
                accessors! {
                    $( $(#[$fdoc])* $field $with $fname $low $high $ty; )*
                }
            }

            impl Default for $Type {
                /// The value after reset.
                fn default() -> Self {
                    Self($reset)
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
    /// One end of an address range; RTIT_LIP0 to RTIT_LIP3 are alike ([`LIPS`]). RANGE0 is RTIT_LIP0 to RTIT_LIP2-1, RANGE1 is
    /// RTIT_LIP1 to RTIT_LIP3-1.
    Lip RTIT_LIP0 "RTIT_LIP0" 0x760 "3.3.6" reset 0 {
        /// Bits 47:0 of the address.
        address with_address "LIPN_ADDR" 0..48 u64 Rw;
        /// Bit 47, repeated.
        sign with_sign "LIP_SIGN_EXT" 48..64 u64 SignExtension;
    }
    /// The primary enable and control register. Until it has been read, every other access faults (3.3.1).
    Ctl RTIT_CTL "RTIT_CTL" 0x768 "3.3.2" reset 0 {
        /// RTIT is on.
        trace_en with_trace_en "Trace_En" 0..1 bool Rw;
        /// A cycle count follows most packets.
        cycle_acc with_cycle_acc "Cycle_Acc" 1..2 bool Rw;
        /// Trace CPL 0.
        os with_os "OS" 2..3 bool Rw;
        /// Trace CPL > 0.
        user with_user "User" 3..4 bool Rw;
        /// MOV CR3 sends an STS.
        sts_on_cr3 with_sts_on_cr3 "STS_on_CR3" 4..5 bool Rw;
        /// Trace only where CR3 matches RTIT_CR3_MATCH.
        cr3_en with_cr3_en "CR3En" 7..8 bool Rw;
        /// The TraceStop packet is written as any other.
        dest with_dest "Dest" 8..9 bool Rw;
        /// MTC packets.
        mtc_en with_mtc_en "MTC_En" 9..10 bool Rw;
        /// STS packets.
        sts_en with_sts_en "STS_En" 10..11 bool Rw;
        /// RET compression.
        cmprs_ret with_cmprs_ret "Cmprs_Ret" 11..12 bool Rw;
        /// Fewer packets (Table 17).
        less_pkts with_less_pkts "Less_Pkts" 12..13 bool Rw;
        /// Tracing is active; TraceStop clears it.
        trace_active with_trace_active "TraceActive" 13..14 bool Rw;
        /// Which TSC bits an MTC has: from bit 7 + 2 × range on.
        mtc_range with_mtc_range "MTC_Range" 14..16 u64 Rw;
    }
    /// What the unit is doing.
    Status RTIT_STATUS "RTIT_STATUS" 0x769 "3.3.3" reset 0 {
        /// The IP is within the filtered region.
        filter_en with_filter_en "FilterEn" 0..1 bool Rw;
        /// The context is one that is traced.
        context_en with_context_en "ContextEn" 1..2 bool ReadOnly;
        /// Trace_En and TraceActive.
        trigger_en with_trigger_en "TriggerEn" 2..3 bool ReadOnly;
        /// Packets are being lost.
        buffer_overflow with_buffer_overflow "Buffer_Overflow" 3..4 bool Rw;
    }
    /// Core clocks since the last cycle count.
    Cntp RTIT_CNTP "RTIT_CNTP" 0x76b "3.3.4" reset 0 {
        /// The count.
        cntp with_cntp "CNTP" 0..22 u64 Rw;
    }
    /// Which events control FilterEn and TraceStop, by event ids (Table 7).
    Events RTIT_EVENTS "RTIT_EVENTS" 0x76c "3.3.5" reset 0 {
        /// Where FilterEn is set.
        filter with_filter "Filter_Event_ID" 0..3 u64 Rw;
        /// What causes a TraceStop.
        trace_stop with_trace_stop "TraceStop_Event_ID" 3..6 u64 Rw;
    }
    /// What addresses are compressed against.
    LastLipRegister RTIT_LAST_LIP "RTIT_LAST_LIP" 0x76e "3.3.7" reset 0 {
        /// Bits 31:16 of the last LIP.
        low with_low "CMPRS_LIP_LOW" 0..16 u64 Rw;
        /// Bits 47:32 of the last LIP.
        high with_high "CMPRS_LIP_HIGH" 16..32 u64 Rw;
        /// There is one.
        valid with_valid "CMPRS_LIP_Valid" 32..33 bool Rw;
    }
    /// What returns are compressed against.
    LastCallNlip RTIT_LAST_CALL_NLIP "RTIT_LAST_CALL_NLIP" 0x76f "3.3.14" reset 0 {
        /// Bits 47:0 of the NLIP of the last near CALL.
        nlip with_nlip "Call_NLIP" 0..48 u64 Rw;
        /// There is one.
        valid with_valid "NLIP_Valid" 48..49 bool Rw;
    }
    /// Where the output region begins.
    BaseAddr RTIT_BASE_ADDR "RTIT_BASE_ADDR" 0x770 "3.3.10" reset 0xfdc0_0000 {
        /// The physical address, divided by 64.
        base with_base "Base_Phys_Addr" 6..36 u64 Rw;
    }
    /// How large the output region is, less one.
    LimitMask RTIT_LIMIT_MASK "RTIT_LIMIT_MASK" 0x771 "3.3.11" reset 0x7f {
        /// Bits 5:0 of the mask.
        low with_low "Rsvd_as_1" 0..6 u64 ReservedOne;
        /// Bits 21:6 of the mask.
        mask with_mask "Mask_Value" 6..22 u64 Rw;
    }
    /// Where in the output region the next byte goes.
    Offset RTIT_OFFSET "RTIT_OFFSET" 0x772 "3.3.12" reset 0 {
        /// The offset.
        offset with_offset "Offset" 0..22 u64 Rw;
    }
    /// The CR3 that CR3 filtering lets through.
    Cr3Match RTIT_CR3_MATCH "RTIT_CR3_MATCH" 0x777 "3.3.8" reset 0 {
        /// Bits 35:5 of CR3.
        cr3 with_cr3 "CR3" 5..36 u64 Rw;
    }
    /// How many bytes were sent since the last PSB, and when the next is due.
    PktCnt RTIT_PKT_CNT "RTIT_PKT_CNT" 0x77c "3.3.9" reset 0x2_0000 {
        /// Packet bytes.
        count with_count "Pkt_Cnt" 0..14 u64 Rw;
        /// The bit of Pkt_Cnt that asks for a PSB, less 11; bit 14 is the overflow of the field.
        mask with_mask "Pkt_Mask" 16..18 u64 Rw;
    }
    /// TNT results that wait for their packet, as it will hold them. A write of zero faults.
    TntBuff RTIT_TNT_BUFF "RTIT_TNT_BUFF" 0x77d "3.3.13" reset 1 {
        /// A stop bit, below it the results.
        tnt with_tnt "TNT" 0..7 u64 Rw;
    }
}

impl Events {
    /// RANGE0.
    pub const RANGE0: u64 = 0b000;
    /// RANGE1.
    pub const RANGE1: u64 = 0b001;
    /// RANGE0 or RANGE1.
    pub const RANGE0_OR_1: u64 = 0b010;
    /// Nowhere. The reserved ids 3, 4 and 5 do the same here.
    pub const ALWAYS_OFF: u64 = 0b110;
    /// Everywhere.
    pub const ALWAYS_ON: u64 = 0b111;
}

macro_rules! lips {
    ($($CONST:ident $name:literal $address:literal;)*) => {
        $(
            #[doc = concat!("Address of ", $name, " (3.3.6).")]
            pub const $CONST: u32 = $address;
        )*

        /// RTIT_LIP0 to RTIT_LIP3, all with the fields of [`Lip`].
        pub const LIPS: [RegisterSpec; 4] = [
            Lip::SPEC,
            $(RegisterSpec { name: $name, address: $address, ..Lip::SPEC }),*
        ];
    };
}

lips! {
    RTIT_LIP1 "RTIT_LIP1" 0x761;
    RTIT_LIP2 "RTIT_LIP2" 0x762;
    RTIT_LIP3 "RTIT_LIP3" 0x763;
}

/// Every register, by address.
pub const ALL: &[RegisterSpec] = &[
    LIPS[0],
    LIPS[1],
    LIPS[2],
    LIPS[3],
    Ctl::SPEC,
    Status::SPEC,
    Cntp::SPEC,
    Events::SPEC,
    LastLipRegister::SPEC,
    LastCallNlip::SPEC,
    BaseAddr::SPEC,
    LimitMask::SPEC,
    Offset::SPEC,
    Cr3Match::SPEC,
    PktCnt::SPEC,
    TntBuff::SPEC,
];
