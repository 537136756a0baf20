//! What the tables are sure of is what the disassembler says, on every opcode and on random bytes; and they are sure of
//! nearly everything. `cargo xtask exam insn` compares more of them, and the code of the machine's binaries.

mod encodings;

use cofi_insn::{Class, LinearDecoder, by_disassembler, by_tables};
use cofi_packet::{ExecMode, Ip};
use encodings::{MODES, PREFIXES, Random, Tally, every_opcode, every_vector, random};

#[test]
fn every_opcode_with_every_modrm_byte_is_what_the_disassembler_says() {
    let mut tally = Tally::default();
    every_opcode(PREFIXES, &mut tally);
    println!("{tally:?}, {:.4}", tally.part());
    assert_eq!(tally.compared, 3 * 12 * 4 * 256 * 256);
    assert!(tally.valid > tally.compared / 3);
    // The two last of the prefixes leave it to the disassembler in 64-bit mode.
    assert!(tally.part() > 0.93, "sure of {}", tally.part());
}

#[test]
fn every_vector_opcode_is_what_the_disassembler_says() {
    let mut tally = Tally::default();
    let modrms = [
        0x00, 0x0c, 0x55, 0x94, 0x1d, 0x62, 0xaa, 0xb4, 0x3b, 0xc1, 0xd3, 0xe7, 0xf8,
    ];
    every_vector(0..=10, &modrms, &mut tally);
    println!("{tally:?}, {:.4}", tally.part());
    assert!(tally.valid > 200_000);
    assert!(tally.part() > 0.9, "sure of {}", tally.part());
}

#[test]
fn random_bytes_are_what_the_disassembler_says() {
    let mut tally = Tally::default();
    random(17, 1_000_000, &mut tally);
    println!("{tally:?}, {:.4}", tally.part());
    assert!(tally.valid > 300_000);
    assert!(tally.part() > 0.9, "sure of {}", tally.part());
}

/// Cut anywhere, an instruction is not one that the tables are sure of; with anything behind it, it stays what it is.
#[test]
fn the_tables_look_at_no_byte_that_is_not_there() {
    let mut random = Random::new(3);
    let mut whole = 0;
    for _ in 0..200_000 {
        let mut bytes = [0; 24];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        let mode = MODES[random.below(3)];
        let ip = Ip(0x1000);
        let Some(insn) = by_tables(&bytes, ip, mode) else {
            continue;
        };
        let len = usize::from(insn.len);
        whole += 1;
        for available in 0..len {
            let cut = by_tables(&bytes[..available], ip, mode);
            assert_eq!(cut, None, "{mode:?}, cut to {available}: {bytes:02x?}");
        }
        for available in len..bytes.len() {
            let longer = by_tables(&bytes[..available], ip, mode);
            assert_eq!(longer, Some(insn), "{mode:?}, of {available}: {bytes:02x?}");
        }
    }
    assert!(whole > 100_000, "{whole} instructions");
}

/// In a row, each instruction begins where the one before it ends, whoever decoded that, up to the first error.
#[test]
fn instructions_in_a_row_are_those_of_the_disassembler() {
    let mut random = Random::new(4);
    let (mut insns, mut unsure) = (0, 0);
    for _ in 0..3_000 {
        let mut bytes = [0; 96];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        let mode = MODES[random.below(3)];
        let mut at = Ip(0x40_1000);
        let mut rest = &bytes[..random.below(96)];
        let mut decoder = LinearDecoder::new(rest, at, mode);
        loop {
            assert_eq!((decoder.ip(), decoder.rest()), (at, rest), "{mode:?}");
            let truth = by_disassembler(rest, at, mode);
            assert_eq!(decoder.decode_next(), truth, "{mode:?}: {rest:02x?}");
            let Ok(insn) = truth else { break };
            insns += 1;
            unsure += u32::from(by_tables(rest, at, mode).is_none());
            at = insn.next_ip(at, mode);
            rest = &rest[usize::from(insn.len)..];
        }
    }
    assert!(
        insns > 10_000 && unsure > 5,
        "{insns}, {unsure} not by tables"
    );
}

/// What an ordinary program is made of, and what a trace follows, is in the tables and not left to the disassembler.
#[test]
fn the_tables_are_sure_of_what_programs_are_made_of() {
    let sure: [(&[u8], Class); 24] = [
        (&[0x55], Class::Other),
        (&[0x48, 0x89, 0xe5], Class::Other),
        (&[0xf3, 0x0f, 0x1e, 0xfa], Class::Other),
        (&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], Class::Other),
        (&[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8], Class::Other),
        (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], Class::Other),
        (&[0xc5, 0xf8, 0x77], Class::Other),
        (&[0xc4, 0xe2, 0x7d, 0x78, 0xc0], Class::Other),
        (&[0x62, 0xf1, 0x7c, 0x48, 0x58, 0xc1], Class::Other),
        (&[0xf0, 0x0f, 0xb1, 0x17], Class::Other),
        (&[0xdb, 0x6c, 0x24, 0x10], Class::Other),
        (&[0x74, 0x02], Class::Conditional),
        (&[0x0f, 0x84, 0, 1, 0, 0], Class::Conditional),
        (&[0xe9, 0, 1, 0, 0], Class::DirectJump),
        (&[0xe8, 0, 1, 0, 0], Class::DirectCall),
        (&[0x3e, 0xff, 0xe0], Class::IndirectJump),
        (&[0xff, 0x15, 0, 1, 0, 0], Class::IndirectCall),
        (&[0xf3, 0xc3], Class::Return),
        (&[0xcc], Class::SoftwareInterrupt),
        (&[0x48, 0xcf], Class::FarReturn),
        (&[0x0f, 0x05], Class::Syscall),
        (&[0x0f, 0x22, 0xd8], Class::MovCr3),
        (&[0x0f, 0x01, 0xc2], Class::VmEntry),
        (&[0xf4], Class::Wait),
    ];
    for (bytes, class) in sure {
        let insn = by_tables(bytes, Ip(0x1000), ExecMode::Bits64);
        let insn = insn.unwrap_or_else(|| panic!("not sure of {bytes:02x?}"));
        assert_eq!((usize::from(insn.len), insn.class), (bytes.len(), class));
    }
    // These are what the disassembler is still asked for: it knows them, or that they are nothing.
    for (bytes, valid) in [
        (&[0xc7, 0xf8, 0x10, 0, 0, 0][..], true),
        (&[0x48, 0x66, 0x90], true),
        (&[0x06], false),
        (&[0x0f, 0x0b][..1], false),
    ] {
        assert_eq!(by_tables(bytes, Ip(0x1000), ExecMode::Bits64), None);
        let truth = by_disassembler(bytes, Ip(0x1000), ExecMode::Bits64);
        assert_eq!(truth.is_ok(), valid, "{bytes:02x?}: {truth:?}");
    }
}
