//! The crystal clock: how its ticks, of which MTC packets show eight bits, stand to the time stamp counter (33.8.3.2).

use super::Span;

/// The clock's rate: TSC ticks a tick of the crystal clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    numerator: u64,
    denominator: u64,
    /// An MTC packet comes every so many ticks, as a power of two.
    mtc_freq: u32,
    /// What follows from these, as there are many MTC packets and divisions take long: [`slop`](Self::slop) and [`period`](Self::period).
    slop: u64,
    period: u64,
}

/// How crystal clock and TSC are aligned: from a TMA packet, or as good as known without.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Crystal {
    /// When the clock was at `ctc`.
    edge: Span,
    ctc: u64,
    /// So many low bits of `ctc` are known.
    bits: u32,
    /// Ticks since `edge` at the last MTC: at the least, and most likely.
    ticks: (u64, u64),
    /// An MTC has come.
    is_running: bool,
}

impl Clock {
    pub(super) fn new((numerator, denominator): (u32, u32), mtc_freq: u8) -> Self {
        let slop = denominator == 0 || numerator % denominator != 0;
        let mut this = Self {
            numerator: numerator.into(),
            denominator: denominator.into(),
            mtc_freq: u32::from(mtc_freq.min(15)),
            slop: slop.into(),
            period: u64::MAX,
        };
        if let Some(period) = this.tsc(1 << this.mtc_freq) {
            this.period = period + this.slop;
        }
        this
    }

    /// TSC ticks in so many ticks of the crystal clock, rounded down; `None` if the rate is unknown or they are too many.
    pub(super) fn tsc(self, ticks: u64) -> Option<u64> {
        if self.numerator == 0 || self.denominator == 0 {
            return None;
        }
        // A division of 128 bits takes many times as long, and there is one for each MTC packet.
        if let Some(product) = ticks.checked_mul(self.numerator) {
            return Some(product / self.denominator);
        }
        let tsc = u128::from(ticks) * u128::from(self.numerator) / u128::from(self.denominator);
        u64::try_from(tsc).ok()
    }

    /// Ticks of the crystal clock in so many TSC ticks, rounded down.
    fn ticks(self, tsc: u64) -> u64 {
        if self.numerator == 0 {
            return 0;
        }
        if let Some(product) = tsc.checked_mul(self.denominator) {
            return product / self.numerator;
        }
        let ticks = u128::from(tsc) * u128::from(self.denominator) / u128::from(self.numerator);
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// What a computed edge may be off by.
    const fn slop(self) -> u64 {
        self.slop
    }

    /// TSC ticks from one MTC to the next, rounded up.
    pub(super) const fn period(self) -> u64 {
        self.period
    }

    /// TSC ticks in which the payload of MTC packets goes round.
    pub(super) fn round(self) -> u64 {
        self.tsc(1 << (self.mtc_freq + 8)).unwrap_or(u64::MAX)
    }
}

impl Crystal {
    /// The alignment that a TMA packet gives: its TSC packet was made at `tsc`.
    pub(super) fn aligned(clock: Clock, tsc: Span, ctc: u16, fast: u16) -> Self {
        let (fast, slop) = (u64::from(fast), clock.slop());
        Self {
            edge: Span {
                low: tsc.low.saturating_sub(fast + slop),
                guess: tsc.guess.saturating_sub(fast),
                high: tsc.high.saturating_sub(fast).saturating_add(slop),
            },
            ctc: ctc.into(),
            bits: 16,
            ticks: (0, 0),
            is_running: false,
        }
    }

    /// The alignment if an MTC comes without any: its edge was no earlier than `since`, and who knows how much later.
    pub(super) fn unaligned(clock: Clock, since: Span, payload: u8) -> Self {
        let half = clock.period() / 2;
        Self {
            edge: Span {
                low: since.low,
                guess: since.guess.saturating_add(half),
                high: u64::MAX,
            },
            ctc: u64::from(payload) << clock.mtc_freq,
            bits: clock.mtc_freq + 8,
            ticks: (0, 0),
            is_running: true,
        }
    }

    /// The edge so many ticks on.
    fn at(&self, clock: Clock, (least, likely): (u64, u64)) -> Option<Span> {
        let (least, likely) = (clock.tsc(least)?, clock.tsc(likely)?);
        let low = self.edge.low.checked_add(least)?;
        let guess = self.edge.guess.checked_add(likely)?;
        let high = self
            .edge
            .high
            .saturating_add(least)
            .saturating_add(clock.slop());
        Some(Span { low, guess, high })
    }

    /// The edge of the last MTC.
    pub(super) fn last(&self, clock: Clock) -> Option<Span> {
        self.at(clock, self.ticks)
    }

    /// The payload of the last MTC, as far as the clock's bits are known.
    fn phase(&self) -> u64 {
        self.ctc.wrapping_add(self.ticks.0)
    }

    /// Whether `payload` tells of no edge since the TMA: an MTC packet may come late.
    pub(super) fn is_late(&self, clock: Clock, payload: u8) -> bool {
        let bits = self.bits.min(clock.mtc_freq + 8);
        let differ = (u64::from(payload) << clock.mtc_freq) ^ self.phase();
        !self.is_running && (differ & ((1 << bits) - 1)) >> clock.mtc_freq == 0
    }

    /// The edge of which an MTC packet tells. All before it was made at `low` or later, and most likely at `guess`. `lost`: packets may
    /// have been lost since the last certain reading, so many that the payload went round; then the edge has no upper bound.
    pub(super) fn mtc(
        &mut self,
        clock: Clock,
        payload: u8,
        low: u64,
        guess: u64,
        lost: bool,
    ) -> Option<Span> {
        let bits = self.bits.min(clock.mtc_freq + 8);
        let round = 1_u64 << bits;
        let next = u64::from(payload) << clock.mtc_freq;
        let mut step = next.wrapping_sub(self.phase()) & (round - 1);
        if step == 0 && self.is_running {
            // MTCs come when the payload changes: it has gone round.
            step = round;
        }
        let mut least = self.ticks.0.checked_add(step)?;
        // Whatever came before was made before the next edge: if not, so many rounds have gone by unseen. Half a round is left for what
        // cycles tell wrong.
        let bound = clock
            .ticks(low.saturating_sub(self.edge.high))
            .saturating_sub(round / 2);
        if least < bound {
            least = least.checked_add((bound - least).div_ceil(round).checked_mul(round)?)?;
        }
        let mut likely = least;
        if lost {
            let near = clock.ticks(guess.saturating_sub(self.edge.guess));
            let rounds = near.saturating_add(round / 2).saturating_sub(least) / round;
            likely = least.checked_add(rounds.checked_mul(round)?)?;
        }
        self.ticks = (least, likely);
        if self.is_running || self.bits < clock.mtc_freq + 8 {
            // The low bits of the clock are zero now, the high ones as told.
            self.ctc = next.wrapping_sub(least);
            self.bits = clock.mtc_freq + 8;
        }
        self.is_running = true;
        let mut edge = self.at(clock, self.ticks)?;
        if lost {
            edge.high = u64::MAX;
        }
        Some(edge)
    }
}
