//! A worker and the endpoints of its database: each change is seen, each trouble stays with its endpoint, and is written.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    clock::SystemClock,
    downstream::endpoint::{Called, Change},
    engine::{Config, Engine},
    state::State,
    store::Store,
    verb::{Actor, Verb},
};
use sha2::{Digest as _, Sha256};

use super::{NEXT, Receiver, SECRET, header, hooks};
use crate::{
    engine::{PATIENCE, Running, config, reaches},
    support::{Engine as Kind, TestDatabase, eventually, on_every_database},
};

on_every_database!(
    what_an_application_wrote_is_signed_as_it_wrote_it,
    an_endpoint_that_says_gone_is_disabled_and_what_failed_can_be_retried,
    nothing_but_failures_for_long_disables_an_endpoint_and_one_success_forgets_them,
    a_row_that_changes_is_seen_by_a_running_worker,
    a_slow_endpoint_leaves_the_slots_to_the_others,
    a_switch_by_hand_is_audited_and_happens_once,
    a_late_word_of_the_place_before_changes_nothing_at_the_one_after,
    what_an_endpoint_showed_is_written_only_where_its_row_still_has_the_url,
    another_url_enables_what_disabled_itself_and_never_what_a_person_did,
);

fn worker(db: &TestDatabase, toml: &str, receivers: &[&Receiver]) -> Running {
    let ports: Vec<String> = receivers.iter().map(|receiver| receiver.port.to_string()).collect();
    let served = hooks(&format!(
        "secrets_from = [\"env:HOOK_\"]\nretry = {{ initial = \"10ms\", max = \"20ms\" }}\n{toml}\n\
         egress = {{ allow = [\"127.0.0.1\"], http = true, ports = [{}] }}\n",
        ports.join(", ")
    ));
    let store: Arc<dyn Store> = db.store.clone();
    let config = Config { poll: Duration::from_millis(20), ..config("w") };
    Running::start(Engine::new(store, vec![served], config, Arc::new(SystemClock)).expect("the settings fit"))
}

/// Puts an endpoint as an application does.
async fn put(db: &TestDatabase, name: &str, url: &str, secrets: &str) {
    let sql = format!(
        "INSERT INTO aftercommit.endpoints (downstream, name, url, secrets) VALUES ('hooks', '{name}', '{url}', '{secrets}') \
         ON CONFLICT (downstream, name) DO UPDATE SET url = excluded.url, secrets = excluded.secrets"
    );
    db.sql.execute(&sql).await;
}

async fn effect(db: &TestDatabase, key: &str, endpoint: &str) -> EffectId {
    let target = format!("'{endpoint}'");
    db.insert_with("hooks", key, &[("target", target.as_str()), ("payload", "'{}'")]).await
}

/// RFC 2104, by hand: the kind's library must not check itself.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut pads = [[0x36_u8; 64], [0x5c_u8; 64]];
    for pad in &mut pads {
        pad.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
    }
    let inner = Sha256::new().chain_update(pads[0]).chain_update(message).finalize();
    Sha256::new().chain_update(pads[1]).chain_update(inner).finalize().into()
}

fn is_signed_with(secret: &str, head: &str, body: &[u8]) -> bool {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let key = STANDARD.decode(secret.trim_start_matches("whsec_")).expect("base64");
    let part = |name| header(head, name).expect("a header of the signature");
    let mut signed = format!("{}.{}.", part("webhook-id"), part("webhook-timestamp")).into_bytes();
    signed.extend_from_slice(body);
    let wanted = format!("v1,{}", STANDARD.encode(hmac(&key, &signed)));
    part("webhook-signature").split(' ').any(|signature| signature == wanted)
}

/// IDEMP-OUT-10: from the INSERT to the socket.
async fn what_an_application_wrote_is_signed_as_it_wrote_it(db: &TestDatabase) {
    const PAYLOAD: &str = "{\"b\":1.0,\"a\":\"é\u{2028}/\",\"n\":12345678901234567890}";
    let receiver = Receiver::start(204).await;
    put(db, "acme", &format!("{}/in", receiver.url), "env:HOOK_ACME").await;
    let id = db
        .insert_with("hooks", "order-1/paid", &[("target", "'acme'"), ("payload", &format!("'{PAYLOAD}'"))])
        .await;
    let worker = worker(db, "", &[&receiver]);
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    let (head, body) = receiver.requests.lock().expect("no panic")[0].clone();
    assert_eq!(body, PAYLOAD.as_bytes());
    assert!(is_signed_with(SECRET, &head, &body), "{head}");
    assert_eq!(header(&head, "webhook-id"), Some("order-1/paid"));
}

async fn an_endpoint_that_says_gone_is_disabled_and_what_failed_can_be_retried(db: &TestDatabase) {
    let (gone, other) = (Receiver::start(410).await, Receiver::start(204).await);
    put(db, "acme", &format!("{}/SECRET-PATH", gone.url), "env:HOOK_ACME").await;
    put(db, "other", &other.url, "env:HOOK_ACME").await;
    let worker = worker(db, "", &[&gone, &other]);
    let first = effect(db, "k-1", "acme").await;
    reaches(db, first, State::Failed).await;
    eventually(PATIENCE, "the endpoint is disabled", async || disabled(db).await.then_some(())).await;
    let second = effect(db, "k-2", "acme").await;
    reaches(db, second, State::Failed).await;
    let error = db.status(second).await.last_error.expect("a reason");
    assert!(error.contains("disabled since") && error.contains("410"), "{error}");
    assert!(!error.contains("SECRET-PATH"), "{error}");
    assert_eq!(gone.seen(), 1, "nothing was sent to it afterwards");
    reaches(db, effect(db, "k-3", "other").await, State::Succeeded).await;
    let audit = db.audit(None, 10).await;
    let row = audit.iter().find(|row| row.verb == "disable_endpoint").expect("an audit row");
    assert!(
        row.downstream.as_deref() == Some("hooks")
            && row.reason.as_ref().is_some_and(|why| why.starts_with("acme: "))
    );
    // Its owner mended it.
    gone.answer_with(204);
    let actor =
        Actor { who: "ops".to_owned(), reason: Some("they came back".to_owned()), ..Actor::default() };
    assert!(db.store.switch_endpoint("hooks", "acme", None, &actor).await.expect("it is enabled"));
    for id in [first, second] {
        db.store.act(id, &Verb::Retry, &actor, None).await.expect("it may be retried");
        reaches(db, id, State::Succeeded).await;
    }
    worker.drain().await;
}

async fn disabled(db: &TestDatabase) -> bool {
    let (_now, rows) = db.store.endpoints("hooks").await.expect("readable");
    rows.iter().any(|row| &*row.name == "acme" && row.disabled.is_some())
}

/// The clock that counts is the database's: its row is moved back by five days.
async fn nothing_but_failures_for_long_disables_an_endpoint_and_one_success_forgets_them(db: &TestDatabase) {
    let receiver = Receiver::start(500).await;
    put(db, "acme", &receiver.url, "env:HOOK_ACME").await;
    let worker = worker(db, "disable_after = \"5d\"", &[&receiver]);
    let failing = async || {
        let (_now, rows) = db.store.endpoints("hooks").await.expect("readable");
        rows[0].failing_since.is_some()
    };
    let first = effect(db, "k-1", "acme").await;
    eventually(PATIENCE, "its failures are noted", async || failing().await.then_some(())).await;
    receiver.answer_with(204);
    reaches(db, first, State::Succeeded).await;
    eventually(PATIENCE, "they are forgotten", async || (!failing().await).then_some(())).await;
    receiver.answer_with(500);
    let second = effect(db, "k-2", "acme").await;
    eventually(PATIENCE, "new ones are noted", async || failing().await.then_some(())).await;
    assert!(!disabled(db).await);
    let back = db.engine.before("failing_since", Duration::from_secs(5 * 86_400));
    db.sql
        .execute(&format!("UPDATE aftercommit.endpoints SET failing_since = {back} WHERE name = 'acme'"))
        .await;
    eventually(PATIENCE, "it is disabled", async || disabled(db).await.then_some(())).await;
    let (_now, rows) = db.store.endpoints("hooks").await.expect("readable");
    let why = &rows[0].disabled.as_ref().expect("it is disabled").reason;
    assert!(why.contains("nothing but failures since") && why.contains("500"), "{why}");
    // What may have been taken is no failure: a person decides.
    reaches(db, second, State::InDoubt).await;
    worker.drain().await;
}

async fn a_row_that_changes_is_seen_by_a_running_worker(db: &TestDatabase) {
    let (old, new) = (Receiver::start(204).await, Receiver::start(204).await);
    put(db, "acme", &old.url, "env:HOOK_ACME").await;
    let worker = worker(db, "", &[&old, &new]);
    reaches(db, effect(db, "k-1", "acme").await, State::Succeeded).await;
    put(db, "acme", &new.url, "env:HOOK_NEXT").await;
    let mut number = 1;
    eventually(PATIENCE, "the worker calls the new place", async || {
        number += 1;
        reaches(db, effect(db, &format!("k-{number}"), "acme").await, State::Succeeded).await;
        (new.seen() > 0).then_some(())
    })
    .await;
    let (head, body) = new.requests.lock().expect("no panic")[0].clone();
    assert!(is_signed_with(NEXT, &head, &body) && !is_signed_with(SECRET, &head, &body), "{head}");
    // One that was written together with its first effect is never taken for unknown.
    for number in 0..20 {
        put(db, &format!("new-{number}"), &new.url, "env:HOOK_NEXT").await;
        reaches(db, effect(db, &format!("n-{number}"), &format!("new-{number}")).await, State::Succeeded)
            .await;
    }
    let unknown = effect(db, "k-unknown", "nobody").await;
    reaches(db, unknown, State::Failed).await;
    assert!(db.status(unknown).await.last_error.is_some_and(|why| why.contains("no endpoint \"nobody\"")));
    worker.drain().await;
}

/// HTTP-09, within one downstream.
async fn a_slow_endpoint_leaves_the_slots_to_the_others(db: &TestDatabase) {
    let (slow, quick) = (Receiver::start(204).await, Receiver::start(204).await);
    slow.hang();
    put(db, "slow", &slow.url, "env:HOOK_ACME").await;
    put(db, "quick", &quick.url, "env:HOOK_ACME").await;
    for number in 0..200 {
        effect(db, &format!("slow-{number}"), "slow").await;
    }
    let worker = worker(db, "concurrency = 8\nendpoint_concurrency = 3", &[&slow, &quick]);
    eventually(PATIENCE, "the slow one has its share of calls", async || (slow.seen() == 3).then_some(()))
        .await;
    let ids = {
        let mut ids = Vec::new();
        for number in 0..50 {
            ids.push(effect(db, &format!("quick-{number}"), "quick").await);
        }
        ids
    };
    for id in ids {
        reaches(db, id, State::Succeeded).await;
    }
    assert_eq!(slow.seen(), 3, "the slow one hangs, and got no more than its share");
    slow.permits.add_permits(1000);
    eventually(PATIENCE, "its calls end", async || (slow.seen() > 3).then_some(())).await;
    worker.drain().await;
}

async fn a_switch_by_hand_is_audited_and_happens_once(db: &TestDatabase) {
    let actor = Actor {
        who: "ops".to_owned(),
        reason: Some("the customer left".to_owned()),
        from: Some("203.0.113.9".to_owned()),
        ..Actor::default()
    };
    let switch = async |disable: Option<&str>| {
        db.store.switch_endpoint("hooks", "acme", disable, &actor).await.expect("it is switched")
    };
    assert!(!switch(None).await, "nobody disabled it");
    assert!(switch(Some("the customer left")).await);
    assert!(!switch(Some("again")).await, "it is disabled already");
    assert!(disabled(db).await);
    assert!(switch(None).await && !switch(None).await);
    assert!(!disabled(db).await);
    let audit = db.audit(None, 10).await;
    let verbs: Vec<_> = audit.iter().map(|row| row.verb.as_str()).collect();
    assert_eq!(verbs, ["enable_endpoint", "disable_endpoint"]);
    for row in &audit {
        assert_eq!(row.from.as_deref(), Some("203.0.113.9"), "{row:?}");
        assert_eq!(row.reason.as_deref(), Some("acme: the customer left"), "{row:?}");
        assert_eq!((row.who.as_str(), row.downstream.as_deref()), ("ops", Some("hooks")), "{row:?}");
    }
}

async fn a_late_word_of_the_place_before_changes_nothing_at_the_one_after(db: &TestDatabase) {
    let (old, new) = (Receiver::start(410).await, Receiver::start(204).await);
    old.hang();
    put(db, "acme", &old.url, "env:HOOK_ACME").await;
    put(db, "dropped", &old.url, "env:HOOK_ACME").await;
    let worker = worker(db, "", &[&old, &new]);
    let late = [effect(db, "k-1", "acme").await, effect(db, "k-2", "dropped").await];
    eventually(PATIENCE, "the old place was called", async || (old.seen() == 2).then_some(())).await;
    put(db, "acme", &new.url, "env:HOOK_ACME").await;
    db.sql.execute("DELETE FROM aftercommit.endpoints WHERE name = 'dropped'").await;
    // An unknown name has the rows read again.
    reaches(db, effect(db, "k-3", "nobody").await, State::Failed).await;
    old.permits.add_permits(1000);
    for id in late {
        reaches(db, id, State::Failed).await;
    }
    reaches(db, effect(db, "k-4", "acme").await, State::Succeeded).await;
    worker.drain().await;
    assert!(!disabled(db).await, "the old place spoke for itself");
    let (_now, rows) = db.store.endpoints("hooks").await.expect("readable");
    assert_eq!(
        rows.iter().map(|row| &*row.name).collect::<Vec<_>>(),
        ["acme"],
        "no ghost of what was dropped"
    );
}

/// Notes what the endpoint `acme` showed at `url`.
async fn note(db: &TestDatabase, url: Option<&str>, change: Change) -> bool {
    let called = Called { name: "acme".into(), url: url.map(str::to_owned) };
    db.store.note_endpoint("hooks", &called, &change, "w").await.expect("it is noted")
}

fn gone() -> Change {
    Change::Disable("HTTP 410".to_owned())
}

async fn what_an_endpoint_showed_is_written_only_where_its_row_still_has_the_url(db: &TestDatabase) {
    const URL: &str = "https://acme.example/a";
    for change in [Change::Fails, Change::Works, gone()] {
        assert!(!note(db, Some(URL), change).await, "its row is gone");
    }
    assert!(db.store.endpoints("hooks").await.expect("readable").1.is_empty());
    put(db, "acme", URL, "env:HOOK_ACME").await;
    for change in [Change::Fails, Change::Works, gone()] {
        assert!(!note(db, Some("https://acme.example/before"), change).await, "its row has another URL");
    }
    assert!(!note(db, Some(URL), Change::Works).await, "it did not fail");
    assert!(note(db, Some(URL), Change::Fails).await && !note(db, Some(URL), Change::Fails).await);
    assert!(note(db, Some(URL), Change::Works).await);
    assert!(note(db, Some(URL), gone()).await && !note(db, Some(URL), gone()).await);
    assert!(disabled(db).await);
    let audit = db.audit(None, 10).await;
    let rows: Vec<_> = audit.iter().map(|row| (row.verb.as_str(), row.who.as_str())).collect();
    assert_eq!(rows, [("disable_endpoint", "w")]);
    // One of the configuration has a row for its state alone.
    db.sql.execute("DELETE FROM aftercommit.endpoints").await;
    assert!(!note(db, None, Change::Works).await && note(db, None, gone()).await);
    assert!(disabled(db).await);
}

/// As an application moves an endpoint.
async fn move_to(db: &TestDatabase, url: &str) {
    match db.engine {
        Kind::Postgres => {
            let put = format!("SELECT aftercommit.put_endpoint('hooks', 'acme', '{url}', 'env:HOOK_ACME')");
            db.sql.execute(&put).await;
        }
        Kind::Sqlite => put(db, "acme", url, "env:HOOK_ACME").await,
    }
}

async fn another_url_enables_what_disabled_itself_and_never_what_a_person_did(db: &TestDatabase) {
    let (a, b) = ("https://acme.example/a", "https://acme.example/b");
    let actor = Actor { who: "ops".to_owned(), reason: Some("they left".to_owned()), ..Actor::default() };
    let failing = async || db.store.endpoints("hooks").await.expect("readable").1[0].failing_since.is_some();
    move_to(db, a).await;
    assert!(note(db, Some(a), Change::Fails).await && note(db, Some(a), gone()).await);
    move_to(db, a).await;
    assert!(disabled(db).await && failing().await, "the same place is not another one");
    move_to(db, b).await;
    assert!(!disabled(db).await && !failing().await);
    assert!(db.store.switch_endpoint("hooks", "acme", Some("they left"), &actor).await.expect("switched"));
    move_to(db, a).await;
    assert!(disabled(db).await, "only a person takes back what a person did");
    assert!(db.store.switch_endpoint("hooks", "acme", None, &actor).await.expect("switched"));
    // Nor does it enable an endpoint of the configuration, which it does not move.
    db.sql.execute("DELETE FROM aftercommit.endpoints").await;
    assert!(note(db, None, gone()).await);
    move_to(db, a).await;
    move_to(db, b).await;
    assert!(disabled(db).await);
}
