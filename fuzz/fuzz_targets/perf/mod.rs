//! Changes of perf.data files that stay perf.data files: the header, the sizes and the places of tables go along.

use std::ops::Range;

/// Where the header says that the data begin, and how long they are.
const DATA: usize = 40;
/// The header's bits of features, and how long the header is.
const FEATURES: usize = 72;
const HEADER: usize = 104;

/// Kinds of records: those of the kernel that matter to a trace, and perf's own.
const KINDS: [u32; 24] = [1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 68, 69, 70, 71, 72, 79, 81];
/// AUXTRACE, behind which as many bytes stand as its first field says.
const AUXTRACE: u32 = 71;

/// Values at which something may change.
const EDGES: [u64; 12] = [0, 1, 7, 8, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0xffff_8000_0000_0000, 1 << 63, u64::MAX];

/// A sequence of numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % count.max(1)
    }
}

/// A perf.data file that is being changed.
struct File {
    bytes: Vec<u8>,
}

impl File {
    fn number(&self, at: usize) -> usize {
        let bytes = self.bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, |bytes| usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX))
    }

    fn set(&mut self, at: usize, value: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at.saturating_add(value.len())) {
            place.copy_from_slice(value);
        }
    }

    fn data(&self) -> Range<usize> {
        let start = self.number(DATA).min(self.bytes.len());
        start..start.saturating_add(self.number(DATA + 8)).min(self.bytes.len())
    }

    /// Each record, with the packets behind it.
    fn records(&self) -> Vec<Range<usize>> {
        let data = self.data();
        let (mut at, mut records) = (data.start, Vec::new());
        while let Some(&[a, b, c, d, _, _, e, f]) = self.bytes.get(at..at + 8).filter(|_| at + 8 <= data.end) {
            let mut len = usize::from(u16::from_le_bytes([e, f]));
            if u32::from_le_bytes([a, b, c, d]) == AUXTRACE {
                len = len.saturating_add(self.number(at + 8));
            }
            let end = at.saturating_add(len);
            if len < 8 || end > data.end {
                break;
            }
            records.push(at..end);
            at = end;
        }
        records
    }

    /// Puts `new` in the place of a part of the data, and moves what the header names behind it.
    fn replace(&mut self, part: Range<usize>, new: &[u8]) {
        let end = self.data().end;
        let (old_len, new_len) = (part.len() as u64, new.len() as u64);
        let moved = |value: usize| (value as u64).wrapping_add(new_len).wrapping_sub(old_len).to_le_bytes();
        let bits: u32 = self.bytes[FEATURES..HEADER].iter().map(|byte| byte.count_ones()).sum();
        for table in 0..bits as usize {
            let at = end + 16 * table;
            let place = self.number(at);
            if place >= end && at + 8 <= self.bytes.len() {
                self.set(at, &moved(place));
            }
        }
        let size = self.number(DATA + 8);
        self.set(DATA + 8, &moved(size));
        self.bytes.splice(part, new.iter().copied());
    }

    /// Changes one thing.
    fn change(&mut self, dice: &mut Dice, bytes: impl FnOnce(&mut [u8])) {
        let records = self.records();
        if records.is_empty() {
            return;
        }
        let record = records[dice.roll(records.len())].clone();
        let other = records[dice.roll(records.len())].clone();
        let kept = self.bytes[record.clone()].to_vec();
        match dice.roll(9) {
            0 | 1 => {
                // A field.
                let width = [1, 2, 4, 8][dice.roll(4)];
                let at = record.start + 8 + dice.roll(record.len() / width) * width;
                let value = match dice.roll(3) {
                    0 => EDGES[dice.roll(EDGES.len())],
                    1 => (self.number(at) as u64).wrapping_add(dice.roll(17) as u64).wrapping_sub(8),
                    _ => self.number(other.start + dice.roll(other.len() / 8) * 8) as u64,
                };
                if at + width <= record.end {
                    self.set(at, &value.to_le_bytes()[..width]);
                }
            }
            2 => self.set(record.start, &KINDS[dice.roll(KINDS.len())].to_le_bytes()),
            3 => self.set(record.start + 4, &[dice.roll(256) as u8, dice.roll(256) as u8]),
            4 => self.replace(other.start..other.start, &kept),
            5 => self.replace(record, &[]),
            6 => {
                self.replace(other.start..other.start, &kept);
                let place = if record.start >= other.start { record.start + kept.len() } else { record.start };
                self.replace(place..place + kept.len(), &[]);
            }
            7 => {
                // Longer or shorter by a word.
                let size = usize::from(u16::from_le_bytes([kept[6], kept[7]]));
                let end = record.start + size;
                if dice.roll(2) == 0 && size >= 16 {
                    self.set(record.start + 6, &(size as u16 - 8).to_le_bytes());
                    self.replace(end - 8..end, &[]);
                } else if size < 0xfff0 {
                    self.set(record.start + 6, &(size as u16 + 8).to_le_bytes());
                    self.replace(end..end, &EDGES[dice.roll(EDGES.len())].to_le_bytes());
                }
            }
            _ => {
                // Packets, or what stands behind the data: the descriptions of features and events.
                let packets = records.iter().filter(|it| self.bytes[it.start] == AUXTRACE as u8);
                let packets: Vec<_> = packets.map(|it| it.start + 48..it.end).filter(|it| !it.is_empty()).collect();
                let part = match packets.get(dice.roll(packets.len() + 1)) {
                    Some(packets) => packets.clone(),
                    None => self.data().end..self.bytes.len(),
                };
                if let Some(part) = self.bytes.get_mut(part).filter(|part| !part.is_empty()) {
                    bytes(part);
                }
            }
        }
    }
}

/// Changes a few things of a perf.data file, or any bytes of what is none; how long it is then.
pub fn mutate(data: &mut [u8], size: usize, most: usize, seed: u32) -> usize {
    let mut dice = Dice(seed.into());
    let bytes = data[..size].to_vec();
    if size < HEADER || !bytes.starts_with(b"PERFILE2") || dice.roll(8) == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, most);
    }
    let mut file = File { bytes };
    for _ in 0..=dice.roll(3) {
        file.change(&mut dice, |part| {
            let len = part.len();
            libfuzzer_sys::fuzzer_mutate(part, len, len);
        });
    }
    let len = file.bytes.len();
    if len > most {
        return libfuzzer_sys::fuzzer_mutate(data, size, most);
    }
    data[..len].copy_from_slice(&file.bytes);
    len
}
