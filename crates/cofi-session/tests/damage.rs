//! Files of every kind, damaged at random: nothing panics, nothing takes long, and memory stays in proportion.

mod machine;

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cofi_flow::Item;
use cofi_session::{Session, SessionOptions, Task};
use machine::support::{Fields, Parts, raw_frame};
use machine::{DUMMY_ID, Machine, NONE, OUT, Settings, begin, kind, pip, psb, tsc, visit};
use proptest::prelude::*;

const CPU: u32 = 3;

/// The packets of some visits, with a guest among them.
fn packets(from: u64, to: u64) -> Vec<u8> {
    let mut packets = Vec::new();
    for at in from..to {
        packets.extend([psb(at * 1000), visit(at * 1000 + 100)].concat());
        packets.extend(
            [
                pip(0x7000, true),
                begin(0x1000),
                pip(0x9000, false),
                tsc(at * 1000 + 200),
            ]
            .concat(),
        );
    }
    packets
}

fn switches(machine: &mut Machine, five: Task, six: Task) {
    for at in [2000, 4000] {
        let body = Fields::default().u32(six.pid).u32(six.tid);
        machine.kernel(kind::SWITCH_CPU_WIDE, OUT, body, (five, CPU, at), DUMMY_ID);
        machine.sched_switch(five, six.tid, CPU, at + 10);
    }
}

/// Files of each mode, and what made them, whose folders go with the last test.
type Files = (Vec<Vec<u8>>, Vec<Machine>);

/// Made once for the tests that run beside each other.
fn files() -> Arc<Files> {
    static FILES: Mutex<Weak<Files>> = Mutex::new(Weak::new());
    // Each test has a thread of its own.
    thread_local!(static HELD: RefCell<Option<Arc<Files>>> = const { RefCell::new(None) });
    let mut shared = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let files = shared.upgrade().unwrap_or_else(|| Arc::new(make_files()));
    *shared = Arc::downgrade(&files);
    HELD.set(Some(Arc::clone(&files)));
    files
}

fn make_files() -> Files {
    let (mut files, mut machines) = (Vec::new(), Vec::new());
    let plain = Settings::default();
    for settings in [
        plain,
        Settings {
            per_cpu: true,
            sched_switch: 3,
            ..plain
        },
        Settings {
            snapshot: true,
            ..plain
        },
        Settings {
            aux_samples: true,
            per_cpu: true,
            ..plain
        },
        Settings {
            flags: 1 << 19,
            ..plain
        },
        Settings {
            flags: 1 << 19,
            mark: u32::from_le_bytes(*b"cofi"),
            ..plain
        },
    ] {
        let mut machine = Machine::new(settings);
        let (five, six) = (machine.process(5, 1), machine.process(6, 2));
        let whose = if settings.per_cpu {
            (NONE, CPU)
        } else {
            (5, NONE)
        };
        if settings.aux_samples {
            machine.aux_sample(five, CPU, 4000, &packets(1, 4));
            machine.aux_sample(six, CPU, 6000, &packets(2, 6));
        } else {
            switches(&mut machine, five, six);
            machine.aux((five, CPU), (0, 100), 1, 1500);
            machine.auxtrace(whose, 0, 1, &packets(1, 4));
            machine.auxtrace(whose, 300, 1, &packets(3, 6));
        }
        let file = machine.finish();
        let mut parts = Parts::of(&file);
        files.push(parts.pipe());
        parts.compress(50, |bytes| raw_frame(bytes, 64));
        files.push(parts.file());
        files.push(file);
        machines.push(machine);
    }
    (files, machines)
}

/// Reads a file to its end, every stream of it in all the ways there are.
fn read(bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut options = SessionOptions::default();
    options.flow.max_packetless_run = 64;
    options.flow.cache_limit = 1 << 12;
    let session = match Session::new(bytes, &options) {
        Ok(session) => session,
        Err(error) => {
            prop_assert!(!error.to_string().is_empty());
            return Ok(());
        }
    };
    let mut packets = 0;
    for stream in session.streams() {
        packets += stream.len();
        let bound = 64 * (stream.len() + 64) * 8;
        let mut items = 0;
        for item in session.decode(stream) {
            items += 1;
            if let Item::Error(error) = item {
                prop_assert!(error.to_string().len() < 1000);
            }
        }
        prop_assert!(items <= bound, "{} items of {} bytes", items, stream.len());
        prop_assert!(session.events(stream).count() <= bound);
        let parts: u64 = stream.parts().map(|part| part.end.0 - part.start.0).sum();
        prop_assert_eq!(parts, stream.len() as u64);
        let mut flow = session.decode(stream);
        while flow.next_part().is_some() {}
        let mut flow = session.decode(stream);
        while flow.blocks(|_| {}).is_some() {}
    }
    // What was compressed may hold packets, too.
    prop_assert!(packets <= 256 * bytes.len() + (1 << 20));
    prop_assert!(session.diagnostics().len() <= bytes.len());
    Ok(())
}

#[test]
fn undamaged_files_have_instructions() {
    for (number, file) in files().0.iter().enumerate() {
        let session = Session::new(file, &SessionOptions::default()).unwrap();
        assert!(!session.streams().is_empty(), "{number}");
        let streams = session.streams().iter();
        let items = streams.flat_map(|stream| session.decode(stream));
        let ran = items.filter(|item| matches!(item, Item::Insn(_))).count();
        // Of guests alone nothing is known; a machine's address spaces are not those of the processes.
        let flagged = (12..18).contains(&number);
        assert!(ran > 0 || flagged, "{number}");
    }
}

/// Each loss makes a part of its own, which must not cost more than its bytes.
#[test]
fn many_losses_take_no_long_time() {
    // Processor time, of one length and of eight times that: what costs the square would cost 64 times as much.
    let ticks = [10_000, 80_000].map(|losses| {
        let mut machine = Machine::new(Settings::default());
        let five = machine.process(5, 1);
        let packets = packets(1, losses / 10);
        for at in 0..losses {
            machine.aux((five, CPU), (at * 8, 8), 1, 1500);
        }
        machine.auxtrace((5, NONE), 0, 1, &packets);
        let bytes = machine.finish();
        let begun = cofi_test::processor_ticks();
        let session = Session::new(&bytes, &SessionOptions::default()).unwrap();
        let items = session.decode(&session.streams()[0]);
        let gaps = items.filter(|item| matches!(item, Item::Error(_))).count();
        assert!(gaps >= packets.len() / 8 - 1);
        cofi_test::processor_ticks() - begun
    });
    eprintln!("ticks of a hundredth of a second: {ticks:?}");
    assert!(ticks[1] < 30 * ticks[0].max(5), "{ticks:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn bytes_changed_put_in_and_taken_out(
        file in any::<prop::sample::Index>(),
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 1..6),
    ) {
        let mut bytes = file.get(&files().0).clone();
        for (at, value, how) in damages {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = value,
                1 => bytes[at] ^= 1 << (value % 8),
                2 => drop(bytes.drain(at..(at + usize::from(value)).min(bytes.len()))),
                _ => {
                    let part = bytes[at..(at + usize::from(value)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, part);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        read(&bytes)?;
    }

    #[test]
    fn files_cut_off(file in any::<prop::sample::Index>(), at: prop::sample::Index) {
        let files = files();
        let bytes = file.get(&files.0);
        read(&bytes[..at.index(bytes.len())])?;
    }
}
