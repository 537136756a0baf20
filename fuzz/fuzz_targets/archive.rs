//! Any bytes as an archive: what it holds lies within it, its manifest is text that can be written again, and the trace in it is decoded to its
//! end with nothing but what is packed.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/cofi/src/archive_reader.rs"]
mod archive_reader;

/// What the command line says of bare RTIT packets: here, whatever the manifest has.
mod rtit {
    use serde_json::Value;

    #[derive(Clone, Debug)]
    pub(crate) struct RtitArgs(Value);

    impl RtitArgs {
        pub(crate) fn value(&self) -> Value {
            self.0.clone()
        }

        pub(crate) fn parse(value: &Value) -> anyhow::Result<Self> {
            anyhow::ensure!(value.is_object(), "not an object");
            Ok(Self(value.clone()))
        }
    }
}

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use cofi_session::{Session, SessionOptions};
use libfuzzer_sys::fuzz_target;
use archive_reader::Packed;

/// Instructions that may pass without a packet.
const RUN: u32 = 64;

fuzz_target!(|bytes: &[u8]| {
    let packed = match Packed::open(bytes) {
        Ok(Some(packed)) => packed,
        Ok(None) => return,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let manifest = packed.manifest.text().expect("what was read can be written");
    assert!(manifest.len() <= 64 * bytes.len() + 4096, "a manifest out of proportion");
    let Ok(trace) = packed.trace() else {
        return;
    };
    assert!(bytes.as_ptr_range().start <= trace.as_ptr() && trace.len() <= bytes.len());
    let code = packed.code();
    let parts: usize = code.parts.iter().map(|(_, part)| part.len()).sum();
    // A member is no more than one part.
    assert!(parts <= bytes.len(), "{parts} bytes of parts in {} bytes", bytes.len());
    let mut options = SessionOptions::default();
    options.path = Some(OsString::from_vec(packed.manifest.path.clone()).into());
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
