//! Seals: what a file proves of its own decoding, and what breaks the proof.

mod common;

use common::{ASM, Ran, Scratch, cofi, record, run};
use serde_json::Value;
use std::path::Path;

/// A loop whose rounds go two ways, and an instruction that does nothing but hold a number.
const SOURCE: &str = "
    .globl _start
_start:
    mov $0x11223344, %eax
    mov $20000, %ecx
1:  test $3, %cl
    jz 2f
    nop
2:  dec %ecx
    jnz 1b
    mov $60, %eax
    xor %edi, %edi
    syscall
    .section .note.GNU-stack
";

fn lines(ran: &Ran) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    ran.text().lines().map(parse).collect()
}

fn check(data: &Path) -> (i32, Value, Vec<Value>) {
    let ran = run(cofi().args(["check", "--json"]).arg(data));
    let mut all = lines(&ran);
    let summary = all.pop().expect("a summary")["summary"].clone();
    (ran.code(), summary, all)
}

#[test]
fn whole_recordings_prove_their_decoding() {
    let scratch = Scratch::new();
    let source = scratch.write("ways.s", SOURCE);
    let Some(program) = scratch.compile(&source, ASM) else {
        return;
    };
    for config in [
        "psb_period=0",
        "cyc,noretcomp,psb_period=0",
        "tsc=0,mtc=0",
        "rtit",
    ] {
        let data = scratch.path("data");
        let ran = run(record(&data, Some(config)).arg("--").arg(&program));
        assert!(ran.stderr.contains("verified"), "{config}: {}", ran.stderr);
        let (code, summary, rest) = check(&data);
        assert_eq!((code, rest.len()), (0, 0), "{config}: {rest:?}");
        assert!(summary["seals"].as_u64() > Some(0), "{config}: {summary}");
        assert_eq!(summary["seals_broken"], 0, "{config}");
        assert_eq!(summary["unsealed_bytes"], 0, "{config}");
        let text = run(cofi().arg("check").arg(&data)).text();
        assert!(
            text.contains("every instruction of the trace is accounted for"),
            "{text}"
        );
    }
}

/// The flow of other code of the same lengths and branches fits the packets: only a seal tells.
#[test]
fn other_bytes_of_the_program_break_a_seal() {
    let scratch = Scratch::new();
    let source = scratch.write("ways.s", SOURCE);
    let Some(program) = scratch.compile(&source, ASM) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, None).arg("--").arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let mut elf = std::fs::read(&program).expect("the program");
    let number = elf
        .windows(4)
        .position(|bytes| bytes == [0x44, 0x33, 0x22, 0x11]);
    elf[number.expect("the number in the code")] += 1;
    std::fs::write(&program, elf).expect("the program changed");
    let (code, summary, gaps) = check(&data);
    assert_eq!((code, &summary["gaps"]), (1, &Value::from(1)), "{gaps:?}");
    assert_eq!(gaps[0]["gap"], "seal");
    assert_eq!(gaps[0]["offset"], 0);
    assert!(summary["seals_broken"].as_u64() >= Some(1), "{summary}");
    // Whoever decodes the whole stretch says so.
    for command in ["insn", "blocks"] {
        let ran = run(cofi().args([command, "--json"]).arg(&data));
        assert_eq!(ran.code(), 1, "{command}");
        let errors: Vec<_> = lines(&ran)
            .into_iter()
            .filter(|line| line["error"].is_string())
            .collect();
        assert_eq!(errors.len(), 1, "{command}: {errors:?}");
        assert!(
            errors[0]["error"].to_string().contains("seal"),
            "{}",
            errors[0]
        );
    }
    // Those that show something else say why they end so.
    for command in ["calls", "last", "top"] {
        let ran = run(cofi().args([command, "--json"]).arg(&data));
        assert_eq!(ran.code(), 1, "{command}");
        assert!(
            ran.stderr.contains("1 error in the flow") && ran.stderr.contains("seal"),
            "{command}: {}",
            ran.stderr
        );
    }
    let report = run(cofi().arg("report").arg(&data));
    assert_eq!(report.code(), 1, "{}", report.text());
    assert!(report.text().contains("seal"), "{}", report.text());
    assert!(!report.text().contains("No gaps"), "{}", report.text());
}

/// A part that no seal covers whole is shown without a word.
#[test]
fn a_part_of_a_stretch_is_not_called_broken() {
    let scratch = Scratch::new();
    let source = scratch.write("ways.s", SOURCE);
    let Some(program) = scratch.compile(&source, ASM) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, Some("psb_period=0")).arg("--").arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    for part in [["--from", "offset:3000"], ["--to", "offset:3000"]] {
        let ran = run(cofi().args(["insn", "--json"]).args(part).arg(&data));
        assert_eq!(ran.code(), 0, "{part:?}: {}", ran.stderr);
        assert!(!ran.text().contains("error"), "{part:?}");
    }
}

/// Two bits of a TNT packet in the wrong order are a flow of as many instructions, at the same addresses.
#[test]
fn two_bits_in_the_wrong_order_break_a_seal() {
    let scratch = Scratch::new();
    let source = scratch.write("ways.s", SOURCE);
    let Some(program) = scratch.compile(&source, ASM) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, Some("tsc=0,mtc=0")).arg("--").arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let mut bytes = std::fs::read(&data).expect("the file");
    // Rounds are JZ, JNZ: NT, or TT for each fourth. Six bits hold three rounds: those of TT NT NT become NT TT NT.
    let tnt = |bits: u8| 1 << 7 | bits << 1;
    let psbend = bytes
        .windows(2)
        .position(|pair| pair == [0x02, 0x23])
        .expect("a PSBEND");
    let (right, wrong) = (tnt(0b11_01_01), tnt(0b01_11_01));
    let at = bytes[psbend + 2..]
        .windows(8)
        .position(|some| some.iter().filter(|b| **b == right).count() >= 2);
    let at = psbend + 2 + at.expect("packets of the loop");
    let at = at
        + bytes[at..]
            .iter()
            .position(|byte| *byte == right)
            .expect("one of them");
    bytes[at] = wrong;
    std::fs::write(&data, bytes).expect("the file changed");
    let (code, summary, gaps) = check(&data);
    assert_eq!((code, gaps.len()), (1, 1), "{gaps:?}");
    assert_eq!(gaps[0]["gap"], "seal");
    assert_eq!(summary["lost_instructions"], 0);
    assert!(
        gaps[0]["reason"].to_string().contains("other instructions"),
        "{gaps:?}"
    );
}
