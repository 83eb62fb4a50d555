//! Trap T23: of many who decide about one effect at one moment, one is heard, and the others are told so.

use aftercommit::{EffectId, state::State};
use aftercommit_dashboard::Role;
use serde_json::{Value, json};

use super::{
    super::{
        Answer, Site,
        api::{by, failed, in_doubt, worker},
    },
    all_at_once, quiet, seen, site, with,
};
use crate::support::{TestDatabase, on_every_database};

on_every_database! {
    of_many_who_press_at_once_one_is_heard,
    of_two_who_resolve_otherwise_one_is_heard,
    what_many_resend_at_once_is_sent_once,
    what_many_reissue_at_once_is_reissued_once,
    of_many_who_pause_at_once_one_is_heard,
}

/// The wishes, sent at one time by different people.
async fn press(site: &Site, path: &str, wishes: &[Value]) -> Vec<Answer> {
    let ask = |(n, wish): (usize, &Value)| {
        let role = if n.is_multiple_of(2) { Role::Operator } else { Role::Admin };
        by(site, role, "POST", path).json(&wish.to_string())
    };
    all_at_once(wishes.iter().enumerate().map(ask).collect()).await
}

/// Which one was heard; all the others were told that it is not any more what they saw.
fn heard(answers: &[Answer]) -> usize {
    let heard: Vec<usize> = (0..answers.len()).filter(|n| answers[*n].status == 200).collect();
    assert_eq!(heard.len(), 1, "{answers:?}");
    for (n, refused) in answers.iter().enumerate().filter(|(n, _)| *n != heard[0]) {
        assert_eq!((refused.status, refused.problem().as_str()), (409, "stale"), "{n}: {refused:?}");
    }
    heard[0]
}

async fn audited(db: &TestDatabase, id: EffectId) -> usize {
    db.audit(Some(id), 100).await.len()
}

async fn of_many_who_press_at_once_one_is_heard(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let id = failed(db, &worker, "pay", "k").await;
    let wishes = vec![seen(db, id).await; 16];
    heard(&press(&site, &format!("effects/{id}/retry"), &wishes).await);
    assert_eq!((db.state(id).await, audited(db, id).await), (State::Ready, 1));
    assert_eq!(worker.claim("pay", 10).await.len(), 1);
    let due = db.insert("pay", "due").await;
    let wishes = vec![seen(db, due).await; 16];
    heard(&press(&site, &format!("effects/{due}/cancel"), &wishes).await);
    assert_eq!((db.state(due).await, audited(db, due).await), (State::Cancelled, 1));
}

async fn of_two_who_resolve_otherwise_one_is_heard(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    for round in 0..4 {
        let id = in_doubt(db, &worker, "mail", &format!("m{round}")).await;
        quiet(db, id).await;
        let now = seen(db, id).await;
        let wish =
            |found: &str| with(now.clone(), &json!({ "as": found, "reason": format!("I saw it {found}") }));
        let wishes: Vec<Value> = ["applied", "not_applied"].into_iter().cycle().take(12).map(wish).collect();
        let heard = heard(&press(&site, &format!("effects/{id}/resolve"), &wishes).await);
        let state = if heard.is_multiple_of(2) { State::Succeeded } else { State::Failed };
        assert_eq!((db.state(id).await, audited(db, id).await), (state, 1), "{heard} was heard");
        let why = db.audit(Some(id), 1).await[0].reason.clone();
        assert_eq!(why.as_deref(), wishes[heard]["reason"].as_str(), "and no other one's reason");
    }
    let ended = "SELECT count(*) FROM aftercommit.outcomes";
    assert_eq!(db.sql.number(ended).await, 4, "each of them ended once");
}

async fn what_many_resend_at_once_is_sent_once(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let id = in_doubt(db, &worker, "mail", "m").await;
    quiet(db, id).await;
    let words = json!({ "confirmation": format!("resend {id}"), "reason": "two mails do no harm" });
    let wishes = vec![with(seen(db, id).await, &words); 12];
    heard(&press(&site, &format!("effects/{id}/resend"), &wishes).await);
    assert_eq!(audited(db, id).await, 1);
    let claims = worker.claim("mail", 10).await;
    assert_eq!(claims.len(), 1, "{claims:?}");
    worker.settle(crate::support::Settling::of(&claims[0]).park("no answer again")).await;
    assert!(worker.claim("mail", 10).await.is_empty(), "one resend, not two");
    assert_eq!(db.log(id).await.len(), 2);
}

async fn what_many_reissue_at_once_is_reissued_once(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let id = failed(db, &worker, "pay", "order-17").await;
    let words = json!({ "confirmation": format!("reissue {id}"), "reason": "the bank forgot it" });
    let wishes = vec![with(seen(db, id).await, &words); 12];
    let answers = press(&site, &format!("effects/{id}/reissue"), &wishes).await;
    let heard = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(heard, 1, "{answers:?}");
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 409)), "{answers:?}");
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 2, "one new effect");
    assert!(db.status(id).await.superseded_by.is_some());
    assert_eq!(worker.claim("pay", 10).await.len(), 1);
}

async fn of_many_who_pause_at_once_one_is_heard(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    let wish = |n: usize| json!({ "reason": format!("reason {n}") });
    let answers = press(&site, "downstreams/pay/pause", &(0..8).map(wish).collect::<Vec<_>>()).await;
    let heard: Vec<usize> = (0..8).filter(|n| answers[*n].status == 200).collect();
    assert_eq!(heard.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 409)), "{answers:?}");
    let rows = db.audit(None, 100).await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    let why = format!("reason {}", heard[0]);
    assert_eq!((rows[0].verb.as_str(), rows[0].reason.as_deref()), ("pause", Some(why.as_str())));
}
