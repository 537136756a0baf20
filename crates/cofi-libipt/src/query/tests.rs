//! How much is read.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::MaybeUninit;

use cofi_packet::intel::PSB;

use super::{Answer, Query};
use crate::boundary::Context;
use crate::config::Config;
use crate::error::Error;
use crate::packets::UnknownPacket;
use crate::sync::Place;

thread_local! {
    static READS: Cell<usize> = const { Cell::new(0) };
}

/// Takes each unknown byte for a packet, and counts.
unsafe extern "C" fn count(
    _: *mut UnknownPacket,
    _: *const Config,
    _: *const u8,
    _: Context,
) -> c_int {
    READS.set(READS.get() + 1);
    1
}

/// A decoder of a stream, which must not move.
fn query(bytes: &mut [u8]) -> Query {
    let range = bytes.as_mut_ptr_range();
    // SAFETY: all zeros is a configuration.
    let config: Config = unsafe { MaybeUninit::zeroed().assume_init() };
    Query::new(Config {
        size: size_of::<Config>(),
        begin: range.start,
        end: range.end,
        callback: Some(count),
        ..config
    })
}

/// Calls until the beginning is reached: how often an unknown packet was read, and how many places were found.
fn all_backward(bytes: &mut [u8]) -> (usize, usize) {
    let mut query = query(bytes);
    READS.set(0);
    let mut places = 0;
    loop {
        match query.begin_backward() {
            Ok(_) => places += 1,
            Err(error) => {
                assert_eq!(error, Error::End);
                return (READS.get(), places);
            }
        }
    }
}

/// A PSB+ of nothing but a byte that is counted.
const EMPTY: &[u8] = &[0xd9, 0x02, 0x23];
const FUP: &[u8] = &[0x3d, 0x10, 0x10];
const TNT: &[u8] = &[0x06];

#[test]
fn a_search_backward_reads_each_psb_a_few_times() {
    let cases: [(&[&[u8]], usize); 4] = [
        // Nothing but empty PSB+: only the last is a place.
        (&[&[]], 1),
        // A TNT behind each: each is one.
        (&[TNT], 1000),
        // Behind every fourth, a FUP which waits for a TIP.
        (&[&[], &[], &[], FUP], 0),
        (&[&[], &[], &[], &[], &[], &[], TNT, FUP], 0),
    ];
    for (behind, places) in cases {
        let mut bytes = Vec::new();
        for part in behind.iter().cycle().take(1000) {
            bytes.extend(PSB);
            bytes.extend(EMPTY);
            bytes.extend(*part);
        }
        let (reads, found) = all_backward(&mut bytes);
        assert!(places == 0 || found == places, "{behind:?}: {found}");
        assert!(found >= 1);
        // (Each byte is read where it is tried, and by up to seven that come before.)
        assert!(reads <= 20 * 1000, "{behind:?}: {reads}");
    }
}

/// As `begin_backward`, each PSB being followed to the end.
fn begin_backward_slowly(query: &mut Query) -> Result<Answer, Error> {
    let start = query.place.sync.unwrap_or(query.config.len());
    let mut place = Place {
        at: Some(start),
        sync: Some(start),
    };
    loop {
        let at = place.backward(query.config.bytes())?;
        let answer = query.begin(at)?;
        if query.at() < start || start == query.config.len() {
            return Ok(answer);
        }
        place.at = Some(at);
    }
}

#[test]
fn a_search_backward_finds_what_following_each_psb_finds() {
    let parts: [&[u8]; 12] = [
        &PSB,
        &[0x02, 0x23],
        TNT,
        FUP,
        // MODE.Exec, TIP, TIP.PGE, CYC, TMA, OVF, CBR, PAD
        &[0x99, 1],
        &[0x2d, 0x10, 0x10],
        &[0x31, 0x10, 0x10],
        &[0x0f],
        &[0x02, 0x73, 1, 0, 0, 0, 0],
        &[0x02, 0xf3],
        &[0x02, 0x03, 3, 0],
        &[0],
    ];
    let mut rng = cofi_test::Rng::new(3);
    let mut found = 0;
    for round in 0..4000 {
        let mut bytes = Vec::new();
        // (Mostly PSB+ without much in them.)
        let kinds = [2, 4, parts.len()][round % 3];
        for _ in 0..rng.below(40) {
            bytes.extend(PSB);
            for _ in 0..rng.below(3) {
                bytes.extend(parts[rng.index(kinds)]);
            }
            if !rng.one_in(8) {
                bytes.extend(parts[1]);
            }
            if rng.one_in(4) {
                bytes.extend(parts[rng.index(parts.len())]);
            }
        }
        let copy = &mut bytes.clone()[..];
        let (mut query, mut slow) = (query(&mut bytes), query(copy));
        for _ in 0..50 {
            let answers = (query.begin_backward(), begin_backward_slowly(&mut slow));
            assert_eq!(answers.0, answers.1, "{copy:02x?}");
            let (place, other) = (&query.place, &slow.place);
            assert_eq!(
                (place.at, place.sync),
                (other.at, other.sync),
                "{copy:02x?}"
            );
            assert_eq!(query.status(), slow.status(), "{copy:02x?}");
            if answers.0 == Err(Error::End) {
                break;
            }
            found += 1;
        }
    }
    assert!(found > 10_000, "{found}");
}
