//! The scheduler: divides plans into tasks, hands them to executors, and hands them out again where an executor is gone.

use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context, Result};
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpcServer;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::create_scheduler;
use clap::Args;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use crate::MESSAGE;
use crate::codec::Codec;
use crate::recordings::Opened;
use crate::tls::{TlsArgs, server, session};

/// An executor of which nothing was heard for so long is gone, in seconds. One that is busy is heard of every five.
const GONE: u64 = 12;
/// How often is looked, in seconds.
const LOOK: u64 = 1;

/// Arguments of `cofi-cluster scheduler`.
#[derive(Args, Debug)]
pub(crate) struct SchedulerArgs {
    /// The address to listen on; with port 0 a free one, which is said on standard output.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:50050")]
    listen: SocketAddr,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Runs a scheduler until it is ended from outside.
pub(crate) async fn run(args: &SchedulerArgs) -> Result<()> {
    let tls = args.tls.read()?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    // It opens no recordings.
    let opened = Arc::new(Opened::new(NonZeroUsize::MIN, &std::env::temp_dir()));
    let of_session = tls.clone();
    let config = SchedulerConfig {
        external_host: address.ip().to_string(),
        bind_host: address.ip().to_string(),
        bind_port: address.port(),
        // Executors ask: they need no open port for orders, and a slow one asks less often.
        scheduling_policy: TaskSchedulingPolicy::PullStaged,
        executor_timeout_seconds: GONE,
        expire_dead_executor_interval_seconds: LOOK,
        no_executors_grace_period_seconds: 2 * GONE,
        grpc_server_max_decoding_message_size: MESSAGE,
        grpc_server_max_encoding_message_size: MESSAGE,
        override_physical_codec: Some(Arc::new(Codec::new(opened))),
        override_config_producer: Some(Arc::new(move || session(of_session.as_ref()))),
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await?;
    let scheduler =
        create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config)).await?;
    let service = SchedulerGrpcServer::new(scheduler)
        .max_decoding_message_size(MESSAGE as usize)
        .max_encoding_message_size(MESSAGE as usize);
    let mut out = std::io::stdout();
    writeln!(out, "{address}")?;
    out.flush()?;
    server(tls.as_ref())?
        .add_service(service)
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await?;
    Ok(())
}
