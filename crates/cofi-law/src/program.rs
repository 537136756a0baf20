//! Random control-flow graphs, assembled.

use crate::Rng;
use cofi_insn::CodeSource;
use cofi_packet::{ExecMode, Ip};

/// How a block ends. Direct jumps and calls lead to later blocks only, so that every cycle holds a branch which the
/// trace tells about: where it does not (`jmp .`), no trace can say how often the cycle ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Jcc to this block, or on to the next.
    Conditional(usize),
    /// LOOP-like short conditional branch back to the block's own start, or on to the next.
    ShortLoop,
    /// JMP rel32 to this block.
    Jump(usize),
    /// CALL rel32 to this block; the next block is where it returns to.
    Call(usize),
    /// CALL rel32 to the next instruction.
    CallNext,
    /// JMP through a register.
    IndirectJump,
    /// CALL through a register.
    IndirectCall,
    /// RET.
    Return,
    /// IRET, a far transfer that the binary shows.
    FarReturn,
    /// SYSCALL.
    Syscall,
    /// INT3, which is an event.
    Breakpoint,
    /// No branch: on to the next block.
    FallThrough,
}

/// A run of plain instructions and the branch at its end.
#[derive(Clone, Debug)]
pub struct Block {
    /// Where it starts.
    pub start: Ip,
    /// Address and length of every instruction, the branch (if any) being the last.
    pub insns: Vec<(Ip, u8)>,
    /// How it ends.
    pub end: End,
}

/// A program: blocks one after another in memory, the last of which never falls through.
#[derive(Clone, Debug)]
pub struct Program {
    base: u64,
    bytes: Vec<u8>,
    /// The blocks, in address order.
    pub blocks: Vec<Block>,
    /// The width it runs in.
    pub mode: ExecMode,
}

const FILLERS: [&[u8]; 5] = [
    &[0x90],                                  // nop
    &[0x89, 0xc8],                            // mov eax, ecx
    &[0x0f, 0x1f, 0x00],                      // nop dword [rax]
    &[0xb8, 1, 2, 3, 4],                      // mov eax, imm32
    &[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], // nop word [rax + rax]
];

fn choose_end(rng: &mut Rng, index: usize, count: usize, deep: bool) -> End {
    let last = index + 1 == count;
    if deep && !rng.one_in(20) {
        return if index.is_multiple_of(2) && !last {
            End::IndirectCall
        } else {
            End::Return
        };
    }
    let later = |rng: &mut Rng| index + 1 + rng.index(count - index - 1);
    match rng.index(if last { 5 } else { 20 }) {
        0 | 1 => End::Return,
        2 => End::IndirectJump,
        3 => End::FarReturn,
        4 => End::Breakpoint,
        5 => End::Syscall,
        6 => End::Jump(later(rng)),
        7..=9 => End::Call(later(rng)),
        10 => End::CallNext,
        11 | 12 => End::IndirectCall,
        13 => End::ShortLoop,
        14 => End::FallThrough,
        _ => End::Conditional(rng.index(count)),
    }
}

fn encode_end(end: End, ip: u64, block: u64, starts: &[u64]) -> Vec<u8> {
    let rel32 = |opcode: &[u8], target: u64| {
        let mut bytes = opcode.to_vec();
        let next = ip + opcode.len() as u64 + 4;
        bytes.extend((target.wrapping_sub(next) as u32).to_le_bytes());
        bytes
    };
    match end {
        End::Conditional(to) => rel32(&[0x0f, 0x84], starts[to]),
        End::ShortLoop => vec![0xe2, block.wrapping_sub(ip + 2) as u8],
        End::Jump(to) => rel32(&[0xe9], starts[to]),
        End::Call(to) => rel32(&[0xe8], starts[to]),
        End::CallNext => vec![0xe8, 0, 0, 0, 0],
        End::IndirectJump => vec![0xff, 0xe0],
        End::IndirectCall => vec![0xff, 0xd0],
        End::Return => vec![0xc3],
        End::FarReturn => vec![0xcf],
        End::Syscall => vec![0x0f, 0x05],
        End::Breakpoint => vec![0xcc],
        End::FallThrough => vec![],
    }
}

impl Program {
    /// A program of `count` (at least one) blocks at `base`, which runs in `mode`. A `deep` one is made of calls (the
    /// even blocks) and returns (the odd ones) for the most part.
    #[must_use]
    pub fn random(rng: &mut Rng, count: usize, base: Ip, mode: ExecMode, deep: bool) -> Self {
        let plan: Vec<(Vec<&[u8]>, End)> = (0..count)
            .map(|i| {
                (
                    (0..rng.index(5)).map(|_| FILLERS[rng.index(5)]).collect(),
                    choose_end(rng, i, count, deep),
                )
            })
            // A block needs an instruction at least.
            .map(|(fill, end)| {
                if end == End::FallThrough {
                    (vec![FILLERS[0]], end)
                } else {
                    (fill, end)
                }
            })
            .collect();
        // Branch sizes do not depend on their targets, so one pass gives the addresses.
        let mut starts = Vec::new();
        let mut at = base.0;
        for (fill, end) in &plan {
            starts.push(at);
            at += fill.iter().map(|f| f.len() as u64).sum::<u64>();
            at += encode_end(*end, 0, 0, &vec![0; count]).len() as u64;
        }
        let mut program = Self {
            base: base.0,
            bytes: Vec::new(),
            blocks: Vec::new(),
            mode,
        };
        for (index, (fill, end)) in plan.into_iter().enumerate() {
            let mut insns = Vec::new();
            let mut put = |bytes: &[u8], program: &mut Self| {
                insns.push((
                    Ip(program.base + program.bytes.len() as u64),
                    bytes.len() as u8,
                ));
                program.bytes.extend(bytes);
            };
            for bytes in fill {
                put(bytes, &mut program);
            }
            let ip = program.base + program.bytes.len() as u64;
            let bytes = encode_end(end, ip, starts[index], &starts);
            if !bytes.is_empty() {
                put(&bytes, &mut program);
            }
            program.blocks.push(Block {
                start: Ip(starts[index]),
                insns,
                end,
            });
        }
        program
    }
}

impl CodeSource for &Program {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        let Some(from) =
            ip.0.checked_sub(self.base)
                .and_then(|at| self.bytes.get(at as usize..))
        else {
            return 0;
        };
        let len = from.len().min(buf.len());
        buf[..len].copy_from_slice(&from[..len]);
        len
    }
}
