//! Defends: what the database says about itself is true: `doctor` and the health of a worker are judged by it.

use aftercommit::store::{Content, EngineFacts, Look};

use super::stage::Stage;
use crate::support::{Engine, Settling, TestDatabase, on_every_database, on_postgres};

on_every_database! {
    a_whole_schema_is_found_whole,
    a_missing_trigger_is_found,
    an_effect_that_nobody_will_carry_out_is_found,
    a_lease_that_nobody_sweeps_is_found,
    what_an_effect_carries_is_read_only_when_it_is_asked_for,
    what_many_effects_carry_is_read_at_once_and_no_longer_than_asked,
}
on_postgres! {
    the_server_is_described_as_it_is,
    the_listening_connection_is_known_to_be_alive,
}

async fn a_whole_schema_is_found_whole(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "done").await;
    stage.done(Settling::of(&claim).succeed()).await;
    stage.claimed(db, "in flight").await;
    db.insert("pay", "ready").await;
    let found = db.store.examine().await.expect("the database can be examined");
    assert_eq!(found.broken_triggers, Vec::<String>::new());
    assert_eq!((found.orphans, found.orphans_among, found.unswept_claims), (0, 3, 0));
    assert_eq!((found.payload_limit, found.write_backs), (Some(1_048_576), Vec::new()));
    let connections = db.store.connections();
    assert!(connections.idle + connections.used <= connections.max, "{connections:?}");
    match (db.engine, &found.engine) {
        (Engine::Postgres, EngineFacts::Postgres(_)) => assert!(found.server.starts_with("PostgreSQL 1")),
        (Engine::Sqlite, EngineFacts::Sqlite(facts)) => {
            assert!(found.server.starts_with("SQLite 3."), "{}", found.server);
            assert_eq!((facts.journal_mode.as_str(), facts.synchronous), ("wal", 2));
        }
        (engine, facts) => panic!("{engine:?} says {facts:?}"),
    }
}

/// NOTIFY-07.
async fn a_missing_trigger_is_found(db: &TestDatabase) {
    let (drop, name) = match db.engine {
        Engine::Postgres => ("DROP TRIGGER effects_inserted ON aftercommit.effects", "effects_inserted"),
        Engine::Sqlite => ("DROP TRIGGER aftercommit_effects_queue", "aftercommit_effects_queue"),
    };
    db.sql.execute(drop).await;
    let found = db.store.examine().await.expect("the database can be examined");
    assert_eq!(found.broken_triggers, [name]);
}

async fn an_effect_that_nobody_will_carry_out_is_found(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = db.insert(&stage.downstream, "lost").await;
    db.sql.execute(&format!("DELETE FROM aftercommit.queue WHERE id = {id}")).await;
    assert_eq!(db.store.examine().await.expect("the database can be examined").orphans, 1);
}

async fn a_lease_that_nobody_sweeps_is_found(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    stage.claimed(db, "k").await;
    let ended = db.engine.before(db.engine.now(), std::time::Duration::from_secs(90));
    db.sql.execute(&format!("UPDATE aftercommit.claims SET lease_until = {ended}")).await;
    assert_eq!(db.store.examine().await.expect("the database can be examined").unswept_claims, 1);
}

async fn what_an_effect_carries_is_read_only_when_it_is_asked_for(db: &TestDatabase) {
    Stage::hold(db, "pay").await;
    let json = r#"{"n": 1.50,  "ü": true}"#;
    let columns = [("payload", format!("'{json}'")), ("target", "'a/b'".to_owned())];
    let columns: Vec<(&str, &str)> = columns.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let id = db.insert_with("pay", "json", &columns).await;
    let sized = db.store.intent(id, Look::Size).await.expect("it can be read").expect("it is there");
    assert_eq!((sized.target.as_deref(), sized.content), (Some("a/b"), Content::Json(None)));
    assert_eq!(sized.bytes, Some(u64::try_from(json.len()).expect("it is short")), "bytes, not characters");
    let whole = db.store.intent(id, Look::Whole).await.expect("it can be read").expect("it is there");
    assert_eq!(whole.content, Content::Json(Some(json.to_owned())), "byte for byte");
    let body = match db.engine {
        Engine::Postgres => r"'\x00ff'",
        Engine::Sqlite => "x'00ff'",
    };
    let columns = [("body", body), ("content_type", "'application/x'")];
    let id = db.insert_with("pay", "bytes", &columns).await;
    let whole = db.store.intent(id, Look::Whole).await.expect("it can be read").expect("it is there");
    assert_eq!((whole.bytes, whole.content), (Some(2), Content::Bytes(Some(vec![0, 255]))));
    let none = db.insert("pay", "none").await;
    let none = db.store.intent(none, Look::Whole).await.expect("it can be read").expect("it is there");
    assert!(matches!(none.content, Content::None | Content::Json(_)), "{none:?}");
    let absent = aftercommit::EffectId::new(987_654);
    assert_eq!(db.store.intent(absent, Look::Size).await.expect("it can be read"), None);
}

async fn what_many_effects_carry_is_read_at_once_and_no_longer_than_asked(db: &TestDatabase) {
    Stage::hold(db, "pay").await;
    let body = match db.engine {
        Engine::Postgres => r"'\x00ff'",
        Engine::Sqlite => "x'00ff'",
    };
    let short = db.insert_with("pay", "short", &[("payload", "'{\"n\":1}'")]).await;
    let long = db.insert_with("pay", "long", &[("payload", "'{\"ü\":1}'")]).await;
    let bytes = db.insert_with("pay", "bytes", &[("body", body), ("content_type", "'application/x'")]).await;
    let absent = aftercommit::EffectId::new(987_654);
    // The one with an umlaut is a byte longer than the other, and as many characters.
    let found = db.store.intents(&[bytes, absent, long, short], Look::UpTo(7)).await.expect("readable");
    let found: std::collections::BTreeMap<_, _> = found.into_iter().collect();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [short, long, bytes]);
    assert_eq!(found[&short].content, Content::Json(Some("{\"n\":1}".to_owned())));
    assert_eq!((found[&long].bytes, &found[&long].content), (Some(8), &Content::Json(None)));
    assert_eq!(found[&bytes].content, Content::Bytes(Some(vec![0, 255])));
    let sizes = db.store.intents(&[bytes], Look::Size).await.expect("readable");
    assert_eq!((sizes[0].1.bytes, &sizes[0].1.content), (Some(2), &Content::Bytes(None)));
    assert!(db.store.intents(&[], Look::Whole).await.expect("readable").is_empty());
}

async fn the_server_is_described_as_it_is(db: &TestDatabase) {
    let found = db.store.examine().await.expect("the database can be examined");
    let EngineFacts::Postgres(facts) = found.engine else { panic!("it is PostgreSQL") };
    let setting = async |name: &str| db.sql.scalar(&format!("SELECT current_setting('{name}')")).await;
    assert_eq!(Some(facts.encoding.as_str()), setting("server_encoding").await.as_deref());
    assert_eq!(facts.fsync, setting("fsync").await.as_deref() == Some("on"));
    assert_eq!(Some(facts.synchronous_commit.as_str()), setting("synchronous_commit").await.as_deref());
    assert!(!facts.standby && facts.superuser && facts.sees_sessions, "{facts:?}");
    assert!(facts.connections_used > 0 && facts.connections_used < facts.connections_max, "{facts:?}");
    assert_eq!(facts.missing_roles, Vec::<String>::new());
}

async fn the_listening_connection_is_known_to_be_alive(db: &TestDatabase) {
    let heard = async || db.store.listener_age();
    let within = std::time::Duration::from_secs(30);
    let age = crate::support::eventually(within, "the store listens", heard).await;
    assert!(age < within, "{age:?}");
}
