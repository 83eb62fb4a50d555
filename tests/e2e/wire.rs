//! HTTP/1.1 messages as bytes: just enough to record, hold and forward them whole without changing one.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// One request or answer, as it was on the wire.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// Every byte.
    pub(super) raw: Vec<u8>,
    /// The body, with chunks joined.
    pub(super) body: Vec<u8>,
    /// The first line.
    pub(super) start: String,
    /// The headers, names in lower case, in order.
    pub(super) headers: Vec<(String, String)>,
}

impl Message {
    /// The first header of this name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// The `n`th word of the first line: method and target of a request, status of an answer.
    pub(super) fn word(&self, n: usize) -> &str {
        self.start.split(' ').nth(n).unwrap_or_default()
    }

    /// The status of an answer.
    pub(super) fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or(0)
    }
}

/// Reads messages off a connection, whatever pieces they come in.
pub(super) struct Reader<R> {
    from: R,
    pending: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads from `from`.
    pub(super) fn new(from: R) -> Self {
        Self { from, pending: Vec::new() }
    }

    /// The next message; `None` when the peer closed between two.
    pub(super) async fn message(&mut self) -> io::Result<Option<Message>> {
        let head_len = loop {
            if let Some(end) = find(&self.pending, b"\r\n\r\n") {
                break end + 4;
            }
            if !self.more().await? {
                return if self.pending.is_empty() { Ok(None) } else { Err(cut("in its head")) };
            }
        };
        let head = String::from_utf8_lossy(&self.pending[..head_len]).into_owned();
        let mut lines = head.split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut message = Message { raw: Vec::new(), body: Vec::new(), start, headers };
        let end = if message.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
            self.chunks(head_len, &mut message.body).await?
        } else {
            let length = message.header("content-length").and_then(|length| length.parse().ok());
            // An answer without a length ends with its connection; a request without one has no body.
            let until_closed = message.start.starts_with("HTTP/") && length.is_none();
            let end = head_len + length.unwrap_or(0);
            while self.pending.len() < end || until_closed {
                if !self.more().await? {
                    if until_closed {
                        break;
                    }
                    return Err(cut("in its body"));
                }
            }
            let end = if until_closed { self.pending.len() } else { end };
            message.body = self.pending[head_len..end].to_vec();
            end
        };
        message.raw = self.pending.drain(..end).collect();
        Ok(Some(message))
    }

    /// Waits until the peer closes; what it still says is dropped.
    pub(super) async fn closed(&mut self) {
        while matches!(self.more().await, Ok(true)) {
            self.pending.clear();
        }
    }

    async fn chunks(&mut self, mut at: usize, body: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            let line_end = loop {
                if let Some(end) = find(&self.pending[at..], b"\r\n") {
                    break at + end;
                }
                if !self.more().await? {
                    return Err(cut("in a chunk's size"));
                }
            };
            let digits = String::from_utf8_lossy(&self.pending[at..line_end]).into_owned();
            let size = usize::from_str_radix(digits.split(';').next().unwrap_or_default().trim(), 16)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let end = line_end + 2 + size + 2;
            while self.pending.len() < end {
                if !self.more().await? {
                    return Err(cut("in a chunk"));
                }
            }
            body.extend_from_slice(&self.pending[line_end + 2..end - 2]);
            at = end;
            if size == 0 {
                return Ok(at);
            }
        }
    }

    async fn more(&mut self) -> io::Result<bool> {
        self.pending.reserve(16 * 1024);
        Ok(self.from.read_buf(&mut self.pending).await? > 0)
    }
}

/// Asks a server for a page and returns the answer; the connection is closed after it.
pub(super) async fn get(address: &str, path: &str, authorization: Option<&str>) -> io::Result<Message> {
    let mut stream = TcpStream::connect(address).await?;
    let authorization = authorization.map(|value| format!("Authorization: {value}\r\n")).unwrap_or_default();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{authorization}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    Reader::new(stream).message().await?.ok_or_else(|| cut("before its head"))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn cut(place: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the message was cut {place}"))
}

#[tokio::test]
async fn messages_are_read_whole_however_they_are_cut() {
    let wire = b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1;x\r\n!\r\n0\r\n\r\n";
    let (mut near, far) = tokio::io::duplex(1);
    let writer = async move {
        near.write_all(wire).await.expect("the reader reads all");
        drop(near);
    };
    let reader = async {
        let mut reader = Reader::new(far);
        let request = reader.message().await.expect("a request").expect("not closed yet");
        let answer = reader.message().await.expect("an answer").expect("not closed yet");
        assert!(reader.message().await.expect("closed cleanly").is_none());
        (request, answer)
    };
    let ((), (request, answer)) = tokio::join!(writer, reader);
    assert_eq!((request.word(0), request.word(1), &request.body[..]), ("POST", "/a", &b"abc"[..]));
    assert_eq!((answer.status(), &answer.body[..]), (200, &b"hi!"[..]));
    assert_eq!(request.raw.len() + answer.raw.len(), wire.len());
}
