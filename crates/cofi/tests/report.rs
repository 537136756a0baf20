//! `cofi report`: times and gaps beside the counts.

mod common;

use common::{STATIC, Scratch, cofi, record, run};

#[test]
fn times_and_cycles() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("static.c", STATIC) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, Some("cyc")).arg("--").arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let report = run(cofi().arg("report").arg(&data));
    assert_eq!((report.code(), report.stderr.as_str()), (0, ""));
    let text = report.text();
    let mut lines = text
        .lines()
        .skip_while(|line| !line.contains("instructions a cycle"));
    let heads = lines.next().expect("a table of times");
    assert!(
        heads.contains("covers") && heads.contains("tracing on"),
        "{heads}"
    );
    let row = lines.next().expect("a thread");
    // The recorder's clock has two core cycles an instruction.
    assert!(row.ends_with("0.50"), "{row}");
    let without = run(record(&data, Some("tsc=0,mtc=0")).arg("--").arg(&program));
    assert!(without.stderr.contains("verified"), "{}", without.stderr);
    let text = run(cofi().arg("report").arg(&data)).text();
    assert!(!text.contains("covers"), "{text}");
}

#[test]
fn gaps_tell_what_was_lost() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("static.c", STATIC) else {
        return;
    };
    let (data, raw) = (scratch.path("data"), scratch.path("raw"));
    let ran = run(record(&data, Some("psb_period=0"))
        .arg("--raw-output")
        .arg(&raw)
        .arg("--")
        .arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let mut bytes = std::fs::read(&raw).expect("the packets");
    let half = bytes.len() / 2;
    let plus = bytes[half..]
        .windows(2)
        .position(|pair| pair == [0x02, 0x23]);
    let at = half + plus.expect("a PSBEND") + 2;
    bytes[at..at + 2].copy_from_slice(&[0x02, 0xff]);
    let file = scratch.write("damaged", &bytes);
    let mut command = cofi();
    command
        .args(["report", "--format", "pt", "--elf"])
        .arg(&program);
    let report = run(command.arg(&file));
    assert_eq!(report.code(), 1, "{}", report.stderr);
    let text = report.text();
    assert!(text.contains("Gaps: 1"), "{text}");
    assert!(text.contains("1 error, 0 overflows; lost: "), "{text}");
    let offset = format!(" {at:#x} ");
    let row = text
        .lines()
        .find(|line| line.contains(&offset))
        .expect("the gap");
    assert!(row.contains(" packet ") && row.contains(" ticks "), "{row}");
}
