//! How fast the core's clock runs against the time stamp counter: from CBR packets, and as measured (33.8.3.4).

/// Rates are TSC ticks in so many core cycles: a fixed point.
const SCALE: u128 = 1 << 20;
/// No rate is higher, in ticks a cycle: a core slower than that does not trace.
const FASTEST: u128 = 1 << 16;
/// For so many CBR values measures are kept.
const KEPT: usize = 4;

/// Bounds of a number of TSC ticks, and the best guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticks {
    pub(crate) least: u64,
    pub(crate) likely: u64,
    pub(crate) most: u64,
}

/// Bounds of a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Bounds {
    low: u128,
    high: u128,
}

/// What was measured while one CBR value held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Measure {
    cbr: u8,
    bounds: Bounds,
}

/// A moment at which a CYC packet was made: between which times, and after how many cycles in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Moment {
    pub(crate) cycles: u64,
    pub(crate) low: u64,
    pub(crate) high: u64,
}

#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Rate {
    #[cfg_attr(feature = "serde", serde(skip))]
    max_nonturbo: u8,
    /// The core:bus ratio; zero as long as no CBR packet told it.
    cbr: u8,
    /// The lowest and the highest that it has been since the last CYC.
    since_cyc: (u8, u8),
    /// For some time since the last CYC the ratio was unknown.
    is_unknown: bool,
    /// A CBR packet may have been lost.
    is_stale: bool,
    /// Newest first; those of no use have no upper bound.
    measures: [Measure; KEPT],
    /// From where on cycles and time can be compared.
    origin: Option<Moment>,
    /// The rate for a ratio, as worked out last: most CYCs come without any news of it.
    #[cfg_attr(feature = "serde", serde(skip))]
    worked_out: Option<(u8, Option<Bounds>)>,
}

impl Rate {
    pub(crate) const fn new(max_nonturbo: u8) -> Self {
        let nothing = Measure {
            cbr: 0,
            bounds: Bounds { low: 0, high: 0 },
        };
        Self {
            max_nonturbo,
            cbr: 0,
            since_cyc: (0, 0),
            is_unknown: false,
            is_stale: false,
            measures: [nothing; KEPT],
            origin: None,
            worked_out: None,
        }
    }

    /// One that was read from a file, with the processor's ratio. None if it holds what no packets can have told: sums of such numbers might not fit.
    #[cfg(feature = "serde")]
    pub(super) fn restored(mut self, max_nonturbo: u8) -> Option<Self> {
        self.max_nonturbo = max_nonturbo;
        let is_sound = |measure: &Measure| {
            let Bounds { low, high } = measure.bounds;
            low <= FASTEST * SCALE && high <= SCALE << 48
        };
        self.measures.iter().all(is_sound).then_some(self)
    }

    /// A CBR packet.
    pub(crate) fn ratio(&mut self, ratio: u8) {
        if self.is_stale {
            self.is_stale = false;
            self.is_unknown = true;
            self.since_cyc = (ratio, ratio);
        } else if self.cbr == 0 {
            self.since_cyc = (ratio, ratio);
        } else {
            let (slow, fast) = self.since_cyc;
            self.since_cyc = (slow.min(ratio), fast.max(ratio));
        }
        if self.cbr != ratio {
            self.cbr = ratio;
            self.origin = None;
        }
    }

    /// Packets were lost, perhaps a CBR among them.
    pub(crate) fn lost(&mut self) {
        self.origin = None;
        self.is_stale = self.cbr != 0;
        if self.cbr == 0 {
            self.measures = [Measure::default(); KEPT];
            self.worked_out = None;
        }
    }

    /// Cycles count from here on, so what the ratio was before does not matter.
    pub(crate) fn counts_anew(&mut self) {
        self.since_cyc = (self.cbr, self.cbr);
        self.is_unknown = false;
    }

    /// Cycles were not counted for a while.
    pub(crate) fn interrupted(&mut self) {
        self.origin = None;
    }

    /// How many ticks so many cycles took, with one of them cut at either end; `None` if that is not known. They are the cycles of a CYC packet
    /// if it `ends` here.
    pub(crate) fn ticks(&mut self, cycles: u64) -> Option<Ticks> {
        let (slow, fast) = core::mem::replace(&mut self.since_cyc, (self.cbr, self.cbr));
        if core::mem::take(&mut self.is_unknown) || self.is_stale {
            return None;
        }
        let now = self.bounds(self.cbr)?;
        let (slow, fast) = if slow == fast {
            (now, now)
        } else {
            (self.bounds(slow)?, self.bounds(fast)?)
        };
        let clip = |ticks: u128| u64::try_from(ticks).unwrap_or(u64::MAX);
        let cycles = u128::from(cycles);
        // Cycles are counted whole, wherever the other clocks stand.
        let least = cycles.saturating_sub(1) * fast.low / SCALE;
        let most = (cycles + 1).saturating_mul(slow.high).div_ceil(SCALE);
        let likely = cycles.saturating_mul(now.low.midpoint(now.high)) / SCALE;
        Some(Ticks {
            least: clip(least),
            likely: clip(likely),
            most: clip(most),
        })
    }

    /// The rate while CBR is `cbr`.
    fn bounds(&mut self, cbr: u8) -> Option<Bounds> {
        match self.worked_out {
            Some((of, bounds)) if of == cbr => bounds,
            _ => {
                let bounds = self.work_out(cbr);
                self.worked_out = Some((cbr, bounds));
                bounds
            }
        }
    }

    fn work_out(&self, cbr: u8) -> Option<Bounds> {
        let told = self.told(cbr);
        let measured = self.measured(cbr);
        match (told, measured) {
            (Some(told), Some(measured)) => {
                let both = Bounds {
                    low: told.low.max(measured.low),
                    high: told.high.min(measured.high),
                };
                // Where they contradict each other, the clock did not run as CBR says.
                Some(if both.low <= both.high { both } else { told })
            }
            (told, measured) => told.or(measured),
        }
    }

    /// What CBR and the processor's ratio tell: both are whole numbers, so they may be off by nearly one.
    fn told(&self, cbr: u8) -> Option<Bounds> {
        let (cbr, tsc) = (u128::from(cbr), u128::from(self.max_nonturbo));
        if cbr == 0 || tsc == 0 {
            return None;
        }
        let rate = tsc * SCALE / cbr;
        Some(Bounds {
            low: rate - (rate / cbr).min(rate),
            high: rate + rate / cbr + 1,
        })
    }

    /// What was measured while CBR was `cbr`, or else while it was another one.
    fn measured(&self, cbr: u8) -> Option<Bounds> {
        let mut known = self.measures.iter().filter(|it| it.bounds.high != 0);
        if let Some(same) = known.clone().find(|it| it.cbr == cbr) {
            return Some(same.bounds);
        }
        if cbr == 0 {
            return None;
        }
        let other = known.find(|it| it.cbr > 1)?;
        let (from, to) = (u128::from(other.cbr), u128::from(cbr));
        Some(Bounds {
            low: other.bounds.low * (from - 1) / (to + 1),
            high: (other.bounds.high * (from + 1)).div_ceil(to.saturating_sub(1).max(1)),
        })
    }

    /// At `moment`, of which nothing but anchors of time say when it was, a CYC packet had been made.
    pub(crate) fn measure(&mut self, moment: Moment) {
        if self.is_stale || self.is_unknown || moment.high == u64::MAX {
            return;
        }
        let Some(origin) = self.origin else {
            self.origin = Some(moment);
            return;
        };
        let cycles = u128::from(moment.cycles.saturating_sub(origin.cycles));
        let least = u128::from(moment.low.saturating_sub(origin.high));
        let most = u128::from(moment.high.saturating_sub(origin.low));
        if cycles < 2 || least == 0 || most >= 1 << 48 {
            return;
        }
        let new = Bounds {
            low: least * SCALE / (cycles + 1),
            high: (most * SCALE).div_ceil(cycles - 1),
        };
        if new.low > FASTEST * SCALE {
            return;
        }
        self.worked_out = None;
        let at = self
            .measures
            .iter()
            .position(|it| it.cbr == self.cbr && it.bounds.high != 0);
        let Some(at) = at else {
            self.measures.rotate_right(1);
            self.measures[0] = Measure {
                cbr: self.cbr,
                bounds: new,
            };
            return;
        };
        let old = &mut self.measures[at].bounds;
        let both = Bounds {
            low: old.low.max(new.low),
            high: old.high.min(new.high),
        };
        if both.low <= both.high {
            *old = both;
        } else {
            // The clock has changed without a CBR: measure anew.
            *old = new;
            self.origin = Some(moment);
        }
    }
}
