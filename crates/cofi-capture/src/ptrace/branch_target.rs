//! Where an instruction leads, as far as that can be told before it runs.

use super::special::Special;
use super::sys::Regs;
use cofi_insn::{Class, Insn};
use cofi_packet::ExecMode;

/// Linux's 32-bit code and data segments, which begin at 0.
const USER32_CS: u64 = 0x23;
const USER32_DS: u64 = 0x2b;
/// Linux's 64-bit code segment.
const USER64_CS: u64 = 0x33;

const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;

/// How an instruction leads on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BranchTarget {
    /// To the next instruction, if it does not fault.
    Straight,
    /// To its target.
    Direct,
    /// To its target if the flags fulfil this condition, the low four bits of the opcode of Jcc.
    Flags(u8),
    /// To its target as it is with a counter: LOOPNE, LOOPE, LOOP, JCXZ by the low two bits of their opcodes. So many bits of
    /// the register count.
    Counter(u8, u32),
    /// To where a register points, by its number.
    Register(u8),
    /// To the address that stands in memory.
    Memory(Operand),
    /// To the address on top of the stack.
    Return,
    /// That only a step tells.
    Step,
}

/// An operand in memory, in 64-bit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Operand {
    base: Option<u8>,
    index: Option<(u8, u8)>,
    displacement: i64,
    segment: Segment,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Segment {
    Flat,
    Fs,
    Gs,
}

/// The prefixes that change what a branch does.
#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// Operand size: what it does to a branch differs between processors.
    operand: bool,
    address: bool,
    segment: Option<u8>,
    rex: u8,
}

/// Finds out how the instruction `bytes`, which stands at `ip`, leads on.
pub(super) fn branch_target(
    bytes: &[u8],
    ip: u64,
    insn: &Insn,
    special: Special,
    mode: ExecMode,
) -> BranchTarget {
    match (insn.class, special) {
        (Class::Other, Special::None | Special::PushFlags) => return BranchTarget::Straight,
        (Class::Conditional | Class::DirectJump | Class::DirectCall, _) => {}
        (Class::IndirectJump | Class::IndirectCall | Class::Return, _) => {}
        _ => return BranchTarget::Step,
    }
    let (prefixes, rest) = prefixes(bytes, mode);
    if prefixes.operand {
        return BranchTarget::Step;
    }
    match (insn.class, rest) {
        (Class::DirectJump | Class::DirectCall, [0xe8 | 0xe9 | 0xeb, ..]) => BranchTarget::Direct,
        (Class::Conditional, [opcode @ 0x70..=0x7f, ..] | [0x0f, opcode @ 0x80..=0x8f, ..]) => {
            BranchTarget::Flags(opcode & 15)
        }
        (Class::Conditional, [opcode @ 0xe0..=0xe3, ..]) => {
            let width = match (mode, prefixes.address) {
                (ExecMode::Bits64, false) => 64,
                (ExecMode::Bits64, true) | (ExecMode::Bits32, false) => 32,
                _ => 16,
            };
            BranchTarget::Counter(opcode & 3, width)
        }
        (Class::Return, [0xc2 | 0xc3, ..]) => BranchTarget::Return,
        (Class::IndirectJump | Class::IndirectCall, [0xff, modrm, tail @ ..]) => {
            if *modrm >= 0xc0 {
                BranchTarget::Register(modrm & 7 | (prefixes.rex & 1) << 3)
            } else if mode == ExecMode::Bits64 && !prefixes.address {
                let after = ip.wrapping_add(u64::from(insn.len));
                operand(*modrm, tail, prefixes, after)
                    .map_or(BranchTarget::Step, BranchTarget::Memory)
            } else {
                BranchTarget::Step
            }
        }
        _ => BranchTarget::Step,
    }
}

fn prefixes(bytes: &[u8], mode: ExecMode) -> (Prefixes, &[u8]) {
    let mut found = Prefixes::default();
    let mut rest = bytes;
    while let [prefix, tail @ ..] = rest {
        // REX counts only right before the opcode.
        let rex = std::mem::take(&mut found.rex);
        match prefix {
            0x26 | 0x2e | 0x36 | 0x3e | 0xf0 | 0xf2 | 0xf3 => {}
            0x64 | 0x65 => found.segment = Some(*prefix),
            0x66 => found.operand = true,
            0x67 => found.address = true,
            0x40..=0x4f if mode == ExecMode::Bits64 => found.rex = *prefix,
            _ => {
                found.rex = rex;
                break;
            }
        }
        rest = tail;
    }
    (found, rest)
}

/// Reads what follows a ModRM byte that names memory; `after` is the address behind the instruction.
fn operand(modrm: u8, rest: &[u8], prefixes: Prefixes, after: u64) -> Option<Operand> {
    let (high_base, high_index) = ((prefixes.rex & 1) << 3, (prefixes.rex & 2) << 2);
    let form = modrm >> 6;
    let (mut base, mut index, mut rest) = (Some(modrm & 7 | high_base), None, rest);
    let mut size = [0, 1, 4].get(usize::from(form)).copied()?;
    let mut from = 0;
    if modrm & 7 == 4 {
        let (sib, tail) = rest.split_first()?;
        rest = tail;
        base = Some(sib & 7 | high_base);
        let number = sib >> 3 & 7 | high_index;
        index = (number != 4).then_some((number, sib >> 6));
        if form == 0 && sib & 7 == 5 {
            (base, size) = (None, 4);
        }
    } else if form == 0 && modrm & 7 == 5 {
        (base, size, from) = (None, 4, after as i64);
    }
    let displacement = match (size, rest) {
        (0, _) => 0,
        (1, [byte, ..]) => i64::from(*byte as i8),
        (4, [a, b, c, d, ..]) => i64::from(i32::from_le_bytes([*a, *b, *c, *d])),
        _ => return None,
    };
    Some(Operand {
        base,
        index,
        displacement: displacement.wrapping_add(from),
        segment: match prefixes.segment {
            Some(0x64) => Segment::Fs,
            Some(_) => Segment::Gs,
            None => Segment::Flat,
        },
    })
}

/// The register of a number, as instructions count them.
fn register(regs: &Regs, number: u8) -> u64 {
    let all = [
        regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi, regs.r8,
        regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
    ];
    all[usize::from(number & 15)]
}

impl Operand {
    fn address(&self, regs: &Regs) -> u64 {
        let segment = match self.segment {
            Segment::Flat => 0,
            Segment::Fs => regs.fs_base,
            Segment::Gs => regs.gs_base,
        };
        let base = self.base.map_or(0, |number| register(regs, number));
        let index = self
            .index
            .map_or(0, |(number, scale)| register(regs, number) << scale);
        segment
            .wrapping_add(base)
            .wrapping_add(index)
            .wrapping_add(self.displacement as u64)
    }
}

/// Whether the thread's addresses are what its instruction pointer and registers say: no segment of the program's own.
pub(super) fn is_flat(regs: &Regs) -> bool {
    regs.cs == USER64_CS || (regs.cs == USER32_CS && regs.ss == USER32_DS)
}

/// Whether a condition of Jcc holds.
fn holds(condition: u8, flags: u64) -> bool {
    let is = |flag: u64| flags & flag != 0;
    let holds = match condition >> 1 {
        0 => is(OVERFLOW),
        1 => is(CARRY),
        2 => is(ZERO),
        3 => is(CARRY | ZERO),
        4 => is(SIGN),
        5 => is(PARITY),
        6 => is(SIGN) != is(OVERFLOW),
        _ => is(ZERO) || is(SIGN) != is(OVERFLOW),
    };
    holds != (condition & 1 != 0)
}

/// Whether LOOP or one of its kin jumps.
fn loops(kind: u8, width: u32, regs: &Regs) -> bool {
    let counter = regs.rcx & (u64::MAX >> (64 - width));
    let zero = regs.eflags & ZERO != 0;
    match kind {
        0 => counter != 1 && !zero,
        1 => counter != 1 && zero,
        2 => counter != 1,
        _ => counter == 0,
    }
}

/// Where an instruction that is about to run leads, if it does not fault; `after` is the address behind it. `read` reads
/// a word of so many bytes from memory.
pub(super) fn leads_to(
    branch: BranchTarget,
    insn: &Insn,
    after: u64,
    regs: &Regs,
    read: impl FnOnce(u64, usize) -> Option<u64>,
) -> Option<u64> {
    let target = insn.target.map(|ip| ip.0);
    let wide = regs.cs == USER64_CS;
    match branch {
        BranchTarget::Straight => Some(after),
        BranchTarget::Direct => target,
        BranchTarget::Flags(condition) if !holds(condition, regs.eflags) => Some(after),
        BranchTarget::Counter(kind, width) if !loops(kind, width, regs) => Some(after),
        BranchTarget::Flags(_) | BranchTarget::Counter(..) => target,
        BranchTarget::Register(number) if wide => Some(register(regs, number)),
        BranchTarget::Register(number) => Some(register(regs, number) & 0xffff_ffff),
        BranchTarget::Memory(operand) => read(operand.address(regs), 8),
        BranchTarget::Return if wide => read(regs.rsp, 8),
        BranchTarget::Return => read(regs.rsp & 0xffff_ffff, 4),
        BranchTarget::Step => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptrace::special::special;
    use crate::ptrace::sys::no_registers;
    use cofi_packet::Ip;

    const IP: u64 = 0x40_0000;

    fn target_of(bytes: &[u8], mode: ExecMode) -> (BranchTarget, Insn) {
        let insn = cofi_insn::decode(bytes, Ip(IP), mode).expect("an instruction");
        (
            branch_target(bytes, IP, &insn, special(bytes, mode), mode),
            insn,
        )
    }

    fn goes(bytes: &[u8], mode: ExecMode, regs: &Regs) -> Option<u64> {
        let (branch, insn) = target_of(bytes, mode);
        let after = insn.next_ip(Ip(IP), mode).0;
        // Memory holds its own addresses.
        leads_to(branch, &insn, after, regs, |at, _| Some(at))
    }

    fn wide() -> Regs {
        let mut regs = no_registers();
        (regs.cs, regs.rcx, regs.rsp, regs.r12, regs.r13) =
            (USER64_CS, 0x10, 0x7000, 0x1000, 0x2000);
        (regs.fs_base, regs.gs_base) = (0x10_0000, 0x20_0000);
        regs
    }

    #[test]
    fn operands_of_all_forms() {
        let at = |bytes: &[u8]| goes(bytes, ExecMode::Bits64, &wide());
        assert_eq!(at(&[0xff, 0xe1]), Some(0x10)); // jmp *%rcx
        assert_eq!(at(&[0x41, 0xff, 0xd4]), Some(0x1000)); // call *%r12
        assert_eq!(at(&[0x3e, 0x41, 0xff, 0xe4]), Some(0x1000)); // notrack jmp *%r12
        assert_eq!(at(&[0x41, 0xff, 0x24, 0x24]), Some(0x1000)); // jmp *(%r12)
        assert_eq!(at(&[0x41, 0xff, 0x65, 0x08]), Some(0x2008)); // jmp *8(%r13)
        assert_eq!(at(&[0xff, 0x64, 0x24, 0xf8]), Some(0x6ff8)); // jmp *-8(%rsp)
        assert_eq!(at(&[0xff, 0x25, 0, 1, 0, 0]), Some(IP + 6 + 0x100)); // jmp *0x100(%rip)
        assert_eq!(at(&[0xff, 0x24, 0xcd, 0, 0, 1, 0]), Some(0x1_0080)); // jmp *0x10000(,%rcx,8)
        assert_eq!(at(&[0x43, 0xff, 0x14, 0x6c]), Some(0x5000)); // call *(%r12,%r13,2)
        assert_eq!(at(&[0x42, 0xff, 0x24, 0xa1]), Some(0x4010)); // jmp *(%rcx,%r12,4)
        assert_eq!(
            at(&[0x64, 0xff, 0x14, 0x25, 0x10, 0, 0, 0]),
            Some(0x10_0010)
        ); // call *%fs:0x10
        assert_eq!(at(&[0x65, 0xff, 0x21]), Some(0x20_0010)); // jmp *%gs:(%rcx)
        assert_eq!(at(&[0xff, 0xa1, 0xff, 0xff, 0xff, 0xff]), Some(0x0f)); // jmp *-1(%rcx)
        assert_eq!(at(&[0xc3]), Some(0x7000));
        assert_eq!(at(&[0xc2, 0x08, 0]), Some(0x7000));
        assert_eq!(at(&[0xf3, 0xc3]), Some(0x7000));
    }

    #[test]
    fn what_is_left_to_a_step() {
        let step =
            |bytes: &[u8]| assert_eq!(target_of(bytes, ExecMode::Bits64).0, BranchTarget::Step);
        step(&[0x0f, 0x05]); // syscall
        step(&[0xcc]);
        step(&[0x9d]); // popf
        step(&[0x8e, 0xd0]); // mov %eax, %ss
        step(&[0x48, 0xcf]); // iretq
        step(&[0xff, 0x29]); // ljmp *(%rcx)
        step(&[0x67, 0xff, 0x21]); // jmp *(%ecx)
        step(&[0x66, 0xc3]); // how wide its stack slot is differs
        step(&[0x66, 0xe9, 0, 0, 0, 0]);
        step(&[0xc7, 0xf8, 0, 0, 0, 0]); // xbegin
        assert_eq!(
            target_of(&[0xff, 0x21], ExecMode::Bits32).0,
            BranchTarget::Step,
            "segments of 32-bit code"
        );
    }

    #[test]
    fn conditions_hold_as_the_processor_says() {
        let mut regs = wide();
        for flags in 0..32 {
            let bit = |n: u32| flags >> n & 1 == 1;
            let [carry, parity, zero, sign, overflow] = [0, 1, 2, 3, 4].map(bit);
            regs.eflags = [
                (carry, CARRY),
                (parity, PARITY),
                (zero, ZERO),
                (sign, SIGN),
                (overflow, OVERFLOW),
            ]
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, flag)| flag)
            .sum();
            let truth = [
                overflow,
                carry,
                zero,
                carry || zero,
                sign,
                parity,
                sign != overflow,
                zero || sign != overflow,
            ];
            for (n, truth) in truth.iter().enumerate() {
                for (opcode, jumps) in [(2 * n, *truth), (2 * n + 1, !truth)] {
                    let to = if jumps { IP + 2 + 0x10 } else { IP + 2 };
                    let bytes = [0x70 + opcode as u8, 0x10];
                    assert_eq!(
                        goes(&bytes, ExecMode::Bits64, &regs),
                        Some(to),
                        "{bytes:x?}"
                    );
                    let to = if jumps { IP + 6 + 0x10 } else { IP + 6 };
                    let bytes = [0x0f, 0x80 + opcode as u8, 0x10, 0, 0, 0];
                    assert_eq!(
                        goes(&bytes, ExecMode::Bits64, &regs),
                        Some(to),
                        "{bytes:x?}"
                    );
                }
            }
        }
    }

    #[test]
    fn counters_of_all_widths() {
        let jumps = |bytes: &[u8], mode, rcx, flags| {
            let mut regs = wide();
            (regs.rcx, regs.eflags) = (rcx, flags);
            goes(bytes, mode, &regs) != Some(IP + bytes.len() as u64)
        };
        use ExecMode::{Bits32, Bits64};
        let high = 0x1_0000_0000;
        assert!(jumps(&[0xe2, 0x10], Bits64, 2, 0) && !jumps(&[0xe2, 0x10], Bits64, 1, 0));
        assert!(jumps(&[0xe2, 0x10], Bits64, 0, 0) && jumps(&[0xe2, 0x10], Bits64, high + 1, 0));
        assert!(!jumps(&[0x67, 0xe2, 0x10], Bits64, high + 1, 0));
        assert!(!jumps(&[0xe2, 0x10], Bits32, high + 1, 0));
        assert!(!jumps(&[0x67, 0xe2, 0x10], Bits32, 0x1_0001, 0));
        assert!(jumps(&[0xe1, 0x10], Bits64, 2, ZERO) && !jumps(&[0xe1, 0x10], Bits64, 2, 0));
        assert!(jumps(&[0xe0, 0x10], Bits64, 2, 0) && !jumps(&[0xe0, 0x10], Bits64, 2, ZERO));
        assert!(jumps(&[0xe3, 0x10], Bits64, 0, 0) && !jumps(&[0xe3, 0x10], Bits64, high, 0));
        assert!(jumps(&[0x67, 0xe3, 0x10], Bits64, high, 0));
    }
}
