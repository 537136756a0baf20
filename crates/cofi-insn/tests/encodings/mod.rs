//! Bytes to compare tables and disassembler on: every opcode with every ModRM byte, and random ones.

use cofi_insn::{by_disassembler, by_tables, decode};
use cofi_packet::{ExecMode, Ip};

/// The modes.
pub(crate) const MODES: [ExecMode; 3] = [ExecMode::Bits16, ExecMode::Bits32, ExecMode::Bits64];

/// Prefixes of which each matters to lengths, and what they do together.
pub(crate) const PREFIXES: &[&[u8]] = &[
    &[],
    &[0x66],
    &[0xf3],
    &[0xf2],
    &[0x67],
    &[0x48],
    &[0x66, 0x67],
    &[0x66, 0xf3],
    &[0xf2, 0x66, 0x4c],
    &[0x2e, 0xf0, 0x44],
    // Not directly before the opcode REX is ignored.
    &[0x48, 0x66],
    &[0x40, 0x48],
];

/// How often what was asked of both was an instruction, and how often the tables were sure of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many byte strings were compared.
    pub(crate) compared: u64,
    /// Of how many the disassembler makes an instruction.
    pub(crate) valid: u64,
    /// Of how many of those the tables do.
    pub(crate) sure: u64,
}

impl Tally {
    /// Compares both on these bytes.
    pub(crate) fn compare(&mut self, bytes: &[u8], ip: Ip, mode: ExecMode) {
        let truth = by_disassembler(bytes, ip, mode);
        let tables = by_tables(bytes, ip, mode);
        self.compared += 1;
        self.valid += u64::from(truth.is_ok());
        if let Some(insn) = tables {
            self.sure += 1;
            assert_eq!(Ok(insn), truth, "tables, {mode:?}, {ip}: {bytes:02x?}");
        }
    }

    /// The part of the instructions that the tables are sure of.
    pub(crate) fn part(&self) -> f64 {
        self.sure as f64 / self.valid as f64
    }
}

/// Random numbers from a seed (xorshift).
pub(crate) struct Random(u64);

impl Random {
    /// From a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // Its low bits by themselves are a poor generator.
        self.0.wrapping_mul(0xd129_42f2_5ae0_17cd) >> 16 ^ self.0 << 48
    }

    /// One below `end`.
    pub(crate) fn below(&mut self, end: u64) -> usize {
        (self.next() >> 8) as usize % end as usize
    }
}

/// Every opcode of the maps without VEX with every ModRM byte, behind each of these prefixes.
pub(crate) fn every_opcode(prefixes: &[&[u8]], tally: &mut Tally) {
    const ESCAPES: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    let mut random = Random::new(1);
    for mode in MODES {
        for prefix in prefixes {
            for escape in ESCAPES {
                for opcode in 0..=255_u8 {
                    let head = [prefix, escape, &[opcode]].concat();
                    every_modrm(&head, 0..=255, mode, &mut random, tally);
                }
            }
        }
    }
}

/// This with each of these ModRM bytes and random ones behind it.
fn every_modrm(
    head: &[u8],
    modrms: impl IntoIterator<Item = u8>,
    mode: ExecMode,
    random: &mut Random,
    tally: &mut Tally,
) {
    let mut bytes = [0; 32];
    bytes[..head.len()].copy_from_slice(head);
    let at = head.len();
    bytes[at + 9..at + 17].copy_from_slice(&random.next().to_le_bytes());
    for modrm in modrms {
        bytes[at] = modrm;
        bytes[at + 1..at + 9].copy_from_slice(&random.next().to_le_bytes());
        if random.below(2) == 0 {
            // A SIB byte that may have a displacement without a base.
            bytes[at + 1] = bytes[at + 1] & 0xf8 | 5;
        }
        let ip = Ip(0x40_1000 + u64::from(modrm));
        tally.compare(&bytes[..at + 17], ip, mode);
    }
}

/// Every opcode of these maps of VEX and XOP, and of all of EVEX, with every prefix, W and vector length in it, and with these ModRM bytes.
pub(crate) fn every_vector(
    maps: impl Iterator<Item = u8> + Clone,
    modrms: &[u8],
    tally: &mut Tally,
) {
    let mut random = Random::new(2);
    for mode in MODES {
        for opcode in 0..=255_u8 {
            for low in 0..8 {
                // The second register, or all ones for none.
                let vvvv = [0x78, 0x00, 0x40][random.below(3)];
                let head = [0xc5, 0x80 | vvvv | low, opcode];
                every_modrm(&head, modrms.iter().copied(), mode, &mut random, tally);
                for wide in [0, 0x80] {
                    for map in maps.clone() {
                        // Bits of registers, which outside 64-bit mode tell VEX from LES and LDS.
                        let registers = [0xe0, 0xc0, 0x20][random.below(3)];
                        for first in [0xc4, 0x8f] {
                            let head = [first, registers | map, wide | vvvv | low, opcode];
                            every_modrm(&head, modrms.iter().copied(), mode, &mut random, tally);
                        }
                    }
                    for map in 0..8 {
                        let registers = [0xf0, 0xd0, 0x30][random.below(3)];
                        // With bit 2 set, which it always is in EVEX; the length is in the next byte.
                        let second = wide | vvvv | 4 | low & 3;
                        let third = (random.next() as u8) & 0x9f | (low & 4) << 4;
                        for third in [third, third | 0x20, third & 0x60 | 8] {
                            let head = [0x62, registers | map, second, third, opcode];
                            every_modrm(&head, modrms.iter().copied(), mode, &mut random, tally);
                        }
                    }
                }
            }
        }
    }
}

/// Random instructions, at random addresses, some of them cut.
pub(crate) fn random(seed: u64, count: u64, tally: &mut Tally) {
    const PREFIXES: [u8; 10] = [0x66, 0xf2, 0xf3, 0x67, 0xf0, 0x2e, 0x65, 0x66, 0x48, 0x41];
    let mut random = Random::new(seed);
    for _ in 0..count {
        let mode = MODES[random.below(3)];
        let mut bytes = [0; 20];
        for word in bytes.chunks_mut(4) {
            word.copy_from_slice(&(random.next() as u32).to_le_bytes());
        }
        let mut at = 0;
        while at < 14 && random.below(3) == 0 {
            bytes[at] = PREFIXES[random.below(10)];
            at += 1;
        }
        let second = bytes[at + 1];
        match random.below(12) {
            0..=3 => bytes[at] = 0x0f,
            4 => [bytes[at], bytes[at + 1]] = [0x0f, 0x38],
            5 => [bytes[at], bytes[at + 1]] = [0x0f, 0x3a],
            6 => bytes[at] = 0xc5,
            7 => [bytes[at], bytes[at + 1]] = [0xc4, second & 0xe3],
            8 => [bytes[at], bytes[at + 1]] = [0x8f, second & 0xe3 | 8],
            9 => {
                [bytes[at], bytes[at + 1]] = [0x62, second & 0xf7];
                bytes[at + 2] |= 4;
            }
            _ => {}
        }
        let ip = Ip(random.next() >> random.below(64));
        let len = if random.below(4) == 0 {
            random.below(20)
        } else {
            20
        };
        tally.compare(&bytes[..len], ip, mode);
        // What a caller gets is the same.
        assert_eq!(
            decode(&bytes[..len], ip, mode),
            by_disassembler(&bytes[..len], ip, mode)
        );
    }
}
