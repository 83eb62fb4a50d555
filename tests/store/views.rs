//! Defends: what people and scripts read is true: states, counts, why something does not move.

use std::collections::BTreeMap;

use aftercommit::{
    EffectId,
    state::State,
    store::{Filter, PAGE_MAX},
    verb::Verb,
};

use super::stage::{Stage, person};
use crate::support::{Settling, TestDatabase, on_every_database};

on_every_database! {
    the_views_have_the_columns_of_the_interface,
    the_views_show_every_state,
    counts_are_exact,
    lists_are_newest_first_and_paged,
    an_effect_that_nobody_serves_says_so,
    a_paused_downstream_holds_its_effects,
    downstreams_are_listed_with_their_backlog,
    the_log_view_holds_every_attempt,
}

const STATUS: &str = "id downstream operation idempotency_key state held_by attempts due_at first_sent_at safe_until \
                      lease_until worker last_outcome last_error response_status response metadata superseded_by \
                      created_at finished_at";
const ATTEMPT_LOG: &str =
    "effect_id attempt token worker started_at ended_at phase outcome response_status error late";

async fn the_views_have_the_columns_of_the_interface(db: &TestDatabase) {
    let wanted =
        [("status", STATUS), ("pending", STATUS), ("unfinished", STATUS), ("attempt_log", ATTEMPT_LOG)];
    for (view, columns) in wanted {
        let found = db.sql.columns(&format!("aftercommit.{view}")).await;
        let promised: Vec<&str> = columns.split_whitespace().collect();
        assert_eq!(found[..promised.len()], promised, "{view} begins with the promised columns");
        let more: Vec<&str> = found[promised.len()..].iter().map(String::as_str).collect();
        let may = ["token", "response_raw", "response_truncated", "enqueued_by"];
        assert!(more.iter().all(|column| may.contains(column)), "{view} has more: {more:?}");
    }
}

const REACHABLE: [State; 9] = [
    State::Scheduled,
    State::Ready,
    State::InFlight,
    State::Retrying,
    State::InDoubt,
    State::Succeeded,
    State::Failed,
    State::Cancelled,
    State::Expired,
];

async fn one_of_each(db: &TestDatabase) -> BTreeMap<State, EffectId> {
    let mut ids = BTreeMap::new();
    for state in REACHABLE {
        let stage = Stage::by_key(db, &format!("at-{state}")).await;
        ids.insert(state, stage.reach(db, "k", state).await);
    }
    ids
}

async fn states_in(db: &TestDatabase, view: &str) -> BTreeMap<i64, String> {
    let rows = db.sql.rows(&format!("SELECT id, state FROM aftercommit.{view}")).await;
    rows.into_iter()
        .map(|row| {
            let text = |column: &str| row[column].clone().expect("never null");
            (text("id").parse().expect("a number"), text("state"))
        })
        .collect()
}

async fn the_views_show_every_state(db: &TestDatabase) {
    let ids = one_of_each(db).await;
    let expected = |wanted: fn(State) -> bool| -> BTreeMap<i64, String> {
        let chosen = ids.iter().filter(|(state, _)| wanted(**state));
        chosen.map(|(state, id)| (id.get(), state.as_str().to_owned())).collect()
    };
    assert_eq!(states_in(db, "status").await, expected(|_| true));
    assert_eq!(states_in(db, "pending").await, expected(State::is_pending));
    assert_eq!(states_in(db, "unfinished").await, expected(|state| !state.is_terminal()));
    for (state, id) in ids {
        assert_eq!(db.state(id).await, state, "the tools and the view agree");
    }
}

/// What `counts` must say: the rows of the view, counted.
async fn counted(db: &TestDatabase) -> BTreeMap<(String, State), u64> {
    let rows = db
        .sql
        .rows("SELECT downstream, state, count(*) AS n FROM aftercommit.status GROUP BY downstream, state")
        .await;
    rows.into_iter()
        .map(|row| {
            let text = |column: &str| row[column].clone().expect("never null");
            let state = text("state").parse().expect("a state");
            ((text("downstream"), state), text("n").parse().expect("a number"))
        })
        .collect()
}

async fn counts(db: &TestDatabase) -> BTreeMap<(String, State), u64> {
    let counts = db.store.counts().await.expect("counts are readable");
    let mut seen = BTreeMap::new();
    for count in counts {
        let twice = seen.insert((count.downstream.clone(), count.state), count.effects);
        assert!(twice.is_none(), "{count:?} is given twice");
    }
    seen.retain(|_, effects| *effects > 0);
    seen
}

async fn counts_are_exact(db: &TestDatabase) {
    assert!(counts(db).await.is_empty());
    one_of_each(db).await;
    let stage = Stage::by_key(db, "pay").await;
    for number in 0..4 {
        stage.reach(db, &format!("ok-{number}"), State::Succeeded).await;
    }
    let failed = stage.reach(db, "no", State::Failed).await;
    db.insert_many("unknown", "k", 3).await;
    assert_eq!(counts(db).await, counted(db).await);
    db.store.act(failed, &Verb::Retry, &person(), None).await.expect("acting works");
    assert_eq!(counts(db).await, counted(db).await, "a retry takes it out of the failed");
    for _ in 0..2 {
        db.store.maintain().await.expect("maintenance works");
        assert_eq!(counts(db).await, counted(db).await, "folding changes no sum");
    }
    let mut tx = db.sql.begin().await;
    tx.execute("INSERT INTO aftercommit.effects (downstream, idempotency_key) VALUES ('pay', 'rolled back')")
        .await;
    tx.rollback().await;
    assert_eq!(counts(db).await, counted(db).await);
}

async fn lists_are_newest_first_and_paged(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let mut written = db.insert_many("pay", "k", 7).await;
    let mail = db.insert("mail", "k-3").await;
    let done = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&done).succeed()).await;
    let list = async |filter: Filter| -> Vec<EffectId> {
        let page = db.store.effects(&filter).await.expect("a page");
        page.effects.iter().map(|status| status.id).collect()
    };
    let all = Filter { limit: 100, ..Filter::default() };
    written.push(mail);
    written.reverse();
    assert_eq!(list(all.clone()).await, written);
    let first = list(Filter { limit: 3, ..all.clone() }).await;
    let second = list(Filter { limit: 3, before: first.last().copied(), ..all.clone() }).await;
    assert_eq!([first, second].concat(), written[..6]);
    let by_key = Filter { key: Some("k-3".to_owned()), ..all.clone() };
    assert_eq!(list(by_key.clone()).await.len(), 2);
    assert_eq!(list(Filter { downstream: Some("mail".to_owned()), ..by_key }).await, [mail]);
    for state in State::ALL {
        let of = Filter { states: vec![state], ..all.clone() };
        let expected = match state {
            State::Succeeded => 1,
            State::Ready => 7,
            State::Waiting
            | State::Scheduled
            | State::InFlight
            | State::Retrying
            | State::InDoubt
            | State::Failed
            | State::Cancelled
            | State::Expired => 0,
        };
        assert_eq!(list(of.clone()).await.len(), expected, "{state}");
        let of_pay = Filter { downstream: Some("pay".to_owned()), ..of };
        assert!(list(of_pay).await.len() <= expected, "{state}");
    }
    assert!(list(Filter { limit: u32::MAX, ..all }).await.len() <= usize::try_from(PAGE_MAX).expect("small"));
}

async fn held_by(db: &TestDatabase, id: EffectId) -> Option<String> {
    db.status(id).await.held_by
}

async fn an_effect_that_nobody_serves_says_so(db: &TestDatabase) {
    let id = db.insert("pay", "k").await;
    assert_eq!(held_by(db, id).await.as_deref(), Some("unserved"), "never configured");
    let stage = Stage::by_key(db, "pay").await;
    assert_eq!(held_by(db, id).await, None, "a live worker serves it");
    let other = db.insert("mail", "k").await;
    assert_eq!(held_by(db, other).await.as_deref(), Some("unserved"), "the live worker does not serve that");
    db.store.leave("w1").await.expect("a worker may leave");
    assert_eq!(held_by(db, id).await.as_deref(), Some("unserved"), "at once");
    drop(stage);
    Stage::by_key(db, "pay").await;
    let passed = db.engine.before(db.engine.now(), std::time::Duration::from_secs(40));
    db.sql.execute(&format!("UPDATE aftercommit.workers SET seen_at = {passed}")).await;
    assert_eq!(held_by(db, id).await.as_deref(), Some("unserved"), "it has not reported for long");
    db.store.renew("w1", &[]).await.expect("renewing works");
    assert_eq!(held_by(db, id).await, None, "it reported");
}

async fn a_paused_downstream_holds_its_effects(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let id = db.insert("pay", "k1").await;
    let sql =
        format!("UPDATE aftercommit.downstreams SET paused_at = {}, paused_by = 'ann'", db.engine.now());
    db.sql.execute(&sql).await;
    let status = db.status(id).await;
    assert_eq!(
        (status.state, status.held_by.as_deref()),
        (State::Ready, Some("pause")),
        "the state is the same"
    );
    db.store.leave(&stage.worker.name).await.expect("a worker may leave");
    assert_eq!(held_by(db, id).await.as_deref(), Some("pause"));
    db.sql.execute("UPDATE aftercommit.downstreams SET paused_at = NULL").await;
    assert_eq!(held_by(db, id).await.as_deref(), Some("unserved"));
}

async fn downstreams_are_listed_with_their_backlog(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let oldest = db.insert("pay", "k1").await;
    let oldest_due = db.status(oldest).await.due_at;
    db.insert("pay", "k2").await;
    let mail = Stage::hold(db, "mail").await;
    for state in [State::InDoubt, State::InFlight, State::Failed] {
        mail.reach(db, state.as_str(), state).await;
    }
    db.insert("typo", "k").await;
    let found = db.store.downstreams().await.expect("readable");
    let of =
        |name: &str| found.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("{name}: {found:?}"));
    let (pay, mails, typo) = (of("pay"), of("mail"), of("typo"));
    assert_eq!((pay.kind.as_deref(), pay.pending, pay.in_flight, pay.failed), (Some("http"), 2, 0, 0));
    assert_eq!(pay.oldest_due_at, oldest_due);
    assert_eq!((mails.pending, mails.in_flight, mails.in_doubt, mails.failed), (0, 1, 1, 1));
    assert_eq!(
        (typo.kind.as_deref(), typo.pending, typo.workers),
        (None, 1, 0),
        "a name that only effects use"
    );
    assert_eq!(found.len(), 3);
    drop(stage);
}

async fn the_log_view_holds_every_attempt(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let claim = stage.claimed(db, "k").await;
    let id = claim.effect.id;
    stage.done(Settling::of(&claim).retry_unknown(db.now().await)).await;
    let again = stage.worker.claim_one("pay").await;
    stage.done(Settling::of(&again).succeed()).await;
    let first = stage.claimed(db, "first").await;
    stage.done(Settling::of(&first).succeed()).await;
    let rows = db.sql.rows("SELECT * FROM aftercommit.attempt_log ORDER BY effect_id, attempt").await;
    let seen: Vec<_> = rows
        .iter()
        .map(|row| {
            ["effect_id", "attempt", "phase", "outcome"].map(|column| row[column].clone().unwrap_or_default())
        })
        .collect();
    let expected = [
        [id.to_string(), "1".to_owned(), "send".to_owned(), "unknown".to_owned()],
        [id.to_string(), "2".to_owned(), "done".to_owned(), "applied".to_owned()],
        [first.effect.id.to_string(), "1".to_owned(), "done".to_owned(), "applied".to_owned()],
    ];
    assert_eq!(seen, expected);
}
