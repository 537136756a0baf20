//! Edges by hand: which there are, and what makes none. (That all ways of counting agree, `any_stream` and `any_rtit` show.)

mod common;

use cofi_flow::{Edges, FlowConfig, FlowDecoder};
use cofi_insn::Segment;
use cofi_packet::Ip;
use common::packets;

const LEN: usize = 1 << 16;

/// 1000 nop, nop, jne 1000; 1004 nop, jmp 1008; 1008 nop, jne 1000; 100b syscall
const CODE: [u8; 13] = [
    0x90, 0x90, 0x75, 0xfc, 0x90, 0xeb, 0x01, 0xcc, 0x90, 0x75, 0xf5, 0x0f, 0x05,
];

fn map(edges: &mut Edges, trace: &str) -> Vec<u8> {
    let code = Segment {
        base: Ip(0x1000),
        bytes: &CODE,
    };
    let trace = packets(trace);
    let mut map = vec![0; LEN];
    FlowDecoder::new(&trace, code, FlowConfig::default()).visit(&mut edges.count_in(&mut map));
    map
}

/// The edges between these addresses, each so often.
fn expected(edges: &[(u64, u64, u8)]) -> Vec<u8> {
    let mut map = vec![0; LEN];
    for (from, to, count) in edges {
        map[Edges::place(Ip(*from), Ip(*to), LEN)] += count;
    }
    map
}

#[test]
fn a_step_ends_with_a_branch_that_the_trace_tells() {
    let mut edges = Edges::new();
    let wanted = expected(&[
        (0x1000, 0x1000, 2),
        (0x1000, 0x1004, 1),
        (0x1004, 0x100b, 1),
    ]);
    for _ in 0..2 {
        let found = map(&mut edges, "psb psbend pge:1000 tnt:TTNN pgd:-");
        assert_eq!(found, wanted);
    }
}

#[test]
fn an_interrupt_in_the_middle_of_a_step_is_no_edge() {
    let plain = "psb psbend pge:1000 tnt:TNN pgd:-";
    let mut edges = Edges::new();
    let wanted = map(&mut edges, plain);
    assert!(wanted.iter().any(|count| *count > 0));
    for struck in [
        // At the first instruction, in the middle, at the branch, behind a direct jump.
        "psb psbend pge:1000 fup:1000 pgd:- pge:1000 tnt:TNN pgd:-",
        "psb psbend pge:1000 fup:1001 pgd:- pge:1001 tnt:TNN pgd:-",
        "psb psbend pge:1000 tnt:T fup:1002 pgd:- pge:1002 tnt:NN pgd:-",
        "psb psbend pge:1000 tnt:TN fup:1008 pgd:- pge:1008 tnt:N pgd:-",
    ] {
        assert_eq!(map(&mut edges, struck), wanted, "{struck}");
    }
}

#[test]
fn no_edge_leads_to_a_handler() {
    let mut edges = Edges::new();
    let wanted = [(0x1000, 0x1000, 1), (0x1008, 0x100b, 1)];
    for (struck, wanted) in [
        // Tracing goes off in the middle of a step, and on again elsewhere.
        (
            "psb psbend pge:1000 tnt:T fup:1001 pgd:- pge:1008 tnt:N pgd:-",
            &wanted[..],
        ),
        // The handler is traced at once.
        (
            "psb psbend pge:1000 tnt:T fup:1001 tip:1008 tnt:N pgd:-",
            &wanted[..],
        ),
        // Behind the branch: the next step has not begun.
        (
            "psb psbend pge:1000 tnt:T fup:1000 tip:1008 tnt:N pgd:-",
            &wanted[1..],
        ),
    ] {
        assert_eq!(map(&mut edges, struck), expected(wanted), "{struck}");
    }
}

#[test]
fn no_edge_leads_over_what_was_lost() {
    let mut edges = Edges::new();
    let found = map(
        &mut edges,
        "psb psbend pge:1000 tnt:TN ovf fup:1004 tnt:N pgd:-",
    );
    // The step behind the branch that was not taken has not begun, as far as is known.
    let wanted = [(0x1000, 0x1000, 1), (0x1004, 0x100b, 1)];
    assert_eq!(found, expected(&wanted));
}

#[test]
fn a_count_stays_at_the_greatest() {
    let mut edges = Edges::new();
    let trace = format!("psb psbend pge:1000 {} pgd:-", "tnt:TTTTTT ".repeat(60));
    let found = map(&mut edges, &trace);
    assert_eq!(found[Edges::place(Ip(0x1000), Ip(0x1000), LEN)], 255);
    assert_eq!(found.iter().filter(|count| **count > 0).count(), 1);
}

#[test]
fn a_map_may_be_of_any_size() {
    let code = Segment {
        base: Ip(0x1000),
        bytes: &CODE,
    };
    let trace = packets("psb psbend pge:1000 tnt:TTNN pgd:-");
    for len in [0, 1, 3, 8] {
        let mut map = vec![0; len];
        let mut edges = Edges::new();
        FlowDecoder::new(&trace, code, FlowConfig::default()).visit(&mut edges.count_in(&mut map));
        let sum: u32 = map.iter().map(|count| u32::from(*count)).sum();
        assert_eq!(sum, if len == 0 { 0 } else { 4 }, "{len}");
    }
}
