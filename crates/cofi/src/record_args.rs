//! The command line of what records, and of what tells whether that can be done.

use crate::args::Names;
use crate::flight::FlightOptions;
use crate::hardware::HardwareArgs;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// What runs and traces the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Engine {
    /// Hardware where there is some that may be used, else what runs here; what was chosen, and why, is said on standard error.
    Auto,
    /// Intel PT hardware through perf_event_open.
    Hardware,
    /// Stops at branches, or single steps, through ptrace, driving the software trace unit.
    Ptrace,
    /// QEMU, driving the software trace unit.
    Qemu,
    /// A whole machine in QEMU's system emulation, driving a software trace unit for each processor: what follows `--` are
    /// the arguments of qemu-system-x86_64.
    QemuSystem,
}

/// The privilege levels that are traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Privilege {
    /// All.
    All,
    /// Level 0: the operating system.
    Os,
    /// Levels 1 to 3: programs.
    User,
}

/// How to record.
#[derive(Args, Debug)]
pub(crate) struct RecordOptions {
    /// The perf.data file to write.
    #[arg(short, long, value_name = "FILE", default_value = "cofi.data")]
    pub(crate) output: PathBuf,
    /// What runs and traces the program.
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub(crate) engine: Engine,
    /// The trace's configuration, in the names of Linux's intel_pt: tsc, mtc, mtc_period, cyc, cyc_thresh,
    /// psb_period, noretcomp, branch, …; a key without a value means 1. `rtit` records RTIT instead, which has cyc, mtc,
    /// mtc_range, sts, noretcomp, less_pkts, psb_period.
    #[arg(long, value_name = "KEY[=VALUE],…")]
    pub(crate) config: Vec<String>,
    /// At which privilege levels is traced: with --engine qemu-system all, if not given; with hardware user. The other engines
    /// trace user space only.
    #[arg(long, value_name = "LEVELS")]
    pub(crate) privilege: Option<Privilege>,
    /// Also write the bare packets of the first traced thread.
    #[arg(long, value_name = "FILE")]
    pub(crate) raw_output: Option<PathBuf>,
    /// Keep the engine's own list of executed addresses and compare it with the decoded flow; status 1 if they differ.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Also write the engine's own list of executed addresses: `TID 0xADDRESS` a line.
    #[arg(long, value_name = "FILE")]
    pub(crate) truth: Option<PathBuf>,
    /// With ptrace: stop the program at every instruction, not only at every few branches. Slower; the trace is the same.
    #[arg(long)]
    pub(crate) step: bool,
    /// Stop tracing after so many seconds; the program runs on.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<std::time::Duration>,
    /// Trace this running process instead of starting one; Ctrl-C ends it.
    #[arg(short, long, value_name = "PID", conflicts_with = "program")]
    pub(crate) pid: Option<u32>,
    /// The program and its arguments: the first argument that is no option, or what follows `--`, begins them.
    #[arg(
        trailing_var_arg = true,
        value_names = ["PROGRAM", "ARG"],
        required_unless_present_any = ["pid", "tid", "system_wide", "cpus"]
    )]
    pub(crate) program: Vec<OsString>,
    #[command(flatten)]
    pub(crate) hardware: HardwareArgs,
}

fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is no number of seconds"))?;
    std::time::Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Arguments of `cofi record`.
#[derive(Args, Debug)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    pub(crate) flight: FlightOptions,
    #[command(flatten)]
    pub(crate) options: RecordOptions,
}

/// Arguments of `cofi trace`.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// How many of the last instructions to show.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) last: usize,
    #[command(flatten)]
    pub(crate) names: Names,
    #[command(flatten)]
    pub(crate) options: RecordOptions,
}

/// What a machine's time stamp counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum MachineClock {
    /// The host's time.
    Host,
    /// Instructions that ran, a nanosecond each, or as long as -icount has them: with -icount, what ran twice has the same packets.
    Virtual,
}

/// Arguments of `cofi machine`.
#[derive(Args, Debug)]
#[command(after_help = "docs/machines.md: from nothing to `perf record -e intel_pt//` in a guest.")]
pub(crate) struct MachineArgs {
    /// QEMU 11.1 or later: the program qemu-system-x86_64, or a folder with the files of a Debian that has it. If not given, the one on PATH, or the
    /// folder ~/.local/share/cofi/qemu.
    #[arg(long, value_name = "PATH")]
    pub(crate) qemu: Option<PathBuf>,
    /// The generation of the guest's processors, as far as Intel PT goes, as `cofi unit generations` names them; or silvermont or airmont, which
    /// have RTIT.
    #[arg(long, value_name = "NAME", default_value = "skylake")]
    pub(crate) processor: String,
    /// Other capabilities than that generation's, such as ptwrite=1: as CPUID enumerates them, under the names of `cofi unit cpuid`.
    #[arg(long, value_name = "NAME=VALUE,...", value_delimiter = ',')]
    pub(crate) caps: Vec<String>,
    /// What the manual leaves to the processor, such as tnt=long: the names of a scenario's section `implementation`, and buffer.size and others for
    /// its internal buffer (docs/machines.md has all).
    #[arg(long, value_name = "NAME=VALUE,...", value_delimiter = ',')]
    pub(crate) unit_option: Vec<String>,
    /// What the time stamp counter counts.
    #[arg(long, value_enum, default_value_t = MachineClock::Host)]
    pub(crate) clock: MachineClock,
    /// Say at the end how much each processor traced.
    #[arg(long)]
    pub(crate) verbose: bool,
    /// A folder for lists of the instructions that ran while PacketEn was 1: cpuN.ips, with eight bytes for the address of each, little-endian. A decoder
    /// should find just these.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) list: Option<PathBuf>,
    /// The arguments of qemu-system-x86_64.
    #[arg(value_name = "QEMU-ARGS", last = true, required = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// Arguments of `cofi doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
