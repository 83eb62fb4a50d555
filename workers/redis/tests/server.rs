//! A Redis that says what a test wants.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// What it says, as it goes over the wire; an empty text closes the connection, and `NOTHING` is silence.
pub(super) type Reply = &'static str;
pub(super) const CLOSES: Reply = "";
pub(super) const NOTHING: Reply = "nothing";
/// What it says to HELLO.
pub(super) const GREETING: Reply = "%1\r\n$5\r\nproto\r\n:3\r\n";
/// An entry was added, by the script.
pub(super) const ADDED: Reply = "*2\r\n$3\r\n5-1\r\n:0\r\n";

/// A command's arguments.
type Command = Vec<Vec<u8>>;

/// A server that lives as long as this value.
pub(super) struct Server {
    pub(super) place: String,
    asked: Arc<Mutex<Vec<Command>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// One that says `replies` to what is not part of the greeting, one after the other, the last one for ever.
    pub(super) async fn start(replies: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let replies = Arc::new(Mutex::new(replies.iter().copied().collect::<VecDeque<_>>()));
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&asked);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(socket, Arc::clone(&replies), Arc::clone(&shared)));
            }
        });
        Self { place, asked, _tasks: tasks }
    }

    /// The commands after the greeting, as words.
    pub(super) fn asked(&self) -> Vec<Vec<String>> {
        let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
        self.asked.lock().unwrap().iter().map(|command| command.iter().map(text).collect()).collect()
    }
}

async fn serve(socket: TcpStream, replies: Arc<Mutex<VecDeque<Reply>>>, asked: Arc<Mutex<Vec<Command>>>) {
    let mut socket = BufReader::new(socket);
    while let Some(command) = next(&mut socket).await {
        let reply = match command.first().map(Vec::as_slice) {
            Some(b"HELLO") => GREETING,
            Some(b"CLIENT" | b"SELECT") => "+OK\r\n",
            _ => {
                asked.lock().unwrap().push(command);
                let mut replies = replies.lock().unwrap();
                if replies.len() > 1 { replies.pop_front().unwrap() } else { replies[0] }
            }
        };
        if reply == CLOSES {
            return;
        }
        if reply != NOTHING && socket.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

pub(super) async fn next(socket: &mut BufReader<TcpStream>) -> Option<Command> {
    let mut command = Vec::new();
    for _ in 0..number(socket, '*').await? {
        let mut word = vec![0; number(socket, '$').await? + 2];
        socket.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        command.push(word);
    }
    Some(command)
}

async fn number(socket: &mut BufReader<TcpStream>, kind: char) -> Option<usize> {
    let mut line = String::new();
    socket.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(kind)?.parse().ok()
}

/// Greets one connection, says nothing more, and returns when it is closed.
pub(super) async fn silent_until_closed(listener: TcpListener) {
    let socket = listener.accept().await.unwrap().0;
    let asked = Arc::new(Mutex::new(Vec::new()));
    serve(socket, Arc::new(Mutex::new(VecDeque::from([NOTHING]))), asked).await;
}
