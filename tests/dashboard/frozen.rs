//! What is acted on is what was looked at: a list that changed, a term that is lost and a group that is only alike never widen it.

use std::{net::SocketAddr, time::Duration};

use aftercommit::{
    EffectId,
    state::State,
    store::{NewBulk, Settlement},
    verb::{Actor, Seen},
};
use aftercommit_dashboard::Role;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

use super::{
    Answer, Ask, Site,
    api::{assert_problem, body, failed, get, in_doubt, post, site, worker},
    forms::{form, page, pairs, send, to},
    settings, token,
};
use crate::support::{Engine, Settling, TestDatabase, Worker, eventually, on_every_database};

on_every_database! {
    a_list_that_changed_since_it_was_looked_at_is_not_acted_on,
    a_list_that_a_program_looked_at_is_acted_on_or_none,
    what_comes_in_after_the_list_is_left_alone,
    a_state_that_the_verb_does_not_take_widens_nothing,
    a_group_of_failures_is_acted_on_and_nothing_that_is_like_it,
    a_reference_is_read_in_one_way_by_the_list_and_by_what_acts_on_it,
    a_rate_that_is_none_begins_nothing,
    a_slip_in_the_form_does_not_renew_what_was_seen,
    whoever_looks_at_a_bulk_wakes_it_where_nobody_serves_the_dashboard,
    what_is_paused_already_is_not_paused_again,
    an_effect_that_cannot_be_acted_on_does_not_hold_up_the_others,
}

const SOON: Duration = Duration::from_secs(60);

async fn count(db: &TestDatabase, state: State) -> u64 {
    let counts = db.store.counts().await.expect("counting works");
    counts.iter().filter(|count| count.state == state).map(|count| count.effects).sum()
}

/// Its last request has arrived, or never will.
async fn doubtful(db: &TestDatabase, worker: &Worker, key: &str) -> EffectId {
    let id = in_doubt(db, worker, "mail", key).await;
    db.shift_back("queue", "quiet_at", id, Duration::from_secs(3_600)).await;
    id
}

async fn seen(db: &TestDatabase, id: EffectId, more: &Value) -> Value {
    let status = db.status(id).await;
    let mut seen = json!({ "state": status.state, "token": status.token });
    seen.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    seen
}

/// A person resolves it meanwhile.
async fn resolved(db: &TestDatabase, site: &Site, id: EffectId) {
    let wish = seen(db, id, &json!({ "as": "not_applied", "reason": "no such mail" })).await;
    assert_eq!(post(site, &format!("effects/{id}/resolve"), &wish).await.status, 200);
}

/// Ends the bulk that an answer leads to; how many of it were done.
async fn ended(site: &Site, answer: &Answer) -> (Value, i64) {
    let place = to(answer);
    let id =
        place.split("bulk/").nth(1).and_then(|rest| rest.split('?').next()).expect("a number").to_owned();
    let bulk = eventually(SOON, "the bulk ends", async || {
        let bulk = get(site, &format!("bulk/{id}")).await;
        (!bulk["finished_at"].is_null()).then_some(bulk)
    })
    .await;
    let done = bulk["done"].as_i64().expect("a number");
    (bulk, done)
}

async fn a_list_that_changed_since_it_was_looked_at_is_not_acted_on(db: &TestDatabase) {
    let worker = worker(db).await;
    let a = doubtful(db, &worker, "a").await;
    let b = doubtful(db, &worker, "b").await;
    let site = site(db).await;
    let asked = page(&site, "bulk/new?q=state:in_doubt&verb=resolve+applied").await;
    assert!(asked.status == 200 && asked.body.contains("2 effects in doubt will be said"), "{asked:?}");
    // One is resolved by somebody else, and another one goes in doubt: the number is the same.
    resolved(db, &site, a).await;
    let c = doubtful(db, &worker, "c").await;
    let reason = [("reason", "all of them arrived")];
    let refused = send(&site, "bulk/new", &form(&asked, &reason)).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.body.contains("is not what you looked at any more: it is 2 effects now"), "{refused:?}");
    // A slip in the old form is no way around it.
    let slip = send(&site, "bulk/new", &form(&asked, &[])).await;
    assert_eq!(slip.status, 409, "it lacks a reason, and stands for a list that is gone: {slip:?}");
    let unseen = pairs(&[("q", "state:in_doubt"), ("verb", "resolve applied"), ("reason", "x")]);
    assert_eq!(send(&site, "bulk/new", &unseen).await.status, 409, "nobody looked at any list");
    assert_eq!((db.state(b).await, db.state(c).await), (State::InDoubt, State::InDoubt), "nothing was done");
    assert_eq!(get(&site, "bulk").await["bulks"], json!([]));
    // The page that comes back stands for what is there now; a slip in it stays one.
    let slip = send(&site, "bulk/new", &form(&refused, &[])).await;
    assert!(slip.status == 422 && slip.body.contains("needs a reason"), "{slip:?}");
    let (bulk, done) = ended(&site, &send(&site, "bulk/new", &form(&slip, &reason)).await).await;
    assert_eq!(done, 2, "{bulk}");
    assert_eq!((db.state(b).await, db.state(c).await), (State::Succeeded, State::Succeeded));
}

async fn a_list_that_a_program_looked_at_is_acted_on_or_none(db: &TestDatabase) {
    let worker = worker(db).await;
    let (a, site) = (failed(db, &worker, "pay", "a").await, site(db).await);
    failed(db, &worker, "pay", "b").await;
    let mut wish = json!({ "verb": "retry", "filter": { "states": ["failed"] }, "dry_run": true });
    let told = body(&post(&site, "bulk", &wish).await);
    let (digest, n) = (told["digest"].clone(), told["effects"].clone());
    assert_eq!(body(&post(&site, "bulk", &wish).await)["digest"], digest, "it stays the same");
    let mut other = wish.clone();
    other["verb"] = "redact".into();
    assert_ne!(body(&post(&site, "bulk", &other).await)["digest"], digest, "another verb is another wish");
    (wish["dry_run"], wish["digest"], wish["limit"]) = (false.into(), digest, n);
    // It is still failed, with another token: somebody retried it, and it failed again.
    assert_eq!(post(&site, &format!("effects/{a}/retry"), &seen(db, a, &json!({})).await).await.status, 200);
    let claim = worker.claim_one("pay").await;
    worker.settle(Settling::of(&claim).fail("card declined again")).await;
    let refused = post(&site, "bulk", &wish).await;
    assert_problem(&refused, 409, "stale");
    let now = body(&refused);
    assert_eq!((count(db, State::Failed).await, &now["effects"]), (2, &2.into()), "{now}");
    wish["digest"] = now["digest"].clone();
    assert_eq!(post(&site, "bulk", &wish).await.status, 202, "decided on what it is now");
}

async fn what_comes_in_after_the_list_is_left_alone(db: &TestDatabase) {
    let worker = worker(db).await;
    let a = failed(db, &worker, "pay", "a").await;
    let site = site(db).await;
    let asked = page(&site, "bulk/new?q=state:failed+age:%3C1h&verb=retry").await;
    let later = failed(db, &worker, "pay", "later").await;
    let (bulk, done) = ended(&site, &send(&site, "bulk/new", &form(&asked, &[])).await).await;
    assert_eq!((done, db.state(a).await, db.state(later).await), (1, State::Ready, State::Failed), "{bulk}");
}

async fn a_state_that_the_verb_does_not_take_widens_nothing(db: &TestDatabase) {
    let worker = worker(db).await;
    failed(db, &worker, "pay", "f").await;
    db.insert_many("pay", "due", 3).await;
    let site = site(db).await;
    for query in
        ["q=state:failed&verb=cancel", "q=state:,&verb=cancel", "id=x&q=&verb=cancel", "id=&verb=cancel"]
    {
        let asked = page(&site, &format!("bulk/new?{query}")).await;
        assert_eq!(asked.status, 422, "{query}: {asked:?}");
        assert!(!asked.body.contains("name=\"digest\""), "{query}: nothing is offered: {asked:?}");
        let sent: Vec<(&str, &str)> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        assert_eq!(send(&site, "bulk/new", &pairs(&sent)).await.status, 422, "{query}");
    }
    let nothing = send(&site, "bulk/new", &pairs(&[("verb", "cancel")])).await;
    assert_eq!(nothing.status, 422, "nothing was chosen, which is not everything: {nothing:?}");
    let told = page(&site, "bulk/new?q=state:failed&verb=cancel").await;
    assert!(told.body.contains("cancel takes waiting"), "{told:?}");
    // Of several states those that it takes are what the page is about.
    let some = page(&site, "bulk/new?q=state:failed,ready&verb=cancel").await;
    assert!(some.body.contains("All that are ready.") && some.body.contains("3 effects will"), "{some:?}");
    assert_eq!((count(db, State::Failed).await, count(db, State::Ready).await), (1, 3));
    assert_eq!(get(&site, "bulk").await["bulks"], json!([]));
}

/// A failed effect with this operation and error.
async fn refused(
    db: &TestDatabase,
    worker: &Worker,
    (key, operation): (&str, &str),
    error: &str,
) -> EffectId {
    let id = db.insert_with("pay", key, &[("operation", operation)]).await;
    let claim = worker.claim_one("pay").await;
    worker.settle(Settling::of(&claim).fail(error)).await;
    id
}

async fn a_group_of_failures_is_acted_on_and_nothing_that_is_like_it(db: &TestDatabase) {
    let worker = worker(db).await;
    // Two that have nothing in common that could be searched for, two that differ in the operation alone, one whose spaces do.
    let all = [
        (("n1", "NULL"), "17"),
        (("n2", "NULL"), "18"),
        (("o1", "NULL"), "card c_1 declined"),
        (("o2", "'charge'"), "card c_2 declined"),
        (("s", "NULL"), "timed  out at\tlast"),
        (("w", "NULL"), "card c_1 declined for good"),
    ];
    let mut ids = Vec::new();
    for (what, error) in all {
        ids.push(refused(db, &worker, what, error).await);
    }
    let site = site(db).await;
    let shown = page(&site, "failures").await;
    let group_of = |id: EffectId| {
        let row = shown
            .body
            .split("<tr data-row>")
            .find(|row| row.contains(&format!("effects/{id}\"")))
            .expect("a row");
        let (_, link) = row.split_once("bulk/new?q=").unwrap_or_else(|| panic!("no way to act on it: {row}"));
        link.split('"').next().expect("it ends").to_owned()
    };
    let causes = get(&site, "causes?state=failed").await;
    let causes = causes["causes"].as_array().expect("a list");
    for (sample, members) in [(1, vec![0, 1]), (2, vec![2]), (3, vec![3]), (4, vec![4]), (5, vec![5])] {
        let q = group_of(ids[sample]);
        let list = page(&site, &format!("effects?q={q}")).await;
        let listed = |id: &EffectId| list.body.contains(&format!("<span class=\"quiet\">#{id}</span>"));
        let found: Vec<usize> =
            ids.iter().enumerate().filter(|(_, id)| listed(id)).map(|(at, _)| at).collect();
        assert_eq!(found, members, "{q}: {list:?}");
        let cause = causes
            .iter()
            .find(|cause| q.ends_with(cause["id"].as_str().expect("an id")))
            .expect("it is told");
        assert_eq!(cause["effects"], members.len(), "{cause}");
        let wish = json!({ "verb": "retry", "filter": { "cause": cause["id"] }, "dry_run": true });
        assert_eq!(body(&post(&site, "bulk", &wish).await)["effects"], members.len(), "{cause}");
        let asked = page(&site, &format!("bulk/new?q={q}&verb=retry")).await;
        assert!(asked.body.contains("All effects failed at pay"), "{asked:?}");
        let (bulk, done) = ended(&site, &send(&site, "bulk/new", &form(&asked, &[])).await).await;
        assert_eq!(done, i64::try_from(members.len()).expect("few"), "{bulk}");
        for at in members {
            assert_eq!(db.state(ids[at]).await, State::Ready, "{q}");
        }
    }
    let gone = page(&site, &format!("bulk/new?q={}&verb=retry", group_of(ids[1]))).await;
    assert!(
        gone.status == 200 && !gone.body.contains("name=\"reason\""),
        "there is none of it any more: {gone:?}"
    );
}

async fn a_reference_is_read_in_one_way_by_the_list_and_by_what_acts_on_it(db: &TestDatabase) {
    let text = db.insert_with("pay", "text", &[("metadata", "'{\"order\":\"17\"}'")]).await;
    let number = db.insert_with("pay", "number", &[("metadata", "'{\"order\":17}'")]).await;
    let site = site(db).await;
    let listed = async |q: &str| {
        let list = page(&site, &format!("effects?q={q}")).await;
        assert_eq!(list.status, 200, "{list:?}");
        [text, number].map(|id| list.body.contains(&format!("<span class=\"quiet\">#{id}</span>")))
    };
    let decided = page(&site, "effects?q=metadata.order:17").await;
    assert!(to(&decided).ends_with("effects?q=metadata.order:%2217%22"), "{decided:?}");
    assert_eq!(listed("metadata.order:%2217%22").await, [true, false]);
    let next = format!("metadata.order:17&before={}", number.get() + 1);
    assert_eq!(listed(&next).await, [false, true], "a page that follows does not go over to another reading");
    for (q, which) in [("metadata.order:%2217%22", text), ("metadata.order:17", number)] {
        let asked = page(&site, &format!("bulk/new?q={q}&verb=cancel")).await;
        let (bulk, done) = ended(&site, &send(&site, "bulk/new", &form(&asked, &[])).await).await;
        assert_eq!((done, db.state(which).await), (1, State::Cancelled), "{q}: {bulk}");
    }
    // Where no text is found the number is listed, at the address that says so.
    let other = db.insert_with("pay", "other", &[("metadata", "'{\"order\":18}'")]).await;
    let list = page(&site, "effects?q=metadata.order:18").await;
    assert!(list.status == 200 && list.body.contains(&format!("#{other}</span>")), "{list:?}");
}

async fn a_rate_that_is_none_begins_nothing(db: &TestDatabase) {
    let worker = worker(db).await;
    failed(db, &worker, "pay", "f").await;
    let site = site(db).await;
    let asked = page(&site, "bulk/new?q=state:failed&verb=retry").await;
    for rate in ["1e3", "-1", "20000", "fast"] {
        let refused = send(&site, "bulk/new", &form(&asked, &[("rate", rate)])).await;
        assert_eq!(refused.status, 422, "{rate}: {refused:?}");
        assert!(refused.body.contains("a number from 1 to 10000"), "{rate}: {refused:?}");
        assert_eq!(form(&refused, &[]), form(&asked, &[]), "it is the same list");
    }
    for dry_run in [true, false] {
        let wish = json!({ "verb": "retry", "filter": {}, "rate": 20_000, "dry_run": dry_run });
        assert_problem(&post(&site, "bulk", &wish).await, 422, "request-unusable");
    }
    assert_eq!(get(&site, "bulk").await["bulks"], json!([]));
    ended(&site, &send(&site, "bulk/new", &form(&asked, &[("rate", "10000")])).await).await;
}

async fn a_slip_in_the_form_does_not_renew_what_was_seen(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = doubtful(db, &worker, "m").await;
    let site = site(db).await;
    let path = format!("effects/{id}/resolve");
    let asked = page(&site, &format!("{path}?as=applied")).await;
    let slip = [("reason", "it arrived"), ("response", "{oops")];
    let told = send(&site, &path, &form(&asked, &slip)).await;
    assert!(told.status == 422 && told.body.contains("is no JSON"), "{told:?}");
    // Meanwhile it is sent once more, and is in doubt again: another attempt than the one that was looked at.
    let resend = json!({ "confirmation": format!("resend {id}"), "reason": "two do no harm" });
    let resent = post(&site, &format!("effects/{id}/resend"), &seen(db, id, &resend).await).await;
    assert_eq!(resent.status, 200, "{resent:?}");
    let claim = worker.claim_one("mail").await;
    worker.settle(Settlement { quiet_at: None, ..Settling::of(&claim).park("no answer") }).await;
    let stale = send(&site, &path, &form(&told, &slip)).await;
    assert_eq!(stale.status, 409, "{stale:?}");
    assert_eq!(db.state(id).await, State::InDoubt);
}

/// In an application that serves the dashboard itself nobody starts anything: the pages do.
async fn whoever_looks_at_a_bulk_wakes_it_where_nobody_serves_the_dashboard(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = failed(db, &worker, "pay", "f").await;
    let token_of = db.status(id).await.token;
    let bulk = NewBulk {
        verb: "retry".to_owned(),
        what: "one".to_owned(),
        actor: Actor { who: "ops".to_owned(), ..Actor::default() },
        ..NewBulk::default()
    };
    let seen = Seen { state: State::Failed, token: token_of };
    let number = db.store.start_bulk(&bulk, &[(id, seen)]).await.expect("it is written");
    let dashboard = aftercommit_dashboard::dashboard(db.store.clone(), settings(super::everybody()).1);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let app = dashboard.router().into_make_service_with_connect_info::<SocketAddr>();
    let mut task = JoinSet::new();
    task.spawn(async move { axum::serve(listener, app).await.expect("it serves") });
    eventually(SOON, "the bulk is done", async || {
        let ask = Ask::new(address, "GET", &format!("/bulk/{number}")).bearer(&token(Role::Viewer)).shown();
        ask.send().await.body.contains("Finished: 1 done").then_some(())
    })
    .await;
    assert_eq!(db.state(id).await, State::Ready);
}

async fn what_is_paused_already_is_not_paused_again(db: &TestDatabase) {
    let worker = worker(db).await;
    // Enough that it is not through while anybody looks, a second for each.
    for n in 0..40 {
        failed(db, &worker, "pay", &format!("k{n}")).await;
    }
    let site = site(db).await;
    let wish = json!({ "verb": "retry", "filter": { "states": ["failed"] }, "rate": 1 });
    let id = body(&post(&site, "bulk", &wish).await)["id"].clone();
    let path = format!("bulk/{id}/pause");
    assert_eq!(post(&site, &path, &json!({})).await.status, 200);
    assert_problem(&post(&site, &path, &json!({})).await, 409, "state-forbids");
    assert_eq!(send(&site, &path, &[]).await.status, 409, "the page says the same");
    let rows = db.sql.number("SELECT count(*) FROM aftercommit.audit WHERE verb = 'pause bulk'").await;
    assert_eq!(rows, 1, "what is answered as done has its row");
    assert_eq!(post(&site, &format!("bulk/{id}/resume"), &json!({})).await.status, 200);
    assert_eq!(
        to(&send(&site, &format!("bulk/{id}/cancel"), &[]).await).rsplit('=').next(),
        Some("bulk-cancel")
    );
}

async fn an_effect_that_cannot_be_acted_on_does_not_hold_up_the_others(db: &TestDatabase) {
    let worker = worker(db).await;
    let odd = failed(db, &worker, "pay", "odd").await;
    let even = failed(db, &worker, "pay", "even").await;
    match db.engine {
        Engine::Postgres => {
            let function = "CREATE FUNCTION public.odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$";
            db.sql.execute(function).await;
            db.sql
                .execute(&format!(
                    "CREATE TRIGGER odd BEFORE INSERT ON aftercommit.audit FOR EACH ROW WHEN (NEW.effect_id = {odd}) EXECUTE FUNCTION \
                     public.odd()"
                ))
                .await;
        }
        Engine::Sqlite => {
            let trigger = format!(
                "CREATE TRIGGER odd BEFORE INSERT ON aftercommit.audit WHEN NEW.effect_id = {odd} BEGIN SELECT RAISE(ABORT, 'no'); END"
            );
            db.sql.execute(&trigger).await;
        }
    }
    let site = site(db).await;
    let asked = page(&site, "bulk/new?q=state:failed&verb=retry").await;
    let (bulk, done) = ended(&site, &send(&site, "bulk/new", &form(&asked, &[])).await).await;
    assert_eq!((done, &bulk["refused"], &bulk["state"]), (1, &1.into(), &"finished".into()), "{bulk}");
    assert_eq!((db.state(odd).await, db.state(even).await), (State::Failed, State::Ready));
}
