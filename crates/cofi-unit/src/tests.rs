//! Register rules, and packet scenarios from the manual's own tables and examples.

use crate::*;
use cofi_packet::intel::{LastIp, Packet, Packets};
use cofi_packet::{ExecMode, Ip};
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

const BASE: u64 = 0x10_0000;
const USER: Context = Context {
    cpl: 3,
    cr3: 0x1000,
    pae: false,
    mode: ExecMode::Bits64,
    cs_base: 0,
    interrupt_flag: false,
    in_tx: false,
    enclave: Enclave::None,
};
const KERNEL: Context = Context { cpl: 0, ..USER };
const NOWHERE: At = At {
    ip: Ip(0x8000),
    next: Ip(0x8003),
};

#[derive(Default)]
struct World {
    clock: Clock,
    stores: Vec<(u64, Vec<u8>)>,
}

impl Client for World {
    fn now(&mut self) -> Clock {
        self.clock
    }
    fn store(&mut self, address: PhysAddr, bytes: &[u8]) {
        self.stores.push((address.0, bytes.into()));
    }
}

impl World {
    fn bytes(&self) -> Vec<u8> {
        self.stores
            .iter()
            .flat_map(|(_, bytes)| bytes.clone())
            .collect()
    }

    /// The packets so far, IPs in full.
    fn text(&self) -> Vec<String> {
        let mut last_ip = LastIp::new();
        Packets::new(&self.bytes())
            .map(|item| {
                let packet = item.expect("the unit writes packets only").packet();
                match packet {
                    Packet::Psb => last_ip.reset(),
                    Packet::Tip { ip }
                    | Packet::TipPge { ip }
                    | Packet::TipPgd { ip }
                    | Packet::Fup { ip } => {
                        return match last_ip.apply(ip) {
                            Some(ip) => format!("{} {ip}", packet.kind().name()),
                            None => format!("{} -", packet.kind().name()),
                        };
                    }
                    _ => {}
                }
                packet.to_string()
            })
            .collect()
    }

    fn at(&mut self, cycles: u64) -> &mut Self {
        self.clock = Clock {
            tsc: cycles,
            cycles,
        };
        self
    }
}

fn ready(context: Context) -> (Unit, World) {
    let mut unit = Unit::new(Capabilities::default(), context);
    let mut world = World::default();
    unit.wrmsr(&mut world, NOWHERE, msr::IA32_RTIT_OUTPUT_BASE, BASE)
        .unwrap();
    unit.wrmsr(&mut world, NOWHERE, msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0xffff)
        .unwrap();
    (unit, world)
}

fn enabled(context: Context, ctl: Ctl) -> (Unit, World) {
    let (mut unit, mut world) = ready(context);
    unit.wrmsr(
        &mut world,
        NOWHERE,
        msr::IA32_RTIT_CTL,
        ctl.with_trace_en(true).0,
    )
    .unwrap();
    (unit, world)
}

/// Everything after the first PSBEND, the introduction.
fn after_intro(world: &World) -> Vec<String> {
    let mut text = world.text();
    let end = text
        .iter()
        .position(|line| line == "psbend")
        .expect("a PSB+ begins the trace");
    text.split_off(end + 1)
}

fn branch(ip: u64, branch: Branch) -> Retired {
    Retired {
        at: At {
            ip: Ip(ip),
            next: Ip(ip + 4),
        },
        branch,
    }
}

fn far(unit: &mut Unit, world: &mut World, ip: Ip, context: Context) {
    let to = Destination { ip, context };
    unit.event(world, Event::FarBranch { at: NOWHERE, to });
}

fn event(unit: &mut Unit, world: &mut World, from: Ip, ip: Ip, context: Context) {
    let to = Destination { ip, context };
    let event = Event::Interrupt {
        from,
        vector: 32,
        page_fault: None,
        to,
    };
    unit.event(world, event);
}

fn mov_cr3(unit: &mut Unit, world: &mut World, at: At, cr3: u64) {
    unit.event(world, Event::MovCr3 { at, cr3 });
}

const PLAIN: Ctl = Ctl(0).with_user(true).with_branch_en(true);

#[test]
fn a_bad_output_region_is_an_operational_error_and_traces_nothing() {
    for (base, mask_ptrs) in [
        (0x80, 0xffff),
        (BASE, 0x1_7fff),
        (BASE, 0x1_0000_0000_ffff << 4),
    ] {
        let (mut unit, mut world) = ready(USER);
        unit.wrmsr(&mut world, NOWHERE, msr::IA32_RTIT_OUTPUT_BASE, base)
            .unwrap();
        unit.wrmsr(
            &mut world,
            NOWHERE,
            msr::IA32_RTIT_OUTPUT_MASK_PTRS,
            mask_ptrs,
        )
        .unwrap();
        unit.wrmsr(
            &mut world,
            NOWHERE,
            msr::IA32_RTIT_CTL,
            PLAIN.with_trace_en(true).0,
        )
        .unwrap();
        let status = Status(unit.rdmsr(msr::IA32_RTIT_STATUS).unwrap());
        assert!(
            status.error() && !status.trigger_en(),
            "{base:#x} {mask_ptrs:#x}"
        );
        unit.retire(&mut world, branch(0x1000, Branch::IndirectJump(Ip(0x2000))));
        assert!(world.stores.is_empty());
    }
}

#[test]
fn output_wraps_around_its_region() {
    let (mut unit, mut world) = ready(USER);
    unit.wrmsr(
        &mut world,
        NOWHERE,
        msr::IA32_RTIT_OUTPUT_MASK_PTRS,
        0x7f | 120 << 32,
    )
    .unwrap();
    unit.wrmsr(
        &mut world,
        NOWHERE,
        msr::IA32_RTIT_CTL,
        PLAIN.with_trace_en(true).0,
    )
    .unwrap();
    assert_eq!(
        (world.stores[0].0, world.stores[0].1.len()),
        (BASE + 120, 8)
    );
    assert_eq!((world.stores[1].0, world.stores[1].1.len()), (BASE, 8));
    let next = OutputMaskPtrs(unit.rdmsr(msr::IA32_RTIT_OUTPUT_MASK_PTRS).unwrap()).offset();
    assert_eq!(next, (120 + world.bytes().len() as u64) % 128);
}

#[test]
fn table_33_55_near_branches() {
    let (mut unit, mut world) = enabled(USER, PLAIN);
    for _ in 0..6 {
        unit.retire(&mut world, branch(0x1000, Branch::Conditional(None)));
    }
    unit.retire(&mut world, branch(0x1000, Branch::None));
    unit.retire(
        &mut world,
        branch(0x1000, Branch::Conditional(Some(Ip(0x1100)))),
    );
    unit.retire(&mut world, branch(0x1100, Branch::IndirectJump(Ip(0x2000))));
    unit.retire(&mut world, branch(0x2000, Branch::DirectJump(Ip(0x2100))));
    unit.retire(&mut world, branch(0x2100, Branch::DirectCall(Ip(0x3000))));
    unit.retire(&mut world, branch(0x3000, Branch::IndirectCall(Ip(0x4000))));
    unit.retire(&mut world, branch(0x4000, Branch::Return(Ip(0x3004))));
    unit.retire(&mut world, branch(0x3004, Branch::Return(Ip(0x2104))));
    unit.retire(&mut world, branch(0x2104, Branch::Return(Ip(0x9999))));
    // A call of the next instruction is no call for the return stack.
    unit.retire(&mut world, branch(0x9999, Branch::DirectCall(Ip(0x999d))));
    unit.retire(&mut world, branch(0x999d, Branch::Return(Ip(0x999d))));
    let expected = [
        "mode.exec 64 if=0",
        "tip.pge 0x8003",
        "tnt.8 NNNNNN",
        "tnt.8 T",
        "tip 0x2000",
        "tip 0x4000",
        "tnt.8 TT",
        "tip 0x9999",
        "tip 0x999d",
    ];
    assert_eq!(after_intro(&world), expected);
}

#[test]
fn user_only_tracing_of_a_system_call_a_fault_and_an_interrupt() {
    let (mut unit, mut world) = enabled(KERNEL, PLAIN);
    assert_eq!(after_intro(&world), [""; 0], "CPL 0 is filtered out");
    far(&mut unit, &mut world, Ip(0x40_1000), USER);
    unit.retire(
        &mut world,
        branch(0x40_1000, Branch::DirectCall(Ip(0x40_2000))),
    );
    unit.retire(&mut world, branch(0x40_2000, Branch::Conditional(None)));
    far(&mut unit, &mut world, Ip(0xffff_ffff_8100_0000), KERNEL);
    far(&mut unit, &mut world, Ip(0x40_2006), USER);
    // Its call was before PacketEn was cleared: not compressed.
    unit.retire(&mut world, branch(0x40_2006, Branch::Return(Ip(0x40_1004))));
    event(
        &mut unit,
        &mut world,
        Ip(0x40_1004),
        Ip(0xffff_ffff_8100_0000),
        KERNEL,
    );
    far(
        &mut unit,
        &mut world,
        Ip(0x40_3000),
        Context {
            mode: ExecMode::Bits32,
            ..USER
        },
    );
    unit.wrmsr(
        &mut world,
        At {
            ip: Ip(0x40_3000),
            next: Ip(0x40_3002),
        },
        msr::IA32_RTIT_CTL,
        PLAIN.0,
    )
    .unwrap();
    let expected = [
        "mode.exec 64 if=0",
        "tip.pge 0x401000",
        "tnt.8 N",
        "tip.pgd -",
        "tip.pge 0x402006",
        "tip 0x401004",
        "fup 0x401004",
        "tip.pgd -",
        "mode.exec 32 if=0",
        "tip.pge 0x403000",
        "fup 0x403000",
        "tip.pgd -",
    ];
    assert_eq!(after_intro(&world), expected);
}

#[test]
fn events_and_modes_within_the_traced_context() {
    let (mut unit, mut world) = enabled(KERNEL, PLAIN.with_os(true));
    let other = Context {
        cr3: 0x5000,
        mode: ExecMode::Bits16,
        ..KERNEL
    };
    far(&mut unit, &mut world, Ip(0x100), KERNEL);
    far(
        &mut unit,
        &mut world,
        Ip(0x200),
        Context {
            cr3: 0x5000,
            ..KERNEL
        },
    );
    event(&mut unit, &mut world, Ip(0x204), Ip(0x300), other);
    mov_cr3(
        &mut unit,
        &mut world,
        At {
            ip: Ip(0x300),
            next: Ip(0x303),
        },
        0x7000,
    );
    unit.event(
        &mut world,
        Event::TransactionBegin {
            at: At {
                ip: Ip(0x303),
                next: Ip(0x309),
            },
        },
    );
    unit.event(
        &mut world,
        Event::TransactionAbort {
            from: Ip(0x309),
            to: Ip(0x400),
        },
    );
    unit.event(
        &mut world,
        Event::Frequency {
            stopped_at: None,
            ratio: 33,
        },
    );
    let expected = [
        "mode.exec 64 if=0",
        "tip.pge 0x8003",
        "tip 0x100",
        "pip 0x5000 nr=0",
        "tip 0x200",
        "fup 0x204",
        "mode.exec 16 if=0",
        "tip 0x300",
        "pip 0x7000 nr=0",
        "mode.tsx intx=1 abort=0",
        "fup 0x303",
        "mode.tsx intx=0 abort=1",
        "fup 0x309",
        "tip 0x400",
        "cbr 33",
    ];
    assert_eq!(after_intro(&world), expected);
}

#[test]
fn cr3_filtering_follows_the_match_register() {
    let (mut unit, mut world) = ready(USER);
    unit.wrmsr(&mut world, NOWHERE, msr::IA32_RTIT_CR3_MATCH, 0x5000)
        .unwrap();
    let ctl = PLAIN
        .with_os(true)
        .with_cr3_filter(true)
        .with_trace_en(true);
    unit.wrmsr(&mut world, NOWHERE, msr::IA32_RTIT_CTL, ctl.0)
        .unwrap();
    assert!(!unit.packet_en());
    mov_cr3(
        &mut unit,
        &mut world,
        At {
            ip: Ip(0x100),
            next: Ip(0x103),
        },
        0x5018,
    );
    mov_cr3(
        &mut unit,
        &mut world,
        At {
            ip: Ip(0x103),
            next: Ip(0x106),
        },
        0x6000,
    );
    // Bits 11:0 of CR3 do not take part in the match.
    let expected = [
        "pip 0x5000 nr=0",
        "mode.exec 64 if=0",
        "tip.pge 0x103",
        "tip.pgd -",
    ];
    assert_eq!(after_intro(&world), expected);
}

/// Example 33-1, but for the stand-alone CYCs of a narrow counter.
#[test]
fn example_33_1_cycle_packets() {
    let (mut unit, mut world) = enabled(USER, PLAIN.with_cyc_en(true));
    let x = 100;
    let call = |ip| branch(ip, Branch::IndirectCall(Ip(ip + 0x100)));
    unit.retire(world.at(x), call(0x1000));
    unit.retire(world.at(x + 2), call(0x1100));
    unit.retire(world.at(x + 8), branch(0x1200, Branch::Conditional(None)));
    unit.retire(world.at(x + 9), branch(0x1204, Branch::Return(Ip(0x1104))));
    unit.retire(
        world.at(x + 12),
        branch(0x1104, Branch::Conditional(Some(Ip(0x1300)))),
    );
    unit.retire(world.at(x + 16), branch(0x1300, Branch::Return(Ip(0x7777))));
    let text = after_intro(&world);
    let expected = [
        "mode.exec 64 if=0",
        "tip.pge 0x8003",
        "cyc 100",
        "tip 0x1100",
        "cyc 2",
        "tip 0x1200",
        "cyc 6",
        "tnt.8 NTT",
        "cyc 8",
        "tip 0x7777",
    ];
    assert_eq!(text, expected);
}

/// Table 33-13: which branches get a CYC, by threshold.
#[test]
fn table_33_13_cycle_thresholds() {
    let times = [0, 9, 15, 30, 38, 46, 64, 71];
    let with_cyc: [(u64, &[u64]); 4] = [
        (0, &times),
        (5, &[0, 30, 46, 64]),
        (6, &[0, 38, 71]),
        (7, &[0, 64]),
    ];
    for (thresh, expected) in with_cyc {
        let (mut unit, mut world) = enabled(
            KERNEL,
            PLAIN
                .with_os(true)
                .with_cyc_en(true)
                .with_cyc_thresh(thresh),
        );
        let x = 1000;
        for time in times {
            world.at(x + time);
            if time == 38 {
                mov_cr3(
                    &mut unit,
                    &mut world,
                    At {
                        ip: Ip(0x100),
                        next: Ip(0x103),
                    },
                    0x7000,
                );
            } else {
                unit.retire(&mut world, branch(0x1000, Branch::IndirectJump(Ip(0x1000))));
            }
        }
        let mut at = 0;
        let mut seen = Vec::new();
        for line in after_intro(&world) {
            if let Some(cycles) = line.strip_prefix("cyc ") {
                at += cycles.parse::<u64>().unwrap();
                seen.push(at - x);
            }
        }
        assert_eq!(seen, expected, "threshold {thresh}");
    }
}

#[test]
fn mtc_comes_with_each_toggle_and_tsc_after_a_long_silence() {
    let ctl = PLAIN.with_mtc_en(true).with_tsc_en(true).with_mtc_freq(1);
    let (mut unit, mut world) = enabled(USER, ctl);
    // 80 TSC ticks are one crystal clock, 160 one MTC period.
    for time in [159, 160, 161, 319, 320, 960, 160 * 200] {
        unit.retire(world.at(time), branch(0x1000, Branch::None));
    }
    let expected = [
        "mode.exec 64 if=0",
        "tip.pge 0x8003",
        "mtc 1",
        "mtc 2",
        "mtc 6",
        "tsc 32000",
        "tma ctc=400 fc=0",
        "cbr 0",
    ];
    assert_eq!(after_intro(&world), expected);
}

#[test]
fn the_first_ip_behind_a_psb_is_uncompressed() {
    // Seven bytes for an IP that is the sign extension of its lower 48 bits, nine for another.
    for (ip, size) in [
        (0x40_1000, 7),
        (0xffff_8000_0000_1000, 7),
        (0x0001_0000_0000_1000, 9),
    ] {
        let (mut unit, mut world) = enabled(USER, PLAIN);
        while world.text().iter().filter(|line| *line == "psb").count() == 1 {
            unit.retire(&mut world, branch(0x1000, Branch::IndirectJump(Ip(ip))));
        }
        unit.retire(&mut world, branch(ip, Branch::IndirectJump(Ip(ip))));
        let bytes = world.bytes();
        let raws: Vec<_> = Packets::new(&bytes)
            .map(|item| item.expect("the unit writes packets only"))
            .collect();
        let second = raws
            .iter()
            .rposition(|raw| raw.packet() == Packet::Psb)
            .expect("a PSB");
        let sizes: Vec<usize> = raws[second..]
            .iter()
            .filter(|raw| raw.packet().ip_payload().is_some())
            .map(|raw| raw.raw.len())
            .collect();
        assert_eq!(sizes, [size, 3], "{ip:#x}");
    }
}

#[test]
fn psb_comes_by_bytes_with_the_state_and_forgets_what_was_compressed() {
    let ctl = PLAIN.with_tsc_en(true).with_mtc_en(true);
    let (mut unit, mut world) = enabled(USER, ctl);
    unit.retire(&mut world, branch(0x1000, Branch::DirectCall(Ip(0x5000))));
    while world.text().iter().filter(|line| *line == "psb").count() == 1 {
        unit.retire(&mut world, branch(0x5000, Branch::IndirectJump(Ip(0x5000))));
        unit.retire(&mut world, branch(0x5000, Branch::Conditional(None)));
    }
    unit.retire(&mut world, branch(0x5004, Branch::Return(Ip(0x1004))));
    let text = world.text();
    let second = text.iter().rposition(|line| line == "psb").unwrap();
    let expected = [
        "psb",
        "tsc 0",
        "tma ctc=0 fc=0",
        "cbr 0",
        "mode.tsx intx=0 abort=0",
        "mode.exec 64 if=0",
        "fup 0x5000",
        "psbend",
        "tnt.8 N",
        "tip 0x1004",
    ];
    assert_eq!(text[second..], expected);
    let bytes = world.bytes();
    let second = bytes
        .windows(16)
        .rposition(|w| w == cofi_packet::intel::PSB)
        .unwrap();
    assert!(
        (2048..2048 + 32).contains(&second),
        "PSBFreq 0 is 2K: {second}"
    );
}

#[test]
fn re_enabling_goes_on_with_the_byte_count() {
    let (mut unit, mut world) = enabled(USER, PLAIN.with_tsc_en(true));
    unit.wrmsr(&mut world, NOWHERE, msr::IA32_RTIT_CTL, PLAIN.0)
        .unwrap();
    let count = Status(unit.rdmsr(msr::IA32_RTIT_STATUS).unwrap()).packet_byte_cnt();
    assert_eq!(count as usize, world.bytes().len());
    world.stores.clear();
    let on = PLAIN.with_tsc_en(true).with_trace_en(true);
    unit.wrmsr(&mut world, NOWHERE, msr::IA32_RTIT_CTL, on.0)
        .unwrap();
    assert_eq!(world.text()[..2], ["tsc 0", "cbr 0"]);
    unit.wrmsr(&mut world, NOWHERE, msr::IA32_RTIT_CTL, 0)
        .unwrap();
    unit.wrmsr(&mut world, NOWHERE, msr::IA32_RTIT_STATUS, 0)
        .unwrap();
    world.stores.clear();
    unit.wrmsr(&mut world, NOWHERE, msr::IA32_RTIT_CTL, on.0)
        .unwrap();
    assert_eq!(world.text()[0], "psb", "PacketByteCnt = 0");
}

#[test]
fn the_return_stack_keeps_the_64_youngest_calls() {
    let mut stack = ReturnStack::new();
    for n in 0..100 {
        stack.push(Ip(n));
    }
    for n in (36..100).rev() {
        assert_eq!(stack.pop(), Some(Ip(n)));
    }
    assert_eq!(stack.pop(), None);
}
