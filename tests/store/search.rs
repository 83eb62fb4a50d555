//! Defends: what people look for is found, whole and in order, and a look that could not go through everything says so.

mod explained;
pub(crate) mod filled;
mod plans;
mod windows;

use std::time::Duration;

use aftercommit::{
    EffectId,
    error::StoreError,
    state::State,
    store::{AuditFilter, Filter, Look, PAGE_MAX, Page, RequestFilter},
    verb::{Actor, Verb},
};

use super::stage::{HOUR, Stage, person};
use crate::support::{Settling, TestDatabase, answered, on_every_database, request};

on_every_database! {
    several_states_are_a_list_of_all_of_them,
    filters_narrow_together,
    metadata_is_found_whatever_its_shape,
    times_bound_a_list,
    pages_follow_each_other_without_a_gap,
    what_cannot_be_meant_is_refused_by_name,
    causes_are_the_newest_with_their_words,
    people_see_what_was_asked_for,
    the_audit_is_narrowed_and_paged,
    requests_are_paged,
}

/// Every state that an effect can be in today, at two downstreams.
const STATES: [State; 9] = [
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

async fn page(db: &TestDatabase, filter: &Filter) -> Page {
    db.store.effects(filter).await.expect("a page")
}

fn all() -> Filter {
    Filter { limit: 100, ..Filter::default() }
}

async fn found(db: &TestDatabase, filter: &Filter) -> Vec<EffectId> {
    page(db, filter).await.effects.iter().map(|status| status.id).collect()
}

/// An effect per state and downstream: (state, downstream, id), newest first.
async fn one_of_each(db: &TestDatabase) -> Vec<(State, String, EffectId)> {
    let mut made = Vec::new();
    for name in ["pay", "mail"] {
        for state in STATES {
            // A worker claims whatever is ready: each state has a downstream's stage of its own name.
            let downstream = format!("{name}-{state}");
            let stage = Stage::by_key(db, &downstream).await;
            made.push((state, downstream, stage.reach(db, "k", state).await));
        }
    }
    made.reverse();
    made
}

async fn several_states_are_a_list_of_all_of_them(db: &TestDatabase) {
    let made = one_of_each(db).await;
    let wanted = |states: &[State], downstream: Option<&str>| -> Vec<EffectId> {
        let of = |(state, name, _): &&(State, String, EffectId)| {
            states.contains(state) && downstream.is_none_or(|wanted| wanted == name)
        };
        made.iter().filter(of).map(|(_, _, id)| *id).collect()
    };
    let pending = [State::Waiting, State::Scheduled, State::Ready, State::Retrying];
    let unfinished = [&pending[..], &[State::InFlight, State::InDoubt]].concat();
    let mut lists: Vec<Vec<State>> = STATES.iter().map(|state| vec![*state]).collect();
    lists.extend([
        pending.to_vec(),
        unfinished,
        vec![State::Failed, State::InDoubt],
        vec![State::Ready, State::Ready, State::Succeeded],
        State::ALL.to_vec(),
        vec![State::Waiting],
    ]);
    for states in lists {
        let filter = Filter { states: states.clone(), ..all() };
        assert_eq!(found(db, &filter).await, wanted(&states, None), "{states:?}");
        for downstream in ["pay-failed", "mail-ready", "mail-in_doubt", "nowhere"] {
            let one = Filter { downstream: Some(downstream.to_owned()), ..filter.clone() };
            assert_eq!(
                found(db, &one).await,
                wanted(&states, Some(downstream)),
                "{states:?} of {downstream}"
            );
        }
    }
    for (state, downstream, id) in &made {
        let of = Filter { downstream: Some(downstream.clone()), ..all() };
        assert_eq!(found(db, &of).await, [*id], "{downstream}, which has one that is {state}");
    }
    assert_eq!(found(db, &all()).await, wanted(&State::ALL, None));
    assert_eq!(page(db, &all()).await.searched, None);
}

async fn filters_narrow_together(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let (mut ids, words) = (Vec::new(), ["Card Declined", "timeout of 20 s", "card declined (fraud)"]);
    for (at, word) in words.iter().enumerate() {
        let operation = format!("'op{}'", at % 2);
        let order = format!("'{{\"order\": \"A-{at}\", \"shop\": \"x\"}}'");
        let columns = [("operation", operation.as_str()), ("metadata", order.as_str())];
        ids.push(db.insert_with("pay", &format!("k{at}"), &columns).await);
        let claim = stage.worker.claim_one("pay").await;
        stage.done(Settling::of(&claim).fail(word)).await;
    }
    let other = db.insert_with("mail", "k0", &[("metadata", "'{\"order\": \"A-0\"}'")]).await;
    let text = |text: &str| Some(text.to_owned());
    let order = |of: usize| text(&format!("{{\"order\": \"A-{of}\"}}"));
    let failed = Filter { states: vec![State::Failed], ..all() };
    for (filter, wanted) in [
        (Filter { error: text("CARD declined"), ..all() }, vec![ids[2], ids[0]]),
        (Filter { error: text("%"), ..all() }, vec![]),
        (Filter { error: text("card"), operation: text("op0"), ..failed.clone() }, vec![ids[2], ids[0]]),
        (Filter { operation: text("op1"), ..all() }, vec![ids[1]]),
        (Filter { operation: text("op1"), states: vec![State::Ready], ..all() }, vec![]),
        (Filter { metadata: order(0), ..all() }, vec![other, ids[0]]),
        (Filter { metadata: order(0), downstream: text("pay"), ..all() }, vec![ids[0]]),
        (Filter { metadata: order(0), ..failed.clone() }, vec![ids[0]]),
        (Filter { metadata: text("{\"shop\":\"x\"}"), error: text("fraud"), ..all() }, vec![ids[2]]),
        (Filter { metadata: text("{}"), ..failed.clone() }, vec![ids[2], ids[1], ids[0]]),
        (Filter { key: text("k0"), ..all() }, vec![other, ids[0]]),
        (Filter { key: text("k0"), ..failed.clone() }, vec![ids[0]]),
        (Filter { key: text("k0"), metadata: order(1), ..all() }, vec![]),
        (Filter { key: text("k1"), downstream: text("pay"), ..all() }, vec![ids[1]]),
        (Filter { ids: Some(vec![ids[1], other, EffectId::new(4711)]), ..all() }, vec![other, ids[1]]),
        (Filter { ids: Some(vec![ids[1], other]), ..failed.clone() }, vec![ids[1]]),
        (Filter { ids: Some(vec![ids[0], ids[1]]), metadata: order(0), ..all() }, vec![ids[0]]),
        (Filter { ids: Some(vec![other]), downstream: text("pay"), ..all() }, vec![]),
        (Filter { ids: Some(vec![]), ..all() }, vec![]),
        (Filter { before: Some(ids[2]), ..failed.clone() }, vec![ids[1], ids[0]]),
    ] {
        let page = page(db, &filter).await;
        let ids: Vec<_> = page.effects.iter().map(|status| status.id).collect();
        assert_eq!((ids, page.next), (wanted, None), "{filter:?}");
    }
    let searched = |filter: Filter| async move { page(db, &filter).await.searched };
    assert_eq!(searched(failed.clone()).await, None);
    assert_eq!(searched(Filter { metadata: order(0), ..all() }).await, None);
    assert_eq!(
        searched(Filter { error: text("card"), ..failed }).await,
        Some(3),
        "it says how many it looked at"
    );
}

async fn metadata_is_found_whatever_its_shape(db: &TestDatabase) {
    let long = "x".repeat(300);
    let documents = [
        "{\"order\": \"A-17\", \"n\": 1, \"ratio\": 0.50, \"vip\": true, \"note\": null}".to_owned(),
        "{\"who\": {\"id\": 7, \"tags\": [\"a\", \"b\"]}, \"items\": [{\"sku\": \"s1\"}, {\"sku\": \"s2\"}]}"
            .to_owned(),
        "{\"quote\": \"say \\\"hi\\\"\", \"ümlaut\": \"groß\", \"n\": 10000000000000001}".to_owned(),
        format!("{{\"long\": \"{long}1\"}}"),
        format!("{{\"long\": \"{long}2\", \"order\": \"A-17\"}}"),
    ];
    let mut ids = Vec::new();
    for (at, document) in documents.iter().enumerate() {
        let column = format!("'{document}'");
        ids.push(db.insert_with("pay", &format!("k{at}"), &[("metadata", &column)]).await);
    }
    db.insert("pay", "without").await;
    let long_1 = format!("{{\"long\":\"{long}1\"}}");
    for (asked, wanted) in [
        ("{\"order\":\"A-17\"}", vec![ids[4], ids[0]]),
        ("{\"order\":\"A-17\",\"n\":1.0}", vec![ids[0]]),
        ("{\"ratio\":0.5}", vec![ids[0]]),
        ("{\"vip\":true}", vec![ids[0]]),
        ("{\"vip\":\"true\"}", vec![]),
        ("{\"note\":null}", vec![ids[0]]),
        ("{\"n\":\"1\"}", vec![]),
        ("{\"who\":{\"id\":7}}", vec![ids[1]]),
        ("{\"who\":{\"tags\":[\"b\"]}}", vec![ids[1]]),
        ("{\"items\":[{\"sku\":\"s2\"}]}", vec![ids[1]]),
        ("{\"items\":[{\"sku\":\"s3\"}]}", vec![]),
        ("{\"quote\":\"say \\\"hi\\\"\"}", vec![ids[2]]),
        ("{\"ümlaut\":\"groß\"}", vec![ids[2]]),
        (long_1.as_str(), vec![ids[3]]),
    ] {
        let filter = Filter { metadata: Some(asked.to_owned()), ..all() };
        assert_eq!(found(db, &filter).await, wanted, "{asked}");
    }
}

async fn times_bound_a_list(db: &TestDatabase) {
    let ids = db.insert_many("pay", "k", 6).await;
    // One a minute, up to a minute ago.
    for (at, id) in ids.iter().enumerate() {
        let minutes = u64::try_from(6 - at).expect("few");
        db.shift_back("effects", "created_at", *id, Duration::from_secs(60 * minutes)).await;
    }
    let written = |at: usize| {
        let id = ids[at];
        async move { db.status(id).await.created_at }
    };
    let newest = |range: std::ops::Range<usize>| ids[range].iter().rev().copied().collect::<Vec<_>>();
    let (second, fourth) = (written(1).await, written(3).await);
    let since = Filter { created_after: Some(second), ..all() };
    assert_eq!(found(db, &since).await, newest(1..6), "at this time or after it");
    let until = Filter { created_before: Some(fourth), ..all() };
    assert_eq!(found(db, &until).await, newest(0..3), "before this time");
    let between = Filter { created_after: Some(second), created_before: Some(fourth), ..all() };
    assert_eq!(found(db, &between).await, newest(1..3));
    let of_pay = Filter { downstream: Some("pay".to_owned()), states: vec![State::Ready], ..between.clone() };
    let first = page(db, &Filter { limit: 1, ..of_pay.clone() }).await;
    assert_eq!((first.next, first.searched), (Some(ids[2]), None), "found, not searched for");
    assert_eq!(found(db, &Filter { before: first.next, ..of_pay }).await, newest(1..2));
    let never = Filter { created_after: Some(db.now().await.plus(HOUR)), ..all() };
    assert_eq!(found(db, &never).await, []);
    assert_eq!(found(db, &Filter { created_before: Some(written(0).await), ..all() }).await, []);
    // A clock that was set back for a while: what it wrote is not shown where it does not belong, and hides nothing else.
    db.shift_back("effects", "created_at", ids[5], HOUR).await;
    assert_eq!(found(db, &since).await, newest(1..5));
    let one = Filter { limit: 1, ..since };
    let mut filter = one.clone();
    let mut seen = Vec::new();
    loop {
        let page = page(db, &filter).await;
        seen.extend(page.effects.iter().map(|status| status.id));
        let Some(next) = page.next else { break };
        filter.before = Some(next);
    }
    assert_eq!(seen, newest(1..5));
}

async fn pages_follow_each_other_without_a_gap(db: &TestDatabase) {
    let made = one_of_each(db).await;
    for at in 0..5 {
        db.insert_with("pay-ready", &format!("more-{at}"), &[("metadata", "'{\"a\": 1}'")]).await;
    }
    let filters = [
        all(),
        Filter { states: vec![State::Ready, State::Failed, State::InFlight, State::Cancelled], ..all() },
        Filter { downstream: Some("pay-ready".to_owned()), ..all() },
        Filter { metadata: Some("{\"a\":1}".to_owned()), ..all() },
        Filter { error: Some("a".to_owned()), ..all() },
        Filter { ids: Some(made.iter().map(|(_, _, id)| *id).collect()), ..all() },
        Filter { key: Some("k".to_owned()), ..all() },
    ];
    for filter in filters {
        let whole = found(db, &filter).await;
        for limit in [1, 2, 3, 7] {
            let (mut seen, mut before, mut pages) = (Vec::new(), None, 0);
            loop {
                let page = page(db, &Filter { limit, before, ..filter.clone() }).await;
                assert!(page.effects.len() <= limit as usize);
                seen.extend(page.effects.iter().map(|status| status.id));
                pages += 1;
                before = page.next;
                if before.is_none() {
                    break;
                }
            }
            assert_eq!(seen, whole, "{filter:?} by {limit}");
            assert_eq!(pages, whole.len().div_ceil(limit as usize).max(1), "no page is empty: {filter:?}");
        }
    }
    assert_eq!(page(db, &Filter { limit: 0, ..all() }).await.effects.len(), 0);
}

async fn what_cannot_be_meant_is_refused_by_name(db: &TestDatabase) {
    for (filter, field) in [
        (Filter { metadata: Some("order".to_owned()), ..all() }, "metadata"),
        (Filter { metadata: Some("{\"a\":\"\\u0000\"}".to_owned()), ..all() }, "metadata"),
        (Filter { error: Some("\0".to_owned()), ..all() }, "error"),
        (Filter { ids: Some(vec![EffectId::new(1); PAGE_MAX as usize + 1]), ..all() }, "ids"),
    ] {
        let refused = db.store.effects(&filter).await.expect_err("it must be refused");
        assert!(
            matches!(&refused, StoreError::Invalid { field: named, .. } if *named == field),
            "{refused:?}"
        );
    }
    let refused = db.store.causes(State::Ready, None).await.expect_err("it must be refused");
    assert!(matches!(refused, StoreError::Invalid { field: "state", .. }), "{refused:?}");
}

async fn causes_are_the_newest_with_their_words(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let mail = Stage::hold(db, "mail").await;
    let first = stage.failed(db, "a").await;
    let second = mail.failed(db, "b").await;
    let doubtful = mail.parked(db, "c").await;
    let failed = db.store.causes(State::Failed, None).await.expect("readable");
    assert!(failed.whole && failed.searched == 2, "{failed:?}");
    assert_eq!(failed.rows.iter().map(|row| row.id).collect::<Vec<_>>(), [second, first]);
    assert!(failed.rows.iter().all(|row| row.error.as_deref() == Some("card declined")), "{failed:?}");
    assert_eq!(Some(failed.rows[1].at), db.status(first).await.finished_at);
    let of_pay = db.store.causes(State::Failed, Some("pay")).await.expect("readable");
    assert_eq!(of_pay.rows.iter().map(|row| row.id).collect::<Vec<_>>(), [first]);
    let doubt = db.store.causes(State::InDoubt, None).await.expect("readable");
    assert_eq!(doubt.rows.len(), 1, "{doubt:?}");
    let (row, attempt) = (&doubt.rows[0], &db.log(doubtful).await[0]);
    assert_eq!(
        (row.id, row.downstream.as_str(), row.error.as_deref()),
        (doubtful, "mail", Some("no answer"))
    );
    assert_eq!(Some(row.at), attempt.ended_at, "since when it is in doubt");
    assert!(db.status(doubtful).await.uncertain && !db.status(first).await.uncertain);
}

async fn people_see_what_was_asked_for(db: &TestDatabase) {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let quoted = format!("'{trace}'");
    let columns =
        [("headers", "'{\"X-A\": \"b\"}'"), ("trace_context", quoted.as_str()), ("payload", "'{}'")];
    let id = db.insert_with("pay", "k", &columns).await;
    let intent = db.store.intent(id, Look::Size).await.expect("readable").expect("it is there");
    assert_eq!(intent.headers.as_deref(), Some("{\"X-A\": \"b\"}"));
    assert_eq!(intent.trace_context.as_deref(), Some(trace));
    assert_eq!((intent.ordering_key, intent.request_id), (None, None));
    assert_eq!(intent.enqueued_by.is_some(), db.engine == crate::support::Engine::Postgres);
}

async fn the_audit_is_narrowed_and_paged(db: &TestDatabase) {
    let stage = Stage::by_key(db, "pay").await;
    let ids = [stage.failed(db, "a").await, stage.failed(db, "b").await];
    let bob = Actor { who: "bob".to_owned(), from: Some("::1".to_owned()), ..person() };
    for (id, actor) in [(ids[0], &person()), (ids[1], &bob), (ids[0], &bob)] {
        db.store.act(id, &Verb::Retry, actor, None).await.expect("acting works");
        db.store.act(id, &Verb::Cancel, actor, None).await.expect("acting works");
    }
    db.store.pause("pay", &bob).await.expect("pausing works");
    let rows = async |filter: AuditFilter| db.store.audit(&filter).await.expect("readable");
    let limit = 100;
    // The third round's retry is refused: what is cancelled is not retried.
    assert_eq!(rows(AuditFilter { limit, ..AuditFilter::default() }).await.len(), 5);
    let of = AuditFilter { effect: Some(ids[0]), limit, ..AuditFilter::default() };
    assert_eq!(rows(of).await.iter().map(|row| row.verb.as_str()).collect::<Vec<_>>(), ["cancel", "retry"]);
    let by = AuditFilter { who: Some("bob".to_owned()), limit, ..AuditFilter::default() };
    let by_bob = rows(by.clone()).await;
    assert_eq!(by_bob.iter().map(|row| row.verb.as_str()).collect::<Vec<_>>(), ["pause", "cancel", "retry"]);
    assert!(by_bob.iter().all(|row| row.from.as_deref() == Some("::1")), "{by_bob:?}");
    let on = AuditFilter { downstream: Some("pay".to_owned()), limit, ..AuditFilter::default() };
    assert_eq!(rows(on).await.len(), 5, "its effects' too");
    let first = rows(AuditFilter { limit: 2, ..by.clone() }).await;
    let rest = rows(AuditFilter { before: first.last().map(|row| row.id), ..by }).await;
    assert_eq!([first, rest].concat(), by_bob);
}

async fn requests_are_paged(db: &TestDatabase) {
    for at in 0..5 {
        let request = request("shop", &format!("k{at}"), "body");
        super::guard::answer(db, &request, &answered(200, "ok")).await;
    }
    let same = "UPDATE aftercommit.requests SET expires_at = (SELECT max(expires_at) FROM aftercommit.requests) WHERE key <> 'k0'";
    db.sql.execute(same).await;
    let rows = async |filter: RequestFilter| db.store.requests(&filter).await.expect("readable");
    let whole = rows(RequestFilter { limit: 9, ..RequestFilter::default() }).await;
    assert_eq!(whole.len(), 5);
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let page = rows(RequestFilter { limit: 2, before, ..RequestFilter::default() }).await;
        let Some(last) = page.last() else { break };
        before = Some(last.place().to_string().parse().expect("it is read back"));
        seen.extend(page);
    }
    assert_eq!(seen, whole);
}
