//! The server: who may ask, and what for.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::api;
use crate::files;
use crate::recording::Recording;

/// What every answer says: nothing from elsewhere, nothing to elsewhere, nothing kept.
const HEADERS: [(header::HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        header::HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        header::HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// A longer address means nothing.
const LONGEST: usize = 8 << 10;

/// So many connections are open at a time: others wait. A browser opens six for a page.
const CONNECTIONS: usize = 64;

/// The head of a request is no longer than this, and has no more lines.
const HEAD: (usize, usize) = (32 << 10, 100);

/// A head is there within this time, also the first: who sends nothing takes nobody's connection away.
const HEAD_TIME: Duration = Duration::from_secs(20);

/// A connection is closed after this time, once what was asked is answered, and after twice this time in any case: who does not read its answer
/// takes nobody's connection away.
const OPEN_TIME: Duration = Duration::from_secs(600);

struct Shared {
    token: String,
    port: u16,
    recordings: Vec<Arc<Recording>>,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    address: String,
    listener: TcpListener,
    runtime: Runtime,
    router: Router,
}

/// Listens on the loopback device, at a port or at any that is free (0), to show recordings.
///
/// # Errors
///
/// If the port is taken, or there is no randomness to be had.
pub fn serve(recordings: Vec<Arc<Recording>>, port: u16) -> io::Result<Server> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let listener = runtime.block_on(TcpListener::bind(SocketAddr::from((
        Ipv4Addr::LOCALHOST,
        port,
    ))))?;
    let port = listener.local_addr()?.port();
    let address = format!("http://127.0.0.1:{port}/{token}/");
    let shared = Arc::new(Shared {
        token,
        port,
        recordings,
    });
    let router = Router::new().fallback(answer).with_state(shared);
    Ok(Server {
        address,
        listener,
        runtime,
        router,
    })
}

impl Server {
    /// Where the page is.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Answers until the process ends.
    ///
    /// # Errors
    ///
    /// If nothing more can be waited for.
    pub fn run(self) -> io::Result<()> {
        self.runtime.block_on(accept(self.listener, self.router))
    }
}

/// Takes connections, no more than [`CONNECTIONS`] at a time.
async fn accept(listener: TcpListener, router: Router) -> io::Result<()> {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = free.clone().acquire_owned();
        let place = place.await.map_err(io::Error::other)?;
        let Ok((stream, _)) = listener.accept().await else {
            // Gone before it was taken, or there are no more file descriptors at the moment.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            converse(stream, router).await;
            drop(place);
        });
    }
}

/// Answers on one connection.
async fn converse(stream: TcpStream, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD.0)
        .max_headers(HEAD.1);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    // How a connection ends is nobody's business but the browser's.
    if timeout(OPEN_TIME, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(OPEN_TIME, connection).await;
    }
}

/// Whether whoever asks has the right name of this server, and is no other site.
fn is_own(headers: &HeaderMap, port: u16) -> bool {
    let names = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    let is_name =
        |value: &HeaderValue| names.iter().any(|name| value.as_bytes() == name.as_bytes());
    let is_origin = |value: &HeaderValue| {
        let name = value.as_bytes().strip_prefix(b"http://");
        name.is_some_and(|found| names.iter().any(|name| found == name.as_bytes()))
    };
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().is_some_and(is_name) && hosts.next().is_none();
    host && headers.get_all(header::ORIGIN).iter().all(is_origin)
}

/// Whether two texts are the same, in a time that does not tell where they differ.
fn is_same(one: &str, other: &str) -> bool {
    let pairs = one.bytes().zip(other.bytes());
    one.len() == other.len() && pairs.fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Whoever asked is gone once this is dropped.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let (method, uri) = (request.method(), request.uri());
    if !is_own(request.headers(), shared.port) {
        return plain(
            StatusCode::FORBIDDEN,
            "this name of the server is not known\n",
        );
    }
    let path = uri.path().strip_prefix('/').unwrap_or_default();
    let Some((token, rest)) = path.split_once('/') else {
        return plain(StatusCode::NOT_FOUND, "");
    };
    if !is_same(token, &shared.token) {
        return plain(StatusCode::NOT_FOUND, "");
    }
    if method != Method::GET && method != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "");
    }
    let query = uri.query().unwrap_or_default();
    if query.len() > LONGEST {
        return plain(StatusCode::URI_TOO_LONG, "");
    }
    if let Some(name) = rest.strip_prefix("api/") {
        let (name, query) = (name.to_owned(), query.to_owned());
        let asked = shared.clone();
        let gone = Gone(Arc::default());
        let cancel = gone.0.clone();
        // Decoding takes its time, on threads that may wait.
        let work = move || api::answer(&asked.recordings, &name, &query, &cancel);
        let (status, text) = match tokio::task::spawn_blocking(work).await {
            Ok(Ok(value)) => (StatusCode::OK, value.to_string()),
            Ok(Err(error)) => (error.status(), error.to_json().to_string()),
            Err(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                r#"{"error":"the question could not be answered"}"#.to_owned(),
            ),
        };
        return respond(status, "application/json", Body::from(text));
    }
    match files::get(rest) {
        Some((kind, bytes)) => respond(StatusCode::OK, kind, Body::from(bytes)),
        None => plain(StatusCode::NOT_FOUND, ""),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", Body::from(text))
}

fn respond(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
