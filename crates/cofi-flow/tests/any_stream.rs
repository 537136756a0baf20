//! Whatever the packets and the code: no panic, an end, and errors that say where.

mod common;

use cofi_flow::{
    Cpu, Errata, Event, EventDecoder, FlowConfig, FlowDecoder, FlowErrorKind, Item, PacketKind,
    Part,
};
use cofi_insn::{CodeSource, Segment};
use cofi_packet::Ip;
use cofi_packet::intel::DecodeError;
use common::packets;
use proptest::prelude::*;

fn words() -> impl Strategy<Value = String> {
    let address = prop_oneof![
        8 => (0_u64..0x40).prop_map(|low| format!("{:x}", 0x1000 + low)),
        1 => any::<u64>().prop_map(|ip| format!("{ip:x}")),
        1 => Just("-".to_owned()),
    ];
    let address =
        move |name: &'static str| address.clone().prop_map(move |ip| format!("{name}:{ip}"));
    let word = prop_oneof![
        10 => "tnt:[TN]{1,6}",
        2 => "tnt:[TN]{7,47}",
        8 => address("tip"),
        5 => address("fup"),
        4 => address("pge"),
        4 => address("pgd"),
        2 => Just("psb psbend".to_owned()),
        2 => address("psb mode:64 fup").prop_map(|words| words + " psbend"),
        1 => Just("psb".to_owned()),
        1 => Just("psbend".to_owned()),
        2 => "ovf|stop|bad|pad",
        3 => "mode:(16|32|64)|tsx:(in|no|abort)|pip:5000|pip\\.nr:7000|vmcs:9000",
        1 => "bbp bip:5|bip:6|bep|bep:ip|trig\\.ip|mnt:7|ptw:8|ptw\\.ip:9",
        2 => "exstop:ip|exstop|mwait:1|pwre:2|pwrx:3|cfe:[1-9]|cfe\\.ip:[1-9]|evd:5",
        2 => "tsc:[0-9a-f]{1,14}|tma:[0-9]{1,3}|mtc:[0-9a-f]{1,2}|cyc:[0-9]{1,5}|cbr:[0-9a-f]{1,2}",
    ];
    prop::collection::vec(word, 0..60).prop_map(|words| words.join(" "))
}

/// Code in which branches of all kinds are frequent and land nearby.
fn branchy() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => Just(vec![0x90]),
        4 => any::<u8>().prop_map(|to| vec![0x75, to & 0x0f | if to & 0x40 == 0 { 0 } else { 0xf0 }]),
        2 => any::<u8>().prop_map(|to| vec![0xeb, to & 0x0f | if to & 0x40 == 0 { 0 } else { 0xf0 }]),
        2 => (0_u8..32).prop_map(|to| vec![0xe8, to, 0, 0, 0]),
        2 => Just(vec![0xc3]),
        1 => Just(vec![0xff, 0xe0]),
        1 => Just(vec![0xff, 0xd0]),
        1 => Just(vec![0x0f, 0x05]),
        1 => Just(vec![0x0f, 0x22, 0xd8]),
        1 => Just(vec![0x48, 0xcf]),
        1 => Just(vec![0x0f, 0x01, 0xc2]),
        1 => any::<[u8; 3]>().prop_map(Vec::from),
    ];
    prop::collection::vec(piece, 1..48).prop_map(|pieces| pieces.concat())
}

fn configs() -> impl Strategy<Value = FlowConfig> {
    let models = prop_oneof![
        Just(0x4f),
        Just(0x5e),
        Just(0x55),
        Just(0x5c),
        Just(0x6a),
        Just(0)
    ];
    (models, any::<bool>(), 0_usize..5000).prop_map(|(model, cr3_filter, cache_limit)| FlowConfig {
        errata: Errata::for_cpu(Cpu {
            family: 6,
            model,
            stepping: 0,
        }),
        tsc_art_ratio: (80, 1),
        max_nonturbo_ratio: 20,
        cr3_filter,
        max_packetless_run: 1000,
        cache_limit,
        ..FlowConfig::default()
    })
}

/// Decodes and checks what must hold of any flow.
fn check(trace: &[u8], code: impl CodeSource, config: FlowConfig) -> Result<(), TestCaseError> {
    // At most one run of packetless code for each branch that a trace of this length can tell of, and the last.
    let bound = (trace.len() as u64 * 6 + 2) * (u64::from(config.max_packetless_run) + 4);
    let mut decoder = FlowDecoder::new(trace, code, config);
    let (mut items, mut offset, mut on) = (0_u64, 0, None);
    while let Some(item) = decoder.next() {
        items += 1;
        prop_assert!(items <= bound, "no end after {} items", items);
        prop_assert!(decoder.offset().0 >= offset, "offsets go back");
        offset = decoder.offset().0;
        match item {
            Item::Insn(insn) => {
                prop_assert!(
                    on != Some(false),
                    "an instruction while tracing is off: {}",
                    insn.ip
                );
                prop_assert!((1..=15).contains(&insn.len));
            }
            Item::Event(Event::Enabled { .. }) => on = Some(true),
            Item::Event(Event::Overflow { ip }) => on = Some(ip.is_some()),
            Item::Event(Event::Disabled { .. } | Event::AsyncDisabled { .. }) => on = Some(false),
            Item::Event(_) => {}
            Item::Error(error) => {
                prop_assert!(error.offset.0 <= trace.len() as u64);
                prop_assert!(!error.to_string().is_empty());
                // A block without its end costs nothing else.
                let is_block = matches!(
                    error.kind,
                    FlowErrorKind::Packet(DecodeError::InBlock { .. })
                );
                on = on.map(|on| on && is_block);
            }
        }
    }
    prop_assert!(decoder.next().is_none(), "goes on after its end");
    Ok(())
}

/// Binds packets without code and checks what must hold of anything told.
fn check_events(trace: &[u8], config: FlowConfig) -> Result<(), TestCaseError> {
    // A packet tells little: itself, up to four states that were bound to it, what waited for it.
    let bound = trace.len() * 8 + 16;
    let mut told = 0;
    for item in EventDecoder::new(trace, config)
        .with_branches()
        .with_ticks()
    {
        told += 1;
        prop_assert!(told <= bound, "no end after {} events", told);
        prop_assert!(item.offset.0 <= trace.len() as u64);
        match item.what {
            Ok(_) => {
                let first = item.packets.iter().next();
                prop_assert!(first.is_some(), "{:?}", item);
                let size = trace.len() as u64 - item.offset.0;
                prop_assert!(size > 0, "{:?}", item);
                let from = usize::try_from(item.offset.0).expect("within the trace");
                // The first packet stands where it is said to. (Items of blocks look like TNTs to who does not know the block.)
                if let (Ok(raw), Some(first)) = (cofi_packet::intel::decode(&trace[from..]), first)
                    && first != PacketKind::IntelPt(cofi_packet::intel::Kind::Bip)
                {
                    prop_assert_eq!(PacketKind::from(raw.kind()), first, "{:?}", item);
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn packets_in_any_order(words in words(), bytes in branchy(), config in configs()) {
        let trace = packets(&format!("psb fup:1000 psbend {words}"));
        check_events(&trace, config)?;
        check(&trace, Segment { base: Ip(0x1000), bytes: &bytes }, config)?;
    }

    #[test]
    fn any_bytes(trace in prop::collection::vec(any::<u8>(), 0..400), bytes in branchy(), config in configs()) {
        let trace = [packets("psb fup:1000 psbend"), trace].concat();
        check_events(&trace, config)?;
        check(&trace, Segment { base: Ip(0x1000), bytes: &bytes }, config)?;
    }

    #[test]
    fn flipped_bits(words in words(), flips in prop::collection::vec(any::<(u16, u8)>(), 1..4), bytes in branchy()) {
        let mut trace = packets(&format!("psb fup:1000 psbend {words}"));
        for (at, bit) in flips {
            let at = usize::from(at) % trace.len();
            trace[at] ^= 1 << (bit % 8);
        }
        let config = FlowConfig { max_packetless_run: 1000, ..FlowConfig::default() };
        check(&trace, Segment { base: Ip(0x1000), bytes: &bytes }, config)?;
    }

    /// Code everywhere, the same pattern over and over: nothing is ever unmapped.
    #[test]
    fn endless_code(words in words(), pattern in branchy(), config in configs()) {
        struct Everywhere(Vec<u8>);
        impl CodeSource for Everywhere {
            fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
                for (i, byte) in buf.iter_mut().enumerate() {
                    *byte = self.0[(ip.0.wrapping_add(i as u64) % self.0.len() as u64) as usize];
                }
                buf.len()
            }
        }
        let trace = packets(&format!("psb fup:1000 psbend {words}"));
        check(&trace, Everywhere(pattern), config)?;
    }

    /// Runs hold what single items hold, in the same order.
    #[test]
    fn parts_are_items(words in words(), bytes in branchy(), config in configs()) {
        let trace = packets(&format!("psb fup:1000 psbend {words}"));
        let code = Segment { base: Ip(0x1000), bytes: &bytes };
        let mut parts = Vec::new();
        let mut decoder = FlowDecoder::new(&trace, code, config);
        while let Some(part) = decoder.next_part() {
            match part {
                Part::Run(run) => parts.extend(run.iter().map(Item::Insn)),
                Part::Event(event) => parts.push(Item::Event(event)),
                Part::Error(error) => parts.push(Item::Error(error)),
            }
        }
        let items: Vec<Item> = FlowDecoder::new(&trace, code, config).collect();
        prop_assert_eq!(&parts, &items);

        // All ways mixed.
        let mut mixed = Vec::new();
        let mut decoder = FlowDecoder::new(&trace, code, config);
        loop {
            if mixed.len() % 5 == 0 {
                match decoder.blocks(|block| mixed.extend(block.iter().map(Item::Insn))) {
                    Some(item) => mixed.push(item),
                    None => break,
                }
                continue;
            }
            if mixed.len() % 3 == 0 {
                match decoder.next() {
                    Some(item) => mixed.push(item),
                    None => break,
                }
                continue;
            }
            match decoder.next_part() {
                Some(Part::Run(run)) => mixed.extend(run.iter().map(Item::Insn)),
                Some(Part::Event(event)) => mixed.push(Item::Event(event)),
                Some(Part::Error(error)) => mixed.push(Item::Error(error)),
                None => break,
            }
        }
        prop_assert_eq!(mixed, items);
    }

    /// Blocks hold what single items hold, in the same order, and are all whole; internal iteration gives the same.
    #[test]
    fn blocks_are_items(words in words(), bytes in branchy(), config in configs()) {
        let trace = packets(&format!("psb fup:1000 psbend {words}"));
        let code = Segment { base: Ip(0x1000), bytes: &bytes };
        let items: Vec<Item> = FlowDecoder::new(&trace, code, config).collect();
        let mut offsets = Vec::new();
        let mut decoder = FlowDecoder::new(&trace, code, config);
        while let Some(item) = decoder.next() {
            offsets.push((item, decoder.offset()));
        }

        let (mut blocks, mut ends) = (Vec::new(), Vec::new());
        let mut decoder = FlowDecoder::new(&trace, code, config);
        loop {
            let item = decoder.blocks(|block| {
                let insns: Vec<_> = block.iter().collect();
                assert_eq!(insns.len(), block.len());
                assert_eq!(insns[0].ip, block.ip());
                assert!(insns.iter().all(|insn| insn.mode == block.mode()));
                if let Some(last) = block.last() {
                    assert_eq!(insns.last(), Some(&last));
                }
                let mut each = Vec::new();
                block.for_each(|insn| each.push(insn));
                assert_eq!(each, insns);
                blocks.extend(insns.into_iter().map(Item::Insn));
                ends.push((blocks.len() - 1, block.offset()));
            });
            match item {
                Some(item) => {
                    ends.push((blocks.len(), decoder.offset()));
                    blocks.push(item);
                }
                None => break,
            }
        }
        prop_assert_eq!(&blocks, &items);
        for (index, offset) in ends {
            prop_assert_eq!(offsets[index].1, offset, "of item {}, {:?}", index, offsets[index].0);
        }
        let folded = FlowDecoder::new(&trace, code, config).fold(Vec::new(), |mut list, item| {
            list.push(item);
            list
        });
        prop_assert_eq!(folded, items);
    }

    /// A small cache that is emptied all the time changes nothing.
    #[test]
    fn cache_size_does_not_matter(words in words(), bytes in branchy()) {
        let trace = packets(&format!("psb fup:1000 psbend {words}"));
        let run = |cache_limit| {
            let config = FlowConfig { cache_limit, max_packetless_run: 1000, ..FlowConfig::default() };
            let code = Segment { base: Ip(0x1000), bytes: &bytes };
            let items = FlowDecoder::new(&trace, code, config).collect::<Vec<_>>();
            let mut blocks = Vec::new();
            FlowDecoder::new(&trace, code, config).for_each(|item| blocks.push(item));
            assert_eq!(items, blocks);
            items
        };
        prop_assert_eq!(run(0), run(1 << 20));
    }
}
