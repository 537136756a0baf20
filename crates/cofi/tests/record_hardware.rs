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
