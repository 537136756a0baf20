//! A catalogue that another program keeps for us, as in an object store.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Debug};
use std::io::{self, BufRead, Cursor, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{NamedTempFile, TempDir};

use super::store::{Hold, Item, Store, Work};
use super::{CODE, MARKER, RECORDINGS, VERSION, check_version, io_error};
use crate::error::CatalogueError;
use crate::wire::{self, Object, Piece, Reply, Request};

/// So many bytes of each recording are fetched when many are about to be opened: most often all that it says of itself.
const HEAD: u64 = 16 << 10;
/// So many are fetched at once of one.
const CHUNK: u64 = 4 << 20;

/// What another program keeps.
pub(super) struct Remote {
    place: String,
    pipe: Mutex<Pipe>,
    /// The first bytes of recordings that are about to be opened, and how many each has.
    heads: Mutex<HashMap<OsString, Got>>,
    /// Where files are before they are there.
    folder: TempDir,
}

/// Some bytes of an object, and how many it has.
type Got = (Vec<u8>, u64);

struct Pipe {
    to: Box<dyn Write + Send>,
    from: Box<dyn BufRead + Send>,
}

impl Debug for Remote {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_tuple("Remote").field(&self.place).finish()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program has replied what was not asked for.
fn odd() -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        "the program that knows the store gave another answer than it was asked for",
    )
}

/// A character as it may be shown at a terminal.
fn shown(c: char) -> char {
    if c.is_control() { '?' } else { c }
}

impl Pipe {
    fn ask(&mut self, request: &Request) -> io::Result<Reply> {
        let asked = wire::write(&mut self.to, request).and_then(|()| self.to.flush());
        // It says itself why it ends.
        let ended = || io::Error::other("the program that knows the store has ended");
        asked.map_err(|_| ended())?;
        match wire::read(&mut self.from)? {
            Some(Reply::Failed { is_missing, reason }) => {
                let kind = match is_missing {
                    true => ErrorKind::NotFound,
                    false => ErrorKind::Other,
                };
                // It may name objects, whose names may be anything.
                let reason: String = reason.chars().map(shown).collect();
                Err(io::Error::new(kind, reason))
            }
            Some(reply) => Ok(reply),
            None => Err(ended()),
        }
    }

    fn ask_bytes(&mut self, request: &Request, most: u64) -> io::Result<Vec<Option<Got>>> {
        let Reply::Bytes(pieces) = self.ask(request)? else {
            return Err(odd());
        };
        let mut read = |Piece { size, whole }: Piece| {
            let mut bytes = Vec::new();
            let got = (&mut self.from)
                .take(size.min(most))
                .read_to_end(&mut bytes)?;
            match got as u64 == size {
                true => Ok((bytes, whole)),
                false => Err(odd()),
            }
        };
        let pieces = pieces.into_iter();
        pieces
            .map(|piece| piece.map(&mut read).transpose())
            .collect()
    }
}

impl Remote {
    /// Opens what the program keeps that reads `to` and is read `from`; made, if that is wanted and nothing is there.
    pub(super) fn open(
        place: &str,
        to: Box<dyn Write + Send>,
        from: Box<dyn BufRead + Send>,
        create: bool,
    ) -> Result<Self, CatalogueError> {
        let folder = TempDir::new().map_err(io_error(std::env::temp_dir()))?;
        let this = Self {
            place: place.trim_end_matches('/').to_owned(),
            pipe: Mutex::new(Pipe { to, from }),
            heads: Mutex::default(),
            folder,
        };
        let hello = Request::Hello {
            version: wire::VERSION,
        };
        if !this.flag(&hello).map_err(io_error(&this.place))? {
            let error = io::Error::other("the program that knows the store is of another version");
            return Err(io_error(&this.place)(error));
        }
        let path = this.path_of(MARKER.as_ref());
        let mut text = this.read(MARKER, 0, VERSION.len() as u64 + 1);
        if text
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound)
        {
            if !this.flag(&Request::IsEmpty).map_err(io_error(&path))? {
                return Err(CatalogueError::NotOne {
                    path: this.place.into(),
                    marker: MARKER,
                });
            }
            if !create {
                let error = io::Error::new(ErrorKind::NotFound, "there is no catalogue");
                return Err(io_error(&this.place)(error));
            }
            // Whoever makes it first.
            this.put(MARKER, VERSION, true).map_err(io_error(&path))?;
            text = this.read(MARKER, 0, VERSION.len() as u64 + 1);
        }
        let (text, _) = text.map_err(io_error(&path))?;
        check_version(&text, path)?;
        Ok(this)
    }

    fn ask(&self, request: &Request) -> io::Result<Reply> {
        locked(&self.pipe).ask(request)
    }

    fn flag(&self, request: &Request) -> io::Result<bool> {
        match self.ask(request)? {
            Reply::Flag(flag) => Ok(flag),
            _ => Err(odd()),
        }
    }

    fn done(&self, request: &Request) -> io::Result<()> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            _ => Err(odd()),
        }
    }

    fn objects(&self, request: &Request) -> io::Result<Vec<Object>> {
        match self.ask(request)? {
            Reply::Objects(objects) => Ok(objects),
            _ => Err(odd()),
        }
    }

    /// Some bytes of an object, and how many it has.
    fn read(&self, name: &str, from: u64, size: u64) -> io::Result<Got> {
        let name = name.to_owned();
        let request = Request::Read { name, from, size };
        let mut pieces = locked(&self.pipe).ask_bytes(&request, size)?;
        pieces.pop().flatten().ok_or_else(odd)
    }

    /// Makes an object; whether it was made.
    fn put(&self, name: &str, bytes: &[u8], only_new: bool) -> io::Result<bool> {
        let mut file = NamedTempFile::new_in(self.folder.path())?;
        file.write_all(bytes)?;
        self.put_file(name, file.path(), only_new)
    }

    fn put_file(&self, name: &str, file: &Path, only_new: bool) -> io::Result<bool> {
        self.flag(&Request::Put {
            name: name.to_owned(),
            file: file.to_owned(),
            only_new,
        })
    }
}

/// The name of an object.
fn name_of(name: &Path) -> io::Result<String> {
    let name = name.to_str();
    let name =
        name.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the name is not UTF-8"))?;
    Ok(name.to_owned())
}

fn recording_name(name: &OsStr) -> io::Result<String> {
    name_of(&Path::new(RECORDINGS).join(name))
}

/// A name in a folder, of an object that lies in it and not in one of its folders.
fn within<'o>(folder: &str, object: &'o Object) -> Option<&'o str> {
    let name = object.name.strip_prefix(folder)?.strip_prefix('/')?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

struct RemoteHold<'r>(&'r Remote);

impl Hold for RemoteHold<'_> {
    fn is_held(&self) -> Result<bool, CatalogueError> {
        let held = self.0.flag(&Request::IsHeld);
        held.map_err(io_error(&self.0.place))
    }
}

impl Drop for RemoteHold<'_> {
    fn drop(&mut self) {
        // Who cannot be told finds out after some time.
        let _ = self.0.done(&Request::Release);
    }
}

/// The bytes of a recording, which are fetched as they are read.
struct Reading<'r> {
    remote: &'r Remote,
    name: String,
    buffer: Cursor<Vec<u8>>,
    /// Where in the recording the next ones are, and how many it has.
    next: u64,
    whole: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.buffer.read(into)?;
        if got > 0 || into.is_empty() || self.next >= self.whole {
            return Ok(got);
        }
        let (bytes, whole) = self.remote.read(&self.name, self.next, CHUNK)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        self.next += bytes.len() as u64;
        (self.buffer, self.whole) = (Cursor::new(bytes), whole);
        self.buffer.read(into)
    }
}

impl Store for Remote {
    fn path_of(&self, name: &Path) -> PathBuf {
        match name.as_os_str().is_empty() {
            true => PathBuf::from(&self.place),
            false => Path::new(&self.place).join(name),
        }
    }

    fn hold(
        &self,
        work: Work,
        waits: &mut dyn FnMut(),
    ) -> Result<Box<dyn Hold + '_>, CatalogueError> {
        let mut is_first = true;
        // (The program waits for a moment before it says no.)
        while !self
            .flag(&Request::Hold { work })
            .map_err(io_error(&self.place))?
        {
            if std::mem::take(&mut is_first) {
                waits();
            }
        }
        Ok(Box::new(RemoteHold(self)))
    }

    fn recordings(&self) -> Result<Vec<Item>, CatalogueError> {
        let folder = RECORDINGS.to_owned();
        let objects = self.objects(&Request::List { folder });
        let objects = objects.map_err(io_error(self.path_of(RECORDINGS.as_ref())))?;
        let items = objects.iter().filter_map(|object| {
            Some(Item {
                name: within(RECORDINGS, object)?.into(),
                size: object.size,
                changed: object.changed,
            })
        });
        Ok(items.collect())
    }

    fn code(&self) -> Result<Vec<(OsString, OsString, u64)>, CatalogueError> {
        let folder = CODE.to_owned();
        let objects = self.objects(&Request::List { folder });
        let objects = objects.map_err(io_error(self.path_of(CODE.as_ref())))?;
        let files = objects.iter().filter_map(|object| {
            let name = object.name.strip_prefix(CODE)?.strip_prefix('/')?;
            let (id, hash) = name.split_once('/')?;
            Some((id.into(), hash.into(), object.size))
        });
        Ok(files.collect())
    }

    fn look_ahead(&self, recordings: &[&OsStr]) -> io::Result<()> {
        let names: io::Result<Vec<String>> =
            recordings.iter().map(|it| recording_name(it)).collect();
        let request = Request::Heads {
            names: names?,
            size: HEAD,
        };
        let pieces = locked(&self.pipe).ask_bytes(&request, HEAD)?;
        let found = recordings.iter().zip(pieces);
        *locked(&self.heads) = found
            .filter_map(|(name, piece)| Some(((*name).to_owned(), piece?)))
            .collect();
        Ok(())
    }

    fn recording(&self, name: &OsStr) -> io::Result<Option<Item>> {
        let request = Request::Look {
            name: recording_name(name)?,
        };
        let found = self.objects(&request)?.pop();
        Ok(found.map(|object| Item {
            name: name.to_owned(),
            size: object.size,
            changed: object.changed,
        }))
    }

    fn open(&self, recording: &OsStr, from: u64) -> io::Result<Box<dyn Read + '_>> {
        let name = recording_name(recording)?;
        let known = locked(&self.heads).remove(recording);
        let (bytes, whole) = match known {
            Some(known) if from == 0 => known,
            _ => self.read(&name, from, if from == 0 { HEAD } else { CHUNK })?,
        };
        Ok(Box::new(Reading {
            remote: self,
            name,
            next: from + bytes.len() as u64,
            buffer: Cursor::new(bytes),
            whole,
        }))
    }

    /// A store keeps what it has: an object of that name and size is the one.
    fn put_code(&self, name: &str, bytes: &[u8], _mode: u32) -> Result<bool, CatalogueError> {
        let path = self.path_of(name.as_ref());
        let request = Request::Look { name: name.into() };
        let found = self.objects(&request).map_err(io_error(&path))?;
        if found.iter().any(|object| object.size == bytes.len() as u64) {
            return Ok(false);
        }
        self.put(name, bytes, false).map_err(io_error(path))
    }

    fn incoming(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    fn put_recording(
        &self,
        name: &OsStr,
        file: NamedTempFile,
    ) -> Result<Option<NamedTempFile>, CatalogueError> {
        let put = recording_name(name).and_then(|name| self.put_file(&name, file.path(), true));
        let path = || self.path_of(&Path::new(RECORDINGS).join(name));
        match put.map_err(io_error(path()))? {
            true => Ok(None),
            false => Ok(Some(file)),
        }
    }

    fn remove(&self, name: &Path) -> io::Result<()> {
        self.done(&Request::Remove {
            name: name_of(name)?,
        })
    }

    fn remove_unfinished(&self) -> Result<(usize, Vec<CatalogueError>), CatalogueError> {
        match self.ask(&Request::Clear) {
            Ok(Reply::Count(count)) => {
                Ok((usize::try_from(count).unwrap_or(usize::MAX), Vec::new()))
            }
            Ok(_) => Err(io_error(&self.place)(odd())),
            Err(error) => Err(io_error(&self.place)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a catalogue by a program that replies this, whatever it is asked.
    fn opened(replies: &[u8]) -> Result<Remote, String> {
        let from = Cursor::new(replies.to_vec());
        let opened = Remote::open("s3://b/p/", Box::new(io::sink()), Box::new(from), false);
        opened.map_err(|error| error.to_string())
    }

    const HELLO: &str = "{\"flag\":true}\n";
    const MARKED: &str = "{\"bytes\":[{\"size\":17,\"whole\":17}]}\ncofi catalogue 1\n";

    #[test]
    fn replies_that_are_none_are_errors() {
        let whole = format!("{HELLO}{MARKED}");
        assert!(opened(whole.as_bytes()).is_ok());
        for len in 0..whole.len() {
            assert!(opened(&whole.as_bytes()[..len]).is_err(), "{len}");
        }
        for (replies, word) in [
            (String::new(), "has ended"),
            ("{\"flag\":false}\n".into(), "another version"),
            ("\"done\"\n".into(), "another answer"),
            (format!("{HELLO}\"done\"\n"), "another answer"),
            (
                format!("{HELLO}{{\"bytes\":[{{\"size\":18446744073709551615,\"whole\":1}}]}}\nx"),
                "another answer",
            ),
            (
                whole.replace("catalogue 1", "catalogue 2"),
                "another version",
            ),
        ] {
            let error = opened(replies.as_bytes()).expect_err("an error");
            assert!(error.contains(word), "{replies}: {error}");
        }
    }

    #[test]
    fn what_a_store_says_of_its_names_is_harmless_at_a_terminal() {
        let failed = "{\"failed\":{\"is_missing\":false,\"reason\":\"no \\u001b[31m path\"}}\n";
        let error = opened(format!("{HELLO}{failed}").as_bytes()).expect_err("an error");
        assert_eq!(error, "s3://b/p/cofi-catalogue: no ?[31m path");
    }

    #[test]
    fn a_recording_is_read_to_its_end_and_no_further() {
        let pieces =
            "{\"bytes\":[{\"size\":3,\"whole\":5}]}\nabc{\"bytes\":[{\"size\":2,\"whole\":5}]}\nde";
        let remote = opened(format!("{HELLO}{MARKED}{pieces}").as_bytes()).expect("a catalogue");
        let mut text = String::new();
        let mut reading = remote.open("run.cofi".as_ref(), 0).expect("a recording");
        reading.read_to_string(&mut text).expect("read");
        assert_eq!(text, "abcde");
    }
}
