//! Servers killed at any moment under many clients, each of which sends its request until it is answered: one order per key.

use std::{
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{
    client::{Ask, Exchange, send},
    shop::Shop,
};
use crate::support::{Chance, TestDatabase, eventually, on_every_way};

const CLIENTS: usize = 8;
const KILLS: usize = 6;

on_every_way!(servers_killed_under_load_leave_one_order_per_key);

/// What the clients share.
#[derive(Default)]
struct World {
    /// Where the servers are now; a killed one is replaced.
    addresses: Mutex<Vec<SocketAddr>>,
    stop: AtomicBool,
    answered: AtomicUsize,
}

impl World {
    fn any(&self, chance: &mut Chance) -> SocketAddr {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses[usize::from(chance.percent(50)) % addresses.len()]
    }
}

/// Two clients share each key: one of them always comes second.
async fn client(number: usize, world: &World, mut chance: Chance) -> Vec<Exchange> {
    let mut exchanges = Vec::new();
    let mut order = 0;
    while !world.stop.load(Ordering::SeqCst) {
        let ask = Ask::order(format!("pair-{}-{order}", number / 2), 1);
        loop {
            let exchange = send(world.any(&mut chance), &ask).await;
            let over = exchange.heard.as_ref().is_some_and(|answer| !answer.asks_again());
            exchanges.push(exchange);
            if over {
                break;
            }
            // Its server was killed, or the other of the pair is first: it goes on trying.
            tokio::time::sleep(chance.millis(10)).await;
        }
        world.answered.fetch_add(1, Ordering::SeqCst);
        order += 1;
    }
    exchanges
}

async fn servers_killed_under_load_leave_one_order_per_key(db: &TestDatabase) {
    let mut chance = Chance::seeded();
    let shop = Shop::open(db).await;
    let mut servers = vec![shop.server(|_| {}).await, shop.server(|_| {}).await];
    let world = World::default();
    let note = |servers: &[super::shop::Server]| {
        let mut addresses = world.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        *addresses = servers.iter().map(|server| server.address).collect();
    };
    note(&servers);
    let clients = (0..CLIENTS).map(|number| client(number, &world, chance.fork())).collect::<Vec<_>>();
    let mut timing = chance.fork();
    let kills = async {
        for kill in 0..KILLS {
            let before = world.answered.load(Ordering::SeqCst);
            eventually(
                Duration::from_secs(60),
                "requests are answered, so that a kill disturbs some",
                async || (world.answered.load(Ordering::SeqCst) >= before + CLIENTS).then_some(()),
            )
            .await;
            // Anywhere between two statements, and in any of them.
            tokio::time::sleep(timing.millis(30)).await;
            servers[kill % 2].kill().await;
            servers[kill % 2] = shop.server(|_| {}).await;
            note(&servers);
        }
        world.stop.store(true, Ordering::SeqCst);
    };
    let (exchanges, ()) = tokio::join!(futures_util::future::join_all(clients), kills);
    let exchanges: Vec<Exchange> = exchanges.into_iter().flatten().collect();
    let lost = exchanges.iter().filter(|exchange| exchange.heard.is_none()).count();
    let evidence = shop.evidence(exchanges).await;
    let again = shop.all_runs().values().filter(|runs| **runs > 1).count();
    println!("chaos: {KILLS} kills; {lost} requests lost; {again} keys ran again; {}", evidence.summary());
    evidence.assert_kept();
    assert!(lost >= KILLS, "only {lost} requests were hit by {KILLS} kills");
}
