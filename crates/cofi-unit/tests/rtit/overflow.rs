//! Overflows of the internal buffer (4.2.5).

use crate::machine::{KERNEL, Machine, USER, all, buffered, everywhere, filter, stop_in_range1};
use cofi_packet::Ip;
use cofi_unit::rtit::{Context, Event, Events, Implementation, InternalBuffer, msr};

/// A machine with room for 32 bytes, of which 30 are taken by ten TIPs.
fn nearly_full() -> Machine {
    let mut machine = Machine::traced(buffered(32), everywhere(), all().with_cmprs_ret(true));
    for _ in 0..10 {
        machine.indirect(0x2000);
    }
    assert_eq!(machine.unit.buffered(), 30);
    assert_eq!(machine.said(), "");
    machine
}

/// One in an overflow, with the ten TIPs drained.
fn overflowing() -> Machine {
    let mut machine = nearly_full();
    machine.indirect(0x3000);
    assert_eq!(machine.status(), 0xf);
    machine.drain();
    assert_eq!(machine.said(), ["tip 0x2000"; 10].join(", "));
    machine
}

#[test]
fn a_packet_without_room_overflows_and_an_instruction_resolves() {
    let mut machine = nearly_full();
    machine.indirect(0x3000);
    assert!(machine.unit.is_overflowing());
    machine.nop();
    machine.nop();
    assert!(machine.unit.is_overflowing(), "the buffer is not empty");
    machine.unit.drain(&mut machine.world, 29);
    machine.nop();
    assert!(machine.unit.is_overflowing(), "still not");
    machine.drain();
    machine.said();
    assert_eq!(machine.ip, 0x300c);
    machine.indirect(0x4000);
    machine.drain();
    assert_eq!(
        machine.said(),
        "fup.ovf 0x4000",
        "where control went, and not the TIP of the branch itself"
    );
    assert_eq!((machine.status(), machine.unit.overflows()), (7, 1));
    machine.indirect(0x5000);
    machine.drain();
    assert_eq!(machine.said(), "tip 0x5000");
}

#[test]
fn in_an_overflow_nothing_is_recorded() {
    let mut machine = overflowing();
    let registers = [
        msr::RTIT_TNT_BUFF,
        msr::RTIT_PKT_CNT,
        msr::RTIT_LAST_LIP,
        msr::RTIT_LAST_CALL_NLIP,
    ];
    let read = |machine: &mut Machine| registers.map(|address| machine.read(address));
    let before = read(&mut machine);
    machine.overflow();
    // An interrupt is no instruction that begins.
    machine.interrupt(0x2000, KERNEL);
    assert_eq!(read(&mut machine), before);
    let mut machine = nearly_full();
    machine.indirect(0x3000);
    let before = read(&mut machine);
    machine.conditionals("TTTTTTT");
    machine.call(0x2000);
    machine.far(0x3000, KERNEL);
    machine.special(|at| Event::MovCr3 { at, cr3: 0x9000 });
    assert_eq!(read(&mut machine), before);
}

#[test]
fn results_from_before_come_out_before_it() {
    let mut machine = nearly_full();
    machine.conditionals("TNT");
    machine.indirect(0x3000);
    assert_eq!(machine.unit.buffered(), 31, "the TNT had room");
    machine.drain();
    machine.said();
    machine.nop();
    machine.drain();
    assert_eq!(machine.said(), "fup.ovf 0x3004");

    let mut machine = Machine::traced(buffered(32), everywhere(), all());
    machine.conditionals("TNT");
    machine.overflow();
    machine.conditionals("TTT");
    machine.drain();
    assert_eq!(machine.said(), "tnt TNT, fup.ovf 0x1014");
}

#[test]
fn a_full_tnt_without_room_is_not_lost() {
    let mut machine = Machine::traced(buffered(32), everywhere(), all().with_cycle_acc(true));
    for _ in 0..8 {
        machine.indirect(0x2000);
    }
    machine.conditionals("NNNNNT");
    assert_eq!(machine.status(), 0xf);
    assert_eq!(machine.read(msr::RTIT_TNT_BUFF), 0b100_0001);
    machine.pass(50, 0);
    machine.conditionals("T");
    machine.drain();
    machine.said();
    machine.pass(7, 0);
    machine.nop();
    machine.drain();
    assert_eq!(
        machine.said(),
        "tnt bits=NNNNNT cycles=57, fup.ovf 0x2020 cycles=0"
    );
}

#[test]
fn the_cycle_counter_runs_on_and_pcc_waits() {
    let mut machine = Machine::traced(buffered(32), everywhere(), all().with_cycle_acc(true));
    machine.indirect(0x2000);
    machine.overflow();
    machine.pass(1 << 21, 0);
    machine.nop();
    machine.nop();
    machine.drain();
    machine.said();
    machine.nop();
    machine.drain();
    assert_eq!(machine.said(), "fup.ovf 0x2010 cycles=2097152");
}

#[test]
fn mtcs_are_dropped() {
    let mut machine = Machine::traced(buffered(32), everywhere(), all().with_mtc_en(true));
    machine.indirect(0x2000);
    machine.overflow();
    machine.pass(0, 0x80);
    machine.nop();
    machine.drain();
    machine.nop();
    machine.pass(0, 0x80);
    machine.nop();
    machine.drain();
    assert_eq!(
        machine.said(),
        "tip 0x2000, fup.ovf 0x200c, mtc range=0 tsc=2"
    );
}

#[test]
fn enables_go_on_and_their_fups_are_lost() {
    let mut machine = Machine::traced(buffered(32), filter(Events::RANGE0), all());
    machine.overflow();
    machine.jump(0x2000);
    machine.drain();
    assert_eq!(
        (machine.said(), machine.status()),
        ("fup.ovf 0x2000".to_owned(), 6),
        "it needs no FilterEn"
    );
    machine.overflow();
    machine.jump(0x1000);
    machine.indirect(0x1040);
    machine.drain();
    assert_eq!(machine.said(), "fup.ovf 0x1000, tip 0x1040");
}

#[test]
fn it_is_resolved_in_context_only() {
    let mut machine = Machine::traced(buffered(32), everywhere(), all().with_user(false));
    machine.overflow();
    machine.far(0x2000, USER);
    machine.nop();
    machine.far(0x3000, KERNEL);
    machine.drain();
    assert_eq!(machine.said(), "");
    machine.nop();
    machine.drain();
    assert_eq!(machine.said(), "fup.ovf 0x3004");
}

#[test]
fn compression_is_cleared() {
    let mut machine = Machine::traced(buffered(64), everywhere(), all().with_cmprs_ret(true));
    machine.call(0x2000);
    machine.indirect(0x7fff_0000_0000);
    machine.overflow();
    machine.drain();
    machine.said();
    machine.nop();
    assert_eq!(machine.read(msr::RTIT_LAST_LIP), 0);
    assert_eq!(machine.read(msr::RTIT_LAST_CALL_NLIP), 0);
    machine.drain();
    assert_eq!(machine.bytes().len(), 7);
    machine.indirect(0x7fff_0000_0000);
    machine.drain();
    assert_eq!(machine.bytes().len(), 7, "FUP.BuffOvf leaves no last LIP");
}

#[test]
fn a_trace_stop_is_held() {
    let mut machine = Machine::traced(buffered(32), stop_in_range1(), all());
    machine.indirect(0x2000);
    machine.overflow();
    machine.jump(0x5000);
    machine.jump(0x6000);
    assert!(machine.ctl().trace_active());
    machine.drain();
    machine.nop();
    machine.drain();
    assert_eq!(machine.said(), "tip 0x2000, fup.ovf 0x6004, tracestop");
    assert!(!machine.ctl().trace_active());
    assert_eq!(machine.status(), 2);
}

#[test]
fn a_held_trace_stop_with_trigger_en_off_and_on() {
    let mut machine = Machine::traced(buffered(32), stop_in_range1(), all());
    machine.indirect(0x2000);
    machine.overflow();
    machine.jump(0x5000);
    machine.jump(0x6000);
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    machine.set_ctl(|ctl| ctl.with_trace_active(true));
    assert_eq!(
        machine.said(),
        "tip 0x2000, psb",
        "in spite of the overflow"
    );
    machine.nop();
    machine.drain();
    assert_eq!(machine.said(), "fup.ovf 0x600c, tracestop");
}

#[test]
fn software_ends_an_overflow_without_a_packet() {
    let mut machine = overflowing();
    machine.write(msr::RTIT_STATUS, 1);
    machine.nop();
    machine.drain();
    assert_eq!((machine.said(), machine.status()), (String::new(), 7));
    machine.indirect(0x4000);
    machine.drain();
    assert_eq!(machine.said(), "tip 0x4000");
}

#[test]
fn software_ends_an_overflow_that_holds_a_trace_stop() {
    let mut machine = Machine::traced(buffered(32), stop_in_range1(), all());
    machine.indirect(0x2000);
    machine.overflow();
    machine.jump(0x5000);
    machine.write(msr::RTIT_STATUS, 1);
    assert_eq!(machine.said(), "tip 0x2000, tracestop");
}

#[test]
fn a_held_trace_stop_is_done_with_if_the_overflow_ends_while_trigger_en_is_0() {
    let mut machine = Machine::traced(buffered(32), stop_in_range1(), all());
    machine.overflow();
    machine.interrupt(0x5000, KERNEL);
    machine.interrupt(0x2000, KERNEL);
    machine.set_ctl(|ctl| ctl.with_trace_en(false));
    machine.write(msr::RTIT_STATUS, 0);
    assert_eq!(machine.said(), "");
    machine.set_ctl(|ctl| ctl.with_trace_en(true));
    assert_eq!(machine.said(), "psb, fup.pge 0x200c");
}

#[test]
fn a_held_trace_stop_with_fup_pgd_on_disable() {
    let mut choices = Implementation::default();
    choices.pgd_on_disable = true;
    let mut machine = Machine::traced(choices, stop_in_range1(), all());
    machine.overflow();
    machine.jump(0x5000);
    assert_eq!(machine.said(), "fup.ovf 0x5000, fup.pgd 0x5000, tracestop");
}

#[test]
fn a_psb_that_the_count_cannot_hold_is_owed_too() {
    let mut machine = nearly_full();
    machine.write(msr::RTIT_PKT_CNT, 0x3_3fff);
    machine.conditionals("N");
    machine.indirect(0x3000);
    assert_eq!(machine.status(), 0xf);
    machine.drain();
    machine.said();
    machine.nop();
    machine.drain();
    assert_eq!(machine.said(), "fup.ovf 0x3004, psb");
}

#[test]
fn software_begins_an_overflow() {
    let mut machine = Machine::plain();
    machine.overflow();
    assert_eq!(machine.status(), 0xf);
    machine.nop();
    assert_eq!(
        machine.said(),
        "fup.ovf 0x1008",
        "a buffer without limit is always empty"
    );
}

#[test]
fn a_drain_by_rtit_ctl_does_not_resolve_it() {
    let mut machine = nearly_full();
    machine.indirect(0x3000);
    machine.set_ctl(|ctl| ctl.with_mtc_en(true));
    assert_eq!((machine.status(), machine.unit.buffered()), (0xf, 0));
    machine.said();
    machine.nop();
    machine.drain();
    assert_eq!(machine.said(), "fup.ovf 0x3008");
}

#[test]
fn its_packet_can_cause_a_psb_and_a_psb_without_room_is_owed() {
    let mut machine = Machine::traced(buffered(32), everywhere(), all());
    machine.write(msr::RTIT_PKT_CNT, 0x7fe);
    machine.overflow();
    machine.nop();
    machine.drain();
    assert_eq!(machine.said(), "fup.ovf 0x100c, psb");

    let mut machine = nearly_full();
    machine.write(msr::RTIT_PKT_CNT, 0x800);
    assert_eq!(machine.status(), 0xf, "the PSB had no room");
    machine.drain();
    machine.said();
    machine.nop();
    machine.drain();
    assert_eq!(machine.said(), "fup.ovf 0x2008, psb");
}

#[test]
fn a_buffer_with_a_rate_drains_as_time_passes() {
    let mut choices = Implementation::default();
    choices.buffer = Some(InternalBuffer {
        size: 32,
        drain_bytes: 2,
        drain_cycles: 10,
    });
    let mut machine = Machine::traced(choices, everywhere(), all());
    machine.indirect(0x2000);
    machine.pass(19, 0);
    machine.nop();
    assert_eq!(machine.unit.buffered(), 1);
    assert_eq!(machine.read(msr::RTIT_OFFSET), 9 + 3 + 2);
    machine.pass(1, 0);
    machine.nop();
    assert_eq!(machine.unit.buffered(), 0);
    // Time without tracing drains nothing of what comes later.
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    machine.pass(1000, 0);
    machine.set_ctl(|ctl| ctl.with_trace_active(true));
    machine.indirect(0x2000);
    machine.nop();
    assert_eq!(machine.unit.buffered(), 3);
}

#[test]
fn a_context_that_is_left_in_the_same_instruction_keeps_it() {
    let mut machine = Machine::traced(buffered(32), everywhere(), all().with_user(false));
    machine.overflow();
    let at = cofi_unit::At {
        ip: Ip(machine.ip),
        next: Ip(machine.ip + 4),
    };
    let to = cofi_unit::rtit::Destination {
        ip: Ip(0x2000),
        context: Context { ..USER },
    };
    machine.event(Event::FarBranch {
        at,
        to,
        prefixes: 0,
    });
    assert!(machine.unit.is_overflowing());
    assert_eq!(machine.said(), "");
}
