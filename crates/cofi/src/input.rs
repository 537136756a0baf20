//! Opening a trace: recognised by content, as the contract says.

use crate::args::{FlowInput, Format, Input, Names};
use crate::json::Line;
use crate::output::tell;
use anyhow::{Context, Result, bail};
use cofi_flow::Cpu;
use cofi_image::Kallsyms;
use cofi_packet::rtit::Mode;
use cofi_session::{Session, SessionOptions, Stream, TraceFormat};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The whole of a file; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin()
            .lock()
            .read_to_end(&mut bytes)
            .context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Says that cycle-accurate mode is without effect where the packets are not those of RTIT.
pub(crate) fn check_mode(cycle_accurate: bool, is_rtit: bool) {
    if cycle_accurate && !is_rtit {
        tell(format_args!(
            "--cycle-accurate is without effect: it concerns RTIT alone (--format rtit)"
        ));
    }
}

/// The mode in which an RTIT trace was taken.
pub(crate) const fn mode(cycle_accurate: bool) -> Mode {
    if cycle_accurate {
        Mode::CycleAccurate
    } else {
        Mode::Plain
    }
}

fn options(input: &Input) -> Result<SessionOptions> {
    let mut options = SessionOptions::beside(&input.file);
    options.format = match input.format {
        None => None,
        Some(Format::Perf) => Some(TraceFormat::Perf),
        Some(Format::Pt) => Some(TraceFormat::Pt),
        Some(Format::Rtit) => {
            bail!("RTIT packets cannot be read yet; this version reads Intel PT")
        }
    };
    Ok(options)
}

/// A trace whose packets are wanted.
pub(crate) fn open<'a>(input: &Input, bytes: &'a [u8]) -> Result<Session<'a>> {
    Ok(Session::new(bytes, &options(input)?)?)
}

fn cpu(text: &str) -> Result<Cpu> {
    let wrong = || format!("--cpu {text}: expected FAMILY/MODEL[/STEPPING] in decimal");
    let mut numbers = text.split('/').map(str::parse::<u16>);
    let (family, model) = (numbers.next(), numbers.next());
    let stepping = numbers.next().unwrap_or(Ok(0));
    let (Some(Ok(family)), Some(Ok(model)), Ok(stepping), None) =
        (family, model, stepping, numbers.next())
    else {
        bail!(wrong());
    };
    let byte = |number: u16| u8::try_from(number).with_context(wrong);
    Ok(Cpu {
        family,
        model: byte(model)?,
        stepping: byte(stepping)?,
    })
}

/// A trace that is to be decoded.
pub(crate) fn open_flow<'a>(input: &FlowInput, bytes: &'a [u8]) -> Result<Session<'a>> {
    let mut options = options(&input.input)?;
    options.cpu = input.cpu.as_deref().map(cpu).transpose()?;
    options.errata.clone_from(&input.errata);
    for spec in &input.elf {
        options
            .elf
            .push(spec.parse().with_context(|| format!("--elf {spec}"))?);
    }
    for spec in &input.raw {
        options
            .raw
            .push(spec.parse().with_context(|| format!("--raw {spec}"))?);
    }
    options.kernel_names = kernel_names(&input.names, &options.folders)?.map(Arc::new);
    Ok(Session::new(bytes, &options)?)
}

/// The names of the kernel's functions: those that the user gives, or those in a folder beside the trace. The latter may be
/// of no use, which is said, but is no reason not to read the trace.
fn kernel_names(names: &Names, folders: &[PathBuf]) -> Result<Option<Kallsyms>> {
    if let Some(path) = &names.kallsyms {
        let wrong = || format!("--kallsyms {}", path.display());
        let text = read(path).with_context(wrong)?;
        return Ok(Some(Kallsyms::parse(&text).with_context(wrong)?));
    }
    for folder in folders {
        let path = folder.join("kallsyms");
        let Ok(text) = std::fs::read(&path) else {
            continue;
        };
        match Kallsyms::parse(&text) {
            Ok(names) => return Ok(Some(names)),
            Err(error) => tell(format_args!("{} is not used: {error}", path.display())),
        }
    }
    Ok(None)
}

/// Tells on standard error what is wrong with a trace as a whole; whether anything is.
pub(crate) fn report(session: &Session<'_>) -> bool {
    for diagnostic in session.diagnostics() {
        tell(format_args!("{diagnostic}"));
    }
    !session.diagnostics().is_empty()
}

/// Tells on standard error what code could not be read, after decoding; whether any could not.
pub(crate) fn report_code(session: &Session<'_>) -> bool {
    let mut any = false;
    for problem in session.code_problems() {
        tell(format_args!("{problem}"));
        any = true;
    }
    any
}

/// A heading for a stream in text output.
pub(crate) fn title(stream: &Stream<'_>) -> String {
    let comm = stream
        .comm()
        // A thread may call itself anything.
        .map(|comm| format!(" ({})", comm.escape_debug()))
        .unwrap_or_default();
    match (stream.key().tid(), stream.key().cpu()) {
        (Some(tid), _) => format!("thread {tid}{comm}"),
        (None, Some(cpu)) => format!("processor {cpu}"),
        (None, None) => "stream".into(),
    }
}

/// Adds `tid` or `cpu`.
pub(crate) fn tag(stream: &Stream<'_>, line: &mut Line) {
    if let Some(tid) = stream.key().tid() {
        line.number("tid", tid);
    }
    if let Some(cpu) = stream.key().cpu() {
        line.number("cpu", cpu);
    }
}
