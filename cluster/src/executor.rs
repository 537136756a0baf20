//! An executor: decodes what it is told to, and keeps the rows until they are fetched.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use arrow_flight::flight_service_server::FlightServiceServer;
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::error::BallistaError;
use ballista_core::utils::GrpcServerConfig;
use ballista_executor::ArrowFlightServerProvider;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_executor::flight_service::BallistaFlightService;
use ballista_executor::shutdown::Shutdown;
use clap::Args;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use crate::MESSAGE;
use crate::codec::Codec;
use crate::recordings::Opened;
use crate::tls::{Tls, TlsArgs, endpoint, server, session};

/// Arguments of `cofi-cluster executor`.
#[derive(Args, Debug)]
pub(crate) struct ExecutorArgs {
    /// The scheduler.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50050")]
    scheduler: String,
    /// The address to listen on, at which rows are fetched; with port 0 a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The name or address by which others reach this machine; without this, that on which it listens.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// By how many threads; without this, as many as there are processors.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// So many MiB may sorting, joining and grouping hold before they write to files.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: u64,
    /// The folder for rows that wait to be fetched, for what does not fit in memory, and for recordings of an object store; without this the system's.
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Runs an executor until it is ended from outside.
pub(crate) async fn run(args: &ExecutorArgs) -> Result<()> {
    let tls = args.tls.read()?;
    let (host, port) = args
        .scheduler
        .rsplit_once(':')
        .context("--scheduler: expected HOST:PORT")?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    let work = args.work.clone().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let work = tempfile::Builder::new()
        .prefix("cofi-executor-")
        .tempdir_in(&work)
        .with_context(|| format!("cannot write into {}", work.display()))?;
    let rows = work.path().join("rows");
    std::fs::create_dir(&rows)?;
    let threads = match args.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
    };
    let opened = Arc::new(Opened::new(threads, &work.path().join("objects")));
    let of_session = tls.clone();
    let config = ExecutorProcessConfig {
        bind_host: address.ip().to_string(),
        external_host: Some(args.host.clone().unwrap_or_else(|| host_of(address.ip()))),
        port: address.port(),
        scheduler_host: host.to_owned(),
        scheduler_port: port.parse().context("--scheduler: the port")?,
        // It may be started a moment before the scheduler.
        scheduler_connect_timeout_seconds: 20,
        vcores: threads.get(),
        task_scheduling_policy: TaskSchedulingPolicy::PullStaged,
        work_dir: Some(rows.to_string_lossy().into_owned()),
        // What nobody has fetched in an hour nobody will: of a query whose scheduler is gone.
        job_data_ttl_seconds: 3600,
        job_data_clean_up_interval_seconds: 600,
        grpc_max_decoding_message_size: MESSAGE,
        grpc_max_encoding_message_size: MESSAGE,
        memory_pool_size: Some(args.memory.saturating_mul(1 << 20)),
        override_physical_codec: Some(Arc::new(Codec::new(opened))),
        override_config_producer: Some(Arc::new(move || session(of_session.as_ref()))),
        override_arrow_flight_service: Some(flight(listener, tls.clone())),
        override_create_grpc_client_endpoint: tls.as_ref().map(endpoint),
        ..ExecutorProcessConfig::default()
    };
    let mut out = std::io::stdout();
    writeln!(out, "{address}")?;
    out.flush()?;
    start_executor_process(Arc::new(config)).await?;
    Ok(())
}

/// An address as it stands in another one.
fn host_of(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// The service from which rows are fetched, on a port that is open already.
fn flight(listener: TcpListener, tls: Option<Tls>) -> Arc<ArrowFlightServerProvider> {
    let listener = Mutex::new(Some(listener));
    Arc::new(
        move |rows: String, _: SocketAddr, mut shutdown: Shutdown, _: GrpcServerConfig| {
            let listener = listener
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let server = server(tls.as_ref());
            tokio::spawn(async move {
                let started = || BallistaError::Internal("it was started before".to_owned());
                let service = FlightServiceServer::new(BallistaFlightService::new(rows))
                    .max_decoding_message_size(MESSAGE as usize)
                    .max_encoding_message_size(MESSAGE as usize);
                let incoming = TcpListenerStream::new(listener.ok_or_else(started)?);
                server
                    .map_err(BallistaError::TonicError)?
                    .add_service(service)
                    .serve_with_incoming_shutdown(incoming, shutdown.recv())
                    .await
                    .map_err(BallistaError::TonicError)
            })
        },
    )
}
