//! A recording that stays in memory as long as anything of it is in use.
#![allow(
    unsafe_code,
    reason = "a session borrows its bytes, and Python has no lifetimes; each use has its justification"
)]

use crate::names::Shared;
use cofi_analysis::CallTracer;
use cofi_session::{Session, SessionError, SessionOptions, Stream, ThreadFlow};
use std::ptr::NonNull;
use std::sync::Arc;

/// The bytes of a trace, and the session that reads them.
pub(crate) struct Owner {
    // Dropped before the bytes.
    session: Session<'static>,
    _bytes: Kept,
    pub(crate) names: Shared,
}

/// Bytes that stay where they are until this is dropped; nobody writes to them.
struct Kept(NonNull<[u8]>);

// SAFETY: they are owned, and nobody writes to them.
unsafe impl Send for Kept {}
// SAFETY: as above.
unsafe impl Sync for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: it came out of a box, and goes back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Owner {
    pub(crate) fn open(
        bytes: Vec<u8>,
        options: &SessionOptions,
    ) -> Result<Arc<Self>, SessionError> {
        let bytes = Kept(NonNull::from(Box::leak(bytes.into_boxed_slice())));
        // SAFETY: they are there until `bytes` is dropped, which comes after the session, which alone uses them.
        let all: &'static [u8] = unsafe { bytes.0.as_ref() };
        let session = Session::new(all, options)?;
        Ok(Arc::new(Self {
            session,
            _bytes: bytes,
            names: Shared::default(),
        }))
    }

    pub(crate) fn session(&self) -> &Session<'static> {
        &self.session
    }
}

/// One stream of a recording.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) owner: Arc<Owner>,
    index: usize,
}

impl Part {
    /// All streams of a recording.
    pub(crate) fn all(owner: &Arc<Owner>) -> impl Iterator<Item = Self> {
        let count = owner.session().streams().len();
        (0..count).map(|index| Self {
            owner: owner.clone(),
            index,
        })
    }

    pub(crate) fn stream(&self) -> &Stream<'static> {
        &self.owner.session().streams()[self.index]
    }

    /// The session and the stream, for who keeps the owner longer than these.
    ///
    /// # Safety
    /// What comes of them is dropped before the owner, of which the caller keeps a reference.
    unsafe fn forever(&self) -> (&'static Session<'static>, &'static Stream<'static>) {
        let (session, stream): (*const _, *const _) = (self.owner.session(), self.stream());
        // SAFETY: they lie in an `Arc`, which does not move them, and nobody changes them; how long they last is the caller's promise.
        unsafe { (&*session, &*stream) }
    }
}

/// The flow of a stream.
pub(crate) struct Flow {
    // Dropped before the part.
    pub(crate) flow: ThreadFlow<'static>,
    pub(crate) part: Part,
}

impl Flow {
    pub(crate) fn of(part: &Part) -> Self {
        let part = part.clone();
        // SAFETY: `part`, which keeps the owner, is dropped after what comes of these.
        let (session, stream) = unsafe { part.forever() };
        Self {
            flow: session.decode(stream),
            part,
        }
    }
}

/// The flow of a stream, and who makes calls of it.
pub(crate) struct CallFlow {
    // Dropped before the flow, and the part in it.
    pub(crate) tracer: CallTracer<'static>,
    pub(crate) flow: Flow,
}

impl CallFlow {
    pub(crate) fn of(part: &Part) -> Self {
        let flow = Flow::of(part);
        // SAFETY: `flow` keeps the owner, and is dropped after the tracer.
        let (session, stream) = unsafe { flow.part.forever() };
        Self {
            tracer: CallTracer::new(session, stream),
            flow,
        }
    }
}
