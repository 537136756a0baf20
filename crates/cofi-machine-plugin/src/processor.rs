//! One processor: what it runs is told to its trace unit, and what it asks of the unit's registers is answered.

mod quick;
mod sleep;
mod smm;

use crate::bus::Bus;
use crate::code::{Code, Detail, Flags, Special, Step, Steps};
use crate::count::{Count, Need};
use crate::counters::Counters;
use crate::cpuid;
use crate::frame::{Selectors, before_interrupt};
use crate::list::List;
use crate::msr::{self, Owner};
use crate::operand::{self, Place};
use crate::options::Options;
use crate::qemu::Qemu;
use crate::state::{Register, Snapshot, State};
use crate::unit::TraceUnit;
use crate::vectors::{PAGE_FAULT, Vectors};
use cofi_insn::Class;
use cofi_packet::intel::Payload;
use cofi_packet::{ExecMode, Ip};
use cofi_unit::{At, Capabilities, Context, CpuidLeaf, Destination, Event, Ptwrite};
use quick::Quick;
use sleep::Asleep;

/// The length of the longest instruction, and of a page.
const LONGEST: usize = 15;
const PAGE: u64 = 4096;
/// The clock is read once for so many blocks, and whenever anything but a branch happens.
const BLOCKS_OF_TICK: u32 = 16;

/// The block that runs.
#[derive(Clone, Copy, Debug)]
struct Here {
    code: &'static Code,
    /// The linear address of its first instruction.
    start: u64,
    /// So many of its instructions are told.
    told: usize,
    cpl: u8,
}

/// What is to be put right when the instruction that runs now is done.
#[derive(Clone, Copy, Debug)]
enum What {
    Cpuid(u32, u32),
    /// This is in EDX:EAX.
    Pair(u64),
    /// It faults in place of another: this is what RCX held.
    Fault(u64),
}

#[derive(Clone, Copy, Debug)]
struct After {
    /// The instruction.
    ip: u64,
    what: What,
}

/// What went on, to be told at the end.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Totals {
    pub(crate) instructions: u64,
    pub(crate) pmis: u64,
    pub(crate) faults: u64,
    /// How often control went where nothing explains, and the first time: from the block at this address to that one.
    pub(crate) unexplained: u64,
    pub(crate) strange: Option<(u64, u64)>,
}

impl Totals {
    fn is_unexplained(&mut self, from: u64, to: u64) {
        self.unexplained += 1;
        self.strange.get_or_insert((from, to));
    }
}

/// One processor.
#[derive(Debug)]
pub(crate) struct Processor {
    unit: TraceUnit,
    pub(crate) bus: Bus,
    counters: Counters,
    vectors: Vectors,
    selectors: Selectors,
    here: Option<Here>,
    quick: Quick,
    after: Option<After>,
    /// What its registers held when it came to stand still.
    stood: Option<Snapshot>,
    /// The state in which it sleeps.
    asleep: Option<Asleep>,
    /// In system management mode, to which an SMI has led that cleared TraceEn.
    has_smi: bool,
    /// The unit is not in use, or no range of addresses is configured in it: then nothing but time can come of instructions that are no branches.
    is_unfiltered: bool,
    /// So many blocks have run while it was in use.
    blocks_of_tick: u32,
    /// What its blocks add up to, and at which privilege those ran that have not been added to the counters yet.
    count: Count,
    counted_cpl: u8,
    /// Where its state is, once it has run.
    state: Option<State>,
    pub(crate) totals: Totals,
    /// Where is told what ran while PacketEn was 1.
    pub(crate) list: Option<List>,
}

/// How much faster the core is than its bus of 100 MHz, which is four times as fast as the crystal.
fn core_bus_ratio(caps: &Capabilities) -> u8 {
    let crystal = caps.crystal;
    let ratio = crystal.numerator / crystal.denominator.max(1) / 4;
    u8::try_from(ratio.max(1)).unwrap_or(u8::MAX)
}

impl Processor {
    pub(crate) fn new(qemu: Qemu, options: &Options) -> Self {
        let mut unit = TraceUnit::new(options);
        let mut bus = Bus::new(qemu, options.clock);
        // A ratio of none is no packet for libipt, by which gdb decodes.
        let ratio = Event::Frequency {
            stopped_at: None,
            ratio: core_bus_ratio(&options.caps),
        };
        unit.event(&mut bus, ratio);
        Self {
            unit,
            bus,
            counters: Counters::default(),
            vectors: Vectors::default(),
            selectors: Selectors::default(),
            here: None,
            quick: Quick::default(),
            after: None,
            stood: None,
            asleep: None,
            has_smi: false,
            is_unfiltered: true,
            blocks_of_tick: 0,
            count: Count::FIRST,
            counted_cpl: 0,
            state: None,
            totals: Totals::default(),
            list: None,
        }
    }

    /// Whether TraceEn is set.
    #[inline]
    pub(crate) fn is_traced(&self) -> bool {
        self.unit.in_use()
    }

    /// Its blocks add up to this now.
    #[inline]
    pub(crate) fn advance(&mut self, count: u64) {
        self.forbid_short_way();
        let (instructions, branches) = self.count.advance(count);
        if self.counters.are_on() && self.counters.ran(self.counted_cpl, instructions, branches) {
            self.settle();
        }
        if let Some(state) = self.state {
            self.counted_cpl = state.cpl();
        }
    }

    /// What the count is to be from now on, so that those blocks are told which must be, if it is not so already.
    #[inline]
    pub(crate) fn new_count(&mut self) -> Option<u64> {
        let needs_each = self.unit.in_use()
            || self.after.is_some()
            || self.has_smi
            || self.bus.has_pmi
            || self.counters.has_pmi();
        // The privilege of what comes behind a far transfer is not known before.
        let is_behind_far = || self.here.is_some_and(|here| here.code.ends_far());
        let need = if needs_each || self.counters.are_on() && is_behind_far() {
            Need::Each
        } else if self.counters.are_on() {
            Need::After(self.counters.budget())
        } else {
            Need::Nothing
        };
        self.count.set(need)
    }

    /// Its state, as its last callback had it.
    pub(crate) fn state(&self) -> Option<State> {
        self.state
    }

    /// A block begins. `has_mark` tells whether the last instruction of the one before has begun.
    pub(crate) fn enter(
        &mut self,
        options: &Options,
        state: State,
        code: &'static Code,
        has_mark: bool,
    ) {
        self.state = Some(state);
        if self.after.is_some() {
            self.put_right(options, state);
        }
        let start = state.linear();
        if self.has_smi && !state.is_smm() {
            self.rsm(state, start);
        }
        if self.unit.in_use() && !state.is_protected() {
            self.enter_real_mode(state, start, has_mark);
        }
        if self.unit.in_use() {
            self.tick_sometimes();
            self.selectors.note(state);
            self.go_on(start, state.context(), has_mark);
        }
        let cpl = state.cpl();
        self.here = Some(Here {
            code,
            start,
            told: 0,
            cpl,
        });
        self.signal_pmi();
    }

    /// Reads the clock once for several blocks: it costs as much as the unit.
    #[inline]
    fn tick_sometimes(&mut self) {
        self.blocks_of_tick = self.blocks_of_tick.wrapping_add(1);
        if self.blocks_of_tick.is_multiple_of(BLOCKS_OF_TICK) {
            self.bus.tick();
        }
    }

    /// Interrupts that are asked for.
    fn signal_pmi(&mut self) {
        if self.bus.has_pmi {
            self.bus.has_pmi = false;
            self.bus.flush();
            self.counters.topa_pmi();
        }
        if self.counters.take_pmi() {
            self.totals.pmis += 1;
            self.bus.deliver_pmi();
        }
    }

    /// A block begins in real mode, where an SMI may have led, or a reset, or INIT and SIPI: into which code of 32 or 64 bits leads by nothing else.
    #[cold]
    fn enter_real_mode(&mut self, state: State, start: u64, has_mark: bool) {
        if state.is_at_smi_handler() && !self.has_smi {
            self.smi(state, start, has_mark);
        } else if state.is_reset() || self.unit.context().mode != ExecMode::Bits16 {
            // The registers of the unit keep what they hold, but for TraceEn.
            self.unit.reset(state.context());
            self.counters = Counters::default();
            self.here = None;
        }
    }

    #[cold]
    fn settle(&mut self) {
        self.bus.tick();
        self.counters.settle(self.bus.tsc());
    }

    /// Tells instructions of the block that ran, up to that of this index, before which `next` comes.
    fn tell(&mut self, here: &Here, steps: &Steps, end: usize, next: u64) {
        let all = steps.all();
        if self.is_unfiltered && !steps.has_flags && here.told < end {
            // The clock stands still within a block, and only the last instruction can be a branch.
            let last = end - 1;
            for step in &all[here.told..last] {
                self.ran(steps.ip(here.start, step));
            }
            return self.retire(here, steps, &all[last], next, None);
        }
        for index in here.told..end {
            let step = &all[index];
            let next = match all.get(index + 1) {
                Some(_) if index + 1 < end => steps.after(here.start, step),
                _ => next,
            };
            let interrupt_flag = match step.flags {
                Some(Flags::Cli) => Some(false),
                Some(Flags::Sti) => Some(true),
                // What it popped is not known here.
                Some(Flags::Popf) | None => None,
            };
            self.retire(here, steps, step, next, interrupt_flag);
        }
    }

    /// Tells one instruction, behind which RFLAGS.IF is as it was or this.
    #[inline]
    fn retire(
        &mut self,
        here: &Here,
        steps: &Steps,
        step: &Step,
        next: u64,
        interrupt_flag: Option<bool>,
    ) {
        self.ran(steps.ip(here.start, step));
        if let Some(interrupt_flag) = interrupt_flag
            && self.unit.capabilities().event_trace
            && self.unit.context().interrupt_flag != interrupt_flag
        {
            let at = steps.at(here.start, step);
            let event = Event::Flags { at, interrupt_flag };
            return self.unit.event(&mut self.bus, event);
        }
        let retired = steps.retired(here.start, step, next);
        self.unit.retire(&mut self.bus, retired);
    }

    /// Control is at `next`, and no interrupt led there.
    #[inline]
    fn go_on(&mut self, next: u64, context: Context, has_mark: bool) {
        let Some(here) = self.here.take() else {
            return;
        };
        let steps = here.code.steps(self.unit.context().mode);
        let Some(last_index) = steps.all().len().checked_sub(1) else {
            return self.leap(next, context);
        };
        let last = &steps.all()[last_index];
        if has_mark && steps.may_follow(here.start, last, next) {
            // A repeated string instruction enters its block anew for its rounds.
            if last.repeats && next == steps.ip(here.start, last) {
                return self.tell(&here, steps, last_index, next);
            }
            return self.end(&here, steps, last_index, (next, context));
        }
        // QEMU stops in the middle of a block to run one instruction alone: one that writes to this code, for example.
        let place = steps
            .all()
            .iter()
            .position(|step| steps.ip(here.start, step) == next);
        match place {
            Some(place) if place >= here.told => self.tell(&here, steps, place, next),
            _ => self.leap(next, context),
        }
    }

    /// The last instruction of a block ran, and control went to `next`.
    #[inline]
    fn end(&mut self, here: &Here, steps: &Steps, last: usize, (next, context): (u64, Context)) {
        if here.told > last {
            return;
        }
        let step = &steps.all()[last];
        let ip = steps.ip(here.start, step);
        self.tell(here, steps, last, ip);
        let at = steps.at(here.start, step);
        let to = Destination {
            ip: Ip(next),
            context,
        };
        let event = match step.class {
            Class::FarReturn if step.detail == Detail::Iret => Event::Iret { at, to },
            Class::FarCall | Class::FarJump | Class::FarReturn | Class::Syscall => {
                Event::FarBranch { at, to }
            }
            Class::SoftwareInterrupt => return self.software_interrupt(at, to),
            Class::Into if Ip(next) != at.next => return self.software_interrupt(at, to),
            Class::MovCr3 => Event::MovCr3 {
                at,
                cr3: context.cr3,
            },
            Class::Wait if step.detail == Detail::Mwait => {
                let insn = steps.retired(here.start, step, next);
                return self.has_paused(step, insn);
            }
            _ if step.detail == Detail::MovCr0 && self.unit.is_rtit() => {
                self.ran(ip);
                let paging = self.state.is_some_and(State::has_paging);
                let retired = steps.retired(here.start, step, next);
                return self.unit.mov_cr0(&mut self.bus, retired, paging);
            }
            _ => {
                let flag = step.flags.map(|_| context.interrupt_flag);
                return self.retire(here, steps, step, next, flag);
            }
        };
        self.ran(ip);
        self.unit.event_of(&mut self.bus, event, step.prefixes);
    }

    /// An instruction ran, of which the unit is told now.
    #[inline]
    fn ran(&mut self, ip: u64) {
        self.totals.instructions += 1;
        if let Some(list) = &mut self.list
            && self.unit.packet_en()
        {
            list.ran(ip);
        }
    }

    /// INT n, INT3, INT1, or INTO that finds an overflow.
    fn software_interrupt(&mut self, at: At, to: Destination) {
        let from = self.software_interrupt_from(at);
        self.interrupt(from, to);
    }

    /// Where a software interrupt is taken. Intel PT has it at the instruction, which is then none that ran; RTIT behind the
    /// instruction, which is told here as one.
    fn software_interrupt_from(&mut self, at: At) -> u64 {
        if self.unit.is_rtit() {
            self.ran(at.ip.0);
            return at.next.0;
        }
        at.ip.0
    }

    fn interrupt(&mut self, from: u64, to: Destination) {
        // Only Event Trace tells it.
        let vector = match self.state {
            Some(state) if self.unit.capabilities().event_trace => {
                self.vectors.of(self.bus.qemu(), state, to.ip.0)
            }
            _ => 0,
        };
        let page_fault = self
            .state
            .filter(|_| vector == PAGE_FAULT)
            .map(|state| state.cr2());
        let event = Event::Interrupt {
            from: Ip(from),
            vector,
            page_fault,
            to,
        };
        self.unit.event(&mut self.bus, event);
    }

    /// Control went where nothing explains: the trace tells it as an interrupt, from where it was known last.
    #[cold]
    fn leap(&mut self, next: u64, context: Context) {
        let from = self.here.map_or(next, |here| here.start);
        self.totals.is_unexplained(from, next);
        let to = Destination {
            ip: Ip(next),
            context,
        };
        self.interrupt(from, to);
    }

    /// An interrupt or exception led from one address to another.
    pub(crate) fn interrupted(&mut self, options: &Options, from: u64, to: u64, has_mark: bool) {
        if self.is_behind(from) {
            self.has_waited(has_mark);
        }
        self.bus.tick_after_sleep();
        let Some(state) = self.state else { return };
        if let Some(after) = self.after {
            match after.what {
                What::Fault(rcx) => {
                    state.set(Register::Rcx, rcx);
                    self.after = None;
                    self.totals.faults += 1;
                }
                // It did not run: a page was not there, or it is forbidden.
                _ if from == after.ip => self.after = None,
                _ => self.put_right(options, state),
            }
        }
        let here = self.here.take();
        if let Some(here) = here
            && self.counters.are_on()
            && self.count.tells_each()
        {
            self.take_back(&here, from);
        }
        if !self.unit.in_use() {
            return;
        }
        let mut from = from;
        if let Some(here) = here {
            from = self.leave(&here, from, has_mark);
        }
        let to = Destination {
            ip: Ip(to),
            context: state.context(),
        };
        self.interrupt(from, to);
    }

    /// The block ran up to an interrupt before `from`; where the trace says that it was.
    fn leave(&mut self, here: &Here, from: u64, has_mark: bool) -> u64 {
        let context = *self.unit.context();
        let steps = here.code.steps(context.mode);
        let all = steps.all();
        let Some(last_index) = all.len().checked_sub(1) else {
            // A block without an instruction: #UD.
            return from;
        };
        let last = &all[last_index];
        let last_ip = steps.ip(here.start, last);
        let place = all
            .iter()
            .position(|step| steps.ip(here.start, step) == from);
        // A direct branch that may lead to itself has done so; another one is a call that could not store its return address.
        let is_direct = matches!(
            last.class,
            Class::Conditional | Class::DirectJump | Class::DirectCall
        ) && steps.may_follow(here.start, last, last_ip);
        let has_ended = has_mark && (from != last_ip || is_direct);
        match place {
            Some(place) if !has_ended => self.tell(here, steps, place, from),
            _ if has_mark && last.class == Class::SoftwareInterrupt => {
                self.tell(here, steps, last_index, last_ip);
                return self.software_interrupt_from(steps.at(here.start, last));
            }
            _ if has_mark && steps.may_follow(here.start, last, from) => {
                let context = self.before_interrupt(from);
                self.end(here, steps, last_index, (from, context));
            }
            _ => self.totals.is_unexplained(here.start, from),
        }
        from
    }

    /// What held before an interrupt at `from`, behind an instruction that may have changed it.
    fn before_interrupt(&mut self, from: u64) -> Context {
        let known = *self.unit.context();
        let Some(state) = self.state else {
            return known;
        };
        let found = before_interrupt(self.bus.qemu(), state, &self.selectors, from);
        found.unwrap_or(Context {
            cr3: state.cr3(),
            ..known
        })
    }

    fn take_back(&mut self, here: &Here, from: u64) {
        let Some(state) = self.state else { return };
        // (The handler's mode may be another; then nothing is known of the block here.)
        let steps = here.code.steps(state.mode());
        let place = steps
            .all()
            .iter()
            .position(|step| steps.ip(here.start, step) == from);
        if let Some(place) = place {
            let rest = &steps.all()[place..];
            let branches = rest.iter().filter(|step| step.class.is_branch()).count();
            self.counters
                .take_back(here.cpl, rest.len() as u64, branches as u64);
        }
    }

    /// The instruction before is done: what it returned is put right.
    #[cold]
    pub(crate) fn put_right(&mut self, options: &Options, state: State) {
        let Some(after) = self.after.take() else {
            return;
        };
        match after.what {
            What::Cpuid(leaf, subleaf) => {
                let words = CpuidLeaf {
                    eax: state.get(Register::Rax) as u32,
                    ebx: state.get(Register::Rbx) as u32,
                    ecx: state.get(Register::Rcx) as u32,
                    edx: state.get(Register::Rdx) as u32,
                };
                let words = cpuid::answer(
                    &options.caps,
                    options.signature,
                    self.bus.qemu().has_one_processor(),
                    (leaf, subleaf),
                    words,
                );
                state.set(Register::Rax, words.eax.into());
                state.set(Register::Rbx, words.ebx.into());
                state.set(Register::Rcx, words.ecx.into());
                state.set(Register::Rdx, words.edx.into());
            }
            What::Pair(value) => state.set_pair(value),
            What::Fault(rcx) => {
                // QEMU let it pass. It is as if nothing had been written.
                state.set(Register::Rcx, rcx);
                self.totals.is_unexplained(after.ip, after.ip);
            }
        }
    }

    /// An instruction in which the plugin has a part is about to run.
    /// If it is done already, where to go on is returned: an offset into the code segment.
    pub(crate) fn before(
        &mut self,
        options: &Options,
        state: State,
        what: Special,
        index: usize,
    ) -> Option<u64> {
        let here = self.here?;
        let steps = here.code.steps(state.mode());
        let step = steps.all().get(index)?;
        let at = steps.at(here.start, step);
        let rcx = state.get(Register::Rcx);
        let mut after = |what| {
            self.after = Some(After { ip: at.ip.0, what });
        };
        match what {
            Special::Cpuid => after(What::Cpuid(state.get(Register::Rax) as u32, rcx as u32)),
            Special::Rdtsc => {
                self.bus.tick();
                self.after = Some(After {
                    ip: at.ip.0,
                    what: What::Pair(self.bus.tsc()),
                });
            }
            Special::Rdpmc => return self.rdpmc(state, at, index),
            Special::Ptwrite => return self.ptwrite(options, state, at.ip, index),
            // Others may not, and QEMU sees to that.
            Special::Rdmsr | Special::Wrmsr if state.cpl() != 0 => {}
            Special::Rdmsr => self.rdmsr(options, state, at, index),
            Special::Wrmsr => self.wrmsr(state, at, index),
        }
        None
    }

    /// RDPMC, which QEMU does not have: it is done here, unless it is to fault.
    fn rdpmc(&mut self, state: State, at: At, index: usize) -> Option<u64> {
        self.settle();
        let value = self
            .counters
            .read_by_number(state.get(Register::Rcx) as u32)?;
        if state.cpl() != 0 && !state.lets_users_read_counters() {
            return None;
        }
        self.tell_before(at, index);
        if let Some(here) = self.here.take()
            && self.unit.in_use()
        {
            let steps = here.code.steps(self.unit.context().mode);
            self.tell(
                &Here {
                    told: index,
                    ..here
                },
                steps,
                index + 1,
                at.next.0,
            );
        }
        state.set_pair(value);
        Some(at.next.0.wrapping_sub(state.code_base()))
    }

    /// PTWRITE, which QEMU does not have: it is done here, if the processors have it and the operand can be read.
    fn ptwrite(&mut self, options: &Options, state: State, ip: Ip, index: usize) -> Option<u64> {
        if !options.caps.ptwrite {
            return None;
        }
        let offset = ip.0.wrapping_sub(state.code_base());
        let mut code = [0; LONGEST];
        // It may be the last thing before a page that is not there.
        let in_page = (PAGE - ip.0 % PAGE) as usize;
        let len = [LONGEST, LONGEST.min(in_page)]
            .into_iter()
            .find(|len| self.bus.qemu().read_linear(ip.0, &mut code[..*len]))?;
        let found = operand::ptwrite(&code[..len], offset, state.mode(), &state)?;
        let mut bytes = [0; 8];
        match found.place {
            Place::Register(number) => bytes = state.general(number).to_le_bytes(),
            Place::Memory(address) => {
                let len = if found.is_wide { 8 } else { 4 };
                if !self.bus.qemu().read_linear(address, &mut bytes[..len]) {
                    return None;
                }
            }
        }
        let value = u64::from_le_bytes(bytes);
        let at = At {
            ip,
            next: Ip(ip.0.wrapping_add(found.len.into())),
        };
        self.tell_before(at, index);
        self.here = None;
        if self.unit.in_use() {
            self.ran(ip.0);
            let operand = match found.is_wide {
                true => Payload::Eight(value),
                false => Payload::Four(value as u32),
            };
            self.unit.ptwrite(&mut self.bus, Ptwrite { at, operand });
        }
        Some(offset.wrapping_add(found.len.into()))
    }

    /// Tells what ran of the block before the instruction of this index.
    fn tell_before(&mut self, at: At, index: usize) {
        let Some(here) = self.here else { return };
        if !self.unit.in_use() {
            return;
        }
        self.bus.tick();
        let steps = here.code.steps(self.unit.context().mode);
        self.tell(&here, steps, index, at.ip.0);
        self.here = Some(Here {
            told: index,
            ..here
        });
    }

    fn rdmsr(&mut self, options: &Options, state: State, at: At, index: usize) {
        let address = state.get(Register::Rcx) as u32;
        let value = match Owner::of(address, self.unit.is_rtit()) {
            Owner::Unit => {
                self.tell_before(at, index);
                self.bus.flush();
                self.unit.rdmsr(address).ok()
            }
            Owner::Clock => {
                self.bus.tick();
                Some(self.bus.tsc())
            }
            Owner::Bus => Some(msr::NO_BUS_FREQUENCY),
            Owner::Platform => Some(u64::from(core_bus_ratio(&options.caps)) << 8),
            Owner::Other => {
                self.settle();
                match self.counters.read(address) {
                    Some(value) => Some(value),
                    None => return,
                }
            }
        };
        match value {
            Some(value) => {
                self.after = Some(After {
                    ip: at.ip.0,
                    what: What::Pair(value),
                });
            }
            None => self.fault(state, at),
        }
    }

    fn wrmsr(&mut self, state: State, at: At, index: usize) {
        let address = state.get(Register::Rcx) as u32;
        if Owner::of(address, self.unit.is_rtit()) != Owner::Unit {
            self.settle();
            self.counters.write(address, state.pair());
            return;
        }
        self.tell_before(at, index);
        self.bus.tick();
        if !self.unit.in_use() {
            // Nobody told it meanwhile.
            self.unit
                .catch_up(&mut self.bus, at, state.context(), state.has_paging());
        }
        let written = self.unit.wrmsr(&mut self.bus, at, address, state.pair());
        self.bus.flush();
        match written {
            // It is told.
            Ok(is_traced) => {
                self.is_unfiltered = self.unit.is_unfiltered();
                if is_traced && let Some(list) = &mut self.list {
                    list.ran(at.ip.0);
                }
                if let Some(here) = &mut self.here {
                    here.told = index + 1;
                }
            }
            Err(_) => self.fault(state, at),
        }
    }

    /// Has the access to a register fault.
    fn fault(&mut self, state: State, at: At) {
        let rcx = state.get(Register::Rcx);
        state.set(Register::Rcx, msr::FAULTING.into());
        self.after = Some(After {
            ip: at.ip.0,
            what: What::Fault(rcx),
        });
    }
}
