//! What the packets of one stream tell by themselves.

use std::ops::Range;

use cofi_flow::{EventDecoder, FlowConfig, LocatedEvent};
use cofi_packet::StreamOffset;

use crate::parts::{Part, Parts};

/// Binds the packets of a stream into events, without any code: see [`EventDecoder`]. Nothing is bound across a place
/// where something is missing, which is told as an error there.
#[derive(Debug)]
pub struct StreamEvents<'s> {
    decoder: EventDecoder<'s>,
    parts: Parts<'s>,
    config: FlowConfig,
    branches: bool,
    ticks: bool,
}

impl<'s> StreamEvents<'s> {
    pub(crate) fn new(mut parts: Parts<'s>, config: FlowConfig) -> Self {
        let first = parts.next();
        let mut this = Self {
            decoder: EventDecoder::new(&[], config),
            parts,
            config,
            branches: false,
            ticks: false,
        };
        if let Some(part) = first {
            this.begin(&part);
        }
        this
    }

    /// Only of a part of the stream: see [`EventDecoder::within`]. To be called before anything is decoded, and before other options.
    ///
    /// What is missing at the very beginning of the range is told within it; what is missing at its end, in the next.
    pub(crate) fn within(mut self, range: Range<StreamOffset>) -> Self {
        self.decoder = EventDecoder::new(&[], self.config);
        if !self.parts.restrict(range)
            && let Some(part) = self.parts.next()
        {
            self.begin(&part);
        }
        self
    }

    fn begin(&mut self, part: &Part<'s>) {
        let mut decoder = EventDecoder::new(part.bytes, self.config).within(part.range.clone());
        if self.branches {
            decoder = decoder.with_branches();
        }
        if self.ticks {
            decoder = decoder.with_ticks();
        }
        self.decoder = decoder;
    }

    /// See [`EventDecoder::with_branches`]. To be called before anything is decoded.
    #[must_use]
    pub fn with_branches(mut self) -> Self {
        self.branches = true;
        self.decoder = self.decoder.with_branches();
        self
    }

    /// See [`EventDecoder::with_ticks`]. To be called before anything is decoded.
    #[must_use]
    pub fn with_ticks(mut self) -> Self {
        self.ticks = true;
        self.decoder = self.decoder.with_ticks();
        self
    }
}

impl Iterator for StreamEvents<'_> {
    type Item = LocatedEvent;

    fn next(&mut self) -> Option<LocatedEvent> {
        if let Some(told) = self.decoder.next() {
            return Some(told);
        }
        let part = self.parts.next()?;
        self.begin(&part);
        Some(part.missing.into())
    }
}
