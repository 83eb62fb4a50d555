//! Guarantee: what a vendor's answer means (its profile) becomes the right end of an effect, from the socket to the row.

use std::{collections::BTreeMap, sync::Arc};

use aftercommit::{
    downstream::Served,
    state::State,
    store::Acted,
    verb::{Actor, Refusal, Verb},
};
use aftercommit_workers::config::{Settings, Sources};
use axum::{Router, extract::Request, http::Response};
use tokio::sync::Mutex;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::{PATIENCE, Running, engine, reaches};
use crate::support::{TestDatabase, eventually, on_every_database};

on_every_database!(
    a_stored_server_error_stops_the_retries_and_waits_for_a_person,
    a_replay_of_a_key_that_we_never_sent_is_in_doubt_however_it_is_marked,
    an_error_that_means_success_succeeds_and_keeps_what_it_names,
    a_replay_by_its_status_settles_what_was_unknown,
    nothing_done_is_tried_again_and_everything_else_is_not,
    a_server_error_that_frees_the_key_is_not_repeated,
    an_answer_that_proves_nothing_ends_in_doubt_and_never_as_failed,
    a_refusal_that_came_out_of_the_store_is_not_retried,
    an_unpublished_window_parks_what_is_unknown_and_one_that_the_user_writes_retries_it,
);

/// Status, headers, body.
type Reply = (u16, &'static [(&'static str, &'static str)], &'static str);

/// A vendor that gives each key these answers in turn, and the last one for ever.
struct Vendor {
    url: String,
    seen: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
    _task: AbortOnDropHandle<()>,
}

impl Vendor {
    async fn answering(header: &'static str, replies: &'static [Reply]) -> Self {
        let seen: Arc<Mutex<BTreeMap<String, Vec<String>>>> = Arc::default();
        let shared = Arc::clone(&seen);
        let app = Router::new().fallback(move |request: Request| {
            let shared = Arc::clone(&shared);
            async move {
                let key = request.headers().get(header).map(|key| key.to_str().expect("a key").to_owned());
                let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.expect("a whole body");
                let body = String::from_utf8(body.to_vec()).expect("text");
                let mut seen = shared.lock().await;
                let of_key = seen.entry(key.unwrap_or_default()).or_default();
                let (status, headers, text) = replies[of_key.len().min(replies.len() - 1)];
                of_key.push(body);
                let mut response = Response::builder().status(status);
                for (name, value) in headers {
                    response = response.header(*name, *value);
                }
                response.body(axum::body::Body::from(text)).expect("an answer")
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let serve = async move { axum::serve(listener, app).await.expect("the vendor serves") };
        Self { url, seen, _task: AbortOnDropHandle::new(TaskTracker::new().spawn(serve)) }
    }

    /// The bodies that came with `key`.
    async fn bodies(&self, key: &str) -> Vec<String> {
        self.seen.lock().await.get(key).cloned().unwrap_or_default()
    }
}

/// The downstream `name` of this profile at `vendor`, which retries at once.
fn served(name: &str, profile: &str, vendor: &Vendor, more: &str) -> Served {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("aftercommit.toml");
    let text = format!(
        "database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.{name}]\nkind = \"http\"\nprofile = \"{profile}\"\n\
         base_url = \"{}\"\nretry = {{ initial = \"1ms\", max = \"2ms\" }}\n{more}",
        vendor.url
    );
    std::fs::write(&file, text).expect("the folder is writable");
    let settings = Settings::load(&Sources { file: Some(file), ..Sources::default() });
    settings.and_then(|settings| settings.serve(None)).unwrap_or_else(|problem| panic!("{problem}")).remove(0)
}

const KEY: &str = "idempotency-key";

/// Trap T29.
async fn a_stored_server_error_stops_the_retries_and_waits_for_a_person(db: &TestDatabase) {
    let replies: &[Reply] = &[
        (500, &[], r#"{"error":{"type":"api_error"}}"#),
        (500, &[("Idempotent-Replayed", "true")], r#"{"error":{"type":"api_error"}}"#),
    ];
    let vendor = Vendor::answering(KEY, replies).await;
    let id = db.insert("pay", "k").await;
    let worker = Running::start(engine(db.store.clone(), "w", vec![served("pay", "stripe-v1", &vendor, "")]));
    reaches(db, id, State::InDoubt).await;
    // Another effect takes the same way meanwhile: the worker had every chance to send the first one again.
    let after = db.insert("pay", "after").await;
    reaches(db, after, State::InDoubt).await;
    worker.drain().await;
    assert_eq!(vendor.bodies("k").await.len(), 2, "the first answer, and its replay");
    let status = db.status(id).await;
    assert_eq!(status.due_at, None, "no retry and no probe is planned");
    let why = status.last_error.unwrap_or_default();
    assert!(
        why.contains("no repetition can settle") && why.contains("the stored answer to the first request"),
        "{why}"
    );
    let log = db.log(id).await;
    assert_eq!(log.iter().map(|attempt| attempt.response_status).collect::<Vec<_>>(), [Some(500), Some(500)]);
}

async fn a_replay_of_a_key_that_we_never_sent_is_in_doubt_however_it_is_marked(db: &TestDatabase) {
    let cases: [(&str, &str, &'static [Reply]); 4] = [
        ("stripe-v1", KEY, &[(200, &[("Idempotent-Replayed", "true")], r#"{"id":"ch_1"}"#)]),
        ("increase", KEY, &[(200, &[("Idempotent-Replayed", "true")], r#"{"id":"t_1"}"#)]),
        ("paypal-orders-v2", "paypal-request-id", &[(200, &[], r#"{"id":"O1","status":"COMPLETED"}"#)]),
        (
            "gocardless",
            KEY,
            &[(
                409,
                &[],
                r#"{"error":{"errors":[{"reason":"idempotent_creation_conflict","links":{"conflicting_resource_id":"PM1"}}]}}"#,
            )],
        ),
    ];
    for (profile, header, replies) in cases {
        let vendor = Vendor::answering(header, replies).await;
        let id = db.insert(profile, "k").await;
        let worker =
            Running::start(engine(db.store.clone(), "w", vec![served(profile, profile, &vendor, "")]));
        reaches(db, id, State::InDoubt).await;
        worker.drain().await;
        assert_eq!(vendor.bodies("k").await.len(), 1, "{profile}");
        let why = db.status(id).await.last_error.unwrap_or_default();
        assert!(why.contains("this key was used before"), "{profile}: {why}");
    }
}

async fn an_error_that_means_success_succeeds_and_keeps_what_it_names(db: &TestDatabase) {
    let replies: &[Reply] = &[
        (502, &[], "the load balancer's page"),
        (
            409,
            &[],
            r#"{"error":{"type":"invalid_state","code":409,"errors":[{"reason":"idempotent_creation_conflict","links":{"conflicting_resource_id":"PM123"}}]}}"#,
        ),
    ];
    let vendor = Vendor::answering(KEY, replies).await;
    let id = db.insert("debit", "k").await;
    let of = served("debit", "gocardless", &vendor, "contract = { window = \"24h\" }\n");
    let worker = Running::start(engine(db.store.clone(), "w", vec![of]));
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    let status = db.status(id).await;
    assert_eq!(status.response_status, Some(409));
    let response: serde_json::Value =
        serde_json::from_str(status.response.expect("the answer is kept").get()).expect("JSON");
    assert_eq!(response["error"]["errors"][0]["links"]["conflicting_resource_id"], "PM123");
}

async fn a_replay_by_its_status_settles_what_was_unknown(db: &TestDatabase) {
    let replies: &[Reply] = &[(500, &[], ""), (200, &[], r#"{"id":"O1","status":"COMPLETED"}"#)];
    let vendor = Vendor::answering("paypal-request-id", replies).await;
    let id = db.insert("orders", "k").await;
    let worker = Running::start(engine(
        db.store.clone(),
        "w",
        vec![served("orders", "paypal-orders-v2", &vendor, "")],
    ));
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    assert_eq!(vendor.bodies("k").await.len(), 2);
}

async fn nothing_done_is_tried_again_and_everything_else_is_not(db: &TestDatabase) {
    let transient: &[Reply] = &[
        (503, &[("transient-error", "true")], r#"{"status":503,"errorCode":"703"}"#),
        (422, &[("transient-error", "true")], r#"{"status":422,"errorCode":"905"}"#),
        (200, &[], r#"{"resultCode":"Authorised"}"#),
    ];
    let vendor = Vendor::answering(KEY, transient).await;
    let id = db.insert("again", "k").await;
    let worker = Running::start(engine(db.store.clone(), "w", vec![served("again", "adyen", &vendor, "")]));
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    let words: Vec<_> = db.log(id).await.iter().map(|attempt| attempt.outcome.as_str()).collect();
    assert_eq!(words, ["not_applied", "not_applied", "applied"]);

    for (name, reply, state) in [
        ("error", [(500, &[] as &[(&str, &str)], "")].as_slice(), State::InDoubt),
        (
            "refusal",
            [(422, &[("transient-error", "false")] as &[(&str, &str)], r#"{"errorCode":"100"}"#)].as_slice(),
            State::Failed,
        ),
    ] {
        let vendor = Vendor::answering(KEY, Box::leak(reply.into())).await;
        let id = db.insert(name, "k").await;
        let worker = Running::start(engine(db.store.clone(), "w", vec![served(name, "adyen", &vendor, "")]));
        reaches(db, id, state).await;
        worker.drain().await;
        assert_eq!(vendor.bodies("k").await.len(), 1, "{name}: absent or false, it is not repeated");
    }
}

async fn a_server_error_that_frees_the_key_is_not_repeated(db: &TestDatabase) {
    for (profile, header) in
        [("checkout-com", "cko-idempotency-key"), ("modern-treasury", KEY), ("svix", KEY), ("telnyx", KEY)]
    {
        let vendor = Vendor::answering(header, &[(502, &[], ""), (201, &[], "{}")]).await;
        let id = db.insert(profile, "k").await;
        let worker =
            Running::start(engine(db.store.clone(), "w", vec![served(profile, profile, &vendor, "")]));
        reaches(db, id, State::InDoubt).await;
        worker.drain().await;
        assert_eq!(vendor.bodies("k").await.len(), 1, "{profile}: a second request would be another payment");
        let why = db.status(id).await.last_error.unwrap_or_default();
        assert!(why.contains("the key is free again"), "{profile}: {why}");
    }
}

async fn an_answer_that_proves_nothing_ends_in_doubt_and_never_as_failed(db: &TestDatabase) {
    let replies: &[Reply] = &[(424, &[], "{}"), (424, &[("Idempotent-Replayed", "true")], "{}")];
    let vendor = Vendor::answering(KEY, replies).await;
    let id = db.insert("pay", "k").await;
    let worker = Running::start(engine(db.store.clone(), "w", vec![served("pay", "stripe-v1", &vendor, "")]));
    reaches(db, id, State::InDoubt).await;
    worker.drain().await;
    assert_eq!(vendor.bodies("k").await.len(), 2, "the first answer, and its replay");
}

async fn a_refusal_that_came_out_of_the_store_is_not_retried(db: &TestDatabase) {
    let replies: &[Reply] =
        &[(500, &[], ""), (422, &[("Idempotent-Replayed", "true")], r#"{"status":422,"field":"amount"}"#)];
    let vendor = Vendor::answering(KEY, replies).await;
    let id = db.insert("mollie", "k").await;
    let worker = Running::start(engine(db.store.clone(), "w", vec![served("mollie", "mollie", &vendor, "")]));
    reaches(db, id, State::Failed).await;
    worker.drain().await;
    let ann = Actor { who: "ann".to_owned(), reason: Some("once more".to_owned()), ..Actor::default() };
    let acted = db.store.act(id, &Verb::Retry, &ann, None).await.expect("acting works");
    assert!(matches!(acted, Acted::Refused(Refusal::RefusalStored)), "{acted:?}");
}

async fn an_unpublished_window_parks_what_is_unknown_and_one_that_the_user_writes_retries_it(
    db: &TestDatabase,
) {
    let vendor =
        Vendor::answering("x-none", &[(500, &[], ""), (200, &[], r#"{"payment":{"id":"p1"}}"#)]).await;
    let id = db.insert_with("square", "k", &[("payload", r#"'{"amount_money":{"amount":1}}'"#)]).await;
    let worker =
        Running::start(engine(db.store.clone(), "w", vec![served("square", "square-payments", &vendor, "")]));
    reaches(db, id, State::InDoubt).await;
    worker.drain().await;
    let why = db.status(id).await.last_error.unwrap_or_default();
    assert!(why.contains("does not say how long it remembers a key"), "{why}");

    let vendor =
        Vendor::answering("x-none", &[(500, &[], ""), (200, &[], r#"{"payment":{"id":"p1"}}"#)]).await;
    let id = db.insert_with("written", "k", &[("payload", r#"'{"amount_money":{"amount":1}}'"#)]).await;
    let of = served("written", "square-payments", &vendor, "contract = { window = \"1h\" }\n");
    let worker = Running::start(engine(db.store.clone(), "w", vec![of]));
    reaches(db, id, State::Succeeded).await;
    eventually(PATIENCE, "both requests", async || (vendor.bodies("").await.len() == 2).then_some(())).await;
    worker.drain().await;
    let bodies = vendor.bodies("").await;
    assert_eq!(bodies[0], r#"{"idempotency_key":"k","amount_money":{"amount":1}}"#);
    assert_eq!(bodies[0], bodies[1], "the same key in the same bytes");
}
