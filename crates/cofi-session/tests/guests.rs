//! Machines with guests: the host's flow is right, and of the guests' it is said that it cannot be told.

mod machine;

use cofi_packet::intel::{IpPayload, Packet, U48};
use cofi_session::{Diagnostic, StreamKey};
use machine::support::Fields;
use machine::{
    Machine, NONE, Seen, Settings, begin, encode, end, open, pip, psb, seen, tsc, visit, visits,
};

const TID: u32 = 5;
const KEY: StreamKey = StreamKey::Thread(TID);
const EXCLUDE_HOST: u64 = 1 << 19;

fn tip(ip: u64) -> Vec<u8> {
    encode(Packet::Tip {
        ip: IpPayload::sext48(U48::truncate(ip)),
    })
}

/// The guest uses the same addresses, where it has other code.
#[test]
fn what_a_guest_runs_is_not_taken_for_the_hosts() {
    let mut machine = Machine::new(Settings::default());
    let host = machine.process(TID, 2);
    // Mapped by a guest's process of the same number.
    machine.map(host, 6, 5);
    let mut packets = [psb(1100), visit(1200)].concat();
    for at in [2000, 3000] {
        // VM entry, branches in the guest, VM exit, and the host goes on.
        packets.extend([tsc(at), pip(0x7000, true), begin(0x1000), tip(0x1001)].concat());
        packets.extend([tip(0x1000), tip(0x1000), end(), pip(0x9000, false)].concat());
        packets.extend(visit(at + 500));
    }
    machine.auxtrace((TID, NONE), 0, 1100, &packets);
    let bytes = machine.finish();
    let session = open(&bytes);
    let found = seen(&session, KEY);
    let hosts = found
        .iter()
        .filter(|seen| matches!(seen, Seen::Visit(_, plain) if *plain > 0));
    assert_eq!(hosts.collect::<Vec<_>>(), [&Seen::Visit(TID, 2); 3]);
    let errors = found.iter().filter_map(|seen| match seen {
        Seen::Error(error) => Some(error.as_str()),
        Seen::Visit(..) => None,
    });
    let told = "a guest runs from here on, whose code is not in the file; the flow goes on when the host does";
    assert_eq!(errors.collect::<Vec<_>>(), [told; 2], "{found:?}");
    assert_eq!(session.diagnostics(), [Diagnostic::GuestCode { count: 1 }]);
}

/// `perf record -e intel_pt//G`, and a file of this project's recorder, which records machines so.
#[test]
fn traces_of_guests_only_are_told_from_traces_of_machines() {
    let file = |mark: u32| {
        let mut machine = Machine::new(Settings {
            flags: EXCLUDE_HOST,
            mark,
            ..Settings::default()
        });
        machine.process(TID, 2);
        // The address space of the machine is that of its page tables.
        let packets = [psb(1100), pip(u64::from(TID) << 12, false), visit(1200)].concat();
        machine.auxtrace((TID, NONE), 0, 1100, &packets);
        (machine.finish(), machine)
    };
    let (perfs, _folder) = file(0);
    let session = open(&perfs);
    assert!(!session.is_guest());
    assert_eq!(session.diagnostics(), [Diagnostic::OnlyGuests]);
    assert_eq!(visits(&session, KEY), [(TID, 0)]);
    let (ours, _folder) = file(u32::from_le_bytes(*b"cofi"));
    let session = open(&ours);
    assert!(session.is_guest());
    assert_eq!(session.diagnostics(), []);
    assert_eq!(visits(&session, KEY), [(TID, 2)]);
}

/// The records tell a counter of 32 bits; the packets show its low half.
#[test]
fn a_counter_that_wraps_is_widened() {
    let mut machine = Machine::new(Settings::default());
    let conv = Fields::default().u64(31).u64(1 << 30).u64(0);
    let conv = conv.u64(0x1_ffff_ff00).u64(0xffff_ffff);
    machine.push(
        machine::kind::TIME_CONV,
        0,
        conv.bytes(&[1, 1, 0, 0, 0, 0, 0, 0]),
    );
    machine.process(TID, 1);
    let packets = [psb(0xffff_ff80), visit(0x10)].concat();
    machine.auxtrace((TID, NONE), 0, 1100, &packets);
    let bytes = machine.finish();
    let session = open(&bytes);
    let mut flow = session.decode(&session.streams()[0]);
    let mut times = Vec::new();
    while flow.next().is_some() {
        times.extend(flow.perf_time().map(|time| time.0));
    }
    times.dedup();
    assert_eq!(times.last(), Some(&(0x2_0000_0010 / 2)), "{times:x?}");
}
