//! Long stretches of branches, gathered and one by one: the same packets. (The law of `cofi-law` says so of whole programs, which
//! have fewer branches between packets of other kinds.)

use super::region::Region;
use super::{Gathering, Unit};
use crate::{
    At, Branch, Capabilities, Client, Clock, Context, Ctl, Event, Implementation, InternalBuffer,
    PhysAddr, Retired, TntForm, msr,
};
use cofi_packet::{ExecMode, Ip};
use std::vec::Vec;

#[derive(Default)]
struct World {
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

fn random(state: &mut u64) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    (*state >> 40) as usize
}

/// One instruction in `others` is no conditional branch.
fn stretch(seed: u64, len: usize, others: usize) -> Vec<(Clock, Retired)> {
    let (mut state, mut tsc, mut stack) = (seed, 1000, Vec::new());
    let mut insns = Vec::new();
    for _ in 0..len {
        let ip = Ip(0x40_0000 + (random(&mut state) % 0x2_0000) as u64);
        let at = At {
            ip,
            next: Ip(ip.0 + 2),
        };
        let to = Ip(0x40_0000 + (random(&mut state) % 0x2_0000) as u64);
        let branch = match random(&mut state) % others {
            0 => match random(&mut state) % 6 {
                0 => Branch::None,
                1 => Branch::DirectJump(to),
                2 => Branch::IndirectJump(to),
                3 => Branch::DirectCall(to),
                4 => Branch::IndirectCall(to),
                _ => Branch::Return(stack.pop().unwrap_or(to)),
            },
            n => Branch::Conditional((n % 2 == 0).then_some(to)),
        };
        if let Branch::DirectCall(_) | Branch::IndirectCall(_) = branch {
            stack.push(at.next);
        }
        tsc += (random(&mut state) % 20) as u64;
        insns.push((Clock { tsc, cycles: tsc }, Retired { at, branch }));
    }
    insns
}

/// A processor, and what software asks of it.
#[derive(Clone, Copy, Debug)]
struct Setup {
    ctl: Ctl,
    long_tnt: bool,
    /// IA32_RTIT_ADDRn_A and _B.
    ranges: [(u64, u64); 2],
    buffer: Option<InternalBuffer>,
    /// So many bytes of the buffer drain between two parts of the stretch.
    drains: usize,
}

impl Setup {
    const fn new(ctl: Ctl, long_tnt: bool) -> Self {
        Self {
            ctl,
            long_tnt,
            ranges: [(0, 0); 2],
            buffer: None,
            drains: 0,
        }
    }

    fn ready(&self) -> (Unit, World) {
        let mut world = World::default();
        let choices = Implementation {
            tnt: if self.long_tnt {
                TntForm::Long
            } else {
                TntForm::Short
            },
            buffer: self.buffer,
            ..Implementation::default()
        };
        let user = Context {
            cpl: 3,
            mode: ExecMode::Bits64,
            ..Context::default()
        };
        let mut unit = Unit::with(Capabilities::default(), choices, user);
        let at = At {
            ip: Ip(0x40_0000),
            next: Ip(0x40_0000),
        };
        let [first, second] = self.ranges;
        for (register, value) in [
            (msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0xfff),
            (msr::IA32_RTIT_ADDR0_A, first.0),
            (msr::IA32_RTIT_ADDR0_B, first.1),
            (msr::IA32_RTIT_ADDR1_A, second.0),
            (msr::IA32_RTIT_ADDR1_B, second.1),
            (msr::IA32_RTIT_CTL, self.ctl.with_trace_en(true).0),
        ] {
            unit.wrmsr(&mut world, at, register, value).expect("legal");
        }
        (unit, world)
    }

    /// What happens between two parts: the buffer drains, and where TraceStop was met tracing begins anew. Whether it did.
    fn between(&self, unit: &mut Unit, world: &mut World, next: Ip) -> bool {
        unit.drain(world, self.drains);
        let stopped = unit.regs.status.stopped();
        if stopped {
            for (register, value) in [
                (msr::IA32_RTIT_CTL, 0),
                (msr::IA32_RTIT_STATUS, 0),
                (msr::IA32_RTIT_CTL, self.ctl.with_trace_en(true).0),
            ] {
                let at = At { ip: next, next };
                unit.wrmsr(world, at, register, value).expect("legal");
            }
        }
        stopped
    }
}

/// How a stretch went.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    trace: Vec<u8>,
    overflows: u64,
    /// Bytes that the internal buffer held after each part.
    buffered: Vec<usize>,
    stops: u32,
}

impl Outcome {
    fn end(mut self, mut unit: Unit, mut world: World) -> Self {
        unit.event(&mut world, Event::ClocksResumed);
        unit.wrmsr(&mut world, At::default(), msr::IA32_RTIT_CTL, 0)
            .expect("legal");
        (self.trace, self.overflows) = (world.trace, unit.overflows());
        self
    }

    fn part(&mut self, setup: &Setup, unit: &mut Unit, world: &mut World, next: Ip) {
        self.buffered.push(unit.buffered());
        self.stops += u32::from(setup.between(unit, world, next));
    }
}

fn one_by_one(setup: &Setup, insns: &[(Clock, Retired)], at_once: usize) -> Outcome {
    let ((mut unit, mut world), mut outcome) = (setup.ready(), Outcome::default());
    for part in insns.chunks(at_once) {
        for &(clock, insn) in part {
            world.clock = clock;
            unit.retire(&mut world, insn);
        }
        let (_, last) = part[part.len() - 1];
        outcome.part(setup, &mut unit, &mut world, last.destination());
    }
    outcome.end(unit, world)
}

/// Tells what can be told in a short way; whether it could.
fn told_shortly(unit: &mut Gathering<'_>, clock: Clock, insn: Retired) -> bool {
    if let Branch::Conditional(target) = insn.branch
        && clock.tsc.is_multiple_of(2)
    {
        return unit.direct(clock.tsc, true, target.is_some());
    }
    clock.tsc < unit.until()
        && match insn.branch {
            Branch::None | Branch::DirectJump(_) => unit.result(false, false),
            Branch::Conditional(target) => unit.result(true, target.is_some()),
            Branch::DirectCall(target) if target != insn.at.next => {
                unit.call(insn.at.next);
                true
            }
            Branch::Return(target) => unit.compressed_return(target),
            _ => false,
        }
}

/// `direct`: what can be told in a short way, is.
fn gathered(setup: &Setup, insns: &[(Clock, Retired)], at_once: usize, direct: bool) -> Outcome {
    let ((mut unit, mut world), mut outcome) = (setup.ready(), Outcome::default());
    for part in insns.chunks(at_once) {
        let mut gathering = unit.gather(world.clock.tsc);
        for &(clock, insn) in part {
            if direct && told_shortly(&mut gathering, clock, insn) {
                continue;
            }
            world.clock = clock;
            gathering.retire(&mut world, insn);
        }
        drop(gathering);
        let (clock, last) = part[part.len() - 1];
        world.clock = clock;
        outcome.part(setup, &mut unit, &mut world, last.destination());
    }
    outcome.end(unit, world)
}

/// The ways to tell a stretch make the same packets, which are these.
fn compare(setup: &Setup, insns: &[(Clock, Retired)], at_once: usize) -> Outcome {
    let expected = one_by_one(setup, insns, at_once);
    for direct in [true, false] {
        let found = gathered(setup, insns, at_once, direct);
        assert!(expected == found, "{setup:x?}, {at_once}, {direct}");
    }
    expected
}

#[test]
fn gathered_branches_make_the_same_packets() {
    for bits in 0..64 {
        let is = |bit: u64| bits >> bit & 1 != 0;
        let ctl = Ctl(0)
            .with_user(true)
            .with_branch_en(true)
            .with_tsc_en(is(0))
            .with_mtc_en(is(1))
            .with_cyc_en(is(2))
            .with_dis_retc(is(3))
            .with_mtc_freq(if is(4) { 0 } else { 6 });
        for (others, at_once) in [(1000, 7), (1000, 5000), (9, 100)] {
            let insns = stretch(bits, 30_000, others);
            let found = compare(&Setup::new(ctl, is(5)), &insns, at_once);
            // There have been PSBs.
            assert!(found.trace.len() > 3000);
        }
    }
}

/// Address ranges, an internal buffer and CYCs, each alone and all together.
#[test]
fn gathered_branches_make_the_same_packets_under_filters_buffers_and_thresholds() {
    // Beside [`stretch`]'s addresses: code in two halves, and places to which a branch comes now and then.
    const RANGES: [(u64, [(u64, u64); 2]); 6] = [
        (0, [(0, 0); 2]),
        (0x01, [(0, u64::MAX >> 17), (0, 0)]),
        (0x01, [(0x40_8000, 0x41_ffff), (0, 0)]),
        (0x11, [(0x40_8000, 0x40_ffff), (0x41_4000, 0x41_7fff)]),
        (0x20, [(0, 0), (0x41_0000, 0x41_003f)]),
        (0x21, [(0x40_4000, 0x41_ffff), (0x41_0000, 0x41_003f)]),
    ];
    let buffer = |size, drain_bytes, drain_cycles| {
        Some(InternalBuffer {
            size,
            drain_bytes,
            drain_cycles,
            resume_at: size / 2,
        })
    };
    // None; one that drains by itself, soon or late; one that software drains; and those that overflow.
    let buffers = [
        (None, 0),
        (buffer(4096, 16, 16), 0),
        (buffer(4096, 700, 1000), 3),
        (buffer(4096, 0, 0), 600),
        (buffer(100, 1, 90), 0),
        (buffer(200, 0, 0), 50),
    ];
    let (mut overflows, mut stops, mut seed) = (0, 0, 0);
    for (config, ranges) in RANGES {
        for (buffer, drains) in buffers {
            for thresh in [None, Some(0), Some(1), Some(5), Some(9)] {
                seed += 1;
                let ctl = Ctl(config << 32)
                    .with_user(true)
                    .with_branch_en(true)
                    .with_tsc_en(seed % 2 == 0)
                    .with_mtc_en(seed % 3 == 0)
                    .with_mtc_freq(3)
                    .with_cyc_en(thresh.is_some())
                    .with_cyc_thresh(thresh.unwrap_or(0));
                let setup = Setup {
                    ranges,
                    buffer,
                    drains,
                    ..Setup::new(ctl, seed % 5 == 0)
                };
                for (others, at_once) in [(200, 700), (5, 90)] {
                    let insns = stretch(seed, 10_000, others);
                    let found = compare(&setup, &insns, at_once);
                    assert!(found.trace.len() > 300, "{setup:x?}");
                    overflows += found.overflows;
                    stops += found.stops;
                }
            }
        }
    }
    assert!(overflows > 1000 && stops > 100, "{overflows}, {stops}");
}

/// What is inlined of [`Unit::retire`] does what the whole of it does.
#[test]
fn instructions_that_make_no_packet_leave_the_same_state() {
    for bits in 0..256 {
        let is = |bit: u64| bits >> bit & 1 != 0;
        let ctl = Ctl(0)
            .with_user(true)
            .with_branch_en(true)
            .with_tsc_en(is(0))
            .with_mtc_en(is(1))
            .with_cyc_en(is(2))
            .with_dis_tnt(is(3))
            .with_addr0_cfg(is(4).into())
            .with_mtc_freq(3);
        let ready = || {
            let setup = Setup {
                ranges: [(0x40_8000, 0x41_ffff), (0, 0)],
                buffer: is(7).then_some(InternalBuffer {
                    size: 4096,
                    drain_bytes: 3,
                    drain_cycles: 50,
                    resume_at: 0,
                }),
                ..Setup::new(ctl, is(5))
            };
            let (mut unit, world) = setup.ready();
            if is(6) {
                // As deferred TIPs and a narrow counter would have it.
                unit.choices.deferred_tips = true;
                unit.choices.cycle_counter_bits = Some(6);
                unit.configure();
            }
            (unit, world)
        };
        let ((mut unit, mut world), (mut whole, mut other)) = (ready(), ready());
        let (mut direct, mut third) = ready();
        let mut count = 0;
        for (clock, insn) in stretch(bits, 10_000, 4) {
            (world.clock, other.clock, third.clock) = (clock, clock, clock);
            unit.retire(&mut world, insn);
            if whole.cached.has_ranges {
                // What is known of the region is looked up anew.
                whole.cached.region = Region::UNKNOWN;
            }
            whole.retire_whole(&mut other, insn);
            assert!(unit == whole, "{ctl:?}, {insn:?}");
            let told = match insn.branch {
                Branch::None | Branch::DirectJump(_) => Some((false, false)),
                Branch::Conditional(target) => Some((true, target.is_some())),
                _ => None,
            };
            match told {
                Some((conditional, taken))
                    if direct.retire_direct(&mut third, conditional, taken) =>
                {
                    count += 1;
                }
                _ => direct.retire(&mut third, insn),
            }
            assert!(direct == whole, "{ctl:?}, {insn:?}");
        }
        assert!(world.trace == other.trace && world.trace.len() > 200);
        assert!(third.trace == other.trace);
        // With ranges, without TNTs and with what is set above it asks for the whole.
        let is_plain = !(is(3) || is(4) || is(6));
        assert_eq!(count > 1000, is_plain, "{ctl:?}: {count}");
    }
}
