//! Table 19, row by row. The region is RANGE0, 0x1000 to 0x10ff.

use crate::machine::{KERNEL, Machine, USER, all, filter};
use cofi_packet::Ip;
use cofi_unit::Branch;
use cofi_unit::rtit::{Ctl, Destination, Event, Events, Implementation};

const NEITHER: &str = "";

/// In the region, or (`"out"`) at 0x2000 outside; with one result in the TNT buffer, or (`"tnt5"`) five.
fn machine(ctl: Ctl, place: &str, tnt: &str) -> Machine {
    let mut machine = Machine::traced(Implementation::default(), filter(Events::RANGE0), ctl);
    machine.conditionals(match tnt {
        "tnt" => "N",
        "tnt5" => "NNNNN",
        _ => "",
    });
    machine.ip = 0x1040;
    if place == "out" {
        machine.jump(0x2000);
        machine.said();
    }
    machine
}

/// What a near branch in the region says.
fn inside(tnt: &str, branch: Branch) -> String {
    let mut machine = machine(all(), "in", tnt);
    machine.retire(branch);
    machine.said()
}

/// What a near branch outside of the region says.
fn outside(branch: Branch) -> String {
    let mut machine = machine(all(), "out", "");
    machine.retire(branch);
    machine.said()
}

const IN: Ip = Ip(0x1080);
const OUT: Ip = Ip(0x3000);

#[test]
fn rows_1_to_5_no_jump() {
    assert_eq!(inside("tnt", Branch::None), NEITHER);
    assert_eq!(outside(Branch::None), NEITHER);
    for (tnt, expected) in [("", "fup.pgd 0x1100"), ("tnt", "tnt N, fup.pgd 0x1100")] {
        let mut machine = machine(all(), "in", tnt);
        machine.ip = 0x10fc;
        machine.nop();
        assert_eq!(machine.said(), expected);
    }
    let mut machine = machine(all(), "out", "");
    machine.ip = 0xffc;
    machine.nop();
    assert_eq!(machine.said(), "fup.pge 0x1000");
}

#[test]
fn rows_6_to_10_direct_jumps() {
    for branch in [Branch::DirectJump as fn(Ip) -> Branch, Branch::DirectCall] {
        assert_eq!(inside("tnt", branch(IN)), NEITHER);
        assert_eq!(outside(branch(OUT)), NEITHER);
        assert_eq!(inside("", branch(OUT)), "fup.pgd 0x1044");
        assert_eq!(inside("tnt", branch(OUT)), "tnt N, fup.pgd 0x1044");
        assert_eq!(outside(branch(IN)), "fup.pge 0x1080");
    }
}

#[test]
fn rows_11_and_12_conditional_jumps_that_do_not_fill_a_tnt() {
    let taken = |to| Branch::Conditional(Some(to));
    assert_eq!(inside("tnt", taken(IN)), NEITHER);
    assert_eq!(inside("tnt", taken(OUT)), "tnt NT, fup.pgd 0x1044");
    assert_eq!(inside("", taken(OUT)), "tnt T, fup.pgd 0x1044");
    assert_eq!(outside(taken(OUT)), NEITHER);
    assert_eq!(outside(taken(IN)), "fup.pge 0x1080");
    assert_eq!(inside("tnt", Branch::Conditional(None)), NEITHER);
    assert_eq!(outside(Branch::Conditional(None)), NEITHER);
    let mut machine = machine(all(), "in", "");
    machine.ip = 0x10fc;
    machine.conditionals("N");
    assert_eq!(machine.said(), "tnt N, fup.pgd 0x1100");
}

#[test]
fn rows_13_to_20_conditional_jumps_that_fill_a_tnt() {
    let taken = |to| Branch::Conditional(Some(to));
    assert_eq!(inside("tnt5", taken(IN)), "tnt NNNNNT");
    assert_eq!(inside("tnt5", taken(OUT)), "tnt NNNNNT, fup.pgd 0x1044");
    assert_eq!(inside("tnt5", Branch::Conditional(None)), "tnt NNNNNN");
    let mut machine = machine(all(), "in", "tnt5");
    machine.ip = 0x10fc;
    machine.conditionals("N");
    assert_eq!(machine.said(), "tnt NNNNNN, fup.pgd 0x1100");
}

#[test]
fn rows_21_to_26_near_indirect_branches() {
    for branch in [
        Branch::IndirectJump as fn(Ip) -> Branch,
        Branch::IndirectCall,
        Branch::Return,
    ] {
        assert_eq!(inside("", branch(IN)), "tip 0x1080");
        assert_eq!(inside("tnt", branch(IN)), "tnt N, tip 0x1080");
        assert_eq!(outside(branch(OUT)), NEITHER);
        assert_eq!(inside("", branch(OUT)), "tip 0x3000, fup.pgd 0x1044");
        assert_eq!(
            inside("tnt", branch(OUT)),
            "tnt N, tip 0x3000, fup.pgd 0x1044"
        );
        assert_eq!(outside(branch(IN)), "fup.pge 0x1080");
    }
}

/// What a far transfer says; `os`: the kernel is traced.
fn far(place: &str, tnt: &str, os: bool, to: Ip) -> [String; 2] {
    let start = || {
        let mut machine = machine(all(), place, tnt);
        machine.far(machine.ip, USER);
        machine.said();
        if place == "in" && tnt == "tnt" {
            machine.conditionals("N");
        }
        machine.set_ctl(|ctl| ctl.with_os(os));
        machine.ip = if place == "in" { 0x1040 } else { 0x2000 };
        machine
    };
    let (mut branching, mut interrupted) = (start(), start());
    branching.far(to.0, KERNEL);
    interrupted.interrupt(to.0, KERNEL);
    [branching.said(), interrupted.said()]
}

#[test]
fn rows_27_to_33_far_transfers_from_the_region() {
    assert_eq!(
        far("in", "", true, IN),
        ["fup.far 0x1044, tip 0x1080", "fup.far 0x1040, tip 0x1080"]
    );
    assert_eq!(
        far("in", "tnt", true, IN),
        [
            "tnt N, fup.far 0x1044, tip 0x1080",
            "tnt N, fup.far 0x1040, tip 0x1080"
        ]
    );
    assert_eq!(far("out", "", true, OUT), [NEITHER, NEITHER]);
    assert_eq!(
        far("in", "", true, OUT),
        ["fup.pgd 0x1044, tip 0x3000", "fup.pgd 0x1040, tip 0x3000"]
    );
    assert_eq!(
        far("in", "tnt", true, OUT),
        [
            "tnt N, fup.pgd 0x1044, tip 0x3000",
            "tnt N, fup.pgd 0x1040, tip 0x3000"
        ]
    );
    assert_eq!(
        far("in", "", false, OUT),
        ["fup.pgd 0x1044", "fup.pgd 0x1040"]
    );
    assert_eq!(
        far("in", "tnt", false, IN),
        ["tnt N, fup.pgd 0x1044", "tnt N, fup.pgd 0x1040"]
    );
}

#[test]
fn rows_34_and_35_far_transfers_into_the_region() {
    assert_eq!(
        far("out", "", true, IN),
        ["fup.pge 0x1080", "fup.pge 0x1080"]
    );
    let mut machine = machine(all().with_user(false), "in", "");
    machine.interrupt(0x1040, USER);
    machine.said();
    machine.interrupt(0x1080, KERNEL);
    assert_eq!(machine.said(), "fup.pge 0x1080");
}

#[test]
fn rows_36_to_38_smi_rsm_vm_exit_and_vm_entry() {
    type Leave = fn(Ip) -> Event;
    type Enter = fn(Destination) -> Event;
    let events: [(Leave, Enter); 2] = [
        (|from| Event::Smi { from }, |to| Event::Rsm { to }),
        (|from| Event::VmExit { from }, |to| Event::VmEntry { to }),
    ];
    for (leave, enter) in events {
        for (tnt, expected) in [("", "fup.pgd 0x1040"), ("tnt", "tnt N, fup.pgd 0x1040")] {
            let mut machine = machine(all(), "in", tnt);
            machine.event(leave(Ip(0x1040)));
            assert_eq!(machine.said(), expected);
            let to = Destination {
                ip: IN,
                context: KERNEL,
            };
            machine.event(enter(to));
            assert_eq!(machine.said(), "fup.pge 0x1080");
        }
    }
}

/// MOV CR3 with PIP and STS, or (`cr3_en`) with STS alone, from and to these values of CR3.
fn mov_cr3(cr3_en: bool, tnt: &str, from: u64, to: u64) -> String {
    let ctl = all().with_sts_en(true).with_sts_on_cr3(true);
    let mut machine = machine(ctl, "in", "");
    machine.special(|at| Event::MovCr3 { at, cr3: from });
    // CR3 is to match 0.
    machine.set_ctl(|ctl| ctl.with_cr3_en(cr3_en));
    machine.said();
    if tnt == "tnt" {
        machine.conditionals("N");
    }
    machine.ip = 0x1040;
    machine.special(|at| Event::MovCr3 { at, cr3: to });
    machine.said()
}

#[test]
fn rows_39_to_44_mov_cr3() {
    const STS: &str = "sts acbr=0 ecbr=0 tsc=0";
    let pip = "pip 0x5000 pg=1";
    assert_eq!(mov_cr3(false, "", 0, 0x5000), format!("{pip}, {STS}"));
    assert_eq!(
        mov_cr3(false, "tnt", 0, 0x5000),
        format!("tnt N, {pip}, {STS}")
    );
    assert_eq!(mov_cr3(true, "", 0x4000, 0x5000), STS);
    assert_eq!(
        mov_cr3(true, "", 0x4000, 0),
        format!("{STS}, fup.pge 0x1044")
    );
    assert_eq!(
        mov_cr3(true, "", 0, 0x5000),
        format!("{STS}, fup.pgd 0x1044")
    );
    assert_eq!(
        mov_cr3(true, "tnt", 0, 0x5000),
        format!("tnt N, {STS}, fup.pgd 0x1044")
    );
    // With PIP, only FilterEn can change.
    let mut machine = machine(all(), "in", "tnt");
    machine.ip = 0x10fc;
    machine.special(|at| Event::MovCr3 { at, cr3: 0x5000 });
    assert_eq!(machine.said(), format!("tnt N, {pip}, fup.pgd 0x1100"));
    machine.ip = 0x2000;
    machine.special(|at| Event::MovCr3 { at, cr3: 0x6000 });
    assert_eq!(machine.said(), "pip 0x6000 pg=1", "without FilterEn");
    machine.ip = 0xffc;
    machine.special(|at| Event::MovCr3 { at, cr3: 0x5000 });
    assert_eq!(machine.said(), format!("{pip}, fup.pge 0x1000"));
}

#[test]
fn mov_cr0_tells_paging_if_it_changes() {
    let mut machine = Machine::plain();
    machine.special(|at| Event::MovCr0 { at, paging: true });
    assert_eq!(machine.said(), "");
    machine.special(|at| Event::MovCr0 { at, paging: false });
    assert_eq!(machine.said(), "pip 0x3000 pg=0");
}
