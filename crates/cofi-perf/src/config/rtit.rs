//! The settings of RTIT.

use super::{ConfigError, parse_value, parts, print, pt};
use std::fmt;

/// RTIT settings (3.3.2, 3.3.9), under the names that the same things have in Linux's `intel_pt` PMU where they are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RtitConfig {
    /// Cycle-accurate mode: RTIT_CTL.Cycle_Acc.
    pub cyc: bool,
    /// Mini time counter packets: RTIT_CTL.MTC_En.
    pub mtc: bool,
    /// Which eight bits of the TSC an MTC packet holds (0..=3): those from bit `7 + 2 * mtc_range` on. RTIT_CTL.MTC_Range.
    pub mtc_range: u8,
    /// Super time synch packets, which hold the TSC: RTIT_CTL.STS_En.
    pub sts: bool,
    /// No return compression: RTIT_CTL.CMPRS_RET is clear.
    pub noretcomp: bool,
    /// No time packets while PacketEn is clear: RTIT_CTL.LESS_PKTS.
    pub less_pkts: bool,
    /// A PSB comes about every `2048 << psb_period` bytes (0..=3): RTIT_PKT_CNT.Pkt_Mask.
    pub psb_period: u8,
}

impl Default for RtitConfig {
    /// `mtc,mtc_range=1,sts,psb_period=2`: about as often an MTC packet as in [`PtConfig`](crate::PtConfig)'s default, and a
    /// PSB as often as after a reset.
    fn default() -> Self {
        Self {
            mtc: true,
            mtc_range: 1,
            sts: true,
            psb_period: 2,
            ..Self::NONE
        }
    }
}

pub(super) const NAMES: [&str; 7] = [
    "cyc",
    "mtc",
    "mtc_range",
    "sts",
    "noretcomp",
    "less_pkts",
    "psb_period",
];

const CYCLE_ACC: u64 = 1 << 1;
const MTC_EN: u64 = 1 << 9;
const STS_EN: u64 = 1 << 10;
const CMPRS_RET: u64 = 1 << 11;
const LESS_PKTS: u64 = 1 << 12;
const MTC_RANGE: u32 = 14;
/// RTIT_PKT_CNT.Pkt_Mask.
const PKT_MASK: u32 = 16;

fn unknown(name: &str) -> ConfigError {
    let name = name.to_owned();
    if pt::NAMES.contains(&name.as_str()) {
        return ConfigError::OnlyPt { name };
    }
    ConfigError::Unknown {
        name,
        known: &NAMES,
    }
}

impl RtitConfig {
    /// Everything off.
    pub const NONE: Self = Self {
        cyc: false,
        mtc: false,
        mtc_range: 0,
        sts: false,
        noretcomp: false,
        less_pkts: false,
        psb_period: 0,
    };

    /// The bit of RTIT_CTL that stands for packets that tell the TSC.
    pub(crate) const STS_BIT: u64 = STS_EN;

    /// Reads RTIT_CTL and RTIT_PKT_CNT; of bits that are no settings nothing is kept.
    #[must_use]
    pub const fn from_registers(ctl: u64, pkt_cnt: u64) -> Self {
        Self {
            cyc: ctl & CYCLE_ACC != 0,
            mtc: ctl & MTC_EN != 0,
            mtc_range: (ctl >> MTC_RANGE) as u8 & 3,
            sts: ctl & STS_EN != 0,
            noretcomp: ctl & CMPRS_RET == 0,
            less_pkts: ctl & LESS_PKTS != 0,
            psb_period: (pkt_cnt >> PKT_MASK) as u8 & 3,
        }
    }

    /// The bits of RTIT_CTL. The range is taken modulo 4.
    #[must_use]
    pub const fn bits(self) -> u64 {
        let mut bits = (self.mtc_range as u64 & 3) << MTC_RANGE;
        let flags = [
            (self.cyc, CYCLE_ACC),
            (self.mtc, MTC_EN),
            (self.sts, STS_EN),
            (!self.noretcomp, CMPRS_RET),
            (self.less_pkts, LESS_PKTS),
        ];
        let mut index = 0;
        while index < flags.len() {
            if flags[index].0 {
                bits |= flags[index].1;
            }
            index += 1;
        }
        bits
    }

    /// The value of RTIT_PKT_CNT when tracing begins. The period is taken modulo 4.
    #[must_use]
    pub const fn pkt_cnt(self) -> u64 {
        (self.psb_period as u64 & 3) << PKT_MASK
    }

    /// Whether nothing in the trace tells the time of day: MTC packets alone do not.
    #[must_use]
    pub const fn is_timeless(self) -> bool {
        !self.sts
    }

    /// Sets one part by its name.
    ///
    /// # Errors
    /// When the name is not that of a setting of RTIT, or the value is more than the setting's field holds.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let flag = match name {
            "cyc" => &mut self.cyc,
            "mtc" => &mut self.mtc,
            "sts" => &mut self.sts,
            "noretcomp" => &mut self.noretcomp,
            "less_pkts" => &mut self.less_pkts,
            "mtc_range" => {
                self.mtc_range = parse_value(name, value, 3)?;
                return Ok(());
            }
            "psb_period" => {
                self.psb_period = parse_value(name, value, 3)?;
                return Ok(());
            }
            _ => return Err(unknown(name)),
        };
        *flag = parse_value(name, value, 1)? != 0;
        Ok(())
    }

    /// Applies a list `KEY[=VALUE],…` in perf's notation; a key without a value means 1.
    ///
    /// # Errors
    /// As [`set`](Self::set); parts before the wrong one are then applied.
    pub fn apply(&mut self, list: &str) -> Result<(), ConfigError> {
        parts(list).try_for_each(|(name, value)| self.set(name, value))
    }
}

impl fmt::Display for RtitConfig {
    /// Prints the list that [`RtitConfig::apply`] reads; parts that are off or 0 are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            ("cyc", self.cyc),
            ("mtc", self.mtc),
            ("sts", self.sts),
            ("noretcomp", self.noretcomp),
            ("less_pkts", self.less_pkts),
        ];
        let fields = [
            ("mtc_range", self.mtc_range),
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
    fn the_default_in_the_registers() {
        // MTC_En, STS_En, Cmprs_Ret, MTC_Range 1; Pkt_Mask as after a reset.
        assert_eq!(RtitConfig::default().bits(), 0x4e00);
        assert_eq!(RtitConfig::default().pkt_cnt(), 0x2_0000);
    }

    #[test]
    fn values_are_checked() {
        let mut config = RtitConfig::default();
        config
            .apply("mtc_range=3,psb_period=0x0,noretcomp")
            .unwrap();
        assert_eq!((config.mtc_range, config.psb_period), (3, 0));
        assert!(config.noretcomp);
        for wrong in ["mtc_range=4", "psb_period=4", "cyc=2", "sts=x"] {
            assert!(matches!(
                config.apply(wrong),
                Err(ConfigError::Value { .. })
            ));
        }
    }

    proptest! {
        #[test]
        fn registers_and_text_round_trip(ctl: u64, pkt_cnt: u64) {
            let config = RtitConfig::from_registers(ctl, pkt_cnt);
            prop_assert_eq!(RtitConfig::from_registers(config.bits(), config.pkt_cnt()), config);
            let mut read = RtitConfig::NONE;
            read.apply(&config.to_string()).unwrap();
            prop_assert_eq!(read, config);
        }
    }
}
