//! The random walk.

mod between;
mod vmx;

use super::code::choose;
use super::world::{TSC_RATIO, World};
use super::{Code, Features, Insn, Kind, Record, Setup, Step};
use crate::Rng;
use cofi_packet::intel::{PSB, Payload, TsxState};
use cofi_packet::{ExecMode, Ip};
use cofi_unit::{
    At, Branch, Context, Ctl, Destination, Enclave, Event, Mwait, Ptwrite, Retired, Status, Unit,
    msr,
};
use std::collections::BTreeMap;

/// What VMX operation the machine is in.
#[derive(Clone, Copy, Debug, Default)]
struct Vmx {
    on: bool,
    guest: bool,
    conceal: bool,
    /// In the SMM-transfer monitor.
    monitor: bool,
}

struct Walk<'s> {
    setup: &'s Setup,
    rng: Rng,
    unit: Unit,
    world: World,
    codes: Vec<Code>,
    /// Program and instruction that run next.
    at: (usize, usize),
    context: Context,
    /// Return addresses, as the programs keep them on their stacks.
    stack: Vec<(usize, usize)>,
    /// Where the transaction falls back to.
    fallback: usize,
    vmx: Vmx,
    /// TraceEn as saved by an SMI, while its handler runs.
    smm: Option<bool>,
    ctl: Ctl,
    truth: Vec<Step>,
    /// The index of what runs now or next among the truth.
    current: usize,
    resumed: Vec<(usize, usize)>,
    told: BTreeMap<&'static str, Vec<String>>,
    /// CR3 and NR as told by the stream.
    space: Option<(u64, bool)>,
    /// Up to here the stream was searched for PSBs.
    searched: usize,
}

const SPACES: [u64; 3] = [0x1000, 0x0012_3456_7000, 0x5000];

/// Runs a machine.
#[must_use]
pub fn run(setup: &Setup) -> Record {
    let mut rng = Rng::new(setup.seed);
    let mut codes = Vec::new();
    let high = [0xffff_8000_8000_0000, 0x7fff_fff0_0000, 0x5555_5555_0000][rng.index(3)];
    for (base, mode, cpl) in [
        (0xffff_ffff_8100_0000, ExecMode::Bits64, 0),
        (0x40_0000, ExecMode::Bits64, 3),
        (high ^ 0x7654_0000, ExecMode::Bits64, 3),
        (0xf7f0_0000, ExecMode::Bits32, 3),
        (0xc000_0000, ExecMode::Bits32, 0),
        (0x1000, ExecMode::Bits16, 0),
    ] {
        if mode != ExecMode::Bits64 && !setup.features.has(Features::MODES) {
            continue;
        }
        let count = 2 + rng.index(150);
        codes.push(Code::random(&mut rng, count, Ip(base), (mode, cpl), choose));
    }
    let context = Context {
        cpl: codes[1].cpl,
        cr3: SPACES[0],
        mode: codes[1].mode,
        cs_base: setup.cs_base,
        ..Context::default()
    };
    let mut walk = Walk {
        unit: Unit::with(setup.caps, setup.choices, context),
        world: World::default(),
        at: (1, 0),
        context,
        stack: Vec::new(),
        fallback: 0,
        vmx: Vmx::default(),
        smm: None,
        ctl: setup.ctl,
        truth: Vec::new(),
        current: 0,
        resumed: Vec::new(),
        told: BTreeMap::new(),
        space: None,
        searched: 0,
        codes,
        setup,
        rng,
    };
    let start = 1 + walk.rng.next_u64() % (1 << 40);
    walk.world.pass(setup.start.unwrap_or(start));
    walk.start();
    for _ in 0..setup.steps {
        walk.step();
    }
    if walk.smm.is_some() {
        walk.leave_smm();
    }
    walk.set_trace_en(false);
    Record {
        trace: walk.world.trace,
        truth: walk.truth,
        resumed: walk.resumed,
        told: walk.told,
        codes: walk.codes,
    }
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

    fn status(&self) -> Status {
        Status(self.unit.rdmsr(msr::IA32_RTIT_STATUS).expect("it exists"))
    }

    fn tells(&mut self, kind: &'static str, what: String) {
        self.told.entry(kind).or_default().push(what);
    }

    /// Does something with the unit, and keeps account of overflows and of what PSB+ tells.
    fn act<R>(&mut self, act: impl FnOnce(&mut Unit, &mut World) -> R) -> R {
        // Tracing goes on with the instruction that runs now, if one does.
        let (before, index) = (self.unit.overflows(), self.current);
        let stopped = self.status().stopped();
        let result = act(&mut self.unit, &mut self.world);
        self.current = self.truth.len();
        if !stopped && self.status().stopped() {
            self.tells("stop", String::new());
        }
        for _ in before..self.unit.overflows() {
            self.resumed.push((index, self.truth.len()));
        }
        result
    }

    /// As [`Self::act`], for an event.
    fn event(&mut self, event: Event<'_>) {
        self.act(|unit, world| unit.event(world, event));
        self.follow_space(false);
    }

    /// What the stream has told of CR3 and NR: by a PIP, if `pip`, and otherwise by PSB+.
    fn follow_space(&mut self, pip: bool) {
        let now = (
            self.context.cr3 & !0xfff,
            self.vmx.guest && !self.vmx.conceal,
        );
        let status = self.status();
        let tells = status.trigger_en() && status.context_en() && self.ctl.os();
        let from = self.searched.saturating_sub(15);
        let psb = self.world.trace[from..].windows(16).any(|w| w == PSB);
        self.searched = self.world.trace.len();
        let told_before = self.space;
        // What drains from an internal buffer was sent some time ago.
        if self.setup.choices.buffer.is_some() {
            self.space = None;
        } else if tells && (pip || psb) {
            self.space = Some(now);
        } else if told_before.is_some_and(|told| told != now) {
            self.space = None;
        }
    }

    fn shown(&mut self) {
        self.current = self.truth.len();
        if self.unit.packet_en() {
            let insn = self.insn();
            self.truth.push(Step {
                ip: insn.ip,
                tsc: self.world.tsc(),
                cycles: self.world.clock.cycles,
                mode: self.context.mode,
                space: self.space,
                in_tx: self.context.in_tx,
            });
        }
    }

    // Configuration.

    fn wrmsr(&mut self, address: u32, value: u64) {
        let here = At {
            ip: self.ip(),
            next: self.ip(),
        };
        self.act(|unit, world| unit.wrmsr(world, here, address, value))
            .expect("the configuration is legal");
        self.follow_space(false);
    }

    fn start(&mut self) {
        self.wrmsr(msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0xfff);
        if self.setup.caps.cr3_filter {
            self.wrmsr(msr::IA32_RTIT_CR3_MATCH, SPACES[0]);
        }
        self.world.ratio = TSC_RATIO;
        let event = Event::Frequency {
            stopped_at: None,
            ratio: TSC_RATIO,
        };
        self.event(event);
        self.configure_ranges();
        self.set_trace_en(true);
    }

    fn configure_ranges(&mut self) {
        self.ctl = Ctl(self.ctl.0 & !(0xffff << 32));
        // As often as not, everything is traced.
        let none = self.rng.one_in(2);
        if !self.has(Features::RANGES) || !self.setup.caps.ip_filter || none {
            return;
        }
        for n in 0..u32::from(self.setup.caps.address_ranges) {
            let code = self.rng.index(self.codes.len());
            let insns = &self.codes[code].insns;
            let (a, b) = (self.rng.index(insns.len()), self.rng.index(insns.len()));
            let (from, to) = (insns[a.min(b)].ip, insns[a.max(b)].ip);
            self.wrmsr(msr::IA32_RTIT_ADDR0_A + 2 * n, from.0);
            self.wrmsr(msr::IA32_RTIT_ADDR0_A + 2 * n + 1, to.0);
            let config = [0, 1, 1, 2][self.rng.index(4)];
            // A stop range ends the trace too often to be large.
            if config != 2 || b.abs_diff(a) < 3 {
                self.ctl.0 |= config << (32 + 4 * n);
            }
        }
    }

    fn set_trace_en(&mut self, on: bool) {
        if self.context.in_tx {
            self.abort();
        }
        if on {
            let status = self.status();
            if status.stopped() {
                self.wrmsr(msr::IA32_RTIT_STATUS, status.with_stopped(false).0);
            }
        }
        self.wrmsr(msr::IA32_RTIT_CTL, self.ctl.with_trace_en(on).0);
    }

    /// TraceEn is cleared, and set with something else.
    fn toggle(&mut self) {
        if self.unit.rdmsr(msr::IA32_RTIT_CTL).expect("it exists") & 1 == 1 {
            self.set_trace_en(false);
        }
        self.pass_time();
        if self.rng.one_in(3) {
            self.wrmsr(msr::IA32_RTIT_STATUS, 0);
        }
        self.configure_ranges();
        let caps = self.setup.caps;
        let mut flip = |n| self.rng.one_in(n);
        self.ctl = self
            .ctl
            .with_branch_en(!flip(8))
            .with_dis_retc(flip(3))
            .with_ptw_en(caps.ptwrite && flip(2))
            .with_fup_on_ptw(caps.ptwrite && flip(2))
            .with_event_en(caps.event_trace && flip(2))
            .with_pwr_evt_en(caps.power_event && flip(2))
            .with_inject(caps.psb_pmi_preservation && flip(2));
        self.set_trace_en(true);
    }

    fn pass_time(&mut self) {
        let most = [1, 30, 30, 2000][self.rng.index(4)];
        let ticks = self.rng.next_u64() % most;
        self.world.pass(ticks);
    }

    // Going places.

    fn go(&mut self, program: usize, insn: usize) {
        self.at = (program, insn);
    }

    /// A random place at this privilege level, or any.
    fn anywhere(&mut self, cpl: Option<u8>) -> (usize, usize) {
        loop {
            let program = self.rng.index(self.codes.len());
            if cpl.is_none_or(|cpl| self.codes[program].cpl == cpl) {
                return (program, self.rng.index(self.codes[program].insns.len()));
            }
        }
    }

    /// What holds after a transfer to `place`.
    fn destination(&mut self, (program, insn): (usize, usize)) -> Destination {
        let code = &self.codes[program];
        let mut context = Context {
            cpl: code.cpl,
            mode: code.mode,
            in_tx: false,
            enclave: Enclave::None,
            ..self.context
        };
        let ip = code.insns[insn].ip;
        if self.has(Features::FLAGS) {
            context.interrupt_flag = self.rng.one_in(2);
        }
        // A PIP can tell of a new space only where the destination is traced.
        if self.has(Features::SPACES) && context.cpl == 0 && self.rng.one_in(8) {
            context.cr3 = SPACES[self.rng.index(3)];
        }
        Destination { ip, context }
    }

    /// Control has gone there by a far transfer.
    fn arrive(&mut self, place: (usize, usize), context: Context) {
        let changes = self.context.cr3 != context.cr3;
        self.context = context;
        self.follow_space(changes);
        self.go(place.0, place.1);
    }

    fn abort(&mut self) {
        let (from, to) = (self.ip(), self.codes[self.at.0].insns[self.fallback].ip);
        self.tell_tsx(TsxState::Aborted, from);
        self.context.in_tx = false;
        self.event(Event::TransactionAbort { from, to });
        let program = self.at.0;
        self.go(program, self.fallback);
    }

    fn tell_tsx(&mut self, state: TsxState, ip: Ip) {
        if self.unit.packet_en() {
            self.tells("tsx", format!("{state:?} {ip}"));
        }
    }

    /// CFE: `before` is ContextEn before the event. What follows is known only once it has happened.
    fn tell_event(&mut self, before: bool, kind: &'static str, vector: Option<u8>) {
        let after = self.status().context_en();
        if self.ctl.event_en() && (before || after) {
            self.tells("event", format!("{kind} {vector:?}"));
        }
    }

    /// An interrupt, a fault or a software interrupt is taken where the machine stands.
    fn interrupt(&mut self, from: Ip) {
        let place = self.anywhere(None);
        let to = self.destination(place);
        let vector = [3, 14, 14, 32, 200][self.rng.index(5)];
        let page_fault = (vector == 14).then(|| self.rng.next_u64());
        let status = self.status();
        let (live, before) = (status.trigger_en(), status.context_en());
        if self.context.enclave != Enclave::None {
            let event = Event::AsyncEnclaveExit {
                from,
                aep: from,
                vector,
                to,
            };
            self.event(event);
        } else if self.rng.one_in(6) {
            self.event(Event::UserInterrupt { from, vector, to });
            self.arrive(place, to.context);
            if live {
                self.tell_event(before, "Uintr", Some(vector));
            }
            return;
        } else {
            if live
                && before
                && self.ctl.event_en()
                && let Some(address) = page_fault
            {
                self.tells("data", format!("0 {address:#x}"));
            }
            let event = Event::Interrupt {
                from,
                vector,
                page_fault,
                to,
            };
            self.event(event);
            if page_fault.is_some() && !before {
                self.arrive(place, to.context);
                return;
            }
        }
        self.arrive(place, to.context);
        if live {
            self.tell_event(before, "Interrupt", Some(vector));
        }
    }

    // What happens between instructions. `true`: something did.

    fn between(&mut self) -> bool {
        let here = self.ip();
        let plain = self.smm.is_none() && self.context.enclave == Enclave::None;
        match self.rng.index(600) {
            0..=9 if self.has(Features::INTERRUPTS) => {
                if self.context.in_tx {
                    self.abort();
                }
                let from = self.ip();
                self.interrupt(from);
            }
            10..=14 if self.has(Features::TOGGLES) && plain => self.toggle(),
            15 | 16 if self.has(Features::POWER) => self.power(here),
            17..=19 if self.has(Features::TRANSACTIONS) && self.context.in_tx => self.abort(),
            20 | 21 if self.has(Features::PEBS) => self.pebs(here),
            22 | 23 if self.has(Features::SMM) && plain && !self.vmx.on => self.smi(),
            24..=40 if self.smm.is_some() => self.leave_smm(),
            41..=44 if self.has(Features::VMX) && self.setup.caps.vmx && plain && !self.vmx.on => {
                self.event(Event::Vmxon { at: self.place() });
                self.vmx.on = true;
            }
            45 if self.vmx.on && !self.vmx.guest && !self.vmx.monitor && plain => {
                self.event(Event::Vmxoff { at: self.place() });
                self.vmx = Vmx::default();
            }
            46..=49 if self.vmx.guest && plain => self.vm_exit(),
            50 if self.has(Features::INIT) && plain && !self.vmx.on => self.init(),
            51 if self.has(Features::ACM) && plain => {
                if self.context.in_tx {
                    self.abort();
                }
                self.event(Event::AcmBegin);
                self.pass_time();
                self.event(Event::AcmEnd);
            }
            52 if self.has(Features::ACM) && plain && self.rng.one_in(4) => {
                if self.context.in_tx {
                    self.abort();
                }
                let at = self.place();
                self.event(Event::Senter { at });
            }
            // Tracing that has ended begins again.
            60..=90 if plain && !self.status().trigger_en() => self.toggle(),
            91 | 92 => self.event(Event::CycleCounterReset),
            93 | 94 => self.act(|unit, world| unit.clock(world)),
            95..=99 => {
                let bytes = self.rng.index(300);
                self.act(|unit, world| unit.drain(world, bytes));
            }
            _ => return false,
        }
        true
    }

    // Instructions.

    fn step(&mut self) {
        self.pass_time();
        if !self.between() {
            self.instruction();
        }
    }

    fn instruction(&mut self) {
        let insn = self.insn();
        let at = self.place();
        let program = self.at.0;
        let start = |walk: &Self, to: usize| walk.codes[program].insns[to].ip;
        let in_enclave = self.context.enclave != Enclave::None;
        match insn.kind {
            Kind::Plain => self.near(at, Branch::None, self.at.1 + 1),
            Kind::Conditional(to) => {
                if self.rng.one_in(2) {
                    self.near(at, Branch::Conditional(Some(start(self, to))), to);
                } else {
                    self.near(at, Branch::Conditional(None), self.at.1 + 1);
                }
            }
            Kind::Jump(to) => self.near(at, Branch::DirectJump(start(self, to)), to),
            Kind::Call(to) => {
                self.stack.push((program, self.at.1 + 1));
                self.near(at, Branch::DirectCall(start(self, to)), to);
            }
            Kind::CallNext => self.near(at, Branch::DirectCall(at.next), self.at.1 + 1),
            Kind::IndirectJump => {
                let to = self.rng.index(self.codes[program].insns.len());
                self.near(at, Branch::IndirectJump(start(self, to)), to);
            }
            Kind::IndirectCall => {
                let to = self.rng.index(self.codes[program].insns.len());
                self.stack.push((program, self.at.1 + 1));
                self.near(at, Branch::IndirectCall(start(self, to)), to);
            }
            Kind::Return => {
                let popped = self.stack.pop().filter(|place| place.0 == program);
                let popped = popped.filter(|_| !self.rng.one_in(10));
                let to = match popped {
                    Some((_, insn)) => insn,
                    None => self.rng.index(self.codes[program].insns.len()),
                };
                self.near(at, Branch::Return(start(self, to)), to);
            }
            Kind::Xbegin(fallback) if self.has(Features::TRANSACTIONS) && !self.context.in_tx => {
                self.fallback = fallback;
                self.transaction(at, true);
            }
            Kind::Xend if self.context.in_tx => self.transaction(at, false),
            Kind::Ptwrite { wide } if self.has(Features::PTWRITE) && self.setup.caps.ptwrite => {
                self.ptwrite(at, wide);
            }
            Kind::Enclave if self.has(Features::ENCLAVES) && self.smm.is_none() => {
                self.enclave(at);
            }
            // A far transfer, or whatever else ends a transaction or is not for enclaves.
            Kind::FarReturn
            | Kind::Iret
            | Kind::Uiret
            | Kind::Syscall
            | Kind::Breakpoint
            | Kind::MovCr3
            | Kind::Mwait
            | Kind::Halt
            | Kind::Flag(_)
            | Kind::VmEntry
            | Kind::VmPtrLoad
                if self.context.in_tx =>
            {
                self.abort();
            }
            Kind::FarReturn | Kind::Iret | Kind::Uiret | Kind::Syscall | Kind::VmEntry
                if in_enclave =>
            {
                self.interrupt(at.ip);
            }
            Kind::Breakpoint => self.interrupt(at.ip),
            Kind::FarReturn | Kind::Iret | Kind::Uiret | Kind::Syscall => self.far(at, insn.kind),
            Kind::MovCr3 if self.has(Features::SPACES) => {
                self.shown();
                self.context.cr3 = SPACES[self.rng.index(3)];
                let cr3 = self.context.cr3;
                self.act(|unit, world| unit.event(world, Event::MovCr3 { at, cr3 }));
                self.follow_space(true);
                self.at.1 += 1;
            }
            Kind::MovCr3 => self.interrupt(at.ip),
            Kind::Flag(on) if self.has(Features::FLAGS) => {
                self.shown();
                self.context.interrupt_flag = on;
                self.event(Event::Flags {
                    at,
                    interrupt_flag: on,
                });
                self.at.1 += 1;
            }
            Kind::Mwait if self.has(Features::POWER) => {
                let mwait = Mwait {
                    hints: 0x20,
                    ext: 1,
                };
                self.sleep(at.ip, Some(mwait), false);
                self.near(at, Branch::None, self.at.1 + 1);
            }
            Kind::Halt if self.has(Features::POWER) => {
                self.sleep(at.ip, None, false);
                self.near(at, Branch::None, self.at.1 + 1);
            }
            Kind::VmEntry if self.vmx.on && !self.vmx.guest && self.smm.is_none() => {
                self.vm_entry(at);
            }
            Kind::VmEntry if self.vmx.guest => self.vm_exit(),
            Kind::VmEntry => self.interrupt(at.ip),
            Kind::VmPtrLoad if self.vmx.on && !self.vmx.guest => {
                self.shown();
                self.event(Event::Vmptrld { at, vmcs: 0x8000 });
                self.at.1 += 1;
            }
            // To the host, or #UD.
            Kind::VmPtrLoad if self.vmx.guest => self.vm_exit(),
            Kind::VmPtrLoad => self.interrupt(at.ip),
            // The others do nothing of note here.
            _ => self.near(at, Branch::None, self.at.1 + 1),
        }
    }

    fn near(&mut self, at: At, branch: Branch, to: usize) {
        self.shown();
        self.act(|unit, world| unit.retire(world, Retired { at, branch }));
        self.follow_space(false);
        self.at.1 = to;
    }

    fn transaction(&mut self, at: At, begins: bool) {
        let state = if begins {
            TsxState::InTx
        } else {
            TsxState::NotInTx
        };
        self.tell_tsx(state, at.ip);
        // The instruction itself is where the change holds from.
        self.context.in_tx = begins;
        self.shown();
        self.event(if begins {
            Event::TransactionBegin { at }
        } else {
            Event::TransactionCommit { at }
        });
        self.at.1 += 1;
    }

    fn ptwrite(&mut self, at: At, wide: bool) {
        let status = self.status();
        let value = self.rng.next_u64();
        let operand = if wide {
            Payload::Eight(value)
        } else {
            Payload::Four(value as u32)
        };
        let enabled = status.trigger_en() && status.context_en() && status.filter_en();
        if enabled && self.ctl.ptw_en() {
            let payload = if wide { value } else { value & 0xffff_ffff };
            let has_ip = self.ctl.fup_on_ptw() || self.unit.packet_en();
            let ip = has_ip.then_some(at.ip);
            self.tells("ptwrite", format!("{ip:?} {payload:#x}"));
        }
        self.shown();
        self.act(|unit, world| unit.ptwrite(world, Ptwrite { at, operand }))
            .expect("the processor has PTWRITE");
        self.follow_space(false);
        self.at.1 += 1;
    }

    fn far(&mut self, at: At, kind: Kind) {
        self.shown();
        let cpl = (kind == Kind::Syscall).then_some(0);
        let place = self.anywhere(cpl);
        let to = self.destination(place);
        let (before, live) = (self.status().context_en(), self.status().trigger_en());
        let event = match kind {
            Kind::Iret => Event::Iret { at, to },
            Kind::Uiret => Event::Uiret { at, to },
            _ => Event::FarBranch { at, to },
        };
        self.event(event);
        self.arrive(place, to.context);
        match kind {
            Kind::Iret if live => self.tell_event(before, "Iret", None),
            Kind::Uiret if live => self.tell_event(before, "Uiret", None),
            _ => {}
        }
    }

    fn enclave(&mut self, at: At) {
        if self.context.in_tx {
            return self.abort();
        }
        let place = self.anywhere(Some(3));
        let mut to = self.destination(place);
        to.context.cr3 = self.context.cr3;
        if self.context.enclave == Enclave::None {
            to.context.enclave = [Enclave::Production, Enclave::Debug][self.rng.index(2)];
            self.event(Event::EnclaveEntry { at, to });
        } else {
            self.event(Event::EnclaveExit { at, to });
        }
        self.arrive(place, to.context);
    }
}
