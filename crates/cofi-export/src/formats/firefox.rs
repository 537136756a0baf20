//! The Firefox Profiler's processed profile.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::SystemTime;

use cofi_analysis::FinishedCall;
use cofi_session::Task;
use fxprof_processed_profile::{
    CategoryHandle, CpuDelta, Frame, FrameFlags, FrameHandle, FrameInfo, ProcessHandle, Profile,
    ReferenceTimestamp, SamplingInterval, StackHandle, ThreadHandle, Timestamp, WeightType,
};

use super::CREATOR;
use crate::{Exporter, FrameId, Frames, Track, Weight};

/// A profile is in memory until it is written: so many samples.
const MOST: u64 = 1 << 22;

/// Makes a sample wherever another function goes on, which weighs as much as ran up to the next.
pub(super) struct Firefox<W> {
    out: W,
    weight: Weight,
    profile: Profile,
    processes: HashMap<u32, ProcessHandle>,
    threads: HashMap<Task, ThreadHandle>,
    thread: Option<ThreadHandle>,
    stack: Vec<StackHandle>,
    /// The functions of the thread, by number.
    frames: Vec<Option<FrameHandle>>,
    last: u64,
    samples: u64,
}

impl<W: Write> Firefox<W> {
    pub(super) fn new(weight: Weight, out: W) -> Self {
        let begin = ReferenceTimestamp::from_system_time(SystemTime::UNIX_EPOCH);
        let interval = SamplingInterval::from_nanos(1);
        let product = format!("{CREATOR}, calls by {}", weight.unit());
        Self {
            out,
            weight,
            profile: Profile::new(&product, begin, interval),
            processes: HashMap::new(),
            threads: HashMap::new(),
            thread: None,
            stack: Vec::new(),
            frames: Vec::new(),
            last: 0,
            samples: 0,
        }
    }

    /// Time passes up to `at`.
    fn pass(&mut self, at: u64) -> io::Result<()> {
        let begin = std::mem::replace(&mut self.last, at);
        let mut passed = at.saturating_sub(begin);
        let Some(thread) = self.thread else {
            return Ok(());
        };
        let mut delta = match self.weight {
            Weight::Time => CpuDelta::from_nanos(passed),
            Weight::Instructions => CpuDelta::ZERO,
        };
        // A sample's weight has 31 bits.
        while passed > 0 {
            let weight = i32::try_from(passed).unwrap_or(i32::MAX);
            passed -= u64::from(weight.unsigned_abs());
            self.samples += 1;
            if self.samples > MOST {
                return Err(io::Error::other(format!(
                    "a profile of more than {MOST} samples: choose a part, by --from, --until or --tid"
                )));
            }
            let time = Timestamp::from_nanos_since_reference(begin);
            let stack = self.stack.last().copied();
            self.profile.add_sample(thread, time, stack, delta, weight);
            delta = CpuDelta::ZERO;
        }
        Ok(())
    }
}

impl<W: Write> Exporter for Firefox<W> {
    fn begin_part(&mut self, track: &Track, at: u64) -> io::Result<()> {
        let Self {
            profile,
            processes,
            threads,
            ..
        } = self;
        let Task { pid, tid } = track.task;
        let begin = Timestamp::from_nanos_since_reference(at);
        let process = *processes
            .entry(pid)
            .or_insert_with(|| profile.add_process(&track.name, pid, begin));
        let thread = *threads.entry(track.task).or_insert_with(|| {
            let thread = profile.add_thread(process, tid, begin, pid == tid);
            profile.set_thread_name(thread, &track.name);
            profile.set_thread_samples_weight_type(thread, WeightType::Samples);
            thread
        });
        self.thread = Some(thread);
        self.stack.clear();
        self.frames.clear();
        self.last = at;
        Ok(())
    }

    fn enter(
        &mut self,
        frame: FrameId,
        at: u64,
        _: Option<&FinishedCall>,
        frames: &Frames,
    ) -> io::Result<()> {
        self.pass(at)?;
        let Some(thread) = self.thread else {
            return Ok(());
        };
        let number = frame.0 as usize;
        if self.frames.len() <= number {
            self.frames.resize(number + 1, None);
        }
        let frame = *self.frames[number].get_or_insert_with(|| {
            let name = self.profile.intern_string(frames.name(frame));
            let info = FrameInfo {
                frame: Frame::Label(name),
                category_pair: CategoryHandle::OTHER.into(),
                flags: FrameFlags::empty(),
            };
            self.profile.intern_frame(thread, info)
        });
        let around = self.stack.last().copied();
        self.stack
            .push(self.profile.intern_stack(thread, around, frame));
        Ok(())
    }

    fn leave(&mut self, _: FrameId, at: u64) -> io::Result<()> {
        self.pass(at)?;
        self.stack.pop();
        Ok(())
    }

    fn end_part(&mut self, at: u64) -> io::Result<()> {
        if let Some(thread) = self.thread.take() {
            let end = Timestamp::from_nanos_since_reference(at);
            self.profile.set_thread_end_time(thread, end);
        }
        Ok(())
    }

    fn finish(&mut self, _: &Frames) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, &self.profile)?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }
}
