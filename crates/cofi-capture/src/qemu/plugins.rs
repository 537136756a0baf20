//! The plugin, built for each version of QEMU's interface, and packed.

use lzma_rust2::LzipReader;
use std::io::Read;
use std::sync::OnceLock;

/// All of them, one behind the other.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plugins.lz"));
/// The version of the interface that each is for, and its length.
const LENGTHS: [(u32, usize); 3] = include!(concat!(env!("OUT_DIR"), "/plugins.rs"));

/// The versions and the plugins, the newest first.
///
/// # Panics
/// When what the build script has packed is not what it was.
pub(super) fn plugins() -> impl Iterator<Item = (u32, &'static [u8])> {
    static UNPACKED: OnceLock<Vec<u8>> = OnceLock::new();
    let mut rest = UNPACKED
        .get_or_init(|| {
            let mut bytes = Vec::with_capacity(LENGTHS.iter().map(|(_, len)| len).sum());
            LzipReader::new(PACKED)
                .read_to_end(&mut bytes)
                .expect("the build script has packed them");
            bytes
        })
        .as_slice();
    LENGTHS.into_iter().map(move |(version, len)| {
        let (plugin, others) = rest.split_at(len);
        rest = others;
        (version, plugin)
    })
}

#[cfg(test)]
mod tests {
    use super::{PACKED, plugins};

    #[test]
    fn each_plugin_is_a_library_of_its_own() {
        let all: Vec<_> = plugins().collect();
        let versions: Vec<u32> = all.iter().map(|(version, _)| *version).collect();
        assert_eq!(versions, [7, 4, 1]);
        for (version, bytes) in &all {
            assert!(bytes.starts_with(b"\x7fELF"), "version {version}");
        }
        assert_ne!(all[0].1, all[1].1);
        let sum: usize = all.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(PACKED.len() * 3 < sum, "{} of {sum}", PACKED.len());
    }
}
