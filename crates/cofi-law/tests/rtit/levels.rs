//! Every way to read a trace tells the same: items, parts, blocks, pieces between PSBs, events without code.

use super::flow::{decoder, flow_config};
use super::setups::{config, setups};
use super::stream::packets;
use cofi_flow::{Event, EventDecoder, FlowDecoder, Item, Part};
use cofi_insn::CodeSource;
use cofi_law::rtit::{Features, Record, Setup, run};
use cofi_packet::rtit::Kind;
use cofi_packet::{Ip, StreamOffset};
use proptest::prelude::*;

fn by_parts<C: CodeSource>(mut decoder: FlowDecoder<'_, C>) -> Vec<Item> {
    let mut items = Vec::new();
    while let Some(part) = decoder.next_part() {
        match part {
            Part::Run(run) => items.extend(run.iter().map(Item::Insn)),
            Part::Event(event) => items.push(Item::Event(event)),
            Part::Error(error) => items.push(Item::Error(error)),
        }
    }
    items
}

fn levels_agree(setup: &Setup, record: &Record) -> Result<(), TestCaseError> {
    let config = flow_config(setup, record);
    let items: Vec<Item> = decoder(record, config).collect();
    let mut blocks = Vec::new();
    decoder(record, config).for_each(|item| blocks.push(item));
    prop_assert!(items == blocks, "blocks tell something else");
    let parts = by_parts(decoder(record, config));
    prop_assert!(items == parts, "parts tell something else");
    Ok(())
}

fn instructions(items: impl Iterator<Item = Item>) -> (Vec<Ip>, usize) {
    let (mut ips, mut errors) = (Vec::new(), 0);
    for item in items {
        match item {
            Item::Insn(insn) => ips.push(insn.ip),
            Item::Error(_) => errors += 1,
            Item::Event(_) => {}
        }
    }
    (ips, errors)
}

/// Pieces from one PSB to another, together, are the whole; but a return that is compressed against a call in the piece before is lost, with what
/// follows up to the next address. How much is found, of how much, in how many pieces.
fn pieces(setup: &Setup, record: &Record) -> Result<(usize, usize, usize), TestCaseError> {
    let config = flow_config(setup, record);
    let mut cuts: Vec<u64> = packets(setup, &record.trace)
        .into_iter()
        .filter(|(_, packet)| packet.kind() == Kind::Psb)
        .map(|(offset, _)| offset)
        .collect();
    let step = cuts.len() / 6 + 1;
    cuts = cuts.into_iter().step_by(step).collect();
    cuts.push(record.trace.len() as u64);
    let (whole, gaps) = instructions(decoder(record, config));
    let (mut joined, mut errors) = (Vec::new(), 0);
    for cut in cuts.windows(2) {
        let [from, to] = [cut[0], cut[1]].map(StreamOffset);
        let (piece, gaps) = instructions(decoder(record, config).within(from..to));
        joined.extend(piece);
        errors += gaps;
    }
    if errors == gaps || !setup.ctl.cmprs_ret() {
        prop_assert_eq!(&joined, &whole);
    }
    let mut rest = whole.iter();
    prop_assert!(joined.iter().all(|ip| rest.any(|it| it == ip)));
    Ok((joined.len(), whole.len(), cuts.len() - 1))
}

proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn items_are_parts_are_blocks(setup in setups()) {
        levels_agree(&setup, &run(&setup))?;
    }

    #[test]
    fn pieces_are_pieces_of_the_whole(setup in setups()) {
        pieces(&setup, &run(&setup))?;
    }

    /// Without code the same is told in the same order; but not which instruction it was that switched tracing off or led elsewhere.
    #[test]
    fn events_are_those_of_the_flow(setup in setups()) {
        let record = run(&setup);
        let config = flow_config(&setup, &record);
        let with_code = Events::new(decoder(&record, config).filter_map(|item| match item {
            Item::Event(event) => Some(event),
            _ => None,
        }));
        let told = EventDecoder::new(&record.trace, config);
        let without = Events::new(told.filter_map(|told| told.what.ok()));
        prop_assert_eq!(&with_code.enables, &without.enables);
        prop_assert_eq!(&with_code.paging, &without.paging);
        let mut rest = without.branches.iter();
        prop_assert!(with_code.branches.iter().all(|a| rest.any(|b| a == b)));
    }
}

/// What two levels both tell.
#[derive(Debug, Default)]
struct Events {
    /// Where tracing goes on, and that it goes off.
    enables: Vec<String>,
    paging: Vec<Event>,
    /// Far transfers; with code, those alone that no instruction made.
    branches: Vec<Event>,
}

impl Events {
    fn new(events: impl Iterator<Item = Event>) -> Self {
        let mut sorted = Self::default();
        for event in events {
            match event {
                Event::Enabled { ip, .. } => sorted.enables.push(format!("on at {ip}")),
                Event::Overflow { ip } => sorted.enables.push(format!("overflow, then {ip:?}")),
                Event::Disabled { .. } | Event::AsyncDisabled { .. } => {
                    sorted.enables.push("off".into());
                }
                Event::Stop => {
                    // That implies the other.
                    sorted.enables.pop_if(|last| last == "off");
                    sorted.enables.push("stop".into());
                }
                Event::Paging { .. } | Event::PagingEnabled { .. } => sorted.paging.push(event),
                Event::AsyncBranch { .. } => sorted.branches.push(event),
                _ => {}
            }
        }
        sorted
    }
}

#[test]
fn most_is_found_in_pieces() {
    let (mut found, mut all, mut count) = (0, 0, 0);
    for seed in 0..30 {
        let features = Features(Features::INTERRUPTS.0 | Features::SPACES.0);
        let mut setup = Setup::random(seed, 10_000, features);
        setup.pkt_mask = 0;
        setup.ctl = setup.ctl.with_os(true).with_user(true).with_cycle_acc(true);
        let (part, whole, pieces) = pieces(&setup, &run(&setup)).expect("it holds");
        found += part;
        all += whole;
        count += pieces;
    }
    println!("{found} of {all} instructions are found in {count} pieces");
    assert!(found > all * 9 / 10 && count > 100);
}
