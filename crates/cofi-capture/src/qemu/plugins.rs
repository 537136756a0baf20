//! The plugin, built for each version of QEMU's interface, and packed.

use lzma_rust2::LzipReader;
use std::io::Read;

/// All of them, one behind the other.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plugins.lz"));
/// The version of the interface that each is for, and its length.
const LENGTHS: [(u32, usize); 3] = include!(concat!(env!("OUT_DIR"), "/plugins.rs"));

/// The versions and the plugins, in the order in which QEMU is to be asked. Each is unpacked when it comes to it.
///
/// Version 1 comes first: a QEMU that takes it takes no other, and Debian 12's user mode is one. Of the others the newest comes first.
///
/// # Panics
/// When what the build script has packed is not what it was.
pub(super) fn plugins() -> impl Iterator<Item = (u32, Vec<u8>)> {
    let mut packed = LzipReader::new(PACKED);
    LENGTHS.into_iter().map(move |(version, len)| {
        let mut plugin = vec![0; len];
        packed
            .read_exact(&mut plugin)
            .expect("the build script has packed them");
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
        assert_eq!(versions, [1, 7, 4]);
        for (version, bytes) in &all {
            assert!(bytes.starts_with(b"\x7fELF"), "version {version}");
        }
        assert_ne!(all[0].1, all[1].1);
        let sum: usize = all.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(PACKED.len() * 3 < sum, "{} of {sum}", PACKED.len());
    }
}
