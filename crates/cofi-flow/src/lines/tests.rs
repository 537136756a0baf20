//! Lines in any order that 2.3.2 allows, and in others.

use alloc::vec;
use alloc::vec::Vec;

use cofi_test::Rng;

use super::*;

const BASE: u64 = 0x8000_0000;

/// The stream as it came out: bytes, and where gaps are.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stream {
    bytes: Vec<u8>,
    gaps: Vec<(usize, u64)>,
}

impl Stream {
    fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Bytes(bytes) => {
                assert!(!bytes.is_empty());
                self.bytes.extend_from_slice(bytes);
            }
            Piece::Gap { bytes } => {
                assert_ne!(bytes, 0);
                self.gaps.push((self.bytes.len(), bytes));
            }
        }
    }
}

/// A write: where in the stream, and how long.
#[derive(Clone, Copy, Debug)]
struct Write {
    at: u64,
    len: u64,
}

impl Write {
    fn line(self) -> u64 {
        self.at / LINE
    }
    fn bytes(self) -> Vec<u8> {
        (self.at..self.at + self.len).map(byte).collect()
    }
    fn put(self, lines: &mut Lines, stream: &mut Stream) {
        let address = BASE + self.at % (lines.count * LINE);
        lines
            .write(address, &self.bytes(), |piece| stream.take(piece))
            .expect("it is in the region");
    }
}

/// What stands at a place of the stream.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The writes of a stream from `from` on, with partial lines here and there.
fn writes(rng: &mut Rng, from: u64, count: usize) -> Vec<Write> {
    let mut at = from;
    (0..count)
        .map(|_| {
            let left = LINE - at % LINE;
            let len = match rng.below(4) {
                0 => 1 + rng.below(left),
                _ => left,
            };
            let write = Write { at, len };
            at += len;
            write
        })
        .collect()
}

/// In an order in which `late` younger lines at most come before a line.
fn reordered(rng: &mut Rng, mut writes: Vec<Write>, late: u64) -> Vec<Write> {
    let mut seen = Vec::new();
    while let Some(first) = writes.first() {
        let oldest = first.line();
        let choices = writes
            .iter()
            .take_while(|write| write.line() <= oldest + late)
            .count();
        let choice = rng.below(choices as u64).min(rng.below(choices as u64));
        seen.push(writes.remove(choice as usize));
    }
    seen
}

#[test]
fn any_order_that_is_possible_is_put_back() {
    let mut rng = Rng::new(1);
    for round in 0..400_u64 {
        let count = 1 << (round % 5);
        let mask = (count * LINE - 1) as u32;
        let from = rng.below(count * LINE);
        let writes = writes(&mut rng, from, 200);
        let last = writes[writes.len() - 1];
        let (expected, late) = (from..last.at + last.len, rng.below(count));
        let mut lines = Lines::new(BASE | 0x20, mask, from as u32);
        if round % 2 == 0 {
            lines = lines.at_most(late);
        }
        let late = lines.late;
        let mut stream = Stream::default();
        for write in reordered(&mut rng, writes, late) {
            write.put(&mut lines, &mut stream);
            assert!(lines.held.len() as u64 <= count);
        }
        lines.finish(|piece| stream.take(piece));
        assert_eq!(stream.gaps, []);
        assert_eq!(stream.bytes, expected.map(byte).collect::<Vec<u8>>());
    }
}

#[test]
fn lines_that_never_come_are_gaps() {
    let mut rng = Rng::new(2);
    for _ in 0..400 {
        let count = 4 << rng.below(4);
        let late = rng.below(count / 2);
        let from = rng.below(count * LINE);
        let writes = writes(&mut rng, from, 200);
        let (first, last) = (writes[0], writes[writes.len() - 1]);
        // Single lines, so that no whole iteration is missing.
        let mut lost = Vec::new();
        let kept: Vec<Write> = writes
            .iter()
            .copied()
            .filter(|write| {
                let is_lost = write.line() % 7 == 3;
                if is_lost {
                    lost.push(*write);
                }
                !is_lost
            })
            .collect();
        let mut lines = Lines::new(BASE, (count * LINE - 1) as u32, from as u32).at_most(late);
        let mut stream = Stream::default();
        for write in reordered(&mut rng, kept.clone(), late) {
            write.put(&mut lines, &mut stream);
        }
        lines.finish(|piece| stream.take(piece));
        let expected: Vec<u8> = kept.iter().flat_map(|write| write.bytes()).collect();
        assert_eq!(stream.bytes, expected);
        // Behind the last one nothing tells that something is missing.
        let end = kept.last().map_or(first.at, |write| write.at + write.len);
        let missing: u64 = lost
            .iter()
            .filter(|write| write.at < end)
            .map(|write| write.len)
            .sum();
        let told: u64 = stream.gaps.iter().map(|gap| gap.1).sum();
        assert_eq!(told, missing, "{last:?}");
    }
}

#[test]
fn a_place_that_is_written_again_ends_the_wait() {
    // Two lines: A, half of B, A again, and then the same half of B: the other half never came.
    let mut lines = Lines::new(BASE, 0x7f, 0);
    let mut stream = Stream::default();
    for (at, len) in [(0, 64), (64, 20), (128, 64), (192, 20)] {
        Write { at, len }.put(&mut lines, &mut stream);
    }
    assert_eq!(stream.gaps, [(84, 44)]);
    lines.finish(|piece| stream.take(piece));
    let expected: Vec<u8> = (0..84).chain(128..212).map(byte).collect();
    assert_eq!(stream.bytes, expected);
    assert_eq!(stream.gaps, [(84, 44)]);
}

#[test]
fn a_new_offset_begins_anew() {
    let mut lines = Lines::new(BASE, 0xff, 10);
    let mut stream = Stream::default();
    let write = |lines: &mut Lines, stream: &mut Stream, at: u64, bytes: &[u8]| {
        lines
            .write(BASE + at, bytes, |piece| stream.take(piece))
            .expect("it is in the region");
    };
    write(&mut lines, &mut stream, 10, &[1; 30]);
    write(&mut lines, &mut stream, 64, &[2; 3]);
    lines.restart(0x50, |piece| stream.take(piece));
    write(&mut lines, &mut stream, 0x50, &[3; 2]);
    let expected = [vec![1; 30], vec![2; 3], vec![3; 2]].concat();
    assert_eq!(
        (&stream.bytes, &stream.gaps[..]),
        (&expected, &[(30, 24)][..])
    );
}

#[test]
fn writes_outside_are_told() {
    let mut lines = Lines::new(BASE + 0x40, 0x7f, 0);
    let none = |piece: Piece<'_>| panic!("{piece:?}");
    let outside = |address| Err(OutsideError { address });
    assert_eq!(lines.write(BASE - 1, &[1], none), outside(BASE - 1));
    assert_eq!(lines.write(BASE + 0x80, &[1], none), outside(BASE + 0x80));
    let over = lines.write(BASE + 0x7f, &[1, 2], none);
    assert_eq!(over, outside(BASE + 0x80));
    assert_eq!(lines.write(BASE, &[], none), Ok(()));
    assert_eq!(lines.write(u64::MAX, &[0; 100], none), outside(u64::MAX));
    // Not a mask.
    assert_eq!(Lines::new(0, 0x3ff_0000, 0).count, 1);
    assert_eq!(Lines::new(0, u32::MAX, u32::MAX).count, 1 << 16);
}
