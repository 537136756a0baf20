//! Saved units: they go on as if nothing had been, saved ones of old are still read, and no bytes do harm.

mod random;

use cofi_packet::{ExecMode, Ip};
use cofi_unit::{
    At, Branch, Capabilities, Client, Clock, Context, Ctl, Event, Implementation, InternalBuffer,
    PhysAddr, RestoreError, Retired, Unit, msr,
};
use proptest::prelude::*;
use random::{Dice, Machine};

/// The machine with its unit saved and restored.
fn moved(machine: &Machine) -> Machine {
    let bytes = machine.unit.save();
    let unit = Unit::restore(
        *machine.unit.capabilities(),
        *machine.unit.implementation(),
        &bytes,
    );
    let unit = unit.unwrap_or_else(|error| panic!("{error}: {:?}", machine.unit));
    assert_eq!(unit.save(), bytes);
    Machine {
        unit,
        ..machine.clone()
    }
}

/// `COFI_CASES` asks for more.
fn cases() -> u32 {
    let asked = std::env::var("COFI_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(256)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_unit_goes_on_as_the_saved_one(
        machine: u64,
        before in prop::collection::vec(any::<u64>(), 1..80),
        after in prop::collection::vec(any::<u64>(), 1..40),
    ) {
        let mut machine = Machine::new(&mut Dice::Seed(machine));
        for step in before {
            machine.step(&mut Dice::Seed(step));
        }
        let mut moved = moved(&machine);
        for step in after {
            machine.step(&mut Dice::Seed(step));
            moved.step(&mut Dice::Seed(step));
            prop_assert_eq!(&machine.world, &moved.world);
            prop_assert_eq!(machine.registers(), moved.registers());
        }
        machine.finish();
        moved.finish();
        prop_assert_eq!(machine.world, moved.world);
    }

    #[test]
    fn no_bytes_make_a_unit_that_panics(
        machine: u64,
        before in prop::collection::vec(any::<u64>(), 1..60),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        after in prop::collection::vec(any::<u64>(), 1..40),
    ) {
        let mut machine = Machine::new(&mut Dice::Seed(machine));
        for step in before {
            machine.step(&mut Dice::Seed(step));
        }
        let mut bytes = machine.unit.save();
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let (caps, choices) = (*machine.unit.capabilities(), *machine.unit.implementation());
        match Unit::restore(caps, choices, &bytes) {
            Ok(unit) => {
                machine.unit = unit;
                machine.is_broken = true;
                for step in after {
                    machine.step(&mut Dice::Seed(step));
                }
                machine.finish();
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

/// A VM exit clears TraceEn, and loads IA32_RTIT_STATUS and IA32_RTIT_CTL: tracing begins anew and stops in the host's first
/// TraceStop region, so packets come though TriggerEn is 0 before and after.
#[test]
fn a_vm_exit_may_begin_tracing_and_stop_it() {
    let mut machine = Machine::new(&mut Dice::Seed(6_848_585_245_816_406_127));
    for step in [
        4_314_478_007_151,
        961_349_082_245_930_804,
        5_975_790_951_907_321_445,
    ] {
        machine.step(&mut Dice::Seed(step));
    }
    let before = machine.world.stored.len();
    assert!(machine.status().stopped());
    machine.step(&mut Dice::Seed(2_338_220_761_655_131_117));
    assert!(machine.status().stopped());
    assert!(machine.world.stored.len() > before);
}

/// What version 1 of the format made of [`example`].
const V1: &[u8] = include_bytes!("saved/v1.bin");

fn choices() -> Implementation {
    let mut choices = Implementation::default();
    choices.tnt = cofi_unit::TntForm::Both;
    choices.deferred_tips = true;
    choices.ip_compression = cofi_unit::IpCompression::Shortest;
    choices.cycle_counter_bits = Some(12);
    choices.mode_exec_on_enable = false;
    choices.stale_reads = true;
    choices.buffer = Some(InternalBuffer {
        size: 512,
        drain_bytes: 1,
        drain_cycles: 1000,
        resume_at: 64,
    });
    choices
}

#[derive(Default)]
struct Recorder {
    clock: Clock,
    stored: Vec<u8>,
}

impl Client for Recorder {
    fn now(&mut self) -> Clock {
        self.clock
    }
    fn store(&mut self, _: PhysAddr, bytes: &[u8]) {
        self.stored.extend(bytes);
    }
}

fn retire(unit: &mut Unit, world: &mut Recorder, branch: Branch) {
    world.clock.tsc += 30;
    world.clock.cycles += 30;
    let at = At {
        ip: Ip(0x40_1000),
        next: Ip(0x40_1005),
    };
    unit.retire(world, Retired { at, branch });
}

/// A unit with something of everything in it: a buffer, TNT results, deferred TIPs, calls, VMX.
fn example() -> (Unit, Recorder) {
    let context = Context {
        cpl: 3,
        cr3: 0x1_2000,
        mode: ExecMode::Bits32,
        ..Context::default()
    };
    let mut unit = Unit::with(Capabilities::default(), choices(), context);
    let mut world = Recorder::default();
    let at = At::default();
    let ctl = Ctl(0)
        .with_trace_en(true)
        .with_user(true)
        .with_os(true)
        .with_branch_en(true)
        .with_tsc_en(true)
        .with_mtc_en(true);
    for (register, value) in [
        (msr::IA32_RTIT_OUTPUT_BASE, 0x10_0000),
        (msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0xfff),
        (msr::IA32_RTIT_ADDR3_A, 0x1234),
        (msr::IA32_RTIT_CTL, ctl.0),
    ] {
        unit.wrmsr(&mut world, at, register, value).unwrap();
    }
    unit.event(&mut world, Event::Vmxon { at });
    unit.event(&mut world, Event::Vmptrld { at, vmcs: 0x7000 });
    for branch in [
        Branch::DirectCall(Ip(0x40_2000)),
        Branch::Conditional(Some(Ip(0x40_2010))),
        Branch::IndirectJump(Ip(0x40_3000)),
        Branch::Conditional(None),
    ] {
        retire(&mut unit, &mut world, branch);
    }
    (unit, world)
}

/// Goes on, until all is stored.
fn go_on(mut unit: Unit, mut world: Recorder) -> Vec<u8> {
    retire(&mut unit, &mut world, Branch::Return(Ip(0x40_1005)));
    retire(&mut unit, &mut world, Branch::IndirectJump(Ip(0x40_4000)));
    unit.wrmsr(&mut world, At::default(), msr::IA32_RTIT_CTL, 0)
        .unwrap();
    world.stored
}

/// Saved files outlive the program that wrote them. When the format changes, this file stays, and another joins it.
#[test]
fn a_unit_saved_in_version_1_is_still_read() {
    let (unit, world) = example();
    let again = || Recorder {
        clock: world.clock,
        stored: world.stored.clone(),
    };
    let old = Unit::restore(Capabilities::default(), choices(), V1).unwrap();
    assert_eq!(old.rdmsr(msr::IA32_RTIT_ADDR3_A), Ok(0x1234));
    assert_eq!(old.context().cr3, 0x1_2000);
    assert!(old.packet_en() && old.buffered() > 0);
    assert_eq!(old.save(), V1);
    assert_eq!(go_on(old, again()), go_on(unit, again()));
}

#[test]
fn errors_say_where_and_what() {
    let restore = |bytes: &[u8]| Unit::restore(Capabilities::default(), choices(), bytes);
    let change = |offset: usize, value: u8| {
        let mut bytes = V1.to_vec();
        bytes[offset] = value;
        restore(&bytes).err()
    };
    assert_eq!(change(0, b'D'), Some(RestoreError::Magic));
    assert_eq!(change(8, 2), Some(RestoreError::Version(2)));
    // A reserved bit of IA32_RTIT_CTL, the third register.
    let error = change(10 + 2 * 8 + 7, 0x80).unwrap();
    assert!(matches!(error, RestoreError::Illegal { offset: 26, .. }));
    assert_eq!(
        error.to_string(),
        "IA32_RTIT_CTL at 0x1a is 0x800000000000260d: no value that the register can hold (33.2.8)"
    );
    for len in 0..V1.len() {
        match restore(&V1[..len]).unwrap_err() {
            RestoreError::Magic => assert!(len < 8),
            RestoreError::Truncated { offset, .. } => assert_eq!(offset, len),
            error => panic!("{error}"),
        }
    }
    let longer = [V1, b"x"].concat();
    let trailing = RestoreError::Trailing {
        offset: V1.len(),
        count: 1,
    };
    assert_eq!(restore(&longer).err(), Some(trailing));
    // Another processor.
    assert!(Unit::restore(Capabilities::NONE, choices(), V1).is_err());
    assert!(Unit::restore(Capabilities::default(), Implementation::default(), V1).is_err());
}
