//! A person's verbs through the API: each on the state and token that was seen, confirmed where it may be applied twice.

use std::time::Duration;

use aftercommit::{EffectId, decision::Resend, state::State};
use aftercommit_dashboard::{Role, Settings};
use serde_json::{Value, json};

use super::{
    Site,
    api::{assert_problem, body, failed, get, in_doubt, post, site, worker},
    everybody, token,
};
use crate::support::{Settling, TestDatabase, eventually, on_every_database};

on_every_database! {
    a_stale_action_is_refused_with_the_present_state_and_token,
    each_verb_does_what_it_says_and_leaves_its_row,
    what_may_be_applied_twice_wants_words_and_a_reason,
    while_the_last_request_may_travel_nobody_decides,
    a_reissue_puts_a_new_effect_in_the_place_of_the_old_one,
    nothing_can_be_done_where_everything_is_read_only,
    what_was_not_confirmed_is_not_sent_when_it_may_be_applied_twice,
    a_page_says_what_keeps_a_resend_from_going_out,
    another_pause_than_the_one_that_was_seen_is_not_lifted,
    who_writes_an_effect_is_in_the_audit,
}

/// What an action on the effect carries now.
async fn seen(db: &TestDatabase, id: EffectId) -> Value {
    let status = db.status(id).await;
    json!({ "state": status.state, "token": status.token })
}

/// With more members.
fn with(mut seen: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        seen[name] = value.clone();
    }
    seen
}

/// Its last request was sent so long ago that it has arrived, or never will.
async fn quiet(db: &TestDatabase, id: EffectId) {
    db.shift_back("queue", "quiet_at", id, Duration::from_secs(3_600)).await;
}

async fn a_stale_action_is_refused_with_the_present_state_and_token(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = failed(db, &worker, "pay", "k").await;
    let site = site(db).await;
    let before = seen(db, id).await;
    let path = format!("effects/{id}/retry");
    // Two people look at the same page, and both press the button.
    let first = post(&site, &path, &before).await;
    assert_eq!((first.status, &body(&first)["state"]), (200, &"ready".into()), "{first:?}");
    let second = post(&site, &path, &before).await;
    assert_problem(&second, 409, "stale");
    let (told, now) = (body(&second), db.status(id).await);
    assert_eq!((&told["state"], &told["token"]), (&"ready".into(), &now.token.into()), "{told}");
    let rows = db.sql.number(&format!("SELECT count(*) FROM aftercommit.audit WHERE effect_id = {id}")).await;
    assert_eq!(rows, 1, "the second one did nothing");
    assert_problem(&post(&site, "effects/999/retry", &before).await, 404, "not-found");
    // As it is now, its state forbids it: that is another thing, and said as one.
    let forbidden = post(&site, &path, &seen(db, id).await).await;
    assert_problem(&forbidden, 409, "state-forbids");
    assert!(forbidden.body.contains("It is due already"), "{forbidden:?}");
}

async fn each_verb_does_what_it_says_and_leaves_its_row(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let (a, b) = (in_doubt(db, &worker, "mail", "a").await, in_doubt(db, &worker, "mail", "b").await);
    quiet(db, a).await;
    quiet(db, b).await;
    let resolve = |more: Value| (format!("effects/{a}/resolve"), more);
    let (path, applied) = resolve(
        json!({ "as": "applied", "reason": "ch_19 is there", "response": { "id": 9007199254740993_u64 } }),
    );
    let answer = post(&site, &path, &with(seen(db, a).await, &applied)).await;
    assert_eq!((answer.status, &body(&answer)["state"]), (200, &"succeeded".into()), "{answer:?}");
    assert!(answer.body.contains("9007199254740993"), "{answer:?}");
    let wrong = json!({ "as": "not_applied", "reason": "x", "response": {} });
    let answer = post(&site, &format!("effects/{b}/resolve"), &with(seen(db, b).await, &wrong)).await;
    assert_problem(&answer, 422, "request-unusable");
    let no_reason = json!({ "as": "not_applied", "reason": "  " });
    let answer = post(&site, &format!("effects/{b}/resolve"), &with(seen(db, b).await, &no_reason)).await;
    assert_problem(&answer, 422, "reason-needed");
    let not_applied = json!({ "as": "not_applied", "reason": "no such mail" });
    post(&site, &format!("effects/{b}/resolve"), &with(seen(db, b).await, &not_applied)).await;
    assert_eq!(db.state(b).await, State::Failed);
    let c = db.insert("pay", "c").await;
    assert_eq!(post(&site, &format!("effects/{c}/cancel"), &seen(db, c).await).await.status, 200);
    assert_eq!(db.state(c).await, State::Cancelled);
    let redact = with(seen(db, b).await, &json!({ "reason": "erasure request 118" }));
    let answer = post(&site, &format!("effects/{b}/redact"), &redact).await;
    assert_eq!((answer.status, &body(&answer)["payload_dropped"]), (200, &true.into()), "{answer:?}");
    let skip = post(&site, &format!("effects/{b}/skip"), &seen(db, b).await).await;
    assert_problem(&skip, 409, "state-forbids");
    let audit = get(&site, "audit").await;
    let verbs: Vec<&str> =
        audit["audit"].as_array().expect("rows").iter().filter_map(|row| row["verb"].as_str()).collect();
    assert_eq!(verbs, ["redact", "cancel", "resolve not-applied", "resolve applied"], "{audit}");
}

async fn what_may_be_applied_twice_wants_words_and_a_reason(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let risky = in_doubt(db, &worker, "mail", "m").await;
    quiet(db, risky).await;
    let path = format!("effects/{risky}/resend");
    let unconfirmed = post(&site, &path, &seen(db, risky).await).await;
    assert_problem(&unconfirmed, 422, "confirmation-needed");
    let told = body(&unconfirmed);
    assert_eq!(told["confirmation"], format!("resend {risky}"), "{told}");
    assert!(
        told["detail"].as_str().expect("words").contains("mail cannot tell a repeated request"),
        "{told}"
    );
    for (more, kind) in [
        (json!({ "confirmation": "resend", "reason": "x" }), "confirmation-needed"),
        (json!({ "confirmation": format!("resend {risky}") }), "reason-needed"),
    ] {
        assert_problem(&post(&site, &path, &with(seen(db, risky).await, &more)).await, 422, kind);
    }
    assert_eq!(db.state(risky).await, State::InDoubt, "nothing was sent");
    let confirmed = json!({ "confirmation": format!("resend {risky}"), "reason": "two mails do no harm" });
    assert_eq!(post(&site, &path, &with(seen(db, risky).await, &confirmed)).await.status, 200);
    assert_eq!(db.state(risky).await, State::Ready);
    // Within the window of a downstream that keeps keys nobody need type anything; past it, again.
    for (hours, status) in [(0, 200), (30, 422)] {
        let id = in_doubt(db, &worker, "pay", &format!("p{hours}")).await;
        quiet(db, id).await;
        db.shift_back("queue", "first_sent_at", id, Duration::from_secs(hours * 3_600)).await;
        let answer = post(&site, &format!("effects/{id}/resend"), &seen(db, id).await).await;
        assert_eq!(answer.status, status, "{answer:?}");
        if status == 422 {
            let says =
                "pay keeps keys for 24 h; this one was first sent 30 h ago: a resend may apply it twice";
            assert!(answer.body.contains(says), "{answer:?}");
        }
    }
}

async fn while_the_last_request_may_travel_nobody_decides(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let id = db.insert("pay", "k").await;
    let claim = worker.claim_one("pay").await;
    let until = db.now().await.plus(Duration::from_secs(600));
    let parked = Settling::of(&claim).park("no answer");
    worker.settle(aftercommit::store::Settlement { quiet_at: Some(until), ..parked }).await;
    let effect = get(&site, &format!("effects/{id}")).await;
    assert!(effect["quiet_at"].is_string(), "{effect}");
    for (verb, more) in [
        ("resend", json!({})),
        ("resolve", json!({ "as": "applied", "reason": "seen" })),
        (
            "reissue",
            json!({ "reason": "x", "confirmation": format!("reissue {id}"), "resolve": "not_applied" }),
        ),
    ] {
        let answer = post(&site, &format!("effects/{id}/{verb}"), &with(seen(db, id).await, &more)).await;
        assert_problem(&answer, 409, "state-forbids");
        assert!(answer.body.contains("may still be travelling"), "{answer:?}");
        let verbs = effect["verbs"].as_array().expect("a list");
        let told = verbs
            .iter()
            .find(|told| told["verb"].as_str().is_some_and(|name| name.starts_with(verb)))
            .expect(verb);
        assert!(
            told["refused"].as_str().is_some_and(|why| why.contains("travelling")),
            "it was said before: {told}"
        );
    }
}

async fn a_reissue_puts_a_new_effect_in_the_place_of_the_old_one(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let id = failed(db, &worker, "pay", "order-17").await;
    let path = format!("effects/{id}/reissue");
    let unconfirmed = with(seen(db, id).await, &json!({ "reason": "the bank forgot it" }));
    assert_problem(&post(&site, &path, &unconfirmed).await, 422, "confirmation-needed");
    let confirmed = with(unconfirmed, &json!({ "confirmation": format!("reissue {id}") }));
    let answer = post(&site, &path, &confirmed).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let by = body(&answer)["superseded_by"].as_i64().expect("a new effect");
    let new = db.status(EffectId::new(by)).await;
    assert!(new.state == State::Ready && new.idempotency_key != "order-17", "{new:?}");
    let again = with(seen(db, id).await, &json!({ "reason": "x", "confirmation": format!("reissue {id}") }));
    assert_problem(&post(&site, &path, &again).await, 409, "state-forbids");
    assert_problem(
        &post(&site, &format!("effects/{id}/retry"), &seen(db, id).await).await,
        409,
        "state-forbids",
    );
    let doubtful = in_doubt(db, &worker, "mail", "m").await;
    quiet(db, doubtful).await;
    let path = format!("effects/{doubtful}/reissue");
    let words = json!({ "reason": "x", "confirmation": format!("reissue {doubtful}") });
    let undecided = with(seen(db, doubtful).await, &words);
    assert_problem(&post(&site, &path, &undecided).await, 409, "state-forbids");
    let decided = with(undecided, &json!({ "resolve": "not_applied" }));
    assert_eq!(post(&site, &path, &decided).await.status, 200);
    assert_eq!(db.state(doubtful).await, State::Failed);
}

async fn nothing_can_be_done_where_everything_is_read_only(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = failed(db, &worker, "pay", "k").await;
    let site =
        Site::open(&db.store, Settings { access: everybody(), read_only: true, ..Settings::default() }).await;
    for path in [
        format!("effects/{id}/retry"),
        "effects".to_owned(),
        "bulk".to_owned(),
        "downstreams/pay/pause".to_owned(),
    ] {
        let answer = post(&site, &path, &seen(db, id).await).await;
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(db.state(id).await, State::Failed);
}

/// Whoever was told that nothing is applied twice confirmed nothing, whatever they typed besides.
async fn what_was_not_confirmed_is_not_sent_when_it_may_be_applied_twice(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let (safe, risky) = (in_doubt(db, &worker, "pay", "k1").await, in_doubt(db, &worker, "pay", "k2").await);
    db.shift_back("queue", "first_sent_at", risky, Duration::from_secs(30 * 3_600)).await;
    for (id, resend) in [(safe, Resend::Unconfirmed), (risky, Resend::Confirmed)] {
        quiet(db, id).await;
        let words = json!({ "confirmation": format!("resend {id}"), "reason": "two do no harm" });
        let answer = post(&site, &format!("effects/{id}/resend"), &with(seen(db, id).await, &words)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let claim = worker.claim_one("pay").await;
        assert_eq!((claim.effect.id, claim.history.resend), (id, Some(resend)));
    }
}

async fn a_page_says_what_keeps_a_resend_from_going_out(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let id = in_doubt(db, &worker, "pay", "k").await;
    quiet(db, id).await;
    let page = async || {
        let ask = site.ask("GET", &format!("/effects/{id}/resend")).bearer(&token(Role::Operator));
        ask.send().await.body
    };
    let said = page().await;
    assert!(said.contains("as soon as pay can be called") && !said.contains("paused now"), "{said}");
    // What is read for everybody may be two seconds old.
    let soon = Duration::from_secs(30);
    let paused = post(&site, "downstreams/pay/pause", &json!({ "reason": "double charges" })).await;
    let held = "pay is paused now, by operator: nothing is sent before somebody resumes it.";
    eventually(soon, held, async || page().await.contains(held).then_some(())).await;
    db.store.leave("w1").await.expect("leaving works");
    let seen = json!({ "paused_at": body(&paused)["paused_at"] });
    assert_eq!(post(&site, "downstreams/pay/resume", &seen).await.status, 200);
    let unserved = "No live worker serves pay now: nothing is sent before one does.";
    eventually(soon, unserved, async || page().await.contains(unserved).then_some(())).await;
}

async fn another_pause_than_the_one_that_was_seen_is_not_lifted(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    let pause = async |why: &str| {
        let answer = post(&site, "downstreams/pay/pause", &json!({ "reason": why })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        body(&answer)["paused_at"].clone()
    };
    let resume =
        async |seen: &Value| post(&site, "downstreams/pay/resume", &json!({ "paused_at": seen })).await;
    let form = async || {
        let page = site.ask("GET", "/downstreams/pay/resume").bearer(&token(Role::Operator)).send().await;
        assert_eq!(page.status, 200, "{page:?}");
        page.body
    };
    let sent = async |paused_at: &str| {
        let ask = site.ask("POST", "/downstreams/pay/resume").bearer(&token(Role::Operator));
        ask.form(&format!("reason=the+key+is+new&paused_at={paused_at}")).send().await
    };
    let first = pause("401 since noon").await;
    let first_form = hidden(&form().await, "paused_at");
    assert_eq!(resume(&first).await.status, 200);
    let second = pause("double charges").await;
    // Somebody else still looks at the first one.
    let stale = resume(&first).await;
    assert_problem(&stale, 409, "stale");
    assert!(stale.body.contains("by operator at") && stale.body.contains("double charges"), "{stale:?}");
    let page = sent(&first_form).await;
    assert_eq!(page.status, 409, "{page:?}");
    for says in ["paused anew since you looked, and nothing was done", "double charges"] {
        assert!(page.body.contains(says), "{says}: {}", page.body);
    }
    let paused = db.store.downstreams().await.expect("they can be listed");
    let paused = paused.iter().find(|info| info.name == "pay").and_then(|info| info.paused.as_ref());
    assert!(paused.is_some_and(|paused| paused.reason.as_deref() == Some("double charges")), "{paused:?}");
    // The form that came back is for the pause that it is in now.
    assert_eq!(sent(&hidden(&page.body, "paused_at")).await.status, 303);
    let over = resume(&second).await;
    assert_problem(&over, 409, "state-forbids");
    let gone = sent(&first_form).await;
    assert!(gone.status == 409 && gone.body.contains("It was resumed since you looked"), "{gone:?}");
}

/// What a form carries unseen.
fn hidden(page: &str, name: &str) -> String {
    let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).expect("the form carries it");
    rest.split('"').next().expect("it ends").to_owned()
}

async fn who_writes_an_effect_is_in_the_audit(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    let wish = json!({ "downstream": "pay", "idempotency_key": "order-17", "payload": { "amount": 1 } });
    for status in [201, 200] {
        assert_eq!(post(&site, "effects", &wish).await.status, status);
    }
    let other = json!({ "downstream": "pay", "idempotency_key": "order-17", "payload": { "amount": 2 } });
    assert_eq!(post(&site, "effects", &other).await.status, 409);
    let audit = get(&site, "audit").await;
    let rows = audit["audit"].as_array().expect("rows");
    assert_eq!(rows.len(), 1, "what was found or refused left none: {audit}");
    let row = &rows[0];
    assert_eq!(
        (&row["who"], &row["from"], &row["verb"], &row["downstream"], &row["to_state"], &row["from_state"]),
        (
            &"operator".into(),
            &"127.0.0.1".into(),
            &"enqueue".into(),
            &"pay".into(),
            &"ready".into(),
            &Value::Null
        ),
        "{row}"
    );
    assert!(row["effect_id"].is_i64(), "{row}");
}
