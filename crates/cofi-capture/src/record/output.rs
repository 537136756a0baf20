//! Where a recording's files go: under another name beside their place until the program has started, so that one that cannot
//! begin leaves everything as it was; then at their place, and what stood there before under its name with `.old`.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// Why nothing can be written to a place.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("it is a symbolic link, which is not followed; name the file itself")]
    Link,
    #[error(
        "it is a pipe or a socket, and a trace's beginning is written again at its end; name a file"
    )]
    Pipe,
    #[error("it is a pipe that nobody reads")]
    Unread,
    #[error("it is a folder")]
    Folder,
    #[error("it is a disk")]
    Disk,
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::other(refusal)
    }
}

/// A path with more behind it.
pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

/// The folder in which a file is.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// The place of a file that is written, until it is there.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    /// The file until then, which is removed if this is dropped.
    temporary: Option<TempPath>,
}

impl Output {
    /// Makes a file for what is to be at `path`, which only its owner may read.
    pub(crate) fn create(path: &Path) -> io::Result<(Self, File)> {
        Self::open(path, false)
    }

    /// As [`Self::create`]; what is written from the first byte to the last may also go into a pipe.
    pub(super) fn create_stream(path: &Path) -> io::Result<(Self, File)> {
        Self::open(path, true)
    }

    fn open(path: &Path, is_stream: bool) -> io::Result<(Self, File)> {
        let in_place = |file| {
            let path = path.to_owned();
            let output = Self {
                path,
                temporary: None,
            };
            Ok((output, file))
        };
        match fs::symlink_metadata(path).map(|data| data.file_type()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(kind) if kind.is_file() => {}
            Ok(kind) if kind.is_symlink() => return Err(Refusal::Link.into()),
            Ok(kind) if kind.is_dir() => return Err(Refusal::Folder.into()),
            Ok(kind) if kind.is_block_device() => return Err(Refusal::Disk.into()),
            // What is written to a terminal or /dev/null is nobody's file.
            Ok(kind) if kind.is_char_device() => {
                return in_place(OpenOptions::new().write(true).open(path)?);
            }
            Ok(kind) if kind.is_fifo() && is_stream => return in_place(open_pipe(path)?),
            Ok(_) => return Err(Refusal::Pipe.into()),
        }
        // What is wrong with the folder is said without our own name.
        fs::metadata(folder_of(path))?;
        let mut prefix = OsString::from(".");
        prefix.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
        prefix.push(".");
        let file = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder_of(path))?;
        // Whatever our mask is.
        file.as_file()
            .set_permissions(Permissions::from_mode(0o600))?;
        let (file, temporary) = file.into_parts();
        let output = Self {
            path: path.to_owned(),
            temporary: Some(temporary),
        };
        Ok((output, file))
    }

    /// Puts the file where it belongs. What is there becomes FILE.old.
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        let Some(temporary) = self.temporary.take() else {
            return Ok(());
        };
        let old = with_ending(&self.path, ".old");
        let had_one = match fs::rename(&self.path, &old) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        temporary.persist(&self.path).map_err(|failed| {
            if had_one {
                let _ = fs::rename(&old, &self.path);
            }
            failed.error
        })
    }
}

/// Opens a pipe without waiting for its reader.
fn open_pipe(path: &Path) -> io::Result<File> {
    let opened = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path);
    let file = match opened {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            return Err(Refusal::Unread.into());
        }
        opened => opened?,
    };
    // A reader may be slower than we are.
    let flags = nix::fcntl::OFlag::from_bits_retain(nix::fcntl::fcntl(
        &file,
        nix::fcntl::FcntlArg::F_GETFL,
    )?);
    let flags = flags - nix::fcntl::OFlag::O_NONBLOCK;
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFL(flags))?;
    Ok(file)
}

/// Makes a folder that only its owner may enter, if it is not there.
pub(super) fn private_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o700)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let kind = fs::symlink_metadata(path)?.file_type();
            if kind.is_symlink() {
                return Err(Refusal::Link.into());
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Makes a file that only its owner may read. There must be none.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Makes a file of its own for what is to be at `path` once `write` has written it; what is there becomes FILE.old. Only its owner
/// may read it.
///
/// # Errors
/// When it cannot be written. What was there before is still there then.
pub fn write_file(path: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
    let (mut output, file) = Output::create_stream(path)?;
    write(file)?;
    output.commit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn what_is_not_committed_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        fs::write(&path, "before").unwrap();
        let (output, mut file) = Output::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        drop(output);
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_there_is_kept_as_old() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        for text in ["a", "b", "c"] {
            let (mut output, mut file) = Output::create(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            output.commit().unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"c");
        assert_eq!(fs::read(with_ending(&path, ".old")).unwrap(), b"b");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn links_and_pipes_are_refused_and_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "mine").unwrap();
        symlink(&target, &link).unwrap();
        let error = Output::create(&link).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        assert_eq!(fs::read(&target).unwrap(), b"mine");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let error = private_folder(&link).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Neither waits for a reader.
        let error = Output::create(&pipe).unwrap_err();
        assert!(error.to_string().contains("pipe"), "{error}");
        let error = Output::create_stream(&pipe).unwrap_err();
        assert!(error.to_string().contains("nobody reads"), "{error}");
    }
}
