//! By what a trace is known again.

use crate::Session;

/// What something that is kept beside a trace belongs to: that of another trace is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of a trace, whose file has these bytes. Its beginning and its end are looked at, its packets at many places, and which code it is decoded
    /// with: files that were built anew are other code.
    #[must_use]
    pub fn of(session: &Session<'_>, bytes: &[u8]) -> Self {
        let mut crcs = [(); 6].map(|()| crc32fast::Hasher::new());
        let [ends, middle, streams, code, config, version] = &mut crcs;
        let edge = bytes.len().min(1 << 16);
        ends.update(&bytes[..edge]);
        ends.update(&bytes[bytes.len() - edge..]);
        for piece in bytes.chunks(1 << 16) {
            middle.update(&piece[..piece.len().min(64)]);
        }
        for stream in session.streams() {
            streams.update(format!("{:?} {}", stream.key(), stream.len()).as_bytes());
            for piece in stream.bytes().chunks(1 << 14) {
                streams.update(&piece[..piece.len().min(64)]);
            }
        }
        for file in session.code_files() {
            code.update(format!("{:?}", file.path()).as_bytes());
            let known = std::fs::metadata(file.path());
            let known = known.map(|known| (known.len(), known.modified().ok()));
            code.update(format!("{:?}", known.ok()).as_bytes());
        }
        config.update(format!("{:?}", session.flow_config()).as_bytes());
        version.update(env!("CARGO_PKG_VERSION").as_bytes());
        let mut print = [0; 32];
        print[..8].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        let crcs = crcs.map(crc32fast::Hasher::finalize);
        for (to, crc) in print[8..].chunks_exact_mut(4).zip(crcs) {
            to.copy_from_slice(&crc.to_le_bytes());
        }
        Self(print)
    }

    /// As it is kept in a file.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}
