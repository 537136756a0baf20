//! Any bytes as a perf.data file: reading it ends, every stream's flow ends, by blocks as by items, and every error is a sentence. Files are
//! changed so that they stay perf.data files.
#![no_main]

mod perf;

use cofi_flow::Item;
use cofi_image::CodeFile;
use cofi_session::{FileFormat, PackedCode, Session, SessionOptions};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

/// The program of the seeds, by the name that they have for it: no other file is opened, whatever the input names.
const PROGRAM: (&str, &[u8]) = ("/tmp/cofi-fuzz-seeds/program", include_bytes!("../seeds/code/elf"));

/// Instructions that may pass without a packet.
const RUN: u32 = 64;

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    perf::mutate(data, size, max_size, seed)
});

fuzz_target!(|bytes: &[u8]| {
    let mut options = SessionOptions::default();
    options.format = Some(FileFormat::Perf);
    options.flow.max_packetless_run = RUN;
    options.flow.cache_limit = 1 << 16;
    let (path, elf) = PROGRAM;
    let mut packed = PackedCode::default();
    packed.files = vec![CodeFile::packed(path, None, elf, None)];
    options.code.packed = Some(packed);
    let Ok(session) = Session::new(bytes, &options) else {
        return;
    };
    for stream in session.streams() {
        // What was compressed may hold packets, too.
        assert!(
            stream.len() <= 256 * bytes.len() + (1 << 20),
            "a stream is out of proportion to the file"
        );
        let bound = (stream.len() as u64 * 8 + 64) * (u64::from(RUN) + 4);
        let (mut items, mut instructions) = (0, 0);
        for item in session.decode(stream) {
            items += 1;
            instructions += u64::from(matches!(item, Item::Insn(_)));
            assert!(
                items <= bound,
                "{items} items out of {} bytes",
                stream.len()
            );
            if let Item::Error(error) = item {
                assert!(
                    error.to_string().len() < 1000,
                    "an error that explains itself at length"
                );
            }
        }
        let mut by_blocks = 0;
        let mut flow = session.decode(stream);
        while flow.blocks(|block| by_blocks += block.len() as u64).is_some() {}
        assert_eq!(by_blocks, instructions, "by blocks other instructions ran");
    }
    let told = session.diagnostics().len() + session.code_problems().count();
    assert!(
        told <= bytes.len() + session.streams().len() * 4 + 16,
        "{told} diagnostics of {} bytes",
        bytes.len()
    );
});
