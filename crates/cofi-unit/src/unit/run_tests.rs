//! Long stretches of branches, gathered and one by one: the same packets. (The law of `cofi-law` says so of whole programs, which
//! have fewer branches between packets of other kinds.)

use super::Unit;
use crate::{
    At, Branch, Capabilities, Client, Clock, Context, Ctl, Event, Implementation, PhysAddr,
    Retired, TntForm, msr,
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

fn ready(ctl: Ctl, long_tnt: bool) -> (Unit, World) {
    let mut world = World::default();
    let choices = Implementation {
        tnt: if long_tnt {
            TntForm::Long
        } else {
            TntForm::Short
        },
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
    for (register, value) in [
        (msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0xfff),
        (msr::IA32_RTIT_CTL, ctl.with_trace_en(true).0),
    ] {
        unit.wrmsr(&mut world, at, register, value).expect("legal");
    }
    (unit, world)
}

fn one_by_one((mut unit, mut world): (Unit, World), insns: &[(Clock, Retired)]) -> Vec<u8> {
    for &(clock, insn) in insns {
        world.clock = clock;
        unit.retire(&mut world, insn);
    }
    unit.event(&mut world, Event::ClocksResumed);
    world.trace
}

fn gathered(
    (mut unit, mut world): (Unit, World),
    insns: &[(Clock, Retired)],
    at_once: usize,
) -> Vec<u8> {
    for part in insns.chunks(at_once) {
        let mut unit = unit.gather(world.clock.tsc);
        for &(clock, insn) in part {
            let taken = match insn.branch {
                Branch::Conditional(target) => Some(target.is_some()),
                _ => None,
            };
            if taken.is_none_or(|taken| !unit.direct(clock.tsc, true, taken)) {
                world.clock = clock;
                unit.retire(&mut world, insn);
            }
        }
        drop(unit);
        world.clock = part[part.len() - 1].0;
    }
    unit.event(&mut world, Event::ClocksResumed);
    world.trace
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
            let ready = || ready(ctl, is(5));
            let expected = one_by_one(ready(), &insns);
            let found = gathered(ready(), &insns, at_once);
            // There have been PSBs.
            assert!(expected.len() > 3000);
            assert!(expected == found, "{ctl:?}, {others}, {at_once}");
        }
    }
}

/// What is inlined of [`Unit::retire`] does what the whole of it does.
#[test]
fn instructions_that_make_no_packet_leave_the_same_state() {
    for bits in 0..128 {
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
            let (mut unit, mut world) = ready(ctl, is(5));
            let end = At::default();
            for (register, value) in [
                (msr::IA32_RTIT_CTL, 0),
                (msr::IA32_RTIT_ADDR0_A, 0x40_8000),
                (msr::IA32_RTIT_ADDR0_B, 0x41_ffff),
                (msr::IA32_RTIT_CTL, ctl.with_trace_en(true).0),
            ] {
                unit.wrmsr(&mut world, end, register, value).expect("legal");
            }
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
