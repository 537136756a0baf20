//! The forms in which a trace may come: through a pipe, mapped, as a bundle of LLDB.

mod common;

use common::{Scratch, addresses, cofi, run, run_with};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

#[path = "../../cofi-perf/tests/support/mod.rs"]
mod support;
use support::Parts;

fn insn(file: &str) -> std::process::Command {
    let mut command = cofi();
    command.args(["insn", "--json", file]);
    command
}

/// `perf record -o - | cofi insn -`, here with a recording of this project's own in the form of a pipe.
#[test]
fn what_comes_through_a_pipe_is_decoded() {
    let folder = Scratch::new();
    let Some(program) = folder.program("branches.S", common::ASM) else {
        return;
    };
    let data = folder.path("plain.data");
    let recorded = run(common::record(&data, None).arg("--").arg(&program));
    // The program's own status.
    assert_eq!(recorded.code(), 42, "{}", recorded.stderr);
    let plain = run(&mut insn(data.to_str().unwrap()));
    let bytes = std::fs::read(&data).unwrap();
    let piped = run_with(&mut insn("-"), &Parts::of(&bytes).pipe());
    assert_eq!(piped.code(), 0, "{}", piped.stderr);
    assert!(!addresses(&plain.stdout).is_empty());
    assert_eq!(addresses(&piped.stdout), addresses(&plain.stdout));
}

#[test]
fn large_files_are_read_like_small_ones() {
    let folder = Scratch::new();
    // Padding, then a PSB.
    let mut bytes = vec![0; 3 << 20];
    bytes.extend([0x02, 0x82].repeat(8));
    let file = folder.write("large.pt", &bytes);
    let ran = run(cofi().args(["dump", "--json", "--stats"]).arg(&file));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    assert!(ran.text().contains("psb"), "{}", ran.text());
}

/// Large files are read when they are needed. Somebody who cuts one off meanwhile causes a sentence, and no signal.
#[test]
fn a_file_that_is_cut_off_while_it_is_read() {
    let scratch = Scratch::new();
    let file = scratch.write("large.pt", [0x02, 0x82].repeat(8).repeat(1 << 18));
    let mut child = cofi()
        .args(["dump", "--json"])
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The pipe fills up and makes it wait long before it is through.
    let mut first = [0; 100];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    let cut = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    cut.set_len(0).unwrap();
    let ran = common::wait(child);
    assert_eq!(ran.code(), 2, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("was cut off while it was being read"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_bundle_of_lldb_is_decoded_by_its_file_or_its_folder() {
    let Some(traces) = cofi_test::traces() else {
        return;
    };
    let real = traces.join("lldb-trace");
    let folder = Scratch::new();
    for name in ["trace.pt", "a.out"] {
        folder.write(name, std::fs::read(real.join(name)).unwrap());
    }
    let json = r#"{"type": "intel-pt",
        "cpuInfo": {"vendor": "GenuineIntel", "family": 6, "model": 79, "stepping": 1},
        "processes": [{"pid": 1, "threads": [{"tid": 2, "iptTrace": "trace.pt"}],
        "modules": [{"systemPath": "a.out", "loadAddress": "0x400000"}]}]}"#;
    let file = folder.write("trace.json", json);
    let shown = |path: &Path| {
        let ran = run(&mut insn(path.to_str().unwrap()));
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        addresses(&ran.stdout)
    };
    let found = shown(&file);
    assert_eq!(found.len(), 21);
    assert_eq!(shown(file.parent().unwrap()), found);
    let packed = folder.path("packed");
    let ran = run(cofi().arg("archive").arg(&file).arg("-o").arg(&packed));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    assert_eq!(shown(&packed), found);
    let broken = folder.write("broken.json", "{\"type\": \"intel-pt\"");
    let ran = run(&mut insn(broken.to_str().unwrap()));
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("this is no JSON"), "{}", ran.stderr);
}

#[test]
fn the_folder_of_a_recorder_with_several_threads_is_refused() {
    let scratch = Scratch::new();
    scratch.write("data", "PERFILE2");
    let file = scratch.write("data.0", "");
    let ran = run(&mut insn(file.parent().unwrap().to_str().unwrap()));
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("--threads"), "{}", ran.stderr);
}
