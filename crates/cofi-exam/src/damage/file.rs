//! The packets within a perf.data file: taken out, and put back.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

/// PERF_RECORD_AUXTRACE: its size does not count the packets behind it.
const AUXTRACE: u32 = 71;
/// The bytes of a PSB.
const PSB: [u8; 16] = [
    2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82,
];

/// A file with the packets of one thread.
#[derive(Debug, Clone)]
pub(super) struct Recording {
    pub(super) bytes: Vec<u8>,
    /// Where its packets are, in order.
    parts: Vec<Range<usize>>,
}

fn number(bytes: &[u8], at: usize) -> Result<u64> {
    let field = bytes.get(at..at + 8).context("the file is too short")?;
    Ok(u64::from_le_bytes(field.try_into()?))
}

impl Recording {
    /// Finds the packets of a file.
    pub(super) fn new(bytes: Vec<u8>) -> Result<Self> {
        // perf_file_header: magic, size, attr_size, attrs, data.
        let at = number(&bytes, 40)? as usize;
        let end = at + number(&bytes, 48)? as usize;
        let (mut at, mut parts, mut threads) = (at, Vec::new(), Vec::new());
        while at < end {
            let head = number(&bytes, at)?;
            let (kind, size) = (head as u32, (head >> 48) as usize);
            ensure!(size >= 8, "a record at {at} of {size} bytes");
            if kind == AUXTRACE {
                let len = number(&bytes, at + 8)? as usize;
                ensure!(at + size + len <= end, "packets beyond the end of the data");
                threads.push(number(&bytes, at + 32)?);
                parts.push(at + size..at + size + len);
                at += len;
            }
            at += size;
        }
        threads.dedup();
        if threads.len() != 1 {
            bail!("{} streams of packets, not one", threads.len());
        }
        Ok(Self { bytes, parts })
    }

    /// The packets.
    pub(super) fn stream(&self) -> Vec<u8> {
        let parts = self.parts.iter();
        parts
            .flat_map(|part| self.bytes[part.clone()].iter().copied())
            .collect()
    }

    /// The file with other packets, as many bytes.
    pub(super) fn with(&self, stream: &[u8]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let mut rest = stream;
        for part in &self.parts {
            let (now, behind) = rest.split_at(part.len());
            bytes[part.clone()].copy_from_slice(now);
            rest = behind;
        }
        bytes
    }
}

/// Makes room for bytes that are put in: PADs instead of everything from the last PSB on that has `room` bytes behind it. Returns
/// where they begin.
pub(super) fn cut(stream: &mut [u8], room: usize) -> Result<usize> {
    let last = stream
        .len()
        .checked_sub(room)
        .context("the stream is too short")?;
    let end = (1..last)
        .rev()
        .find(|at| stream[*at..].starts_with(&PSB))
        .context("the stream has one PSB at most")?;
    stream[end..].fill(0);
    Ok(end)
}
