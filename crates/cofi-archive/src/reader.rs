//! Reading an archive.
//!
//! Nothing of an archive is written anywhere, and no path in it is ever opened: a member is a range of the archive's own bytes, or a file of the
//! catalogue that the archive lies in, named by what it holds; a path is what a mapping of the trace is compared with.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofi_image::{CodeFile, ElfSpec, Kallsyms, RawSpec};
use cofi_session::{FileFormat, PackedCode, SessionOptions, TraceFile};

use crate::bare::{BareArgs, parse_cpu};
use crate::catalogue::{Catalogue, RECORDINGS};
use crate::error::ArchiveError;
use crate::manifest::{MANIFEST, Manifest};

/// An archive, opened.
#[derive(Debug)]
pub struct Archive<'a> {
    bytes: &'a [u8],
    members: HashMap<Vec<u8>, Range<usize>>,
    /// Members that lie in the catalogue, with their sizes.
    shared: HashMap<String, u64>,
    /// The catalogue.
    root: Option<PathBuf>,
    manifest: Manifest,
}

/// Where the bytes of a member are.
enum Place<'a> {
    Inside(&'a [u8]),
    /// In a file that has been looked at.
    Shared(PathBuf),
}

impl<'a> Archive<'a> {
    /// Whether these are the first bytes of an archive.
    #[must_use]
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(MANIFEST.as_bytes()) && bytes.get(257..262) == Some(b"ustar")
    }

    /// Opens an archive, which is the file `at`, if it is one; `None` if the bytes are something else.
    ///
    /// # Errors
    /// When it is damaged. One that is cut off is read as far as it goes.
    pub fn open(bytes: &'a [u8], at: Option<&Path>) -> Result<Option<Self>, ArchiveError> {
        if !Self::is_one(bytes) {
            return Ok(None);
        }
        let mut members = HashMap::new();
        let mut archive = tar::Archive::new(bytes);
        let entries = archive.entries().into_iter().flatten();
        // What stands behind a damaged header cannot be told apart.
        for entry in entries.map_while(Result::ok) {
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let range = usize::try_from(entry.raw_file_position())
                .ok()
                .zip(usize::try_from(entry.size()).ok())
                .and_then(|(start, len)| Some(start..start.checked_add(len)?))
                .filter(|range| range.end <= bytes.len());
            if let Some(range) = range {
                members
                    .entry(entry.path_bytes().into_owned())
                    .or_insert(range);
            }
        }
        let text = members.get(MANIFEST.as_bytes());
        let text = text.and_then(|range| bytes.get(range.clone()));
        let manifest = Manifest::parse(text.ok_or(ArchiveError::CutManifest)?)?;
        let shared = manifest.kept.iter().flat_map(|kept| kept.shared.clone());
        Ok(Some(Self {
            bytes,
            members,
            shared: shared.collect(),
            root: at.and_then(catalogue_of),
            manifest,
        }))
    }

    /// What it says of itself.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn member(&self, name: &str) -> Option<&'a [u8]> {
        self.bytes.get(self.members.get(name.as_bytes())?.clone())
    }

    /// Where a member is; none if it is not there.
    fn place(&self, name: &str) -> Result<Option<Place<'a>>, ArchiveError> {
        let Some(size) = self.shared.get(name) else {
            return Ok(self.member(name).map(Place::Inside));
        };
        let path = match &self.root {
            Some(root) => root.join(name),
            None => name.into(),
        };
        let wrong = |reason: String| ArchiveError::Shared {
            path: path.clone(),
            reason,
        };
        // A link could lead to anything.
        let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|it| it.is_dir());
        let folders: Vec<&Path> = path.ancestors().skip(1).take(2).collect();
        if self.root.is_none() || !folders.into_iter().all(is_folder) {
            return Err(wrong("its folder is not there".into()));
        }
        let found = path
            .symlink_metadata()
            .map_err(|error| wrong(error.to_string()))?;
        match found.is_file() && found.len() == *size {
            true => Ok(Some(Place::Shared(path))),
            false => Err(wrong(format!("it is no file of {size} bytes"))),
        }
    }

    /// Where in its bytes the trace is.
    ///
    /// # Errors
    /// When it is cut off before that.
    pub fn trace_range(&self) -> Result<Range<usize>, ArchiveError> {
        let range = self.members.get(self.manifest.trace.as_bytes());
        range.cloned().ok_or(ArchiveError::NoTrace)
    }

    /// The trace.
    ///
    /// # Errors
    /// When it is cut off before that.
    pub fn trace(&self) -> Result<&'a [u8], ArchiveError> {
        self.bytes
            .get(self.trace_range()?)
            .ok_or(ArchiveError::NoTrace)
    }

    /// The list of the kernel's functions.
    ///
    /// # Errors
    /// When it lies in a catalogue, and cannot be read there.
    pub fn kallsyms(&self) -> Result<Option<Cow<'a, [u8]>>, ArchiveError> {
        let place = match &self.manifest.kallsyms {
            Some(name) => self.place(name)?,
            None => None,
        };
        Ok(match place {
            Some(Place::Inside(bytes)) => Some(bytes.into()),
            Some(Place::Shared(path)) => match std::fs::read(&path) {
                Ok(bytes) => Some(bytes.into()),
                Err(error) => {
                    let reason = error.to_string();
                    return Err(ArchiveError::Shared { path, reason });
                }
            },
            None => None,
        })
    }

    /// The code that is there.
    ///
    /// # Errors
    /// When some of it lies in a catalogue, and is not there any more.
    pub fn code(&self) -> Result<PackedCode, ArchiveError> {
        // A member is one file's: many that name the same would take many times its size. Those of a catalogue are read only as far as they are
        // needed, and may well be several files' of the trace.
        let mut seen = HashSet::new();
        // Debugging information may be that of several files, and is in memory once.
        let mut debugs = HashMap::<&str, Arc<[u8]>>::new();
        let mut code = PackedCode::default();
        for file in &self.manifest.files {
            let path = path_of(&file.path);
            match self.place(&file.member)? {
                Some(Place::Inside(bytes)) if seen.insert(&file.member) => {
                    let debug = file.debug.as_deref().and_then(|name| {
                        let known = debugs.get(name).cloned();
                        let debug = known.or_else(|| Some(self.member(name)?.into()))?;
                        debugs.insert(name, debug.clone());
                        Some(debug)
                    });
                    let file = CodeFile::packed(path, file.build_id, bytes, debug);
                    code.files.push(file);
                }
                Some(Place::Shared(at)) => {
                    let debug = match &file.debug {
                        Some(name) => self.place(name)?,
                        None => None,
                    };
                    let debug = match debug {
                        Some(Place::Shared(at)) => Some(at),
                        Some(Place::Inside(_)) | None => None,
                    };
                    let file = CodeFile::packed_at(path, file.build_id, at, debug);
                    code.files.push(file);
                }
                Some(Place::Inside(_)) | None => {}
            }
        }
        let kernel = match &self.manifest.kernel {
            Some(name) => self.place(name)?,
            None => None,
        };
        code.kernel = kernel.map(|place| match place {
            Place::Inside(bytes) => CodeFile::packed("[kernel]", None, bytes, None),
            Place::Shared(at) => CodeFile::packed_at("[kernel]", None, at, None),
        });
        code.parts = self.parts();
        Ok(code)
    }

    /// The parts of the trace that are there.
    #[must_use]
    pub fn parts(&self) -> Vec<TraceFile> {
        let mut seen = HashSet::new();
        let parts = self.manifest.parts.iter();
        parts
            .filter(|(_, member)| seen.insert(member))
            .filter_map(|(path, member)| Some((path_of(path), self.member(member)?.into())))
            .collect()
    }

    /// What kind of trace it was said to be.
    #[must_use]
    pub fn format(&self) -> Option<FileFormat> {
        match self.manifest.format.as_deref() {
            Some("pt") => Some(FileFormat::Pt),
            Some("rtit") => Some(FileFormat::Rtit),
            Some("perf") => Some(FileFormat::Perf),
            _ => None,
        }
    }

    /// Has the trace opened as what it was when it was packed, with nothing but what is packed. The names of the kernel's functions are left to the
    /// caller.
    ///
    /// # Errors
    /// When what was said of it makes no sense, or files that it names are not in it.
    pub fn configure(&self, options: &mut SessionOptions) -> Result<(), ArchiveError> {
        let manifest = &self.manifest;
        self.configure_packets(options)?;
        options.code.packed = Some(self.code()?);
        // Only what the user names is looked for outside of the archive.
        options.folders.clear();
        for path in &manifest.jitdumps {
            let path = path_of(path);
            self.check(&path)?;
            options.code.jitdumps.push(path);
        }
        for text in &manifest.elf {
            let spec: ElfSpec = text.parse().map_err(|error| said(&error))?;
            self.check(&spec.path)?;
            options.elf.push(spec);
        }
        for text in &manifest.raw {
            let spec: RawSpec = text.parse().map_err(|error| said(&error))?;
            self.check(&spec.path)?;
            options.raw.push(spec);
        }
        let bare = BareArgs::default();
        let bare = manifest.rtit.as_ref().unwrap_or(&bare);
        match options.format {
            Some(FileFormat::Rtit) => bare.configure(&mut options.flow),
            _ => bare.configure_pt(&mut options.flow),
        }
        .map_err(|error| said(&error))
    }

    /// As [`configure`](Self::configure), for who reads packets alone: without code.
    ///
    /// # Errors
    /// When what was said of it makes no sense.
    pub fn configure_packets(&self, options: &mut SessionOptions) -> Result<(), ArchiveError> {
        let manifest = &self.manifest;
        let mut code = PackedCode::default();
        code.parts = self.parts();
        options.code.packed = Some(code);
        options.path = Some(path_of(&manifest.path));
        options.format = self.format();
        options.errata.clone_from(&manifest.errata);
        let cpu = manifest.cpu.as_deref().map(parse_cpu);
        options.cpu = cpu.transpose().map_err(|error| said(&error))?;
        Ok(())
    }

    /// The names of the kernel's functions.
    ///
    /// # Errors
    /// When the list is not what it should be.
    pub fn kernel_names(&self) -> Result<Option<Kallsyms>, ArchiveError> {
        let text = self.kallsyms()?;
        let parsed = text.map(|text| Kallsyms::parse(&text)).transpose();
        parsed.map_err(|error| said(&error))
    }

    /// A file that the archive names must be in it: nothing else is opened on its word.
    fn check(&self, path: &Path) -> Result<(), ArchiveError> {
        let path = cofi_host::bytes_of(path);
        let is_there = |name: &str| {
            self.members.contains_key(name.as_bytes()) || self.shared.contains_key(name)
        };
        let mut files = self.manifest.files.iter();
        if files.any(|file| file.path == *path && is_there(&file.member)) {
            return Ok(());
        }
        Err(ArchiveError::NotInIt {
            path: String::from_utf8_lossy(&path).into_owned(),
        })
    }
}

fn said(error: &dyn Display) -> ArchiveError {
    ArchiveError::Said {
        reason: error.to_string(),
    }
}

fn path_of(bytes: &[u8]) -> PathBuf {
    cofi_host::path_of(bytes).into_owned()
}

/// The catalogue in which a recording lies, if it is one of a catalogue: `DIR/recordings/NAME`.
fn catalogue_of(recording: &Path) -> Option<PathBuf> {
    let place = recording.canonicalize().ok()?;
    let folder = place.parent()?;
    let root = folder.parent()?;
    (folder.file_name()? == RECORDINGS && Catalogue::is_one(root)).then(|| root.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::PackedFile;

    /// An archive of a hundred files whose debugging information is one member.
    fn archive() -> Vec<u8> {
        let files: Vec<PackedFile> = (0..100)
            .map(|number| PackedFile {
                member: format!("files/{number}"),
                path: format!("/bin/{number}").into_bytes(),
                build_id: None,
                debug: Some("debug".into()),
            })
            .collect();
        let names: Vec<String> = files.iter().map(|file| file.member.clone()).collect();
        let manifest = Manifest {
            trace: "debug".into(),
            files,
            ..Manifest::default()
        };
        let mut archive = tar::Builder::new(Vec::new());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, bytes).unwrap();
        };
        add(MANIFEST, manifest.text().as_bytes());
        add("debug", &[7; 1000]);
        for name in names {
            add(&name, &[0x90]);
        }
        archive.into_inner().unwrap()
    }

    #[test]
    fn debugging_information_that_many_files_name_is_in_memory_once() {
        let bytes = archive();
        let code = Archive::open(&bytes, None).unwrap().unwrap();
        let code = code.code().unwrap();
        let mut places: Vec<*const u8> = code
            .files
            .iter()
            .map(|file| file.debug_bytes().unwrap().as_ptr())
            .collect();
        assert_eq!(places.len(), 100);
        places.dedup();
        assert_eq!(places.len(), 1);
    }
}
