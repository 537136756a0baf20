//! Compressed records (`perf record -z`): parts of zstd frames, which never end.
//!
//! perf flushes its compressor at the end of a record, but keeps its window, and does not finish the frame. So the parts
//! are put together, cut at the blocks of which zstd's format consists, and the last block is followed by an empty one
//! that ends the frame.

use super::Cursor;
use crate::constants::RecordKind;
use crate::{Error, ErrorKind};
use ruzstd::decoding::FrameDecoder;
use std::io::Read;

/// No more than so many bytes come out for each that goes in, but for a first megabyte. What perf records becomes 3 to 30
/// times as large.
const MOST: usize = 256;
const FREE: usize = 1 << 20;
/// The largest window that zstd's levels 1 to 22 ask for.
const WINDOW: u64 = 1 << 27;
/// The block that ends a frame: the last one, raw, of no bytes.
const END: [u8; 3] = [1, 0, 0];

/// The part of a zstd stream in a record, if it is a compressed one.
pub(super) fn compressed(kind: RecordKind, body: &[u8]) -> Option<&[u8]> {
    match kind {
        RecordKind::COMPRESSED => Some(body),
        // Padded to eight bytes.
        RecordKind::COMPRESSED2 => {
            let mut c = Cursor::new(body);
            let size = usize::try_from(c.u64()?).unwrap_or(usize::MAX);
            c.rest().get(..size).or(Some(c.rest()))
        }
        _ => None,
    }
}

/// Decompresses the parts, each with the offset of its record. What comes before an error is given out.
pub(super) fn unpack(parts: &[(u64, &[u8])]) -> (Vec<u8>, Option<Error>) {
    let stream: Vec<u8> = parts.iter().flat_map(|(_, part)| *part).copied().collect();
    let limit = stream.len().saturating_mul(MOST).saturating_add(FREE);
    let (mut out, mut at) = (Vec::new(), 0);
    while at < stream.len() {
        let (len, problem) = frame(&stream[at..], limit, &mut out);
        at += len;
        if let Some(problem) = problem {
            return (out, Some(Error::new(place(parts, at), problem)));
        }
    }
    (out, None)
}

/// In which record the byte `at` of the stream is.
fn place(parts: &[(u64, &[u8])], at: usize) -> u64 {
    let mut end = 0;
    let holds = parts.iter().find(|(_, part)| {
        end += part.len();
        at < end
    });
    holds.or(parts.last()).map_or(0, |(offset, _)| *offset)
}

/// Decompresses one frame behind what `out` has; how long it is, and what is wrong behind that.
fn frame(stream: &[u8], limit: usize, out: &mut Vec<u8>) -> (usize, Option<ErrorKind>) {
    let damaged = |what| Some(ErrorKind::Zstd { what });
    let mut header = stream;
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(WINDOW);
    if decoder.init(&mut header).is_err() {
        return (0, damaged("a frame's header"));
    }
    let begin = out.len();
    let mut at = stream.len() - header.len();
    let mut problem = None;
    let mut ended = false;
    while !ended {
        let Some((len, last)) = block(&stream[at..]) else {
            // A frame that goes on to the end, as perf's do, is whole if a block ends there.
            if at < stream.len() {
                problem = damaged("a block that is cut off");
            }
            break;
        };
        match decode(&mut decoder, &stream[at..at + len], limit, out) {
            Ok(()) => at += len,
            Err(kind) => {
                problem = Some(kind);
                break;
            }
        }
        ended = last;
    }
    if problem.is_some_and(|kind| matches!(kind, ErrorKind::ZstdTooMuch { .. })) {
        return (at, problem);
    }
    // The decoder holds its window back until the frame ends, and gives none of it out after an error: so what was good
    // is decoded anew in that case.
    if problem.is_some() {
        out.truncate(begin);
        let (before, again) = frame_of(&stream[..at], limit, out);
        debug_assert!(again.is_none() && before);
    } else if !ended {
        let end = decode(&mut decoder, &END, limit, out);
        problem = end.err();
    }
    // The checksum that may follow.
    if ended && header_has_checksum(stream) {
        at = (at + 4).min(stream.len());
    }
    (at, problem)
}

/// Decompresses a frame of whole and sound blocks.
fn frame_of(blocks: &[u8], limit: usize, out: &mut Vec<u8>) -> (bool, Option<ErrorKind>) {
    let mut header = blocks;
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(WINDOW);
    if decoder.init(&mut header).is_err() {
        return (false, None);
    }
    let mut rest = header;
    while let Some((len, _)) = block(rest) {
        if let Err(kind) = decode(&mut decoder, &rest[..len], limit, out) {
            return (false, Some(kind));
        }
        rest = &rest[len..];
    }
    (true, decode(&mut decoder, &END, limit, out).err())
}

/// Whether a frame that begins here has a checksum at its end.
fn header_has_checksum(frame: &[u8]) -> bool {
    frame.get(4).is_some_and(|descriptor| descriptor & 4 != 0)
}

/// The length of the block that begins here, if all of it is there, and whether it is the frame's last.
fn block(bytes: &[u8]) -> Option<(usize, bool)> {
    const RLE: u32 = 1;
    let [a, b, c] = *bytes.first_chunk::<3>()?;
    let header = u32::from_le_bytes([a, b, c, 0]);
    let size = match header >> 1 & 3 {
        RLE => 1,
        _ => (header >> 3) as usize,
    };
    let len = 3 + size;
    (len <= bytes.len()).then_some((len, header & 1 != 0))
}

/// Gives a block to the decoder and takes out whatever it gives.
fn decode(
    decoder: &mut FrameDecoder,
    block: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), ErrorKind> {
    let mut buffer = [0; 1 << 14];
    let damaged = ErrorKind::Zstd { what: "a block" };
    let (_, mut written) = decoder
        .decode_from_to(block, &mut buffer)
        .map_err(|_| damaged)?;
    while written != 0 {
        if out.len() + written > limit {
            return Err(ErrorKind::ZstdTooMuch { limit });
        }
        out.extend(&buffer[..written]);
        written = decoder.read(&mut buffer).map_err(|_| damaged)?;
    }
    Ok(())
}
