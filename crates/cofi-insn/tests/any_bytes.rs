//! Whatever the bytes, decoding neither panics nor reads more than an instruction can hold.

use cofi_insn::{Class, CodeSource, InsnError, MAX_INSN_LEN, Segment, decode};
use cofi_packet::{ExecMode, Ip};
use proptest::prelude::*;

fn modes() -> impl Strategy<Value = ExecMode> {
    prop_oneof![
        Just(ExecMode::Bits16),
        Just(ExecMode::Bits32),
        Just(ExecMode::Bits64)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn total(bytes in prop::collection::vec(any::<u8>(), 0..24), ip: u64, mode in modes()) {
        let ip = Ip(ip);
        match decode(&bytes, ip, mode) {
            Ok(insn) => {
                let len = usize::from(insn.len);
                prop_assert!((1..=MAX_INSN_LEN).contains(&len) && len <= bytes.len());
                // The bytes behind an instruction have no say in it.
                prop_assert_eq!(decode(&bytes[..len], ip, mode), Ok(insn));
                let direct = insn.class.is_direct() || matches!(insn.class, Class::Conditional | Class::Xbegin);
                prop_assert_eq!(insn.target.is_some(), direct);
                if let (Some(target), ExecMode::Bits32) = (insn.target, mode) {
                    prop_assert!(target.0 <= 0xffff_ffff);
                }
            }
            Err(InsnError::Truncated { available, .. }) => {
                prop_assert_eq!(usize::from(available), bytes.len());
                prop_assert!(bytes.len() < MAX_INSN_LEN);
            }
            Err(error) => prop_assert_eq!(error.ip(), ip),
        }
    }

    #[test]
    fn segments_give_what_they_hold(base: u64, len in 0..64_usize, ask in -80_i64..80, want in 0..32_usize) {
        let bytes: Vec<u8> = (0..len as u8).collect();
        let mut segment = Segment { base: Ip(base), bytes: &bytes };
        let mut buf = [0xa5; 32];
        let got = segment.read(Ip(base.wrapping_add_signed(ask)), &mut buf[..want]);
        let expected = match usize::try_from(ask) {
            Ok(start) if start < len && base.checked_add(ask as u64).is_some() => (len - start).min(want),
            _ => 0,
        };
        prop_assert_eq!(got, expected);
        for (i, byte) in buf.iter().enumerate() {
            prop_assert_eq!(*byte, if i < got { (ask as usize + i) as u8 } else { 0xa5 });
        }
    }
}
