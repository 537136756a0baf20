//! The settings of a trace, by name and as the registers have them.

mod pt;
mod rtit;

pub use pt::PtConfig;
pub use rtit::RtitConfig;

use std::fmt;

/// The settings of a trace, which also say of which format it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TraceConfig {
    /// Intel PT.
    Pt(PtConfig),
    /// RTIT.
    Rtit(RtitConfig),
}

/// A setting that does not exist or a value it cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No such setting.
    #[error("unknown trace setting `{name}`; there are {}", known.join(", "))]
    Unknown {
        /// The name given.
        name: String,
        /// The settings of the format.
        known: &'static [&'static str],
    },
    /// A setting of Intel PT, which RTIT does not have.
    #[error("trace setting `{name}` is one of Intel PT; RTIT has {}", rtit::NAMES.join(", "))]
    OnlyPt {
        /// The name given.
        name: String,
    },
    /// A setting of RTIT, which Intel PT does not have.
    #[error("trace setting `{name}` is one of RTIT, which is chosen by `rtit`")]
    OnlyRtit {
        /// The name given.
        name: String,
    },
    /// The value is no number or too large.
    #[error("trace setting `{name}` takes a number from 0 to {max}, not `{value}`")]
    Value {
        /// The setting.
        name: String,
        /// The value given.
        value: String,
        /// The largest value.
        max: u8,
    },
}

/// Chooses RTIT, wherever it stands in a list of settings.
const RTIT: &str = "rtit";

impl Default for TraceConfig {
    /// What `perf record -e intel_pt//` chooses.
    fn default() -> Self {
        Self::Pt(PtConfig::default())
    }
}

impl From<PtConfig> for TraceConfig {
    fn from(config: PtConfig) -> Self {
        Self::Pt(config)
    }
}

impl From<RtitConfig> for TraceConfig {
    fn from(config: RtitConfig) -> Self {
        Self::Rtit(config)
    }
}

impl TraceConfig {
    /// Reads lists `KEY[=VALUE],…` in perf's notation, one after the other: of Intel PT, or of RTIT where one of the keys is
    /// `rtit`. What they do not name is as by default.
    ///
    /// # Errors
    /// When a name is not that of a setting of the format, or a value is more than the setting's field holds.
    ///
    /// ```
    /// use cofi_perf::TraceConfig;
    /// let config = TraceConfig::of_lists(["cyc", "rtit"])?;
    /// assert!(matches!(config, TraceConfig::Rtit(config) if config.cyc && config.mtc));
    /// assert!(matches!(TraceConfig::of_lists(["cyc"])?, TraceConfig::Pt(_)));
    /// # Ok::<(), cofi_perf::ConfigError>(())
    /// ```
    pub fn of_lists<'a>(
        lists: impl IntoIterator<Item = &'a str> + Clone,
    ) -> Result<Self, ConfigError> {
        let settings = || lists.clone().into_iter().flat_map(parts);
        let mut is_rtit = false;
        for (_, value) in settings().filter(|(name, _)| *name == RTIT) {
            is_rtit = parse_value(RTIT, value, 1)? != 0;
        }
        let mut others = settings().filter(|(name, _)| *name != RTIT);
        if is_rtit {
            let mut config = RtitConfig::default();
            others.try_for_each(|(name, value)| config.set(name, value))?;
            Ok(config.into())
        } else {
            let mut config = PtConfig::default();
            others.try_for_each(|(name, value)| config.set(name, value))?;
            Ok(config.into())
        }
    }

    /// The value of `attr.config`: the bits of the register that controls tracing.
    #[must_use]
    pub fn bits(self) -> u64 {
        match self {
            Self::Pt(config) => config.bits(),
            Self::Rtit(config) => config.bits(),
        }
    }

    /// Whether nothing in the trace tells the time of day, so that perf and Cofi decode it without times.
    #[must_use]
    pub const fn is_timeless(self) -> bool {
        match self {
            Self::Pt(config) => config.is_timeless(),
            Self::Rtit(config) => config.is_timeless(),
        }
    }
}

/// The settings of a list, by name and value; a name without a value has the value 1.
fn parts(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, "1"));
            (name.trim(), value.trim())
        })
}

fn parse_value(name: &str, value: &str, max: u8) -> Result<u8, ConfigError> {
    let number = match value.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    };
    number
        .filter(|&number| number <= max)
        .ok_or_else(|| ConfigError::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            max,
        })
}

/// Prints settings as a list; those that are off or 0 are left out.
fn print(f: &mut fmt::Formatter<'_>, flags: &[(&str, bool)], fields: &[(&str, u8)]) -> fmt::Result {
    let flags = flags
        .iter()
        .filter(|(_, on)| *on)
        .map(|(name, _)| (*name).to_owned());
    let fields = fields
        .iter()
        .filter(|(_, value)| *value != 0)
        .map(|(name, value)| format!("{name}={value}"));
    f.write_str(&flags.chain(fields).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_chooses_the_format() {
        let of = |list: &str| TraceConfig::of_lists([list]);
        assert_eq!(of(""), Ok(TraceConfig::default()));
        assert_eq!(of("rtit"), Ok(RtitConfig::default().into()));
        assert_eq!(of("rtit=0"), Ok(TraceConfig::default()));
        let Ok(TraceConfig::Rtit(config)) = TraceConfig::of_lists(["cyc", "sts=0,rtit"]) else {
            panic!("it is RTIT");
        };
        assert!(config.cyc && !config.sts && config.is_timeless());
    }

    #[test]
    fn settings_of_the_other_format_are_refused() {
        let told = |list: &str| TraceConfig::of_lists([list]).unwrap_err().to_string();
        assert_eq!(
            told("rtit,tsc"),
            "trace setting `tsc` is one of Intel PT; RTIT has cyc, mtc, mtc_range, sts, noretcomp, less_pkts, psb_period"
        );
        assert_eq!(
            told("less_pkts"),
            "trace setting `less_pkts` is one of RTIT, which is chosen by `rtit`"
        );
        assert!(told("rtit,psb").contains("unknown trace setting `psb`; there are cyc, mtc,"));
        assert!(told("rtit=2").contains("from 0 to 1"));
    }
}
