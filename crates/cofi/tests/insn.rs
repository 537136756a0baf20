//! `cofi insn`: what it tells of instructions beside their addresses, and which part of a trace it shows.

mod common;

use common::{Ran, STATIC, Scratch, cofi, json, record, run};
use serde_json::Value;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A recording with many PSBs, and all that `--json --time` tells of it.
struct Recorded {
    _scratch: Scratch,
    data: PathBuf,
    program: PathBuf,
    timed: Vec<Value>,
}

/// Recorded once for the tests that run beside each other; nothing where programs cannot be built. The last of them removes it.
fn recorded() -> Option<Arc<Recorded>> {
    static RECORDED: Mutex<Weak<Recorded>> = Mutex::new(Weak::new());
    // Each test has a thread of its own.
    thread_local!(static HELD: RefCell<Option<Arc<Recorded>>> = const { RefCell::new(None) });
    let mut shared = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(recorded) = shared.upgrade() {
        HELD.set(Some(Arc::clone(&recorded)));
        return Some(recorded);
    }
    let scratch = Scratch::new();
    let program = scratch.program("static.c", STATIC)?;
    let data = scratch.path("data");
    let ran = run(record(&data, Some("cyc,psb_period=0"))
        .arg("--")
        .arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let timed = items(&["--time"], &data);
    let recorded = Arc::new(Recorded {
        _scratch: scratch,
        data,
        program,
        timed,
    });
    *shared = Arc::downgrade(&recorded);
    HELD.set(Some(Arc::clone(&recorded)));
    Some(recorded)
}

fn lines(ran: &Ran) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    ran.text().lines().map(parse).collect()
}

fn ran(options: &[&str], data: &std::path::Path) -> Ran {
    let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    let ran = run(&mut json("insn", &options, data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""), "{options:?}");
    ran
}

fn items(options: &[&str], data: &std::path::Path) -> Vec<Value> {
    lines(&ran(options, data))
}

fn insn(item: &Value) -> Option<&str> {
    item["insn"].as_str()
}

fn instructions(items: &[Value]) -> Vec<&str> {
    items.iter().filter_map(insn).collect()
}

#[test]
fn time_of_each_item() {
    let Some(recorded) = recorded() else { return };
    let mut last = 0;
    for item in &recorded.timed {
        let tsc = item["tsc"].as_u64().expect("the trace has TSC packets");
        assert!(tsc >= last, "{item}");
        last = tsc;
        // The recorder's clock: two ticks a nanosecond.
        assert_eq!(item["time"].as_u64(), Some(tsc / 2), "{item}");
        assert!(item["tsc_uncertainty"].is_u64() || item["tsc_uncertainty"].is_null());
    }
    let plain = items(&[], &recorded.data);
    assert_eq!(plain.len(), recorded.timed.len());
    assert_eq!(instructions(&plain), instructions(&recorded.timed));
    let first = recorded.timed[0]["tsc"].as_u64().expect("a time");
    // Two ticks an instruction, and the kernel's share.
    assert!(last - first >= 2 * instructions(&plain).len() as u64 - 2000);
}

/// `nm` of the program: the function that begins at each address.
fn functions(program: &std::path::Path) -> Option<Vec<(u64, String)>> {
    let output = Command::new("nm").arg(program).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((address, words.nth(1)?.to_owned()))
    };
    Some(text.lines().filter_map(line).collect())
}

#[test]
fn symbols_bytes_and_text() {
    let Some(recorded) = recorded() else { return };
    let items = items(&["--symbols", "--disasm", "--bytes"], &recorded.data);
    assert_eq!(instructions(&items), instructions(&recorded.timed));
    let in_main: Vec<&Value> = items
        .iter()
        .filter(|item| item["symbol"] == "main")
        .collect();
    assert!(in_main.len() > 1000, "{}", in_main.len());
    if let Some(functions) = functions(&recorded.program) {
        let (start, _) = functions
            .iter()
            .find(|(_, name)| name == "main")
            .expect("a main function");
        for item in &in_main {
            let offset = item["symbol_offset"].as_u64().expect("an offset");
            assert_eq!(insn(item), Some(format!("{:#x}", start + offset).as_str()));
            assert_eq!(item["file"], recorded.program.to_str().expect("UTF-8"));
        }
    } else {
        cofi_test::skip("no nm to compare with");
    }
    let syscall = items
        .iter()
        .find(|item| item["disasm"] == "syscall")
        .expect("a system call");
    assert_eq!(syscall["bytes"], "0f05");
    for item in items.iter().filter(|item| insn(item).is_none()) {
        assert!(item["disasm"].is_null() && item["file"].is_null(), "{item}");
    }
    // The same as text.
    let text = run(cofi()
        .args(["insn", "--time", "--symbols", "--bytes"])
        .arg(&recorded.data));
    assert_eq!(text.code(), 0);
    assert_eq!(text.text().lines().count(), items.len());
    let line = text.text();
    let line = line
        .lines()
        .find(|line| line.ends_with(" syscall"))
        .expect("a system call");
    assert!(
        line.contains(" 0f05 ") && line.contains(" static "),
        "{line}"
    );
    assert!(
        line.contains(" ±") && line.trim_start().starts_with("0.0"),
        "{line}"
    );
}

#[test]
fn a_part_by_time_offset_and_address() {
    let Some(recorded) = recorded() else { return };
    let all = &recorded.timed;
    let time = |item: &Value| item["time"].as_u64().expect("a time");
    let (first, last) = (time(&all[0]), time(all.last().expect("items")));
    for part in [2, 3, 5, 7] {
        let from = first + (last - first) / part;
        let to = from + (last - first) / 20;
        let wanted: Vec<&Value> = all
            .iter()
            .filter(|item| (from..to).contains(&time(item)))
            .filter(|item| insn(item).is_some())
            .collect();
        assert!(!wanted.is_empty());
        for points in [
            (format!("time:{from}ns"), format!("time:{to}ns")),
            (format!("time:0.{from:09}"), format!("time:0.{to:09}s")),
            (format!("tsc:{}", 2 * from), format!("tsc:{:#x}", 2 * to)),
        ] {
            let options = ["--time", "--from", &points.0, "--to", &points.1];
            let got = items(&options, &recorded.data);
            let got: Vec<&Value> = got.iter().filter(|item| insn(item).is_some()).collect();
            let first = got
                .iter()
                .zip(&wanted)
                .position(|(got, wanted)| got != wanted);
            assert_eq!((first, got.len()), (None, wanted.len()), "{points:?}");
        }
    }
    // Parts by offset put together are the whole, wherever it is cut.
    let plain = ran(&[], &recorded.data).stdout;
    for cut in [1, 17, 1000, 2345, 4096, 1_u64 << 40] {
        let point = format!("offset:{cut:#x}");
        let before = run(cofi()
            .args(["insn", "--json", "--to", &point])
            .arg(&recorded.data));
        let after = run(cofi()
            .args(["insn", "--json", "--from", &point])
            .arg(&recorded.data));
        assert!(
            [&before.stdout[..], &after.stdout].concat() == plain,
            "{point}"
        );
        // Nothing is there: said, but no error.
        for ran in [before, after] {
            assert_eq!(ran.stderr.is_empty(), cut != 1 << 40, "{}", ran.stderr);
            assert_eq!(ran.code(), 0);
        }
    }
    let middle = instructions(all)[instructions(all).len() / 2];
    let point = format!("ip:{middle}");
    let got = items(&["--from", &point], &recorded.data);
    let first = instructions(all).iter().position(|ip| *ip == middle);
    assert_eq!(instructions(&got), instructions(all)[first.expect("it")..]);
    let got = items(&["--to", &point], &recorded.data);
    assert_eq!(instructions(&got), instructions(all)[..=first.expect("it")]);
}

#[test]
fn around_a_point() {
    let Some(recorded) = recorded() else { return };
    let all = instructions(&recorded.timed);
    for (index, context) in [(all.len() / 2, 5), (all.len() / 3, 3000), (2, 10), (0, 1)] {
        let first = all.iter().position(|ip| *ip == all[index]).expect("it");
        let point = format!("ip:{}", all[first]);
        let count = context.to_string();
        let got = items(&["--around", &point, "-C", &count], &recorded.data);
        let wanted = &all[first.saturating_sub(context)..(first + context).min(all.len())];
        assert_eq!(instructions(&got), wanted, "{point} -C {count}");
    }
    // A point that decoding begins near: as far back as is needed.
    let timed = &recorded.timed;
    let time = timed[timed.len() / 2]["time"].as_u64().expect("a time");
    let is_before = |item: &&Value| item["time"].as_u64() < Some(time);
    let index = timed.iter().take_while(is_before).filter_map(insn).count();
    let got = items(
        &[
            "--around",
            &format!("time:{time}ns"),
            "-C",
            "2000",
            "--time",
        ],
        &recorded.data,
    );
    // Times are estimates, which may differ a little (within their bounds) by where decoding began, and so may the place.
    let addresses = instructions(&got);
    let mut near = (index - 100..index + 100).map(|index| &all[index - 2000..index + 2000]);
    assert!(near.any(|wanted| addresses == wanted), "{time} {index}");
    let before = got.iter().take_while(is_before).filter_map(insn).count();
    assert_eq!(before, 2000);
    let none = items(
        &["--around", &format!("time:{time}ns"), "-C", "0"],
        &recorded.data,
    );
    assert_eq!(instructions(&none).len(), 0);
}

#[test]
fn threads_are_told_and_chosen() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("threads.c", STATIC) else {
        return;
    };
    let data = scratch.path("data");
    let recording = run(record(&data, None).arg("--").arg(program));
    assert!(
        recording.stderr.contains("verified"),
        "{}",
        recording.stderr
    );
    let all = items(&[], &data);
    let tids: std::collections::BTreeSet<u64> = all
        .iter()
        .map(|item| item["tid"].as_u64().expect("every object says whose it is"))
        .collect();
    assert!(tids.len() > 1, "{tids:?}");
    let mut count = 0;
    for tid in &tids {
        for more in [&[][..], &["--symbols"]] {
            let tid_text = tid.to_string();
            let options = [&["--tid", &tid_text], more].concat();
            let own = items(&options, &data);
            let wanted = all.iter().filter(|item| item["tid"] == *tid);
            assert!(own.iter().map(insn).eq(wanted.map(insn)), "{tid}");
            count += own.len();
        }
    }
    assert_eq!(count, 2 * all.len());
    for wrong in [["--tid", "0"], ["--cpu-stream", "3"]] {
        let ran = run(cofi().args(["insn", "--json"]).args(wrong).arg(&data));
        assert_eq!((ran.code(), ran.stdout.len()), (2, 0));
        assert!(
            ran.stderr.contains("the trace has thread"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn wrong_points_are_told() {
    let Some(recorded) = recorded() else { return };
    for wrong in [
        &["--from", "12"][..],
        &["--to", "time:soon"],
        &["-C", "3"],
        &["--around", "ip:0x1", "--from", "tsc:1"],
    ] {
        let ran = run(cofi().arg("insn").args(wrong).arg(&recorded.data));
        assert_eq!((ran.code(), ran.stdout.len()), (2, 0), "{wrong:?}");
    }
    // Bare packets do not say how the counter converts.
    let raw = recorded._scratch.write("raw", [0; 64]);
    let ran = run(cofi()
        .args(["insn", "--from", "time:1", "--format", "pt"])
        .arg(&raw));
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("use tsc:N"), "{}", ran.stderr);
}

/// What `addr2line` says of these addresses.
fn addr2line(program: &std::path::Path, addresses: &[&str]) -> Option<Vec<String>> {
    let output = Command::new("addr2line")
        .arg("-e")
        .arg(program)
        .args(addresses)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    // Behind the line may stand a discriminator.
    let word = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    Some(text.lines().map(word).collect())
}

#[test]
fn source_lines() {
    let scratch = Scratch::new();
    let Some(program) = scratch.program("static.c", &["-g", "-O1", "-static"]) else {
        return;
    };
    let data = scratch.path("data");
    let recording = run(record(&data, None).arg("--").arg(&program));
    assert!(
        recording.stderr.contains("verified"),
        "{}",
        recording.stderr
    );
    let all = items(&["--symbols", "--source"], &data);
    let own: Vec<&Value> = all
        .iter()
        .filter(|item| {
            ["main", "checksum", "by_value"]
                .map(Value::from)
                .contains(&item["symbol"])
        })
        .collect();
    assert!(own.len() > 1000, "{}", own.len());
    for item in &own {
        let source = item["source"].as_str().expect("a file");
        assert!(source.ends_with("exam/programs/static.c"), "{item}");
    }
    let mut addresses: Vec<&str> = own.iter().copied().filter_map(insn).collect();
    addresses.sort_unstable();
    addresses.dedup();
    match addr2line(&program, &addresses) {
        None => cofi_test::skip("no addr2line to compare with"),
        Some(wanted) => {
            for (address, wanted) in addresses.iter().zip(wanted) {
                let item = own.iter().find(|item| insn(item) == Some(*address));
                let item = item.expect("it ran");
                let line = item["line"]
                    .as_u64()
                    .map_or("?".into(), |line| line.to_string());
                let (file, number) = wanted.rsplit_once(':').expect("FILE:LINE");
                assert_eq!(line, number, "{item}");
                assert!(file.ends_with("static.c") && item["source"].is_string());
            }
        }
    }
    let text = run(cofi().args(["insn", "--source"]).arg(&data)).text();
    assert!(text.contains(" ; static.c:"));
}
