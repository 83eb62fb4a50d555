//! Guarantee: whatever a database or a role sets for its sessions, workers and operators work as ever (PostgreSQL). An
//! application's own settings are its own business, and reach no further than its transaction.

use aftercommit::{
    state::State,
    store::{Acted, Database, Filter},
    verb::Verb,
};

use super::stage::person;
use crate::support::{Settling, TestDatabase, Worker, key_terms, on_postgres, registered};

on_postgres! {
    the_isolation_that_a_database_sets_is_not_the_workers,
    a_database_that_is_read_only_by_default_is_written_to,
    a_statement_timeout_of_a_millisecond_ends_no_statement_of_ours,
    how_a_database_shows_values_does_not_change_them,
    names_are_found_whatever_the_search_path_is,
    row_security_and_planner_settings_change_nothing,
    a_role_may_set_it_too,
    a_lock_that_somebody_holds_is_waited_for_no_longer_than_we_say,
    connections_to_a_server_that_became_read_only_are_not_given_out_again,
}

/// Everything that a worker and an operator do, once, on sessions that begin with these settings.
async fn works(db: &TestDatabase, settings: &[(&str, &str)]) {
    let database = db.url.rsplit('/').next().unwrap_or_default();
    for (name, value) in settings {
        db.sql.execute(&format!("ALTER DATABASE {database} SET {name} = {value}")).await;
    }
    let store = db.another_store().await;
    drives(db, &store, &format!("{settings:?}")).await;
}

async fn drives(db: &TestDatabase, store: &std::sync::Arc<dyn Database>, what: &str) {
    let worker = Worker::start(store, "w1", vec![registered("pay", key_terms())]).await;
    let mut application = db.sql.session().await;
    let mut write = async |key: &str| {
        let sql = format!(
            "INSERT INTO aftercommit.effects (downstream, idempotency_key, payload) VALUES ('pay', '{key}', '{{\"a\": 1.50}}')"
        );
        for own in ["SET statement_timeout = 0", "SET default_transaction_read_only = off"] {
            crate::support::on_session(&mut application, own).await.expect("it may");
        }
        crate::support::on_session(&mut application, &sql)
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    };
    write("one").await;
    write("two").await;
    let claim = worker.claim_one("pay").await;
    assert_eq!(claim.effect.payload.as_deref(), Some("{\"a\": 1.50}"), "{what}");
    let age = store.now().await.expect("the clock is readable").since(claim.claimed_at);
    assert!(age < std::time::Duration::from_secs(60), "{what}: claimed {age:?} ago");
    worker.settle(Settling::of(&claim).succeed()).await;
    assert_eq!(
        store.effect(claim.effect.id).await.expect("it is readable").map(|s| s.state),
        Some(State::Succeeded)
    );
    let ready =
        store.effects(&Filter { limit: 10, ..Filter::default() }).await.expect("it is readable").effects;
    assert_eq!(ready.len(), 2, "{what}: {ready:?}");
    let two = ready.iter().find(|status| status.state == State::Ready).expect("the second one is ready");
    let acted = store.act(two.id, &Verb::Cancel, &person(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{what}: {acted:?}");
    store.renew("w1", &[]).await.expect("renewing works");
    store.maintain().await.expect("maintaining works");
    let counts = store.counts().await.expect("counting works");
    assert_eq!(counts.iter().map(|count| count.effects).sum::<u64>(), 2, "{what}: {counts:?}");
    crate::support::close_session(application).await;
}

/// Trap T19.
async fn the_isolation_that_a_database_sets_is_not_the_workers(db: &TestDatabase) {
    works(
        db,
        &[("default_transaction_isolation", "'serializable'"), ("default_transaction_deferrable", "on")],
    )
    .await;
}

async fn a_database_that_is_read_only_by_default_is_written_to(db: &TestDatabase) {
    works(db, &[("default_transaction_read_only", "on")]).await;
}

async fn a_statement_timeout_of_a_millisecond_ends_no_statement_of_ours(db: &TestDatabase) {
    works(
        db,
        &[
            ("statement_timeout", "'1ms'"),
            ("lock_timeout", "'1ms'"),
            ("idle_in_transaction_session_timeout", "'1ms'"),
        ],
    )
    .await;
}

async fn how_a_database_shows_values_does_not_change_them(db: &TestDatabase) {
    works(
        db,
        &[
            ("DateStyle", "'German, DMY'"),
            ("IntervalStyle", "'sql_standard'"),
            ("TimeZone", "'Asia/Kathmandu'"),
            ("bytea_output", "'escape'"),
            ("extra_float_digits", "-15"),
            ("standard_conforming_strings", "off"),
            ("escape_string_warning", "off"),
            ("backslash_quote", "off"),
            ("array_nulls", "off"),
            ("transform_null_equals", "on"),
            ("xmloption", "document"),
        ],
    )
    .await;
}

async fn names_are_found_whatever_the_search_path_is(db: &TestDatabase) {
    for path in ["''", "nowhere", "public, aftercommit, pg_catalog"] {
        db.sql
            .execute(
                "TRUNCATE aftercommit.effects, aftercommit.queue, aftercommit.outcomes, aftercommit.counters",
            )
            .await;
        works(db, &[("search_path", path)]).await;
    }
}

async fn row_security_and_planner_settings_change_nothing(db: &TestDatabase) {
    works(
        db,
        &[
            ("row_security", "off"),
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_indexscan", "off"),
            ("enable_nestloop", "off"),
            ("jit", "on"),
            ("jit_above_cost", "0"),
            ("synchronous_commit", "off"),
            ("check_function_bodies", "off"),
        ],
    )
    .await;
}

async fn a_role_may_set_it_too(db: &TestDatabase) {
    let role = format!("worker_{}", uuid::Uuid::new_v4().simple());
    db.sql
        .execute(&format!(
            "CREATE ROLE {role} LOGIN IN ROLE aftercommit_worker, aftercommit_operator;
             ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read';
             ALTER ROLE {role} SET default_transaction_read_only = on;
             ALTER ROLE {role} SET statement_timeout = '1ms';
             ALTER ROLE {role} SET search_path = 'nowhere'"
        ))
        .await;
    let mut url = url::Url::parse(&db.url).expect("a URL");
    url.set_username(&role).expect("it has a host");
    let options = aftercommit::store::Options { max_connections: 2, ..Default::default() };
    let store = aftercommit::store::connect(url.as_str(), &options).await.expect("a plain role connects");
    drives(db, &store, &role).await;
    store.examine().await.expect("a plain role may ask");
    // What a plain role is told of itself: which database this is, too.
    let identity = store.identity().await.expect("a plain role may ask");
    assert!(identity.system_identifier.is_some() && identity.timeline == Some(1), "{identity:?}");
    drop(store);
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'; DROP OWNED BY {role}; DROP ROLE {role}"
    );
    db.sql.execute(&end).await;
}

/// An operator who waits behind somebody's forgotten transaction is told, and nothing of it stays.
async fn a_lock_that_somebody_holds_is_waited_for_no_longer_than_we_say(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let id = db.insert("pay", "k").await;
    let mut holder = db.sql.begin().await;
    holder.execute(&format!("SELECT id FROM aftercommit.queue WHERE id = {id} FOR UPDATE")).await;
    assert!(worker.claim("pay", 1).await.is_empty(), "a claim passes it by");
    let before = std::time::Duration::from_secs(10);
    let (error, waited) = timed(async { db.store.act(id, &Verb::Cancel, &person(), None).await }).await;
    let error = error.expect_err("it cannot be cancelled now");
    assert!(error.is_outage() && waited >= before && waited < before * 3, "{waited:?}: {error:?}");
    holder.rollback().await;
    assert_eq!(db.state(id).await, State::Ready);
    assert!(matches!(db.store.act(id, &Verb::Cancel, &person(), None).await, Ok(Acted::Done(..))));
}

/// The server says so itself: as one would that was demoted behind an address that stays.
async fn connections_to_a_server_that_became_read_only_are_not_given_out_again(db: &TestDatabase) {
    let _worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    // Several at one time, so that there are several.
    let looks = (0..4).map(|_| db.store.counts());
    for counted in futures_util::future::join_all(looks).await {
        counted.expect("counting works");
    }
    let connected = "SELECT coalesce(string_agg(pid::text, ',' ORDER BY pid), '') FROM pg_stat_activity
                     WHERE datname = current_database() AND application_name = 'aftercommit-test' AND query NOT LIKE 'LISTEN%'";
    let before = db.sql.scalar(connected).await.expect("a list");
    db.sql
        .execute(
            "CREATE FUNCTION public.demoted() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
               RAISE EXCEPTION USING ERRCODE = '25006', MESSAGE = 'cannot execute DELETE in a read-only transaction'; END$$;
             CREATE TRIGGER t BEFORE DELETE ON aftercommit.workers FOR EACH ROW EXECUTE FUNCTION public.demoted()",
        )
        .await;
    let error = db.store.leave("w1").await.expect_err("the server is read-only");
    assert!(error.is_outage(), "{error:?}");
    db.sql.execute("DROP TRIGGER t ON aftercommit.workers").await;
    let looks = (0..4).map(|_| db.store.counts());
    for counted in futures_util::future::join_all(looks).await {
        counted.expect("the server works again");
    }
    crate::support::eventually(std::time::Duration::from_secs(20), "no old connection is left", async || {
        let now = db.sql.scalar(connected).await.expect("a list");
        let old = |pid: &str| before.split(',').any(|other| other == pid);
        now.split(',').all(|pid| !old(pid)).then_some(())
    })
    .await;
    db.store.leave("w1").await.expect("it works on");
}

async fn timed<T>(work: impl Future<Output = T>) -> (T, std::time::Duration) {
    let begun = tokio::time::Instant::now();
    (work.await, begun.elapsed())
}
