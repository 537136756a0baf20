//! `cofi record --engine hardware`: what only the processors' own trace units do.

mod filter;

use crate::args::{Privilege, RecordOptions};
use crate::flight::{self, FlightOptions};
use crate::output;
use crate::record::{Recording, ended};
use crate::size;
use anyhow::{Context, Result, bail};
use clap::Args;
use cofi_capture::hardware::{self, Keep, Levels, Samples, Settings, Subject, Traced};
use cofi_capture::ptrace::{Options, Target};
use cofi_capture::record::{Gate, Recorded};
use cofi_perf::TraceConfig;
use std::sync::atomic::AtomicBool;

/// What `--help` puts above these options.
const HEADING: &str = "With --engine hardware";

/// Parts of a trace in which a PSB every 16 KiB is too rare.
const SMALL: u64 = 256 << 10;

/// Options that no other engine has.
#[derive(Args, Clone, Default, Debug)]
pub(crate) struct HardwareArgs {
    /// Record all that every processor runs, while the program does if one is named.
    #[arg(short = 'a', long, help_heading = HEADING, conflicts_with = "pid")]
    pub(crate) system_wide: bool,
    /// Record threads alone, whichever processors they run on: a program's first one, or with -p those that the process has. What they
    /// start is not recorded.
    #[arg(long, help_heading = HEADING, conflicts_with_all = ["system_wide", "cpus"])]
    pub(crate) per_thread: bool,
    /// Record this running thread alone.
    #[arg(long, help_heading = HEADING, value_name = "TID", conflicts_with_all = ["system_wide", "cpus", "pid", "program"])]
    pub(crate) tid: Option<u32>,
    /// Record all that these processors run.
    #[arg(long = "cpu", help_heading = HEADING, value_name = "LIST", value_parser = list, conflicts_with = "pid")]
    pub(crate) cpus: Option<Cpus>,
    /// The size of each processor's buffer for packets: 64M, for example. It becomes a power of two of pages; 4M if left out.
    #[arg(long, help_heading = HEADING, value_name = "SIZE", value_parser = size::bytes)]
    pub(crate) buffer: Option<u64>,
    /// Keep only the last packets, of this size for each processor, and save them at the program's end, at Ctrl-C, and whenever
    /// `cofi record` gets SIGUSR2.
    #[arg(long, help_heading = HEADING, value_name = "SIZE", value_parser = size::bytes, conflicts_with = "buffer")]
    pub(crate) snapshot: Option<u64>,
    /// Take a snapshot whenever this is about to run, too: `sym:NAME`, the first instruction of a function of the program or its libraries (with -a, of
    /// the kernel), or an address, 0x….
    #[arg(long, help_heading = HEADING, value_name = "PLACE", value_parser = flight::gate, requires = "snapshot")]
    pub(crate) snapshot_at: Option<Gate>,
    /// Keep only the last packets before each of many moments: every PERIOD cycles (1000000 if left out) a sample that ends with SIZE of packets,
    /// 60K at most.
    #[arg(long, help_heading = HEADING, value_name = "SIZE[:PERIOD]", value_parser = samples, conflicts_with_all = ["buffer", "snapshot"])]
    pub(crate) sample: Option<Sampling>,
    /// Trace only these ranges of code, or up to one, as perf has it: `filter FUNCTION @ FILE`, `tracestop ADDRESS/LENGTH @ FILE`, several with
    /// commas; without a file, of the kernel. ADDRESS is an offset in the file.
    #[arg(long, help_heading = HEADING, value_name = "FILTERS")]
    pub(crate) filter: Option<String>,
}

/// Numbers of processors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cpus(Vec<u32>);

/// Reads "0-3,5".
fn list(text: &str) -> Result<Cpus, String> {
    /// More processors than this no Linux knows.
    const MOST: u32 = 8192;
    let bad = || format!("{text:?} is no list of processors, such as 0-3,5");
    let mut all = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |word: &str| word.parse::<u32>().ok().filter(|number| *number < MOST);
        let (first, last) = (
            number(first).ok_or_else(bad)?,
            number(last).ok_or_else(bad)?,
        );
        if first > last {
            return Err(bad());
        }
        all.extend(first..=last);
    }
    all.sort_unstable();
    all.dedup();
    Ok(Cpus(all))
}

/// Samples that end with packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sampling {
    size: u32,
    period: u64,
}

/// Reads "4K:100000".
fn samples(text: &str) -> Result<Sampling, String> {
    const PERIOD: u64 = 1_000_000;
    let (bytes, period) = match text.split_once(':') {
        Some((bytes, period)) => (bytes, period.parse().ok().filter(|period| *period > 0)),
        None => (text, Some(PERIOD)),
    };
    let period =
        period.ok_or_else(|| format!("{text:?}: behind the colon is no number of cycles"))?;
    let most = u64::from(Samples::MOST);
    let bytes = size::bytes(bytes)?.next_multiple_of(8);
    let size = u32::try_from(bytes).ok().filter(|_| bytes <= most);
    let size = size.ok_or_else(|| format!("a sample has room for {most} bytes of packets"))?;
    Ok(Sampling { size, period })
}

impl HardwareArgs {
    /// The option among them that was given first, if one was.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let given = [
            (self.system_wide, "--system-wide"),
            (self.cpus.is_some(), "--cpu"),
            (self.per_thread, "--per-thread"),
            (self.tid.is_some(), "--tid"),
            (self.snapshot.is_some(), "--snapshot"),
            (self.buffer.is_some(), "--buffer"),
            (self.filter.is_some(), "--filter"),
            (self.sample.is_some(), "--sample"),
        ];
        let mut given = given.into_iter();
        given.find_map(|(is_given, option)| is_given.then_some(option))
    }

    /// Whole processors are recorded, whoever they run.
    pub(crate) fn is_of_processors(&self) -> bool {
        self.system_wide || self.cpus.is_some()
    }
}

/// Records.
pub(crate) fn record(
    options: &RecordOptions,
    flight: &FlightOptions,
    config: TraceConfig,
    command_line: Vec<String>,
    target: Option<&Target>,
    snapshot: &AtomicBool,
    run_options: Options<'_>,
) -> Result<Recording> {
    let TraceConfig::Pt(mut config) = config else {
        bail!("--engine hardware: Linux has no driver for RTIT; use ptrace or qemu");
    };
    if options.raw_output.is_some() {
        bail!("--engine hardware: each processor has a stream, and --raw-output is for one");
    }
    let args = &options.hardware;
    // Nothing of a part without a PSB can be decoded: where parts are small, there are to be many.
    let other = [
        (args.snapshot.is_some(), "--snapshot"),
        (args.sample.is_some(), "--sample"),
        (args.buffer.is_some(), "--buffer"),
    ];
    let other = other.into_iter().find(|(is_given, _)| *is_given);
    if let (Some(_), Some((_, other))) = (flight.last, other) {
        bail!(
            "--last and {other}: with --engine hardware, --last is a snapshot at the end, whose size it says"
        );
    }
    let snapshot_size = args.snapshot.or(flight.last);
    let part = snapshot_size.or(args.sample.map(|sample| sample.size.into()));
    let is_said = options
        .config
        .iter()
        .any(|list| list.contains("psb_period"));
    let is_small = part.is_some_and(|part| part < SMALL) || flight.start_at.is_some();
    if is_small && !is_said {
        config.psb_period = 0;
    }
    let subject = match target {
        Some(Target::Launch(program)) if args.is_of_processors() => {
            Subject::Processors(Some(program))
        }
        Some(Target::Launch(program)) => Subject::Program(program),
        Some(Target::Attach(pid)) => match args.tid {
            Some(tid) => Subject::Thread { pid: *pid, tid },
            None => Subject::Process(*pid),
        },
        None => Subject::Processors(None),
    };
    let privilege = options.privilege.unwrap_or(Privilege::User);
    let mut settings = Settings::new(&options.output, config);
    settings.command_line = command_line;
    settings.levels = Levels {
        os: privilege != Privilege::User,
        user: privilege != Privilege::Os,
    };
    settings.cpus = args.cpus.clone().map(|cpus| cpus.0);
    // A sample's packets are in the buffer, with as many again before them.
    settings.buffer = match args.sample {
        Some(samples) => Some(u64::from(samples.size) * 2),
        None => snapshot_size.or(args.buffer),
    };
    settings.keep = match (snapshot_size, args.sample) {
        (Some(_), _) => Keep::Snapshots(snapshot),
        (None, Some(Sampling { size, period })) => Keep::Samples(Samples { size, period }),
        (None, None) => Keep::All,
    };
    settings.filter = args.filter.as_deref().map(filter::resolve).transpose()?;
    settings.per_thread = args.per_thread;
    settings.window = flight.window().unwrap_or_default();
    settings.snapshot_at = args.snapshot_at.clone();
    let mut notice = |problem: &hardware::KernelProblem| output::tell(format_args!("{problem}"));
    let traced =
        hardware::run(&settings, subject, run_options, &mut notice).context("--engine hardware")?;
    tell(&traced, matches!(settings.keep, Keep::All));
    let mut recorded = Recorded::default();
    recorded.trace_bytes = traced.trace_bytes;
    Ok(Recording {
        ended: ended(traced.outcome),
        recorded,
        engine: "hardware".into(),
        _lists: None,
    })
}

/// What is missing, and what helps.
fn tell(traced: &Traced, keeps_all: bool) {
    let (truncated, lost) = traced.lost;
    // What a snapshot or a sample does not hold was not to be kept.
    if truncated > 0 && keeps_all {
        let often = match truncated {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        output::tell(format_args!(
            "the kernel had no room for packets {often}, of buffers of {} KiB: the trace has gaps there, of a length that nobody knows. A larger \
             --buffer helps against bursts; against a program that is traced faster than the file is written, a --config with fewer packets, or \
             --snapshot",
            traced.buffer / 1024
        ));
    }
    if lost > 0 {
        output::tell(format_args!(
            "the kernel had no room for {lost} of its records: names of threads, code or samples may be missing"
        ));
    }
    if traced.snapshots > 1 {
        output::tell(format_args!("{} snapshots", traced.snapshots));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(list("5,0-2,1"), Ok(Cpus(vec![0, 1, 2, 5])));
        for bad in ["", "x", "3-1", "0-99999999", "-1", "1,"] {
            assert!(list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_of_samples() {
        let of = |size, period| Ok(Sampling { size, period });
        assert_eq!(samples("4K"), of(4096, 1_000_000));
        assert_eq!(samples("100:5"), of(104, 5));
        for bad in ["64K", "4K:", "4K:0", "4K:x", ":5"] {
            assert!(samples(bad).is_err(), "{bad}");
        }
    }
}
