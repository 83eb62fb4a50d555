//! A login that may only view: every listing works for it, and what effects carry and what was answered stays hidden.

use std::time::Duration;

use tokio::process::Command;

use super::processes::{aftercommit, run, run_ok};
use crate::support::{Settling, TestDatabase, Worker, key_terms, on_postgres, registered};

on_postgres! {
    a_viewer_sees_every_list_and_nothing_that_was_sent_or_answered,
}

const SOON: Duration = Duration::from_secs(60);
const HIDDEN: [&str; 2] = ["canary-in-the-payload", "canary-in-the-answer"];

async fn a_viewer_sees_every_list_and_nothing_that_was_sent_or_answered(db: &TestDatabase) {
    let login = format!("viewer_{}", uuid::Uuid::new_v4().simple());
    db.sql.execute(&format!("CREATE ROLE {login} LOGIN IN ROLE aftercommit_viewer")).await;
    let mut url = url::Url::parse(&db.url).expect("a URL");
    url.set_username(&login).expect("it has a host");
    let viewer = |words: &[&str]| {
        let mut command: Command = aftercommit();
        command.args(words).env("DATABASE_URL", url.as_str()).current_dir(std::env::temp_dir());
        command
    };
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let payload = format!("'{{\"card\":\"{}\"}}'", HIDDEN[0]);
    let id = db.insert_with("pay", "k1", &[("payload", &payload)]).await;
    let claim = worker.claim_one("pay").await;
    let answered = crate::support::answer(200, format!("{{\"is\":\"{}\"}}", HIDDEN[1]));
    let settled = Settling::of(&claim).decided(aftercommit::decision::Decision::Succeed, &answered);
    worker.settle(settled).await;
    db.insert("pay", "k2").await;
    let request = crate::support::request("tenant-7", "k9", HIDDEN[0]);
    let mut tx = db.sql.begin().await;
    tx.begin_request(&request).await.expect("it begins");
    tx.finish_request(&request, &crate::support::answered(201, HIDDEN[1])).await.expect("it is finished");
    tx.commit().await;
    let id = id.to_string();
    for (words, says) in [
        (&["effects", "list"][..], "k2"),
        (&["effects", "list", "--state", "ready"], "k2"),
        (&["effects", "list", "--state", "in_flight"], ""),
        (&["effects", "list", "--state", "succeeded", "--json"], "k1"),
        (&["effects", "list", "--downstream", "pay"], "k1"),
        (&["effects", "list", "--key", "k1"], "k1"),
        (&["effects", "show", &id], "this login may not read it"),
        (&["effects", "show", &id, "--json"], "\"request\":null"),
        (&["downstreams", "list"], "pay"),
        (&["workers"], "w1"),
        (&["audit"], ""),
        (&["requests"], "k9"),
    ] {
        let out = run_ok(&mut viewer(words), SOON).await;
        assert!(out.contains(says), "{words:?}: {out}");
        assert!(HIDDEN.iter().all(|hidden| !out.contains(hidden)), "{words:?}: {out}");
    }
    let (status, out, err) = run(&mut viewer(&["effects", "show", &id, "--payload"]), SOON).await;
    assert_eq!(status.code(), Some(1), "{out}{err}");
    assert!(err.contains("this login may not read what effects carry"), "{err}");
    let (status, out, err) = run(&mut viewer(&["endpoints", "list", "hooks"]), SOON).await;
    assert_eq!(status.code(), Some(1), "{out}{err}");
    assert!(err.contains("may not see the endpoints") && !err.contains("permission denied"), "{err}");
    let (_, out, err) = run(&mut viewer(&["doctor"]), SOON).await;
    assert!(out.contains(&login) && out.contains("triggers"), "{out}{err}");
    let (status, _, err) = run(&mut viewer(&["effects", "cancel", "2"]), SOON).await;
    assert!(!status.success(), "it may change nothing: {err}");
    // Whoever may read it does.
    let mut owner = viewer(&["effects", "show", &id, "--payload"]);
    let out = run_ok(owner.env("DATABASE_URL", &db.url), SOON).await;
    assert!(HIDDEN.iter().all(|shown| out.contains(shown)), "{out}");
    db.sql.execute(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await;
}
