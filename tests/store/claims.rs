//! Defends: a claim is exclusive, never more than asked for, oldest first, counted, and durable before anybody holds it.

use std::{collections::HashSet, time::Duration};

use aftercommit::{EffectId, clock::Timestamp, contract::Window, state::State, store::Claim};

use crate::support::{
    Settling, TestDatabase, WINDOW, Worker, key_terms, on_every_way, on_postgres, registered, want,
};

on_every_way! {
    a_claim_takes_no_more_than_asked_and_the_oldest_first,
    nothing_is_claimed_before_it_is_due,
    every_wanted_downstream_gets_its_slots,
    a_claim_is_counted_and_pins_what_it_is_sent_under,
    a_claim_hands_out_the_effect_as_it_was_written,
    two_workers_never_hold_the_same_effect,
}
on_postgres! { no_plan_claims_more_than_asked }

fn ids(claims: &[Claim]) -> Vec<EffectId> {
    claims.iter().map(|claim| claim.effect.id).collect()
}

/// Trap T10.
async fn a_claim_takes_no_more_than_asked_and_the_oldest_first(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let written = db.insert_many("pay", "k", 12).await;
    assert!(worker.claim("pay", 0).await.is_empty(), "no slot, no claim");
    let mut seen = Vec::new();
    for slots in [5, 1, 4, 10] {
        let claims = worker.claim("pay", slots).await;
        assert!(claims.len() <= usize::try_from(slots).expect("small"), "{} for {slots}", claims.len());
        seen.extend(ids(&claims));
    }
    assert_eq!(seen, written, "each once, in the order in which they were written");
    assert!(worker.claim("pay", 10).await.is_empty(), "all are taken");
}

async fn nothing_is_claimed_before_it_is_due(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let later = db.engine.after(db.engine.now(), Duration::from_secs(3600));
    let late = db.insert_with("pay", "late", &[("due_at", &later)]).await;
    let now = db.insert("pay", "now").await;
    assert_eq!(db.state(late).await, State::Scheduled);
    assert_eq!(ids(&worker.claim("pay", 10).await), [now]);
    db.shift_back("queue", "due_at", late, Duration::from_secs(3601)).await;
    assert_eq!(db.state(late).await, State::Ready, "the clock alone makes it ready");
    assert_eq!(ids(&worker.claim("pay", 10).await), [late]);
}

async fn every_wanted_downstream_gets_its_slots(db: &TestDatabase) {
    let downstreams = vec![registered("pay", key_terms()), registered("mail", key_terms())];
    let worker = Worker::start(&db.store, "w1", downstreams).await;
    db.insert_many("pay", "k", 50).await;
    let mails = db.insert_many("mail", "k", 3).await;
    let unserved = db.insert("other", "k").await;
    let wants = [want("pay", 4, &worker.ids), want("mail", 4, &worker.ids)];
    let claims = db.store.claim("w1", &wants).await.expect("claiming works");
    let of = |name: &str| claims.iter().filter(|claim| &*claim.effect.downstream == name).count();
    assert_eq!((of("pay"), of("mail")), (4, 3), "a long backlog takes no other downstream's slots");
    assert!(mails.iter().all(|id| ids(&claims).contains(id)));
    let tokens: HashSet<_> =
        claims.iter().map(|claim| (claim.effect.downstream.clone(), claim.token())).collect();
    assert_eq!(tokens.len(), 2, "one token per downstream: {tokens:?}");
    assert_eq!(db.state(unserved).await, State::Ready);
}

async fn a_claim_is_counted_and_pins_what_it_is_sent_under(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let id = db.insert("pay", "k").await;
    let before = db.now().await;
    let claim = worker.claim_one("pay").await;
    let after = db.now().await;
    let during = |at: Timestamp| before <= at && at <= after;
    assert_eq!((claim.number, claim.history.attempts, claim.history.tries), (1, 1, 1));
    assert!(!claim.history.uncertain && !claim.history.sent_before && claim.history.resend.is_none());
    assert!(
        during(claim.claimed_at) && during(claim.history.started_at),
        "on the database's clock: {claim:?}"
    );
    assert!(claim.history.first_sent_at.is_some_and(during), "{claim:?}");
    assert_eq!(claim.history.window_at_claim, Some(Window::For(WINDOW)));
    assert_eq!(claim.pinned, Some([7; 32]));
    let status = db.status(id).await;
    assert_eq!(status.state, State::InFlight);
    assert_eq!(status.worker.as_deref(), Some("w1"));
    assert_eq!(status.token, claim.token().get());
    assert_eq!(status.first_sent_at, claim.history.first_sent_at);
    let lease = status.lease_until.expect("a claim has a lease").since(claim.claimed_at);
    assert!(lease.abs_diff(crate::support::LEASE) < Duration::from_secs(1), "{lease:?}");
}

async fn a_claim_hands_out_the_effect_as_it_was_written(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let body = match db.engine {
        crate::support::Engine::Postgres => r"'\x00ff10'",
        crate::support::Engine::Sqlite => "x'00ff10'",
    };
    let id = db
        .insert_with(
            "pay",
            "k",
            &[
                ("operation", "'charge'"),
                ("body", body),
                ("content_type", "'application/octet-stream'"),
                ("headers", r#"'{"x-a": "1"}'"#),
                ("target", "'/a/b'"),
                ("metadata", r#"'{"order":"A-17"}'"#),
                ("trace_context", "'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'"),
            ],
        )
        .await;
    let claim = worker.claim_one("pay").await;
    let effect = &claim.effect;
    assert_eq!((effect.id, &*effect.downstream, effect.key.as_str()), (id, "pay", "k"));
    assert_eq!(effect.operation.as_deref(), Some("charge"));
    assert_eq!(effect.body.as_deref(), Some(&[0x00, 0xff, 0x10][..]));
    assert_eq!(effect.content_type.as_deref(), Some("application/octet-stream"));
    assert_eq!(effect.headers.as_deref(), Some(r#"{"x-a": "1"}"#), "byte for byte");
    assert_eq!(effect.target.as_deref(), Some("/a/b"));
    let metadata: serde_json::Value =
        serde_json::from_str(effect.metadata.as_deref().expect("metadata")).expect("JSON");
    assert_eq!(metadata, serde_json::json!({"order": "A-17"}));
    assert!(effect.trace_context.as_deref().is_some_and(|trace| trace.starts_with("00-4bf9")));
    assert_eq!(claim.pinned, None, "this worker's configuration does not have the operation");
}

async fn two_workers_never_hold_the_same_effect(db: &TestDatabase) {
    const EFFECTS: usize = 200;
    db.insert_many("pay", "k", EFFECTS).await;
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..4 {
        let store = db.another_store().await;
        workers.spawn(async move {
            let worker =
                Worker::start(&store, &format!("w{number}"), vec![registered("pay", key_terms())]).await;
            let mut held = Vec::new();
            loop {
                let claims = worker.claim("pay", 7).await;
                if claims.is_empty() {
                    return held;
                }
                assert!(claims.len() <= 7);
                for claim in &claims {
                    held.push(claim.effect.id);
                    let settled = worker.settle(Settling::of(claim).succeed()).await;
                    assert_eq!(settled, aftercommit::store::Settled::Done);
                }
            }
        });
    }
    let held: Vec<EffectId> = workers.join_all().await.into_iter().flatten().collect();
    let distinct: HashSet<EffectId> = held.iter().copied().collect();
    assert_eq!(held.len(), distinct.len(), "an effect was claimed twice");
    assert_eq!(distinct.len(), EFFECTS, "an effect was never claimed");
}

/// Trap T10: `LIMIT 2` below a join that is run once per row claims 50 of 50.
async fn no_plan_claims_more_than_asked(db: &TestDatabase) {
    const PLANS: [&str; 7] = [
        "plan_cache_mode = force_generic_plan",
        "plan_cache_mode = force_custom_plan",
        "enable_nestloop = off",
        "enable_indexscan = off",
        "enable_bitmapscan = off",
        "enable_tidscan = off",
        "enable_material = off",
    ];
    let name = db.sql.scalar("SELECT current_database()").await.expect("a name");
    for (number, plan) in PLANS.iter().enumerate() {
        let (pay, mail) = (format!("pay-{number}"), format!("mail-{number}"));
        let setting = plan.split(' ').next().expect("its name");
        db.sql.execute(&format!("ALTER DATABASE {name} SET {plan}")).await;
        let store = db.another_store().await;
        db.sql.execute(&format!("ALTER DATABASE {name} RESET {setting}")).await;
        let downstreams = vec![registered(&pay, key_terms()), registered(&mail, key_terms())];
        let worker = Worker::start(&store, "w1", downstreams).await;
        // Every lane holds more than is asked for: timed ones, new ones, and those of a transaction that commits late.
        let mut late = db.sql.begin().await;
        let insert = |lane: &str, due: &str| {
            format!(
                "INSERT INTO aftercommit.effects (downstream, idempotency_key, due_at)
                 SELECT d, '{lane}-' || n, {due} FROM unnest(ARRAY['{pay}', '{mail}']) AS d, generate_series(1, 50) AS n"
            )
        };
        late.execute(&insert("late", "clock_timestamp()")).await;
        db.sql.execute(&insert("timed", "clock_timestamp() + interval '1 hour'")).await;
        db.sql
            .execute("UPDATE aftercommit.queue SET due_at = due_at - interval '2 hours' WHERE lane = 't'")
            .await;
        db.sql.execute(&insert("new", "clock_timestamp()")).await;
        let wants = [want(&pay, 2, &worker.ids), want(&mail, 3, &worker.ids)];
        let mut claimed = 0;
        for round in 0..8 {
            let claims = store.claim("w1", &wants).await.expect("claiming works");
            let of = |name: &str| claims.iter().filter(|claim| &*claim.effect.downstream == name).count();
            assert_eq!((of(&pay), of(&mail)), (2, 3), "{plan}, round {round}");
            claimed += 5;
            let in_flight = format!(
                "SELECT count(*) FROM aftercommit.queue WHERE claimed AND downstream IN ('{pay}', '{mail}')"
            );
            assert_eq!(db.sql.number(&in_flight).await, claimed, "{plan}: what nobody was handed is claimed");
        }
        late.commit().await;
        for round in 0..4 {
            let claims = store.claim("w1", &wants).await.expect("claiming works");
            assert_eq!(claims.len(), 5, "{plan}, round {round} after the late commit");
        }
    }
}
