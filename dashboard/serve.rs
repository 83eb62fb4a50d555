//! Serving a dashboard by itself: connections, how many and how slow, and how they end. As opposed to `axum::serve` nobody can hold
//! a connection by sending or reading slowly, and no address can have them all.

mod peers;
#[cfg(test)]
pub(crate) mod tests;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service as _;

use crate::{Dashboard, access::is_proxy, slow::Unstalled};
use peers::Peers;

/// What one client may take of everybody's.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections at one time; more wait to be accepted.
    connections: usize,
    /// Of one address; more are closed. Trusted proxies and, unless it counts, this machine have as many as there are: everybody may
    /// come through them.
    of_one: usize,
    /// Whether this machine counts as any other address does.
    counts_itself: bool,
    /// All of a request's head comes within this, and the next request on the same connection begins within it.
    head: Duration,
    /// Something of an answer is read within this.
    read: Duration,
    /// Of a request's head.
    head_bytes: usize,
}

const LIMITS: Limits = Limits {
    connections: 512,
    of_one: 64,
    counts_itself: false,
    head: Duration::from_secs(15),
    read: Duration::from_secs(30),
    head_bytes: 64 * 1024,
};

/// How long, and how much, is read on that nobody wants.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: u64 = 16 << 20;

/// What cannot be accepted (out of file descriptors) may be in a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

pub(crate) async fn serve(
    dashboard: &Dashboard,
    app: Router,
    listener: TcpListener,
    until: (CancellationToken, Duration),
) -> usize {
    serve_within(LIMITS, (dashboard, app), listener, until).await
}

async fn serve_within(
    limits: Limits,
    (dashboard, app): (&Dashboard, Router),
    listener: TcpListener,
    (stop, grace): (CancellationToken, Duration),
) -> usize {
    let (open, places) = (TaskTracker::new(), Arc::new(Semaphore::new(limits.connections)));
    let peers = Peers::new(limits.of_one);
    let cut = CancellationToken::new();
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            () = stop.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let address = peer.ip().to_canonical();
        let is_free =
            is_proxy(address, dashboard.shared.settings()) || address.is_loopback() && !limits.counts_itself;
        let held = if is_free { None } else { peers.admit(address) };
        if held.is_none() && !is_free {
            tracing::debug!(%peer, "a connection of an address that has as many as it may was closed");
            continue;
        }
        let (router, stop, cut) = (app.clone(), stop.clone(), cut.clone());
        open.spawn(async move {
            tokio::select! {
                () = answer(limits, (stream, peer), router, stop) => {}
                () = cut.cancelled() => {}
            }
            drop((place, held));
        });
    }
    drop(listener);
    dashboard.closing().cancel();
    open.close();
    timeout(grace, open.wait()).await.ok();
    let left = open.len();
    cut.cancel();
    open.wait().await;
    // What a cut-off request was doing in the database goes on to its end; the process waits for it as long as for the connections.
    let tasks = dashboard.shared.tasks();
    tasks.close();
    timeout(grace, tasks.wait()).await.ok();
    left
}

/// Answers one connection's requests until it ends, or until `stop` and the answer that is being given.
async fn answer(
    limits: Limits,
    (stream, peer): (TcpStream, SocketAddr),
    router: Router,
    stop: CancellationToken,
) {
    let mut stream = Unstalled::new(stream, limits.read);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().call(request)
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(limits.head_bytes);
    let ended = {
        let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(&mut stream), service));
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "a connection broke off");
    }
    tokio::select! {
        () = linger(&mut stream) => {}
        () = stop.cancelled() => {}
    }
}

/// Reads on for a moment what a client still sends that was refused before its end (a head or a body that is too long): a connection
/// that is closed with something unread takes the refusal with it.
async fn linger(stream: &mut Unstalled<TcpStream>) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut rest = (&mut *stream).take(LINGER_BYTES);
    timeout(LINGER, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await.ok();
}
