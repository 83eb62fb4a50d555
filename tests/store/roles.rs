//! Defends: an application's role can write effects and read its own, and nothing else (PostgreSQL).

use std::sync::Arc;

use aftercommit::{
    NewEffect,
    error::StoreError,
    state::State,
    store::{
        self, Acted, AuditFilter, BulkState, Control, Database, Filter, ItemOutcome, Look, NewBulk, Options,
        RequestFilter, Resolution, Step,
    },
    verb::{Actor, BulkItem, Seen, Verb},
};
use sqlx::{Postgres, pool::PoolConnection};

use super::stage::{Stage, person};
use crate::support::{Settling, TestDatabase, close_session, on_postgres, on_session};

on_postgres! {
    an_application_can_do_its_three_things,
    an_application_can_do_nothing_else,
    an_application_sees_its_own_effects_only,
    an_application_that_may_view_sees_no_answer_of_others,
    a_worker_cannot_write_what_people_did,
    the_catalog_grants_an_application_nothing_more,
    a_trigger_function_cannot_be_attached,
    every_definer_function_has_a_fixed_search_path,
    who_may_view_sees_every_list_and_does_nothing,
    who_operates_reissues_and_carries_out_bulks,
}

/// A session whose user is a member of `aftercommit_app`, as an application's is.
async fn application(db: &TestDatabase, name: &str) -> PoolConnection<Postgres> {
    db.sql
        .execute(&format!("DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN IN ROLE aftercommit_app"))
        .await;
    let mut session = db.sql.session().await;
    on_session(&mut session, &format!("SET SESSION AUTHORIZATION {name}")).await.expect("a superuser may");
    session
}

/// A role's name that no other test uses: roles belong to the whole server.
fn role() -> String {
    format!("app_{}", uuid::Uuid::new_v4().simple())
}

async fn gone(db: &TestDatabase, session: PoolConnection<Postgres>, name: &str) {
    close_session(session).await;
    db.sql.execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}")).await;
}

const INSERT: &str =
    "INSERT INTO aftercommit.effects (downstream, idempotency_key, payload) VALUES ('pay', 'k1', '{}')";

async fn an_application_can_do_its_three_things(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    let name = role();
    let mut session = application(db, &name).await;
    let allowed = [
        format!("{INSERT} RETURNING id, downstream, idempotency_key"),
        format!("{INSERT} ON CONFLICT (downstream, idempotency_key) DO NOTHING"),
        format!("{INSERT} ON CONFLICT DO NOTHING RETURNING id"),
        "SELECT id FROM aftercommit.effects WHERE downstream = 'pay' AND idempotency_key = 'k1'".to_owned(),
        "SELECT * FROM aftercommit.enqueue('pay', '{}', 'k1')".to_owned(),
        "SELECT * FROM aftercommit.enqueue('pay', '{\"a\":1}', 'k2', metadata => '{}')".to_owned(),
        "SELECT * FROM aftercommit.key_refusals('{pay}', '{k3}')".to_owned(),
        "SELECT state, attempts FROM aftercommit.status WHERE downstream = 'pay' AND idempotency_key = 'k1'"
            .to_owned(),
        "SELECT aftercommit.inbox_accept('billing', 'm')".to_owned(),
        "BEGIN; SELECT * FROM aftercommit.begin_request('s', 'k', 'f'); SELECT * FROM aftercommit.enqueue('pay', '{}'); \
         SELECT aftercommit.finish_request('s', 'k', 200, '', ''); COMMIT"
            .to_owned(),
        "SELECT * FROM aftercommit.begin_request('s', 'k', 'f', '1 hour')".to_owned(),
    ];
    for sql in &allowed {
        on_session(&mut session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let error = on_session(&mut session, &INSERT.replace("k1", " k")).await.expect_err("a bad key");
    assert!(error.to_string().contains("idempotency_key"), "checked as for everybody: {error}");
    gone(db, session, &name).await;
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.queue").await, 3);
}

async fn an_application_can_do_nothing_else(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "held").await;
    stage.done(Settling::of(&claim).succeed()).await;
    let name = role();
    let mut session = application(db, &name).await;
    on_session(&mut session, INSERT).await.expect("it may write");
    let mut forbidden: Vec<String> = [
        "INSERT INTO aftercommit.effects (downstream) VALUES ('pay') RETURNING payload",
        "INSERT INTO aftercommit.effects (downstream) VALUES ('pay') RETURNING *",
        "INSERT INTO aftercommit.effects (id, downstream) OVERRIDING SYSTEM VALUE VALUES (1, 'pay')",
        "INSERT INTO aftercommit.effects (downstream, created_at) VALUES ('pay', now())",
        "INSERT INTO aftercommit.effects (downstream, enqueued_by) VALUES ('pay', 'me')",
        "INSERT INTO aftercommit.effects (downstream, fingerprint) VALUES ('pay', NULL)",
        "INSERT INTO aftercommit.effects (downstream, request_id) VALUES ('pay', 1)",
        "SELECT request_id FROM aftercommit.effects",
        "SELECT aftercommit.this_request()",
        "INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', 'k1') ON CONFLICT (downstream, idempotency_key) DO UPDATE SET target = 'x'",
        "SELECT payload FROM aftercommit.effects",
        "SELECT count(*) FROM aftercommit.effects WHERE metadata IS NULL",
        "UPDATE aftercommit.effects SET target = 'x'",
        "DELETE FROM aftercommit.effects",
        "TRUNCATE aftercommit.effects",
        "DO $$ BEGIN LOCK TABLE aftercommit.effects IN ACCESS EXCLUSIVE MODE; END $$",
        "ALTER TABLE aftercommit.effects DISABLE TRIGGER ALL",
        "SELECT * FROM aftercommit.attempt_log",
        "CREATE TABLE aftercommit.mine (a int)",
        "SET session_replication_role = replica",
    ]
    .map(str::to_owned)
    .to_vec();
    let tables = "SELECT relname AS name FROM pg_class WHERE relnamespace = 'aftercommit'::regnamespace AND relkind = 'r' AND relname <> 'effects'";
    for row in db.sql.rows(tables).await {
        let table = row["name"].clone().expect("a name");
        forbidden.push(format!("SELECT * FROM aftercommit.{table}"));
        forbidden.push(format!("DELETE FROM aftercommit.{table}"));
    }
    let sequences = "SELECT relname AS name FROM pg_class WHERE relnamespace = 'aftercommit'::regnamespace AND relkind = 'S'";
    for row in db.sql.rows(sequences).await {
        let sequence = row["name"].clone().expect("a name");
        forbidden.push(format!("SELECT nextval('aftercommit.{sequence}')"));
        forbidden.push(format!("SELECT setval('aftercommit.{sequence}', 1)"));
    }
    for sql in &forbidden {
        let refused = on_session(&mut session, sql).await;
        let code =
            refused.as_ref().err().and_then(|error| error.as_database_error()).and_then(|error| error.code());
        assert!(matches!(code.as_deref(), Some("42501" | "428C9")), "{sql}: {refused:?}");
    }
    gone(db, session, &name).await;
}

async fn an_application_sees_its_own_effects_only(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    db.insert_with("pay", "theirs", &[("metadata", r#"'{"secret": 1}'"#)]).await;
    let name = role();
    let mut session = application(db, &name).await;
    on_session(&mut session, INSERT).await.expect("it may write");
    on_session(&mut session, "SELECT * FROM aftercommit.enqueue('pay', '{}', 'mine')").await.expect("it may");
    for view in ["status", "pending", "unfinished"] {
        let sql = format!("SELECT idempotency_key AS key FROM aftercommit.{view} ORDER BY 1");
        let rows = on_session(&mut session, &sql).await.expect("it may");
        let keys: Vec<_> = rows.iter().map(|row| row["key"].clone().unwrap_or_default()).collect();
        assert_eq!(keys, ["k1", "mine"], "{view}: its own, by either way of writing");
    }
    // Somebody else's key tells nothing but that it is taken.
    let taken =
        on_session(&mut session, "SELECT * FROM aftercommit.enqueue('pay', '{\"guess\":1}', 'theirs')").await;
    let error = taken.expect_err("another request");
    assert!(!error.to_string().contains("secret"), "{error}");
    gone(db, session, &name).await;
    let seen = db.sql.number("SELECT count(*) FROM aftercommit.status").await;
    assert_eq!(seen, 3, "who may see all does");
}

async fn an_application_that_may_view_sees_no_answer_of_others(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "theirs").await;
    stage.done(Settling::of(&claim).succeed()).await;
    let name = role();
    let mut session = application(db, &name).await;
    db.sql.execute(&format!("GRANT aftercommit_viewer TO {name}")).await;
    on_session(&mut session, INSERT).await.expect("it may write");
    let claim = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&claim).succeed()).await;
    for view in ["status", "status WHERE response IS NOT NULL OR idempotency_key = 'theirs'"] {
        let sql = format!("SELECT idempotency_key AS key, state, response FROM aftercommit.{view}");
        let rows = on_session(&mut session, &sql).await.expect("it may");
        let mut seen: Vec<_> =
            rows.iter().map(|row| (row["key"].as_deref(), row["response"].as_deref())).collect();
        seen.sort_unstable();
        assert_eq!(seen, [(Some("k1"), Some(r#"{"ok":true}"#)), (Some("theirs"), None)], "{view}");
    }
    db.sql.execute(&format!("REVOKE aftercommit_app FROM {name}")).await;
    let viewed = "SELECT idempotency_key, state FROM aftercommit.status";
    assert_eq!(on_session(&mut session, viewed).await.expect("it may").len(), 2, "who only views sees all");
    let answers = on_session(&mut session, "SELECT response FROM aftercommit.status").await;
    assert!(answers.is_err(), "but no answers");
    gone(db, session, &name).await;
    assert_eq!(db.sql.number("SELECT count(response) FROM aftercommit.status").await, 2);
}

async fn a_worker_cannot_write_what_people_did(db: &TestDatabase) {
    for privilege in ["INSERT", "UPDATE", "DELETE", "TRUNCATE"] {
        let sql =
            format!("SELECT has_table_privilege('aftercommit_worker', 'aftercommit.audit', '{privilege}')");
        assert_eq!(db.sql.scalar(&sql).await.as_deref(), Some("f"), "{privilege}");
    }
}

async fn the_catalog_grants_an_application_nothing_more(db: &TestDatabase) {
    let relations = "SELECT c.relname AS name, p.privilege FROM pg_class c, \
       unnest(ARRAY['SELECT','INSERT','UPDATE','DELETE','TRUNCATE','REFERENCES','TRIGGER']) AS p (privilege) \
       WHERE c.relnamespace = 'aftercommit'::regnamespace AND c.relkind IN ('r','v','p','m') \
         AND has_table_privilege('aftercommit_app', c.oid, p.privilege) ORDER BY 1, 2";
    let granted: Vec<String> = list(db, relations).await;
    assert_eq!(granted, ["pending SELECT", "status SELECT", "unfinished SELECT"]);
    let columns = "SELECT a.attname AS name, p.privilege FROM pg_attribute a, \
       unnest(ARRAY['SELECT','INSERT','UPDATE','REFERENCES']) AS p (privilege) \
       WHERE a.attrelid = 'aftercommit.effects'::regclass AND a.attnum > 0 AND NOT a.attisdropped \
         AND has_column_privilege('aftercommit_app', a.attrelid, a.attnum, p.privilege) ORDER BY a.attnum, 2";
    let writable = "downstream operation idempotency_key payload body content_type headers target due_at expires_at \
                    ordering_key needs bindings undoes if_failed metadata trace_context";
    let mut expected = vec!["id SELECT".to_owned()];
    for column in writable.split_whitespace() {
        expected.push(format!("{column} INSERT"));
        if matches!(column, "downstream" | "idempotency_key") {
            expected.push(format!("{column} SELECT"));
        }
    }
    assert_eq!(list(db, columns).await, expected);
    let functions = "SELECT DISTINCT p.proname AS name, p.prosecdef::text AS privilege FROM pg_proc p \
       WHERE p.pronamespace = 'aftercommit'::regnamespace AND has_function_privilege('aftercommit_app', p.oid, 'EXECUTE') ORDER BY 1";
    let callable: Vec<String> =
        db.sql.rows(functions).await.iter().map(|row| row["name"].clone().unwrap_or_default()).collect();
    assert!(callable.contains(&"enqueue".to_owned()), "{callable:?}");
    assert!(
        callable.iter().all(|name| {
            matches!(name.as_str(), "enqueue" | "derive_key" | "existing" | "key_refusals")
                || matches!(name.as_str(), "begin_request" | "finish_request" | "inbox_accept")
                || name == "is_of_this_request"
        }),
        "an application may call: {callable:?}"
    );
    let public = "SELECT p.proname AS name, 'EXECUTE' AS privilege FROM pg_proc p WHERE p.pronamespace = 'aftercommit'::regnamespace \
       AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x WHERE x.grantee = 0)";
    assert!(list(db, public).await.is_empty(), "PUBLIC may call nothing");
    let schema = "SELECT has_schema_privilege('aftercommit_app', 'aftercommit', 'CREATE')";
    assert_eq!(db.sql.scalar(schema).await.as_deref(), Some("f"));
}

async fn list(db: &TestDatabase, sql: &str) -> Vec<String> {
    let rows = db.sql.rows(sql).await;
    rows.iter()
        .map(|row| {
            format!(
                "{} {}",
                row["name"].as_deref().unwrap_or("?"),
                row["privilege"].as_deref().unwrap_or("?")
            )
        })
        .collect()
}

async fn a_trigger_function_cannot_be_attached(db: &TestDatabase) {
    let name = role();
    let mut session = application(db, &name).await;
    on_session(&mut session, "CREATE TEMP TABLE mine (LIKE aftercommit.effects)").await.ok();
    on_session(&mut session, "CREATE TEMP TABLE IF NOT EXISTS mine (id bigint)")
        .await
        .expect("a table of its own");
    let functions = "SELECT proname AS name FROM pg_proc WHERE pronamespace = 'aftercommit'::regnamespace AND prorettype = 'trigger'::regtype";
    let triggers = db.sql.rows(functions).await;
    assert!(!triggers.is_empty(), "the check is a trigger");
    for row in triggers {
        let function = row["name"].as_deref().expect("a name");
        for attach in [
            format!(
                "CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION aftercommit.{function}()"
            ),
            format!(
                "CREATE TRIGGER t AFTER INSERT ON mine REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION aftercommit.{function}()"
            ),
        ] {
            let error = on_session(&mut session, &attach).await.expect_err("it could forge queue rows");
            assert_eq!(
                error.as_database_error().and_then(|error| error.code()).as_deref(),
                Some("42501"),
                "{error}"
            );
        }
    }
    gone(db, session, &name).await;
}

async fn every_definer_function_has_a_fixed_search_path(db: &TestDatabase) {
    let loose = "SELECT proname AS name, coalesce(array_to_string(proconfig, ','), 'none') AS privilege FROM pg_proc \
       WHERE pronamespace = 'aftercommit'::regnamespace AND prosecdef \
         AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)";
    assert_eq!(list(db, loose).await, Vec::<String>::new());
}

/// A store whose login is a member of this role.
async fn as_role(db: &TestDatabase, role: &str) -> Arc<dyn Database> {
    let url = format!("{}?options=-c%20role%3D{role}", db.url);
    let options = Options { max_connections: 2, ..Options::default() };
    store::connect(&url, &options).await.expect("the role connects")
}

async fn who_may_view_sees_every_list_and_does_nothing(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.failed(db, "k").await;
    stage.parked(db, "doubtful").await;
    let viewer = as_role(db, "aftercommit_viewer").await;
    let text = |text: &str| Some(text.to_owned());
    let all = || Filter { limit: 10, ..Filter::default() };
    let mut filters = vec![
        all(),
        Filter { metadata: text("{\"a\":1}"), ..all() },
        Filter { error: text("declined"), operation: text("charge"), ..all() },
        Filter { key: text("k"), ..all() },
        Filter { downstream: text("pay"), ..all() },
        Filter { ids: Some(vec![id]), ..all() },
        Filter { created_after: Some(db.now().await), ..all() },
    ];
    filters.extend(State::ALL.map(|state| Filter { states: vec![state], ..all() }));
    for filter in filters {
        viewer.effects(&filter).await.unwrap_or_else(|error| panic!("{filter:?}: {error:?}"));
    }
    let seen = viewer.effect(id).await.expect("readable").expect("it is there");
    assert!(seen.response.is_none() && seen.last_error.is_some());
    viewer.attempts(id).await.expect("readable");
    for state in [State::Failed, State::InDoubt] {
        assert_eq!(viewer.causes(state, None).await.expect("readable").rows.len(), 1);
    }
    viewer.traffic(db.now().await, Resolution::Hour).await.expect("readable");
    viewer.audit(&AuditFilter { limit: 9, ..AuditFilter::default() }).await.expect("readable");
    viewer.requests(&RequestFilter { limit: 9, ..RequestFilter::default() }).await.expect("readable");
    viewer.bulks(9).await.expect("readable");
    viewer.bulk(1).await.expect("readable");
    viewer.counts().await.expect("readable");
    viewer.downstreams().await.expect("readable");
    viewer.workers().await.expect("readable");
    let forbidden = |result: Result<(), StoreError>| assert!(result.is_err_and(|error| error.is_forbidden()));
    forbidden(viewer.intent(id, Look::Size).await.map(drop));
    forbidden(viewer.latencies(db.now().await, 1, Resolution::Hour).await.map(drop));
    for verb in [Verb::Retry, Verb::Reissue { resolve: None }] {
        forbidden(viewer.act(id, &verb, &person(), None).await.map(drop));
    }
    let seen = Seen { state: State::Failed, token: 1 };
    let bulk = NewBulk { verb: "retry".to_owned(), actor: person(), ..NewBulk::default() };
    forbidden(viewer.start_bulk(&bulk, &[(id, seen)]).await.map(drop));
    forbidden(viewer.beside(&[id]).await.map(drop));
    forbidden(viewer.pause("pay", &person()).await.map(drop));
}

async fn who_operates_reissues_and_carries_out_bulks(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = stage.failed(db, "k").await;
    let operator = as_role(db, "aftercommit_operator").await;
    operator.beside(&[id]).await.expect("an operator looks before");
    let seen = Seen { state: State::Failed, token: db.status(id).await.token };
    let bulk = NewBulk { verb: "reissue".to_owned(), actor: person(), ..NewBulk::default() };
    let bulk = operator.start_bulk(&bulk, &[(id, seen), (id, seen)]).await.expect("an operator starts bulks");
    let minute = std::time::Duration::from_secs(60);
    operator.take_bulk("r1", minute).await.expect("and takes them").expect("it waits");
    let actor = Actor { bulk: Some(BulkItem { bulk, n: 1 }), ..person() };
    let acted = operator.act(id, &Verb::Reissue { resolve: None }, &actor, Some(seen)).await;
    assert!(matches!(&acted, Ok(Acted::Done(_, old)) if old.superseded_by.is_some()), "{acted:?}");
    operator.bulk_refused(bulk, 2, ItemOutcome::Stale, "it changed").await.expect("and says what became");
    operator.control_bulk(bulk, Control::Pause, &person()).await.expect("and pauses");
    operator.control_bulk(bulk, Control::Resume, &person()).await.expect("and resumes");
    operator.keep_bulk(bulk, "r1", minute).await.expect("and keeps");
    operator.end_bulk(bulk).await.expect("and ends");
    assert_eq!(
        db.store.bulk(bulk).await.expect("readable").map(|info| info.state),
        Some(BulkState::Finished)
    );
    let new = db.status(id).await.superseded_by.expect("it was reissued");
    assert_eq!(
        db.store.intent(new, Look::Size).await.expect("readable").and_then(|intent| intent.enqueued_by),
        db.store.intent(id, Look::Size).await.expect("readable").and_then(|intent| intent.enqueued_by),
        "written for whom the old one was written, not for the operator"
    );
    // The function looks for itself: who may call it can do no more with it than the verb does.
    for (effect, why) in [(id, "superseded"), (new, "has not ended")] {
        let call = format!("SET ROLE aftercommit_operator; SELECT aftercommit.reissue({effect})");
        let error = db.sql.refused(&call).await.to_string();
        assert!(error.contains("cannot be reissued") && error.contains(why), "{error}");
    }
    for role in ["aftercommit_app", "aftercommit_worker", "aftercommit_viewer"] {
        let call = format!("SET ROLE {role}; SELECT aftercommit.reissue({id})");
        let error = db.sql.refused(&call).await.to_string();
        assert!(error.contains("permission denied"), "{role}: {error}");
    }
    let refused = operator.enqueue(&NewEffect::to("pay"), &person()).await;
    assert!(refused.is_err(), "an operator does not write effects: {refused:?}");
    let worker = as_role(db, "aftercommit_worker").await;
    worker.maintain().await.expect("a worker folds the traffic");
    worker.drop_batch(Step::History, minute, 10).await.expect("and drops old bulks");
}
