//! Opening a trace: recognised by content, as the contract says.

use crate::args::{FlowInput, Format, Input, Names};
use crate::output::tell;
use anyhow::{Context, Result, bail};
use cofi_archive::{Archive, BareArgs, Manifest, parse_cpu, without_rtit};
use cofi_file::{Bytes, inside};
use cofi_image::Kallsyms;
use cofi_session::{FileFormat, Recording, Session, SessionOptions, Stream, TraceFile};
use cofi_text::Line;
use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The whole of a trace; `-` is standard input.
pub(crate) fn map(path: &Path) -> Result<Bytes> {
    if path == Path::new("-") {
        return Ok(Bytes::Read(read(path)?));
    }
    if cofi_file::is_divided(path) {
        bail!("{}: {}", path.display(), cofi_file::DIVIDED);
    }
    let path = &inside(path);
    cofi_file::file(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The whole of a text; `-` is standard input.
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

fn format(input: &Input) -> Option<FileFormat> {
    Some(match input.format? {
        Format::Perf => FileFormat::Perf,
        Format::Pt => FileFormat::Pt,
        Format::Rtit => FileFormat::Rtit,
    })
}

fn options(input: &Input) -> SessionOptions {
    let mut options = SessionOptions::beside(&input.file);
    options.path = Some(inside(&input.file));
    options.open = Some(|path| Ok(Arc::new(cofi_file::file(path)?)));
    options.join = Some(cofi_file::join);
    options.format = format(input);
    options
}

/// A trace whose packets are wanted; they are in cycle-accurate mode if they are bare packets of RTIT and so is `rtit`.
/// `cpu` is the processor, if it was named.
pub(crate) fn open<'a>(
    input: &Input,
    rtit: &BareArgs,
    cpu: Option<&str>,
    bytes: &'a [u8],
) -> Result<Session<'a>> {
    let mut options = options(input);
    let packed = packed(input, bytes)?;
    let mut trace = bytes;
    let mut rtit = rtit.clone();
    if let Some(packed) = packed {
        packed.configure_packets(&mut options)?;
        trace = packed.trace()?;
        rtit = packed.manifest().rtit.clone().unwrap_or_default();
    }
    if options.format == Some(FileFormat::Rtit) {
        rtit.configure(&mut options.flow)?;
    }
    options.cpu = cpu.map(parse_cpu).transpose()?.or(options.cpu);
    Ok(Session::new(trace, &options)?)
}

/// The archive that `bytes` are, unless they are said to be something else.
fn packed<'a>(input: &Input, bytes: &'a [u8]) -> Result<Option<Archive<'a>>> {
    match input.format {
        None => Ok(Archive::open(bytes, Some(&input.file))?),
        Some(_) => Ok(None),
    }
}

/// A trace that is to be decoded.
pub(crate) fn open_flow<'a>(input: &FlowInput, bytes: &'a [u8]) -> Result<Session<'a>> {
    Ok(open_packed(input, bytes)?.session)
}

/// A trace that is to be decoded, and what belongs to it.
pub(crate) struct Opened<'a> {
    pub(crate) session: Session<'a>,
    /// The trace itself.
    pub(crate) trace: &'a [u8],
    /// The text with the names of the kernel's functions.
    pub(crate) names: Option<Vec<u8>>,
    /// Other files of which the trace consists, if they were packed with it.
    pub(crate) parts: Vec<TraceFile>,
    /// What the archive tells that it came from; nothing for one that did not.
    pub(crate) manifest: Manifest,
    /// What was said of bare RTIT packets, if it is a trace of those, or of the ranges of Intel PT.
    pub(crate) rtit: Option<BareArgs>,
}

/// As [`open_flow`], with what an archive must hold.
pub(crate) fn open_packed<'a>(input: &FlowInput, bytes: &'a [u8]) -> Result<Opened<'a>> {
    let mut options = options(&input.input);
    options.code = input.code.options(&input.input.file);
    let packed = packed(&input.input, bytes)?;
    let (mut trace, mut manifest, mut names) = (bytes, Manifest::default(), None);
    let mut parts = Vec::new();
    if let Some(packed) = packed {
        trace = packed.trace()?;
        packed.configure(&mut options)?;
        let code = options.code.packed.iter();
        parts.extend(code.flat_map(|code| code.parts.clone()));
        names = packed.kallsyms()?.map(Cow::into_owned);
        manifest = packed.manifest().clone();
    }
    options.errata = input.errata.clone().or(options.errata);
    if let Some(text) = &input.cpu {
        options.cpu = Some(parse_cpu(text)?);
    }
    let told = match &manifest.rtit {
        Some(packed) => {
            input.rtit.refuse()?;
            packed.clone()
        }
        None => input.rtit.clone(),
    };
    let is_bare_rtit = options.format == Some(FileFormat::Rtit);
    if is_bare_rtit {
        told.configure(&mut options.flow)?;
        if let Some(words) = options.cpu.and_then(without_rtit) {
            tell(format_args!("{words}"));
        }
    } else {
        told.configure_pt(&mut options.flow)?;
    }
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
    let names = match (&input.names.kallsyms, names) {
        (None, Some(text)) => Some((Kallsyms::parse(&text)?, text)),
        _ => kernel_names(&input.names, &options.folders)?,
    };
    let (parsed, names) = names.unzip();
    options.kernel_names = parsed.map(Arc::new);
    let session = Session::new(trace, &options)?;
    let is_rtit = matches!(
        session.flow_config().format,
        cofi_flow::TraceFormat::Rtit(_)
    );
    if is_rtit && !is_bare_rtit {
        // The registers are in the file.
        told.refuse()?;
    }
    let rtit = (told != BareArgs::default() || is_bare_rtit).then_some(told);
    Ok(Opened {
        session,
        trace,
        names,
        parts,
        manifest,
        rtit,
    })
}

/// The names of the kernel's functions: those that the user gives, or those in a folder beside the trace. The latter may be
/// of no use, which is said, but is no reason not to read the trace.
fn kernel_names(names: &Names, folders: &[PathBuf]) -> Result<Option<(Kallsyms, Vec<u8>)>> {
    if let Some(path) = &names.kallsyms {
        let wrong = || format!("--kallsyms {}", path.display());
        let text = read(path).with_context(wrong)?;
        return Ok(Some((Kallsyms::parse(&text).with_context(wrong)?, text)));
    }
    for folder in folders {
        let path = folder.join("kallsyms");
        let Ok(text) = std::fs::read(&path) else {
            continue;
        };
        match Kallsyms::parse(&text) {
            Ok(names) => return Ok(Some((names, text))),
            Err(error) => tell(format_args!("{} is not used: {error}", path.display())),
        }
    }
    Ok(None)
}

/// That there is something to decode.
pub(crate) fn require_trace(path: &Path, session: &Session<'_>) -> Result<()> {
    if session.streams().iter().any(|stream| !stream.is_empty()) {
        return Ok(());
    }
    let path = path.display();
    match missing(session).chain(omissions(session)).next() {
        Some(missing) => bail!("{path} holds no trace: {missing}"),
        None => bail!("{path} holds no trace"),
    }
}

/// Whether everything that ran is in a trace, as far as its recorder knows.
pub(crate) fn is_whole(session: &Session<'_>) -> bool {
    session.recording().is_none_or(Recording::is_whole)
}

/// What is not, in one sentence each.
pub(crate) fn missing<'s>(session: &'s Session<'_>) -> impl Iterator<Item = String> + 's {
    session
        .recording()
        .into_iter()
        .flat_map(Recording::sentences)
}

/// What its recorder was asked not to keep, in one sentence each.
pub(crate) fn omissions<'s>(session: &'s Session<'_>) -> impl Iterator<Item = String> + 's {
    session
        .recording()
        .into_iter()
        .flat_map(Recording::omissions)
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

/// A thread's name behind its number. It may call itself anything.
pub(crate) fn called(comm: &str) -> String {
    format!(" ({})", comm.escape_debug())
}

/// A heading for a stream in text output.
pub(crate) fn title(stream: &Stream<'_>) -> String {
    let comm = stream.comm().map(called).unwrap_or_default();
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
