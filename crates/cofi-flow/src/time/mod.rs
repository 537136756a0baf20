//! Time, estimated from the timing packets (33.8.3.2), with bounds.

mod crystal;
mod guest;
mod on;
pub(crate) mod rate;
#[cfg(test)]
mod tests;

pub use guest::VmxTsc;

use cofi_packet::Tsc;
use cofi_packet::intel::Packet;

use crate::FlowConfig;
use crystal::{Clock, Crystal};
use guest::Guest;
use on::On;
use rate::{Moment, Rate};

/// An estimate of the time stamp counter, and between which values it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Time {
    /// The estimate. It never goes back, unless the counter itself was set back ([`TimeTracker::take_jump`]): where an earlier estimate was too
    /// high, it stands still until the truth has come up, and may lie beyond `latest` so long.
    pub tsc: Tsc,
    /// How far the truth may be from it, in TSC ticks, as far as the packets bound it; `u64::MAX` if they do not.
    pub uncertainty: u64,
    /// The truth is no earlier.
    pub earliest: Tsc,
    /// The truth is no later, if the packets bound it.
    pub latest: Option<Tsc>,
}

impl Time {
    pub(crate) fn new(tsc: Tsc, earliest: Tsc, latest: Option<Tsc>) -> Self {
        let latest = latest.map(|latest| latest.max(earliest));
        let uncertainty = latest.map_or(u64::MAX, |latest| {
            tsc.0.abs_diff(earliest.0).max(tsc.0.abs_diff(latest.0))
        });
        Self {
            tsc,
            uncertainty,
            earliest,
            latest,
        }
    }

    /// How many TSC ticks lie between `earliest` and `latest`.
    #[must_use]
    pub fn width(&self) -> Option<u64> {
        Some(self.latest?.0 - self.earliest.0)
    }
}

/// A TSC packet told an earlier time than was certain before it: the counter was set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TimeJump {
    /// The estimate before.
    pub from: Tsc,
    /// The time from which it goes on.
    pub to: Tsc,
}

impl core::fmt::Display for TimeJump {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "time went back from {} to {}", self.from.0, self.to.0)
    }
}

/// Between which values a time is, and the best guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Span {
    pub(crate) low: u64,
    pub(crate) guess: u64,
    /// `u64::MAX` if unknown.
    pub(crate) high: u64,
}

/// The number with these low 56 bits that is nearest to `place`.
fn near(low: u64, place: u64) -> u64 {
    let round = 1_u64 << TSC_BITS;
    let value = place >> TSC_BITS << TSC_BITS | low;
    if place.saturating_sub(value) > round / 2 {
        value.saturating_add(round)
    } else if value.saturating_sub(place) > round / 2 && value >= round {
        value - round
    } else {
        value
    }
}

/// Follows the time stamp counter through TSC, TMA, MTC, CYC and CBR packets.
///
/// The estimate never goes back, unless a TSC packet takes back what packets had told before. The counter is followed over wraps of the 56 bits
/// that a TSC packet holds; its upper 8 bits count those wraps, from zero.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TimeTracker {
    #[cfg_attr(feature = "serde", serde(skip))]
    clock: Clock,
    #[cfg_attr(feature = "serde", serde(skip))]
    skl168: bool,
    guest: Guest,
    /// The estimate; none before the first TSC.
    now: Option<u64>,
    /// When the last timing packet was made, as far as it matters to what comes behind it.
    last: Span,
    /// All that stands before the last timing packet was no later.
    before: u64,
    /// `last` before the last CYC packet, if nothing has come since.
    before_cyc: Span,
    /// The last TSC packet, or edge that an MTC packet told of.
    anchor: Span,
    /// When the last CYC packet was made: what the next one counts from.
    cycle_base: Option<Span>,
    /// It came just now, as far as is known: short TNTs are not seen.
    cyc_is_last: bool,
    /// Core cycles that CYC packets have told of.
    cycles: u64,
    /// Those at the last anchor.
    cycles_at_anchor: u64,
    rate: Rate,
    crystal: Option<Crystal>,
    /// Packets were lost since the last TSC: nobody knows how many MTCs.
    lost: bool,
    on: On,
    #[cfg_attr(feature = "serde", serde(skip))]
    jump: Option<TimeJump>,
}

const TSC_BITS: u32 = 56;

impl TimeTracker {
    /// A tracker for the clocks of `config`.
    #[must_use]
    pub fn new(config: &FlowConfig) -> Self {
        let unknown = Span {
            low: 0,
            guess: 0,
            high: u64::MAX,
        };
        Self {
            clock: Clock::new(config.tsc_art_ratio, config.mtc_freq),
            skl168: config.errata.skl168,
            guest: Guest::new(config.vmx_tsc),
            now: None,
            last: unknown,
            before: u64::MAX,
            before_cyc: unknown,
            anchor: unknown,
            cycle_base: None,
            cyc_is_last: false,
            cycles: 0,
            cycles_at_anchor: 0,
            rate: Rate::new(config.max_nonturbo_ratio),
            crystal: None,
            lost: false,
            on: On::default(),
            jump: None,
        }
    }

    /// One that was read from a file, for the clocks of the `config` of which it was. A jump that nobody had asked about is forgotten.
    ///
    /// None if it holds what no packets can have told.
    #[cfg(feature = "serde")]
    #[must_use]
    pub fn restored(mut self, config: &FlowConfig) -> Option<Self> {
        self.clock = Clock::new(config.tsc_art_ratio, config.mtc_freq);
        self.skl168 = config.errata.skl168;
        self.guest.of(config.vmx_tsc);
        self.rate = self.rate.restored(config.max_nonturbo_ratio)?;
        Some(self)
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

    /// The latest time that the last timing packet leaves open for what stands before it, if that is known.
    #[must_use]
    pub fn latest(&self) -> Option<Tsc> {
        (self.now.is_some() && self.before != u64::MAX).then_some(Tsc(self.before))
    }

    /// The core cycles of all CYC packets together.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Whether the counter was set back since this was asked last; of several times, the last.
    pub fn take_jump(&mut self) -> Option<TimeJump> {
        self.jump.take()
    }

    /// Whether this is a timing packet: TSC, TMA, MTC, CYC or CBR.
    #[must_use]
    pub const fn tells_time(packet: &Packet) -> bool {
        matches!(
            packet,
            Packet::Tsc { .. }
                | Packet::Tma { .. }
                | Packet::Mtc { .. }
                | Packet::Cyc { .. }
                | Packet::Cbr { .. }
        )
    }

    /// Takes `packet` if it is a timing packet; `false` if not. All packets but TNTs are to be shown to it: some say that packets were lost, or
    /// whose time it is.
    #[inline]
    pub fn take(&mut self, packet: &Packet) -> bool {
        match *packet {
            Packet::Tsc { tsc } => self.tsc(tsc.get()),
            Packet::Tma { ctc, fc } => self.tma(ctc, fc.get() as u16),
            Packet::Mtc { ctc } => self.mtc(ctc),
            Packet::Cyc { cycles } => self.cyc(cycles),
            Packet::Cbr { ratio } => self.rate.ratio(ratio),
            _ => {
                self.follow(packet);
                return false;
            }
        }
        true
    }

    /// The same as taking TIPs, however many, between which there are TNTs at most.
    #[inline]
    pub(crate) fn take_tips(&mut self) {
        self.cyc_is_last = false;
        self.on.tip();
    }

    /// A packet that tells no time.
    fn follow(&mut self, packet: &Packet) {
        self.cyc_is_last = false;
        self.guest.follow(packet, self.on.is_on());
        self.on.follow(packet);
        match packet {
            Packet::Psb => self.psb(),
            Packet::Ovf => self.overflow(),
            _ => {}
        }
    }

    /// Whether it matters what [`Self::psb_is_guest`] tells.
    pub(crate) fn wants_guest(&self) -> bool {
        self.guest.is_of_use()
    }

    /// What the PIP in a PSB+, of which the PSB was taken just now, says of NR. Its TSC packet stands before it.
    pub(crate) fn psb_is_guest(&mut self, is_guest: Option<bool>) {
        self.guest.set(is_guest);
    }

    /// Whether MTC packets may have been lost in such numbers that their payload went round.
    pub(crate) fn may_have_wrapped(&self) -> bool {
        self.lost && self.crystal.is_some()
    }

    /// At `tsc`, which is known for certain, so little time had passed since packets were lost that the payload cannot have gone round.
    pub(crate) fn settles(&self, tsc: Tsc) -> bool {
        let since = self.crystal.as_ref().and_then(|it| it.last(self.clock));
        since.is_some_and(|edge| tsc.0 < edge.low.saturating_add(self.clock.round()))
    }

    /// No payload of an MTC went round where packets were lost.
    pub(crate) fn settle(&mut self) {
        self.lost = false;
    }

    /// The time that the last TSC packet told, at the latest.
    pub(crate) fn anchor(&self) -> Tsc {
        Tsc(self.anchor.high)
    }

    fn psb(&mut self) {
        if self.skl168 {
            // The CYC from which the next one counts may be missing, and so may its cycles.
            self.rate.interrupted();
            if let Some(base) = &mut self.cycle_base {
                base.high = u64::MAX;
            }
        }
    }

    fn overflow(&mut self) {
        self.lost = true;
        self.rate.lost();
        // The counter behind a CYC packet before the OVF may have gone round, and a change of frequency may be lost (33.3.8.2).
        self.last = Span {
            low: self.before_cyc.low,
            guess: self.now.unwrap_or(0),
            high: u64::MAX,
        };
        self.before = u64::MAX;
        self.cycle_base = Some(self.last);
    }

    /// A TSC packet.
    pub fn tsc(&mut self, value: u64) {
        let is_told = self.on.is_on() || self.on.in_psb();
        let told = self.guest.read(value & ((1 << TSC_BITS) - 1), is_told);
        let guess = match self.now {
            // A great step is a wrap of the 56 bits; a small one back is the trace's own.
            Some(_) => near(told.guess, self.anchor.low),
            None => told.guess,
        };
        let value = Span {
            low: guess.saturating_sub(told.guess.saturating_sub(told.low)),
            guess,
            high: guess.saturating_add(told.high.saturating_sub(told.guess)),
        };
        let back = self.now.is_some() && value.high < self.anchor.low;
        if back {
            self.jump = Some(TimeJump {
                from: Tsc(self.now.unwrap_or(0)),
                to: Tsc(guess),
            });
            self.crystal = None;
            self.now = None;
        }
        // Elsewhere a TSC packet says that clocks had stopped or that tracing begins.
        if !back && self.on.in_psb() && self.on.is_on() && !self.skl168 {
            self.measure(value.high);
        } else {
            self.rate.interrupted();
        }
        // The next CYC counts from the last one or, if tracing was off meanwhile, from here.
        let low = self.cycle_base.map_or(0, |base| base.low.min(value.low));
        self.cycle_base = Some(Span {
            low: if back { value.low } else { low },
            ..value
        });
        // What was certain holds on: a guest's time may be told in an unknown measure.
        let low = if back { 0 } else { self.anchor.low };
        self.last = Span {
            low: value.low.max(low),
            ..value
        };
        self.before = value.high;
        self.before_cyc = self.last;
        self.anchor = self.last;
        self.cycles_at_anchor = self.cycles;
        // An estimate that was too high stays until the truth is past it.
        self.now = Some(self.now.map_or(guess, |now| now.max(guess)));
        self.lost = false;
    }

    /// A TMA packet, which follows a TSC packet.
    pub fn tma(&mut self, ctc: u16, fast: u16) {
        if self.now.is_some() {
            self.crystal = Some(Crystal::aligned(self.clock, self.anchor, ctc, fast));
        }
    }

    /// An MTC packet.
    pub fn mtc(&mut self, payload: u8) {
        let Some(now) = self.now else {
            return self.unknown();
        };
        let (clock, last) = (self.clock, self.last);
        if clock.tsc(1).is_none() {
            return self.unknown();
        }
        let crystal = self.crystal.as_ref();
        if crystal.is_some_and(|crystal| crystal.is_late(clock, payload)) {
            // Its edge was before the TSC, so it tells nothing.
            self.before = u64::MAX;
            return;
        }
        let read = self.crystal.as_mut().map(|crystal| {
            let guess = last.guess.max(last.low);
            crystal.mtc(clock, payload, last.low, guess, self.lost)
        });
        let edge = match read {
            Some(Some(edge)) => edge,
            Some(None) => {
                self.crystal = None;
                return self.unknown();
            }
            None => {
                // A TSC without a TMA: from here on, the clock is known as well as this edge.
                let crystal = Crystal::unaligned(clock, self.anchor, payload);
                let edge = crystal.last(clock);
                self.crystal = Some(crystal);
                match edge {
                    Some(edge) => edge,
                    None => return self.unknown(),
                }
            }
        };
        // It was made at the edge or later, but before the next edge.
        let made = edge.high.saturating_add(clock.period());
        self.measure(made);
        // It was not made before the CYC packet that came first.
        let base = self.cycle_base.unwrap_or(Span {
            low: 0,
            guess: edge.guess,
            high: made,
        });
        // Most likely that one was made for the MTC: its best guess is the edge, then.
        let guess = if core::mem::take(&mut self.cyc_is_last) {
            edge.guess.max(base.low)
        } else {
            base.guess
        };
        self.cycle_base = Some(Span {
            low: base.low.min(made),
            guess: guess.min(made),
            high: base.high.min(made),
        });
        // Where cycles told a later time, they were wrong.
        let low = if last.low > made {
            edge.low
        } else {
            last.low.max(edge.low)
        };
        let now = now.max(edge.guess);
        self.last = Span {
            low,
            guess: now,
            high: made.max(low),
        };
        self.before = edge.high;
        self.before_cyc = self.last;
        self.anchor = edge;
        self.cycles_at_anchor = self.cycles;
        self.now = Some(now);
    }

    /// A timing packet that says nothing of the time, except that it is no earlier than before.
    fn unknown(&mut self) {
        self.last.high = u64::MAX;
        self.before = u64::MAX;
    }

    /// A CYC packet.
    pub fn cyc(&mut self, cycles: u64) {
        self.cycles = self.cycles.saturating_add(cycles);
        self.cyc_is_last = true;
        self.before_cyc = self.last;
        let ticks = self.rate.ticks(cycles);
        let Some(now) = self.now else {
            return self.unknown();
        };
        let (Some(base), Some(ticks)) = (self.cycle_base, ticks) else {
            // It was made at some time since, and the next one counts from there.
            self.cycle_base = Some(Span {
                low: self.last.low.max(self.anchor.low),
                guess: now,
                high: u64::MAX,
            });
            return self.unknown();
        };
        let low = base.low.saturating_add(ticks.least).max(self.anchor.low);
        let high = base.high.saturating_add(ticks.most).max(low);
        let guess = base.guess.saturating_add(ticks.likely).clamp(low, high);
        self.last = Span { low, guess, high };
        self.before = high;
        self.cycle_base = Some(self.last);
        self.now = Some(now.max(guess));
    }

    /// A CBR packet.
    pub fn cbr(&mut self, ratio: u8) {
        self.rate.ratio(ratio);
    }

    /// Takes the measure of the core clock (33.8.3.4): the last CYC packet was made since the last anchor, and before `high`.
    fn measure(&mut self, high: u64) {
        if self.cycles != self.cycles_at_anchor && self.now.is_some() {
            self.rate.measure(Moment {
                cycles: self.cycles,
                low: self.anchor.low,
                high,
            });
        }
    }
}
