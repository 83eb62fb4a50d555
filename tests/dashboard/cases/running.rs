//! DASH-08, trap T28: what is being sent is sent once, whatever anybody presses meanwhile. A cancel is a request by then, and pages say
//! so before, while it lasts, and afterwards.

use std::sync::Arc;

use aftercommit::{
    EffectId,
    contract::OnUnknown,
    outcome::{About, Finding, Outcome, Phase},
    state::State,
};
use aftercommit_dashboard::Role;
use serde_json::{Value, json};
use tokio::sync::Barrier;

use super::{
    super::{
        Site,
        api::{assert_problem, body, by, get},
        forms,
    },
    SOON, engine, seen, site, with, words,
};
use crate::{
    engine::{Running, reaches},
    support::{Script, Scripted, TestDatabase, answer, key_terms, none_terms, on_every_database, within},
};

on_every_database! {
    what_is_being_sent_is_sent_once_whoever_presses_what,
    what_becomes_of_a_cancel_in_flight_is_told,
}

/// Meets the call in its middle, and again where it may go on.
async fn meet(barrier: &Barrier) {
    within(SOON, "the call is open", barrier.wait()).await;
}

/// What two people press at one time, each in a browser of theirs.
async fn both_press(site: &Site, id: EffectId, verb: &str, wish: &Value) -> [super::Answer; 2] {
    let path = format!("effects/{id}/{verb}");
    let press = async |role| by(site, role, "POST", &path).json(&wish.to_string()).send().await;
    let (one, other) = tokio::join!(press(Role::Operator), press(Role::Admin));
    [one, other]
}

async fn what_is_being_sent_is_sent_once_whoever_presses_what(db: &TestDatabase) {
    let barrier = Arc::new(Barrier::new(2));
    let pay = Scripted::queue([Script::Meet(Arc::clone(&barrier), answer(200, r#"{"id":"ch_1"}"#))]);
    let site = site(db).await;
    let worker = Running::start(engine(db, "w1", &[("pay", &pay, key_terms())]));
    let id = db.insert("pay", "order-17").await;
    meet(&barrier).await;
    let now = seen(db, id).await;
    assert_eq!(now["state"], "in_flight");
    let reason = "it hangs";
    for (verb, more) in [
        ("retry", json!({})),
        ("resend", json!({ "reason": reason, "confirmation": format!("resend {id}") })),
        ("resolve", json!({ "reason": reason, "as": "applied" })),
        ("resolve", json!({ "reason": reason, "as": "not_applied" })),
        (
            "reissue",
            json!({ "reason": reason, "confirmation": format!("reissue {id}"), "resolve": "not_applied" }),
        ),
        ("redact", json!({ "reason": reason })),
        ("skip", json!({})),
    ] {
        for refused in both_press(&site, id, verb, &with(now.clone(), &more)).await {
            assert_problem(&refused, 409, "state-forbids");
        }
        assert_eq!(seen(db, id).await, now, "{verb} changed nothing");
    }
    for (path, says) in [
        ("retry", "Wait for the attempt to end."),
        ("redact", "Its payload may be sent again: wait for the attempt to end."),
    ] {
        let page = words(&site, &format!("effects/{id}/{path}")).await;
        assert!(page.contains("This cannot be done now") && page.contains(says), "{path}: {page}");
    }
    // Of everything that can be pressed one thing is taken, and that takes nothing back.
    for taken in both_press(&site, id, "cancel", &now).await {
        assert_eq!((taken.status, &body(&taken)["state"]), (200, &"in_flight".into()), "{taken:?}");
    }
    meet(&barrier).await;
    reaches(db, id, State::Succeeded).await;
    worker.drain().await;
    assert_eq!((pay.calls().len(), pay.most_open()), (1, 1), "one request, although two said cancel");
    let page = words(&site, &format!("effects/{id}")).await;
    assert!(page.contains("Nothing: it was applied.") && page.contains("which was too late."), "{page}");
    let shown = get(&site, &format!("effects/{id}")).await;
    assert_eq!((&shown["state"], &shown["attempts"]), (&"succeeded".into(), &1.into()), "{shown}");
    assert_eq!(shown["attempt_log"][0]["outcome"], "applied", "{shown}");
    let audit = db.audit(Some(id), 10).await;
    assert!(audit.len() == 2 && audit.iter().all(|row| row.verb == "cancel"), "{audit:?}");
}

/// How an attempt ended that somebody wanted to cancel, and what is said then.
struct Ending {
    downstream: &'static str,
    outcome: Outcome,
    state: State,
    says: &'static str,
}

async fn what_becomes_of_a_cancel_in_flight_is_told(db: &TestDatabase) {
    let ended = |finding, phase, why: &str| Outcome::new(finding, phase, why);
    let endings = [
        Ending {
            downstream: "refused",
            outcome: ended(Finding::NotApplied, Phase::Connect, "connection refused"),
            state: State::Cancelled,
            says: "Nothing: it was called off before it was applied.",
        },
        Ending {
            downstream: "declined",
            outcome: ended(Finding::Rejected(About::ThisAttempt), Phase::Done, "card declined"),
            state: State::Failed,
            says: "it was never applied",
        },
        Ending {
            downstream: "silent",
            outcome: ended(Finding::Unknown, Phase::Send, "no answer within 20 s"),
            state: State::InDoubt,
            says: "In doubt because cancelled while its outcome was unknown",
        },
        Ending {
            downstream: "mail",
            outcome: ended(Finding::Unknown, Phase::Send, "no answer after the final dot"),
            state: State::InDoubt,
            says: "It may or may not have been applied",
        },
    ];
    let site = site(db).await;
    for ending in endings {
        let barrier = Arc::new(Barrier::new(2));
        let scripted = Scripted::queue([Script::Meet(Arc::clone(&barrier), ending.outcome)]);
        let terms = if ending.downstream == "mail" { none_terms(OnUnknown::Hold) } else { key_terms() };
        let worker = Running::start(engine(db, "w1", &[(ending.downstream, &scripted, terms)]));
        let id = db.insert(ending.downstream, "k").await;
        meet(&barrier).await;
        cancelled_by_a_page(&site, id).await;
        meet(&barrier).await;
        reaches(db, id, ending.state).await;
        worker.drain().await;
        assert_eq!(scripted.calls().len(), 1, "{}: no further attempt", ending.downstream);
        let page = words(&site, &format!("effects/{id}")).await;
        assert!(page.contains(ending.says), "{}: {page}", ending.downstream);
        assert!(page.contains("operator: cancel"), "{}: who asked is told: {page}", ending.downstream);
    }
}

/// The page says what a cancel is before it is asked for, right after that, and as long as it lasts.
async fn cancelled_by_a_page(site: &Site, id: EffectId) {
    let form = forms::page(site, &format!("effects/{id}/cancel")).await;
    let said = super::text(&form.body);
    assert!(
        said.contains("It is in flight, so this is a request: no further attempt is made after this one"),
        "{said}"
    );
    let sent = forms::send(site, &format!("effects/{id}/cancel"), &forms::form(&form, &[])).await;
    let next = forms::to(&sent);
    assert!(next.ends_with(&format!("effects/{id}?done=cancel")), "{next}");
    let done = words(site, &format!("effects/{id}?done=cancel")).await;
    assert!(done.contains("If it was in flight, the outcome of that attempt decides."), "{done}");
    let asked =
        ["operator asked to cancel it at ", "That is a request: what is being sent is not called back."];
    for says in asked {
        assert!(words(site, &format!("effects/{id}")).await.contains(says), "{says}");
        let told = get(site, &format!("effects/{id}")).await["what_follows"].to_string();
        assert!(told.contains(says), "{says}: {told}");
    }
}
