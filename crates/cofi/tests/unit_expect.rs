//! `cofi unit run`: what a scenario can expect, and where the bytes of Intel PT's unit are stored.

mod common;

use common::{Ran, Scratch, cofi, run_with};

fn run(option: &str, scenario: &str) -> Ran {
    run_with(
        cofi().args(["unit", "run", option, "-"]),
        scenario.as_bytes(),
    )
}

/// The scenario comes out as it expects.
#[track_caller]
fn is_met(scenario: &str) {
    let ran = run("--check", scenario);
    assert_eq!((ran.code(), ran.text().as_str()), (0, ""), "{}", ran.stderr);
}

/// The scenario does not, and this is the difference.
#[track_caller]
fn differs(scenario: &str, wanted: &str) {
    let ran = run("--check", scenario);
    assert_eq!((ran.code(), ran.text().as_str()), (1, wanted));
}

/// The sentence with which the scenario is refused.
#[track_caller]
fn refused(scenario: &str, wanted: &str) {
    let ran = run("--check", scenario);
    assert_eq!((ran.code(), ran.text().as_str()), (2, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains(wanted), "{}\nnot\n{wanted}", ran.stderr);
}

const TRACING: &str =
    "[start]\nSTATUS = { PacketByteCnt = 1 }\nCTL = { TraceEn = 1, BranchEn = 1, OS = 1 }\n";

/// Indirect jumps to these addresses, behind what `expect` and `expect_start` say.
fn jumps(expectations: &str, to: &[u32]) -> String {
    let mut scenario = format!("{expectations}\n{TRACING}");
    for to in to {
        scenario += &format!("[[op]]\nop = \"jmp_indirect\"\nto = {to:#x}\n");
    }
    scenario
}

fn expect(lines: &[&str]) -> String {
    format!("expect = '''\n{}\n'''", lines.join("\n"))
}

const STORES: &str = r#"
output = "stores"
[start]
STATUS = { PacketByteCnt = 1 }
"#;

#[test]
fn stores_of_a_single_range_wrap() {
    is_met(&format!(
        "expect_start = '''\nstore 0x10000f70: 02 03 00 00 99 01 71 00 10 00 00 00 00\n'''\n\
         expect = '''\nstore 0x10000f7d: 4d 78 56\nstore 0x10000f00: 34 12\n'''{STORES}\
         OUTPUT_BASE = 0x10000f00\nOUTPUT_MASK_PTRS = \"0x700000007f\"\n\
         CTL = {{ TraceEn = 1, BranchEn = 1, OS = 1 }}\n\
         [[op]]\nop = \"jmp_indirect\"\nto = 0x12345678\n"
    ));
}

/// The bytes of a packet that spans two regions, and those that a STOP lets through.
#[test]
fn stores_of_a_table_show_its_regions() {
    is_met(&format!(
        "expect = '''\nstore 0x100ffd: 4d 78 56\npmi\nstore 0x200000: 34 12\n'''{STORES}\
         OUTPUT_BASE = 0x8000\nOUTPUT_MASK_PTRS = \"0xff00000007f\"\n\
         CTL = {{ TraceEn = 1, BranchEn = 1, OS = 1, ToPA = 1 }}\n\
         [[memory]]\nat = 0x8000\nqwords = [0x100004, 0x200010]\n\
         [[op]]\nop = \"jmp_indirect\"\nto = 0x12345678\n"
    ));
    is_met(&format!(
        "expect = '''\nstore 0x100ffd: 4d 78 56\nmsr STATUS & 0x30 = 0x20\n'''{STORES}\
         OUTPUT_BASE = 0x8000\nOUTPUT_MASK_PTRS = \"0xff00000007f\"\n\
         CTL = {{ TraceEn = 1, BranchEn = 1, OS = 1, ToPA = 1 }}\n\
         [[memory]]\nat = 0x8000\nqwords = [0x100010, 0x200000]\n\
         [[op]]\nop = \"jmp_indirect\"\nto = 0x12345678\n\
         [[op]]\nop = \"rdmsr\"\nmsr = \"STATUS\"\n"
    ));
}

/// Table 33-5: bytes for restricted memory are dropped, and output goes on behind.
#[test]
fn dropped_stores_are_listed() {
    let scenario = format!(
        "expect = '''\nstore 0x1000000d: 4d\ndropped 0x1000000e: 78 56\nstore 0x10000010: 34 12\n'''{STORES}\
         OUTPUT_BASE = 0x10000000\nOUTPUT_MASK_PTRS = 0xffff\n\
         CTL = {{ TraceEn = 1, BranchEn = 1, OS = 1 }}\n\
         [[restricted]]\nfrom = 0x1000000e\nto = 0x1000000f\n\
         [[op]]\nop = \"jmp_indirect\"\nto = 0x12345678\n"
    );
    is_met(&scenario);
    let json = run("--json", &scenario).text();
    let dropped = r#"{"dropped":"0x1000000e","size":2,"bytes":"78 56","op":1}"#;
    assert!(json.lines().any(|line| line == dropped), "{json}");
}

#[test]
fn output_to_the_transport_subsystem_has_no_address() {
    let scenario = format!(
        "expect = '''\ntransport: 4d 78 56 34 12\n'''{STORES}\
         CTL = {{ TraceEn = 1, BranchEn = 1, OS = 1, FabricEn = 1 }}\n\
         [[op]]\nop = \"jmp_indirect\"\nto = 0x12345678\n"
    );
    is_met(&scenario);
    let json = run("--json", &scenario).text();
    let object = r#"{"transport":true,"size":5,"bytes":"4d 78 56 34 12","op":1}"#;
    assert!(json.lines().any(|line| line == object), "{json}");
}

/// Where stores are listed there are no packets, but `--raw-output` has them.
#[test]
fn stores_are_listed_in_place_of_packets() {
    refused(
        &format!("expect = \"tip 0x2000\"{STORES}CTL = 0\n[[op]]\nop = \"plain\"\n"),
        "`expect`, line 1: `tip 0x2000`: no packets are listed",
    );
    let scratch = Scratch::new();
    let raw = scratch.path("raw");
    let scenario = format!("output = \"stores\"\n{}", jumps("", &[0x2000]));
    let mut command = cofi();
    command.args(["unit", "run", "--raw-output"]);
    let ran = run_with(command.arg(&raw).arg("-"), scenario.as_bytes());
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    let bytes = std::fs::read(&raw).expect("the packets");
    assert_eq!(bytes.last_chunk(), Some(&[0x2d, 0x00, 0x20]), "{bytes:x?}");
}

/// A region of 4 KiB with STOP, of which `left` bytes are left behind the start.
fn stopped(expectations: &str, left: u32) -> String {
    // CBR, MODE.Exec and TIP.PGE are 13 bytes.
    let offset = 0x1000 - 13 - left;
    format!(
        "{expectations}\n[[memory]]\nat = 0x8000\nqwords = [0x100010, 0x200000]\n[start]\n\
         STATUS = {{ PacketByteCnt = 1 }}\nOUTPUT_BASE = 0x8000\nOUTPUT_MASK_PTRS = \"{offset:#x}0000007f\"\n\
         CTL = {{ TraceEn = 1, BranchEn = 1, OS = 1, ToPA = 1 }}\n\
         [[op]]\nop = \"jmp_indirect\"\nto = 0x12345678\n"
    )
}

const START_AGAIN: &str = r#"
[[op]]
op = "wrmsr"
msr = "CTL"
set = { TraceEn = 0 }
[[op]]
op = "wrmsr"
msr = "STATUS"
value = 0
[[op]]
op = "wrmsr"
msr = "OUTPUT_MASK_PTRS"
value = 0x7f
[[op]]
op = "wrmsr"
msr = "CTL"
set = { TraceEn = 1 }
"#;

/// What comes behind the cut is read anew, and not as the rest of the packet.
#[test]
fn a_packet_cut_by_stop_can_be_expected() {
    is_met(&stopped(&expect(&["cut 3 tip 0x12345678"]), 3));
    let again = expect(&[
        "cut 3 tip 0x12345678",
        "psb",
        "cbr 0",
        "pip 0x0",
        "mode.tsx intx=0 abort=0",
        "psbend",
        "mode.exec 64",
        "tip.pge 0x12345688",
    ]);
    is_met(&(stopped(&again, 3) + START_AGAIN));
    differs(
        &stopped(&expect(&["cut 2 tip 0x12345678"]), 3),
        "- expected\n+ came out\n\n\
         - error: the input ends inside a packet: 2 of 5 bytes: 4d 78\n\
         + error: the input ends inside a packet: 3 of 5 bytes: 4d 78 56\n",
    );
    differs(
        &stopped(&expect(&["cut 3 tip 0x12345679"]), 3),
        "- expected\n+ came out\n\n\
         - error: the input ends inside a packet: 3 of 5 bytes: 4d 79 56\n\
         + error: the input ends inside a packet: 3 of 5 bytes: 4d 78 56\n",
    );
    for wrong in [
        "cut 5 tip 0x12345678",
        "cut 0 tip 0x12345678",
        "cut tip 0x1000",
        "cut 3",
    ] {
        refused(&stopped(&expect(&[wrong]), 3), "`expect`, line 1: ");
    }
}

#[test]
fn lines_may_come_in_any_order() {
    let in_braces = [
        "{",
        "tip 0x3000   # the younger",
        "tip 0x2000",
        "}",
        "tip 0x4000",
    ];
    is_met(&jumps(&expect(&in_braces), &[0x2000, 0x3000, 0x4000]));
    is_met(&jumps(&expect(&in_braces), &[0x3000, 0x2000, 0x4000]));
    differs(
        &jumps(&expect(&in_braces), &[0x3000, 0x4000, 0x2000]),
        "- expected\n+ came out\n\n  tip 0x3000\n- tip 0x2000\n  tip 0x4000\n+ tip 0x2000 ipc=1\n",
    );
    // Each of them once.
    differs(
        &jumps(
            &expect(&["{", "tip 0x2000", "tip 0x2000", "}"]),
            &[0x2000, 0x3000],
        ),
        "- expected\n+ came out\n\n  tip 0x2000\n- tip 0x2000\n+ tip 0x3000 ipc=1\n",
    );
    refused(
        &jumps(&expect(&["{", "tip 0x2000"]), &[0x2000]),
        "`expect`: `{` without `}`",
    );
    refused(
        &jumps(&expect(&["}"]), &[0x2000]),
        "`expect`, line 1: `}` without `{`",
    );
    refused(
        &jumps(&expect(&["{", "{"]), &[0x2000]),
        "`expect`, line 2: `{` within `{`",
    );
    let many = ["{"].into_iter().chain(["tip 0x2000"; 13]).chain(["}"]);
    let many: Vec<_> = many.collect();
    refused(
        &jumps(&expect(&many), &[0x2000]),
        "more than 12 lines in any order",
    );
}

#[test]
fn lines_may_be_optional() {
    let lines = [
        "? tip 0x2000",
        "tip 0x3000",
        "? pmi",
        "{",
        "tip 0x4000",
        "? tip 0x5000",
        "}",
    ];
    for to in [
        &[0x2000, 0x3000, 0x4000][..],
        &[0x3000, 0x4000],
        &[0x3000, 0x5000, 0x4000],
    ] {
        is_met(&jumps(&expect(&lines), to));
    }
    differs(
        &jumps(&expect(&lines), &[0x2000, 0x4000]),
        "- expected\n+ came out\n\n  tip 0x2000\n- tip 0x3000\n  tip 0x4000\n",
    );
    differs(
        &jumps(&expect(&["tip 0x2000", "? tip 0x3000"]), &[0x3000, 0x2000]),
        "- expected\n+ came out\n\n- tip 0x2000\n  tip 0x3000\n+ tip 0x2000 ipc=1\n",
    );
    let many = vec!["? pmi"; 101];
    refused(
        &jumps(&expect(&many), &[0x2000]),
        "line 101: more than 100 lines are optional",
    );
}

#[test]
fn bits_of_a_register_can_be_expected() {
    let read =
        |line: &str| jumps(&expect(&[line]), &[]) + "[[op]]\nop = \"rdmsr\"\nmsr = \"STATUS\"\n";
    is_met(&read(
        "msr STATUS & 0x7 = 0x7   # FilterEn, ContextEn, TriggerEn",
    ));
    is_met(&read("msr IA32_RTIT_STATUS & 6 = 0xfff6"));
    differs(
        &read("msr STATUS & 0x17 = 0x17"),
        "- expected\n+ came out\n\n- msr IA32_RTIT_STATUS & 0x17 = 0x17\n+ msr IA32_RTIT_STATUS = 0xe00000007\n",
    );
    refused(
        &read("msr STATUS & = 1"),
        "expected `msr NAME = VALUE` or `msr NAME & MASK = VALUE`",
    );
}

#[test]
fn the_output_of_start_can_be_expected() {
    let start = |cbr: u8| {
        format!(
            "expect_start = '''\ncbr {cbr}\nmode.exec 64\ntip.pge 0x1000\n'''\n{}",
            expect(&["tip 0x2000"])
        )
    };
    is_met(&jumps(&start(0), &[0x2000]));
    differs(
        &jumps(&start(1), &[0x3000]),
        "- expected of [start]\n+ came out of [start]\n\n- cbr 1\n+ cbr 0\n  mode.exec 64 if=0\n  tip.pge 0x1000\n\n\
         - expected\n+ came out\n\n- tip 0x2000\n+ tip 0x3000 ipc=1\n",
    );
    // It alone can be checked, too.
    is_met(&jumps(
        "expect_start = '''\n? psb\ncbr 0\nmode.exec 64\ntip.pge 0x1000\n'''",
        &[0x2000],
    ));
    let ran = run("--check", &jumps("", &[0x2000]));
    assert_eq!(ran.code(), 2);
    refused(
        &jumps("expect_start = \"frob\"", &[0x2000]),
        "`expect_start`, line 1: `frob`: ",
    );
}
