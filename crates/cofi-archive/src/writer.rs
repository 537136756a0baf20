//! Writing an archive: a plain tar, so that other tools can look into it, with neither times nor owners: the same trace gives the same file.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use tempfile::NamedTempFile;

use crate::manifest::{MANIFEST, Manifest};

/// What is to be packed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Contents {
    /// What the members are.
    pub manifest: Manifest,
    pub(crate) members: Vec<(String, Arc<[u8]>)>,
}

impl Contents {
    /// Adds a member; its name, for the manifest.
    pub fn add(&mut self, name: String, bytes: Arc<[u8]>) -> String {
        self.members.push((name.clone(), bytes));
        name
    }

    /// Writes the tar to a file in `folder` that has no name of its own yet, whose readers are the owner and those whom `mode` names.
    pub(crate) fn write(&self, folder: &Path, mode: u32) -> io::Result<NamedTempFile> {
        let file = NamedTempFile::new_in(folder)?;
        let mut tar = tar::Builder::new(BufWriter::new(file));
        append(&mut tar, MANIFEST, self.manifest.text().as_bytes())?;
        for (name, bytes) in &self.members {
            append(&mut tar, name, bytes)?;
        }
        let mut out = tar.into_inner()?;
        out.flush()?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        readers(&file, mode)?;
        Ok(file)
    }
}

/// A file of a temporary name is for its owner only; others may read what they may read of the trace.
pub(crate) fn readers(file: &NamedTempFile, mode: u32) -> io::Result<()> {
    cofi_host::set_mode(file.path(), 0o600 | mode & 0o044)
}

fn append(tar: &mut tar::Builder<impl Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    tar.append_data(&mut header, name, bytes)
}

/// Writes an archive beside its place, and then puts it there; its size. Of the permissions `mode`, those to read hold.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, mode: u32, contents: &Contents) -> io::Result<u64> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let file = contents.write(folder, mode)?;
    let size = file.as_file().metadata()?.len();
    file.persist(path)?;
    Ok(size)
}
