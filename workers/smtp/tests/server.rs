//! A mail server that does what a test tells it, command by command, and keeps what it was sent.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// What it does when it is spoken to.
#[derive(Clone, Debug)]
pub(super) enum Say {
    /// These bytes.
    Bytes(Vec<u8>),
    /// These bytes; then the whole process stands still for so long, as after SIGSTOP (in a runtime of one thread).
    Standstill(Vec<u8>, std::time::Duration),
    /// Nothing, for ever.
    Nothing,
    /// It goes away.
    Close,
    /// It goes away so that what was sent last is answered with a reset.
    Reset,
}

/// A line, its end added.
pub(super) fn say(line: &str) -> Say {
    Say::Bytes(format!("{line}\r\n").into_bytes())
}

/// How one connection goes.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) greeting: Say,
    pub(super) ehlo: Say,
    pub(super) starttls: Say,
    pub(super) auth: Say,
    pub(super) rset: Say,
    pub(super) mail: Say,
    pub(super) rcpt: Say,
    pub(super) data: Say,
    /// Before the message is read.
    pub(super) body: Option<Say>,
    pub(super) dot: Say,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            greeting: say("220 shop.test ready"),
            ehlo: say("250-shop.test\r\n250-SIZE 1000000\r\n250-AUTH PLAIN LOGIN\r\n250 SMTPUTF8"),
            starttls: say("454 no TLS now"),
            auth: say("235 welcome"),
            rset: say("250 reset"),
            mail: say("250 sender ok"),
            rcpt: say("250 recipient ok"),
            data: say("354 go on"),
            body: None,
            dot: say("250 2.0.0 queued as 4711"),
        }
    }
}

/// What it saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) connections: usize,
    pub(super) commands: Vec<String>,
    /// Whole messages, dots undone.
    pub(super) messages: Vec<Vec<u8>>,
}

/// It lives as long as this value.
pub(super) struct Server {
    pub(super) port: u16,
    seen: Arc<Mutex<Seen>>,
    _task: JoinSet<()>,
}

impl Server {
    /// Connection number n goes by script n, every later one by the last.
    pub(super) async fn start(scripts: impl IntoIterator<Item = Script>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut scripts: VecDeque<Script> = scripts.into_iter().collect();
        let mut task = JoinSet::new();
        let shared = Arc::clone(&seen);
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().unwrap().connections += 1;
                let script = if scripts.len() > 1 { scripts.pop_front() } else { scripts.front().cloned() };
                connections.spawn(serve(stream, script.unwrap(), Arc::clone(&shared)));
            }
        });
        Self { port, seen, _task: task }
    }

    pub(super) fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    pub(super) fn commands(&self) -> Vec<String> {
        self.seen.lock().unwrap().commands.clone()
    }

    pub(super) fn messages(&self) -> Vec<Vec<u8>> {
        self.seen.lock().unwrap().messages.clone()
    }
}

async fn serve(stream: TcpStream, script: Script, seen: Arc<Mutex<Seen>>) {
    let mut stream = BufReader::new(stream);
    if !answer(&mut stream, &script.greeting).await {
        return;
    }
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        let command = line.trim_end().to_owned();
        seen.lock().unwrap().commands.push(command.clone());
        let verb = command.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
        let step = match verb.as_str() {
            "EHLO" | "HELO" => &script.ehlo,
            "STARTTLS" => &script.starttls,
            "AUTH" => &script.auth,
            "RSET" => &script.rset,
            "MAIL" => &script.mail,
            "RCPT" => &script.rcpt,
            "DATA" => &script.data,
            "QUIT" => &say("221 bye"),
            _ => &say("500 what?"),
        };
        if !answer(&mut stream, step).await {
            return;
        }
        let begun = verb == "DATA" && matches!(step, Say::Bytes(bytes) if bytes.starts_with(b"354"));
        if begun {
            if let Some(step) = &script.body
                && !answer(&mut stream, step).await
            {
                return;
            }
            let Some(message) = message(&mut stream).await else { return };
            seen.lock().unwrap().messages.push(message);
            if !answer(&mut stream, &script.dot).await {
                return;
            }
        }
    }
}

/// Whether the conversation goes on.
async fn answer(stream: &mut BufReader<TcpStream>, step: &Say) -> bool {
    match step {
        Say::Bytes(bytes) => stream.write_all(bytes).await.is_ok(),
        Say::Standstill(bytes, length) => {
            let said = stream.write_all(bytes).await.is_ok();
            std::thread::sleep(*length);
            said
        }
        Say::Nothing => std::future::pending().await,
        Say::Close => false,
        Say::Reset => {
            stream.get_ref().set_zero_linger().ok();
            false
        }
    }
}

/// A whole message, dots undone; nothing when it was broken off.
async fn message(stream: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let (mut message, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if stream.read_until(b'\n', &mut line).await.unwrap_or(0) == 0 {
            return None;
        }
        if line == b".\r\n" {
            return Some(message);
        }
        message.extend_from_slice(line.strip_prefix(b".").unwrap_or(&line));
    }
}
