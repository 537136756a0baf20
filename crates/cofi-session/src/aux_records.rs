//! The packet streams of a perf.data file, from the records that hold their pieces and tell of their growth.

use std::borrow::Cow;
use std::collections::BTreeMap;

use cofi_packet::ExecMode;
use cofi_perf::{AuxFlags, Body, File, Record, Remark, Seal, TraceInfo};

use crate::Task;
use crate::error::Diagnostic;
use crate::perf::Contents;
use crate::stream::{Piece, RawStream, StreamKey};
use crate::timeline::{Entry, SidebandChange};

const NONE: u32 = u32::MAX;

/// The streams so far.
#[derive(Default)]
pub(crate) struct Streams<'t> {
    streams: BTreeMap<StreamKey, RawStream<'t>>,
    /// How far AUX records say that each has got.
    announced: BTreeMap<StreamKey, u64>,
    /// Processors whose stream holds one thread, and those it created, only.
    only_thread: BTreeMap<u32, u32>,
    /// From which byte of each on code runs in another mode, as AUX records of RTIT tell.
    modes: BTreeMap<StreamKey, Vec<(u64, ExecMode)>>,
    /// By the number of a stream, whose it is.
    keys: BTreeMap<u32, StreamKey>,
    /// By the same, what its recorder says that ran.
    seals: BTreeMap<u32, Vec<Seal>>,
}

impl<'t> Streams<'t> {
    /// Takes a record in, if it is about packets.
    pub(crate) fn take(
        &mut self,
        record: &Record<'_>,
        file: &File<'t>,
        info: Option<TraceInfo>,
        contents: &mut Contents<'_, 't>,
    ) {
        match record.body {
            Body::Auxtrace {
                offset,
                idx,
                tid,
                cpu,
                payload,
                stated,
                reference: _,
            } => {
                if (payload.len() as u64) < stated {
                    let text = format!(
                        "AUXTRACE record at {:#x}: {} of {stated} bytes are there",
                        record.offset,
                        payload.len()
                    );
                    contents.diagnostics.push(Diagnostic::Perf(text));
                }
                let key = match cpu {
                    NONE => StreamKey::Thread(tid),
                    cpu => StreamKey::Cpu(cpu),
                };
                self.keys.insert(idx, key);
                if cpu != NONE && tid != NONE {
                    self.only_thread.insert(cpu, tid);
                }
                let stream = self.streams.entry(key).or_default();
                stream.snapshots |= info.is_some_and(|info| info.snapshot_mode);
                stream.pieces.push(Piece::new(offset, kept(file, payload)));
            }
            Body::Remark(Remark::Seals { index, ref seals }) => {
                self.seals.entry(index).or_default().extend(seals);
            }
            // A sample that ends with the packets before it.
            Body::Sample { aux: Some(aux), .. } => {
                let Some(key) = key_of(record, info) else {
                    return;
                };
                let stream = self.streams.entry(key).or_default();
                stream.snapshots = true;
                let task = record.id.task.map(|(pid, tid)| Task { pid, tid });
                stream.pieces.push(Piece {
                    task,
                    ..Piece::new(0, kept(file, aux))
                });
            }
            Body::Aux {
                offset,
                size,
                flags,
            } => {
                if let Some(key) = key_of(record, info) {
                    self.grow(key, (offset, size, flags), record, info, contents);
                }
            }
            _ => {}
        }
    }

    fn grow(
        &mut self,
        stream: StreamKey,
        (offset, size, flags): (u64, u64, AuxFlags),
        record: &Record<'_>,
        info: Option<TraceInfo>,
        contents: &mut Contents<'_, 't>,
    ) {
        let end = offset.saturating_add(size);
        if flags.contains(AuxFlags::TRUNCATED) {
            contents
                .diagnostics
                .push(Diagnostic::Truncated { stream, at: end });
        }
        for (flag, what) in [
            (AuxFlags::PARTIAL, "the trace may have been off for a while"),
            (AuxFlags::COLLISION, "samples collided"),
        ] {
            if flags.contains(flag) {
                contents.diagnostics.push(Diagnostic::Doubtful {
                    stream,
                    at: offset,
                    len: size,
                    what,
                });
            }
        }
        // Of a ring, offsets tell nothing of how far it has got.
        let snapshots = info.is_some_and(|info| info.snapshot_mode);
        if snapshots || flags.contains(AuxFlags::OVERWRITE) {
            self.streams.entry(stream).or_default().snapshots = true;
            return;
        }
        // The hardware breaks off anywhere; this project's recorder loses no packets, but knows that something ran.
        if flags.contains(AuxFlags::TRUNCATED) && !info.is_some_and(|info| info.by_cofi) {
            self.streams.entry(stream).or_default().lost_at.push(end);
        }
        if info.is_some_and(|info| info.rtit.is_some()) {
            let modes = self.modes.entry(stream).or_default();
            let before = modes.last().map_or(ExecMode::Bits64, |(_, mode)| *mode);
            if before != flags.mode() {
                modes.push((offset, flags.mode()));
            }
        }
        if let Some(before) = self.announced.insert(stream, end).filter(|at| *at < offset) {
            contents.diagnostics.push(Diagnostic::Unannounced {
                stream,
                at: before,
                len: offset - before,
            });
        }
        contents.entries.push(Entry {
            time: record.id.time,
            what: SidebandChange::Mark { stream, end },
        });
    }

    /// Processors whose stream holds one thread, and those it created, only.
    pub(crate) const fn only_thread(&self) -> &BTreeMap<u32, u32> {
        &self.only_thread
    }

    /// From which byte of each stream on code runs in another mode than before it; at first that is 64-bit mode.
    pub(crate) fn take_modes(&mut self) -> BTreeMap<StreamKey, Vec<(u64, ExecMode)>> {
        std::mem::take(&mut self.modes)
    }

    /// What the recorder says that ran in stretches of each stream.
    pub(crate) fn take_seals(&mut self) -> BTreeMap<StreamKey, Vec<Seal>> {
        let seals = std::mem::take(&mut self.seals).into_iter();
        let keyed = seals.filter_map(|(index, seals)| Some((*self.keys.get(&index)?, seals)));
        keyed.collect()
    }

    /// Takes away what the last piece of each stream is padded with, where zeros are no packets: behind what AUX records tell of.
    pub(crate) fn without_padding(mut self) -> Self {
        for (key, stream) in &mut self.streams {
            let last = stream.pieces.iter_mut().max_by_key(|piece| piece.offset);
            let end = self.announced.get(key);
            if let (Some(piece), Some(end)) = (last, end)
                && let Some(len) = end.checked_sub(piece.offset)
                && let Some(padding) = piece
                    .bytes
                    .get(usize::try_from(len).unwrap_or(usize::MAX)..)
                && padding.len() < 8
                && padding.iter().all(|byte| *byte == 0)
            {
                piece.narrow(0..piece.bytes.len() - padding.len());
            }
        }
        self
    }

    /// The streams that have packets.
    pub(crate) fn finish(self) -> Vec<(StreamKey, RawStream<'t>)> {
        let streams = self.streams.into_iter();
        streams.filter(|(_, raw)| !raw.pieces.is_empty()).collect()
    }
}

/// The stream that a record of the kernel's is about.
fn key_of(record: &Record<'_>, info: Option<TraceInfo>) -> Option<StreamKey> {
    let per_cpu = info.is_some_and(|info| info.per_cpu);
    match (per_cpu, record.id.cpu, record.id.task) {
        (true, Some(cpu), _) => Some(StreamKey::Cpu(cpu)),
        (false, _, Some((_, tid))) => Some(StreamKey::Thread(tid)),
        _ => None,
    }
}

/// Packets for longer than the file's records: those that were compressed have to be copied.
fn kept<'t>(file: &File<'t>, packets: &[u8]) -> Cow<'t, [u8]> {
    file.part_of_input(packets)
        .map_or_else(|| packets.to_vec().into(), Cow::Borrowed)
}
