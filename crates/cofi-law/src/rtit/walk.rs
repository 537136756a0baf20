//! The random walk.

mod between;
mod registers;

use super::code::choose;
use super::enables::Enables;
use super::world::{TSC_RATIO, World};
use super::{Ending, Features, Record, Setup, Start, Step, Stop, Stretch};
use crate::Rng;
use crate::machine::{Code, Insn, Kind};
use cofi_flow::lines::Lines;
use cofi_packet::{ExecMode, Ip};
use cofi_unit::rtit::{Context, Ctl, Destination, Event, SleepState, Unit, msr};
use cofi_unit::{At, Branch, Retired};

struct Walk<'s> {
    setup: &'s Setup,
    rng: Rng,
    unit: Unit,
    world: World,
    codes: Vec<Code>,
    /// Program and instruction that run next.
    at: (usize, usize),
    context: Context,
    enables: Enables,
    /// Return addresses, as the programs keep them on their stacks.
    stack: Vec<(usize, usize)>,
    /// RTIT_CTL, without Trace_En and TraceActive.
    ctl: Ctl,
    has_vmx: bool,
    truth: Vec<Step>,
    stretches: Vec<Stretch>,
    /// The last of them is going on.
    is_open: bool,
    /// Where an overflow was resolved last, with E5: a TIP of a branch to there, behind it, would be taken for the erratum's.
    avoids: Option<Ip>,
    /// It was resolved just now.
    resolved: bool,
    /// The instructions of it of whose outcome packets tell, or RTIT_TNT_BUFF will.
    told: Vec<usize>,
    /// How many bytes have been sent, and how far RTIT_OFFSET is ahead of that.
    sent: u64,
    moved: u64,
    trace_stops: usize,
    cr3_filter: bool,
}

const BASE: u64 = 0x8000_0000;
pub(super) const SPACES: [u64; 3] = [0x1000, 0x3456_7020, 0x5000];

/// Runs a machine.
///
/// # Panics
/// When the unit's PacketEn is not what the reference says.
#[must_use]
pub fn run(setup: &Setup) -> Record {
    let mut rng = Rng::new(setup.seed);
    let wide = setup.mode == ExecMode::Bits64;
    let high = [0xffff_8000_8000_0000, 0x7fff_fff0_0000, 0x5555_5555_0000][rng.index(3)];
    let bases = if wide {
        [0xffff_ffff_8100_0000, 0x40_0000, high ^ 0x7654_0000]
    } else {
        [0xc000_0000, 0x40_0000, 0xf7f0_fff0]
    };
    let mut codes = Vec::new();
    for (base, cpl) in bases.into_iter().zip([0, 3, 3]) {
        let count = 2 + rng.index(150);
        let how = (setup.mode, cpl);
        codes.push(Code::random(&mut rng, count, Ip(base), how, choose));
    }
    let context = Context {
        cpl: codes[1].cpl,
        cr3: SPACES[0],
        paging: true,
    };
    let lines = setup
        .ctl
        .dest()
        .then(|| Lines::new(BASE, setup.limit_mask, 0));
    let mut walk = Walk {
        unit: Unit::with(setup.choices, context),
        world: World::new(setup.start, lines),
        at: (1, 0),
        context,
        enables: Enables::new(context),
        stack: Vec::new(),
        ctl: setup.ctl,
        has_vmx: false,
        truth: Vec::new(),
        stretches: Vec::new(),
        is_open: false,
        avoids: None,
        resolved: false,
        told: Vec::new(),
        sent: 0,
        moved: 0,
        trace_stops: 0,
        cr3_filter: false,
        codes,
        setup,
        rng,
    };
    walk.start();
    for _ in 0..setup.steps {
        walk.step();
    }
    walk.finish()
}

impl Walk<'_> {
    fn has(&self, feature: Features) -> bool {
        self.setup.features.has(feature)
    }

    fn insn(&self) -> Insn {
        self.codes[self.at.0].insns[self.at.1]
    }

    fn ip(&self) -> Ip {
        self.insn().ip
    }

    fn place(&self) -> At {
        let insn = self.insn();
        At {
            ip: insn.ip,
            next: insn.ip.wrapping_add(insn.len.into()),
        }
    }

    // Keeping account.

    /// How many bytes have been sent: RTIT_OFFSET goes round.
    fn sent(&mut self) -> u64 {
        let size = u64::from(self.setup.limit_mask) + 1;
        let offset = self.unit.rdmsr(msr::RTIT_OFFSET).expect("it exists");
        let now = offset.wrapping_add(self.unit.buffered() as u64);
        let now = now.wrapping_sub(self.moved);
        self.sent += now.wrapping_sub(self.sent) % size;
        self.sent
    }

    /// Does something with the unit, of which `then` says what it means for PacketEn.
    fn act<R>(
        &mut self,
        act: impl FnOnce(&mut Unit, &mut World) -> R,
        then: impl FnOnce(&mut Enables) -> bool,
    ) -> R {
        self.note_place();
        let (was_on, was_triggered) = (self.enables.packet_en(), self.enables.trigger_en());
        let (was_lossy, resolved) = (self.unit.is_overflowing(), self.unit.overflows());
        let from = self.sent();
        let result = act(&mut self.unit, &mut self.world);
        let is_lossy = self.unit.is_overflowing();
        let resolves = self.unit.overflows() != resolved;
        let active = Ctl(self.unit.rdmsr(msr::RTIT_CTL).expect("it exists")).trace_active();
        let meets_stop = then(&mut self.enables);
        // One that is met in an overflow is held, or lost (E4); a processor may have it act later.
        let is_ignored = resolves && self.setup.choices.errata.e4;
        let is_held = was_lossy || (is_lossy || is_ignored) && active;
        if meets_stop && !is_held {
            self.trace_stops += 1;
            self.enables.stop();
        }
        let acts_late = was_lossy && self.enables.trace_active && !active;
        if resolves && self.is_open {
            // It began with what was due before this, and there was time to resolve it.
            self.end(Stop::Overflow);
        }
        if resolves || !was_lossy && !was_on && self.enables.packet_en() {
            self.begin(resolves, from);
        }
        if acts_late {
            self.enables.stop();
        }
        assert_eq!(
            (self.unit.packet_en(), active),
            (self.enables.packet_en(), self.enables.trace_active),
            "{:?} at {}, step {}",
            self.enables,
            self.ip(),
            self.truth.len()
        );
        if self.is_open && (is_lossy || !self.enables.packet_en()) {
            let is_silent = was_triggered && !self.enables.trigger_en();
            let stop = match () {
                () if is_lossy => Stop::Overflow,
                () if is_silent && !self.setup.choices.pgd_on_disable => Stop::Silent,
                () => Stop::Told,
            };
            self.end(stop);
        }
        result
    }

    /// Traced code begins, with a packet behind `from`.
    fn begin(&mut self, resolves: bool, from: u64) {
        let (start, packets) = match resolves {
            true => (Start::Overflow, (from, self.sent())),
            false => (Start::Enabled, (from, self.sent())),
        };
        let here = self.truth.len();
        if resolves && self.setup.choices.errata.e5 {
            self.resolved = true;
        }
        self.told.clear();
        self.is_open = true;
        self.stretches.push(Stretch {
            start,
            packets,
            ip: None,
            from: here,
            to: here,
            stop: Stop::Told,
            told: here,
            told_at_once: here,
        });
    }

    /// Where the stretch that began last did.
    fn note_place(&mut self) {
        let ip = self.ip();
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.ip.get_or_insert(ip);
        }
        if core::mem::take(&mut self.resolved) {
            self.avoids = Some(ip);
        }
    }

    fn end(&mut self, stop: Stop) {
        let here = self.truth.len();
        self.is_open = false;
        let Some(stretch) = self.stretches.last_mut() else {
            return;
        };
        (stretch.to, stretch.stop) = (here, stop);
        if stop == Stop::Overflow {
            // Perhaps it is the last one of which the packet was lost.
            self.told.pop();
        }
        stretch.told = self.told.last().map_or(stretch.from, |last| last + 1);
        let buff = self.unit.rdmsr(msr::RTIT_TNT_BUFF).expect("it exists");
        let waiting = 63 - buff.leading_zeros() as usize;
        let sent = &self.told[..self.told.len().saturating_sub(waiting)];
        stretch.told_at_once = sent.last().map_or(stretch.from, |last| last + 1);
    }

    /// Results that waited in RTIT_TNT_BUFF are lost.
    fn loses_results(&mut self) {
        let buff = self.unit.rdmsr(msr::RTIT_TNT_BUFF).expect("it exists");
        let results = 63 - buff.leading_zeros() as usize;
        if !self.is_open
            && let Some(stretch) = self.stretches.last_mut()
        {
            self.told.truncate(self.told.len().saturating_sub(results));
            stretch.told = self.told.last().map_or(stretch.from, |last| last + 1);
        }
    }

    /// The instruction that stands here retires. `tells`: a packet or a result is about where it leads.
    fn shown(&mut self, tells: bool) {
        if self.enables.packet_en() {
            if tells && self.is_open {
                self.told.push(self.truth.len());
            }
            self.truth.push(Step {
                ip: self.ip(),
                tsc: cofi_packet::Tsc(self.world.clock.tsc),
                cycles: self.world.clock.cycles,
            });
        }
    }

    fn pass_time(&mut self) {
        // Seldom so long that the cycle counter is half full; but it does not go round, as an MTC does not.
        let most = match !self.ctl.mtc_en() && self.rng.one_in(400) {
            true => self.until_round(),
            false => [1, 30, 30, 2000][self.rng.index(4)],
        };
        let ticks = self.rng.next_u64() % most;
        self.world.pass(ticks);
    }

    /// How long it is until RTIT_CNTP goes round.
    fn until_round(&mut self) -> u64 {
        let count = self.unit.rdmsr(msr::RTIT_CNTP).expect("it exists");
        let room = (1_u64 << 22).saturating_sub(count + 10_000).max(1);
        room * u64::from(TSC_RATIO) / u64::from(self.world.ratio) + 1
    }

    // Going places.

    /// A random place at this privilege level, or any.
    fn anywhere(&mut self, cpl: Option<u8>) -> (usize, usize) {
        loop {
            let program = self.rng.index(self.codes.len());
            if cpl.is_none_or(|cpl| self.codes[program].cpl == cpl)
                && let Some(insn) = self.somewhere(program)
            {
                return (program, insn);
            }
        }
    }

    /// A random place in this program, if it is not to be avoided.
    fn somewhere(&mut self, program: usize) -> Option<usize> {
        let insn = self.rng.index(self.codes[program].insns.len());
        (self.avoids != Some(self.codes[program].insns[insn].ip)).then_some(insn)
    }

    /// What holds after a far transfer to `place`.
    fn destination(&self, (program, insn): (usize, usize)) -> Destination {
        let code = &self.codes[program];
        let context = Context {
            cpl: code.cpl,
            ..self.context
        };
        let ip = code.insns[insn].ip;
        Destination { ip, context }
    }

    /// A far transfer to `place`, which is told to the unit as `event` says.
    fn go_far(&mut self, place: (usize, usize), event: impl FnOnce(Destination) -> Event) {
        let to = self.destination(place);
        let event = event(to);
        self.context = to.context;
        self.act(
            |unit, world| unit.event(world, event),
            |enables| {
                enables.context = to.context;
                enables.come_to(to.ip, true)
            },
        );
        self.at = place;
    }

    /// An interrupt, a trap or a fault.
    fn interrupt(&mut self, from: Ip) {
        let place = self.anywhere(None);
        self.go_far(place, |to| Event::Interrupt { from, to });
    }

    fn step(&mut self) {
        self.note_place();
        self.pass_time();
        if self.between() {
            return;
        }
        let (insn, at) = (self.insn(), self.place());
        let (program, index) = self.at;
        let to = |index: usize| self.codes[program].insns[index].ip;
        match insn.kind {
            Kind::Conditional(target) => {
                let branch = match self.rng.one_in(2) {
                    true => (Some(to(target)), target),
                    false => (None, index + 1),
                };
                self.near(at, Branch::Conditional(branch.0), branch.1);
            }
            Kind::Jump(target) => self.near(at, Branch::DirectJump(to(target)), target),
            Kind::Call(target) => {
                let branch = Branch::DirectCall(to(target));
                self.stack.push((program, index + 1));
                self.near(at, branch, target);
            }
            Kind::CallNext => self.near(at, Branch::DirectCall(at.next), index + 1),
            Kind::IndirectJump => {
                let (_, target) = self.within();
                let branch = Branch::IndirectJump(self.codes[program].insns[target].ip);
                self.near(at, branch, target);
            }
            Kind::IndirectCall => {
                let (_, target) = self.within();
                self.stack.push((program, index + 1));
                let branch = Branch::IndirectCall(self.codes[program].insns[target].ip);
                self.near(at, branch, target);
            }
            Kind::Return => {
                // Mostly to the caller; sometimes the stack has been tampered with.
                let matched = self.stack.pop().filter(|to| to.0 == program);
                let matched = matched.filter(|_| !self.rng.one_in(6));
                let avoids = self.avoids;
                let matched = matched.filter(|to| avoids != Some(self.codes[to.0].insns[to.1].ip));
                let (_, target) = match matched {
                    Some(place) => place,
                    None => self.within(),
                };
                let branch = Branch::Return(self.codes[program].insns[target].ip);
                self.near(at, branch, target);
            }
            Kind::FarReturn
            | Kind::Iret
            | Kind::Syscall
            | Kind::Sysexit
            | Kind::FarJump
            | Kind::FarCall => {
                let cpl = match insn.kind {
                    Kind::Syscall => Some(0),
                    Kind::Sysexit => Some(3),
                    _ => None,
                };
                let place = self.anywhere(cpl);
                self.shown(true);
                let prefixes = insn.prefixes;
                self.go_far(place, |to| Event::FarBranch { at, to, prefixes });
            }
            Kind::Breakpoint | Kind::Interrupt => {
                self.shown(true);
                self.interrupt(at.next);
            }
            Kind::Into if self.rng.one_in(2) => {
                self.shown(true);
                self.interrupt(at.next);
            }
            Kind::MovCr3 if self.has(Features::SPACES) => {
                self.shown(false);
                let cr3 = SPACES[self.rng.index(3)];
                self.context.cr3 = cr3;
                self.plain_event(Event::MovCr3 { at, cr3 });
            }
            Kind::MovCr0 if self.has(Features::SPACES) => {
                self.shown(false);
                let paging = self.rng.one_in(2);
                self.context.paging = paging;
                self.plain_event(Event::MovCr0 { at, paging });
            }
            Kind::Mwait | Kind::Halt if self.has(Features::POWER) => {
                self.near(at, Branch::None, index + 1);
                self.sleep();
            }
            Kind::Wrmsr if self.has(Features::TOGGLES) => self.write(at),
            Kind::VmCall if self.is_guest() => self.vm_exit(),
            Kind::VmCall if self.may_vmxon() && self.rng.one_in(3) => self.vmxon(at),
            Kind::VmCall => self.interrupt(at.ip),
            // The others do nothing of note here.
            _ => self.near(at, Branch::None, index + 1),
        }
    }

    /// A random place in the program that runs.
    fn within(&mut self) -> (usize, usize) {
        let program = self.at.0;
        loop {
            if let Some(insn) = self.somewhere(program) {
                return (program, insn);
            }
        }
    }

    fn near(&mut self, at: At, branch: Branch, to: usize) {
        let direct = matches!(
            branch,
            Branch::None | Branch::DirectJump(_) | Branch::DirectCall(_)
        );
        self.shown(!direct);
        let insn = Retired { at, branch };
        let jumped = !matches!(branch, Branch::None | Branch::Conditional(None));
        self.act(
            |unit, world| unit.retire(world, insn),
            |enables| enables.come_to(insn.destination(), jumped),
        );
        self.at.1 = to;
    }

    /// An instruction that is an event, and no branch.
    fn plain_event(&mut self, event: Event) {
        let (next, context) = (self.place().next, self.context);
        self.act(
            |unit, world| unit.event(world, event),
            |enables| {
                enables.context = context;
                enables.come_to(next, false)
            },
        );
        self.at.1 += 1;
    }

    fn sleep(&mut self) {
        use SleepState::{C1, C2, C4, C6, S0i};
        let state = [C1, C2, C4, C6, S0i][self.rng.index(5)];
        self.act(
            |unit, world| unit.event(world, Event::Sleep(state)),
            |_| false,
        );
        let ticks = self.rng.next_u64() % 100_000;
        self.world.sleep(ticks);
        self.act(|unit, world| unit.event(world, Event::Wake), |_| false);
    }
}
