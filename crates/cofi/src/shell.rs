//! `cofi completions` and `cofi manual`: what a package installs beside the program, made from the same description of the command line as `--help`.

use crate::Ended;
use crate::args::Cli;
use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::Write;
use std::path::PathBuf;

/// Arguments of `cofi completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell: for bash, `cofi completions bash > ~/.local/share/bash-completion/completions/cofi`.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Arguments of `cofi manual`.
#[derive(Args, Debug)]
pub(crate) struct ManualArgs {
    /// The folder, which is made: `man -l FOLDER/cofi-record.1`.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Writes a completion script to standard output.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Ended> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "cofi", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(Ended::Well)
}

/// Writes a manual page for each command.
pub(crate) fn manual(args: &ManualArgs) -> Result<Ended> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("cannot write manual pages into {}", folder.display()))?;
    Ok(Ended::Well)
}
