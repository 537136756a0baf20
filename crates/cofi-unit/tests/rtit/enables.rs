//! TriggerEn, ContextEn, FilterEn and TraceStop (2.1, 2.4, 2.6, 3.3.2, 3.3.5, 4.2.7, 4.2.8, 4.2.11).

use crate::machine::{KERNEL, Machine, USER, all, buffered, everywhere, filter, stop_in_range1};
use cofi_packet::Ip;
use cofi_unit::rtit::{Context, Ctl, Destination, Event, Events, Implementation, msr};

fn filtered(events: Events) -> Machine {
    Machine::traced(Implementation::default(), events, all())
}

fn with_ctl(ctl: Ctl) -> Machine {
    Machine::traced(Implementation::default(), everywhere(), ctl)
}

#[test]
fn packet_en_needs_all_of_its_parts() {
    let mut machine = Machine::plain();
    assert_eq!((machine.status(), machine.unit.packet_en()), (7, true));
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    assert_eq!((machine.status(), machine.unit.packet_en()), (3, false));
    machine.set_ctl(|ctl| ctl.with_trace_active(true).with_os(false));
    assert_eq!((machine.status(), machine.unit.packet_en()), (5, false));
}

#[test]
fn trigger_en_needs_trace_en_and_trace_active() {
    let mut machine = Machine::new(Implementation::default());
    machine.write(msr::RTIT_EVENTS, everywhere().0);
    machine.write(msr::RTIT_CTL, all().with_trace_active(true).0);
    assert_eq!((machine.status() & 4, machine.said()), (0, String::new()));
    machine.set_ctl(|ctl| ctl.with_trace_en(true));
    assert_eq!(machine.status() & 4, 4);
    assert_eq!(machine.said(), "psb, fup.pge 0x100c");
}

#[test]
fn setting_both_at_once_enables_too() {
    let mut machine = Machine::new(Implementation::default());
    machine.write(msr::RTIT_EVENTS, everywhere().0);
    machine.write(
        msr::RTIT_CTL,
        all().with_trace_en(true).with_trace_active(true).0,
    );
    assert_eq!(machine.said(), "psb, fup.pge 0x1008");
}

#[test]
fn cpl_decides_by_os_and_user() {
    let mut machine = with_ctl(all().with_os(false));
    machine.far(0x2000, USER);
    machine.indirect(0x3000);
    machine.interrupt(0x4000, KERNEL);
    machine.indirect(0x5000);
    assert_eq!(
        machine.said(),
        "fup.pge 0x2000, tip 0x3000, fup.pgd 0x3000",
        "no TIP of what ContextEn hides"
    );
    for cpl in [1, 2] {
        machine.far(0x2000, Context { cpl, ..KERNEL });
        assert_eq!(machine.said(), "fup.pge 0x2000");
        machine.interrupt(0x4000, KERNEL);
        machine.said();
    }
}

#[test]
fn cr3_is_compared_in_bits_35_to_5() {
    let mut machine = with_ctl(all().with_cr3_en(true));
    assert_eq!(machine.status() & 2, 0);
    machine.special(|at| Event::MovCr3 {
        at,
        cr3: 0xffff_fff0_0000_001f,
    });
    assert_eq!(machine.said(), "fup.pge 0x1004", "and no PIP with CR3En");
    machine.special(|at| Event::MovCr3 { at, cr3: 0x20 });
    assert_eq!(machine.said(), "fup.pgd 0x1008");
    machine.write(msr::RTIT_CR3_MATCH, 0x20);
    assert_eq!(machine.said(), "fup.pge 0x100c");
}

#[test]
fn smm_is_never_traced() {
    let mut machine = filtered(filter(Events::RANGE0));
    machine.conditionals("T");
    machine.event(Event::Smi {
        from: Ip(machine.ip),
    });
    machine.indirect(0x8000);
    assert_eq!(machine.said(), "tnt T, fup.pgd 0x1004");
    assert_eq!(machine.status(), 5, "FilterEn is frozen");
    let to = Destination {
        ip: Ip(0x1010),
        context: KERNEL,
    };
    machine.event(Event::Rsm { to });
    assert_eq!(machine.said(), "fup.pge 0x1010");
    // A handler that returns elsewhere.
    machine.event(Event::Smi { from: Ip(0x1010) });
    let to = Destination {
        ip: Ip(0x3000),
        context: KERNEL,
    };
    machine.event(Event::Rsm { to });
    assert_eq!(machine.said(), "fup.pgd 0x1010");
    assert_eq!(machine.status(), 6);
}

#[test]
fn vmx_root_operation_is_never_traced() {
    let mut machine = Machine::plain();
    machine.special(|at| Event::Vmxon { at });
    assert_eq!(machine.said(), "fup.pgd 0x1004");
    let guest = Destination {
        ip: Ip(0x2000),
        context: USER,
    };
    machine.event(Event::VmEntry { to: guest });
    assert_eq!(machine.said(), "fup.pge 0x2000");
    machine.event(Event::VmExit { from: Ip(0x2004) });
    assert_eq!(machine.said(), "fup.pgd 0x2004");
    machine.ip = 0x1004;
    machine.special(|at| Event::Vmxoff { at });
    assert_eq!(machine.status() & 2, 2, "user code is traced, too");
}

#[test]
fn the_trace_example_of_table_3() {
    let mut machine = Machine::new(Implementation::default());
    machine.write(msr::RTIT_LIP0, 0x100);
    machine.write(msr::RTIT_LIP2, 0x111);
    machine.write(msr::RTIT_EVENTS, filter(Events::RANGE0).0);
    machine.ip = 0x10;
    machine.write(msr::RTIT_CTL, all().with_trace_en(true).0);
    machine.set_ctl(|ctl| ctl.with_trace_active(true));
    assert_eq!(machine.said(), "psb");
    machine.jump(0x102);
    assert_eq!(machine.said(), "fup.pge 0x102");
    machine.nop();
    machine.far(0x983, KERNEL);
    assert_eq!(machine.said(), "fup.pgd 0x10a, tip 0x983");
    machine.far(0x10e, KERNEL);
    assert_eq!(machine.said(), "fup.pge 0x10e");
    machine.interrupt(0x345, KERNEL);
    assert_eq!(machine.said(), "fup.pgd 0x10e, tip 0x345");
    machine.nop();
    machine.far(0x113, KERNEL);
    assert_eq!(machine.said(), "");
}

#[test]
fn walking_into_a_range_and_out_of_it() {
    let mut machine = filtered(filter(Events::RANGE0));
    assert!(machine.unit.packet_en(), "the WRMSR walked to the base");
    machine.jump(0x2000);
    machine.said();
    machine.ip = 0xff8;
    machine.nop();
    assert_eq!(machine.said(), "");
    machine.nop();
    assert_eq!(machine.said(), "fup.pge 0x1000");
    machine.ip = 0x10f8;
    machine.nop();
    assert_eq!(machine.said(), "");
    machine.conditionals("N");
    assert_eq!(
        machine.said(),
        "tnt N, fup.pgd 0x1100",
        "the limit is outside"
    );
}

#[test]
fn enabled_within_a_range_nothing_triggers_until_the_base_or_a_branch() {
    let mut machine = Machine::new(Implementation::default());
    machine.write(msr::RTIT_EVENTS, filter(Events::RANGE0).0);
    machine.write(msr::RTIT_CTL, all().with_trace_en(true).0);
    machine.set_ctl(|ctl| ctl.with_trace_active(true));
    machine.nop();
    machine.conditionals("N");
    assert_eq!(machine.said(), "psb");
    machine.ip = 0x10fc;
    machine.nop();
    assert_eq!((machine.said(), machine.status()), (String::new(), 6));
    machine.jump(0x1080);
    assert_eq!(machine.said(), "fup.pge 0x1080");
}

#[test]
fn range1_and_either_range() {
    let mut machine = filtered(filter(Events::RANGE1));
    machine.jump(0x1000);
    assert_eq!(machine.said(), "");
    machine.jump(0x5004);
    assert_eq!(machine.said(), "fup.pge 0x5004");

    let mut machine = filtered(filter(Events::RANGE0_OR_1));
    machine.jump(0x5004);
    assert_eq!(machine.said(), "", "from one into the other");
    machine.jump(0x5100);
    assert_eq!(machine.said(), "fup.pgd 0x5008");
}

#[test]
fn ranges_that_touch_are_one() {
    let mut machine = filtered(filter(Events::RANGE0_OR_1));
    machine.write(msr::RTIT_LIP1, 0x1100);
    machine.ip = 0x10fc;
    machine.nop();
    assert_eq!((machine.said(), machine.status()), (String::new(), 7));
}

#[test]
fn event_ids_that_are_always_on_or_off() {
    let mut machine = filtered(filter(Events::ALWAYS_OFF));
    machine.jump(0x1000);
    assert_eq!((machine.said(), machine.status()), (String::new(), 6));
    for reserved in 3..=5 {
        machine.write(msr::RTIT_EVENTS, filter(reserved).0);
        machine.jump(0x1000);
        assert_eq!((machine.said(), machine.status()), (String::new(), 6));
    }
    machine.write(msr::RTIT_EVENTS, filter(Events::ALWAYS_ON).0);
    assert_eq!(machine.said(), "fup.pge 0x1004");
    machine.write(
        msr::RTIT_EVENTS,
        everywhere().with_trace_stop(Events::ALWAYS_ON).0,
    );
    assert_eq!(machine.said(), "tracestop");
}

#[test]
fn filter_en_is_frozen_without_trace_en_or_context_en() {
    let mut machine = filtered(filter(Events::RANGE0));
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    machine.jump(0x2000);
    assert_eq!(machine.status(), 2, "TraceActive is not asked");
    machine.jump(0x1000);
    assert_eq!(machine.status(), 3);
    machine.set_ctl(|ctl| ctl.with_trace_en(false));
    machine.jump(0x2000);
    machine.far(0x2000, KERNEL);
    machine.nop();
    assert_eq!(machine.status(), 3);
    machine.set_ctl(|ctl| ctl.with_trace_en(true).with_os(false));
    machine.jump(0x3000);
    assert_eq!(machine.status(), 1);
}

#[test]
fn software_sets_and_clears_filter_en() {
    let mut machine = filtered(filter(Events::RANGE0));
    machine.write(msr::RTIT_STATUS, 0);
    assert_eq!(machine.said(), "fup.pgd 0x1004");
    machine.write(msr::RTIT_STATUS, 1);
    assert_eq!(machine.said(), "fup.pge 0x1008");
}

#[test]
fn clearing_trigger_en_tells_nothing_and_keeps_the_tnt_buffer() {
    for off in [
        Ctl::with_trace_active as fn(Ctl, bool) -> Ctl,
        Ctl::with_trace_en,
    ] {
        let mut machine = Machine::plain();
        machine.conditionals("TN");
        machine.set_ctl(|ctl| off(ctl, false));
        assert_eq!(machine.said(), "");
        assert_eq!(machine.read(msr::RTIT_TNT_BUFF), 0b110);
        machine.set_ctl(|ctl| off(ctl, true));
        assert_eq!(machine.said(), "psb, tnt TN, fup.pge 0x1010");
    }
    let mut choices = Implementation::default();
    choices.pgd_on_disable = true;
    let mut machine = Machine::traced(choices, everywhere(), all());
    machine.conditionals("TN");
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    assert_eq!(machine.said(), "tnt TN, fup.pgd 0x100c");
}

#[test]
fn trace_stop_by_a_branch() {
    let mut machine = filtered(stop_in_range1());
    machine.conditionals("NT");
    machine.jump(0x5008);
    assert_eq!(machine.said(), "tracestop", "no FUP.PGD");
    assert_eq!(machine.read(msr::RTIT_TNT_BUFF), 0b101);
    assert_eq!(machine.status(), 2, "FilterEn and TriggerEn are 0");
    assert!(machine.ctl().trace_en() && !machine.ctl().trace_active());
    machine.nop();
    assert_eq!(machine.status(), 3, "Trace_En is set: always on again");
    machine.indirect(0x1000);
    assert_eq!(machine.said(), "");
}

#[test]
fn trace_stop_behind_the_packets_of_its_instruction() {
    let mut machine = filtered(stop_in_range1());
    machine.indirect(0x5000);
    assert_eq!(machine.said(), "tip 0x5000, tracestop");
    let mut machine = filtered(stop_in_range1());
    machine.far(0x5000, KERNEL);
    assert_eq!(machine.said(), "fup.far 0x1004, tip 0x5000, tracestop");
    let mut choices = Implementation::default();
    choices.pgd_on_disable = true;
    let mut machine = Machine::traced(choices, stop_in_range1(), all());
    machine.far(0x5000, KERNEL);
    assert_eq!(machine.said(), "fup.pgd 0x1004, tip 0x5000, tracestop");
}

#[test]
fn trace_stop_at_a_mov_cr3_keeps_the_tnt_buffer_too() {
    let mut machine = Machine::traced(
        Implementation::default(),
        stop_in_range1(),
        all()
            .with_cr3_en(true)
            .with_sts_en(true)
            .with_sts_on_cr3(true),
    );
    machine.write(msr::RTIT_CR3_MATCH, 0x3000);
    machine.conditionals("N");
    machine.said();
    machine.ip = 0x4ffc;
    machine.special(|at| Event::MovCr3 { at, cr3: 0x3000 });
    assert_eq!(machine.said(), "sts acbr=0 ecbr=0 tsc=0, tracestop");
    assert_eq!(machine.read(msr::RTIT_TNT_BUFF), 0b10);
}

#[test]
fn trace_stop_by_walking_to_the_base_alone() {
    let mut machine = filtered(stop_in_range1());
    machine.ip = 0x5004;
    machine.nop();
    machine.ip = 0x50fc;
    machine.nop();
    assert_eq!(machine.said(), "");
    machine.ip = 0x4ffc;
    machine.nop();
    assert_eq!(machine.said(), "tracestop");
}

#[test]
fn trace_stop_needs_context_en_and_no_filter_en() {
    let mut machine = filtered(filter(Events::RANGE0).with_trace_stop(Events::RANGE1));
    machine.jump(0x2000);
    machine.set_ctl(|ctl| ctl.with_os(false));
    machine.jump(0x5000);
    assert_eq!(machine.said(), "fup.pgd 0x1004");
    machine.ip = 0x2000;
    machine.set_ctl(|ctl| ctl.with_os(true));
    machine.jump(0x5000);
    assert_eq!(machine.said(), "tracestop");
}

#[test]
fn entering_the_region_and_the_stop_range_at_once_only_stops() {
    let mut machine = filtered(filter(Events::RANGE0_OR_1).with_trace_stop(Events::RANGE1));
    machine.jump(0x2000);
    machine.said();
    machine.jump(0x5000);
    assert_eq!(machine.said(), "tracestop");
}

#[test]
fn re_enabling_as_appendix_b_says() {
    let mut machine = filtered(stop_in_range1());
    machine.conditionals("N");
    machine.jump(0x5000);
    machine.said();
    machine.ip = 0x2000;
    machine.write(msr::RTIT_STATUS, 0);
    machine.write(msr::RTIT_TNT_BUFF, 1);
    machine.set_ctl(|ctl| ctl.with_trace_active(true));
    assert_eq!(machine.said(), "psb, fup.pge 0x200c");
}

#[test]
fn sipi_comes_from_where_init_led() {
    let mut machine = Machine::plain();
    let to = |ip| Destination {
        ip: Ip(ip),
        context: Context::default(),
    };
    machine.event(Event::Init {
        from: Ip(0x1000),
        to: to(0xffff_fff0),
    });
    machine.event(Event::Sipi { to: to(0x9000) });
    assert_eq!(
        machine.said(),
        "fup.far 0x1000, tip 0xfffffff0, fup.far 0xfffffff0, tip 0x9000"
    );
}

#[test]
fn a_trace_stop_drains_the_buffer() {
    let mut machine = Machine::traced(buffered(64), stop_in_range1(), all());
    machine.indirect(0x5000);
    assert_eq!(machine.said(), "tip 0x5000, tracestop");
    assert_eq!(machine.unit.buffered(), 0);
}
