//! The command for other systems than it records on: built for them, run there (by an emulator each) on recordings of this machine, and compared with what it prints here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::System;
use cofi_exam::build::{self, tool};

/// Beside the compiler: the standard library for AArch64, linkers, and what runs the programs.
const PACKAGES: [&str; 7] = [
    "libstd-rust-dev:arm64",
    "rust-src",
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "qemu-user",
    "gcc-mingw-w64-x86-64-posix",
    "wine64",
];
/// In the system: the recordings, and a folder of what each program printed.
const TRIAL: &str = "trial";
/// The part that is all systems.
const ALL: &str = "hosts";
/// What this machine's own command printed.
const HERE: &str = "here";

/// A system on which traces are looked at.
struct Host {
    /// As a part of the chore is called.
    name: &'static str,
    target: &'static str,
    /// The cross compiler that links for it.
    linker: (&'static str, &'static str),
    /// What cargo is told beside the target, in words and variables.
    words: &'static [&'static str],
    variables: &'static [&'static str],
    program: &'static str,
    /// How the program is started in Debian.
    runner: &'static [&'static str],
}

const HOSTS: [Host; 2] = [
    Host {
        name: "aarch64",
        target: "aarch64-unknown-linux-gnu",
        linker: (
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
            "aarch64-linux-gnu-gcc",
        ),
        words: &[],
        // Build scripts ask for it: with another value for each, all would be built anew each time.
        variables: &["RUSTC_BOOTSTRAP=1"],
        program: "cofi",
        runner: &["qemu-aarch64"],
    },
    // Debian has no standard library for Windows, but its source. Cargo compiles that for nightly compilers, and for who says so.
    Host {
        name: "windows",
        target: "x86_64-pc-windows-gnu",
        linker: (
            "CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER",
            "x86_64-w64-mingw32-gcc-posix",
        ),
        words: &["-Zbuild-std=std,panic_unwind"],
        variables: &["RUSTC_BOOTSTRAP=1"],
        program: "cofi.exe",
        // Neither its own words, nor what it would fetch for programs of .NET and for pages.
        runner: &[
            "env",
            "WINEPREFIX=/built/wine",
            "WINEDEBUG=-all",
            "WINEDLLOVERRIDES=mscoree,mshtml=",
            "/usr/lib/wine/wine64",
        ],
    },
];

/// What is asked of recordings of gzip and of a program with threads and debugging information. They are archives, which hold code and
/// symbols: another machine needs nothing else. (No source is there, here either.)
const ASKED: [&str; 29] = [
    "check gzip.cofi",
    "check --json threads.cofi",
    "report gzip.cofi",
    "report threads.cofi",
    "report --json gzip.cofi",
    "insn gzip.cofi",
    "insn --json --time --symbols --source --bytes threads.cofi",
    "insn --time --from time:-100us gzip.cofi",
    "blocks gzip.cofi",
    "events threads.cofi",
    "dump gzip.cofi",
    "calls gzip.cofi",
    "calls --json threads.cofi",
    "top gzip.cofi",
    "last threads.cofi",
    "coverage threads.cofi",
    "coverage --lcov FILE threads.cofi",
    "annotate main threads.cofi",
    "diff gzip.cofi threads.cofi",
    "export --to folded -o FILE gzip.cofi",
    "export --to svg -o FILE gzip.cofi",
    "export --to speedscope -o FILE gzip.cofi",
    "export --to chrome -o FILE threads.cofi",
    "export --to callgrind -o FILE threads.cofi",
    "export --to firefox -o FILE threads.cofi",
    "export --to perfetto -o FILE threads.cofi",
    "export --to pprof -o FILE gzip.cofi",
    "export --to csv -o FILE gzip.cofi",
    "archive -o FILE gzip.cofi",
];
/// What is asked of real traces, if there is a folder of them.
const ASKED_OF_TRACES: [&str; 5] = [
    "check traces/quipper-perf-data/perf.data",
    "report traces/quipper-perf-data/perf.data",
    "dump traces/quipper-perf-data/perf.data",
    "insn --cpu 6/79 --raw traces/xdc-unzip/400000.bin:0x400000 traces/xdc-unzip/trace.pt",
    "check --json --cpu 6/79 --raw traces/xdc-unzip/400000.bin:0x400000 traces/xdc-unzip/trace.pt",
];

/// Asks a program all that is read from the file `$1`; its words are the rest. What it prints, what it says, its status and what it writes go into the folder `$2`, numbered.
const ASK: &str = r#"
set -eu
list=$1 folder=$2
shift 2
# Until all is asked it has a name that is the same everywhere, as some of it is printed.
rm -rf answers
mkdir answers
number=0
while read -r words; do
    number=$((number + 1))
    case $words in
        *FILE*) words=${words%%FILE*}answers/$number.file${words#*FILE} ;;
    esac
    status=0
    "$@" $words >"answers/$number.out" 2>"answers/$number.err" </dev/null || status=$?
    echo "$status" >"answers/$number.status"
done <"$list"
mv answers "$folder"
"#;

/// What is not made.
#[derive(Default)]
pub(super) struct Given {
    /// A folder of real traces.
    pub(super) traces: Option<PathBuf>,
    /// This machine's command, of the same commit.
    pub(super) cofi: Option<PathBuf>,
}

/// Whether a part of the chore is one of these systems, or both.
pub(super) fn is_part(part: &str) -> bool {
    part == ALL || HOSTS.iter().any(|host| host.name == part)
}

/// Builds the command for each that the part means, and has it say what it says here.
pub(super) fn run(root: &Path, part: &str, given: &Given) -> Result<()> {
    let suites = ["trixie", "trixie-backports"];
    let system = System::made(root, &suites, "amd64,arm64", &PACKAGES)?;
    let version = system.version()?;
    let trial = system.folder.join(TRIAL);
    let asked = prepare(root, &trial, given)?;
    for host in HOSTS.iter().filter(|host| part == ALL || part == host.name) {
        let target = host.target;
        let build = [
            "build",
            "--quiet",
            "--locked",
            "--package",
            "cofi",
            "--target",
            target,
        ];
        let linker = format!("{}={}", host.linker.0, host.linker.1);
        let variables = [host.variables, &[linker.as_str()]].concat();
        system.cargo(&[&build, host.words].concat(), &variables)?;
        println!("compilers: rustc {version}: cofi, for {target}");
        let program = format!("/built/{target}/debug/{}", host.program);
        // (What is set up when it first starts is not to be in an answer.)
        let start = [host.runner, &[program.as_str()]].concat();
        system.run(
            &format!("/{TRIAL}"),
            &[],
            &[&start[..], &["--version"]].concat(),
        )?;
        let ask = ["sh", "-c", ASK, "sh", "asked", target];
        let words = [&ask[..], &start].concat();
        system.run(&format!("/{TRIAL}"), &[], &words)?;
        let different = compare(&trial.join(HERE), &trial.join(target), &asked)?;
        for difference in &different {
            println!("compilers: {target}: {difference}");
        }
        ensure!(
            different.is_empty(),
            "cofi for {target} does not say what it says here ({})",
            trial.display()
        );
        println!(
            "compilers: cofi for {target}, run by {}: {} commands, all as here",
            host.runner[host.runner.len() - 1],
            asked.len()
        );
    }
    Ok(())
}

/// Makes the recordings, and has this machine's command say of them what it says. Returns what is asked.
fn prepare(root: &Path, trial: &Path, given: &Given) -> Result<Vec<&'static str>> {
    let cofi = match &given.cofi {
        Some(given) => given.clone(),
        None => build::cofi(root)?,
    };
    if trial.exists() {
        fs::remove_dir_all(trial)?;
    }
    fs::create_dir_all(trial)?;
    fs::write(trial.join("notes"), build::text(2_000))?;
    let inside =
        |program: &Path, words: &[&str]| tool(Command::new(program).args(words).current_dir(trial));
    fs::copy(
        root.join("exam/programs/threads.c"),
        trial.join("threads.c"),
    )?;
    inside(
        Path::new("gcc"),
        &["-g", "-O1", "-pthread", "-o", "threads", "threads.c"],
    )?;
    fs::remove_file(trial.join("threads.c"))?;
    for (name, words) in [
        ("gzip", &["gzip", "-nk", "notes"][..]),
        ("threads", &["./threads"]),
    ] {
        let (data, archive) = (format!("{name}.data"), format!("{name}.cofi"));
        inside(&cofi, &[&["record", "-o", &data, "--"], words].concat())?;
        inside(&cofi, &["archive", "-o", &archive, &data])?;
    }
    let mut asked = ASKED.to_vec();
    match &given.traces {
        Some(traces) => {
            inside(
                Path::new("cp"),
                &["-rL", &traces.display().to_string(), "traces"],
            )?;
            asked.extend(ASKED_OF_TRACES);
        }
        None => println!("compilers: SKIPPED: no folder of real traces is named (--traces)"),
    }
    fs::write(trial.join("asked"), asked.join("\n") + "\n")?;
    inside(
        Path::new("sh"),
        &["-c", ASK, "sh", "asked", HERE, &cofi.display().to_string()],
    )?;
    Ok(asked)
}

/// What two folders of answers differ in.
fn compare(here: &Path, there: &Path, asked: &[&str]) -> Result<Vec<String>> {
    let mut different = Vec::new();
    for (index, words) in asked.iter().enumerate() {
        for kind in ["status", "out", "err", "file"] {
            let name = format!("{}.{kind}", index + 1);
            let [old, new] = [here, there].map(|folder| fs::read(folder.join(&name)).ok());
            if kind != "file" {
                ensure!(old.is_some(), "{words}: there is no {name}");
            } else if words.contains("FILE") {
                ensure!(old.is_some(), "{words}: nothing was written");
            }
            if old != new {
                different.push(format!("{words}: {name}"));
            }
        }
    }
    Ok(different)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
        let asked = ["check a", "archive -o FILE a"];
        for side in [&here, &there] {
            fs::create_dir(side)?;
            for name in ["1.status", "1.out", "1.err", "2.status", "2.out", "2.err"] {
                fs::write(side.join(name), name)?;
            }
        }
        assert!(
            compare(&here, &there, &asked).is_err(),
            "nothing was written here"
        );
        fs::write(here.join("2.file"), "a")?;
        assert_eq!(
            compare(&here, &there, &asked)?,
            ["archive -o FILE a: 2.file"]
        );
        fs::write(there.join("2.file"), "a")?;
        assert!(compare(&here, &there, &asked)?.is_empty());
        fs::write(there.join("1.out"), "1.out\r\n")?;
        assert_eq!(compare(&here, &there, &asked)?, ["check a: 1.out"]);
        fs::remove_file(here.join("1.out"))?;
        assert!(
            compare(&here, &there, &asked).is_err(),
            "nothing was printed here"
        );
        Ok(())
    }

    #[test]
    fn all_is_asked_and_numbered() -> Result<()> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("asked"), "one two\n-o FILE x\n")?;
        let words = [
            "-c",
            ASK,
            "sh",
            "asked",
            "there",
            "sh",
            "-c",
            "echo \"$@\"; exit 3",
            "sh",
        ];
        tool(Command::new("sh").args(words).current_dir(&folder))?;
        let read = |name| fs::read_to_string(folder.path().join("there").join(name));
        assert_eq!(read("1.out")?, "one two\n");
        assert_eq!(read("2.out")?, "-o answers/2.file x\n");
        assert_eq!(read("2.status")?, "3\n");
        Ok(())
    }
}
