//! A client that knows every byte it sends and gets.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::AsyncWriteExt as _,
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::super::wire::{Message, Reader};
use crate::support::within;

/// Longer than any request may wait; one that waits longer waits for ever.
const ANSWER_MAX: Duration = Duration::from_secs(90);

/// The requests of all tests come from this tenant, unless they say otherwise.
pub(super) const TENANT: &str = "acme";

/// An order as a client sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) scope: String,
    pub(super) key: String,
    pub(super) body: String,
}

impl Ask {
    pub(super) fn new(key: impl Into<String>, body: impl Into<String>) -> Self {
        Self { scope: TENANT.into(), key: key.into(), body: body.into() }
    }

    pub(super) fn order(key: impl Into<String>, amount: u64) -> Self {
        Self::new(key, format!("{{\"amount\":{amount}}}"))
    }

    /// Its handler waits, in its transaction, until the server is told to release it.
    pub(super) fn held(key: impl Into<String>, amount: u64) -> Self {
        Self::new(key, format!("{{\"amount\":{amount},\"hold\":true}}"))
    }

    /// The head of a request with a body, up to its framing.
    pub(super) fn head(&self, version: &str) -> String {
        format!(
            "POST /orders {version}\r\nHost: shop\r\nX-Tenant: {}\r\nIdempotency-Key: {}\r\nContent-Type: application/json\r\n",
            self.scope, self.key
        )
    }

    /// The whole request.
    pub(super) fn bytes(&self) -> Vec<u8> {
        format!("{}Content-Length: {}\r\n\r\n{}", self.head("HTTP/1.1"), self.body.len(), self.body)
            .into_bytes()
    }
}

/// An answer as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Names in lower case, values as bytes, in order.
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

/// What a replay adds, and what belongs to the connection and not to the answer.
const NOT_COMPARED: [&str; 4] = ["idempotent-replayed", "date", "connection", "keep-alive"];

/// Status, header lines, body.
type Lasting<'a> = (u16, Vec<(&'a str, &'a [u8])>, &'a [u8]);

impl Answer {
    fn of(message: &Message) -> Self {
        let end = message.raw.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or(message.raw.len());
        let mut headers = Vec::new();
        let mut rest = &message.raw[..end];
        while let Some(at) = rest.windows(2).position(|bytes| bytes == b"\r\n") {
            rest = &rest[at + 2..];
            let line = &rest[..rest.windows(2).position(|bytes| bytes == b"\r\n").unwrap_or(rest.len())];
            if let Some(colon) = line.iter().position(|byte| *byte == b':') {
                let name = String::from_utf8_lossy(&line[..colon]).to_lowercase();
                headers.push((name, line[colon + 1..].trim_ascii().to_vec()));
            }
        }
        Self { status: message.status(), headers, body: message.body.clone() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(known, _)| known == name)
    }

    pub(super) fn is_replay(&self) -> bool {
        self.has("idempotent-replayed")
    }

    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// It asks for the same request again, later.
    pub(super) fn asks_again(&self) -> bool {
        matches!(self.status, 409 | 503)
    }

    /// What a repeat must give again, byte for byte.
    pub(super) fn lasting(&self) -> Lasting<'_> {
        let headers = self.headers.iter().filter(|(name, _)| !NOT_COMPARED.contains(&name.as_str()));
        let headers = headers.map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        (self.status, headers, &self.body)
    }

    /// For messages.
    pub(super) fn shown(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

/// A request and what its client heard: nothing, when the connection ended first.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) ask: Ask,
    pub(super) heard: Option<Answer>,
}

impl Exchange {
    /// The answer; there must be one.
    pub(super) fn answer(&self) -> &Answer {
        self.heard.as_ref().unwrap_or_else(|| panic!("no answer to {:?}", self.ask))
    }
}

/// A connection to a server.
pub(super) struct Line {
    write: OwnedWriteHalf,
    read: Reader<OwnedReadHalf>,
}

impl Line {
    pub(super) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        Ok(Self { write, read: Reader::new(read) })
    }

    pub(super) async fn say(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.write.write_all(bytes.as_ref()).await
    }

    /// The next answer; `None` when the connection ended first.
    pub(super) async fn hear(&mut self) -> Option<Answer> {
        let message = within(ANSWER_MAX, "the server answers, or hangs up", self.read.message()).await;
        message.ok().flatten().map(|message| Answer::of(&message))
    }

    /// Says nothing more, and listens on.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        self.write.shutdown().await
    }

    /// Ends the connection at once, by a reset.
    pub(super) fn reset(self) {
        // It fails only on a socket that is gone already.
        let _gone = self.write.as_ref().set_zero_linger();
    }
}

/// Sends a request on a connection of its own.
pub(super) async fn send(address: SocketAddr, ask: &Ask) -> Exchange {
    let heard = async {
        let mut line = Line::open(address).await.ok()?;
        line.say(ask.bytes()).await.ok()?;
        line.hear().await
    };
    Exchange { ask: ask.clone(), heard: heard.await }
}

/// Sends a request again and again until it is neither lost nor asked for again; gives all that was heard.
pub(super) async fn insist(address: SocketAddr, ask: &Ask) -> Vec<Exchange> {
    let mut all = Vec::new();
    let settled = async {
        loop {
            let exchange = send(address, ask).await;
            let over = exchange.heard.as_ref().is_some_and(|answer| !answer.asks_again());
            all.push(exchange);
            if over {
                return;
            }
            // The server is away or busy: nothing says when it is not, so that looking again is the only way.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(ANSWER_MAX, "a request that is sent again gets its answer", settled).await;
    all
}
