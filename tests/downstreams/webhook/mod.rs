//! Guarantee: what a receiver of Standard Webhooks or CloudEvents is sent, other people's libraries verify; an endpoint's troubles
//! stay its own; and what becomes of an endpoint is written and seen.

mod commands;
mod endpoints;
mod foreign;
mod look;
mod roles;

use std::sync::{Arc, Mutex};

use aftercommit::downstream::Served;
use aftercommit_workers::config::{Settings, Sources};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
};

pub(super) const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
pub(super) const NEXT: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// An Ed25519 seed of 32 bytes, and its public half.
pub(super) const SEED: &str = "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The downstream `hooks` as the rest of its table `toml` says.
pub(super) fn hooks(toml: &str) -> Served {
    let text = format!("[downstream.hooks]\nkind = \"webhook\"\nprofile = \"standard-webhooks\"\n{toml}");
    served(&text)
}

/// The one downstream of a configuration.
pub(super) fn served(toml: &str) -> Served {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("aftercommit.toml");
    std::fs::write(&file, format!("database = \"sqlite:x.db\"\nenvironment = \"test\"\n{toml}"))
        .expect("written");
    let env = [("HOOK_ACME", SECRET), ("HOOK_NEXT", NEXT), ("HOOK_SEED", SEED)];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let settings = Settings::load(&Sources { file: Some(file), env, ..Sources::default() });
    let settings = settings.unwrap_or_else(|problem| panic!("the test's configuration: {problem}"));
    settings.serve(None).unwrap_or_else(|problem| panic!("the test's configuration: {problem}")).remove(0)
}

/// Head and body.
pub(super) type Request = (String, Vec<u8>);

/// An endpoint that answers each request with the status it has then, once there is a permit for it.
pub(super) struct Receiver {
    pub(super) url: String,
    pub(super) port: u16,
    pub(super) status: Arc<Mutex<u16>>,
    /// In the order in which they were read.
    pub(super) requests: Arc<Mutex<Vec<Request>>>,
    pub(super) permits: Arc<Semaphore>,
    _tasks: JoinSet<()>,
}

impl Receiver {
    pub(super) async fn start(status: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let (status, requests) = (Arc::new(Mutex::new(status)), Arc::new(Mutex::new(Vec::new())));
        let permits = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let mut tasks = JoinSet::new();
        let shared = (Arc::clone(&status), Arc::clone(&requests), Arc::clone(&permits));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let (status, requests, permits) = shared.clone();
                connections.spawn(async move {
                    let Some(request) = read(&mut stream).await else { return };
                    requests.lock().expect("no panic").push(request);
                    permits.acquire().await.expect("it is not closed").forget();
                    let status = *status.lock().expect("no panic");
                    let answer =
                        format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                    stream.write_all(answer.as_bytes()).await.unwrap_or(());
                });
            }
        });
        Self { url: format!("http://127.0.0.1:{port}"), port, status, requests, permits, _tasks: tasks }
    }

    /// Answers nothing until it gets permits again.
    pub(super) fn hang(&self) {
        self.permits.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub(super) fn answer_with(&self, status: u16) {
        *self.status.lock().expect("no panic") = status;
    }

    pub(super) fn seen(&self) -> usize {
        self.requests.lock().expect("no panic").len()
    }
}

async fn read(stream: &mut tokio::net::TcpStream) -> Option<Request> {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length =
                header(&head, "content-length").map_or(0, |length| length.parse().expect("a number"));
            if bytes.len() >= end + 4 + length {
                return Some((head, bytes.split_off(end + 4)));
            }
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

/// A header of a request's head.
pub(super) fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    let mut found = lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    found.next()
}
