//! The examples in docs/ and in the README: streams assemble, commands print what the page says.

mod common;

use cofi_packet::intel::{BlockType, CfeType, EvdType, Kind, WakeReason};
use cofi_packet::{PacketKind, rtit};
use common::{Scratch, cofi, repository, run_with};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A fenced block: what stands behind the fence, and the lines.
struct Block {
    info: Vec<String>,
    text: String,
}

fn page(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).expect(name)
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let text = lines.by_ref().take_while(|line| *line != "```");
            blocks.push(Block {
                info: info.split_whitespace().map(str::to_owned).collect(),
                text: text.map(|line| line.to_owned() + "\n").collect(),
            });
        }
    }
    blocks
}

/// Runs a command line as a shell in `folder` does, and gives what it says.
fn shell(command: &str, folder: &Path) -> String {
    let output = in_shell(&format!("exec 2>&1; {command}"), folder).output();
    String::from_utf8(output.expect("a shell").stdout).expect("UTF-8")
}

fn in_shell(script: &str, folder: &Path) -> Command {
    let bin = PathBuf::from(env!("CARGO_BIN_EXE_cofi"));
    let mut path = bin.parent().expect("a folder").as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", script]);
    shell.env("PATH", path).current_dir(folder);
    shell
}

/// Runs a command that serves until it is interrupted, and ends it when it has said where. No browser is opened.
fn serves(command: &str, folder: &Path) {
    let script = format!("exec {command} --no-open");
    let server = in_shell(&script, folder).stdout(Stdio::piped()).spawn();
    let mut server = server.expect("a shell");
    let mut address = String::new();
    let out = server.stdout.take().expect("its output");
    let read = BufReader::new(out).read_line(&mut address);
    server.kill().expect("it runs until it is told to end");
    server.wait().expect("it ends");
    read.expect("UTF-8");
    assert!(
        address.starts_with("http://127.0.0.1:"),
        "{command}: {address}"
    );
}

/// Runs the commands of a `console` block, each after a `$`, and compares what they say with what follows it.
fn console(block: &Block, folder: &Path) {
    for part in format!("\n{}", block.text).split("\n$ ").skip(1) {
        let (command, wanted) = part.split_once('\n').unwrap_or((part, ""));
        let got = shell(command, folder);
        assert_eq!(got.trim_end(), wanted.trim_end(), "{command}");
    }
}

/// Assembles a stream; printed and assembled again, it must be the same.
fn assembles(block: &Block, options: &[&str]) {
    let asm = |text: &[u8]| {
        let ran = run_with(cofi().arg("asm").args(options).arg("-"), text);
        assert_eq!(ran.code(), 0, "{}\n{}", block.text, ran.stderr);
        ran.stdout
    };
    let bytes = asm(block.text.as_bytes());
    let dumped = run_with(cofi().arg("dump").args(options).arg("-"), &bytes);
    let has_bytes = block.text.contains(".byte");
    assert_eq!(dumped.code() != 0, has_bytes, "{}", dumped.text());
    assert_eq!(asm(&dumped.stdout), bytes, "{}", dumped.text());
}

/// Plays a scenario; one without operations gets one.
fn plays(block: &Block) {
    let mut text = block.text.clone();
    if !text.contains("[[op]]") {
        text += "[[op]]\nop = \"plain\"\n";
    }
    let ran = run_with(cofi().args(["unit", "run", "-"]), text.as_bytes());
    assert_eq!(ran.code(), 0, "{text}\n{}", ran.stderr);
}

fn check(name: &str) {
    let scratch = Scratch::new();
    let mut commands = 0;
    for block in blocks(&page(name)) {
        if let Some(file) = block
            .info
            .iter()
            .find_map(|word| word.strip_prefix("file="))
        {
            scratch.write(file, &block.text);
        }
        match block.info.first().map(String::as_str) {
            // Of a recording, whose numbers are others each time.
            Some("console") if block.info.get(1).is_some_and(|word| word == "recorded") => {}
            Some("console") => {
                console(&block, &scratch.path(""));
                commands += 1;
            }
            Some("pt") => assembles(&block, &["--format", "pt"]),
            Some("rtit") => assembles(&block, &["--format", "rtit"]),
            Some("rtit-cycles") => {
                assembles(&block, &["--format", "rtit", "--cycle-accurate"]);
            }
            Some("toml") => plays(&block),
            // (Python's run in the tests of the module.)
            Some("pt-wrong" | "sh" | "python") => {}
            other => panic!("{name}: a block of {other:?}, which nothing checks"),
        }
    }
    assert!(commands > 0, "{name} shows no command");
}

#[test]
fn text_form() {
    check("docs/text-form.md");
}

#[test]
fn dump() {
    check("docs/dump.md");
}

#[test]
fn scenarios() {
    check("docs/scenarios.md");
}

#[test]
fn readme() {
    check("README.md");
}

/// What the README's examples record: a server that does its work, and then crashes.
const SERVER: &str = r#"
__attribute__((noinline)) static int parse(volatile int *n) { for (int i = 0; i < 100; i++) *n += i; return *n; }
__attribute__((noinline)) static int handle_request(volatile int *n) { return parse(n) + parse(n) + 1; }
__attribute__((noinline)) static int send_reply(volatile int *n) { for (int i = 0; i < 100; i++) *n ^= i; return *n; }
__attribute__((noinline)) static int finish(volatile int *n) { return parse(n) + *(volatile int *)0x10; }
int main(void) { volatile int n = 0; return handle_request(&n) + send_reply(&n) + finish(&n); }
"#;

/// A line without what differs from one recording, or one compiler, to the next: numbers, units of time, spaces.
fn without_numbers(line: &str) -> String {
    let (mut text, mut rest) = (String::new(), line);
    while let Some(first) = rest.chars().next() {
        let offset = rest.strip_prefix('+').unwrap_or(rest);
        let hexadecimal = offset.strip_prefix("0x");
        if let Some(digits) = hexadecimal {
            rest = digits.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        } else if first.is_ascii_digit() {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, ',' | '.'));
        } else {
            text.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    let words = text.split_whitespace();
    let words: Vec<&str> = words
        .filter(|word| !matches!(*word, "ns" | "µs" | "ms"))
        .collect();
    words.join(" ")
}

/// Runs the commands of a page's blocks that are about a recording, in the folder where that is, and compares what they say. How many there are.
fn recorded(name: &str, folder: &Path) -> usize {
    let mut commands = 0;
    for block in blocks(&page(name)) {
        let is_recorded = block.info.get(1).is_some_and(|word| word == "recorded");
        if !is_recorded || block.info.first().is_none_or(|info| info != "console") {
            continue;
        }
        for part in format!("\n{}", block.text).split("\n$ ").skip(1) {
            let (command, wanted) = part.split_once('\n').unwrap_or((part, ""));
            let path = format!("{}/", folder.display().to_string().trim_end_matches('/'));
            let got = shell(command, folder).replace(&path, "");
            let mut rest = got.lines().map(without_numbers);
            // The lines are there in this order; a line of dots stands for others.
            for line in wanted.lines().filter(|line| *line != "…") {
                let line = without_numbers(line);
                assert!(rest.any(|got| got == line), "{command}: {line:?} in\n{got}");
            }
            commands += 1;
        }
    }
    commands
}

#[test]
fn recorded_examples_of_the_readme() {
    let scratch = Scratch::new();
    let source = scratch.write("server.c", SERVER.trim_start());
    let flags = ["-g", "-O1", "-static"];
    if scratch.compile(&source, &flags).is_none() {
        return;
    }
    let folder = scratch.path("");
    shell("cofi record --engine ptrace ./server", &folder);
    assert_eq!(recorded("README.md", &folder), 6);
}

/// Each question has a command, and that says what the page says.
#[test]
fn questions() {
    let scratch = Scratch::new();
    let page_of = page("docs/questions.md");
    let blocks = blocks(&page_of);
    let source = blocks
        .iter()
        .find(|block| block.info.first().is_some_and(|info| info == "c"));
    let source = scratch.write("shop.c", &source.expect("the program").text);
    let folder = scratch.path("");
    if scratch
        .compile(&source, &["-g", "-O0", "-static"])
        .is_none()
    {
        return;
    }
    shell("cofi record --engine ptrace ./shop", &folder);
    let questions = page_of
        .lines()
        .filter(|line| line.starts_with("## "))
        .count();
    assert!(questions >= 20, "{questions} questions");
    assert_eq!(recorded("docs/questions.md", &folder), questions);
}

#[test]
fn commands_of_the_readme() {
    // They want another machine, or what is not there everywhere.
    const NOT_HERE: [&str; 6] = [
        "--engine qemu",
        "--format rtit",
        "corpus/",
        "cofi machine",
        "cofi sql",
        "--to parquet",
    ];
    let scratch = Scratch::new();
    let source = scratch.write("server.c", SERVER);
    if scratch.compile(&source, &["-O1", "-static"]).is_none() {
        return;
    }
    scratch.write(
        "notes.txt",
        "A few words, of which there are some more.\n".repeat(50),
    );
    let mut count = 0;
    for block in blocks(&page("README.md")) {
        if block.info.first().is_none_or(|info| info != "sh") {
            continue;
        }
        for line in block.text.lines() {
            let command = line.split(" #").next().unwrap_or_default();
            let is_here = !NOT_HERE.iter().any(|words| command.contains(words));
            if !(command.starts_with("cofi ") && is_here) {
                continue;
            }
            count += 1;
            if command.starts_with("cofi serve") {
                serves(command, &scratch.path(""));
                continue;
            }
            let _ = std::fs::remove_file(scratch.path("notes.txt.gz"));
            let said = shell(&format!("{command}; echo \"status $?\""), &scratch.path(""));
            let status = said
                .lines()
                .next_back()
                .and_then(|last| last.strip_prefix("status "));
            let wanted = if command.contains("./server") {
                "139"
            } else {
                "0"
            };
            assert_eq!(status, Some(wanted), "{command}:\n{said}");
        }
    }
    assert!(count > 8, "{count} commands");
}

/// The packets that the examples of one format have.
fn shown(page: &str, format: &str) -> Vec<String> {
    blocks(page)
        .iter()
        .filter(|block| block.info.first().is_some_and(|info| info == format))
        .flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>())
        .flat_map(|line| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            words
        })
        .collect()
}

#[test]
fn every_packet_and_every_name_is_there() {
    let page = page("docs/text-form.md");
    let has = |format: &str, name: &str| {
        let is_there = shown(&page, format).iter().any(|word| word == name);
        assert!(is_there, "no example of {format} {name}");
    };
    for kind in Kind::ALL {
        has("pt", kind.name());
    }
    for kind in <rtit::Kind as PacketKind>::ALL {
        has("rtit", kind.name());
        has("rtit-cycles", kind.name());
    }
    let cfe = CfeType::NAMED.iter().filter_map(|value| value.name());
    let evd = EvdType::NAMED.iter().filter_map(|value| value.name());
    let bbp = BlockType::NAMED.iter().filter_map(|value| value.name());
    let wake = WakeReason::NAMED.iter().filter_map(|value| value.name());
    for name in cfe.chain(evd).chain(bbp).chain(wake) {
        assert!(page.contains(&format!("`{name}`")), "{name} is not listed");
    }
}
