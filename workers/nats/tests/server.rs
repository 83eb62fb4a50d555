//! A NATS server that says what a test wants: enough of the protocol for one stream.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// What it says to a publish.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// This payload, from the stream.
    Says(&'static str),
    /// Nobody listens.
    NoResponders,
    /// Nothing.
    Nothing,
    /// The connection is closed.
    Closes,
    /// A protocol error, and nothing else.
    Error(&'static str),
    /// These bytes.
    Raw(&'static str),
    /// Nothing, and nothing to anything after it.
    Deaf,
}

/// One that stores.
pub(super) const STORED: Reply = Reply::Says(r#"{"stream":"ORDERS","seq":7}"#);
/// What it says of the stream.
pub(super) const STREAM: &str = r#"{"type":"io.nats.jetstream.api.v1.stream_info_response","config":{"name":"ORDERS","subjects":["orders.>"],"retention":"limits","storage":"file","discard":"old","num_replicas":1,"max_msgs":-1,"max_bytes":-1,"max_msg_size":-1,"max_age":0,"duplicate_window":120000000000}}"#;

/// What reached it.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) connections: u32,
    pub(super) connects: Vec<String>,
    /// Each publish: subject, headers as text, body.
    pub(super) published: Vec<(String, String, Vec<u8>)>,
}

/// A server that lives as long as this value.
pub(super) struct Server {
    pub(super) place: String,
    pub(super) seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// One that says `reply` to every publish.
    pub(super) async fn start(reply: Reply) -> Self {
        Self::with(STREAM, reply).await
    }

    pub(super) async fn with(stream: &'static str, reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                shared.lock().unwrap().connections += 1;
                connections.spawn(serve(socket, stream, reply, Arc::clone(&shared)));
            }
        });
        Self { place, seen, _tasks: tasks }
    }

    /// The message ids that were published, in order.
    pub(super) fn ids(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.published.iter().map(|(_, headers, _)| id_of(headers)).collect()
    }
}

fn id_of(headers: &str) -> String {
    let line = headers.lines().find_map(|line| line.strip_prefix("Nats-Msg-Id: "));
    line.unwrap_or_default().to_owned()
}

/// The greeting.
pub(super) const INFO: &str = "INFO {\"server_id\":\"T\",\"version\":\"2.9.10\",\"headers\":true,\"max_payload\":1048576,\"proto\":1}\r\n";

async fn serve(socket: TcpStream, stream: &'static str, reply: Reply, seen: Arc<Mutex<Seen>>) {
    let mut socket = BufReader::new(socket);
    let _gone = socket.write_all(INFO.as_bytes()).await;
    while let Some((line, payload)) = next(&mut socket).await {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words.as_slice() {
            ["PING"] => "PONG\r\n".to_owned(),
            ["CONNECT", ..] => {
                seen.lock().unwrap().connects.push(line.clone());
                continue;
            }
            ["PUB", subject, inbox, _] if subject.starts_with("$JS.API.") => message(inbox, stream),
            ["HPUB", subject, inbox, header_len, _] => {
                let (headers, body) = payload.split_at(header_len.parse().unwrap());
                let headers = String::from_utf8(headers.to_vec()).unwrap();
                let published = ((*subject).to_owned(), headers, body.to_vec());
                seen.lock().unwrap().published.push(published);
                match reply {
                    Reply::Says(text) => message(inbox, text),
                    Reply::NoResponders => {
                        format!("HMSG {inbox} 0 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")
                    }
                    Reply::Nothing => continue,
                    Reply::Closes => return,
                    Reply::Error(text) => format!("-ERR '{text}'\r\n"),
                    Reply::Raw(text) => text.to_owned(),
                    Reply::Deaf => {
                        while next(&mut socket).await.is_some() {}
                        return;
                    }
                }
            }
            _ => continue,
        };
        if socket.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn message(inbox: &str, text: &str) -> String {
    format!("MSG {inbox} 0 {}\r\n{text}\r\n", text.len())
}

/// The next line, and the payload that belongs to it.
pub(super) async fn next(socket: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut line = String::new();
    if socket.read_line(&mut line).await.ok()? == 0 {
        return None;
    }
    let line = line.trim_end().to_owned();
    let mut payload = Vec::new();
    if line.starts_with("PUB ") || line.starts_with("HPUB ") {
        let length: usize = line.rsplit(' ').next()?.parse().ok()?;
        payload.resize(length + 2, 0);
        socket.read_exact(&mut payload).await.ok()?;
        payload.truncate(length);
    }
    Some((line, payload))
}
