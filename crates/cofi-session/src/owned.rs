//! Sessions and flows that keep what they read, for who has no lifetimes: other languages, and flows that are passed around.

use crate::{FileBytes, Session, SessionError, SessionOptions, Stream, ThreadFlow};
use cofi_image::ElfSpec;
use self_cell::self_cell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

self_cell! {
    /// The bytes of a trace, and the session that reads them.
    struct SessionCell {
        owner: FileBytes,
        #[covariant]
        dependent: Session,
    }
}

/// A [`Session`] with the bytes of its trace, which are dropped when it is.
pub struct OwnedSession(SessionCell);

impl OwnedSession {
    /// Reads the trace in a file that tells itself what code ran, as perf.data does: with the code that was saved beside it
    /// ([`SessionOptions::beside`]).
    ///
    /// # Errors
    /// [`SessionError::Io`] if the file cannot be read, and those of [`Session::new`].
    pub fn open(trace: impl AsRef<Path>) -> Result<Self, SessionError> {
        let path = trace.as_ref();
        Self::read(path, &SessionOptions::beside(path))
    }

    /// The same with the code of an ELF file at the addresses that it is linked to: all that bare packets need. What else there may be to
    /// say is in [`SessionOptions`], for [`Self::new`].
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn open_with_elf(
        trace: impl AsRef<Path>,
        elf: impl Into<PathBuf>,
    ) -> Result<Self, SessionError> {
        let path = trace.as_ref();
        let mut options = SessionOptions::beside(path);
        options.elf.push(ElfSpec::new(elf));
        Self::read(path, &options)
    }

    fn read(path: &Path, options: &SessionOptions) -> Result<Self, SessionError> {
        let bytes = std::fs::read(path).map_err(|error| SessionError::Io {
            path: path.to_owned(),
            error,
        })?;
        Self::new(bytes, options)
    }

    /// Reads a trace, as [`Session::new`] does.
    ///
    /// # Errors
    /// Those of [`Session::new`].
    pub fn new(bytes: Vec<u8>, options: &SessionOptions) -> Result<Self, SessionError> {
        Self::of(Arc::new(bytes), options)
    }

    /// Reads a trace whose bytes are somebody else's: in memory, or mapped.
    ///
    /// # Errors
    /// Those of [`Session::new`].
    pub fn of(bytes: FileBytes, options: &SessionOptions) -> Result<Self, SessionError> {
        SessionCell::try_new(bytes, |bytes| {
            Session::new(bytes.as_ref().as_ref(), options)
        })
        .map(Self)
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session<'_> {
        self.0.borrow_dependent()
    }

    /// Its streams.
    #[must_use]
    pub fn streams(&self) -> &[Stream<'_>] {
        self.session().streams()
    }

    /// The flow of a stream, as [`Session::decode`] yields it.
    #[must_use]
    pub fn decode<'s>(&'s self, stream: &'s Stream<'_>) -> ThreadFlow<'s> {
        self.session().decode(stream)
    }
}

impl fmt::Debug for OwnedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.session().fmt(f)
    }
}

self_cell! {
    /// A session, and the flow of a stream of it.
    struct FlowCell {
        owner: Arc<OwnedSession>,
        #[not_covariant]
        dependent: ThreadFlow,
    }
}

/// A [`ThreadFlow`] with the session that it is of.
pub struct OwnedFlow(FlowCell);

impl OwnedFlow {
    /// The flow of the stream with this number, as [`Session::decode`] yields it; none if there is no such stream.
    #[must_use]
    pub fn new(session: Arc<OwnedSession>, index: usize) -> Option<Self> {
        let flow = FlowCell::try_new(session, |owned| {
            let session = owned.session();
            let stream = session.streams().get(index).ok_or(())?;
            Ok::<_, ()>(session.decode(stream))
        });
        flow.ok().map(Self)
    }

    /// Works with the flow.
    pub fn with<R>(&mut self, work: impl FnOnce(&mut ThreadFlow<'_>) -> R) -> R {
        self.0.with_dependent_mut(|_, flow| work(flow))
    }
}

impl fmt::Debug for OwnedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedFlow").finish_non_exhaustive()
    }
}

/// Several threads may use a session, and pass a flow on.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    fn is_sent<T: Send>() {}
    is_shared::<OwnedSession>();
    is_sent::<OwnedFlow>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileFormat;
    use cofi_flow::{Event, Item};
    use cofi_packet::intel::IntelPt;

    #[test]
    fn a_trace_or_a_program_that_is_not_there_is_an_error_with_its_name() {
        let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/small");
        let named = |result: Result<OwnedSession, SessionError>, name: &str| {
            let error = result.expect_err("it is not there").to_string();
            assert!(error.contains(name), "{error}");
        };
        named(OwnedSession::open(small.join("none.pt")), "none.pt");
        let trace = small.join("count.pt");
        named(
            OwnedSession::open_with_elf(trace, small.join("none")),
            "none",
        );
    }

    /// Bytes, and what reads them, go with the last that needs them.
    #[test]
    fn a_flow_outlives_its_session() {
        let options = SessionOptions {
            format: Some(FileFormat::Pt),
            ..SessionOptions::default()
        };
        let text = "psb\nmode.exec 64\npsbend\novf\nfup 0x401000";
        let trace = cofi_packet::assemble::<IntelPt, Vec<u8>>(text, Default::default());
        let owned = OwnedSession::new(trace.expect("packets"), &options).expect("a session");
        let owned = Arc::new(owned);
        assert!(OwnedFlow::new(owned.clone(), 1).is_none());
        let mut flow = OwnedFlow::new(owned, 0).expect("a stream");
        // (It is moved to where another thread has it.)
        let found = std::thread::spawn(move || {
            flow.with(|flow| flow.any(|item| matches!(item, Item::Event(Event::Overflow { .. }))))
        });
        assert!(found.join().expect("no panic"));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let options = SessionOptions {
            format: Some(FileFormat::Perf),
            ..SessionOptions::default()
        };
        assert!(OwnedSession::new(vec![0; 200], &options).is_err());
    }
}
