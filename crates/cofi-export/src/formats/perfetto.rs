//! Perfetto's traces: a protobuf packet for each call and each end of one.

use std::collections::HashSet;
use std::io::{self, Write};

use cofi_analysis::FinishedCall;
use prost::Message;

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
    known: HashSet<FrameId>,
    bytes: Vec<u8>,
    is_first: bool,
}

impl<W: Write> Perfetto<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            tracks: Vec::new(),
            track: 0,
            known: HashSet::new(),
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
        let interned_data = self.known.insert(frame).then(|| InternedData {
            event_names: vec![EventName {
                iid,
                name: Some(frames.name(frame).to_owned()),
            }],
        });
        self.put(TracePacket {
            timestamp: Some(at),
            track_event: Some(TrackEvent {
                r#type: Some(SLICE_BEGIN),
                name_iid: iid,
                track_uuid: Some(self.track),
            }),
            interned_data,
            ..TracePacket::default()
        })
    }

    fn leave(&mut self, _: FrameId, at: u64) -> io::Result<()> {
        self.put(TracePacket {
            timestamp: Some(at),
            track_event: Some(TrackEvent {
                r#type: Some(SLICE_END),
                name_iid: None,
                track_uuid: Some(self.track),
            }),
            ..TracePacket::default()
        })
    }

    fn end_part(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Frames) -> io::Result<()> {
        self.out.flush()
    }
}
