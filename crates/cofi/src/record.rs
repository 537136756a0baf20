//! `cofi record`: run a program, or attach to one, and write its trace.

use crate::Ended;
use crate::args::{Engine, RecordOptions};
use crate::engine::{self, Chosen};
use anyhow::{Context, Result, bail};
use cofi_capture::ptrace::{self, Command, Options, Outcome, Stops, Target};
use cofi_capture::qemu::{self, Qemu, Unknown};
use cofi_capture::record::{Recorded, Recorder, Settings, Truth, TruthStream};
use cofi_perf::PtConfig;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What `record` leaves behind for who goes on with it.
pub(crate) struct Recording {
    /// How the program ended.
    pub(crate) ended: Ended,
    /// What was recorded.
    pub(crate) recorded: Recorded,
    /// Holds the engine's lists, until it is dropped.
    _lists: Option<tempfile::TempDir>,
}

fn config(options: &RecordOptions) -> Result<PtConfig> {
    let mut config = PtConfig::default();
    for list in &options.config {
        config
            .apply(list)
            .with_context(|| format!("--config {list}"))?;
    }
    Ok(config)
}

fn check_engine(engine: Engine) -> Result<()> {
    match engine {
        Engine::Auto | Engine::Ptrace | Engine::Qemu => Ok(()),
        Engine::Hardware => bail!("--engine hardware is not in this version yet; use ptrace"),
    }
}

/// Records, and compares if that is asked for.
pub(crate) fn run(options: &RecordOptions) -> Result<Ended> {
    let recording = record(options, |_| ())?;
    finish(options, &recording)
}

/// Records a program. `before` hears of the engine before that begins.
pub(crate) fn record(options: &RecordOptions, before: impl FnOnce(&Chosen)) -> Result<Recording> {
    check_engine(options.engine)?;
    let config = config(options)?;
    if options.verify && !config.branch {
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
    };
    let target = match (options.pid, options.program.split_first()) {
        (Some(pid), _) => Target::Attach(pid),
        (None, Some((program, args))) => Target::Launch(Command {
            program: program.clone(),
            args: args.to_vec(),
        }),
        (None, None) => bail!("no program to run"),
    };
    let stop = Arc::new(AtomicBool::new(false));
    if options.pid.is_some() {
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop))
                .context("cannot wait for Ctrl-C")?;
        }
    }
    let truth = lists.as_ref().map(|folder| Truth::new(folder.path()));
    let mut recorder = Recorder::create(settings, truth)?;
    let run_options = Options {
        duration: options.duration,
        stop: &stop,
    };
    let engine = match (options.engine, &target) {
        (Engine::Auto, _) => engine::auto(&target),
        (Engine::Qemu, Target::Launch(_)) => Chosen::Qemu(Qemu::find()?),
        (Engine::Qemu, Target::Attach(_)) => {
            bail!("--engine qemu starts a program; to attach to one, use ptrace")
        }
        (Engine::Ptrace | Engine::Hardware, _) => Chosen::Ptrace,
    };
    before(&engine);
    let result = match (engine, target) {
        (Chosen::Qemu(qemu), Target::Launch(command)) => {
            qemu::run(&qemu, &command, run_options, &mut recorder).map(|(outcome, unknown)| {
                tell(unknown);
                outcome
            })
        }
        (_, target) => {
            let stops = if options.step {
                Stops::Instructions
            } else {
                Stops::Branches
            };
            ptrace::run_by(stops, target, run_options, &mut recorder)
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
        _lists: lists,
    })
}

/// What the trace leaves open.
fn tell(unknown: Unknown) {
    let say = |count: u64, what: &str| {
        if count > 0 {
            eprintln!("cofi: {count} {what}");
        }
    };
    say(
        unknown.unexplained,
        "times control went where QEMU does not say why; the trace has an interrupt there",
    );
    say(
        unknown.cut,
        "threads were killed: the block that each was in is not in the trace",
    );
    say(
        unknown.untraced,
        "threads or processes are not in the trace: too many ran at a time, or they could not share memory with Cofi (as after \
         chroot or setuid)",
    );
    say(
        unknown.escaped,
        "programs were started that could not run under QEMU (as 32-bit ones): they ran without being traced",
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
