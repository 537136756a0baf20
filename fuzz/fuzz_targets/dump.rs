//! Any bytes as an Intel PT stream: the items tile them, and every packet can be written again.
#![no_main]

use cofi_packet::intel::Packets;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut at = 0;
    for item in Packets::new(bytes) {
        assert_eq!(item.offset.0, at as u64, "items leave a gap or overlap");
        assert!(item.size > 0, "an item takes no bytes");
        let Ok(packet) = item.result else {
            at += item.size;
            continue;
        };
        let original = decode(&bytes[at..]).expect("the iterator decoded it");
        assert_eq!(
            (original.packet, original.raw.len()),
            (packet, item.size),
            "the iterator decodes differently"
        );
        let encoded = packet.encode();
        let again = decode(&encoded.bytes()[..encoded.len()]).expect("what was encoded decodes");
        assert_eq!(again.packet, packet, "encoding changed the packet");
        assert_eq!(
            again.raw.len(),
            encoded.len(),
            "encoding and decoding disagree about the size"
        );
        // Without reserved bits there is one way to write a packet, except that a CYC may be longer than it needs be.
        if original.raw.reserved() == 0 && encoded.len() == item.size {
            assert_eq!(
                encoded.bytes(),
                original.raw.bytes(),
                "encoding changed the bytes"
            );
        }
        assert!(
            encoded.len() <= item.size,
            "encoding takes more bytes than the original"
        );
        at += item.size;
    }
    assert_eq!(at, bytes.len(), "items end before the input does");
});
