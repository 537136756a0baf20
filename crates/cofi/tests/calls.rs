//! `cofi calls` beside programs that keep a list of their own calls.

#[path = "common/cases.rs"]
mod cases;
mod common;

use common::{Scratch, cofi, has_qemu, json, repository, run};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A call as a program sees it: the function, the one of its functions around it, how many are around it.
type Seen = (u64, u64, usize);

/// What a program logged, by thread.
fn logged(path: &Path) -> HashMap<u64, Vec<Seen>> {
    let text = std::fs::read_to_string(path).expect("the program's list");
    let mut threads: HashMap<u64, Vec<Seen>> = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let hex = |at: usize| u64::from_str_radix(words[at], 16).expect("an address");
        let tid = words[3].parse().expect("a thread");
        let seen = (hex(0), hex(1), words[2].parse().expect("a depth"));
        threads.entry(tid).or_default().push(seen);
    }
    threads
}

fn calls(data: &Path, options: &[&str]) -> Vec<Value> {
    let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    let ran = run(&mut json("calls", &options, data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    ran.text().lines().map(parse).collect()
}

fn address(value: &Value) -> u64 {
    let text = value.as_str().expect("an address");
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hexadecimal")
}

/// The same of the calls that were reconstructed, of those functions alone that the program knows of.
fn reconstructed(calls: &[Value], known: &HashSet<u64>) -> HashMap<u64, Vec<Seen>> {
    let mut threads: HashMap<u64, Vec<Seen>> = HashMap::new();
    let mut open: HashMap<(u64, u64), Vec<(u64, u64)>> = HashMap::new();
    for call in calls {
        let tid = call["tid"].as_u64().expect("a thread");
        let depth = call["depth"].as_u64().expect("a depth");
        // A coroutine's calls lie within each other, whatever runs between them.
        let open = open
            .entry((tid, call["stack"].as_u64().unwrap_or(0)))
            .or_default();
        while open.last().is_some_and(|(_, other)| *other >= depth) {
            open.pop();
        }
        let ip = address(&call["ip"]);
        if known.contains(&ip) {
            let around = open
                .iter()
                .map(|(ip, _)| *ip)
                .filter(|ip| known.contains(ip));
            let around: Vec<u64> = around.collect();
            let seen = (ip, around.last().copied().unwrap_or(0), around.len());
            threads.entry(tid).or_default().push(seen);
        }
        open.push((ip, depth));
    }
    threads
}

/// What adds up in any list of calls, on each stack.
fn adds_up(calls: &[Value]) {
    let mut open: HashMap<(u64, u64), Vec<(u64, usize)>> = HashMap::new();
    let mut within: Vec<u64> = vec![0; calls.len()];
    let number = |call: &Value, key: &str| call[key].as_u64().unwrap_or_else(|| panic!("{call}"));
    for (index, call) in calls.iter().enumerate() {
        let stack = call["stack"].as_u64().unwrap_or(0);
        let open = open.entry((number(call, "tid"), stack)).or_default();
        let depth = number(call, "depth");
        while open.pop_if(|(other, _)| *other >= depth).is_some() {}
        if let Some((around, parent)) = open.last() {
            assert_eq!(around + 1, depth, "{call} lies in nothing");
            within[*parent] += number(call, "insns");
            let begins = |call: &Value| number(call, "begin");
            assert!(begins(&calls[*parent]) <= begins(call), "{call}");
        } else if stack == 0 {
            assert_eq!(depth, 0, "{call} lies in nothing");
        }
        open.push((depth, index));
        if let Some(end) = call["end"].as_u64() {
            assert!(end >= number(call, "begin"), "{call}");
        } else {
            assert_eq!(call["left"], "end", "{call}");
        }
    }
    for (call, within) in calls.iter().zip(within) {
        let insns = number(call, "self_insns") + within;
        assert_eq!(number(call, "insns"), insns, "{call}");
    }
}

/// A program of this test's folder, built.
fn program(scratch: &Scratch, source: &str, optimize: &str) -> Option<PathBuf> {
    let path = repository().join("crates/cofi/tests/calls").join(source);
    let flags = [
        optimize,
        "-g",
        "-no-pie",
        "-pthread",
        "-finstrument-functions",
        "-finstrument-functions-exclude-file-list=/usr/",
        "-lstdc++",
    ];
    scratch.compile(&path, &flags)
}

fn record(scratch: &Scratch, program: &Path, engine: &str) -> (PathBuf, PathBuf) {
    let (data, log) = (scratch.path("data"), scratch.path("log"));
    let mut command = cofi();
    command.env("CALLS_LOG", &log);
    command.args(["record", "--verify", "--engine", engine, "-o"]);
    command.arg(&data).arg("--").arg(program);
    let ran = run(&mut command);
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("verified"), "{}", ran.stderr);
    (data, log)
}

fn name_of(calls: &[Value], ip: u64) -> String {
    let is_it = |call: &&Value| address(&call["ip"]) == ip;
    let call = calls.iter().find(is_it);
    call.map_or_else(|| format!("{ip:#x}"), |call| call["call"].to_string())
}

/// What the program logged, call by call, is what is reconstructed: as compiled in two ways, and by both engines.
fn agrees(source: &str) {
    let scratch = Scratch::new();
    for optimize in ["-O0", "-O2"] {
        let Some(program) = program(&scratch, source, optimize) else {
            return;
        };
        for engine in ["ptrace", "qemu"] {
            if engine == "qemu" && !has_qemu() {
                continue;
            }
            let (data, log) = record(&scratch, &program, engine);
            let wanted = logged(&log);
            let known: HashSet<u64> = wanted.values().flatten().map(|seen| seen.0).collect();
            let calls = calls(&data, &[]);
            adds_up(&calls);
            let got = reconstructed(&calls, &known);
            assert_eq!(
                got.len(),
                wanted.len(),
                "{source} {optimize} {engine}: threads"
            );
            for (tid, wanted) in wanted {
                let got = &got[&tid];
                for (at, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                    let spell = |seen: &Seen| {
                        let (function, parent) = (name_of(&calls, seen.0), name_of(&calls, seen.1));
                        format!("{function} in {parent} at {}", seen.2)
                    };
                    assert_eq!(
                        spell(got),
                        spell(wanted),
                        "{source} {optimize} {engine}: call {at} of thread {tid}"
                    );
                }
                assert_eq!(got.len(), wanted.len(), "{source} {optimize} {engine}");
            }
        }
    }
}

#[test]
fn recursion_and_callbacks() {
    agrees("recursion.c");
}

#[test]
fn longjmp_out_of_calls_and_handlers() {
    agrees("jumps.c");
}

#[test]
fn handlers_of_signals() {
    agrees("handlers.c");
}

#[test]
fn coroutines() {
    agrees("coroutines.c");
}

#[test]
fn threads() {
    agrees("threads.c");
}

#[test]
fn returns_to_elsewhere() {
    agrees("odd.c");
}

#[test]
fn exceptions() {
    agrees("exceptions.cpp");
}

/// The name that a source has for a function: without what it lies in, its arguments and those of a template.
fn base_name(name: &str) -> String {
    let mut base = String::new();
    let mut depth = 0;
    for letter in name.chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            '(' => break,
            _ if depth == 0 => base.push(letter),
            _ => {}
        }
    }
    let base = base.trim_end_matches("::");
    base.rsplit([' ', ':'])
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Functions that were inlined: around each call of `note`, with which a program writes down what is open, just that is open.
fn has_inlined(scratch: &Scratch, program: &Path, count: usize) {
    for engine in ["ptrace", "qemu"] {
        if engine == "qemu" && !has_qemu() {
            continue;
        }
        let (data, log) = record(scratch, program, engine);
        let log = std::fs::read_to_string(log).expect("the program's list");
        let wanted: Vec<&str> = log.lines().collect();
        let known: HashSet<&str> = wanted.iter().flat_map(|line| line.split(' ')).collect();
        let all = calls(&data, &["--inline"]);
        adds_up(&all);
        let (mut got, mut inlined) = (Vec::new(), HashSet::new());
        let mut open: Vec<String> = Vec::new();
        for call in &all {
            let depth = call["depth"].as_u64().expect("a depth") as usize;
            open.truncate(depth);
            let name = base_name(call["call"].as_str().unwrap_or_default());
            if name == "note" {
                let around = open.iter().map(String::as_str);
                let around = around.filter(|name| known.contains(name));
                got.push(around.collect::<Vec<_>>().join(" "));
            }
            if call["kind"] == "inline" && known.contains(name.as_str()) {
                inlined.insert(name.clone());
            }
            open.push(name);
        }
        assert_eq!(got, wanted, "{engine}");
        assert_eq!(inlined.len(), count, "{engine}: {inlined:?}");

        // The calls of functions that were not inlined are the same, and so is what ran in each.
        let rest: Vec<&Value> = all.iter().filter(|call| call["kind"] != "inline").collect();
        let plain = calls(&data, &[]);
        assert_eq!(rest.len(), plain.len(), "{engine}");
        for (one, other) in rest.iter().zip(&plain) {
            for key in ["call", "ip", "from", "begin", "end", "insns", "left"] {
                assert_eq!(one[key], other[key], "{engine}: {key} of {other}");
            }
        }
    }
}

#[test]
fn inlined_functions_of_c() {
    let scratch = Scratch::new();
    let path = repository().join("crates/cofi/tests/calls/inlined.c");
    for optimize in ["-O1", "-O2"] {
        let flags = [optimize, "-g", "-fno-stack-protector"];
        let Some(program) = scratch.compile(&path, &flags) else {
            return;
        };
        has_inlined(&scratch, &program, 5);
    }
}

#[test]
fn inlined_functions_of_templates() {
    let scratch = Scratch::new();
    let path = repository().join("crates/cofi/tests/calls/inlined.cpp");
    let Some(program) = scratch.compile(&path, &["-O2", "-g", "-lstdc++"]) else {
        return;
    };
    has_inlined(&scratch, &program, 4);
}

/// Functions of Rust that are inlined, generic ones too.
const INLINED: &str = r#"
use std::cell::RefCell;
thread_local! {
    static OPEN: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}
#[inline(never)]
fn note(name: &'static str) {
    OPEN.with_borrow_mut(|open| {
        open.push(name);
        LOG.with_borrow_mut(|log| log.push(open.join(" ")));
    });
}
#[inline(never)]
fn done() { OPEN.with_borrow_mut(|open| { open.pop(); }); }
#[inline(always)]
fn square<T: std::ops::Mul<Output = T> + Copy>(x: T) -> T { note("square"); let y = x * x; done(); y }
#[inline(always)]
fn each(list: &[u32], f: impl Fn(u32) -> u32) -> u32 {
    note("each");
    let sum = list.iter().map(|x| f(*x)).fold(0, u32::wrapping_add);
    done();
    sum
}
#[inline(never)]
fn steps(n: u32) -> u32 {
    note("steps");
    let sum = if n == 0 { 3 } else { square(n) + steps(n - 1) };
    done();
    sum
}
fn main() {
    let list: Vec<u32> = std::env::args().map(|arg| arg.len() as u32).chain([3, 4]).collect();
    let sum = each(&list, |x| square(x) + 1) + steps(4);
    let log = LOG.with_borrow(|log| log.join("
"));
    std::fs::write(std::env::var("CALLS_LOG").expect("a path"), log).expect("a file");
    println!("{sum}");
}
"#;

#[test]
fn inlined_functions_of_rust() {
    if !cofi_test::has_program("rustc") {
        return;
    }
    let scratch = Scratch::new();
    let source = scratch.write("inlined.rs", INLINED);
    let program = scratch.path("inlined");
    let mut rustc = std::process::Command::new("rustc");
    rustc.arg(&source).arg("-o").arg(&program);
    let built = run(rustc.args(["-C", "opt-level=2", "-g"]));
    assert_eq!(built.code(), 0, "{}", built.stderr);
    has_inlined(&scratch, &program, 2);
}

/// Text output: its lines, as they are where no terminal is.
fn shown(command: &str, options: &[&str], data: &Path) -> Vec<String> {
    let ran = run(cofi().arg(command).args(options).arg(data));
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
    ran.text().lines().map(str::to_owned).collect()
}

/// The name in a line of the tree, and how deep it is.
fn in_tree(line: &str) -> (usize, &str) {
    let line = &line[26..];
    let name = line.trim_start();
    ((line.len() - name.len()) / 2, name)
}

#[test]
fn parts_of_the_tree() {
    let scratch = Scratch::new();
    let path = repository().join("crates/cofi/tests/calls/recursion.c");
    let Some(program) = scratch.compile(&path, &["-O0", "-g", "-no-pie"]) else {
        return;
    };
    let (data, _) = record(&scratch, &program, "ptrace");
    let all = calls(&data, &[]);
    let named = |name: &str| -> Vec<&Value> {
        let is_it = |call: &&Value| call["call"] == name;
        all.iter().filter(is_it).collect()
    };

    // Each call of a function with what it calls, and nothing else.
    let part = calls(&data, &["--function", "factorial"]);
    let begins = part.iter().filter(|call| call["call"] == "factorial");
    assert_eq!(begins.count(), named("factorial").len());
    let names: HashSet<&str> = part
        .iter()
        .filter_map(|call| call["call"].as_str())
        .collect();
    assert_eq!(names, HashSet::from(["factorial", "leaf"]));
    let only = calls(&data, &["--function", "factorial", "--depth", "1"]);
    assert!(!only.is_empty() && only.len() < part.len());
    assert!(only.iter().all(|call| call["call"] == "factorial"));

    // Who called it: as often in each level as there were calls.
    let callers = calls(&data, &["--callers", "leaf"]);
    assert_eq!(callers.len(), named("leaf").len());
    let of = |name: &str| {
        let is_it = |call: &&Value| call["callers"][0] == name;
        callers.iter().filter(is_it).count()
    };
    let sum: usize = ["main", "factorial", "even", "odd", "compare"]
        .map(of)
        .iter()
        .sum();
    assert!(of("factorial") > 0 && sum == callers.len());
    let tree = shown("calls", &["--callers", "leaf"], &data);
    let first_level = tree
        .iter()
        .skip(2)
        .filter(|line| in_tree_of_callers(line) == 0);
    let calls_in = |line: &String| -> usize {
        let number = line.split_whitespace().next().expect("a number");
        number.replace(',', "").parse().expect("a count")
    };
    assert_eq!(first_level.map(calls_in).sum::<usize>(), callers.len());

    // Less of it.
    let shallow = calls(&data, &["--depth", "3"]);
    let wanted = all.iter().filter(|call| call["depth"].as_u64() < Some(3));
    assert_eq!(shallow, wanted.cloned().collect::<Vec<_>>());
    let long = calls(&data, &["--min-time", "5us"]);
    // Of what was still open, only the command knows how long that was.
    let is_over = |call: &&Value| call["end"].is_u64();
    let lasts = |call: &Value| Some(call["end"].as_u64()? - call["begin"].as_u64()?);
    let wanted = all.iter().filter(|call| lasts(call) >= Some(5_000));
    let over: Vec<&Value> = long.iter().filter(is_over).collect();
    assert_eq!(over, wanted.collect::<Vec<_>>());
    assert!(!long.is_empty() && long.len() < all.len());

    // From one function to another.
    let middle = calls(&data, &["--from", "sym:compare", "--to", "sym:ackermann"]);
    assert_eq!(
        (&middle[0]["call"], &middle[0]["kind"]),
        (&"main".into(), &"assumed".into())
    );
    let compares = middle.iter().filter(|call| call["call"] == "compare");
    assert_eq!(compares.count(), named("compare").len());
    assert_eq!(middle.last().expect("a call")["call"], "ackermann");

    // The tree has what JSON has: those that are alike share a line.
    let lines = shown("calls", &["--function", "main"], &data);
    let tree: Vec<(usize, &str)> = lines[1..].iter().map(|line| in_tree(line)).collect();
    assert_eq!(tree[0], (0, "main"));
    assert!(tree[1..].iter().all(|(depth, _)| *depth > 0));
    let factorials = tree
        .iter()
        .filter(|(_, name)| name.starts_with("factorial"));
    let times = factorials.map(|(_, name)| {
        let times = name.split_once('×').map_or("1", |(_, times)| times);
        times.parse::<usize>().expect("a count")
    });
    assert_eq!(times.sum::<usize>(), named("factorial").len());

    let none = run(&mut json(
        "calls",
        &["--function".as_ref(), "factorail".as_ref()],
        &data,
    ));
    assert_eq!((none.code(), none.text().as_str()), (0, ""));
    assert!(
        none.stderr.contains("near to it: factorial"),
        "{}",
        none.stderr
    );
}

/// How deep a line of the tree of callers is.
fn in_tree_of_callers(line: &str) -> usize {
    let name = &line[37..];
    (name.len() - name.trim_start().len()) / 2
}

/// Panics with something to clean up in each function that they leave.
const PANICS: &str = r#"
struct Guard(u32);
impl Drop for Guard {
    #[inline(never)]
    fn drop(&mut self) { leaf(self.0); }
}
#[inline(never)]
fn leaf(x: u32) -> u32 { std::hint::black_box(x + 1) }
#[inline(never)]
fn panics(n: u32) -> u32 { if n < 100 { panic!("no {n}") } n }
#[inline(never)]
fn deeper(n: u32) -> u32 {
    let guard = Guard(n);
    if n == 0 { panics(n) } else { deeper(n - 1) + std::hint::black_box(guard.0) }
}
#[inline(never)]
fn catches(n: u32) -> u32 {
    match std::panic::catch_unwind(|| deeper(n)) { Ok(n) => n, Err(_) => leaf(n) + 1 }
}
fn main() {
    std::panic::set_hook(Box::new(|_| ()));
    let sum: u32 = (0..3).map(catches).sum();
    println!("{sum}");
}
"#;

#[test]
fn panics_of_rust() {
    if !cofi_test::has_program("rustc") {
        return;
    }
    let scratch = Scratch::new();
    let source = scratch.write("panics.rs", PANICS);
    for optimize in ["0", "2"] {
        let program = scratch.path("panics");
        let mut rustc = std::process::Command::new("rustc");
        rustc.arg(&source).arg("-o").arg(&program);
        rustc.args(["-C", &format!("opt-level={optimize}")]);
        let built = run(&mut rustc);
        assert_eq!(built.code(), 0, "{}", built.stderr);
        let (data, _) = record(&scratch, &program, "ptrace");
        let mut got: Vec<(String, usize)> = Vec::new();
        let mut open: Vec<(u64, bool)> = Vec::new();
        for call in calls(&data, &[]) {
            let name = call["call"].as_str().unwrap_or_default();
            let name = name.strip_prefix("panics::").unwrap_or_default();
            let is_known = ["catches", "deeper", "panics", "leaf"].contains(&name);
            let depth = call["depth"].as_u64().expect("a depth");
            while open.last().is_some_and(|(other, _)| *other >= depth) {
                open.pop();
            }
            if is_known {
                let around = open.iter().filter(|(_, is_known)| *is_known).count();
                got.push((name.to_owned(), around));
            }
            open.push((depth, is_known));
        }
        let mut wanted = Vec::new();
        for n in 0..3_usize {
            let deepers = (0..=n).map(|level| ("deeper", 1 + level));
            let cleanups = (0..=n).map(|level| ("leaf", n + 2 - level));
            wanted.push(("catches", 0));
            wanted.extend(deepers);
            wanted.push(("panics", n + 2));
            wanted.extend(cleanups);
            wanted.push(("leaf", 1));
        }
        let wanted: Vec<(String, usize)> = wanted
            .into_iter()
            .map(|(name, depth)| (name.to_owned(), depth))
            .collect();
        assert_eq!(got, wanted, "opt-level {optimize}");
    }
}

/// Calls that only fill the processor's stack of return addresses, as a kernel's switch of tasks has them; and one like them that returns.
const FILLS: &str = r#"
__attribute__((noipa)) static int fills(int x) {
    asm volatile("sub $128, %%rsp\n call 1f\n int3\n 1: call 2f\n int3\n 2: call 3f\n int3\n 3: add $152, %%rsp" : "+r"(x) : : "memory");
    return x + 1;
}
__attribute__((noipa)) static int twice(int x) {
    asm volatile("sub $128, %%rsp\n call 1f\n jmp 2f\n ret\n 1: call 3f\n ret\n 3: add $2, %0\n ret\n 2: add $128, %%rsp" : "+r"(x));
    return x;
}
/* As a machine's recorder saw it: a byte that never ran is 0. */
__attribute__((noipa)) static int fills_unseen(int x) {
    asm volatile("sub $128, %%rsp\n call 1f\n .byte 0\n 1: call 2f\n .byte 0\n 2: add $144, %%rsp" : "+r"(x) : : "memory");
    return x;
}
int main(int c, char **v) { (void)v; return fills(c) + twice(c) + fills_unseen(0) != 2 * c + 3; }
"#;

#[test]
fn calls_past_an_int3() {
    let scratch = Scratch::new();
    let source = scratch.write("fills.c", FILLS);
    let Some(program) = scratch.compile(&source, &["-O1", "-no-pie"]) else {
        return;
    };
    let (data, _) = record(&scratch, &program, "ptrace");
    let part = calls(&data, &["--function", "main"]);
    // How many plain calls that return, of how many.
    let of = |name: &str| {
        let all = part.iter().filter(|call| call["call"] == name);
        let is_plain = |call: &&Value| call["kind"] == "call" && call["left"] == "return";
        (all.clone().filter(is_plain).count(), all.count())
    };
    assert_eq!(of("fills"), (1, 1));
    assert_eq!(of("fills_unseen"), (1, 1));
    // The subroutine within it, and what that calls past its own RET.
    assert_eq!(of("twice"), (3, 3));
    assert_eq!(of("main"), (1, 1));
}

/// Indirect calls and jumps, and returns, as a kernel has them for processors that must not speculate there.
const THUNKS: &str = r#"
asm(".globl __x86_indirect_thunk_rax\n.type __x86_indirect_thunk_rax, @function\n__x86_indirect_thunk_rax:\n"
    "call 1f\nint3\n1: mov %rax, (%rsp)\nret\n.size __x86_indirect_thunk_rax, . - __x86_indirect_thunk_rax\n"
    ".globl __x86_indirect_thunk_rcx\n.type __x86_indirect_thunk_rcx, @function\n__x86_indirect_thunk_rcx:\n"
    "call 1f\n2: pause\nlfence\njmp 2b\n1: mov %rcx, (%rsp)\njmp __x86_return_thunk\n.size __x86_indirect_thunk_rcx, . - __x86_indirect_thunk_rcx\n"
    ".globl __x86_return_thunk\n.type __x86_return_thunk, @function\n__x86_return_thunk:\nret\nint3\n"
    ".size __x86_return_thunk, . - __x86_return_thunk\n"
    ".type leaf, @function\nleaf: lea 1(%rdi), %eax\nret\n.size leaf, . - leaf\n"
    ".type returns, @function\nreturns: call leaf\nadd $1, %eax\njmp __x86_return_thunk\n.size returns, . - returns\n"
    ".type calls, @function\ncalls: lea leaf(%rip), %rax\ncall __x86_indirect_thunk_rax\nlea returns(%rip), %rcx\nmov %eax, %edi\n"
    "call __x86_indirect_thunk_rcx\nmov %eax, %edi\nlea returns(%rip), %rax\njmp __x86_indirect_thunk_rax\n.size calls, . - calls\n");
extern int calls(int);
int main(int c, char **v) { (void)v; return calls(c) != c + 5; }
"#;

/// Who is called through a thunk is called from where that was, and a return through one is a return.
#[test]
fn calls_through_thunks() {
    let scratch = Scratch::new();
    let source = scratch.write("thunks.c", THUNKS);
    let Some(program) = scratch.compile(&source, &["-O1", "-no-pie"]) else {
        return;
    };
    let (data, _) = record(&scratch, &program, "ptrace");
    let part = calls(&data, &["--function", "main"]);
    let text = |call: &Value, key: &str| call[key].as_str().unwrap_or("?").to_owned();
    let seen: Vec<String> = part
        .iter()
        .map(|call| {
            let [name, kind, left] = ["call", "kind", "left"].map(|key| text(call, key));
            format!("{} {name} {kind} {left}", call["depth"])
        })
        .collect();
    let depth = part[0]["depth"].as_u64().expect("a depth");
    let wanted = [
        (0, "main call return"),
        (1, "calls call tail"),
        (2, "leaf call return"),
        (2, "returns call return"),
        (3, "leaf call return"),
        (1, "returns tail return"),
        (2, "leaf call return"),
    ];
    let wanted = wanted.map(|(inner, words)| format!("{} {words}", depth + inner));
    assert_eq!(seen, wanted);
}

/// Code that a program makes as it runs, and names in perf's list.
const GENERATES: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
__attribute__((noinline)) static int leaf(int x) { return x + 1; }
int main(void) {
    unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* push %rbx; mov %rsi, %rbx; call inner; mov %eax, %edi; call *%rbx; pop %rbx; ret */
    unsigned char outer[] = {0x53, 0x48, 0x89, 0xf3, 0xe8, 0x17, 0, 0, 0, 0x89, 0xc7, 0xff, 0xd3, 0x5b, 0xc3};
    unsigned char inner[] = {0x8d, 0x47, 0x02, 0xc3};
    memcpy(code, outer, sizeof outer);
    memcpy(code + 32, inner, sizeof inner);
    char name[64];
    sprintf(name, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(name, "w");
    fprintf(map, "%lx %zx made_outer\n%lx %zx made_inner\n", (long)code, sizeof outer, (long)code + 32, sizeof inner);
    fclose(map);
    int sum = 0;
    for (int i = 0; i < 3; i++) sum += ((int (*)(int, int (*)(int)))code)(i, leaf);
    return sum != 12;
}
"#;

#[test]
fn generated_code_with_names() {
    let scratch = Scratch::new();
    let source = scratch.write("generates.c", GENERATES);
    let Some(program) = scratch.compile(&source, &["-O1"]) else {
        return;
    };
    let (data, _) = record(&scratch, &program, "ptrace");
    let part = calls(&data, &["--function", "made_outer"]);
    let tid = part[0]["tid"].as_u64().expect("a thread");
    std::fs::remove_file(format!("/tmp/perf-{tid}.map")).expect("the program's list");
    let names: Vec<&str> = part
        .iter()
        .filter_map(|call| call["call"].as_str())
        .collect();
    let once = ["made_outer", "made_inner", "leaf"];
    assert_eq!(names, [once, once, once].concat());
    assert!(
        part.iter()
            .all(|call| call["left"] == "return" && call["kind"] == "call")
    );
}

/// Traces of processors, of programs of which only a part was traced and nothing names a function: every call returns.
#[test]
fn of_real_processors() {
    let Some(traces) = cofi_test::traces() else {
        return;
    };
    for (name, count) in [
        ("xdc-unzip", 220),
        ("xdc-foo", 2466),
        ("xdc-avscript32", 7260),
    ] {
        let folder = traces.join(name);
        let mut command = cofi();
        command
            .args(["calls", "--json"])
            .args(cases::options(&folder));
        let ran = run(command.arg(folder.join("trace.pt")));
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        let text = ran.text();
        let all: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(all.len(), count, "{name}");
        assert_eq!(all[0]["kind"], "assumed", "the trace begins in the middle");
        let returned = all[1..].iter().filter(|call| call["left"] == "return");
        let tails = all[1..]
            .iter()
            .filter(|call| call["left"] == "tail")
            .count();
        assert!(returned.count() + tails + 1 >= count - 1, "{name}");
    }
}

/// Where trace is missing all calls are left, and what follows begins anew.
#[test]
fn a_gap_ends_all_calls() {
    let scratch = Scratch::new();
    let code = scratch.write("code.bin", [0xe8, 0, 0, 0, 0, 0xe8, 1, 0, 0, 0, 0x90, 0xc3]);
    let text = "psb\npsbend\ntip.pge 0x1005\ntip 0x100a\novf\nfup 0x100b\ntip 0x1005\ntip 0x2000\n";
    let packets = scratch.write("packets.txt", text);
    let trace = scratch.path("trace.pt");
    let made = run(cofi().arg("asm").arg(&packets).arg("-o").arg(&trace));
    assert_eq!(made.code(), 0, "{}", made.stderr);
    let raw = format!("{}:0x1000", code.display());
    let ran = run(cofi().args(["calls", "--json", "--raw", &raw]).arg(&trace));
    let text = ran.text();
    let all: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let left: Vec<&str> = all
        .iter()
        .filter_map(|call| call["left"].as_str())
        .collect();
    assert!(
        left.starts_with(&["gap"]) && left.contains(&"gap"),
        "{text}"
    );
    assert!(
        all.iter().all(|call| call["begin"].is_null()),
        "nothing tells the time"
    );
}

/// Of a whole recording of one thread nothing is unknown: it begins where the program does, each handler that ran is there, and in the end
/// only what was around the last instruction is open.
#[test]
fn nothing_is_assumed_of_a_whole_recording() {
    let scratch = Scratch::new();
    for source in ["signals.c", "recursion.c", "longjmp.c", "rep.c"] {
        let Some(program) = scratch.program(source, &["-O1", "-pthread"]) else {
            return;
        };
        let (data, _) = record(&scratch, &program, "ptrace");
        let all = calls(&data, &[]);
        let count = |key: &str, word: &str| all.iter().filter(|call| call[key] == word).count();
        assert_eq!(
            (count("kind", "assumed"), count("kind", "entry")),
            (0, 1),
            "{source}"
        );
        assert_eq!(count("left", "gap"), 0, "{source}");
        let ran = run(&mut json("insn", &[], &data));
        let text = ran.text();
        let handled = text.lines().filter(|line| {
            line.starts_with("{\"event\":\"signal\"") && line.contains("\"fatal\":false")
        });
        assert_eq!(count("kind", "signal"), handled.count(), "{source}");
        if source != "longjmp.c" {
            // (There, a coroutine is never finished.)
            let open = all.iter().filter(|call| call["left"] == "end");
            let depths: Vec<u64> = open.filter_map(|call| call["depth"].as_u64()).collect();
            let expected: Vec<u64> = (0..depths.len() as u64).collect();
            assert_eq!(depths, expected, "{source}");
        }
    }
}

/// A function that was open before the part begins, and of which that is known after the thread was on another stack only: what ran there did
/// not run in it.
#[test]
fn a_part_that_begins_before_another_stack() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch, "coroutines.c", "-O0") else {
        return;
    };
    let (data, _) = record(&scratch, &program, "ptrace");
    for part in ["sym:next_of_generator", "sym:resume"] {
        let all = calls(&data, &["--from", part]);
        let main = all.iter().find(|call| call["call"] == "main");
        assert_eq!(main.expect("main")["kind"], "assumed");
        assert!(all.iter().any(|call| call["stack"] != 0), "{part}");
        adds_up(&all);
    }
}

/// A call behind a loop, which ends in a conditional branch, begins behind the loop; and so does it where only a part is decoded.
#[test]
fn a_call_behind_a_loop_begins_behind_it() {
    const LOOPS: &str = r#"
__attribute__((noipa)) static int behind(int x) { return x * 3; }
int main(void) {
    volatile int sum = 0;
    for (int i = 0; i < 60000; i++) { if (sum & 1) sum += 3; else sum += i; }
    sum += behind(sum);
    for (int i = 0; i < 60000; i++) { if (sum & 1) sum += 3; else sum += i; }
    return 0;
}
"#;
    let scratch = Scratch::new();
    let source = scratch.write("loops.c", LOOPS);
    let Some(program) = scratch.compile(&source, &["-O1", "-no-pie"]) else {
        return;
    };
    let (data, _) = record(&scratch, &program, "ptrace");
    let time = |call: &Value, key: &str| {
        call[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {call}"))
    };
    for part in [&[][..], &["--from", "sym:main"]] {
        let all = calls(&data, part);
        let of = |name: &str| {
            let found = all.iter().find(|call| call["call"] == name);
            found.unwrap_or_else(|| panic!("{name}"))
        };
        let (main, behind) = (of("main"), of("behind"));
        let (begin, end) = (time(main, "begin"), time(main, "end"));
        let third = (end - begin) / 3;
        assert!(third > 10_000, "{main}");
        let (from, to) = (time(behind, "begin"), time(behind, "end"));
        assert!(
            from > begin + third && to < end - third && to - from < third / 10,
            "{behind} in {main}"
        );
    }
    // More threads than a machine has.
    assert_eq!(
        calls(&data, &["--threads", "100000"]).len(),
        calls(&data, &[]).len()
    );
    // The levels of callers, and not those of calls.
    let callers = calls(&data, &["--callers", "behind", "--depth", "1"]);
    assert_eq!(callers.len(), 1);
    assert_eq!(callers[0]["callers"], serde_json::json!(["main"]));
}
