//! The settings of Intel PT in Linux's form: the `config` field of the event, and the names of its parts.

use super::{ConfigError, parse_value, parts, print, rtit};
use std::fmt;

/// Intel PT settings, as the `intel_pt` PMU of Linux takes them.
///
/// The bits of `attr.config` are those of the register IA32_RTIT_CTL at the same places; bit 0 (`pt`) says that
/// `branch` is told explicitly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PtConfig {
    /// Cycle packets.
    pub cyc: bool,
    /// Power event packets.
    pub pwr_evt: bool,
    /// A FUP after each PTW.
    pub fup_on_ptw: bool,
    /// Timestamp packets.
    pub tsc: bool,
    /// Mini time counter packets.
    pub mtc: bool,
    /// No return compression.
    pub noretcomp: bool,
    /// PTWRITE packets.
    pub ptw: bool,
    /// Control flow packets.
    pub branch: bool,
    /// Encoded period of the MTC packets (0..=15).
    pub mtc_period: u8,
    /// Encoded threshold of the CYC packets (0..=15).
    pub cyc_thresh: u8,
    /// Encoded period of PSB (0..=15).
    pub psb_period: u8,
    /// Event trace packets.
    pub event: bool,
    /// No TNT packets.
    pub notnt: bool,
}

impl Default for PtConfig {
    /// What `perf record -e intel_pt//` chooses: `tsc,mtc,mtc_period=3,psb_period=3,branch`.
    fn default() -> Self {
        Self {
            tsc: true,
            mtc: true,
            mtc_period: 3,
            psb_period: 3,
            branch: true,
            ..Self::NONE
        }
    }
}

pub(super) const NAMES: [&str; 13] = [
    "tsc",
    "mtc",
    "mtc_period",
    "cyc",
    "cyc_thresh",
    "psb_period",
    "noretcomp",
    "ptw",
    "fup_on_ptw",
    "branch",
    "pwr_evt",
    "event",
    "notnt",
];

const PT: u64 = 1 << 0;
const CYC: u64 = 1 << 1;
const PWR_EVT: u64 = 1 << 4;
const FUP_ON_PTW: u64 = 1 << 5;
const MTC: u64 = 1 << 9;
const TSC: u64 = 1 << 10;
const NORETCOMP: u64 = 1 << 11;
const PTW: u64 = 1 << 12;
const BRANCH: u64 = 1 << 13;
const EVENT: u64 = 1 << 31;
const NOTNT: u64 = 1 << 55;
const MTC_PERIOD: u32 = 14;
const CYC_THRESH: u32 = 19;
const PSB_PERIOD: u32 = 24;

fn unknown(name: &str) -> ConfigError {
    if rtit::NAMES.contains(&name) {
        return ConfigError::OnlyRtit {
            name: name.to_owned(),
        };
    }
    ConfigError::Unknown {
        name: name.to_owned(),
        known: &NAMES,
    }
}

impl PtConfig {
    /// Everything off.
    pub const NONE: Self = Self {
        cyc: false,
        pwr_evt: false,
        fup_on_ptw: false,
        tsc: false,
        mtc: false,
        noretcomp: false,
        ptw: false,
        branch: false,
        mtc_period: 0,
        cyc_thresh: 0,
        psb_period: 0,
        event: false,
        notnt: false,
    };

    /// The bit of `attr.config` that stands for TSC packets.
    pub(crate) const TSC_BIT: u64 = TSC;
    pub(crate) const NORETCOMP_BIT: u64 = NORETCOMP;
    pub(crate) const MTC_BIT: u64 = MTC;
    pub(crate) const MTC_FREQ_BITS: u64 = 0xf << MTC_PERIOD;
    pub(crate) const CYC_BIT: u64 = CYC;

    /// Reads `attr.config`. Bits without a name are left out.
    #[must_use]
    pub fn from_bits(config: u64) -> Self {
        let has = |bit| config & bit != 0;
        let field = |shift: u32| (config >> shift) as u8 & 0xf;
        Self {
            cyc: has(CYC),
            pwr_evt: has(PWR_EVT),
            fup_on_ptw: has(FUP_ON_PTW),
            tsc: has(TSC),
            mtc: has(MTC),
            noretcomp: has(NORETCOMP),
            ptw: has(PTW),
            branch: has(BRANCH) || !has(PT),
            mtc_period: field(MTC_PERIOD),
            cyc_thresh: field(CYC_THRESH),
            psb_period: field(PSB_PERIOD),
            event: has(EVENT),
            notnt: has(NOTNT),
        }
    }

    /// The value of `attr.config`. Periods are taken modulo 16.
    #[must_use]
    pub fn bits(self) -> u64 {
        let bit = |on: bool, bit: u64| if on { bit } else { 0 };
        let field = |value: u8, shift: u32| u64::from(value & 0xf) << shift;
        PT | bit(self.cyc, CYC)
            | bit(self.pwr_evt, PWR_EVT)
            | bit(self.fup_on_ptw, FUP_ON_PTW)
            | bit(self.tsc, TSC)
            | bit(self.mtc, MTC)
            | bit(self.noretcomp, NORETCOMP)
            | bit(self.ptw, PTW)
            | bit(self.branch, BRANCH)
            | bit(self.event, EVENT)
            | bit(self.notnt, NOTNT)
            | field(self.mtc_period, MTC_PERIOD)
            | field(self.cyc_thresh, CYC_THRESH)
            | field(self.psb_period, PSB_PERIOD)
    }

    /// Whether nothing in the trace tells the time of day, so that perf and Cofi decode it without times.
    #[must_use]
    pub const fn is_timeless(self) -> bool {
        !self.tsc
    }

    /// Sets one part by its name.
    ///
    /// # Errors
    /// When the name is not that of a setting, or the value is more than the setting's field holds.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let (flag, field) = match name {
            "tsc" => (Some(&mut self.tsc), None),
            "mtc" => (Some(&mut self.mtc), None),
            "cyc" => (Some(&mut self.cyc), None),
            "noretcomp" => (Some(&mut self.noretcomp), None),
            "ptw" => (Some(&mut self.ptw), None),
            "fup_on_ptw" => (Some(&mut self.fup_on_ptw), None),
            "branch" => (Some(&mut self.branch), None),
            "pwr_evt" => (Some(&mut self.pwr_evt), None),
            "event" => (Some(&mut self.event), None),
            "notnt" => (Some(&mut self.notnt), None),
            "mtc_period" => (None, Some(&mut self.mtc_period)),
            "cyc_thresh" => (None, Some(&mut self.cyc_thresh)),
            "psb_period" => (None, Some(&mut self.psb_period)),
            _ => return Err(unknown(name)),
        };
        let max = if flag.is_some() { 1 } else { 15 };
        let number = parse_value(name, value, max)?;
        if let Some(flag) = flag {
            *flag = number != 0;
        }
        if let Some(field) = field {
            *field = number;
        }
        Ok(())
    }

    /// Applies a list `KEY[=VALUE],…` in perf's notation; a key without a value means 1.
    ///
    /// # Errors
    /// As [`set`](Self::set); parts before the wrong one are then applied.
    ///
    /// ```
    /// use cofi_perf::PtConfig;
    /// let mut config = PtConfig::default();
    /// config.apply("cyc,mtc_period=9,tsc=0")?;
    /// assert!(config.cyc && !config.tsc && config.mtc_period == 9);
    /// assert!(config.apply("cyc_thresh=16").is_err());
    /// # Ok::<(), cofi_perf::ConfigError>(())
    /// ```
    pub fn apply(&mut self, list: &str) -> Result<(), ConfigError> {
        parts(list).try_for_each(|(name, value)| self.set(name, value))
    }
}

impl fmt::Display for PtConfig {
    /// Prints the list that [`PtConfig::apply`] reads, with perf's names; parts that are off or 0 are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            ("tsc", self.tsc),
            ("mtc", self.mtc),
            ("cyc", self.cyc),
            ("noretcomp", self.noretcomp),
            ("ptw", self.ptw),
            ("fup_on_ptw", self.fup_on_ptw),
            ("branch", self.branch),
            ("pwr_evt", self.pwr_evt),
            ("event", self.event),
            ("notnt", self.notnt),
        ];
        let fields = [
            ("mtc_period", self.mtc_period),
            ("cyc_thresh", self.cyc_thresh),
            ("psb_period", self.psb_period),
        ];
        print(f, &flags, &fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn perfs_default_is_perfs_number() {
        // config=0x300e601 is what perf wrote for `-e intel_pt//` on Linux 4.14.
        assert_eq!(PtConfig::default().bits(), 0x300_e601);
        assert_eq!(PtConfig::from_bits(0x300_e601), PtConfig::default());
    }

    #[test]
    fn branch_is_on_unless_told() {
        assert!(PtConfig::from_bits(0).branch);
        assert!(!PtConfig::from_bits(1).branch);
    }

    #[test]
    fn wrong_settings_are_named() {
        let mut config = PtConfig::default();
        assert!(
            config
                .apply("tcs")
                .unwrap_err()
                .to_string()
                .contains("`tcs`")
        );
        assert!(matches!(
            config.apply("tsc=2"),
            Err(ConfigError::Value { max: 1, .. })
        ));
        assert!(matches!(
            config.apply("mtc_period=x"),
            Err(ConfigError::Value { max: 15, .. })
        ));
        assert!(matches!(
            config.apply("=1"),
            Err(ConfigError::Unknown { .. })
        ));
        config.apply(" ,, psb_period = 0xf ,").unwrap();
        assert_eq!(config.psb_period, 15);
    }

    proptest! {
        #[test]
        fn bits_and_text_round_trip(bits: u64) {
            let config = PtConfig::from_bits(bits | PT);
            prop_assert_eq!(PtConfig::from_bits(config.bits()), config);
            let mut read = PtConfig::NONE;
            read.apply(&config.to_string()).unwrap();
            prop_assert_eq!(read, config);
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let mut config = PtConfig::default();
            let result = config.apply(&text);
            prop_assert!(result.is_ok() || !result.unwrap_err().to_string().is_empty());
        }
    }
}
