//! Many clients with one key at two servers at the same time, round after round: one run each. IDEMP-IN-01, IDEMP-IN-13.

use std::ops::AddAssign;

use super::{
    client::{Ask, Exchange, insist},
    shop::{Server, Shop, together},
};
use crate::support::{Chance, Engine, TestDatabase, on_every_database, on_every_way, on_postgres};

/// Requests of one round, as the issue has it.
pub(super) const CLIENTS: usize = 16;
/// In a run of all tests; the whole number is a long run.
const ROUNDS: usize = 40;

on_every_way!(
    sixteen_clients_with_one_key_at_two_servers_run_it_once,
    of_two_requests_with_one_key_one_runs_and_the_other_is_told_so
);
on_every_database!(refusals_leave_nothing_however_many_race);
on_postgres!(at_any_isolation_level_one_of_sixteen_runs);

/// What rounds came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Sum {
    pub(super) rounds: usize,
    pub(super) requests: usize,
    pub(super) runs: usize,
    pub(super) first: usize,
    pub(super) replayed: usize,
    pub(super) in_progress: usize,
    pub(super) unavailable: usize,
    pub(super) mismatch: usize,
    /// Told 422, or not told it, against what ran.
    pub(super) misjudged: usize,
    /// Keys whose handler ran more than once.
    pub(super) second_runs: usize,
}

impl AddAssign<&Exchange> for Sum {
    fn add_assign(&mut self, exchange: &Exchange) {
        let answer = exchange.answer();
        let count = match answer.status {
            201 if answer.is_replay() => &mut self.replayed,
            201 => &mut self.first,
            409 => &mut self.in_progress,
            503 => &mut self.unavailable,
            422 => &mut self.mismatch,
            other => panic!("no round may be told {other}: {}", answer.shown()),
        };
        *count += 1;
        self.requests += 1;
    }
}

/// Two servers at which rounds are played.
pub(super) struct Rounds {
    pub(super) shop: Shop,
    servers: [Server; 2],
    pub(super) sum: Sum,
    exchanges: Vec<Exchange>,
}

impl Rounds {
    pub(super) async fn at(db: &TestDatabase) -> Self {
        let shop = Shop::open(db).await;
        let servers = [shop.server(|_| {}).await, shop.server(|_| {}).await];
        Self { shop, servers, sum: Sum::default(), exchanges: Vec::new() }
    }

    /// One round. A 503 is asked again, which only SQLite may tell; with one body, everybody who was told 409 is told the
    /// answer now.
    pub(super) async fn play(&mut self, engine: Engine, asks: Vec<Ask>) {
        let before = self.exchanges.len();
        let told = together(&self.servers, asks).await;
        let mut again = Vec::new();
        for exchange in &told {
            self.sum += exchange;
            let status = exchange.answer().status;
            assert!(status != 503 || engine == Engine::Sqlite, "{}", exchange.answer().shown());
            assert!(status != 409 || engine == Engine::Postgres, "{}", exchange.answer().shown());
            if status == 503 {
                again.push(exchange.ask.clone());
            }
        }
        let last = told[0].ask.clone();
        self.exchanges.extend(told);
        again.push(last);
        for ask in again {
            let retries = insist(self.servers[self.sum.rounds % 2].address, &ask).await;
            self.exchanges.extend(retries);
        }
        self.sum.misjudged += misjudged(&self.exchanges[before..]);
        self.sum.rounds += 1;
    }

    /// Checks everything, and gives the counts.
    pub(super) async fn end(mut self) -> Sum {
        let evidence = self.shop.evidence(std::mem::take(&mut self.exchanges)).await;
        evidence.assert_kept();
        assert_eq!(evidence.orders.len(), self.sum.rounds, "one order per round");
        let runs = self.shop.all_runs();
        self.sum.second_runs = runs.values().filter(|runs| **runs > 1).count();
        self.sum.runs = runs.values().sum();
        for server in &mut self.servers {
            server.is_alive().await;
        }
        // No handler of a round is rolled back: none may run twice.
        assert_eq!((self.sum.second_runs, self.sum.misjudged), (0, 0), "{:?}", self.sum);
        self.sum
    }
}

pub(super) fn same(round: usize) -> Vec<Ask> {
    vec![Ask::order(format!("round-{round}"), 1500); CLIENTS]
}

/// One key, two bodies, in any mixture and order.
pub(super) fn mixed(round: usize, chance: &mut Chance) -> Vec<Ask> {
    let others = 1 + usize::try_from(chance.below(15)).expect("fits");
    let mut asks: Vec<_> =
        (0..CLIENTS).map(|n| Ask::order(format!("mixed-{round}"), if n < others { 1 } else { 2 })).collect();
    chance.shuffle(&mut asks);
    asks
}

/// Must show: rounds of 16 concurrent requests with one key against 2 server processes.
async fn sixteen_clients_with_one_key_at_two_servers_run_it_once(db: &TestDatabase) {
    let mut rounds = Rounds::at(db).await;
    for round in 0..ROUNDS {
        rounds.play(db.engine, same(round)).await;
    }
    let sum = rounds.end().await;
    println!("{sum:?}");
    assert_eq!((sum.runs, sum.first, sum.mismatch), (ROUNDS, ROUNDS, 0));
    assert!(sum.replayed + sum.in_progress + sum.unavailable == ROUNDS * (CLIENTS - 1));
}

/// Racing calls with another body: told 422, never 409 and never the answer; no call with the body that ran is told 422.
async fn of_two_requests_with_one_key_one_runs_and_the_other_is_told_so(db: &TestDatabase) {
    let mut chance = Chance::seeded();
    let mut rounds = Rounds::at(db).await;
    for round in 0..ROUNDS / 2 {
        rounds.play(db.engine, mixed(round, &mut chance)).await;
    }
    let sum = rounds.end().await;
    println!("{sum:?}");
    assert!(sum.mismatch > ROUNDS / 2, "the two bodies hardly met: {sum:?}");
}

/// How many of a round were told something else than they should: whoever sent what ran, that it is another request; whoever sent
/// something else, anything but that.
pub(super) fn misjudged(round: &[Exchange]) -> usize {
    let ran = round.iter().find(|of| of.answer().is_success()).map(|of| of.ask.body.as_str());
    let is_wrong = |exchange: &&Exchange| {
        let is_it = Some(exchange.ask.body.as_str()) == ran;
        match exchange.answer().status {
            422 => is_it,
            201 | 409 => !is_it,
            _ => false,
        }
    };
    round.iter().filter(is_wrong).inspect(|of| println!("{ran:?} ran: {of:?}")).count()
}

/// A handler that refuses after it wrote everything: nothing is left, the key is free, and the next one runs.
async fn refusals_leave_nothing_however_many_race(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let servers = [shop.server(|_| {}).await, shop.server(|_| {}).await];
    let mut exchanges = Vec::new();
    for round in 0..ROUNDS / 8 {
        let refused = Ask::new(format!("refused-{round}"), "{\"amount\":1,\"refuse\":402}");
        exchanges.extend(together(&servers, vec![refused.clone(); CLIENTS]).await);
        let again = insist(servers[0].address, &refused).await;
        assert_eq!(again[again.len() - 1].answer().status, 402);
        exchanges.extend(again);
        // Nothing was stored: not even the first request's fingerprint.
        let other = insist(servers[1].address, &Ask::order(&refused.key, 1)).await;
        assert_eq!(
            other[other.len() - 1].answer().status,
            201,
            "{}",
            other[other.len() - 1].answer().shown()
        );
        exchanges.extend(other);
    }
    let evidence = shop.evidence(exchanges).await;
    println!("refusals: {}", evidence.summary());
    evidence.assert_kept();
    assert_eq!(evidence.orders.len(), ROUNDS / 8, "one per key: that of the request that was not refused");
    assert_eq!(evidence.replays(), 0);
}

/// Trap T19: a database that isolates its transactions more than ours ask for.
async fn at_any_isolation_level_one_of_sixteen_runs(db: &TestDatabase) {
    let shop = Shop::open(db).await;
    let mut exchanges = Vec::new();
    let name = db.sql.scalar("SELECT current_database()").await.expect("a name");
    for level in ["repeatable read", "serializable"] {
        db.sql.execute(&format!("ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")).await;
        let servers = [shop.server(|_| {}).await, shop.server(|_| {}).await];
        for round in 0..ROUNDS / 4 {
            let key = format!("{}-{round}", level.replace(' ', "-"));
            let mut asks = vec![Ask::order(&key, 1); CLIENTS];
            asks.extend(vec![Ask::order(&key, 2); 2]);
            let told = together(&servers, asks).await;
            let again =
                told.iter().filter(|exchange| exchange.answer().asks_again()).map(|of| of.ask.clone());
            let again: Vec<Ask> = again.collect();
            exchanges.extend(told);
            for ask in again {
                exchanges.extend(insist(servers[0].address, &ask).await);
            }
        }
    }
    let evidence = shop.evidence(exchanges).await;
    println!("isolation: {}", evidence.summary());
    evidence.assert_kept();
    assert_eq!(evidence.orders.len(), 2 * (ROUNDS / 4));
}
