//! The names of enumerated values: CFE, EVD and BBP types, C-states, wake reasons, MODE leaves, block items.

use crate::field::{Field, Printed, named_numbers};
use crate::text::{Operands, TextError, parse_flag};
use crate::value::Value;
use core::fmt;

named_numbers! {
    /// What happened, in a CFE packet (Table 33-50).
    CfeType: 5 bits {
        /// Interrupt, exception, fault or NMI; the vector is that of the event.
        INTR "INTR" = 0x1;
        /// IRET.
        IRET "IRET" = 0x2;
        /// System management interrupt.
        SMI "SMI" = 0x3;
        /// Return from system management mode.
        RSM "RSM" = 0x4;
        /// Startup IPI; the vector is the SIPI vector.
        SIPI "SIPI" = 0x5;
        /// INIT.
        INIT "INIT" = 0x6;
        /// VM entry.
        VMENTRY "VMENTRY" = 0x7;
        /// VM exit.
        VMEXIT "VMEXIT" = 0x8;
        /// VM exit caused by an INTR event; the vector is that of the event.
        VMEXIT_INTR "VMEXIT_INTR" = 0x9;
        /// Shutdown.
        SHUTDOWN "SHUTDOWN" = 0xa;
        /// User interrupt delivered; the vector is the user-interrupt vector.
        UINTR "UINTR" = 0xc;
        /// UIRET.
        UIRET "UIRET" = 0xd;
        /// Software interrupt under FRED. Beyond the chapter, which reserves the encoding.
        SWINTR "SWINTR" = 0xe;
        /// SYSCALL or SYSENTER under FRED. Beyond the chapter, which reserves the encoding.
        SYSCALL "SYSCALL" = 0xf;
    }

    /// What an EVD packet's payload is (Table 33-51).
    EvdType: 6 bits {
        /// Page fault linear address, as in CR2.
        PFA "PFA" = 0;
        /// VMX exit qualification.
        VMXQ "VMXQ" = 1;
        /// VMX exit reason.
        VMXR "VMXR" = 2;
    }

    /// What a block holds (Table 33-45).
    BlockType: 5 bits {
        /// General-purpose registers.
        GPR "GPR" = 0x01;
        /// PEBS basic information.
        PEBS_BASIC "PEBS_BASIC" = 0x04;
        /// PEBS memory information.
        PEBS_MEMORY "PEBS_MEMORY" = 0x05;
        /// Last branch records, first part.
        LBR_0 "LBR_0" = 0x08;
        /// Last branch records, second part.
        LBR_1 "LBR_1" = 0x09;
        /// Last branch records, third part.
        LBR_2 "LBR_2" = 0x0a;
        /// XMM registers.
        XMM "XMM" = 0x10;
    }

    /// A C-state as MWAIT's hints encode it: one less than its number, and C0 as all ones (Table 4-11 of volume 2B, to
    /// which 33.4.2.25 points).
    CState: 4 bits {
        /// C1.
        C1 "C1" = 0;
        /// C2.
        C2 "C2" = 1;
        /// C3.
        C3 "C3" = 2;
        /// C4.
        C4 "C4" = 3;
        /// C5.
        C5 "C5" = 4;
        /// C6.
        C6 "C6" = 5;
        /// C7.
        C7 "C7" = 6;
        /// C8.
        C8 "C8" = 7;
        /// C9.
        C9 "C9" = 8;
        /// C10.
        C10 "C10" = 9;
        /// C11.
        C11 "C11" = 10;
        /// C12.
        C12 "C12" = 11;
        /// C13.
        C13 "C13" = 12;
        /// C14.
        C14 "C14" = 13;
        /// C15.
        C15 "C15" = 14;
        /// C0.
        C0 "C0" = 15;
    }

    /// Why a processor woke, in a PWRX packet: one bit (Table 33-44).
    WakeReason: 4 bits {
        /// External interrupt.
        INTERRUPT "INTERRUPT" = 1;
        /// Timer expiration, such as the TSC quanta of UMWAIT and TPAUSE.
        TIMER_DEADLINE "TIMER_DEADLINE" = 2;
        /// Store to a monitored address.
        STORE "STORE" = 4;
        /// Autonomous hardware condition, such as hardware duty cycling.
        HW_WAKE "HW_WAKE" = 8;
    }
}

/// The leaf of a MODE packet that the chapter does not define (Table 33-25): 2 to 7.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ModeLeaf(u8);

impl ModeLeaf {
    /// The leaf with this ID; `None` for MODE.Exec (0), MODE.TSX (1) and what three bits do not hold.
    #[must_use]
    pub const fn new(id: u8) -> Option<Self> {
        if matches!(id, 2..=7) {
            Some(Self(id))
        } else {
            None
        }
    }
    /// The leaf ID.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Printed for ModeLeaf {
    fn value(self) -> Value {
        Value::Number(self.0.into())
    }
    fn parse(key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        crate::field::number(key, operands)
    }
}

impl Field for ModeLeaf {
    fn from_bits(bits: u128) -> Option<Self> {
        Self::new(u8::try_from(bits).ok()?)
    }
    fn to_bits(self) -> u128 {
        self.0.into()
    }
}

/// InTX and TXAbort of a MODE.TSX packet (Table 33-27).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TsxState {
    /// Transaction committed, or not executing transactionally.
    #[default]
    NotInTx,
    /// Transaction begins, or executing transactionally.
    InTx,
    /// Transaction aborted.
    Aborted,
}

impl Printed for TsxState {
    fn value(self) -> Value {
        Value::Number(self.to_bits() as u64)
    }
    fn visit(self, _key: &'static str, f: &mut dyn FnMut(&'static str, Value)) {
        f("intx", Value::Bool(self == Self::InTx));
        f("abort", Value::Bool(self == Self::Aborted));
    }
    fn parse(_key: &'static str, operands: &mut Operands<'_>) -> Result<Self, TextError> {
        let in_tx = bool::parse("intx", operands)?;
        match operands.key("abort") {
            Some(word) if parse_flag(word)? => match in_tx {
                false => Ok(Self::Aborted),
                true => Err(TextError::range(word, "abort")),
            },
            _ => Ok(if in_tx { Self::InTx } else { Self::NotInTx }),
        }
    }
}

impl Field for TsxState {
    // Bit 0 is InTX, bit 1 is TXAbort; both set is "N/A".
    fn from_bits(bits: u128) -> Option<Self> {
        match bits {
            0 => Some(Self::NotInTx),
            1 => Some(Self::InTx),
            2 => Some(Self::Aborted),
            _ => None,
        }
    }
    fn to_bits(self) -> u128 {
        match self {
            Self::NotInTx => 0,
            Self::InTx => 1,
            Self::Aborted => 2,
        }
    }
}

/// The state value that a BIP packet holds (Table 33-47). Its `Display` is the manual's name.
///
/// ```
/// use cofi_packet::intel::{BlockType, StateValue};
/// let value = StateValue::new(BlockType::LBR_1, 4).unwrap();
/// assert_eq!(value.to_string(), "LBR[TOS-12]_FROM_IP");
/// assert_eq!(StateValue::new(BlockType::GPR, 18), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StateValue {
    /// A value with a name of its own: a general-purpose register or a PEBS record's field.
    Register(&'static str),
    /// A last branch record: how far below the top of the stack, and which of FROM_IP, TO_IP and INFO.
    Lbr(u8, &'static str),
    /// Half of an XMM register: which register, and which eight bytes.
    Xmm(u8, u8),
}

const GPR: [&str; 18] = [
    "R/EFLAGS", "R/EIP", "R/EAX", "R/ECX", "R/EDX", "R/EBX", "R/ESP", "R/EBP", "R/ESI", "R/EDI",
    "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15",
];
const PEBS_BASIC: [&str; 3] = ["Instruction Pointer", "Applicable Counters", "Timestamp"];
const PEBS_MEMORY: [&str; 4] = [
    "MemAccessAddress",
    "MemAuxInfo",
    "MemAccessLatency",
    "TSXAuxInfo",
];
const LBR: [&str; 3] = ["FROM_IP", "TO_IP", "INFO"];

impl StateValue {
    /// The state value of item `id` in a block of type `block`; `None` if the table has none.
    #[must_use]
    pub fn new(block: BlockType, id: u8) -> Option<Self> {
        let named = |names: &'static [&'static str]| {
            names.get(usize::from(id)).map(|name| Self::Register(name))
        };
        match block {
            _ if id > 0x1f => None,
            BlockType::GPR => named(&GPR),
            BlockType::PEBS_BASIC => named(&PEBS_BASIC),
            BlockType::PEBS_MEMORY => named(&PEBS_MEMORY),
            // Three blocks of 32 items hold 32 records of three values.
            BlockType::LBR_0 | BlockType::LBR_1 | BlockType::LBR_2 => {
                let item = (block.get() - BlockType::LBR_0.get()) * 32 + id;
                Some(Self::Lbr(item / 3, LBR[usize::from(item % 3)]))
            }
            BlockType::XMM => Some(Self::Xmm(id / 2, id % 2)),
            _ => None,
        }
    }
}

impl fmt::Display for StateValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(name) => f.write_str(name),
            Self::Lbr(depth, part) => write!(f, "LBR[TOS-{depth}]_{part}"),
            Self::Xmm(register, half) => write!(f, "XMM{register}_Q{half}"),
        }
    }
}
