//! Where the time goes when the QEMU engine records: `cargo xtask bench record`.
//!
//! Each program runs natively, under QEMU alone, under QEMU with a plugin that is called for each block and does nothing, with one that tells of
//! each and that nobody hears, with an observer that only counts, and recorded. The differences, by the number of blocks, are what each part takes. All of a program's
//! runs are made in turn, in each round; medians are printed. Programs that start others have QEMU run these as well. A boot of Linux is run by QEMU's system emulation
//! alone, and recorded.

mod figures;
mod machine;
mod measure;
mod programs;

use cofi_capture::ptrace::{Command, Options, Outcome};
use cofi_capture::qemu::{self, Qemu, Stage};
use cofi_capture::record::{Recorder, Settings};
use cofi_capture::{Entry, Mapping, Observer, Pid, ProcessCause, Runs, SavedCode};
use cofi_insn::Insn;
use cofi_packet::{ExecMode, Ip};
use cofi_perf::{PtConfig, Subject};
use figures::{ALONE, CALLED, COUNTED, Figures, NATIVE, RECORDED, TOLD};
use machine::Boot;
use measure::{forget_peak, peak, time};
use programs::{Program, THREADS, programs};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

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

/// What is asked for.
#[derive(Debug)]
struct Asked {
    rounds: usize,
    /// Parts of the names of programs; all if there is none.
    only: Vec<String>,
    json: Option<PathBuf>,
    kernel: Option<PathBuf>,
    initrd: Option<PathBuf>,
}

impl Asked {
    fn of_arguments() -> Self {
        let mut asked = Self {
            rounds: 5,
            only: Vec::new(),
            json: None,
            kernel: None,
            initrd: None,
        };
        // (cargo adds a word of its own.)
        let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
        while let Some(word) = words.next() {
            let value = words
                .next()
                .unwrap_or_else(|| panic!("{word} wants a value"));
            match word.as_str() {
                "--rounds" => asked.rounds = value.parse().expect("--rounds wants a number"),
                "--only" => asked.only.push(value),
                "--json" => asked.json = Some(value.into()),
                "--kernel" => asked.kernel = Some(value.into()),
                "--initrd" => asked.initrd = Some(value.into()),
                _ => panic!("{word}: there is no such option"),
            }
        }
        assert!(asked.rounds > 0, "--rounds wants a number above 0");
        asked
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

fn record(qemu: &Qemu, program: &Program, args: &[String], observer: &mut dyn Observer) {
    let stop = AtomicBool::new(false);
    let command = Command {
        program: program.path.clone().into(),
        args: args.iter().map(Into::into).collect(),
    };
    let options = Options::new(&stop);
    let (outcome, _) = qemu::run(qemu, &command, options, observer).expect("it runs under QEMU");
    assert_eq!(outcome, Outcome::Exited(0), "{}", program.name);
}

/// The file into which everything is recorded.
fn recording(folder: &Path) -> PathBuf {
    folder.join("cofi.data")
}

fn settings(file: &Path, subject: Subject, engine: &str) -> Settings {
    let mut settings = Settings::new(file.to_owned(), PtConfig::default(), engine);
    settings.subject = subject;
    settings
}

/// Records a program into a file: how many bytes of trace.
fn record_into(file: &Path, qemu: &Qemu, program: &Program, args: &[String]) -> u64 {
    let settings = settings(file, Subject::Processes, "qemu");
    let mut recorder = Recorder::create(settings, None).expect("a file");
    record(qemu, program, args, &mut recorder);
    recorder.finish().expect("a recording").trace_bytes
}

/// Runs a program in every way, so often in turn.
fn measure(program: &Program, rounds: usize, qemu: &Qemu, folder: &Path) -> Figures {
    let file = &recording(folder);
    let under = programs::write_under(folder, qemu.path());
    let mut figures = Figures {
        name: program.name,
        ..Figures::default()
    };
    for _ in 0..rounds {
        let runs = &mut figures.runs;
        runs[NATIVE].push(time(|| {
            let status = program.native().status();
            assert!(
                status.is_ok_and(|status| status.success()),
                "{}",
                program.name
            );
        }));
        let mut for_qemu = program.for_qemu(&under);
        runs[ALONE].push(time(|| {
            let mut alone = std::process::Command::new(qemu.path());
            alone
                .arg(for_qemu.get_program())
                .args(for_qemu.get_args())
                .stdin(std::process::Stdio::null())
                .stdout(std::process::Stdio::null());
            assert!(alone.status().is_ok_and(|status| status.success()));
        }));
        runs[CALLED].push(time(|| {
            qemu.run_stage(Stage::Called, &mut for_qemu)
                .expect("it runs");
        }));
        runs[TOLD].push(time(|| {
            figures.blocks = qemu.run_stage(Stage::Told, &mut for_qemu).expect("it runs");
        }));
        // (What the program prints is not to be seen here.)
        let _quiet = Quiet::begin();
        let mut counter = Counter::default();
        runs[COUNTED].push(time(|| record(qemu, program, &program.args, &mut counter)));
        figures.instructions = counter.0;
        forget_peak();
        runs[RECORDED].push(time(|| {
            figures.trace_bytes = record_into(file, qemu, program, &program.args);
        }));
        figures.peaks.extend(peak());
        if let Some(args) = &program.single {
            figures.single.push(time(|| {
                record_into(file, qemu, program, args);
            }));
        }
    }
    figures
}

fn main() {
    let asked = Asked::of_arguments();
    let folder = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "."
    })
    .expect("a folder");
    let folder = folder.path();
    println!("{} rounds, medians", asked.rounds);
    let mut all = Vec::new();
    let mut done = |figures: Figures| {
        println!("{}", figures.line(THREADS));
        all.push(figures);
    };
    match Qemu::find() {
        Ok(qemu) => {
            let (path, version) = (qemu.path().display(), qemu.plugin_version());
            println!("{path} (interface {version})");
            let programs = programs(folder, |name| asked.wants(name));
            println!(
                "seconds by the clock on the wall, and the recorder's memory:\n{}",
                Figures::heading()
            );
            for program in programs {
                done(measure(&program, asked.rounds, &qemu, folder));
            }
        }
        Err(error) => println!("programs: SKIPPED: {error}"),
    }
    if asked.wants(machine::NAME) {
        let [kernel, initrd] = [&asked.kernel, &asked.initrd].map(Option::as_deref);
        match Boot::find(kernel, initrd, folder) {
            Ok(boot) => done(boot.measure(asked.rounds, &recording(folder))),
            Err(why) => println!("{}: SKIPPED, as {why}", machine::NAME),
        }
    }
    let by_block: Vec<_> = all.iter().filter_map(Figures::line_by_block).collect();
    if !by_block.is_empty() {
        println!("nanoseconds of processor time for a block that runs:");
        println!("(QEMU's: itself, the plugin's call, the ring's write, that somebody reads;");
        println!(" the recorder's: taking and looking up, the trace unit with seals and output)");
        println!("{}", Figures::heading_by_block());
        println!("{}", by_block.join("\n"));
    }
    if let Some(path) = &asked.json {
        let programs: Vec<_> = all.iter().map(|figures| figures.json(THREADS)).collect();
        let figures = serde_json::json!({ "rounds": asked.rounds, "programs": programs });
        let text = serde_json::to_string_pretty(&figures).expect("memory");
        std::fs::write(path, text + "\n").expect("a file for the figures");
    }
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
