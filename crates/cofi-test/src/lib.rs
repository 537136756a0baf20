//! What the tests of all crates share: reports of what is skipped, compiling C, waiting for conditions, random numbers, a trace of nothing.
//!
//! A test that lacks something on this machine (a program, a right, a processor's feature) calls [`skip`] and returns. Nothing is
//! skipped silently: where the environment variable `COFI_SKIPPED` names a file, a line is added there, which `.ci/run` prints and
//! judges. `cargo test` shows the standard error of failed tests only, so that would not do.

mod rng;

pub use rng::Rng;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for what must come, before it fails: longer than anything takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// The smallest trace of Intel PT that is whole: PSB and PSBEND. Nothing ran in it. (It is written out, as this crate depends on none.)
pub const SMALLEST_TRACE: &[u8] = &[
    2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x23,
];

/// The environment variable that names the file to which [`skip`] adds lines.
const LIST: &str = "COFI_SKIPPED";

/// Reports that the calling test, or a part of it, is skipped, and why.
///
/// # Panics
/// If `COFI_SKIPPED` names a file that cannot be written: a report that is lost would be a silent skip.
#[track_caller]
pub fn skip(reason: impl Display) {
    let line = line(&test_name(Location::caller()), &reason);
    eprint!("skipped: {line}");
    if let Some(list) = std::env::var_os(LIST).filter(|list| !list.is_empty()) {
        let list = Path::new(&list);
        add(list, &line).unwrap_or_else(|error| panic!("{LIST}={}: {error}", list.display()));
    }
}

fn line(name: &str, reason: &dyn Display) -> String {
    let reason = reason.to_string();
    let words: Vec<&str> = reason.split_whitespace().collect();
    format!("{name}: {}\n", words.join(" "))
}

/// In one write, as other tests write there too.
fn add(list: &Path, line: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(list)?;
    file.write_all(line.as_bytes())
}

/// `crate/binary::module::test`.
fn test_name(caller: &Location<'_>) -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let program = std::env::current_exe().unwrap_or_default();
    let stem = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo adds a hash to the name.
    let binary = stem.rsplit_once('-').map_or(&*stem, |(name, _)| name);
    let thread = std::thread::current();
    match thread.name() {
        // The test harness names the thread after the test, unless it runs all of them in the first thread.
        Some(test) if test != "main" => format!("{package}/{binary}::{test}"),
        _ => format!("{package}/{binary} at {caller}"),
    }
}

/// The program of this name that a shell would run.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| {
            let metadata = file.metadata();
            metadata.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        })
}

/// Whether this program is installed; [`skip`]s if not.
#[track_caller]
pub fn has_program(name: &str) -> bool {
    let has = find_program(name).is_some();
    if !has {
        skip(format_args!("{name} is not installed"));
    }
    has
}

/// Compiles a C or assembler source. [`skip`]s and returns whether that is `false` where the compiler does not take `flags` here at all, as
/// `-m32` without the libraries for it.
///
/// # Panics
/// If the compiler takes these flags but not this source.
#[track_caller]
pub fn compile(source: &Path, program: &Path, flags: &[&str]) -> bool {
    let output = compiler(source, program, flags);
    let output = match output {
        Ok(output) if output.status.success() => return true,
        Ok(output) => output,
        Err(error) => {
            skip(format_args!("no C compiler: {error}"));
            return false;
        }
    };
    if let Err(reason) = takes(source, flags, program) {
        skip(format_args!("cc does not take {flags:?} here: {reason}"));
        return false;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    panic!("cc {flags:?} {}: {errors}", source.display());
}

fn compiler(
    source: &Path,
    program: &Path,
    flags: &[&str],
) -> std::io::Result<std::process::Output> {
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(program).arg(source).args(flags);
    cc.stdin(Stdio::null()).output()
}

/// Whether the smallest program in the language of `like` can be compiled with these flags; if not, the compiler's first error.
fn takes(like: &Path, flags: &[&str], beside: &Path) -> Result<(), String> {
    let (name, text) = if flags.contains(&"-nostdlib") {
        ("S", ".globl _start\n_start: nop\n")
    } else {
        let is_cpp = like.extension().is_some_and(|name| name == "cpp");
        (
            if is_cpp { "cpp" } else { "c" },
            "#include <stdio.h>\nint main(void) { return puts(\"\"); }\n",
        )
    };
    let source = beside.with_extension(format!("smallest.{name}"));
    let program = beside.with_extension("smallest");
    std::fs::write(&source, text).map_err(|error| error.to_string())?;
    let output = compiler(&source, &program, flags).map_err(|error| error.to_string());
    let _ = std::fs::remove_file(&source);
    let _ = std::fs::remove_file(&program);
    let output = output?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let error = errors.lines().find(|line| line.contains("error"));
    Err(error.or(errors.lines().next()).unwrap_or("it fails").into())
}

/// The folder of traces that real processors took, which `COFI_TRACES` names; they are not part of the repository, and without them a test
/// is [`skip`]ped. They may also lie beside the checkout.
#[track_caller]
pub fn traces() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let folder = std::env::var_os("COFI_TRACES").map_or(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    skip("traces of real processors are not here (COFI_TRACES)");
    None
}

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not within [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(
            begun.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The state of a thread as the kernel tells it: `S` if it sleeps, `R`, `T`, …
pub fn thread_state(tid: u32) -> Option<char> {
    // Behind the name, which may hold anything.
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The number of the system call in which a thread sleeps.
pub fn system_call(tid: u32) -> Option<i64> {
    let call = std::fs::read_to_string(format!("/proc/{tid}/syscall")).ok()?;
    call.split(' ').next()?.parse().ok()
}

/// Processor time that the calling thread has taken so far, in ticks of a hundredth of a second: the same under load.
///
/// # Panics
/// If there is no `/proc`.
pub fn processor_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("/proc is mounted");
    let fields = stat.rsplit_once(") ").expect("a name in brackets").1;
    // utime and stime, the 14th and 15th of all.
    let times = fields.split(' ').skip(11).take(2);
    times
        .map(|time| time.parse::<u64>().expect("a number"))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_names_of_crate_and_test_and_is_one_line() {
        let name = test_name(Location::caller());
        let expected =
            "cofi-test/cofi_test::tests::a_report_has_the_names_of_crate_and_test_and_is_one_line";
        // With --test-threads=1 the harness does not name the thread.
        assert!(name == expected || name.starts_with("cofi-test/cofi_test at "));
        let list = std::env::temp_dir().join(format!("cofi-test-list-{}", std::process::id()));
        for reason in ["no\n  such\tthing ", "none"] {
            add(&list, &line("a::test", &reason)).expect("a file");
        }
        let text = std::fs::read_to_string(&list).expect("the file");
        std::fs::remove_file(&list).expect("the file");
        assert_eq!(text, "a::test: no such thing\na::test: none\n");
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program("no-such-program-anywhere"), None);
        // A folder, which is executable in its way.
        assert_eq!(find_program(".."), None);
    }

    #[test]
    fn flags_that_the_compiler_does_not_take_are_told_from_wrong_sources() {
        let folder = std::env::temp_dir().join(format!("cofi-test-cc-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        let (source, program) = (folder.join("a.c"), folder.join("a"));
        let compiles = |text: &str, flags: &[&str]| {
            std::fs::write(&source, text).expect("a file");
            std::panic::catch_unwind(|| compile(&source, &program, flags))
        };
        let right = "int main(void) { return 0; }\n";
        assert!(compiles(right, &["-O1"]).expect("it compiles"));
        assert!(takes(Path::new("a.c"), &["-O1"], &program).is_ok());
        let reason =
            takes(Path::new("a.c"), &["-fno-such-flag"], &program).expect_err("no such flag");
        assert!(reason.contains("-fno-such-flag"), "{reason}");
        compiles("int main(void) { return x; }\n", &["-O1"]).expect_err("a wrong source");
        std::fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn this_thread_runs_and_takes_time() {
        let begun = processor_ticks();
        let mut sum = 0_u64;
        wait_until("ten ticks", || {
            sum = (0..1_000_000).fold(sum, |sum, n| std::hint::black_box(sum ^ n));
            processor_ticks() >= begun + 10
        });
        let state = thread_state(std::process::id()).expect("this process lives");
        assert!("RSD".contains(state), "{state}");
        assert_eq!(thread_state(0), None);
    }
}
