//! Guarantee: no code of an application's role ever runs as the owner of the schema, nor as a worker, whatever it puts in the
//! way of names that our functions and statements look up (PostgreSQL).

use sqlx::{Postgres, pool::PoolConnection};

use super::stage::Stage;
use crate::support::{Settling, TestDatabase, close_session, on_postgres, on_session};

on_postgres! {
    what_an_application_shadows_never_runs_as_the_owner,
    what_an_application_shadows_in_public_never_runs_as_a_worker,
    a_trigger_on_an_applications_own_table_runs_as_the_application,
}

/// A role of an application, which may create things wherever others may: in a schema of its own, in `public`, and in pg_temp.
struct Attacker {
    name: String,
    session: PoolConnection<Postgres>,
}

impl Attacker {
    async fn enter(db: &TestDatabase) -> Self {
        let name = format!("app_{}", uuid::Uuid::new_v4().simple());
        db.sql
            .execute(&format!(
                "CREATE ROLE {name} LOGIN IN ROLE aftercommit_app; CREATE SCHEMA {name} AUTHORIZATION {name};
                 GRANT CREATE ON SCHEMA public TO {name};
                 CREATE TABLE public.loot (who text, what text); GRANT INSERT ON public.loot TO PUBLIC"
            ))
            .await;
        let mut session = db.sql.session().await;
        on_session(&mut session, &format!("SET SESSION AUTHORIZATION {name}"))
            .await
            .expect("a superuser may");
        Self { name, session }
    }

    async fn does(&mut self, sql: &str) {
        let sql = sql.replace("ATTACKER", &self.name);
        on_session(&mut self.session, &sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn leaves(self, db: &TestDatabase) {
        close_session(self.session).await;
        db.sql.execute(&format!("DROP OWNED BY {0} CASCADE; DROP ROLE {0}", self.name)).await;
    }
}

/// Who ran the attacker's code.
async fn victims(db: &TestDatabase, attacker: &Attacker) -> Vec<String> {
    let others = format!(
        "SELECT DISTINCT who || ' ran ' || what AS victim FROM public.loot WHERE who <> '{}' ORDER BY 1",
        attacker.name
    );
    db.sql.rows(&others).await.into_iter().filter_map(|mut row| row.remove("victim").flatten()).collect()
}

/// Functions, operators, tables and types with names that ours use. A function notes who runs it.
fn shadows(schema: &str) -> Vec<String> {
    let note = |what: &str, value: &str| {
        format!("BEGIN INSERT INTO public.loot VALUES (current_user, '{what}'); RETURN {value}; END")
    };
    let function = |signature: &str, returns: &str, value: &str| {
        let what = signature.split('(').next().unwrap_or(signature);
        format!(
            "CREATE FUNCTION {schema}.{signature} RETURNS {returns} LANGUAGE plpgsql AS $f${}$f$",
            note(what, value)
        )
    };
    vec![
        function("left(text, integer)", "text", "''"),
        function("length(text)", "integer", "1"),
        function("clock_timestamp()", "timestamptz", "'2000-01-01'"),
        function("gen_random_uuid()", "uuid", "'00000000-0000-0000-0000-000000000000'"),
        function("current_setting(text)", "text", "''"),
        function("format(text, text)", "text", "''"),
        function("quote_literal(text)", "text", "''"),
        function("pg_notify(text, text)", "text", "''"),
        function("nextval(regclass)", "bigint", "1"),
        function("hashtextextended(text, bigint)", "bigint", "1"),
        function("pg_try_advisory_xact_lock(bigint)", "boolean", "true"),
        function("set_config(text, text, boolean)", "text", "''"),
        function("octet_length(text)", "integer", "1"),
        function("pg_current_xact_id()", "xid8", "'1'"),
        function("json_depth(text)", "integer", "1"),
        function("request_problem(text, text, text, interval)", "text", "NULL"),
        function("this_request()", "bigint", "1"),
        function("key_problem(text, text, integer, integer, text)", "text", "NULL"),
        function("same(text, text)", "boolean", "true"),
        function("matches(text, text)", "boolean", "true"),
        format!("CREATE OPERATOR {schema}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {schema}.same)"),
        format!("CREATE OPERATOR {schema}.!~ (LEFTARG = text, RIGHTARG = text, FUNCTION = {schema}.matches)"),
    ]
}

const CALLS: [&str; 8] = [
    "INSERT INTO aftercommit.effects (downstream, idempotency_key, payload, metadata) VALUES ('pay', 'plain', '{\"a\":1}', '{}')",
    "SELECT * FROM aftercommit.enqueue('pay', '{\"a\":1}', 'called')",
    "SELECT * FROM aftercommit.enqueue('pay', '{\"a\":1}', 'called')",
    "SELECT * FROM aftercommit.key_refusals('{pay}', '{k}')",
    "DO $$ BEGIN PERFORM aftercommit.begin_request('shop', 'k', 'f'); PERFORM aftercommit.enqueue('pay', '{}'); \
     INSERT INTO aftercommit.effects (downstream) VALUES ('pay'); \
     PERFORM aftercommit.finish_request('shop', 'k', 200, '', ''); END $$",
    "SELECT * FROM aftercommit.begin_request('shop', 'k', 'f', '1 hour')",
    "SELECT * FROM aftercommit.begin_request('shop', 'k', '\\x00'::bytea)",
    "SELECT aftercommit.inbox_accept('billing', 'm')",
];

/// Security row "DB roles": without a pinned path a temporary table and its trigger ran the application's code as the owner.
async fn what_an_application_shadows_never_runs_as_the_owner(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    let mut attacker = Attacker::enter(db).await;
    let own = attacker.name.clone();
    for sql in shadows(&own).into_iter().chain(shadows("pg_temp")) {
        attacker.does(&sql).await;
    }
    // Tables with our names, whose triggers note who writes.
    for table in ["effects", "queue", "downstreams", "meta", "outcomes", "requests", "inbox", "loot"] {
        attacker.does(&format!("CREATE TEMP TABLE {table} AS SELECT 1 AS id, 'x'::text AS name")).await;
        attacker
            .does(&format!(
                "CREATE FUNCTION pg_temp.note_{table}() RETURNS trigger LANGUAGE plpgsql AS
                 $f$BEGIN INSERT INTO public.loot VALUES (current_user, 'trigger of {table}'); RETURN NEW; END$f$"
            ))
            .await;
        attacker
            .does(&format!(
                "CREATE TRIGGER t BEFORE INSERT OR UPDATE ON pg_temp.{table} FOR EACH ROW EXECUTE FUNCTION pg_temp.note_{table}()"
            ))
            .await;
    }
    for path in ["pg_temp, ATTACKER, pg_catalog", "ATTACKER, pg_temp, pg_catalog, public"] {
        attacker.does(&format!("SET search_path = {path}")).await;
        for sql in CALLS {
            let sql = sql.replace("plain", &format!("plain of {}", path.len()));
            // It may fail by its own shadows; what it may not is run them as somebody else.
            drop(on_session(&mut attacker.session, &sql).await);
        }
        drop(on_session(&mut attacker.session, "SELECT * FROM aftercommit.status").await);
    }
    attacker.does("RESET search_path").await;
    assert_eq!(victims(db, &attacker).await, Vec::<String>::new());
    // The shadows do run: for their owner, who looks for them first.
    attacker.does("SET search_path = ATTACKER, pg_catalog").await;
    attacker.does("SELECT length('x'::text)").await;
    assert!(
        db.sql.number("SELECT count(*) FROM public.loot").await > 0,
        "no shadow ever ran: the test shows nothing"
    );
    attacker.leaves(db).await;
}

/// Workers and operators look up no name in `public`, where anybody may have put something.
async fn what_an_application_shadows_in_public_never_runs_as_a_worker(db: &TestDatabase) {
    let mut attacker = Attacker::enter(db).await;
    for sql in shadows("public") {
        attacker.does(&sql).await;
    }
    let database = db.url.rsplit('/').next().unwrap_or_default();
    let first = format!("ALTER DATABASE {database} SET search_path = public, pg_catalog");
    db.sql.execute(&first).await;
    let store = db.another_store().await;
    let worker = crate::support::Worker::start(
        &store,
        "w1",
        vec![crate::support::registered("pay", crate::support::key_terms())],
    )
    .await;
    attacker.does("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', 'k')").await;
    let claim = worker.claim_one("pay").await;
    worker.settle(Settling::of(&claim).succeed()).await;
    assert!(store.effect(claim.effect.id).await.expect("it is readable").is_some());
    store.maintain().await.expect("it works");
    db.sql.execute(&format!("ALTER DATABASE {database} RESET search_path")).await;
    assert_eq!(victims(db, &attacker).await, Vec::<String>::new());
    attacker.leaves(db).await;
}

/// What our functions write to has no triggers but ours; what the application writes to is its own business.
async fn a_trigger_on_an_applications_own_table_runs_as_the_application(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    let mut attacker = Attacker::enter(db).await;
    attacker.does("SET search_path = ATTACKER").await;
    attacker
        .does(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $f$BEGIN INSERT INTO public.loot VALUES (current_user, 'its own trigger'); PERFORM aftercommit.enqueue('pay', '{}', 'from a trigger'); RETURN NEW; END$f$",
        )
        .await;
    attacker.does("CREATE TABLE orders (id int); CREATE TRIGGER t AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note()").await;
    attacker.does("INSERT INTO orders VALUES (1)").await;
    assert_eq!(victims(db, &attacker).await, Vec::<String>::new());
    assert_eq!(db.sql.number("SELECT count(*) FROM public.loot").await, 1);
    for table in ["effects", "queue", "outcomes"] {
        let sql = format!(
            "CREATE TRIGGER t AFTER INSERT ON aftercommit.{table} FOR EACH ROW EXECUTE FUNCTION note()"
        );
        let refused = on_session(&mut attacker.session, &sql).await;
        assert!(refused.is_err(), "{sql}");
    }
    attacker.leaves(db).await;
}
