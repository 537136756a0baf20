//! The opcode maps of VEX, XOP and EVEX.
//!
//! From Intel's manual, volume 2: section 2.3 (VEX), 2.7 (EVEX) and the entry of each instruction, which says with which
//! VEX.pp, VEX.W and vector length its encoding exists; XOP from AMD's volume 6. Rows are sorted as the manual's tables A-3
//! to A-5 are, by map and opcode. A row holds where the disassembler accepts each of its encodings in all modes, with all
//! operands; AMX and CMPccXADD, which exist in 64-bit mode only, are left to it.

use super::form::{F2, F3, NP, P66, Prefixes};

/// The encodings with which an opcode exists.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    /// With an operand in memory: a bit for each combination of prefix, W and vector length ([`key`]).
    pub(super) mem: u32,
    /// With registers only.
    pub(super) reg: u32,
    /// Which values of ModRM's reg field exist, where W is 0 and 1.
    pub(super) regs: [u8; 2],
}

/// The opcodes of a map.
pub(super) type Map = [Cell; 256];

/// One map's encodings of some opcodes, which exist with one prefix: with memory, with registers.
struct Row {
    map: usize,
    prefix: Prefixes,
    mem: u32,
    reg: u32,
    /// In hexadecimal, each one or a first and a last.
    opcodes: &'static str,
}

const fn v(map: usize, prefix: Prefixes, mem: u32, reg: u32, opcodes: &'static str) -> Row {
    Row {
        map,
        prefix,
        mem,
        reg,
        opcodes,
    }
}

/// The opcode of a group, and which values of ModRM's reg field it has where W is 0 and 1.
struct Group {
    map: usize,
    opcode: u8,
    regs: [u8; 2],
}

/// The bit of a combination in a [`Cell`]; `lengths` is how many vector lengths the encoding can say.
#[inline]
pub(super) const fn key(prefix: u32, wide: bool, length: u32, lengths: u32) -> u32 {
    (prefix * 2 + wide as u32) * lengths + length
}

const fn map(number: usize, lengths: u32, rows: &[Row], groups: &[Group]) -> Map {
    let mut cells = [Cell {
        mem: 0,
        reg: 0,
        regs: [0xff; 2],
    }; 256];
    let mut at = 0;
    while at < rows.len() {
        let row = &rows[at];
        let shift = key(row.prefix.trailing_zeros(), false, 0, lengths);
        let text = row.opcodes.as_bytes();
        let mut place = 0;
        while row.map == number && place < text.len() {
            let first = byte(text, place);
            let mut last = first;
            place += 2;
            if place < text.len() && text[place] == b'-' {
                last = byte(text, place + 1);
                place += 3;
            }
            // The space.
            place += 1;
            let mut opcode = first;
            while opcode <= last {
                cells[opcode].mem |= row.mem << shift;
                cells[opcode].reg |= row.reg << shift;
                opcode += 1;
            }
        }
        at += 1;
    }
    let mut at = 0;
    while at < groups.len() {
        let group = &groups[at];
        if group.map == number {
            cells[group.opcode as usize].regs = group.regs;
        }
        at += 1;
    }
    cells
}

/// The byte that two hexadecimal digits at this place say.
const fn byte(text: &[u8], place: usize) -> usize {
    digit(text[place]) << 4 | digit(text[place + 1])
}

const fn digit(digit: u8) -> usize {
    match digit {
        b'0'..=b'9' => (digit - b'0') as usize,
        b'a'..=b'f' => (digit - b'a' + 10) as usize,
        _ => panic!("no hexadecimal digit"),
    }
}

/// The maps 1 (0F), 2 (0F 38) and 3 (0F 3A) of VEX.
pub(super) static VEX: [Map; 3] = [
    map(1, 2, VEX_ROWS, VEX_GROUPS),
    map(2, 2, VEX_ROWS, VEX_GROUPS),
    map(3, 2, VEX_ROWS, VEX_GROUPS),
];

/// The maps 8, 9 and 10 of XOP.
pub(super) static XOP: [Map; 3] = [
    map(8, 2, XOP_ROWS, XOP_GROUPS),
    map(9, 2, XOP_ROWS, XOP_GROUPS),
    map(10, 2, XOP_ROWS, XOP_GROUPS),
];

/// The maps 1, 2, 3, 5 and 6 of EVEX.
pub(super) static EVEX: [Map; 5] = [
    map(1, 4, EVEX_ROWS, EVEX_GROUPS),
    map(2, 4, EVEX_ROWS, EVEX_GROUPS),
    map(3, 4, EVEX_ROWS, EVEX_GROUPS),
    map(5, 4, EVEX_ROWS, EVEX_GROUPS),
    map(6, 4, EVEX_ROWS, EVEX_GROUPS),
];

const fn group(map: usize, opcode: u8, regs: [u8; 2]) -> Group {
    Group { map, opcode, regs }
}

/// Shifts by an immediate, LDMXCSR and STMXCSR; BLSR, BLSMSK and BLSI.
const VEX_GROUPS: &[Group] = &[
    group(1, 0x71, [0x54; 2]),
    group(1, 0x72, [0x54; 2]),
    group(1, 0x73, [0xcc; 2]),
    group(1, 0xae, [0x0c; 2]),
    group(2, 0xf3, [0x0e; 2]),
];

/// AMD's bit operations, and LLWPCB, SLWPCB, LWPINS and LWPVAL.
const XOP_GROUPS: &[Group] = &[
    group(9, 0x01, [0xfe; 2]),
    group(9, 0x02, [0x42; 2]),
    group(9, 0x12, [0x03; 2]),
    group(10, 0x12, [0x03; 2]),
];

/// Shifts and rotations by an immediate; prefetches with gather and scatter.
const EVEX_GROUPS: &[Group] = &[
    group(1, 0x71, [0x54; 2]),
    group(1, 0x72, [0x57, 0x13]),
    group(1, 0x73, [0x88, 0xcc]),
    group(2, 0xc6, [0x66; 2]),
    group(2, 0xc7, [0x66; 2]),
];

/// No encoding.
const NEVER: u32 = 0;
/// Whatever W and the vector length are.
const WIG_LIG: u32 = 0b1111;
/// VEX.L = 0, whatever W is.
const WIG_L0: u32 = 0b0101;
/// VEX.L = 1, whatever W is.
const WIG_L1: u32 = 0b1010;
/// VEX.W = 0, whatever the length is.
const W0_LIG: u32 = 0b0011;
/// VEX.W = 1, whatever the length is.
const W1_LIG: u32 = 0b1100;
const W0_L0: u32 = 0b0001;
const W0_L1: u32 = 0b0010;
const W1_L1: u32 = 0b1000;

// A row a line: rustfmt would make it seven.
#[rustfmt::skip]
const VEX_ROWS: &[Row] = &[
    // VEX map 1.
    v(1, NP, NEVER, W0_L0, "92-93"),
    v(1, NP, NEVER, WIG_L0, "44 98-99"),
    v(1, NP, NEVER, WIG_L1, "41-42 45-47 4a-4b"),
    v(1, NP, NEVER, WIG_LIG, "50"),
    v(1, NP, WIG_L0, NEVER, "13 17 91 ae"),
    v(1, NP, WIG_L0, WIG_L0, "12 16 90"),
    v(1, NP, WIG_LIG, NEVER, "2b"),
    v(1, NP, WIG_LIG, WIG_LIG, "10-11 14-15 28-29 2e-2f 51-5f c2 c6"),
    v(1, P66, NEVER, W0_L0, "92-93"),
    v(1, P66, NEVER, W0_L1, "4b"),
    v(1, P66, NEVER, WIG_L0, "44 98-99 c5 f7"),
    v(1, P66, NEVER, WIG_L1, "41-42 45-47 4a"),
    v(1, P66, NEVER, WIG_LIG, "50 71-73 d7"),
    v(1, P66, WIG_L0, NEVER, "12-13 16-17 91"),
    v(1, P66, WIG_L0, WIG_L0, "6e 7e 90 c4 d6"),
    v(1, P66, WIG_LIG, NEVER, "2b e7"),
    v(1, P66, WIG_LIG, WIG_LIG, "10-11 14-15 28-29 2e-2f 51 54-6d 6f-70 74-76 7c-7d 7f c2 c6 d0-d5 d8-e6 e8-ef f1-f6 f8-fe"),
    v(1, F3, WIG_L0, WIG_L0, "7e"),
    v(1, F3, WIG_LIG, WIG_LIG, "10-12 16 2a 2c-2d 51-53 58-5f 6f-70 7f c2 e6"),
    v(1, F2, NEVER, WIG_L0, "92-93"),
    v(1, F2, WIG_LIG, NEVER, "f0"),
    v(1, F2, WIG_LIG, WIG_LIG, "10-12 2a 2c-2d 51 58-5a 5c-5f 70 7c-7d c2 d0 e6"),
    // VEX map 2.
    v(2, NP, W0_L0, W0_L0, "da"),
    v(2, NP, W0_LIG, NEVER, "b0"),
    v(2, NP, W0_LIG, W0_LIG, "50-51 d2-d3"),
    v(2, NP, WIG_L0, WIG_L0, "f2-f3 f5 f7"),
    v(2, P66, W0_L0, W0_L0, "da"),
    v(2, P66, W0_L1, NEVER, "1a 5a"),
    v(2, P66, W0_L1, W0_L1, "16 19 36"),
    v(2, P66, W0_LIG, NEVER, "2c-2f b0-b1"),
    v(2, P66, W0_LIG, W0_LIG, "0c-0f 13 18 46 50-53 58-59 78-79 cf d2-d3"),
    v(2, P66, WIG_L0, WIG_L0, "41 db f7"),
    v(2, P66, W1_LIG, W1_LIG, "b4-b5"),
    v(2, P66, WIG_LIG, NEVER, "2a 8c 8e 90-93"),
    v(2, P66, WIG_LIG, WIG_LIG, "00-0b 17 1c-1e 20-25 28-29 2b 30-35 37-40 45 47 96-9f a6-af b6-bf dc-df"),
    v(2, F3, W0_LIG, NEVER, "b0-b1"),
    v(2, F3, W0_LIG, W0_LIG, "50-51 72 d2-d3 da"),
    v(2, F3, WIG_L0, WIG_L0, "f5 f7"),
    v(2, F2, NEVER, W0_L1, "cb-cd"),
    v(2, F2, W0_LIG, NEVER, "b0"),
    v(2, F2, W0_LIG, W0_LIG, "50-51 da"),
    v(2, F2, WIG_L0, WIG_L0, "f5-f7"),
    // VEX map 3.
    v(3, P66, NEVER, WIG_L0, "30-33"),
    v(3, P66, W0_L0, W0_L0, "de"),
    v(3, P66, W0_L1, W0_L1, "06 18-19 38-39 46"),
    v(3, P66, W0_LIG, W0_LIG, "02 04-05 1d 4a-4c"),
    v(3, P66, WIG_L0, WIG_L0, "14-17 20-22 41 60-63 df"),
    v(3, P66, W1_L1, W1_L1, "00-01"),
    v(3, P66, W1_LIG, W1_LIG, "ce-cf"),
    v(3, P66, WIG_LIG, WIG_LIG, "08-0f 40 42 44 48-49 5c-5f 68-6f 78-7f"),
    v(3, F2, WIG_L0, WIG_L0, "f0"),
];

// A row a line: rustfmt would make it seven.
#[rustfmt::skip]
const XOP_ROWS: &[Row] = &[
    // XOP map 8.
    v(8, NP, W0_L0, W0_L0, "85-87 8e-8f 95-97 9e-9f a6 b6 c0-c3 cc-cf ec-ef"),
    v(8, NP, WIG_L0, WIG_L0, "a3"),
    v(8, NP, WIG_LIG, WIG_LIG, "a2"),
    // XOP map 9.
    v(9, NP, NEVER, WIG_L0, "12"),
    v(9, NP, W0_L0, W0_L0, "82-83 c1-c3 c6-c7 cb d1-d3 d6-d7 db e1-e3"),
    v(9, NP, W0_LIG, W0_LIG, "80-81"),
    v(9, NP, WIG_L0, WIG_L0, "01-02 90-9b"),
    // XOP map 10.
    v(10, NP, WIG_L0, WIG_L0, "10 12"),
];

use evex::ROWS as EVEX_ROWS;

mod evex {
    use super::{F2, F3, NEVER, NP, P66, Row, v};

    /// EVEX.W = 0 with vectors of 128, 256 and 512 bits.
    const W0_VL: u32 = 0x07;
    /// EVEX.W = 1 with vectors of 128, 256 and 512 bits.
    const W1_VL: u32 = 0x70;
    /// Either W with vectors of 128, 256 and 512 bits.
    const WIG_VL: u32 = 0x77;
    /// EVEX.W = 0, whatever the length is.
    const W0_LIG: u32 = 0x0f;
    /// EVEX.W = 1, whatever the length is.
    const W1_LIG: u32 = 0xf0;
    /// Whatever W and the length are.
    const WIG_LIG: u32 = 0xff;
    const W0_128: u32 = 0x01;
    const W1_128: u32 = 0x10;
    const WIG_128: u32 = 0x11;
    /// 256 and 512 bits.
    const WIG_256UP: u32 = 0x66;
    const W1_256UP: u32 = 0x60;
    const WIG_512: u32 = 0x44;
    const W0_512: u32 = 0x04;

    // A row a line: rustfmt would make it seven.
    #[rustfmt::skip]
    pub(super) const ROWS: &[Row] = &[
    // EVEX map 1.
    v(1, NP, W0_128, NEVER, "13 17"),
    v(1, NP, W0_128, W0_128, "12 16"),
    v(1, NP, W0_VL, NEVER, "2b"),
    v(1, NP, W0_VL, W0_VL, "10-11 14-15 28-29 51 54-5a 5c-5f c2 c6"),
    v(1, NP, W0_LIG, W0_LIG, "2e-2f"),
    v(1, NP, WIG_VL, WIG_VL, "5b 78-79"),
    v(1, P66, NEVER, WIG_128, "c5"),
    v(1, P66, W0_VL, NEVER, "e7"),
    v(1, P66, W0_VL, W0_VL, "5b 62 66 6a-6b 70 72-73 76 d2 f2 fa fe"),
    v(1, P66, W1_128, NEVER, "12-13 16-17"),
    v(1, P66, W1_128, W1_128, "d6"),
    v(1, P66, WIG_128, WIG_128, "6e 7e c4"),
    v(1, P66, W1_VL, NEVER, "2b"),
    v(1, P66, W1_VL, W1_VL, "10-11 14-15 28-29 51 54-5a 5c-5f 6c-6d 72-73 c2 c6 d3-d4 e6 f3-f4 fb"),
    v(1, P66, WIG_VL, WIG_VL, "60-61 63-65 67-69 6f 71 74-75 78-7b 7f d1 d5 d8-e5 e8-ef f1 f5-f6 f8-f9 fc-fd"),
    v(1, P66, W1_LIG, W1_LIG, "2e-2f"),
    v(1, F3, W0_VL, W0_VL, "12 16 5b"),
    v(1, F3, W0_LIG, W0_LIG, "10-11 51 58-5a 5c-5f c2"),
    v(1, F3, W1_128, W1_128, "7e"),
    v(1, F3, WIG_VL, WIG_VL, "6f-70 7a 7f e6"),
    v(1, F3, WIG_LIG, WIG_LIG, "2a 2c-2d 78-79 7b"),
    v(1, F2, W1_VL, W1_VL, "12 e6"),
    v(1, F2, WIG_VL, WIG_VL, "6f-70 7a 7f"),
    v(1, F2, W1_LIG, W1_LIG, "10-11 51 58-5a 5c-5f c2"),
    v(1, F2, WIG_LIG, WIG_LIG, "2a 2c-2d 78-79 7b"),
    // EVEX map 2.
    v(2, P66, NEVER, W0_VL, "7a-7b"),
    v(2, P66, NEVER, WIG_VL, "7c"),
    v(2, P66, W0_VL, NEVER, "2a"),
    v(2, P66, W0_VL, W0_VL, "0c 13 18 1e 25 2b 35 50-53 58 78-79 8f cf"),
    v(2, P66, WIG_512, NEVER, "1b 5b c6-c7"),
    v(2, P66, WIG_512, WIG_512, "c8 ca cc"),
    v(2, P66, WIG_256UP, NEVER, "1a 5a"),
    v(2, P66, WIG_256UP, WIG_256UP, "16 19 36"),
    v(2, P66, W1_VL, W1_VL, "0d 10-12 1f 28-29 37 70 72 83 b4-b5"),
    v(2, P66, WIG_VL, NEVER, "90-93 a0-a3"),
    v(2, P66, WIG_VL, WIG_VL, "00 04 0b 14-15 1c-1d 20-24 26-27 2c 30-34 38-40 42 44-47 4c 4e 54-55 59 62-66 71 73 75-77 7d-7f 88-8b 8d 96-98 9a 9c 9e a6-a8 aa ac ae b6-b8 ba bc be c4 dc-df"),
    v(2, P66, WIG_LIG, WIG_LIG, "2d 43 4d 4f 99 9b 9d 9f a9 ab ad af b9 bb bd bf cb cd"),
    v(2, F3, NEVER, W0_VL, "3a"),
    v(2, F3, NEVER, W1_VL, "2a"),
    v(2, F3, NEVER, WIG_VL, "28-29 38-39"),
    v(2, F3, W0_VL, W0_VL, "10-15 20-25 30-35 52 72"),
    v(2, F3, WIG_VL, WIG_VL, "26-27"),
    v(2, F2, W0_512, NEVER, "52-53 9a aa"),
    v(2, F2, W0_VL, W0_VL, "72"),
    v(2, F2, W0_LIG, NEVER, "9b ab"),
    v(2, F2, WIG_VL, WIG_VL, "68"),
    // EVEX map 3.
    v(3, NP, W0_VL, W0_VL, "08 26 56 66 c2"),
    v(3, NP, W0_LIG, W0_LIG, "0a 27 57 67"),
    v(3, P66, W0_128, W0_128, "21"),
    v(3, P66, W0_VL, W0_VL, "04 08 1d 42"),
    v(3, P66, W0_LIG, W0_LIG, "0a"),
    v(3, P66, WIG_128, WIG_128, "14-17 20 22"),
    v(3, P66, WIG_512, WIG_512, "1a-1b 3a-3b"),
    v(3, P66, W1_256UP, W1_256UP, "00-01"),
    v(3, P66, WIG_256UP, WIG_256UP, "18-19 23 38-39 43"),
    v(3, P66, W1_VL, W1_VL, "05 09 70 72 ce-cf"),
    v(3, P66, WIG_VL, WIG_VL, "03 0f 1e-1f 25-26 3e-3f 44 50 54 56 66 71 73"),
    v(3, P66, W1_LIG, W1_LIG, "0b"),
    v(3, P66, WIG_LIG, WIG_LIG, "27 51 55 57 67"),
    v(3, F3, W0_LIG, W0_LIG, "c2"),
    // EVEX map 5.
    v(5, NP, W0_VL, W0_VL, "51 58-5a 5c-5f 78-79 7c-7d"),
    v(5, NP, W0_LIG, W0_LIG, "1d 2e-2f"),
    v(5, NP, WIG_VL, WIG_VL, "5b"),
    v(5, P66, W0_VL, W0_VL, "1d 5b 78-7d"),
    v(5, P66, WIG_128, WIG_128, "6e 7e"),
    v(5, P66, W1_VL, W1_VL, "5a"),
    v(5, F3, W0_VL, W0_VL, "5b 7d"),
    v(5, F3, W0_LIG, W0_LIG, "10-11 51 58-5a 5c-5f"),
    v(5, F3, WIG_LIG, WIG_LIG, "2a 2c-2d 78-79 7b"),
    v(5, F2, W0_VL, W0_VL, "7d"),
    v(5, F2, WIG_VL, WIG_VL, "7a"),
    v(5, F2, W1_LIG, W1_LIG, "5a"),
    // EVEX map 6.
    v(6, NP, W0_LIG, W0_LIG, "13"),
    v(6, P66, W0_VL, W0_VL, "13 2c 42 4c 4e 96-98 9a 9c 9e a6-a8 aa ac ae b6-b8 ba bc be"),
    v(6, P66, W0_LIG, W0_LIG, "2d 43 4d 4f 99 9b 9d 9f a9 ab ad af b9 bb bd bf"),
    v(6, F3, W0_VL, W0_VL, "56 d6"),
    v(6, F3, W0_LIG, W0_LIG, "57 d7"),
    v(6, F2, W0_VL, W0_VL, "56 d6"),
    v(6, F2, W0_LIG, W0_LIG, "57 d7"),
    ];
}
