//! `cofi archive --into DIR`: a catalogue, in which many recordings share their code. `--into s3://…`: the same in an object store, by `cofi-cluster`.

use crate::archive::{member_name, pack};
use crate::args::ArchiveArgs;
use crate::output::{stdout, tell};
use crate::table::{lines, table};
use crate::{Ended, companion};
use anyhow::{Context, Result, bail};
use cofi_archive::{Catalogue, CatalogueError, Entry, Listed};
use cofi_text::Line;
use cofi_text::digits::counted;
use indicatif::{HumanBytes, HumanDuration};
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// How old something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Age(Duration);

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [
            ("s", 1),
            ("m", 60),
            ("h", 3600),
            ("d", 86_400),
            ("w", 604_800),
        ];
        let parsed = units.into_iter().find_map(|(unit, seconds)| {
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            number.checked_mul(seconds)
        });
        parsed
            .map(|seconds| Self(Duration::from_secs(seconds)))
            .ok_or_else(|| {
                format!("{text:?} is no age: a number with s, m, h, d or w behind it, as 30d")
            })
    }
}

/// Where a catalogue lies.
enum Place<'a> {
    Folder(&'a Path),
    /// In an object store: the address.
    Store(&'a str),
}

impl<'a> Place<'a> {
    fn of(into: &'a Path) -> Self {
        match into.to_str().filter(|text| text.starts_with("s3://")) {
            Some(address) => Self::Store(address),
            None => Self::Folder(into),
        }
    }

    fn open(&self) -> Result<Catalogue> {
        match self {
            Self::Folder(folder) => Ok(Catalogue::open(folder)?),
            Self::Store(address) => {
                let (to, from) = start(address)?;
                Ok(Catalogue::remote(address, to, from, false)?)
            }
        }
    }

    fn open_or_create(&self) -> Result<Catalogue> {
        match self {
            Self::Folder(folder) => Ok(Catalogue::open_or_create(folder)?),
            Self::Store(address) => {
                let (to, from) = start(address)?;
                Ok(Catalogue::remote(address, to, from, true)?)
            }
        }
    }

    /// The catalogue, if there is one already. What is none is refused before all is decoded; and none is made for a trace that cannot be read.
    fn known(&self) -> Result<Option<Catalogue>> {
        match self {
            Self::Folder(folder) => {
                let is_taken =
                    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
                is_taken.then(|| self.open_or_create()).transpose()
            }
            Self::Store(address) => {
                let (to, from) = start(address)?;
                match Catalogue::remote(address, to, from, false) {
                    Ok(catalogue) => Ok(Some(catalogue)),
                    Err(CatalogueError::Io { error, .. })
                        if error.kind() == ErrorKind::NotFound =>
                    {
                        Ok(None)
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

/// Starts the program that knows object stores.
fn start(address: &str) -> Result<companion::Pipes> {
    let program = companion::find("archive --into s3://…", "cofi-cluster", "cluster")?;
    companion::start(&program, &[OsStr::new("store"), OsStr::new(address)])
}

/// Runs what is asked of a catalogue.
pub(crate) fn run(args: &ArchiveArgs) -> Result<Ended> {
    let place = Place::of(args.into.as_deref().context("neither -o nor --into")?);
    if args.list {
        return list(args, &place.open()?);
    }
    match args.prune {
        Some(age) => prune(args, &place.open()?, age),
        None => add(args, &place),
    }
}

/// The name under which a recording is added, if nobody says.
fn name_of(trace: &Path) -> String {
    let name = member_name(trace.file_stem().unwrap_or_default().as_ref());
    match name.trim_matches('.') {
        "" | "-" => "recording".into(),
        name => name.into(),
    }
}

/// The name that somebody chose, if it can be one.
fn chosen(name: &str) -> Result<String> {
    let would_be = name_of(Path::new(&format!("{name}.cofi")));
    if would_be != name {
        bail!(
            "--name {name:?}: a name has up to 60 letters and digits of ASCII, `.`, `_`, `+` and `-`; {would_be:?} would be one"
        );
    }
    Ok(would_be)
}

/// A text as it may be shown at a terminal: names in a catalogue from elsewhere may be anything.
fn shown(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

fn add(args: &ArchiveArgs, place: &Place<'_>) -> Result<Ended> {
    let name = match &args.name {
        Some(name) => chosen(name)?,
        None => name_of(&args.flow.input.file),
    };
    let known = place.known()?;
    let packed = pack(&args.flow)?;
    let catalogue = match known {
        Some(known) => known,
        None => place.open_or_create()?,
    };
    let added = catalogue.add(
        &name,
        packed.mode,
        packed.contents,
        Some(packed.instructions),
        || tell(format_args!("waiting until nobody prunes")),
    )?;
    if args.json {
        let mut line = Line::default();
        line.begin()
            .text("added", &added.name)
            .text("path", &added.path.to_string_lossy())
            .number("size", added.size)
            .flag("was_there", added.was_there)
            .number("code_files", added.code_files as u64)
            .number("new_code_files", added.new_files as u64)
            .number("new_code_bytes", added.new_bytes);
        let mut out = stdout();
        out.write_all(line.end())?;
        out.flush()?;
    }
    let path = added.path.display();
    if added.was_there {
        tell(format_args!("{path}: the same recording was there before"));
    } else {
        tell(format_args!(
            "{path}: {}; {} of code, of which {} of {} are new",
            counted(added.size, "byte"),
            counted(added.code_files as u64, "file"),
            added.new_files,
            counted(added.new_bytes, "byte"),
        ));
    }
    Ok(packed.ended)
}

fn list(args: &ArchiveArgs, catalogue: &Catalogue) -> Result<Ended> {
    let listed = catalogue.list()?;
    let mut out = stdout();
    if args.json {
        for entry in &listed.entries {
            out.write_all(object_of(entry).end())?;
        }
        let mut line = Line::default();
        line.begin().object("summary", |line| {
            line.number("recordings", listed.entries.len() as u64)
                .number("size", listed.entries.iter().map(|it| it.size).sum::<u64>())
                .number("code_files", listed.code_files as u64)
                .number("code_bytes", listed.code_bytes)
                .number("unused_code_files", listed.unused_files as u64)
                .number("unused_code_bytes", listed.unused_bytes);
        });
        out.write_all(line.end())?;
    } else {
        out.write_all(text_of(&listed).as_bytes())?;
    }
    out.flush()?;
    let mut has_errors = !listed.problems.is_empty();
    for problem in &listed.problems {
        tell(format_args!("{}", shown(&problem.to_string())));
    }
    for entry in listed.entries.iter().filter(|it| it.missing_files > 0) {
        let missing = counted(entry.missing_files as u64, "file");
        tell(format_args!(
            "{}: {missing} of its code is missing",
            shown(&entry.path.to_string_lossy())
        ));
        has_errors = true;
    }
    Ok(match has_errors {
        true => Ended::WithErrors,
        false => Ended::Well,
    })
}

fn object_of(entry: &Entry) -> Line {
    let mut line = Line::default();
    line.begin()
        .text("recording", &entry.name)
        .text("path", &entry.path.to_string_lossy())
        .number("added", entry.added)
        .number("size", entry.size);
    match entry.instructions {
        Some(count) => line.number("instructions", count),
        None => line.null("instructions"),
    };
    line.texts("build_ids", entry.build_ids.iter().cloned())
        .number("code_files", entry.code_files as u64)
        .number("code_bytes", entry.code_bytes)
        .number("shared_bytes", entry.shared_bytes)
        .number("missing_files", entry.missing_files as u64);
    line
}

fn text_of(listed: &Listed) -> String {
    let heads = [
        "recording",
        "added",
        "size",
        "instructions",
        "code",
        "shared",
        "build ids",
    ];
    let mut table = table(&heads, &[0, 6]);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    for entry in &listed.entries {
        let age = now.saturating_sub(Duration::from_secs(entry.added));
        // Whole ones say enough: the first is what tells builds of a program apart.
        let ids = entry.build_ids.iter().map(|id| id.get(..8).unwrap_or(id));
        table.add_row([
            shown(&entry.name),
            format!("{} ago", HumanDuration(age)),
            HumanBytes(entry.size).to_string(),
            entry
                .instructions
                .map_or_else(|| "–".into(), |count| count.to_string()),
            HumanBytes(entry.code_bytes).to_string(),
            HumanBytes(entry.shared_bytes).to_string(),
            ids.collect::<Vec<_>>().join(" "),
        ]);
    }
    let size: u64 = listed.entries.iter().map(|entry| entry.size).sum();
    let mut text = match listed.entries.is_empty() {
        true => String::new(),
        false => lines(&table) + "\n",
    };
    text += &format!(
        "{} of {}, and {} of code of {}",
        counted(listed.entries.len() as u64, "recording"),
        HumanBytes(size),
        counted(listed.code_files as u64, "file"),
        HumanBytes(listed.code_bytes),
    );
    if listed.unused_files > 0 {
        text += &format!(
            ", of which no recording needs {} of {}",
            counted(listed.unused_files as u64, "file"),
            HumanBytes(listed.unused_bytes),
        );
    }
    text + ".\n"
}

fn prune(args: &ArchiveArgs, catalogue: &Catalogue, age: Age) -> Result<Ended> {
    let waits = || tell(format_args!("waiting until nobody adds anything"));
    let pruned = catalogue.prune(age.0, waits)?;
    let mut out = stdout();
    for (name, size) in &pruned.recordings {
        if args.json {
            let mut line = Line::default();
            line.begin().text("removed", name).number("size", *size);
            out.write_all(line.end())?;
        } else {
            writeln!(out, "{}: removed, {}", shown(name), HumanBytes(*size))?;
        }
    }
    let recordings = pruned.recordings.len() as u64;
    if args.json {
        let mut line = Line::default();
        line.begin().object("summary", |line| {
            line.number("removed", recordings)
                .number("left", pruned.left as u64)
                .number("code_files", pruned.code_files as u64)
                .number("code_bytes", pruned.code_bytes)
                .number("unfinished_files", pruned.unfinished as u64);
        });
        out.write_all(line.end())?;
    } else {
        writeln!(
            out,
            "{} removed, {} left; {} of code removed, {}{}.",
            counted(recordings, "recording"),
            pruned.left,
            counted(pruned.code_files as u64, "file"),
            HumanBytes(pruned.code_bytes),
            match pruned.unfinished {
                0 => String::new(),
                some => format!(
                    "; {} that nobody had finished",
                    counted(some as u64, "file")
                ),
            }
        )?;
    }
    out.flush()?;
    for problem in &pruned.problems {
        tell(format_args!("{}", shown(&problem.to_string())));
    }
    Ok(match pruned.problems.is_empty() {
        true => Ended::Well,
        false => Ended::WithErrors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_as_they_are_written() {
        let seconds = |text: &str| text.parse::<Age>().map(|age| age.0.as_secs()).ok();
        assert_eq!(seconds("0s"), Some(0));
        assert_eq!(seconds("90m"), Some(5400));
        assert_eq!(seconds("12h"), Some(43_200));
        assert_eq!(seconds("30d"), Some(2_592_000));
        assert_eq!(seconds("2w"), Some(1_209_600));
        for wrong in [
            "",
            "d",
            "30",
            "-1d",
            "1.5d",
            "1y",
            "99999999999999999999d",
            "9999999999999999999w",
        ] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_that_nobody_chose() {
        let name = |path: &str| name_of(Path::new(path));
        assert_eq!(name("/tmp/cofi.data"), "cofi");
        assert_eq!(name("../../etc/passwd"), "passwd");
        assert_eq!(name("a b/ü.data"), "_");
        for nothing in ["-", "..", "/", "...data"] {
            assert_eq!(name(nothing), "recording", "{nothing}");
        }
    }
}
