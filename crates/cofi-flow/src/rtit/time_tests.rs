//! The time of RTIT: by hand, and of random traces against their own clock.

use alloc::vec::Vec;

use cofi_packet::rtit::{CycleCount, FullTnt, LipBytes, LipPayload, Packet};
use cofi_packet::{Tsc, Uint};
use cofi_test::Rng;

use crate::{Errata, FlowConfig, RtitTime, TimeJump};

const RATIO: u8 = 20;

fn config() -> FlowConfig {
    FlowConfig {
        max_nonturbo_ratio: RATIO,
        ..FlowConfig::default()
    }
}

fn with(errata: impl FnOnce(&mut Errata)) -> FlowConfig {
    let mut config = config();
    errata(&mut config.errata);
    config
}

fn count(cycles: Option<u64>) -> Option<CycleCount> {
    cycles.map(|cycles| CycleCount::new(cycles as u32).expect("22 bits"))
}

fn ip() -> LipPayload {
    LipPayload::truncate(LipBytes::Full, 0x1000)
}

fn sts(acbr: u8, ecbr: u8, tsc: u64, cycles: Option<u64>) -> Packet {
    Packet::Sts {
        acbr: Uint::truncate(acbr.into()),
        ecbr: Uint::truncate(ecbr.into()),
        tsc: Uint::truncate(tsc),
        cycles: count(cycles),
    }
}

fn mtc(range: u8, tsc: u64, cycles: Option<u64>) -> Packet {
    Packet::Mtc {
        range: Uint::truncate(range.into()),
        tsc: (tsc >> (7 + 2 * range)) as u8,
        cycles: count(cycles),
    }
}

fn tip(cycles: Option<u64>) -> Packet {
    let (ip, cycles) = (ip(), count(cycles));
    Packet::Tip { ip, cycles }
}

fn pge(cycles: Option<u64>) -> Packet {
    let (ip, cycles) = (ip(), count(cycles));
    Packet::FupPge { ip, cycles }
}

fn pgd(cycles: Option<u64>) -> Packet {
    let (ip, cycles) = (ip(), count(cycles));
    Packet::FupPgd { ip, cycles }
}

fn ovf(cycles: Option<u64>) -> Packet {
    let (ip, cycles) = (ip(), count(cycles));
    Packet::FupOvf { ip, cycles }
}

fn full(cycles: Option<u64>) -> Packet {
    Packet::Tnt {
        bits: FullTnt::new([true; 6]),
        cycles: count(cycles),
    }
}

/// A tracker that has seen a PSB, an FUP.PGE and an STS.
fn begun(config: &FlowConfig, tsc: u64, cycles: Option<u64>) -> RtitTime {
    let mut time = RtitTime::new(config);
    time.take(&Packet::Psb, &[]);
    time.take(&pge(cycles), &[]);
    time.take(&sts(RATIO, RATIO, tsc, cycles), &[]);
    time
}

fn bounds(time: &RtitTime) -> (u64, Option<u64>) {
    (time.earliest().0, time.latest().map(|latest| latest.0))
}

#[test]
fn an_sts_tells_the_time_and_nothing_before_it_does() {
    let mut time = RtitTime::new(&config());
    assert!(!time.take(&Packet::Psb, &[]));
    assert!(time.take(&mtc(0, 0x80, None), &[]));
    assert!(time.take(&tip(Some(5)), &[]));
    assert!(!time.take(&tip(None), &[]));
    assert_eq!((time.now(), time.latest()), (None, None));
    time.take(&sts(20, 20, 5000, None), &[]);
    assert_eq!(time.now(), Some(Tsc(5000)));
    assert_eq!(bounds(&time), (5000, Some(5000)));
}

#[test]
fn an_mtc_shows_eight_bits_of_the_tsc() {
    for range in 0..4 {
        let period = 128 << (2 * range);
        let mut time = begun(&config(), 10 * period + 5, None);
        time.take(&mtc(range, 11 * period, None), &[]);
        assert_eq!(bounds(&time), (11 * period, Some(11 * period)));
        // Some were left out; but this is the first of its payload.
        time.take(&mtc(range, 266 * period, None), &[]);
        assert_eq!(bounds(&time), (266 * period, Some(266 * period)));
        time.take(&mtc(range, 267 * period, None), &[]);
        assert_eq!(time.now(), Some(Tsc(267 * period)));
    }
}

#[test]
fn an_sts_goes_round_its_40_bits() {
    let mut time = begun(&config(), (1 << 40) - 100, None);
    time.take(&mtc(0, 1 << 40, None), &[]);
    assert_eq!(time.now(), Some(Tsc(1 << 40)));
    time.take(&sts(20, 20, 50, None), &[]);
    assert_eq!(bounds(&time), ((1 << 40) + 50, Some((1 << 40) + 50)));
    // Asleep for most of a round.
    time.take(&sts(20, 20, (1 << 40) - (1 << 33), None), &[]);
    assert_eq!(time.now(), Some(Tsc((2 << 40) - (1 << 33))));
    assert_eq!(time.take_jump(), None);
    // Set back.
    time.take(&sts(20, 20, (1 << 40) - (1 << 33) - 7, None), &[]);
    let to = Tsc((2 << 40) - (1 << 33) - 7);
    let from = Tsc(to.0 + 7);
    assert_eq!(time.take_jump(), Some(TimeJump { from, to }));
    assert_eq!(time.now(), Some(to));
}

#[test]
fn cycles_tell_the_time_between() {
    let mut time = begun(&config(), 1000, Some(0));
    time.take(&tip(Some(60)), &[]);
    let (low, high) = bounds(&time);
    assert!(low <= 1060 && high >= Some(1060) && low > 1050, "{low}");
    // Half as fast, and modulated: between a quarter and a half.
    time.take(&sts(10, 5, 2000, Some(9)), &[]);
    time.take(&tip(Some(100)), &[]);
    let (low, high) = bounds(&time);
    assert!((2150..=2200).contains(&low), "{low}");
    assert!(
        high.is_some_and(|high| (2400..2550).contains(&high)),
        "{high:?}"
    );
    assert_eq!(time.cycles(), 169);
}

#[test]
fn an_overflow_leaves_the_latest_time_open() {
    let mut time = begun(&config(), 1000, Some(0));
    // It may be the full TNT that began an overflow: its count is that of the end.
    time.take(&full(Some(500)), &[0x92]);
    assert_eq!(bounds(&time), (1000, None));
    time.take(&ovf(Some(0)), &[]);
    assert_eq!(bounds(&time), (1000, None));
    assert!(time.may_have_wrapped());
    let mut settled = time.clone();
    for time in [&mut time, &mut settled] {
        time.take(&mtc(0, 0x480, Some(3)), &[]);
    }
    // The MTC was for this edge, or some rounds later.
    assert_eq!(bounds(&time), (0x480, None));
    assert!(time.settles(Tsc(0x500)) && !time.settles(Tsc(1000 + 0x8000)));
    settled.settle();
    settled.take(&mtc(0, 0x500, Some(3)), &[]);
    assert_eq!(bounds(&settled), (0x500, Some(0x500)));
    // As fast as ever, perhaps: no STS has told since.
    settled.take(&tip(Some(3)), &[]);
    assert_eq!(bounds(&settled), (0x500, None));
    time.take(&sts(20, 20, 0x9000, Some(0)), &[]);
    time.take(&mtc(0, 0x9080, Some(0x80)), &[]);
    assert_eq!(bounds(&time), (0x9080, Some(0x9080)));
}

/// The payload counts edges: from within a period, 255 more and the next edge take it once around.
#[test]
fn a_payload_may_go_round_in_less_than_256_periods() {
    let mut time = begun(&config(), 0x7f, None);
    time.take(&ovf(None), &[]);
    time.take(&mtc(0, 0, None), &[]);
    assert!(time.may_have_wrapped());
    assert!(time.settles(Tsc(0x7fff)));
    assert!(
        !time.settles(Tsc(0x8000)),
        "256 edges, of 255 periods and a tick"
    );
}

#[test]
fn a_psb_is_of_a_trace_that_goes_on_if_no_pge_follows() {
    let mut time = begun(&config(), 1000, Some(0));
    time.take(&Packet::Psb, &[]);
    let mut again = time.clone();
    time.take(&tip(Some(30)), &[]);
    assert!(time.latest().is_some() && time.earliest().0 > 1020);
    again.take(&pge(Some(30)), &[]);
    assert_eq!(bounds(&again), (1000, None));
    assert!(again.may_have_wrapped());
}

#[test]
fn erratum_e6_a_cycle_more() {
    let mut time = begun(&with(|errata| errata.rtit_e6 = true), 1000, Some(0));
    for _ in 0..100 {
        time.take(&tip(Some(1)), &[]);
    }
    let (low, high) = bounds(&time);
    assert!(low <= 1200 && high >= Some(1200), "{low} {high:?}");
    assert!(low > 1180, "{low}");
    for _ in 0..100 {
        time.take(&tip(Some(0)), &[]);
    }
    let (low, high) = bounds(&time);
    assert!(low <= 1200 && high >= Some(1300), "{low} {high:?}");
}

#[test]
fn erratum_e7_the_first_mtc_is_ignored() {
    let mut time = begun(&with(|errata| errata.rtit_e7 = true), 0x1010, None);
    time.take(&mtc(0, 0x1780, None), &[]);
    assert_eq!(bounds(&time), (0x1010, None));
    time.take(&mtc(0, 0x1080, None), &[]);
    assert_eq!(bounds(&time), (0x1080, Some(0x1080)));
}

/// A processor that makes packets, with the time of each: none for PSB and TraceStop, which tell no time and stand where they may.
struct Model {
    rng: Rng,
    tsc: u64,
    /// In parts of a bus clock.
    cycles: u64,
    counted: u64,
    ratio: u8,
    accurate: bool,
    less: bool,
    range: u8,
    mtc_en: bool,
    trigger: bool,
    packet_en: bool,
    overflow: bool,
    next_edge: u64,
    e6: bool,
    made: Vec<(Packet, u64)>,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (accurate, less, mtc_en) = (rng.one_in(2), rng.one_in(2), !rng.one_in(4));
        Self {
            tsc: rng.below(1 << 41),
            cycles: 0,
            counted: 0,
            ratio: RATIO,
            accurate,
            less,
            range: rng.below(4) as u8,
            mtc_en,
            trigger: false,
            packet_en: false,
            overflow: false,
            next_edge: 0,
            e6: rng.one_in(4),
            made: Vec::new(),
            rng,
        }
    }

    fn timing(&self) -> bool {
        self.trigger && !self.overflow && (self.packet_en || !self.less)
    }

    /// Packets are made now.
    fn send(&mut self, packet: impl FnOnce(Option<u64>) -> Packet) {
        if !self.trigger || self.overflow {
            return;
        }
        let since = self.cycles / u64::from(RATIO) - self.counted;
        let since = since.min((1 << 22) - 1);
        let told = if self.e6 {
            since.saturating_sub(1)
        } else {
            since
        };
        let packet = packet(self.accurate.then_some(told));
        let counts = !matches!(packet, Packet::Psb | Packet::TraceStop);
        if self.accurate && counts {
            self.counted = self.cycles / u64::from(RATIO);
        }
        self.made.push((packet, self.tsc));
    }

    fn pass(&mut self, ticks: u64) {
        let until = self.tsc + ticks;
        let period = 128 << (2 * self.range);
        self.next_edge = (self.tsc / period + 1) * period;
        while self.next_edge <= until {
            self.step(self.next_edge);
            if self.timing() && self.mtc_en {
                let (range, tsc) = (self.range, self.tsc);
                self.send(|cycles| mtc(range, tsc, cycles));
            }
            self.next_edge += period;
        }
        self.step(until);
    }

    fn step(&mut self, until: u64) {
        if self.packet_en {
            self.cycles += (until - self.tsc) * u64::from(self.ratio);
        }
        self.tsc = until;
    }

    fn sleep(&mut self) {
        self.tsc += self.rng.below(3_000_000);
        self.sts();
    }

    fn sts(&mut self) {
        if self.timing() {
            let (ratio, tsc) = (self.ratio, self.tsc);
            self.send(|cycles| sts(ratio, ratio, tsc, cycles));
        }
    }

    fn event(&mut self) {
        let most = [4, 100, 3000][self.rng.below(3) as usize];
        let ticks = self.rng.below(most);
        self.pass(ticks);
        match self.rng.below(80) {
            0..=3 if self.packet_en => {
                self.send(pgd);
                self.packet_en = false;
            }
            0..=9 if self.trigger && !self.packet_en => {
                self.packet_en = true;
                self.send(pge);
            }
            10 | 11 => self.sts(),
            12 => {
                self.ratio = 5 + self.rng.below(30) as u8;
                self.sts();
            }
            13 => self.sleep(),
            14 if !self.accurate || self.cycles / 20 - self.counted < 1 << 20 => {
                self.overflow = true;
            }
            15..=25 if self.overflow && self.trigger => {
                self.overflow = false;
                if self.rng.one_in(2) {
                    self.send(full);
                }
                self.send(ovf);
            }
            // Without FUP.PGD.
            26 => {
                self.trigger = false;
                self.packet_en = false;
            }
            27 if self.trigger => {
                self.send(|_| Packet::TraceStop);
                self.trigger = false;
                self.packet_en = false;
            }
            26..=35 if !self.trigger => {
                self.less = self.rng.one_in(2);
                self.range = self.rng.below(4) as u8;
                self.trigger = true;
                self.send(|_| Packet::Psb);
                if self.rng.one_in(2) {
                    self.packet_en = true;
                    self.send(pge);
                }
            }
            36 => self.send(|_| Packet::Psb),
            _ if self.packet_en => match self.rng.below(3) {
                0 => self.send(tip),
                1 => self.send(full),
                _ => {
                    self.send(|cycles| Packet::FupFar {
                        ip: ip(),
                        cycles: count(cycles),
                    });
                    self.send(tip);
                }
            },
            _ => {}
        }
        // The counter would go round; a FUP.PCC tells it before.
        if self.packet_en && self.cycles / 20 - self.counted >= 1 << 20 {
            self.send(|cycles| Packet::FupPcc {
                ip: ip(),
                cycles: count(cycles),
            });
        }
    }
}

#[test]
fn the_truth_lies_in_the_interval() {
    let (mut bounded, mut open) = (0_u64, 0_u64);
    for seed in 0..300 {
        let mut model = Model::new(seed);
        for _ in 0..600 {
            model.event();
        }
        let mut config = with(|errata| errata.rtit_e6 = model.e6);
        if seed % 4 == 0 {
            config.max_nonturbo_ratio = 0;
        }
        let mut time = RtitTime::new(&config);
        // What the first STS cannot tell.
        let mut rounds = None;
        let mut last = 0;
        for at in 0..model.made.len() {
            let (packet, truth) = model.made[at];
            let behind: &[u8] = match model.made.get(at + 1) {
                Some((Packet::FupOvf { .. }, _)) => &[0x92],
                Some((Packet::Psb, _)) => &[0xc0],
                Some(_) => &[1],
                None => &[],
            };
            let tells = time.take(&packet, behind);
            assert_eq!(time.take_jump(), None, "seed {seed}");
            let Some(now) = time.now() else { continue };
            assert!(now.0 >= last, "seed {seed}");
            last = now.0;
            let rounds = *rounds.get_or_insert(truth >> 40 << 40);
            let truth = truth - rounds;
            let earliest = time.earliest().0;
            let near = &model.made[at.saturating_sub(12)..at + 1];
            assert!(
                earliest <= truth,
                "seed {seed}, {at}: {earliest} {truth} {near:?}"
            );
            match time.latest() {
                _ if !tells => {}
                Some(latest) => {
                    bounded += 1;
                    // The packets before this were made no later.
                    let before = at.checked_sub(1).map(|at| model.made[at].1);
                    let before = before.map_or(0, |before| before.saturating_sub(rounds));
                    assert!(
                        before <= latest.0,
                        "seed {seed}, {at}: {before} {latest:?} {near:?}"
                    );
                }
                None => open += 1,
            }
        }
    }
    assert!(bounded > 10_000 && open > 10_000, "{bounded} {open}");
}
