//! Guarantee: at a Redis an effect is one entry of a stream, or it is known that it may not be; and no error leaves half of it.

mod tls;

use aftercommit::{
    check::Level,
    outcome::{About, Finding, Phase},
    state::State,
};
use redis::aio::MultiplexedConnection;

use super::brokers::{LONG, Proxy, Server, deliver, effect, own_name, served, variable};
use crate::{
    engine::{engine, reaches},
    support::{TestDatabase, on_postgres},
};

on_postgres!(a_key_that_somebody_else_used_ends_in_doubt);

/// A client that is not ours.
pub(super) struct Bystander(MultiplexedConnection);

impl Bystander {
    pub(super) async fn at(place: &str) -> Self {
        let client = redis::Client::open(format!("redis://{place}")).expect("an address");
        Self(client.get_multiplexed_async_connection().await.expect("the server is there"))
    }

    pub(super) async fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.0).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The keys of all entries, oldest first.
    pub(super) async fn keys(&mut self, stream: &str) -> Vec<String> {
        let entries: redis::streams::StreamRangeReply = self.ask(&["XRANGE", stream, "-", "+"]).await;
        entries.ids.iter().map(|entry| entry.get::<String>("key").unwrap_or_default()).collect()
    }

    /// How many keys there are whose name begins so.
    async fn count(&mut self, pattern: &str) -> usize {
        self.ask::<Vec<String>>(&["KEYS", pattern]).await.len()
    }
}

pub(super) fn table(place: &str, stream: &str) -> String {
    format!(
        "kind = \"redis\"\nurl = \"redis://{place}\"\nstream = \"{stream}\"\ntimeout = \"10s\"\n\
         retry = {{ initial = \"50ms\", max = \"1s\" }}\n\
         contract = {{ dedupe = \"key\", window = \"1h\" }}\n"
    )
}

fn place() -> String {
    variable("AFTERCOMMIT_TEST_REDIS").trim_start_matches("redis://").to_owned()
}

/// REDIS-01: the reply is lost after the server added the entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_unknown_and_the_repetition_returns_the_first_entry() {
    let (stream, proxy) = (own_name("orders"), Proxy::start(place()).await);
    let downstream = served(&table(&proxy.place.to_string(), &stream), "").downstream;
    let mut binary = effect("before");
    (binary.payload, binary.body) = (None, Some(vec![0, 255, b'\r', b'\n', 0]));
    assert_eq!(deliver(&*downstream, binary, LONG).await.finding, Finding::Applied);
    proxy.swallow(b"\r\n:0\r\n");
    let first = deliver(&*downstream, effect("order-17"), LONG).await;
    assert_eq!((first.finding, first.phase, proxy.swallowed()), (Finding::Unknown, Phase::Send, 1));
    let second = deliver(&*downstream, effect("order-17"), LONG).await;
    assert_eq!((second.finding, second.replayed), (Finding::AlreadyDone, true), "{}", second.reason);
    let mut bystander = Bystander::at(&place()).await;
    assert_eq!(bystander.keys(&stream).await, ["before", "order-17"]);
    let entries: redis::streams::StreamRangeReply = bystander.ask(&["XRANGE", &stream, "-", "+"]).await;
    assert_eq!(entries.ids[0].get::<Vec<u8>>("body"), Some(vec![0, 255, b'\r', b'\n', 0]));
    let said: serde_json::Value =
        serde_json::from_slice(&second.response.expect("the id").body).expect("JSON");
    assert_eq!(said["id"], entries.ids[1].id, "the first entry's id");
    let marker = format!("aftercommit:{{{stream}}}:{}:{stream}:order-17", stream.len());
    let lives: i64 = bystander.ask(&["PTTL", &marker]).await;
    assert!((3_000_000..=3_600_000).contains(&lives), "the marker lives for the window: {lives} ms");
}

/// REDIS-03.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_memory_leaves_neither_entry_nor_marker_and_the_effect_waits() {
    let server = Server::redis(&["--maxmemory-policy", "noeviction"]).await;
    let mut bystander = Bystander::at(&server.place()).await;
    let downstream = served(&table(&server.place(), "orders"), "").downstream;
    assert_eq!(deliver(&*downstream, effect("a"), LONG).await.finding, Finding::Applied);
    let _ok: String = bystander.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let outcome = deliver(&*downstream, effect("b"), LONG).await;
    assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, false), "{}", outcome.reason);
    assert!(outcome.reason.contains("OOM"), "{}", outcome.reason);
    // A repetition of what was added is still answered: nothing is written for it.
    assert_eq!(deliver(&*downstream, effect("a"), LONG).await.finding, Finding::AlreadyDone);
    assert_eq!(
        (bystander.keys("orders").await, bystander.count("aftercommit:*").await),
        (vec!["a".to_owned()], 1)
    );
    let _ok: String = bystander.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(deliver(&*downstream, effect("b"), LONG).await.finding, Finding::Applied);
    assert_eq!((bystander.keys("orders").await.len(), bystander.count("aftercommit:*").await), (2, 2));
}

/// What refuses one of the script's commands refuses it before the first that writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_refusal_leaves_a_marker_without_an_entry_or_an_entry_without_a_marker() {
    let server = Server::redis(&[]).await;
    let mut bystander = Bystander::at(&server.place()).await;
    let _ok: String = bystander.ask(&["SET", "taken", "text"]).await;
    let mut to_text = effect("a");
    to_text.target = Some("taken".to_owned());
    let downstream = served(&table(&server.place(), "orders"), "").downstream;
    let outcome = deliver(&*downstream, to_text, LONG).await;
    assert_eq!(outcome.finding, Finding::Rejected(About::ThisAttempt), "{}", outcome.reason);
    assert_eq!(bystander.count("aftercommit:*").await, 0);
    for (n, lacks) in ["-set", "-xadd", "-get", "-eval"].into_iter().enumerate() {
        let user = format!("user{n}");
        let _ok: String =
            bystander.ask(&["ACL", "SETUSER", &user, "on", ">pw-of-a-user", "~*", "+@all", lacks]).await;
        let toml = table(&server.place(), "orders")
            + &format!("auth = {{ user = \"{user}\", password = {{ env = \"SECRET\" }} }}\n");
        let outcome = deliver(&*served(&toml, "pw-of-a-user").downstream, effect(lacks), LONG).await;
        assert_eq!(
            (outcome.finding, outcome.refuses_us),
            (Finding::NotApplied, true),
            "{lacks}: {}",
            outcome.reason
        );
        assert_eq!(bystander.count("*orders*").await, 0, "{lacks}");
    }
    let wrong =
        table(&server.place(), "orders") + "auth = { user = \"user0\", password = { env = \"SECRET\" } }\n";
    let outcome = deliver(&*served(&wrong, "wrong-password").downstream, effect("b"), LONG).await;
    assert_eq!(
        (outcome.finding, outcome.refuses_us, outcome.phase),
        (Finding::NotApplied, true, Phase::Connect)
    );
    // Replicas that are not there.
    let _ok: String = bystander.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let outcome = deliver(&*downstream, effect("c"), LONG).await;
    assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, false), "{}", outcome.reason);
    assert!(outcome.reason.contains("NOREPLICAS"), "{}", outcome.reason);
    let _ok: String = bystander.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    assert_eq!(bystander.count("*orders*").await, 0);
    // The scripts are forgotten between two attempts.
    for key in ["d", "e"] {
        assert_eq!(deliver(&*downstream, effect(key), LONG).await.finding, Finding::Applied);
        let _ok: String = bystander.ask(&["SCRIPT", "FLUSH"]).await;
    }
    assert_eq!(bystander.keys("orders").await, ["d", "e"]);
}

/// A connection that broke while nobody used it is noticed by itself, soon: from then on it is no doubt about any effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_restarted_meanwhile_gets_the_next_effect_once() {
    let mut server = Server::redis(&["--appendonly", "yes"]).await;
    let downstream = served(&table(&server.place(), "orders"), "").downstream;
    assert_eq!(deliver(&*downstream, effect("a"), LONG).await.finding, Finding::Applied);
    server.kill().await;
    crate::support::eventually(LONG, "the broken connection is noticed", async || {
        let outcome = deliver(&*downstream, effect("b"), LONG).await;
        let noticed = (outcome.finding, outcome.phase) == (Finding::NotApplied, Phase::Connect);
        assert!(noticed || outcome.finding == Finding::Unknown, "{outcome:?}");
        noticed.then_some(())
    })
    .await;
    server.start().await;
    // It answers that it is loading its file, for a moment.
    crate::support::eventually(LONG, "the next effect is applied", async || {
        let outcome = deliver(&*downstream, effect("b"), LONG).await;
        assert!(matches!(outcome.finding, Finding::Applied | Finding::NotApplied), "{outcome:?}");
        (outcome.finding == Finding::Applied).then_some(())
    })
    .await;
    // The marker of the first survived with its entry.
    assert_eq!(deliver(&*downstream, effect("a"), LONG).await.finding, Finding::AlreadyDone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_look_warns_of_what_forgets_and_adds_nothing() {
    let server = Server::redis(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).await;
    let mut bystander = Bystander::at(&server.place()).await;
    let downstream = served(&table(&server.place(), "orders"), "").downstream;
    let checks = downstream.check(LONG).await;
    let of = |name: &str| {
        checks.iter().find(|check| check.check == name).unwrap_or_else(|| panic!("{name}: {checks:?}"))
    };
    assert_eq!(of("connection").level, Level::Ok);
    assert!(of("memory").level == Level::Warn && of("memory").found.contains("markers"), "{checks:?}");
    assert!(of("durability").level == Level::Warn && of("durability").found.contains("off"), "{checks:?}");
    assert_eq!(of("stream").level, Level::Ok);
    assert_eq!(bystander.count("*").await, 0, "nothing was added");
    let _ok: String = bystander.ask(&["SET", "orders", "text"]).await;
    let checks = downstream.check(LONG).await;
    assert!(checks.iter().any(|check| check.check == "stream" && check.level == Level::Fail), "{checks:?}");
}

/// The decision table: a marker is never taken for a first success.
async fn a_key_that_somebody_else_used_ends_in_doubt(db: &TestDatabase) {
    let stream = own_name("orders");
    let served = served(&table(&place(), &stream), "");
    let first = deliver(&*served.downstream, effect("order-17"), LONG).await;
    assert_eq!(first.finding, Finding::Applied, "somebody else's");
    let id = db.insert("shop", "order-17").await;
    let fresh = db.insert("shop", "order-18").await;
    engine(db.store.clone(), "w", vec![served])
        .run_until_idle(aftercommit::engine::Stop::default())
        .await
        .expect("the worker runs");
    reaches(db, id, State::InDoubt).await;
    reaches(db, fresh, State::Succeeded).await;
    let error = db.status(id).await.last_error.unwrap_or_default();
    assert!(error.contains("used before"), "{error}");
    assert_eq!(Bystander::at(&place()).await.keys(&stream).await, ["order-17", "order-18"]);
}
