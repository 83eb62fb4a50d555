//! Bytes that nobody should send, and rows that nobody should write: each is one effect's trouble and nobody else's.

use std::{path::PathBuf, time::Duration};

use rustix::process::Signal;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{
    processes::{Process, run_ok},
    servers::{Reply, ScriptedServer},
    shop::{Shop, WORKER, payments},
    wire::Reader,
};

const SOON: Duration = Duration::from_secs(40);
const END: [&str; 3] = ["succeeded", "in_doubt", "failed"];
/// As much of a response as is kept.
const KEPT: usize = 1 << 20;

/// The bodies of the first answers to a key, all with status 500; then it is done.
fn bodies() -> Vec<Vec<u8>> {
    let mut bodies = vec![
        [&b"\xff\xfe\x00"[..], "😀".as_bytes(), &vec![b'x'; KEPT]].concat(),
        b"{\"error\":{\"code\":\"\xf1a\"}}".to_vec(),
        b"{\"error\":{\"code\":\"a\\u0000b\",\"message\":\"\\ud800\"}}".to_vec(),
        [&vec![b'['; 100_000][..], &vec![b']'; 100_000]].concat(),
    ];
    // A character across the limit of what is kept, and across any shorter limit of a reason or a line.
    for offset in 0..4 {
        bodies.push(format!("{}€ and more", "a".repeat(KEPT - offset)).into_bytes());
        let code = format!("{}{}", "a".repeat(offset), "€".repeat(5000));
        bodies.push(format!("{{\"error\":{{\"code\":\"{code}\"}}}}").into_bytes());
    }
    bodies
}

async fn answer(mut stream: TcpStream, bodies: &[Vec<u8>], next: &std::sync::atomic::AtomicUsize) {
    while let Ok(Some(_)) = Reader::new(&mut stream).message().await {
        let nth = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let done = b"{\"id\":\"ch_1\"}".to_vec();
        let (status, body) = bodies.get(nth).map_or((200, &done), |body| (500, body));
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if stream.write_all(&[head.as_bytes(), body].concat()).await.is_err() {
            return;
        }
    }
}

/// Answers with [`bodies`], one after the other, on whatever connection.
async fn hostile_server() -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let mut server = JoinSet::new();
    server.spawn(async move {
        let (bodies, next) = (bodies(), std::sync::atomic::AtomicUsize::new(0));
        while let Ok((stream, _)) = listener.accept().await {
            // One at a time is enough: one effect is called.
            answer(stream, &bodies, &next).await;
        }
    });
    (url, server)
}

async fn drained(mut worker: Process) -> String {
    worker.signal(Signal::TERM);
    let status = worker.ended(SOON).await;
    assert!(status.success(), "{}", worker.output());
    worker.output()
}

async fn migrated(shop: &Shop, url: &str) -> PathBuf {
    let config = shop.configure(
        "worker",
        &format!("{WORKER}{}", payments(url).replace("max = \"1s\"", "max = \"100ms\"")),
    );
    shop.migrate(&config).await;
    config
}

async fn what_a_downstream_says_is_stored_and_shown(shop: Shop) {
    let (url, _server) = hostile_server().await;
    let config = migrated(&shop, &url).await;
    let orders = "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount bigint NOT NULL)";
    shop.database.execute(orders).await;
    let worker = shop.worker("worker", &config);
    shop.order("a").await;
    let state = shop.settled("order-a/charge", &END, SOON).await;
    let output = drained(worker).await;
    assert_eq!(state, "succeeded", "{output}");
    assert!(!output.contains("panicked"), "{output}");
    let attempts = shop.database.attempts_of("order-a/charge").await;
    assert_eq!(attempts.len(), bodies().len() + 1, "each answer is one attempt: {attempts:#?}");
    let unknown = attempts.iter().filter(|attempt| attempt.outcome == "unknown").count();
    assert_eq!(unknown, bodies().len());
    let id = shop.database.effect("order-a/charge").await.id.to_string();
    for arguments in
        [&["effects", "show", &id][..], &["effects", "show", &id, "--json"], &["effects", "list"]]
    {
        run_ok(shop.command(&config).args(arguments), SOON).await;
    }
}

/// CRASH-06, RUNTIME-03.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_downstream_says_is_stored_and_shown_on_postgres() {
    what_a_downstream_says_is_stored_and_shown(Shop::on_postgres("hostile").await).await;
}

/// CRASH-06, RUNTIME-03.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_downstream_says_is_stored_and_shown_on_sqlite() {
    what_a_downstream_says_is_stored_and_shown(Shop::on_sqlite().await).await;
}

/// CRASH-12, ENCODING-05: rows that somebody changed behind our back, in the middle of a batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_cannot_be_sent_fails_alone_and_stays_with_nobody() {
    let shop = Shop::on_postgres("corrupt").await;
    let server = ScriptedServer::start(shop.folder.path(), |_request, _nth| Reply::DONE).await;
    let config = migrated(&shop, &server.url()).await;
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let corruptions = [
        ("headers", "UPDATE aftercommit.effects SET headers = '[1,2]'".to_owned()),
        ("payload", "UPDATE aftercommit.effects SET payload = '\"no object\"'".to_owned()),
        ("deep", format!("UPDATE aftercommit.effects SET payload = '{{\"a\":{deep}}}'")),
        ("created", "UPDATE aftercommit.effects SET created_at = '294276-12-31T23:59:59Z'".to_owned()),
    ];
    for number in 0..10 {
        shop.order(&format!("n{number}")).await;
    }
    for (name, corrupt) in &corruptions {
        shop.order(name).await;
        shop.database.execute(&format!("{corrupt} WHERE idempotency_key = 'order-{name}/charge'")).await;
    }
    let worker = shop.worker("worker", &config);
    for number in 0..10 {
        let key = format!("order-n{number}/charge");
        assert_eq!(shop.settled(&key, &END, SOON).await, "succeeded");
        assert_eq!(server.counts(&key), (1, 1));
    }
    for (name, _) in &corruptions {
        let key = format!("order-{name}/charge");
        let state = shop.settled(&key, &END, SOON).await;
        let effect = shop.database.effect(&key).await;
        let sent = server.counts(&key).0;
        assert!(
            (state == "failed" && sent == 0) || (state == "succeeded" && sent == 1),
            "{name}: {effect:?}"
        );
    }
    let left = shop.database.text("SELECT count(*)::text FROM aftercommit.claims").await;
    let output = drained(worker).await;
    assert!(!output.contains("panicked") && !output.contains("overflow"), "{output}");
    assert!(
        left == "0" || shop.database.text("SELECT count(*)::text FROM aftercommit.claims").await == "0",
        "a claim is left behind"
    );
}
