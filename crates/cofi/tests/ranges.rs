//! `--ip-filter` for Intel PT: where tracing left the ranges, and erratum SKL014.

mod common;

use common::{Scratch, cofi, run};
use std::path::{Path, PathBuf};

/// 401000: nop; 401001: jne 401020; 401003: jmp 401040.
const CODE: [u8; 5] = [0x90, 0x75, 0x1d, 0xeb, 0x3b];
const RANGE: &str = "0x401000-0x40100f";

/// The packets of `text`, and the code.
fn files(scratch: &Scratch, text: &str) -> (PathBuf, String) {
    let packets = scratch.path("packets.pt");
    let text = scratch.write("packets.txt", text);
    let made = run(cofi().arg("asm").arg(&text).arg("-o").arg(&packets));
    assert_eq!(made.code(), 0, "{}", made.stderr);
    let code = scratch.write("code.bin", CODE);
    (packets, format!("{}:0x401000", code.display()))
}

/// What `cofi insn --json` prints of the packets with `more`.
fn insn(file: &Path, more: &[&str]) -> Vec<String> {
    let ran = run(cofi().args(["insn", "--json"]).args(more).arg(file));
    assert_eq!((ran.code(), &*ran.stderr), (0, ""), "{more:?}");
    let text = String::from_utf8(ran.stdout).expect("UTF-8");
    text.lines().map(str::to_owned).collect()
}

fn disabled(ip: &str) -> String {
    format!("{{\"event\":\"disabled\",\"ip\":{ip}}}")
}

#[test]
fn with_the_ranges_a_conditional_branch_out_of_them_tells_where_it_led() {
    let scratch = Scratch::new();
    let (file, code) = files(&scratch, "psb\npsbend\ntip.pge 0x401000\ntip.pgd -\n");
    let with = ["--raw", &code, "--ip-filter", RANGE];
    assert_eq!(insn(&file, &with[..2]).last(), Some(&disabled("null")));
    assert_eq!(insn(&file, &with).last(), Some(&disabled("\"0x401020\"")));
    // Archived, it need not be said again.
    let packed = scratch.path("packed.cofi");
    let ran = run(cofi()
        .args(["archive", "-o"])
        .arg(&packed)
        .args(with)
        .arg(&file));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    assert_eq!(insn(&packed, &[]).last(), Some(&disabled("\"0x401020\"")));
}

#[test]
fn erratum_skl014_is_worked_around_by_the_ranges() {
    let scratch = Scratch::new();
    let text = "psb\npsbend\ntip.pge 0x401000\ntnt N\ntip.pgd -\n";
    let (file, code) = files(&scratch, text);
    let with = ["--raw", &code, "--ip-filter", RANGE, "--cpu", "6/94"];
    let found = insn(&file, &with);
    let tail = &found[found.len() - 2..];
    assert_eq!(tail, ["{\"insn\":\"0x401003\"}", &disabled("\"0x401040\"")]);
    // Without the ranges the jump is followed to where no code is.
    let lost = run(cofi()
        .args(["insn", "--raw", &code, "--cpu", "6/94"])
        .arg(&file));
    assert_eq!(lost.code(), 1);
}

#[test]
fn no_more_ranges_than_there_are() {
    let scratch = Scratch::new();
    let (file, code) = files(&scratch, "psb\npsbend\ntip.pge 0x401000\ntip.pgd -\n");
    let four = ["--ip-filter", RANGE].repeat(4);
    let base = ["--raw", &code];
    insn(&file, &[&base[..], &four].concat());
    let five = run(cofi()
        .arg("insn")
        .args(base)
        .args(["--ip-filter", RANGE].repeat(5))
        .arg(&file));
    assert_eq!(five.code(), 2);
    let words = "--ip-filter: Intel PT has no more than 4 ranges";
    assert!(five.stderr.contains(words), "{}", five.stderr);
}
