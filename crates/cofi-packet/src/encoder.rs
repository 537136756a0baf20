//! Writing packets, with the state that the reader will have.

use crate::counted::counted;
use crate::format::{Format, Misfit};
use crate::table::Raw;
use crate::word::MAX_PACKET;
use crate::{Ip, StreamOffset};
use core::convert::Infallible;

/// Where encoded packets go.
///
/// Any `FnMut(&[u8]) -> Result<(), E>` is a sink; so are a [`Buffer`], and [`Collected`] of what grows.
pub trait Sink {
    /// Why a packet could not be stored.
    type Error;
    /// Stores the first `len` bytes, 1 to 16, of a little-endian word; the bits above them can be anything.
    ///
    /// # Errors
    /// Whatever the sink finds; the packet counts as not written then.
    fn put(&mut self, word: u128, len: usize) -> Result<(), Self::Error>;
    /// Stores a packet of one byte.
    ///
    /// # Errors
    /// As [`Self::put`].
    #[inline(always)]
    fn put_byte(&mut self, byte: u8) -> Result<(), Self::Error> {
        self.put(byte.into(), 1)
    }
}

impl<E, T: FnMut(&[u8]) -> Result<(), E>> Sink for T {
    type Error = E;
    #[inline]
    fn put(&mut self, word: u128, len: usize) -> Result<(), E> {
        self(&word.to_le_bytes()[..len])
    }
}

/// A packet does not fit into what is left of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the buffer is full: {} needed, {} left",
    counted(*need as u64, "byte"),
    counted(*room as u64, "byte")
)]
pub struct Full {
    /// The packet's size.
    pub need: usize,
    /// The bytes left.
    pub room: usize,
}

/// A caller's buffer as a sink. Bytes behind the last packet may be overwritten, up to 16 of them.
#[derive(Debug)]
pub struct Buffer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Buffer<'a> {
    /// Fills `bytes` from its start.
    #[must_use]
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0 }
    }
    /// What has been written, given back.
    #[must_use]
    pub fn into_written(self) -> &'a [u8] {
        &self.bytes[..self.len]
    }
    /// What has been written.
    #[must_use]
    pub fn written(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
    /// Begins again at the buffer's start.
    pub const fn clear(&mut self) {
        self.len = 0;
    }
}

impl Sink for Buffer<'_> {
    type Error = Full;
    #[inline(always)]
    fn put(&mut self, word: u128, len: usize) -> Result<(), Full> {
        // A store of fixed size is a single instruction.
        match self.bytes[self.len..].first_chunk_mut() {
            Some(place) => *place = word.to_le_bytes(),
            None => store_short(&mut self.bytes[self.len..], word, len)?,
        }
        self.len = self.bytes.len().min(self.len + len);
        Ok(())
    }
    #[inline(always)]
    fn put_byte(&mut self, byte: u8) -> Result<(), Full> {
        match self.bytes.get_mut(self.len) {
            Some(place) => *place = byte,
            None => return Err(Full { need: 1, room: 0 }),
        }
        self.len += 1;
        Ok(())
    }
}

/// Near the buffer's end.
#[cold]
fn store_short(buffer: &mut [u8], word: u128, len: usize) -> Result<(), Full> {
    let room = buffer.len();
    match buffer.get_mut(..len) {
        Some(place) => {
            place.copy_from_slice(&word.to_le_bytes()[..len]);
            Ok(())
        }
        None => Err(Full { need: len, room }),
    }
}

/// All packets, one behind the other, in whatever grows: a vector, where there is memory for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Collected<B>(pub B);

impl<B: for<'b> Extend<&'b u8>> Sink for Collected<B> {
    type Error = Infallible;
    #[inline]
    fn put(&mut self, word: u128, len: usize) -> Result<(), Infallible> {
        self.0.extend(&word.to_le_bytes()[..len]);
        Ok(())
    }
}

/// Counts and drops.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

impl Sink for Nowhere {
    type Error = Infallible;
    fn put(&mut self, _word: u128, _len: usize) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Why a packet was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError<E> {
    /// The sink refused it.
    #[error("{0}")]
    Sink(E),
    /// A reader would not read the same packet here.
    #[error("{0}")]
    Misfit(Misfit),
    /// The packet has no IP field, or none that holds this IP.
    #[error("{ip} cannot stand in a {packet} packet")]
    Ip {
        /// The packet's name.
        packet: &'static str,
        /// The address.
        ip: Ip,
    },
}

/// Writes packets to a sink, and keeps the state that the stream's reader will have: last IP, open block, offset.
///
/// ```
/// use cofi_packet::Ip;
/// use cofi_packet::intel::{Encoder, Kind, Packet};
///
/// let mut bytes = Vec::new();
/// let mut encoder = Encoder::new(|packet: &[u8]| -> Result<(), std::convert::Infallible> {
///     bytes.extend_from_slice(packet);
///     Ok(())
/// });
/// encoder.packet(&Packet::Psb).unwrap();
/// encoder.packet(&Packet::PsbEnd).unwrap();
/// encoder.ip(Kind::TipPge, Ip(0x401000)).unwrap(); // 4 bytes of payload
/// encoder.ip(Kind::Tip, Ip(0x401234)).unwrap(); // 2 bytes: the rest is the last IP's
/// assert_eq!(encoder.offset().0, 16 + 2 + 5 + 3);
/// assert_eq!(bytes[18..], [0x51, 0x00, 0x10, 0x40, 0x00, 0x2d, 0x34, 0x12]);
/// ```
#[derive(Clone, Debug)]
pub struct Encoder<F: Format, S> {
    sink: S,
    context: F::Context,
    last_ip: F::LastIp,
    offset: StreamOffset,
}

/// A packet's bytes, and the state after it.
type Encoded<F> = (
    Raw<<F as Format>::Kind>,
    <F as Format>::Context,
    <F as Format>::LastIp,
);

/// Any packet, and the state after it. Told and returned by value, so that a loop keeps the encoder in registers.
#[inline]
fn encode_long<F: Format>(
    context: F::Context,
    mut last_ip: F::LastIp,
    packet: &F::Packet,
) -> Result<Encoded<F>, Misfit> {
    if let Some(misfit) = F::misfit(context, packet) {
        return Err(misfit);
    }
    F::note(&mut last_ip, packet);
    Ok((F::encode(packet), F::after(context, packet).0, last_ip))
}

impl<F: Format, S: Sink> Encoder<F, S> {
    /// A stream that begins here.
    #[must_use]
    pub fn new(sink: S) -> Self {
        Self::in_context(sink, F::Context::default())
    }

    /// A stream that begins here, in this context.
    #[must_use]
    pub fn in_context(sink: S, context: F::Context) -> Self {
        Self {
            sink,
            context,
            last_ip: F::LastIp::default(),
            offset: StreamOffset(0),
        }
    }

    /// Where the next packet begins.
    #[must_use]
    pub const fn offset(&self) -> StreamOffset {
        self.offset
    }

    /// The context in which the next packet will be read.
    #[must_use]
    pub const fn context(&self) -> F::Context {
        self.context
    }

    /// The last IP, against which the next address is compressed.
    #[must_use]
    pub const fn last_ip(&self) -> F::LastIp {
        self.last_ip
    }

    /// The sink.
    pub const fn sink(&mut self) -> &mut S {
        &mut self.sink
    }

    /// Gives the sink back.
    #[must_use]
    pub fn into_sink(self) -> S {
        self.sink
    }

    /// Writes a packet as it is; an IP payload is compressed as it says.
    ///
    /// # Errors
    /// [`EncodeError::Misfit`] when a reader would not read the same packet here, [`EncodeError::Sink`] when the sink
    /// refuses; nothing is written then.
    #[inline(always)]
    pub fn packet(&mut self, packet: &F::Packet) -> Result<(), EncodeError<S::Error>> {
        if let Some(byte) = F::encode_byte(self.context, packet) {
            self.sink.put_byte(byte).map_err(EncodeError::Sink)?;
            self.offset.0 += 1;
            return Ok(());
        }
        let after = encode_long::<F>(self.context, self.last_ip, packet);
        match after {
            Ok((raw, context, last_ip)) => {
                self.store(raw.unmasked_word(), raw.len())?;
                (self.context, self.last_ip) = (context, last_ip);
                Ok(())
            }
            Err(misfit) => Err(EncodeError::Misfit(misfit)),
        }
    }

    /// Writes the packet `kind` with `ip` in its shortest form.
    ///
    /// # Errors
    /// As [`Self::packet`], and [`EncodeError::Ip`].
    #[inline]
    pub fn ip(&mut self, kind: F::Kind, ip: Ip) -> Result<(), EncodeError<S::Error>> {
        let mut last_ip = self.last_ip;
        match F::compress(&mut last_ip, kind, ip) {
            Some(packet) => self.packet(&packet),
            None => Err(EncodeError::Ip {
                packet: crate::PacketKind::name(kind),
                ip,
            }),
        }
    }

    /// Writes a packet with all its bits; so what decodes is written again as the same bytes, wherever it may stand.
    ///
    /// # Errors
    /// [`EncodeError::Sink`] when the sink refuses.
    #[inline]
    pub fn raw(&mut self, raw: &Raw<F::Kind>) -> Result<(), EncodeError<S::Error>> {
        self.store(raw.unmasked_word(), raw.len())?;
        let packet = F::packet(raw);
        F::note(&mut self.last_ip, &packet);
        (self.context, _) = F::after(self.context, &packet);
        Ok(())
    }

    /// Writes bytes that need not be packets. A reader is expected to find none, and to go on at the PSB that follows: an
    /// open block counts as ended, and the last IP is not known.
    ///
    /// # Errors
    /// [`EncodeError::Sink`] when the sink refuses.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), EncodeError<S::Error>> {
        for part in bytes.chunks(MAX_PACKET) {
            let mut padded = [0; MAX_PACKET];
            padded[..part.len()].copy_from_slice(part);
            self.store(u128::from_le_bytes(padded), part.len())?;
        }
        self.context = F::after_error(self.context);
        self.last_ip = F::LastIp::default();
        Ok(())
    }

    #[inline(always)]
    fn store(&mut self, word: u128, len: usize) -> Result<(), EncodeError<S::Error>> {
        self.sink.put(word, len).map_err(EncodeError::Sink)?;
        self.offset.0 += len as u64;
        Ok(())
    }
}
