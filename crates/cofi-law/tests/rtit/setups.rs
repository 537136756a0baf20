//! Random setups, and how many.

use cofi_law::rtit::{Features, Setup};
use cofi_unit::rtit::Errata;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

prop_compose! {
    pub(crate) fn setups()(
        seed: u64,
        steps in 1_usize..4000,
        features in prop_oneof![Just(u32::MAX), any::<u32>()],
        overflows in any::<bool>(),
    ) -> Setup {
        let mut features = Features(features & Features::ALL.0);
        if !overflows {
            features.0 &= !Features::OVERFLOW.0;
        }
        Setup::random(seed, steps, features)
    }
}

/// The same setups a property every time; or as many as COFI_CASES says, others each time.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let given = std::env::var("COFI_CASES").ok();
    let given = given.and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: given.unwrap_or(cases),
        rng_seed: match given {
            Some(_) => RngSeed::Random,
            None => RngSeed::Fixed(7),
        },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// The same, with an internal buffer that overflows.
pub(crate) fn overflowing(setup: Setup) -> Setup {
    let features = Features(setup.features.0 | Features::OVERFLOW.0);
    Setup::random(setup.seed, setup.steps, features)
}

/// The same, on a processor with these errata.
pub(crate) fn with_errata(mut setup: Setup, errata: Errata) -> Setup {
    setup.choices.errata = errata;
    setup
}
