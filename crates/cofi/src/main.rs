//! The `cofi` command.
#![cfg_attr(
    not(can_record),
    allow(dead_code, reason = "some of it is for what records alone")
)]

#[cfg(not(can_record))]
mod absent;
mod annotate;
mod archive;
mod args;
mod asm;
mod blocks;
mod calls;
mod catalogue;
mod check;
mod code;
mod companion;
mod coverage;
mod dap;
mod diff;
#[cfg(can_record)]
mod doctor;
mod dump;
#[cfg(can_record)]
mod engine;
mod events;
mod export;
#[cfg(can_record)]
mod flight;
mod function_names;
#[cfg(can_record)]
mod hardware;
mod input;
mod insn;
#[cfg(unix)]
mod interrupt;
mod item;
mod last;
mod lines;
#[cfg(can_record)]
mod machine;
mod notes;
mod ordered;
mod output;
mod point;
mod progress;
mod psb_index;
#[cfg(can_record)]
mod record;
#[cfg(can_record)]
mod record_args;
mod recordings;
mod recursion;
mod report;
mod select;
mod serve;
mod shell;
#[cfg(can_record)]
mod signals;
mod size;
mod source_text;
mod sql;
#[cfg(can_record)]
mod supervise;
mod table;
mod thread_tag;
mod top;
#[cfg(can_record)]
mod trace;
mod unit;
#[cfg(can_record)]
mod verify;
mod version;

use anyhow::Error;
use clap::Parser;
use std::process::ExitCode;

/// How a command ended, if it ran at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Everything was read.
    Well,
    /// The input holds errors; each was reported in its place.
    WithErrors,
    /// `cofi record`: the traced program's own exit status.
    Program(u8),
}

fn main() -> ExitCode {
    if let Some(words) = sql::of_export(std::env::args_os()) {
        return status_of(sql::export(&words));
    }
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output with status 0, wrong usage to standard error with 2.
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()) * 2);
        }
    };
    // (Elsewhere Ctrl-C ends the command at once.)
    #[cfg(unix)]
    if cli.command.only_reads()
        && let Err(error) = interrupt::end_between_lines()
    {
        output::tell(format_args!("{}", with_causes(&error)));
        return ExitCode::from(2);
    }
    let result = match cli.command {
        args::Command::Dump(args) => dump::run(&args),
        args::Command::Archive(args) => archive::run(&args),
        args::Command::Asm(args) => asm::run(&args),
        #[cfg(can_record)]
        args::Command::Record(args) => record::run(&args),
        #[cfg(not(can_record))]
        args::Command::Record(_) => absent::run("record"),
        #[cfg(not(can_record))]
        args::Command::Trace(_) => absent::run("trace"),
        #[cfg(not(can_record))]
        args::Command::Machine(_) => absent::run("machine"),
        #[cfg(not(can_record))]
        args::Command::Doctor(_) => absent::run("doctor"),
        args::Command::Insn(args) => insn::run(&args),
        args::Command::Events(args) => events::run(&args),
        args::Command::Blocks(args) => blocks::run(&args),
        args::Command::Calls(args) => calls::run(&args),
        args::Command::Export(args) => export::run(&args),
        args::Command::Last(args) => last::run(&args),
        args::Command::Top(args) => top::run(&args),
        args::Command::Sql(args) => sql::run(&args),
        args::Command::Coverage(args) => coverage::run(&args),
        args::Command::Annotate(args) => annotate::run(&args),
        args::Command::Dap(args) => dap::run(&args),
        args::Command::Serve(args) => serve::run(&args),
        args::Command::Diff(args) => diff::run(&args),
        args::Command::Check(args) => check::run(&args),
        args::Command::Report(args) => report::run(&args),
        #[cfg(can_record)]
        args::Command::Trace(args) => trace::run(&args),
        args::Command::Lines(args) => lines::run(&args),
        args::Command::Unit(args::UnitCommand::Run(args)) => unit::run(&args),
        args::Command::Unit(args::UnitCommand::Generations(args)) => unit::generations(&args),
        args::Command::Unit(args::UnitCommand::Cpuid(args)) => unit::cpuid(&args),
        #[cfg(can_record)]
        args::Command::Machine(args) => machine::run(args),
        #[cfg(can_record)]
        args::Command::Doctor(args) => doctor::run(&args),
        args::Command::Completions(args) => shell::completions(&args),
        args::Command::Manual(args) => shell::manual(&args),
    };
    status_of(result)
}

/// The exit status of how a command ended; says why it failed, if it did.
fn status_of(result: anyhow::Result<Ended>) -> ExitCode {
    match result {
        Ok(Ended::Well) => ExitCode::SUCCESS,
        Ok(Ended::WithErrors) => ExitCode::from(1),
        Ok(Ended::Program(status)) => ExitCode::from(status),
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::tell(format_args!("{}", with_causes(&error)));
            ExitCode::from(2)
        }
    }
}

/// An error and its causes. Some errors say their cause themselves: it is said once.
pub(crate) fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether the reader of our output went away, which is no error of ours.
fn is_closed_pipe(error: &Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::with_causes;
    use anyhow::anyhow;

    #[test]
    fn no_cause_is_said_twice() {
        let error = anyhow!("no such file").context("cannot read x: no such file");
        assert_eq!(with_causes(&error), "cannot read x: no such file");
        let error = anyhow!("no such file")
            .context("cannot read x")
            .context("--elf x");
        assert_eq!(with_causes(&error), "--elf x: cannot read x: no such file");
    }
}
