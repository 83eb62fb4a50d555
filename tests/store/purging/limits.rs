//! Defends: who purges may do no more than that, and keys are not dropped by a clock that nobody can believe.

use std::time::Duration;

use aftercommit::{
    state::State,
    store::{self, Acted, Options, Step},
    verb::Verb,
};

use crate::{
    store::{
        retention::{drop_all, in_state},
        stage::{HOUR, person},
    },
    support::{TestDatabase, on_every_database, on_postgres},
};

on_every_database! {
    keys_are_not_dropped_by_a_clock_that_jumped,
}

on_postgres! {
    the_workers_role_may_purge_and_the_operators_redact,
    neither_worker_nor_operator_may_touch_what_has_not_ended,
}

async fn the_workers_role_may_purge_and_the_operators_redact(db: &TestDatabase) {
    let as_role = async |role: &str| {
        let url = format!("{}?options=-c%20role%3D{role}", db.url);
        store::connect(&url, &Options { max_connections: 2, ..Options::default() })
            .await
            .expect("the role connects")
    };
    in_state(db, "a", State::Failed).await;
    let redacted = in_state(db, "b", State::Failed).await;
    let cancelled = in_state(db, "c", State::Cancelled).await;
    let operator = as_role("aftercommit_operator").await;
    let acted = operator.act(redacted, &Verb::Redact, &person(), None).await.expect("an operator may redact");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
    let worker = as_role("aftercommit_worker").await;
    for (step, effects) in [(Step::Payloads, 2), (Step::History, 3), (Step::Keys, 3)] {
        let batch = worker.drop_batch(step, Duration::ZERO, 10).await.expect("a worker may purge");
        assert_eq!(batch.effects, effects, "{step:?}");
    }
    worker.forget_unused(HOUR).await.expect("a worker may tidy up");
    operator.forget_unused(HOUR).await.expect("an operator may too");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.audit").await, 0, "of effects that are gone");
    assert!(db.store.effect(cancelled).await.expect("readable").is_none());
    for role in ["aftercommit_app", "aftercommit_viewer"] {
        for call in
            ["forget_audit(0)", "drop_payloads('{}')", "drop_history('{}')", "drop_keys('{}')", "redact(1)"]
        {
            let error = db.sql.refused(&format!("SET ROLE {role}; SELECT aftercommit.{call}")).await;
            assert!(error.to_string().contains("permission denied"), "{role}: {call}: {error}");
        }
    }
}

/// Promises 2 and 5, and that nobody erases what they have just done.
async fn neither_worker_nor_operator_may_touch_what_has_not_ended(db: &TestDatabase) {
    let states = [State::Ready, State::InFlight, State::InDoubt, State::Retrying];
    for state in states {
        in_state(db, state.as_str(), state).await;
    }
    in_state(db, "e", State::Cancelled).await;
    let young = "INSERT INTO aftercommit.audit (who, verb, reason) VALUES ('me', 'pause', 'why')";
    db.sql.execute(young).await;
    let old = "INSERT INTO aftercommit.audit (at, who, verb) VALUES (clock_timestamp() - interval '2 days', 'me', 'pause')";
    db.sql.execute(old).await;
    let all = "SELECT md5(string_agg(e::text, ' ' ORDER BY id)) FROM aftercommit.effects AS e";
    let log = "SELECT md5(string_agg(a::text, ' ' ORDER BY effect_id, token)) FROM aftercommit.attempts AS a";
    let (effects, attempts) = (db.sql.scalar(all).await, db.sql.scalar(log).await);
    let unfinished = "(ARRAY(SELECT id FROM aftercommit.queue))";
    for role in ["aftercommit_worker", "aftercommit_operator"] {
        for forbidden in [
            "UPDATE aftercommit.effects SET payload = '{}'",
            "UPDATE aftercommit.effects SET fingerprint = '\\x00'",
            "DELETE FROM aftercommit.effects",
            "UPDATE aftercommit.attempts SET error = 'none'",
            "DELETE FROM aftercommit.attempts",
            "DELETE FROM aftercommit.audit",
            "UPDATE aftercommit.audit SET who = 'you'",
        ] {
            let error = db.sql.refused(&format!("SET ROLE {role}; {forbidden}")).await;
            assert!(error.to_string().contains("permission denied"), "{role}: {forbidden}: {error}");
        }
        for step in ["drop_payloads", "drop_history", "drop_keys"] {
            db.sql
                .execute(&format!("SET ROLE {role}; SELECT aftercommit.{step}{unfinished}; RESET ROLE"))
                .await;
        }
        let erase = format!("SET ROLE {role}; SELECT aftercommit.forget_audit(-1000000); RESET ROLE");
        db.sql.execute(&erase).await;
    }
    let redact =
        "SET ROLE aftercommit_operator; SELECT aftercommit.redact(id) FROM aftercommit.queue; RESET ROLE";
    db.sql.execute(redact).await;
    assert_eq!(db.sql.scalar(all).await, effects, "what has not ended");
    assert_eq!(db.sql.scalar(log).await, attempts, "its log");
    let left = "SELECT count(*) FROM aftercommit.audit WHERE effect_id IS NULL";
    assert_eq!(db.sql.number(left).await, 1, "what was done two days ago is gone, what was done now is not");
}

async fn keys_are_not_dropped_by_a_clock_that_jumped(db: &TestDatabase) {
    let id = in_state(db, "pay", State::Succeeded).await;
    assert_eq!(drop_all(db, Step::Payloads).await + drop_all(db, Step::History).await, 2);
    // The last look was two days ago: by what the clock says, or did it jump?
    let last_look = async |at: String| {
        db.sql
            .execute(&format!("UPDATE aftercommit.retention SET looked_at = {at} WHERE step = 'keys'"))
            .await;
    };
    last_look(db.engine.before(db.engine.now(), HOUR * 48)).await;
    for _ in 0..2 {
        let batch = db.store.drop_batch(Step::Keys, Duration::ZERO, 10).await.expect("the step runs");
        let ahead = batch.ahead.expect("it is doubted, and goes on to be");
        assert!(batch.effects == 0 && !batch.more, "{batch:?}");
        assert!((HOUR * 47..HOUR * 49).contains(&ahead.now.since(ahead.last)), "{ahead:?}");
    }
    assert!(db.store.effect(id).await.expect("readable").is_some());
    db.store.believe_clock().await.expect("a person says that it is right");
    assert_eq!(drop_all(db, Step::Keys).await, 1);
    // Looks that follow each other are believed, found anything or not; so is a clock that was set back.
    let now = db.engine.now();
    for at in [db.engine.before(now, HOUR * 23), db.engine.after(now, HOUR)] {
        in_state(db, "again", State::Succeeded).await;
        drop_all(db, Step::Payloads).await;
        drop_all(db, Step::History).await;
        last_look(at).await;
        assert_eq!(drop_all(db, Step::Keys).await, 1);
    }
}
