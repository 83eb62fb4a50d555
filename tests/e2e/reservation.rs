//! The reservation of the literature: ten items are left, a hundred clients want one each, every answer may be lost on its way,
//! and each client asks again with its own key until it knows. Exactly ten reservations, and every client is told one thing.
//! The servers are the example applications, in Python and in Rust, on both databases.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    process::Command,
    sync::Barrier,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::support::Chance;

use super::{
    database::Database,
    environment,
    examples::rust_example,
    ledger::Fate,
    ledger_proxy::{Faults, LedgerProxy, Loss},
    processes::{Process, eventually},
    shop::Shop,
    wire::{Message, Reader},
};

const CLIENTS: usize = 100;
const ITEMS: usize = 10;
/// Of a server or a database that starts, on two busy cores.
const SOON: Duration = Duration::from_secs(60);
/// One request in ten never arrives, every third answer is lost.
const LOSSY: Faults = Faults {
    hold: (Duration::ZERO, Duration::from_millis(20)),
    requests_one_in: 10,
    answers_one_in: 3,
    losses: &[Loss::Reset, Loss::Close],
};

/// The server's address, once it has said that it listens.
pub(super) async fn address(server: &mut Process) -> String {
    let mut address = None;
    eventually("the example says where it listens", SOON, async || {
        assert!(server.has_ended().is_none(), "{}", server.output());
        let output = server.output();
        address =
            output.lines().find_map(|line| line.strip_prefix("listening on http://")).map(str::to_owned);
        address.is_some()
    })
    .await;
    address.expect("it was just found")
}

/// A POST with a key and a JSON body; an error is an answer that did not come.
async fn post(address: &str, key: &str, body: &str) -> std::io::Result<Message> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST /reservations HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer demo\r\nIdempotency-Key: \"{key}\"\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let answer = Reader::new(stream).message().await?;
    answer.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}

/// What a client is told: everything that must be the same however often it asks.
type Told = (u16, Vec<(String, String)>, String);

/// The final answer that a message is; `None` when it asks for patience.
fn told(answer: &Message) -> Option<Told> {
    if answer.header("retry-after").is_some() {
        assert!([409, 503].contains(&answer.status()), "{}", answer.start);
        return None;
    }
    let kept = ["content-type", "location"];
    let headers = answer.headers.iter().filter(|(name, _)| kept.contains(&name.as_str())).cloned().collect();
    Some((answer.status(), headers, String::from_utf8_lossy(&answer.body).into_owned()))
}

/// Asks until there is a final answer.
async fn ask(address: &str, key: &str, chance: &mut Chance) -> Told {
    let body = r#"{"item":"ticket","quantity":1}"#;
    loop {
        match post(address, key, body).await {
            Ok(answer) => match told(&answer) {
                Some(told) => return told,
                // As it was asked to.
                None => sleep(Duration::from_secs(1)).await,
            },
            // Full jitter, as a client should.
            Err(_lost) => sleep(chance.millis(100)).await,
        }
    }
}

/// All clients at once; the answers of each, the last ones asked for without the proxy.
async fn clients(proxy: &str, direct: &str, chance: &mut Chance) -> BTreeMap<String, Vec<Told>> {
    let start = Arc::new(Barrier::new(CLIENTS));
    let mut tasks = JoinSet::new();
    for client in 0..CLIENTS {
        let (start, mut chance) = (Arc::clone(&start), chance.fork());
        let (proxy, direct, key) = (proxy.to_owned(), direct.to_owned(), format!("client {client}"));
        tasks.spawn(async move {
            start.wait().await;
            let mut answers = Vec::new();
            for address in [&proxy, &proxy, &direct] {
                answers.push(ask(address, &key, &mut chance).await);
            }
            (key, answers)
        });
    }
    let all = timeout(Duration::from_secs(120), tasks.join_all()).await;
    all.expect("every client is told something within two minutes").into_iter().collect()
}

/// Lets the clients at the server, and counts.
async fn reserved_once(shop: &Shop, mut server: Process) {
    let mut chance = Chance::seeded();
    let address = address(&mut server).await;
    shop.database.execute(&format!("INSERT INTO stock (item, available) VALUES ('ticket', {ITEMS})")).await;
    let proxy = LedgerProxy::start(&address, shop.folder.path(), LOSSY, chance.fork()).await;
    let answers = clients(&proxy.address.to_string(), &address, &mut chance).await;

    let lost: u64 =
        proxy.losses().iter().filter(|((fate, _), _)| *fate == Fate::AnswerDropped).map(|(_, n)| n).sum();
    println!("{}: {lost} answers lost, {} replays through the proxy", server.name, proxy.replays());
    assert!(lost > 0 && proxy.replays() > 0, "nothing was disturbed");
    for (client, answers) in &answers {
        assert!(answers.iter().all(|answer| answer == &answers[0]), "{client} was told {answers:?}");
    }
    let with = |status| answers.values().filter(|answers| answers[0].0 == status).count();
    assert_eq!((with(201), with(410)), (ITEMS, CLIENTS - ITEMS), "{}", server.output());
    let number = async |sql: &str| shop.database.text(sql).await;
    assert_eq!(number("SELECT CAST(available AS text) FROM stock").await, "0");
    assert_eq!(number("SELECT CAST(count(*) AS text) FROM reservations").await, ITEMS.to_string());
    assert_eq!(shop.database.effects().await.len(), ITEMS, "an effect for each reservation");

    // Once its answer is forgotten a request runs again, and meets what it made.
    shop.database.execute(&format!("DELETE FROM {}", requests(shop))).await;
    for (client, answers) in answers.iter().filter(|(_, answers)| answers[0].0 == 201) {
        assert_eq!(&ask(&address, client, &mut chance).await, &answers[0], "{client}");
    }
    assert_eq!(number("SELECT CAST(count(*) AS text) FROM reservations").await, ITEMS.to_string());
    assert_eq!(shop.database.effects().await.len(), ITEMS, "no effect was written twice");
}

fn requests(shop: &Shop) -> &'static str {
    match shop.database {
        Database::Postgres(_) => "aftercommit.requests",
        Database::Sqlite(_) => "aftercommit_requests",
    }
}

async fn migrated(shop: Shop) -> Shop {
    let config = shop.configure("worker", "");
    shop.migrate(&config).await;
    shop
}

fn rust(program: &Path, shop: &Shop, name: &str) -> Process {
    let mut command = Command::new(program);
    command.arg("0").env("DATABASE_URL", shop.database.url());
    Process::spawn(name, &mut command, &shop.path("reservation.log"))
}

fn python(url: &str, shop: &Shop, name: &str) -> Process {
    let mut command = Command::new(environment::python());
    command.arg(environment::example("reservation.py")).arg("0").env("DATABASE_URL", url);
    Process::spawn(name, &mut command, &shop.path("reservation.log"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_items_are_reserved_ten_times_in_python_on_postgresql() {
    let shop = migrated(Shop::on_postgres("reservation").await).await;
    reserved_once(&shop, python(&shop.database.url(), &shop, "Python on PostgreSQL")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_items_are_reserved_ten_times_in_python_through_pgbouncer() {
    let shop = migrated(Shop::on_postgres("reservation_pooled").await).await;
    let mut url: url::Url = environment::pgbouncer_url().parse().expect("the pooler's URL");
    url.set_path(shop.database.url().rsplit('/').next().expect("the database's name"));
    reserved_once(&shop, python(url.as_str(), &shop, "Python through pgbouncer")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_items_are_reserved_ten_times_in_python_on_sqlite() {
    let shop = migrated(Shop::on_sqlite().await).await;
    reserved_once(&shop, python(&shop.database.url(), &shop, "Python on SQLite")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_items_are_reserved_ten_times_in_rust_on_postgresql() {
    let program = rust_example("reservation").await;
    let shop = migrated(Shop::on_postgres("reservation").await).await;
    reserved_once(&shop, rust(&program, &shop, "Rust on PostgreSQL")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_items_are_reserved_ten_times_in_rust_on_sqlite() {
    let program = rust_example("reservation").await;
    let shop = migrated(Shop::on_sqlite().await).await;
    reserved_once(&shop, rust(&program, &shop, "Rust on SQLite")).await;
}
