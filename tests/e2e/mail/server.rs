//! A mail server that loses its answers: it takes a mail, writes it down, and then may go away, reset, or say nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};

use crate::support::Chance;

/// Of a hundred mails, so many lose the answer to their final dot, each way.
const LOST_EACH_WAY: u64 = 3;
/// Of a hundred commands, so many are answered with "not now".
const NOT_NOW: u64 = 5;

/// What it took and how it behaved.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Per Message-ID: the recipients of the mails that were taken.
    pub(super) taken: BTreeMap<String, Vec<String>>,
    /// The bytes of the first of them.
    first: BTreeMap<String, Vec<u8>>,
    /// Mails that were not the first one's bytes.
    pub(super) changed: usize,
    pub(super) answers_lost: usize,
    pub(super) refused: usize,
    pub(super) not_now: usize,
    pub(super) connections: usize,
}

pub(super) struct MailServer {
    pub(super) port: u16,
    ledger: Arc<Mutex<Ledger>>,
    _task: JoinSet<()>,
}

impl MailServer {
    /// `slow` is taken for each mail, so that a kill finds some open.
    pub(super) async fn start(mut chance: Chance, slow: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let (shared, mut task) = (Arc::clone(&ledger), JoinSet::new());
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().expect("not poisoned").connections += 1;
                connections.spawn(converse(stream, Arc::clone(&shared), chance.fork(), slow));
            }
        });
        Self { port, ledger, _task: task }
    }

    pub(super) fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("not poisoned")
    }
}

/// Ends with the connection, whoever ends that.
async fn converse(
    stream: TcpStream,
    ledger: Arc<Mutex<Ledger>>,
    mut chance: Chance,
    slow: Duration,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    stream.write_all(b"220 ready\r\n").await.ok()?;
    let (mut line, mut recipient) = (String::new(), String::new());
    loop {
        line.clear();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let count =
            |what: fn(&mut Ledger) -> &mut usize| *what(&mut ledger.lock().expect("not poisoned")) += 1;
        let answer = if line.starts_with("RCPT TO:<refused") {
            count(|ledger| &mut ledger.refused);
            "550 5.1.1 we do not know whom you mean"
        } else if line.starts_with("RCPT") && chance.percent(NOT_NOW) {
            count(|ledger| &mut ledger.not_now);
            "451 4.7.1 try again later"
        } else if line.starts_with("DATA") {
            stream.write_all(b"354 go on\r\n").await.ok()?;
            let message = message(&mut stream).await?;
            sleep(slow).await;
            if chance.percent(NOT_NOW) {
                count(|ledger| &mut ledger.not_now);
                stream.write_all(b"451 4.3.0 not now\r\n").await.ok()?;
                continue;
            }
            take(&mut ledger.lock().expect("not poisoned"), &recipient, message);
            let lost = chance.below(100) / LOST_EACH_WAY;
            if lost < 3 {
                count(|ledger| &mut ledger.answers_lost);
            }
            match lost {
                0 => return None,
                1 => {
                    stream.get_ref().set_zero_linger().ok();
                    return None;
                }
                2 => std::future::pending().await,
                _ => "250 2.0.0 taken",
            }
        } else if line.starts_with("RCPT") {
            line.trim_end().trim_start_matches("RCPT TO:").clone_into(&mut recipient);
            "250 ok"
        } else if line.starts_with("QUIT") {
            stream.write_all(b"221 bye\r\n").await.ok()?;
            return None;
        } else {
            "250 ok"
        };
        stream.write_all(format!("{answer}\r\n").as_bytes()).await.ok()?;
    }
}

async fn message(stream: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let (mut message, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if stream.read_until(b'\n', &mut line).await.ok()? == 0 {
            return None;
        }
        if line == b".\r\n" {
            return Some(message);
        }
        message.extend_from_slice(&line);
    }
}

fn take(ledger: &mut Ledger, recipient: &str, message: Vec<u8>) {
    let text = String::from_utf8_lossy(&message);
    let id = text.lines().find_map(|line| line.strip_prefix("Message-ID: ")).unwrap_or("(none)").to_owned();
    ledger.taken.entry(id.clone()).or_default().push(recipient.to_owned());
    let same = ledger.first.entry(id).or_insert_with(|| message.clone()) == &message;
    ledger.changed += usize::from(!same);
}
