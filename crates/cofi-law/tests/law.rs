//! decode(trace(execution)) = execution, for random programs and random configurations; time within its bound.

use cofi_flow::{FlowConfig, FlowDecoder, Item};
use cofi_insn::CodeSource;
use cofi_law::{Config, Execution, Program, run};
use cofi_packet::{Ip, Tsc};
use cofi_unit::Ctl;
use proptest::prelude::*;

struct Code<'p>(&'p [Program; 2]);

impl CodeSource for Code<'_> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        let [mut a, mut b] = [&self.0[0], &self.0[1]];
        match a.read(ip, buf) {
            0 => b.read(ip, buf),
            len => len,
        }
    }
}

fn decoder<'e>(execution: &'e Execution, ctl: Ctl) -> FlowDecoder<'e, Code<'e>> {
    let mut config = FlowConfig::default();
    let crystal = execution.caps.crystal;
    config.tsc_art_ratio = (crystal.numerator, crystal.denominator);
    config.mtc_freq = ctl.mtc_freq() as u8;
    config.max_nonturbo_ratio = 20;
    FlowDecoder::new(&execution.trace, Code(&execution.programs), config)
}

prop_compose! {
    fn configs()(
        seed: u64,
        steps in 1_usize..6000,
        blocks in 2_usize..60,
        [dis_retc, tsc, mtc, cyc, long_tnt, branch] in prop::array::uniform6(any::<bool>()),
        mtc_freq in 0_u64..8,
        cyc_thresh in 0_u64..10,
        psb_freq in 0_u64..3,
        slowest in prop_oneof![Just(1), Just(40), Just(3000)],
        fast in any::<bool>(),
        deep in any::<bool>(),
    ) -> Config {
        let ctl = Ctl(0)
            .with_user(true)
            // Nearly always on: without it there is no flow to compare.
            .with_branch_en(branch || fast)
            .with_dis_retc(dis_retc)
            .with_tsc_en(tsc)
            .with_mtc_en(mtc)
            .with_cyc_en(cyc)
            .with_mtc_freq(mtc_freq)
            .with_cyc_thresh(cyc_thresh)
            .with_psb_freq(psb_freq);
        Config { seed, steps, blocks, ctl, long_tnt, deep, slowest }
    }
}

fn check(config: &Config) -> Result<(), TestCaseError> {
    let execution = run(config);
    let mut truth = execution.truth.iter();
    let mut blocks = Vec::new();
    decoder(&execution, config.ctl).for_each(|item| blocks.push(item));
    for (place, item) in decoder(&execution, config.ctl).enumerate() {
        prop_assert_eq!(Some(&item), blocks.get(place), "by blocks, at {}", place);
        match item {
            Item::Insn(insn) => {
                let expected = truth.next().map(|step| step.ip);
                prop_assert_eq!(Some(insn.ip), expected, "item {}", place);
            }
            Item::Error(error) => {
                return Err(TestCaseError::fail(format!("item {place}: {error}")));
            }
            Item::Event(_) => {}
        }
    }
    prop_assert_eq!(truth.next(), None, "the decoded flow ends too soon");
    Ok(())
}

/// Time never runs backwards, and the true time of every instruction lies within what the decoder states.
fn check_time(config: &Config) -> Result<(), TestCaseError> {
    let execution = run(config);
    let mut truth = execution.truth.iter();
    let mut decoder = decoder(&execution, config.ctl);
    let mut last = 0;
    while let Some(item) = decoder.next() {
        let Item::Insn(insn) = item else { continue };
        let Some(step) = truth.next() else { break };
        prop_assert_eq!(insn.ip, step.ip);
        let Some(time) = decoder.time() else { continue };
        prop_assert!(time.tsc.0 >= last, "{} after {last}", time.tsc);
        last = time.tsc.0;
        let within = time.earliest..=time.latest.unwrap_or(Tsc(u64::MAX));
        prop_assert!(
            within.contains(&step.tsc),
            "{:?} is not within {:?}",
            step,
            time
        );
    }
    Ok(())
}

/// So many programs a property; as many as COFI_CASES says, if it says.
fn cases() -> ProptestConfig {
    let given = std::env::var("COFI_CASES").ok();
    ProptestConfig {
        cases: given.and_then(|cases| cases.parse().ok()).unwrap_or(400),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn the_decoder_mirrors_the_unit(config in configs()) {
        check(&config)?;
    }

    #[test]
    fn many_at_a_time_are_as_one_by_one(config in configs()) {
        let execution = run(&config);
        prop_assert_eq!(&execution.at_once, &execution.trace);
    }

    #[test]
    fn decoded_time_is_monotonic_and_within_its_bound(mut config in configs()) {
        config.ctl = config.ctl.with_tsc_en(true);
        check_time(&config)?;
    }
}

/// The generator reaches what the law is about; a law over empty programs would hold too.
#[test]
fn the_generator_covers_every_packet_of_control_flow() {
    use cofi_packet::intel::{Kind, Packets};
    let mut seen = std::collections::BTreeMap::new();
    let mut steps = 0;
    for seed in 0..200 {
        let ctl = Ctl(0x2000)
            .with_user(true)
            .with_tsc_en(true)
            .with_mtc_en(true)
            .with_cyc_en(true);
        let config = Config {
            seed,
            steps: 3000,
            blocks: 40,
            ctl,
            long_tnt: seed % 2 == 0,
            deep: seed % 5 == 0,
            slowest: 40,
        };
        let execution = run(&config);
        steps += execution.truth.len();
        for item in Packets::new(&execution.trace) {
            *seen
                .entry(item.expect("the unit writes packets only").raw.kind())
                .or_insert(0) += 1;
        }
    }
    assert!(steps > 200 * 2000, "{steps} instructions");
    for kind in [
        Kind::Tnt8,
        Kind::Tnt64,
        Kind::Tip,
        Kind::TipPge,
        Kind::TipPgd,
        Kind::Fup,
        Kind::ModeExec,
        Kind::ModeTsx,
        Kind::Cbr,
        Kind::Tsc,
        Kind::Tma,
        Kind::Mtc,
        Kind::Cyc,
        Kind::Psb,
        Kind::PsbEnd,
    ] {
        assert!(
            seen.get(&kind).is_some_and(|n| *n > 100),
            "{kind:?}: {seen:?}"
        );
    }
}
