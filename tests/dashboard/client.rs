//! A client that sends what it is told to, byte by byte: also what no browser would.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Longer than any answer takes on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    address: SocketAddr,
    method: String,
    path: String,
    host: String,
    lines: Vec<String>,
    body: String,
}

/// An answer; of a stream of events the head alone.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: u16,
    /// The headers, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// The body.
    pub(crate) body: String,
}

impl Ask {
    /// One without any header but Host.
    pub(crate) fn new(address: SocketAddr, method: &str, path: &str) -> Self {
        let (method, path) = (method.to_owned(), path.to_owned());
        Self {
            address,
            method,
            path,
            host: format!("Host: {address}"),
            lines: Vec::new(),
            body: String::new(),
        }
    }

    /// A header line.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.lines.push(format!("{name}: {value}"));
        self
    }

    /// A line as it stands.
    pub(crate) fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Another Host line than the right one; empty: none.
    pub(crate) fn host(mut self, line: &str) -> Self {
        self.host = line.to_owned();
        self
    }

    /// From a page of the dashboard's own.
    pub(crate) fn ours(self) -> Self {
        self.with("Sec-Fetch-Site", "same-origin")
    }

    /// By a browser that shows what comes.
    pub(crate) fn shown(self) -> Self {
        self.with("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
    }

    /// With a cookie.
    pub(crate) fn cookie(self, cookie: &str) -> Self {
        self.with("Cookie", cookie)
    }

    /// With a bearer token.
    pub(crate) fn bearer(self, token: &str) -> Self {
        self.with("Authorization", &format!("Bearer {token}"))
    }

    /// With a form.
    pub(crate) fn form(mut self, body: &str) -> Self {
        self.body = body.to_owned();
        self.with("Content-Type", "application/x-www-form-urlencoded")
    }

    /// With JSON.
    pub(crate) fn json(mut self, body: &str) -> Self {
        self.body = body.to_owned();
        self.with("Content-Type", "application/json")
    }

    /// Sends it and reads the answer.
    pub(crate) async fn send(&self) -> Answer {
        timeout(ANSWER_MAX, self.exchange()).await.unwrap_or_else(|_late| panic!("no answer to {self:?}"))
    }

    async fn exchange(&self) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.expect("the dashboard listens");
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        for line in [&self.host].into_iter().chain(&self.lines).filter(|line| !line.is_empty()) {
            head.push_str(line);
            head.push_str("\r\n");
        }
        let length = if self.body.is_empty() {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", self.body.len())
        };
        let request = format!("{head}{length}Connection: close\r\n\r\n{}", self.body);
        // A server that refuses the head may close before it has read all.
        stream.write_all(request.as_bytes()).await.ok();
        let mut read = Vec::new();
        loop {
            let more = stream.read_buf(&mut read).await.unwrap_or(0);
            let text = String::from_utf8_lossy(&read);
            if more == 0 || text.contains("content-type: text/event-stream") && text.contains("\r\n\r\n") {
                return Answer::parse(&text);
            }
        }
    }
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let mut lines = head.split("\r\n");
        let status =
            lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
        let header = |line: &str| {
            line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        };
        Self {
            status: status.unwrap_or_else(|| panic!("this is no answer: {text:?}")),
            headers: lines.filter_map(header).collect(),
            body: body.to_owned(),
        }
    }

    /// The first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// `name=value` of the cookie that is set.
    pub(crate) fn cookie(&self) -> Option<String> {
        self.header("set-cookie").and_then(|cookie| cookie.split(';').next()).map(str::to_owned)
    }

    /// The last part of a problem's type; empty where it is none.
    pub(crate) fn problem(&self) -> String {
        let body: serde_json::Value = serde_json::from_str(&self.body).unwrap_or_default();
        let kind = body["type"].as_str().unwrap_or_default();
        kind.strip_prefix("urn:aftercommit:problem:").unwrap_or(kind).to_owned()
    }
}
