//! Any writes to an RTIT output region: bytes and gaps tile the stream, no byte is lost that was written, and no more is held than the region.
#![no_main]

use arbitrary::Arbitrary;
use cofi_flow::lines::{Lines, Piece};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Write {
    /// So many bytes there.
    Bytes { at: u16, len: u8 },
    /// The line that comes next, or one that comes so many lines later, as a whole.
    Line { later: u8 },
    Restart { offset: u16 },
}

#[derive(Arbitrary, Debug)]
struct Input {
    base: u64,
    mask: u16,
    offset: u16,
    at_most: Option<u8>,
    writes: Vec<Write>,
}

fuzz_target!(|input: Input| {
    let mask = u32::from(input.mask);
    let mut lines = Lines::new(input.base, mask, input.offset.into());
    if let Some(most) = input.at_most {
        lines = lines.at_most(most.into());
    }
    // As the documentation of `new` says.
    let mask = u64::from((1_u32 << (mask | 63).trailing_ones()) - 1);
    let base = input.base & !mask;
    let (mut given, mut taken, mut next) = (0_u64, 0_u64, u64::from(input.offset) / 64);
    let mut sink = |piece: Piece<'_>| match piece {
        Piece::Bytes(bytes) => {
            assert!(!bytes.is_empty() && bytes.iter().all(|byte| *byte == 0xa5), "bytes that nobody wrote");
            given += bytes.len() as u64;
        }
        Piece::Gap { bytes } => assert!(bytes > 0, "a gap of nothing"),
    };
    for write in input.writes {
        let (at, len) = match write {
            Write::Bytes { at, len } => (u64::from(at), u64::from(len)),
            Write::Line { later } => {
                next += 1;
                ((next + u64::from(later)) * 64 & mask, 64)
            }
            Write::Restart { offset } => {
                lines.restart(offset.into(), &mut sink);
                continue;
            }
        };
        let is_inside = at <= mask && len <= mask + 1 - at;
        let written = lines.write(base.wrapping_add(at), &vec![0xa5; len as usize], &mut sink);
        assert_eq!(written.is_ok(), is_inside, "{len} bytes at {at:#x} of {mask:#x}");
        if is_inside {
            taken += len;
        }
    }
    lines.finish(&mut sink);
    assert_eq!(given, taken, "bytes were lost, or came twice");
});
