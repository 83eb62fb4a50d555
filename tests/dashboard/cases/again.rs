//! DASH-10: what had used up its attempts and is retried by somebody is attempted at once, as if for the first time, and is the same
//! request all the same.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    engine::Stop,
    outcome::{Finding, Outcome, Phase},
    state::State,
    store::RegisteredTerms,
};

use super::{
    super::api::{get, post},
    SOON, engine, seen, site,
};
use crate::support::{Script, Scripted, TestDatabase, eventually, key_terms, on_every_database};

on_every_database! {
    a_retry_is_taken_up_by_the_next_round_with_a_whole_budget_the_same_key_and_its_history,
}

/// Three attempts, one right after the other.
fn three() -> RegisteredTerms {
    let mut terms = key_terms();
    terms.policy.max_attempts = 3;
    (terms.policy.initial, terms.policy.max) = (Duration::from_millis(1), Duration::from_millis(2));
    terms
}

/// One round of a worker, which is none of those that went before.
async fn round(db: &TestDatabase, pay: &Arc<Scripted>, name: &str) {
    engine(db, name, &[("pay", pay, three())]).run_once(Stop::default()).await.expect("a round");
}

/// Rounds until it is in this state.
async fn rounds(db: &TestDatabase, pay: &Arc<Scripted>, id: EffectId, state: State) {
    let what = format!("round by round effect {id} becomes {state}");
    eventually(SOON, &what, async || {
        round(db, pay, "w1").await;
        (db.state(id).await == state).then_some(())
    })
    .await;
}

async fn a_retry_is_taken_up_by_the_next_round_with_a_whole_budget_the_same_key_and_its_history(
    db: &TestDatabase,
) {
    // It was reached, and said that it did nothing: five times.
    let busy = Script::Answer(Outcome::new(Finding::NotApplied, Phase::Done, "429: not now"));
    let pay = Scripted::queue(vec![busy; 5]);
    let id = db.insert_with("pay", "order-17/charge", &[("payload", "'{\"amount\": 1500}'")]).await;
    rounds(db, &pay, id, State::Failed).await;
    let before = db.log(id).await;
    assert_eq!((before.len(), db.status(id).await.attempts), (3, 3), "its attempts were used up");
    let site = site(db).await;
    let retried = post(&site, &format!("effects/{id}/retry"), &seen(db, id).await).await;
    assert_eq!(retried.status, 200, "{retried:?}");
    round(db, &pay, "w2").await;
    assert_eq!(pay.calls().len(), 4, "the very next round attempted it");
    assert!(!db.state(id).await.is_terminal(), "the fourth attempt was the first of three");
    rounds(db, &pay, id, State::Succeeded).await;
    let calls = pay.calls();
    assert_eq!(calls.iter().map(|call| call.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    for call in &calls {
        assert_eq!((&*call.key, &*call.bytes), ("order-17/charge", &br#"{"amount": 1500}"#[..]), "{call:?}");
    }
    let shown = get(&site, &format!("effects/{id}")).await;
    assert_eq!((&shown["state"], &shown["attempts"]), (&"succeeded".into(), &6.into()), "{shown}");
    let log = db.log(id).await;
    assert_eq!((log.len(), &log[..3]), (6, &before[..]), "what was before is kept");
    let audit = db.audit(Some(id), 10).await;
    assert_eq!(audit.len(), 1, "{audit:?}");
    let (from, to) = (audit[0].from_state.as_deref(), audit[0].to_state.as_deref());
    assert_eq!((audit[0].verb.as_str(), from, to), ("retry", Some("failed"), Some("ready")));
}
