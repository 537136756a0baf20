//! The perf.data file as the recorder writes it.

use super::settings::{CORE_BUS_RATIO, RecordError, Settings};
use super::thread::{Thread, VirtualClock};
use crate::Signal;
use cofi_packet::{StreamOffset, Tsc};
use cofi_perf::{AuxFlags, Mmap2, Options, PerfTime, Remark, Task, TimeConv, WriteError, Writer};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The virtual clock's speed: 2 GHz, so that perf's time is half its ticks.
const TIME: TimeConv = TimeConv {
    shift: 31,
    mult: 1 << 30,
    zero: 0,
};

/// The file, and the bare packets of the first stream if they are wanted.
#[derive(Debug)]
pub(super) struct TraceFile {
    writer: Writer<BufWriter<File>>,
    path: PathBuf,
    raw: Option<(PathBuf, BufWriter<File>)>,
    bytes: u64,
}

fn create(path: &Path) -> Result<BufWriter<File>, RecordError> {
    let file = File::create(path).map_err(super::write_error(path))?;
    Ok(BufWriter::with_capacity(1 << 16, file))
}

fn time(tsc: Tsc) -> PerfTime {
    TIME.time_of(tsc).unwrap_or(PerfTime(0))
}

impl TraceFile {
    pub(super) fn create(settings: &Settings) -> Result<Self, RecordError> {
        let crystal = Settings::capabilities().crystal;
        let options = Options {
            config: settings.config,
            time: TIME,
            tsc_ctc_ratio: (crystal.numerator, crystal.denominator),
            max_nonturbo_ratio: CORE_BUS_RATIO.into(),
            command_line: settings.command_line.clone(),
            subject: settings.subject,
        };
        let path = settings.file.clone();
        let writer = Writer::new(create(&path)?, options).map_err(|source| RecordError::Perf {
            path: path.clone(),
            source,
        })?;
        let raw = settings
            .raw_output
            .as_ref()
            .map(|path| Ok::<_, RecordError>((path.clone(), create(path)?)))
            .transpose()?;
        Ok(Self {
            writer,
            path,
            raw,
            bytes: 0,
        })
    }

    fn check(&self, result: Result<(), WriteError>) -> Result<(), RecordError> {
        result.map_err(|source| RecordError::Perf {
            path: self.path.clone(),
            source,
        })
    }

    pub(super) fn comm(
        &mut self,
        task: Task,
        name: &str,
        exec: bool,
        clock: VirtualClock,
    ) -> Result<(), RecordError> {
        let result = self
            .writer
            .comm(task, name.as_bytes(), exec, time(clock.tsc()));
        self.check(result)
    }

    pub(super) fn fork(
        &mut self,
        task: Task,
        parent: Task,
        clock: VirtualClock,
    ) -> Result<(), RecordError> {
        let result = self.writer.fork(task, parent, time(clock.tsc()));
        self.check(result)
    }

    pub(super) fn mmap2(
        &mut self,
        task: Task,
        map: &Mmap2<'_>,
        clock: VirtualClock,
    ) -> Result<(), RecordError> {
        let result = self.writer.mmap2(task, map, time(clock.tsc()));
        self.check(result)
    }

    pub(super) fn itrace_start(
        &mut self,
        task: Task,
        clock: VirtualClock,
    ) -> Result<(), RecordError> {
        let result = self.writer.itrace_start(task, time(clock.tsc()));
        self.check(result)
    }

    pub(super) fn exit(&mut self, task: Task, clock: VirtualClock) -> Result<(), RecordError> {
        let result = self.writer.exit(task, time(clock.tsc()));
        self.check(result)
    }

    /// Reports a signal, at the place that the thread's stream has reached.
    pub(super) fn signal(&mut self, thread: &Thread, signal: &Signal) -> Result<(), RecordError> {
        let remark = Remark::Signal(cofi_perf::Signal {
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
        let result = self.writer.remark(&remark);
        self.check(result)
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
        let Some((offset, size)) = thread.announce() else {
            return Ok(());
        };
        let mode = AuxFlags::of_mode(thread.told_mode());
        let flags = flags | mode.0;
        let result = self
            .writer
            .aux(thread.task(), offset, size, flags, time(clock.tsc()));
        self.check(result)
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
        self.bytes += chunk.bytes.len() as u64;
        let (index, tid) = (thread.index, thread.tid);
        let result = self
            .writer
            .auxtrace(index, tid, chunk.offset, chunk.tsc.0, &chunk.bytes);
        self.check(result)?;
        for seals in chunk.seals.chunks(Remark::SEALS) {
            let seals = seals.to_vec();
            let result = self.writer.remark(&Remark::Seals { index, seals });
            self.check(result)?;
        }
        if let (0, Some((path, raw))) = (index, &mut self.raw) {
            raw.write_all(&chunk.bytes)
                .map_err(super::write_error(path))?;
        }
        Ok(())
    }

    /// Completes the file; how many packet bytes it holds.
    pub(super) fn finish(mut self) -> Result<u64, RecordError> {
        let result = self.writer.finished_round();
        self.check(result)?;
        if let Some((path, mut raw)) = self.raw.take() {
            raw.flush().map_err(super::write_error(&path))?;
        }
        match self.writer.finish() {
            Ok(_) => Ok(self.bytes),
            Err(source) => Err(RecordError::Perf {
                path: self.path,
                source,
            }),
        }
    }
}
