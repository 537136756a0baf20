//! `cargo xtask exam calls`: the calls of a large program, SQLite at work, beside callgrind's and perf's. How often each function was called must be
//! the same. What the others see otherwise: `docs/calls.md`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::Examined;
use serde_json::Value;

use super::build::tool;

/// The crate that carries SQLite's source.
const SOURCE: &str = "libsqlite3-sys = { version = \"=0.30.1\", default-features = false, features = [\"bundled\"] }";
/// How many rows it works on: about 60 million instructions.
const ROWS: &str = "4000";

/// How often functions were called, by the numbers of [`Names`].
type Counts = BTreeMap<usize, u64>;

/// A function, and one that it calls.
type Pair = (usize, usize);

/// What calls main, or is called before it or behind it: callgrind shows these together as one, `(below main)`, or by their addresses, as their symbols
/// have no size. `handle_…` ask the processor, which is of another brand under valgrind.
const BEFORE: [&str; 10] = [
    "__libc_start_main",
    "__libc_start_call_main",
    "_start",
    "call_fini",
    "frame_dummy",
    "__do_global_dtors_aux",
    "_init",
    "handle_amd",
    "handle_intel.constprop.0",
    "get_common_cache_info.constprop.0",
];

/// A function that ends with a tail call of itself: a loop, when it is compiled.
const LOOP: (&str, &str) = ("sqlite3WhereSplit", "sqlite3WhereSplit");

/// Runs the part and returns whether everything held.
pub(super) fn run(root: &Path, cofi: &Examined) -> Result<bool> {
    let cofi = cofi.path(root)?;
    let started = Instant::now();
    let folder = root.join("target/calls");
    fs::create_dir_all(&folder)?;
    let exam = Exam { cofi, folder };
    exam.compile(root)?;
    let names = exam.names()?;
    // valgrind adds variables, which the C library reads before main.
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=none", "-q", "/usr/bin/env"])
        .env_clear();
    let variables = String::from_utf8(tool(&mut valgrind).context("valgrind")?)?;
    let mut record = vec!["record", "-o", "data", "--", "/usr/bin/env", "-i"];
    record.extend(variables.lines());
    record.extend(["./work", ROWS]);
    exam.cofi(&record)?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "-q"]).env_clear();
    valgrind.args(["--callgrind-out-file=callgrind.out", "./work", ROWS]);
    tool(valgrind.current_dir(&exam.folder)).context("callgrind")?;
    let (listed, pairs) = exam.listed(&names)?;
    let mine = comparable(pairs, &names);
    let theirs = comparable(exam.callgrind(&names)?, &names);
    let pair = |(from, to): Pair| format!("{} to {}", names.name(from), names.name(to));
    let mut bad = compare("callgrind", &mine, &theirs, pair);

    let (mut theirs, stubs) = exam.perf(&names)?;
    // perf shows calls of a stub (of a function that is chosen when the program starts), and Cofi those of the function to which it jumps.
    let mut through = 0;
    for (function, count) in &listed {
        let known = theirs.entry(*function).or_default();
        if names.is_chosen(*function) && count > known {
            through += count - *known;
            *known = *count;
        }
    }
    bad += compare("perf", &listed, &theirs, |function| {
        names.name(function).to_owned()
    });
    if through != stubs {
        println!("perf: {stubs} calls of stubs, but {through} calls through them");
        bad += 1;
    }
    println!(
        "exam of calls: {bad} differences, {:.0} s",
        started.elapsed().as_secs_f64()
    );
    Ok(bad == 0)
}

/// What can be compared with callgrind's: without what stands around main; without jumps of a function to its own beginning, which are calls for
/// callgrind; and, of functions that are reached through a stub, which a jump may have led to, without the callers.
fn comparable(pairs: BTreeMap<Pair, u64>, names: &Names) -> BTreeMap<Pair, u64> {
    let mut list = BTreeMap::new();
    for ((caller, called), count) in pairs {
        let is_chosen = names.is_chosen(called);
        let (from, to) = (names.name(caller), names.name(called));
        let is_known = BEFORE.contains(&from) && !is_chosen || BEFORE.contains(&to);
        if !is_known && (from, to) != LOOP {
            let caller = if is_chosen { called } else { caller };
            *list.entry((caller, called)).or_default() += count;
        }
    }
    list
}

/// Prints what differs. How much that is.
fn compare<K: Copy + Ord>(
    who: &str,
    mine: &BTreeMap<K, u64>,
    theirs: &BTreeMap<K, u64>,
    name: impl Fn(K) -> String,
) -> usize {
    let all: BTreeSet<K> = mine.keys().chain(theirs.keys()).copied().collect();
    let count = |counts: &BTreeMap<K, u64>, key| counts.get(&key).copied().unwrap_or(0);
    let mut different = 0;
    for key in &all {
        let (mine, theirs) = (count(mine, *key), count(theirs, *key));
        if mine != theirs {
            println!("{}: {mine} calls, {theirs} of {who}", name(*key));
            different += 1;
        }
    }
    println!(
        "{who}: {} calls, {} kinds of them, {different} differ",
        mine.values().sum::<u64>(),
        all.len(),
    );
    // What is equal because there is nothing shows nothing.
    different + usize::from(all.len() < 300)
}

/// The functions of the program. Those that share an address have one number, and so have those that share a name.
struct Names {
    by_name: HashMap<String, usize>,
    by_address: BTreeMap<u64, usize>,
    names: Vec<String>,
    /// Those of which one is chosen for the processor.
    chosen: BTreeSet<usize>,
}

impl Names {
    fn of(listing: &str) -> Self {
        let mut names = Self {
            by_name: HashMap::new(),
            by_address: BTreeMap::new(),
            names: Vec::new(),
            chosen: BTreeSet::new(),
        };
        let mut symbols: Vec<(u64, &str)> = listing.lines().filter_map(symbol).collect();
        // Which of several is chosen may differ: they are one.
        let all = listing.lines().filter_map(symbol);
        let chosen = all.filter_map(|(address, name)| Some((address, chosen_of(name)?)));
        let chosen: Vec<(u64, &str)> = chosen.collect();
        symbols.extend(chosen);
        // Of names that share an address with names that share another one, all are one: again, until nothing changes.
        loop {
            let mut is_settled = true;
            for (address, name) in &symbols {
                let one = names.by_name.get(*name).copied();
                let other = names.by_address.get(address).copied();
                let number = one.into_iter().chain(other).min();
                let number = number.unwrap_or_else(|| {
                    names.names.push((*name).to_owned());
                    names.names.len() - 1
                });
                is_settled &= (one, other) == (Some(number), Some(number));
                names.by_name.insert((*name).to_owned(), number);
                names.by_address.insert(*address, number);
            }
            if is_settled {
                let all = names.by_name.iter();
                let chosen = all.filter(|(name, _)| chosen_of(name).is_some());
                names.chosen = chosen.map(|(_, number)| *number).collect();
                return names;
            }
        }
    }

    /// Whether it is one of several functions, of which one is chosen for the processor when the program starts: it is called through a stub.
    fn is_chosen(&self, function: usize) -> bool {
        self.chosen.contains(&function)
    }

    fn name(&self, function: usize) -> &str {
        self.names.get(function).map_or("?", String::as_str)
    }
}

/// What the names of several functions have in common, of which one is chosen for the processor; the function that chooses has none of it.
fn chosen_of(name: &str) -> Option<&str> {
    let ends = ["_avx", "_sse", "_evex", "_erms"];
    let found = ends.iter().filter_map(|end| name.find(end)).min();
    name.get(..=found?)
}

/// A function's address and name, of a line of `nm`.
fn symbol(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let is_code = matches!(words.next()?, "t" | "T" | "w" | "W" | "i");
    is_code.then_some((address, words.next()?))
}

struct Exam {
    cofi: PathBuf,
    folder: PathBuf,
}

impl Exam {
    fn cofi(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        tool(
            Command::new(&self.cofi)
                .args(arguments)
                .current_dir(&self.folder),
        )
    }

    /// Fetches SQLite's source and compiles it, with tail calls, unless that has been done.
    fn compile(&self, root: &Path) -> Result<()> {
        if self.folder.join("work").exists() {
            return Ok(());
        }
        let manifest = format!(
            "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[workspace]\n[lib]\npath = \"lib.rs\"\n[dependencies]\n{SOURCE}\n"
        );
        fs::write(self.folder.join("Cargo.toml"), manifest)?;
        fs::write(self.folder.join("lib.rs"), "")?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut metadata = Command::new(cargo);
        metadata.args(["metadata", "--quiet", "--format-version=1"]);
        let told = tool(metadata.current_dir(&self.folder)).context("fetching SQLite")?;
        let told: Value = serde_json::from_slice(&told)?;
        let packages = told["packages"].as_array().context("no packages")?;
        let package = packages
            .iter()
            .find(|package| package["name"] == "libsqlite3-sys");
        let manifest = package.and_then(|package| package["manifest_path"].as_str());
        let sources =
            Path::new(manifest.context("cargo did not fetch SQLite")?).with_file_name("sqlite3");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-foptimize-sibling-calls", "-g1", "-static"])
            .args(["-DSQLITE_OMIT_LOAD_EXTENSION", "-DSQLITE_THREADSAFE=0"])
            .arg("-I")
            .arg(&sources)
            .arg(root.join("exam/calls/work.c"))
            .arg(sources.join("sqlite3.c"))
            // Only what is whole has this name.
            .args(["-o", "half"]);
        tool(gcc.current_dir(&self.folder)).context("compiling SQLite")?;
        Ok(fs::rename(
            self.folder.join("half"),
            self.folder.join("work"),
        )?)
    }

    fn names(&self) -> Result<Names> {
        let listing = tool(Command::new("nm").arg("work").current_dir(&self.folder))?;
        Ok(Names::of(&String::from_utf8(listing)?))
    }

    /// How often functions of the program were called by call instructions; and by which functions, by those or by a jump.
    fn listed(&self, names: &Names) -> Result<(Counts, BTreeMap<Pair, u64>)> {
        let mut child = Command::new(&self.cofi)
            .args(["calls", "--json", "data"])
            .current_dir(&self.folder)
            .stdout(Stdio::piped())
            .spawn()
            .context("running cofi calls")?;
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let (mut counts, mut pairs) = (Counts::new(), BTreeMap::new());
        for line in lines {
            let call: Value = serde_json::from_str(&line?)?;
            let file = Path::new(call["file"].as_str().unwrap_or_default());
            let name = call["call"].as_str().filter(|_| file.ends_with("work"));
            let Some(function) = name.and_then(|name| names.by_name.get(name)) else {
                continue;
            };
            if call["kind"] == "call" {
                *counts.entry(*function).or_default() += 1;
            }
            let from = call["from"]
                .as_str()
                .and_then(|from| from.strip_prefix("0x"));
            if let Some(from) = from {
                let from = u64::from_str_radix(from, 16)?;
                let around = names.by_address.range(..=from).next_back();
                let (_, caller) = around.context("a call from nowhere")?;
                *pairs.entry((*caller, *function)).or_default() += 1;
            }
        }
        let status = child.wait()?;
        ensure!(status.success(), "cofi calls ended with {status}");
        Ok((counts, pairs))
    }

    /// How often which function called which, as callgrind counted.
    fn callgrind(&self, names: &Names) -> Result<BTreeMap<Pair, u64>> {
        let listing = fs::read_to_string(self.folder.join("callgrind.out"))?;
        // A name is written out the first time, and then only its number.
        let mut known: HashMap<&str, &str> = HashMap::new();
        let (mut caller, mut called) = (None, None);
        let mut counts = BTreeMap::new();
        for line in listing.lines() {
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            match key {
                "fn" | "cfn" => {
                    let (number, name) = value.split_once(' ').unwrap_or((value, ""));
                    if !name.is_empty() {
                        known.insert(number, name);
                    }
                    let name = known.get(number).context("a number without a name")?;
                    // The level of a recursion stands behind the name.
                    let name = name.split('\'').next().unwrap_or_default();
                    let function = names.by_name.get(name).copied();
                    match key {
                        "fn" => caller = function,
                        _ => called = function,
                    }
                }
                "calls" => {
                    let count = value.split(' ').next().unwrap_or_default();
                    if let (Some(caller), Some(called)) = (caller, called) {
                        *counts.entry((caller, called)).or_default() += count.parse::<u64>()?;
                    }
                }
                _ => {}
            }
        }
        Ok(counts)
    }

    /// How often perf sees functions called, and how often it sees calls of code that no symbol begins.
    fn perf(&self, names: &Names) -> Result<(Counts, u64)> {
        let mut child = Command::new("perf")
            .args(["script", "-i", "data", "--itrace=cre"])
            .args(["-F", "callindent,flags,ip,sym,addr"])
            .current_dir(&self.folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("running perf script")?;
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let (mut counts, mut stubs) = (Counts::new(), 0);
        for line in lines {
            let line = line?;
            if !line.trim_start().starts_with("call ") {
                continue;
            }
            let target = line.rsplit_once("=>").map(|(_, target)| target);
            let target = target.and_then(|target| target.split_whitespace().next());
            let target = target.with_context(|| format!("no target: {line}"))?;
            let target = u64::from_str_radix(target, 16)?;
            match names.by_address.get(&target) {
                Some(function) => *counts.entry(*function).or_default() += 1,
                // (What stands elsewhere is another program, or the vDSO.)
                None if names.by_address.range(target..).next().is_some() => stubs += 1,
                None => {}
            }
        }
        let status = child.wait()?;
        ensure!(status.success(), "perf script ended with {status}");
        Ok((counts, stubs))
    }
}
