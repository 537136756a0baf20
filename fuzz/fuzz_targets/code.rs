//! Any bytes as a file of code: an ELF file, a copy of a kernel's memory, a jitdump, a list of symbols. What is told of
//! them lies within them.
#![no_main]

use cofi_image::{CodeFile, JitDump, Kallsyms, KernelCode, PerfMap};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let len = bytes.len() as u64;
    let file = || CodeFile::from_bytes("file", bytes.to_vec());

    let elf = file();
    let _ = elf.own_build_id();
    for segment in elf.segments().iter().take(64) {
        for offset in [segment.offset, segment.offset.wrapping_add(segment.len / 2)] {
            if let Some(symbol) = elf.symbol_at(offset) {
                assert!(!symbol.demangled().is_empty());
            }
            assert!(elf.read_at(offset, &mut [0; 15]) as u64 <= len.saturating_sub(offset));
        }
    }
    if let Ok(kernel) = KernelCode::packed(file()) {
        let all = [(0, u64::MAX)];
        let told: u64 = kernel.parts(0, u64::MAX).count() as u64;
        assert!(told <= len, "more segments than bytes");
        if let Some(copy) = kernel.to_kcore(&all).filter(|copy| copy.len() < 1 << 24) {
            assert!(KernelCode::packed(CodeFile::from_bytes("copy", copy)).is_ok());
        }
    }
    let dump = file();
    if let Ok(told) = JitDump::read(&dump) {
        for code in told.entries {
            let end = code.offset.checked_add(code.len).expect("an end");
            assert!(end <= len, "code outside of the file");
            let _ = dump.symbol_at(code.offset);
        }
    }
    let map = PerfMap::new(file());
    let _ = map.at(0x1000);
    if let Ok(kernel) = Kallsyms::parse(bytes) {
        let _ = kernel.at(0xffff_ffff_8100_0000);
    }
});
