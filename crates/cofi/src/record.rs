//! `cofi record`: run a program, or attach to one, and write its trace.

use crate::Ended;
use crate::args::{Engine, Privilege, RecordOptions};
use crate::engine::{self, Chosen};
use crate::signals::Watch;
use anyhow::{Context, Result, bail};
use cofi_capture::ptrace::{self, Command, Options, Outcome, Stops, Target};
use cofi_capture::qemu::machine::{self, MachineQemu, MachineUnknown};
use cofi_capture::qemu::{self, Qemu, Unfit, Unknown};
use cofi_capture::record::{Recorded, Recorder, Settings, Truth, TruthStream};
use cofi_perf::{Subject, TraceConfig};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::Ordering;

/// What `record` leaves behind for who goes on with it.
pub(crate) struct Recording {
    /// How the program ended.
    pub(crate) ended: Ended,
    /// What was recorded.
    pub(crate) recorded: Recorded,
    /// The engine that ran the program, in words.
    pub(crate) engine: String,
    /// Holds the engine's lists, until it is dropped.
    _lists: Option<tempfile::TempDir>,
}

fn config(options: &RecordOptions) -> Result<TraceConfig> {
    let lists = options.config.iter().map(String::as_str);
    TraceConfig::of_lists(lists).with_context(|| format!("--config {}", options.config.join(",")))
}

fn check_engine(engine: Engine, config: &TraceConfig) -> Result<()> {
    match (engine, config) {
        (Engine::Auto | Engine::Ptrace | Engine::Qemu | Engine::QemuSystem, _) => Ok(()),
        (Engine::Hardware, TraceConfig::Pt(_)) => {
            bail!("--engine hardware is not in this version yet; use ptrace")
        }
        (Engine::Hardware, TraceConfig::Rtit(_)) => {
            bail!("--engine hardware: Linux has no driver for RTIT; use ptrace or qemu")
        }
    }
}

/// Whose trace it is, as the options say it.
fn subject(options: &RecordOptions, config: &TraceConfig) -> Result<Subject> {
    if options.engine != Engine::QemuSystem {
        if options.privilege != Privilege::All {
            bail!(
                "--privilege is for --engine qemu-system: of programs, only user space is traced"
            );
        }
        return Ok(Subject::Processes);
    }
    if config.is_timeless() {
        let setting = match config {
            TraceConfig::Pt(_) => "tsc",
            TraceConfig::Rtit(_) => "sts",
        };
        bail!(
            "a machine's trace needs the time ({setting}=1): by it, the versions of code find their places"
        );
    }
    if matches!(config, TraceConfig::Rtit(config) if config.less_pkts) {
        bail!("a machine's trace needs the time where tracing begins, which less_pkts leaves out");
    }
    Ok(Subject::Guest {
        os: options.privilege != Privilege::User,
        user: options.privilege != Privilege::Os,
    })
}

/// Records, and compares if that is asked for.
pub(crate) fn run(options: &RecordOptions) -> Result<Ended> {
    let recording = record(options, |_| ())?;
    finish(options, &recording)
}

/// Records a program. `before` hears of the engine before that begins.
pub(crate) fn record(options: &RecordOptions, before: impl FnOnce(&Chosen)) -> Result<Recording> {
    let config = config(options)?;
    check_engine(options.engine, &config)?;
    if options.verify && matches!(config, TraceConfig::Pt(config) if !config.branch) {
        bail!("--verify compares the flow of control, which branch=0 leaves out of the trace");
    }
    let wants_lists = options.verify || options.truth.is_some();
    let lists = if wants_lists {
        let folder =
            tempfile::tempdir().context("cannot make a folder for the list of addresses")?;
        Some(folder)
    } else {
        None
    };
    let mut command_line = vec!["cofi".to_owned(), "record".to_owned(), "--".to_owned()];
    command_line.extend(
        options
            .program
            .iter()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    let settings = Settings {
        file: options.output.clone(),
        raw_output: options.raw_output.clone(),
        config,
        command_line,
        subject: subject(options, &config)?,
    };
    let target = match (options.pid, options.program.split_first()) {
        (Some(pid), _) => Target::Attach(pid),
        (None, Some((program, args))) => Target::Launch(Command {
            program: program.clone(),
            args: args.to_vec(),
        }),
        (None, None) => bail!("no program to run"),
    };
    let watch = Watch::begin(options.pid.is_some())?;
    let truth = lists.as_ref().map(|folder| Truth::new(folder.path()));
    let mut recorder = Recorder::create(settings, truth)?;
    recorder.on_notice(|notice| crate::output::tell(format_args!("{notice}")));
    let run_options = Options {
        duration: options.duration,
        stop: watch.stop(),
        leader: Some(watch.leader()),
    };
    let engine = match (options.engine, &target) {
        (Engine::Auto, _) => engine::auto(&target),
        (Engine::Qemu, Target::Launch(command)) => {
            if let Err(unfit @ Unfit::OtherMachine) = Qemu::suits(command) {
                bail!("{unfit}: use --engine ptrace");
            }
            Chosen::Qemu(Qemu::find()?)
        }
        (Engine::Qemu, Target::Attach(_)) => {
            bail!("--engine qemu starts a program; to attach to one, use ptrace")
        }
        (Engine::QemuSystem, Target::Launch(_)) => Chosen::Machine(MachineQemu::find()?),
        (Engine::QemuSystem, Target::Attach(_)) => {
            bail!("--engine qemu-system starts a machine; to attach to a process, use ptrace")
        }
        (Engine::Ptrace | Engine::Hardware, _) => Chosen::Ptrace,
    };
    before(&engine);
    let stops = if options.step {
        Stops::Instructions
    } else {
        Stops::Branches
    };
    let engine_in_words = engine::in_words(&engine, stops);
    if watch.stop().load(Ordering::SeqCst) {
        bail!("a signal ended it before the program was started");
    }
    let result: Result<Outcome> = match (engine, target) {
        (Chosen::Qemu(qemu), Target::Launch(command)) => {
            let result = qemu::run(&qemu, &command, run_options, &mut recorder);
            result.map_err(Into::into).map(|(outcome, unknown)| {
                tell(unknown);
                outcome
            })
        }
        (Chosen::Machine(qemu), Target::Launch(command)) => {
            let mut args = vec![command.program];
            args.extend(command.args);
            let result = machine::run(&qemu, &args, run_options, &mut recorder);
            result.map_err(Into::into).map(|(outcome, unknown)| {
                tell_of_machine(unknown);
                if outcome == Outcome::Detached {
                    eprintln!("cofi: the machine runs on without being traced");
                }
                outcome
            })
        }
        (_, target) => {
            ptrace::run_by(stops, target, run_options, &mut recorder).map_err(Into::into)
        }
    };
    let recorded = recorder.finish()?;
    let ended = match result? {
        Outcome::Exited(0) | Outcome::Detached => Ended::Well,
        Outcome::Exited(status) => Ended::Program(status as u8),
        Outcome::Signaled(signal) => Ended::Program((128 + signal) as u8),
    };
    Ok(Recording {
        ended,
        recorded,
        engine: engine_in_words,
        _lists: lists,
    })
}

/// Says that there is one of something, or that there are several.
fn say(count: u64, one: &str, several: &str) {
    match count {
        0 => {}
        1 => eprintln!("cofi: 1 {one}"),
        _ => eprintln!("cofi: {count} {several}"),
    }
}

/// What a machine's trace leaves open.
fn tell_of_machine(unknown: MachineUnknown) {
    say(
        unknown.unexplained,
        "time control went where nothing explains (as by a reset); the trace has a gap there",
        "times control went where nothing explains (as by a reset); the trace has a gap there",
    );
    say(
        unknown.cut,
        "processor ran when the machine ended: the block that it was in is not in the trace",
        "processors ran when the machine ended: the block that each was in is not in the trace",
    );
    say(
        unknown.untraced,
        "processor is not in the trace: there are too many, or QEMU keeps its state in an unknown way",
        "processors are not in the trace: there are too many, or QEMU keeps their state in an unknown way",
    );
}

/// What the trace leaves open.
fn tell(unknown: Unknown) {
    say(
        unknown.unexplained,
        "time control went where QEMU does not say why; the trace has an interrupt there",
        "times control went where QEMU does not say why; the trace has an interrupt there",
    );
    say(
        unknown.cut,
        "thread was killed: the block that it was in is not in the trace",
        "threads were killed: the block that each was in is not in the trace",
    );
    say(
        unknown.untraced,
        "thread or process is not in the trace: too many ran at a time, or it could not share memory with Cofi (none was \
         left, or after chroot or setuid)",
        "threads or processes are not in the trace: too many ran at a time, or they could not share memory with Cofi (none \
         was left, or after chroot or setuid)",
    );
    say(
        unknown.escaped,
        "program was started that could not run under QEMU (as a 32-bit one, or another user's): it ran without being traced",
        "programs were started that could not run under QEMU (as 32-bit ones, or another user's): they ran without being \
         traced",
    );
    say(
        unknown.shared_code,
        "process ran code in shared memory: QEMU does not notice what is written through another mapping of it, and goes on \
         with the code that it knows (see docs/engines.md)",
        "processes ran code in shared memory: QEMU does not notice what is written through another mapping of it, and goes on \
         with the code that it knows (see docs/engines.md)",
    );
}

/// The comparison and the list of addresses, as the options ask for them.
pub(crate) fn finish(options: &RecordOptions, recording: &Recording) -> Result<Ended> {
    if let Some(path) = &options.truth {
        write_truth(path, &recording.recorded.truth)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.verify && !crate::verify::run(&options.output, &recording.recorded.truth)? {
        return Ok(Ended::WithErrors);
    }
    Ok(recording.ended)
}

fn write_truth(path: &Path, streams: &[TruthStream]) -> Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    for stream in streams {
        for ip in stream.addresses()? {
            writeln!(out, "{} {}", stream.tid, ip?)?;
        }
    }
    out.flush()?;
    Ok(())
}
