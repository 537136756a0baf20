//! The perf.data file as the recorder writes it.

use super::output::Output;
use super::settings::{CORE_BUS_RATIO, RecordError, Settings};
use super::sink::Sink;
use super::thread::{Chunk, Growth, Ring, Thread, VirtualClock};
use super::write_error;
use crate::Signal;
use cofi_packet::{StreamOffset, Tsc};
use cofi_perf::{
    AuxFlags, Mmap2, PerfTime, Remark, Task, TimeConv, WriteError, Writer, WriterOptions,
};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The virtual clock's speed: 2 GHz, so that perf's time is half its ticks.
const TIME: TimeConv = TimeConv {
    shift: 31,
    mult: 1 << 30,
    zero: 0,
};

/// Room for what is said at the end: what is missing, the features, their index.
const LAST_WORDS: u64 = 12 << 10;
/// Where it is not known how much room there is, so many bytes of packets are tried.
const LAST_PACKETS: u64 = 64 << 10;

/// The file, and the bare packets of the first stream if they are wanted.
#[derive(Debug)]
pub(super) struct TraceFile {
    /// Nothing, once writing has failed or is over: what is told then is not written.
    writer: Option<Writer<Sink>>,
    path: PathBuf,
    output: Output,
    raw: Option<Raw>,
    /// Why bare packets could not be written any more.
    pub(super) raw_error: Option<RecordError>,
    bytes: u64,
}

/// Where bare packets go.
#[derive(Debug)]
struct Raw {
    path: PathBuf,
    output: Output,
    file: File,
}

impl Raw {
    fn create(path: &Path) -> io::Result<Self> {
        let (output, file) = Output::create_stream(path)?;
        Ok(Self {
            path: path.to_owned(),
            output,
            file,
        })
    }
}

fn time(tsc: Tsc) -> PerfTime {
    TIME.time_of(tsc).unwrap_or(PerfTime(0))
}

impl TraceFile {
    pub(super) fn create(settings: &Settings) -> Result<Self, RecordError> {
        let crystal = Settings::capabilities().crystal;
        let mut options = WriterOptions::new(settings.config, TIME);
        options.tsc_ctc_ratio = (crystal.numerator, crystal.denominator);
        options.max_nonturbo_ratio = CORE_BUS_RATIO.into();
        options.command_line = settings.command_line.clone();
        options.subject = settings.subject;
        let path = settings.file.clone();
        let opened =
            Output::create(&path).and_then(|(output, file)| Ok((output, Sink::new(file)?)));
        let (output, sink) = opened.map_err(write_error(&path))?;
        let began = Remark::Began {
            engine: settings.engine.as_bytes(),
        };
        let writer = Writer::new(sink, options).and_then(|mut writer| {
            writer.remark(&began)?;
            writer.flush()?;
            Ok(writer)
        });
        let writer = writer.map_err(|source| RecordError::of(&path, source))?;
        let raw = settings.raw_output.as_ref();
        let raw = raw
            .map(|path| Raw::create(path).map_err(write_error(path)))
            .transpose()?;
        Ok(Self {
            writer: Some(writer),
            path,
            output,
            raw,
            raw_error: None,
            bytes: 0,
        })
    }

    /// Puts the files where they belong.
    pub(super) fn commit(&mut self) -> Result<(), RecordError> {
        self.output.commit().map_err(write_error(&self.path))?;
        match &mut self.raw {
            Some(raw) => raw.output.commit().map_err(write_error(&raw.path)),
            None => Ok(()),
        }
    }

    /// Writes, or leaves the file as it was before.
    fn write(
        &mut self,
        write: impl FnOnce(&mut Writer<Sink>) -> Result<(), WriteError>,
    ) -> Result<(), RecordError> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        let mark = writer.mark();
        write(writer).map_err(|source| {
            writer.back_to(mark);
            writer.get_mut().take_back(mark.at);
            RecordError::of(&self.path, source)
        })
    }

    /// Says what perf has no record for.
    pub(super) fn remark(&mut self, remark: &Remark<'_>) -> Result<(), RecordError> {
        self.write(|writer| writer.remark(remark))
    }

    /// Hands everything so far to the system: it is there even if we are killed.
    pub(super) fn flush(&mut self) -> Result<(), RecordError> {
        self.write(Writer::flush)?;
        self.write_raw(&[]);
        Ok(())
    }

    /// Where bare packets cannot be written, the trace can.
    fn write_raw(&mut self, bytes: &[u8]) {
        let Some(raw) = &mut self.raw else { return };
        let written = raw.file.write_all(bytes).and_then(|()| raw.file.flush());
        if let Err(error) = written {
            self.raw_error = Some(write_error(&raw.path)(error));
            self.raw = None;
        }
    }

    pub(super) fn comm(
        &mut self,
        task: Task,
        name: &str,
        exec: bool,
        clock: VirtualClock,
    ) -> Result<(), RecordError> {
        self.write(|writer| writer.comm(task, name.as_bytes(), exec, time(clock.tsc())))
    }

    pub(super) fn fork(
        &mut self,
        task: Task,
        parent: Task,
        clock: VirtualClock,
    ) -> Result<(), RecordError> {
        self.write(|writer| writer.fork(task, parent, time(clock.tsc())))
    }

    pub(super) fn mmap2(
        &mut self,
        task: Task,
        map: &Mmap2<'_>,
        clock: VirtualClock,
    ) -> Result<(), RecordError> {
        self.write(|writer| writer.mmap2(task, map, time(clock.tsc())))
    }

    pub(super) fn itrace_start(
        &mut self,
        task: Task,
        clock: VirtualClock,
    ) -> Result<(), RecordError> {
        self.write(|writer| writer.itrace_start(task, time(clock.tsc())))
    }

    pub(super) fn exit(&mut self, task: Task, clock: VirtualClock) -> Result<(), RecordError> {
        self.write(|writer| writer.exit(task, time(clock.tsc())))
    }

    /// Reports a signal, at the place that the thread's stream has reached.
    pub(super) fn signal(&mut self, thread: &Thread, signal: &Signal) -> Result<(), RecordError> {
        let remark = Remark::Signal(cofi_perf::SignalRemark {
            pid: thread.pid,
            tid: thread.tid,
            index: thread.index,
            offset: StreamOffset(thread.stream_len()),
            signal: signal.number,
            code: signal.code,
            ip: signal.ip.map(|ip| ip.0),
            address: signal.address,
            is_fatal: signal.is_fatal,
        });
        self.remark(&remark)
    }

    /// Tells how far a stream has got.
    pub(super) fn announce(
        &mut self,
        thread: &mut Thread,
        clock: VirtualClock,
    ) -> Result<(), RecordError> {
        self.announce_with(thread, clock, 0)
    }

    /// Tells how far a stream has got, and that something is missing there.
    pub(super) fn announce_loss(
        &mut self,
        thread: &mut Thread,
        clock: VirtualClock,
    ) -> Result<(), RecordError> {
        const AUX_FLAG_TRUNCATED: u64 = 1;
        self.announce_with(thread, clock, AUX_FLAG_TRUNCATED)
    }

    fn announce_with(
        &mut self,
        thread: &mut Thread,
        clock: VirtualClock,
        flags: u64,
    ) -> Result<(), RecordError> {
        let Some((offset, size)) = thread.unannounced() else {
            return Ok(());
        };
        let mode = AuxFlags::of_mode(thread.told_mode());
        let flags = flags | mode.0;
        let (task, time) = (thread.task(), time(clock.tsc()));
        if let Some(ring) = thread.ring_mut() {
            ring.grew(Growth {
                task,
                offset,
                size,
                flags,
                time,
            });
        } else {
            self.write(|writer| writer.aux(task, offset, size, flags, time))?;
        }
        thread.announced();
        Ok(())
    }

    /// Writes what has gathered of a stream: up to its last PSB, or all.
    pub(super) fn write_stream(
        &mut self,
        thread: &mut Thread,
        all: bool,
    ) -> Result<(), RecordError> {
        let Some(chunk) = thread.take(all) else {
            return Ok(());
        };
        let result = self.write_chunk((thread.index, thread.tid), &chunk);
        match result {
            Ok(()) => self.bytes += chunk.bytes.len() as u64,
            // There may be room for a part of it.
            Err(_) => thread.put_back(chunk),
        }
        result
    }

    fn write_chunk(&mut self, (index, tid): (u32, u32), chunk: &Chunk) -> Result<(), RecordError> {
        self.write(|writer| {
            writer.auxtrace(index, tid, chunk.offset, chunk.tsc.0, &chunk.bytes)?;
            // Its place in the index at the end.
            writer.get_mut().keep_more(16);
            for seals in chunk.seals.chunks(Remark::SEALS) {
                let seals = seals.to_vec();
                writer.remark(&Remark::Seals { index, seals })?;
            }
            Ok(())
        })?;
        if index == 0 {
            self.write_raw(&chunk.bytes);
        }
        Ok(())
    }

    /// Whether there is room for so many bytes more, as far as that is known.
    pub(super) fn has_room(&mut self, bytes: u64) -> bool {
        let writer = self.writer.as_mut();
        writer.is_none_or(|writer| writer.get_mut().has_room(bytes))
    }

    /// Writes what is kept of a stream. What could not be written stays in the ring.
    pub(super) fn write_ring(
        &mut self,
        (index, tid): (u32, u32),
        ring: &mut Ring,
    ) -> Result<(), RecordError> {
        while let Some(chunk) = ring.first() {
            self.write_chunk((index, tid), chunk)?;
            self.bytes += chunk.bytes.len() as u64;
            ring.first_written();
        }
        // Readers put records in order by their times, which are those at which the stream had got so far.
        while let Some(&growth) = ring.first_growth() {
            let Growth {
                task,
                offset,
                size,
                flags,
                time,
            } = growth;
            self.write(|writer| writer.aux(task, offset, size, flags, time))?;
            ring.growth_written();
        }
        Ok(())
    }

    /// Nothing can be written any more but the last words, for which room was kept; how much there is for packets.
    pub(super) fn begin_last_words(&mut self) -> u64 {
        let Some(writer) = &mut self.writer else {
            return 0;
        };
        let room = writer.get_mut().end().unwrap_or(LAST_PACKETS);
        room.saturating_sub(LAST_WORDS)
    }

    /// Writes as much of what has gathered of a stream as finds room; how many bytes do not.
    pub(super) fn write_last(
        &mut self,
        thread: &mut Thread,
        clock: VirtualClock,
        room: u64,
    ) -> Result<usize, RecordError> {
        // Header, padding, and its place in the index.
        let limit = usize::try_from(room.saturating_sub(128)).unwrap_or(usize::MAX);
        let waiting = thread.waiting();
        let Some(chunk) = thread.take_last(limit) else {
            return Ok(waiting);
        };
        let left = waiting - chunk.bytes.len();
        self.announce(thread, clock)?;
        self.bytes += chunk.bytes.len() as u64;
        self.write_chunk((thread.index, thread.tid), &chunk)?;
        Ok(left)
    }

    /// Completes the file; how many packet bytes it holds. Nothing is written then any more.
    pub(super) fn finish(&mut self) -> Result<u64, RecordError> {
        self.write(|writer| {
            writer.remark(&Remark::Finished)?;
            writer.finished_round()
        })?;
        let Some(writer) = self.writer.take() else {
            return Ok(self.bytes);
        };
        let completed = writer
            .finish()
            .and_then(|sink| sink.complete().map_err(WriteError::from));
        completed.map_err(|source| RecordError::of(&self.path, source))?;
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofi_perf::TraceConfig;

    #[test]
    fn what_found_no_room_for_its_aux_record_is_told_of_later() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            file: folder.path().join("cofi.data"),
            raw_output: None,
            config: TraceConfig::of_lists(["tsc,branch"]).unwrap(),
            command_line: Vec::new(),
            subject: cofi_perf::Subject::Processes,
            engine: "ptrace".into(),
            patience: Settings::PATIENCE,
            last: None,
            window: None,
        };
        let mut file = TraceFile::create(&settings).unwrap();
        let clock = VirtualClock::new();
        let mut thread = Thread::start((7, 7, 0, 0), settings.setup(), clock).unwrap();
        thread.resume_user(
            clock,
            cofi_packet::Ip(0x1000),
            cofi_packet::ExecMode::Bits64,
        );
        let waiting = thread.waiting();
        assert_ne!(waiting, 0);
        file.writer
            .as_mut()
            .unwrap()
            .get_mut()
            .limit_to_what_is_kept();
        file.announce(&mut thread, clock).unwrap_err();
        assert_eq!(
            thread.unannounced(),
            Some((StreamOffset(0), waiting as u64))
        );
        // The last words have room.
        let room = file.begin_last_words();
        assert_eq!(file.write_last(&mut thread, clock, room).unwrap(), 0);
        assert_eq!(thread.unannounced(), None);
    }
}
