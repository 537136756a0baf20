//! Random code for a machine: every kind of instruction that a trace knows of.

use crate::Rng;
use cofi_packet::{ExecMode, Ip};

/// What an instruction does. Direct jumps and calls lead forward only, so that every cycle holds a branch of which the trace
/// tells: where it does not (`jmp .`), no trace can say how often the cycle ran. Places are indexes of instructions in the same program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing that matters.
    Plain,
    /// Jcc.
    Conditional(usize),
    /// JMP rel.
    Jump(usize),
    /// CALL rel.
    Call(usize),
    /// CALL to the next instruction.
    CallNext,
    /// JMP through a register.
    IndirectJump,
    /// CALL through a register.
    IndirectCall,
    /// RET.
    Return,
    /// RETF.
    FarReturn,
    /// IRET.
    Iret,
    /// UIRET.
    Uiret,
    /// SYSCALL.
    Syscall,
    /// INT3.
    Breakpoint,
    /// MOV CR3.
    MovCr3,
    /// CLI or STI: RFLAGS.IF after it.
    Flag(bool),
    /// PTWRITE of 4 or 8 bytes.
    Ptwrite {
        /// Of 8 bytes.
        wide: bool,
    },
    /// XBEGIN, with its fallback.
    Xbegin(usize),
    /// XEND.
    Xend,
    /// MWAIT.
    Mwait,
    /// HLT.
    Halt,
    /// VMLAUNCH.
    VmEntry,
    /// VMPTRLD.
    VmPtrLoad,
    /// ENCLU.
    Enclave,
    /// Far JMP through memory.
    FarJump,
    /// Far CALL through memory.
    FarCall,
    /// SYSEXIT.
    Sysexit,
    /// INT 80H.
    Interrupt,
    /// INTO.
    Into,
    /// MOV CR0.
    MovCr0,
    /// WRMSR.
    Wrmsr,
    /// VMCALL.
    VmCall,
}

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub struct Insn {
    /// Its address.
    pub ip: Ip,
    /// Its length.
    pub len: u8,
    /// What it does.
    pub kind: Kind,
    /// How many prefixes it has that change nothing.
    pub prefixes: u8,
}

/// A program: instructions one after another, the last of which is an indirect jump.
#[derive(Clone, Debug)]
pub struct Code {
    /// The privilege level it runs at.
    pub cpl: u8,
    /// The width it runs in.
    pub mode: ExecMode,
    /// Its instructions, by address.
    pub insns: Vec<Insn>,
    base: u64,
    bytes: Vec<u8>,
}

const FILLERS: [&[u8]; 4] = [&[0x90], &[0x89, 0xc8], &[0x0f, 0x1f, 0x00], &[0xb0, 7]];

/// What is to be chosen: the instruction at this place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) index: usize,
    pub(crate) count: usize,
    pub(crate) mode: ExecMode,
    pub(crate) cpl: u8,
}

impl Place {
    /// Somewhat later in the program.
    pub(crate) fn later(self, rng: &mut Rng) -> usize {
        (self.index + 1 + rng.index(12)).min(self.count - 1)
    }
}

/// An instruction of a machine that does everything of chapter 33.
pub(super) fn choose(rng: &mut Rng, place: Place) -> (Kind, u8) {
    (choose_kind(rng, place), 0)
}

fn choose_kind(rng: &mut Rng, place: Place) -> Kind {
    let Place {
        count, mode, cpl, ..
    } = place;
    let later = |rng: &mut Rng| place.later(rng);
    let wide = mode == ExecMode::Bits64;
    match rng.index(48) {
        0..=7 => Kind::Conditional(rng.index(count)),
        8 | 9 => Kind::Return,
        10 => Kind::Jump(later(rng)),
        11..=13 => Kind::Call(later(rng)),
        14 => Kind::CallNext,
        15 => Kind::IndirectJump,
        16 => Kind::IndirectCall,
        17 if rng.one_in(2) => Kind::FarReturn,
        18 if rng.one_in(2) => Kind::Iret,
        19 if wide && rng.one_in(4) => Kind::Uiret,
        20 if wide && rng.one_in(2) => Kind::Syscall,
        21 if rng.one_in(2) => Kind::Breakpoint,
        22 if cpl == 0 => Kind::MovCr3,
        23 if cpl == 0 => Kind::Flag(rng.one_in(2)),
        24 => Kind::Ptwrite {
            wide: wide && rng.one_in(2),
        },
        25 if mode != ExecMode::Bits16 => Kind::Xbegin(rng.index(count)),
        26 | 27 => Kind::Xend,
        28 if cpl == 0 => Kind::Mwait,
        29 if cpl == 0 => Kind::Halt,
        30 if cpl == 0 && mode != ExecMode::Bits16 => Kind::VmEntry,
        31 if cpl == 0 && mode != ExecMode::Bits16 => Kind::VmPtrLoad,
        32 if cpl == 3 && mode != ExecMode::Bits16 => Kind::Enclave,
        _ => Kind::Plain,
    }
}

/// The bytes of an instruction at `ip`, the relative target being `to`.
fn encode(plan: Plan, ip: u64, to: u64, mode: ExecMode) -> Vec<u8> {
    // CS overrides mean nothing where a branch needs no memory but its target's.
    let mut bytes = vec![0x2e; plan.prefixes.into()];
    let ip = ip + u64::from(plan.prefixes);
    bytes.extend(encode_plain(plan.kind, plan.filler, ip, to, mode));
    bytes
}

/// What an instruction is to be.
#[derive(Clone, Copy)]
struct Plan {
    kind: Kind,
    prefixes: u8,
    filler: &'static [u8],
}

fn encode_plain(kind: Kind, filler: &[u8], ip: u64, to: u64, mode: ExecMode) -> Vec<u8> {
    let relative = |opcode: &[u8]| {
        let size = if mode == ExecMode::Bits16 { 2 } else { 4 };
        let mut bytes = opcode.to_vec();
        let next = ip + (opcode.len() + size) as u64;
        bytes.extend(&(to.wrapping_sub(next) as u32).to_le_bytes()[..size]);
        bytes
    };
    match kind {
        Kind::Plain => filler.to_vec(),
        Kind::Conditional(_) => relative(&[0x0f, 0x84]),
        Kind::Jump(_) => relative(&[0xe9]),
        Kind::Call(_) | Kind::CallNext => relative(&[0xe8]),
        Kind::IndirectJump => vec![0xff, 0xe0],
        Kind::IndirectCall => vec![0xff, 0xd0],
        Kind::Return => vec![0xc3],
        Kind::FarReturn => vec![0xcb],
        Kind::Iret => vec![0xcf],
        Kind::Uiret => vec![0xf3, 0x0f, 0x01, 0xec],
        Kind::Syscall => vec![0x0f, 0x05],
        Kind::Breakpoint => vec![0xcc],
        Kind::MovCr3 => vec![0x0f, 0x22, 0xd8],
        Kind::Flag(on) => vec![0xfa + u8::from(on)],
        Kind::Ptwrite { wide: false } => vec![0xf3, 0x0f, 0xae, 0xe0],
        Kind::Ptwrite { wide: true } => vec![0xf3, 0x48, 0x0f, 0xae, 0xe0],
        Kind::Xbegin(_) => relative(&[0xc7, 0xf8]),
        Kind::Xend => vec![0x0f, 0x01, 0xd5],
        Kind::Mwait => vec![0x0f, 0x01, 0xc9],
        Kind::Halt => vec![0xf4],
        Kind::VmEntry => vec![0x0f, 0x01, 0xc2],
        Kind::VmPtrLoad => vec![0x0f, 0xc7, 0x30],
        Kind::Enclave => vec![0x0f, 0x01, 0xd7],
        Kind::FarJump => vec![0xff, 0x28],
        Kind::FarCall => vec![0xff, 0x18],
        Kind::Sysexit => vec![0x0f, 0x35],
        Kind::Interrupt => vec![0xcd, 0x80],
        Kind::Into => vec![0xce],
        Kind::MovCr0 => vec![0x0f, 0x22, 0xc0],
        Kind::Wrmsr => vec![0x0f, 0x30],
        Kind::VmCall => vec![0x0f, 0x01, 0xc1],
    }
}

impl Code {
    /// A program of `count` instructions (at least one) at `base`, each of which, with its prefixes, `choose` chooses.
    pub(crate) fn random(
        rng: &mut Rng,
        count: usize,
        base: Ip,
        (mode, cpl): (ExecMode, u8),
        choose: fn(&mut Rng, Place) -> (Kind, u8),
    ) -> Self {
        let mut plans: Vec<Plan> = (0..count)
            .map(|index| {
                let place = Place {
                    index,
                    count,
                    mode,
                    cpl,
                };
                let (kind, prefixes) = choose(rng, place);
                Plan {
                    kind,
                    prefixes,
                    filler: FILLERS[rng.index(4)],
                }
            })
            .collect();
        plans[count - 1].kind = Kind::IndirectJump;
        // Sizes do not depend on targets.
        let mut insns = Vec::new();
        let mut ip = base.0;
        for &plan in &plans {
            let len = encode(plan, 0, 0, mode).len() as u8;
            insns.push(Insn {
                ip: Ip(ip),
                len,
                kind: plan.kind,
                prefixes: plan.prefixes,
            });
            ip += u64::from(len);
        }
        let mut bytes = Vec::new();
        for (insn, plan) in insns.iter().zip(plans) {
            let next = insn.ip.0 + u64::from(insn.len);
            let to = match plan.kind {
                Kind::Conditional(to) | Kind::Jump(to) | Kind::Call(to) | Kind::Xbegin(to) => {
                    insns[to].ip.0
                }
                _ => next,
            };
            bytes.extend(encode(plan, insn.ip.0, to, mode));
        }
        Self {
            cpl,
            mode,
            insns,
            base: base.0,
            bytes,
        }
    }

    /// The bytes from `ip` on.
    #[must_use]
    pub fn bytes_at(&self, ip: Ip) -> &[u8] {
        let at = ip.0.checked_sub(self.base).map(|at| at as usize);
        at.and_then(|at| self.bytes.get(at..)).unwrap_or_default()
    }
}
