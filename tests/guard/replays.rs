//! Defends: a request that was answered is answered again in the same words, and runs once.

use std::{sync::Arc, time::Duration};

use aftercommit::guard::RequestCounts;
use axum::{
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use tokio::{sync::Notify, task::JoinSet};

use super::{
    ask::Ask,
    shop::{Call, Gate, Shop, Tune, orders, sell},
};
use crate::support::{Engine, TestDatabase, eventually, on_every_way, on_postgres, within};

on_every_way! {
    a_second_post_gets_the_first_ones_status_location_and_body,
    a_replay_has_the_same_header_lines_in_the_same_order_and_bytes,
    fifty_parallel_posts_to_two_servers_run_once,
    a_retry_after_a_gateways_504_gets_the_csv_that_was_made_meanwhile,
}

on_postgres! { whoever_may_wait_gets_the_answer_instead_of_409 }

const SOON: Duration = Duration::from_secs(60);

/// IDEMP-IN-15.
async fn a_second_post_gets_the_first_ones_status_location_and_body(db: &TestDatabase) {
    let shop = Shop::selling(db, Tune::default()).await;
    let first = shop.send(Ask::order("k")).await;
    assert_eq!((first.status, first.header("location")), (201, Some("/orders/A")));
    assert_eq!(first.body, "order A by run 1");
    assert!(!first.is_replay());
    for key in ["k", "\"k\"", " k "] {
        let again = shop.send(Ask::order(key)).await;
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.first(), first);
    }
    assert_eq!((shop.runs(), orders(db).await), (1, 1));
    let counts = RequestCounts { first: 1, replayed: 3, in_progress: 0, mismatch: 0 };
    assert_eq!(shop.counts(), counts);
}

async fn papers(mut call: Call) -> Response {
    drop(call.tx().await);
    let mut answer = (StatusCode::ACCEPTED, vec![0u8, 0xe9, 0xff, b'\r', b'\n']).into_response();
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_DISPOSITION, &b"attachment; filename=\"a,b.txt\""[..]),
        (header::LINK, b"<https://shop.example/1>; rel=\"next\", <https://shop.example/2>; rel=\"last\""),
        (header::SET_COOKIE, b"a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT; Path=/"),
        (header::LINK, b"<https://shop.example/3>"),
        (header::SET_COOKIE, b"b=2"),
        (header::SERVER, b"caf\xe9"),
        (header::ETAG, b""),
    ] {
        headers.append(name, HeaderValue::from_bytes(value).expect("a header's value"));
    }
    answer
}

/// IDEMP-IN-17.
async fn a_replay_has_the_same_header_lines_in_the_same_order_and_bytes(db: &TestDatabase) {
    let shop = Shop::open(db, Tune::default(), papers).await;
    let first = shop.send(Ask::order("k")).await;
    let lines: Vec<_> =
        first.headers.iter().filter(|(name, _)| name == "set-cookie" || name == "link").collect();
    assert_eq!(lines.len(), 4, "{first:?}");
    assert!(first.headers.contains(&("server".to_owned(), b"caf\xe9".to_vec())), "{first:?}");
    let again = shop.send(Ask::order("k")).await;
    assert!(again.is_replay());
    assert_eq!(again.first(), first);
    assert_eq!(shop.runs(), 1);
}

/// IDEMP-IN-01.
async fn fifty_parallel_posts_to_two_servers_run_once(db: &TestDatabase) {
    // As slow as a handler that does something.
    let gate = Gate::closed();
    let opened = gate.clone();
    let slow = move |call| {
        let gate = opened.clone();
        async move {
            gate.pass().await;
            sell(call).await
        }
    };
    let tune = Tune { connections: 4, ..Tune::default() };
    let servers = [Shop::open(db, tune.clone(), slow.clone()).await, Shop::open(db, tune, slow).await];
    let mut clients = JoinSet::new();
    for number in 0..50 {
        clients.spawn(servers[number % 2].send(Ask::order("k")));
    }
    within(SOON, "one request reaches its handler", gate.arrival()).await;
    gate.open();
    let (mut created, mut replayed, mut in_progress) = (0, 0, 0);
    while let Some(told) = clients.join_next().await {
        let told = told.expect("no client panics");
        match told.status {
            201 if told.is_replay() => replayed += 1,
            201 => created += 1,
            _ => {
                told.is_problem(409, "in-progress");
                assert_eq!(told.header("retry-after"), Some("1"));
                in_progress += 1;
            }
        }
    }
    assert_eq!((created, replayed + in_progress, orders(db).await), (1, 49, 1));
    assert_eq!(servers[0].runs() + servers[1].runs(), 1);
    if db.engine == Engine::Sqlite {
        assert_eq!(in_progress, 0, "whoever waited for the one writer gets its answer");
    }
}

/// IDEMP-IN-19: what is stored after the client was told 504 is what a retry gets, type and all.
async fn a_retry_after_a_gateways_504_gets_the_csv_that_was_made_meanwhile(db: &TestDatabase) {
    let gate = Gate::closed();
    let inside = gate.clone();
    let mut shop = Shop::open(db, Tune::default(), move |mut call: Call| {
        let gate = inside.clone();
        async move {
            let mut tx = call.tx().await.expect("a transaction");
            gate.pass().await;
            tx.order("A").await;
            ([(header::CONTENT_TYPE, "text/csv; charset=latin1")], vec![b'i', b'd', b'\n', 0xe9])
                .into_response()
        }
    })
    .await;
    // A gateway in front that loses its patience when the test says so.
    let patience = Arc::new(Notify::new());
    let over = Arc::clone(&patience);
    let gateway = move |request: Request, next: Next| {
        let over = Arc::clone(&over);
        async move {
            tokio::select! {
                answer = next.run(request) => answer,
                () = over.notified() => StatusCode::GATEWAY_TIMEOUT.into_response(),
            }
        }
    };
    shop.router = shop.router.layer(middleware::from_fn(gateway));
    let mut clients = JoinSet::new();
    clients.spawn(shop.send(Ask::order("k")));
    within(SOON, "the handler runs", gate.arrival()).await;
    patience.notify_one();
    let told = clients.join_next().await.expect("a client").expect("no panic");
    assert_eq!(told.status, 504);
    gate.open();
    eventually(SOON, "the request is carried out although nobody waits", async || {
        (orders(db).await == 1).then_some(())
    })
    .await;
    let again = shop.send(Ask::order("k")).await;
    assert!(again.is_replay() && again.status == 200, "{again:?}");
    assert_eq!(again.header("content-type"), Some("text/csv; charset=latin1"));
    assert_eq!((again.body.as_str(), shop.runs()), ("id\n\u{e9}", 1));
}

async fn whoever_may_wait_gets_the_answer_instead_of_409(db: &TestDatabase) {
    let gate = Gate::closed();
    let inside = gate.clone();
    let tune = Tune { wait: SOON, ..Tune::default() };
    let shop = Shop::open(db, tune, move |call| {
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
    clients.spawn(shop.send(Ask::order("k")));
    let looked = "SELECT count(*) FROM pg_stat_activity
                  WHERE application_name = 'guard' AND state = 'idle' AND query = 'ROLLBACK' AND datname = current_database()";
    eventually(SOON, "the second has looked once and holds no transaction", async || {
        (db.sql.number(looked).await >= 1).then_some(())
    })
    .await;
    gate.open();
    let mut replays = 0;
    while let Some(told) = clients.join_next().await {
        let told = told.expect("no client panics");
        assert_eq!(told.status, 201, "{told:?}");
        replays += u32::from(told.is_replay());
    }
    assert_eq!((replays, shop.counts().in_progress, orders(db).await), (1, 0, 1));
}
