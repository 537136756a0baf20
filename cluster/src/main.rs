//! The command `cofi-cluster`: statements of SQL about recordings, answered by several machines.

mod client;
mod codec;
mod executor;
mod objects;
mod operator;
mod planner;
mod recordings;
mod scheduler;
mod splits;
mod store;
mod tls;
mod trial;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cofi_sql::cli::{self, status};

/// Messages have no more than so many bytes.
const MESSAGE: u32 = 256 << 20;

/// SQL over recordings of Cofi or perf, answered by several machines.
#[derive(Parser, Debug)]
#[command(name = "cofi-cluster", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
enum Command {
    /// Run the scheduler, which divides the work. One for a cluster.
    Scheduler(scheduler::SchedulerArgs),
    /// Run an executor, which decodes. One for a machine.
    Executor(executor::ExecutorArgs),
    /// Answer statements by a cluster.
    Sql(client::ClientArgs),
    /// Start a cluster on this machine, answer statements, and end it.
    Try(trial::TrialArgs),
    /// Keep a catalogue in an object store, as `cofi archive --into s3://…` asks for it on standard input.
    Store(store::StoreArgs),
}

fn main() -> ExitCode {
    cli::main(async |cli: Cli| match &cli.command {
        Command::Scheduler(args) => {
            scheduler::run(args).await?;
            Ok(status::WELL)
        }
        Command::Executor(args) => {
            executor::run(args).await?;
            Ok(status::WELL)
        }
        Command::Sql(args) => client::run(args).await,
        Command::Try(args) => trial::run(args).await,
        Command::Store(args) => {
            store::run(args).await?;
            Ok(status::WELL)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
