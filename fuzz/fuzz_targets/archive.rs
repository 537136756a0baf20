//! Any bytes as an archive: what it holds lies within it, its manifest is text that can be written again, and the trace in it is decoded to its
//! end with nothing but what is packed.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use cofi_archive::Archive;
use cofi_session::{Session, SessionOptions};
use libfuzzer_sys::fuzz_target;

/// Instructions that may pass without a packet.
const RUN: u32 = 64;

fuzz_target!(|bytes: &[u8]| {
    let packed = match Archive::open(bytes, None) {
        Ok(Some(packed)) => packed,
        Ok(None) => return,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let manifest = packed.manifest().text();
    cofi_archive::Manifest::parse(manifest.as_bytes()).expect("what was written can be read");
    assert!(manifest.len() <= 64 * bytes.len() + 4096, "a manifest out of proportion");
    let Ok(trace) = packed.trace() else {
        return;
    };
    assert!(bytes.as_ptr_range().start <= trace.as_ptr() && trace.len() <= bytes.len());
    // Without a catalogue, what lies in one is not there.
    let Ok(code) = packed.code() else {
        return;
    };
    let parts: usize = code.parts.iter().map(|(_, part)| part.len()).sum();
    // A member is no more than one part.
    assert!(parts <= bytes.len(), "{parts} bytes of parts in {} bytes", bytes.len());
    let mut options = SessionOptions::default();
    options.path = Some(OsString::from_vec(packed.manifest().path.clone()).into());
    options.flow.max_packetless_run = RUN;
    options.flow.cache_limit = 1 << 16;
    options.code.packed = Some(code);
    let Ok(session) = Session::new(trace, &options) else {
        return;
    };
    for stream in session.streams().iter().take(8) {
        let bound = (stream.len() as u64 * 8 + 64) * (u64::from(RUN) + 4);
        assert!(session.decode(stream).count() as u64 <= bound, "items without end");
    }
});
