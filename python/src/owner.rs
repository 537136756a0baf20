//! A recording that stays in memory as long as anything of it is in use.

use crate::names::Shared;
use cofi_session::{
    OwnedFlow, OwnedSession, Session, SessionError, SessionOptions, Stream, ThreadFlow,
};
use std::sync::Arc;

/// A session with its bytes, and the functions that have had a number.
pub(crate) struct Owner {
    session: Arc<OwnedSession>,
    pub(crate) names: Shared,
}

impl Owner {
    pub(crate) fn open(
        bytes: Vec<u8>,
        options: &SessionOptions,
    ) -> Result<Arc<Self>, SessionError> {
        Ok(Arc::new(Self {
            session: Arc::new(OwnedSession::new(bytes, options)?),
            names: Shared::default(),
        }))
    }

    pub(crate) fn session(&self) -> &Session<'_> {
        self.session.session()
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

    pub(crate) fn session(&self) -> &Session<'_> {
        self.owner.session()
    }

    pub(crate) fn stream(&self) -> &Stream<'_> {
        &self.session().streams()[self.index]
    }

    /// The flow, for as long as this is held.
    pub(crate) fn decode(&self) -> ThreadFlow<'_> {
        self.session().decode(self.stream())
    }

    /// The flow, to be kept.
    pub(crate) fn flow(&self) -> OwnedFlow {
        let flow = OwnedFlow::new(self.owner.session.clone(), self.index);
        flow.expect("a part is one of the recording's streams")
    }
}
