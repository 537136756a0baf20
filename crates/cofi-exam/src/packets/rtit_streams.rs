//! Random streams of RTIT, good ones and bad ones.

use super::rng::{FieldRng, Rng};
use super::rtit::PSB;

/// A stream of `packets` packets, each well formed.
pub(super) fn good(rng: &mut Rng, packets: usize, cycle_accurate: bool) -> Vec<u8> {
    let mut out = PSB.to_vec();
    for _ in 0..packets {
        let counted = one(rng, &mut out);
        if counted && cycle_accurate {
            let cycles = rng.edge(22) << 2;
            // CCNT: at least as many bytes as the count needs.
            let least = match cycles {
                0..0x100 => 1,
                0x100..0x1_0000 => 2,
                _ => 3,
            };
            let bytes = least + rng.below(4 - least);
            out.extend(&(cycles | bytes).to_le_bytes()[..bytes as usize]);
        }
    }
    out
}

/// One packet; whether a cycle count may follow it.
fn one(rng: &mut Rng, out: &mut Vec<u8>) -> bool {
    let payload = rng.next_u64().to_le_bytes();
    match rng.below(16) {
        0 if rng.one_in(3) => {
            out.extend(PSB);
            false
        }
        0 => {
            out.push(0xc1);
            false
        }
        1..=4 => {
            let count = 1 + rng.below(5);
            out.push((1 << count | rng.below(1 << count)) as u8);
            false
        }
        5 => {
            out.push((0x40 | rng.below(64)) as u8);
            true
        }
        6 => {
            out.push((0xc2 | rng.below(2)) as u8);
            out.extend(&payload[..5]);
            true
        }
        7 => {
            out.extend([(0xc4 | rng.below(4)) as u8, payload[0]]);
            true
        }
        8 => {
            out.push((0xd0 | rng.below(16)) as u8);
            out.extend(&payload[..6]);
            true
        }
        _ => {
            let event = rng.pick(&[0b000, 0b001, 0b010, 0b011, 0b110, 0b110, 0b111]);
            let (zext, count) = (rng.one_in(3), rng.below(3) as u8);
            out.push(0x80 | event << 3 | u8::from(zext) << 2 | count);
            let lip = rng.edge(48).to_le_bytes();
            out.extend(&lip[..2 * (usize::from(count) + 1)]);
            true
        }
    }
}

/// A good stream with bytes changed, lost and added, and pure noise between PSBs.
pub(super) fn bad(rng: &mut Rng, packets: usize, cycle_accurate: bool) -> Vec<u8> {
    let mut out = Vec::new();
    while out.len() < 4 * packets {
        let count = 1 + rng.below(30) as usize;
        let mut part = good(rng, count, cycle_accurate);
        let at = rng.below(part.len() as u64) as usize;
        match rng.below(8) {
            0 => part[at] ^= 1 << rng.below(8),
            1 => part[at] = rng.next_u64() as u8,
            2 => drop(part.remove(at)),
            3 => part.insert(at, rng.next_u64() as u8),
            4 => part.truncate(at),
            // What could be a PSB and is none, or one and more.
            5 => {
                let zeros = rng.below(20) as usize;
                part.splice(at..at, [0xc0].into_iter().chain(vec![0; zeros]));
            }
            6 => {
                part.truncate(PSB.len());
                part.extend((0..count).map(|_| rng.next_u64() as u8));
            }
            _ => part = (0..count).map(|_| rng.next_u64() as u8).collect(),
        }
        out.append(&mut part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::rtit::list;
    use super::*;

    #[test]
    fn a_good_stream_has_every_packet_and_no_error() {
        for cycle_accurate in [false, true] {
            let list = list(
                &good(&mut Rng::new(3), 2000, cycle_accurate),
                cycle_accurate,
            );
            assert!(list.iter().all(|e| e.name() != "error"));
            for kind in [
                "psb",
                "tracestop",
                "tnt",
                "tip",
                "fup.pge",
                "fup.pgd",
                "fup.ovf",
                "fup.pcc",
                "fup.far",
                "pip",
                "mtc",
                "sts",
            ] {
                assert!(list.iter().any(|e| e.name() == kind), "{kind}");
            }
        }
    }

    #[test]
    fn a_bad_stream_has_errors_and_packets_behind_them() {
        let list = list(&bad(&mut Rng::new(3), 2000, false), false);
        let errors = list.iter().filter(|e| e.name() == "error").count();
        assert!(errors > 50, "{errors} errors");
        assert!(list.len() > 5 * errors);
    }
}
