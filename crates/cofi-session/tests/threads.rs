//! Which thread a processor's packets are of: by every way in which perf.data tells it.

mod machine;

use cofi_session::{StreamKey, Task};
use machine::support::Fields;
use machine::{
    DUMMY_ID, Machine, NONE, OUT, PT_ID, Seen, Settings, as_perf_sees_it, kind, open, psb, seen,
    tsc, visit, visits,
};

const CPU: u32 = 3;
const KEY: StreamKey = StreamKey::Cpu(CPU);

/// A processor runs thread 5, then 6, then 5 again, at 0x1000, where they have different code; `switch` tells of it.
fn two_processes(
    settings: Settings,
    switch: impl Fn(&mut Machine, Task, Task, u64),
) -> (Vec<u8>, Machine) {
    let mut machine = Machine::new(settings);
    let (five, six) = (machine.process(5, 1), machine.process(6, 2));
    let idle = Task { pid: 0, tid: 0 };
    switch(&mut machine, idle, five, 1000);
    let mut packets = psb(1100);
    packets.extend(visit(1200));
    packets.extend(visit(1300));
    switch(&mut machine, five, six, 2000);
    packets.extend(visit(2100));
    switch(&mut machine, six, five, 3000);
    packets.extend(visit(3100));
    packets.extend(tsc(3200));
    machine.aux((five, CPU), (0, packets.len() as u64), 0, 4000);
    machine.auxtrace((NONE, CPU), 0, 1100, &packets);
    (machine.finish(), machine)
}

const EXPECTED: [(u32, usize); 4] = [(5, 1), (5, 1), (6, 2), (5, 1)];

fn per_cpu(sched_switch: u64) -> Settings {
    Settings {
        per_cpu: true,
        sched_switch,
        ..Settings::default()
    }
}

#[test]
fn by_switches_of_the_traced_threads() {
    let (bytes, machine) = two_processes(per_cpu(2), |machine, from, to, at| {
        let none = Fields::default;
        machine.kernel(kind::SWITCH, OUT, none(), (from, CPU, at), DUMMY_ID);
        machine.kernel(kind::SWITCH, 0, none(), (to, CPU, at + 10), DUMMY_ID);
    });
    let session = open(&bytes);
    assert_eq!(visits(&session, KEY), EXPECTED);
    as_perf_sees_it(&session, KEY, &machine, &bytes);
}

#[test]
fn by_switches_of_all_threads_even_if_half_of_them_are_lost() {
    for lost in [None, Some(OUT), Some(0)] {
        let (bytes, _machine) = two_processes(per_cpu(3), |machine, from, to, at| {
            let body = |other: Task| Fields::default().u32(other.pid).u32(other.tid);
            let wide = kind::SWITCH_CPU_WIDE;
            if lost != Some(OUT) {
                machine.kernel(wide, OUT, body(to), (from, CPU, at), DUMMY_ID);
            }
            if lost != Some(0) {
                machine.kernel(wide, 0, body(from), (to, CPU, at + 10), DUMMY_ID);
            }
            // Another processor's are nothing to this one.
            machine.kernel(wide, 0, body(to), (from, CPU + 1, at + 20), DUMMY_ID);
        });
        assert_eq!(visits(&open(&bytes), KEY), EXPECTED, "{lost:?}");
    }
}

#[test]
fn by_the_tracepoint() {
    let (bytes, _machine) = two_processes(per_cpu(1), |machine, from, to, at| {
        machine.sched_switch(from, to.tid, CPU, at);
    });
    assert_eq!(visits(&open(&bytes), KEY), EXPECTED);
}

#[test]
fn by_the_begin_of_tracing_and_as_perf_sees_it() {
    let (bytes, machine) = two_processes(per_cpu(0), |machine, _, to, at| {
        let body = Fields::default().u32(to.pid).u32(to.tid);
        machine.kernel(kind::ITRACE_START, 0, body, (to, CPU, at), PT_ID);
    });
    let session = open(&bytes);
    assert_eq!(visits(&session, KEY), EXPECTED);
    as_perf_sees_it(&session, KEY, &machine, &bytes);
}

#[test]
fn by_an_index_of_the_ids_where_the_records_do_not_tell_the_processor() {
    let mut machine = Machine::new(per_cpu(2));
    let index = Fields::default().u64(1).u64(DUMMY_ID).u64(0);
    machine.push(69, 0, index.u64(CPU.into()).u64(u64::MAX));
    let (five, six) = (machine.process(5, 1), machine.process(6, 2));
    let mut packets = psb(1100);
    for (task, at) in [(five, 1000), (six, 2000)] {
        machine.kernel(
            kind::SWITCH,
            0,
            Fields::default(),
            (task, NONE, at),
            DUMMY_ID,
        );
        packets.extend(visit(at + 200));
    }
    machine.auxtrace((NONE, CPU), 0, 1100, &packets);
    let bytes = machine.finish();
    assert_eq!(visits(&open(&bytes), KEY), [(5, 1), (6, 2)]);
}

/// perf tells of processes that were there before it by FORK records of its own, and of their mappings one by one.
#[test]
fn a_fork_that_perf_made_up_inherits_no_mappings() {
    const FORK: u32 = 7;
    const FORK_EXEC: u16 = 1 << 13;
    let visit_of_7 = Seen::Visit(7, 1);
    let unknown = Seen::Error("no code is known at 0x1000".into());
    for (misc, expected) in [(0, visit_of_7), (FORK_EXEC, unknown)] {
        let mut machine = Machine::new(Settings::default());
        let parent = machine.process(5, 1);
        let task = Task { pid: 7, tid: 7 };
        let body = Fields::default().u32(7).u32(5).u32(7).u32(5).u64(0);
        machine.kernel(FORK, misc, body, (parent, 0, 20), DUMMY_ID);
        let mut packets = psb(1100);
        packets.extend(visit(1200));
        packets.extend(tsc(1300));
        machine.aux((task, 0), (0, packets.len() as u64), 0, 4000);
        machine.auxtrace((7, NONE), 0, 1100, &packets);
        let bytes = machine.finish();
        let session = open(&bytes);
        let seen = seen(&session, StreamKey::Thread(7));
        assert_eq!(seen.last(), Some(&expected), "with {misc:#x}");
    }
}

#[test]
fn who_is_not_named_has_the_name_of_its_creator_at_that_time() {
    let mut machine = Machine::new(per_cpu(0));
    let first = machine.process(5, 1);
    let fork = |machine: &mut Machine, task: Task, creator: Task, at: u64| {
        let body = Fields::default().u32(task.pid).u32(creator.pid);
        let body = body.u32(task.tid).u32(creator.tid).u64(at / 2);
        machine.kernel(kind::FORK, 0, body, (creator, 0, at), DUMMY_ID);
    };
    let name = |machine: &mut Machine, task: Task, name: &[u8], at: u64| {
        let body = Fields::default().u32(task.pid).u32(task.tid).text(name);
        machine.kernel(kind::COMM, 0, body, (task, 0, at), DUMMY_ID);
    };
    let task = |pid, tid| Task { pid, tid };
    fork(&mut machine, task(5, 6), first, 1000);
    name(&mut machine, first, b"renamed", 1100);
    fork(&mut machine, task(5, 7), first, 1200);
    fork(&mut machine, task(8, 8), task(5, 6), 1300);
    name(&mut machine, task(5, 7), b"worker", 1400);
    fork(&mut machine, task(9, 9), task(5, 7), 1500);
    // A number that is used again.
    fork(&mut machine, task(9, 6), task(9, 9), 1600);
    let bytes = machine.finish();
    let session = open(&bytes);
    let names: Vec<_> = (5..=10).map(|tid| session.comm_of(tid)).collect();
    let wanted = ["renamed", "worker", "worker", "proc", "worker"].map(Some);
    assert_eq!(names[..5], wanted);
    assert_eq!(names[5], None);
}
