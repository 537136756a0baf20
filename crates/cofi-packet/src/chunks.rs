//! A stream that comes in chunks, cut anywhere.

use crate::format::Format;
use crate::stream::{Located, StreamError, StreamItem, placed};
use crate::{DecodeError, StreamOffset};

/// Room for what is kept of one chunk for the next, and as much of the next that nothing kept remains undecided.
const ROOM: usize = 64;

/// Decodes a stream that comes in chunks: the items are those of [`Packets`](crate::Packets) over the whole stream,
/// wherever it is cut.
///
/// At most 64 bytes are kept between chunks.
///
/// ```
/// use cofi_packet::intel::{Chunks, PSB};
///
/// let mut chunks = Chunks::new();
/// let mut packets = 0;
/// for chunk in [&PSB[..5], &PSB[5..], &[0x02], &[0x23]] {
///     packets += chunks.feed(chunk).count();
/// }
/// packets += chunks.finish().count();
/// assert_eq!(packets, 2);
/// ```
#[derive(Clone, Debug)]
pub struct Chunks<F: Format> {
    context: F::Context,
    /// Where the next undecided byte stands in the stream.
    offset: StreamOffset,
    kept: [u8; ROOM],
    len: usize,
    /// Bytes that form no packet, and their end not yet found: where they begin, and why.
    lost: Option<(StreamOffset, DecodeError)>,
}

impl<F: Format> Default for Chunks<F> {
    fn default() -> Self {
        Self::new()
    }
}

/// What can be said of the bytes at hand.
enum Step<F: Format> {
    /// An item, or nothing yet, and how many bytes are done with.
    Past(Option<StreamItem<F>>, usize),
    /// More bytes are needed.
    More,
}

impl<F: Format> Chunks<F> {
    /// Before the first chunk.
    #[must_use]
    pub fn new() -> Self {
        Self::in_context(F::Context::default())
    }

    /// Before the first chunk, in this context.
    #[must_use]
    pub fn in_context(context: F::Context) -> Self {
        Self {
            context,
            offset: StreamOffset(0),
            kept: [0; ROOM],
            len: 0,
            lost: None,
        }
    }

    /// The items that `chunk` completes. Those that nobody has asked for are passed over when the iterator is dropped.
    pub fn feed<'a>(&'a mut self, chunk: &'a [u8]) -> Feed<'a, F> {
        Feed {
            chunks: self,
            chunk,
            last: false,
        }
    }

    /// The items that the end of the stream completes: a packet that is cut, bytes without a PSB behind them.
    pub fn finish(&mut self) -> Feed<'_, F> {
        Feed {
            chunks: self,
            chunk: &[],
            last: true,
        }
    }

    /// Where the next undecided byte stands.
    #[must_use]
    pub const fn offset(&self) -> StreamOffset {
        self.offset
    }

    fn step(&mut self, bytes: &[u8], last: bool) -> Step<F> {
        if let Some((offset, error)) = self.lost {
            return self.search(bytes, last, offset, error);
        }
        if bytes.is_empty() {
            return Step::More;
        }
        let offset = self.offset;
        match F::decode(self.context, bytes) {
            Ok(raw) if !last && F::is_open(&raw, bytes.len()) => Step::More,
            Ok(raw) => Step::Past(Some(placed(&mut self.context, offset, raw)), raw.len()),
            Err(DecodeError::Truncated { .. }) if !last => Step::More,
            // The PSB may be part of a longer run.
            Err(DecodeError::Cut { have, .. })
                if !last && bytes.len() < usize::from(have) + F::PSB.len() + F::PSB_LOOKAHEAD =>
            {
                Step::More
            }
            // The message names two bytes.
            Err(DecodeError::Unknown { .. }) if !last && bytes.len() < 2 => Step::More,
            Err(error) => {
                self.context = F::after_error(self.context);
                self.lost = Some((offset, error));
                // At least one byte is passed over.
                Step::Past(None, 1)
            }
        }
    }

    /// Looks for the PSB that ends bytes without packets.
    fn search(
        &mut self,
        bytes: &[u8],
        last: bool,
        offset: StreamOffset,
        error: DecodeError,
    ) -> Step<F> {
        let found = F::find_psb(bytes);
        let decided = |psb: usize| last || psb + F::PSB.len() + F::PSB_LOOKAHEAD <= bytes.len();
        let past = match found {
            Some(psb) if decided(psb) => psb,
            // What follows tells whether the run goes on.
            Some(psb) if psb > 0 => return Step::Past(None, psb),
            Some(_) => return Step::More,
            None if last => bytes.len(),
            // The last bytes may be the beginning of a PSB.
            None => match (bytes.len() + 1).saturating_sub(F::PSB.len()) {
                0 => return Step::More,
                past => return Step::Past(None, past),
            },
        };
        self.lost = None;
        let end = self.offset.0 + past as u64;
        let item = StreamError {
            offset,
            size: usize::try_from(end - offset.0).unwrap_or(usize::MAX),
            error,
            packet: None,
        };
        Step::Past(Some(Err(item)), past)
    }
}

/// The items that a chunk completes; made by [`Chunks::feed`] and [`Chunks::finish`].
#[derive(Debug)]
#[must_use = "a chunk is decoded as its items are asked for"]
pub struct Feed<'a, F: Format> {
    chunks: &'a mut Chunks<F>,
    chunk: &'a [u8],
    last: bool,
}

impl<F: Format> Feed<'_, F> {
    /// Keeps `bytes` for the next chunk: fewer than a packet and what decides about a PSB.
    fn keep(&mut self) {
        let chunks = &mut *self.chunks;
        let room = &mut chunks.kept[chunks.len..];
        let taken = self.chunk.len().min(room.len());
        room[..taken].copy_from_slice(&self.chunk[..taken]);
        chunks.len += taken;
        self.chunk = &self.chunk[taken..];
    }

    /// A step over what was kept and the chunk's beginning behind it.
    fn step_over_kept(&mut self) -> Step<F> {
        let before = self.chunks.len;
        let mut view = self.chunks.kept;
        let borrowed = self.chunk.len().min(ROOM - before);
        view[before..before + borrowed].copy_from_slice(&self.chunk[..borrowed]);
        let whole = self.last || borrowed == self.chunk.len();
        match self.chunks.step(&view[..before + borrowed], self.last) {
            Step::Past(item, past) => {
                let kept = before.saturating_sub(past);
                self.chunks.kept.copy_within(before - kept..before, 0);
                self.chunks.len = kept;
                self.chunk = &self.chunk[past.saturating_sub(before)..];
                Step::Past(item, past)
            }
            Step::More => {
                debug_assert!(
                    whole,
                    "64 bytes are enough to decide about the first of them"
                );
                Step::More
            }
        }
    }
}

impl<F: Format> Iterator for Feed<'_, F> {
    type Item = StreamItem<F>;

    fn next(&mut self) -> Option<StreamItem<F>> {
        loop {
            let step = if self.chunks.len > 0 {
                self.step_over_kept()
            } else {
                let short = match self.chunks.lost {
                    None => F::decode_short(self.chunks.context, self.chunk),
                    Some(_) => None,
                };
                if let Some(raw) = short {
                    let offset = self.chunks.offset;
                    self.chunks.offset.0 += raw.len() as u64;
                    self.chunk = &self.chunk[raw.len()..];
                    return Some(Ok(Located { offset, raw }));
                }
                let step = self.chunks.step(self.chunk, self.last);
                if let Step::Past(_, past) = step {
                    self.chunk = &self.chunk[past..];
                }
                step
            };
            match step {
                Step::Past(item, past) => {
                    self.chunks.offset.0 += past as u64;
                    if item.is_some() {
                        return item;
                    }
                }
                Step::More => {
                    self.keep();
                    return None;
                }
            }
        }
    }
}

impl<F: Format> Drop for Feed<'_, F> {
    // The state must be that of the whole chunk, whoever looked at how much of it.
    fn drop(&mut self) {
        while self.next().is_some() {}
    }
}
