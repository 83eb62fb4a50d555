//! A mail server to play with, on the loopback address: it keeps the last mails and shows them on a page, and fails on request, by
//! the recipient's name: `timeout@…` and `reset@…` are taken and not answered, `nobody@…` is refused, `full@…` is for later.
//! Not for production: it takes mail for everybody and forgets it at its end.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use aftercommit::visible::{clean, clean_lines};
use axum::{
    Json, Router,
    extract::State,
    response::{Html, IntoResponse, Response},
    routing::get,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use super::letter::Letter;

/// Mails that are kept.
const KEPT: usize = 100;
/// A larger mail is refused.
const MAIL_MAX: usize = 4 << 20;
const LINE_MAX: u64 = 4096;
const RECIPIENTS_MAX: usize = 100;
/// Connections at one time; the rest waits.
const CONNECTIONS: usize = 64;
/// Who says nothing for so long is sent away.
const IDLE: Duration = Duration::from_secs(300);

/// The names that fail, for people.
pub(super) const FAIL_NAMES: &str = "timeout@, reset@, nobody@ or full@";

/// The mails that were caught.
#[derive(Default)]
pub(super) struct Catcher {
    letters: Mutex<VecDeque<Letter>>,
}

impl Catcher {
    /// Takes mail at `listener` until it is dropped.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener) -> io::Result<()> {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            // Nobody closes the semaphore.
            let permit = Arc::clone(&room).acquire_owned().await.ok();
            let (stream, _) = listener.accept().await?;
            let catcher = Arc::clone(&self);
            connections.spawn(async move {
                // A client that goes away is none of our business.
                catcher.converse(stream).await.ok();
                drop(permit);
            });
            while connections.try_join_next().is_some() {}
        }
    }

    /// A page of the last mails, and the same as JSON.
    pub(super) fn router(self: &Arc<Self>) -> Router {
        Router::new().route("/", get(page)).route("/json", get(list)).with_state(Arc::clone(self))
    }

    fn letters(&self) -> Vec<Letter> {
        let letters = self.letters.lock().expect("nobody panics while holding the mails");
        letters.iter().rev().cloned().collect()
    }

    fn keep(&self, letter: Letter) {
        let mut letters = self.letters.lock().expect("nobody panics while holding the mails");
        letters.push_back(letter);
        while letters.len() > KEPT {
            letters.pop_front();
        }
    }

    async fn converse(&self, stream: TcpStream) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        stream.write_all(b"220 localhost a mail catcher to play with\r\n").await?;
        let mut recipients: Vec<String> = Vec::new();
        while let Some(line) = line(&mut stream).await? {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
            let answer = match verb.as_str() {
                "EHLO" => format!("250-localhost\r\n250-SIZE {MAIL_MAX}\r\n250-8BITMIME\r\n250 SMTPUTF8"),
                "HELO" | "NOOP" => "250 localhost".to_owned(),
                "MAIL" | "RSET" => {
                    recipients.clear();
                    "250 ok".to_owned()
                }
                "RCPT" => taken(&mut recipients, &line),
                "DATA" if recipients.is_empty() => "503 for whom?".to_owned(),
                "DATA" => match self.take(&mut stream, &mut recipients).await? {
                    Some(answer) => answer,
                    None => return Ok(()),
                },
                "QUIT" => {
                    stream.write_all(b"221 bye\r\n").await?;
                    return Ok(());
                }
                _ => "500 what?".to_owned(),
            };
            stream.write_all(format!("{answer}\r\n").as_bytes()).await?;
        }
        Ok(())
    }

    /// Takes a message. `None`: it was taken, and the answer is lost, as its recipient's name asks.
    async fn take(
        &self,
        stream: &mut BufReader<TcpStream>,
        recipients: &mut Vec<String>,
    ) -> io::Result<Option<String>> {
        stream.write_all(b"354 end with a dot\r\n").await?;
        let mut message = Vec::new();
        let mut too_large = false;
        while let Some(line) = line(stream).await? {
            if line == b".\r\n" || line == b".\n" {
                let to = std::mem::take(recipients);
                if too_large {
                    return Ok(Some("552 too large for this catcher".to_owned()));
                }
                let asked = |name: &str| to.iter().any(|to| to.starts_with(name));
                let (silent, broken) = (asked("timeout@"), asked("reset@"));
                self.keep(Letter::read(to, &message));
                if silent {
                    tokio::time::sleep(IDLE).await;
                }
                return Ok(if silent || broken { None } else { Some("250 caught".to_owned()) });
            }
            too_large |= message.len() + line.len() > MAIL_MAX;
            if !too_large {
                message.extend_from_slice(line.strip_prefix(b".").unwrap_or(&line));
            }
        }
        Ok(None)
    }
}

fn taken(recipients: &mut Vec<String>, line: &str) -> String {
    let address =
        line.split_once('<').and_then(|(_, rest)| Some(rest.split_once('>')?.0)).unwrap_or_default();
    match address.split('@').next().unwrap_or_default() {
        "" => return "501 no address".to_owned(),
        "nobody" => return "550 5.1.1 no such user here".to_owned(),
        "full" => return "452 4.2.2 mailbox full, try later".to_owned(),
        _ => {}
    }
    if recipients.len() >= RECIPIENTS_MAX {
        return "452 too many recipients".to_owned();
    }
    recipients.push(address.to_owned());
    "250 ok".to_owned()
}

/// The next line with its end; `None` when nothing more comes. A longer one comes in pieces.
async fn line(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    match timeout(IDLE, stream.take(LINE_MAX).read_until(b'\n', &mut line)).await {
        Ok(read) => Ok((read? > 0).then_some(line)),
        Err(_elapsed) => Ok(None),
    }
}

async fn list(State(catcher): State<Arc<Catcher>>) -> Response {
    Json(catcher.letters()).into_response()
}

async fn page(State(catcher): State<Arc<Catcher>>) -> Response {
    let mut body = String::new();
    for letter in catcher.letters() {
        let Letter { from, to, recipients, subject, message_id, text } = &letter;
        let [from, to, subject, message_id] =
            [from, to, subject, message_id].map(|text| escaped(&clean(text)));
        let (sent, text) = (escaped(&clean(&recipients.join(", "))), escaped(&clean_lines(text)));
        write!(
            body,
            "<article class=\"card\"><h2>{subject}</h2><dl class=\"facts\"><dt>From</dt><dd>{from}</dd><dt>To</dt><dd>{to}</dd>\
             <dt>Sent to</dt><dd>{sent}</dd><dt>Message-ID</dt><dd class=\"mono\">{message_id}</dd></dl>\
             <pre class=\"text\" tabindex=\"0\">{text}</pre></article>"
        )
        .expect("a String takes whatever is written");
    }
    if body.is_empty() {
        body.push_str(
            "<div class=\"card empty\"><strong>No mail yet.</strong><span>What effects send to the downstream \
             <code>mail</code> is caught here.</span></div>",
        );
    }
    let sheet = aftercommit_dashboard::sheet();
    Html(format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Caught mail</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <link rel=\"stylesheet\" href=\"/{sheet}\"></head><body class=\"alone\"><header class=\"bar\">\
         <a class=\"brand\" href=\"/\">aftercommit</a><span class=\"env\">dev</span></header><main id=\"main\">\
         <div class=\"head\"><h1>Caught mail</h1><p>The playground's mail server takes everything and delivers nothing. The newest \
         is on top; it forgets at its end.</p></div>{body}</main></body></html>"
    ))
    .into_response()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_mail_is_caught_shown_escaped_and_the_last_ones_are_kept() {
        let catcher = Arc::new(Catcher::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&catcher).serve(listener));
        let mut client = BufReader::new(TcpStream::connect(address).await.unwrap());
        for n in 0..KEPT + 5 {
            let mail = format!(
                "MAIL FROM:<a@b.test>\r\nRCPT TO:<ann@b.test>\r\nDATA\r\nSubject: <b>{n}\r\n\r\n..<script>\r\n.\r\n"
            );
            client.write_all(mail.as_bytes()).await.unwrap();
            loop {
                let line = line(&mut client).await.unwrap().unwrap();
                if line.starts_with(b"250 caught") {
                    break;
                }
            }
        }
        let letters = catcher.letters();
        assert_eq!((letters.len(), letters[0].subject.as_str()), (KEPT, "<b>104"));
        assert_eq!(letters[0].text, ".<script>\n");
        let page = page(State(catcher)).await.into_body();
        let page = axum::body::to_bytes(page, 1 << 20).await.unwrap();
        let page = String::from_utf8_lossy(&page);
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script>"), "{page}");
    }
}
