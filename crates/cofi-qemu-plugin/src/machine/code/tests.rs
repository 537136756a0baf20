//! How blocks end, by example and as Cofi's decoder of instructions sees it.

use super::End;
use crate::layout::state;
use cofi_insn::{Class, Insn, decode};
use cofi_packet::{ExecMode, Ip};
use proptest::prelude::*;

#[test]
fn ends_are_told_by_the_last_instruction() {
    let cases: [(&[u8], End); 20] = [
        (&[0x90], End::Plain),
        (&[0x48], End::Plain),
        (&[0x75, 0xfe], End::Direct(-2, false)),
        (&[0xe2, 0x10], End::Direct(16, false)),
        (
            &[0x0f, 0x84, 0xff, 0xff, 0xff, 0xff],
            End::Direct(-1, false),
        ),
        (&[0x0f, 0x84, 0x00, 0x01], End::Direct(256, false)),
        (&[0x66, 0xe9, 0, 1, 0, 0], End::Direct(256, true)),
        (&[0xe8, 1, 0, 0, 0], End::Direct(1, false)),
        (&[0xf3, 0xa4], End::Repeat),
        (&[0xf3, 0x48, 0xab], End::Repeat),
        (&[0xa4], End::Plain),
        (&[0xf3, 0xc3], End::Near),
        (&[0xff, 0xe0], End::Near),
        (&[0x41, 0xff, 0xd3], End::Near),
        (&[0xff, 0x5d, 0x00], End::FarCall),
        (&[0xff, 0x00], End::Plain),
        (&[0x48, 0xcf], End::Far),
        (&[0xcd, 0x80], End::Far),
        (&[0x0f, 0x05], End::Far),
        (&[0xea, 0, 0x7c, 0, 0], End::Far),
    ];
    for (bytes, end) in cases {
        assert_eq!(End::of(bytes), end, "{bytes:x?}");
    }
}

const MODES: [(ExecMode, u32); 3] = [
    (ExecMode::Bits16, 0),
    (ExecMode::Bits32, state::BITS_32),
    (ExecMode::Bits64, state::BITS_64),
];
/// Where instructions stand: 16-bit ones are offsets here.
const AT: u64 = 0x7000;

/// What an instruction's class makes of its end, the target apart.
fn end_of(insn: Insn) -> &'static [&'static str] {
    match insn.class {
        Class::Conditional | Class::DirectJump | Class::DirectCall => &["direct"],
        Class::Return | Class::IndirectJump | Class::IndirectCall => &["near"],
        Class::FarCall => &["far call"],
        Class::FarJump
        | Class::FarReturn
        | Class::Syscall
        | Class::SoftwareInterrupt
        | Class::Into
        | Class::VmEntry
        | Class::VmOther => &["far"],
        // It may abort; QEMU has no transactions.
        Class::Xbegin | Class::Xend | Class::Xabort => &["plain", "far"],
        Class::Other if insn.repeats => &["repeat"],
        // Leaves that QEMU does not have share an opcode with those of virtual machines.
        Class::Other | Class::Enclave | Class::Wait => &["plain", "far"],
        _ => &["plain"],
    }
}

fn name(end: End) -> &'static str {
    match end {
        End::Plain => "plain",
        End::Direct(..) => "direct",
        End::Repeat => "repeat",
        End::Near => "near",
        End::Far => "far",
        End::FarCall => "far call",
    }
}

/// Compares an instruction at the beginning of these bytes, if there is one.
fn compare(bytes: &[u8], (mode, bits): (ExecMode, u32)) {
    // QEMU has no REX2 prefix, which is AAD in other modes.
    if bytes[0] == 0xd5 && mode == ExecMode::Bits64 {
        return;
    }
    let Ok(insn) = decode(bytes, Ip(AT), mode) else {
        return;
    };
    let bytes = &bytes[..usize::from(insn.len)];
    let end = End::of(bytes);
    assert!(
        end_of(insn).contains(&name(end)),
        "{bytes:x?} in {mode:?}: {insn:?}, not {end:?}"
    );
    if let (End::Direct(by, has_66), Some(target)) = (end, insn.target) {
        let after = AT + bytes.len() as u64;
        assert_eq!(
            super::target(after, by, has_66, bits),
            target.0,
            "{bytes:x?} in {mode:?}: {insn:?}, not {end:?}"
        );
    }
}

/// All that can stand before an opcode, but for what AVX has.
const BEFORE: [&[u8]; 14] = [
    &[],
    &[0x66],
    &[0x67],
    &[0xf2],
    &[0xf3],
    &[0x2e],
    &[0x64],
    &[0xf0],
    &[0x41],
    &[0x48],
    &[0x66, 0x48],
    &[0x48, 0x66],
    &[0xf3, 0x4f],
    &[0x66, 0x67, 0xf2],
];

#[test]
fn every_opcode_ends_as_the_decoder_sees_it() {
    for mode in MODES {
        for before in BEFORE {
            for two in 0..=u16::MAX {
                let mut bytes = before.to_vec();
                bytes.extend(two.to_be_bytes());
                bytes.extend([0xd8, 0x12, 0x85, 0x34, 0xfe, 0xff, 0x01, 0x80, 0x7f]);
                compare(&bytes, mode);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn any_instruction_ends_as_the_decoder_sees_it(bytes: [u8; 16]) {
        for mode in MODES {
            compare(&bytes, mode);
        }
    }
}
