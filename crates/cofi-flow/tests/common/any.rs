//! What must hold of any flow, whatever the packets and the code.

use std::collections::HashMap;

use cofi_flow::{
    AnyKind, Edges, Event, EventDecoder, FlowConfig, FlowDecoder, FlowErrorKind, Item, Part,
    TraceFormat, Visitor,
};
use cofi_insn::{CodeSource, Segment};
use cofi_packet::{DecodeError, StreamOffset, intel, rtit};
use proptest::prelude::*;

/// Code in which branches of all kinds are frequent and land nearby.
pub(crate) fn branchy() -> impl Strategy<Value = Vec<u8>> {
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

/// Decodes and checks what must hold of any flow.
pub(crate) fn check(
    trace: &[u8],
    code: impl CodeSource,
    config: FlowConfig,
) -> Result<(), TestCaseError> {
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

/// Edges are what the instructions say, whichever way they are counted, and whatever was learned before.
fn check_edges(
    trace: &[u8],
    code: Segment<'_>,
    config: FlowConfig,
    items: &[Item],
) -> Result<(), TestCaseError> {
    const LEN: usize = 4099;
    let mut expected = vec![0_u8; LEN];
    // Where the step begins, and whether its branch has run.
    let mut step = None;
    let mut is_struck = false;
    for item in items {
        match item {
            Item::Insn(insn) => {
                let start = match step {
                    None => insn.ip,
                    Some((start, false)) => start,
                    Some((from, true)) => {
                        let count = &mut expected[Edges::place(from, insn.ip, LEN)];
                        *count = count.saturating_add(1);
                        insn.ip
                    }
                };
                step = Some((start, insn.class.needs_packet()));
            }
            Item::Event(Event::AsyncDisabled { .. }) => is_struck = true,
            Item::Event(Event::Enabled { resumed, .. }) => {
                if is_struck && !resumed {
                    step = None;
                }
                is_struck = false;
            }
            Item::Event(
                Event::AsyncBranch { .. } | Event::Overflow { .. } | Event::Resync { .. },
            )
            | Item::Error(_) => {
                step = None;
            }
            Item::Event(_) => {}
        }
    }
    let mut edges = Edges::new();
    for _ in 0..2 {
        let mut map = vec![0; LEN];
        FlowDecoder::new(trace, code, config).visit(&mut edges.count_in(&mut map));
        prop_assert_eq!(&map, &expected);
    }
    let mut map = vec![0; LEN];
    let mut counter = edges.count_in(&mut map);
    for item in items {
        match item {
            Item::Insn(insn) => counter.instruction(insn),
            Item::Event(event) => counter.event(event, StreamOffset(0)),
            Item::Error(error) => counter.error(error),
        }
    }
    prop_assert_eq!(&map, &expected);
    Ok(())
}

/// Binds packets without code and checks what must hold of anything told.
pub(crate) fn check_events(trace: &[u8], config: FlowConfig) -> Result<(), TestCaseError> {
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
                // The first packet stands where it is said to. (Items of blocks look like TNTs to who does not know the block, and cycle
                // counts belong to packets of many kinds.)
                let rest = &trace[from..];
                let stands = match config.format {
                    TraceFormat::IntelPt => intel::decode(rest).ok().map(|raw| raw.kind().into()),
                    TraceFormat::Rtit(rtit) => {
                        let raw = rtit::decode(rtit.cycles, rest).ok();
                        raw.map(|raw| raw.kind().into())
                    }
                };
                if let (Some(stands), Some(first)) = (stands, first)
                    && first != AnyKind::IntelPt(intel::Kind::Bip)
                {
                    prop_assert_eq!(first, stands, "{:?}", item);
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
    Ok(())
}

/// What a decoder tells of the time behind what it returned last: by then, packets may have been read that decide nothing.
fn moment<C: CodeSource>(decoder: &mut FlowDecoder<'_, C>) -> String {
    let (time, cycles) = (decoder.time(), decoder.cycles());
    format!("{:?} {time:?} {cycles}", decoder.offset())
}

/// Events and errors have the same offsets, times and cycles, whether somebody asks at each instruction or goes by blocks and asks
/// nowhere else.
pub(crate) fn check_times(
    trace: &[u8],
    code: Segment<'_>,
    config: FlowConfig,
) -> Result<(), TestCaseError> {
    let mut asked = Vec::new();
    let mut decoder = FlowDecoder::new(trace, code, config);
    while let Some(item) = decoder.next() {
        let moment = moment(&mut decoder);
        if !matches!(item, Item::Insn(_)) {
            asked.push((item, moment));
        }
    }
    let mut by_blocks = Vec::new();
    let mut decoder = FlowDecoder::new(trace, code, config);
    while let Some(item) = decoder.blocks(|_| {}) {
        by_blocks.push((item, moment(&mut decoder)));
    }
    prop_assert_eq!(by_blocks, asked);
    Ok(())
}

/// Goes through a flow in every way.
pub(crate) fn check_ways(
    trace: &[u8],
    code: Segment<'_>,
    config: FlowConfig,
) -> Result<(), TestCaseError> {
    let mut parts = Vec::new();
    let mut decoder = FlowDecoder::new(trace, code, config);
    while let Some(part) = decoder.next_part() {
        match part {
            Part::Run(run) => parts.extend(run.iter().map(Item::Insn)),
            Part::Event(event) => parts.push(Item::Event(event)),
            Part::Error(error) => parts.push(Item::Error(error)),
        }
    }
    let items: Vec<Item> = FlowDecoder::new(trace, code, config).collect();
    prop_assert_eq!(&parts, &items);
    check_edges(trace, code, config, &items)?;

    // All ways mixed.
    let mut mixed = Vec::new();
    let mut decoder = FlowDecoder::new(trace, code, config);
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
    prop_assert_eq!(&mixed, &items);

    // The same number is the same path, whoever decodes, and whatever was forgotten.
    let mut numbered = HashMap::new();
    for limit in [config.cache_limit, 1 << 18, 1 << 12] {
        let mut config = config;
        config.cache_limit = limit;
        let mut decoder = FlowDecoder::new(trace, code, config);
        let mut by_paths = Vec::new();
        while let Some(item) = decoder.paths(|path| {
            let before = by_paths.len();
            path.for_each(|block| by_paths.extend(block.iter().map(Item::Insn)));
            let insns = &by_paths[before..];
            assert_eq!(insns.len(), path.len());
            if let Some(number) = path.number() {
                let known = numbered.entry(number).or_insert_with(|| insns.to_vec());
                assert_eq!(insns, known, "{number:?}");
            }
        }) {
            by_paths.push(item);
        }
        prop_assert_eq!(&by_paths, &items);
    }

    let mut offsets = Vec::new();
    let mut decoder = FlowDecoder::new(trace, code, config);
    while let Some(item) = decoder.next() {
        offsets.push((item, decoder.offset()));
    }

    let (mut blocks, mut ends) = (Vec::new(), Vec::new());
    let mut decoder = FlowDecoder::new(trace, code, config);
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
        prop_assert_eq!(
            offsets[index].1,
            offset,
            "of item {}, {:?}",
            index,
            offsets[index].0
        );
    }
    let folded = FlowDecoder::new(trace, code, config).fold(Vec::new(), |mut list, item| {
        list.push(item);
        list
    });
    prop_assert_eq!(folded, items);
    Ok(())
}
