//! The time of an RTIT trace: STS, MTC and cycle counts (4.2.12–4.2.15).

use cofi_packet::Tsc;
use cofi_packet::rtit::{Kind, Packet};

use crate::FlowConfig;
use crate::time::rate::{Moment, Rate, Ticks};
use crate::time::{Span, TimeJump};

/// An STS packet holds so many bits of the hardware TSC.
const STS_BITS: u32 = 40;
/// How far an STS packet may go back, as the counter was set back, before it is taken for a counter that has gone round.
const BACK: u64 = 1 << 32;
/// The first bit of the TSC that MTC packets show, MTC_Range being zero, and how many they show.
const MTC_FIRST: u32 = 7;
const MTC_BITS: u32 = 8;
/// In place of the first bit, where there was no MTC: no time is too long.
const NO_MTC: u32 = 63;

const UNKNOWN: Span = Span {
    low: 0,
    guess: 0,
    high: u64::MAX,
};

/// Whether PacketEn is set, as far as packets have told: then the cycle counter runs, and no packet is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traced {
    On,
    /// It has been set since the PSB or overflow, or else an FUP.PGE will come: without FUP.PGD tracing may have been off meanwhile (4.2.8).
    /// `seen`: an MTC has come since, so the trace has gone on all the time since then.
    Unclear {
        seen: bool,
    },
    /// `synced`: an STS has come since, and made up for what was missing before it.
    Off {
        synced: bool,
    },
}

const OFF: Traced = Traced::Off { synced: false };

/// Whether MTC packets may be missing in such numbers that their payload went round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    None,
    /// If tracing was off before the last PSB.
    Maybe,
    Some,
}

/// What a cycle count tells of the time since the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worth {
    /// The counter ran all the time.
    Whole,
    /// It ran for some of the time.
    Least,
    Nothing,
}

/// Follows the hardware TSC through the packets of RTIT, as [`TimeTracker`](crate::TimeTracker) does with those of Intel PT.
///
/// STS packets alone tell the time as such, so there is none before the first. 40 bits are in the packet; the others count how often they went
/// round. An STS that tells of a time up to 2^32 ticks before what was certain says that the counter was set back.
#[derive(Clone, Debug)]
pub struct RtitTime {
    e2: bool,
    e6: bool,
    e7: bool,
    /// The estimate; none before the first STS.
    now: Option<u64>,
    /// When the last packet that told the time was made.
    last: Span,
    /// The last STS, or edge that an MTC told of.
    edge: u64,
    /// All that stands before it was no later.
    before: u64,
    /// When `counted` began, and the cycles counted since: at the least and at the most.
    base: Span,
    counted: (u64, u64),
    /// Core cycles that counts have told of.
    cycles: u64,
    rate: Rate,
    /// The actual and the effective core/bus ratio.
    ratios: (u8, u8),
    traced: Traced,
    /// While PacketEn is clear there are no timing packets, for all that is known (RTIT_CTL.LESS_PKTS).
    sparse: bool,
    missing: Missing,
    /// What was certain when MTC packets began to be missing, and the lowest first bit of the TSC that those since then have shown.
    missing_since: (u64, u32),
    /// Erratum E7: the next MTC may be wrong.
    ignores_mtc: bool,
    after_overflow: bool,
    jump: Option<TimeJump>,
}

impl RtitTime {
    /// A tracker for the clocks of `config`.
    #[must_use]
    pub fn new(config: &FlowConfig) -> Self {
        Self {
            e2: config.errata.rtit_e2,
            e6: config.errata.rtit_e6,
            e7: config.errata.rtit_e7,
            now: None,
            last: UNKNOWN,
            edge: 0,
            before: u64::MAX,
            base: UNKNOWN,
            counted: (0, 0),
            cycles: 0,
            rate: Rate::new(config.max_nonturbo_ratio),
            ratios: (0, 0),
            traced: Traced::Unclear { seen: false },
            sparse: true,
            missing: Missing::Some,
            missing_since: (0, NO_MTC),
            ignores_mtc: config.errata.rtit_e7,
            after_overflow: false,
            jump: None,
        }
    }

    /// The estimate now; none before the first STS packet.
    pub fn now(&self) -> Option<Tsc> {
        self.now.map(Tsc)
    }

    /// The earliest time at which the last packet that tells the time may have been made: all packets after it are no older, except
    /// that results in a TNT may be.
    pub(crate) fn earliest(&self) -> Tsc {
        Tsc(self.last.low)
    }

    /// The latest time that this packet leaves open for what stands before it, if that is known.
    pub(crate) fn latest(&self) -> Option<Tsc> {
        (self.now.is_some() && self.before != u64::MAX).then_some(Tsc(self.before))
    }

    /// The core cycles of all cycle counts together.
    pub(crate) fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Whether the counter was set back since this was asked last; of several times, the last.
    pub fn take_jump(&mut self) -> Option<TimeJump> {
        self.jump.take()
    }

    /// Takes `packet`, behind which the stream goes on with `behind`; whether it tells the time. All packets but partial TNTs are to be shown
    /// to it.
    pub fn take(&mut self, packet: &Packet, behind: &[u8]) -> bool {
        let is_confirmed = self.is_confirmed_by(packet);
        self.after_overflow = false;
        if is_confirmed {
            self.traced = Traced::On;
            if self.missing == Missing::Maybe {
                self.missing = Missing::None;
            }
        }
        match *packet {
            Packet::Psb => self.psb(),
            Packet::TraceStop => (self.traced, self.sparse) = (OFF, true),
            Packet::FupPge { .. } => self.enabled(),
            Packet::FupOvf { .. } => self.lost(),
            Packet::Mtc { .. } => self.timing_goes_on(),
            _ => {}
        }
        let cycles = cycles(packet);
        match cycles {
            Some(cycles) => self.count(cycles, self.worth(packet, behind)),
            None if packet.kind() == Kind::Mtc => self.unknown(),
            None => {}
        }
        match *packet {
            Packet::FupPge { .. } => self.traced = Traced::On,
            Packet::FupPgd { .. } => self.off(),
            Packet::FupOvf { .. } => self.after_overflow = true,
            Packet::Mtc { range, tsc, .. } => self.mtc(range.get() as u32, tsc),
            Packet::Sts {
                acbr, ecbr, tsc, ..
            } => self.sts(acbr.get() as u8, ecbr.get() as u8, tsc.get()),
            _ => {}
        }
        cycles.is_some()
            || matches!(
                packet,
                Packet::Mtc { .. } | Packet::Sts { .. } | Packet::FupOvf { .. }
            )
    }

    /// Packets were lost: by an overflow (4.2.5), or because the stream is damaged.
    pub(crate) fn lost(&mut self) {
        self.traced = Traced::Unclear { seen: false };
        self.sparse = true;
        self.break_off();
        self.unknown();
    }

    /// Whether MTC packets may have been lost in such numbers that their payload went round.
    pub(crate) fn may_have_wrapped(&self) -> bool {
        self.missing == Missing::Some && self.now.is_some()
    }

    /// At `tsc`, which is known for certain, so little time had passed since packets were lost that the payload cannot have gone round.
    pub(crate) fn settles(&self, tsc: Tsc) -> bool {
        // The edges count, not the ticks: 255 periods and one tick may take the payload once around.
        let (since, first) = self.missing_since;
        (tsc.0 >> first).saturating_sub(since >> first) < 1 << MTC_BITS
    }

    /// No payload of an MTC went round where packets were lost.
    pub(crate) fn settle(&mut self) {
        if self.missing == Missing::Some {
            self.missing = Missing::None;
            // Until then there may have been none at all.
            self.edge = self.edge.max(self.missing_since.0);
        }
    }

    /// The time that the last STS packet told.
    pub(crate) fn anchor(&self) -> Tsc {
        Tsc(self.base.high)
    }

    /// Whether this packet says that PacketEn has been set since the last PSB or overflow: only after an FUP.PGE are there branch packets.
    fn is_confirmed_by(&self, packet: &Packet) -> bool {
        matches!(self.traced, Traced::Unclear { .. })
            && match packet.kind() {
                // Erratum E5: it may be that of a branch during the overflow.
                Kind::Tip => !self.after_overflow,
                Kind::FupFar | Kind::Tnt => true,
                // Erratum E2: it may be one too many.
                Kind::FupPgd => !self.e2,
                _ => false,
            }
    }

    fn psb(&mut self) {
        match self.traced {
            Traced::On | Traced::Unclear { .. } => {
                self.traced = Traced::Unclear { seen: false };
                if self.missing == Missing::None {
                    self.missing = Missing::Maybe;
                    self.note_missing();
                }
                self.rate.interrupted();
            }
            Traced::Off { .. } => {
                self.traced = OFF;
                self.sparse = true;
                self.break_off();
            }
        }
        self.ignores_mtc = self.e7;
    }

    /// FUP.PGE, before its cycle count is looked at.
    fn enabled(&mut self) {
        match self.traced {
            Traced::Off { synced } => {
                if self.sparse && !synced {
                    self.break_off();
                }
            }
            Traced::On | Traced::Unclear { seen: false } => {
                self.sparse = true;
                if self.missing != Missing::None || self.traced == Traced::On {
                    self.break_off();
                }
            }
            Traced::Unclear { seen: true } => {
                self.sparse = false;
                // Only an STS makes up for what may be missing.
                if self.missing != Missing::None {
                    self.break_off();
                }
            }
        }
        self.rate.interrupted();
    }

    fn off(&mut self) {
        // Erratum E2: the trace may have been off before, and since then on.
        if matches!(self.traced, Traced::Unclear { .. }) {
            self.sparse = true;
            self.break_off();
        }
        self.traced = OFF;
        self.rate.interrupted();
    }

    /// An MTC comes. (An STS does so with Less_Pkts, too, if a MOV CR3 sets PacketEn: before the FUP.PGE.)
    fn timing_goes_on(&mut self) {
        match &mut self.traced {
            Traced::On => {}
            Traced::Unclear { seen } => *seen = true,
            Traced::Off { .. } => self.sparse = false,
        }
    }

    /// Nobody knows how many packets are missing, and whether among them are those that tell of another frequency.
    fn break_off(&mut self) {
        if self.missing == Missing::None {
            self.note_missing();
        }
        self.missing = Missing::Some;
        self.rate.lost();
        self.ratios = (0, 0);
        self.forget_counts();
    }

    fn note_missing(&mut self) {
        self.missing_since = (self.last.low, NO_MTC);
    }

    /// Cycles are counted from now on, whenever that is.
    fn forget_counts(&mut self) {
        self.base = Span {
            low: self.last.low,
            guess: self.now.unwrap_or(0),
            high: u64::MAX,
        };
        self.counted = (0, 0);
    }

    /// A packet says nothing of the time, except that it is no earlier than before.
    fn unknown(&mut self) {
        self.last.high = u64::MAX;
        self.before = u64::MAX;
    }

    /// What the cycle count of this packet tells.
    fn worth(&self, packet: &Packet, behind: &[u8]) -> Worth {
        let kind = packet.kind();
        match self.traced {
            _ if kind == Kind::FupOvf => Worth::Nothing,
            // A full TNT that began an overflow has the count of its end (4.2.5). A PSB may stand between them.
            _ if kind == Kind::Tnt
                && behind
                    .first()
                    .is_none_or(|byte| byte & 0xf8 == 0x90 || *byte == 0xc0) =>
            {
                Worth::Nothing
            }
            Traced::On => Worth::Whole,
            Traced::Unclear { .. } => Worth::Nothing,
            Traced::Off { .. } => match kind {
                Kind::Mtc | Kind::FupPcc => Worth::Least,
                _ if !self.sparse => Worth::Least,
                _ => Worth::Nothing,
            },
        }
    }

    /// A cycle count.
    fn count(&mut self, told: u64, worth: Worth) {
        let (least, most) = match told {
            // Erratum E6: a zero may be a one.
            0 if self.e6 => (0, 1),
            _ => (told + u64::from(self.e6), told + u64::from(self.e6)),
        };
        self.cycles = self.cycles.saturating_add(least);
        self.counted.0 = self.counted.0.saturating_add(least);
        self.counted.1 = self.counted.1.saturating_add(most);
        if worth == Worth::Nothing || self.now.is_none() {
            self.forget_counts();
            return self.unknown();
        }
        // That of an MTC may be taken a cycle beside its edge.
        let least = self.ticks(self.counted.0.saturating_sub(1));
        let most = self.ticks(self.counted.1.saturating_add(1));
        let (Some(least), Some(most)) = (least, most) else {
            self.forget_counts();
            return self.unknown();
        };
        let low = self.base.low.saturating_add(least.least).max(self.last.low);
        let high = match worth {
            Worth::Whole => self.base.high.saturating_add(most.most).max(low),
            _ => u64::MAX,
        };
        let guess = self.base.guess.saturating_add(least.likely);
        let span = Span {
            low,
            guess: guess.clamp(low, high),
            high,
        };
        if worth != Worth::Whole {
            (self.base, self.counted) = (span, (0, 0));
        }
        self.last = span;
        self.before = high;
        self.advance(span.guess);
    }

    /// How long so many cycles took.
    fn ticks(&mut self, cycles: u64) -> Option<Ticks> {
        let (actual, effective) = self.ratios;
        if actual != effective {
            // The clock is modulated: any rate between the two.
            self.rate.ratio(effective);
            self.rate.ratio(actual);
        }
        self.rate.ticks(cycles)
    }

    fn advance(&mut self, guess: u64) {
        // An estimate that was too high stays until the truth is past it.
        self.now = Some(self.now.map_or(guess, |now| now.max(guess)));
    }

    /// An MTC packet, whose cycle count has been taken.
    fn mtc(&mut self, range: u32, payload: u8) {
        let first = MTC_FIRST + 2 * range;
        let period = 1_u64 << first;
        self.missing_since.1 = self.missing_since.1.min(first);
        if core::mem::take(&mut self.ignores_mtc) || self.now.is_none() {
            return;
        }
        let told = self.last;
        let is_next = self.missing == Missing::None;
        let index = if is_next { self.edge } else { told.low } >> first;
        let ahead = u64::from(payload.wrapping_sub(index as u8));
        let edge = (index + ahead) << first;
        // It was made while the TSC showed this payload.
        let made = if is_next {
            edge.saturating_add(period - 1)
        } else {
            u64::MAX
        };
        let (mut low, mut high) = (told.low.max(edge), told.high.min(made));
        if low > high {
            // Cycles told another time: they were wrong.
            (low, high) = (edge, made);
        }
        // What stands before it came before the edge, unless it came late.
        self.before = match is_next && edge >= told.low {
            true => edge,
            false => high,
        };
        let guess = told.guess.clamp(low, high);
        self.last = Span { low, guess, high };
        if (low, high) != (told.low, told.high) {
            (self.base, self.counted) = (self.last, (0, 0));
        }
        self.edge = edge;
        self.advance(guess);
        self.measure(edge, made);
    }

    /// An STS packet, whose cycle count has been taken.
    fn sts(&mut self, actual: u8, effective: u8, value: u64) {
        let round = 1_u64 << STS_BITS;
        let mut tsc = value;
        if let Some(now) = self.now {
            let low = self.last.low;
            let ahead = value.wrapping_sub(low) & (round - 1);
            tsc = low.saturating_add(ahead);
            if round - ahead <= BACK && tsc >= round {
                tsc -= round;
                self.jump = Some(TimeJump {
                    from: Tsc(now),
                    to: Tsc(tsc),
                });
                self.now = None;
            }
        }
        self.last = Span {
            low: tsc,
            guess: tsc,
            high: tsc,
        };
        (self.before, self.edge) = (tsc, tsc);
        self.advance(tsc);
        self.base = self.last;
        self.counted = (0, 0);
        self.missing = Missing::None;
        if let Traced::Off { synced } = &mut self.traced {
            *synced = true;
        }
        self.ratios = (actual, effective);
        self.rate.ratio(actual);
        self.rate.counts_anew();
        // The counter may have stood still: this may be the end of sleep.
        self.rate.interrupted();
    }

    /// Takes the measure of the core clock: these cycles were counted when the TSC was between `low` and `high`.
    fn measure(&mut self, low: u64, high: u64) {
        let is_steady = self.traced == Traced::On && self.missing == Missing::None;
        if is_steady && self.ratios.0 == self.ratios.1 && !self.e6 {
            // The count may be taken a cycle beside the edge.
            let slack = self.rate.ticks(1).map_or(32, |ticks| ticks.most);
            self.rate.measure(Moment {
                cycles: self.cycles,
                low: low.saturating_sub(slack),
                high: high.saturating_add(slack),
            });
        } else {
            self.rate.interrupted();
        }
    }
}

/// The cycle count of a packet that has one (4.2.15).
fn cycles(packet: &Packet) -> Option<u64> {
    let cycles = match *packet {
        Packet::Tnt { cycles, .. }
        | Packet::Tip { cycles, .. }
        | Packet::FupPge { cycles, .. }
        | Packet::FupPgd { cycles, .. }
        | Packet::FupOvf { cycles, .. }
        | Packet::FupPcc { cycles, .. }
        | Packet::FupFar { cycles, .. }
        | Packet::Pip { cycles, .. }
        | Packet::Mtc { cycles, .. }
        | Packet::Sts { cycles, .. } => cycles,
        _ => None,
    };
    cycles.map(|cycles| u64::from(cycles.get()))
}
