//! Time over everything that chapter 33 knows: the true time of every instruction lies within the interval that the decoder states, and the
//! estimate never goes back, whatever timing packets were lost; and cycles are counted as they ran.

use cofi_flow::{Errata, Event, FlowConfig, FlowDecoder, Ipc, Item, Stretch, Time, VmxTsc};
use cofi_insn::CodeSource;
use cofi_law::Rng;
use cofi_law::machine::{Code, Features, Record, Setup, run};
use cofi_packet::intel::{Packet, Packets};
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_unit::GuestTsc;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

struct Source<'c>(&'c [Code]);

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

prop_compose! {
    fn setups()(
        seed: u64,
        steps in 1_usize..4000,
        features in prop_oneof![Just(u32::MAX), any::<u32>()],
        overflows in any::<bool>(),
        // Often near the end of what a TSC packet can tell.
        start in prop_oneof![1_u64..1 << 40, (1_u64 << 56) - (1 << 21)..1 << 56],
    ) -> Setup {
        let mut features = Features(features & Features::ALL.0);
        if !overflows {
            features.0 &= !Features::OVERFLOW.0;
        }
        let mut setup = Setup::random(seed, steps, features);
        setup.ctl = setup.ctl.with_tsc_en(true);
        setup.start = Some(start);
        setup
    }
}

/// How the decoder is to read a machine's trace; whether it is told the TSC's ratio to the bus clock.
fn config(setup: &Setup, told: bool) -> FlowConfig {
    let mut config = FlowConfig::default();
    config.tsc_art_ratio = (80, 1);
    config.mtc_freq = setup.ctl.mtc_freq() as u8;
    config.max_nonturbo_ratio = if told { 20 } else { 0 };
    config
}

/// The packets, each with its kind.
fn packets(trace: &[u8]) -> Vec<(Packet, &[u8])> {
    let mut located: Vec<(Packet, usize)> = Packets::new(trace)
        .map(|item| item.expect("the unit writes packets only"))
        .map(|located| (located.packet(), located.offset.0 as usize))
        .collect();
    let ends: Vec<usize> = located.iter().skip(1).map(|it| it.1).collect();
    located
        .drain(..)
        .zip(ends.into_iter().chain([trace.len()]))
        .map(|((packet, from), to)| (packet, &trace[from..to]))
        .collect()
}

/// Without some runs of MTC packets, each shorter than makes the payload go round.
fn without_mtcs(trace: &[u8], rng: &mut Rng) -> Vec<u8> {
    let (mut left, mut kept) = (0, Vec::new());
    // The payload before, and how far it has gone since the last that was kept.
    let (mut last, mut gone) = (0_u8, 0);
    for (packet, bytes) in packets(trace) {
        match packet {
            // The unit itself leaves some out.
            Packet::Mtc { ctc } => {
                gone += usize::from(ctc.wrapping_sub(last));
                last = ctc;
                if left == 0 && rng.one_in(5) {
                    let most = [3, 40, 200][rng.index(3)];
                    left = 1 + rng.index(most);
                }
                if left > 0 && gone < 128 {
                    left -= 1;
                    continue;
                }
                gone = 0;
            }
            // The unit takes up to half a round to the first MTC behind it.
            Packet::Tma { .. } => gone = 100,
            _ => {}
        }
        kept.extend(bytes);
    }
    kept
}

/// As erratum SKL168 has it: without some CYC packets before a PSB, and the MTC packets that came with them.
fn with_skl168(trace: &[u8], rng: &mut Rng) -> (Vec<u8>, usize) {
    let packets = packets(trace);
    let kind = |at: usize| packets.get(at).map(|it| it.0);
    let is_cyc = |at| matches!(kind(at), Some(Packet::Cyc { .. }));
    let is_mtc = |at| matches!(kind(at), Some(Packet::Mtc { .. }));
    let is_psb = |at| matches!(kind(at), Some(Packet::Psb));
    let (mut kept, mut at, mut lost) = (Vec::new(), 0, 0);
    while at < packets.len() {
        let len = match () {
            () if is_cyc(at) && is_psb(at + 1) => 1,
            () if is_cyc(at) && is_mtc(at + 1) && is_psb(at + 2) => 2,
            () => 0,
        };
        if len > 0 && rng.one_in(2) {
            lost += 1;
            at += len;
            continue;
        }
        kept.extend(packets[at].1);
        at += 1;
    }
    (kept, lost)
}

/// The packets around an offset, for messages.
fn around(trace: &[u8], offset: u64) -> String {
    let lines: Vec<(u64, String)> = Packets::new(trace)
        .filter_map(Result::ok)
        .map(|located| (located.offset.0, located.packet().to_string()))
        .filter(|(at, _)| (offset.saturating_sub(300)..offset + 150).contains(at))
        .map(|(at, words)| (at, format!("{at} {words}")))
        .collect();
    let lines: Vec<String> = lines.into_iter().map(|it| it.1).collect();
    format!("around {offset}:\n{}", lines.join("\n"))
}

/// Time never runs backwards, and the true time of every instruction lies within what the decoder states. How many did.
fn check_time(setup: &Setup, record: &Record, config: FlowConfig) -> Result<usize, TestCaseError> {
    let ovfs: Vec<u64> = Packets::new(&record.trace)
        .filter_map(Result::ok)
        .filter(|located| located.packet() == Packet::Ovf)
        .map(|located| located.offset.0)
        .collect();
    prop_assert_eq!(ovfs.len(), record.resumed.len());
    let mut decoder = FlowDecoder::new(&record.trace, Source(&record.codes), config);
    let (mut at, mut last, mut seen) = (0, 0, 0);
    while let Some(item) = decoder.next() {
        prop_assert_eq!(decoder.time_jump(), None);
        match item {
            Item::Insn(insn) => {
                let Some(step) = record.truth.get(at) else {
                    break;
                };
                prop_assert_eq!(insn.ip, step.ip);
            }
            Item::Event(Event::Overflow { ip }) => {
                let seen = ovfs.partition_point(|ovf| *ovf <= decoder.offset().0);
                let (on, off) = record.resumed[seen - 1];
                at = if ip.is_some() { on } else { off };
                continue;
            }
            _ => continue,
        }
        let step = &record.truth[at];
        at += 1;
        let Some(time) = decoder.time() else { continue };
        let within = time.earliest..=time.latest.unwrap_or(Tsc(u64::MAX));
        if time.tsc.0 < last || !within.contains(&step.tsc) {
            return Err(TestCaseError::fail(format!(
                "step {at} {step:?} is not within {time:?}, or that is before {last}\n{}\n{:?}",
                around(&record.trace, decoder.offset().0),
                setup.ctl
            )));
        }
        seen += 1;
        last = time.tsc.0;
    }
    Ok(seen)
}

/// Each instruction with its time.
fn timed<'c>(mut decoder: FlowDecoder<'_, Source<'c>>) -> Vec<(Ip, Option<Time>)> {
    let mut all = Vec::new();
    while let Some(item) = decoder.next() {
        if let Item::Insn(insn) = item {
            all.push((insn.ip, decoder.time()));
        }
    }
    all
}

/// From each of some PSBs on, the times are those of the whole. How many were compared.
fn check_ranges(record: &Record, config: FlowConfig) -> Result<usize, TestCaseError> {
    let decoder = || FlowDecoder::new(&record.trace, Source(&record.codes), config);
    let psbs = Packets::new(&record.trace)
        .filter_map(Result::ok)
        .filter(|located| located.packet() == Packet::Psb)
        .map(|located| located.offset);
    let psbs: Vec<StreamOffset> = psbs.collect();
    let whole = timed(decoder());
    let mut compared = 0;
    for psb in psbs.iter().step_by(psbs.len() / 4 + 1) {
        let range = *psb..StreamOffset(u64::MAX);
        let part = timed(decoder().within(range).with_time_from(StreamOffset(0)));
        let rest = &whole[whole.len() - part.len()..];
        for (part, whole) in part.iter().zip(rest) {
            prop_assert_eq!(part.0, whole.0);
            prop_assert_eq!(part.1, whole.1, "from the PSB at {} on", psb);
            compared += 1;
        }
        // What is damaged before the range costs nothing but the time.
        let mut damaged = record.trace.clone();
        for byte in damaged[..psb.0 as usize].iter_mut().step_by(13) {
            *byte ^= 0x55;
        }
        let decoder = FlowDecoder::new(&damaged, Source(&record.codes), config);
        let range = *psb..StreamOffset(u64::MAX);
        let behind = timed(decoder.within(range).with_time_from(StreamOffset(0)));
        let ips = |timed: &[(Ip, Option<Time>)]| timed.iter().map(|it| it.0).collect::<Vec<Ip>>();
        prop_assert_eq!(ips(&behind), ips(&part));
    }
    Ok(compared)
}

/// The times of a machine with guests whose TSC is another.
fn check_guests(mut setup: Setup, offset: u64, multiplier: u64) -> Result<usize, TestCaseError> {
    setup.features.0 |= Features::VMX.0;
    setup.caps.vmx = true;
    setup.conceals = false;
    // Neither the processor's time nor the guest's goes round.
    setup.start = setup.start.map(|start| (1 << 45) + start % (1 << 45));
    setup.guest_tsc = GuestTsc { multiplier, offset };
    let mut config = config(&setup, true);
    config.vmx_tsc = Some(VmxTsc { offset, multiplier });
    check_time(&setup, &run(&setup), config)
}

/// Instructions and cycles of every stretch are those that ran; what they come to together.
fn check_cycles(setup: &Setup, record: &Record) -> Result<Stretch, TestCaseError> {
    let config = config(setup, true);
    let mut decoder = FlowDecoder::new(&record.trace, Source(&record.codes), config);
    let mut ipc = Ipc::new();
    let mut steps = record.truth.iter().enumerate();
    let mut ended: Option<(usize, u64)> = None;
    while let Some(item) = decoder.next() {
        let step = match item {
            Item::Insn(_) => steps.next(),
            _ => None,
        };
        let stretch = ipc.take(&item, decoder.cycles());
        if let (Some(stretch), Some((at, step)), Some((from, cycles))) = (stretch, step, ended) {
            let truth = Stretch {
                instructions: (at - from) as u64,
                cycles: step.cycles - cycles,
            };
            if stretch != truth {
                let near = around(&record.trace, decoder.offset().0);
                return Err(TestCaseError::fail(format!(
                    "{stretch:?}, not {truth:?}: step {at} {step:?}\n{near}"
                )));
            }
        }
        // Where one begins.
        if let (Item::Insn(insn), Some((at, step))) = (item, step)
            && insn.class.needs_packet()
            && (stretch.is_some() || ended.is_none())
        {
            ended = Some((at, step.cycles));
        } else if !matches!(item, Item::Insn(_)) && ipc.is_between() {
            ended = None;
        }
    }
    Ok(ipc.total())
}

/// The same thousand setups a property every time; or as many as COFI_CASES says, others each time.
fn cases() -> ProptestConfig {
    let given = std::env::var("COFI_CASES").ok();
    let given = given.and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: given.unwrap_or(1000),
        rng_seed: match given {
            Some(_) => RngSeed::Random,
            None => RngSeed::Fixed(33),
        },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn true_times_lie_within_their_intervals(setup in setups(), told in any::<bool>()) {
        let record = run(&setup);
        check_time(&setup, &record, config(&setup, told))?;
    }

    #[test]
    fn lost_mtcs_make_intervals_wider_but_not_wrong(mut setup in setups(), told in any::<bool>()) {
        setup.ctl = setup.ctl.with_mtc_en(setup.caps.mtc);
        let mut record = run(&setup);
        record.trace = without_mtcs(&record.trace, &mut Rng::new(setup.seed));
        check_time(&setup, &record, config(&setup, told))?;
    }

    #[test]
    fn a_range_tells_the_time_of_the_whole(setup in setups(), told in any::<bool>()) {
        check_ranges(&run(&setup), config(&setup, told))?;
    }

    #[test]
    fn skl168_makes_no_interval_wrong(mut setup in setups(), told in any::<bool>()) {
        setup.ctl = setup.ctl.with_mtc_en(setup.caps.mtc).with_cyc_en(setup.caps.psb_cyc);
        let mut record = run(&setup);
        record.trace = with_skl168(&record.trace, &mut Rng::new(setup.seed)).0;
        let mut config = config(&setup, told);
        config.errata = {
            let mut errata = Errata::default();
            errata.skl168 = true;
            errata
        };
        check_time(&setup, &record, config)?;
    }

    #[test]
    fn instructions_and_cycles_are_those_that_ran(mut setup in setups()) {
        // In authenticated code nothing is counted, and no packet but a TSC tells of it.
        setup.features.0 &= !(Features::OVERFLOW.0 | Features::ACM.0);
        setup.choices.buffer = None;
        setup.ctl = setup.ctl.with_cyc_en(setup.caps.psb_cyc).with_cyc_thresh(0);
        check_cycles(&setup, &run(&setup))?;
    }

    #[test]
    fn a_guests_time_is_the_processors(
        setup in setups(),
        offset in prop_oneof![Just(0), -(1_i64 << 41)..0, 0_i64..1 << 50],
        multiplier in prop_oneof![Just(1_u64 << 48), 1_u64 << 46..1 << 50],
    ) {
        check_guests(setup, offset as u64, multiplier)?;
    }
}

/// A law over nothing would hold, too: what the properties are about does happen.
#[test]
fn what_is_to_be_lost_is_there() {
    let (mut mtcs, mut swallowed, mut seen, mut cycles, mut behind) = (0, 0, 0, 0, 0);
    for seed in 0..150 {
        let mut setup = Setup::random(
            seed,
            3000,
            Features(Features::ALL.0 & !(seed as u32 % 2 * Features::OVERFLOW.0)),
        );
        setup.ctl = setup
            .ctl
            .with_tsc_en(true)
            .with_mtc_en(setup.caps.mtc)
            .with_cyc_en(setup.caps.psb_cyc);
        let record = run(&setup);
        let mut rng = Rng::new(seed);
        let thinned = without_mtcs(&record.trace, &mut rng);
        mtcs += (record.trace.len() - thinned.len()) / 2;
        swallowed += with_skl168(&record.trace, &mut rng).1;
        seen += check_time(&setup, &record, config(&setup, true)).expect("it holds");
        behind += check_ranges(&record, config(&setup, true)).expect("it holds");
        if setup.choices.buffer.is_none() && setup.ctl.cyc_thresh() == 0 {
            setup.features.0 &= !Features::ACM.0;
            cycles += check_cycles(&setup, &run(&setup)).expect("it holds").cycles;
        }
    }
    println!(
        "{seen} instructions, {mtcs} MTCs lost, {swallowed} CYCs swallowed, {cycles} cycles, {behind} behind PSBs"
    );
    assert!(seen > 20_000 && mtcs > 1000 && swallowed > 20 && cycles > 10_000);
    assert!(behind > 20_000);
}

/// INIT ends tracing with a FUP alone. TraceEn is cleared and set again then, and the cycles between are in no CYC.
#[test]
fn what_init_ends_is_no_measure_of_the_core_clock() {
    let all = Features(Features::ALL.0 & !Features::OVERFLOW.0);
    let mut setup = Setup::random(629_580_548_488_046_701, 2343, all);
    setup.start = Some(315_468_454_553);
    setup.ctl = setup.ctl.with_tsc_en(true);
    check_time(&setup, &run(&setup), config(&setup, false)).expect("it holds");

    let features = [
        Features::INTERRUPTS,
        Features::TOGGLES,
        Features::PTWRITE,
        Features::PEBS,
        Features::ENCLAVES,
        Features::INIT,
        Features::RANGES,
        Features::MODES,
    ];
    let features = features.iter().fold(0, |all, one| all | one.0);
    let mut setup = Setup::random(8_232_606_372_632_347_980, 262, Features(features));
    setup.start = Some(72_057_594_036_222_134);
    setup.ctl = setup.ctl.with_tsc_en(true).with_mtc_en(true);
    let mut record = run(&setup);
    record.trace = without_mtcs(&record.trace, &mut Rng::new(setup.seed));
    check_time(&setup, &record, config(&setup, false)).expect("it holds");
}

/// A guest's code where tracing is on only for the host's begins and ends without a PIP. Behind INIT, a TSC packet may be of either.
#[test]
fn whose_time_it_is_behind_init_no_packet_tells() {
    for (seed, steps, start, offset, multiplier) in [
        (
            5_247_214_515_067_721_451,
            561,
            Some(1),
            -131_067_i64,
            1 << 48,
        ),
        (9_207_005_128_306_386_186, 1037, None, 0, 1 << 46),
    ] {
        let all = Features(Features::ALL.0 & !Features::OVERFLOW.0);
        let mut setup = Setup::random(seed, steps, all);
        setup.ctl = setup.ctl.with_tsc_en(true);
        setup.start = start.or(setup.start);
        check_guests(setup, offset as u64, multiplier).expect("it holds");
    }
}
