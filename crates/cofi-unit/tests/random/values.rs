//! Random numbers, and what is made of them alone.

use cofi_unit::{
    Capabilities, CrystalRatio, Implementation, InternalBuffer, IpCompression, TntForm,
};

/// Where random numbers come from.
#[derive(Clone, Debug)]
pub(crate) enum Dice<'b> {
    /// All of them follow from a number.
    Seed(u64),
    /// They are these bytes, and zeros after them. (Only the fuzz target has any.)
    #[allow(dead_code)]
    Bytes(&'b [u8]),
}

impl Dice<'_> {
    #[allow(dead_code)]
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Bytes([]))
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self {
            Self::Seed(_) => self.word() as u8,
            Self::Bytes(bytes) => match bytes.split_first() {
                Some((first, rest)) => {
                    *bytes = rest;
                    *first
                }
                None => 0,
            },
        }
    }

    pub(crate) fn word(&mut self) -> u64 {
        match self {
            // SplitMix64.
            Self::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut word = *state;
                word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                word ^ word >> 31
            }
            Self::Bytes(_) => (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte())),
        }
    }

    /// A number below `count`.
    pub(crate) fn below(&mut self, count: u8) -> u8 {
        self.byte() % count
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// Once in so many times.
    pub(crate) fn once_in(&mut self, count: u8) -> bool {
        self.below(count) == count - 1
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.below(choices.len() as u8))]
    }

    pub(crate) fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.coin().then(|| make(self))
    }

    /// A number of any size, often with few bits or next to a power of two.
    pub(crate) fn number(&mut self) -> u64 {
        let shift = u32::from(self.below(64));
        match self.below(6) {
            0 => self.word(),
            1 => 1 << shift,
            2 => (1 << shift) - 1,
            3 => self.word() >> shift,
            4 => (self.word() as i64 >> shift) as u64,
            _ => self.byte().into(),
        }
    }
}

/// Consistent capabilities.
pub(crate) fn capabilities(dice: &mut Dice<'_>) -> Capabilities {
    let mut none = Capabilities::NONE;
    none.max_phys_addr = dice.pick(&[32, 36, 39, 46, 52]);
    none.max_linear_addr = dice.pick(&[48, 48, 57, 32]);
    none.crystal = CrystalRatio {
        numerator: dice.pick(&[80, 3, 1, 184, u32::MAX]),
        denominator: dice.pick(&[1, 2, 7, u32::MAX]),
    };
    none.vmx = !dice.once_in(4);
    none.excludes_lbr = dice.coin();
    if dice.once_in(16) {
        return none;
    }
    let (topa, single_range, ip_filter) = (!dice.once_in(4), !dice.once_in(4), !dice.once_in(4));
    let transport = dice.once_in(4);
    let mut caps = none;
    caps.supported = true;
    caps.cr3_filter = dice.coin();
    caps.psb_cyc = !dice.once_in(4);
    caps.ip_filter = ip_filter;
    caps.mtc = !dice.once_in(4);
    caps.ptwrite = !dice.once_in(4);
    caps.power_event = !dice.once_in(4);
    caps.psb_pmi_preservation = dice.coin();
    caps.event_trace = !dice.once_in(4);
    caps.tnt_disable = dice.coin();
    caps.topa = topa;
    caps.topa_multiple = topa && dice.coin();
    caps.single_range = single_range || !topa && !transport;
    caps.transport = transport;
    caps.lip = dice.coin();
    caps.address_ranges = if ip_filter { 1 + dice.below(4) } else { 0 };
    caps.mtc_periods = dice.pick(&[0xffff, 0x249, 1]);
    caps.cycle_thresholds = dice.pick(&[0xffff, 0x3f, 1]);
    caps.psb_frequencies = dice.pick(&[0x3f, 0xffff, 1]);
    assert_eq!(caps.validate(), Ok(()));
    caps
}

/// Choices of a processor; its internal buffer is tiny or none.
pub(crate) fn choices(dice: &mut Dice<'_>) -> Implementation {
    let mut choices = Implementation::default();
    choices.tnt = dice.pick(&[TntForm::Short, TntForm::Long, TntForm::Both]);
    choices.deferred_tips = dice.coin();
    choices.ip_compression = dice.pick(&[
        IpCompression::Shortest,
        IpCompression::AgainstZero,
        IpCompression::Off,
    ]);
    choices.cycle_counter_bits = dice.maybe(|dice| dice.pick(&[6, 12, 63, 0, 255]));
    choices.mode_exec_on_enable = dice.once_in(4);
    choices.stale_reads = dice.once_in(4);
    choices.buffer = dice.maybe(|dice| InternalBuffer {
        size: dice.pick(&[0, 64, 65, 80, 128, 300, 4096]),
        drain_bytes: dice.pick(&[0, 1, 8, 64, u32::MAX]),
        drain_cycles: dice.pick(&[0, 1, 8, 1000, u32::MAX]),
        resume_at: dice.pick(&[0, 1, 32, 64, u32::MAX]),
    });
    choices
}
