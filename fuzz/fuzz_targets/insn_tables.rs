//! Any bytes as code, in each mode: what the tables are sure of is what the disassembler says, cut anywhere and whole.
#![no_main]

use cofi_insn::{by_disassembler, by_tables, decode};
use cofi_packet::{ExecMode, Ip};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u64, &[u8])| {
    let (mode, ip, code) = input;
    let mode = [ExecMode::Bits64, ExecMode::Bits32, ExecMode::Bits16][usize::from(mode % 3)];
    let mut start = 0;
    while start <= code.len() {
        let (bytes, at) = (&code[start..], Ip(ip.wrapping_add(start as u64)));
        let truth = by_disassembler(bytes, at, mode);
        assert_eq!(decode(bytes, at, mode), truth, "{mode:?}: {bytes:02x?}");
        let mut step = 1;
        if let Some(insn) = by_tables(bytes, at, mode) {
            assert_eq!(Ok(insn), truth, "{mode:?}: {bytes:02x?}");
            step = usize::from(insn.len);
            for cut in 0..step {
                let known = by_tables(&bytes[..cut], at, mode);
                assert_eq!(known, None, "{mode:?}, cut to {cut}: {bytes:02x?}");
            }
        }
        start += step;
    }
});
