//! What the unit does, before anything is decoded: PacketEn is as the reference has it (the walk compares), and packets tell of it.

use super::setups::{config, setups};
use super::stream::{around, packets};
use cofi_law::rtit::{Features, Record, Setup, Start, Stretch, run};
use cofi_packet::rtit::Kind;
use proptest::prelude::*;

/// The stretches of which a packet tells the beginning, each with the packet's offset.
pub(crate) fn told(setup: &Setup, record: &Record) -> Result<Vec<(u64, Stretch)>, String> {
    let mut stretches = record.stretches.iter();
    let mut told = Vec::new();
    for (offset, packet) in packets(setup, &record.trace) {
        let start = match packet.kind() {
            Kind::FupPge => Start::Enabled,
            Kind::FupOvf => Start::Overflow,
            _ => continue,
        };
        let stretch = loop {
            let Some(stretch) = stretches.next() else {
                return Err(format!("{packet} at {offset} begins nothing"));
            };
            let (from, to) = stretch.packets;
            if stretch.start == start && (from..to).contains(&offset) {
                break stretch;
            }
            // FUP.PGE may be lost by the overflow that begins with it, and then nothing else was told.
            if stretch.start != Start::Enabled || stretch.to != stretch.from {
                let near = around(setup, record, offset);
                return Err(format!(
                    "{stretch:?} is not told: {packet} at {offset}\n{near}"
                ));
            }
        };
        told.push((offset, *stretch));
    }
    Ok(told)
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn packets_tell_where_packet_en_is_set(setup in setups()) {
        let record = run(&setup);
        told(&setup, &record).map_err(TestCaseError::fail)?;
    }
}

/// The generator reaches what the law is about; a law over empty traces would hold, too.
#[test]
fn the_generator_covers_every_packet_and_every_stop() {
    let mut seen = std::collections::BTreeMap::new();
    let mut stops = std::collections::BTreeMap::new();
    let (mut steps, mut silent) = (0, 0);
    for seed in 0..150 {
        let mut features = Features::ALL;
        if seed % 2 == 0 {
            features.0 &= !Features::OVERFLOW.0;
        }
        if seed % 3 == 0 {
            features.0 &= !Features::RANGES.0;
        }
        let setup = Setup::random(seed, 3000, features);
        let record = run(&setup);
        steps += record.truth.len();
        for stretch in &record.stretches {
            let stop = format!("{:?} {:?}", stretch.start, stretch.stop);
            *stops.entry(stop).or_insert(0) += 1;
            silent += stretch.to - stretch.told;
        }
        for (_, packet) in packets(&setup, &record.trace) {
            *seen.entry(packet.kind()).or_insert(0) += 1;
        }
    }
    println!("{steps} steps, {silent} of which nobody may know, {seen:?} {stops:?}");
    assert!(steps > 50_000, "{steps} instructions");
    for kind in Kind::ALL {
        let least = if *kind == Kind::FupPcc { 0 } else { 100 };
        assert!(
            seen.get(kind).is_some_and(|n| *n > least),
            "{kind:?}: {seen:?}"
        );
    }
    assert!(
        stops.len() == 6 && stops.values().all(|n| *n > 20),
        "{stops:?}"
    );
}
