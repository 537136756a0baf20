//! `cofi coverage`: counts of lines, functions and branches beside those of gcov and llvm-cov.

mod common;

use common::{Scratch, cofi, record, repository, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program, its recording, and the source.
struct Recorded {
    scratch: Scratch,
    program: PathBuf,
    data: PathBuf,
    source: String,
}

/// Compiles the program that has lines of every shape, and records it; none where that is not possible.
#[track_caller]
fn recorded(flags: &[&str]) -> Option<Recorded> {
    let scratch = Scratch::new();
    let path = repository().join("crates/cofi/tests/coverage/counted.c");
    let program = scratch.compile(&path, flags)?;
    let data = scratch.path("data");
    let ran = run(record(&data, None).arg("--").arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    Some(Recorded {
        source: std::fs::read_to_string(&path).expect("the source"),
        scratch,
        program,
        data,
    })
}

fn coverage(arguments: &[&str], data: &[&Path]) -> Vec<Value> {
    let ran = run(cofi()
        .args(["coverage", "--json", "--source", "counted.c"])
        .args(arguments)
        .args(data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let parse = |line: &str| serde_json::from_str(line).expect("JSON");
    ran.text().lines().map(parse).collect()
}

/// The count of each line.
fn lines(objects: &[Value]) -> BTreeMap<u64, u64> {
    let lines = objects.iter().filter(|object| object["count"].is_u64());
    lines
        .map(|line| {
            (
                line["line"].as_u64().unwrap(),
                line["count"].as_u64().unwrap(),
            )
        })
        .collect()
}

/// What a program prints in a folder; skips where it is missing.
#[track_caller]
fn output(program: &str, arguments: &[&str], folder: &Path) -> Option<String> {
    if !cofi_test::has_program(program) {
        return None;
    }
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect(program);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {errors}");
    Some(text)
}

/// The counts of gcov's listing: `COUNT: LINE:TEXT`, `#####` for 0.
fn of_gcov(listing: &str) -> BTreeMap<u64, u64> {
    let line = |line: &str| {
        let (count, rest) = line.split_once(':')?;
        let number = rest.split_once(':')?.0.trim().parse().ok()?;
        let count = match count.trim().trim_end_matches('*') {
            "#####" => 0,
            count => count.parse().ok()?,
        };
        (number != 0).then_some((number, count))
    };
    listing.lines().filter_map(line).collect()
}

/// Every line that has code is counted as gcov counts it.
#[test]
fn lines_are_counted_as_gcov_does() {
    let Some(recorded) = recorded(&["-g", "--coverage", "-O0"]) else {
        return;
    };
    let folder = recorded.scratch.path("");
    let Some(listing) = output("gcov", &["-t", "counted.gcno"], &folder) else {
        return;
    };
    let (wanted, got) = (of_gcov(&listing), lines(&coverage(&[], &[&recorded.data])));
    let mut compared = 0;
    for (line, count) in &wanted {
        let text = recorded
            .source
            .lines()
            .nth(*line as usize - 1)
            .unwrap_or("");
        match got.get(line) {
            Some(found) => {
                assert_eq!(found, count, "line {line}: {text}");
                compared += 1;
            }
            // A label has no code of its own.
            None => assert!(text.trim_end().ends_with(':'), "line {line}: {text}"),
        }
    }
    assert!(compared > 45, "{compared}");
    // What gcov does not count is the end of a function.
    for line in got.keys().filter(|line| !wanted.contains_key(line)) {
        let text = recorded.source.lines().nth(*line as usize - 1);
        assert_eq!(text, Some("}"), "line {line}");
    }
}

/// Every line that llvm-cov counts and that has code is counted as there, but for two loops on one line, of which llvm-cov counts the one that
/// went round more often.
#[test]
fn lines_are_counted_as_llvm_cov_does() {
    for program in ["clang", "llvm-profdata", "llvm-cov"] {
        if !cofi_test::has_program(program) {
            return;
        }
    }
    let scratch = Scratch::new();
    let source = repository().join("crates/cofi/tests/coverage/counted.c");
    let text = std::fs::read_to_string(&source).expect("the source");
    let program = scratch.path("counted");
    let built = Command::new("clang")
        .args([
            "-g",
            "-O0",
            "-w",
            "-fprofile-instr-generate",
            "-fcoverage-mapping",
        ])
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .expect("clang");
    if !built.status.success() {
        cofi_test::skip("clang has no library for its counters");
        return;
    }
    let data = scratch.path("data");
    let mut command = record(&data, None);
    command.env("LLVM_PROFILE_FILE", scratch.path("raw"));
    let ran = run(command.arg("--").arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let folder = scratch.path("");
    output("llvm-profdata", &["merge", "raw", "-o", "prof"], &folder);
    let arguments = ["export", "-format=lcov", "counted", "-instr-profile=prof"];
    let listing = output("llvm-cov", &arguments, &folder).expect("llvm-cov is there");
    let wanted = listing.lines().filter_map(|line| {
        let mut numbers = line.strip_prefix("DA:")?.split(',');
        let mut next = || numbers.next()?.parse::<u64>().ok();
        Some((next()?, next()?))
    });
    let wanted: BTreeMap<u64, u64> = wanted.collect();
    let mut compared = 0;
    for (line, count) in lines(&coverage(&[], &[&data])) {
        let text = text.lines().nth(line as usize - 1).unwrap_or("");
        if let Some(wanted) = wanted.get(&line)
            && text.matches("for (").count() < 2
        {
            assert_eq!(count, *wanted, "line {line}: {text}");
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared}");
}

/// Recordings add up, wherever the program was loaded; with debugging information in a file of its own; and into however many segments they are
/// cut.
#[test]
fn recordings_add_up() {
    let Some(recorded) = recorded(&["-g", "-O0"]) else {
        return;
    };
    let Recorded { scratch, data, .. } = &recorded;
    let one = coverage(&[], &[data]);
    assert_eq!(coverage(&["-j", "3", "--segment", "1000"], &[data]), one);
    let second = scratch.path("second");
    let ran = run(record(&second, None)
        .arg("--")
        .arg(&recorded.program)
        .arg("x"));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let both = lines(&coverage(&[], &[data, &second]));
    let (one, two) = (lines(&one), lines(&coverage(&[], &[&second])));
    assert_eq!(one.len(), both.len());
    for (line, count) in &both {
        assert_eq!(*count, one[line] + two[line], "line {line}");
    }
    assert_ne!(one, two);
    if !cofi_test::has_program("objcopy") {
        return;
    }
    let folder = scratch.path("");
    output(
        "objcopy",
        &["--only-keep-debug", "counted", "counted.debug"],
        &folder,
    );
    let arguments = [
        "--strip-all",
        "--add-gnu-debuglink=counted.debug",
        "counted",
    ];
    output("objcopy", &arguments, &folder);
    assert_eq!(lines(&coverage(&[], &[data, &second])), both);
}

/// Which functions never ran, how often others did, and both outcomes of a branch.
#[test]
fn functions_and_branches() {
    let Some(recorded) = recorded(&["-g", "-O0"]) else {
        return;
    };
    let objects = coverage(&[], &[&recorded.data]);
    let functions = objects
        .iter()
        .filter(|object| object["function"].is_string());
    let calls: BTreeMap<&str, u64> = functions
        .map(|object| {
            let name = object["function"].as_str().unwrap();
            (name, object["calls"].as_u64().unwrap())
        })
        .collect();
    let of = |name: &str| calls.get(name).copied();
    assert_eq!(
        (of("main"), of("collatz"), of("fact")),
        (Some(1), Some(50), Some(6))
    );
    assert_eq!(
        (of("never"), of("kind"), calls.len()),
        (Some(0), Some(43), 7)
    );
    let text = |line: &Value| {
        let number = line["line"].as_u64().unwrap() as usize;
        recorded.source.lines().nth(number - 1).unwrap().trim()
    };
    let branch = |wanted: &str| {
        let line = objects
            .iter()
            .find(|object| object["count"].is_u64() && text(object) == wanted);
        line.unwrap_or_else(|| panic!("{wanted}"))["branches"].clone()
    };
    let outcomes =
        |taken: u64, not_taken: u64| serde_json::json!([{"taken": taken, "not_taken": not_taken}]);
    // -O0 jumps over what a condition guards.
    assert_eq!(branch("if (k++ < 3)"), outcomes(1, 3));
    assert_eq!(branch("if (x > 3)"), outcomes(0, 0));
    let ran = run(cofi().arg("coverage").arg(&recorded.data));
    let text = ran.text();
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    assert!(text.contains("1 function never ran:\n  never  "), "{text}");
}

/// lcov and genhtml read what is written for them.
#[test]
fn lcov_reads_what_is_written() {
    let Some(recorded) = recorded(&["-g", "-O0"]) else {
        return;
    };
    let folder = recorded.scratch.path("");
    let (lcov, xml) = (folder.join("out.info"), folder.join("out.xml"));
    let ran = run(cofi()
        .args(["coverage", "--source", "counted.c", "--lcov"])
        .arg(&lcov)
        .arg("--cobertura")
        .arg(&xml)
        .arg(&recorded.data));
    assert_eq!(
        (ran.code(), ran.stderr.as_str(), ran.text().as_str()),
        (0, "", "")
    );
    let objects = coverage(&[], &[&recorded.data]);
    let wanted = lines(&objects);
    let written = std::fs::read_to_string(&lcov).expect("the file");
    let counts = written.lines().filter_map(|line| {
        let (line, count) = line.strip_prefix("DA:")?.split_once(',')?;
        Some((line.parse().ok()?, count.parse().ok()?))
    });
    assert_eq!(counts.collect::<BTreeMap<u64, u64>>(), wanted);
    let xml = std::fs::read_to_string(&xml).expect("the file");
    let hits = xml.lines().filter_map(|line| {
        let (line, rest) = line.strip_prefix("<line number=\"")?.split_once('"')?;
        let count = rest.strip_prefix(" hits=\"")?.split_once('"')?.0;
        Some((line.parse().ok()?, count.parse().ok()?))
    });
    assert_eq!(hits.collect::<BTreeMap<u64, u64>>(), wanted);
    let ran = wanted.values().filter(|count| **count > 0).count();
    if let Some(summary) = output("lcov", &["--summary", "out.info"], &folder) {
        let line = format!("({ran} of {} lines)", wanted.len());
        assert!(summary.contains(&line), "{summary}");
        assert!(summary.contains("(6 of 7 functions)"), "{summary}");
        output("genhtml", &["out.info", "-o", "html"], &folder);
    }
}

/// The map of AFL is the one that follows from the list of instructions, by AFL's own rule.
#[test]
fn steps_between_blocks_are_those_of_the_list_of_instructions() {
    let scratch = Scratch::new();
    let source = repository().join("crates/cofi/tests/coverage/counted.c");
    let Some(program) = scratch.compile(&source, &["-O1", "-static", "-no-pie"]) else {
        return;
    };
    let data = scratch.path("data");
    let ran = run(record(&data, Some("psb_period=0")).arg("--").arg(&program));
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    let list = run(cofi()
        .args(["insn", "--json", "--disasm", "--symbols"])
        .arg(&data));
    let salt = "counted".bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let salt = salt ^ salt >> 16;
    let (mut counts, mut before, mut begins) = (vec![0_u64; 1 << 16], 0_u16, true);
    for line in list.text().lines() {
        let insn: Value = serde_json::from_str(line).expect("JSON");
        let Some(ip) = insn["insn"].as_str() else {
            // A block ends where something else happens. (The recorder switches tracing off and on twice a second, in the midst of a block, too.)
            begins = true;
            continue;
        };
        let ip = u64::from_str_radix(&ip[2..], 16).expect("an address");
        if begins
            && insn["file"]
                .as_str()
                .is_some_and(|file| file.ends_with("counted"))
        {
            let block = (ip >> 4 ^ ip << 8 ^ u64::from(salt)) as u16;
            counts[usize::from(block ^ before >> 1)] += 1;
            before = block;
        }
        let text = insn["disasm"].as_str().expect("a text");
        let word = text.split(' ').next().unwrap_or("");
        let word = if word == "bnd" || word == "notrack" {
            text.split(' ').nth(1).unwrap()
        } else {
            word
        };
        begins = word.starts_with('j') || ["call", "ret", "syscall", "loop"].contains(&word);
    }
    let steps = counts.iter().filter(|count| **count > 0).count();
    assert!(steps > 500, "{steps}");
    let map = scratch.path("map");
    for more in [&[][..], &["-j", "3", "--segment", "1000"]] {
        let ran = run(cofi()
            .args(["coverage", "--afl"])
            .arg(&map)
            .args(more)
            .arg(&data));
        assert_eq!(
            (ran.code(), ran.stderr.as_str(), ran.text().as_str()),
            (0, "", "")
        );
        let got = std::fs::read(&map).expect("the map");
        let wanted = counts
            .iter()
            .map(|count| u8::try_from(*count).unwrap_or(255));
        assert!(got == wanted.collect::<Vec<u8>>(), "{more:?}");
    }
}
