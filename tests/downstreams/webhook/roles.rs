//! Who may say where signed messages go (PostgreSQL): nobody, unless somebody lets them.

use crate::support::{TestDatabase, close_session, on_postgres, on_session};

on_postgres! {
    an_application_keeps_endpoints_only_where_it_was_let,
    an_event_is_written_once_for_each_endpoint_of_a_customer,
}

async fn an_application_keeps_endpoints_only_where_it_was_let(db: &TestDatabase) {
    let name = format!("app_{}", uuid::Uuid::new_v4().simple());
    db.sql.execute(&format!("CREATE ROLE {name} LOGIN IN ROLE aftercommit_app")).await;
    let mut session = db.sql.session().await;
    on_session(&mut session, &format!("SET SESSION AUTHORIZATION {name}")).await.expect("a superuser may");
    let put =
        |url: &str| format!("SELECT aftercommit.put_endpoint('hooks', 'acme', '{url}', 'env:HOOK_ACME')");
    for refused in [
        put("https://a.example/x"),
        "SELECT aftercommit.drop_endpoint('hooks', 'acme')".to_owned(),
        "SELECT aftercommit.switch_endpoint('hooks', 'acme', NULL, 'me', 'mine')".to_owned(),
        "SELECT aftercommit.note_endpoint('hooks', 'acme', NULL, true, NULL, 'me')".to_owned(),
        "SELECT * FROM aftercommit.endpoints".to_owned(),
        "INSERT INTO aftercommit.endpoints (downstream, name, url, secrets) VALUES ('hooks', 'a', 'https://a', 'env:A')".to_owned(),
    ] {
        let error = on_session(&mut session, &refused).await.expect_err(&refused).to_string();
        assert!(error.contains("permission denied"), "{refused}: {error}");
    }
    db.sql
        .execute(&format!(
            "GRANT EXECUTE ON FUNCTION aftercommit.put_endpoint, aftercommit.drop_endpoint TO {name}"
        ))
        .await;
    on_session(&mut session, &put("https://a.example/x")).await.expect("it was let");
    for wrong in [
        put("ftp://a.example/"),
        put("https://a.example/a b"),
        put("https://a.example/x").replace("env:HOOK_ACME", "whsec_AAAA"),
    ] {
        on_session(&mut session, &wrong).await.expect_err(&wrong);
    }
    let disabled = async || {
        let (_now, rows) = db.store.endpoints("hooks").await.expect("readable");
        rows[0].disabled.is_some()
    };
    let gone =
        "SELECT aftercommit.note_endpoint('hooks', 'acme', 'https://a.example/x', true, 'HTTP 410', 'w')";
    db.sql.execute(gone).await;
    on_session(&mut session, &put("https://a.example/x")).await.expect("it was let");
    assert!(disabled().await, "the same place is not another one");
    on_session(&mut session, &put("https://a.example/y")).await.expect("it was let");
    assert!(!disabled().await, "another place is tried");
    on_session(&mut session, "SELECT aftercommit.drop_endpoint('hooks', 'acme')").await.expect("it was let");
    assert!(db.store.endpoints("hooks").await.expect("readable").1.is_empty());
    let audit = db.audit(None, 10).await;
    assert_eq!(audit[1].reason.as_deref(), Some("acme: enabled again; it was disabled: HTTP 410"));
    let rows: Vec<_> = audit.iter().map(|row| (row.verb.as_str(), row.who.as_str())).collect();
    let name_of = |verb| (verb, name.as_str());
    assert_eq!(
        rows,
        [
            name_of("drop_endpoint"),
            name_of("put_endpoint"),
            ("disable_endpoint", "w"),
            name_of("put_endpoint")
        ]
    );
    close_session(session).await;
    db.sql.execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}")).await;
}

/// The statement of the documentation.
async fn an_event_is_written_once_for_each_endpoint_of_a_customer(db: &TestDatabase) {
    db.sql.execute("CREATE TABLE subscriptions (customer text, endpoint text, events text[])").await;
    db.sql
        .execute(
            "INSERT INTO subscriptions VALUES ('acme', 'a-1', '{order.paid}'), ('acme', 'a-2', '{order.paid,x}'), \
             ('acme', 'a-3', '{x}'), ('other', 'o-1', '{order.paid}')",
        )
        .await;
    let fan_out = "INSERT INTO aftercommit.effects (downstream, operation, target, idempotency_key, payload) \
         SELECT 'hooks', 'order.paid', s.endpoint, aftercommit.derive_key('hooks', 'order-17/paid', s.endpoint), \
                '{\"type\":\"order.paid\"}' \
         FROM subscriptions AS s WHERE s.customer = 'acme' AND 'order.paid' = ANY (s.events)";
    assert_eq!(db.sql.execute(fan_out).await, 2);
    let targets =
        db.sql.scalar("SELECT string_agg(target, ' ' ORDER BY target) FROM aftercommit.effects").await;
    assert_eq!(targets.as_deref(), Some("a-1 a-2"));
    let again = db.sql.refused(fan_out).await.to_string();
    assert!(again.contains("duplicate key"), "the same event is the same effects: {again}");
}
