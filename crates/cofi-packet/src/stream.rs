//! Packet by packet over a stream of bytes.

use crate::format::Format;
use crate::table::Raw;
use crate::{DecodeError, StreamOffset};

/// A packet of a stream, where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located<F: Format> {
    /// Where it begins.
    pub offset: StreamOffset,
    /// Its bytes, every bit kept.
    pub raw: Raw<F::Kind>,
}

impl<F: Format> Located<F> {
    /// The typed packet.
    #[must_use]
    #[inline(always)]
    pub fn packet(&self) -> F::Packet {
        F::packet(&self.raw)
    }
}

/// Bytes of a stream that form no packet, or a packet where it may not stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("at offset {offset}: {error}")]
#[non_exhaustive]
pub struct StreamError<F: Format> {
    /// Where they begin.
    pub offset: StreamOffset,
    /// How many bytes are passed over: up to the next PSB or the end of the input; those of `packet` if there is one.
    pub size: usize,
    /// Why.
    pub error: DecodeError,
    /// The packet that stands where it may not ([`DecodeError::InBlock`]). It was read, counts for whatever state is kept
    /// of the stream, as the last IP, and reading goes on behind it.
    pub packet: Option<Raw<F::Kind>>,
}

/// An item of a stream: a packet, or bytes that form none.
pub type StreamItem<F> = Result<Located<F>, StreamError<F>>;

/// Where an item begins, and how many bytes it takes.
#[must_use]
#[inline]
pub fn extent<F: Format>(item: &StreamItem<F>) -> (StreamOffset, usize) {
    match item {
        Ok(located) => (located.offset, located.raw.len()),
        Err(error) => (error.offset, error.size),
    }
}

/// Iterates over the packets of a byte slice; the items tile it without gap or overlap.
///
/// After an error it goes on at the next PSB.
///
/// ```
/// use cofi_packet::intel::{PSB, Packet, Packets};
///
/// let mut bytes = PSB.to_vec();
/// bytes.extend([0x05, 0x77]); // no packet begins so
/// bytes.extend(PSB);
/// let items: Vec<_> = Packets::new(&bytes).collect();
/// assert_eq!(items[0].unwrap().packet(), Packet::Psb);
/// let error = items[1].unwrap_err();
/// assert_eq!((error.offset.0, error.size), (16, 2));
/// assert_eq!(items[2].unwrap().offset.0, 18);
/// ```
#[derive(Clone, Debug)]
pub struct Packets<'a, F: Format> {
    bytes: &'a [u8],
    at: usize,
    context: F::Context,
}

impl<'a, F: Format> Packets<'a, F> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::starting_at(bytes, StreamOffset(0))
    }

    /// Reads from `offset` (at most the slice's length).
    #[must_use]
    pub fn starting_at(bytes: &'a [u8], offset: StreamOffset) -> Self {
        Self {
            bytes,
            at: usize::try_from(offset.0).map_or(bytes.len(), |at| at.min(bytes.len())),
            context: F::Context::default(),
        }
    }

    /// Reads the part of a ring buffer's content that is whole: from its first PSB to its last whole packet.
    ///
    /// [`Packets::offset`] tells how many bytes stand before the PSB, and after the last item where the rest begins. Without
    /// a PSB there is nothing to read.
    #[must_use]
    pub fn ring(bytes: &'a [u8]) -> Ring<'a, F> {
        let at = F::find_psb(bytes).unwrap_or(bytes.len());
        Ring(Self::starting_at(bytes, StreamOffset(at as u64)))
    }

    /// Reads in this context from here on.
    #[must_use]
    pub fn in_context(mut self, context: F::Context) -> Self {
        self.context = context;
        self
    }

    /// Where the next packet begins.
    #[must_use]
    pub const fn offset(&self) -> StreamOffset {
        StreamOffset(self.at as u64)
    }

    /// The context in which the next packet is read.
    #[must_use]
    pub const fn context(&self) -> F::Context {
        self.context
    }

    /// Shows a visitor all items, which are those of the iterator. It takes about half the time.
    ///
    /// ```
    /// use cofi_packet::PacketVisitor;
    /// use cofi_packet::intel::{IntelPt, Kind, Located, Packets, StreamError};
    ///
    /// #[derive(Default)]
    /// struct Tips(u64);
    ///
    /// impl PacketVisitor<IntelPt> for Tips {
    ///     #[inline(always)]
    ///     fn packet(&mut self, packet: Located) {
    ///         self.0 += u64::from(packet.raw.kind() == Kind::Tip);
    ///     }
    ///
    ///     fn error(&mut self, error: &StreamError) {
    ///         eprintln!("{error}");
    ///     }
    /// }
    ///
    /// let mut tips = Tips::default();
    /// Packets::new(&[0x2d, 0x34, 0x12, 0x04, 0x2d, 0x78, 0x56]).visit(&mut tips);
    /// assert_eq!(tips.0, 2);
    /// ```
    #[inline]
    pub fn visit(mut self, visitor: &mut impl PacketVisitor<F>) {
        loop {
            self.at = F::visit_short(self.context, self.bytes, self.at, visitor);
            match self.next() {
                Some(Ok(packet)) => visitor.packet(packet),
                Some(Err(error)) => visitor.error(&error),
                None => return,
            }
        }
    }
}

/// What to do with each packet of a stream: see [`Packets::visit`].
pub trait PacketVisitor<F: Format> {
    /// A packet. It is called from a place for each of the kinds that are most frequent, where the compiler knows the kind: give it
    /// `#[inline(always)]`, and what it does not do with a kind costs nothing.
    fn packet(&mut self, packet: Located<F>);

    /// Bytes that form no packet, or a packet where it may not stand.
    fn error(&mut self, error: &StreamError<F>);
}

/// The item at `at`, whatever it be. Told and returned by value, so that a loop over [`Packets`] keeps them in registers.
#[inline(never)]
fn next_long<F: Format>(
    bytes: &[u8],
    at: usize,
    mut context: F::Context,
) -> Option<(StreamItem<F>, F::Context)> {
    let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
    let offset = StreamOffset(at as u64);
    let item = match F::decode(context, rest) {
        Ok(raw) => placed(&mut context, offset, raw),
        Err(error) => {
            context = F::after_error(context);
            Err(StreamError {
                offset,
                // At least one byte is passed over, so that a PSB at this very place cannot hold us.
                size: F::find_psb(&rest[1..]).map_or(rest.len(), |psb| 1 + psb),
                error,
                packet: None,
            })
        }
    };
    Some((item, context))
}

/// A packet as an item, after which the context may be another.
pub(crate) fn placed<F: Format>(
    context: &mut F::Context,
    offset: StreamOffset,
    raw: Raw<F::Kind>,
) -> StreamItem<F> {
    let (after, allowed) = F::after(*context, &F::packet(&raw));
    *context = after;
    if allowed {
        return Ok(Located { offset, raw });
    }
    Err(StreamError {
        offset,
        size: raw.len(),
        error: DecodeError::InBlock {
            packet: crate::PacketKind::name(raw.kind()),
        },
        packet: Some(raw),
    })
}

impl<F: Format> Iterator for Packets<'_, F> {
    type Item = StreamItem<F>;

    #[inline(always)]
    fn next(&mut self) -> Option<StreamItem<F>> {
        let rest = self.bytes.get(self.at..);
        if let Some(raw) = rest.and_then(|rest| F::decode_short(self.context, rest)) {
            let offset = self.offset();
            self.at += raw.len();
            return Some(Ok(Located { offset, raw }));
        }
        let (item, context) = next_long(self.bytes, self.at, self.context)?;
        self.at += extent(&item).1;
        self.context = context;
        Some(item)
    }
}

/// The whole packets of a ring buffer's content; made by [`Packets::ring`].
#[derive(Clone, Debug)]
pub struct Ring<'a, F: Format>(Packets<'a, F>);

impl<'a, F: Format> Ring<'a, F> {
    /// Reads in this context from here on.
    #[must_use]
    pub fn in_context(self, context: F::Context) -> Self {
        Self(self.0.in_context(context))
    }
    /// Where the next packet begins: before the first item the number of bytes before the first PSB, after the last item
    /// the place of the packet that is cut.
    #[must_use]
    pub const fn offset(&self) -> StreamOffset {
        self.0.offset()
    }
    /// The bytes that have not been read: after the last item those of the packet that is cut.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        &self.0.bytes[self.0.at..]
    }
}

impl<F: Format> Iterator for Ring<'_, F> {
    type Item = StreamItem<F>;

    fn next(&mut self) -> Option<StreamItem<F>> {
        let mut ahead = self.0.clone();
        match ahead.next()? {
            Err(StreamError {
                error: DecodeError::Truncated { .. },
                ..
            }) => None,
            item => {
                self.0 = ahead;
                Some(item)
            }
        }
    }
}
