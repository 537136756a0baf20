//! Any bytes as a perf.data file: reading it ends, every stream's flow ends, and every error is a sentence.
#![no_main]

use cofi_flow::Item;
use cofi_session::{Session, SessionOptions, TraceFormat};
use libfuzzer_sys::fuzz_target;

/// Instructions that may pass without a packet.
const RUN: u32 = 64;

fuzz_target!(|bytes: &[u8]| {
    let mut options = SessionOptions::default();
    options.format = Some(TraceFormat::Perf);
    options.flow.max_packetless_run = RUN;
    options.flow.cache_limit = 1 << 16;
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
        let mut items = 0;
        for item in session.decode(stream) {
            items += 1;
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
    }
    let told = session.diagnostics().len() + session.code_problems().count();
    assert!(
        told <= bytes.len() + session.streams().len() * 4 + 16,
        "{told} diagnostics of {} bytes",
        bytes.len()
    );
});
