//! By what a trace is known again.

use std::ops::Range;

use crate::Session;

/// What something that is kept beside a trace belongs to: that of another trace is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of a trace, whose file has these bytes. Its beginning and its end are looked at, the file and its packets at up to 1,024 places each, and
    /// the beginning of each stream: a change elsewhere is not noticed. And so is which code it is decoded with: files that were built anew are other code.
    #[must_use]
    pub fn of(session: &Session<'_>, bytes: &[u8]) -> Self {
        let mut crcs = [(); 6].map(|()| crc32fast::Hasher::new());
        let [ends, middle, streams, code, config, version] = &mut crcs;
        let edge = bytes.len().min(1 << 16);
        ends.update(&bytes[..edge]);
        ends.update(&bytes[bytes.len() - edge..]);
        let step = step(bytes.len(), 1 << 16);
        for place in places(bytes.len(), step, 10) {
            middle.update(bytes.get(place).unwrap_or_default());
        }
        let packets = session.streams().iter().map(|stream| stream.len());
        let step = self::step(packets.fold(0, usize::saturating_add), 1 << 14);
        for stream in session.streams() {
            streams.update(format!("{:?} {}", stream.key(), stream.len()).as_bytes());
            for place in places(stream.len(), step, 8) {
                streams.update(stream.bytes().get(place).unwrap_or_default());
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

/// So many places are looked at, of bytes of any number: each may be a piece of a file that has to be brought into memory for it.
const PLACES: usize = 1 << 10;

/// How far from each other the places are: no nearer than `least`.
fn step(len: usize, least: usize) -> usize {
    len.div_ceil(PLACES).max(least)
}

/// The places, each a fraction of what lies between two: the share of a long trace that is looked at is that of a short one, up to 64 KiB a place.
fn places(len: usize, step: usize, fraction: u32) -> impl Iterator<Item = Range<usize>> {
    let size = (step >> fraction).clamp(64, 1 << 16);
    let starts = (0..len).step_by(step);
    starts.map(move |start| start..start.saturating_add(size).min(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_places_are_looked_at_and_the_same_share() {
        for len in [
            0,
            1,
            63,
            64,
            1 << 14,
            (1 << 14) + 1,
            100 << 20,
            9 << 30,
            5 << 40,
        ] {
            let step = step(len, 1 << 14);
            let places: Vec<_> = places(len, step, 8).collect();
            assert!(places.len() <= PLACES, "{len}");
            assert_eq!(places.is_empty(), len == 0);
            assert!(
                places
                    .iter()
                    .all(|place| !place.is_empty() && place.end <= len)
            );
            let looked: usize = places.iter().map(Range::len).sum();
            let most = PLACES << 16;
            assert!(looked * 257 >= len.min(most << 8), "{looked} of {len}");
            assert!(looked <= (len + step) / 256 + 64, "{looked} of {len}");
        }
    }
}
