//! Streams that something happened to: bits turned, bytes lost or added, reserved encodings, PSBs that are none.

use super::emit::Emitter;
use super::rng::Rng;

const PAIR: [u8; 2] = [0x02, 0x82];

/// Bytes that form no packet, or one that is hard to read.
const AWKWARD: &[&[u8]] = &[
    // IPBytes 101 and 111.
    &[0xad, 1, 2, 3, 4],
    &[0xfd, 1, 2, 3, 4, 5, 6, 7, 8],
    // TNT.64 without stop bit, and with nothing but one.
    &[0x02, 0xa3, 0, 0, 0, 0, 0, 0],
    &[0x02, 0xa3, 1, 0, 0, 0, 0, 0],
    // MODE.Exec with CS.L and CS.D, MODE.TSX with InTX and TXAbort, and a leaf that nobody knows.
    &[0x99, 0x03],
    &[0x99, 0x23],
    &[0x99, 0x45],
    // PTW with PayloadBytes 10 and 11.
    &[0x02, 0x52, 1, 2, 3, 4],
    &[0x02, 0xf2, 1, 2, 3, 4, 5, 6, 7, 8],
    // Three bytes of opcode that are not MNT's.
    &[0x02, 0xc3, 0x87, 1, 2, 3, 4, 5, 6, 7, 8],
    // CYC of 62 bits, of more than 64, and without end.
    &[0x07, 1, 1, 1, 1, 1, 1, 1, 1, 0x02],
    &[0x07, 1, 1, 1, 1, 1, 1, 1, 1, 0x12],
    &[
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    ],
    // Not of any packet.
    &[0x05],
    &[0x39],
    &[0x02, 0x00],
    &[0x02, 0xff],
    // Those that only some read.
    &[0xd9, 0x40, 1, 2, 3],
    &[0x02, 0x63, 0x84],
    &[0x02, 0x63, 0x81, 0x02, 0x13, 0x01, 0x20, 0x0c, 1, 2, 3, 4],
    &[0x02, 0x73, 1, 2, 0xfe, 3, 1],
];

/// The packets of `stream` with a PSB after about 40 and something wrong after about 60 of them, in whole words of eight
/// bytes; and how often something is wrong.
pub(super) fn corrupt(rng: &mut Rng, stream: &Emitter) -> (Vec<u8>, u64) {
    let (mut out, mut wrong) = (Vec::new(), 0);
    for entry in &stream.entries {
        let (from, to) = (entry.offset as usize, (entry.offset + entry.size) as usize);
        let mut packet = stream.bytes[from..to].to_vec();
        if rng.one_in(40) {
            out.extend(PAIR.repeat(8));
        }
        if rng.one_in(60) {
            wrong += 1;
            spoil(rng, &mut packet);
        }
        out.append(&mut packet);
    }
    out.truncate(out.len() & !7);
    (out, wrong)
}

fn spoil(rng: &mut Rng, packet: &mut Vec<u8>) {
    let at = rng.below(packet.len() as u64) as usize;
    let some = 1 + rng.below(8);
    match rng.below(10) {
        0 => packet[at] ^= 1 << rng.below(8),
        1 => packet[at] = rng.next_u64() as u8,
        2 => drop(packet.remove(at)),
        3 => packet.truncate(at),
        4 => packet.extend((0..some).map(|_| rng.next_u64() as u8)),
        5 => *packet = (0..8 * some).map(|_| rng.next_u64() as u8).collect(),
        // Too little of a PSB, one with a wrong byte, more than one, and one behind the first byte of another.
        6 => *packet = PAIR.repeat(some as usize - 1),
        7 => {
            *packet = PAIR.repeat(8);
            packet[2 * some as usize - 1] = rng.next_u64() as u8;
        }
        8 => {
            *packet = PAIR.repeat(8 + some as usize);
            packet.truncate(packet.len() - rng.below(2) as usize);
            if rng.one_in(2) {
                packet.insert(0, rng.pick(&[0x82, 0x02, 0x05]));
            }
        }
        _ => *packet = rng.pick(AWKWARD).to_vec(),
    }
}
