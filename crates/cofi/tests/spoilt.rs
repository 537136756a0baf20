//! `cofi dump --cpu`: packets that a processor's errata have spoilt.

mod common;

use common::{Scratch, cofi, run};

/// What `cofi dump` prints of `text` with `more`, and its status.
fn dump(text: &str, more: &[&str]) -> (i32, Vec<String>) {
    let scratch = Scratch::new();
    let packets = scratch.path("packets.pt");
    let text = scratch.write("packets.txt", text);
    let made = run(cofi().arg("asm").arg(&text).arg("-o").arg(&packets));
    assert_eq!(made.code(), 0, "{}", made.stderr);
    let ran = run(cofi().arg("dump").args(more).arg(&packets));
    assert_eq!(ran.stderr, "");
    let printed = String::from_utf8(ran.stdout.clone()).expect("UTF-8");
    (ran.code(), printed.lines().map(str::to_owned).collect())
}

#[test]
fn erratum_skd007_shows_the_overflow_within_a_cyc() {
    // OVF, and a FUP with the low 16 bits of its address.
    let text = "psb\npsbend\ntip.pge 0x401000\n.byte 07 02 f3 3d 34 12\n";
    let (status, plain) = dump(text, &[]);
    assert_eq!(status, 0);
    assert!(plain.iter().all(|line| !line.contains("ovf")), "{plain:?}");
    // Skylake. The address is still compressed against the one before.
    let (status, lines) = dump(text, &["--cpu", "6/94"]);
    assert_eq!(status, 1);
    assert_eq!(
        lines[3..],
        [
            "      17: ; error: spoilt by erratum SKD007; 1 byte passed over",
            "      17: .byte 07",
            "      18: ovf",
            "      1a: fup 0x401234",
        ]
    );
    let (_, json) = dump(text, &["--json", "--cpu", "6/94"]);
    let error = r#"{"offset":23,"size":1,"error":"spoilt by erratum SKD007"}"#;
    assert_eq!(json[3], error);
    assert_eq!(json[4], r#"{"offset":24,"size":2,"packet":"ovf"}"#);
    // Broadwell has it not.
    assert_eq!(dump(text, &["--cpu", "6/79"]), (0, plain));
}

#[test]
fn erratum_skz84_shows_the_stray_byte_behind_a_tma() {
    let text = "psb\ntma 1 2\n.byte 05\ncbr 20\npsbend\ntip.pge 0x401000\n";
    let (status, plain) = dump(text, &[]);
    assert_eq!((status, plain.len()), (1, 4), "{plain:?}");
    let (status, lines) = dump(text, &["--cpu", "6/85"]);
    assert_eq!(status, 1);
    assert_eq!(
        lines[2..],
        [
            "      17: ; error: spoilt by erratum SKZ84; 1 byte passed over",
            "      17: .byte 05",
            "      18: cbr 20",
            "      1c: psbend",
            "      1e: tip.pge 0x401000",
        ]
    );
}

#[test]
fn a_wrong_processor_is_refused() {
    let scratch = Scratch::new();
    let empty = scratch.write("empty.pt", "");
    let ran = run(cofi().args(["dump", "--cpu", "six"]).arg(&empty));
    assert_eq!(ran.code(), 2);
    assert!(
        ran.stderr.contains("expected FAMILY/MODEL"),
        "{}",
        ran.stderr
    );
}
