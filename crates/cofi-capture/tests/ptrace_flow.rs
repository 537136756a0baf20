//! Hand-written programs of which every instruction is known.

mod common;

use cofi_capture::ptrace::Outcome;
use cofi_packet::ExecMode;
use common::{Event, Program};

#[test]
fn every_instruction_counts_once() {
    let program = Program::bare("counts.S");
    let (outcome, flow) = program.trace(&[]);
    assert_eq!(outcome, Outcome::Exited(7));
    flow.check();
    let main = flow.main();
    // 1 + 2 × 1000, then 3 + 1, 2, 3 + 1, (1 + 2) + 2 + 2, 2, 1, 1 + 3, 1, 2, 3: as counted in the source.
    assert_eq!(
        main.instructions().count(),
        2001 + 4 + 2 + 4 + 7 + 2 + 1 + 4 + 1 + 2 + 3
    );
    for (symbol, times) in [
        ("_start", 1),
        ("loop_dec", 1000),
        ("rep_stos", 1),
        ("rep_none", 1),
        ("rep_cmps", 1),
        ("function", 2),
        ("last_call", 1),
    ] {
        assert_eq!(main.count(program.symbol(symbol)), times, "{symbol}");
    }
    assert_eq!(
        main.events[0],
        Event::Resume(program.symbol("_start"), ExecMode::Bits64)
    );
    assert_eq!(
        main.events.last(),
        Some(&Event::Sync(program.symbol("last_call")))
    );
    assert!(main.interruptions().is_empty());
}

#[test]
fn the_trap_flag_stays_hidden() {
    let program = Program::bare("flags.S");
    assert_eq!(program.native(&[]), Some(0));
    let flow = program.same(&[]);
    assert_eq!(flow.order.len(), 2);
}

#[test]
fn what_follows_a_load_of_ss_is_seen() {
    let program = Program::bare("shadow.S");
    let flow = program.same(&[]);
    let main = flow.main();
    for n in 1..=4 {
        let (load, shadow) = (
            program.symbol(&format!("load{n}")),
            program.symbol(&format!("shadow{n}")),
        );
        let at = main
            .instructions()
            .position(|ip| ip == load)
            .expect("the load");
        assert_eq!(main.instructions().nth(at + 1), Some(shadow), "shadow{n}");
    }
    assert_eq!(main.instructions().count(), 22);
}

#[test]
fn code_that_changes_is_saved_each_time() {
    let program = Program::bare("smc.S");
    let flow = program.same(&[]);
    assert_eq!(flow.main().instructions().count(), 2 + 10 * 5 + 3);
    let patched = program.symbol("patched");
    let values: Vec<u8> = flow
        .saved
        .iter()
        .filter_map(|(_, start, bytes)| {
            bytes
                .get((patched + 1).checked_sub(*start)? as usize)
                .copied()
        })
        .collect();
    // Saved as it was at first, then in each round as it is when it runs.
    assert_eq!(values, [0, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
}

#[test]
fn both_modes_and_the_ways_between() {
    let program = Program::build("modes", "modes.S", &[common::BARE, &["-no-pie"]].concat());
    assert_eq!(program.native(&[]), Some(0));
    let flow = program.same(&[]);
    let main = flow.main();
    assert_eq!(main.instructions().count(), 2 + 9 + 11);
    assert_eq!(
        main.interruptions(),
        [program.symbol("int80a"), program.symbol("int80b")]
    );
    let after = |symbol: &str, mode| Event::Resume(program.symbol(symbol) + 2, mode);
    assert!(main.events.contains(&after("int80a", ExecMode::Bits32)));
    assert!(main.events.contains(&after("int80b", ExecMode::Bits64)));
}

#[test]
fn what_the_kernel_executes_is_an_interruption() {
    let program = Program::bare("umip.S");
    let flow = program.same(&[]);
    let umip = std::fs::read_to_string("/proc/cpuinfo")
        .expect("Linux")
        .contains(" umip");
    let main = flow.main();
    // Virtual machines do not forbid SMSW on a processor without UMIP of its own.
    let interruptions = main.interruptions();
    assert_eq!(main.instructions().count() + interruptions.len(), 11);
    assert_eq!(interruptions.contains(&program.symbol("sgdt")), umip);
    assert_eq!(main.count(program.symbol("after")), 1);
}

#[test]
fn the_vsyscall_page_is_entered_and_left() {
    let program = Program::bare("vsyscall.S");
    if program.native(&[]) != Some(0) {
        return cofi_test::skip("this kernel has no vsyscall page");
    }
    let flow = program.same(&[]);
    let main = flow.main();
    assert_eq!(
        main.interruptions(),
        [0xffff_ffff_ff60_0400, 0xffff_ffff_ff60_0400]
    );
    for symbol in ["call1", "back1", "back2"] {
        assert_eq!(main.count(program.symbol(symbol)), 1, "{symbol}");
    }
    assert_eq!(main.instructions().count(), 11);
}
