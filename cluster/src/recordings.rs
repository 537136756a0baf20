//! Recordings by what is said of them over the wire, and those that are open here.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cofi_sql::cli::InputArgs;
use cofi_sql::{OpenError, Recording};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::objects::{ObjectError, Objects, is_object};

/// Why a recording cannot be had here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum RecordingError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] ObjectError),
    /// The name has no form in which it could be told others.
    #[error("{}: the path is not UTF-8", .path.display())]
    Name {
        /// The path.
        path: PathBuf,
    },
    /// The current folder is not known.
    #[error("cannot tell where {} is: {error}", .path.display())]
    Place {
        /// The path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// How it is to be read cannot be understood.
    #[error("{name}: {reason}")]
    Options {
        /// The recording.
        name: String,
        /// Why.
        reason: String,
    },
    /// There is another file in its place.
    #[error("{place} is not the recording here that it is where the statement was planned")]
    Other {
        /// Where.
        place: String,
    },
    /// The code of its programs is not as it was for who planned.
    #[error(
        "{place}: the files of code that are found here are not those where the statement was planned; the table code_files lists those"
    )]
    OtherCode {
        /// Where.
        place: String,
    },
}

/// A recording, as it is told to another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    /// Its name in the tables.
    name: String,
    /// The absolute path, or the address of an object.
    place: String,
    input: InputArgs,
    /// What is in it: two recordings with the same are taken for the same.
    contents: u32,
    /// Which files of code it has.
    code: u32,
    /// What is kept beside it, if that was used for planning.
    kept: Option<u32>,
}

/// So many bytes at each end of a stream tell it from others.
const ENDS: usize = 4 << 10;

/// A sum over the size of a recording, and over the ends of its streams.
fn contents_of(recording: &Recording) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&recording.size().to_le_bytes());
    for stream in recording.session().streams() {
        let bytes = stream.bytes();
        let (head, tail) = (bytes.len().min(ENDS), bytes.len().saturating_sub(ENDS));
        sum.update(&(bytes.len() as u64).to_le_bytes());
        sum.update(bytes.get(..head).unwrap_or_default());
        sum.update(bytes.get(tail..).unwrap_or_default());
    }
    sum.finalize()
}

/// A sum over the names of a recording's files of code, and over what was found of them: the build id, or the size of what has none.
fn code_of(recording: &Recording) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for file in recording.session().code_files() {
        let is_usable = file.load().is_ok();
        let found = match (is_usable, file.own_build_id(), file.found_at()) {
            (false, ..) => "none".to_owned(),
            (_, Some(id), _) => id.to_string(),
            (.., Some(path)) => match std::fs::metadata(path) {
                Ok(metadata) => metadata.len().to_string(),
                Err(_) => "gone".to_owned(),
            },
            // It is in the recording.
            _ => "here".to_owned(),
        };
        sum.update(file.path().as_os_str().as_encoded_bytes());
        sum.update(b"\0");
        sum.update(found.as_bytes());
        sum.update(b"\0");
    }
    sum.finalize()
}

/// Recordings are kept open for statements to come, so many at most.
const MOST: usize = 64;

/// One that is open, or is just being opened.
type Slot = Arc<Mutex<Option<(Known, Arc<Recording>)>>>;

/// The recordings that are open in a process.
#[derive(Debug)]
pub(crate) struct Opened {
    /// By how many threads a part of a recording may be gone through.
    pub(crate) threads: NonZeroUsize,
    objects: Objects,
    slots: Mutex<Slots>,
}

/// What is kept, by its place; with when it was asked for last.
#[derive(Debug, Default)]
struct Slots {
    now: u64,
    by_place: HashMap<String, (u64, Slot)>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // What a thread left that ended by a panic is a recording, or none yet.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Opened {
    /// None yet. Objects are kept as files in a folder.
    pub(crate) fn new(threads: NonZeroUsize, folder: &Path) -> Self {
        Self {
            threads,
            objects: Objects::new(folder),
            slots: Mutex::default(),
        }
    }

    fn open(
        &self,
        name: &str,
        place: &str,
        input: &InputArgs,
    ) -> Result<Recording, RecordingError> {
        let options = input.options().map_err(|error| RecordingError::Options {
            name: name.to_owned(),
            reason: format!("{error:#}"),
        })?;
        let path = match is_object(place) {
            true => self.objects.fetch(place)?,
            false => PathBuf::from(place),
        };
        Ok(Recording::open_as(name.to_owned(), &path, &options)?)
    }

    /// Opens a recording for the first time, and finds out what is to be told others of it. To be called by no thread that computes.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn find(
        &self,
        file: &Path,
        input: &InputArgs,
    ) -> Result<(Known, Arc<Recording>), RecordingError> {
        let path = || file.to_path_buf();
        let name = file.to_str();
        let name = name.ok_or_else(|| RecordingError::Name { path: path() })?;
        let place = match is_object(name) {
            true => name.to_owned(),
            false => {
                let absolute = std::path::absolute(file);
                let absolute = absolute.map_err(|error| RecordingError::Place {
                    path: path(),
                    error,
                })?;
                absolute.to_string_lossy().into_owned()
            }
        };
        let mut recording = self.open(name, &place, input)?;
        // Most often there is none, and one that is of no use is as good as none.
        let _ = recording.take_kept();
        let recording = Arc::new(recording);
        let known = Known {
            name: name.to_owned(),
            place,
            input: input.clone(),
            contents: contents_of(&recording),
            code: code_of(&recording),
            kept: recording.kept_sum(),
        };
        Ok((known, recording))
    }

    /// A recording that was found elsewhere. To be called by no thread that computes.
    ///
    /// # Errors
    /// When it cannot be opened here, or is another one.
    pub(crate) fn get(&self, known: &Known) -> Result<Arc<Recording>, RecordingError> {
        let slot = self.slot(&known.place);
        let mut slot = locked(&slot);
        if let Some((before, recording)) = slot.as_ref()
            && before == known
        {
            return Ok(recording.clone());
        }
        // It is another one than before, or is to be read in another way.
        *slot = None;
        let mut recording = self.open(&known.name, &known.place, &known.input)?;
        let place = || known.place.clone();
        if contents_of(&recording) != known.contents {
            return Err(RecordingError::Other { place: place() });
        }
        if code_of(&recording) != known.code {
            return Err(RecordingError::OtherCode { place: place() });
        }
        // What is not the same here is not needed: more is decoded then.
        if known.kept.is_some()
            && (recording.take_kept().is_err() || recording.kept_sum() != known.kept)
        {
            recording.forget_kept();
        }
        let recording = Arc::new(recording);
        *slot = Some((known.clone(), recording.clone()));
        Ok(recording)
    }

    /// That of a place. Of too many, the one is forgotten that was asked for longest ago.
    fn slot(&self, place: &str) -> Slot {
        let mut slots = locked(&self.slots);
        let Slots { now, by_place } = &mut *slots;
        *now += 1;
        if !by_place.contains_key(place) && by_place.len() >= MOST {
            let oldest = by_place.iter().min_by_key(|(_, (asked, _))| *asked);
            if let Some(oldest) = oldest.map(|(place, _)| place.clone()) {
                by_place.remove(&oldest);
            }
        }
        let (asked, slot) = by_place.entry(place.to_owned()).or_default();
        *asked = *now;
        slot.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PSB+ of Intel PT, and a TNT behind it.
    const PACKETS: [u8; 19] = [
        2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x23, 6,
    ];

    #[test]
    fn a_recording_is_taken_for_itself_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("raw.pt");
        std::fs::write(&file, PACKETS).expect("written");
        let opened = Opened::new(NonZeroUsize::MIN, folder.path());
        let input = InputArgs::default();
        let (known, found) = opened.find(&file, &input).expect("a recording");
        let first = opened.get(&known).expect("it is there");
        assert_eq!(first.name(), found.name());
        let again = opened.get(&known).expect("it is there still");
        assert!(Arc::ptr_eq(&first, &again));
        // What was kept where the statement was planned and is not here is not needed.
        let kept = Known {
            kept: Some(5),
            ..known.clone()
        };
        let found = opened.get(&kept).expect("it is opened anew");
        assert!(!Arc::ptr_eq(&first, &found) && found.kept_sum().is_none());
        let other_code = Known {
            code: !known.code,
            ..known.clone()
        };
        let error = opened.get(&other_code).expect_err("other code");
        assert!(matches!(error, RecordingError::OtherCode { .. }), "{error}");
        std::fs::write(&file, [&PACKETS[..], &[0]].concat()).expect("written");
        let other = Opened::new(NonZeroUsize::MIN, folder.path());
        let error = other.get(&known).expect_err("another file");
        assert!(matches!(error, RecordingError::Other { .. }), "{error}");
        std::fs::remove_file(&file).expect("removed");
        let error = other.get(&known).expect_err("no file");
        assert!(matches!(error, RecordingError::Open(_)), "{error}");
    }

    #[test]
    fn no_more_than_so_many_are_kept() {
        let opened = Opened::new(NonZeroUsize::MIN, Path::new("/nowhere"));
        for number in 0..2 * MOST {
            opened.slot("always");
            opened.slot(&number.to_string());
        }
        let slots = locked(&opened.slots);
        assert_eq!(slots.by_place.len(), MOST);
        assert!(slots.by_place.contains_key("always"));
    }
}
