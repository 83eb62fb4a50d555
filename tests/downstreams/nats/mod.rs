//! Guarantee: at a NATS server with JetStream an effect is one stored message, or it is known that it may not be.

mod credentials;

use aftercommit::{
    check::Level,
    outcome::{About, Finding, Phase},
    state::State,
};
use async_nats::{
    HeaderMap,
    jetstream::{self, stream},
};
use futures_util::TryStreamExt as _;

use super::brokers::{LONG, Proxy, Server, deliver, effect, own_name, served, variable};
use crate::{
    engine::{engine, reaches},
    support::{TestDatabase, on_postgres},
};

on_postgres!(a_key_that_somebody_else_used_ends_in_doubt_and_a_resend_is_shown_as_a_duplicate);

/// A stream of the test's own on a server, with its subject.
pub(super) struct Stream {
    pub(super) name: String,
    pub(super) context: jetstream::Context,
}

impl Stream {
    pub(super) async fn make(place: &str, change: impl FnOnce(&mut stream::Config)) -> Self {
        Self::make_in(bystander(place).await, change).await
    }

    async fn make_in(context: jetstream::Context, change: impl FnOnce(&mut stream::Config)) -> Self {
        let name = own_name("S");
        let mut config = stream::Config {
            name: name.clone(),
            subjects: vec![format!("{name}.>")],
            duplicate_window: std::time::Duration::from_secs(120),
            storage: stream::StorageType::File,
            ..stream::Config::default()
        };
        change(&mut config);
        context.create_stream(config).await.expect("the stream can be made");
        Self { name, context }
    }

    pub(super) fn table(&self, place: &str) -> String {
        let name = &self.name;
        format!(
            "kind = \"nats\"\nurl = \"nats://{place}\"\nstream = \"{name}\"\nsubject = \"{name}.new\"\n\
             retry = {{ initial = \"50ms\", max = \"1s\" }}\ntimeout = \"10s\"\n\
             contract = {{ dedupe = \"key\", window = \"2m\", margin = \"10s\" }}\n"
        )
    }

    /// The ids of all messages, oldest first.
    pub(super) async fn ids(&self) -> Vec<String> {
        let stream = self.context.get_stream(&self.name).await.expect("it is there");
        let expected = stream.cached_info().state.messages;
        if expected == 0 {
            return Vec::new();
        }
        let consumer = stream
            .create_consumer(jetstream::consumer::pull::Config {
                ack_policy: jetstream::consumer::AckPolicy::None,
                ..jetstream::consumer::pull::Config::default()
            })
            .await
            .expect("a consumer can be made");
        let messages = consumer
            .fetch()
            .max_messages(usize::try_from(expected).expect("few"))
            .messages()
            .await
            .expect("they can be read");
        let id = |message: jetstream::Message| {
            let headers: HeaderMap = message.headers.clone().unwrap_or_default();
            Ok(headers.get("Nats-Msg-Id").map(ToString::to_string).unwrap_or_default())
        };
        messages.and_then(async |message| id(message)).try_collect().await.expect("they can be read")
    }
}

/// A client that is not ours; `place` may begin with `user:password@`.
pub(super) async fn bystander(place: &str) -> jetstream::Context {
    let options = match place.split_once('@').and_then(|(login, _)| login.split_once(':')) {
        Some((user, password)) => {
            async_nats::ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned())
        }
        None => async_nats::ConnectOptions::new(),
    };
    let place = place.rsplit('@').next().expect("a place");
    jetstream::new(options.connect(place).await.expect("the server is there"))
}

fn place() -> String {
    variable("AFTERCOMMIT_TEST_NATS").trim_start_matches("nats://").to_owned()
}

/// NATS-01: the acknowledgement is lost after the server stored the message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_acknowledgement_is_unknown_and_the_repetition_stores_nothing() {
    let stream = Stream::make(&place(), |_config| {}).await;
    let proxy = Proxy::start(place()).await;
    let downstream = served(&stream.table(&proxy.place.to_string()), "").downstream;
    assert_eq!(deliver(&*downstream, effect("before"), LONG).await.finding, Finding::Applied);
    proxy.swallow(b"\"seq\"");
    let first = deliver(&*downstream, effect("order-17"), LONG).await;
    assert_eq!((first.finding, first.phase, proxy.swallowed()), (Finding::Unknown, Phase::Send, 1));
    let second = deliver(&*downstream, effect("order-17"), LONG).await;
    assert_eq!((second.finding, second.replayed), (Finding::AlreadyDone, true), "{}", second.reason);
    assert_eq!(stream.ids().await, ["before", "order-17"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_stream_a_foreign_one_and_a_missing_one_got_nothing() {
    let full = Stream::make(&place(), |config| {
        config.max_messages = 1;
        config.discard = stream::DiscardPolicy::New;
        config.max_message_size = 1000;
    })
    .await;
    let downstream = served(&full.table(&place()), "").downstream;
    assert_eq!(deliver(&*downstream, effect("a"), LONG).await.finding, Finding::Applied);
    let outcome = deliver(&*downstream, effect("b"), LONG).await;
    assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, false), "{}", outcome.reason);
    let mut large = effect("c");
    large.payload = Some(format!("\"{}\"", "x".repeat(2000)));
    let outcome = deliver(&*downstream, large, LONG).await;
    assert_eq!(outcome.finding, Finding::Rejected(About::ThisAttempt), "{}", outcome.reason);
    let other = Stream::make(&place(), |_config| {}).await;
    let mut foreign = effect("d");
    foreign.target = Some(format!("{}.new", other.name));
    let outcome = deliver(&*downstream, foreign, LONG).await;
    let this = Finding::Rejected(About::ThisAttempt);
    assert_eq!((outcome.finding, outcome.refuses_us), (this, false), "{}", outcome.reason);
    let mut nowhere = effect("e");
    nowhere.target = Some(own_name("nobody"));
    let outcome = deliver(&*downstream, nowhere, LONG).await;
    assert_eq!((outcome.finding, outcome.status()), (Finding::NotApplied, Some(503)), "{}", outcome.reason);
    assert_eq!((full.ids().await, other.ids().await), (vec!["a".to_owned()], Vec::new()));
    let missing = full.table(&place()).replace(&format!("stream = \"{}\"", full.name), "stream = \"NONE\"");
    let outcome = deliver(&*served(&missing, "").downstream, effect("f"), LONG).await;
    assert!(outcome.refuses_us && outcome.reason.contains("no stream NONE"), "{}", outcome.reason);
}

/// NATS-05, at a server whose own limit is small.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_too_large_among_fifty_is_not_sent_and_harms_no_other() {
    let server = Server::nats("max_payload: 65536").await;
    let stream = Stream::make(&server.place(), |_config| {}).await;
    let served = served(&stream.table(&server.place()), "");
    let attempts = (0..51).map(|n| {
        let downstream = served.downstream.clone();
        async move {
            let mut effect = effect(&format!("k-{n}"));
            if n == 25 {
                effect.payload = Some(format!("\"{}\"", "x".repeat(100_000)));
            }
            (n, deliver(&*downstream, effect, LONG).await)
        }
    });
    for (n, outcome) in futures_util::future::join_all(attempts).await {
        let wanted = if n == 25 { Finding::Rejected(About::ThisAttempt) } else { Finding::Applied };
        assert_eq!(outcome.finding, wanted, "{n}: {}", outcome.reason);
        assert!(n != 25 || outcome.phase == Phase::Render, "{}", outcome.reason);
    }
    assert_eq!(stream.ids().await.len(), 50);
    // The size that counts is the server's: what just fits is taken, one byte more is not sent.
    let overhead = "NATS/1.0\r\nContent-Type: application/octet-stream\r\nNats-Msg-Id: fits\r\nNats-Expected-Stream: \r\n\r\n".len()
        + stream.name.len();
    for (body, wanted) in
        [(65_536 - overhead, Finding::Applied), (65_537 - overhead, Finding::Rejected(About::ThisAttempt))]
    {
        let mut effect = effect("fits");
        (effect.payload, effect.body) = (None, Some(vec![b'x'; body]));
        assert_eq!(deliver(&*served.downstream, effect, LONG).await.finding, wanted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_credentials_and_a_forbidden_subject_refuse_us() {
    let server = Server::nats(
        "authorization { users: [\n{ user: all, password: pw-all-secret }\n{ user: some, password: pw-some-secret, permissions: { publish: [\"$JS.API.>\"] } }\n] }",
    )
    .await;
    let stream = Stream::make(&format!("all:pw-all-secret@{}", server.place()), |_config| {}).await;
    let with = |user: &str| {
        stream.table(&server.place())
            + &format!("auth = {{ user = \"{user}\", password = {{ env = \"SECRET\" }} }}\n")
    };
    let outcome = deliver(&*served(&with("all"), "wrong-password").downstream, effect("a"), LONG).await;
    assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, true), "{}", outcome.reason);
    assert!(!outcome.reason.contains("wrong-password"), "{}", outcome.reason);
    let outcome = deliver(&*served(&with("some"), "pw-some-secret").downstream, effect("b"), LONG).await;
    assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, true), "{}", outcome.reason);
    let outcome = deliver(&*served(&with("all"), "pw-all-secret").downstream, effect("c"), LONG).await;
    assert_eq!(outcome.finding, Finding::Applied, "{}", outcome.reason);
    assert_eq!(stream.ids().await, ["c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_look_sees_the_stream_and_publishes_nothing() {
    let stream = Stream::make(&place(), |config| {
        config.retention = stream::RetentionPolicy::WorkQueue;
        config.duplicate_window = std::time::Duration::from_secs(30);
    })
    .await;
    let checks = served(&stream.table(&place()), "").downstream.check(LONG).await;
    let level = |name: &str| checks.iter().find(|check| check.check == name).map(|check| check.level);
    assert_eq!(level("connection"), Some(Level::Ok), "{checks:?}");
    assert_eq!(level("duplicate window"), Some(Level::Fail), "{checks:?}");
    assert_eq!(level("retention"), Some(Level::Warn), "{checks:?}");
    assert_eq!(level("subjects"), Some(Level::Ok), "{checks:?}");
    assert!(stream.ids().await.is_empty());
    let outcome = deliver(&*served(&stream.table(&place()), "").downstream, effect("a"), LONG).await;
    assert!(outcome.refuses_us && outcome.reason.contains("30s"), "{}", outcome.reason);
}

/// NATS-03 and the decision table: a duplicate is never taken for a first success.
async fn a_key_that_somebody_else_used_ends_in_doubt_and_a_resend_is_shown_as_a_duplicate(db: &TestDatabase) {
    let stream = Stream::make(&place(), |_config| {}).await;
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", "order-17");
    let by_hand = stream.context.publish_with_headers(format!("{}.new", stream.name), headers, "x".into());
    by_hand.await.expect("it is sent").await.expect("it is stored");
    let served = served(&stream.table(&place()), "");
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
    assert_eq!(stream.ids().await, ["order-17", "order-18"]);
}
