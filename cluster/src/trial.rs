//! A cluster on one machine, for trying out.

use std::num::NonZeroUsize;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use cofi_sql::cli::{StatementArgs, tell};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::client::{DivideArgs, ask};

/// Arguments of `cofi-cluster try`.
#[derive(Args, Debug)]
pub(crate) struct TrialArgs {
    /// How many executors.
    #[arg(long, value_name = "N", default_value = "2")]
    executors: NonZeroUsize,
    /// By how many threads each of them works.
    #[arg(long, value_name = "N", default_value = "1")]
    threads: NonZeroUsize,
    /// Leave it running when the statements are answered, until Ctrl-C.
    #[arg(long)]
    stay: bool,
    #[command(flatten)]
    divide: DivideArgs,
    #[command(flatten)]
    statement: StatementArgs,
}

/// Starting takes no longer than this.
const START: Duration = Duration::from_secs(60);

/// Starts a process of this program; with the address on which it listens. It ends with this one.
async fn start(words: &[&str]) -> Result<(Child, String)> {
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let mut command = Command::new(program);
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let what = words.first().copied().unwrap_or_default();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start the {what}"))?;
    let out = child.stdout.take().context("it has no output")?;
    let mut lines = BufReader::new(out).lines();
    let line = tokio::time::timeout(START, lines.next_line())
        .await
        .with_context(|| format!("the {what} does not start"))??;
    match line {
        Some(address) => Ok((child, address)),
        None => bail!("the {what} ended"),
    }
}

/// Starts a cluster and has it answer statements; the exit status.
pub(crate) async fn run(args: &TrialArgs) -> Result<u8> {
    let (_scheduler, address) = start(&["scheduler", "--listen", "127.0.0.1:0"]).await?;
    let work = tempfile::Builder::new().prefix("cofi-cluster-").tempdir()?;
    let (work_folder, threads) = (work.path().to_string_lossy(), args.threads.to_string());
    let mut executors = Vec::new();
    for _ in 0..args.executors.get() {
        let words = ["executor", "--scheduler", &address, "--threads", &threads];
        let words = [&words[..], &["--work", &work_folder]].concat();
        let (executor, _) = start(&words).await?;
        executors.push(executor);
    }
    if args.stay {
        let pids: Vec<String> = executors
            .iter()
            .filter_map(|executor| Some(executor.id()?.to_string()))
            .collect();
        tell(&format!(
            "scheduler at {address}, executors {}",
            pids.join(", ")
        ));
    }
    let status = ask(&address, &args.divide, None, &args.statement).await?;
    if args.stay {
        tell(&format!(
            "the cluster goes on until Ctrl-C: cofi-cluster sql --scheduler {address} FILE… STATEMENT"
        ));
        tokio::signal::ctrl_c().await?;
    }
    for mut child in executors {
        // It is this process's own, and holds nothing that anybody needs.
        child.kill().await?;
    }
    Ok(status)
}
