//! `aftercommit doctor`: what is wrong is found, said with its remedy, and ends with 1.

use std::time::Duration;

use aftercommit::store::identity::Mismatch;
use serde_json::Value;
use tokio::process::Command;

use super::{
    processes::{aftercommit, run, run_ok},
    servers::SECRET,
    shop::{Shop, WORKER, payments},
};
use crate::support::{TestDatabase, on_every_database, on_postgres};

on_every_database! {
    effects_that_nobody_serves_are_a_failure_in_every_listing,
    a_fleet_on_hold_is_a_failure,
}
on_postgres! {
    a_server_that_does_not_keep_what_it_says_fails,
    no_password_is_printed,
}

const SOON: Duration = Duration::from_secs(60);

fn there(db: &TestDatabase, words: &[&str]) -> Command {
    let mut command = aftercommit();
    command.args(words).env("DATABASE_URL", &db.url).current_dir(std::env::temp_dir());
    command
}

fn findings(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).expect("one finding a line")).collect()
}

/// Trap T3: the loudest state must not look well.
async fn a_fleet_on_hold_is_a_failure(db: &TestDatabase) {
    let reason = "the database went back".to_owned();
    let mismatch = Mismatch { reason, went_back: false, token_above: 0, epoch_above: 0 };
    db.store.enter_hold("w1", &mismatch).await.expect("the fleet is put on hold");
    let (status, out, _) = run(&mut there(db, &["doctor", "--json"]), SOON).await;
    assert_eq!(status.code(), Some(1), "{out}");
    let all = findings(&out);
    let hold = all.iter().find(|one| one["check"] == "hold").expect("it is looked at");
    assert_eq!(hold["level"], "fail", "{hold}");
    assert!(hold["found"].as_str().is_some_and(|found| found.contains("the database went back")), "{hold}");
    assert!(hold["remedy"].as_str().is_some_and(|remedy| remedy.contains("hold lift")), "{hold}");
}

/// CRASH-14.
async fn effects_that_nobody_serves_are_a_failure_in_every_listing(db: &TestDatabase) {
    db.insert("nobody-serves-me", "k").await;
    let (status, out, _) = run(&mut there(db, &["doctor", "--json"]), SOON).await;
    assert_eq!(status.code(), Some(1), "{out}");
    let all = findings(&out);
    let failed: Vec<&Value> = all.iter().filter(|one| one["level"] == "fail").collect();
    let unserved =
        failed.iter().find(|one| one["check"] == "downstream").expect("it fails for the downstream");
    let text = unserved["found"].as_str().unwrap_or_default();
    assert!(
        text.contains("no live worker for downstream nobody-serves-me: 1 pending, the oldest due for"),
        "{text}"
    );
    for finding in &all {
        let remedied = finding["remedy"].is_string() == (finding["level"] != "ok");
        assert!(remedied, "what is not well comes with what to do: {finding}");
    }
    for words in [&["downstreams", "list"][..], &["effects", "list"][..], &["doctor"][..]] {
        let (_, out, err) = run(&mut there(db, words), SOON).await;
        let said = format!("{out}{err}");
        assert!(
            said.contains("no live worker for downstream nobody-serves-me: 1 pending"),
            "{words:?}: {said}"
        );
    }
}

/// T1: the test run's server has fsync off.
async fn a_server_that_does_not_keep_what_it_says_fails(db: &TestDatabase) {
    let (_, out, _) = run(&mut there(db, &["doctor", "--json"]), SOON).await;
    let level = |check: &str| {
        let found = findings(&out).into_iter().find(|one| one["check"] == check);
        found.unwrap_or_else(|| panic!("{check} was not looked at: {out}"))["level"].clone()
    };
    let fsync = db.sql.scalar("SELECT current_setting('fsync')").await;
    assert_eq!(level("fsync"), if fsync.as_deref() == Some("off") { "fail" } else { "ok" });
    for check in ["encoding", "standby", "roles", "triggers", "orphans", "leases", "clock", "connections"] {
        assert_eq!(level(check), "ok", "{check}: {out}");
    }
    assert_eq!(level("login"), "warn", "the tests' login is a superuser");
}

async fn no_password_is_printed(db: &TestDatabase) {
    let mut url = url::Url::parse(&db.url).expect("a URL");
    url.set_password(Some("hush-hush")).expect("it has a host");
    let mut gone = url.clone();
    gone.set_port(Some(1)).expect("it has a host");
    for url in [url, gone] {
        for words in [&["doctor"][..], &["doctor", "--json"][..], &["doctor", "--database", url.as_str()][..]]
        {
            let mut command = there(db, words);
            let (_, out, err) = run(command.env("DATABASE_URL", url.as_str()), SOON).await;
            assert!(!format!("{out}{err}").contains("hush-hush"), "{words:?}: {out}{err}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_is_looked_at_before_the_database() {
    let shop = Shop::on_sqlite().await;
    let settings = format!("{WORKER}{}", payments("http://127.0.0.1:9"));
    let config = shop.configure("worker", &settings);
    let looked = async |config, secret: &str| {
        let mut command = shop.command(config);
        let (status, out, _) = run(command.args(["doctor", "--json"]).env("STRIPE_KEY", secret), SOON).await;
        (status.code(), findings(&out), out)
    };
    let (code, found, out) = looked(&config, SECRET).await;
    assert_eq!(code, Some(1), "there is no database file yet: {out}");
    assert_eq!((&found[0]["check"], &found[0]["level"]), (&"configuration".into(), &"ok".into()), "{out}");
    shop.migrate(&config).await;
    std::fs::set_permissions(shop.path("shop.db"), std::os::unix::fs::PermissionsExt::from_mode(0o640))
        .expect("it is ours");
    let (code, found, out) = looked(&config, SECRET).await;
    assert_eq!(code, Some(0), "{out}");
    assert!(found.iter().any(|one| one["check"] == "journal_mode" && one["level"] == "ok"), "{out}");
    assert!(!out.contains(SECRET));
    let broken = shop.configure("broken", &settings.replace("kind =", "knid ="));
    let (code, found, out) = looked(&broken, SECRET).await;
    assert_eq!((code, &found[0]["level"]), (Some(1), &"fail".into()), "{out}");
    let (code, _, out) = looked(&config, "").await;
    assert!(code == Some(1) && out.contains("STRIPE_KEY"), "{out}");
    run_ok(shop.command(&config).args(["config", "check"]), SOON).await;
}
