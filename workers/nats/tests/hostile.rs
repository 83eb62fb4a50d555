//! Guarantee: a message without an end ends the connection, soon, and with it what the client holds of it.

use std::time::Duration;

use aftercommit::outcome::{Finding, Phase};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::TcpListener,
    task::JoinSet,
    time::Instant,
};

use super::{
    LONG,
    server::{INFO, STREAM, next},
    table,
};
use crate::trial::{deliver, effect, served};

/// Answers what is asked of the stream, if it `describes` it, and then says `more` without an end. How many bytes were taken
/// until the other side hung up.
async fn flood(listener: TcpListener, describes: bool, head: &'static str) -> usize {
    let mut socket = BufReader::new(listener.accept().await.unwrap().0);
    socket.write_all(INFO.as_bytes()).await.unwrap();
    while let Some((line, _)) = next(&mut socket).await {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words.as_slice() {
            ["PING"] => "PONG\r\n".to_owned(),
            ["PUB", subject, inbox, _] if describes && subject.starts_with("$JS.API.") => {
                format!("MSG {inbox} 0 {}\r\n{STREAM}\r\n", STREAM.len())
            }
            ["PUB" | "HPUB", _, inbox, ..] => {
                let head = head.replace("INBOX", inbox);
                socket.write_all(head.as_bytes()).await.unwrap();
                break;
            }
            _ => continue,
        };
        socket.write_all(answer.as_bytes()).await.unwrap();
    }
    let piece = vec![b'x'; 64 * 1024];
    let mut taken = 0;
    while let Ok(bytes) = socket.get_mut().write(&piece).await {
        taken += bytes;
        if taken > 2_000_000_000 {
            break;
        }
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_an_end_is_given_up_soon_and_is_never_held_whole() {
    for head in ["MSG INBOX 0 2000000000\r\n", "HMSG INBOX 0 12 2000000000\r\n", "MSG "] {
        for describes in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let downstream = served(&table(&listener.local_addr().unwrap().to_string())).downstream;
            let mut server = JoinSet::new();
            server.spawn(flood(listener, describes, head));
            let began = Instant::now();
            let outcome = deliver(&*downstream, effect("k"), LONG).await;
            assert!(began.elapsed() < LONG / 2, "{head}: it waited for its deadline: {outcome:?}");
            let expected = if describes {
                (Finding::Unknown, Phase::Answer)
            } else {
                (Finding::NotApplied, Phase::Connect)
            };
            assert_eq!((outcome.finding, outcome.phase), expected, "{head}: {outcome:?}");
            assert!(outcome.reason.contains("more than 8 MiB"), "{head}: {outcome:?}");
            let taken = tokio::time::timeout(Duration::from_secs(10), server.join_next());
            let taken = taken.await.expect("the connection is closed").unwrap().unwrap();
            assert!(taken < 1_000_000_000, "{head}: {taken} bytes were taken");
        }
    }
}
