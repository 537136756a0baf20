//! Any description of an LLDB bundle, with any packets and context switches in it: what is wrong is named with its place, and every stream's flow
//! ends.
//!
//! The bytes are three parts with two lengths before them: the description, the file `trace`, the file `switches`.
#![no_main]

use std::path::PathBuf;

use cofi_session::{FileFormat, PackedCode, Session, SessionOptions};
use libfuzzer_sys::fuzz_target;

/// Instructions that may pass without a packet.
const RUN: u32 = 64;
/// More streams than these are not decoded: they may all be the same.
const STREAMS: usize = 8;

fn part<'b>(bytes: &mut &'b [u8], len: [u8; 2]) -> &'b [u8] {
    let len = usize::from(u16::from_le_bytes(len)).min(bytes.len());
    let (part, rest) = bytes.split_at(len);
    *bytes = rest;
    part
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[a, b, c, d], mut rest)) = bytes.split_first_chunk() else {
        return;
    };
    let (json, trace) = (part(&mut rest, [a, b]), part(&mut rest, [c, d]));
    let folder = PathBuf::from("/bundle");
    let parts = [("trace", trace), ("switches", rest)];
    let parts = parts.map(|(name, bytes)| (folder.join(name), bytes.into()));
    let mut options = SessionOptions::default();
    options.path = Some(folder.join("trace.json"));
    options.format = Some(FileFormat::Lldb);
    options.flow.max_packetless_run = RUN;
    options.flow.cache_limit = 1 << 16;
    let mut packed = PackedCode::default();
    packed.parts = parts.into();
    options.code.packed = Some(packed);
    let session = match Session::new(json, &options) {
        Ok(session) => session,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for stream in session.streams() {
        let packets = stream.bytes();
        assert!(packets == trace || packets == rest, "not the packets that are named");
    }
    for stream in session.streams().iter().take(STREAMS) {
        let bound = (stream.len() as u64 * 8 + 64) * (u64::from(RUN) + 4);
        assert!(session.decode(stream).count() as u64 <= bound, "items without end");
        let events = session.events(stream).with_branches().with_ticks().count();
        assert!(events <= stream.len() * 16 + 64, "{events} events");
    }
});
