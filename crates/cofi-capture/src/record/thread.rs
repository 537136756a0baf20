//! One traced thread: a processor of its own with a trace unit in it.

mod buffer;
mod machine;
mod pt;
mod ring;
mod rtit;
mod seals;
mod unit;

use crate::runs::{Run, Taker};
use crate::{Entry, ProcessorState, Runs};
use buffer::Buffer;
use cofi_insn::{Checksum, Class, Insn};
use cofi_packet::{ExecMode, Ip, StreamOffset, Tsc, intel, rtit as rtit_packets};
use cofi_perf::{Seal, Task};
use cofi_unit::{At, Branch, Fault, Retired};
pub(crate) use ring::{Growth, Ring};
pub(crate) use unit::Setup;
use unit::TraceUnit;

/// Where system calls, faults and interrupts lead: somewhere in the kernel, which is not traced.
const KERNEL: Ip = Ip(0xffff_ffff_8000_0000);

/// The virtual clock's start; a trace whose first TSC is 0 counts as timeless in perf.
pub(crate) const FIRST_TICK: u64 = 1 << 20;

/// A thread's clock: two core cycles and as many TSC ticks for every instruction that retires. Threads that are told of in turn go on from where
/// the one before them stopped; those that are told of at the same time, from where all did, and who comes then from where the latest is. perf
/// estimates times between packets at that very speed; a faster clock of ours would make it place mappings too early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VirtualClock(u64);

impl VirtualClock {
    /// How far it goes with each instruction.
    const TICKS: u64 = 2;

    pub(crate) const fn new() -> Self {
        Self(FIRST_TICK)
    }

    /// An instruction retired.
    pub(crate) const fn tick(&mut self) {
        self.ticks(1);
    }

    /// So many instructions retired.
    pub(crate) const fn ticks(&mut self, instructions: u64) {
        self.0 += Self::TICKS * instructions;
    }

    /// The later of two.
    pub(crate) const fn later(self, other: Self) -> Self {
        if self.0 < other.0 { other } else { self }
    }

    /// How many instructions retired from `before` on, if nothing else happened.
    pub(crate) const fn instructions_since(self, before: Self) -> u64 {
        (self.0 - before.0) / Self::TICKS
    }

    /// How many instructions can retire before it is `until`.
    const fn instructions_until(self, until: u64) -> u64 {
        until.saturating_sub(self.0).saturating_sub(1) / Self::TICKS
    }

    /// Something happens that must be told apart in time from what was before.
    pub(crate) const fn pause(&mut self) {
        self.0 += 16;
    }

    pub(crate) const fn tsc(self) -> Tsc {
        Tsc(self.0)
    }
}

/// Time goes on while nothing is traced.
impl Taker for VirtualClock {
    #[inline(always)]
    fn direct(&mut self, checksum: &Checksum, _: bool, _: bool) -> bool {
        self.ticks(checksum.instructions());
        true
    }

    #[inline(always)]
    fn near(&mut self, run: &Run<'_>) -> bool {
        self.ticks(run.instructions());
        true
    }
}

/// A piece of a stream, ready to be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) offset: StreamOffset,
    pub(crate) tsc: Tsc,
    pub(crate) bytes: Vec<u8>,
    /// What ran in stretches that end within or before it.
    pub(crate) seals: Vec<Seal>,
}

/// One thread's trace unit and what it has sent.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// Number of its stream.
    pub(crate) index: u32,
    unit: TraceUnit,
    buffer: Buffer,
    state: ProcessorState,
    /// The instruction that runs next, while in user space.
    ip: Option<Ip>,
    /// Stream bytes that an AUX record has told of.
    announced: u64,
    /// The mode of the code behind them, which packets of RTIT do not tell.
    told_mode: ExecMode,
    /// A TSC packet is owed at the next return to user space.
    time_owed: bool,
    /// The clock when all was taken last.
    flushed: u64,
    /// Tracing has been switched off: TraceEn stays clear.
    is_off: bool,
}

/// What leads from one context to another.
#[derive(Clone, Copy, Debug)]
enum Transfer {
    /// A far branch.
    Branch(At),
    /// A software interrupt.
    Software(At),
    /// An event, at this address.
    Event(Ip),
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

    /// All of them, of which none is traced any more.
    pub(crate) fn take(&mut self) -> Vec<Thread> {
        std::mem::take(&mut self.list)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Thread> {
        self.list.iter()
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Thread> {
        self.list.iter_mut()
    }
}

impl Thread {
    /// A thread that is in the kernel, traced from now on; its stream begins at `offset`.
    ///
    /// # Errors
    /// The #GP of the first register write that the unit refuses: the configuration asks for what it does not have.
    pub(crate) fn start(
        ids: (u32, u32, u32, u64),
        setup: Setup,
        clock: VirtualClock,
    ) -> Result<Self, Fault> {
        let state = ProcessorState {
            cpl: 0,
            mode: ExecMode::Bits64,
            cr3: 0,
        };
        Self::start_in(ids, setup, clock, state, None)
    }

    /// As [`Self::start`], in this state, and before the instruction at `ip` if that is traced.
    fn start_in(
        (pid, tid, index, offset): (u32, u32, u32, u64),
        setup: Setup,
        clock: VirtualClock,
        state: ProcessorState,
        ip: Option<Ip>,
    ) -> Result<Self, Fault> {
        let mut buffer = Buffer::new(clock.0, offset);
        let unit = TraceUnit::start(setup, state, ip, &mut buffer)?;
        // RTIT may not have told it yet (LESS_PKTS).
        let time_owed = ip.is_none() && matches!(unit, TraceUnit::Rtit(_));
        Ok(Self {
            pid,
            tid,
            index,
            unit,
            buffer,
            state,
            ip,
            announced: offset,
            told_mode: state.mode,
            time_owed,
            flushed: 0,
            is_off: false,
        })
    }

    /// The instruction at `ip`, and the address behind it.
    fn at(&self, ip: Ip, insn: &Insn) -> At {
        let next = insn.next_ip(ip, self.state.mode);
        At { ip, next }
    }

    /// These instructions run now. Only what is traced counts.
    fn count(&mut self, checksum: Checksum) {
        if self.unit.packet_en() {
            self.buffer.seals.add(&checksum);
        }
    }

    fn count_one(&mut self, ip: Ip, insn: &Insn) {
        self.count(Checksum::of(ip, insn.digest));
    }

    pub(crate) fn retired(&mut self, clock: VirtualClock, ip: Ip, insn: &Insn, next: Ip) {
        self.count_one(ip, insn);
        self.last_retired(clock, ip, insn, next);
    }

    /// The last one of instructions that have been counted retired.
    fn last_retired(&mut self, clock: VirtualClock, ip: Ip, insn: &Insn, next: Ip) {
        self.buffer.clock = clock.0;
        self.ip = Some(next);
        let retired = retired(insn.class, self.at(ip, insn), next);
        self.unit.retire(&mut self.buffer, retired);
    }

    /// These blocks ran; `clock` goes on with them.
    pub(crate) fn ran(&mut self, clock: &mut VirtualClock, runs: &mut Runs<'_>) {
        self.unit.ran(&mut self.buffer, clock, runs);
        self.ip = Some(runs.ip());
    }

    pub(crate) fn far_branch(
        &mut self,
        clock: VirtualClock,
        ip: Ip,
        insn: &Insn,
        next: Ip,
        mode: ExecMode,
    ) {
        self.count_one(ip, insn);
        self.buffer.clock = clock.0;
        let at = self.at(ip, insn);
        self.ip = Some(next);
        self.state.mode = mode;
        self.transfer(Transfer::Branch(at), next);
    }

    /// The instruction that retires with an entry into the kernel, if one does. (A software interrupt does in RTIT only.)
    pub(crate) const fn retires_with(&self, entry: Entry) -> Option<(Ip, Insn)> {
        match entry {
            Entry::Instruction { ip, insn } => Some((ip, insn)),
            Entry::SoftwareInterrupt { ip, insn } if self.is_rtit() => Some((ip, insn)),
            Entry::SoftwareInterrupt { .. } | Entry::Event { .. } => None,
        }
    }

    pub(crate) fn task(&self) -> Task {
        Task {
            pid: self.pid,
            tid: self.tid,
        }
    }

    /// Enters the kernel.
    pub(crate) fn enter_kernel(&mut self, clock: VirtualClock, entry: Entry) {
        if let Some((ip, insn)) = self.retires_with(entry) {
            self.count_one(ip, &insn);
        }
        let how = match entry {
            Entry::Instruction { ip, insn } => Transfer::Branch(self.at(ip, &insn)),
            Entry::SoftwareInterrupt { ip, insn } => Transfer::Software(self.at(ip, &insn)),
            Entry::Event { from } => Transfer::Event(from),
        };
        self.buffer.clock = clock.0;
        self.ip = None;
        self.state.cpl = 0;
        self.state.mode = ExecMode::Bits64;
        self.transfer(how, KERNEL);
    }

    /// Control goes to `to`, where the thread's state holds already.
    fn transfer(&mut self, how: Transfer, to: Ip) {
        self.unit.transfer(&mut self.buffer, how, to, self.state);
    }

    pub(crate) fn resume_user(&mut self, clock: VirtualClock, ip: Ip, mode: ExecMode) {
        self.buffer.clock = clock.0;
        let time_owed = core::mem::take(&mut self.time_owed);
        if time_owed {
            self.unit.tell_time(&mut self.buffer);
        }
        self.ip = Some(ip);
        self.state.cpl = 3;
        self.state.mode = mode;
        // The kernel's own way back is not traced.
        self.transfer(Transfer::Branch(At::default()), ip);
        if time_owed {
            self.unit.tell_time_late(&mut self.buffer);
        }
    }

    /// Whether an AUX record has to tell that code of this mode comes next, as packets do not.
    pub(crate) fn owes_mode(&self, mode: ExecMode) -> bool {
        self.is_rtit() && self.told_mode != mode
    }

    /// All before has been told of; behind it stands code of this mode.
    pub(crate) const fn mode_told(&mut self, mode: ExecMode) {
        self.told_mode = mode;
    }

    /// The mode of the code that has not been told of.
    pub(crate) const fn told_mode(&self) -> ExecMode {
        self.told_mode
    }

    /// Whether its packets are those of RTIT: then a software interrupt is an instruction that retired, and not an event; and neither
    /// mode nor address space is told where tracing begins.
    pub(crate) const fn is_rtit(&self) -> bool {
        matches!(self.unit, TraceUnit::Rtit(_))
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
            self.set_tracing(false);
        }
    }

    pub(crate) fn mark_end(&mut self, clock: VirtualClock) {
        self.buffer.clock = clock.0;
        if self.in_user() {
            self.set_tracing(true);
        } else {
            self.time_owed = true;
        }
    }

    /// Stops tracing for good.
    pub(crate) fn stop(&mut self, clock: VirtualClock) {
        self.buffer.clock = clock.0;
        self.set_tracing(false);
    }

    /// Tracing is not to begin yet. Of Intel PT nothing is sent until it does, with a PSB.
    pub(crate) fn begin_off(&mut self, clock: VirtualClock) {
        self.switch(clock, false);
        if matches!(self.unit, TraceUnit::Pt(_)) {
            self.buffer.bytes.clear();
            self.buffer.cut = None;
        }
    }

    /// Switches tracing on or off, wherever the thread is.
    pub(crate) fn switch(&mut self, clock: VirtualClock, on: bool) {
        self.buffer.clock = clock.0;
        if !on {
            self.set_tracing(false);
            self.is_off = true;
        } else if std::mem::take(&mut self.is_off) {
            // Nobody knows what happened meanwhile: a PSB comes first.
            self.unit.forget(&mut self.buffer);
            self.set_tracing(true);
        }
    }

    /// Whether tracing has been switched off.
    pub(crate) const fn is_off(&self) -> bool {
        self.is_off
    }

    /// These blocks ran while tracing was off.
    pub(crate) fn pass(&mut self, clock: &mut VirtualClock, runs: &mut Runs<'_>) {
        loop {
            runs.take_quickly(clock);
            let Some(run) = runs.next() else { break };
            clock.ticks(run.instructions());
        }
        self.buffer.clock = clock.0;
        self.ip = Some(runs.ip());
    }

    fn set_tracing(&mut self, on: bool) {
        if self.is_off {
            return;
        }
        self.unit.set_tracing(&mut self.buffer, on, self.ip);
    }

    /// What no AUX record has told of yet: offset and size.
    pub(crate) fn unannounced(&self) -> Option<(StreamOffset, u64)> {
        let end = self.buffer.start + self.buffer.bytes.len() as u64;
        // What found no room may have been told of.
        let size = end.checked_sub(self.announced).filter(|size| *size > 0)?;
        Some((StreamOffset(self.announced), size))
    }

    /// An AUX record has told of all that there is.
    pub(crate) fn announced(&mut self) {
        if let Some((from, size)) = self.unannounced() {
            self.announced = from.0 + size;
        }
    }

    /// Keeps only the last packets, in this ring.
    pub(crate) fn keep_last(&mut self, ring: Option<Ring>) {
        self.buffer.ring = ring;
    }

    /// Where the last packets are kept, if only these are.
    pub(crate) const fn ring_mut(&mut self) -> Option<&mut Ring> {
        self.buffer.ring.as_mut()
    }

    /// The stream ends here, or goes on with another thread: the ring, with all that has gathered.
    pub(crate) fn take_ring(&mut self) -> Option<Ring> {
        self.buffer.hold();
        self.buffer.ring.take()
    }

    /// Where the stream ends.
    pub(crate) fn stream_len(&self) -> u64 {
        self.buffer.start + self.buffer.bytes.len() as u64
    }

    /// How many bytes wait to be written.
    pub(crate) fn waiting(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// Whether anything happened since all was taken.
    pub(crate) fn is_dirty(&self) -> bool {
        self.buffer.clock != self.flushed
    }

    /// All that happened has been taken.
    pub(crate) fn flushed(&mut self) {
        self.flushed = self.buffer.clock;
    }

    /// Takes as many whole packets as there are in `limit` bytes, and leaves the rest for good.
    pub(crate) fn take_last(&mut self, limit: usize) -> Option<Chunk> {
        let buffer = &mut self.buffer;
        if buffer.bytes.len() > limit {
            let len = match self.unit {
                TraceUnit::Pt(_) => intel::Packets::new(&buffer.bytes)
                    .map_while(Result::ok)
                    .map(|packet| packet.offset.0 as usize)
                    .take_while(|start| *start <= limit)
                    .last(),
                // How long its packets are depends on its mode.
                TraceUnit::Rtit(_) => buffer.bytes[..limit]
                    .windows(rtit_packets::PSB.len())
                    .rposition(|bytes| bytes == rtit_packets::PSB),
            };
            buffer.bytes.truncate(len.unwrap_or(0));
            // Of what is left of the last stretch nobody knows what ran.
            buffer
                .seals
                .end_at(buffer.start + buffer.bytes.len() as u64);
        }
        self.take(true)
    }

    /// What was taken could not be written.
    pub(crate) fn put_back(&mut self, chunk: Chunk) {
        let buffer = &mut self.buffer;
        (buffer.start, buffer.start_tsc, buffer.cut) = (chunk.offset.0, chunk.tsc.0, None);
        let rest = core::mem::replace(&mut buffer.bytes, chunk.bytes);
        buffer.bytes.extend_from_slice(&rest);
        buffer.seals.put_back(chunk.seals);
    }

    /// Takes what may be written: everything up to the last PSB, or (`all`) to the end. Streams are cut at PSBs only.
    pub(crate) fn take(&mut self, all: bool) -> Option<Chunk> {
        let buffer = &mut self.buffer;
        let (len, next_tsc) = if all {
            buffer.seals.close(buffer.start + buffer.bytes.len() as u64);
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
            seals: buffer.seals.take(),
        };
        buffer.start += len as u64;
        buffer.start_tsc = next_tsc;
        buffer.cut = None;
        Some(chunk)
    }
}
