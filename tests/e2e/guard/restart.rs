//! The database killed and started again under requests: 503 and nothing worse, and every key ends with one order.

use std::{
    str::FromStr as _,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use aftercommit::store;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::{
    super::servers::PostgresServer,
    client::{Ask, Exchange, insist},
    shop::{Server, Shop},
};
use crate::support::{Sql, eventually};

const CLIENTS: usize = 6;
const KILLS: usize = 3;

/// Asks for orders one after the other, each until it is answered.
async fn client(number: usize, servers: &[Server], stop: &AtomicBool, asked: &AtomicUsize) -> Vec<Exchange> {
    let mut exchanges = Vec::new();
    let mut order = 0;
    while !stop.load(Ordering::SeqCst) {
        let ask = Ask::order(format!("client-{number}-{order}"), 1);
        exchanges.extend(insist(servers[order % servers.len()].address, &ask).await);
        asked.fetch_add(1, Ordering::SeqCst);
        order += 1;
    }
    exchanges
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_killed_under_requests_leaves_one_order_per_key_and_no_error_but_503() {
    let folder = tempfile::Builder::new().prefix("aftercommit-e2e-").tempdir().expect("a folder");
    let mut postgres = PostgresServer::start(folder.path()).await;
    let url = postgres.url("postgres");
    store::migrate(&url, Some("test")).await.expect("migrate makes the schema");
    let store = store::connect(&url, &store::Options::default()).await.expect("the store connects");
    let options = PgConnectOptions::from_str(&url).expect("a URL").application_name("application");
    let sql = Sql::Postgres(PgPoolOptions::new().connect_lazy_with(options));
    let shop = Shop::on(&url, &sql, &store).await;
    drop(store);
    let mut servers = [
        shop.server(|setting| setting.acquire_ms = 1_000).await,
        shop.server(|setting| setting.acquire_ms = 1_000).await,
    ];
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let clients = (0..CLIENTS).map(|number| client(number, &servers, &stop, &asked));
    let kills = async {
        for _ in 0..KILLS {
            let before = asked.load(Ordering::SeqCst);
            eventually(
                Duration::from_secs(60),
                "orders are answered, so that a kill disturbs some",
                async || (asked.load(Ordering::SeqCst) > before + CLIENTS * 3).then_some(()),
            )
            .await;
            postgres.kill().await;
            postgres.restart().await;
        }
        stop.store(true, Ordering::SeqCst);
    };
    let (exchanges, ()) = tokio::join!(futures_util::future::join_all(clients), kills);
    let exchanges: Vec<Exchange> = exchanges.into_iter().flatten().collect();
    let evidence = shop.evidence(exchanges).await;
    println!("restarts: {KILLS} kills of the database; {}", evidence.summary());
    evidence.assert_kept();
    assert_eq!(evidence.orders.len(), asked.load(Ordering::SeqCst), "one per key");
    let unavailable = evidence.statuses().get(&503).copied().unwrap_or_default();
    assert!(unavailable >= KILLS, "only {unavailable} requests met a database that was away");
    for server in &mut servers {
        server.is_alive().await;
    }
}
