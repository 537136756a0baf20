//! `cofi archive`: a trace, the code that it ran and its symbols in one file.
//!
//! The file is a plain tar, so that other tools can look into it. Its first member, `cofi-archive.json`, tells what the
//! others are: nothing depends on their names. It has no times and no owners: the same trace gives the same file.

use crate::args::{ArchiveArgs, FlowInput};
use crate::output::tell;
use crate::{Ended, catalogue, input, progress};
use anyhow::{Context, Result, bail};
use cofi_archive::{Contents, PackedFile};
use cofi_flow::Part;
use cofi_session::Session;
use cofi_text::digits::counted;
use std::fs;
use std::path::{Path, PathBuf};

/// Runs the command.
pub(crate) fn run(args: &ArchiveArgs) -> Result<Ended> {
    let Some(output) = &args.output else {
        return catalogue::run(args);
    };
    let input = &args.flow.input.file;
    let target = &target(output)?;
    let of_trace = [
        input.canonicalize(),
        cofi_file::inside(input).canonicalize(),
    ];
    if of_trace
        .iter()
        .any(|from| from.as_ref().is_ok_and(|from| from == target))
    {
        bail!("{} is the trace itself", target.display());
    }
    let packed = pack(&args.flow)?;
    let size = cofi_archive::write(target, packed.mode, &packed.contents)
        .with_context(|| format!("cannot write {}", output.display()))?;
    tell(format_args!(
        "{}: {}, with {} of code",
        output.display(),
        counted(size, "byte"),
        counted(packed.contents.manifest.files.len() as u64, "file")
    ));
    Ok(packed.ended)
}

/// A trace with all that it needs.
pub(crate) struct Packed {
    pub(crate) contents: Contents,
    /// How many instructions were decoded.
    pub(crate) instructions: u64,
    /// The permissions of the trace.
    pub(crate) mode: u32,
    /// Whether there are gaps.
    pub(crate) ended: Ended,
}

/// Decodes a trace, and packs it with what that needed.
pub(crate) fn pack(flow: &FlowInput) -> Result<Packed> {
    let input = &flow.input.file;
    let bytes = input::map(input)?;
    let opened = input::open_packed(flow, &bytes)?;
    let session = opened.session;
    let mut errors = input::report(&session);
    let decoded = decode(&session);
    errors |= decoded.has_gaps;
    for list in session.lists_of_generated() {
        // Read now, it is among the files that were used.
        let _ = list.load();
    }
    let mut contents = Contents::default();
    let mut manifest = opened.manifest;
    // What it names are members of another archive.
    (manifest.kallsyms, manifest.kernel, manifest.kept) = (None, None, None);
    manifest.files.clear();
    manifest.parts.clear();
    manifest.format = format_name(flow).or(manifest.format);
    manifest.cpu = flow.cpu.clone().or(manifest.cpu);
    manifest.errata = flow.errata.clone().or(manifest.errata);
    manifest.elf.extend(flow.elf.iter().cloned());
    manifest.raw.extend(flow.raw.iter().cloned());
    manifest.rtit = opened.rtit;
    if manifest.path.is_empty() {
        let inside = cofi_file::inside(input);
        manifest.path = cofi_host::bytes_of(&inside).into_owned();
    }
    let jitdumps = flow.code.jitdump.iter();
    let jitdumps = jitdumps.map(|path| cofi_host::bytes_of(path).into_owned());
    manifest.jitdumps.extend(jitdumps);
    for (number, path) in session.parts().iter().enumerate() {
        let packed = opened.parts.iter().find(|(known, _)| known == path);
        let bytes = match packed {
            Some((_, bytes)) => bytes.clone(),
            None => input::read(path)?.into(),
        };
        let name = format!("trace-{number}-{}", member_name(path));
        let path = cofi_host::bytes_of(path).into_owned();
        manifest.parts.push((path, contents.add(name, bytes)));
    }
    manifest.trace = contents.add("trace".into(), opened.trace.into());
    let beside = || fs::read(session.kernel_list()?).ok();
    if let Some(text) = opened.names.or_else(beside) {
        manifest.kallsyms = Some(contents.add("kallsyms".into(), text.into()));
    }
    if let Some(kernel) = session.kernel_core() {
        manifest.kernel = Some(contents.add("kernel".into(), kernel.into()));
    }
    for (number, file) in session.code_used().enumerate() {
        let bytes = file.bytes()?;
        let name = member_name(file.path());
        let debug = file.debug_bytes();
        let debug = debug.map(|debug| contents.add(format!("debug/{number}-{name}"), debug));
        manifest.files.push(PackedFile {
            member: contents.add(format!("code/{number}-{name}"), bytes),
            path: cofi_host::bytes_of(file.path()).into_owned(),
            build_id: file.build_id(),
            debug,
        });
    }
    errors |= input::report_code(&session);
    contents.manifest = manifest;
    Ok(Packed {
        contents,
        instructions: decoded.instructions,
        mode: mode_of(input),
        ended: if errors {
            Ended::WithErrors
        } else {
            Ended::Well
        },
    })
}

/// Who may read a trace.
fn mode_of(trace: &Path) -> u32 {
    fs::metadata(trace).map_or(0o600, |trace| cofi_host::mode_of(&trace))
}

fn format_name(flow: &FlowInput) -> Option<String> {
    use clap::ValueEnum;
    let value = flow.input.format?.to_possible_value()?;
    Some(value.get_name().to_owned())
}

/// What was found when everything was decoded.
struct Decoded {
    instructions: u64,
    has_gaps: bool,
}

/// Decodes everything, so that whatever is needed for that has been read.
fn decode(session: &Session<'_>) -> Decoded {
    let bar = progress::decoding(session.streams().iter().map(|s| s.len() as u64).sum());
    let mut decoded = Decoded {
        instructions: 0,
        has_gaps: false,
    };
    for stream in session.streams() {
        let mut flow = session.decode(stream);
        while let Some(part) = flow.next_part() {
            match part {
                Part::Run(run) => decoded.instructions += run.len() as u64,
                Part::Error(_) => decoded.has_gaps = true,
                Part::Event(_) => {}
            }
        }
        bar.inc(stream.len() as u64);
    }
    bar.finish_and_clear();
    decoded
}

/// A file's last name, as far as it is harmless: for people who look into the archive.
pub(crate) fn member_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let harmless = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    let name = name.chars().map(|c| if harmless(c) { c } else { '_' });
    name.take(60).collect()
}

/// The file to write: where a link leads. What is no regular file is not to be replaced.
fn target(path: &Path) -> Result<PathBuf> {
    match fs::metadata(path) {
        Ok(there) if there.is_file() => Ok(path.canonicalize()?),
        Ok(_) => bail!("{} is no regular file", path.display()),
        // Nothing is there yet.
        Err(_) => Ok(path.to_owned()),
    }
}
