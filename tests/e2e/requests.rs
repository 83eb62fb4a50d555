//! `requests`, and `purge` of what came in, as an operator types them.

use std::time::Duration;

use super::processes::{aftercommit, run_ok};
use crate::support::{TestDatabase, answered, on_every_database, request};

on_every_database! { requests_are_listed_and_never_their_answers }

const SOON: Duration = Duration::from_secs(60);
const HIDDEN: &str = "canary-in-the-answer";

async fn requests_are_listed_and_never_their_answers(db: &TestDatabase) {
    let command = async |words: &[&str]| {
        let mut command = aftercommit();
        command.args(words).env("DATABASE_URL", &db.url).current_dir(std::env::temp_dir());
        run_ok(&mut command, SOON).await
    };
    assert_eq!(command(&["requests", "--json"]).await, "");
    for (scope, key) in [("tenant-a", "k1"), ("tenant-b", "k2"), ("tenant-b", "k3\u{20}x")] {
        let request = request(scope, key, HIDDEN);
        let mut tx = db.sql.begin().await;
        tx.begin_request(&request).await.expect("it begins");
        tx.enqueue(aftercommit::NewEffect::to("pay")).await.expect("it is written");
        tx.finish_request(&request, &answered(201, HIDDEN)).await.expect("it is finished");
        tx.commit().await;
    }
    let listed = command(&["requests"]).await;
    for word in ["SCOPE", "EXPIRES", "tenant-a", "k1", "k3 x", "201"] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    let lines = |out: &str| -> Vec<serde_json::Value> {
        out.lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect()
    };
    let all = command(&["requests", "--json"]).await;
    assert!(!all.contains(HIDDEN) && !listed.contains(HIDDEN), "{all}");
    let keys: Vec<_> = lines(&all).iter().map(|line| line["key"].clone()).collect();
    assert_eq!(keys, ["k3 x", "k2", "k1"], "newest first");
    let one = lines(&command(&["requests", "--scope", "tenant-b", "--key", "k2", "--json"]).await);
    assert_eq!((one.len(), &one[0]["status"], &one[0]["effects"]), (1, &201.into(), &1.into()), "{one:?}");
    assert_eq!(lines(&command(&["requests", "--limit", "2", "--json"]).await).len(), 2);
    // One of them is over; its effect has not ended.
    let over = db.engine.before("expires_at", Duration::from_secs(3600 * 25));
    let began = db.engine.before("created_at", Duration::from_secs(3600 * 25));
    let shift = format!(
        "UPDATE aftercommit.requests SET created_at = {began}, expires_at = {over} WHERE scope = 'tenant-b'"
    );
    db.sql.execute(&shift).await;
    let ages = ["--payloads", "3d", "--history", "3d", "--keys", "3d", "--json"];
    let due =
        async || lines(&command(&[&["purge", "--dry-run"][..], &ages].concat()).await)[0]["requests"].clone();
    assert_eq!(due().await, 0);
    let effect = db.sql.number("SELECT id FROM aftercommit.effects WHERE request_id = 3").await;
    command(&["effects", "cancel", &effect.to_string()]).await;
    assert_eq!(due().await, 1);
    let purged = lines(&command(&[&["purge", "--yes"][..], &ages].concat()).await);
    assert_eq!(
        (&purged[0]["requests"], &purged[0]["inbox"], &purged[0]["keys"]),
        (&1.into(), &0.into(), &0.into())
    );
    assert_eq!(lines(&command(&["requests", "--json"]).await).len(), 2);
}
