//! Serving a dashboard by itself: connections, how many and how slow, and how they end. As opposed to `axum::serve` nobody can hold
//! a connection by sending slowly.

#[cfg(test)]
pub(crate) mod tests;

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    extract::{ConnectInfo, Request},
};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Sleep, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service as _;

use crate::Dashboard;

/// What one client may take of everybody's.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections at one time; more wait to be accepted.
    connections: usize,
    /// All of a request's head comes within this, and the next request on the same connection begins within it.
    head: Duration,
    /// All of a request's body comes within this.
    body: Duration,
    /// Of a request's head.
    head_bytes: usize,
}

const LIMITS: Limits = Limits {
    connections: 512,
    head: Duration::from_secs(15),
    body: Duration::from_secs(30),
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
        let (router, stop, cut) = (app.clone(), stop.clone(), cut.clone());
        open.spawn(async move {
            tokio::select! {
                () = answer(limits, (stream, peer), router, stop) => {}
                () = cut.cancelled() => {}
            }
            drop(place);
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
    (mut stream, peer): (TcpStream, SocketAddr),
    router: Router,
    stop: CancellationToken,
) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(|body| Body::new(Timed::new(Body::new(body), limits.body)));
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
async fn linger(stream: &mut TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut rest = (&mut *stream).take(LINGER_BYTES);
    timeout(LINGER, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await.ok();
}

/// A body that must be complete in time.
struct Timed {
    body: Body,
    over: Pin<Box<Sleep>>,
}

impl Timed {
    fn new(body: Body, within: Duration) -> Self {
        Self { body, over: Box::pin(sleep(within)) }
    }
}

impl HttpBody for Timed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        ready!(self.over.as_mut().poll(cx));
        let slow = std::io::Error::new(std::io::ErrorKind::TimedOut, "the body did not come in time");
        Poll::Ready(Some(Err(axum::Error::new(slow))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
