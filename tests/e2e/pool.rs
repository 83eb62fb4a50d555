//! Connections that are left in the middle: whoever gives up waiting for the database leaves no transaction behind for the next
//! one to fall into.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    contract::{Contract, Window},
    schedule::Policy,
    state::State,
    store::{Acted, Database as Store, Options, RegisteredDownstream, RegisteredTerms, Registration, Want},
    verb::{Actor, Verb},
};
use tokio::time::timeout;

use super::{processes::eventually, shop::Shop, tcp_proxy::TcpProxy};
use crate::support::Chance;

/// What every piece of a query is held up by.
const SLOW: Duration = Duration::from_millis(60);
const SOON: Duration = Duration::from_secs(30);

fn registration() -> Registration {
    let contract = Contract::key(Some(Window::For(Duration::from_secs(86_400))));
    let terms = RegisteredTerms { contract, policy: Policy::default(), timeout: Duration::from_secs(1) };
    let downstream = RegisteredDownstream {
        name: "payments".into(),
        kind: "http",
        key_prefix: String::new(),
        key: terms.contract.key,
        operations: vec![(None, terms, [7; 32])],
        kept: Vec::new(),
        rate: None,
        origin: None,
    };
    Registration {
        worker: Some("w1".into()),
        version: "0.0.0-test",
        downstreams: vec![downstream],
        requests: None,
    }
}

fn person() -> Actor {
    Actor { who: "ann".to_owned(), reason: Some("no longer wanted".to_owned()), ..Actor::default() }
}

/// One of the store's operations, given up after `patience`.
async fn given_up(store: &Arc<dyn Store>, which: u64, id: EffectId, patience: Duration) -> bool {
    let want = Want {
        downstream: "payments".into(),
        slots: 1,
        lease: Duration::from_secs(30),
        terms: Vec::new(),
        origin: None,
        trial: false,
    };
    let (wants, registration, person) = ([want], registration(), person());
    // None of these changes the effects: a cancel of what is not there, a claim of what is not due.
    let done = match which % 6 {
        0 => timeout(patience, store.act(id, &Verb::Cancel, &person, None)).await.map(drop),
        1 => timeout(patience, store.register(&registration)).await.map(drop),
        2 => timeout(patience, store.maintain()).await.map(drop),
        3 => timeout(patience, store.claim("w1", &wants)).await.map(drop),
        4 => timeout(patience, store.expired(10)).await.map(drop),
        _ => timeout(patience, store.counts()).await.map(drop),
    };
    done.is_err()
}

/// RUNTIME-01 and trap T6: a pool of one connection behind a slow line; futures are dropped at every moment of a transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_wait_leaves_no_transaction_to_the_next_one() {
    let mut chance = Chance::seeded();
    let shop = Shop::on_postgres("pool").await;
    let config = shop.configure("worker", &super::shop::payments("http://127.0.0.1:9"));
    shop.migrate(&config).await;
    let proxy = TcpProxy::start(shop.database.server()).await;
    let options =
        Options { max_connections: 1, application_name: "one connection".to_owned(), ..Options::default() };
    let url = shop.database.url_through(proxy.address);
    let store = aftercommit::store::connect(&url, &options).await.expect("the store connects");
    store.register(&registration()).await.expect("the worker registers");

    proxy.delay(SLOW);
    let mut dropped = 0;
    for round in 0..60 {
        // From before the first piece has left to after the last: BEGIN, the statements, COMMIT.
        let patience = chance.millis(5 * 60);
        dropped += u32::from(given_up(&store, round, EffectId::new(4711), patience).await);
    }
    proxy.delay(Duration::ZERO);
    assert!(dropped >= 20, "only {dropped} of 60 waits were given up");

    let stray = "SELECT count(*)::text FROM pg_stat_activity
                 WHERE application_name = 'one connection' AND state LIKE 'idle in transaction%'";
    eventually("no connection of the store stays inside a transaction", SOON, async || {
        shop.database.text(stray).await == "0"
    })
    .await;
    // What the next one writes is committed: everybody else sees it, though nothing of the store is ever asked again.
    shop.order("a").await;
    let id = EffectId::new(shop.database.effect("order-a/charge").await.id);
    let acted = store.act(id, &Verb::Cancel, &person(), None).await.expect("acting works");
    assert!(matches!(acted, Acted::Done(_, status) if status.state == State::Cancelled));
    drop(store);
    assert_eq!(shop.database.effect("order-a/charge").await.state, "cancelled");
}
