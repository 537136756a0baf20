//! What must be said of bare packets, mostly of RTIT's, because nothing in them tells it.

use cofi_flow::{Cpu, FlowConfig, IpFilter, RtitFlowConfig, StopRanges, TraceFormat};
use cofi_packet::rtit::{Mode, has_rtit};
use cofi_packet::{ExecMode, Ip};
use serde_json::{Value, json};

/// Why what was said cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BareError {
    /// There are more ranges than registers for them.
    #[error("{option}: {format} has no more than {most} ranges")]
    Ranges {
        /// The option with the ranges.
        option: &'static str,
        /// The kind of trace.
        format: &'static str,
        /// So many it has.
        most: usize,
    },
    /// The trace says such things itself.
    #[error(
        "{option} is for bare RTIT packets (--format rtit): other traces say such things themselves"
    )]
    NotBare {
        /// The option.
        option: &'static str,
    },
    /// It is no processor.
    #[error("--cpu {text}: expected FAMILY/MODEL[/STEPPING] in decimal")]
    Cpu {
        /// What was said.
        text: String,
    },
}

/// What `--help` puts above these options.
#[cfg(feature = "clap")]
const HEADING: &str = "Bare RTIT packets (--format rtit)";

/// How RTIT was configured when bare packets were made.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct BareArgs {
    /// The trace was taken in cycle-accurate mode (RTIT_CTL.Cycle_Acc).
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING))]
    pub cycle_accurate: bool,
    /// Only code in this range was traced: the first and the last address, 0x…. Again for each further one: Intel PT has up to four
    /// (IA32_RTIT_ADDRn), RTIT two (RTIT_EVENTS.Filter_Event_ID).
    #[cfg_attr(feature = "clap", arg(long, value_name = "FIRST-LAST"))]
    pub ip_filter: Vec<BareRange>,
    /// Tracing stopped where control came into this range (RTIT_EVENTS.TraceStop_Event_ID): the first and the last address,
    /// 0x…. Twice for two ranges.
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING, value_name = "FIRST-LAST"))]
    pub trace_stop: Vec<BareRange>,
    /// Only one address space was traced (RTIT_CTL.CR3En).
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING))]
    pub cr3_filter: bool,
    /// RTIT_TNT_BUFF as it was read at the end of the trace, 0x1 to 0x7f: the last branches, of which no packet tells.
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING, value_name = "0x…", value_parser = tnt_buff))]
    pub tnt_buff: Option<u8>,
    /// The mode of the code that ran, 64 if left out.
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING, value_name = "16|32|64", value_parser = mode))]
    pub mode: Option<ExecMode>,
    /// How many ticks of the TSC make one of the bus clock (bits 15:8 of MSR_PLATFORM_INFO): with it, cycle counts tell the time.
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING, value_name = "N"))]
    pub tsc_ratio: Option<u8>,
}

/// Addresses from the first to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BareRange(Ip, Ip);

impl std::str::FromStr for BareRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ends = text.split_once('-');
        let ends = ends.and_then(|(first, last)| Some((address(first)?, address(last)?)));
        match ends {
            Some((first, last)) if first <= last => Ok(Self(first, last)),
            Some(_) => Err("the last address is before the first".into()),
            None => Err("expected two addresses, as in 0x401000-0x401fff".into()),
        }
    }
}

impl std::fmt::Display for BareRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}-{:#x}", self.0.0, self.1.0)
    }
}

fn address(text: &str) -> Option<Ip> {
    let digits = text.trim().strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok().map(Ip)
}

fn tnt_buff(text: &str) -> Result<u8, String> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    value
        .ok()
        .filter(|value| (1..=0x7f).contains(value))
        .ok_or_else(|| "RTIT_TNT_BUFF holds 0x1 to 0x7f".into())
}

fn mode(text: &str) -> Result<ExecMode, String> {
    match text {
        "16" => Ok(ExecMode::Bits16),
        "32" => Ok(ExecMode::Bits32),
        "64" => Ok(ExecMode::Bits64),
        _ => Err("expected 16, 32 or 64".into()),
    }
}

const fn bits(mode: ExecMode) -> u8 {
    match mode {
        ExecMode::Bits16 => 16,
        ExecMode::Bits32 => 32,
        ExecMode::Bits64 => 64,
    }
}

/// How many ranges RTIT has at most: RANGE0 and RANGE1.
const RANGES: usize = 2;
/// How many Intel PT has: IA32_RTIT_ADDR0 to IA32_RTIT_ADDR3.
const PT_RANGES: usize = 4;

fn ranges(
    option: &'static str,
    list: &[BareRange],
    format: &'static str,
    most: usize,
) -> Result<Vec<(Ip, Ip)>, BareError> {
    if list.len() > most {
        return Err(BareError::Ranges {
            option,
            format,
            most,
        });
    }
    Ok(list.iter().map(|range| (range.0, range.1)).collect())
}

/// The mode in which an RTIT trace was taken.
#[must_use]
pub const fn rtit_mode(cycle_accurate: bool) -> Mode {
    if cycle_accurate {
        Mode::CycleAccurate
    } else {
        Mode::Plain
    }
}

/// The processor that is said to be FAMILY/MODEL or FAMILY/MODEL/STEPPING, in decimal.
///
/// # Errors
/// When it is something else.
pub fn parse_cpu(text: &str) -> Result<Cpu, BareError> {
    let numbers: Option<Vec<u16>> = text.split('/').map(|number| number.parse().ok()).collect();
    let (family, model, stepping) = match numbers.as_deref() {
        Some([family, model]) => (*family, *model, 0),
        Some([family, model, stepping]) => (*family, *model, *stepping),
        _ => return Err(BareError::Cpu { text: text.into() }),
    };
    let byte = |number: u16| u8::try_from(number).map_err(|_| BareError::Cpu { text: text.into() });
    Ok(Cpu {
        family,
        model: byte(model)?,
        stepping: byte(stepping)?,
    })
}

impl BareArgs {
    /// The first option that was given.
    fn given(&self) -> Option<&'static str> {
        let given = [
            (self.cycle_accurate, "--cycle-accurate"),
            (!self.ip_filter.is_empty(), "--ip-filter"),
            (!self.trace_stop.is_empty(), "--trace-stop"),
            (self.cr3_filter, "--cr3-filter"),
            (self.tnt_buff.is_some(), "--tnt-buff"),
            (self.mode.is_some(), "--mode"),
            (self.tsc_ratio.is_some(), "--tsc-ratio"),
        ];
        let given = given.into_iter().find(|(is_given, _)| *is_given);
        given.map(|(_, option)| option)
    }

    /// What the decoder of Intel PT is told: the ranges.
    ///
    /// # Errors
    /// When there are too many, or something was said that is for RTIT alone.
    pub fn configure_pt(&self, flow: &mut FlowConfig) -> Result<(), BareError> {
        let rest = Self {
            ip_filter: Vec::new(),
            ..self.clone()
        };
        rest.refuse()?;
        let filter = ranges("--ip-filter", &self.ip_filter, "Intel PT", PT_RANGES)?;
        flow.filter = IpFilter::new(&filter);
        Ok(())
    }

    /// Refuses what was said where the trace says such things itself.
    ///
    /// # Errors
    /// When anything was said.
    pub fn refuse(&self) -> Result<(), BareError> {
        match self.given() {
            None => Ok(()),
            Some(option) => Err(BareError::NotBare { option }),
        }
    }

    /// What the decoder of RTIT is told.
    ///
    /// # Errors
    /// When there are too many ranges.
    pub fn configure(&self, flow: &mut FlowConfig) -> Result<(), BareError> {
        let stop = ranges("--trace-stop", &self.trace_stop, "RTIT", RANGES)?;
        let filter = ranges("--ip-filter", &self.ip_filter, "RTIT", RANGES)?;
        flow.format = TraceFormat::Rtit({
            let mut rtit = RtitFlowConfig::default();
            rtit.cycles = rtit_mode(self.cycle_accurate);
            rtit.tnt_buff = self.tnt_buff;
            rtit.stop = StopRanges::new(&stop);
            rtit
        });
        flow.filter = IpFilter::new(&filter);
        flow.cr3_filter = self.cr3_filter;
        flow.initial_mode = self.mode.unwrap_or(ExecMode::Bits64);
        flow.max_nonturbo_ratio = self.tsc_ratio.unwrap_or(0);
        Ok(())
    }

    /// As it stands in an archive.
    #[must_use]
    pub fn value(&self) -> Value {
        let texts = |list: &[BareRange]| list.iter().map(BareRange::to_string).collect::<Vec<_>>();
        json!({
            "cycle_accurate": self.cycle_accurate,
            "ip_filter": texts(&self.ip_filter),
            "trace_stop": texts(&self.trace_stop),
            "cr3_filter": self.cr3_filter,
            "tnt_buff": self.tnt_buff,
            "mode": self.mode.map(bits),
            "tsc_ratio": self.tsc_ratio,
        })
    }

    /// The inverse of [`Self::value`]; what is wrong with it, if it makes no sense.
    ///
    /// # Errors
    /// When something in it is not what [`Self::value`] writes.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let ranges = |value: &Value| -> Result<Vec<BareRange>, String> {
            let list = value.as_array().ok_or("no list of ranges")?;
            let texts = list.iter().map(|text| text.as_str().unwrap_or_default());
            texts.map(str::parse).collect()
        };
        let byte = |value: &Value| u8::try_from(value.as_u64()?).ok();
        let buff = value["tnt_buff"].as_u64();
        let mode = value["mode"].as_u64().map(|bits| mode(&bits.to_string()));
        Ok(Self {
            cycle_accurate: value["cycle_accurate"].as_bool().unwrap_or(false),
            ip_filter: ranges(&value["ip_filter"])?,
            trace_stop: ranges(&value["trace_stop"])?,
            cr3_filter: value["cr3_filter"].as_bool().unwrap_or(false),
            tnt_buff: buff.map(|buff| tnt_buff(&buff.to_string())).transpose()?,
            mode: mode.transpose()?,
            tsc_ratio: byte(&value["tsc_ratio"]),
        })
    }
}

/// What is to be said of a processor named for a trace of RTIT: that it has none.
#[must_use]
pub fn without_rtit(cpu: Cpu) -> Option<String> {
    let Cpu {
        family,
        model,
        stepping,
    } = cpu;
    let known = has_rtit(family, model, stepping);
    (!known).then(|| {
        format!(
            "--cpu {family}/{model}/{stepping}: not a processor with RTIT, so none of its errata are worked around"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_two_addresses() {
        let range = "0x401000-0x401fff".parse::<BareRange>();
        assert_eq!(range, Ok(BareRange(Ip(0x40_1000), Ip(0x40_1fff))));
        assert_eq!(range.unwrap().to_string(), "0x401000-0x401fff");
        for wrong in ["", "0x1", "0x2-0x1", "1-2", "0x1-", "0x1-0xg"] {
            assert!(wrong.parse::<BareRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_archived_comes_back() {
        let all = BareArgs {
            cycle_accurate: true,
            ip_filter: vec![BareRange(Ip(1), Ip(2)), BareRange(Ip(5), Ip(5))],
            trace_stop: vec![BareRange(Ip(7), Ip(8))],
            cr3_filter: true,
            tnt_buff: Some(0x45),
            mode: Some(ExecMode::Bits32),
            tsc_ratio: Some(20),
        };
        for args in [BareArgs::default(), all] {
            assert_eq!(BareArgs::parse(&args.value()).unwrap(), args);
        }
        for (key, wrong) in [("mode", 8), ("tnt_buff", 0), ("tnt_buff", 128)] {
            let mut value = BareArgs::default().value();
            value[key] = wrong.into();
            assert!(BareArgs::parse(&value).is_err(), "{key} {wrong}");
        }
    }

    #[test]
    fn no_more_ranges_than_there_are() {
        let range = BareRange(Ip(1), Ip(2));
        let args = BareArgs {
            ip_filter: vec![range; 3],
            ..BareArgs::default()
        };
        assert!(args.configure(&mut FlowConfig::default()).is_err());
    }
}
