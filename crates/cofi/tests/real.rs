//! `cofi insn` on traces that real processors took: the instructions that the reference decoder found.

mod common;

use common::cofi;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

/// Decodes a case and compares with what the reference decoder found.
fn decodes_as_told(name: &str) {
    let Some(folder) = cofi_test::traces().map(|traces| traces.join(name)) else {
        return;
    };
    let case = std::fs::read(folder.join("case.json")).expect("the case");
    let case: Value = serde_json::from_slice(&case).expect("JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let mut command = cofi();
    command.args(["insn", "--json", "--format", "pt", "--cpu", "6/79"]);
    for image in case["images"].as_array().into_iter().flatten() {
        let file = folder.join(text(&image["file"]));
        let spec = format!("{}:{}", file.display(), text(&image["base"]));
        command.args(["--raw", &spec]);
    }
    if case["elf"].is_string() {
        command.arg("--elf").arg(folder.join(text(&case["elf"])));
    }
    let mut child = command
        .arg(folder.join(text(&case["trace"])))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starting cofi");
    let mut reader = BufReader::with_capacity(1 << 16, child.stdout.take().expect("a pipe"));
    let (mut hash, mut count) = (Sha256::new(), 0_u64);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).expect("a line") > 0 {
        if let Some(ip) = common::address(&line) {
            let comma = if count > 0 { "\n" } else { "" };
            hash.update(format!("{comma}{ip:016x}"));
            count += 1;
        }
        line.clear();
    }
    let mut stderr = String::new();
    let mut told = child.stderr.take().expect("a pipe");
    told.read_to_string(&mut stderr).expect("diagnostics");
    let status = child.wait().expect("its status").code();
    assert_eq!(
        Some(count),
        case["instructions"].as_u64(),
        "{name}: {stderr}"
    );
    let digest: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(digest, text(&case["ips_sha256"]), "{name}");
    assert_eq!(case["errors"].as_u64(), Some(0), "{name}");
    assert_eq!(status, Some(0), "{name}: {stderr}");
}

#[test]
fn real_lldb() {
    decodes_as_told("lldb-trace");
}

#[test]
fn real_foo() {
    decodes_as_told("xdc-foo");
}

#[test]
fn real_icelake() {
    decodes_as_told("xdc-icelake_tip");
}

#[test]
fn real_arcus() {
    decodes_as_told("arcus-int-01-poc");
    decodes_as_told("arcus-ovf-01-ben");
}

#[test]
fn real_32_bit() {
    decodes_as_told("xdc-avscript32");
}

#[test]
fn real_unzip() {
    decodes_as_told("xdc-unzip");
}

#[test]
fn real_mruby() {
    decodes_as_told("xdc-mruby");
}
