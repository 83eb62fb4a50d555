//! What a bulk will do is told before it is begun: what will be refused is no part of it, and who retries what a person resolved knows
//! it. What became of it is told as it was.

use std::time::Duration;

use aftercommit::{
    EffectId,
    state::State,
    store::Acted,
    verb::{Actor, Resolved, Verb},
};
use serde_json::{Value, json};

use super::{
    Site,
    api::{assert_problem, body, failed, get, in_doubt, post, site, worker},
    forms::{form, page, send, to},
};
use crate::support::{Engine, TestDatabase, eventually, on_every_database};

on_every_database! {
    what_would_be_refused_is_no_part_of_the_list,
    what_may_still_travel_is_left_alone_and_told,
    a_retry_tells_what_a_person_resolved_and_what_may_have_been_sent,
    failures_gather_what_people_said_and_leave_out_what_is_superseded,
    each_figure_of_a_cause_leads_to_the_effects_it_counts,
    all_failures_can_be_acted_on_by_who_may,
    hostile_names_stand_in_a_bulk_as_they_are,
}

const SOON: Duration = Duration::from_secs(60);

fn ann(reason: &str) -> Actor {
    Actor { who: "ann".to_owned(), reason: Some(reason.to_owned()), confirmed: true, ..Actor::default() }
}

async fn act(db: &TestDatabase, id: EffectId, verb: Verb, reason: &str) {
    let acted = db.store.act(id, &verb, &ann(reason), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(..)), "{acted:?}");
}

/// A retry could only replay the refusal of this one.
async fn refusal_is_stored(db: &TestDatabase, id: EffectId) {
    let stored = if db.engine == Engine::Postgres { "true" } else { "1" };
    let sql = format!("UPDATE aftercommit.outcomes SET refusal_stored = {stored} WHERE effect_id = {id}");
    assert_eq!(db.sql.execute(&sql).await, 1);
}

fn retry_failed(dry_run: bool) -> Value {
    json!({ "verb": "retry", "filter": { "states": ["failed"] }, "dry_run": dry_run })
}

/// The bulk that an answer leads to, once it has ended, and its page.
async fn ended(site: &Site, place: &str) -> (Value, String) {
    let number = place.split("bulk/").nth(1).and_then(|rest| rest.split('?').next()).expect("a number");
    let bulk = eventually(SOON, "the bulk ends", async || {
        let bulk = get(site, &format!("bulk/{number}")).await;
        (!bulk["finished_at"].is_null()).then_some(bulk)
    })
    .await;
    (bulk, page(site, &format!("bulk/{number}")).await.body)
}

async fn what_would_be_refused_is_no_part_of_the_list(db: &TestDatabase) {
    let worker = worker(db).await;
    let mut ids = Vec::new();
    for key in ["a", "b", "c", "d"] {
        ids.push(failed(db, &worker, "pay", key).await);
    }
    refusal_is_stored(db, ids[0]).await;
    act(db, ids[1], Verb::Reissue { resolve: None }, "a new key").await;
    let site = site(db).await;
    let told = body(&post(&site, "bulk", &retry_failed(true)).await);
    assert_eq!((&told["effects"], &told["by_state"]), (&2.into(), &json!({ "failed": 2 })), "{told}");
    let refused = told["refused"].as_array().expect("a list");
    let reasons: Vec<_> =
        refused.iter().map(|one| (one["reason"].as_str(), one["effects"].as_u64())).collect();
    assert!(reasons.contains(&(Some("superseded"), Some(1))), "{told}");
    assert!(reasons.contains(&(Some("refusal_stored"), Some(1))) && reasons.len() == 2, "{told}");
    let asked = page(&site, "bulk/new?q=state:failed&verb=retry").await;
    for words in
        ["Retry 2 effects", "2 more match and are left alone", "1 effect: superseded by a new effect"]
    {
        assert!(asked.body.contains(words), "{words}: {asked:?}");
    }
    let (bulk, shown) = ended(&site, to(&send(&site, "bulk/new", &form(&asked, &[])).await)).await;
    assert_eq!(
        (&bulk["total"], &bulk["done"], &bulk["refused"]),
        (&2.into(), &2.into(), &0.into()),
        "{bulk}"
    );
    assert!(shown.contains("Finished: 2 done<"), "{shown}");
    // Of what is left nothing can be retried.
    let told = body(&post(&site, "bulk", &retry_failed(true)).await);
    assert_eq!(told["effects"], 0, "{told}");
    let refused = post(&site, "bulk", &retry_failed(false)).await;
    assert_problem(&refused, 409, "state-forbids");
    assert!(refused.body.contains("superseded by a new effect"), "{refused:?}");
    let asked = page(&site, "bulk/new?q=state:failed&verb=retry").await;
    assert!(
        asked.body.contains("There is nothing to do.") && asked.body.contains("2 match and are left alone"),
        "{asked:?}"
    );
    assert!(!asked.body.contains("name=\"reason\""), "nothing is offered: {asked:?}");
}

async fn what_may_still_travel_is_left_alone_and_told(db: &TestDatabase) {
    let worker = worker(db).await;
    let (quiet, travels) =
        (in_doubt(db, &worker, "mail", "quiet").await, in_doubt(db, &worker, "mail", "travels").await);
    for (id, at) in [
        (quiet, db.engine.before(db.engine.now(), Duration::from_secs(3_600))),
        (travels, db.engine.after(db.engine.now(), Duration::from_secs(3_600))),
    ] {
        db.sql.execute(&format!("UPDATE aftercommit.queue SET quiet_at = {at} WHERE id = {id}")).await;
    }
    let site = site(db).await;
    let asked = page(&site, "bulk/new?q=state:in_doubt&verb=resolve+not-applied").await;
    let words = "1 more matches and is left alone, since it would be refused:";
    assert!(asked.body.contains(words) && asked.body.contains("may still be travelling"), "{asked:?}");
    let sent = send(&site, "bulk/new", &form(&asked, &[("reason", "no such mail")])).await;
    let (bulk, _) = ended(&site, to(&sent)).await;
    assert_eq!((&bulk["total"], &bulk["done"]), (&1.into(), &1.into()), "{bulk}");
    assert_eq!((db.state(quiet).await, db.state(travels).await), (State::Failed, State::InDoubt));
}

async fn a_retry_tells_what_a_person_resolved_and_what_may_have_been_sent(db: &TestDatabase) {
    let worker = worker(db).await;
    let doubtful = in_doubt(db, &worker, "mail", "m").await;
    db.shift_back("queue", "quiet_at", doubtful, Duration::from_secs(3_600)).await;
    act(db, doubtful, Verb::ResolveNotApplied, "the relay shows none").await;
    failed(db, &worker, "pay", "f").await;
    let site = site(db).await;
    let told = body(&post(&site, "bulk", &retry_failed(true)).await);
    assert_eq!(
        (&told["effects"], &told["resolved_not_applied"], &told["sent_before"], &told["refused"]),
        (&2.into(), &1.into(), &1.into(), &json!([])),
        "{told}"
    );
    let asked = page(&site, "bulk/new?q=state:failed&verb=retry").await.body;
    for words in [
        "1 of them was resolved by a person as not applied: nothing is sent until somebody retries them, which this does.",
        "1 of them may have been sent before: the outcome of an earlier attempt was unknown.",
    ] {
        assert!(asked.contains(words), "{words}: {asked}");
    }
    let redact = page(&site, "bulk/new?q=state:failed&verb=redact").await.body;
    assert!(!redact.contains("sent before"), "nothing is sent by that: {redact}");
}

async fn failures_gather_what_people_said_and_leave_out_what_is_superseded(db: &TestDatabase) {
    let worker = worker(db).await;
    failed(db, &worker, "pay", "f").await;
    for (key, reason) in [("m1", "the relay shows none"), ("m2", "asked the customer, who got none")] {
        let id = in_doubt(db, &worker, "mail", key).await;
        db.shift_back("queue", "quiet_at", id, Duration::from_secs(3_600)).await;
        act(db, id, Verb::ResolveNotApplied, reason).await;
    }
    let gone = in_doubt(db, &worker, "mail", "m3").await;
    db.shift_back("queue", "quiet_at", gone, Duration::from_secs(3_600)).await;
    act(db, gone, Verb::Reissue { resolve: Some(Resolved::NotApplied) }, "sent anew").await;
    let site = site(db).await;
    let causes = get(&site, "causes?state=failed").await;
    assert_eq!((&causes["superseded"], &causes["searched"]), (&1.into(), &4.into()), "{causes}");
    let told: Vec<_> = causes["causes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|cause| (cause["cause"].as_str(), cause["effects"].as_u64(), cause["last_week"].as_u64()))
        .collect();
    assert_eq!(
        told,
        [
            (Some("A person said that it was not applied"), Some(2), Some(2)),
            (Some("card declined"), Some(1), Some(1))
        ]
    );
    let search = causes["causes"][0]["search"].as_str().expect("words");
    let found = get(&site, &format!("effects?state=failed&error={}", search.replace(' ', "+"))).await;
    assert_eq!(found["effects"].as_array().map(Vec::len), Some(3), "with the superseded one: {found}");
    let shown = page(&site, "failures").await.body;
    assert_eq!(shown.matches("<tr data-row>").count(), 2, "{shown}");
    assert!(shown.contains("1 of them is superseded by a new effect"), "{shown}");
    assert_eq!(shown.matches("A person said that it was not applied").count(), 1, "{shown}");
}

async fn each_figure_of_a_cause_leads_to_the_effects_it_counts(db: &TestDatabase) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let worker = worker(db).await;
    let mut ids = Vec::new();
    for (key, hours) in [("new", 0), ("day", 3), ("week", 50), ("old", 200)] {
        let id = failed(db, &worker, "pay", key).await;
        db.shift_back("outcomes", "finished_at", id, HOUR * hours).await;
        ids.push(id);
    }
    let site = site(db).await;
    let cause = get(&site, "causes?state=failed").await["causes"][0].clone();
    let figures = ["last_hour", "last_day", "last_week", "effects"].map(|name| cause[name].as_u64());
    assert_eq!(figures, [1, 2, 3, 4].map(Some), "{cause}");
    let shown = page(&site, "failures").await.body;
    let name = cause["id"].as_str().expect("an id");
    for (n, span) in [(1, "-1h"), (2, "-24h"), (3, "-7d"), (4, "")] {
        let query = format!("effects?q=state:failed+cause:{name}{span}");
        assert!(shown.contains(&format!("{query}\">{n}</a>")), "{query}: {shown}");
        let list = page(&site, &query).await;
        let listed: Vec<bool> =
            ids.iter().map(|id| list.body.contains(&format!("<span class=\"quiet\">#{id}</span>"))).collect();
        assert_eq!(listed.iter().filter(|is_listed| **is_listed).count(), n, "{query}: {list:?}");
        assert!(listed[..n].iter().all(|is_listed| *is_listed), "the newest: {listed:?}");
        let wish =
            json!({ "verb": "retry", "filter": { "cause": format!("{name}{span}") }, "dry_run": true });
        assert_eq!(body(&post(&site, "bulk", &wish).await)["effects"], n, "{query}");
    }
    let wrong = page(&site, &format!("effects?q=cause:{name}-2h")).await;
    assert_eq!(wrong.status, 400, "{wrong:?}");
}

async fn all_failures_can_be_acted_on_by_who_may(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let nothing = page(&site, "failures").await.body;
    assert!(nothing.contains("Nothing has failed.") && !nothing.contains("Act on all"), "{nothing}");
    failed(db, &worker, "pay", "a").await;
    failed(db, &worker, "mail", "b").await;
    let (all, of_one) = eventually(SOON, "the counts are told", async || {
        let all = page(&site, "failures").await.body;
        let of_one = page(&site, "failures?downstream=mail").await.body;
        all.contains("Act on all 2 failed…").then_some((all, of_one))
    })
    .await;
    assert!(all.contains("bulk/new?q=state:failed\">Act on all 2 failed…"), "{all}");
    assert!(of_one.contains("bulk/new?q=state:failed+downstream:mail\">Act on all 1 failed…"), "{of_one}");
    let viewer = super::token(aftercommit_dashboard::Role::Viewer);
    let seen = site.ask("GET", "/failures").bearer(&viewer).shown().send().await;
    assert!(seen.status == 200 && !seen.body.contains("Act on"), "{seen:?}");
}

async fn hostile_names_stand_in_a_bulk_as_they_are(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = failed(db, &worker, "pay", "f").await;
    let hostile = "<img src=x onerror=alert(1)>\u{202e}";
    let actor = Actor { who: hostile.to_owned(), ..ann(hostile) };
    let bulk =
        aftercommit::store::NewBulk { verb: "retry".to_owned(), what: hostile.to_owned(), rate: 0, actor };
    let seen = aftercommit::verb::Seen { state: State::Succeeded, token: 1 };
    let number = db.store.start_bulk(&bulk, &[(id, seen)]).await.expect("it starts");
    let outcome = aftercommit::store::ItemOutcome::Refused;
    db.store.bulk_refused(number, 1, outcome, &format!("effect {id}: {hostile}")).await.expect("written");
    let site = site(db).await;
    let (_, shown) = ended(&site, &format!("bulk/{number}")).await;
    assert!(
        shown.contains("Finished: 0 done, 1 ") && shown.contains(&format!("Show effect {id}")),
        "{shown}"
    );
    let list = page(&site, "bulk").await.body;
    for text in [&shown, &list] {
        assert!(!text.contains("<img src=x") && !text.contains('\u{202e}'), "{text}");
    }
    assert!(list.contains("partly done"), "{list}");
}
