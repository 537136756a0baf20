//! The rings of a recording that was made with buffers which are too small.
//!
//! Linux' driver puts STOP on the output region before the one in which the free room ends. Where less than a region is free, and that begins in one and
//! ends in the next, this is a region that lies behind the write pointer (`pt_buffer_reset_markers`, 6.1 and later): nothing stops, and the trace runs over bytes
//! that nobody has read. The reader copies what is of the lap behind, and no record says so. It can be seen in what was copied: the
//! same bytes are there once more, a lap further on; or a lap was missed, and the next copy begins behind it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use cofi_perf::{AuxFlags, Body, File, PerfTime};

/// So many bytes are not the same by chance: there are times in them.
const SAME: usize = 64;

/// What was read of one processor's ring.
#[derive(Debug, Default)]
struct Ring {
    bytes: Vec<u8>,
    /// Where each copy began.
    begins: Vec<usize>,
    /// Nobody copied what is between two of them.
    has_hole: bool,
    /// Where the kernel says that it had to stop, and when.
    stops: Vec<(u64, Option<PerfTime>)>,
}

/// By processor.
#[derive(Debug, Default)]
pub(super) struct Rings(BTreeMap<u64, Ring>);

impl Rings {
    /// Of a recording: its file, or perf's folder.
    pub(super) fn read(data: &Path) -> Result<Self> {
        let file = match data.is_dir() {
            true => data.join("data"),
            false => data.to_owned(),
        };
        let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        let mut rings = BTreeMap::<u64, Ring>::new();
        for record in File::parse(&bytes)?.records() {
            let record = record?;
            match record.body {
                Body::Auxtrace {
                    offset,
                    cpu,
                    payload,
                    ..
                } => {
                    let ring = rings.entry(cpu.into()).or_default();
                    let begin = usize::try_from(offset)?;
                    // (The end of the copy before is padded.)
                    ring.has_hole |= begin > ring.bytes.len();
                    ring.bytes.resize(begin, 0);
                    ring.bytes.extend_from_slice(payload);
                    ring.begins.push(begin);
                }
                Body::Aux {
                    offset,
                    size,
                    flags,
                } if flags.contains(AuxFlags::TRUNCATED) => {
                    let cpu = record.id.cpu.map_or(u64::MAX, u64::from);
                    rings
                        .entry(cpu)
                        .or_default()
                        .stops
                        .push((offset + size, record.id.time));
                }
                _ => {}
            }
        }
        Ok(Self(rings))
    }

    /// Whether the kernel says that it had to stop anywhere.
    pub(super) fn stop(&self) -> bool {
        self.0.values().any(|ring| !ring.stops.is_empty())
    }

    /// Whether the kernel says that it had to stop here.
    pub(super) fn stops_at(&self, cpu: u64, offset: u64) -> bool {
        let mut stops = self.0.get(&cpu).into_iter().flat_map(|ring| &ring.stops);
        stops.any(|(at, _)| *at == offset)
    }

    /// Whether the kernel says that this processor had to stop before this, in seconds, or a little later: the record of it comes behind the packets.
    pub(super) fn stops_before(&self, cpu: u64, time: f64) -> bool {
        let mut stops = self.0.get(&cpu).into_iter().flat_map(|ring| &ring.stops);
        stops.any(|(_, at)| at.is_some_and(|at| at.0 as f64 / 1e9 <= time + 0.1))
    }

    /// Whether nobody copied what is between two copies.
    pub(super) fn have_holes(&self) -> bool {
        self.0.values().any(|ring| ring.has_hole)
    }

    /// Whether bytes were copied that the next lap of a ring of this size had written already.
    pub(super) fn are_overrun(&self, size: usize) -> bool {
        self.0.values().any(|ring| {
            let at = |begin: usize| ring.bytes.get(begin..begin + SAME);
            let mut begins = ring.begins.iter();
            ring.has_hole
                || begins.any(|begin| at(*begin).is_some_and(|here| at(begin + size) == Some(here)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_a_lap_later_were_run_over() {
        let ring = |bytes: Vec<u8>| {
            let begins = vec![0, 100];
            let ring = Ring {
                bytes,
                begins,
                ..Ring::default()
            };
            Rings(BTreeMap::from([(0, ring)]))
        };
        let different: Vec<u8> = (0..=255).chain(0..=200).collect();
        assert!(!ring(different.clone()).are_overrun(200));
        let mut same = different;
        same.copy_within(100..100 + SAME, 300);
        assert!(ring(same).are_overrun(200));
    }
}
