//! Random operations in any order on random processors: nothing panics, a fault changes nothing, the enables depend on each other as
//! 2.1 says, and a saved and restored unit goes on as the saved one.

use crate::machine::{KERNEL, USER, World};
use cofi_packet::Ip;
use cofi_packet::rtit::{Kind, Mode, Packets};
use cofi_unit::rtit::{
    Context, Destination, Errata, Event, Events, Implementation, InternalBuffer, Lines, SleepState,
    Unit, msr,
};
use cofi_unit::{At, Branch, RestoreError, Retired};
use proptest::prelude::*;

/// Decisions, taken from one number.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let bits = self.0 ^ self.0 >> 32;
        bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ bits >> 29
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    fn ip(&mut self) -> Ip {
        Ip(match self.below(8) {
            0 => self.next(),
            1 => 0x7fff_0000_0000 + self.below(0x4_0000),
            2 => 0x5000 + self.below(8) * 4,
            _ => 0x1000 + self.below(0x60) * 4,
        })
    }
    fn context(&mut self) -> Context {
        let context = if self.once_in(2) { KERNEL } else { USER };
        Context {
            cr3: self.below(2) * 0x3000,
            ..context
        }
    }
    fn destination(&mut self) -> Destination {
        Destination {
            ip: self.ip(),
            context: self.context(),
        }
    }
    fn at(&mut self) -> At {
        let ip = self.ip();
        At {
            ip,
            next: Ip(ip.0.wrapping_add(1 + self.below(15))),
        }
    }
}

fn choices(dice: &mut Dice, errata: bool) -> Implementation {
    let bits = if errata { dice.next() } else { 0 };
    let bit = |n: u32| bits >> n & 1 != 0;
    let mut choices = Implementation::default();
    choices.buffer = dice.once_in(2).then(|| InternalBuffer {
        size: dice.below(100) as u32,
        drain_bytes: dice.below(9) as u32,
        drain_cycles: dice.below(30) as u32,
    });
    choices.psb_effect_delay = dice.below(6) as u8;
    choices.pgd_on_disable = dice.once_in(2);
    choices.lines = [Lines::Immediate, Lines::Lines, Lines::Reordered][dice.below(3) as usize];
    choices.errata = {
        let mut errata = Errata::default();
        errata.e1 = bit(0);
        errata.e2 = bit(1);
        errata.e3 = bit(2);
        errata.e4 = bit(3);
        errata.e5 = bit(4);
        errata.e6 = bit(5);
        errata.e7 = bit(6);
        errata.e8 = bit(7);
        errata
    };
    choices.seed = dice.below(5);
    choices
}

#[derive(Clone)]
struct Machine {
    unit: Unit,
    world: World,
}

fn event(dice: &mut Dice) -> Event {
    match dice.below(20) {
        0..4 => Event::FarBranch {
            at: dice.at(),
            to: dice.destination(),
            prefixes: dice.below(15) as u8,
        },
        4..8 => Event::Interrupt {
            from: dice.ip(),
            to: dice.destination(),
        },
        8 | 9 => Event::MovCr3 {
            at: dice.at(),
            cr3: dice.below(2) * 0x3000,
        },
        10 => Event::MovCr0 {
            at: dice.at(),
            paging: dice.once_in(2),
        },
        11 => Event::Smi { from: dice.ip() },
        12 => Event::Rsm {
            to: dice.destination(),
        },
        13 => Event::VmExit { from: dice.ip() },
        14 => Event::VmEntry {
            to: dice.destination(),
        },
        15 => Event::Init {
            from: dice.ip(),
            to: dice.destination(),
        },
        16 => Event::Sipi {
            to: dice.destination(),
        },
        17 => Event::Frequency {
            actual: dice.next() as u8,
            effective: dice.next() as u8,
        },
        18 => {
            Event::Sleep([SleepState::C1, SleepState::C4, SleepState::C6][dice.below(3) as usize])
        }
        _ => Event::Wake,
    }
}

/// A value that a register takes, or (sometimes) any.
fn value(dice: &mut Dice, address: u32) -> u64 {
    if dice.once_in(16) {
        return dice.next();
    }
    match address {
        msr::RTIT_CTL => {
            let often = msr::Ctl(dice.next() & 0xff9f).with_trace_en(!dice.once_in(8));
            often.with_trace_active(!dice.once_in(4)).0
        }
        msr::RTIT_STATUS => dice.below(16),
        msr::RTIT_EVENTS => match dice.once_in(2) {
            true => Events(0).with_filter(7).with_trace_stop(6).0,
            false => dice.below(64),
        },
        msr::RTIT_CNTP => dice.below(4) << 20,
        msr::RTIT_TNT_BUFF => 1 + dice.below(127),
        msr::RTIT_PKT_CNT => dice.below(0x4000) | dice.below(4) << 16,
        msr::RTIT_LIMIT_MASK => dice.below(1 << 16) << 6 | 0x3f,
        msr::RTIT_BASE_ADDR => dice.below(1 << 30) << 6,
        msr::RTIT_OFFSET => dice.below(1 << 22),
        msr::RTIT_CR3_MATCH => dice.below(2) * 0x3000,
        msr::RTIT_LIP0..=msr::RTIT_LIP3 => dice.ip().0,
        _ => dice.below(1 << 33),
    }
}

impl Machine {
    fn new(choices: Implementation) -> Self {
        let mut unit = Unit::with(choices, KERNEL);
        unit.rdmsr(msr::RTIT_CTL).unwrap();
        Self {
            unit,
            world: World::default(),
        }
    }

    fn pass(&mut self, dice: &mut Dice) {
        let clock = &mut self.world.clock;
        for count in [&mut clock.tsc, &mut clock.cycles] {
            let by = match dice.below(32) {
                0 => dice.next(),
                1 => 0u64.wrapping_sub(dice.below(100)),
                2 => dice.below(1 << 23),
                _ => dice.below(40),
            };
            *count = count.wrapping_add(by);
        }
    }

    fn step(&mut self, seed: u64) {
        let dice = &mut Dice(seed);
        self.pass(dice);
        match dice.below(16) {
            0..9 => {
                let to = dice.ip();
                let branch = match dice.below(10) {
                    0..2 => Branch::None,
                    2..4 => Branch::Conditional(None),
                    4 => Branch::Conditional(Some(to)),
                    5 => Branch::DirectJump(to),
                    6 => Branch::DirectCall(to),
                    7 => Branch::IndirectCall(to),
                    8 => Branch::IndirectJump(to),
                    _ => Branch::Return(to),
                };
                let insn = Retired {
                    at: dice.at(),
                    branch,
                };
                self.unit.retire(&mut self.world, insn);
            }
            9..12 => {
                let event = event(dice);
                self.unit.event(&mut self.world, event);
            }
            12 => self.unit.drain(&mut self.world, dice.below(100) as usize),
            13 => self.unit.fence(&mut self.world),
            _ => {
                let spec = msr::ALL[dice.below(16) as usize];
                let value = value(dice, spec.address);
                let at = dice.at();
                let before = self.clone();
                let written = self.unit.wrmsr(&mut self.world, at, spec.address, value);
                if written.is_err() {
                    assert!(self.unit == before.unit && self.world == before.world);
                }
            }
        }
        self.check();
    }

    fn registers(&mut self) -> Vec<u64> {
        let read = |spec: &msr::RegisterSpec| self.unit.rdmsr(spec.address).unwrap();
        msr::ALL.iter().map(read).collect()
    }

    fn check(&mut self) {
        let ctl = msr::Ctl(self.unit.rdmsr(msr::RTIT_CTL).unwrap());
        let status = msr::Status(self.unit.rdmsr(msr::RTIT_STATUS).unwrap());
        assert_eq!(status.trigger_en(), ctl.trace_en() && ctl.trace_active());
        assert_eq!(
            self.unit.packet_en(),
            status.trigger_en() && status.context_en() && status.filter_en()
        );
        for spec in msr::ALL {
            let mut kept = 0;
            for field in spec.fields {
                kept |= field.mask();
            }
            assert_eq!(self.unit.rdmsr(spec.address).unwrap() & !kept, 0);
        }
        for (address, bytes) in &self.world.writes {
            assert!(!bytes.is_empty() && address % 64 + bytes.len() as u64 <= 64);
        }
    }

    fn moved(&self) -> Self {
        let bytes = self.unit.save();
        let unit = Unit::restore(*self.unit.implementation(), &bytes)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(unit.save(), bytes);
        assert_eq!(unit, self.unit);
        Self {
            unit,
            world: self.world.clone(),
        }
    }
}

/// `COFI_CASES` asks for more.
fn config() -> ProptestConfig {
    let asked = std::env::var("COFI_CASES").ok();
    let cases = asked.and_then(|cases| cases.parse().ok()).unwrap_or(200);
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn anything_may_happen_and_a_restored_unit_goes_on_alike(
        machine: u64,
        before in prop::collection::vec(any::<u64>(), 1..150),
        after in prop::collection::vec(any::<u64>(), 1..80),
    ) {
        let mut machine = Machine::new(choices(&mut Dice(machine), true));
        for step in before {
            machine.step(step);
        }
        let mut moved = machine.moved();
        for step in after {
            machine.step(step);
            moved.step(step);
            prop_assert_eq!(&machine.world, &moved.world);
            prop_assert_eq!(machine.registers(), moved.registers());
        }
    }

    /// A unit with an internal buffer never takes the quick paths.
    #[test]
    fn quick_paths_make_the_same_packets(
        machine: u64,
        steps in prop::collection::vec(any::<u64>(), 1..200),
    ) {
        let mut quick = choices(&mut Dice(machine), true);
        quick.buffer = None;
        quick.lines = Lines::Immediate;
        let buffer = InternalBuffer { size: 4096, drain_bytes: 0, drain_cycles: 0 };
        let mut slow = quick;
        slow.buffer = Some(buffer);
        let mut machines = [quick, slow].map(Machine::new);
        for step in steps {
            for machine in &mut machines {
                machine.step(step);
                machine.unit.drain(&mut machine.world, usize::MAX);
            }
            let [quick, slow] = &mut machines;
            prop_assert_eq!(quick.world.stored(), slow.world.stored());
            let [mut quick_registers, mut slow_registers] = [quick.registers(), slow.registers()];
            // Software that moves the output moves what is in the buffer, too.
            for registers in [&mut quick_registers, &mut slow_registers] {
                registers.remove(msr::ALL.iter().position(|spec| spec.address == msr::RTIT_OFFSET).unwrap());
            }
            prop_assert_eq!(quick_registers, slow_registers);
            prop_assert_eq!(quick.unit.packet_en(), slow.unit.packet_en());
        }
    }

    #[test]
    fn no_bytes_make_a_unit_that_panics(
        machine: u64,
        before in prop::collection::vec(any::<u64>(), 1..100),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        after in prop::collection::vec(any::<u64>(), 1..60),
    ) {
        let mut machine = Machine::new(choices(&mut Dice(machine), true));
        for step in before {
            machine.step(step);
        }
        let mut bytes = machine.unit.save();
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        match Unit::restore(*machine.unit.implementation(), &bytes) {
            Ok(mut unit) => {
                unit.rdmsr(msr::RTIT_CTL).unwrap();
                machine.unit = unit;
                for step in after {
                    machine.step(step);
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn what_is_stored_is_packets_and_pkt_cnt_counts_them(
        machine: u64,
        cycle_acc: bool,
        steps in prop::collection::vec(any::<u64>(), 1..150),
    ) {
        let mut choices = choices(&mut Dice(machine), false);
        choices.lines = Lines::Immediate;
        choices.errata = Errata::default();
        choices.buffer = None;
        let mut machine = Machine::new(choices);
        let at = At::default();
        let ctl = msr::Ctl(machine_ctl(steps[0])).with_cycle_acc(cycle_acc).with_dest(true);
        let events = Events(0).with_filter(Events::ALWAYS_ON).with_trace_stop(Events::ALWAYS_OFF);
        for (address, value) in [
            (msr::RTIT_EVENTS, events.0),
            (msr::RTIT_PKT_CNT, 0x700),
            (msr::RTIT_CTL, ctl.with_trace_en(true).0),
            (msr::RTIT_CTL, ctl.with_trace_en(true).with_trace_active(true).0),
        ] {
            machine.unit.wrmsr(&mut machine.world, at, address, value).unwrap();
        }
        for step in steps {
            let dice = &mut Dice(step);
            machine.pass(dice);
            if dice.once_in(3) {
                let event = event(dice);
                machine.unit.event(&mut machine.world, event);
            } else {
                let branch = match dice.below(4) {
                    0 => Branch::Conditional(None),
                    1 => Branch::IndirectCall(dice.ip()),
                    2 => Branch::IndirectJump(dice.ip()),
                    _ => Branch::Return(dice.ip()),
                };
                machine.unit.retire(&mut machine.world, Retired { at: dice.at(), branch });
            }
        }
        let bytes: Vec<u8> = machine.world.writes.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let mode = if cycle_acc { Mode::CycleAccurate } else { Mode::Plain };
        let mut last_psb = None;
        for item in Packets::new(&bytes).in_context(mode) {
            let located = item.map_err(|error| TestCaseError::fail(error.to_string()))?;
            if located.raw.kind() == Kind::Psb {
                last_psb = Some(located.offset.0);
            }
        }
        let count = msr::PktCnt(machine.unit.rdmsr(msr::RTIT_PKT_CNT).unwrap()).count();
        prop_assert_eq!(last_psb.map(|psb| bytes.len() as u64 - psb), Some(count));
    }
}

/// Bits of RTIT_CTL that only change which packets there are.
fn machine_ctl(bits: u64) -> u64 {
    bits & 0xde10 | 0xc
}

/// What is on its way when a unit is saved is on its way in the restored one.
#[test]
fn rare_states_are_saved() {
    use crate::machine::{Machine as Script, all, buffered, stop_in_range1};
    let with = |change: fn(&mut Implementation)| {
        let mut choices = buffered(64);
        change(&mut choices);
        choices
    };
    type Before = fn(&mut Script);
    let cases: [(Implementation, Before, &str); 7] = [
        (
            with(|choices| choices.errata.e3 = true),
            |script| {
                script.write(msr::RTIT_PKT_CNT, 0x7ff);
                script.indirect(0x2000);
            },
            "tip 0x2000, fup.far 0x2000, psb, tip 0x5000, tracestop",
        ),
        (
            with(|choices| choices.buffer = buffered(32).buffer),
            |script| {
                (0..8).for_each(|_| script.indirect(0x2000));
                script.write(msr::RTIT_PKT_CNT, 0x3_3fff);
                script.indirect(0x2000);
                script.drain();
                script.said();
            },
            "fup.ovf 0x5004, psb, tracestop",
        ),
        (
            with(|choices| choices.psb_effect_delay = 2),
            |script| {
                script.indirect(0x7fff_0000_0000);
                script.write(msr::RTIT_PKT_CNT, 0x800);
            },
            "tip 0x7fff00000000, psb, fup.far 0x7fff00000004 cnt=0 zext=0, tip 0x5000, tracestop",
        ),
        (
            with(|choices| choices.errata.e4 = true),
            |script| {
                script.overflow();
                script.interrupt(0x5000, KERNEL);
            },
            "tracestop, fup.ovf 0x5004",
        ),
        (
            with(|choices| choices.errata.e8 = true),
            |script| {
                script.write(msr::RTIT_PKT_CNT, 0x800);
                script.indirect(0x2000);
            },
            "",
        ),
        (
            with(|choices| choices.lines = Lines::Lines),
            |script| script.indirect(0x2000),
            "tip 0x2000, fup.far 0x2000, tip 0x5000, tracestop",
        ),
        (
            with(|_| {}),
            |script| script.conditionals("TNT"),
            "tnt TNT, fup.far 0x100c, tip 0x5000, tracestop",
        ),
    ];
    for (index, (choices, before, expected)) in cases.into_iter().enumerate() {
        let mut script = Script::traced(choices, stop_in_range1(), all());
        before(&mut script);
        let bytes = script.unit.save();
        let mut moved = script.clone();
        moved.unit = Unit::restore(choices, &bytes).unwrap();
        for script in [&mut script, &mut moved] {
            script.interrupt(0x5000, KERNEL);
            script.nop();
            script.drain();
            script.unit.fence(&mut script.world);
        }
        let said = script.said();
        assert_eq!(said, moved.said(), "{index}");
        if !expected.is_empty() {
            assert_eq!(said, expected, "{index}");
        }
        assert!(Unit::restore(Implementation::default(), &bytes).is_err());
    }
}

/// What version 1 of the form of saved RTIT units made of [`example`].
const V1: &[u8] = include_bytes!("../saved/rtit-v1.bin");

/// A unit with something in every field of the form.
fn example() -> Unit {
    use crate::machine::{Machine as Script, all, buffered, stop_in_range1};
    let mut choices = buffered(200);
    choices.lines = Lines::Reordered;
    choices.errata = Errata::ALL;
    choices.psb_effect_delay = 3;
    choices.seed = 0;
    let ctl = all()
        .with_cycle_acc(true)
        .with_sts_en(true)
        .with_mtc_en(true);
    let mut script = Script::traced(choices, stop_in_range1(), ctl);
    for _ in 0..60 {
        script.indirect(0x7fff_1234_0000);
    }
    script.drain();
    script.event(Event::Frequency {
        actual: 20,
        effective: 10,
    });
    script.pass(1000, 3000);
    script.call(0x2000);
    script.conditionals("TNT");
    script.write(msr::RTIT_PKT_CNT, 0x800);
    script.indirect(0x2_0000_3000);
    script.overflow();
    script.interrupt(0x5000, USER);
    script.event(Event::Smi { from: Ip(0x5000) });
    script.event(Event::Sleep(SleepState::C1));
    script.unit
}

/// With `COFI_WRITE_SAVED` set, the file is written anew: for a new version of the form, beside the old one.
#[test]
fn version_1_is_still_read_and_written() {
    let example = example();
    let saved = example.save();
    if std::env::var_os("COFI_WRITE_SAVED").is_some() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/saved/rtit-v1.bin");
        std::fs::write(folder, &saved).unwrap();
        return;
    }
    assert_eq!(saved, V1);
    let restored = Unit::restore(*example.implementation(), V1).unwrap();
    assert_eq!(restored.save(), V1);
}

#[test]
fn saved_units_of_another_kind_are_refused() {
    let choices = Implementation::default();
    assert_eq!(
        Unit::restore(choices, b"COFIUNIT\x01\x00"),
        Err(RestoreError::Magic)
    );
    let mut bytes = Unit::new(KERNEL).save();
    assert!(Unit::restore(choices, &bytes).is_ok());
    bytes[8] = 2;
    assert_eq!(
        Unit::restore(choices, &bytes),
        Err(RestoreError::Version(2))
    );
    bytes[8] = 1;
    bytes.push(0);
    assert!(matches!(
        Unit::restore(choices, &bytes),
        Err(RestoreError::Trailing { count: 1, .. })
    ));
}
