//! `cofi events`: what packets tell without code, as text and as JSON, whole and damaged.

mod common;

use common::{Ran, Scratch, cofi, run, run_with};
use serde_json::{Value, json};

/// A stream of everything, in the form of `cofi asm`.
const STREAM: &str = "\
psb
tsc 0x1000
psbend
mode.exec mode=64
tip.pge ipc=6 ip=0x401000
tnt.8 TNT
tip ipc=1 ip=0x1080
cfe ip=false type=INTR vector=14
fup ipc=1 ip=0x1084
pip cr3=0x5000 nr=false
tip ipc=6 ip=0xffffffff81000000
mtc ctc=3
ptw size=8 payload=0x7 ip=false
bbp size=8 type=GPR
bip id=2 payload=0x1234
bep ip=false
mnt payload=0x9
tip.pgd -
";

fn stream(scratch: &Scratch) -> std::path::PathBuf {
    let ran = run_with(cofi().args(["asm", "-"]), STREAM.as_bytes());
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    scratch.write("trace.pt", ran.stdout)
}

fn objects(ran: &Ran) -> Vec<Value> {
    let lines = ran.text();
    let parse = |line: &str| serde_json::from_str(line).expect(line);
    lines.lines().map(parse).collect()
}

#[test]
fn objects_hold_the_keys_of_the_contract_and_the_place() {
    let scratch = Scratch::new();
    let ran = run(cofi().args(["events", "--json"]).arg(stream(&scratch)));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let wanted = [
        json!({"event": "enabled", "ip": "0x401000", "resumed": false, "offset": 28, "packets": "tip.pge", "tsc": 4096}),
        json!({"event": "exec_mode", "mode": 64, "if": false, "offset": 26, "ip": "0x401000", "packets": "mode.exec tip.pge", "tsc": 4096}),
        json!({"event": "interrupt", "vector": 14, "ip": "0x401084", "offset": 41, "packets": "cfe fup", "tsc": 4096}),
        json!({"event": "async_branch", "from": "0x401084", "to": "0xffffffff81000000", "offset": 45, "packets": "fup tip", "tsc": 4096}),
        json!({"event": "paging", "cr3": "0x5000", "nr": false, "offset": 48, "ip": "0xffffffff81000000", "packets": "pip tip", "tsc": 4096}),
        json!({"event": "ptwrite", "ip": null, "payload": "0x7", "size": 8, "offset": 67, "packets": "ptw", "tsc": 4096}),
        json!({"event": "block", "type": 1, "type_name": "GPR", "size": 8, "ip": null, "offset": 77, "packets": "bbp", "tsc": 4096}),
        json!({"event": "block_item", "type": 1, "id": 2, "id_name": "R/EAX", "payload": "0x1234", "offset": 80, "packets": "bip", "tsc": 4096}),
        json!({"event": "mnt", "payload": "0x9", "offset": 91, "packets": "mnt", "tsc": 4096}),
        json!({"event": "disabled", "ip": null, "offset": 102, "packets": "tip.pgd", "tsc": 4096}),
    ];
    assert_eq!(objects(&ran), wanted);
}

#[test]
fn branches_and_ticks_are_told_where_wanted() {
    let scratch = Scratch::new();
    let all = ["events", "--json", "--branches", "--ticks"];
    let ran = run(cofi().args(all).arg(stream(&scratch)));
    let objects = objects(&ran);
    let has = |wanted: Value| assert!(objects.contains(&wanted), "{wanted} in {objects:#?}");
    has(
        json!({"event": "tick", "tick": "tsc", "value": 4096, "offset": 16, "packets": "tsc", "tsc": 4096}),
    );
    has(json!({"event": "branches", "bits": "TNT", "offset": 37, "packets": "tnt.8", "tsc": 4096}));
    has(json!({"event": "target", "ip": "0x401080", "offset": 38, "packets": "tip", "tsc": 4096}));
    has(
        json!({"event": "tick", "tick": "mtc", "ctc": 3, "offset": 65, "packets": "mtc", "tsc": 4096}),
    );
    assert_eq!(objects.len(), 14);
}

#[test]
fn text_is_a_line_each() {
    let scratch = Scratch::new();
    let ran = run(cofi().arg("events").arg(stream(&scratch)));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    let text = ran.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 10);
    assert_eq!(
        lines[3],
        "0000002d:            4096           401084  event before 0x401084, to 0xffffffff81000000 ; fup tip"
    );
    assert_eq!(
        lines[8],
        "0000005b:            4096                -  maintenance 0x9                              ; mnt"
    );
}

#[test]
fn errors_are_told_in_their_place_and_the_rest_is_read() {
    let scratch = Scratch::new();
    let mut bytes = std::fs::read(stream(&scratch)).expect("the stream");
    let whole = bytes.clone();
    bytes.truncate(41);
    bytes.extend([0x02, 0xff]);
    bytes.extend(&whole);
    let file = scratch.write("damaged.pt", bytes);
    let ran = run(cofi().args(["events", "--json"]).arg(&file));
    assert_eq!(ran.code(), 1, "{}", ran.stderr);
    let objects = objects(&ran);
    let error = &objects[2];
    assert_eq!((&error["offset"], &error["ip"]), (&json!(41), &Value::Null));
    assert!(
        error["error"]
            .as_str()
            .is_some_and(|text| text.contains("02 ff")),
        "{error}"
    );
    assert!(
        objects.iter().any(|object| object["event"] == "mnt"),
        "{objects:?}"
    );

    let ran = run(cofi().arg("events").arg(&file));
    assert_eq!(ran.code(), 1);
    assert!(
        ran.text()
            .lines()
            .any(|line| line.starts_with("00000029: ") && line.contains("!! ")),
        "{}",
        ran.text()
    );

    let ran = run(cofi().args(["events", "/nonexistent"]));
    assert_eq!(
        (ran.code(), ran.stderr.lines().count()),
        (2, 1),
        "{}",
        ran.stderr
    );
}
