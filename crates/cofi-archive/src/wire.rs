//! What `cofi archive` and the program that knows an object store say to each other: a line of JSON each, and behind some replies bytes.
//!
//! The program is asked on its standard input and replies on its standard output, to one request after the other. When its input ends, it ends, and what it
//! was doing is not done.

use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use crate::catalogue::Work;

/// The version of what is said; the first request tells it.
pub const VERSION: u32 = 1;

/// No line has more bytes.
const MOST_LINE: u64 = 1 << 30;

/// What the program is asked for. Names are those of a catalogue, as `recordings/run.cofi`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// What comes first. [`Reply::Flag`]: whether the version is known.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Whether nothing lies there at all. [`Reply::Flag`].
    IsEmpty,
    /// To keep others out. [`Reply::Flag`]: whether they are; if not, it is asked again.
    Hold {
        /// What for.
        work: Work,
    },
    /// Whether they still are. [`Reply::Flag`].
    IsHeld,
    /// To let others in again. [`Reply::Done`].
    Release,
    /// What lies in a folder and its folders. [`Reply::Objects`].
    List {
        /// Its name.
        folder: String,
    },
    /// One object, if it is there. [`Reply::Objects`].
    Look {
        /// Its name.
        name: String,
    },
    /// The first bytes of some objects. [`Reply::Bytes`], with nothing of those that are not there.
    Heads {
        /// Their names.
        names: Vec<String>,
        /// So many bytes of each, or as many as it has.
        size: u64,
    },
    /// Some bytes of an object. [`Reply::Bytes`].
    Read {
        /// Its name.
        name: String,
        /// From which one on.
        from: u64,
        /// How many, or as many as there are.
        size: u64,
    },
    /// To make an object of a file. [`Reply::Flag`]: whether it was made.
    Put {
        /// Its name.
        name: String,
        /// The file.
        file: PathBuf,
        /// Leave what is there, if anything is.
        only_new: bool,
    },
    /// To remove an object. [`Reply::Done`], also if there is none.
    Remove {
        /// Its name.
        name: String,
    },
    /// To remove what was being written by who is dead. [`Reply::Count`].
    Clear,
}

/// What it replies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It is done.
    Done,
    /// Yes or no.
    Flag(bool),
    /// How many.
    Count(u64),
    /// Objects.
    Objects(Vec<Object>),
    /// Behind this line follow the bytes of all of these.
    Bytes(Vec<Option<Piece>>),
    /// It cannot be done.
    Failed {
        /// There is no such object.
        is_missing: bool,
        /// Why.
        reason: String,
    },
}

/// An object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Object {
    /// Its name.
    pub name: String,
    /// How many bytes it has.
    pub size: u64,
    /// When it was made, in seconds since 1970.
    pub changed: u64,
}

/// Bytes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Piece {
    /// How many follow.
    pub size: u64,
    /// How many the object has.
    pub whole: u64,
}

/// Writes a request or a reply.
///
/// # Errors
/// When it cannot be written.
pub fn write(out: &mut impl Write, said: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    out.write_all(&line)
}

/// Reads a request or a reply; nothing at the end.
///
/// # Errors
/// When it cannot be read, or is none.
pub fn read<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(MOST_LINE).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_what_is_cut_off_is_not() {
        let asked = Request::Put {
            name: "recordings/a\nb.cofi".into(),
            file: "/tmp/ü".into(),
            only_new: true,
        };
        let mut line = Vec::new();
        write(&mut line, &asked).expect("written");
        write(&mut line, &Request::Clear).expect("written");
        let mut from = &line[..];
        assert_eq!(read(&mut from).expect("read"), Some(asked));
        assert_eq!(read(&mut from).expect("read"), Some(Request::Clear));
        assert_eq!(read::<Request>(&mut from).expect("the end"), None);
        for len in 1..line.len() - 20 {
            let error = read::<Request>(&mut &line[..len]).expect_err("cut off");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{len}");
        }
        assert!(read::<Request>(&mut &b"{\"do\":\"dance\"}\n"[..]).is_err());
    }
}
