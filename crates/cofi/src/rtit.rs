//! What must be said of bare packets on the command line, mostly of RTIT's, because nothing in them tells it.

use crate::input;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use cofi_flow::{Cpu, FlowConfig, IpFilter, RtitFlowConfig, StopRanges, TraceFormat};
use cofi_packet::rtit::has_rtit;
use cofi_packet::{ExecMode, Ip};
use serde_json::{Value, json};

/// What `--help` puts above these options.
const HEADING: &str = "Bare RTIT packets (--format rtit)";

/// How RTIT was configured when bare packets were made.
#[derive(Args, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct RtitArgs {
    /// The trace was taken in cycle-accurate mode (RTIT_CTL.Cycle_Acc).
    #[arg(long, help_heading = HEADING)]
    pub(crate) cycle_accurate: bool,
    /// Only code in this range was traced: the first and the last address, 0x…. Again for each further one: Intel PT has up to four
    /// (IA32_RTIT_ADDRn), RTIT two (RTIT_EVENTS.Filter_Event_ID).
    #[arg(long, value_name = "FIRST-LAST")]
    pub(crate) ip_filter: Vec<Range>,
    /// Tracing stopped where control came into this range (RTIT_EVENTS.TraceStop_Event_ID): the first and the last address,
    /// 0x…. Twice for two ranges.
    #[arg(long, help_heading = HEADING, value_name = "FIRST-LAST")]
    pub(crate) trace_stop: Vec<Range>,
    /// Only one address space was traced (RTIT_CTL.CR3En).
    #[arg(long, help_heading = HEADING)]
    pub(crate) cr3_filter: bool,
    /// RTIT_TNT_BUFF as it was read at the end of the trace, 0x1 to 0x7f: the last branches, of which no packet tells.
    #[arg(long, help_heading = HEADING, value_name = "0x…", value_parser = tnt_buff)]
    pub(crate) tnt_buff: Option<u8>,
    /// The mode of the code that ran, 64 if left out.
    #[arg(long, help_heading = HEADING, value_name = "16|32|64", value_parser = mode)]
    pub(crate) mode: Option<ExecMode>,
    /// How many ticks of the TSC make one of the bus clock (bits 15:8 of MSR_PLATFORM_INFO): with it, cycle counts tell the time.
    #[arg(long, help_heading = HEADING, value_name = "N")]
    pub(crate) tsc_ratio: Option<u8>,
}

/// Addresses from the first to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range(Ip, Ip);

impl std::str::FromStr for Range {
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

impl std::fmt::Display for Range {
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

fn ranges(option: &str, list: &[Range], format: &str, most: usize) -> Result<Vec<(Ip, Ip)>> {
    ensure!(
        list.len() <= most,
        "{option}: {format} has no more than {most} ranges"
    );
    Ok(list.iter().map(|range| (range.0, range.1)).collect())
}

impl RtitArgs {
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

    /// What the decoder of Intel PT is told: the ranges. Refuses the options that are for RTIT alone.
    pub(crate) fn configure_pt(&self, flow: &mut FlowConfig) -> Result<()> {
        let rest = Self {
            ip_filter: Vec::new(),
            ..self.clone()
        };
        rest.refuse()?;
        let filter = ranges("--ip-filter", &self.ip_filter, "Intel PT", PT_RANGES)?;
        flow.filter = IpFilter::new(&filter);
        Ok(())
    }

    /// Refuses the options where the trace says such things itself.
    pub(crate) fn refuse(&self) -> Result<()> {
        match self.given() {
            None => Ok(()),
            Some(option) => bail!(
                "{option} is for bare RTIT packets (--format rtit): other traces say such things themselves"
            ),
        }
    }

    /// What the decoder is told.
    pub(crate) fn configure(&self, flow: &mut FlowConfig) -> Result<()> {
        let stop = ranges("--trace-stop", &self.trace_stop, "RTIT", RANGES)?;
        let filter = ranges("--ip-filter", &self.ip_filter, "RTIT", RANGES)?;
        flow.format = TraceFormat::Rtit({
            let mut rtit = RtitFlowConfig::default();
            rtit.cycles = input::mode(self.cycle_accurate);
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
    pub(crate) fn value(&self) -> Value {
        let texts = |list: &[Range]| list.iter().map(Range::to_string).collect::<Vec<_>>();
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

    /// The inverse of [`Self::value`].
    pub(crate) fn parse(value: &Value) -> Result<Self> {
        let ranges = |value: &Value| -> Result<Vec<Range>> {
            let list = value.as_array().context("no list of ranges")?;
            let texts = list.iter().map(|text| text.as_str().unwrap_or_default());
            texts
                .map(|text| text.parse().map_err(anyhow::Error::msg))
                .collect()
        };
        let byte = |value: &Value| u8::try_from(value.as_u64()?).ok();
        let parsed = |value: &Value, parse: fn(&str) -> Result<u8, String>| {
            let number = value.as_u64().map(|number| parse(&number.to_string()));
            number.transpose().map_err(anyhow::Error::msg)
        };
        let mode = value["mode"].as_u64().map(|bits| mode(&bits.to_string()));
        Ok(Self {
            cycle_accurate: value["cycle_accurate"].as_bool().unwrap_or(false),
            ip_filter: ranges(&value["ip_filter"])?,
            trace_stop: ranges(&value["trace_stop"])?,
            cr3_filter: value["cr3_filter"].as_bool().unwrap_or(false),
            tnt_buff: parsed(&value["tnt_buff"], tnt_buff)?,
            mode: mode.transpose().map_err(anyhow::Error::msg)?,
            tsc_ratio: byte(&value["tsc_ratio"]),
        })
    }
}

/// What is to be said of a processor named for a trace of RTIT: that it has none.
pub(crate) fn without_rtit(cpu: Cpu) -> Option<String> {
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
        let range = "0x401000-0x401fff".parse::<Range>();
        assert_eq!(range, Ok(Range(Ip(0x40_1000), Ip(0x40_1fff))));
        assert_eq!(range.unwrap().to_string(), "0x401000-0x401fff");
        for wrong in ["", "0x1", "0x2-0x1", "1-2", "0x1-", "0x1-0xg"] {
            assert!(wrong.parse::<Range>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_archived_comes_back() {
        let all = RtitArgs {
            cycle_accurate: true,
            ip_filter: vec![Range(Ip(1), Ip(2)), Range(Ip(5), Ip(5))],
            trace_stop: vec![Range(Ip(7), Ip(8))],
            cr3_filter: true,
            tnt_buff: Some(0x45),
            mode: Some(ExecMode::Bits32),
            tsc_ratio: Some(20),
        };
        for args in [RtitArgs::default(), all] {
            assert_eq!(RtitArgs::parse(&args.value()).unwrap(), args);
        }
        for (key, wrong) in [("mode", 8), ("tnt_buff", 0), ("tnt_buff", 128)] {
            let mut value = RtitArgs::default().value();
            value[key] = wrong.into();
            assert!(RtitArgs::parse(&value).is_err(), "{key} {wrong}");
        }
    }

    #[test]
    fn no_more_ranges_than_there_are() {
        let range = Range(Ip(1), Ip(2));
        let args = RtitArgs {
            ip_filter: vec![range; 3],
            ..RtitArgs::default()
        };
        assert!(args.configure(&mut FlowConfig::default()).is_err());
    }
}
