//! What the cache of code does when it is full.

use alloc::vec;
use alloc::vec::Vec;

use cofi_insn::Segment;
use cofi_packet::Ip;
use cofi_packet::intel::{IpPayload, PSB, Packet, U48};

use crate::{Executed, FlowConfig, FlowDecoder, Item, Visitor};

const BASE: u64 = 0x1000;
/// nop; nop; jne, to behind it.
const BLOCK: [u8; 4] = [0x90, 0x90, 0x75, 0x00];
const BLOCKS: usize = 6000;
const ROUNDS: usize = 24;

/// So many blocks, and a jump to the first.
fn code(blocks: usize) -> Vec<u8> {
    let mut code = BLOCK.repeat(blocks);
    let back = -(code.len() as i32 + 5);
    code.push(0xe9);
    code.extend(back.to_le_bytes());
    code
}

/// A trace that goes through `blocks` of them, none of whose branches is taken.
fn trace(blocks: usize) -> Vec<u8> {
    let ip = IpPayload::sext48(U48::truncate(BASE));
    let mut bytes = PSB.to_vec();
    for packet in [Packet::PsbEnd, Packet::TipPge { ip }] {
        let raw = packet.encode();
        bytes.extend_from_slice(&raw.bytes()[..raw.len()]);
    }
    // Six bits of zero each.
    bytes.extend(vec![0x80; blocks / 6]);
    bytes
}

/// The instructions that a trace of so many blocks and rounds decodes to with a cache of this size, how many nodes and runs were put
/// together for that, and how large the cache was at the end.
fn decode(blocks: usize, rounds: usize, limit: usize) -> (u64, u64, usize) {
    let (code, trace) = (code(blocks), trace(blocks * rounds));
    let source = Segment {
        base: Ip(BASE),
        bytes: &code,
    };
    let config = FlowConfig {
        cache_limit: limit,
        ..FlowConfig::default()
    };
    let mut decoder = FlowDecoder::new(&trace, source, config);
    let mut instructions = 0;
    while decoder
        .blocks(|block| instructions += block.len() as u64)
        .is_some()
    {}
    (
        instructions,
        decoder.walk.cache.built,
        decoder.walk.cache.bytes(),
    )
}

/// A program that goes round in a quarter more code than there is room for must not be decoded anew all the time.
#[test]
fn code_that_is_a_little_too_large_for_the_cache_is_mostly_found_in_it() {
    let (instructions, once, all) = decode(BLOCKS, ROUNDS, usize::MAX);
    let limit = all * 4 / 5;
    let (same, built, used) = decode(BLOCKS, ROUNDS, limit);
    assert_eq!(same, instructions);
    assert!(used <= limit + limit / 64, "{used} bytes of {limit}");
    // All of it anew in each round were 24 times.
    assert!(
        built < once * 12,
        "{built} were put together, {once} are needed"
    );
}

/// Code that ran first and never again makes room in the end.
#[test]
fn code_that_no_longer_runs_makes_room() {
    let (_, once, all) = decode(BLOCKS, 1, usize::MAX);
    let blocks = BLOCKS / 2;
    // Room for the second half, after all of the first has run.
    let code = [code(blocks), code(blocks)].concat();
    let mut first = trace(blocks);
    let second = (BASE + (blocks * BLOCK.len() + 5) as u64).to_le_bytes();
    // TIP.PGD without an address, TIP.PGE to the second half.
    first.extend([0x01, 0x71]);
    first.extend(&second[..6]);
    first.extend(vec![0x80; blocks * 40 / 6]);
    let source = Segment {
        base: Ip(BASE),
        bytes: &code,
    };
    let config = FlowConfig {
        cache_limit: all * 5 / 8,
        ..FlowConfig::default()
    };
    let mut decoder = FlowDecoder::new(&first, source, config);
    while decoder.blocks(|_| ()).is_some() {}
    let built = decoder.walk.cache.built;
    // Of 40 rounds, each of which were half of it.
    assert!(
        built < once * 12,
        "{built} were put together, {once} are needed"
    );
}

/// All instructions, in order, for a visitor.
#[derive(Default)]
struct Ran(Vec<Executed>);

impl Visitor for Ran {
    fn instruction(&mut self, insn: &Executed) {
        self.0.push(*insn);
    }
}

/// Instructions that are asked for again and again are kept as they are handed out, and are the same; however often the cache makes room for
/// other code, and however much code comes later.
#[test]
fn instructions_are_the_same_as_they_are_handed_out() {
    let blocks = 36;
    let code = [code(blocks), code(blocks)].concat();
    let mut bytes = trace(blocks * 70);
    // TIP.PGD without an address, TIP.PGE to the second half.
    let second = (BASE + (blocks * BLOCK.len() + 5) as u64).to_le_bytes();
    bytes.extend([0x01, 0x71]);
    bytes.extend(&second[..6]);
    bytes.extend(vec![0x80; blocks * 70 / 6]);
    let source = Segment {
        base: Ip(BASE),
        bytes: &code,
    };
    let mut one_by_one = Vec::new();
    for item in FlowDecoder::new(&bytes, source, FlowConfig::default()) {
        if let Item::Insn(insn) = item {
            one_by_one.push(insn);
        }
    }
    assert!(one_by_one.len() > blocks * 3 * 70 * 2, "both halves");
    let all = [Ip(BASE), Ip(BASE + (blocks * BLOCK.len() + 5) as u64)];
    assert!(
        all.iter()
            .all(|ip| one_by_one.iter().any(|insn| insn.ip == *ip))
    );
    let decode = |cache_limit, warm_after| {
        let config = FlowConfig {
            cache_limit,
            warm_after,
            ..FlowConfig::default()
        };
        let mut decoder = FlowDecoder::new(&bytes, source, config);
        let mut ran = Ran::default();
        decoder.visit(&mut ran);
        assert!(ran.0 == one_by_one, "cache of {cache_limit}");
        let cache = &decoder.walk.cache;
        (cache.graph.flat.bytes(), cache.bytes())
    };
    for warm_after in [0, 32] {
        let (flat, all) = decode(usize::MAX, warm_after);
        assert!(flat >= blocks * 3 * size_of::<Executed>(), "{flat}");
        // Room for the code, and not for its instructions as well.
        let (none, code) = decode(all - flat / 2, warm_after);
        assert_eq!((none, code), (0, all - flat));
        // Room for one half, or for less.
        for limit in [code * 3 / 4, code / 3, code / 10] {
            decode(limit, warm_after);
        }
    }
}
