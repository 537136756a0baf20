//! Sessions and flows that keep what they read, for who has no lifetimes: other languages, and flows that are passed around.

use crate::{FileBytes, Session, SessionError, SessionOptions, Stream, ThreadFlow};
use self_cell::self_cell;
use std::fmt;
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
