//! The client: answers statements as `cofi-sql` does, by a cluster.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use ballista_core::config::BALLISTA_SCHEDULER_MAX_PARTITIONS_PER_TASK;
use ballista_core::extension::SessionConfigExt;
use clap::Args;
use cofi_sql::cli::{self, StatementArgs};
use cofi_sql::scan::Pieces;
use cofi_sql::{Engine, Recording};
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;

use crate::MESSAGE;
use crate::planner::{Cluster, Planner};
use crate::recordings::Opened;
use crate::tls::{Tls, TlsArgs, session};

/// For so many pieces of what is decoded there is one of what is done with the rows of all.
const PIECES_A_GROUP: usize = 4;

/// How statements are divided.
#[derive(Args, Clone, Debug)]
pub(crate) struct DivideArgs {
    /// Into how many pieces what is to be decoded is divided: a few for each thread of the cluster, so that none of them waits long for the last.
    #[arg(long, value_name = "N", default_value = "16")]
    pieces: NonZeroUsize,
}

/// Arguments of `cofi-cluster sql`.
#[derive(Args, Debug)]
pub(crate) struct ClientArgs {
    /// The scheduler.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50050")]
    scheduler: String,
    #[command(flatten)]
    divide: DivideArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    statement: StatementArgs,
}

/// Answers statements; the exit status.
pub(crate) async fn run(args: &ClientArgs) -> Result<u8> {
    let tls = args.tls.read()?;
    ask(&args.scheduler, &args.divide, tls.as_ref(), &args.statement).await
}

/// Has statements answered by a cluster; the exit status.
pub(crate) async fn ask(
    scheduler: &str,
    divide: &DivideArgs,
    tls: Option<&Tls>,
    statement: &StatementArgs,
) -> Result<u8> {
    let work = tempfile::Builder::new().prefix("cofi-client-").tempdir()?;
    let opened = Arc::new(Opened::new(NonZeroUsize::MIN, work.path()));
    let input = statement.input.absolute().context("no current folder")?;
    let mut known = HashMap::new();
    let mut recordings = Vec::new();
    for file in cli::files(statement)? {
        let (told, recording) = find(&opened, file, &input).await?;
        known.insert(recording.name().to_owned(), told);
        recordings.push(recording);
    }
    Recording::check_distinct(&recordings)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let cluster = Arc::new(Cluster {
        scheduler: format!("{scheme}://{scheduler}"),
        known,
        opened,
    });
    let config = session(tls)
        // What is grouped and joined behind is of fewer rows: each further division costs a task and its files.
        .with_target_partitions(divide.pieces.get().div_ceil(PIECES_A_GROUP))
        // An executor that asks for work takes one of its threads for a task, however many partitions that has.
        .set_usize(BALLISTA_SCHEDULER_MAX_PARTITIONS_PER_TASK, 1)
        .with_ballista_grpc_client_max_message_size(MESSAGE as usize);
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_query_planner(Arc::new(Planner(cluster)))
        .build();
    let context = SessionContext::new_with_state(state);
    let engine = Engine::within(context, &recordings, Pieces::Several(divide.pieces))?;
    cli::answer(statement, &engine).await?;
    Ok(cli::report(&recordings))
}

/// Opens a recording, which reads files.
async fn find(
    opened: &Arc<Opened>,
    file: &Path,
    input: &cli::InputArgs,
) -> Result<(crate::recordings::Known, Arc<Recording>)> {
    let (opened, file, input) = (opened.clone(), file.to_path_buf(), input.clone());
    let found = tokio::task::spawn_blocking(move || opened.find(&file, &input)).await?;
    Ok(found?)
}
