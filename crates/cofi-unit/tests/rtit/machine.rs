//! A processor that executes one instruction of 4 bytes after another, and what its unit says.

use cofi_packet::rtit::{Mode, Packets, Rtit};
use cofi_packet::{Ip, Listing};
use cofi_unit::rtit::{
    Client, Context, Ctl, Destination, Event, Events, Implementation, InternalBuffer, Unit, msr,
};
use cofi_unit::{At, Branch, Clock, Fault, PhysAddr, Retired};

pub(crate) const KERNEL: Context = Context {
    cpl: 0,
    cr3: 0x3000,
    paging: true,
};
pub(crate) const USER: Context = Context { cpl: 3, ..KERNEL };

/// Clock and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) writes: Vec<(u64, Vec<u8>)>,
}

impl World {
    /// Every byte that was written.
    pub(crate) fn stored(&self) -> Vec<u8> {
        let bytes = self.writes.iter().flat_map(|(_, bytes)| bytes);
        bytes.copied().collect()
    }
}

impl Client for World {
    fn now(&mut self) -> Clock {
        self.clock
    }

    fn store(&mut self, address: PhysAddr, bytes: &[u8]) {
        self.writes.push((address.0, bytes.to_vec()));
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) unit: Unit,
    pub(crate) world: World,
    pub(crate) ip: u64,
    listing: Listing<Rtit>,
}

/// Everything on that makes tracing go, but Trace_En and TraceActive.
pub(crate) fn all() -> Ctl {
    Ctl(0).with_os(true).with_user(true).with_dest(true)
}

/// What is traced everywhere; no TraceStop.
pub(crate) fn everywhere() -> Events {
    filter(Events::ALWAYS_ON)
}

/// What is traced by this event id; no TraceStop.
pub(crate) fn filter(id: u64) -> Events {
    Events(0)
        .with_filter(id)
        .with_trace_stop(Events::ALWAYS_OFF)
}

/// What is traced everywhere, until RANGE1 is entered.
pub(crate) fn stop_in_range1() -> Events {
    everywhere().with_trace_stop(Events::RANGE1)
}

/// A buffer that only [`Unit::drain`] drains.
pub(crate) fn buffered(size: u32) -> Implementation {
    let mut choices = Implementation::default();
    choices.buffer = Some(InternalBuffer {
        size,
        drain_bytes: 0,
        drain_cycles: 0,
    });
    choices
}

impl Machine {
    /// In the kernel at 0x1000; the registers are unlocked, RANGE0 is 0x1000 to 0x10ff, RANGE1 is 0x5000 to 0x50ff.
    pub(crate) fn new(choices: Implementation) -> Self {
        let mut machine = Self {
            unit: Unit::with(choices, KERNEL),
            world: World::default(),
            ip: 0x1000,
            listing: Listing::new(),
        };
        machine.read(msr::RTIT_CTL);
        for (address, value) in [
            (msr::RTIT_LIP0, 0x1000),
            (msr::RTIT_LIP2, 0x1100),
            (msr::RTIT_LIP1, 0x5000),
            (msr::RTIT_LIP3, 0x5100),
            (msr::RTIT_LIMIT_MASK, 0x3f_ffff),
        ] {
            machine.write(address, value);
        }
        machine.ip = 0x1000;
        machine
    }

    /// Traced since before 0x1000, with these registers.
    pub(crate) fn traced(choices: Implementation, events: Events, ctl: Ctl) -> Self {
        let mut machine = Self::new(choices);
        machine.ip = 0xff4;
        machine.write(msr::RTIT_EVENTS, events.0);
        machine.write(msr::RTIT_CTL, ctl.with_trace_en(true).0);
        machine.write(
            msr::RTIT_CTL,
            ctl.with_trace_en(true).with_trace_active(true).0,
        );
        machine.said();
        machine
    }

    /// As [`Self::traced`], everywhere and by the plainest processor.
    pub(crate) fn plain() -> Self {
        Self::traced(Implementation::default(), everywhere(), all())
    }

    fn at(&self) -> At {
        At {
            ip: Ip(self.ip),
            next: Ip(self.ip + 4),
        }
    }

    pub(crate) fn retire(&mut self, branch: Branch) {
        let insn = Retired {
            at: self.at(),
            branch,
        };
        self.unit.retire(&mut self.world, insn);
        self.ip = insn.destination().0;
    }

    pub(crate) fn nop(&mut self) {
        self.retire(Branch::None);
    }
    /// Conditional branches, taken to where they would go anyway (`T`) or not taken.
    pub(crate) fn conditionals(&mut self, results: &str) {
        for result in results.chars() {
            let target = (result == 'T').then_some(Ip(self.ip + 4));
            self.retire(Branch::Conditional(target));
        }
    }
    pub(crate) fn jump(&mut self, to: u64) {
        self.retire(Branch::DirectJump(Ip(to)));
    }
    pub(crate) fn indirect(&mut self, to: u64) {
        self.retire(Branch::IndirectJump(Ip(to)));
    }
    pub(crate) fn call(&mut self, to: u64) {
        self.retire(Branch::DirectCall(Ip(to)));
    }
    pub(crate) fn ret(&mut self, to: u64) {
        self.retire(Branch::Return(Ip(to)));
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.unit.event(&mut self.world, event);
    }
    pub(crate) fn far(&mut self, to: u64, context: Context) {
        let at = self.at();
        let to = Destination {
            ip: Ip(to),
            context,
        };
        let event = Event::FarBranch {
            at,
            to,
            prefixes: 0,
        };
        self.event(event);
        self.ip = to.ip.0;
    }
    pub(crate) fn interrupt(&mut self, to: u64, context: Context) {
        let from = Ip(self.ip);
        let to = Destination {
            ip: Ip(to),
            context,
        };
        self.event(Event::Interrupt { from, to });
        self.ip = to.ip.0;
    }
    /// An event that is an instruction.
    pub(crate) fn special(&mut self, event: impl FnOnce(At) -> Event) {
        let event = event(self.at());
        self.event(event);
        self.ip += 4;
    }

    pub(crate) fn try_write(&mut self, address: u32, value: u64) -> Result<(), Fault> {
        let at = self.at();
        let result = self.unit.wrmsr(&mut self.world, at, address, value);
        self.ip += 4;
        result
    }
    pub(crate) fn write(&mut self, address: u32, value: u64) {
        self.try_write(address, value)
            .unwrap_or_else(|fault| panic!("{fault}"));
    }
    pub(crate) fn read(&mut self, address: u32) -> u64 {
        self.unit
            .rdmsr(address)
            .unwrap_or_else(|fault| panic!("{fault}"))
    }
    pub(crate) fn ctl(&mut self) -> Ctl {
        Ctl(self.read(msr::RTIT_CTL))
    }
    /// Changes RTIT_CTL.
    pub(crate) fn set_ctl(&mut self, change: impl FnOnce(Ctl) -> Ctl) {
        let ctl = change(self.ctl());
        self.write(msr::RTIT_CTL, ctl.0);
    }
    pub(crate) fn status(&mut self) -> u64 {
        self.read(msr::RTIT_STATUS)
    }
    /// Software sets Buffer_Overflow, and FilterEn as it is.
    pub(crate) fn overflow(&mut self) {
        let status = self.status();
        self.write(msr::RTIT_STATUS, status & 1 | 8);
    }

    pub(crate) fn pass(&mut self, cycles: u64, tsc: u64) {
        self.world.clock.cycles += cycles;
        self.world.clock.tsc += tsc;
    }

    /// Everything that the internal buffer holds drains.
    pub(crate) fn drain(&mut self) {
        self.unit.drain(&mut self.world, usize::MAX);
    }

    /// The bytes that were written since the last time, in the order of the writes.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        let writes = std::mem::take(&mut self.world.writes);
        writes.into_iter().flat_map(|(_, bytes)| bytes).collect()
    }

    /// The packets that were written since the last time.
    pub(crate) fn said(&mut self) -> String {
        let mode = match self.ctl().cycle_acc() {
            true => Mode::CycleAccurate,
            false => Mode::Plain,
        };
        let bytes = self.bytes();
        let mut said = Vec::new();
        for item in Packets::new(&bytes).in_context(mode) {
            let item = item.unwrap_or_else(|error| panic!("{error} in {bytes:02x?}"));
            said.push(self.listing.next(&item.raw).to_string());
        }
        said.join(", ")
    }
}
