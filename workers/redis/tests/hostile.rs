//! Guarantee: however long a server makes a reply, the client holds little of it, and the attempt ends soon.

use std::time::Duration;

use aftercommit::outcome::{Finding, Phase};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};

use super::{
    LONG,
    server::{GREETING, next},
    table,
};
use crate::trial::{deliver, effect, served};

/// What the operating system may take for a socket that nobody reads from, both of its ends together.
const SYSTEM: usize = 24 << 20;

/// Says `head` and then `more` without an end: instead of a greeting, or to the first command after it. How many bytes were
/// taken until the other side hung up.
async fn flood(listener: TcpListener, greets: bool, head: &'static [u8], more: &'static [u8]) -> usize {
    let mut socket = tokio::io::BufReader::new(listener.accept().await.unwrap().0);
    while let Some(command) = next(&mut socket).await {
        let is_greeting = matches!(command[0].as_slice(), b"HELLO" | b"CLIENT");
        if greets && is_greeting {
            let reply = if command[0] == b"HELLO" { GREETING } else { "+OK\r\n" };
            socket.write_all(reply.as_bytes()).await.unwrap();
            continue;
        }
        break;
    }
    flow(socket.into_inner(), head, &more.repeat(64 * 1024 / more.len())).await
}

async fn flow(mut socket: TcpStream, head: &[u8], piece: &[u8]) -> usize {
    let mut taken = 0;
    let mut next = head;
    while taken < 1 << 30 {
        match socket.write(next).await {
            Ok(bytes) => taken += bytes,
            Err(_hung_up) => break,
        }
        next = piece;
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_without_an_end_is_given_up_soon_and_little_of_it_is_read() {
    for (head, more) in [
        (&b"$2000000000\r\n"[..], &b"x"[..]),
        (b"+", b"x"),
        (b"-ERR ", b"x"),
        (b"*2000000000\r\n", b":1\r\n"),
        (b"%1000000000\r\n", b"_\r\n"),
        (b">2000000000\r\n", b"+x\r\n"),
        // Whole ones that nobody asked for.
        (b"", b">1\r\n+x\r\n"),
    ] {
        for greets in [true, false] {
            let shown = format!("{:?}, greeting {greets}", String::from_utf8_lossy(head));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let downstream = served(&table(&listener.local_addr().unwrap().to_string())).downstream;
            let mut server = JoinSet::new();
            server.spawn(flood(listener, greets, head, more));
            let began = Instant::now();
            let outcome = deliver(&*downstream, effect("k"), LONG).await;
            assert!(began.elapsed() < LONG / 2, "{shown}: it waited for its deadline: {outcome:?}");
            // Whatever it says to a greeting is one, as long as it is no error.
            let expected = if greets || head.is_empty() {
                (Finding::Unknown, Phase::Answer)
            } else {
                (Finding::NotApplied, Phase::Connect)
            };
            assert_eq!((outcome.finding, outcome.phase), expected, "{shown}: {outcome:?}");
            assert!(outcome.reason.contains("more than 1 MiB"), "{shown}: {outcome:?}");
            let taken = tokio::time::timeout(Duration::from_secs(10), server.join_next());
            let taken = taken.await.expect("the connection is closed").unwrap().unwrap();
            assert!(taken < SYSTEM, "{shown}: {taken} bytes were taken");
        }
    }
}
