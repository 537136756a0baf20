//! Time, estimated from the timing packets (33.8.3.2), with bounds.

use cofi_packet::Tsc;
use cofi_packet::intel::Packet;

use crate::FlowConfig;

/// An estimate of the time stamp counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Time {
    /// The estimate.
    pub tsc: Tsc,
    /// How far the truth may be from it, in TSC ticks, as far as the packets bound it; `u64::MAX` if they do not.
    pub uncertainty: u64,
}

/// Between which values a time is, and the best guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    low: u64,
    guess: u64,
    high: u64,
}

/// Follows the time stamp counter through TSC, TMA, MTC, CYC and CBR packets.
///
/// The estimate never goes back, unless a TSC packet takes back what packets had told before. The counter is followed over wraps of the 56 bits
/// that a TSC packet holds; its upper 8 bits count those wraps, from zero.
#[derive(Clone, Debug)]
pub struct TimeTracker {
    ratio: (u64, u64),
    mtc_freq: u32,
    max_nonturbo: u64,
    /// The estimate; none before the first TSC.
    now: Option<u64>,
    /// When the last timing packet was made; its `high` is `u64::MAX` if unknown.
    last: Span,
    /// The last value that a TSC or MTC packet gave.
    anchor: u64,
    /// When the last CYC packet was made: what the next one counts from.
    cycle_base: Option<Span>,
    /// Core cycles since `anchor`.
    cycles: u64,
    /// The core:bus ratio; zero if unknown.
    cbr: u64,
    /// The lowest and the highest that it has been since the last CYC.
    cbr_range: (u64, u64),
    /// TSC ticks per core cycle as last measured between two crystal clock readings, in 1/65536; zero if unknown.
    measured: u64,
    crystal: Crystal,
}

/// What is known of the crystal clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crystal {
    /// Nothing: no TMA since the last TSC.
    Unknown,
    /// The TMA packet after the last TSC: the clock's low 16 bits, and the TSC at its last edge.
    Aligned { ctc: u16, edge: u64 },
    /// MTC packets have come since: the last payload, the clock's ticks since the edge.
    Running { last: u8, ticks: u64, edge: u64 },
}

const TSC_BITS: u32 = 56;

impl TimeTracker {
    /// A tracker for the clocks of `config`.
    #[must_use]
    pub fn new(config: &FlowConfig) -> Self {
        Self {
            ratio: (
                u64::from(config.tsc_art_ratio.0),
                u64::from(config.tsc_art_ratio.1),
            ),
            mtc_freq: u32::from(config.mtc_freq.min(15)),
            max_nonturbo: u64::from(config.max_nonturbo_ratio),
            now: None,
            last: Span {
                low: 0,
                guess: 0,
                high: u64::MAX,
            },
            anchor: 0,
            cycle_base: None,
            cycles: 0,
            cbr: 0,
            cbr_range: (0, 0),
            measured: 0,
            crystal: Crystal::Unknown,
        }
    }

    /// The estimate now; none before the first TSC packet.
    #[must_use]
    pub fn now(&self) -> Option<Tsc> {
        self.now.map(Tsc)
    }

    /// The earliest time at which the last timing packet may have been made: all packets after it are no older.
    #[must_use]
    pub fn earliest(&self) -> Tsc {
        Tsc(self.last.low)
    }

    /// The latest time at which the last timing packet may have been made, if known: all packets before it are no
    /// younger.
    #[must_use]
    pub fn latest(&self) -> Option<Tsc> {
        (self.now.is_some() && self.last.high != u64::MAX).then_some(Tsc(self.last.high))
    }

    /// Takes `packet` if it is a timing packet; `false` if not.
    #[inline]
    pub fn take(&mut self, packet: &Packet) -> bool {
        match *packet {
            Packet::Tsc { tsc } => self.tsc(tsc.get()),
            Packet::Tma { ctc, fc } => self.tma(ctc, fc.get() as u16),
            Packet::Mtc { ctc } => self.mtc(ctc),
            Packet::Cyc { cycles } => self.cyc(cycles),
            Packet::Cbr { ratio } => self.cbr(ratio),
            _ => return false,
        }
        true
    }

    fn crystal_to_tsc(&self, ticks: u64) -> Option<u64> {
        let (n, d) = self.ratio;
        if n == 0 || d == 0 {
            return None;
        }
        u64::try_from(u128::from(ticks) * u128::from(n) / u128::from(d)).ok()
    }

    /// A TSC packet.
    pub fn tsc(&mut self, low: u64) {
        let low = low & ((1 << TSC_BITS) - 1);
        let value = match self.now {
            Some(now) => {
                // A great step back is a wrap of the 56 bits; a small one is the trace's own.
                let value = now >> TSC_BITS << TSC_BITS | low;
                if now.saturating_sub(value) > 1 << (TSC_BITS - 1) {
                    value.wrapping_add(1 << TSC_BITS)
                } else {
                    value
                }
            }
            None => low,
        };
        self.measure(value);
        // The next CYC counts from the last one or, if tracing was off meanwhile, from here.
        let low = self.cycle_base.map_or(0, |base| base.low.min(value));
        self.cycle_base = Some(Span {
            low,
            guess: value,
            high: value,
        });
        // An estimate that was too high stays until the truth is past it. But what was certain is taken back: then
        // the counter itself was set back.
        let now = match self.now {
            Some(now) if value >= self.last.low => now.max(value),
            _ => value,
        };
        self.last = Span {
            low: value,
            guess: value,
            high: value,
        };
        self.now = Some(now);
        self.anchor = value;
        self.cycles = 0;
        self.crystal = Crystal::Unknown;
    }

    /// A TMA packet, which follows a TSC packet.
    pub fn tma(&mut self, ctc: u16, fast: u16) {
        if self.now.is_none() {
            return;
        }
        self.crystal = Crystal::Aligned {
            ctc,
            edge: self.anchor.saturating_sub(u64::from(fast)),
        };
    }

    /// An MTC packet.
    pub fn mtc(&mut self, payload: u8) {
        let (ticks, edge) = match self.crystal {
            Crystal::Unknown => return self.unknown(),
            Crystal::Aligned { ctc, edge } => {
                // The payload is bits mtc_freq to mtc_freq + 7 of the clock, of which TMA gave bits 0 to 15.
                let bits = (8 + self.mtc_freq).min(16);
                let next = u64::from(payload) << self.mtc_freq;
                (next.wrapping_sub(u64::from(ctc)) & ((1 << bits) - 1), edge)
            }
            Crystal::Running { last, ticks, edge } => {
                let steps = u64::from(payload.wrapping_sub(last));
                (ticks.saturating_add(steps << self.mtc_freq), edge)
            }
        };
        self.crystal = Crystal::Running {
            last: payload,
            ticks,
            edge,
        };
        let Some(value) = self
            .crystal_to_tsc(ticks)
            .and_then(|since| edge.checked_add(since))
        else {
            return self.unknown();
        };
        self.measure(value);
        // It was made at the edge or later, but before the next edge, and not before the CYC packet that came first.
        let period = self.crystal_to_tsc(1 << self.mtc_freq).unwrap_or(u64::MAX);
        let high = value.saturating_add(period);
        let base = self.cycle_base.unwrap_or(Span {
            low: 0,
            guess: value,
            high,
        });
        self.cycle_base = Some(Span {
            guess: base.guess.min(high),
            high: base.high.min(high),
            ..base
        });
        let low = self.last.low.max(value);
        let now = self.now.map_or(value, |now| now.max(value));
        self.last = Span {
            low,
            guess: now,
            high: high.max(low),
        };
        self.anchor = value;
        self.cycles = 0;
        self.now = Some(now);
    }

    /// A timing packet that says nothing of the time, except that it is no earlier than before.
    fn unknown(&mut self) {
        self.last.high = u64::MAX;
    }

    /// A CYC packet.
    pub fn cyc(&mut self, cycles: u64) {
        self.cycles = self.cycles.saturating_add(cycles);
        let (slow, fast) = core::mem::replace(&mut self.cbr_range, (self.cbr, self.cbr));
        // At the least, most likely, at the most. What the scale may be wrong by: one unit of the integer ratio; and where that has
        // changed since the last CYC, nobody knows how many cycles ran at which.
        let (least, scaled, most) = if slow != 0 && self.max_nonturbo != 0 {
            let at = |ratio: u64| {
                let scaled = u128::from(cycles) * u128::from(self.max_nonturbo) / u128::from(ratio);
                (scaled, scaled / u128::from(ratio))
            };
            let ((least, below), (most, above)) = (at(fast), at(slow));
            (least.saturating_sub(below), at(self.cbr).0, most + above)
        } else if self.measured != 0 {
            let scaled = (u128::from(cycles) * u128::from(self.measured)) >> 16;
            (scaled - scaled / 8, scaled, scaled + scaled / 8)
        } else {
            self.cycle_base = None;
            return self.unknown();
        };
        let (Some(base), Some(now)) = (self.cycle_base, self.now) else {
            return self.unknown();
        };
        // Cycles are counted whole, wherever the other clocks stand.
        let cycle = 1 + self.max_nonturbo.checked_div(slow).unwrap_or(0);
        let clip = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        let low = base
            .low
            .saturating_add(clip(least).saturating_sub(cycle))
            .max(self.anchor);
        let high = base
            .high
            .saturating_add(clip(most))
            .saturating_add(cycle)
            .max(low);
        let guess = base.guess.saturating_add(clip(scaled)).clamp(low, high);
        self.last = Span { low, guess, high };
        self.cycle_base = Some(self.last);
        self.now = Some(now.max(guess));
    }

    /// A CBR packet.
    pub fn cbr(&mut self, ratio: u8) {
        let ratio = u64::from(ratio);
        if self.cbr != ratio {
            let (slow, fast) = self.cbr_range;
            self.cbr_range = if self.cbr == 0 {
                (ratio, ratio)
            } else {
                (slow.min(ratio), fast.max(ratio))
            };
            self.cbr = ratio;
            self.measured = 0;
        }
    }

    /// Takes the measure of the core clock between two readings of steady clocks (33.8.3.4).
    fn measure(&mut self, value: u64) {
        let Some(ticks) = value.checked_sub(self.anchor) else {
            return;
        };
        if self.now.is_some() && self.cycles != 0 && ticks != 0 && ticks < 1 << 40 {
            self.measured = (ticks << 16) / self.cycles;
        }
    }
}

#[cfg(test)]
mod tests {
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
            Some(Tsc(99_960 + 12 * 80)),
            "the next edge had not come yet"
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
        time.tsc(10_000);
        time.tma(0, 0);
        time.cyc(500);
        assert_eq!(at(&time), 10_000, "no scale is known yet");
        time.mtc(1); // 640 TSC ticks in 500 cycles
        assert_eq!(at(&time), 10_640);
        time.cyc(50);
        assert_eq!(at(&time), 10_640 + 63);
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
}
