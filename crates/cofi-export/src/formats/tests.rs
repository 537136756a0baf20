//! What the formats that are written call by call make of odd names, numbers and times.

use std::io;

use cofi_analysis::{Call, CallEnd, CallKind, CallMoment, FinishedCall, FunctionId, Left};
use cofi_packet::{Ip, Tsc};
use cofi_session::Task;
use serde_json::{Value, json};

use super::{CREATOR, ExportFormat, open};
use crate::{Exporter, Frame, FrameId, Frames, Track, Weight};

/// Quotes, commas, line ends, control characters, and letters beyond ASCII.
const ODD: &str = "f<\"a\", '\\'>(int)\r\n\t\u{1}é\u{1f980}";

const MAIN: FrameId = FrameId(0);
const ODD_ONE: FrameId = FrameId(1);
const NO_FILE: FrameId = FrameId(2);
/// Of which nobody knows a name.
const UNKNOWN: FrameId = FrameId(9);

/// A time stamp for which the test knows no time.
const BEFORE_TIME: Tsc = Tsc(1);

fn frames() -> Frames {
    let frame = |name: &str, file: Option<&str>| Frame {
        name: name.into(),
        file: file.map(Into::into),
    };
    Frames::of(vec![
        frame("main", Some("/bin/a")),
        frame(ODD, Some("/tmp/a, \"b\"")),
        frame("plain", None),
    ])
}

fn track(pid: u32, tid: u32, name: &str) -> Track {
    Track {
        task: Task { pid, tid },
        name: name.into(),
    }
}

fn at(tsc: Option<Tsc>) -> CallMoment {
    CallMoment {
        tsc,
        cycles: 0,
        insns: 0,
    }
}

/// A call of which all is known, from the time stamp 10 to 20.
fn call(site: u32) -> FinishedCall {
    FinishedCall {
        call: Call {
            task: Task { pid: 1, tid: 1 },
            number: 0,
            function: FunctionId::default(),
            ip: Ip(0x40_1000),
            parent: None,
            stack: 0,
            depth: 0,
            kind: CallKind::Call,
            from: Some(Ip(0x40_0ff0)),
            begin: at(Some(Tsc(10))),
        },
        end: CallEnd {
            end: at(Some(Tsc(20))),
            insns: 7,
            self_insns: 3,
            left: Left::Return,
        },
        site,
    }
}

/// What a format writes of what `show` shows it. The time of a time stamp is ten times its number.
fn written(
    format: ExportFormat,
    weight: Weight,
    show: impl FnOnce(&mut dyn Exporter, &Frames) -> io::Result<()>,
) -> String {
    let mut out = Vec::new();
    let frames = frames();
    let time = |tsc: Tsc| (tsc != BEFORE_TIME).then(|| tsc.0.saturating_mul(10));
    let mut exporter = open(format, weight, time, &mut out);
    show(&mut *exporter, &frames).expect("memory takes all");
    exporter.finish(&frames).expect("memory takes all");
    drop(exporter);
    String::from_utf8(out).expect("UTF-8")
}

fn events(text: &str) -> Vec<Value> {
    let whole: Value = serde_json::from_str(text).expect("JSON");
    whole["traceEvents"].as_array().expect("events").clone()
}

fn rows(text: &str) -> Vec<Vec<String>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let heads = reader.headers().expect("a head").clone();
    assert_eq!(
        heads.iter().collect::<Vec<_>>().join(","),
        "pid,tid,depth,call,file,ip,kind,from,begin,end,insns,self_insns,left,stack"
    );
    let row = |row: csv::Result<csv::StringRecord>| {
        let row = row.expect("as many fields as the head has");
        row.iter().map(str::to_owned).collect()
    };
    reader.records().map(row).collect()
}

#[test]
fn trace_events_nest_and_escape() {
    let text = written(ExportFormat::Chrome, Weight::Time, |out, frames| {
        assert!(out.is_nested());
        out.begin_part(&track(4, 5, ODD), 1_000)?;
        out.enter(MAIN, 1_000, Some(&call(0)), frames)?;
        out.enter(ODD_ONE, 1_001, Some(&call(1)), frames)?;
        out.leave(ODD_ONE, 1_001)?;
        // A stack that goes on is no call.
        out.enter(UNKNOWN, 2_050, None, frames)?;
        out.leave(UNKNOWN, 2_050)?;
        out.leave(MAIN, 2_060)?;
        out.end_part(2_060)
    });
    let args = json!({"kind": "call", "insns": 7, "self_insns": 3, "left": "return"});
    assert_eq!(
        events(&text),
        [
            json!({"ph": "M", "name": "thread_name", "pid": 4, "tid": 5, "args": {"name": ODD}}),
            json!({"ph": "B", "name": "main", "pid": 4, "tid": 5, "ts": 1.0, "args": args}),
            json!({"ph": "B", "name": ODD, "pid": 4, "tid": 5, "ts": 1.001, "args": args}),
            json!({"ph": "E", "pid": 4, "tid": 5, "ts": 1.001}),
            json!({"ph": "B", "name": "?", "pid": 4, "tid": 5, "ts": 2.05}),
            json!({"ph": "E", "pid": 4, "tid": 5, "ts": 2.05}),
            json!({"ph": "E", "pid": 4, "tid": 5, "ts": 2.06}),
        ]
    );
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        whole["otherData"],
        json!({"creator": CREATOR, "unit": "nanoseconds"})
    );
}

/// Names are kept as they are written, with the thread: another thread, or another part, must not have those of the one before.
#[test]
fn trace_events_of_threads_and_parts_have_their_own_thread() {
    let text = written(ExportFormat::Chrome, Weight::Instructions, |out, frames| {
        let parts = [
            (track(1, 1, "one"), MAIN, 5),
            (track(1, 2, "two"), MAIN, 5),
            (track(1, 2, "two"), ODD_ONE, 9),
        ];
        for (track, frame, moment) in parts {
            out.begin_part(&track, moment)?;
            out.enter(frame, moment, None, frames)?;
            out.leave(frame, moment)?;
            out.end_part(moment)?;
        }
        Ok(())
    });
    let told: Vec<_> = events(&text)
        .iter()
        .filter(|event| event["ph"] != "M")
        .map(|event| {
            let name = event["name"].as_str().map(str::to_owned);
            (name, event["tid"].as_u64(), event["ts"].as_u64())
        })
        .collect();
    let main = || Some("main".to_owned());
    assert_eq!(
        told,
        [
            (main(), Some(1), Some(5)),
            (None, Some(1), Some(5)),
            (main(), Some(2), Some(5)),
            (None, Some(2), Some(5)),
            (Some(ODD.to_owned()), Some(2), Some(9)),
            (None, Some(2), Some(9)),
        ]
    );
}

#[test]
fn trace_events_have_every_digit() {
    let mut large = call(0);
    (large.end.insns, large.end.self_insns) = (u64::MAX, u64::MAX - 1);
    let show = |out: &mut dyn Exporter, frames: &Frames| {
        out.begin_part(&track(u32::MAX, u32::MAX, ""), 0)?;
        out.enter(MAIN, 0, Some(&large), frames)?;
        out.leave(MAIN, u64::MAX)?;
        out.end_part(u64::MAX)
    };
    let text = written(ExportFormat::Chrome, Weight::Instructions, show);
    let list = events(&text);
    assert_eq!(list[1]["tid"], u32::MAX);
    assert_eq!(list[1]["args"]["insns"], u64::MAX);
    assert_eq!(list[1]["args"]["self_insns"], u64::MAX - 1);
    assert_eq!(list[2]["ts"], u64::MAX);
    let text = written(ExportFormat::Chrome, Weight::Time, show);
    assert!(text.contains("\"ts\":0.000"), "{text}");
    assert!(text.contains("\"ts\":18446744073709551.615}"), "{text}");
    assert_eq!(events(&text).len(), 3);
}

/// What is written at once is many events: the borders between must not show.
#[test]
fn many_events_and_rows_are_all_there() {
    const COUNT: u64 = 5_000;
    let show = |out: &mut dyn Exporter, frames: &Frames| {
        out.begin_part(&track(1, 1, "one"), 0)?;
        for moment in 0..COUNT {
            let mut call = call(0);
            call.end.insns = moment;
            out.enter(ODD_ONE, moment, Some(&call), frames)?;
            if out.is_nested() {
                out.leave(ODD_ONE, moment)?;
            }
        }
        out.end_part(COUNT)
    };
    let list = events(&written(ExportFormat::Chrome, Weight::Instructions, show));
    let begins: Vec<_> = list.iter().filter(|event| event["ph"] == "B").collect();
    assert_eq!(list.len() as u64, 1 + 2 * COUNT);
    for (moment, event) in (0..COUNT).zip(begins) {
        assert_eq!(
            (&event["name"], &event["ts"]),
            (&json!(ODD), &json!(moment))
        );
        assert_eq!(event["args"]["insns"], moment);
    }
    let list = rows(&written(ExportFormat::Csv, Weight::Time, show));
    let insns: Vec<u64> = list
        .iter()
        .map(|row| row[10].parse().expect("a number"))
        .collect();
    assert_eq!(insns, (0..COUNT).collect::<Vec<_>>());
}

#[test]
fn nothing_is_a_whole_file_too() {
    let nothing = |_: &mut dyn Exporter, _: &Frames| Ok(());
    assert_eq!(
        events(&written(ExportFormat::Chrome, Weight::Time, nothing)).len(),
        0
    );
    assert_eq!(
        rows(&written(ExportFormat::Csv, Weight::Time, nothing)).len(),
        0
    );
}

#[test]
fn rows_quote_names_and_leave_out_what_is_not_known() {
    let text = written(ExportFormat::Csv, Weight::Time, |out, frames| {
        assert!(!out.is_nested());
        out.begin_part(&track(4, 5, "never shown"), 0)?;
        out.enter(MAIN, 0, Some(&call(0)), frames)?;
        let mut odd = call(1);
        (odd.call.from, odd.call.depth, odd.call.stack) = (None, -3, u32::MAX);
        (odd.call.kind, odd.call.begin.tsc) = (CallKind::Assumed, None);
        out.enter(ODD_ONE, 0, Some(&odd), frames)?;
        // Times that do not convert, behind one that does.
        let mut early = call(2);
        (early.call.begin.tsc, early.end.end.tsc) = (Some(BEFORE_TIME), Some(BEFORE_TIME));
        out.enter(NO_FILE, 0, Some(&early), frames)?;
        // Open to the end: when the trace ended is not when the call did.
        let mut open = call(3);
        open.end.left = Left::End;
        out.enter(UNKNOWN, 0, Some(&open), frames)?;
        // No call: a stack that goes on.
        out.enter(MAIN, 0, None, frames)?;
        out.end_part(0)
    });
    let file = "/tmp/a, \"b\"";
    let (ip, from) = ("0x401000", "0x400ff0");
    assert_eq!(
        rows(&text),
        [
            [
                "4", "5", "0", "main", "/bin/a", ip, "call", from, "100", "200", "7", "3",
                "return", "0"
            ],
            [
                "4",
                "5",
                "-3",
                ODD,
                file,
                ip,
                "assumed",
                "",
                "",
                "200",
                "7",
                "3",
                "return",
                "4294967295"
            ],
            [
                "4", "5", "0", "plain", "", ip, "call", from, "", "", "7", "3", "return", "0"
            ],
            [
                "4", "5", "0", "?", "", ip, "call", from, "100", "", "7", "3", "end", "0"
            ],
        ]
    );
}

/// A site's fields are kept, but those of one thread are not those of the next.
#[test]
fn rows_of_threads_and_parts_have_their_own_sites() {
    let text = written(ExportFormat::Csv, Weight::Time, |out, frames| {
        out.begin_part(&track(1, 1, "one"), 0)?;
        out.enter(MAIN, 0, Some(&call(0)), frames)?;
        out.enter(MAIN, 0, Some(&call(0)), frames)?;
        out.end_part(0)?;
        out.begin_part(&track(1, 2, "two"), 0)?;
        let mut other = call(0);
        (other.call.ip, other.call.from) = (Ip(u64::MAX), Some(Ip(0)));
        (other.end.insns, other.end.self_insns) = (u64::MAX, u64::MAX - 1);
        other.end.end.tsc = Some(Tsc(u64::MAX));
        out.enter(NO_FILE, 0, Some(&other), frames)?;
        out.end_part(0)
    });
    let list = rows(&text);
    let shown: Vec<Vec<&str>> = list
        .iter()
        .map(|row| {
            [1, 3, 5, 7, 9, 10, 11]
                .map(|field| row[field].as_str())
                .to_vec()
        })
        .collect();
    let most = u64::MAX.to_string();
    let first = vec!["1", "main", "0x401000", "0x400ff0", "200", "7", "3"];
    assert_eq!(
        shown,
        [
            first.clone(),
            first,
            vec![
                "2",
                "plain",
                "0xffffffffffffffff",
                "0x0",
                &most,
                &most,
                "18446744073709551614"
            ],
        ]
    );
}
