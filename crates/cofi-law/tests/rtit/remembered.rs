//! Setups at which the law once failed, found with 100,000 cases a property. (They say the same for as long as the generator makes the same of
//! them.)

use cofi_law::rtit::{Features, Setup, run};
use cofi_unit::rtit::Errata;
use proptest::prelude::TestCaseError;

use super::flow::{check, flow_config};
use super::setups::{overflowing, with_errata};

const ALL: Features = Features::ALL;

fn holds(setup: &Setup) -> Result<(), TestCaseError> {
    let record = run(setup);
    check(setup, &record, flow_config(setup, &record)).map(|_| ())
}

fn setup(seed: u64, steps: usize, features: u32) -> Setup {
    Setup::random(seed, steps, Features(features))
}

/// Twice the PIP of a MOV to CR0 was that of the MOV to CR3 behind it.
#[test]
fn a_pip_may_be_of_a_later_mov() -> Result<(), TestCaseError> {
    let (cr3, smm) = (Features::SPACES.0, Features::SMM.0);
    holds(&setup(
        14_022_890_659_295_172_969,
        967,
        cr3 | smm | Features::LOCKS.0,
    ))?;
    let more = Features::INIT.0 | Features::LINES.0 | Features::SILENCE.0;
    let second = setup(10_933_978_643_806_447_522, 33, cr3 | smm | more);
    let record = run(&second);
    let mut config = flow_config(&second, &record);
    config.max_nonturbo_ratio = 0;
    check(&second, &record, config).map(|_| ())
}

/// 2,097,151 ticks without an MTC, whose payload of 2^13 ticks went round.
#[test]
fn a_payload_of_an_mtc_went_round_in_less_than_its_round() -> Result<(), TestCaseError> {
    let features = ALL.0 & !(Features::OVERFLOW.0 | Features::SILENCE.0);
    let mut setup = setup(2_762_424_689_906_931_032, 2369, features);
    setup.choices.pgd_on_disable = true;
    holds(&setup)
}

/// E4: a TraceStop during an overflow that began and ended with one instruction.
#[test]
fn a_trace_stop_is_lost_in_an_overflow_of_one_instruction() -> Result<(), TestCaseError> {
    let mut setup = setup(10_683_643_632_856_984_922, 1294, ALL.0);
    setup.features.0 |= Features::STOPS.0;
    let mut e4 = Errata::default();
    e4.e4 = true;
    holds(&with_errata(setup, e4))
}

/// E2: a return to behind a call that ran, perhaps, behind a FUP.PGD that may be one too many.
#[test]
fn a_return_to_behind_a_doubtful_end_is_a_gap() -> Result<(), TestCaseError> {
    let mut e2 = Errata::default();
    e2.e2 = true;
    let first = setup(12_411_855_499_857_614_089, 3283, ALL.0);
    holds(&with_errata(overflowing(first), e2))?;
    let second = setup(7_029_788_383_698_160_290, 1478, ALL.0);
    let record = run(&second);
    let mut config = flow_config(&second, &record);
    config.errata.rtit_e2 = true;
    check(&second, &record, config).map(|_| ())
}

/// E2: a FUP.PGD too many, where tracing had been switched off just as control walked out of a range.
#[test]
fn a_fup_pgd_too_many_is_not_that_of_the_range_s_end() -> Result<(), TestCaseError> {
    let mut e2 = Errata::default();
    e2.e2 = true;
    let features = ALL.0 & !Features::OVERFLOW.0;
    let setup = setup(12_531_772_484_655_167_436, 1225, features);
    holds(&with_errata(setup, e2))
}

/// A result that waited when tracing was stopped is of code behind the overflow, though that is not in the ranges.
#[test]
fn a_result_behind_a_trace_stop_shows_that_code_was_traced() -> Result<(), TestCaseError> {
    let setup = setup(14_608_395_482_306_160_707, 629, ALL.0);
    let record = run(&setup);
    let mut config = flow_config(&setup, &record);
    config.max_nonturbo_ratio = 0;
    if let cofi_flow::TraceFormat::Rtit(rtit) = &mut config.format {
        rtit.stop = cofi_flow::StopRanges::default();
    }
    check(&setup, &record, config).map(|_| ())
}
