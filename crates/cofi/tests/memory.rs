//! How much memory a command takes does not depend on how large the trace is.

mod common;

use common::{Scratch, cofi, run};
use nix::sys::resource::{UsageWho, getrusage};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of a trace, nearly all of them padding that the file need not hold.
const LARGE: u64 = 160 << 20;

/// What the commands may take, whatever they read: what they hold of a file, and what they need themselves.
const MOST: i64 = 128 << 10;

/// The tests of this file are one, since they look at what all commands that have ended took at most.
#[test]
fn a_large_trace_takes_no_more_memory_than_a_small_one() {
    let scratch = Scratch::new();
    let path = scratch.path("large.pt");
    let file = File::create(&path).expect("a file");
    file.set_len(LARGE).expect("room");
    let psb = [&[0x02, 0x82].repeat(8)[..], &[0x02, 0x23]].concat();
    for at in (0..LARGE).step_by(1 << 20) {
        file.write_all_at(&psb, at).expect("packets");
    }
    for options in [["check", "-j2"], ["report", "-j1"]] {
        let ran = run(cofi().args(options).args(["--format", "pt"]).arg(&path));
        assert!([0, 1].contains(&ran.code()), "{options:?} {}", ran.stderr);
        let most = getrusage(UsageWho::RUSAGE_CHILDREN).expect("usage");
        let most = most.max_rss();
        assert!(most < MOST, "{options:?} took {most} KiB");
    }
}
