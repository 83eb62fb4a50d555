//! The checker notices: every kind of broken promise, forged; and the guard that people write first, for real.

use std::collections::BTreeSet;

use aftercommit::key;

use super::{
    client::{Answer, Ask, Exchange, TENANT, insist, send},
    evidence::{Effect, Evidence, Order},
    gate::Step,
    rounds::misjudged,
    server::Kind,
    shop::{Shop, together},
};
use crate::support::{TestDatabase, on_every_database};

fn answer(status: u16, order: i64, replay: bool) -> Answer {
    let mut headers = vec![("location".to_owned(), format!("/orders/{order}").into_bytes())];
    if replay {
        headers.push(("idempotent-replayed".to_owned(), b"true".to_vec()));
    }
    if matches!(status, 409 | 503) {
        headers.push(("retry-after".to_owned(), b"1".to_vec()));
    }
    Answer { status, headers, body: format!("{{\"order\":{order},\"nonce\":1}}").into_bytes() }
}

fn told(key: &str, heard: Option<Answer>) -> Exchange {
    Exchange { ask: Ask::order(key, 1), heard }
}

/// A run in which nothing went wrong.
fn good() -> Evidence {
    let order = |id, key: &str| Order { id, scope: TENANT.into(), key: key.into() };
    let effect = |order, key: &str| Effect { key: key::derive(TENANT, key, "payments/").to_string(), order };
    Evidence {
        exchanges: vec![
            told("a", Some(answer(201, 1, false))),
            told("a", Some(answer(409, 0, false))),
            told("a", Some(answer(201, 1, true))),
            told("b", None),
            told("c", None),
            told("d", Some(answer(402, 0, false))),
        ],
        orders: vec![order(1, "a"), order(2, "b")],
        effects: vec![effect(1, "a"), effect(2, "b")],
        strays: 0,
    }
}

/// What the checker must say, and what makes it true.
type Forgery = (&'static str, fn(&mut Evidence));

#[test]
fn the_checker_accepts_what_is_right() {
    assert_eq!(good().broken_promises(), Vec::<String>::new());
}

#[test]
fn the_checker_notices_every_kind_of_broken_promise() {
    let forge: [Forgery; 14] = [
        ("stray", |e| e.strays = 1),
        ("twice", |e| e.orders.push(Order { id: 3, ..e.orders[0].clone() })),
        ("lost", |e| drop(e.orders.remove(0))),
        ("lost", |e| drop(e.effects.remove(0))),
        ("phantom", |e| e.effects.push(Effect { order: 9, ..e.effects[0].clone() })),
        ("phantom", |e| e.orders[1].key = "z".into()),
        ("twice", |e| e.effects.push(e.effects[0].clone())),
        ("a key of its own", |e| e.effects[0].key = "random".into()),
        ("manners", |e| e.exchanges.push(told("c", Some(answer(500, 0, false))))),
        ("manners", |e| {
            e.exchanges[1] = told("a", Some(Answer { headers: Vec::new(), ..answer(409, 0, false) }))
        }),
        ("two answers", |e| e.exchanges.push(told("a", Some(answer(201, 7, true))))),
        ("a stranger's answer", |e| {
            e.exchanges.push(Exchange { ask: Ask::order("a", 2), heard: Some(answer(201, 1, true)) });
        }),
        ("a refusal that was none", |e| e.exchanges[3] = told("b", Some(answer(402, 0, false)))),
        ("a false mismatch", |e| e.exchanges.push(told("a", Some(answer(422, 0, false))))),
    ];
    for (kind, forge) in forge {
        let mut evidence = good();
        forge(&mut evidence);
        let wrong = evidence.broken_promises();
        assert!(wrong.iter().any(|said| said.starts_with(kind)), "{kind} was not noticed: {wrong:?}");
    }
}

#[test]
fn a_wrong_word_about_the_body_is_counted() {
    let with = |amount, heard| Exchange { ask: Ask::order("a", amount), heard: Some(heard) };
    let right =
        [with(1, answer(201, 1, false)), with(2, answer(422, 0, false)), with(1, answer(409, 0, false))];
    assert_eq!(misjudged(&right), 0);
    for wrong in
        [with(1, answer(422, 0, false)), with(2, answer(409, 0, false)), with(2, answer(201, 1, true))]
    {
        let round: Vec<Exchange> = right.iter().cloned().chain([wrong]).collect();
        assert_eq!(misjudged(&round), 1);
    }
}

on_every_database!(
    a_store_that_is_written_after_the_commit_is_caught_by_a_kill,
    a_store_that_is_looked_up_first_is_caught_by_a_race
);

/// IDEMP-IN-03, the wrong way: the answer is stored after the business commit.
async fn a_store_that_is_written_after_the_commit_is_caught_by_a_kill(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let mut first = shop
        .server(|setting| {
            setting.kind = Kind::LookRunStore;
            setting.stop_after = Some(Step::AfterCommit);
        })
        .await;
    let second = shop.server(|setting| setting.kind = Kind::LookRunStore).await;
    let ask = Ask::order("k", 1);
    let (lost, ()) = tokio::join!(send(first.address, &ask), first.kill_when_stopped());
    let mut exchanges = vec![lost];
    exchanges.extend(insist(second.address, &ask).await);
    let wrong = shop.evidence(exchanges).await.broken_promises();
    assert!(wrong.iter().any(|said| said.starts_with("twice: (\"acme\", \"k\") has 2 orders")), "{wrong:?}");
}

/// IDEMP-IN-01, the wrong way: sixteen that look at once find nothing.
async fn a_store_that_is_looked_up_first_is_caught_by_a_race(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let servers = [
        shop.server(|setting| setting.kind = Kind::LookRunStore).await,
        shop.server(|setting| setting.kind = Kind::LookRunStore).await,
    ];
    let mut exchanges = Vec::new();
    for round in 0..5 {
        let asks = vec![Ask::order(format!("r-{round}"), 1); 16];
        exchanges.extend(together(&servers, asks).await);
    }
    let wrong = shop.evidence(exchanges).await.broken_promises();
    let kinds: BTreeSet<&str> = wrong.iter().filter_map(|said| said.split(':').next()).collect();
    assert!(kinds.contains("twice") && kinds.contains("two answers"), "{wrong:?}");
}
