//! E8: packets behind a PSB that came too early, or in the place of older ones. No workaround is known, so nobody can promise the flow that was.
//! What is promised: reading comes to an end, what contradicts the code is a gap, and what is told is a way through the code; and where the erratum
//! has not struck, it is what ran.

use super::flow::{Source, decoder, flow_config};
use super::setups::{config, setups, with_errata};
use cofi_flow::Item;
use cofi_insn::{Class, CodeSource, decode};
use cofi_law::rtit::{Record, Setup, run};
use cofi_packet::Ip;
use cofi_unit::rtit::Errata;
use proptest::prelude::*;

/// Where an instruction can lead; none if anywhere.
fn successors(setup: &Setup, record: &Record, ip: Ip) -> Option<Vec<Ip>> {
    let mut bytes = [0; 15];
    let len = Source(&record.codes).read(ip, &mut bytes);
    let insn = decode(&bytes[..len], ip, setup.mode).expect("it is code");
    let next = insn.next_ip(ip, setup.mode);
    match insn.class {
        Class::Conditional => Some(vec![next, insn.target?]),
        Class::DirectJump | Class::DirectCall => Some(vec![insn.target?]),
        Class::Other | Class::MovCr3 | Class::Wait | Class::Into => Some(vec![next]),
        _ => None,
    }
}

/// The items are a way through the code, or several with something told in between; how many instructions, how many errors.
fn is_a_way(setup: &Setup, record: &Record) -> Result<(usize, usize), TestCaseError> {
    let (mut insns, mut errors, mut items) = (0, 0, 0_usize);
    let mut last = None;
    for item in decoder(record, flow_config(setup, record)) {
        items += 1;
        prop_assert!(items <= 40 * (record.trace.len() + record.truth.len() + 1));
        let Item::Insn(insn) = item else {
            last = None;
            errors += usize::from(matches!(item, Item::Error(_)));
            continue;
        };
        insns += 1;
        if let Some(ways) = last.and_then(|last| successors(setup, record, last)) {
            prop_assert!(ways.contains(&insn.ip), "from {last:?} to {}", insn.ip);
        }
        last = Some(insn.ip);
    }
    Ok((insns, errors))
}

proptest! {
    #![proptest_config(config(100))]

    #[test]
    fn what_is_told_is_a_way_through_the_code(setup in setups(), all in any::<bool>()) {
        let mut only = Errata::default();
        only.e8 = true;
        let setup = with_errata(setup, if all { Errata::ALL } else { only });
        is_a_way(&setup, &run(&setup))?;
    }
}
