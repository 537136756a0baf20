//! `cofi export`: each format read again, beside `cofi calls`.

mod common;

use common::{Ran, Scratch, cofi, json, repository, run};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What functions weigh without what they call, by name.
type Weights = BTreeMap<String, u64>;

/// A recording of one of the programs of `cofi calls`.
fn recorded(scratch: &Scratch, source: &str) -> Option<PathBuf> {
    let flags = ["-O1", "-g", "-pthread", "-finstrument-functions"];
    recorded_with(scratch, source, &flags)
}

fn recorded_with(scratch: &Scratch, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let path = repository().join("crates/cofi/tests/calls").join(source);
    let program = scratch.compile(&path, flags)?;
    let data = scratch.path("data");
    let mut command = cofi();
    command.env("CALLS_LOG", scratch.path("log"));
    command.args(["record", "--engine", "ptrace", "-o"]);
    let ran = run(command.arg(&data).arg("--").arg(program));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    Some(data)
}

fn export(data: &Path, format: &str, more: &[&str]) -> Ran {
    let mut command = cofi();
    command.args(["export", "--to", format, "-o", "-"]);
    let ran = run(command.args(more).arg(data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""), "{format}");
    ran
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

fn parsed(ran: &Ran) -> Value {
    serde_json::from_slice(&ran.stdout).expect("JSON")
}

fn add(weights: &mut Weights, name: &str, weight: u64) {
    if weight > 0 {
        *weights.entry(name.to_owned()).or_default() += weight;
    }
}

/// The instructions of functions, as `cofi calls` has them.
fn called(data: &Path) -> Weights {
    called_with(data, &[])
}

fn called_with(data: &Path, more: &[&str]) -> Weights {
    let more: Vec<&OsStr> = more.iter().map(OsStr::new).collect();
    let ran = run(&mut json("calls", &more, data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let mut weights = Weights::new();
    for line in ran.text().lines() {
        let call: Value = serde_json::from_str(line).expect("JSON");
        let name = call["call"].as_str().map(str::to_owned);
        // What no symbol names goes by where it was entered.
        let name = name.unwrap_or_else(|| {
            let file = text(&call["file"]).rsplit('/').next().unwrap_or_default();
            format!("{} in {file}", text(&call["address"]))
        });
        add(&mut weights, &name, number(&call["self_insns"]));
    }
    weights
}

/// What passes on timelines while a function is the innermost.
#[derive(Default)]
struct Timelines {
    weights: Weights,
    open: HashMap<(u64, u64), (Vec<String>, u64)>,
}

impl Timelines {
    fn event(&mut self, track: (u64, u64), at: u64, enters: Option<&str>) {
        let (open, last) = self.open.entry(track).or_default();
        if let Some(name) = open.last() {
            let passed = at.checked_sub(*last).expect("time never goes back");
            add(&mut self.weights, name, passed);
        }
        *last = at;
        match enters {
            Some(name) => open.push(name.to_owned()),
            None => assert!(open.pop().is_some(), "what is left was entered"),
        }
    }

    fn finish(self) -> Weights {
        for (open, _) in self.open.values() {
            assert!(open.is_empty(), "{open:?} are never left");
        }
        self.weights
    }
}

fn folded(ran: &Ran) -> Weights {
    let mut weights = Weights::new();
    for line in ran.text().lines() {
        let (stack, weight) = line.rsplit_once(' ').expect("a weight");
        let (_, name) = stack.rsplit_once(';').expect("a function in a thread");
        add(&mut weights, name, weight.parse().expect("a number"));
    }
    weights
}

fn speedscope(ran: &Ran) -> Weights {
    let file = parsed(ran);
    let schema = "https://www.speedscope.app/file-format-schema.json";
    assert_eq!(file["$schema"], schema);
    let names = file["shared"]["frames"].as_array().expect("frames");
    let mut timelines = Timelines::default();
    for (index, profile) in file["profiles"]
        .as_array()
        .expect("profiles")
        .iter()
        .enumerate()
    {
        assert_eq!(profile["type"], "evented");
        assert!(profile["name"].is_string());
        let mut open = Vec::new();
        let (begin, end) = (number(&profile["startValue"]), number(&profile["endValue"]));
        for event in profile["events"].as_array().expect("events") {
            let (at, frame) = (number(&event["at"]), number(&event["frame"]));
            assert!((begin..=end).contains(&at), "{event}");
            let name = text(&names[frame as usize]["name"]);
            let enters = match text(&event["type"]) {
                "O" => {
                    open.push(frame);
                    Some(name)
                }
                _ => {
                    assert_eq!(open.pop(), Some(frame), "{event}");
                    None
                }
            };
            timelines.event((index as u64, 0), at, enters);
        }
    }
    timelines.finish()
}

fn chrome(ran: &Ran) -> Weights {
    let file = parsed(ran);
    // Microseconds, but instructions as they are.
    let scale = match text(&file["otherData"]["unit"]) {
        "instructions" => 1.0,
        _ => 1000.0,
    };
    let mut timelines = Timelines::default();
    let mut named = Vec::new();
    for event in file["traceEvents"].as_array().expect("events") {
        let track = (number(&event["pid"]), number(&event["tid"]));
        let at = || (event["ts"].as_f64().expect("a time") * scale).round() as u64;
        match text(&event["ph"]) {
            "M" => named.push(track),
            "B" => timelines.event(track, at(), Some(text(&event["name"]))),
            "E" => timelines.event(track, at(), None),
            other => panic!("{other}"),
        }
        assert!(named.contains(&track), "{event}");
    }
    timelines.finish()
}

fn callgrind(ran: &Ran, scratch: &Scratch) -> Option<Weights> {
    let file = scratch.write("callgrind.out", &ran.stdout);
    let mut command = Command::new("callgrind_annotate");
    command.args(["--threshold=100", "--show-percs=no", "--auto=no"]);
    let Ok(output) = command.arg(&file).output() else {
        cofi_test::skip("callgrind_annotate is not installed");
        return None;
    };
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let listing = String::from_utf8(output.stdout).expect("text");
    let mut weights = Weights::new();
    let mut total = None;
    for line in listing.lines() {
        let Some((weight, rest)) = line.trim_start().split_once(' ') else {
            continue;
        };
        let Ok(weight) = weight.replace(',', "").parse::<u64>() else {
            continue;
        };
        let rest = rest.trim_start();
        if rest.contains("PROGRAM TOTALS") {
            total = Some(weight);
        } else if let Some(name) = rest.strip_prefix("???:") {
            // The object follows, in brackets.
            let name = name.rsplit_once(" [").map_or(name, |(name, _)| name);
            add(&mut weights, name, weight);
        }
    }
    assert_eq!(total, Some(weights.values().sum()));
    Some(weights)
}

/// By the tables of the processed profile format: a sample has a stack, which has a frame, which has a function, which has a name.
fn firefox(ran: &Ran) -> Weights {
    let profile = parsed(ran);
    assert!(number(&profile["meta"]["preprocessedProfileVersion"]) > 0);
    let mut weights = Weights::new();
    for thread in profile["threads"].as_array().expect("threads") {
        let strings = match &thread["stringArray"] {
            Value::Null => &profile["shared"]["stringArray"],
            own => own,
        };
        let samples = &thread["samples"];
        assert_eq!(samples["weightType"], "samples");
        let all = samples["weight"].as_array().expect("weights");
        assert_eq!(number(&samples["length"]), all.len() as u64);
        for (sample, weight) in all.iter().enumerate() {
            let stack = number(&samples["stack"][sample]) as usize;
            let frame = number(&thread["stackTable"]["frame"][stack]) as usize;
            let function = number(&thread["frameTable"]["func"][frame]) as usize;
            let name = number(&thread["funcTable"]["name"][function]) as usize;
            add(&mut weights, text(&strings[name]), number(weight));
        }
    }
    weights
}

/// A field of a message, of any type that is read here.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, read by the encoding alone and not by what wrote them.
fn fields(mut bytes: &[u8]) -> Vec<(u32, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = prost::encoding::decode_varint(&mut bytes).expect("a key");
        let number = prost::encoding::decode_varint(&mut bytes).expect("a number or length");
        let field = match key & 7 {
            0 => Field::Number(number),
            2 => {
                let (field, rest) = bytes.split_at(number as usize);
                bytes = rest;
                Field::Bytes(field)
            }
            other => panic!("wire type {other}"),
        };
        fields.push(((key >> 3) as u32, field));
    }
    fields
}

fn numbers(message: &[u8], wanted: u32) -> Vec<u64> {
    let of = |(tag, field)| match field {
        Field::Number(number) if tag == wanted => Some(number),
        _ => None,
    };
    fields(message).into_iter().filter_map(of).collect()
}

fn messages(message: &[u8], wanted: u32) -> Vec<&[u8]> {
    let of = |(tag, field)| match field {
        Field::Bytes(bytes) if tag == wanted => Some(bytes),
        _ => None,
    };
    fields(message).into_iter().filter_map(of).collect()
}

fn string(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn perfetto(ran: &Ran) -> Weights {
    let mut names: HashMap<u64, String> = HashMap::new();
    let mut tracks = Vec::new();
    let mut timelines = Timelines::default();
    for (index, packet) in messages(&ran.stdout, 1).into_iter().enumerate() {
        // The first clears what a reader knows, and all need what came since.
        let flags = if index == 0 { 3 } else { 2 };
        assert_eq!(numbers(packet, 13), [flags]);
        for name in messages(packet, 12)
            .into_iter()
            .flat_map(|data| messages(data, 2))
        {
            names.insert(numbers(name, 1)[0], string(messages(name, 2)[0]));
        }
        for track in messages(packet, 60) {
            assert_eq!(numbers(messages(track, 4)[0], 2).len(), 1);
            tracks.push(numbers(track, 1)[0]);
        }
        for event in messages(packet, 11) {
            let track = numbers(event, 11)[0];
            assert!(tracks.contains(&track));
            let enters = match numbers(event, 9)[..] {
                [1] => Some(names[&numbers(event, 10)[0]].as_str()),
                [2] => None,
                ref other => panic!("{other:?}"),
            };
            timelines.event((track, 0), numbers(packet, 8)[0], enters);
        }
    }
    timelines.finish()
}

/// Numbers of one field that stand behind each other.
fn packed(mut bytes: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    while !bytes.is_empty() {
        numbers.push(prost::encoding::decode_varint(&mut bytes).expect("a number"));
    }
    numbers
}

fn pprof(ran: &Ran, unit: &str) -> Weights {
    let profile = ran.stdout.as_slice();
    let strings: Vec<String> = messages(profile, 6).into_iter().map(string).collect();
    assert_eq!(strings[0], "");
    let kind = messages(profile, 1);
    assert_eq!(kind.len(), 1);
    assert_eq!(strings[numbers(kind[0], 2)[0] as usize], unit);
    let by_id = |tag| -> HashMap<u64, &[u8]> {
        let all = messages(profile, tag).into_iter();
        all.map(|message| (numbers(message, 1)[0], message))
            .collect()
    };
    let (locations, functions) = (by_id(4), by_id(5));
    let mut weights = Weights::new();
    for sample in messages(profile, 2) {
        let stack = packed(messages(sample, 1)[0]);
        let line = messages(locations[&stack[0]], 4)[0];
        let function = functions[&numbers(line, 1)[0]];
        let name = &strings[numbers(function, 2)[0] as usize];
        add(&mut weights, name, packed(messages(sample, 2)[0])[0]);
    }
    weights
}

fn csv(ran: &Ran) -> Weights {
    let mut reader = csv::Reader::from_reader(ran.stdout.as_slice());
    let mut weights = Weights::new();
    for row in reader.deserialize::<HashMap<String, String>>() {
        let row = row.expect("a row");
        add(
            &mut weights,
            &row["call"],
            row["self_insns"].parse().expect("a number"),
        );
    }
    weights
}

/// What every format says functions weigh.
fn all(data: &Path, weight: &str, scratch: &Scratch) -> Vec<(&'static str, Weights)> {
    all_with(data, weight, &[], scratch)
}

fn all_with(
    data: &Path,
    weight: &str,
    more: &[&str],
    scratch: &Scratch,
) -> Vec<(&'static str, Weights)> {
    let more = [&["--weight", weight], more].concat();
    let export = |format| export(data, format, &more);
    let unit = if weight == "time" {
        "nanoseconds"
    } else {
        "count"
    };
    let mut all = vec![
        ("folded", folded(&export("folded"))),
        ("speedscope", speedscope(&export("speedscope"))),
        ("chrome", chrome(&export("chrome"))),
        ("firefox", firefox(&export("firefox"))),
        ("perfetto", perfetto(&export("perfetto"))),
        ("pprof", pprof(&export("pprof"), unit)),
    ];
    if let Some(weights) = callgrind(&export("callgrind"), scratch) {
        all.push(("callgrind", weights));
    }
    all
}

/// Every format has the instructions of each function that `cofi calls` has, and all have the same times.
fn agrees(source: &str) {
    let scratch = Scratch::new();
    let Some(data) = recorded(&scratch, source) else {
        return;
    };
    let wanted = called(&data);
    assert!(wanted.contains_key("main"), "{wanted:?}");
    for (format, weights) in all(&data, "insns", &scratch) {
        assert_eq!(weights, wanted, "{format} of {source}");
    }
    assert_eq!(csv(&export(&data, "csv", &[])), wanted, "csv of {source}");
    let times = all(&data, "time", &scratch);
    assert!(times[0].1.values().sum::<u64>() > 0);
    for (format, weights) in &times {
        assert_eq!(weights, &times[0].1, "time in {format} of {source}");
    }
    // The calls of this recording all have a time: timelines show it, and what adds up stacks has instructions.
    assert_eq!(speedscope(&export(&data, "speedscope", &[])), times[0].1);
    assert_eq!(folded(&export(&data, "folded", &[])), wanted);
}

/// Recursion whose trace has several PSBs.
const LONG: &str = r#"
__attribute__((noinline)) static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
int main(void) { return fib(19) == 1; }
"#;

/// Where the first calls have no time, because the first packets of time come later, a timeline begins at the first time that is known.
#[test]
fn first_calls_without_a_time() {
    let scratch = Scratch::new();
    let source = scratch.write("long.c", LONG);
    let Some(program) = scratch.compile(&source, &["-O1"]) else {
        return;
    };
    let data = scratch.path("data");
    let mut command = cofi();
    command.args(["record", "--engine", "ptrace", "--config"]);
    command.args(["tsc,mtc,psb_period=0", "-o"]).arg(&data);
    assert_eq!(run(command.arg("--").arg(program)).code(), 0);
    let mut bytes = std::fs::read(&data).expect("the recording");
    let dump = run(&mut json("dump", &[], &data)).text();
    let packets = dump.lines().map(|line| line.parse().expect("JSON"));
    let packets: Vec<Value> = packets.collect();
    let first = |packet: &Value| packet["packet"] == "psb" && packet["offset"] != 0;
    let before = packets.iter().take_while(|packet| !first(packet));
    let mut taken = 0;
    for packet in before.filter(|packet| packet["packet"] == "tsc") {
        // Padding takes the place of the TSC packets up to the second PSB. They are looked for: the file has other records between packets
        // if recording takes long.
        let payload = number(&packet["tsc"]).to_le_bytes();
        let of_file = |part: &[u8]| part[0] == 0x19 && part[1..] == payload[..7];
        let at = bytes.windows(8).position(of_file).expect("a TSC packet");
        bytes[at..at + 8].fill(0);
        taken += 1;
    }
    assert!(taken > 0);
    std::fs::write(&data, bytes).expect("writing");
    // (Its seal is broken, so each command says so, and ends with 1.)
    let calls = run(&mut json("calls", &[], &data)).text();
    let calls: Vec<Value> = calls
        .lines()
        .map(|line| line.parse().expect("JSON"))
        .collect();
    assert!(calls[0]["begin"].is_null(), "{}", calls[0]);
    let times = |key: &'static str| calls.iter().filter_map(move |call| call[key].as_u64());
    let begin = times("begin").chain(times("end")).min();
    let begin = begin.expect("calls with a time");
    let exported = |format: &str| {
        let mut command = cofi();
        command.args(["export", "--weight", "time", "-o", "-", "--to", format]);
        run(command.arg(&data))
    };
    let chrome_file = parsed(&exported("chrome"));
    let mut at = chrome_file["traceEvents"]
        .as_array()
        .expect("events")
        .iter()
        .filter_map(|event| event["ts"].as_f64())
        .map(|at| (at * 1000.0).round() as u64);
    let (shown, last) = (at.next().expect("an event"), at.next_back());
    let last = last.expect("several events");
    assert_eq!(shown, begin);
    assert!(last > begin, "{last}");
    let all = [
        ("folded", folded(&exported("folded"))),
        ("speedscope", speedscope(&exported("speedscope"))),
        ("chrome", chrome(&exported("chrome"))),
        ("firefox", firefox(&exported("firefox"))),
        ("perfetto", perfetto(&exported("perfetto"))),
        ("pprof", pprof(&exported("pprof"), "nanoseconds")),
    ];
    for (format, weights) in &all {
        assert_eq!(weights.values().sum::<u64>(), last - begin, "{format}");
        assert!(weights["fib"] > 0, "{format}");
    }
}

#[test]
fn recursion() {
    agrees("recursion.c");
}

#[test]
fn threads() {
    agrees("threads.c");
}

#[test]
fn longjmp() {
    agrees("jumps.c");
}

#[test]
fn signal_handlers() {
    agrees("handlers.c");
}

/// Stacks that add up are exact. A timeline shows one stack at a time, and what ran between a switch and the next call is shown on the stack
/// before it: the sum is the same.
#[test]
fn coroutines() {
    let scratch = Scratch::new();
    let Some(data) = recorded(&scratch, "coroutines.c") else {
        return;
    };
    let wanted = called(&data);
    let stacks = run(&mut json("calls", &[], &data)).text();
    assert!(stacks.contains("\"stack\":"), "there are coroutines");
    for (format, weights) in all(&data, "insns", &scratch) {
        match format {
            "folded" | "callgrind" | "pprof" => assert_eq!(weights, wanted, "{format}"),
            _ => assert_eq!(
                weights.values().sum::<u64>(),
                wanted.values().sum::<u64>(),
                "{format}"
            ),
        }
    }
}

/// With `--inline` every format has inlined functions as `cofi calls --inline` has them. What counts lines has none, and says so.
#[test]
fn inlined_functions() {
    let scratch = Scratch::new();
    let flags = ["-O2", "-g", "-fno-stack-protector"];
    let Some(data) = recorded_with(&scratch, "inlined.c", &flags) else {
        return;
    };
    let (wanted, plain) = (called_with(&data, &["--inline"]), called(&data));
    let sum = |weights: &Weights| weights.values().sum::<u64>();
    assert!(wanted.len() > plain.len(), "{wanted:?}");
    assert_eq!(sum(&wanted), sum(&plain));
    for (format, weights) in all_with(&data, "insns", &["--inline"], &scratch) {
        assert_eq!(weights, wanted, "{format}");
    }
    assert_eq!(csv(&export(&data, "csv", &["--inline"])), wanted, "csv");
    let mut command = cofi();
    let arguments = ["export", "--to", "lcov", "--inline", "-o", "-"];
    let ran = run(command.args(arguments).arg(&data));
    assert_eq!((ran.code(), ran.text().as_str()), (2, ""));
    assert!(ran.stderr.contains("--inline"), "{}", ran.stderr);
}

/// The picture is XML with a title for each function, and says what widths are.
#[test]
fn a_flame_graph() {
    let scratch = Scratch::new();
    let Some(data) = recorded(&scratch, "recursion.c") else {
        return;
    };
    let picture = export(&data, "svg", &["--weight", "insns"]).text();
    assert!(picture.starts_with("<?xml") && picture.trim_end().ends_with("</svg>"));
    assert!(picture.contains("by instructions"));
    let total: u64 = called(&data).values().sum();
    let mut grouped = total.to_string();
    for at in (1..grouped.len())
        .rev()
        .filter(|at| (grouped.len() - at).is_multiple_of(3))
        .collect::<Vec<_>>()
    {
        grouped.insert(at, ',');
    }
    let title = format!("<title>all ({grouped} instructions, 100%)</title>");
    assert!(picture.contains(&title), "{title}");
    assert!(picture.contains("<title>main ("));
}

/// A part of a recording is exported as `cofi calls` shows it, and one thread alone.
#[test]
fn a_part() {
    let scratch = Scratch::new();
    let Some(data) = recorded(&scratch, "threads.c") else {
        return;
    };
    let calls = |more: &[&str]| {
        let mut command = cofi();
        let ran = run(command.args(["calls", "--json"]).args(more).arg(&data));
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        let all = ran.text();
        let all = all
            .lines()
            .map(|line| -> Value { serde_json::from_str(line).expect("JSON") });
        all.collect::<Vec<Value>>()
    };
    let sum = |calls: &[Value]| {
        calls
            .iter()
            .map(|call| number(&call["self_insns"]))
            .sum::<u64>()
    };
    let whole = calls(&[]);
    let tid = number(&whole.last().expect("a call")["tid"]).to_string();
    let thread = calls(&["--tid", &tid]);
    let exported = folded(&export(
        &data,
        "folded",
        &["--weight", "insns", "--tid", &tid],
    ));
    assert!(thread.len() < whole.len());
    assert_eq!(exported.values().sum::<u64>(), sum(&thread));
    let part = calls(&["--from", "sym:main"]);
    let more = ["--weight", "insns", "--from", "sym:main"];
    let exported = folded(&export(&data, "folded", &more));
    assert_eq!(exported.values().sum::<u64>(), sum(&part));
    assert!(sum(&part) < sum(&whole));
}

#[test]
fn what_cannot_be_exported() {
    let scratch = Scratch::new();
    let data = scratch.write("data", "PERFILE2");
    let to = |format: &str, output: &Path| {
        let mut command = cofi();
        // Where cofi-sql is not to be found.
        command.env("PATH", "");
        command.args(["export", "--to", format, "-o"]);
        run(command.arg(output).arg(&data))
    };
    for (format, wanted) in [
        ("parquet", "needs the program cofi-sql"),
        ("gif", "no such format"),
        ("gif", "csv, lcov"),
    ] {
        let ran = to(format, &scratch.path("out"));
        assert_eq!(ran.code(), 2);
        assert!(ran.stderr.contains(wanted), "{}", ran.stderr);
        assert!(!scratch.path("out").exists());
    }
}

/// Counts of lines are those that `cofi coverage --lcov` writes, of the whole recording and of a part.
#[test]
fn lines() {
    let scratch = Scratch::new();
    let Some(data) = recorded(&scratch, "recursion.c") else {
        return;
    };
    let mut whole = Vec::new();
    for part in [&[][..], &["--from", "sym:deep"]] {
        let mut command = cofi();
        command
            .args(["coverage", "--lcov"])
            .arg(scratch.path("info"));
        let ran = run(command.args(part).arg(&data));
        assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
        let wanted = std::fs::read(scratch.path("info")).expect("the file");
        let got = export(&data, "lcov", part).stdout;
        assert!(got == wanted && got != whole, "{part:?}");
        assert!(got.starts_with(b"TN:\nSF:/"));
        whole = got;
    }
    let mut command = cofi();
    command.args(["export", "--to", "lcov", "--weight", "time", "-o", "-"]);
    let ran = run(command.arg(&data));
    assert_eq!((ran.code(), ran.text().as_str()), (2, ""));
    assert!(ran.stderr.contains("no weight"), "{}", ran.stderr);
}

/// The trace is never written over.
#[test]
fn the_trace_itself() {
    let scratch = Scratch::new();
    let Some(data) = recorded(&scratch, "recursion.c") else {
        return;
    };
    let before = std::fs::read(&data).expect("the trace");
    let mut command = cofi();
    command.args(["export", "--to", "folded", "-o"]);
    let ran = run(command.arg(&data).arg(&data));
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("is the trace itself"), "{}", ran.stderr);
    assert_eq!(std::fs::read(&data).expect("the trace"), before);
}

/// Who reads only the beginning, as `head` does, ends the command without a word.
#[test]
fn a_closed_pipe_is_no_error() {
    let scratch = Scratch::new();
    let Some(data) = recorded(&scratch, "recursion.c") else {
        return;
    };
    for format in ["csv", "svg", "folded", "speedscope", "chrome", "callgrind"] {
        let mut command = cofi();
        command
            .args(["export", "--to", format, "-o", "-"])
            .arg(&data);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ran = command.stdout(writer).output().expect("cofi");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!((ran.status.code(), &*said), (Some(0), ""), "{format}");
    }
}
