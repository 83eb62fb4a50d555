//! The pages where one person decides about one effect: what they show of it, and what they offer and when.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    contract::OnUnknown,
    decision::Decision,
    effect::Effect,
    outcome::{Finding, Outcome, Phase},
    state::State,
    store::{RegisteredDownstream, Settlement},
};
use aftercommit_dashboard::{Role, Settings};

use super::{
    Site,
    api::{site, worker},
    everybody,
    forms::{form, page, send},
    settings, token,
};
use crate::support::{
    Settling, TestDatabase, Worker, lookup_terms, none_terms, on_every_database, registered,
};

on_every_database! {
    while_the_last_request_may_travel_it_is_said_until_when_and_nothing_is_offered,
    what_is_not_possible_is_folded_behind_what_is,
    a_doubt_shows_what_it_is_about,
    what_is_too_long_for_a_list_is_told_by_its_size,
    a_viewer_sees_who_waits_and_not_what_is_in_it,
    why_nobody_knows_is_told_by_what_differs_and_the_rest_once,
    what_was_asked_last_is_told_and_when_it_is_asked_again,
    an_effect_is_shown_with_the_name_that_its_downstream_knows_it_by,
    each_attempt_says_what_followed_from_it,
    a_form_that_lacks_something_says_so_in_words_of_people,
}

/// A mail server that cannot deduplicate.
async fn mail(db: &TestDatabase) -> Worker {
    let mail = RegisteredDownstream { kind: "smtp", ..registered("mail", none_terms(OnUnknown::Hold)) };
    Worker::start(&db.store, "w1", vec![mail]).await
}

/// A mail in doubt for this reason, after an attempt that said that.
async fn doubtful(db: &TestDatabase, worker: &Worker, (key, payload): (&str, &str), said: &str) -> EffectId {
    let columns = [("payload", payload), ("metadata", "'{\"order\":\"A-17\"}'")];
    let id = db.insert_with("mail", key, &columns).await;
    let claim = worker.claim_one("mail").await;
    let why = format!("the outcome is unknown and the downstream cannot deduplicate ({said})");
    let outcome = Outcome::new(Finding::Unknown, Phase::Send, said);
    let parked = Settling::of(&claim).decided(Decision::Park(why), &outcome);
    worker.settle(Settlement { uncertain: true, ..parked }).await;
    id
}

const WELCOME: &str =
    "'{\"from\":\"shop@shop.test\",\"to\":\"ann@shop.test\",\n  \"subject\":\"Welcome\",\"text\":\"hello\"}'";
const SAID: &str = "no answer within 20 s";

/// The link to a verb.
fn leads_to(body: &str, id: EffectId, verb: &str) -> bool {
    body.contains(&format!("effects/{id}/{verb}\""))
}

async fn while_the_last_request_may_travel_it_is_said_until_when_and_nothing_is_offered(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = db.insert("mail", "k").await;
    let claim = worker.claim_one("mail").await;
    let until = db.now().await.plus(Duration::from_secs(600));
    worker.settle(Settlement { quiet_at: Some(until), ..Settling::of(&claim).park(SAID) }).await;
    let site = site(db).await;
    let ways = ["resolve?as=applied", "resolve?as=not-applied", "resend", "reissue?as=not-applied"];
    for path in ["doubt".to_owned(), format!("effects/{id}")] {
        let body = page(&site, &path).await.body;
        assert!(ways.iter().all(|way| !leads_to(&body, id, way)), "{path}: {body}");
        for says in ["Not before <time", "in 10 min", "Until then its last request may still be travelling"] {
            assert!(body.contains(says), "{path}: {says}: {body}");
        }
        assert!(body.contains("You say that it was applied"), "what it will do is told: {body}");
    }
    let shown = page(&site, &format!("effects/{id}")).await.body;
    assert!(shown.contains("nobody can resolve, resend or reissue it before"), "{shown}");
    for way in ways.into_iter().chain(["resolve"]) {
        let asked = page(&site, &format!("effects/{id}/{way}")).await;
        assert_eq!(asked.status, 409, "{asked:?}");
        for says in ["This cannot be done now", "It can be done from <time", "Look again"] {
            assert!(asked.body.contains(says), "{way}: {says}: {}", asked.body);
        }
        assert!(
            !asked.body.contains("<form class=\"form\" method=\"post\""),
            "{way} has no form: {}",
            asked.body
        );
        // Without a word of what was found it is asked for that first.
        assert_eq!(asked.body.contains("What it does then"), way != "resolve", "{way}: {}", asked.body);
    }
    db.shift_back("queue", "quiet_at", id, Duration::from_secs(3_600)).await;
    for path in ["doubt".to_owned(), format!("effects/{id}")] {
        let body = page(&site, &path).await.body;
        assert!(ways.iter().all(|way| leads_to(&body, id, way)), "{path}: {body}");
        assert!(!body.contains("travelling"), "{path}: {body}");
    }
}

async fn what_is_not_possible_is_folded_behind_what_is(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = super::api::failed(db, &worker, "pay", "k").await;
    let site = site(db).await;
    let body = page(&site, &format!("effects/{id}")).await.body;
    let (possible, folded) = body.split_once("<details class=\"closed\"").expect("there is a fold");
    let (folded, _) = folded.split_once("</details>").expect("it ends");
    for verb in ["retry", "reissue", "redact"] {
        assert!(leads_to(possible, id, verb) && !leads_to(folded, id, verb), "{verb}: {body}");
    }
    for name in ["Resend", "Cancel", "It was applied", "It was not applied"] {
        assert!(folded.contains(&format!("<strong>{name}</strong>")), "{name}: {folded}");
    }
    assert!(folded.contains("Not possible now (4)") && !folded.contains("href="), "{folded}");
    assert!(folded.contains("<small>It has ended.</small>"), "the reason alone: {folded}");
    assert!(possible.contains("It is attempted again from the start"), "{possible}");
}

async fn a_doubt_shows_what_it_is_about(db: &TestDatabase) {
    let worker = mail(db).await;
    let secret = "sk_live_0123456789abcdef";
    let payload = format!(
        "'{{\"to\":\"ann@shop.test\",\n \"subject\":\"Welcome <b>\",\"n\":9007199254740993,\"key\":\"{secret}\",\"text\":\"{}\"}}'",
        "x".repeat(2_000)
    );
    let id = doubtful(db, &worker, ("k", &payload), SAID).await;
    let site = site(db).await;
    let body = page(&site, "doubt").await.body;
    assert!(body.contains("<dt>To</dt><dd class=\"mono\">ann@shop.test</dd>"), "{body}");
    for says in ["Welcome &#60;b&#62;", "9007199254740993", "<span>order</span> A-17", "x…</span>", "•••"]
    {
        assert!(body.contains(says), "{says}: {body}");
    }
    assert!(!body.contains(secret) && !body.contains(&"x".repeat(250)), "{body}");
    assert!(body.contains("<dt>Attempts</dt><dd>1 of at most 100</dd>"), "{body}");
    let shown = page(&site, &format!("effects/{id}")).await.body;
    assert!(shown.contains("<dt>Attempts</dt><dd>1 of at most 100</dd>"), "{shown}");
    // Where it goes may stand beside what it carries.
    db.insert_with("mail", "t", &[("payload", "'{}'"), ("target", "'bob@shop.test'")]).await;
    let claim = worker.claim_one("mail").await;
    worker.settle(Settling::of(&claim).park(SAID)).await;
    assert!(page(&site, "doubt").await.body.contains("<dd class=\"mono\">bob@shop.test</dd>"));
}

async fn what_is_too_long_for_a_list_is_told_by_its_size(db: &TestDatabase) {
    let worker = mail(db).await;
    let payload = format!("'{{\"to\":\"ann@shop.test\",\"text\":\"{}\"}}'", "y".repeat(70_000));
    doubtful(db, &worker, ("k", &payload), SAID).await;
    let body = page(&site(db).await, "doubt").await.body;
    assert!(body.contains("70,032 bytes of JSON") && !body.contains("yyyy"), "{body}");
}

async fn a_viewer_sees_who_waits_and_not_what_is_in_it(db: &TestDatabase) {
    let worker = mail(db).await;
    doubtful(db, &worker, ("k", WELCOME), SAID).await;
    let site = site(db).await;
    let ask = site.ask("GET", "/doubt").bearer(&token(Role::Viewer)).shown();
    let body = ask.send().await.body;
    assert!(!body.contains("ann@shop.test") && body.contains("Viewers do not see it"), "{body}");
    assert!(body.contains("You may look, and an operator may do this."), "{body}");
    assert!(!body.contains("resolve?as="), "nothing leads to what refuses them: {body}");
}

async fn why_nobody_knows_is_told_by_what_differs_and_the_rest_once(db: &TestDatabase) {
    let worker = mail(db).await;
    doubtful(db, &worker, ("a", WELCOME), SAID).await;
    doubtful(db, &worker, ("b", WELCOME), "it closed the connection; look at its log").await;
    let body = page(&site(db).await, "doubt").await.body;
    for what in ["<strong>No answer within 20 s.</strong>", "<strong>It closed the connection.</strong>"] {
        assert!(body.contains(what), "{what}: {body}");
    }
    let shared = "The outcome is unknown and the downstream cannot deduplicate.";
    assert_eq!(body.matches("cannot deduplicate").count(), 1, "{body}");
    assert!(body.contains(&format!("<dt>mail</dt><dd>{shared}</dd>")), "{body}");
    assert!(body.contains("<blockquote>it closed the connection; look at its log</blockquote>"), "{body}");
}

async fn what_was_asked_last_is_told_and_when_it_is_asked_again(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("crm", lookup_terms())]).await;
    let id = db.insert("crm", "k").await;
    let claim = worker.claim_one("crm").await;
    let due = db.now().await.plus(Duration::from_secs(600));
    let note = format!("the outcome is unknown ({SAID}); probe 3: it is not in the list");
    worker.settle(Settling::of(&claim).probe_at(due, &note)).await;
    let site = site(db).await;
    for path in ["doubt".to_owned(), format!("effects/{id}")] {
        let body = page(&site, &path).await.body;
        let said = "Its downstream was asked 3 times, and the last time: it is not in the list.";
        assert!(
            body.contains(said) && body.contains("The next question goes out in 10 min"),
            "{path}: {body}"
        );
    }
    let body = page(&site, "doubt").await.body;
    assert!(body.contains("<dt>crm</dt><dd>The outcome is unknown.</dd>"), "{body}");
}

async fn an_effect_is_shown_with_the_name_that_its_downstream_knows_it_by(db: &TestDatabase) {
    let worker = mail(db).await;
    let id = doubtful(db, &worker, ("k1", WELCOME), SAID).await;
    let known_as: aftercommit_dashboard::KnownAs = Arc::new(|effect: &Effect| {
        let from = effect.payload.as_deref()?.split("shop@").nth(1)?.split('"').next()?;
        Some(("Message-ID", format!("<{}${}@{from}>", effect.key, effect.downstream)))
    });
    let site = Site::open(&db.store, Settings { known_as, ..settings(everybody()).1 }).await;
    let wanted = "<dt>Message-ID</dt><dd><span class=\"mono\">&#60;k1$mail@shop.test&#62;</span>";
    for path in ["doubt".to_owned(), format!("effects/{id}")] {
        let body = page(&site, &path).await.body;
        assert!(body.contains(wanted), "{path}: {body}");
        assert!(body.contains("data-copy=\"&#60;k1$mail@shop.test&#62;\""), "{path}: {body}");
        // It is made of what a viewer is not shown.
        let ask = site.ask("GET", &format!("/{path}")).bearer(&token(Role::Viewer)).shown();
        let body = ask.send().await.body;
        assert!(!body.contains("Message-ID"), "{path}: {body}");
    }
}

async fn each_attempt_says_what_followed_from_it(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = db.insert_with("pay", "k", &[("payload", "'{\"amount\":1500}'")]).await;
    let limited = Outcome {
        response: Some(aftercommit::outcome::Response {
            status: Some(429),
            body: Vec::new(),
            truncated: false,
        }),
        ..Outcome::new(Finding::NotApplied, Phase::Done, "HTTP 429, Retry-After 60")
    };
    let site = site(db).await;
    let body = async || page(&site, &format!("effects/{id}")).await.body;
    let claim = worker.claim_one("pay").await;
    let later = db.now().await.plus(Duration::from_secs(600));
    worker.settle(Settling::of(&claim).decided(Decision::RetryAt(later), &limited)).await;
    let waits = body().await;
    for says in ["it was answered", "took 1 ms", "status 429", "by w1", "HTTP 429, Retry-After 60"] {
        assert!(waits.contains(says), "{says}: {waits}");
    }
    assert!(waits.contains("So it is sent again at <time") && waits.contains("(in 10 min)"), "{waits}");
    assert_eq!(waits.matches("Every attempt sends the same request with the same key").count(), 1, "{waits}");
    // A person has it sent at once.
    let asked = page(&site, &format!("effects/{id}/retry")).await;
    assert_eq!(send(&site, &format!("effects/{id}/retry"), &form(&asked, &[])).await.status, 303);
    let claim = worker.claim_one("pay").await;
    worker.settle(Settling::of(&claim).fail("card declined")).await;
    assert_eq!(db.state(id).await, State::Failed);
    let ended = body().await;
    assert!(
        ended.contains("It was sent again at <time") && ended.contains("after operator: retry."),
        "{ended}"
    );
    assert!(ended.contains("So it failed: it was never applied"), "{ended}");
}

async fn a_form_that_lacks_something_says_so_in_words_of_people(db: &TestDatabase) {
    let worker = mail(db).await;
    let id = doubtful(db, &worker, ("k", WELCOME), SAID).await;
    let site = site(db).await;
    let path = format!("effects/{id}/resend");
    let asked = page(&site, &path).await;
    let words = format!("resend {id}");
    for (typed, says) in [
        (
            [("reason", "two do no harm"), ("confirmation", "resend")],
            "type the words that are asked for below",
        ),
        ([("reason", ""), ("confirmation", words.as_str())], "Nothing was done: say why, for the audit."),
    ] {
        let told = send(&site, &path, &form(&asked, &typed)).await;
        assert_eq!(told.status, 422, "{told:?}");
        assert!(told.body.contains(says), "{says}: {}", told.body);
        assert!(!told.body.contains("`confirmation`") && !told.body.contains("send `"), "{}", told.body);
    }
    assert_eq!(db.state(id).await, State::InDoubt);
}
