//! The estimate of time, by hand.

use alloc::string::ToString;
#[cfg(feature = "serde")]
use alloc::vec::Vec;

use super::*;

fn config() -> FlowConfig {
    FlowConfig {
        tsc_art_ratio: (80, 1),
        mtc_freq: 3,
        max_nonturbo_ratio: 20,
        ..FlowConfig::default()
    }
}

fn at(tracker: &TimeTracker) -> u64 {
    tracker.now().expect("time is known").0
}

#[test]
fn nothing_is_known_before_the_first_tsc() {
    let mut time = TimeTracker::new(&config());
    time.cbr(20);
    time.cyc(100);
    time.mtc(3);
    time.tma(1, 1);
    assert_eq!((time.now(), time.latest()), (None, None));
    time.tsc(1000);
    assert_eq!((time.now(), time.earliest()), (Some(Tsc(1000)), Tsc(1000)));
    assert_eq!(time.latest(), Some(Tsc(1000)));
}

#[test]
fn mtc_counts_from_the_edge_that_tma_gives() {
    let mut time = TimeTracker::new(&config());
    time.tsc(100_000);
    time.tma(0x1234, 40); // the clock showed 0x1234 at TSC 99,960
    time.mtc(0x47); // 0x47 << 3 = 0x238, bits 10:0; 0x1234 has 0x234 there: 4 ticks on
    assert_eq!(at(&time), 99_960 + 4 * 80);
    assert_eq!(
        time.latest(),
        Some(Tsc(99_960 + 4 * 80)),
        "whatever came before was before the edge"
    );
    time.mtc(0x48);
    assert_eq!(at(&time), 99_960 + 12 * 80);
    time.mtc(0x47); // 255 steps on: the payload has eight bits
    assert_eq!(at(&time), 99_960 + (12 + 255 * 8) * 80);
}

#[test]
fn first_mtc_after_tma_is_compared_in_low_16_bits_only() {
    let mut time = TimeTracker::new(&FlowConfig {
        mtc_freq: 12,
        ..config()
    });
    time.tsc(100_000);
    time.tma(0xf000, 0);
    time.mtc(0x30); // 0x30 << 12 = 0x30000: its low 16 bits are 0
    assert_eq!(at(&time), 100_000 + 0x1000 * 80);
    time.mtc(0x31);
    assert_eq!(at(&time), 100_000 + 0x2000 * 80);
}

#[test]
fn cycles_are_scaled_by_the_bus_ratio() {
    let mut time = TimeTracker::new(&config());
    time.cbr(40); // twice the TSC's frequency
    time.tsc(1000);
    time.cyc(100);
    assert_eq!(at(&time), 1050);
    time.cyc(101);
    assert_eq!(at(&time), 1100);
    assert!(time.earliest() <= Tsc(1100) && time.earliest() >= Tsc(1040));
    assert!(time.latest() >= Some(Tsc(1100)) && time.latest() <= Some(Tsc(1110)));
}

#[test]
fn cycles_are_scaled_by_measure_without_bus_ratio() {
    let mut time = TimeTracker::new(&FlowConfig {
        max_nonturbo_ratio: 0,
        ..config()
    });
    time.cbr(30);
    time.tsc(10_000);
    time.tma(0, 0);
    time.cyc(500);
    assert_eq!(at(&time), 10_000, "no scale is known yet");
    assert_eq!(time.latest(), None);
    for round in 1..100 {
        time.mtc(round); // 640 TSC ticks in 500 cycles
        time.cyc(500);
    }
    let truth = 10_000 + 100 * 640;
    assert!(at(&time).abs_diff(truth) < 100, "{}", at(&time));
    time.mtc(100);
    time.cyc(250);
    let truth = truth + 320;
    assert!(at(&time).abs_diff(truth) < 20, "{}", at(&time));
    let latest = time.latest().expect("the scale is known");
    assert!((truth..truth + 700).contains(&latest.0), "{latest:?}");
    // At another ratio the scale follows, roughly.
    time.cbr(15);
    time.mtc(101);
    time.cyc(0);
    time.mtc(102);
    let before = at(&time);
    time.cyc(100);
    assert!(at(&time).abs_diff(before + 256) < 700 && time.latest().is_some());
}

#[test]
fn never_goes_back_but_by_tsc() {
    let mut time = TimeTracker::new(&config());
    time.cbr(10);
    time.tsc(10_000);
    time.tma(0, 0);
    time.cyc(10_000); // 20,000 ticks by the ratio, which is plainly wrong
    let wrong = at(&time);
    time.mtc(1);
    assert_eq!(at(&time), wrong, "does not go back");
    for payload in 2..100 {
        let before = at(&time);
        time.cyc(100);
        time.mtc(payload);
        assert!(at(&time) >= before);
    }
    assert!(
        at(&time) >= 10_000 + 99 * 640 && at(&time) < 10_000 + 101 * 640,
        "later MTC packets win"
    );
    time.tsc(5);
    assert_eq!(at(&time), 5, "but a TSC packet may set it back");
}

#[test]
fn tsc_wraps_at_56_bits() {
    let mut time = TimeTracker::new(&config());
    time.tsc((1 << 56) - 10);
    time.tsc(5);
    assert_eq!(at(&time), (1 << 56) + 5);
    time.tsc(3);
    assert_eq!(at(&time), (1 << 56) + 3);
}

#[test]
fn absurd_packets_do_no_harm() {
    for ratio in [(0, 0), (0, 1), (1, 0), (u32::MAX, 1), (1, u32::MAX)] {
        let mut time = TimeTracker::new(&FlowConfig {
            tsc_art_ratio: ratio,
            mtc_freq: 255,
            ..config()
        });
        for round in 0..2000_u64 {
            time.tsc(u64::MAX);
            time.tma(u16::MAX, u16::MAX);
            time.cyc(u64::MAX);
            time.mtc(round as u8);
            time.mtc(0xff);
            time.cbr(round as u8);
            time.cyc(u64::MAX);
            assert!(
                time.now().is_some()
                    && time.latest().is_none_or(|latest| latest >= time.earliest())
            );
        }
    }
}

#[test]
fn a_step_back_of_the_counter_is_told_once() {
    let mut time = TimeTracker::new(&config());
    time.tsc(10_000);
    time.tma(0, 0);
    time.mtc(1);
    assert_eq!(time.take_jump(), None);
    time.tsc(9_000);
    let jump = TimeJump {
        from: Tsc(10_640),
        to: Tsc(9_000),
    };
    assert_eq!(time.take_jump(), Some(jump));
    assert_eq!(jump.to_string(), "time went back from 10640 to 9000");
    assert_eq!((at(&time), time.take_jump()), (9_000, None));
    time.tsc(9_500);
    assert_eq!((at(&time), time.take_jump()), (9_500, None));
}

#[test]
fn lost_mtcs_are_noticed_by_the_next_payload() {
    let mut time = TimeTracker::new(&config());
    time.tsc(0x10_0000);
    time.tma(0, 0);
    time.mtc(1);
    time.mtc(200);
    assert_eq!(at(&time), 0x10_0000 + 200 * 640);
    time.mtc(150); // 206 on
    assert_eq!(at(&time), 0x10_0000 + (256 + 150) * 640);
    time.mtc(150); // the payload has gone round
    assert_eq!(at(&time), 0x10_0000 + (512 + 150) * 640);
    assert!(time.latest().is_some());
}

#[test]
fn behind_an_overflow_the_payload_may_have_gone_round() {
    let mut time = TimeTracker::new(&config());
    time.tsc(0x10_0000);
    time.tma(0, 0);
    time.mtc(1);
    time.take(&Packet::Ovf);
    time.mtc(3);
    let edge = 0x10_0000 + 3 * 640;
    assert_eq!((at(&time), time.earliest()), (edge, Tsc(edge)));
    assert_eq!(time.latest(), None, "or 256 periods later");
    assert!(time.may_have_wrapped() && !time.settles(Tsc(edge + 256 * 640)));
    assert!(time.settles(Tsc(edge + 256 * 640 - 1)));
    time.settle();
    time.mtc(4);
    assert_eq!(time.latest(), Some(Tsc(edge + 640)));
}

#[test]
fn cycles_tell_how_often_the_payload_went_round() {
    let mut time = TimeTracker::new(&config());
    time.cbr(20);
    time.tsc(0x10_0000);
    time.tma(0, 0);
    time.mtc(1);
    time.cyc(0);
    time.cyc(640 * 1000); // a thousand periods: three rounds and 232
    time.mtc(((1 + 1000) & 0xff) as u8);
    assert!(time.earliest() > Tsc(0x10_0000 + 940 * 640), "{time:?}");
    assert_eq!(at(&time), 0x10_0000 + 1001 * 640);
}

#[test]
fn an_mtc_without_tma_says_how_much_later_the_next_is() {
    let mut time = TimeTracker::new(&config());
    time.tsc(100_000);
    time.mtc(9);
    assert_eq!((time.earliest(), time.latest()), (Tsc(100_000), None));
    time.mtc(12);
    assert_eq!(time.earliest(), Tsc(100_000 + 3 * 640));
}

#[test]
fn an_mtc_that_comes_late_tells_nothing() {
    let mut time = TimeTracker::new(&config());
    time.tsc(100_000);
    time.tma(0x12, 3); // the last edge was at 0x10
    time.mtc(2);
    assert_eq!((at(&time), time.earliest()), (100_000, Tsc(100_000)));
    time.mtc(3);
    assert_eq!(at(&time), 100_000 - 3 + 6 * 80);
}

#[test]
fn erratum_skl168_a_cyc_that_a_psb_swallowed() {
    let run = |errata| {
        let mut time = TimeTracker::new(&FlowConfig { errata, ..config() });
        time.cbr(20);
        time.tsc(100_000);
        time.tma(0, 0);
        time.cyc(100);
        // 640 cycles, with their CYC and an MTC, are missing.
        time.take(&Packet::Psb);
        time.take(&Packet::PsbEnd);
        time.cyc(100);
        time
    };
    let truth = Tsc(100_000 + 100 + 640 + 100);
    let without = run(crate::Errata::default());
    assert!(without.latest().is_some_and(|latest| latest < truth));
    let skl168 = crate::Errata {
        skl168: true,
        ..crate::Errata::default()
    };
    let mut with = run(skl168);
    assert!(with.earliest() < truth && with.latest().is_none());
    with.mtc(2);
    assert_eq!(at(&with), 100_000 + 2 * 640);
}

/// Packets of all kinds that matter, in an order that a seed tells.
#[cfg(feature = "serde")]
fn packets(seed: &mut u64) -> impl Iterator<Item = Packet> {
    use cofi_packet::intel::{PSB, Packets};
    let kinds: [&[u8]; 9] = [
        &[0x2d, 0x59, 0x11],
        &[0x2b],
        &[0x59, 0x11],
        &[0x59, 0x12],
        &[0x02, 0x03, 20, 0],
        &[0x02, 0x03, 31, 0],
        &[0x02, 0x73, 1, 2, 0, 3, 0],
        &[0x02, 0xf3],
        &PSB,
    ];
    let mut bytes = Vec::new();
    let mut clock = 1_u64 << 32;
    for _ in 0..40 {
        *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        clock += *seed >> 50;
        match (*seed >> 58) as usize {
            kind @ 0..9 => bytes.extend(kinds[kind]),
            9..12 => bytes.extend([&[0x19], &clock.to_le_bytes()[..7]].concat()),
            12..30 => bytes.extend([0x59, (clock >> 9) as u8]),
            _ => bytes.extend([((*seed >> 40) as u8) << 3 | 3]),
        }
    }
    let packets: Vec<Packet> = Packets::new(&bytes)
        .flatten()
        .map(|located| located.packet())
        .collect();
    packets.into_iter()
}

/// One that was kept in a file goes on as if it had not been.
#[cfg(feature = "serde")]
#[test]
fn one_that_was_kept_goes_on() {
    let mut seed = 7;
    let mut kept = TimeTracker::new(&config());
    let mut other = kept.clone();
    let mut told = alloc::collections::BTreeSet::new();
    for _ in 0..2000 {
        let text = serde_json::to_string(&kept).expect("it can be written");
        let read: TimeTracker = serde_json::from_str(&text).expect("it can be read");
        kept = read.restored(&config()).expect("it is sound");
        for packet in packets(&mut seed) {
            kept.take(&packet);
            other.take(&packet);
            assert_eq!(
                (kept.now(), kept.cycles(), kept.earliest(), kept.latest()),
                (
                    other.now(),
                    other.cycles(),
                    other.earliest(),
                    other.latest()
                )
            );
            told.insert(kept.now());
        }
        kept.take_jump();
        other.take_jump();
    }
    assert!(told.len() > 1000, "{}", told.len());
}

/// Whatever numbers stand in a file, nothing panics.
#[cfg(feature = "serde")]
#[test]
fn a_spoilt_one_does_no_harm() {
    fn spoil(value: &mut serde_json::Value, seed: &mut u64) {
        use serde_json::Value;
        *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        match value {
            Value::Number(number) if *seed >> 62 == 0 => {
                let most = if number.as_u64() < Some(256) {
                    255
                } else {
                    u64::MAX
                };
                *number = (most >> ((*seed >> 40) % 60)).into();
            }
            Value::Array(values) => values.iter_mut().for_each(|value| spoil(value, seed)),
            Value::Object(values) => values.values_mut().for_each(|value| spoil(value, seed)),
            _ => {}
        }
    }
    let mut seed = 3;
    let (mut sound, mut unsound) = (0, 0);
    for _ in 0..3000 {
        let mut time = TimeTracker::new(&config());
        for packet in packets(&mut seed) {
            time.take(&packet);
        }
        let mut value = serde_json::to_value(&time).expect("it can be written");
        spoil(&mut value, &mut seed);
        let read = serde_json::from_value::<TimeTracker>(value);
        let Some(mut spoilt) = read.ok().and_then(|time| time.restored(&config())) else {
            unsound += 1;
            continue;
        };
        sound += 1;
        for packet in packets(&mut seed) {
            spoilt.take(&packet);
        }
    }
    assert!(sound > 100 && unsound > 0, "{sound} {unsound}");
}
