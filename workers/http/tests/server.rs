//! A TCP server that does what a test tells it, byte by byte, and counts the requests it read whole.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// What the server saw; shared by its connections and the test.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    pub(crate) fn requests(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A server that lives as long as this value.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) place: String,
    pub(crate) seen: Seen,
    _tasks: JoinSet<()>,
}

/// One accepted connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    seen: Seen,
}

impl Server {
    pub(crate) async fn start<F, Fut>(behaviour: F) -> Self
    where
        F: Fn(Connection) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), behaviour).await
    }

    /// The same at another address of this machine.
    pub(crate) async fn start_at<F, Fut>(address: IpAddr, behaviour: F) -> Self
    where
        F: Fn(Connection) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let seen = Seen::default();
        let mut tasks = JoinSet::new();
        let shared = seen.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(behaviour(Connection { stream, seen: shared.clone() }));
            }
        });
        Self { url: format!("http://{place}"), place, seen, _tasks: tasks }
    }

    /// A server that reads a request and writes this, over and over.
    pub(crate) async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer: Arc<[u8]> = answer.into().into();
        Self::start(move |mut connection| {
            let answer = Arc::clone(&answer);
            async move {
                while connection.read().await {
                    if connection.stream.write_all(&answer).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await
    }
}

impl Connection {
    /// Reads one whole request; `false` at the end of the connection.
    pub(crate) async fn read(&mut self) -> bool {
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 64 * 1024];
        loop {
            if let Some(head_end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&bytes[..head_end]).to_string();
                let length = head
                    .lines()
                    .filter_map(|line| line.split_once(": "))
                    .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                    .map_or(0, |(_, length)| length.parse::<usize>().unwrap());
                if bytes.len() >= head_end + 4 + length {
                    self.seen.0.lock().unwrap().push(String::from_utf8_lossy(&bytes).to_string());
                    return true;
                }
            }
            match self.stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return false,
                Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            }
        }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Writes one piece again and again, until the client is gone.
    pub(crate) async fn trickle(&mut self, piece: &[u8], pause: Duration) {
        while self.write(piece).await {
            tokio::time::sleep(pause).await;
        }
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

/// A complete answer.
pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes()
}
