//! One traced thread: a processor of its own with a trace unit in it.

mod machine;

use crate::Runs;
use cofi_insn::{Class, Insn};
use cofi_packet::intel::PSB;
use cofi_packet::{ExecMode, Ip, StreamOffset, Tsc};
use cofi_perf::Task;
use cofi_unit::{
    At, Branch, Capabilities, Client, Clock, Context, Ctl, Destination, Event, Fault, PhysAddr,
    Retired, Unit, msr,
};

/// Where system calls, faults and interrupts lead: somewhere in the kernel, which is not traced.
const KERNEL: Ip = Ip(0xffff_ffff_8000_0000);

/// The virtual clock's start; a trace whose first TSC is 0 counts as timeless in perf.
pub(crate) const FIRST_TICK: u64 = 1 << 20;

/// The clock that all threads share: two core cycles and as many TSC ticks for every instruction that any of them
/// retires. perf estimates times between packets at that very speed; a faster clock of ours would make it place
/// mappings too early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VirtualClock(u64);

impl VirtualClock {
    pub(crate) const fn new() -> Self {
        Self(FIRST_TICK)
    }

    /// An instruction retired.
    pub(crate) const fn tick(&mut self) {
        self.ticks(1);
    }

    /// So many instructions retired.
    pub(crate) const fn ticks(&mut self, instructions: u64) {
        self.0 += 2 * instructions;
    }

    /// How many instructions retired from `before` on, if nothing else happened.
    pub(crate) const fn instructions_since(self, before: Self) -> u64 {
        (self.0 - before.0) / 2
    }

    /// Something happens that must be told apart in time from what was before.
    pub(crate) const fn pause(&mut self) {
        self.0 += 16;
    }

    pub(crate) const fn tsc(self) -> Tsc {
        Tsc(self.0)
    }
}

/// Packet bytes that have not been written to the file yet.
#[derive(Debug, Default)]
struct Buffer {
    clock: u64,
    bytes: Vec<u8>,
    /// Offset in the stream of `bytes[0]`.
    start: u64,
    /// The clock when `bytes[0]` was sent.
    start_tsc: u64,
    /// Index of the last PSB in `bytes` but for one at its start, and the clock when it was sent.
    cut: Option<(usize, u64)>,
}

impl Client for Buffer {
    fn now(&mut self) -> Clock {
        Clock {
            tsc: self.clock,
            cycles: self.clock,
        }
    }

    // The unit's region stands for a trace port: what is stored there is taken away at once (33.2.7.1).
    fn store(&mut self, _address: PhysAddr, bytes: &[u8]) {
        if self.bytes.is_empty() {
            self.start_tsc = self.clock;
        } else if bytes == PSB {
            self.cut = Some((self.bytes.len(), self.clock));
        }
        match *bytes {
            // Most packets have one of these sizes: a call of `memcpy` takes longer than the copy.
            [a] => self.bytes.push(a),
            [a, b] => self.bytes.extend_from_slice(&[a, b]),
            [a, b, c] => self.bytes.extend_from_slice(&[a, b, c]),
            [a, b, c, d, e] => self.bytes.extend_from_slice(&[a, b, c, d, e]),
            _ => self.bytes.extend_from_slice(bytes),
        }
    }
}

/// A piece of a stream, ready to be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) offset: StreamOffset,
    pub(crate) tsc: Tsc,
    pub(crate) bytes: Vec<u8>,
}

/// One thread's trace unit and what it has sent.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// Number of its stream.
    pub(crate) index: u32,
    unit: Unit,
    buffer: Buffer,
    ctl: Ctl,
    context: Context,
    /// The instruction that runs next, while in user space.
    ip: Option<Ip>,
    /// Stream bytes that an AUX record has told of.
    announced: u64,
    /// A TSC packet is owed at the next return to user space.
    time_owed: bool,
}

/// A near instruction of this class retired at `at`, and control went to `next`.
#[inline(always)]
fn retired(class: Class, at: At, next: Ip) -> Retired {
    let branch = match class {
        // A branch to its own successor goes there either way; hardware calls it taken if its condition held, which
        // single steps do not show. Both decode to the same flow.
        Class::Conditional => Branch::Conditional((next != at.next).then_some(next)),
        Class::DirectJump => Branch::DirectJump(next),
        Class::DirectCall => Branch::DirectCall(next),
        Class::IndirectJump => Branch::IndirectJump(next),
        Class::IndirectCall => Branch::IndirectCall(next),
        Class::Return => Branch::Return(next),
        _ => Branch::None,
    };
    Retired { at, branch }
}

/// All threads that are traced. Mostly the one that was asked for last is asked for again.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    list: Vec<Thread>,
    last: usize,
}

impl Threads {
    #[inline]
    pub(crate) fn get_mut(&mut self, tid: u32) -> Option<&mut Thread> {
        if self
            .list
            .get(self.last)
            .is_none_or(|thread| thread.tid != tid)
        {
            self.last = self.list.iter().position(|thread| thread.tid == tid)?;
        }
        self.list.get_mut(self.last)
    }

    /// Adds a thread, in the place of one with the same number.
    pub(crate) fn insert(&mut self, thread: Thread) {
        self.remove(thread.tid);
        self.list.push(thread);
    }

    pub(crate) fn remove(&mut self, tid: u32) -> Option<Thread> {
        let at = self.list.iter().position(|thread| thread.tid == tid)?;
        Some(self.list.remove(at))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Thread> {
        self.list.iter()
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Thread> {
        self.list.iter_mut()
    }
}

/// The output region that the unit is given: one page of address space, written round and round.
const REGION_MASK: u64 = 0xfff;

impl Thread {
    /// A thread that is in the kernel, traced from now on; its stream begins at `offset`.
    ///
    /// # Errors
    /// The #GP of the first register write that the unit refuses: the configuration asks for what it does not have.
    pub(crate) fn start(
        (pid, tid, index, offset): (u32, u32, u32, u64),
        ctl: Ctl,
        caps: Capabilities,
        core_bus_ratio: u8,
        clock: VirtualClock,
    ) -> Result<Self, Fault> {
        let context = Context {
            cpl: 0,
            mode: ExecMode::Bits64,
            ..Context::default()
        };
        let ids = (pid, tid, index, offset);
        Self::start_in(ids, ctl, caps, core_bus_ratio, clock, context, None)
    }

    /// As [`Self::start`], in this context, and before the instruction at `ip` if that is traced.
    fn start_in(
        (pid, tid, index, offset): (u32, u32, u32, u64),
        ctl: Ctl,
        caps: Capabilities,
        core_bus_ratio: u8,
        clock: VirtualClock,
        context: Context,
        ip: Option<Ip>,
    ) -> Result<Self, Fault> {
        let mut thread = Self {
            pid,
            tid,
            index,
            unit: Unit::new(caps, context),
            buffer: Buffer {
                clock: clock.0,
                start: offset,
                ..Buffer::default()
            },
            ctl,
            context,
            ip,
            announced: offset,
            time_owed: false,
        };
        let ratio = Event::Frequency {
            stopped_at: None,
            ratio: core_bus_ratio,
        };
        thread.unit.event(&mut thread.buffer, ratio);
        thread.write(msr::IA32_RTIT_OUTPUT_MASK_PTRS, REGION_MASK)?;
        thread.write(msr::IA32_RTIT_CTL, ctl.with_trace_en(true).0)?;
        Ok(thread)
    }

    fn write(&mut self, register: u32, value: u64) -> Result<(), Fault> {
        let ip = self.ip.unwrap_or(KERNEL);
        self.unit
            .wrmsr(&mut self.buffer, At { ip, next: ip }, register, value)
    }

    /// Sets or clears TraceEn; the rest of the register has been accepted before, so this cannot fault.
    fn set_trace_en(&mut self, on: bool) {
        let result = self.write(msr::IA32_RTIT_CTL, self.ctl.with_trace_en(on).0);
        debug_assert_eq!(result, Ok(()), "the register took this value at the start");
    }

    pub(crate) fn retired(&mut self, clock: VirtualClock, ip: Ip, insn: &Insn, next: Ip) {
        self.buffer.clock = clock.0;
        self.ip = Some(next);
        let after = insn.next_ip(ip, self.context.mode);
        let retired = retired(insn.class, At { ip, next: after }, next);
        self.unit.retire(&mut self.buffer, retired);
    }

    /// These blocks ran; `clock` goes on with them.
    pub(crate) fn ran(&mut self, clock: &mut VirtualClock, runs: &mut Runs<'_>) {
        let mut now = *clock;
        let mut unit = self.unit.gather(now.0);
        loop {
            runs.take_direct(|instructions, conditional, taken| {
                let mut then = now;
                then.ticks(instructions);
                let takes = unit.direct(then.0, conditional, taken);
                if takes {
                    now = then;
                }
                takes
            });
            self.buffer.clock = now.0;
            let Some(run) = runs.next() else { break };
            now.ticks(run.instructions());
            self.buffer.clock = now.0;
            let (at, next) = (
                At {
                    ip: run.last(),
                    next: run.after(),
                },
                run.next,
            );
            let buffer = &mut self.buffer;
            // The compiler is to see the kind of branch.
            match run.class() {
                Class::Return => unit.retire(buffer, retired(Class::Return, at, next)),
                Class::DirectCall => unit.retire(buffer, retired(Class::DirectCall, at, next)),
                Class::IndirectCall => unit.retire(buffer, retired(Class::IndirectCall, at, next)),
                Class::IndirectJump => unit.retire(buffer, retired(Class::IndirectJump, at, next)),
                class => unit.retire(buffer, retired(class, at, next)),
            }
        }
        drop(unit);
        (*clock, self.ip) = (now, Some(runs.ip()));
    }

    pub(crate) fn far_branch(&mut self, clock: VirtualClock, next: Ip, mode: ExecMode) {
        self.buffer.clock = clock.0;
        self.ip = Some(next);
        self.context = Context {
            mode,
            ..self.context
        };
        self.transfer(None, next);
    }

    pub(crate) fn task(&self) -> Task {
        Task {
            pid: self.pid,
            tid: self.tid,
        }
    }

    /// Enters the kernel: by the instruction that just retired, or (`from`) by an event.
    pub(crate) fn enter_kernel(&mut self, clock: VirtualClock, from: Option<Ip>) {
        self.buffer.clock = clock.0;
        self.ip = None;
        self.context = Context {
            cpl: 0,
            mode: ExecMode::Bits64,
            ..self.context
        };
        self.transfer(from, KERNEL);
    }

    /// Control goes to `to`, where the thread's context holds already: by an event at `from`, or by a far branch.
    fn transfer(&mut self, from: Option<Ip>, to: Ip) {
        let to = Destination {
            ip: to,
            context: self.context,
        };
        let event = match from {
            // The vector is told by Event Trace only, which is not recorded.
            Some(from) => Event::Interrupt {
                from,
                vector: 0,
                page_fault: None,
                to,
            },
            None => {
                let at = At::default();
                Event::FarBranch { at, to }
            }
        };
        self.unit.event(&mut self.buffer, event);
    }

    pub(crate) fn resume_user(&mut self, clock: VirtualClock, ip: Ip, mode: ExecMode) {
        self.buffer.clock = clock.0;
        if core::mem::take(&mut self.time_owed) {
            self.unit.event(&mut self.buffer, Event::ClocksResumed);
        }
        self.ip = Some(ip);
        self.context = Context {
            cpl: 3,
            mode,
            ..self.context
        };
        self.transfer(None, ip);
    }

    /// Whether the thread is in user space.
    pub(crate) fn in_user(&self) -> bool {
        self.ip.is_some()
    }

    /// Something outside the stream changes now, which its readers must find at this very place: tracing stops.
    /// [`Self::mark_end`] resumes it, with the time.
    pub(crate) fn mark_begin(&mut self, clock: VirtualClock) {
        self.buffer.clock = clock.0;
        if self.in_user() {
            self.set_trace_en(false);
        }
    }

    pub(crate) fn mark_end(&mut self, clock: VirtualClock) {
        self.buffer.clock = clock.0;
        if self.in_user() {
            self.set_trace_en(true);
        } else {
            self.time_owed = true;
        }
    }

    /// Stops tracing for good.
    pub(crate) fn stop(&mut self, clock: VirtualClock) {
        self.buffer.clock = clock.0;
        self.set_trace_en(false);
    }

    /// What no AUX record has told of yet: offset and size.
    pub(crate) fn announce(&mut self) -> Option<(StreamOffset, u64)> {
        let end = self.buffer.start + self.buffer.bytes.len() as u64;
        let from = core::mem::replace(&mut self.announced, end);
        (end > from).then_some((StreamOffset(from), end - from))
    }

    /// Where the stream ends.
    pub(crate) fn stream_len(&self) -> u64 {
        self.buffer.start + self.buffer.bytes.len() as u64
    }

    /// How many bytes wait to be written.
    pub(crate) fn waiting(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// Takes what may be written: everything up to the last PSB, or (`all`) to the end. Streams are cut at PSBs only.
    pub(crate) fn take(&mut self, all: bool) -> Option<Chunk> {
        let buffer = &mut self.buffer;
        let (len, next_tsc) = if all {
            (buffer.bytes.len(), buffer.clock)
        } else {
            buffer.cut?
        };
        if len == 0 {
            return None;
        }
        let rest = buffer.bytes.split_off(len);
        let chunk = Chunk {
            offset: StreamOffset(buffer.start),
            tsc: Tsc(buffer.start_tsc),
            bytes: core::mem::replace(&mut buffer.bytes, rest),
        };
        buffer.start += len as u64;
        buffer.start_tsc = next_tsc;
        buffer.cut = None;
        Some(chunk)
    }
}
