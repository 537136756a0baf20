//! `cofi record`: run a program, or attach to one, and write its trace.

use crate::Ended;
use crate::args::{Engine, Privilege, RecordArgs, RecordOptions};
use crate::engine::{self, Chosen};
use crate::flight::FlightOptions;
use crate::signals::{Signalled, Watch};
use crate::{hardware, output, supervise};
use anyhow::{Context, Result, bail};
use cofi_capture::ptrace::{self, Command, Options, Outcome, Stops, Target};
use cofi_capture::qemu::machine::{self, MachineQemu};
use cofi_capture::qemu::{self, Qemu, Unfit, Unknown};
use cofi_capture::record::{Recorded, Recorder, Settings, Truth, TruthStream};
use cofi_capture::{Missing, Observer};
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
    pub(crate) _lists: Option<tempfile::TempDir>,
}

fn config(options: &RecordOptions) -> Result<TraceConfig> {
    let lists = options.config.iter().map(String::as_str);
    TraceConfig::of_lists(lists).with_context(|| format!("--config {}", options.config.join(",")))
}

fn check_engine(engine: Engine, config: &TraceConfig) -> Result<()> {
    match (engine, config) {
        (Engine::Auto | Engine::Ptrace | Engine::Qemu | Engine::QemuSystem, _) => Ok(()),
        (Engine::Hardware, TraceConfig::Pt(_)) => Ok(()),
        (Engine::Hardware, TraceConfig::Rtit(_)) => {
            bail!("--engine hardware: Linux has no driver for RTIT; use ptrace or qemu")
        }
    }
}

/// Whose trace it is, as the options say it.
fn subject(options: &RecordOptions, config: &TraceConfig) -> Result<Subject> {
    if options.engine != Engine::QemuSystem {
        let is_wide = options
            .privilege
            .is_some_and(|levels| levels != Privilege::User);
        if is_wide && !matches!(options.engine, Engine::Hardware | Engine::Auto) {
            bail!(
                "--privilege os and all are for --engine qemu-system and hardware: the others trace user space only"
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
        os: options.privilege != Some(Privilege::User),
        user: options.privilege != Some(Privilege::Os),
    })
}

/// Records, and compares if that is asked for.
pub(crate) fn run(args: &RecordArgs) -> Result<Ended> {
    let options = &args.options;
    if let Some(pid) = needs_supervisor(options, &args.flight) {
        return supervise::run(pid);
    }
    let recording = record(options, &args.flight, |_| ())?;
    finish(options, &recording)
}

/// The process that is to be attached to by a tracer of its own, where that must not vanish: one that sets breakpoints.
pub(crate) fn needs_supervisor(options: &RecordOptions, flight: &FlightOptions) -> Option<u32> {
    let by_ptrace = || match options.engine {
        Engine::Hardware => false,
        Engine::Auto => {
            options.hardware.given().is_none()
                && config(options).map_or(true, |config| {
                    engine::hardware(&config, beyond_hardware(options, flight)).is_err()
                })
        }
        _ => true,
    };
    let pid = options.pid.filter(|_| !supervise::is_tracer());
    pid.filter(|_| by_ptrace())
}

/// Records a program. `before` hears of the engine before that begins.
pub(crate) fn record(
    options: &RecordOptions,
    flight: &FlightOptions,
    before: impl FnOnce(&Chosen),
) -> Result<Recording> {
    for path in [Some(&options.output), options.raw_output.as_ref()] {
        if path.is_some_and(|path| path == Path::new("-")) {
            bail!(
                "a trace cannot be written to standard output, which is the program's: name a file"
            );
        }
    }
    let config = config(options)?;
    check_engine(options.engine, &config)?;
    if let Some(option) = options.hardware.given()
        && !matches!(options.engine, Engine::Auto | Engine::Hardware)
    {
        bail!("{option} is for --engine hardware");
    }
    flight.check(options.engine, &config)?;
    if options.verify && matches!(config, TraceConfig::Pt(config) if !config.branch) {
        bail!("--verify compares the flow of control, which branch=0 leaves out of the trace");
    }
    let wants_lists = options.verify || options.truth.is_some();
    if options.engine == Engine::Hardware && wants_lists {
        bail!(
            "--engine hardware: nobody lists what the hardware runs, to be compared with its trace"
        );
    }
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
    let subject = subject(options, &config)?;
    let of_thread = options.hardware.tid.map(cofi_capture::hardware::process_of);
    let pid = of_thread.transpose()?.or(options.pid);
    let target = match (pid, options.program.split_first()) {
        (Some(pid), _) => Some(Target::Attach(pid)),
        (None, Some((program, args))) => Some(Target::Launch(Command {
            program: program.clone(),
            args: args.to_vec(),
        })),
        (None, None) if options.hardware.is_of_processors() => None,
        (None, None) => bail!("no program to run"),
    };
    let watch = Watch::begin(Signalled {
        is_attached: !matches!(target, Some(Target::Launch(_))),
        has_snapshots: options.hardware.snapshot.or(flight.last).is_some(),
    })?;
    if supervise::is_tracer() {
        watch.stop_with_input()?;
    }
    let mut run_options = Options::new(watch.stop());
    run_options.duration = options.duration;
    run_options.leader = Some(watch.leader());
    let mut why = None;
    let engine = match (options.engine, &target) {
        (Engine::Hardware, _) => Chosen::Hardware,
        (Engine::Auto, _) if only_hardware(options).is_some() => {
            let option = only_hardware(options).unwrap_or_default();
            // Where there is none, that is all there is to say.
            why = engine::has_hardware().then(|| format!("recording with hardware (for {option})"));
            Chosen::Hardware
        }
        (_, None) => bail!("no program to run"),
        (Engine::Auto, Some(target)) => {
            let (chosen, words) = engine::auto(target, &config, beyond_hardware(options, flight));
            why = Some(words);
            chosen
        }
        (Engine::Qemu, Some(Target::Launch(command))) => {
            if let Err(unfit @ Unfit::OtherMachine) = Qemu::suits(command) {
                bail!("{unfit}: use --engine ptrace");
            }
            Chosen::Qemu(Qemu::find()?)
        }
        (Engine::Qemu, Some(Target::Attach(_))) => {
            bail!("--engine qemu starts a program; to attach to one, use ptrace")
        }
        (Engine::QemuSystem, Some(Target::Launch(_))) => Chosen::Machine(MachineQemu::find()?),
        (Engine::QemuSystem, Some(Target::Attach(_))) => {
            bail!("--engine qemu-system starts a machine; to attach to a process, use ptrace")
        }
        (Engine::Ptrace, _) => Chosen::Ptrace,
    };
    let target = match (&engine, target) {
        (Chosen::Hardware, target) => {
            if let Some(why) = why {
                output::tell(format_args!("{why}"));
            }
            before(&engine);
            let target = target.as_ref();
            let snapshot = watch.snapshot();
            let words = command_line;
            return hardware::record(
                options,
                flight,
                config,
                words,
                target,
                snapshot,
                run_options,
            );
        }
        (_, Some(target)) => target,
        (_, None) => bail!("no program to run"),
    };
    let mut settings = Settings::new(options.output.clone(), config, engine.name());
    settings.raw_output = options.raw_output.clone();
    settings.command_line = command_line;
    settings.subject = subject;
    settings.last = flight.last;
    settings.window = flight.window();
    let truth = lists.as_ref().map(|folder| Truth::new(folder.path()));
    let mut recorder = Recorder::create(settings, truth)?;
    recorder.on_notice(|notice| output::tell(format_args!("{notice}")));
    if let Some(why) = why {
        output::tell(format_args!("{why}"));
    }
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
            result.map(|(outcome, _)| outcome).map_err(Into::into)
        }
        (_, target) => {
            ptrace::run_by(stops, target, run_options, &mut recorder).map_err(Into::into)
        }
    };
    if !recorder.has_begun() && result.is_err() {
        // Whatever stood there before still does.
        drop(recorder);
        return Err(result
            .err()
            .unwrap_or_else(|| anyhow::anyhow!("nothing was recorded")));
    }
    if let Err(error) = &result {
        let text = format!("tracing failed ({error:#}); what ran from then on is not in the trace");
        recorder.missing(Missing::new(text));
    }
    let recorded = recorder.finish()?;
    for missing in &recorded.missing {
        output::tell(format_args!("{missing}"));
    }
    for error in &recorded.errors {
        output::tell(format_args!("{}", error.sentence()));
    }
    let ended = ended(result?);
    if let Some(unknown) = recorded.unknown.first() {
        bail!("{unknown}");
    }
    Ok(Recording {
        ended,
        recorded,
        engine: engine_in_words,
        _lists: lists,
    })
}

/// What is asked for that only the engines with a trace unit in software do.
fn beyond_hardware(options: &RecordOptions, flight: &FlightOptions) -> Option<&'static str> {
    let wanted = [
        (options.verify, "--verify"),
        (options.truth.is_some(), "--truth"),
        (options.raw_output.is_some(), "--raw-output"),
        (options.step, "--step"),
    ];
    let mut wanted = wanted.into_iter();
    wanted
        .find_map(|(is_wanted, option)| is_wanted.then_some(option))
        .or_else(|| flight.first())
}

/// What is asked for that only hardware does.
fn only_hardware(options: &RecordOptions) -> Option<&'static str> {
    let is_wide = options
        .privilege
        .is_some_and(|levels| levels != Privilege::User);
    options
        .hardware
        .given()
        .or(is_wide.then_some("--privilege"))
}

pub(crate) fn ended(outcome: Outcome) -> Ended {
    match outcome {
        Outcome::Exited(0) | Outcome::Detached => Ended::Well,
        Outcome::Exited(status) => Ended::Program(status as u8),
        Outcome::Signaled(signal) => Ended::Program((128 + signal) as u8),
    }
}

/// What QEMU does otherwise than a processor, where it has.
fn tell(unknown: Unknown) {
    let processes = match unknown.shared_code {
        0 => return,
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    };
    output::tell(format_args!(
        "{processes} ran code in shared memory: QEMU does not notice what is written through another mapping of it, and goes on \
         with the code that it knows (see docs/engines.md)"
    ));
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
    cofi_capture::record::write_file(path, |file| {
        let mut out = BufWriter::new(file);
        for stream in streams {
            for ip in stream.addresses()? {
                writeln!(out, "{} {}", stream.tid, ip?)?;
            }
        }
        out.flush()
    })?;
    Ok(())
}
