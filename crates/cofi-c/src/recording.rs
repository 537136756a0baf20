//! Recordings: perf.data, or bare packets.

use crate::status::{
    Growing, Place, Status, because, given, given_mut, guarded, hand_out, invalid, take_back, text,
};
use cofi_image::{ElfSpec, RawSpec};
use cofi_session::{
    FileFormat, OwnedFlow, OwnedSession, Recording, SessionError, SessionOptions, Stream,
};
use core::mem::offset_of;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

/// `cofi_recording`.
pub struct Opened {
    session: Arc<OwnedSession>,
    names: Vec<CString>,
    missing: Vec<CString>,
}

impl Opened {
    /// The flow of a stream, which keeps what it reads.
    pub(crate) fn flow(&self, index: usize) -> Result<OwnedFlow, Status> {
        OwnedFlow::new(self.session.clone(), index).ok_or_else(|| self.no_thread(index))
    }

    fn stream(&self, index: usize) -> Result<&Stream<'_>, Status> {
        let stream = self.session.streams().get(index);
        stream.ok_or_else(|| self.no_thread(index))
    }

    fn no_thread(&self, index: usize) -> Status {
        let count = self.session.streams().len();
        invalid(format_args!("there is no thread {index} of {count}"))
    }
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Opened").field(&self.session).finish()
    }
}

fn c_string(text: impl Display) -> CString {
    CString::new(text.to_string().replace('\0', "?")).unwrap_or_default()
}

/// A list of texts, ended by null; null is none.
///
/// # Safety
/// As cofi.h says.
unsafe fn list<T: FromStr<Err: Display>>(
    mut words: *const *const c_char,
    name: &str,
) -> Result<Vec<T>, Status> {
    let mut all = Vec::new();
    while !words.is_null() {
        // SAFETY: as the caller says.
        let word = unsafe { *words };
        if word.is_null() {
            break;
        }
        // SAFETY: as the caller says.
        let word = unsafe { text(word, name)? };
        let parsed = word.parse();
        all.push(parsed.map_err(|error| invalid(format_args!("{name} {word:?}: {error}")))?);
        // SAFETY: the list goes on, as it was not its end.
        words = unsafe { words.add(1) };
    }
    Ok(all)
}

/// `cofi_recording_open`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_recording_open(
    path: *const c_char,
    format: *const c_char,
    elf: *const *const c_char,
    raw: *const *const c_char,
    out: *mut *mut Opened,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (path, out) = unsafe { (text(path, "path")?, given_mut(out, "out")?) };
        let mut options = SessionOptions::beside(path);
        if !format.is_null() {
            // SAFETY: as the caller says.
            options.format = Some(match unsafe { text(format, "format")? } {
                "perf" => FileFormat::Perf,
                "pt" => FileFormat::Pt,
                "rtit" => FileFormat::Rtit,
                other => return Err(invalid(format_args!("there is no format {other:?}"))),
            });
        }
        // SAFETY: as the caller says.
        (options.elf, options.raw) =
            unsafe { (list::<ElfSpec>(elf, "elf")?, list::<RawSpec>(raw, "raw")?) };
        let unreadable =
            |error: &dyn Display| because(Status::Unreadable, format_args!("{path}: {error}"));
        let bytes = std::fs::read(path).map_err(|error| unreadable(&error))?;
        hand_out(
            open(bytes, &options).map_err(|error| unreadable(&error))?,
            out,
        );
        Ok(())
    })
}

fn open(bytes: Vec<u8>, options: &SessionOptions) -> Result<Opened, SessionError> {
    let owned = OwnedSession::new(bytes, options)?;
    let session = owned.session();
    let names = session.streams().iter();
    let names = names.map(|stream| c_string(stream.comm().unwrap_or_default()));
    let missing = session
        .recording()
        .into_iter()
        .flat_map(Recording::sentences);
    let wrong = session.diagnostics().iter().map(ToString::to_string);
    Ok(Opened {
        names: names.collect(),
        missing: missing.chain(wrong).map(c_string).collect(),
        session: Arc::new(owned),
    })
}

/// `cofi_recording_free`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_recording_free(recording: *mut Opened) {
    // SAFETY: as the caller says.
    unsafe { take_back(recording) }
}

/// `cofi_recording_threads`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_recording_threads(recording: *const Opened) -> usize {
    // SAFETY: as the caller says.
    unsafe { recording.as_ref() }.map_or(0, |opened| opened.session.streams().len())
}

/// `cofi_recording_missing`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_recording_missing(
    recording: *const Opened,
    index: usize,
) -> *const c_char {
    // SAFETY: as the caller says.
    let missing = unsafe { recording.as_ref() }.and_then(|opened| opened.missing.get(index));
    missing.map_or(std::ptr::null(), |sentence| sentence.as_ptr())
}

/// `cofi_thread`.
#[derive(Debug)]
#[repr(C)]
pub struct Thread {
    size: u32,
    kind: u32,
    tid: u32,
    cpu: u32,
    pid: u32,
    reserved: u32,
    name: *const c_char,
    data: *const u8,
    len: u64,
}

/// `cofi_recording_thread`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_recording_thread(
    recording: *const Opened,
    index: usize,
    out: *mut Thread,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (opened, out) = unsafe { (given(recording, "recording")?, Place::of(out, "thread")?) };
        let stream = opened.stream(index)?;
        let key = stream.key();
        out.store(Thread {
            size: 0,
            kind: match (key.tid(), key.cpu()) {
                (Some(_), _) => 0,
                (None, Some(_)) => 1,
                (None, None) => 2,
            },
            tid: key.tid().unwrap_or(0),
            cpu: key.cpu().unwrap_or(0),
            pid: key.tid().map_or(0, |_| stream.task().pid),
            reserved: 0,
            name: opened.names[index].as_ptr(),
            data: stream.bytes().as_ptr(),
            len: stream.bytes().len() as u64,
        });
        Ok(())
    })
}

// SAFETY: numbers and pointers.
unsafe impl Growing for Thread {
    const FIRST: usize = 48;
}

/// Sizes and members' places, for who compares with cofi.h.
#[must_use]
pub const fn layout() -> [usize; 8] {
    [
        size_of::<Thread>(),
        offset_of!(Thread, kind),
        offset_of!(Thread, tid),
        offset_of!(Thread, cpu),
        offset_of!(Thread, pid),
        offset_of!(Thread, name),
        offset_of!(Thread, data),
        offset_of!(Thread, len),
    ]
}

/// Several threads may use a recording.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Opened>();
};
