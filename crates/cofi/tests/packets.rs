//! Every packet of Intel PT and RTIT three ways: as text, as bytes, as the JSON object that the contract fixes.
//!
//! The files in `packets/` hold three lines a packet; one file is one stream. The bytes were written down from the
//! manuals' figures.

mod common;

use cofi_packet::PacketKind;
use common::{Scratch, cofi, run};

struct Case<'a> {
    text: &'a str,
    bytes: Vec<u8>,
    json: &'a str,
}

fn cases(file: &str) -> Vec<Case<'_>> {
    let blocks = file.split("\n\n").filter(|block| !block.trim().is_empty());
    blocks
        .map(|block| {
            let lines: Vec<_> = block.trim().lines().collect();
            let [text, hex, json] = lines[..] else {
                panic!("{block:?} is no text, bytes, JSON");
            };
            let byte = |word| u8::from_str_radix(word, 16).expect("a byte");
            Case {
                text,
                bytes: hex.split(' ').map(byte).collect(),
                json,
            }
        })
        .collect()
}

/// A line of the text dump without offset and comment.
fn packet(line: &str) -> &str {
    let (_offset, rest) = line.split_once(": ").expect("an offset");
    rest.split(" ; ").next().unwrap_or_default()
}

fn check(file: &str, options: &[&str], kinds: &[impl PacketKind]) {
    let cases = cases(file);
    for kind in kinds {
        let object = format!("\"packet\":\"{}\"", kind.name());
        assert!(
            cases.iter().any(|case| case.json.contains(&object)),
            "no case of {}",
            kind.name()
        );
    }
    let scratch = Scratch::new();
    let bytes: Vec<u8> = cases.iter().flat_map(|case| case.bytes.clone()).collect();
    let stream = scratch.write("stream", &bytes);

    let ran = run(cofi().args(["dump", "--json"]).args(options).arg(&stream));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    let wanted: Vec<_> = cases.iter().map(|case| case.json).collect();
    assert_eq!(ran.text().lines().collect::<Vec<_>>(), wanted);

    let ran = run(cofi().arg("dump").args(options).arg(&stream));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    let wanted: Vec<_> = cases.iter().map(|case| case.text).collect();
    let text = ran.text();
    assert_eq!(text.lines().map(packet).collect::<Vec<_>>(), wanted);

    let text = scratch.write("text", wanted.join("\n"));
    let ran = run(cofi().arg("asm").args(options).arg(&text));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    assert_eq!(ran.stdout, bytes);
}

#[test]
fn intel_pt() {
    let kinds = cofi_packet::intel::Kind::ALL;
    check(include_str!("packets/pt.txt"), &["--format", "pt"], kinds);
}

#[test]
fn rtit() {
    let kinds = cofi_packet::rtit::Kind::ALL;
    check(
        include_str!("packets/rtit.txt"),
        &["--format", "rtit"],
        kinds,
    );
}

#[test]
fn rtit_with_cycle_counts() {
    let kinds = cofi_packet::rtit::Kind::ALL;
    let options = ["--format", "rtit", "--cycle-accurate"];
    check(include_str!("packets/rtit-cycles.txt"), &options, kinds);
}
