//! Adding a recording to a catalogue.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use cofi_image::CodeFile;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::store::Work;
use super::{CODE, Catalogue, EXTENSION, Found, RECORDINGS, holds_same, io_error, seconds};
use crate::error::CatalogueError;
use crate::manifest::{Kept, Manifest, NO_BUILD_ID};
use crate::writer::Contents;

/// So many recordings may have one name, with numbers behind it.
const MOST_OF_A_NAME: u32 = 100_000;

/// So often is adding tried while others take the writer for dead.
const TRIES: u32 = 3;

/// What was added.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Added {
    /// The recording's name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes, without what it shares.
    pub size: u64,
    /// The same recording was there before.
    pub was_there: bool,
    /// How many files of code it shares.
    pub code_files: usize,
    /// How many of them are new in the catalogue.
    pub new_files: usize,
    /// The bytes of these.
    pub new_bytes: u64,
}

impl Catalogue {
    /// Adds a recording, as NAME or, if that is another one's, NAME-2 and so on. `instructions` is how many ran in it. Others may read what `mode`
    /// lets them read. Waits until nobody prunes; `waits` is called if somebody does.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn add(
        &self,
        name: &str,
        mode: u32,
        mut contents: Contents,
        instructions: Option<u64>,
        mut waits: impl FnMut(),
    ) -> Result<Added, CatalogueError> {
        let shared = share(&mut contents);
        let sizes = shared.iter();
        let sizes = sizes.map(|(member, bytes)| (member.clone(), bytes.len() as u64));
        let sizes: Vec<_> = sizes.collect();
        let mut first: Option<Added> = None;
        for _ in 0..TRIES {
            let hold = self.store.hold(Work::Adding, &mut waits)?;
            contents.manifest.kept = Some(Kept {
                added: seconds(SystemTime::now()),
                instructions,
                shared: sizes.clone(),
            });
            let (mut new_files, mut new_bytes) = (0, 0);
            for (member, bytes) in &shared {
                if self.store.put_code(member, bytes, mode)? {
                    new_files += 1;
                    new_bytes += bytes.len() as u64;
                }
            }
            let incoming = self.store.incoming();
            let file = contents
                .write(&incoming, mode)
                .map_err(io_error(&incoming))?;
            let about = file.as_file().metadata().map_err(io_error(file.path()))?;
            let (name, was_there) = self.place(name, file, &contents.manifest)?;
            let added = first.get_or_insert(Added {
                path: self.store.path_of(&file_of(&name)),
                name,
                size: about.len(),
                was_there,
                code_files: shared.len(),
                new_files,
                new_bytes,
            });
            if hold.is_held()? {
                return Ok(added.clone());
            }
            // Who prunes has not waited for this one, and may have removed code of it. It is looked for once more.
        }
        Err(CatalogueError::Disturbed {
            path: self.store.path_of(RECORDINGS.as_ref()),
        })
    }

    /// Puts a recording into its place; under which name, and whether it was there before.
    fn place(
        &self,
        wanted: &str,
        mut file: NamedTempFile,
        manifest: &Manifest,
    ) -> Result<(String, bool), CatalogueError> {
        for number in 1..=MOST_OF_A_NAME {
            let name = match number {
                1 => wanted.to_owned(),
                _ => format!("{wanted}-{number}"),
            };
            let of = OsString::from(format!("{name}.{EXTENSION}"));
            let path = || self.store.path_of(&file_of(&name));
            // Most often it is known without writing anything that the name is taken.
            if self
                .store
                .recording(&of)
                .map_err(io_error(path()))?
                .is_none()
            {
                match self.store.put_recording(&of, file)? {
                    None => return Ok((name, false)),
                    Some(back) => file = back,
                }
            }
            if self.is_same(&of, &file, manifest) {
                return Ok((name, true));
            }
        }
        Err(CatalogueError::Names {
            path: self.store.path_of(&file_of(wanted)),
        })
    }

    /// Whether a recording is the one in `file`, but for the time when it was added.
    fn is_same(&self, name: &OsString, file: &NamedTempFile, manifest: &Manifest) -> bool {
        let there = self.store.recording(name).ok().flatten();
        let Some(there) = there.and_then(|item| Found::of(&*self.store, &item)) else {
            return false;
        };
        let without_time = |manifest: &Manifest| {
            let mut manifest = manifest.clone();
            if let Some(kept) = &mut manifest.kept {
                kept.added = 0;
            }
            manifest.text()
        };
        let is_same_manifest =
            { there.manifest }.is_ok_and(|it| without_time(&it) == without_time(manifest));
        let rest_of_this = || -> io::Result<(u64, BufReader<_>)> {
            let mut this = file.reopen()?;
            // (Its manifest may have more digits.)
            let (_, rest) = super::manifest_of(file.path(), &this).map_err(io::Error::other)?;
            this.seek(SeekFrom::Start(rest))?;
            let left = this.metadata()?.len().saturating_sub(rest);
            Ok((left, BufReader::with_capacity(1 << 16, this)))
        };
        let compare = || -> io::Result<bool> {
            let (left, this) = rest_of_this()?;
            if left != there.size.saturating_sub(there.rest) {
                return Ok(false);
            }
            let other = self.store.open(&there.file, there.rest)?;
            holds_same(BufReader::with_capacity(1 << 16, other), this)
        };
        is_same_manifest && compare().unwrap_or(false)
    }
}

/// The name of a recording's file in a catalogue.
fn file_of(name: &str) -> PathBuf {
    Path::new(RECORDINGS).join(format!("{name}.{EXTENSION}"))
}

/// Takes out what is shared, and gives it the names that it has in the catalogue. Each is there once.
fn share(contents: &mut Contents) -> Vec<(String, Arc<[u8]>)> {
    let Contents { manifest, members } = contents;
    let files = manifest.files.iter_mut();
    let names = files.flat_map(|file| [Some(&mut file.member), file.debug.as_mut()]);
    let names = names.flatten();
    let names: Vec<&mut String> = names
        .chain(&mut manifest.kallsyms)
        .chain(&mut manifest.kernel)
        .collect();
    let mut renamed: HashMap<String, String> = HashMap::new();
    let mut shared: Vec<(String, Arc<[u8]>)> = Vec::new();
    for name in names {
        if !renamed.contains_key(name.as_str())
            && let Some((_, bytes)) = members.iter().find(|(member, _)| member == name)
        {
            let member = shared_name(bytes);
            if shared.iter().all(|(known, _)| *known != member) {
                shared.push((member.clone(), bytes.clone()));
            }
            renamed.insert(name.clone(), member);
        }
        if let Some(member) = renamed.get(name.as_str()) {
            name.clone_from(member);
        }
    }
    members.retain(|(member, _)| !renamed.contains_key(member));
    shared
}

/// The name in a catalogue of a file that holds these bytes.
fn shared_name(bytes: &Arc<[u8]>) -> String {
    let hash: String = Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |mut text, byte| {
            use std::fmt::Write;
            let _ = write!(text, "{byte:02x}");
            text
        });
    let own = CodeFile::packed("", None, bytes.clone(), None).own_build_id();
    let id = own.map_or_else(|| NO_BUILD_ID.to_owned(), |id| id.to_string());
    format!("{CODE}/{id}/{hash}")
}
