//! How much memory a command takes does not depend on how large the trace is.

mod common;

use common::{Scratch, cofi, run};
use nix::sys::resource::{UsageWho, getrusage};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

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
    for options in [&["--json"][..], &[], &["--json", "--symbols"]] {
        let most = blocks_that_nobody_reads(&scratch, options);
        assert!(most < MOST, "blocks {options:?} took {most} KiB");
    }
}

/// What `cofi blocks` takes where nobody reads on: a branch to itself, millions of times, without any event after the first. The lines of all would be
/// many times of [`MOST`].
fn blocks_that_nobody_reads(scratch: &Scratch, options: &[&str]) -> i64 {
    let (code, trace) = (scratch.path("jnz.bin"), scratch.path("jnz.pt"));
    std::fs::write(&code, [0x75, 0xfe]).expect("code");
    let (psb, mode, psbend) = ([0x02, 0x82].repeat(8), [0x99, 0x01], [0x02, 0x23]);
    let pge = [0x71, 0x00, 0x10, 0, 0, 0, 0];
    let taken = vec![0xfe; 1_000_000];
    std::fs::write(&trace, [&psb[..], &mode, &psbend, &pge, &taken].concat()).expect("a trace");
    let mut child = cofi()
        .args(["blocks", "-j1", "--raw"])
        .arg(format!("{}:0x1000", code.display()))
        .args(options)
        .arg(&trace)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command");
    let mut line = [0; 8];
    let mut out = child.stdout.take().expect("its output");
    out.read_exact(&mut line).expect("a line");
    drop(out);
    assert!(child.wait().expect("its end").success());
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .expect("usage")
        .max_rss()
}
