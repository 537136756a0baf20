//! The packets of a trace.

use cofi_law::rtit::{Record, Setup};
use cofi_packet::rtit::{Kind, LastLip, Mode, Packet, Packets};

pub(crate) fn mode(setup: &Setup) -> Mode {
    match setup.ctl.cycle_acc() {
        true => Mode::CycleAccurate,
        false => Mode::Plain,
    }
}

/// The packets, each with its offset.
pub(crate) fn packets(setup: &Setup, trace: &[u8]) -> Vec<(u64, Packet)> {
    Packets::new(trace)
        .in_context(mode(setup))
        .map(|item| item.expect("the unit writes packets only"))
        .map(|located| (located.offset.0, located.packet()))
        .collect()
}

/// The packets around an offset, for messages.
pub(crate) fn around(setup: &Setup, record: &Record, offset: u64) -> String {
    let mut last = LastLip::new();
    let mut lines = Vec::new();
    let mut here = 0;
    for located in Packets::new(&record.trace)
        .in_context(mode(setup))
        .filter_map(Result::ok)
    {
        let packet = located.packet();
        if matches!(packet.kind(), Kind::Mtc | Kind::Sts) {
            continue;
        }
        let ip = packet.lip_payload().and_then(|ip| last.apply(ip));
        if located.offset.0 <= offset {
            here = lines.len();
        }
        let ip = ip.map(|ip| format!("{ip}")).unwrap_or_default();
        lines.push(format!("{} {packet} {ip}", located.offset));
    }
    let range = here.saturating_sub(24)..(here + 12).min(lines.len());
    format!("around {offset}:\n{}", lines[range].join("\n"))
}
