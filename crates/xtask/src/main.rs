//! The project's own chores, run as `cargo xtask CHORE`: the exam against other decoders, the race with them, and the checks of house rules.

mod bench;
mod capi;
mod deps;
mod dist;
mod fuzz;
mod libipt;
mod package;
mod source;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask CHORE

  deps    check that the crates depend on each other only as ARCHITECTURE.md says
  tidy    check module docs, file lengths, the names in ARCHITECTURE.md, and docs/unit.md
  exam    record real programs and compare every decoder with the truth, address by address
          [--only PROGRAM]... [--config NAME]... [--cofi PATH] [--keep FOLDER] [--jobs N] [--list];
          then the part below, unless a program or configuration is asked for
  exam packets
          compare how Cofi, libipt and perf read random streams of packets, good ones and bad ones, and how Cofi
          reads RTIT with what the manual says
          [--seed N] [--streams N] [--packets N] [--traces FOLDER] [--cofi PATH] [--keep FOLDER]
  exam unit
          let libipt and perf read what the trace unit writes for random machines and for the scenarios of corpus/unit, and
          libipt decode the machines' flow
          [--seed N] [--machines N] [--steps N] [--cofi PATH] [--keep FOLDER]
  exam time
          compare the times that perf and libipt give to instructions with the intervals that Cofi states
  exam generated
          compare perf's instructions, branches and times of random walks with Cofi's and with the truth
          [--seed N] [--streams N] [--steps N] [--cofi PATH] [--keep FOLDER]
  exam damage
          damage a recording in many ways, and count what Cofi and perf lose of it and report wrongly; the table is in docs/recovery.md
          [--seed N] [--cases N] [--write] [--each] [--without-perf] [--cofi PATH] [--keep FOLDER]
  exam large
          record programs that people run through QEMU, and compare perf's samples with Cofi's list
          [--cofi PATH]
  exam jit
          record programs whose threads change code that others run, and guests that do, while other processes work
          [--only NAME]... [--rounds N] [--load N] [--kernel FILE --busybox FILE] [--cofi PATH]
  exam endings
          end recordings in every way, and compare what comes of it with the table in docs/endings.md
          [--write] [--only WORDS] [--cofi PATH]
  exam insn
          compare the tables of instructions with the disassembler: every opcode, random bytes, the machine's own binaries or FILEs
          [--seed N] [--random N] [FILE]...
  exam law
          the properties of the law with many cases each; --write puts the results into docs/law.md
          [--cases N] [--only SUITE] [--write]
  exam machine
          record whole machines, and compare a boot with QEMU's own log of it
          [--kernel FILE --busybox FILE] [--cofi PATH] [--keep FOLDER]
  exam guest
          run machines that have Intel PT: their registers against the manual, and what perf records in them against what they ran
          [--qemu PATH] [--kernel FILE [--newer-kernel FILE] --busybox FILE] [--boots linux1,linux2,newer] [--cofi PATH] [--keep FOLDER]
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
  dist DIR
          build what is handed to others: an archive and Debian packages of the program, its manual and completions, and of the library for C
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
  bench insn
          measure what an instruction costs to decode, by tables and by the disassembler
          [--rounds N] [FILE]...";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let chore = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let root = root();
    let outcome = match (chore.as_str(), rest.is_empty()) {
        ("deps", true) => deps::run(&root),
        ("tidy", true) => tidy::run(&root),
        ("exam", _) => cofi_exam::run(&root, &rest),
        ("capi", _) => capi::run(&root, &rest),
        ("libipt", _) => libipt::run(&root, &rest),
        ("package", _) => package::run(&root, &rest),
        ("dist", _) => dist::run(&root, &rest),
        ("fuzz", _) => fuzz::run(&root, &rest),
        ("bench", _) => bench::run(&root, &rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
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
