//! The project's own chores, run as `cargo xtask CHORE`: the exam against other decoders, the race with them, and the checks of house rules.

mod bench;
mod capi;
mod compilers;
mod deps;
mod dist;
mod features;
mod fuzz;
mod libipt;
mod package;
mod semver;
mod source;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask CHORE

  deps    check that the crates depend on each other only as ARCHITECTURE.md says
  tidy    check module docs, file lengths, the names in ARCHITECTURE.md, and docs/unit.md
  features
          check that each published crate compiles with every set of its features, by itself
  compilers [PART]... [--traces FOLDER] [--cofi PATH]
          with Debian 13's packages, as root: `oldest` compiles what says that its release's compiler suffices; `hosts` builds what only
          reads for AArch64 and for Windows, runs both, and compares with what is said here (`aarch64` or `windows` one of them); all if none is named
  exam    compare every decoder with the truth; `cargo xtask exam --help` lists its parts, each with `--help`, too
  fuzz    run the fuzz targets one after the other, with libFuzzer
          [TARGET]... [--seconds N]
  fuzz seeds
          write the inputs with which the targets begin into fuzz/seeds; wants gcc
  capi DIR
          build the library for C, and install it into DIR: shared and static, header, pkg-config
  libipt DIR [--race FOLDER]
          build DIR/libipt.so.2, on which programs run that were compiled against libipt; --race measures both on the traces of a folder
  package [--verify]
          check what crates.io would be given: what each published crate says of itself, and that it can be packed; with --verify, that
          it builds from its package alone
  semver [REV]
          compare the interfaces of the published crates with a revision (the last commit, if none is named): what breaks programs
  dist DIR [--untried] [--system FOLDER]
          build what is handed to others: an archive and Debian packages of the program, its manual and completions, and of the library for C;
          then try them in a folder that has nothing else, and in a bare Debian 12, which FOLDER is if it is named
  bench   race Cofi, libipt, iptr and ptcov on the same traces, cold and warm; --write puts the results into bench/RESULTS.md
          [--size MB] [--rounds N] [--level NAME]... [--only TRACE]... [--write] [--traces FOLDER] [--cofi PATH]
  bench libipt
          measure the decoding speed of Cofi and of libipt on small traces, by instructions and by blocks
          [--level NAME] [--counted] [--rounds N] [--instructions N] [--traces FOLDER] [--cofi PATH]
  bench guard
          count the instructions of the hot paths with valgrind, and compare them with bench/counts.txt
          [--write]
  bench packets
          measure how fast Cofi and libipt decode and encode packets and find PSBs
          [--rounds N] [--megabytes N] [--traces FOLDER] [--cofi PATH]
  bench unit
          measure how many operations a second the trace unit does; with valgrind, in how many instructions
          [--rounds N] [--operations N] [--instructions]
  bench record
          measure what each part of recording with QEMU takes, by block that runs: of programs, and with a kernel of a boot of Linux
          [--rounds N] [--only PART-OF-NAME]... [--json FILE] [--kernel VMLINUZ --busybox BUSYBOX|--initrd FILE]
  bench machine
          measure how fast `cofi machine` is beside QEMU alone
          --qemu FOLDER --kernel VMLINUZ --busybox BUSYBOX [--rounds N] [--cofi PATH] [--keep FOLDER]
  bench costs
          measure processor time and memory of each command beside `cofi blocks`; --write puts the tables into docs/costs.md
          [--rounds N] [--millions N] [--of RECORDING]... [--only WORDS]... [--write] [--cofi PATH]
  bench sql --cofi-sql PROGRAM
          record many ordinary runs, write their tables as Parquet, and measure what teams ask of them, by `cofi sql` and by perf with SQLite;
          needs gzip, mawk, sqlite3, python3 and perf
          [--recordings N] [--millions N] [--folder DIR] [--keep] [--only export|ask|perf] [--python PYTHON-WITH-DUCKDB] [--cofi PATH]
  bench insn
          measure what an instruction costs to decode, by tables and by the disassembler
          [--rounds N] [FILE]...";

fn main() -> ExitCode {
    // As the linker of what `dist` builds.
    if let Some(linked) = dist::link::run() {
        return done("link", linked);
    }
    let mut arguments = std::env::args().skip(1);
    let chore = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let root = root();
    let outcome = match (chore.as_str(), rest.is_empty()) {
        ("deps", true) => deps::run(&root),
        ("tidy", true) => tidy::run(&root),
        ("exam", _) => cofi_exam::run(&root, &rest),
        ("features", true) => features::run(&root),
        ("compilers", _) => compilers::run(&root, &rest),
        ("capi", _) => capi::run(&root, &rest),
        ("libipt", _) => libipt::run(&root, &rest),
        ("package", _) => package::run(&root, &rest),
        ("semver", _) => semver::run(&root, &rest),
        ("dist", _) => dist::run(&root, &rest),
        ("fuzz", _) => fuzz::run(&root, &rest),
        ("bench", _) => bench::run(&root, &rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    done(&chore, outcome)
}

/// Says what went wrong, if anything did.
fn done(chore: &str, outcome: anyhow::Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask {chore}: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The workspace's root folder, two above this crate's own.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root.pop();
    root
}
