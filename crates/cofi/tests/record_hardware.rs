//! `cofi record --engine hardware`: what it refuses, and where there is hardware, what it records.

mod common;

use common::{Scratch, cofi, run};
use std::path::Path;

const DRIVER: &str = "/sys/bus/event_source/devices/intel_pt";

#[test]
fn without_hardware_it_says_so_and_writes_nothing() {
    let scratch = Scratch::new();
    let file = scratch.path("data");
    let ran = run(cofi()
        .args(["record", "--engine", "hardware", "-o"])
        .arg(&file)
        .args(["--", "true"]));
    if Path::new(DRIVER).exists() {
        // Users may be forbidden to use it.
        let is_refused = ran.code() == 2 && ran.stderr.contains("perf_event_paranoid");
        assert!(ran.code() == 0 || is_refused, "{}", ran.stderr);
        assert_eq!(file.exists(), !is_refused);
        return;
    }
    assert_eq!(ran.code(), 2, "{}", ran.stderr);
    assert!(
        ran.stderr.starts_with(
            "cofi: --engine hardware: this machine has no Intel PT that Linux can use"
        ) && ran.stderr.lines().count() == 1
            && ran.stderr.contains(DRIVER),
        "{}",
        ran.stderr
    );
    assert!(!file.exists());
}

#[test]
fn what_it_cannot_do_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.path("data");
    for (options, words) in [
        (&["--verify"][..], "nobody lists what the hardware runs"),
        (&["--raw-output", "x"], "each processor has a stream"),
        (&["--config", "rtit"], "no driver for RTIT"),
    ] {
        let ran = run(cofi()
            .args(["record", "--engine", "hardware", "-o"])
            .arg(&file)
            .args(options)
            .args(["--", "true"]));
        assert_eq!(ran.code(), 2, "{options:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{options:?}: {}", ran.stderr);
        assert!(!file.exists());
    }
}

#[test]
fn its_options_are_for_no_other_engine() {
    let scratch = Scratch::new();
    let file = scratch.path("data");
    for options in [
        &["--system-wide"][..],
        &["--cpu", "0"],
        &["--snapshot", "1M"],
        &["--buffer", "1M"],
        &["--filter", "filter main @ /bin/true"],
        &["--sample", "4K"],
    ] {
        for engine in ["ptrace", "qemu", "qemu-system"] {
            let ran = run(cofi()
                .args(["record", "--engine", engine, "-o"])
                .arg(&file)
                .args(options)
                .args(["--", "true"]));
            let words = format!("cofi: {} is for --engine hardware", options[0]);
            assert_eq!(ran.code(), 2, "{options:?}: {}", ran.stderr);
            assert_eq!(ran.stderr.trim_end(), words);
        }
    }
    for options in [
        &["--privilege", "os", "--engine", "ptrace"][..],
        &["--cpu", "1-0"],
        &["--snapshot", "0"],
        &["--snapshot", "1M", "--buffer", "1M"],
        &["--snapshot", "1M", "--sample", "4K"],
        &["--filter", "start main @ /bin/true"],
        &["--filter", "filter no_such_function @ /bin/true"],
    ] {
        let ran = run(cofi()
            .args(["record", "-o"])
            .arg(&file)
            .args(options)
            .args(["--", "true"]));
        assert_eq!(ran.code(), 2, "{options:?}: {}", ran.stderr);
        assert!(!file.exists(), "{options:?}");
    }
}

/// What needs it says so where there is none, and does not fall back on an engine that cannot do it.
#[test]
fn what_only_hardware_does_is_not_done_otherwise() {
    if Path::new(DRIVER).exists() {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.path("data");
    for options in [
        &["--system-wide", "--duration", "0.1"][..],
        &["--cpu", "0", "--", "true"],
        &["--privilege", "all", "--", "true"],
        &["--snapshot", "1M", "--", "true"],
    ] {
        let ran = run(cofi().args(["record", "-o"]).arg(&file).args(options));
        assert_eq!(ran.code(), 2, "{options:?}: {}", ran.stderr);
        assert!(
            ran.stderr
                .starts_with("cofi: --engine hardware: this machine has no Intel PT")
                && ran.stderr.lines().count() == 1,
            "{options:?}: {}",
            ran.stderr
        );
        assert!(!file.exists(), "{options:?}");
    }
}
