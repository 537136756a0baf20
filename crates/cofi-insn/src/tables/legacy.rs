//! The opcode maps without VEX: one byte, 0F, 0F 38, 0F 3A, and the groups.
//!
//! They follow Intel's manual, volume 2: section 2.1 (prefixes, ModRM, SIB), appendix A.3 (tables, the maps;
//! superscripts i64 and o64 are `not64` and `only64` here), A.4 (table A-6, the groups) and A.5 (tables, the
//! coprocessor). What only AMD has is from AMD's volume 3, appendix A. Where the manuals leave room (prefixes that are not
//! mandatory), the disassembler decides what a cell says; what depends on more than the cell can say is left to it.

use cofi_packet::ExecMode;

use super::form::{
    BARE, F2, F3, Form, Kind, M, NP, P66, Row, UNSURE, many, map, not64, one, only64,
};
use crate::Class;

/// The maps that depend on the mode.
pub(super) struct Maps {
    /// The opcodes of one byte.
    pub(super) one: [Form; 256],
    /// Those behind 0F.
    pub(super) two: [Form; 256],
}

impl Maps {
    const fn new(mode: ExecMode) -> Self {
        Self {
            one: map(ONE, mode),
            two: map(TWO, mode),
        }
    }
}

pub(super) static BITS16: Maps = Maps::new(ExecMode::Bits16);
pub(super) static BITS32: Maps = Maps::new(ExecMode::Bits32);
pub(super) static BITS64: Maps = Maps::new(ExecMode::Bits64);
/// The map 0F 38, the same in all modes.
pub(super) static MAP38: [Form; 256] = map(THREE_38, ExecMode::Bits64);
/// The map 0F 3A, the same in all modes.
pub(super) static MAP3A: [Form; 256] = map(THREE_3A, ExecMode::Bits64);

/// An operand in memory only.
const MEM: Form = M.reg(0);
/// With the prefix 66 or none, as the instructions on MMX and XMM registers have it.
const M_N6: Form = M.with(NP | P66);
/// With the prefix 66 only.
const M_66: Form = M.with(P66);
/// With the prefix 66 or F2, as horizontal and alternating operations have it.
const M_62: Form = M.with(P66 | F2);
/// With the prefix F3 or none: operations on one or all floats.
const M_N3: Form = M.with(NP | F3);
/// With any prefix but F2.
const M_N63: Form = M.with(NP | P66 | F3);
/// A relative branch of one byte.
const JB: Form = BARE.imm(1);
const INT: Form = BARE.class(Class::SoftwareInterrupt);
const RETF: Form = BARE.class(Class::FarReturn);
const STRING: Form = BARE.string();
/// A far pointer: the selector behind 16 or 32 bits of offset.
const FAR: Form = BARE.imms(4, 6, 6);

/// Opcodes of one byte (table A-2).
const ONE: &[Row] = &[
    // ADD, OR, ADC, SBB, AND, SUB, XOR, CMP; pushes and pops of segments and decimal adjustment between them.
    many(0x00, 0x03, M),
    one(0x04, BARE.imm(1)),
    one(0x05, BARE.iz()),
    not64(0x06, 0x07, BARE),
    many(0x08, 0x0b, M),
    one(0x0c, BARE.imm(1)),
    one(0x0d, BARE.iz()),
    not64(0x0e, 0x0e, BARE),
    one(0x0f, BARE.kind(Kind::ESCAPE)),
    many(0x10, 0x13, M),
    one(0x14, BARE.imm(1)),
    one(0x15, BARE.iz()),
    not64(0x16, 0x17, BARE),
    many(0x18, 0x1b, M),
    one(0x1c, BARE.imm(1)),
    one(0x1d, BARE.iz()),
    not64(0x1e, 0x1f, BARE),
    many(0x20, 0x23, M),
    one(0x24, BARE.imm(1)),
    one(0x25, BARE.iz()),
    one(0x26, Form::prefix(Kind::IGNORED)),
    not64(0x27, 0x27, BARE),
    many(0x28, 0x2b, M),
    one(0x2c, BARE.imm(1)),
    one(0x2d, BARE.iz()),
    one(0x2e, Form::prefix(Kind::IGNORED)),
    not64(0x2f, 0x2f, BARE),
    many(0x30, 0x33, M),
    one(0x34, BARE.imm(1)),
    one(0x35, BARE.iz()),
    one(0x36, Form::prefix(Kind::IGNORED)),
    not64(0x37, 0x37, BARE),
    many(0x38, 0x3b, M),
    one(0x3c, BARE.imm(1)),
    one(0x3d, BARE.iz()),
    one(0x3e, Form::prefix(Kind::IGNORED)),
    not64(0x3f, 0x3f, BARE),
    // INC and DEC, or REX; PUSH and POP.
    not64(0x40, 0x4f, BARE),
    only64(0x40, 0x4f, Form::prefix(Kind::REX)),
    many(0x50, 0x5f, BARE),
    not64(0x60, 0x61, BARE),
    one(0x62, MEM.kind(Kind::EVEX)),
    // ARPL, or MOVSXD.
    one(0x63, M),
    many(0x64, 0x65, Form::prefix(Kind::IGNORED)),
    one(0x66, Form::prefix(Kind::OPERAND_SIZE)),
    one(0x67, Form::prefix(Kind::ADDRESS_SIZE)),
    one(0x68, BARE.iz()),
    one(0x69, M.iz()),
    one(0x6a, BARE.imm(1)),
    one(0x6b, M.imm(1)),
    many(0x6c, 0x6f, STRING),
    many(0x70, 0x7f, JB.class(Class::Conditional)),
    // Group 1.
    one(0x80, M.imm(1)),
    one(0x81, M.iz()),
    not64(0x82, 0x82, M.imm(1)),
    one(0x83, M.imm(1)),
    many(0x84, 0x8b, M),
    one(0x8c, M.kind(Kind::group(0))),
    one(0x8d, MEM),
    one(0x8e, M.kind(Kind::group(0))),
    one(0x8f, M.kind(Kind::XOP)),
    many(0x90, 0x99, BARE),
    not64(0x9a, 0x9a, FAR.class(Class::FarCall)),
    many(0x9b, 0x9f, BARE),
    many(0xa0, 0xa3, BARE.kind(Kind::MOFFS)),
    many(0xa4, 0xa7, STRING),
    one(0xa8, BARE.imm(1)),
    one(0xa9, BARE.iz()),
    many(0xaa, 0xaf, STRING),
    many(0xb0, 0xb7, BARE.imm(1)),
    many(0xb8, 0xbf, BARE.imms(2, 4, 8)),
    many(0xc0, 0xc1, M.imm(1)),
    one(0xc2, BARE.imm(2).class(Class::Return)),
    one(0xc3, BARE.class(Class::Return)),
    one(0xc4, MEM.kind(Kind::VEX3)),
    one(0xc5, MEM.kind(Kind::VEX2)),
    one(0xc6, M.kind(Kind::group(2))),
    one(0xc7, M.kind(Kind::group(3))),
    one(0xc8, BARE.imm(3)),
    one(0xc9, BARE),
    one(0xca, RETF.imm(2)),
    one(0xcb, RETF),
    one(0xcc, INT),
    one(0xcd, INT.imm(1)),
    not64(0xce, 0xce, BARE.class(Class::Into)),
    one(0xcf, RETF),
    many(0xd0, 0xd3, M),
    not64(0xd4, 0xd5, BARE.imm(1)),
    not64(0xd6, 0xd6, BARE),
    one(0xd7, BARE),
    many(0xd8, 0xdf, M.kind(Kind::X87)),
    // LOOPcc and JCXZ.
    many(0xe0, 0xe3, JB.class(Class::Conditional)),
    many(0xe4, 0xe7, BARE.imm(1)),
    not64(0xe8, 0xe8, BARE.iz().class(Class::DirectCall)),
    only64(0xe8, 0xe8, BARE.imm(4).class(Class::DirectCall)),
    not64(0xe9, 0xe9, BARE.iz().class(Class::DirectJump)),
    only64(0xe9, 0xe9, BARE.imm(4).class(Class::DirectJump)),
    not64(0xea, 0xea, FAR.class(Class::FarJump)),
    one(0xeb, JB.class(Class::DirectJump)),
    many(0xec, 0xef, BARE),
    one(0xf0, Form::prefix(Kind::IGNORED)),
    one(0xf1, INT),
    one(0xf2, Form::prefix(Kind::REPNE)),
    one(0xf3, Form::prefix(Kind::REP)),
    one(0xf4, BARE.class(Class::Wait)),
    one(0xf5, BARE),
    one(0xf6, M.kind(Kind::group(4))),
    one(0xf7, M.kind(Kind::group(5))),
    many(0xf8, 0xfd, BARE),
    one(0xfe, M.kind(Kind::group(6))),
    one(0xff, M.kind(Kind::group(7))),
];

/// Opcodes behind 0F (table A-3).
const TWO: &[Row] = &[
    one(0x00, M.kind(Kind::group(8))),
    one(0x01, M.kind(Kind::SYSTEM)),
    many(0x02, 0x03, M),
    one(0x05, BARE.class(Class::Syscall)),
    one(0x06, BARE),
    one(0x07, RETF),
    many(0x08, 0x09, BARE),
    one(0x0b, BARE),
    one(0x0d, M),
    one(0x0e, BARE),
    one(0x0f, M.imm(1).kind(Kind::NOW)),
    many(0x10, 0x11, M),
    one(0x12, M.reg(NP | F3 | F2)),
    one(0x13, MEM.mem(NP | P66)),
    many(0x14, 0x15, M_N6),
    one(0x16, M.mem(NP | P66 | F3).reg(NP | F3)),
    one(0x17, MEM.mem(NP | P66)),
    // Prefetches and hinting NOPs.
    many(0x18, 0x1f, M),
    // MOV of control and debug registers has no form with memory.
    many(0x20, 0x21, M.mem(0)),
    one(0x22, M.mem(0).kind(Kind::MOV_TO_CR)),
    one(0x23, M.mem(0)),
    many(0x28, 0x29, M_N6),
    one(0x2a, M),
    one(0x2b, MEM),
    many(0x2c, 0x2d, M),
    many(0x2e, 0x2f, M_N6),
    many(0x30, 0x33, BARE),
    one(0x34, BARE.class(Class::Syscall)),
    one(0x35, RETF),
    one(0x37, BARE.with(NP)),
    one(0x38, BARE.kind(Kind::MAP38)),
    one(0x3a, BARE.kind(Kind::MAP3A)),
    many(0x40, 0x4f, M),
    one(0x50, M_N6.mem(0)),
    one(0x51, M),
    many(0x52, 0x53, M_N3),
    many(0x54, 0x57, M_N6),
    many(0x58, 0x5a, M),
    one(0x5b, M_N63),
    many(0x5c, 0x5f, M),
    many(0x60, 0x6b, M_N6),
    many(0x6c, 0x6d, M_66),
    one(0x6e, M_N6),
    one(0x6f, M_N63),
    one(0x70, M.imm(1)),
    many(0x71, 0x72, M.kind(Kind::group(9))),
    one(0x73, M.kind(Kind::group(10))),
    many(0x74, 0x76, M_N6),
    one(0x77, BARE.with(NP)),
    one(0x78, M.mem(NP).reg(NP | P66 | F2).kind(Kind::EXTRQ)),
    one(0x79, M.mem(NP).reg(NP | P66 | F2)),
    many(0x7c, 0x7d, M_62),
    many(0x7e, 0x7f, M_N63),
    not64(0x80, 0x8f, BARE.iz().class(Class::Conditional)),
    only64(0x80, 0x8f, BARE.imm(4).class(Class::Conditional)),
    // SETcc.
    many(0x90, 0x9f, M),
    many(0xa0, 0xa2, BARE),
    one(0xa3, M),
    one(0xa4, M.imm(1)),
    one(0xa5, M),
    many(0xa8, 0xa9, BARE),
    one(0xaa, RETF),
    one(0xab, M),
    one(0xac, M.imm(1)),
    one(0xad, M),
    one(0xae, M.kind(Kind::group(11))),
    many(0xaf, 0xb1, M),
    one(0xb2, MEM),
    one(0xb3, M),
    many(0xb4, 0xb5, MEM),
    many(0xb6, 0xb7, M),
    one(0xb8, M.with(F3)),
    one(0xb9, M),
    one(0xba, M.kind(Kind::group(12))),
    many(0xbb, 0xc1, M),
    one(0xc2, M.imm(1)),
    one(0xc3, MEM.mem(NP)),
    one(0xc4, M_N6.imm(1)),
    one(0xc5, M_N6.mem(0).imm(1)),
    one(0xc6, M_N6.imm(1)),
    one(0xc7, M.kind(Kind::group(13))),
    many(0xc8, 0xcf, BARE),
    one(0xd0, M_62),
    many(0xd1, 0xd5, M_N6),
    one(0xd6, M.mem(P66).reg(P66 | F3 | F2)),
    one(0xd7, M_N6.mem(0)),
    many(0xd8, 0xe5, M_N6),
    one(0xe6, M.with(P66 | F3 | F2)),
    one(0xe7, M_N6.reg(0)),
    many(0xe8, 0xef, M_N6),
    one(0xf0, MEM.mem(F2)),
    many(0xf1, 0xf6, M_N6),
    one(0xf7, M_N6.mem(0)),
    many(0xf8, 0xfe, M_N6),
    one(0xff, M),
];

/// Opcodes behind 0F 38 (table A-4).
const THREE_38: &[Row] = &[
    many(0x00, 0x0b, M_N6),
    one(0x10, M_66),
    many(0x14, 0x15, M_66),
    one(0x17, M_66),
    many(0x1c, 0x1e, M_N6),
    many(0x20, 0x25, M_66),
    many(0x28, 0x29, M_66),
    one(0x2a, M_66.reg(0)),
    one(0x2b, M_66),
    many(0x30, 0x35, M_66),
    many(0x37, 0x41, M_66),
    // INVEPT, INVVPID, INVPCID.
    many(0x80, 0x82, M_66.reg(0)),
    // SHA, GFNI, AES.
    many(0xc8, 0xcd, M.with(NP)),
    one(0xcf, M_66),
    one(0xdb, M_66),
    one(0xdc, M.with(P66 | F3)),
    many(0xdd, 0xdf, M.mem(P66 | F3).reg(P66)),
    // MOVBE, or CRC32.
    many(0xf0, 0xf1, M.mem(NP | P66 | F2).reg(F2)),
    one(0xf5, M_66.reg(0)),
    // ADCX, ADOX, WRSS.
    one(0xf6, M.mem(NP | P66 | F3).reg(P66 | F3)),
    // ENQCMD, MOVDIR64B; MOVDIRI.
    one(0xf8, MEM.mem(P66 | F3 | F2)),
    one(0xf9, MEM.mem(NP)),
    // AADD and its kin.
    one(0xfc, MEM),
];

/// Opcodes behind 0F 3A (table A-5): each has an immediate byte.
const THREE_3A: &[Row] = &[
    many(0x08, 0x0e, M_66.imm(1)),
    one(0x0f, M_N6.imm(1)),
    many(0x14, 0x17, M_66.imm(1)),
    many(0x20, 0x22, M_66.imm(1)),
    many(0x40, 0x42, M_66.imm(1)),
    one(0x44, M_66.imm(1)),
    many(0x60, 0x63, M_66.imm(1)),
    one(0xcc, M.with(NP).imm(1)),
    many(0xce, 0xcf, M_66.imm(1)),
    one(0xdf, M_66.imm(1)),
];

/// The forms of a group (table A-6), by the operand's kind and the reg field of ModRM: memory, then registers.
type Group = [Form; 16];

/// A group whose forms with memory and registers are the same.
const fn same(forms: [Form; 8]) -> Group {
    halves(forms, forms)
}

/// A group with one list for memory and one for registers.
const fn halves(mem: [Form; 8], reg: [Form; 8]) -> Group {
    let mut group = [UNSURE; 16];
    let mut at = 0;
    while at < 8 {
        group[at] = mem[at];
        group[at + 8] = reg[at];
        at += 1;
    }
    group
}

const NONE: [Form; 8] = [UNSURE; 8];
const U: Form = UNSURE;

/// Groups of instructions that share an opcode, by the number in [`Kind::group`].
pub(super) static GROUPS: [Group; 14] = [
    // 8C, 8E: MOV of segment registers, of which there are six.
    same([M, M, M, M, M, M, U, U]),
    // 1A: POP, besides XOP.
    same([M, U, U, U, U, U, U, U]),
    // 11: MOV; XABORT and XBEGIN are left to the disassembler.
    same([M.imm(1), U, U, U, U, U, U, U]),
    same([M.iz(), U, U, U, U, U, U, U]),
    // 3: TEST has an immediate, NOT, NEG, MUL, IMUL, DIV and IDIV have none.
    same([M.imm(1), M.imm(1), M, M, M, M, M, M]),
    same([M.iz(), M.iz(), M, M, M, M, M, M]),
    // 4 and 5: INC, DEC, CALL, far CALL, JMP, far JMP, PUSH.
    same([M, M, U, U, U, U, U, U]),
    halves(
        [
            M,
            M,
            M.class(Class::IndirectCall),
            M.class(Class::FarCall),
            M.class(Class::IndirectJump),
            M.class(Class::FarJump),
            M,
            U,
        ],
        [
            M,
            M,
            M.class(Class::IndirectCall),
            U,
            M.class(Class::IndirectJump),
            U,
            M,
            U,
        ],
    ),
    // 6: SLDT, STR, LLDT, LTR, VERR, VERW.
    same([M, M, M, M, M, M, U, U]),
    // 12 and 13, 14: shifts of MMX and XMM registers by an immediate.
    halves(NONE, [U, U, SHIFT, U, SHIFT, U, SHIFT, U]),
    halves(
        NONE,
        [U, U, SHIFT, SHIFT.reg(P66), U, U, SHIFT, SHIFT.reg(P66)],
    ),
    // 15: FXSAVE, …, XSAVE, XRSTOR, XSAVEOPT, CLFLUSH; CLWB and CLFLUSHOPT; the fences, INCSSP and UMONITOR. The rest of
    // it depends on prefixes in ways that a cell cannot say, or exists in 64-bit mode only.
    halves(
        [
            M.mem(NP),
            M.mem(NP),
            M.mem(NP),
            M.mem(NP),
            M.mem(NP),
            M.mem(NP),
            M.mem(NP | P66 | F3),
            M.mem(NP | P66),
        ],
        [U, U, U, U, U, M.reg(NP | F3), M.reg(NP | F3), M.reg(NP)],
    ),
    // 8: BT, BTS, BTR, BTC.
    same([U, U, U, U, M.imm(1), M.imm(1), M.imm(1), M.imm(1)]),
    // 9: CMPXCHG8B, XRSTORS, XSAVEC, XSAVES, VMPTRLD, VMPTRST; RDRAND, RDSEED, RDPID.
    halves(
        [
            U,
            M,
            U,
            M.mem(NP),
            M.mem(NP),
            M.mem(NP),
            M.mem(NP).class(Class::VmPtrLoad),
            M.mem(NP),
        ],
        [U, U, U, U, U, U, M.reg(NP | P66), M.reg(NP | P66 | F3)],
    ),
];

/// A shift of group 12, 13 or 14.
const SHIFT: Form = M.imm(1).reg(NP | P66);

/// The group that POP is in.
pub(super) const POP: usize = 1;

/// Group 7 (0F 01) with memory: SGDT, SIDT, LGDT, LIDT, SMSW, LMSW, INVLPG; what /5 is depends on the prefix.
pub(super) static SYSTEM_MEM: [Form; 8] = [M, M, M, M, M, UNSURE, M, M];

/// Group 7 (0F 01) with registers, where reg and rm together are the opcode, from C0 on. What exists in 64-bit mode only, or
/// is something else with another prefix, is left out.
pub(super) static SYSTEM_REG: [Form; 64] = {
    const N: Form = M.reg(NP);
    const ENCLAVE: Form = N.class(Class::Enclave);
    const VM: Form = N.class(Class::VmOther);
    const ENTRY: Form = N.class(Class::VmEntry);
    const WAIT: Form = N.class(Class::Wait);
    let rows: [[Form; 8]; 8] = [
        // ENCLV, VMCALL, VMLAUNCH, VMRESUME, VMXOFF, PCONFIG, WRMSRNS.
        [ENCLAVE, VM, ENTRY, ENTRY, VM, N, N, U],
        // MONITOR, MWAIT, CLAC, STAC, ENCLS.
        [N, WAIT, N, N, U, U, U, ENCLAVE],
        // XGETBV, XSETBV, VMFUNC, XEND, XTEST, ENCLU.
        [N, N, U, U, VM, N.class(Class::Xend), N, ENCLAVE],
        // VMRUN, VMMCALL, VMLOAD, VMSAVE, STGI, CLGI, SKINIT, INVLPGA.
        [M.class(Class::VmEntry), VM, M, M, M, M, M, M],
        // SMSW.
        [M; 8],
        // RDPKRU, WRPKRU.
        [U, U, U, U, U, U, N, N],
        // LMSW.
        [M; 8],
        // RDTSCP, MONITORX, MWAITX, CLZERO.
        [U, N, N, WAIT, N, U, U, U],
    ];
    let mut forms = [UNSURE; 64];
    let mut at = 0;
    while at < 64 {
        forms[at] = rows[at / 8][at % 8];
        at += 1;
    }
    forms
};

/// Which values of reg the opcodes D8 to DF have with memory (tables ), a bit each.
pub(super) static X87_MEM: [u8; 8] = [0xff, 0xfd, 0xff, 0xaf, 0xff, 0xdf, 0xff, 0xff];

/// Which second bytes from C0 on the opcodes D8 to DF have (tables ), a bit each, eight of them a row.
pub(super) static X87_REG: [u64; 8] = [
    u64::MAX,
    // FLD, FXCH, FNOP, FSTP1, FCHS to FXAM, constants, …
    rows([0xff, 0xff, 0x01, 0xff, 0x33, 0x7f, 0xff, 0xff]),
    // FCMOVcc, FUCOMPP.
    rows([0xff, 0xff, 0xff, 0xff, 0, 0x02, 0, 0]),
    // FCMOVNcc, FNENI to FNSETPM, FUCOMI, FCOMI.
    rows([0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0]),
    u64::MAX,
    // FFREE, FXCH4, FST, FSTP, FUCOM, FUCOMP.
    rows([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]),
    // FADDP, FMULP, FCOMP5, FCOMPP, FSUBRP, …
    rows([0xff, 0xff, 0xff, 0x02, 0xff, 0xff, 0xff, 0xff]),
    // FFREEP, FXCH7, FSTP8, FSTP9, FNSTSW, FUCOMIP, FCOMIP.
    rows([0xff, 0xff, 0xff, 0xff, 0x01, 0xff, 0xff, 0]),
];

const fn rows(rows: [u8; 8]) -> u64 {
    u64::from_le_bytes(rows)
}

/// The operations of 3DNow! (AMD's volume 3, table A-9), which stand behind the operands.
pub(super) static NOW: [u8; 24] = [
    0x0c, 0x0d, 0x1c, 0x1d, 0x8a, 0x8e, 0x90, 0x94, 0x96, 0x97, 0x9a, 0x9e, 0xa0, 0xa4, 0xa6, 0xa7,
    0xaa, 0xae, 0xb0, 0xb4, 0xb6, 0xb7, 0xbb, 0xbf,
];

/// ModRM with 32- or 64-bit addresses: the bytes that it stands for, itself included, and [`SIB_BASE`].
pub(super) static MODRM_32: [u8; 256] = modrm(false);
/// ModRM with 16-bit addresses: the bytes that it stands for, itself included.
pub(super) static MODRM_16: [u8; 256] = modrm(true);
/// The base in the SIB byte tells whether a displacement follows.
pub(super) const SIB_BASE: u8 = 0x80;

/// Tables 2-1 and 2-2 of section 2.1.5.
const fn modrm(is_16: bool) -> [u8; 256] {
    let mut lens = [1; 256];
    let mut byte = 0;
    while byte < 0xc0 {
        let (mode, rm) = (byte >> 6, byte & 7);
        let sib = !is_16 && rm == 4;
        let full = if is_16 { 2 } else { 4 };
        let displacement = match mode {
            0 if is_16 && rm == 6 => full,
            0 if !is_16 && rm == 5 => full,
            0 => 0,
            1 => 1,
            _ => full,
        };
        lens[byte] = 1 + sib as u8 + displacement;
        if sib && mode == 0 {
            lens[byte] |= SIB_BASE;
        }
        byte += 1;
    }
    lens
}
