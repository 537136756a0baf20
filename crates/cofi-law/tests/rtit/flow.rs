//! decode(trace(execution)) = execution, as far as the trace tells; and each instruction's time lies within its bounds.

use super::setups::{config, overflowing, setups, with_errata};
use super::stream::{around, mode};
use super::unit::told;
use cofi_flow::{
    Errata, Event, FlowConfig, FlowDecoder, FlowErrorKind, IpFilter, Item, RtitFlowConfig,
    StopRanges, TraceFormat,
};
use cofi_insn::{Class, CodeSource};
use cofi_law::machine::Code;
use cofi_law::rtit::{Features, Ranges, Record, Setup, Start, Stop, Stretch, TSC_RATIO, run};
use cofi_packet::Ip;
use cofi_unit::rtit as unit;
use proptest::prelude::*;
use std::collections::VecDeque;

pub(crate) struct Source<'c>(pub(crate) &'c [Code]);

impl CodeSource for Source<'_> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        for code in self.0 {
            let from = code.bytes_at(ip);
            if !from.is_empty() {
                let len = from.len().min(buf.len());
                buf[..len].copy_from_slice(&from[..len]);
                return len;
            }
        }
        0
    }
}

fn closed(ranges: &Ranges) -> Vec<(Ip, Ip)> {
    let closed = ranges.iter().map(|(from, to)| (*from, Ip(to.0 - 1)));
    closed.collect()
}

/// The decoder's switches for the errata of a unit.
pub(crate) fn workarounds(errata: unit::Errata) -> Errata {
    let mut new_errata = Errata::default();
    new_errata.rtit_e1 = errata.e1;
    new_errata.rtit_e2 = errata.e2;
    new_errata.rtit_e4 = errata.e4;
    new_errata.rtit_e5 = errata.e5;
    new_errata.rtit_e6 = errata.e6;
    new_errata.rtit_e7 = errata.e7;
    new_errata.rtit_e8 = errata.e8;
    new_errata
}

/// What the decoder is told of a machine.
pub(crate) fn flow_config(setup: &Setup, record: &Record) -> FlowConfig {
    let mut config = FlowConfig::default();
    config.format = TraceFormat::Rtit({
        let mut rtit = RtitFlowConfig::default();
        rtit.cycles = mode(setup);
        rtit.tnt_buff = record.tnt_buff;
        rtit.stop = StopRanges::new(&closed(&record.stops));
        rtit
    });
    config.max_nonturbo_ratio = TSC_RATIO;
    config.cr3_filter = record.cr3_filter;
    config.filter = IpFilter::new(&closed(&record.filter));
    config.initial_mode = setup.mode;
    config.errata = workarounds(setup.choices.errata);
    config
}

pub(crate) fn decoder<'r>(record: &'r Record, config: FlowConfig) -> FlowDecoder<'r, Source<'r>> {
    FlowDecoder::new(&record.trace, Source(&record.codes), config)
}

/// Follows a decoder's items along the truth.
struct Check<'r> {
    setup: &'r Setup,
    record: &'r Record,
    /// The stretches of which packets tell.
    ahead: VecDeque<(u64, Stretch)>,
    now: Option<Stretch>,
    at: usize,
    /// A gap was told in this stretch.
    has_gap: bool,
    /// The decoder does not know the ranges that stop tracing; or has to do with E2, which makes of a FUP.PGD behind a PSB one that may be one
    /// too many: then nobody knows whether tracing went off before, without a word.
    knows_less: bool,
    /// Where that was so, a call may have run that was not listed: returns to behind it are compressed, and gaps, up to the next call.
    lost_call: bool,
    /// The gap of this stretch is such a return.
    lost_return: bool,
    recent: VecDeque<(u64, Item)>,
    /// What the first STS does not tell of the time, as far as is known: how often its 40 bits had gone round.
    rounds: Vec<i128>,
    last: u64,
    timed: usize,
}

impl<'r> Check<'r> {
    fn new(setup: &'r Setup, record: &'r Record) -> Result<Self, TestCaseError> {
        let ahead = told(setup, record).map_err(TestCaseError::fail)?;
        Ok(Self {
            setup,
            record,
            ahead: ahead.into(),
            now: None,
            at: 0,
            has_gap: false,
            knows_less: false,
            lost_call: false,
            lost_return: false,
            recent: VecDeque::new(),
            rounds: vec![0, 1 << 40],
            last: 0,
            timed: 0,
        })
    }

    fn fail<T>(&self, message: &str) -> Result<T, TestCaseError> {
        let offset = self.recent.back().map_or(0, |(offset, _)| *offset);
        let near = around(self.setup, self.record, offset);
        let recent: Vec<String> = self.recent.iter().map(|it| format!("{it:?}")).collect();
        Err(TestCaseError::fail(format!(
            "{message}\nat {} of {:?}\n{:#?}\nnext in truth {:?}\nranges {:?} {:?}\n{near}",
            self.at,
            self.now,
            recent,
            self.record
                .truth
                .get(self.at..(self.at + 3).min(self.record.truth.len())),
            self.record.filter,
            self.record.stops,
        )))
    }

    /// The stretch that was followed ends: `tells` of what may be missing does an overflow that comes next.
    fn close(&mut self, tells: bool) -> Result<(), TestCaseError> {
        let Some(stretch) = self.now.take() else {
            return Ok(());
        };
        // Where an overflow comes next, nobody knows whose the results before it are.
        let next = self.ahead.front().map(|next| next.1.start);
        let known = match stretch.stop {
            _ if self.has_gap && self.lost_return => stretch.from..=stretch.to,
            Stop::Silent if next == Some(Start::Overflow) => stretch.told_at_once..=stretch.to,
            Stop::Told if !self.has_gap => stretch.to..=stretch.to,
            Stop::Told => stretch.from..=stretch.to,
            Stop::Silent | Stop::Overflow => stretch.told..=stretch.to,
        };
        let is_told = self.has_gap || tells;
        if !known.contains(&self.at) || self.at != stretch.to && !is_told {
            self.now = Some(stretch);
            return self.fail("the stretch ends too soon, and nothing tells of it");
        }
        self.has_gap = false;
        Ok(())
    }

    fn open(&mut self, start: Start, ip: Option<Ip>) -> Result<(), TestCaseError> {
        self.close(start == Start::Overflow)?;
        let Some((_, stretch)) = self.ahead.pop_front() else {
            return self.fail("tracing goes on once too often");
        };
        // Where nothing is told after an overflow, tracing may as well have been off.
        let is_empty = start == Start::Overflow
            && match stretch.stop {
                Stop::Told => stretch.from == stretch.to,
                Stop::Silent | Stop::Overflow => stretch.from == stretch.told_at_once,
            };
        // So it may with E2, if all that is told is an FUP.PGD that may be one too many.
        self.has_gap = (is_empty || self.knows_less && start == Start::Overflow) && ip.is_none();
        if stretch.start != start || stretch.ip != ip && !self.has_gap {
            self.now = Some(stretch);
            return self.fail("tracing goes on otherwise");
        }
        (self.at, self.now) = (stretch.from, Some(stretch));
        Ok(())
    }

    fn item(&mut self, item: Item) -> Result<(), TestCaseError> {
        match item {
            Item::Insn(insn) => {
                let to = self.now.map_or(0, |stretch| stretch.to);
                let step = self.record.truth[..to].get(self.at);
                if self.has_gap
                    || step.map(|step| step.ip) != Some(insn.ip)
                    || insn.mode != self.setup.mode
                {
                    return self.fail("that did not run");
                }
                if matches!(insn.class, Class::DirectCall | Class::IndirectCall) {
                    self.lost_call = false;
                }
                self.at += 1;
                Ok(())
            }
            Item::Event(Event::Enabled { ip, .. }) => self.open(Start::Enabled, Some(ip)),
            Item::Event(Event::Overflow { ip }) => self.open(Start::Overflow, ip),
            Item::Event(_) => Ok(()),
            Item::Error(error) => {
                let is_silent = self.now.is_some_and(|it| it.stop == Stop::Silent);
                // Of a TraceStop that an overflow held nobody knows where it was met.
                let is_held = self
                    .now
                    .is_some_and(|it| it.start == Start::Overflow && it.from == self.at);
                // Packets were lost, and the trace ends before anything tells of it.
                let is_cut =
                    self.ahead.is_empty() && self.now.is_some_and(|it| it.stop == Stop::Overflow);
                let is_end = error.kind == FlowErrorKind::UnknownEnd
                    && (is_silent || is_held || is_cut || self.knows_less);
                let is_return = error.kind == FlowErrorKind::EmptyReturnStack && self.lost_call;
                if !(is_end || is_return) || self.has_gap {
                    return self.fail("an error");
                }
                self.lost_return = is_return;
                self.lost_call |= is_end && self.knows_less;
                self.has_gap = true;
                Ok(())
            }
        }
    }

    /// The time of the instruction that was looked at last.
    fn time<C: CodeSource>(
        &mut self,
        decoder: &mut FlowDecoder<'_, C>,
    ) -> Result<(), TestCaseError> {
        prop_assert_eq!(decoder.time_jump(), None);
        let Some(time) = decoder.time() else {
            return Ok(());
        };
        let truth = self.record.truth[self.at - 1].tsc.0;
        let latest = time.latest.map_or(i128::MAX, |latest| latest.0.into());
        let earliest = match time.earliest.0 {
            // Before that there is no time.
            0 => i128::MIN,
            earliest => earliest.into(),
        };
        let within = |rounds: &i128| (earliest..=latest).contains(&(i128::from(truth) - rounds));
        self.rounds.retain(within);
        if time.tsc.0 < self.last || self.rounds.is_empty() {
            return self.fail(&format!(
                "{truth} is not within {time:?}, or that is before {}; {:?}",
                self.last, self.setup.ctl
            ));
        }
        self.last = time.tsc.0;
        self.timed += 1;
        Ok(())
    }
}

/// How many instructions were found, and of how many the time is known.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) insns: usize,
    pub(crate) timed: usize,
    pub(crate) gaps: usize,
    pub(crate) stops: usize,
}

pub(crate) fn check(
    setup: &Setup,
    record: &Record,
    config: FlowConfig,
) -> Result<Found, TestCaseError> {
    let mut check = Check::new(setup, record)?;
    if let TraceFormat::Rtit(rtit) = &config.format {
        let has_ranges = !record.filter.is_empty() || !record.stops.is_empty();
        check.knows_less = rtit.stop != StopRanges::new(&closed(&record.stops))
            || config.errata.rtit_e2 && has_ranges;
    }
    let mut found = Found::default();
    let mut decoder = decoder(record, config);
    while let Some(item) = decoder.next() {
        check.recent.push_back((decoder.offset().0, item));
        if check.recent.len() > 16 {
            check.recent.pop_front();
        }
        check.item(item)?;
        match item {
            Item::Insn(_) => {
                found.insns += 1;
                check.time(&mut decoder)?;
            }
            Item::Error(_) => found.gaps += 1,
            Item::Event(Event::Stop) => found.stops += 1,
            Item::Event(_) => {}
        }
    }
    check.close(false)?;
    if !check.ahead.is_empty() {
        return check.fail(&format!("the flow ends without {:?}", check.ahead));
    }
    found.timed = check.timed;
    // A TraceStop in an overflow may be lost or come twice; otherwise each is told.
    let is_exact = !setup.features.has(Features::OVERFLOW);
    prop_assert!(!is_exact || found.stops == record.trace_stops);
    Ok(found)
}

fn check_all(setup: &Setup) -> Result<Found, TestCaseError> {
    let record = run(setup);
    check(setup, &record, flow_config(setup, &record))
}

proptest! {
    #![proptest_config(config(250))]

    #[test]
    fn whatever_the_unit_emits_the_decoder_recovers(setup in setups()) {
        check_all(&setup)?;
    }

    /// Where nothing is lost and nothing silent there is no gap at all.
    #[test]
    fn a_whole_trace_has_no_gap(mut setup in setups()) {
        setup.features.0 &= !(Features::OVERFLOW.0 | Features::SILENCE.0);
        let mut again = Setup::random(setup.seed, setup.steps, setup.features);
        again.choices.pgd_on_disable = true;
        let record = run(&again);
        let found = check(&again, &record, flow_config(&again, &record))?;
        prop_assert_eq!((found.gaps, found.insns), (0, record.truth.len()));
    }

    /// Without what the trace does not tell, the decoder is as exact, and only time and the place where tracing stopped are known less well.
    #[test]
    fn less_is_known_without_ratio_and_stop_ranges(setup in setups()) {
        let record = run(&setup);
        let mut config = flow_config(&setup, &record);
        config.max_nonturbo_ratio = 0;
        if let TraceFormat::Rtit(rtit) = &mut config.format {
            rtit.stop = StopRanges::default();
        }
        check(&setup, &record, config)?;
    }

    /// Errata with a workaround, any of them together; and E3, which needs none.
    #[test]
    fn errata_that_are_worked_around_change_nothing(
        setup in setups(),
        on in any::<[bool; 6]>(),
        overflows in any::<bool>(),
    ) {
        let [e1, e2, e3, e5, e6, e7] = on;
        let setup = if overflows { overflowing(setup) } else { setup };
        let setup = with_errata(setup, {
            let mut errata = unit::Errata::default();
            errata.e1 = e1;
            errata.e2 = e2;
            errata.e3 = e3;
            errata.e5 = e5;
            errata.e6 = e6;
            errata.e7 = e7;
            errata
        });
        check_all(&setup)?;
    }

    /// E4 lets tracing go on behind a TraceStop packet, which has no effect then.
    #[test]
    fn a_trace_stop_in_an_overflow_may_stop_nothing(setup in setups()) {
        let mut setup = overflowing(setup);
        setup.features.0 |= Features::STOPS.0;
        let setup = with_errata(setup, {
            let mut errata = unit::Errata::default();
            errata.e4 = true;
            errata
        });
        check_all(&setup)?;
    }

    /// Workarounds that no erratum calls for do no harm; but E6 is about the time.
    #[test]
    fn workarounds_for_no_reason_do_no_harm(setup in setups(), on in any::<[bool; 4]>()) {
        let record = run(&setup);
        let mut config = flow_config(&setup, &record);
        let [e1, e2, e4, e7] = on;
        config.errata = workarounds({
            let mut errata = unit::Errata::default();
            errata.e1 = e1;
            errata.e2 = e2;
            errata.e4 = e4;
            errata.e7 = e7;
            errata
        });
        check(&setup, &record, config)?;
    }
}

/// A law over nothing would hold, too: most of what ran is found, and the time of it known.
#[test]
fn the_law_is_about_something() {
    let mut all = Found::default();
    let mut steps = 0;
    for seed in 0..120 {
        let mut features = Features::ALL.0;
        if seed % 2 == 0 {
            features &= !Features::OVERFLOW.0;
        }
        if seed % 3 == 0 {
            features &= !(Features::STOPS.0 | Features::RANGES.0);
        }
        let setup = Setup::random(seed, 3000, Features(features));
        let record = run(&setup);
        let found = check(&setup, &record, flow_config(&setup, &record)).expect("it holds");
        steps += record.truth.len();
        all.insns += found.insns;
        all.timed += found.timed;
        all.gaps += found.gaps;
        all.stops += found.stops;
    }
    println!("{all:?} of {steps}");
    assert!(all.insns > steps * 8 / 10 && all.timed > steps / 3);
    assert!(all.gaps > 100 && all.stops > 100);
}
