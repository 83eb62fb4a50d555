//! A downstream that gives back what it should not.

use std::sync::{Arc, Mutex};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::planted::{ANSWER, ANSWER_HEADER, CONTENT_TYPE, CUT_ANSWER, LOCATION, REASON_PHRASE};
use crate::e2e::wire::{Message, Reader};

/// A downstream that repeats our credentials in every part of its answers. What it heard is kept.
pub(super) struct Echo {
    /// Where it listens.
    pub(super) address: String,
    /// Every byte of every request.
    pub(super) heard: Arc<Mutex<String>>,
    _server: JoinSet<()>,
}

impl Echo {
    /// Starts it.
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let heard = Arc::new(Mutex::new(String::new()));
        let mut server = JoinSet::new();
        let shared = Arc::clone(&heard);
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(converse(stream, Arc::clone(&shared)));
            }
        });
        Self { address, heard, _server: server }
    }
}

async fn converse(mut stream: TcpStream, heard: Arc<Mutex<String>>) {
    while let Ok(Some(request)) = Reader::new(&mut stream).message().await {
        heard.lock().expect("no test panics with it").push_str(&String::from_utf8_lossy(&request.raw));
        if stream.write_all(answer(&request).as_bytes()).await.is_err() {
            return;
        }
        let cut = request.header("idempotency-key").is_some_and(|key| key.ends_with("cut"));
        if cut {
            return;
        }
    }
}

/// The answer that the key asks for.
fn answer(request: &Message) -> String {
    let header = ["authorization", "x-api-key"].into_iter().find_map(|name| request.header(name));
    let echo = header.unwrap_or("nothing");
    let word = echo.split(' ').next_back().unwrap_or_default();
    let decoded = STANDARD.decode(word).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let secret =
        decoded.as_deref().and_then(|pair| pair.split_once(':')).map_or(word, |(_, password)| password);
    let json =
        format!(r#"{{"error":{{"code":"{secret}","message":"{ANSWER} {echo}"}},"{word}":"{secret}"}}"#);
    let whole = |status: &str, headers: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
    };
    let said = format!("X-Echo: {ANSWER_HEADER} {echo}\r\nContent-Type: x/{CONTENT_TYPE}\r\n");
    let key = request.header("idempotency-key").unwrap_or_default();
    match key.rsplit('/').next().unwrap_or_default() {
        "error" => whole(&format!("500 {REASON_PHRASE} {secret}"), &said, &json),
        "code" => whole(&format!("402 {REASON_PHRASE} {echo}"), &said, &json),
        "moved" => {
            let location = format!("Location: http://{secret}.example/{secret}/{LOCATION}?{echo}\r\n");
            whole(&format!("302 {secret}"), &format!("{location}{said}"), &json)
        }
        "text" => whole("500 X", &said, &format!("{ANSWER} {echo} {secret}")),
        "cut" => format!("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n{said}\r\n{CUT_ANSWER} {echo}"),
        _ => whole(&format!("200 {REASON_PHRASE}"), &said, &json),
    }
}
