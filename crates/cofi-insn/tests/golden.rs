//! Byte strings and what they are, in each mode; and every proper prefix of each must be called truncated.

use cofi_insn::{Class, InsnError, MAX_INSN_LEN, advance, decode};
use cofi_packet::{ExecMode, Ip};

/// mode, address, bytes, class, target (or `-`), flags (`rep`, `zero` for a zero-length call).
const GOLDEN: &str = "
# plain instructions
64 1000  90                             Other        -
64 1000  f3 90                          Other        -
64 1000  48 89 e5                       Other        -
64 1000  f3 0f 1e fa                    Other        -
64 1000  66 2e 0f 1f 84 00 00 00 00 00  Other        -
64 1000  48 b8 08 07 06 05 04 03 02 01  Other        -
64 1000  62 f1 7c 48 58 c1              Other        -
64 1000  c5 f8 58 c1                    Other        -
64 1000  0f 0b                          Other        -
32 1000  40                             Other        -
16 1000  b8 34 12                       Other        -
32 1000  b8 78 56 34 12                 Other        -
64 1000  f0 48 0f b1 0f                 Other        -
# conditional branches
64 1000  74 02                          Conditional  1004
64 1000  75 fe                          Conditional  1000
64 1000  0f 84 00 01 00 00              Conditional  1106
64 1000  0f 8f fa ff ff ff              Conditional  1000
64 1000  e3 10                          Conditional  1012
64 1000  67 e3 10                       Conditional  1013
64 1000  e2 fe                          Conditional  1000
64 1000  e1 fe                          Conditional  1000
64 1000  e0 fe                          Conditional  1000
64 1000  2e 74 02                       Conditional  1005
32 fffffffe 74 10                       Conditional  10
32 1000  66 0f 84 00 01                 Conditional  1105
32 12345 66 74 00                       Conditional  2348
16 fff0  74 20                          Conditional  12
16 fff0  0f 84 00 80                    Conditional  7ff4
16 f1234 74 20                          Conditional  f1256
16 f1234 0f 84 fc ff                    Conditional  f1234
16 1000  66 0f 84 00 00 01 00           Conditional  11007
# direct jumps and calls
64 1000  eb fe                          DirectJump   1000
64 1000  e9 fb ff ff ff                 DirectJump   1000
64 ffffffff81000000 e9 00 00 00 80      DirectJump   ffffffff01000005
64 1000  66 e9 00 00 00 00              DirectJump   1006
32 1000  e9 fb ef ff ff                 DirectJump   0
32 1000  e9 fa ef ff ff                 DirectJump   ffffffff
16 1000  e9 00 f0                       DirectJump   3
64 1000  e8 fb ff ff ff                 DirectCall   1000
64 1000  e8 00 00 00 00                 DirectCall   1005   zero
32 1000  e8 00 00 00 00                 DirectCall   1005   zero
32 fffffffb e8 00 00 00 00              DirectCall   0      zero
16 fffd  e8 00 00                       DirectCall   0      zero
16 1000  e8 01 00                       DirectCall   1004
64 1000  f2 e8 10 00 00 00              DirectCall   1016
# indirect ones
64 1000  ff e0                          IndirectJump -
64 1000  3e ff e0                       IndirectJump -
64 1000  ff 25 00 00 00 00              IndirectJump -
64 1000  d5 00 a1 08 07 06 05 04 03 02 01 IndirectJump -
64 1000  ff d0                          IndirectCall -
64 1000  41 ff d3                       IndirectCall -
64 1000  f2 ff 15 00 00 00 00           IndirectCall -
32 1000  ff 14 85 00 10 00 00           IndirectCall -
64 1000  c3                             Return       -
64 1000  f3 c3                          Return       -
64 1000  f2 c3                          Return       -
64 1000  c2 08 00                       Return       -
16 1000  66 c3                          Return       -
# far transfers
64 1000  cb                             FarReturn    -
64 1000  48 cb                          FarReturn    -
64 1000  ca 08 00                       FarReturn    -
64 1000  cf                             FarReturn    -
64 1000  48 cf                          FarReturn    -
16 1000  cf                             FarReturn    -
64 1000  0f 07                          FarReturn    -
64 1000  48 0f 07                       FarReturn    -
64 1000  0f 35                          FarReturn    -
64 1000  f3 0f 01 ec                    FarReturn    -
64 1000  0f aa                          FarReturn    -
32 1000  9a 78 56 34 12 08 00           FarCall      -
64 1000  ff 18                          FarCall      -
64 1000  48 ff 18                       FarCall      -
32 1000  ea 78 56 34 12 08 00           FarJump      -
16 1000  ea 34 12 00 f0                 FarJump      -
64 1000  48 ff 28                       FarJump      -
64 1000  0f 05                          Syscall      -
64 1000  0f 34                          Syscall      -
64 1000  cc                             SoftwareInterrupt -
64 1000  cd 80                          SoftwareInterrupt -
64 1000  f1                             SoftwareInterrupt -
32 1000  ce                             Into         -
64 1000  0f 01 c2                       VmEntry      -
64 1000  0f 01 c3                       VmEntry      -
64 1000  0f 01 c1                       VmOther      -
64 1000  0f 01 d4                       VmOther      -
64 1000  0f c7 33                       VmPtrLoad    -
64 1000  0f c7 38                       Other        -
64 1000  0f 22 d8                       MovCr3       -
64 1000  0f 22 d0                       Other        -
64 1000  44 0f 22 c0                    Other        -
64 1000  0f 20 d8                       Other        -
64 1000  f3 48 0f ae e0                 Ptwrite      -
64 1000  f3 0f ae 23                    Ptwrite      -
64 1000  c7 f8 10 00 00 00              Xbegin       1016
64 1000  0f 01 d5                       Xend         -
64 1000  c6 f8 ff                       Xabort       -
64 1000  f4                             Wait         -
64 1000  0f 01 c9                       Wait         -
64 1000  f2 0f ae f1                    Wait         -
64 1000  66 0f ae f1                    Wait         -
64 1000  0f 01 d7                       Enclave      -
64 1000  0f 01 cf                       Enclave      -
# repeated string instructions; other instructions bear the prefix without repeating
64 1000  f3 a4                          Other        -      rep
64 1000  f3 48 a5                       Other        -      rep
64 1000  f2 ae                          Other        -      rep
64 1000  f3 a6                          Other        -      rep
64 1000  f3 6c                          Other        -      rep
64 1000  a4                             Other        -
64 1000  f3 0f b8 c1                    Other        -
";

fn mode(word: &str) -> ExecMode {
    match word {
        "16" => ExecMode::Bits16,
        "32" => ExecMode::Bits32,
        "64" => ExecMode::Bits64,
        other => panic!("no mode: {other}"),
    }
}

fn hex(word: &str) -> u64 {
    u64::from_str_radix(word, 16).unwrap_or_else(|_| panic!("no number: {word}"))
}

#[test]
fn golden() {
    let mut cases = 0;
    for line in GOLDEN
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        cases += 1;
        let mut words = line.split_whitespace().peekable();
        let mode = mode(words.next().unwrap());
        let ip = Ip(hex(words.next().unwrap()));
        let mut bytes = Vec::new();
        while words.peek().is_some_and(|word| word.len() == 2) {
            bytes.push(hex(words.next().unwrap()) as u8);
        }
        let class = words.next().unwrap();
        let target = words
            .next()
            .filter(|word| *word != "-")
            .map(|word| Ip(hex(word)));
        let flags: Vec<&str> = words.collect();

        let insn = decode(&bytes, ip, mode).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(usize::from(insn.len), bytes.len(), "{line}: length");
        assert_eq!(format!("{:?}", insn.class), class, "{line}: class");
        assert_eq!(insn.target, target, "{line}: target");
        assert_eq!(
            insn.repeats,
            flags.contains(&"rep"),
            "{line}: repeat prefix"
        );
        assert_eq!(
            insn.is_zero_length_call(ip, mode),
            flags.contains(&"zero"),
            "{line}: zero-length call"
        );

        let mut longer = bytes.clone();
        longer.extend([0xcc; MAX_INSN_LEN]);
        assert_eq!(
            decode(&longer, ip, mode),
            Ok(insn),
            "{line}: with bytes behind it"
        );
        for available in 0..bytes.len() {
            assert_eq!(
                decode(&bytes[..available], ip, mode),
                Err(InsnError::Truncated {
                    ip,
                    available: available as u8
                }),
                "{line}: cut to {available} bytes"
            );
        }
    }
    assert!(cases > 90, "{cases} cases read");
}

#[test]
fn invalid_bytes_say_where_and_what() {
    let error = decode(&[0x06, 0x90], Ip(0x401000), ExecMode::Bits64).unwrap_err();
    assert_eq!(error.ip(), Ip(0x401000));
    assert_eq!(
        error.to_string(),
        "no 64-bit instruction at 0x401000: 06 90"
    );
    // Fifteen prefixes leave no room for an opcode: wrong, however many bytes follow.
    assert!(matches!(
        decode(&[0x66; 40], Ip(0), ExecMode::Bits64),
        Err(InsnError::Invalid { .. })
    ));
    assert_eq!(
        decode(&[], Ip(0x10), ExecMode::Bits32)
            .unwrap_err()
            .to_string(),
        "the instruction at 0x10 is longer than the 0 bytes of code known there"
    );
}

#[test]
fn advance_wraps_as_the_mode_does() {
    assert_eq!(advance(Ip(u64::MAX), 2, ExecMode::Bits64), Ip(1));
    assert_eq!(advance(Ip(0xffff_ffff), 2, ExecMode::Bits32), Ip(1));
    assert_eq!(advance(Ip(0xffff), 2, ExecMode::Bits16), Ip(1));
    assert_eq!(advance(Ip(0xf_ffff), 2, ExecMode::Bits16), Ip(0x10_0001));
}

#[test]
fn classes_agree_with_their_predicates() {
    for class in [Class::DirectJump, Class::DirectCall] {
        assert!(class.is_direct() && class.is_branch() && !class.needs_packet() && !class.is_far());
    }
    for class in [
        Class::FarCall,
        Class::FarJump,
        Class::FarReturn,
        Class::Syscall,
        Class::VmEntry,
    ] {
        assert!(class.is_far() && class.is_branch() && class.needs_packet());
    }
    for class in [
        Class::Other,
        Class::MovCr3,
        Class::Ptwrite,
        Class::Xbegin,
        Class::Wait,
    ] {
        assert!(!class.is_branch() && !class.is_far());
    }
}
