//! Defends: a client that hangs up, at whatever moment, changes nothing about what happens to its request.

use std::time::Duration;

use axum::response::IntoResponse as _;
use tokio::{task::JoinSet, time::timeout};

use super::{
    ask::Ask,
    shop::{Call, Gate, Shop, Tune, orders, sell},
};
use crate::{
    e2e::tcp_proxy::TcpProxy,
    support::{Chance, Engine, TestDatabase, eventually, on_every_database, on_every_way, within},
};

on_every_way! { a_client_that_hangs_up_while_its_handler_runs_changes_nothing }

on_every_database! {
    a_client_that_hangs_up_at_any_moment_gets_the_answer_later,
    a_get_whose_client_left_is_stopped_unless_it_has_a_transaction,
    a_runtime_that_ends_waits_for_no_handler_and_rolls_back,
}

const SOON: Duration = Duration::from_secs(60);

/// IDEMP-IN-21.
async fn a_client_that_hangs_up_while_its_handler_runs_changes_nothing(db: &TestDatabase) {
    let gate = Gate::closed();
    let inside = gate.clone();
    let shop = Shop::open(db, Tune::default(), move |call| {
        let gate = inside.clone();
        async move {
            gate.pass().await;
            sell(call).await
        }
    })
    .await;
    let mut clients = JoinSet::new();
    clients.spawn(shop.send(Ask::order("k")));
    within(SOON, "the handler runs", gate.arrival()).await;
    clients.shutdown().await;
    gate.open();
    eventually(SOON, "the order is committed", async || (orders(db).await == 1).then_some(())).await;
    let again = shop.send(Ask::order("k")).await;
    assert_eq!((again.status, again.is_replay(), again.body.as_str()), (201, true, "order A by run 1"));
    assert_eq!(shop.runs(), 1);
}

/// Hangs up at moments that are drawn, in front of a slow database; where no line can be slow, as soon as the request was handed
/// over. The retry of each is told of one order.
async fn a_client_that_hangs_up_at_any_moment_gets_the_answer_later(db: &TestDatabase) {
    let mut chance = Chance::seeded();
    let (proxy, tune) = slow(db).await;
    let shop = Shop::selling(db, Tune { wait: SOON, ..tune }).await;
    let mut left = 0;
    for round in 0..40 {
        let key = format!("k-{round}");
        let mut told = shop.send(Ask::order(&key).body(key.clone()));
        let hung_up = match &proxy {
            // From before BEGIN to after COMMIT.
            Some(_) => timeout(chance.millis(60), told).await.is_err(),
            None => futures_util::poll!(&mut told).is_pending(),
        };
        left += u32::from(hung_up);
        let told = shop.send(Ask::order(&key).body(key.clone())).await;
        assert_eq!((told.status, told.header("location")), (201, Some(&*format!("/orders/{key}"))));
    }
    assert!(left >= 10, "only {left} of 40 clients hung up in time");
    assert_eq!(orders(db).await, 40, "one order each");
}

/// A line of some milliseconds for each piece, where there is one.
async fn slow(db: &TestDatabase) -> (Option<TcpProxy>, Tune) {
    match db.engine {
        Engine::Postgres => {
            let mut url = url::Url::parse(&db.url).expect("a URL");
            let server = format!("{}:{}", url.host_str().expect("a host"), url.port().unwrap_or(5432));
            let proxy = TcpProxy::start(server).await;
            proxy.delay(Duration::from_millis(5));
            url.set_ip_host(proxy.address.ip()).expect("a host");
            url.set_port(Some(proxy.address.port())).expect("a port");
            (Some(proxy), Tune { url: Some(url.into()), ..Tune::default() })
        }
        Engine::Sqlite => (None, Tune::default()),
    }
}

async fn a_get_whose_client_left_is_stopped_unless_it_has_a_transaction(db: &TestDatabase) {
    let gate = Gate::closed();
    let inside = gate.clone();
    let shop = Shop::open(db, Tune::default(), move |mut call: Call| {
        let gate = inside.clone();
        async move {
            if call.text() == "no transaction" {
                // Says when it is dropped.
                let _stopped = Arrival(gate.clone());
                gate.pass().await;
                return "done".into_response();
            }
            let mut tx = call.tx().await.expect("a transaction");
            gate.pass().await;
            tx.order("A").await;
            "done".into_response()
        }
    })
    .await;
    let mut clients = JoinSet::new();
    clients.spawn(shop.send(Ask::to("GET", "/x").body("no transaction")));
    within(SOON, "the handler runs", gate.arrival()).await;
    clients.shutdown().await;
    within(SOON, "it is stopped", gate.arrival()).await;

    clients.spawn(shop.send(Ask::to("GET", "/x")));
    within(SOON, "the handler runs", gate.arrival()).await;
    clients.shutdown().await;
    gate.open();
    eventually(SOON, "its transaction is committed", async || (orders(db).await == 1).then_some(())).await;
}

/// A process that stops serving while a handler is in the middle of its transaction.
async fn a_runtime_that_ends_waits_for_no_handler_and_rolls_back(db: &TestDatabase) {
    let ended = || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
        runtime.block_on(async {
            let gate = Gate::closed();
            let inside = gate.clone();
            let shop = Shop::open(db, Tune::default(), move |mut call: Call| {
                let gate = inside.clone();
                async move {
                    let mut tx = call.tx().await.expect("a transaction");
                    tx.order("never").await;
                    gate.pass().await;
                    "done".into_response()
                }
            })
            .await;
            let mut clients = JoinSet::new();
            clients.spawn(shop.send(Ask::order("k")));
            within(SOON, "the handler runs", gate.arrival()).await;
        });
        drop(runtime);
    };
    tokio::task::block_in_place(|| {
        std::thread::scope(|threads| threads.spawn(ended).join().expect("the runtime ends without a panic"));
    });
    let shop = Shop::selling(db, Tune::default()).await;
    // The server may notice a moment later that its client is gone.
    eventually(SOON, "the key is free", async || {
        let told = shop.send(Ask::order("k")).await;
        (told.status == 201 && !told.is_replay()).then_some(())
    })
    .await;
    assert_eq!(db.sql.scalar("SELECT id FROM orders").await.as_deref(), Some("A"));
}

/// Counts as an arrival when it is dropped.
struct Arrival(Gate);

impl Drop for Arrival {
    fn drop(&mut self) {
        self.0.arrive();
    }
}
