//! Any bytes as an ELF file with debugging information: the line of an address is the same whenever it is asked for, and has a name.
#![no_main]

use cofi_image::{AddressSpace, CodeFile, ImageView, LineFinder, Version};
use cofi_packet::Ip;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let file = CodeFile::from_bytes("file", bytes.to_vec());
    let mut space = AddressSpace::new();
    space.map(0, bytes.len() as u64, &file, 0, Version(0));
    let view = ImageView::new(&space, Version(0));
    let mut lines = LineFinder::new();
    let segments = file.segments().iter().filter(|segment| segment.executable).take(4);
    let offsets = segments.flat_map(|segment| (0..64).map(|at| segment.offset.wrapping_add(at * 4)));
    let offsets: Vec<u64> = offsets.filter(|offset| *offset < bytes.len() as u64).collect();
    for offset in &offsets {
        let place = view.place(Ip(*offset)).expect("all of it is mapped");
        let line = lines.at(&place);
        if let Some(line) = &line {
            assert!(line.line != Some(0), "lines count from 1");
        }
        assert_eq!(lines.at(&place), line, "asked again, it is another");
    }
});
