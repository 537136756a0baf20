//! Certificates: with them scheduler, executors and clients prove each other who they are, and nobody else reads what they say.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ballista_core::extension::{EndpointOverrideFn, SessionConfigExt};
use clap::Args;
use datafusion::prelude::SessionConfig;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};

/// Certificates in PEM files.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// The certificate of this process, with those that signed it behind.
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Who signs the certificates of all others. Whoever has none of it is refused.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
}

/// A process's certificates.
#[derive(Clone)]
pub(crate) struct Tls {
    cert: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

/// A connection that says nothing is asked so often whether the other side is still there.
const ALIVE: Duration = Duration::from_secs(5);

impl TlsArgs {
    /// The certificates, if there are any.
    pub(crate) fn read(&self) -> Result<Option<Tls>> {
        let read = |path: &PathBuf| {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(cert), Some(key), Some(ca)) => Ok(Some(Tls {
                cert: read(cert)?,
                key: read(key)?,
                ca: read(ca)?,
            })),
            (None, None, None) => Ok(None),
            _ => bail!("--tls-cert, --tls-key and --tls-ca belong together"),
        }
    }
}

impl Tls {
    fn identity(&self) -> Identity {
        Identity::from_pem(&self.cert, &self.key)
    }

    fn ca(&self) -> Certificate {
        Certificate::from_pem(&self.ca)
    }
}

/// A server, which takes only who has a certificate if there are any.
pub(crate) fn server(tls: Option<&Tls>) -> Result<Server, tonic::transport::Error> {
    let server = Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(ALIVE));
    match tls {
        Some(tls) => {
            let config = ServerTlsConfig::new()
                .identity(tls.identity())
                .client_ca_root(tls.ca());
            server.tls_config(config)
        }
        None => Ok(server),
    }
}

/// What makes of Ballista's plain connections such with certificates.
pub(crate) fn endpoint(tls: &Tls) -> EndpointOverrideFn {
    let tls = tls.clone();
    Arc::new(
        move |plain: Endpoint| -> Result<Endpoint, Box<dyn Error + Send + Sync>> {
            let authority = plain.uri().authority().map(ToString::to_string);
            let authority = authority.unwrap_or_default();
            let config = ClientTlsConfig::new()
                .identity(tls.identity())
                .ca_certificate(tls.ca());
            let endpoint = Endpoint::from_shared(format!("https://{authority}"))?
                .tcp_nodelay(true)
                .connect_timeout(ALIVE)
                .http2_keep_alive_interval(ALIVE)
                .keep_alive_while_idle(true)
                .tls_config(config)?;
            Ok(endpoint)
        },
    )
}

/// The settings of a session, with what connections need.
pub(crate) fn session(tls: Option<&Tls>) -> SessionConfig {
    let config = SessionConfig::new_with_ballista();
    match tls {
        Some(tls) => config
            .with_ballista_use_tls(true)
            .with_ballista_override_create_grpc_client_endpoint(endpoint(tls)),
        None => config,
    }
}
