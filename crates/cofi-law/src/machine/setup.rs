//! Setups at random: any processor, any configuration that is legal on it.

use super::{Features, Setup};
use crate::Rng;
use cofi_unit::{
    Capabilities, Ctl, Generation, GuestTsc, Implementation, InternalBuffer, IpCompression, TntForm,
};

impl Setup {
    /// The setup with this number. `features` says what may happen; whether the internal buffer is modelled is up to it, too.
    #[must_use]
    pub fn random(seed: u64, steps: usize, features: Features) -> Self {
        let mut rng = Rng::new(!seed);
        let caps = capabilities(&mut rng);
        let ctl = configuration(&mut rng, &caps);
        let choices = choices(&mut rng, features);
        Self {
            seed,
            steps,
            features,
            caps,
            choices,
            ctl,
            start: None,
            guest_tsc: GuestTsc::default(),
            conceals: true,
            cs_base: 0,
        }
    }
}

/// A processor that exists, or one of all that could.
fn capabilities(rng: &mut Rng) -> Capabilities {
    let mut caps = match rng.index(4) {
        0 => Capabilities::default(),
        1 => {
            let all = Generation::ALL;
            all[rng.index(all.len())].capabilities()
        }
        _ => {
            let mut flag = || !rng.one_in(3);
            {
                let mut caps = Capabilities::default();
                caps.cr3_filter = flag();
                caps.psb_cyc = flag();
                caps.ip_filter = flag();
                caps.mtc = flag();
                caps.ptwrite = flag();
                caps.power_event = flag();
                caps.psb_pmi_preservation = flag();
                caps.event_trace = flag();
                caps.tnt_disable = flag();
                caps.lip = flag();
                caps.vmx = flag();
                caps
            }
        }
    };
    // The machine's memory is one range, and time in a random machine runs at this ratio.
    caps.single_range = true;
    caps.crystal = Capabilities::default().crystal;
    caps.address_ranges = if caps.ip_filter {
        1 + rng.index(4) as u8
    } else {
        0
    };
    if rng.one_in(2) {
        let mut subset = || rng.next_u64() as u16 | 1;
        caps.mtc_periods = subset();
        caps.cycle_thresholds = subset();
        caps.psb_frequencies = subset();
    }
    caps
}

/// One of the encodings in `bitmap`, the lowest `most` of them at most.
fn encoding(rng: &mut Rng, bitmap: u16, most: usize) -> u64 {
    let legal: Vec<u64> = (0..16)
        .filter(|n| bitmap >> n & 1 == 1)
        .take(most)
        .collect();
    match legal.len() {
        0 => 0,
        count => legal[rng.index(count)],
    }
}

fn configuration(rng: &mut Rng, caps: &Capabilities) -> Ctl {
    let mut flag = || rng.one_in(2);
    let (user, both) = (flag(), flag());
    let mut ctl = Ctl(0)
        .with_user(user || both)
        .with_os(!user || both)
        .with_branch_en(true)
        .with_tsc_en(flag())
        .with_dis_retc(flag())
        .with_mtc_en(flag())
        .with_cyc_en(flag())
        .with_event_en(flag())
        .with_ptw_en(flag())
        .with_fup_on_ptw(flag())
        .with_pwr_evt_en(flag())
        .with_cr3_filter(flag() && flag())
        .with_inject(flag());
    ctl = ctl
        .with_mtc_freq(encoding(rng, caps.mtc_periods, 8))
        .with_cyc_thresh(encoding(rng, caps.cycle_thresholds, 10))
        // Often enough for short traces.
        .with_psb_freq(encoding(rng, caps.psb_frequencies, 3));
    for field in Ctl::SPEC.fields {
        if !(field.present)(caps) {
            ctl.0 &= !field.mask();
        }
    }
    ctl
}

fn choices(rng: &mut Rng, features: Features) -> Implementation {
    let size = 64 + rng.index(4000) as u32;
    let mut choices = Implementation::default();
    choices.tnt = [TntForm::Short, TntForm::Long, TntForm::Both][rng.index(3)];
    choices.deferred_tips = rng.one_in(2);
    choices.ip_compression = [
        IpCompression::Shortest,
        IpCompression::AgainstZero,
        IpCompression::Off,
    ][rng.index(3)];
    choices.cycle_counter_bits = rng.one_in(2).then(|| 6 + rng.index(14) as u8);
    choices.mode_exec_on_enable = rng.one_in(4);
    choices.stale_reads = false;
    choices.buffer = features.has(Features::OVERFLOW).then(|| InternalBuffer {
        size,
        drain_bytes: 1 + rng.index(40) as u32,
        drain_cycles: [60, 1000, 20_000][rng.index(3)],
        resume_at: rng.index(size as usize) as u32,
    });
    choices
}
