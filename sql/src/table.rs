//! What a table is: its columns, the parts of recordings from which its rows come, and how a part becomes rows.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use cofi_packet::StreamOffset;
use cofi_session::Stream;

use crate::columns::{Column, Rows};
use crate::limits::Limits;
use crate::recording::Recording;

/// A table of SQL, or what a table function decodes.
pub trait Table: Debug + Send + Sync {
    /// Its name, which is never changed.
    fn name(&self) -> &'static str;

    /// What a row of it is.
    fn about(&self) -> &'static str;

    /// Its columns.
    fn columns(&self) -> &'static [Column];

    /// The parts of a recording from which its rows come, without those that cannot hold any that are wanted.
    fn units(&self, recording: &Arc<Recording>, limits: &Limits) -> Units;

    /// Puts out the rows of a part, until nobody wants any more.
    fn fill(&self, unit: &Unit, out: &mut Outlet);

    /// Cuts a part into no more than so many pieces that together have its rows, in its order: for who has several machines. Of most tables the
    /// rows depend on all that stands before them, and there is no cut.
    fn cut(&self, unit: Unit, _pieces: usize) -> Vec<Unit> {
        vec![unit]
    }

    /// The same for who has several threads: what is kept beside the recording is at hand, and may be needed.
    fn cut_here(&self, unit: Unit, pieces: usize) -> Vec<Unit> {
        self.cut(unit, pieces)
    }
}

/// A part of a recording that is gone through in one go.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The recording.
    pub recording: Arc<Recording>,
    /// Which stream of it, if it is of one.
    pub stream: Option<usize>,
    /// Which part of the stream.
    pub range: Range<StreamOffset>,
    /// Of its rows those from the first that is told by a packet in this range, up to the first that is told by one behind it.
    pub rows: Range<StreamOffset>,
    /// How many parts that can be decoded apart it has.
    pub parts: usize,
    /// If not all of its range is decoded, what of it is.
    pub picks: Option<Arc<[Pick]>>,
}

/// A part of a stream that is decoded by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// What is decoded.
    pub range: Range<StreamOffset>,
    /// From where to where its rows are: what stands before is decoded for what is to be known there.
    pub rows: Range<StreamOffset>,
}

/// The parts that have to be gone through.
#[derive(Clone, Debug, Default)]
pub struct Units {
    /// They.
    pub list: Vec<Unit>,
    /// How many could be left out.
    pub skipped: usize,
}

/// All of a stream.
pub(crate) const WHOLE: Range<StreamOffset> = StreamOffset(0)..StreamOffset(u64::MAX);

impl Units {
    /// All of a recording at once.
    #[must_use]
    pub fn whole(recording: &Arc<Recording>) -> Self {
        let unit = Unit {
            recording: recording.clone(),
            stream: None,
            range: WHOLE,
            rows: WHOLE,
            parts: 1,
            picks: None,
        };
        Self {
            list: vec![unit],
            skipped: 0,
        }
    }

    /// Each stream by itself; without those of threads that are not wanted.
    #[must_use]
    pub fn streams(recording: &Arc<Recording>, limits: &Limits) -> Self {
        let mut units = Self::default();
        for (index, stream) in recording.session().streams().iter().enumerate() {
            // What a processor's stream is about is not known before it is decoded.
            let tid = stream.key().tid().map(u64::from);
            let cpu = stream.key().cpu().map(u64::from);
            let is_wanted = (tid.is_none() || limits.allows_number("tid", tid))
                && limits.allows_number("cpu", cpu);
            if !is_wanted {
                units.skipped += 1;
                continue;
            }
            units.list.push(Unit {
                recording: recording.clone(),
                stream: Some(index),
                range: WHOLE,
                rows: WHOLE,
                parts: 1,
                picks: None,
            });
        }
        units
    }

    /// Adds those of another recording.
    pub fn add(&mut self, other: Self) {
        self.list.extend(other.list);
        self.skipped += other.skipped;
    }
}

impl Unit {
    /// The stream; none of a unit that is of all of a recording.
    #[must_use]
    pub fn stream(&self) -> Option<&Stream<'_>> {
        self.recording.session().streams().get(self.stream?)
    }
}

/// Takes a batch to where it is wanted; `false` if nobody wants any more.
pub type SendBatch = Box<dyn FnMut(Result<RecordBatch, ArrowError>) -> bool + Send>;

/// Where rows go.
pub struct Outlet {
    rows: Rows,
    /// So many rows are a batch.
    size: usize,
    send: SendBatch,
    is_closed: bool,
    /// By how many threads a part may be gone through.
    pub threads: NonZeroUsize,
}

impl Outlet {
    /// Puts rows together into batches of `size` for `send`.
    #[must_use]
    pub fn new(rows: Rows, size: usize, threads: NonZeroUsize, send: SendBatch) -> Self {
        Self {
            rows,
            size: size.max(1),
            send,
            is_closed: false,
            threads,
        }
    }

    /// Whether nobody wants any more.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether the column with this index is wanted.
    #[must_use]
    pub fn wants(&self, index: usize) -> bool {
        self.rows.wants(index)
    }

    /// No more rows can be made.
    pub fn fail(&mut self, error: impl std::error::Error + Send + Sync + 'static) {
        if !self.is_closed {
            (self.send)(Err(ArrowError::from_external_error(Box::new(error))));
            self.is_closed = true;
        }
    }

    /// Puts out a row, to which `fill` gives the values of all columns.
    #[inline]
    pub fn put(&mut self, fill: impl FnOnce(&mut Rows)) {
        if self.is_closed {
            return;
        }
        fill(&mut self.rows);
        self.rows.end();
        if self.rows.count() >= self.size {
            self.flush();
        }
    }

    /// Hands over the rows that there are.
    pub fn flush(&mut self) {
        if self.rows.count() > 0 && !self.is_closed {
            let batch = self.rows.take();
            let is_wrong = batch.is_err();
            self.is_closed = !(self.send)(batch) || is_wrong;
        }
    }
}
