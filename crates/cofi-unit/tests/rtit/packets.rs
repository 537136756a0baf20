//! PSB, TNT, and the compression of addresses and returns (3.3.7, 3.3.9, 3.3.13, 3.3.14, 4.2.1–4.2.3).

use crate::machine::{KERNEL, Machine, all, everywhere, filter, stop_in_range1};
use cofi_unit::rtit::{Events, Implementation, msr};

fn pkt_cnt(count: u64, mask: u64) -> u64 {
    msr::PktCnt(0).with_count(count).with_mask(mask).0
}

#[test]
fn a_psb_by_every_pkt_mask() {
    for mask in 0..4 {
        let mut machine = Machine::plain();
        let bit = 1 << (11 + mask);
        machine.write(msr::RTIT_PKT_CNT, pkt_cnt((bit - 6) & 0x3fff, mask));
        machine.indirect(0x2000);
        assert_eq!(machine.said(), "tip 0x2000", "{mask}");
        machine.indirect(0x2000);
        assert_eq!(machine.said(), "tip 0x2000, psb", "{mask}");
        assert_eq!(machine.read(msr::RTIT_PKT_CNT), pkt_cnt(9, mask));
    }
}

#[test]
fn only_the_monitored_bit_counts() {
    let mut machine = Machine::plain();
    machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0x1000, 0));
    machine.indirect(0x2000);
    assert_eq!(machine.said(), "tip 0x2000");
    // The field overflows, and nothing is due by that.
    machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0x37fe, 2));
    assert_eq!(machine.said(), "psb", "bit 13");
}

#[test]
fn the_example_of_3_3_9() {
    let mut machine = Machine::plain();
    machine.ip = 0x7fff_0000_0000;
    machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0xffc, 1));
    machine.far(0x1234_5678, KERNEL);
    assert_eq!(
        machine.said(),
        "fup.far 0x7fff00000008, psb, tip 0x12345678"
    );
    assert_eq!(machine.read(msr::RTIT_PKT_CNT), pkt_cnt(0xe, 1));
}

#[test]
fn a_write_of_pkt_cnt_sends_a_psb_if_trigger_en_is_set() {
    let mut machine = Machine::plain();
    machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0x800, 0));
    assert_eq!(machine.said(), "psb");
    assert_eq!(machine.read(msr::RTIT_PKT_CNT), pkt_cnt(9, 0));
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0x800, 0));
    assert_eq!(machine.said(), "");
    assert_eq!(machine.read(msr::RTIT_PKT_CNT), pkt_cnt(0x800, 0));
}

#[test]
fn a_psb_between_tnt_and_fup() {
    let mut machine = Machine::plain();
    machine.conditionals("N");
    machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0x7ff, 0));
    machine.interrupt(0x2000, KERNEL);
    assert_eq!(machine.said(), "tnt N, psb, fup.far 0x1008, tip 0x2000");
}

#[test]
fn mtc_psb_and_trace_stop_leave_results_waiting() {
    let mut machine = Machine::traced(
        Implementation::default(),
        everywhere().with_trace_stop(Events::RANGE1),
        all().with_mtc_en(true).with_sts_en(true),
    );
    machine.conditionals("N");
    machine.pass(0, 0x80);
    machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0x800, 0));
    machine.event(cofi_unit::rtit::Event::Wake);
    machine.jump(0x5000);
    assert_eq!(
        machine.said(),
        "mtc range=0 tsc=1, psb, sts acbr=0 ecbr=0 tsc=128, tracestop"
    );
    assert_eq!(machine.read(msr::RTIT_TNT_BUFF), 0b10);
}

#[test]
fn lips_are_compressed_by_table_18() {
    let mut machine = Machine::plain();
    let mut len = |to| {
        machine.indirect(to);
        machine.bytes().len()
    };
    assert_eq!(len(0x7fff_1234_5678), 7, "nothing matches");
    assert_eq!(len(0x7fff_1234_9999), 3, "both match");
    assert_eq!(len(0x7fff_0000_9999), 5, "high matches");
    assert_eq!(len(0x7ff0_0000_9999), 7, "middle matches alone");
    assert_eq!(len(0x1234_9999), 5, "high is zero");
    assert_eq!(len(0x9999), 3, "both are zero");
    assert_eq!(len(0xffff_ffff_8000_0000), 7, "bit 47 repeated is not sent");
    assert_eq!(len(0xffff_ffff_8000_1234), 3);
    assert_eq!(machine.read(msr::RTIT_LAST_LIP), 0x1_ffff_8000);
}

#[test]
fn software_switches_last_lip() {
    let mut machine = Machine::plain();
    machine.write(msr::RTIT_LAST_LIP, 0x1_7fff_1234);
    machine.indirect(0x7fff_1234_5678);
    assert_eq!(machine.bytes().len(), 3);
    machine.write(msr::RTIT_LAST_LIP, 0x7fff_1234);
    machine.indirect(0x7fff_1234_5678);
    assert_eq!(machine.bytes().len(), 7, "not valid");
}

#[test]
fn a_psb_clears_compression_after_so_many_packets() {
    for delay in 0..=4 {
        let mut choices = Implementation::default();
        choices.psb_effect_delay = delay;
        let ctl = all().with_cmprs_ret(true);
        let mut machine = Machine::traced(choices, everywhere(), ctl);
        machine.call(0x2000);
        machine.indirect(0x7fff_0000_0000);
        machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0x800, 0));
        machine.bytes();
        for packet in 0..6 {
            machine.indirect(0x7fff_0000_0000);
            let expected = if packet == delay { 7 } else { 3 };
            assert_eq!(machine.bytes().len(), expected, "{delay} {packet}");
            let is_cleared = packet + 1 >= delay;
            let nlip = machine.read(msr::RTIT_LAST_CALL_NLIP);
            assert_eq!(nlip == 0, is_cleared, "{delay} {packet}");
        }
    }
}

#[test]
fn a_drain_makes_a_psb_take_effect() {
    let mut choices = Implementation::default();
    choices.psb_effect_delay = 4;
    let mut machine = Machine::traced(choices, everywhere(), all());
    machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0x800, 0));
    assert_ne!(machine.read(msr::RTIT_LAST_LIP), 0);
    machine.set_ctl(|ctl| ctl);
    assert_eq!(machine.read(msr::RTIT_LAST_LIP), 0);
}

#[test]
fn tnt_buff_is_what_the_packet_will_be() {
    let mut machine = Machine::plain();
    machine.conditionals("TN");
    assert_eq!(machine.read(msr::RTIT_TNT_BUFF), 0b110);
    machine.write(msr::RTIT_TNT_BUFF, 0b10_1010);
    machine.conditionals("T");
    assert_eq!(machine.said(), "tnt NTNTNT");
    assert_eq!(machine.read(msr::RTIT_TNT_BUFF), 1);
}

#[test]
fn a_full_tnt_buff_written_by_software_is_sent_soon() {
    let mut machine = Machine::plain();
    machine.write(msr::RTIT_TNT_BUFF, 0b111_0000);
    assert_eq!(machine.said(), "tnt TTNNNN");
    assert_eq!(machine.read(msr::RTIT_TNT_BUFF), 1);
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    machine.write(msr::RTIT_TNT_BUFF, 0b111_0000);
    assert_eq!(machine.said(), "");
    machine.set_ctl(|ctl| ctl.with_trace_active(true));
    assert_eq!(machine.said(), "psb, tnt TTNNNN, fup.pge 0x1010");
}

#[test]
fn returns_without_nested_calls_as_in_figure_6() {
    let mut machine = Machine::traced(
        Implementation::default(),
        everywhere(),
        all().with_cmprs_ret(true),
    );
    machine.call(0x2000);
    machine.ret(0x1004);
    assert_eq!(machine.said(), "");
    assert_eq!(machine.read(msr::RTIT_TNT_BUFF), 0b11);
    machine.ret(0x1004);
    assert_eq!(
        machine.read(msr::RTIT_TNT_BUFF),
        0b111,
        "a match does not use it up"
    );
    machine.conditionals("NNN");
    machine.ret(0x1004);
    assert_eq!(machine.said(), "tnt TTNNNT", "it fills a TNT as any");
}

#[test]
fn returns_with_nested_calls_as_in_figure_7() {
    let mut machine = Machine::traced(
        Implementation::default(),
        everywhere(),
        all().with_cmprs_ret(true),
    );
    machine.call(0x401);
    machine.ip = 0x405;
    machine.call(0x502);
    machine.ret(0x409);
    machine.nop();
    machine.ret(0x1004);
    assert_eq!(machine.said(), "tnt T, tip 0x1004");
}

#[test]
fn without_cmprs_ret_nothing_is_remembered() {
    let mut machine = Machine::plain();
    machine.call(0x2000);
    machine.ret(0x1004);
    assert_eq!(machine.said(), "tip 0x1004");
    assert_eq!(machine.read(msr::RTIT_LAST_CALL_NLIP), 0);
}

#[test]
fn only_calls_that_begin_with_packet_en_are_remembered() {
    let ctl = all().with_cmprs_ret(true);
    let mut machine = Machine::traced(Implementation::default(), filter(Events::RANGE0), ctl);
    machine.call(0x2000);
    assert_eq!(machine.said(), "fup.pgd 0x1004");
    let remembered = machine.read(msr::RTIT_LAST_CALL_NLIP);
    assert_eq!(remembered, 1 << 48 | 0x1004);
    machine.call(0x1000);
    assert_eq!(machine.said(), "fup.pge 0x1000");
    machine.far(0x1080, KERNEL);
    assert_eq!(machine.read(msr::RTIT_LAST_CALL_NLIP), remembered);
    machine.said();
    machine.ret(0x1004);
    machine.jump(0x3000);
    assert_eq!(machine.said(), "tnt T, fup.pgd 0x1008");
    machine.ret(0x1004);
    assert_eq!(machine.said(), "fup.pge 0x1004", "a RET from outside");
}

#[test]
fn a_compressed_return_leaves_last_lip() {
    let ctl = all().with_cmprs_ret(true);
    let mut machine = Machine::traced(Implementation::default(), everywhere(), ctl);
    machine.indirect(0x7fff_0000_0000);
    let last = machine.read(msr::RTIT_LAST_LIP);
    machine.call(0x2000);
    machine.ret(0x7fff_0000_0004);
    assert_eq!(machine.read(msr::RTIT_LAST_LIP), last);
}

#[test]
fn the_psb_of_enabling_clears_compression() {
    let ctl = all().with_cmprs_ret(true);
    let mut machine = Machine::traced(Implementation::default(), everywhere(), ctl);
    machine.call(0x7fff_1234_1000);
    machine.indirect(0x7fff_1234_2000);
    machine.set_ctl(|ctl| ctl.with_trace_active(false));
    assert_ne!(machine.read(msr::RTIT_LAST_LIP), 0);
    assert_ne!(machine.read(msr::RTIT_LAST_CALL_NLIP), 0);
    machine.said();
    let ctl = ctl.with_trace_en(true).with_trace_active(true);
    machine.write(msr::RTIT_CTL, ctl.0);
    let psb = 9;
    assert_eq!(machine.bytes().len(), psb + 7, "fup.pge is not compressed");
    assert_eq!(machine.read(msr::RTIT_LAST_CALL_NLIP), 0);
    machine.ret(0x1004);
    assert_eq!(machine.bytes().len(), 3, "a TIP");
}

#[test]
fn a_trace_stop_packet_counts() {
    let mut machine = Machine::traced(Implementation::default(), stop_in_range1(), all());
    machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0x100, 0));
    machine.jump(0x5000);
    assert_eq!(machine.said(), "tracestop");
    assert_eq!(machine.read(msr::RTIT_PKT_CNT), pkt_cnt(0x101, 0));
    // Even where it reaches the limit: but tracing is off, and no PSB follows.
    let mut machine = Machine::traced(Implementation::default(), stop_in_range1(), all());
    machine.write(msr::RTIT_PKT_CNT, pkt_cnt(0x7ff, 0));
    machine.jump(0x5000);
    assert_eq!(machine.said(), "tracestop");
    assert_eq!(machine.read(msr::RTIT_PKT_CNT), pkt_cnt(0x800, 0));
}
