//! Where the time goes when the QEMU engine records: `cargo xtask bench record`.
//!
//! Each program runs natively, under QEMU alone, under QEMU with a plugin that is called for each block and does nothing, with one that tells of
//! each and that nobody hears, with an observer that only counts, and recorded. The differences, by the number of blocks, are what each part takes. All of a program's
//! runs are made in turn, in each round; medians are printed.

use cofi_capture::ptrace::{Command, Options, Outcome};
use cofi_capture::qemu::{self, Qemu, Stage};
use cofi_capture::record::{Recorder, Settings};
use cofi_capture::{Entry, Mapping, Observer, Pid, ProcessCause, Runs, SavedCode};
use cofi_insn::Insn;
use cofi_packet::{ExecMode, Ip};
use cofi_perf::{PtConfig, Subject};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Counts, and does nothing else.
#[derive(Default)]
struct Counter(u64);

impl Observer for Counter {
    fn process(&mut self, _: Pid, _: Option<Pid>, _: ProcessCause, _: &str) {}
    fn thread_start(&mut self, _: Pid, _: Pid, _: Option<Pid>) {}
    fn thread_exit(&mut self, _: Pid, _: Pid) {}
    fn comm(&mut self, _: Pid, _: Pid, _: &str) {}
    fn mapped(&mut self, _: Pid, _: Pid, _: &[Mapping]) {}
    fn code(&mut self, _: Pid, _: Pid, _: SavedCode<'_>) {}
    fn resume_user(&mut self, _: Pid, _: Ip, _: ExecMode) {}
    fn retired(&mut self, _: Pid, _: Ip, _: &Insn, _: Ip) {
        self.0 += 1;
    }
    fn ran(&mut self, _: Pid, runs: &mut Runs<'_>) {
        self.0 += runs.map(|run| run.instructions()).sum::<u64>();
    }
    fn far_branch(&mut self, _: Pid, _: Ip, _: &Insn, _: Ip, _: ExecMode) {
        self.0 += 1;
    }
    fn enter_kernel(&mut self, _: Pid, entry: Entry) {
        self.0 += u64::from(matches!(entry, Entry::Instruction { .. }));
    }
}

/// A program.
struct Program {
    name: &'static str,
    words: Vec<String>,
}

/// What can run here of the programs that are measured, with what they read in a folder.
fn programs(folder: &Path) -> Vec<Program> {
    let text = folder.join("text");
    // Words that repeat, in an order that does not.
    let mut state = 1_u64;
    let mut words = String::new();
    while words.len() < 500_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        words += [
            "packet",
            "branch",
            "trace ",
            "unit ",
            "0x401000 ",
            "\n",
            "return",
            "call ",
        ][(state >> 61) as usize];
    }
    std::fs::write(&text, words).expect("a file");
    let text = text.to_string_lossy().into_owned();
    let zipped = std::process::Command::new("gzip")
        .args(["-kf", &text])
        .status();
    assert!(
        zipped.is_ok_and(|status| status.success()),
        "gzip works here"
    );
    let source = folder.join("source.c");
    let mut code = String::new();
    for number in 0..60 {
        code += &format!(
            "int f{number}(int a, int b) {{ int s = 0; for (int i = a; i < b; i++) if (i % {}) s += i * b; else s ^= a - i; return s; }}\n",
            number + 2
        );
    }
    std::fs::write(&source, code).expect("a file");
    let asked = std::process::Command::new("gcc")
        .arg("-print-prog-name=cc1")
        .output();
    let cc1 = asked.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    let of = |name, words: &[&str]| Program {
        name,
        words: words.iter().map(|word| (*word).to_owned()).collect(),
    };
    let zipped = format!("{text}.gz");
    let mut unzip = vec!["/usr/bin/gzip", "-dc"];
    unzip.extend([zipped.as_str(); 60]);
    let all = vec![
        of("gzip -9", &["/usr/bin/gzip", "-9c", &text]),
        of("gzip -d", &unzip),
        of(
            "python3",
            &[
                "/usr/bin/python3",
                "-S",
                "-c",
                "s = 0\nfor i in range(600000):\n    s += i * i % 7",
            ],
        ),
        of(
            "perl",
            &[
                "/usr/bin/perl",
                "-e",
                "my %h; $h{$_ % 5003} .= chr(65 + $_ % 26) for 1..200000; print length(join '', sort values %h)",
            ],
        ),
        of(
            "sqlite3",
            &[
                "/usr/bin/sqlite3",
                ":memory:",
                "with recursive n(i) as (select 1 union all select i+1 from n where i<200000) select sum(i*i%7) from n",
            ],
        ),
        of(
            "cc1 -O2",
            &[
                &cc1,
                "-quiet",
                "-O2",
                &source.to_string_lossy(),
                "-o",
                "/dev/null",
            ],
        ),
    ];
    let (there, missing): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|program| Path::new(&program.words[0]).is_file());
    for program in missing {
        println!(
            "{}: SKIPPED, as there is no {:?} here",
            program.name, program.words[0]
        );
    }
    there
}

fn command(program: &Program) -> std::process::Command {
    let mut command = std::process::Command::new(&program.words[0]);
    command
        .args(&program.words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// What children have worked so far.
fn of_children() -> f64 {
    let usage: Usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("a clock");
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// What this thread has worked so far.
fn of_thread() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    Duration::from(time).as_secs_f64()
}

/// What a run took: by the clock on the wall, of its program, and of this thread.
#[derive(Clone, Copy, Default)]
struct Took {
    wall: f64,
    program: f64,
    thread: f64,
}

fn time(run: impl FnOnce()) -> Took {
    let (begun, program, thread) = (Instant::now(), of_children(), of_thread());
    run();
    Took {
        wall: begun.elapsed().as_secs_f64(),
        program: of_children() - program,
        thread: of_thread() - thread,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn record(qemu: &Qemu, program: &Program, observer: &mut dyn Observer) {
    let stop = AtomicBool::new(false);
    let command = Command {
        program: program.words[0].clone().into(),
        args: program.words[1..].iter().map(Into::into).collect(),
    };
    let options = Options {
        duration: None,
        stop: &stop,
        leader: None,
    };
    let (outcome, _) = qemu::run(qemu, &command, options, observer).expect("it runs under QEMU");
    assert_eq!(outcome, Outcome::Exited(0), "{}", program.name);
}

fn settings(file: &Path) -> Settings {
    Settings {
        file: file.to_owned(),
        raw_output: None,
        config: PtConfig::default().into(),
        command_line: Vec::new(),
        subject: Subject::Processes,
        engine: "qemu".into(),
        patience: Settings::PATIENCE,
        last: None,
        window: None,
    }
}

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let rounds: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(5);
    let only: Vec<String> = words.collect();
    let folder = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "."
    })
    .expect("a folder");
    let file: PathBuf = folder.path().join("cofi.data");
    let qemu = match Qemu::find() {
        Ok(qemu) => qemu,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    println!(
        "{} (interface {}), {rounds} rounds, medians",
        qemu.path().display(),
        qemu.plugin_version()
    );
    println!("seconds by the clock on the wall:");
    println!(
        "{:<9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>10}",
        "", "native", "QEMU", "called", "told", "counted", "recorded", "ratio", "bytes"
    );
    let mut table = String::new();
    for program in programs(folder.path()) {
        if !only.is_empty() && !only.iter().any(|word| program.name.contains(word.as_str())) {
            continue;
        }
        let mut all: [Vec<Took>; 6] = Default::default();
        let (mut blocks, mut instructions, mut bytes) = (0, 0, 0);
        for _ in 0..rounds {
            all[0].push(time(|| {
                assert!(
                    command(&program)
                        .status()
                        .is_ok_and(|status| status.success())
                )
            }));
            all[1].push(time(|| {
                let mut alone = std::process::Command::new(qemu.path());
                alone
                    .args(&program.words)
                    .stdin(Stdio::null())
                    .stdout(Stdio::null());
                assert!(alone.status().is_ok_and(|status| status.success()));
            }));
            all[2].push(time(|| {
                qemu.run_stage(Stage::Called, &mut command(&program))
                    .expect("it runs");
            }));
            all[3].push(time(|| {
                blocks = qemu
                    .run_stage(Stage::Told, &mut command(&program))
                    .expect("it runs");
            }));
            // (What the program prints is not to be seen here.)
            let quiet = Quiet::begin();
            let mut counter = Counter::default();
            all[4].push(time(|| record(&qemu, &program, &mut counter)));
            instructions = counter.0;
            all[5].push(time(|| {
                let mut recorder = Recorder::create(settings(&file), None).expect("a file");
                record(&qemu, &program, &mut recorder);
                let recorded = recorder.finish().expect("a recording");
                bytes = recorded.trace_bytes;
            }));
            drop(quiet);
        }
        let of = |at: usize, what: fn(&Took) -> f64| median(all[at].iter().map(what).collect());
        let wall = |took: &Took| took.wall;
        print!("{:<9}", program.name);
        for at in 0..6 {
            print!(" {:>8.2}", of(at, wall));
        }
        let ratio = median(
            all[1]
                .iter()
                .zip(&all[5])
                .map(|(alone, recorded)| alone.wall / recorded.wall)
                .collect(),
        );
        println!(" {ratio:>7.2} {bytes:>10}");
        let ns = |seconds: f64| seconds * 1e9 / blocks as f64;
        let program_of = |at| ns(of(at, |took| took.program));
        let thread_of = |at| ns(of(at, |took| took.thread));
        table += &format!(
            "{:<9} {:>8.1} {:>6.2} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>9.2} {:>9.2}\n",
            program.name,
            blocks as f64 / 1e6,
            instructions as f64 / blocks as f64,
            program_of(1),
            program_of(2) - program_of(1),
            program_of(3) - program_of(2),
            program_of(5) - program_of(3),
            thread_of(4),
            thread_of(5) - thread_of(4),
        );
    }
    println!("nanoseconds of processor time for a block that runs:");
    println!("(QEMU's: itself, the plugin's call, the ring's write, that somebody reads;");
    println!(" the recorder's: taking and looking up, the trace unit with seals and output)");
    print!(
        "{:<9} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}\n{table}",
        "", "M blocks", "insns", "QEMU", "call", "write", "read", "look-up", "unit"
    );
}

/// Standard output leads nowhere until it is dropped.
struct Quiet(std::os::fd::OwnedFd);

impl Quiet {
    fn begin() -> Self {
        let kept = nix::unistd::dup(std::io::stdout()).expect("a descriptor");
        let nowhere = std::fs::File::options()
            .write(true)
            .open("/dev/null")
            .expect("/dev/null");
        nix::unistd::dup2_stdout(nowhere).expect("a descriptor");
        Self(kept)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        nix::unistd::dup2_stdout(&self.0).expect("a descriptor");
    }
}
