//! Time in a trace of a real processor: what MTC packets tell agrees with every TSC packet that follows. The trace is not part of this
//! repository; `COFI_TRACES` names its folder.

use cofi_flow::TimeTracker;
use cofi_packet::intel::{Packet, Packets};
use cofi_session::{Session, SessionOptions};

#[test]
fn mtcs_of_a_real_processor_lead_to_its_tscs() {
    let Some(traces) = cofi_test::traces() else {
        return;
    };
    let bytes = std::fs::read(traces.join("quipper-perf-data/perf.data")).expect("the trace");
    let session = Session::new(&bytes, &SessionOptions::default()).expect("it is a perf.data file");
    let (mut mtcs, mut tscs, mut bounded, mut nearest) = (0, 0, 0, u64::MAX);
    for stream in session.streams() {
        let mut time = TimeTracker::new(&session.flow_config());
        let mut is_first = true;
        for located in Packets::new(stream.bytes()).filter_map(Result::ok) {
            let packet = located.packet();
            let before = time.clone();
            time.take(&packet);
            assert_eq!(time.take_jump(), None, "at {:?}", located.offset);
            match packet {
                Packet::Mtc { .. } => {
                    mtcs += 1;
                    assert!(time.now() >= before.now());
                }
                Packet::Tsc { tsc } => {
                    tscs += 1;
                    if !core::mem::take(&mut is_first) {
                        // Nothing that was certain before is later.
                        assert!(before.earliest().0 <= tsc.get(), "{before:?} {tsc:?}");
                        nearest = nearest.min(tsc.get() - before.earliest().0);
                        bounded += 1;
                    }
                }
                _ => {}
            }
        }
    }
    println!(
        "{mtcs} MTCs, {tscs} TSCs, {bounded} of them behind others, the nearest {nearest} ticks behind"
    );
    assert!(mtcs > 2000 && bounded > 10);
}
