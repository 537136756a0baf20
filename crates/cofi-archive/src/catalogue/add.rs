//! Adding a recording to a catalogue.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use cofi_image::CodeFile;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::{CODE, Catalogue, EXTENSION, Found, INCOMING, create_folder, io_error, seconds};
use crate::error::CatalogueError;
use crate::manifest::{Kept, Manifest, NO_BUILD_ID};
use crate::writer::{Contents, readers};

/// So many recordings may have one name, with numbers behind it.
const MOST_OF_A_NAME: u32 = 100_000;

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
    /// lets them read.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn add(
        &self,
        name: &str,
        mode: u32,
        mut contents: Contents,
        instructions: Option<u64>,
    ) -> Result<Added, CatalogueError> {
        let _lock = self.lock(File::lock_shared)?;
        let mut kept = Kept {
            added: seconds(SystemTime::now()),
            instructions,
            shared: Vec::new(),
        };
        let (mut new_files, mut new_bytes) = (0, 0);
        for (member, bytes) in self.share(&mut contents) {
            let size = bytes.len() as u64;
            if self.put(&member, &bytes, mode)? {
                new_files += 1;
                new_bytes += size;
            }
            kept.shared.push((member, size));
        }
        let code_files = kept.shared.len();
        contents.manifest.kept = Some(kept);
        let incoming = self.root.join(INCOMING);
        let file = contents
            .write(&incoming, mode)
            .map_err(io_error(&incoming))?;
        let size = synced(&file).map_err(io_error(file.path()))?;
        let (name, was_there) = self.place(name, file, &contents.manifest)?;
        Ok(Added {
            path: self.path_of(&name),
            name,
            size,
            was_there,
            code_files,
            new_files,
            new_bytes,
        })
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.recordings().join(format!("{name}.{EXTENSION}"))
    }

    /// Takes out what is shared, and gives it the names that it has in the catalogue. Each is there once.
    fn share(&self, contents: &mut Contents) -> Vec<(String, Arc<[u8]>)> {
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

    /// Has a file of code in its place; whether it was not there before, or damaged.
    fn put(&self, name: &str, bytes: &[u8], mode: u32) -> Result<bool, CatalogueError> {
        let path = self.root.join(name);
        if let Ok(about) = path.symlink_metadata()
            && about.is_file()
            && about.len() == bytes.len() as u64
        {
            // Somebody else's stays as it is, as long as it can be read.
            let now = cofi_host::mode_of(&about);
            let wider = now | mode & 0o044;
            if wider != now {
                let _ = cofi_host::set_mode(&path, wider);
            }
            let file = File::open(&path).map_err(io_error(&path))?;
            if holds_same(BufReader::new(bytes), BufReader::new(file)).map_err(io_error(&path))? {
                return Ok(false);
            }
        }
        for folder in [
            Path::new(CODE),
            Path::new(name).parent().unwrap_or(Path::new(CODE)),
        ] {
            create_folder(&self.root.join(folder))?;
        }
        let incoming = self.root.join(INCOMING);
        let write = || -> io::Result<()> {
            let mut file = NamedTempFile::new_in(&incoming)?;
            file.write_all(bytes)?;
            readers(&file, mode)?;
            synced(&file)?;
            file.persist(&path)?;
            Ok(())
        };
        write().map_err(io_error(&path))?;
        Ok(true)
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
            let path = self.path_of(&name);
            match file.persist_noclobber(&path) {
                Ok(_) => return Ok((name, false)),
                Err(failed) if failed.error.kind() == ErrorKind::AlreadyExists => {
                    file = failed.file;
                }
                Err(failed) => return Err(io_error(path)(failed.error)),
            }
            if is_same(path, &file, manifest) {
                return Ok((name, true));
            }
        }
        Err(CatalogueError::Names {
            path: self.path_of(wanted),
        })
    }
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

/// Has the disk keep a file before it is put into its place; its size.
fn synced(file: &NamedTempFile) -> io::Result<u64> {
    file.as_file().sync_all()?;
    Ok(file.as_file().metadata()?.len())
}

/// Whether the recording at `path` is the one in `file`, but for the time when it was added.
fn is_same(path: PathBuf, file: &NamedTempFile, manifest: &Manifest) -> bool {
    let Some(there) = Found::of(path) else {
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
    let rest_of = |path: &Path| -> io::Result<BufReader<File>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(there.rest))?;
        Ok(BufReader::with_capacity(1 << 16, file))
    };
    is_same_manifest
        && rest_of(&there.path)
            .and_then(|first| holds_same(first, rest_of(file.path())?))
            .unwrap_or(false)
}

fn holds_same(mut first: impl Read, mut second: impl Read) -> io::Result<bool> {
    loop {
        let (mut a, mut b) = ([0; 4096], [0; 4096]);
        let count = first.read(&mut a)?;
        if count == 0 {
            return Ok(second.read(&mut b)? == 0);
        }
        match second.read_exact(&mut b[..count]) {
            Ok(()) if a[..count] == b[..count] => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}
