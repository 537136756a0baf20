//! The command line, as clap reads it.

#[cfg(not(can_record))]
use crate::absent::AbsentArgs;
use crate::catalogue::Age;
use crate::code::CodeArgs;
use crate::dap::DapArgs;
use crate::diff::DiffArgs;
use crate::output::Color;
use crate::point::{Point, Span};
#[cfg(can_record)]
pub(crate) use crate::record_args::{
    DoctorArgs, Engine, MachineArgs, MachineClock, Privilege, RecordArgs, RecordOptions, TraceArgs,
};
use crate::serve::ServeArgs;
use crate::shell::{CompletionsArgs, ManualArgs};
use crate::sql::SqlArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use cofi_archive::BareArgs;
use std::path::{Path, PathBuf};

/// What `--help` begins with: what this build can do.
const ABOUT: &str = if cfg!(can_record) {
    env!("CARGO_PKG_DESCRIPTION")
} else {
    "Read recordings of programs and know exactly what they did"
};

/// Record any program on any x86-64 Linux machine, and know exactly what it did.
#[derive(Parser, Debug)]
#[command(name = "cofi", version, long_version = crate::version::LONG, about = ABOUT, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a program (or attach to one) and write its trace.
    #[cfg(can_record)]
    Record(RecordArgs),
    /// Record a program, then show what it did: `record`, `report` and the last instructions in one.
    #[cfg(can_record)]
    Trace(TraceArgs),
    /// Not in this build, which only reads.
    #[cfg(not(can_record))]
    #[command(hide = true)]
    Record(AbsentArgs),
    /// Not in this build, which only reads.
    #[cfg(not(can_record))]
    #[command(hide = true)]
    Trace(AbsentArgs),
    /// Not in this build, which only reads.
    #[cfg(not(can_record))]
    #[command(hide = true)]
    Machine(AbsentArgs),
    /// Not in this build, which only reads.
    #[cfg(not(can_record))]
    #[command(hide = true)]
    Doctor(AbsentArgs),
    /// What a trace holds: threads, hottest functions, gaps.
    Report(ReportArgs),
    /// List the executed instructions of a trace, in order.
    Insn(InsnArgs),
    /// List what the packets of a trace tell by themselves, in order: no code is needed.
    Events(EventsArgs),
    /// List the executed blocks of a trace, in order: instructions up to one of which only the trace tells where it led.
    Blocks(BlocksArgs),
    /// Who called whom: the calls of each thread as a tree, with the time and the instructions of each.
    Calls(CallsArgs),
    /// Write the calls in the format of another program: a flame graph, a timeline, a profile.
    Export(ExportArgs),
    /// Answer statements of SQL about one or many recordings, by the program `cofi-sql`.
    Sql(SqlArgs),
    /// How each thread ended: by what, in which calls, and what ran before.
    Last(LastArgs),
    /// The functions in which most ran: instructions by themselves and with what they called, calls and time.
    Top(TopArgs),
    /// Which lines, functions and branches of the source ran, and how often: of one recording or several together.
    Coverage(CoverageArgs),
    /// A function, its source and its instructions side by side, with how often each ran and where each branch went.
    Annotate(AnnotateArgs),
    /// Show a recording on a page, from the whole run to one instruction.
    Serve(ServeArgs),
    /// Step through a recording in an editor, forward and back: a server of the Debug Adapter Protocol on standard input and output.
    Dap(DapArgs),
    /// Where two recordings of a program part, what each did there, and what ran oftener in one of them.
    Diff(DiffArgs),
    /// Where a trace has gaps, and what is lost in each.
    Check(CheckArgs),
    /// List the packets of a trace, in order.
    Dump(DumpArgs),
    /// Pack a trace, the code that it ran and its symbols into one file, which decodes on any machine, or into a catalogue of many.
    Archive(ArchiveArgs),
    /// Assemble packets from text: the inverse of `dump`.
    Asm(AsmArgs),
    /// Put lines of RTIT output back in order that were captured as they were written, on a bus or in a trace hub.
    Lines(LinesArgs),
    /// The software trace unit by itself.
    #[command(subcommand)]
    Unit(UnitCommand),
    /// Run a virtual machine whose guest has Intel PT: QEMU, whose processors get the software trace unit.
    #[cfg(can_record)]
    Machine(MachineArgs),
    /// What this machine offers for recording, and what to install or change for the rest.
    #[cfg(can_record)]
    Doctor(DoctorArgs),
    /// Write a completion script for a shell to standard output.
    Completions(CompletionsArgs),
    /// Write manual pages into a folder.
    Manual(ManualArgs),
}

impl Command {
    /// Whether it reads a trace and prints, and does nothing else: it may be ended at any time.
    pub(crate) const fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Report(_)
                | Self::Insn(_)
                | Self::Events(_)
                | Self::Blocks(_)
                | Self::Calls(_)
                | Self::Last(_)
                | Self::Top(_)
                | Self::Coverage(_)
                | Self::Annotate(_)
                | Self::Diff(_)
                | Self::Check(_)
                | Self::Dump(_)
        )
    }
}

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Bare Intel PT packets.
    Pt,
    /// Bare RTIT packets.
    Rtit,
    /// A perf.data file.
    Perf,
}

/// A trace to read.
#[derive(Args, Clone, Debug)]
pub(crate) struct Input {
    /// What FILE holds; recognised by content if left out.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
    /// The trace: perf.data, an archive (`cofi archive`) or bare packets; `-` is standard input.
    #[arg(default_value = "cofi.data")]
    pub(crate) file: PathBuf,
}

/// A trace to decode, and the code that it ran.
#[derive(Args, Clone, Debug)]
pub(crate) struct FlowInput {
    /// The processor (decimal), so that its errata are worked around.
    #[arg(long, value_name = "FAMILY/MODEL[/STEPPING]")]
    pub(crate) cpu: Option<String>,
    /// Workarounds for errata to switch on, or off with a `-`, beyond what the processor asks for; `none` switches all off.
    #[arg(long, value_name = "NAME,-NAME,…", allow_hyphen_values = true)]
    pub(crate) errata: Option<String>,
    /// Code that the trace does not name, as for bare packets: an ELF file, at its link address or shifted to BASE (0x…). With
    /// `@cr3=0x…`, `@vmcs=0x…`, `@nr=1` (or several, with commas) behind it only in the address spaces of which PIP and VMCS
    /// packets tell so: a guest's.
    #[arg(long, value_name = "FILE[:BASE][@WHERE]")]
    pub(crate) elf: Vec<String>,
    /// Code that the trace does not name: a file's bytes at ADDR (0x…), in all address spaces or as with --elf.
    #[arg(long, value_name = "FILE:ADDR[@WHERE]")]
    pub(crate) raw: Vec<String>,
    #[command(flatten)]
    pub(crate) code: CodeArgs,
    #[command(flatten)]
    pub(crate) rtit: BareArgs,
    #[command(flatten)]
    pub(crate) names: Names,
    #[command(flatten)]
    pub(crate) input: Input,
}

impl FlowInput {
    /// A perf.data file that says all by itself.
    pub(crate) fn of(file: &Path, names: Names) -> Self {
        Self {
            cpu: None,
            errata: None,
            elf: Vec::new(),
            raw: Vec::new(),
            code: CodeArgs::default(),
            rtit: BareArgs::default(),
            names,
            input: Input {
                format: None,
                file: file.to_owned(),
            },
        }
    }
}

/// Where names of code come from that no ELF file holds.
#[derive(Args, Clone, Default, Debug)]
pub(crate) struct Names {
    /// Names of the kernel's functions: the text of the traced kernel's /proc/kallsyms, or of its System.map. Without the
    /// option, that in the trace's folder FILE.code/kallsyms, if there is one.
    #[arg(long, value_name = "FILE")]
    pub(crate) kallsyms: Option<PathBuf>,
}

/// Arguments of `cofi insn`.
#[derive(Args, Debug)]
pub(crate) struct InsnArgs {
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) parallel: Parallel,
    #[command(flatten)]
    pub(crate) show: Show,
    #[command(flatten)]
    pub(crate) select: Select,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
}

/// Arguments of `cofi events`.
#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) parallel: Parallel,
    /// Also where branches led, and which conditional ones were taken: `target` and `branches`.
    #[arg(long)]
    pub(crate) branches: bool,
    /// Also the timing packets: `tick`.
    #[arg(long)]
    pub(crate) ticks: bool,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
}

/// Arguments of `cofi report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// One JSON object a line: each thread, each function, and a summary.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) parallel: Parallel,
    #[command(flatten)]
    pub(crate) range: Range,
    /// How many functions to show; 15 if left out, and with --json all.
    #[arg(long, value_name = "N")]
    pub(crate) functions: Option<usize>,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
}

/// Arguments of `cofi archive`.
#[derive(Args, Debug)]
pub(crate) struct ArchiveArgs {
    /// The file to write. `cofi insn`, `cofi report` and the others read it like a trace; it is a tar file.
    #[arg(short, long, value_name = "OUT", required_unless_present = "into")]
    pub(crate) output: Option<PathBuf>,
    /// Add the trace to a catalogue instead: a folder (made if it is not there) of many recordings that share their code. Its recordings,
    /// DIR/recordings/NAME.cofi, are read in their place like any trace. With s3://BUCKET/PREFIX it lies in an object store: this needs the program
    /// cofi-cluster, which reads recordings there, too.
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    pub(crate) into: Option<PathBuf>,
    /// The name in the catalogue. Without it, that of FILE; another number stands behind a name that another recording has.
    #[arg(long, requires = "into", conflicts_with_all = ["output", "list", "prune"])]
    pub(crate) name: Option<String>,
    /// List what is in the catalogue, and add nothing.
    #[arg(long, requires = "into", conflicts_with_all = ["output", "prune", "file"])]
    pub(crate) list: bool,
    /// Remove from the catalogue what was added so long ago or longer, as 30d (s, m, h, d, w), and then the code that no recording needs any more;
    /// add nothing.
    #[arg(
        long,
        value_name = "OLDER-THAN",
        requires = "into",
        conflicts_with_all = ["output", "file"]
    )]
    pub(crate) prune: Option<Age>,
    /// With --into: one JSON object a line.
    #[arg(long, requires = "into", conflicts_with = "output")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
}

/// Arguments of `cofi dump`.
#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// The RTIT trace was taken in cycle-accurate mode.
    #[arg(long)]
    pub(crate) cycle_accurate: bool,
    /// The processor (decimal), if the trace does not say: packets that its errata have spoilt are shown as such.
    #[arg(long, value_name = "FAMILY/MODEL[/STEPPING]")]
    pub(crate) cpu: Option<String>,
    /// What the stream is made of, instead of its packets: sums by packet, PSB distances, how well addresses compress.
    #[arg(long, conflicts_with_all = ["filter", "offset", "count", "bytes"])]
    pub(crate) stats: bool,
    /// Only these packets, such as `tip*,fup`; `error` is bytes that form none.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) filter: Vec<String>,
    /// Begin at the first item at or after this offset (decimal, or hexadecimal with 0x).
    #[arg(long, value_name = "N", value_parser = offset)]
    pub(crate) offset: Option<u64>,
    /// At most so many items of each stream.
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Show all bytes that form no packet, however many there are, so that `cofi asm` makes the same stream again.
    #[arg(long, conflicts_with = "json")]
    pub(crate) bytes: bool,
    /// When to use colours.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
    #[command(flatten)]
    pub(crate) input: Input,
}

fn offset(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|_| "expected a decimal number, or a hexadecimal one with 0x".into())
}

/// Whose packets a text describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum PacketFormat {
    /// Intel PT.
    Pt,
    /// RTIT.
    Rtit,
}

/// Arguments of `cofi asm`.
#[derive(Args, Debug)]
pub(crate) struct AsmArgs {
    /// Whose packets the text describes.
    #[arg(long, value_name = "FORMAT", default_value = "pt")]
    pub(crate) format: PacketFormat,
    /// The RTIT packets are those of cycle-accurate mode.
    #[arg(long)]
    pub(crate) cycle_accurate: bool,
    /// Where the packets go; standard output if left out.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write `NAME OFFSET` for each label, the offset in hexadecimal: to FILE, or to standard error.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) labels: Option<Option<PathBuf>>,
    /// The text; `-` is standard input.
    #[arg(value_name = "INPUT")]
    pub(crate) input: PathBuf,
}

/// Arguments of `cofi lines`.
#[derive(Args, Debug)]
pub(crate) struct LinesArgs {
    /// RTIT_BASE_ADDR, 0x….
    #[arg(long, value_name = "ADDRESS", value_parser = offset)]
    pub(crate) base: u64,
    /// RTIT_LIMIT_MASK, 0x….
    #[arg(long, value_name = "MASK", value_parser = offset)]
    pub(crate) mask: u64,
    /// RTIT_OFFSET when tracing began.
    #[arg(long, value_name = "OFFSET", value_parser = offset, default_value = "0")]
    pub(crate) start: u64,
    /// How many younger lines may come before a line, where that is known of the capture; as many as the region has if left out.
    /// Fewer make sure that a line that never came is told.
    #[arg(long, value_name = "LINES")]
    pub(crate) at_most: Option<u64>,
    /// Where the bare packets go. If lines are missing, what follows goes to a file of its own: FILE.1, FILE.2, ….
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// The writes in the order in which they were seen, one a line: `0xADDRESS HEXADECIMAL BYTES`, or as JSON
    /// `{"address":"0x…","bytes":"…"}`; `offset 0x…`, or `{"offset":"0x…"}`, where software has written RTIT_OFFSET. `-` is
    /// standard input.
    #[arg(value_name = "CAPTURE")]
    pub(crate) capture: PathBuf,
}

/// What to do with the trace unit.
#[derive(Subcommand, Debug)]
pub(crate) enum UnitCommand {
    /// Run the unit on a scripted scenario, and list the packets that it emits.
    Run(UnitRunArgs),
    /// List the processor generations that scenarios can name, and what their units can do.
    Generations(UnitGenerationsArgs),
    /// Print the CPUID leaves that tell of Intel PT, as a generation returns them.
    Cpuid(UnitCpuidArgs),
}

/// Arguments of `cofi unit generations`.
#[derive(Args, Debug)]
pub(crate) struct UnitGenerationsArgs {
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `cofi unit cpuid`.
#[derive(Args, Debug)]
pub(crate) struct UnitCpuidArgs {
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// The generations, as `cofi unit generations` names them; or `everything`.
    #[arg(value_name = "GENERATION", required = true)]
    pub(crate) names: Vec<String>,
}

/// Arguments of `cofi unit run`.
#[derive(Args, Debug)]
pub(crate) struct UnitRunArgs {
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Compare the output with what the scenario expects, and print the difference; status 1 if there is one.
    #[arg(long, conflicts_with = "json")]
    pub(crate) check: bool,
    /// Also write the bare packets.
    #[arg(long, value_name = "FILE")]
    pub(crate) raw_output: Option<PathBuf>,
    /// When to use colours.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
    /// The scenario, a TOML file (docs/scenarios.md); `-` is standard input.
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) scenario: PathBuf,
}

/// How several threads share the work. What is printed does not depend on it.
#[derive(Args, Clone, Copy, Default, Debug)]
pub(crate) struct Parallel {
    /// How many threads decode; as many as there are processors if left out.
    #[arg(short = 'j', long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// Of about how many bytes the segments are that they decode.
    #[arg(long, value_name = "BYTES", hide = true)]
    pub(crate) segment: Option<std::num::NonZeroUsize>,
}

impl Parallel {
    /// How many threads decode.
    pub(crate) fn threads(&self) -> std::num::NonZeroUsize {
        threads(self.threads)
    }
}

/// As many threads as were asked for, or as there are processors; but not more than any machine has processors.
pub(crate) fn threads(asked: Option<std::num::NonZeroUsize>) -> std::num::NonZeroUsize {
    const MOST: std::num::NonZeroUsize = std::num::NonZeroUsize::new(1024).unwrap();
    let known = std::thread::available_parallelism();
    asked
        .unwrap_or_else(|| known.unwrap_or(std::num::NonZeroUsize::MIN))
        .min(MOST)
}

/// What is told of each instruction beside its address.
#[derive(Args, Clone, Copy, Default, Debug)]
pub(crate) struct Show {
    /// The time: an estimate from the timing packets, and how far the truth may be from it.
    #[arg(long)]
    pub(crate) time: bool,
    /// The function, how far into it, and the file (the text has the function anyway).
    #[arg(long)]
    pub(crate) symbols: bool,
    /// File and line of the source, where the code's file, or its file of debugging information, tells them.
    #[arg(long)]
    pub(crate) source: bool,
    /// The instruction disassembled (the text has that anyway).
    #[arg(long)]
    pub(crate) disasm: bool,
    /// The instruction's bytes.
    #[arg(long)]
    pub(crate) bytes: bool,
}

impl Show {
    /// Whether an instruction's object has more than its address and the time.
    pub(crate) const fn has_notes(self) -> bool {
        self.symbols || self.source || self.disasm || self.bytes
    }
}

/// From where to where a trace is wanted, and of which threads.
#[derive(Args, Clone, Default, Debug)]
pub(crate) struct Range {
    /// Begin at the first item at or after POINT: `time:1.234567` (seconds of perf's clock, or with `ms`, `us`, `ns` behind the
    /// number; negative, as `time:-10ms`, before the end of the trace), `tsc:N`, `offset:N` (bytes of the packet stream),
    /// `ip:0x…` (the first time that this instruction runs), `sym:NAME` (that the function's first instruction runs).
    #[arg(long, value_name = "POINT")]
    pub(crate) from: Option<Point>,
    /// End before the first item at or after POINT; with `ip:0x…` and `sym:NAME`, with that instruction.
    #[arg(long, value_name = "POINT")]
    pub(crate) to: Option<Point>,
    /// Only this thread; may be given several times.
    #[arg(long, value_name = "TID")]
    pub(crate) tid: Vec<u32>,
}

/// Which part of a trace is wanted. Only that part, from the PSB before it on, is decoded.
#[derive(Args, Clone, Default, Debug)]
pub(crate) struct Select {
    #[command(flatten)]
    pub(crate) range: Range,
    /// Only what lies around POINT: see -C.
    #[arg(long, value_name = "POINT", conflicts_with_all = ["from", "to"])]
    pub(crate) around: Option<Point>,
    /// With --around: how many instructions before POINT, and how many from it on.
    #[arg(
        short = 'C',
        long,
        value_name = "N",
        default_value_t = 10,
        requires = "around"
    )]
    pub(crate) context: usize,
    /// Only the stream of this processor, where each processor has one; may be given several times.
    #[arg(long, value_name = "CPU")]
    pub(crate) cpu_stream: Vec<u32>,
}

/// Arguments of `cofi blocks`.
#[derive(Args, Debug)]
pub(crate) struct BlocksArgs {
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) parallel: Parallel,
    /// The time at the end of each block.
    #[arg(long)]
    pub(crate) time: bool,
    /// The function in which a block begins, how far into it, and the file (the text has the function anyway).
    #[arg(long)]
    pub(crate) symbols: bool,
    #[command(flatten)]
    pub(crate) select: Select,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
}

/// Arguments of `cofi calls`.
#[derive(Args, Debug)]
pub(crate) struct CallsArgs {
    /// One JSON object a call.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) range: Range,
    /// Only the calls of this function, each with what it calls. Arguments (of C++) may be left out.
    #[arg(long, value_name = "NAME", conflicts_with = "callers")]
    pub(crate) function: Option<String>,
    /// Who called this function: each way that led to it, and how often; a function that recurs on the way stands there once. With --json, each call of it with its callers.
    #[arg(long, value_name = "NAME")]
    pub(crate) callers: Option<String>,
    /// So many levels: of the tree, of what a function calls, or of callers.
    #[arg(long, value_name = "N")]
    pub(crate) depth: Option<u64>,
    /// Only calls that took so long: a number with `s`, `ms`, `us` or `ns` behind it.
    #[arg(long, value_name = "TIME", conflicts_with = "callers")]
    pub(crate) min_time: Option<Span>,
    /// Show functions that were inlined as calls, too, as far as debugging information tells of them.
    #[arg(long)]
    pub(crate) inline: bool,
    /// When to use colours.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
    /// How many threads work: at streams, and at the output. As many as there are processors if left out.
    #[arg(short = 'j', long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
}

/// Arguments of `cofi export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// The format: `folded`, `svg`, `speedscope`, `chrome`, `callgrind`, `firefox`, `perfetto`, `pprof`, `csv` or `lcov`;
    /// or `parquet`, of one or many recordings, by the program `cofi-sql` (`cofi export --to parquet --help`).
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: ExportTo,
    /// The file to write; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// What a call weighs, and along what timelines run: its time, or its instructions. Without this its instructions; for timelines its time, if all
    /// calls have one.
    #[arg(long, value_name = "WHAT")]
    pub(crate) weight: Option<WeightArg>,
    /// Begin at the first item at or after POINT, as `cofi calls --from` does.
    #[arg(long, value_name = "POINT")]
    pub(crate) from: Option<Point>,
    /// End before the first item at or after POINT, as `cofi calls --to` does.
    #[arg(long, value_name = "POINT")]
    pub(crate) until: Option<Point>,
    /// Show functions that were inlined as calls, too, as far as debugging information tells of them.
    #[arg(long)]
    pub(crate) inline: bool,
    /// Only this thread; may be given several times.
    #[arg(long, value_name = "TID")]
    pub(crate) tid: Vec<u32>,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
}

impl ExportArgs {
    /// The part that is wanted.
    pub(crate) fn range(&self) -> Range {
        Range {
            from: self.from.clone(),
            to: self.until.clone(),
            tid: self.tid.clone(),
        }
    }
}

/// What `cofi export` writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExportTo {
    /// Calls.
    Calls(cofi_export::ExportFormat),
    /// How often lines, functions and branches ran, as `cofi coverage --lcov` does.
    Lcov,
}

impl std::str::FromStr for ExportTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "lcov" => Ok(Self::Lcov),
            _ => match text.parse() {
                Ok(format) => Ok(Self::Calls(format)),
                Err(reason) => Err(format!("{reason}, lcov")),
            },
        }
    }
}

/// What a call weighs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum WeightArg {
    /// Nanoseconds.
    Time,
    /// Instructions.
    Insns,
}

/// Arguments of `cofi last`.
#[derive(Args, Debug)]
pub(crate) struct LastArgs {
    /// One JSON object a thread.
    #[arg(long)]
    pub(crate) json: bool,
    /// How many of the last calls, and of the last lines of source.
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    pub(crate) number: usize,
    #[command(flatten)]
    pub(crate) range: Range,
    /// Show functions that were inlined as calls, too, as far as debugging information tells of them.
    #[arg(long)]
    pub(crate) inline: bool,
    /// When to use colours.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
}

/// What `cofi top` lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TopOf {
    /// Functions.
    Functions,
    /// Lines of the source.
    Lines,
    /// Instructions.
    Instructions,
    /// Conditional branches, and how often each was taken.
    Branches,
}

/// By what the rows of `cofi top` are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TopOrder {
    /// The instructions of the function or line itself, or how often the instruction ran.
    #[value(name = "self")]
    Own,
    /// Those and what it called.
    Total,
    /// How often it was called, or control came to it.
    Calls,
}

/// Arguments of `cofi top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// One JSON object a row.
    #[arg(long)]
    pub(crate) json: bool,
    /// What is listed.
    #[arg(long, value_name = "WHAT", default_value = "functions")]
    pub(crate) of: TopOf,
    /// What comes first.
    #[arg(long, value_name = "ORDER", default_value = "self")]
    pub(crate) by: TopOrder,
    /// How many rows; without it, 25 as text and all as JSON.
    #[arg(short, long, value_name = "N")]
    pub(crate) number: Option<usize>,
    #[command(flatten)]
    pub(crate) counting: Counting,
}

/// Arguments of `cofi coverage`.
#[derive(Args, Debug)]
pub(crate) struct CoverageArgs {
    /// One JSON object a line: each line of the source that has code, each function, and a summary.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the counts for lcov and genhtml.
    #[arg(long, value_name = "OUT")]
    pub(crate) lcov: Option<PathBuf>,
    /// Write the counts as Cobertura's XML.
    #[arg(long, value_name = "OUT")]
    pub(crate) cobertura: Option<PathBuf>,
    /// Write the steps from block to block as a map of AFL: 65,536 counts of a byte each.
    #[arg(long, value_name = "OUT")]
    pub(crate) afl: Option<PathBuf>,
    /// Only source files whose path contains TEXT; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub(crate) source: Vec<String>,
    /// Libraries of the system, too (below /lib and /usr/lib).
    #[arg(long)]
    pub(crate) all: bool,
    /// List all functions that never ran, not only the first few.
    #[arg(long)]
    pub(crate) never: bool,
    #[command(flatten)]
    pub(crate) counting: Counting,
}

/// Arguments of `cofi annotate`.
#[derive(Args, Debug)]
pub(crate) struct AnnotateArgs {
    /// One JSON object a line: each function of that name, and each of its instructions.
    #[arg(long)]
    pub(crate) json: bool,
    /// The function. Arguments (of C++) may be left out.
    #[arg(value_name = "FUNCTION")]
    pub(crate) function: String,
    /// When to use colours.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
    #[command(flatten)]
    pub(crate) counting: Counting,
}

/// What is counted, and of which recordings.
#[derive(Args, Debug)]
pub(crate) struct Counting {
    #[command(flatten)]
    pub(crate) parallel: Parallel,
    #[command(flatten)]
    pub(crate) range: Range,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
    /// More recordings, whose counts are added. Code is the same if it is at the same place of the same file, wherever that was loaded.
    #[arg(value_name = "FILE")]
    pub(crate) more: Vec<PathBuf>,
}

/// Arguments of `cofi check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) parallel: Parallel,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
}
