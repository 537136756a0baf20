//! Perfetto's traces: a protobuf packet for each call and each end of one.

use std::io::{self, Write};

use cofi_analysis::FinishedCall;
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::{Exporter, FrameId, Frames, Track};

/// `perfetto.protos.TracePacket`, as far as it is written. Numbers of fields are those of Perfetto's `protos/perfetto/trace`.
#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(int32, optional, tag = "9")]
    r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct InternedData {
    #[prost(message, repeated, tag = "2")]
    event_names: Vec<EventName>,
}

#[derive(Clone, PartialEq, Message)]
struct EventName {
    #[prost(uint64, optional, tag = "1")]
    iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    thread_name: Option<String>,
}

const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const STATE_CLEARED: u32 = 1;
const NEEDS_STATE: u32 = 2;

/// The field of `perfetto.protos.Trace` that holds packets, and its wire type.
const PACKET: u8 = 1 << 3 | 2;

/// Writes packets. An instruction is shown as a nanosecond.
pub(super) struct Perfetto<W> {
    out: W,
    tracks: Vec<Track>,
    track: u64,
    /// Functions whose names were told, by number.
    known: Vec<bool>,
    bytes: Vec<u8>,
    is_first: bool,
}

impl<W: Write> Perfetto<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            tracks: Vec::new(),
            track: 0,
            known: Vec::new(),
            bytes: Vec::new(),
            is_first: true,
        }
    }

    fn put(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(1);
        packet.sequence_flags = Some(match std::mem::take(&mut self.is_first) {
            true => STATE_CLEARED | NEEDS_STATE,
            false => NEEDS_STATE,
        });
        self.bytes.clear();
        self.bytes.push(PACKET);
        packet
            .encode_length_delimited(&mut self.bytes)
            .map_err(io::Error::other)?;
        self.out.write_all(&self.bytes)
    }

    /// Writes the packet of a call, or of the end of one, if nothing else is to be told in it.
    fn event(&mut self, at: u64, name: Option<u64>) -> io::Result<()> {
        if self.is_first {
            return self.put(TracePacket::event(at, name, self.track));
        }
        encode_event(&mut self.bytes, at, name, self.track);
        self.out.write_all(&self.bytes)
    }
}

impl TracePacket {
    /// A call of a function begins, or ends if none is named.
    fn event(at: u64, name: Option<u64>, track: u64) -> Self {
        Self {
            timestamp: Some(at),
            track_event: Some(TrackEvent {
                r#type: Some(if name.is_some() {
                    SLICE_BEGIN
                } else {
                    SLICE_END
                }),
                name_iid: name,
                track_uuid: Some(track),
            }),
            ..Self::default()
        }
    }
}

/// What prost makes of [`TracePacket::event`], in a fraction of the time: most of a trace are such packets.
fn encode_event(bytes: &mut Vec<u8>, at: u64, name: Option<u64>, track: u64) {
    const TIMESTAMP: u8 = 8 << 3;
    const SEQUENCE_ID: u8 = 10 << 3;
    const TRACK_EVENT: u8 = 11 << 3 | 2;
    const SEQUENCE_FLAGS: u8 = 13 << 3;
    const TYPE: u8 = 9 << 3;
    const NAME_IID: u8 = 10 << 3;
    const TRACK_UUID: u8 = 11 << 3;
    let event = 2 + name.map_or(0, |name| 1 + encoded_len_varint(name));
    let event = event + 1 + encoded_len_varint(track);
    let packet = 1 + encoded_len_varint(at) + 2 + 1 + encoded_len_varint(event as u64) + event + 2;
    bytes.clear();
    bytes.push(PACKET);
    encode_varint(packet as u64, bytes);
    bytes.push(TIMESTAMP);
    encode_varint(at, bytes);
    bytes.extend_from_slice(&[SEQUENCE_ID, 1, TRACK_EVENT]);
    encode_varint(event as u64, bytes);
    let kind = if name.is_some() {
        SLICE_BEGIN
    } else {
        SLICE_END
    };
    bytes.extend_from_slice(&[TYPE, kind as u8]);
    if let Some(name) = name {
        bytes.push(NAME_IID);
        encode_varint(name, bytes);
    }
    bytes.push(TRACK_UUID);
    encode_varint(track, bytes);
    bytes.extend_from_slice(&[SEQUENCE_FLAGS, NEEDS_STATE as u8]);
}

impl<W: Write> Exporter for Perfetto<W> {
    fn begin_part(&mut self, track: &Track, _: u64) -> io::Result<()> {
        let known = self.tracks.iter().rposition(|known| known == track);
        // Number 0 is Perfetto's own.
        self.track = known.unwrap_or(self.tracks.len()) as u64 + 1;
        if known.is_some() {
            return Ok(());
        }
        self.tracks.push(track.clone());
        let number = |number: u32| i32::try_from(number).ok();
        self.put(TracePacket {
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(self.track),
                name: Some(track.name.clone()),
                thread: Some(ThreadDescriptor {
                    pid: number(track.task.pid),
                    tid: number(track.task.tid),
                    thread_name: Some(track.name.clone()),
                }),
            }),
            ..TracePacket::default()
        })
    }

    fn enter(
        &mut self,
        frame: FrameId,
        at: u64,
        _: Option<&FinishedCall>,
        frames: &Frames,
    ) -> io::Result<()> {
        let iid = Some(u64::from(frame.0) + 1);
        let number = frame.0 as usize;
        if self.known.get(number).is_some_and(|is_known| *is_known) {
            return self.event(at, iid);
        }
        if self.known.len() <= number {
            self.known.resize(number + 1, false);
        }
        self.known[number] = true;
        self.put(TracePacket {
            interned_data: Some(InternedData {
                event_names: vec![EventName {
                    iid,
                    name: Some(frames.name(frame).to_owned()),
                }],
            }),
            ..TracePacket::event(at, iid, self.track)
        })
    }

    fn leave(&mut self, _: FrameId, at: u64) -> io::Result<()> {
        self.event(at, None)
    }

    fn end_part(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Frames) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_encoded_as_prost_does() {
        let numbers = [1, 127, 128, 1 << 20, u64::MAX];
        for at in numbers {
            for track in numbers {
                for name in [None, Some(1), Some(300), Some(1 << 40)] {
                    let packet = TracePacket {
                        trusted_packet_sequence_id: Some(1),
                        sequence_flags: Some(NEEDS_STATE),
                        ..TracePacket::event(at, name, track)
                    };
                    let mut wanted = vec![PACKET];
                    let encoded = packet.encode_length_delimited(&mut wanted);
                    encoded.expect("there is room");
                    let mut bytes = vec![0xa5; 3];
                    encode_event(&mut bytes, at, name, track);
                    assert_eq!(bytes, wanted, "{packet:?}");
                }
            }
        }
    }
}
