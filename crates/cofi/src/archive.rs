//! `cofi archive`: a trace, the code that it ran and its symbols in one file.
//!
//! The file is a plain tar, so that other tools can look into it. Its first member, `cofi-archive.json`, tells what the
//! others are: nothing depends on their names. It has no times and no owners: the same trace gives the same file.

use crate::archive_reader::{File, MANIFEST, Manifest};
use crate::args::{ArchiveArgs, FlowInput};
use crate::digits::counted;
use crate::output::tell;
use crate::{Ended, input, progress};
use anyhow::{Context, Result, bail};
use cofi_session::Session;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs the command.
pub(crate) fn run(args: &ArchiveArgs) -> Result<Ended> {
    let input = &args.flow.input.file;
    let output = &target(&args.output)?;
    let of_trace = [
        input.canonicalize(),
        cofi_file::inside(input).canonicalize(),
    ];
    if of_trace
        .iter()
        .any(|from| from.as_ref().is_ok_and(|from| from == output))
    {
        bail!("{} is the trace itself", output.display());
    }
    let bytes = input::map(input)?;
    let opened = input::open_packed(&args.flow, &bytes)?;
    let session = opened.session;
    let mut errors = input::report(&session);
    errors |= decode(&session);
    for list in session.lists_of_generated() {
        // Read now, it is among the files that were used.
        let _ = list.load();
    }
    let mut members = Vec::new();
    let mut manifest = Manifest {
        format: format_name(&args.flow),
        cpu: args.flow.cpu.clone().or(opened.manifest.cpu),
        path: match opened.manifest.path.is_empty() {
            true => cofi_file::inside(input)
                .as_os_str()
                .as_encoded_bytes()
                .to_vec(),
            false => opened.manifest.path,
        },
        errata: args.flow.errata.clone().or(opened.manifest.errata),
        elf: [opened.manifest.elf, args.flow.elf.clone()].concat(),
        raw: [opened.manifest.raw, args.flow.raw.clone()].concat(),
        rtit: opened.rtit,
        jitdumps: opened.manifest.jitdumps,
        ..Manifest::default()
    };
    manifest.format = manifest.format.or(opened.manifest.format);
    let jitdumps = args.flow.code.jitdump.iter();
    let jitdumps = jitdumps.map(|path| path.as_os_str().as_encoded_bytes().to_vec());
    manifest.jitdumps.extend(jitdumps);
    for (number, path) in session.parts().iter().enumerate() {
        let packed = opened.parts.iter().find(|(known, _)| known == path);
        let bytes = match packed {
            Some((_, bytes)) => bytes.clone(),
            None => input::read(path)?.into(),
        };
        let name = format!("trace-{number}-{}", member_name(path));
        let path = path.as_os_str().as_encoded_bytes().to_vec();
        manifest.parts.push((path, add(&mut members, name, bytes)));
    }
    manifest.trace = add(&mut members, "trace".into(), opened.trace.into());
    let beside = || fs::read(session.kernel_list()?).ok();
    if let Some(text) = opened.names.or_else(beside) {
        manifest.kallsyms = Some(add(&mut members, "kallsyms".into(), text.into()));
    }
    if let Some(kernel) = session.kernel_core() {
        manifest.kernel = Some(add(&mut members, "kernel".into(), kernel.into()));
    }
    for (number, file) in session.code_used().enumerate() {
        let bytes = file.bytes()?;
        let name = member_name(file.path());
        let debug = file.debug_bytes();
        let debug = debug.map(|debug| add(&mut members, format!("debug/{number}-{name}"), debug));
        manifest.files.push(File {
            member: add(&mut members, format!("code/{number}-{name}"), bytes),
            path: file.path().as_os_str().as_encoded_bytes().to_vec(),
            build_id: file.build_id(),
            debug,
        });
    }
    let size = write(output, &args.flow.input.file, &manifest, &members)
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    tell(format_args!(
        "{}: {}, with {} of code",
        args.output.display(),
        counted(size, "byte"),
        counted(manifest.files.len() as u64, "file")
    ));
    errors |= input::report_code(&session);
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

fn format_name(flow: &FlowInput) -> Option<String> {
    use clap::ValueEnum;
    let value = flow.input.format?.to_possible_value()?;
    Some(value.get_name().to_owned())
}

/// Decodes everything, so that whatever is needed for that has been read; whether there are gaps.
fn decode(session: &Session<'_>) -> bool {
    let bar = progress::decoding(session.streams().iter().map(|s| s.len() as u64).sum());
    let mut errors = false;
    for stream in session.streams() {
        let mut flow = session.decode(stream);
        while let Some(part) = flow.next_part() {
            errors |= matches!(part, cofi_flow::Part::Error(_));
        }
        bar.inc(stream.len() as u64);
    }
    bar.finish_and_clear();
    errors
}

type Member = (String, Arc<[u8]>);

fn add(members: &mut Vec<Member>, name: String, bytes: Arc<[u8]>) -> String {
    members.push((name.clone(), bytes));
    name
}

/// A file's last name, as far as it is harmless: for people who look into the archive.
fn member_name(path: &Path) -> String {
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

/// Writes the archive of `trace` beside its place, and then puts it there; its size.
fn write(path: &Path, trace: &Path, manifest: &Manifest, members: &[Member]) -> Result<u64> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let file = tempfile::NamedTempFile::new_in(folder)?;
    let mut tar = tar::Builder::new(BufWriter::new(file));
    let text = manifest.text()?;
    append(&mut tar, MANIFEST, text.as_bytes())?;
    for (name, bytes) in members {
        append(&mut tar, name, bytes)?;
    }
    let mut out = tar.into_inner()?;
    out.flush()?;
    let file = out
        .into_inner()
        .map_err(std::io::IntoInnerError::into_error)?;
    let size = file.as_file().metadata()?.len();
    // A file of a temporary name is for its owner only; others may read what they may read of the trace.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(trace).map_or(0o600, |trace| trace.permissions().mode());
        fs::set_permissions(
            file.path(),
            fs::Permissions::from_mode(0o600 | mode & 0o044),
        )?;
    }
    file.persist(path)?;
    Ok(size)
}

fn append(tar: &mut tar::Builder<impl Write>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    tar.append_data(&mut header, name, bytes)?;
    Ok(())
}
