//! Two units that are told the same: one of each instruction as it retires, the other of many at a time.

use crate::Rng;
use cofi_packet::{Ip, Tsc};
use cofi_unit::{
    At, Branch, Capabilities, Client, Clock, Context, Destination, Event, Gathering,
    Implementation, PhysAddr, Retired, Unit,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    clock: Clock,
    trace: Vec<u8>,
}

impl Client for World {
    fn now(&mut self) -> Clock {
        self.clock
    }
    fn store(&mut self, _address: PhysAddr, bytes: &[u8]) {
        self.trace.extend(bytes);
    }
}

#[derive(Debug)]
pub(crate) struct Units {
    one_by_one: (Unit, World),
    at_once: (Unit, World),
    /// What the second has not been told yet, and how much it is told at a time.
    waiting: Vec<(Clock, Retired)>,
    most: usize,
    rng: Rng,
}

impl Units {
    pub(crate) fn new(
        caps: Capabilities,
        choices: Implementation,
        context: Context,
        start: u64,
        seed: u64,
    ) -> Self {
        let clock = Clock {
            tsc: start,
            cycles: start,
        };
        let world = World {
            clock,
            trace: Vec::new(),
        };
        let unit = (Unit::with(caps, choices, context), world);
        Self {
            one_by_one: unit.clone(),
            at_once: unit,
            waiting: Vec::new(),
            most: 1,
            rng: Rng::new(seed),
        }
    }

    pub(crate) fn tsc(&self) -> Tsc {
        Tsc(self.one_by_one.1.clock.tsc)
    }

    pub(crate) fn packet_en(&self) -> bool {
        self.one_by_one.0.packet_en()
    }

    pub(crate) fn pass(&mut self, ticks: u64) {
        let clock = &mut self.one_by_one.1.clock;
        clock.tsc += ticks;
        clock.cycles += ticks;
    }

    pub(crate) fn retire(&mut self, insn: Retired) {
        let (unit, world) = &mut self.one_by_one;
        unit.retire(world, insn);
        self.waiting.push((world.clock, insn));
        if self.waiting.len() >= self.most {
            self.tell();
            let most = [3, 30, 500][self.rng.index(3)];
            self.most = 1 + self.rng.index(most);
        }
    }

    fn tell(&mut self) {
        let (unit, world) = &mut self.at_once;
        if self.rng.one_in(4) {
            for (clock, insn) in self.waiting.drain(..) {
                world.clock = clock;
                unit.retire(world, insn);
            }
        }
        let mut unit = unit.gather(world.clock.tsc);
        for (clock, insn) in self.waiting.drain(..) {
            // In any of the ways in which it can be told.
            if !self.rng.one_in(4) && told_shortly(&mut unit, clock, insn) {
                continue;
            }
            world.clock = clock;
            unit.retire(world, insn);
        }
        drop(unit);
        world.clock = self.one_by_one.1.clock;
    }

    /// Does the same with both.
    pub(crate) fn with(&mut self, act: impl Fn(&mut Unit, &mut World)) {
        self.tell();
        for (unit, world) in [&mut self.one_by_one, &mut self.at_once] {
            act(unit, world);
        }
    }

    pub(crate) fn event(&mut self, event: Event<'_>) {
        self.with(|unit, world| unit.event(world, event));
    }

    pub(crate) fn interrupt(&mut self, from: Ip, ip: Ip, context: Context) {
        let to = Destination { ip, context };
        self.event(Event::Interrupt {
            from,
            vector: 32,
            page_fault: None,
            to,
        });
    }

    pub(crate) fn far(&mut self, ip: Ip, context: Context) {
        let to = Destination { ip, context };
        let at = At::default();
        self.event(Event::FarBranch { at, to });
    }

    /// What both have sent.
    pub(crate) fn finish(mut self) -> [Vec<u8>; 2] {
        self.tell();
        [self.one_by_one, self.at_once].map(|(_, world)| world.trace)
    }
}

/// Tells what can be told in a short way; whether it could.
fn told_shortly(unit: &mut Gathering<'_>, clock: Clock, insn: Retired) -> bool {
    if clock.tsc >= unit.until() {
        return false;
    }
    match insn.branch {
        Branch::None | Branch::DirectJump(_) => unit.direct(clock.tsc, false, false),
        Branch::Conditional(target) => unit.result(true, target.is_some()),
        Branch::DirectCall(target) if target != insn.at.next => {
            unit.call(insn.at.next);
            true
        }
        Branch::Return(target) => unit.compressed_return(target),
        _ => false,
    }
}
