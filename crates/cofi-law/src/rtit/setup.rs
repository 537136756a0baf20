//! Setups at random: any configuration, any choice that the reference leaves to the processor.

use super::{Ending, Features, Setup};
use crate::Rng;
use cofi_packet::ExecMode;
use cofi_unit::rtit::{Ctl, Errata, Implementation, InternalBuffer, Lines};

impl Setup {
    /// The setup with this number, without errata. `features` says what may happen.
    #[must_use]
    pub fn random(seed: u64, steps: usize, features: Features) -> Self {
        let mut rng = Rng::new(!seed);
        let choices = choices(&mut rng, features);
        let ctl = configuration(&mut rng, choices.lines);
        let start = 1 + rng.next_u64() % (1 << 40);
        Self {
            seed,
            steps,
            features,
            choices,
            ctl,
            pkt_mask: rng.index(6) as u64,
            limit_mask: (1 << (8 + rng.index(14))) - 1,
            mode: match rng.one_in(4) {
                true => ExecMode::Bits32,
                false => ExecMode::Bits64,
            },
            start: match rng.one_in(4) {
                // Soon an STS goes round.
                true => (1 << 40) - 1 - rng.next_u64() % (1 << 19),
                false => start,
            },
            ending: [Ending::Told, Ending::Buffered, Ending::Silent][rng.index(3)],
        }
    }
}

fn configuration(rng: &mut Rng, lines: Lines) -> Ctl {
    let mut flag = || rng.one_in(2);
    let (user, both) = (flag(), flag());
    Ctl(0)
        .with_user(user || both)
        .with_os(!user || both)
        .with_cycle_acc(flag())
        .with_sts_on_cr3(flag())
        .with_cr3_en(flag() && flag())
        // A TraceStop packet elsewhere is no concern of who puts lines in order.
        .with_dest(lines != Lines::Immediate || flag())
        .with_mtc_en(flag())
        .with_sts_en(flag() || flag())
        .with_cmprs_ret(flag())
        .with_less_pkts(flag())
        .with_mtc_range(rng.index(4) as u64)
}

fn choices(rng: &mut Rng, features: Features) -> Implementation {
    let most = [20, 200, 1000][rng.index(3)];
    let mut choices = Implementation::default();
    choices.buffer = features.has(Features::OVERFLOW).then(|| InternalBuffer {
        size: 32 + rng.index(most) as u32,
        drain_bytes: 1 + rng.index(12) as u32,
        drain_cycles: [60, 1000, 20_000][rng.index(3)],
    });
    choices.psb_effect_delay = rng.index(5) as u8;
    choices.pgd_on_disable = !features.has(Features::SILENCE);
    choices.lines = match features.has(Features::LINES) {
        true => [Lines::Lines, Lines::Reordered][rng.index(2)],
        false => Lines::Immediate,
    };
    choices.errata = Errata::default();
    choices.seed = rng.next_u64();
    choices
}
