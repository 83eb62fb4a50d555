//! Clients that hang up: the request that they sent ends as if they had stayed, and the pool's next borrower is never inside a
//! stray transaction. RUNTIME-01, the half of the middleware; trap T6.

use std::{net::SocketAddr, time::Duration};

use super::{
    super::tcp_proxy::TcpProxy,
    client::{Ask, Exchange, Line, insist},
    shop::Shop,
};
use crate::support::{Chance, Engine, TestDatabase, on_every_database};

const CLIENTS: usize = 60;
/// On top of every message to PostgreSQL: a request takes a tenth of a second, in which its client can go at any point.
const DELAY: Duration = Duration::from_millis(15);

on_every_database!(a_client_that_hangs_up_changes_nothing_and_leaves_no_transaction);

/// Sends a request, and goes: by a reset or an end, before, amid or after its answer.
async fn hang_up(address: SocketAddr, ask: Ask, mut chance: Chance) -> Exchange {
    let stays = chance.millis(200);
    let mut line = Line::open(address).await.expect("the server listens");
    line.say(ask.bytes()).await.expect("the server reads");
    let heard = tokio::time::timeout(stays, line.hear()).await.ok().flatten();
    if chance.percent(50) {
        line.reset();
    }
    Exchange { ask, heard }
}

async fn a_client_that_hangs_up_changes_nothing_and_leaves_no_transaction(db: &TestDatabase) {
    let mut chance = Chance::seeded();
    let shop = Shop::open(db).await;
    let proxy = match db.engine {
        Engine::Postgres => {
            let url = url::Url::parse(&db.url).expect("a URL");
            let server = format!("{}:{}", url.host_str().unwrap_or("127.0.0.1"), url.port().unwrap_or(5432));
            Some(TcpProxy::start(server).await)
        }
        Engine::Sqlite => None,
    };
    let mut server = shop
        .server(|setting| {
            setting.connections = 2;
            if let Some(proxy) = &proxy {
                let mut url = url::Url::parse(&setting.url).expect("a URL");
                url.set_port(Some(proxy.address.port())).expect("it has a host");
                url.set_host(Some("127.0.0.1")).expect("an address");
                setting.url = url.into();
            }
        })
        .await;
    if let Some(proxy) = &proxy {
        proxy.delay(DELAY);
    }
    let asks: Vec<Ask> = (0..CLIENTS).map(|n| Ask::order(format!("k-{n}"), 1)).collect();
    let going = asks.iter().map(|ask| hang_up(server.address, ask.clone(), chance.fork()));
    let mut exchanges = futures_util::future::join_all(going).await;
    let gone = exchanges.iter().filter(|exchange| exchange.heard.is_none()).count();
    // The same pool, and whoever borrows from it next.
    let mut ended_alone = 0;
    for ask in &asks {
        let retries = insist(server.address, ask).await;
        ended_alone += usize::from(retries[retries.len() - 1].answer().is_replay());
        exchanges.extend(retries);
    }
    let evidence = shop.evidence(exchanges).await;
    evidence.assert_kept();
    println!(
        "hang-ups: {gone} of {CLIENTS} went without an answer; {ended_alone} were replayed; {}",
        evidence.summary()
    );
    assert!(shop.all_runs().values().all(|runs| *runs == 1), "some ran twice: {:?}", shop.all_runs());
    if db.engine == Engine::Postgres {
        assert!(gone > CLIENTS / 4, "only {gone} clients went before their answer");
    }
    server.is_alive().await;
}
