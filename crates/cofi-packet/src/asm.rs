//! The assembler: lines of text to bytes.

use crate::StreamOffset;
use crate::encoder::{Collected, EncodeError, Encoder, Sink};
use crate::format::Format;
use crate::text::{Operands, TextError, TextErrorKind};
use crate::word::MAX_PACKET;

/// Reads lines of the text form and writes their packets.
///
/// A line is `[LABEL:] [NAME OPERAND…] [; comment]`:
///
/// - NAME and OPERANDs are those of `Display` and of [`Listing`](crate::Listing). An operand is `KEY=VALUE`, or a bare
///   value for the packet's first field. A flag that is not mentioned is 0.
/// - An address is a bare operand (`tip 0x401000`, or `-` for a suppressed one). It is sent in as few bytes as the last IP
///   allows, unless `ipc=` (RTIT: `cnt=` and `zext=`) says otherwise.
/// - `raw=HEX` gives the packet's own bytes where reserved bits are set or a count is longer than it needs be.
/// - `.byte HEX…` stands for bytes that are no packet.
/// - A label names the offset of what follows; [`Assembler::line`] hands it out.
///
/// ```
/// use cofi_packet::Collected;
/// use cofi_packet::intel::Assembler;
///
/// let mut assembler = Assembler::new(Collected(Vec::new()));
/// for line in ["start: psb", "psbend", "tip.pge 0x401000 ; main", "tnt TNNT"] {
///     assembler.line(line).unwrap();
/// }
/// let Collected(bytes) = assembler.into_sink();
/// assert_eq!(bytes[16..], [0x02, 0x23, 0x51, 0x00, 0x10, 0x40, 0x00, 0x32]);
/// ```
#[derive(Clone, Debug)]
pub struct Assembler<F: Format, S> {
    encoder: Encoder<F, S>,
}

/// Why a line was not assembled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AssembleError<E> {
    /// The line is not right.
    #[error("{0}")]
    Text(TextError),
    /// The sink refused.
    #[error("{0}")]
    Sink(E),
}

/// What a line held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line<'t> {
    /// Where the line's packet begins, or the next line's if it has none.
    pub offset: StreamOffset,
    /// The label.
    pub label: Option<&'t str>,
}

/// Why a text was not assembled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {error}")]
#[non_exhaustive]
pub struct LineError {
    /// The number of the line that is not right, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub error: TextError,
}

/// The packets of a text, one in a line, as an [`Assembler`] reads each; labels have no effect.
///
/// ```
/// use cofi_packet::intel::IntelPt;
///
/// let bytes: Vec<u8> = cofi_packet::assemble::<IntelPt, _>("pad\npad", Default::default())?;
/// assert_eq!(bytes, [0, 0]);
/// # Ok::<(), cofi_packet::LineError>(())
/// ```
///
/// # Errors
/// The first line that is not right.
pub fn assemble<F: Format, B: Default + for<'b> Extend<&'b u8>>(
    text: &str,
    context: F::Context,
) -> Result<B, LineError> {
    let mut assembler = Assembler::<F, _>::in_context(Collected(B::default()), context);
    for (at, line) in text.lines().enumerate() {
        match assembler.line(line) {
            Ok(_) => {}
            Err(AssembleError::Text(error)) => {
                return Err(LineError {
                    line: at + 1,
                    error,
                });
            }
            Err(AssembleError::Sink(never)) => match never {},
        }
    }
    Ok(assembler.into_sink().0)
}

/// The line without its comment.
fn code(line: &str) -> &str {
    let end = line.find([';', '#']).unwrap_or(line.len());
    line[..end].trim()
}

fn split_word(text: &str) -> (&str, &str) {
    text.split_at(text.find([' ', '\t']).unwrap_or(text.len()))
}

fn hex_byte(word: &str) -> Result<u8, TextError> {
    let digits = matches!(word.len(), 1 | 2) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u8::from_str_radix(word, 16) {
        Ok(byte) if digits => Ok(byte),
        _ => Err(TextError::new(TextErrorKind::Byte, word)),
    }
}

impl<F: Format, S: Sink> Assembler<F, S> {
    /// Begins a stream.
    #[must_use]
    pub fn new(sink: S) -> Self {
        Self::in_context(sink, F::Context::default())
    }

    /// Begins a stream in this context.
    #[must_use]
    pub fn in_context(sink: S, context: F::Context) -> Self {
        Self {
            encoder: Encoder::in_context(sink, context),
        }
    }

    /// Where the next packet begins.
    #[must_use]
    pub const fn offset(&self) -> StreamOffset {
        self.encoder.offset()
    }

    /// Gives the sink back.
    #[must_use]
    pub fn into_sink(self) -> S {
        self.encoder.into_sink()
    }

    /// Assembles one line.
    ///
    /// # Errors
    /// [`AssembleError::Text`] when the line is not right; nothing is written then, and the next line can be tried.
    /// [`AssembleError::Sink`] when the sink refuses.
    pub fn line<'t>(&mut self, line: &'t str) -> Result<Line<'t>, AssembleError<S::Error>> {
        let offset = self.offset();
        let located = |error: TextError| AssembleError::Text(error.located(line));
        let mut rest = code(line);
        let mut label = None;
        let (first, behind) = split_word(rest);
        if let Some(name) = first.strip_suffix(':') {
            if name.is_empty() {
                let kind = TextErrorKind::Place("there is no name before the colon");
                return Err(located(TextError::new(kind, first)));
            }
            label = Some(name);
            rest = behind.trim_start();
        }
        let (name, operands) = split_word(rest);
        match name {
            "" => {}
            ".byte" => {
                for word in operands.split_ascii_whitespace() {
                    hex_byte(word).map_err(located)?;
                }
                for word in operands.split_ascii_whitespace() {
                    let byte = hex_byte(word).map_err(located)?;
                    sunk(self.encoder.bytes(&[byte]))?;
                }
            }
            _ => {
                // What may not stand here is written all the same, if it would be read as itself: bad streams are
                // wanted too.
                let raw = self.read(name, operands).map_err(located)?;
                sunk(self.encoder.raw(&raw))?;
            }
        }
        Ok(Line { offset, label })
    }

    fn read(&self, name: &str, operands: &str) -> Result<crate::Raw<F::Kind>, TextError> {
        let context = self.encoder.context();
        let mut operands = Operands::new(name, operands)?;
        let raw = operands.key("raw");
        let packet = F::parse(&mut operands, context, &mut self.encoder.last_ip())?;
        let Some(word) = raw else {
            let raw = F::encode(&packet);
            return match F::decode(context, &raw.bytes()[..raw.len()]) {
                Ok(read) if read == raw => Ok(raw),
                // As a TNT in a block, which would be read as a BIP.
                _ => Err(TextError::new(
                    TextErrorKind::Place("here these bytes would be read as another packet"),
                    name,
                )),
            };
        };
        let mut bytes = [0; MAX_PACKET];
        let len = word.len() / 2;
        if word.len() % 2 != 0 || len > MAX_PACKET || !word.is_ascii() {
            return Err(TextError::malformed(word));
        }
        for (i, byte) in bytes[..len].iter_mut().enumerate() {
            *byte = hex_byte(&word[2 * i..2 * i + 2])?;
        }
        match F::decode(context, &bytes[..len]) {
            Ok(raw) if raw.len() == len && F::packet(&raw) == packet => Ok(raw),
            _ => Err(TextError::new(TextErrorKind::Raw, word)),
        }
    }
}

fn sunk<E>(result: Result<(), EncodeError<E>>) -> Result<(), AssembleError<E>> {
    match result {
        Err(EncodeError::Sink(error)) => Err(AssembleError::Sink(error)),
        _ => Ok(()),
    }
}
