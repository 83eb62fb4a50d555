//! Defends: a client that sends one key with every try, against a server that does everything wrong first, acts once.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use aftercommit::{
    IdempotencyKey,
    client::{self, GaveUp, Reply, Retry},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinSet,
};

use crate::{
    e2e::environment::{example, python},
    support::within,
};

const SOON: Duration = Duration::from_secs(60);

/// Answers each request with the next of a list, then with the last one again. An empty one is a lost answer.
struct Misbehaving {
    url: String,
    // Shared with the task that accepts.
    keys: Arc<Mutex<Vec<String>>>,
    _task: JoinSet<()>,
}

const ANSWERS: [&str; 5] = [
    // Breaks off.
    "HTTP/1.1 503 Unavailable\r\ncontent-length: 99\r\nconnection: close\r\n\r\noff",
    "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\nconnection: close\r\n\r\noops",
    "",
    "HTTP/1.1 409 Conflict\r\nretry-after: 0\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    "HTTP/1.1 201 Created\r\ncontent-length: 8\r\nconnection: close\r\n\r\norder 17",
];
const REMEMBERED: &str = "HTTP/1.1 503 Unavailable\r\nidempotent-replayed: true\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
const CONFLICT: &str = "HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
const MISMATCH: &str = "HTTP/1.1 422 Unprocessable Content\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

impl Misbehaving {
    async fn start(answers: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/orders", listener.local_addr().expect("it is bound"));
        let keys = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&keys);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut answers = answers.iter().chain(std::iter::repeat(answers.last().expect("an answer")));
            while let Ok((stream, _)) = listener.accept().await {
                let (key, mut stream) = key(stream).await;
                heard.lock().expect("no panic").push(key);
                let answer = answers.next().expect("endless");
                if !answer.is_empty() {
                    stream.write_all(answer.as_bytes()).await.expect("the client listens");
                }
            }
        });
        Self { url, keys, _task: task }
    }

    fn keys(&self) -> Vec<String> {
        self.keys.lock().expect("no panic").clone()
    }
}

/// The key of the one request on this connection, whose body is `{}`.
async fn key(mut stream: TcpStream) -> (String, TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n{}") {
        let read = stream.read_buf(&mut request).await.expect("the client sends");
        assert!(read > 0, "a whole request: {}", String::from_utf8_lossy(&request));
    }
    let text = String::from_utf8(request).expect("ASCII");
    let key = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("idempotency-key").then(|| value.trim().to_owned())
    });
    (key.expect("every try has a key"), stream)
}

/// As in the documentation of `aftercommit::client`, with reqwest.
async fn post(
    url: &str,
    key: &str,
    retry: Retry,
) -> Result<reqwest::Response, GaveUp<reqwest::Response, reqwest::Error>> {
    let http =
        reqwest::Client::builder().retry(reqwest::retry::never()).no_proxy().build().expect("a client");
    let key = IdempotencyKey::parse(key).expect("a key");
    client::send(&retry, &key, |key| {
        let request = http.post(url).timeout(Duration::from_secs(10)).header("Idempotency-Key", key.as_str());
        async move {
            let response = request.body("{}").send().await?;
            let header = |name| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
            let status = response.status().as_u16();
            let (retry_after, date) = (header("retry-after"), header("date"));
            let replayed = header("idempotent-replayed").is_some();
            Ok(Reply { status, retry_after, date, replayed, response })
        }
    })
    .await
}

fn quick() -> Retry {
    Retry { initial: Duration::from_millis(1), ..Retry::default() }
}

#[tokio::test]
async fn the_library_sends_one_key_until_the_answer_is_final() {
    let server = Misbehaving::start(&ANSWERS).await;
    let response = within(SOON, "there is an answer", post(&server.url, "order-17", quick())).await;
    let response = response.expect("a final answer");
    assert_eq!(
        (response.status().as_u16(), response.text().await.expect("a body").as_str()),
        (201, "order 17")
    );
    assert_eq!(server.keys(), vec!["order-17"; 5]);
}

#[tokio::test]
async fn the_library_stops_at_what_is_final_and_gives_up_at_its_deadline() {
    for (answers, status) in [(&[MISMATCH], 422), (&[REMEMBERED], 503), (&[CONFLICT], 409)] {
        let server = Misbehaving::start(answers).await;
        let response = post(&server.url, "k", quick()).await.expect("a final answer");
        assert_eq!((response.status().as_u16(), server.keys().len()), (status, 1));
    }
    let server = Misbehaving::start(&[""]).await;
    let retry = Retry {
        deadline: Duration::ZERO,
        initial: Duration::from_secs(3600),
        max: Duration::from_secs(3600),
    };
    let gave_up = post(&server.url, "k", retry).await.expect_err("there is no answer");
    assert_eq!((gave_up.tries, server.keys().len()), (1, 1));
}

async fn run(url: &str, more: &str) -> String {
    let folder = example("client.py").parent().expect("a folder").display().to_string();
    let program = format!(
        "import sys; sys.path.insert(0, {folder:?}); sys.dont_write_bytecode = True\n\
         import client\n\
         status, headers, body = client.post({url:?}, b'{{}}', first=0.001{more})\n\
         print(status, body.decode())"
    );
    let mut python = Command::new(python());
    let output =
        within(SOON, "the program ends", python.args(["-c", &program]).kill_on_drop(true).output()).await;
    let output = output.expect("Python runs");
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[tokio::test]
async fn the_python_example_sends_one_key_until_the_answer_is_final() {
    let server = Misbehaving::start(&ANSWERS).await;
    assert_eq!(run(&server.url, "").await, "201 order 17");
    let keys = server.keys();
    assert_eq!(keys, vec![keys[0].clone(); 5]);
    assert_eq!(keys[0].len(), 36, "a UUID where none is given");
    for (answers, status) in [(&[MISMATCH], "422"), (&[REMEMBERED], "503"), (&[CONFLICT], "409")] {
        let server = Misbehaving::start(answers).await;
        assert_eq!(run(&server.url, ", key='order-17'").await, status);
        assert_eq!(server.keys(), ["order-17"]);
    }
    // Nothing is waited for that comes after the deadline.
    let server = Misbehaving::start(&[
        "HTTP/1.1 503 Unavailable\r\nretry-after: 3600\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    ])
    .await;
    assert_eq!(run(&server.url, "").await, "503");
    assert_eq!(server.keys().len(), 1);
}
