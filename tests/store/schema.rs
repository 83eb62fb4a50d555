//! Defends: a schema is made once, by whoever comes first, and a program never works on one that it does not know.

use std::time::Duration;

use aftercommit::{
    error::StoreError,
    store::{self, AuditFilter, Filter, Migrated, Options, SCHEMA_VERSION},
};

use crate::support::{Engine, TestDatabase, Unmigrated, eventually, on_every_database, on_postgres, within};

on_every_database! {
    migrating_again_changes_nothing,
    a_database_without_a_schema_is_refused_with_the_remedy,
    racing_migrators_make_one_schema,
    a_newer_schema_is_refused_and_left_alone,
    the_printed_migration_makes_the_same_schema,
    another_environment_is_refused_by_every_door,
    step_eleven_takes_what_was_written_before_it,
}

on_postgres! {
    an_index_for_metadata_that_was_built_by_hand_is_found,
    a_migrator_that_waits_for_a_table_lets_the_others_pass,
    an_index_that_failed_to_be_built_is_not_taken_for_one,
    what_was_made_by_hand_before_the_guard_is_found,
}

/// A database with the steps before `next`.
pub(super) async fn older(db: &TestDatabase, next: &str) -> Unmigrated {
    let sql = store::migration_sql(&db.url).expect("the URL is known");
    let (first, _) = sql.split_once(next).expect("the step has this heading");
    let old = Unmigrated::fresh(db.engine).await;
    let commit = if db.engine == Engine::Postgres { "\nCOMMIT;" } else { "" };
    old.sql.execute_as_is(&format!("{first}{commit}")).await;
    old
}

const DASHBOARD: &str = "-- 0011 Dashboard";

/// What version 10 has written is there, found and shown in the new ways; nothing of it is taken for something new.
async fn step_eleven_takes_what_was_written_before_it(db: &TestDatabase) {
    let old = older(db, DASHBOARD).await;
    let insert = "INSERT INTO aftercommit.effects (downstream, idempotency_key, metadata) VALUES";
    old.sql.execute(&format!("{insert} ('pay', 'a', '{{\"order\": \"A-17\"}}'), ('pay', 'b', NULL)")).await;
    let (a, b) = (1, 2);
    old.sql.execute(&format!("DELETE FROM aftercommit.queue WHERE id = {b}")).await;
    let now = db.engine.now();
    old.sql
        .execute(&format!(
            "INSERT INTO aftercommit.outcomes (effect_id, token, finished_at, number, sent_before, state, downstream, note)
               VALUES ({b}, 1, {now}, 1, false, 'failed', 'pay', 'declined');
             INSERT INTO aftercommit.counters (downstream, state, n) VALUES ('pay', 'failed', 1);
             INSERT INTO aftercommit.audit (at, who, verb, effect_id) VALUES ({now}, 'ann', 'retry', {b})"
        ))
        .await;
    let done = store::migrate(&old.url, None).await.expect("it goes on");
    assert_eq!((done.from, done.to), (10, SCHEMA_VERSION));
    let upgraded = store::connect(&old.url, &Options::default()).await.expect("it connects");
    let found = |filter: Filter| {
        let upgraded = &upgraded;
        async move {
            let page = upgraded.effects(&Filter { limit: 10, ..filter }).await.expect("a page");
            page.effects.iter().map(|status| status.id.get()).collect::<Vec<_>>()
        }
    };
    assert_eq!(found(Filter::default()).await, [b, a]);
    assert_eq!(
        found(Filter { metadata: Some("{\"order\":\"A-17\"}".to_owned()), ..Filter::default() }).await,
        [a]
    );
    assert_eq!(found(Filter { error: Some("declined".to_owned()), ..Filter::default() }).await, [b]);
    upgraded.maintain().await.expect("maintenance works");
    let since = aftercommit::clock::Timestamp::from_micros(0);
    let traffic = upgraded.traffic(since, store::Resolution::Minute).await.expect("readable");
    assert!(traffic.is_empty(), "nobody knows when it ended: {traffic:?}");
    let counts = upgraded.counts().await.expect("readable");
    assert_eq!(counts.iter().map(|count| count.effects).sum::<u64>(), 2, "{counts:?}");
    let audit = upgraded.audit(&AuditFilter { limit: 10, ..AuditFilter::default() }).await.expect("readable");
    assert_eq!((audit.len(), audit[0].from.clone(), audit[0].bulk), (1, None, None));
    drop(upgraded);
    old.remove().await;
}

async fn an_index_for_metadata_that_was_built_by_hand_is_found(db: &TestDatabase) {
    let old = older(db, DASHBOARD).await;
    let readme = include_str!("../../migrations/README.md");
    let build = "CREATE INDEX CONCURRENTLY effects_metadata ON aftercommit.effects USING gin (metadata jsonb_path_ops) WHERE metadata IS NOT NULL";
    assert!(readme.contains(build), "as people are told to do it by hand");
    old.sql.execute(build).await;
    let number = "SELECT 'aftercommit.effects_metadata'::regclass::oid";
    let built = old.sql.number(number).await;
    let valid = |is: bool| format!("UPDATE pg_index SET indisvalid = {is} WHERE indexrelid = {built}");
    old.sql.execute(&valid(false)).await;
    let error = store::migrate(&old.url, None).await.expect_err("nothing would be served by it");
    let said = format!("{error:?}");
    assert!(
        said.contains("effects_metadata is INVALID") && said.contains("DROP INDEX CONCURRENTLY"),
        "{said}"
    );
    old.sql.execute(&valid(true)).await;
    assert_eq!(store::migrate(&old.url, None).await.expect("it goes on").to, SCHEMA_VERSION);
    assert_eq!(old.sql.number(number).await, built, "it is the one that was built by hand");
    old.remove().await;
}

const RETENTION: &str = "-- 0004 Retention";

/// A dump holds every table for hours: whoever asks for one behind the waiting migrator waits too.
async fn a_migrator_that_waits_for_a_table_lets_the_others_pass(db: &TestDatabase) {
    let old = older(db, RETENTION).await;
    let mut dump = old.sql.begin().await;
    dump.execute("LOCK TABLE aftercommit.outcomes IN ACCESS SHARE MODE").await;
    let url = old.url.clone();
    let mut migrating = tokio::task::JoinSet::new();
    migrating.spawn(async move { store::migrate(&url, None).await });
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'aftercommit.outcomes'::regclass";
    for waits in [1, 0, 1] {
        let so = async || (old.sql.number(waiting).await == waits).then_some(());
        eventually(Duration::from_secs(30), "it waits, gives up for a moment, and waits again", so).await;
    }
    dump.rollback().await;
    let done = within(Duration::from_secs(60), "the migration", migrating.join_all()).await.remove(0);
    assert_eq!(done.expect("it goes on by itself").to, SCHEMA_VERSION);
    old.remove().await;
}

async fn an_index_that_failed_to_be_built_is_not_taken_for_one(db: &TestDatabase) {
    let old = older(db, RETENTION).await;
    // As people are told to do it by hand, and as it is left where that failed.
    old.sql.execute("ALTER TABLE aftercommit.outcomes ADD COLUMN kept smallint NOT NULL DEFAULT 3").await;
    let build = "CREATE INDEX CONCURRENTLY outcomes_retention ON aftercommit.outcomes (kept, finished_at)";
    old.sql.execute(build).await;
    let valid = |is: bool| {
        format!(
            "UPDATE pg_index SET indisvalid = {is} WHERE indexrelid = 'aftercommit.outcomes_retention'::regclass"
        )
    };
    old.sql.execute(&valid(false)).await;
    let error = store::migrate(&old.url, None).await.expect_err("nothing would be served by it");
    let said = format!("{error:?}");
    assert!(
        said.contains("outcomes_retention is INVALID") && said.contains("DROP INDEX CONCURRENTLY"),
        "{said}"
    );
    old.sql.execute(&valid(true)).await;
    let done = store::migrate(&old.url, None).await.expect("it finds what was built by hand");
    assert_eq!(done.to, SCHEMA_VERSION);
    old.remove().await;
}

async fn what_was_made_by_hand_before_the_guard_is_found(db: &TestDatabase) {
    let old = older(db, "-- 0007 Guard").await;
    const ADD: &str = "ALTER TABLE aftercommit.effects ADD COLUMN request_id bigint";
    let readme = include_str!("../../migrations/README.md");
    old.sql.execute(ADD).await;
    let build = "CREATE INDEX CONCURRENTLY effects_request ON aftercommit.effects (request_id) WHERE request_id IS NOT NULL";
    assert!(readme.contains(ADD) && readme.contains(build), "as people are told to do it by hand");
    old.sql.execute(build).await;
    let number = "SELECT 'aftercommit.effects_request'::regclass::oid";
    let built = old.sql.number(number).await;
    let valid = |is: bool| format!("UPDATE pg_index SET indisvalid = {is} WHERE indexrelid = {built}");
    old.sql.execute(&valid(false)).await;
    let error = store::migrate(&old.url, None).await.expect_err("nothing would be served by it");
    let said = format!("{error:?}");
    assert!(
        said.contains("effects_request is INVALID") && said.contains("DROP INDEX CONCURRENTLY"),
        "{said}"
    );
    old.sql.execute(&valid(true)).await;
    assert_eq!(store::migrate(&old.url, None).await.expect("it goes on").to, SCHEMA_VERSION);
    assert_eq!(old.sql.number(number).await, built, "it is the one that was built by hand");
    old.remove().await;
}

async fn migrating_again_changes_nothing(db: &TestDatabase) {
    let objects = schema_objects(db.engine);
    let before = db.sql.rows(objects).await;
    let again = store::migrate(&db.url, Some("test")).await.expect("migrate is repeatable");
    assert_eq!((again.from, again.to), (SCHEMA_VERSION, SCHEMA_VERSION));
    assert_eq!(db.sql.rows(objects).await, before);
    let versions = db.sql.number("SELECT count(*) FROM aftercommit.schema_version").await;
    assert_eq!(versions, i64::from(SCHEMA_VERSION));
}

async fn a_database_without_a_schema_is_refused_with_the_remedy(db: &TestDatabase) {
    let empty = Unmigrated::fresh(db.engine).await;
    empty.sql.execute("CREATE TABLE orders (id text PRIMARY KEY)").await;
    let error = store::connect(&empty.url, &Options::default()).await.err().expect("there is no schema");
    assert!(matches!(error, StoreError::SchemaTooOld { found: 0, .. }), "{error:?}");
    assert!(error.to_string().contains("aftercommit migrate"), "{error}");
    let made = store::migrate(&empty.url, None).await.expect("migrate makes the schema");
    assert_eq!((made.from, made.to), (0, SCHEMA_VERSION));
    store::connect(&empty.url, &Options::default()).await.expect("then it connects");
    empty.remove().await;
}

async fn racing_migrators_make_one_schema(db: &TestDatabase) {
    let empty = Unmigrated::fresh(db.engine).await;
    let mut racers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let url = empty.url.clone();
        racers.spawn(async move { store::migrate(&url, Some("test")).await });
    }
    let results: Vec<Result<Migrated, StoreError>> = racers.join_all().await;
    let from: Vec<i32> = results.into_iter().map(|made| made.expect("every racer succeeds").from).collect();
    assert_eq!(from.iter().filter(|version| **version == 0).count(), 1, "one racer made it: {from:?}");
    let versions = empty.sql.number("SELECT count(*) FROM aftercommit.schema_version").await;
    assert_eq!(versions, i64::from(SCHEMA_VERSION));
    empty.remove().await;
}

async fn a_newer_schema_is_refused_and_left_alone(db: &TestDatabase) {
    let newer = SCHEMA_VERSION + 1;
    db.sql
        .execute(&format!(
            "INSERT INTO aftercommit.schema_version (version, applied_at) VALUES ({newer}, {})",
            db.engine.now()
        ))
        .await;
    let error = store::connect(&db.url, &Options::default()).await.err().expect("it is too new");
    assert!(
        matches!(error, StoreError::SchemaTooNew { found, knows } if found == newer && knows == SCHEMA_VERSION),
        "{error:?}"
    );
    assert!(error.to_string().contains(&newer.to_string()), "{error}");
    let error = store::migrate(&db.url, None).await.expect_err("migrate does not touch it either");
    assert!(matches!(error, StoreError::SchemaTooNew { .. }), "{error:?}");
    assert_eq!(db.sql.number("SELECT max(version) FROM aftercommit.schema_version").await, i64::from(newer));
}

async fn the_printed_migration_makes_the_same_schema(db: &TestDatabase) {
    let sql = store::migration_sql(&db.url).expect("the URL is known");
    let empty = Unmigrated::fresh(db.engine).await;
    // Statements for people to run: through the application's connection, as `psql -f` or `sqlite3 <` would.
    empty.sql.execute_as_is(&sql).await;
    let objects = schema_objects(db.engine);
    assert_eq!(empty.sql.rows(objects).await, db.sql.rows(objects).await);
    let after = store::migrate(&empty.url, None).await.expect("migrate accepts it");
    assert_eq!((after.from, after.to), (SCHEMA_VERSION, SCHEMA_VERSION), "it recorded its version");
    empty.remove().await;
}

/// Lists what a schema consists of.
fn schema_objects(engine: Engine) -> &'static str {
    match engine {
        Engine::Postgres => {
            "SELECT 'relation' AS what, relname::text AS name, relkind::text AS form, \
               (SELECT string_agg(attname || ':' || atttypid::regtype, ',' ORDER BY attnum) FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0) AS parts \
             FROM pg_class c WHERE relnamespace = 'aftercommit'::regnamespace \
             UNION ALL SELECT 'function', proname, pg_get_function_identity_arguments(oid), md5(prosrc) FROM pg_proc WHERE pronamespace = 'aftercommit'::regnamespace \
             UNION ALL SELECT 'trigger', tgname, tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'aftercommit.effects'::regclass AND NOT tgisinternal \
             ORDER BY 1, 2, 3"
        }
        Engine::Sqlite => "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name",
    }
}

/// A copy of production's database, opened by staging, must not pay people.
async fn another_environment_is_refused_by_every_door(db: &TestDatabase) {
    let as_of =
        |environment: &str| Options { environment: Some(environment.to_owned()), ..Options::default() };
    store::connect(&db.url, &as_of("test")).await.expect("its own environment");
    store::connect(&db.url, &Options::default()).await.expect("nobody asked");
    let opened = store::connect(&db.url, &as_of("production")).await.err().expect("refused");
    let migrated = store::migrate(&db.url, Some("production")).await.expect_err("refused");
    for error in [opened, migrated] {
        assert!(matches!(error, StoreError::OtherEnvironment { .. }), "{error:?}");
        assert!(
            error.to_string().contains("\"test\"") && error.to_string().contains("\"production\""),
            "{error}"
        );
    }
    let unnamed = Unmigrated::fresh(db.engine).await;
    store::migrate(&unnamed.url, None).await.expect("migrate makes the schema");
    store::connect(&unnamed.url, &as_of("production")).await.expect("it belongs to none yet");
    unnamed.remove().await;
}
