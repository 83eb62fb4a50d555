//! The database killed like a power cut, ten times under load: workers keep running, nothing is lost, nothing happens twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::support::Chance;

use super::{
    checker::assert_kept,
    clock::now_us,
    database::Database,
    ledger_proxy::{Faults, LedgerProxy},
    processes::eventually,
    servers::{PaymentServer, PostgresServer},
    shop::{Fleet, Shop, WORKER, payments},
};

const KILLS: usize = 10;
const WORKERS: usize = 2;

/// Orders one after the other, through outages; whether one committed is for the database to say.
async fn place_orders(shop: Arc<Shop>, stop: Arc<AtomicBool>, tried: Arc<AtomicU32>) {
    while !stop.load(Ordering::SeqCst) {
        let order = tried.fetch_add(1, Ordering::SeqCst);
        let word = if order.is_multiple_of(10) { "ROLLBACK" } else { "COMMIT" };
        let name = if word == "COMMIT" { format!("A-{order}") } else { format!("R-{order}") };
        // An error is an outage: the order is given up, committed or not, and the orders table says which.
        let placed = shop.database.try_execute(&shop.order_sql(&name, word)).await;
        sleep(Duration::from_millis(if placed.is_ok() { 25 } else { 100 })).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_killed_ten_times_loses_nothing_and_repeats_nothing() {
    let chance = Chance::seeded();
    let folder = tempfile::Builder::new().prefix("aftercommit-e2e-").tempdir().expect("a folder");
    let mut postgres = PostgresServer::start(folder.path()).await;
    let database = Database::on_server(&postgres.url("postgres"), "killed").await;
    database.execute("CREATE TABLE orders (id text PRIMARY KEY, amount bigint NOT NULL)").await;
    let shop = Arc::new(Shop { folder, database });

    let server = PaymentServer::start(shop.folder.path()).await;
    let faults = Faults { requests_one_in: 0, answers_one_in: 20, ..Faults::MAIN };
    let proxy = LedgerProxy::start(&server.address, shop.folder.path(), faults, chance).await;
    let config = shop.configure("worker", &format!("{WORKER}{}", payments(&proxy.url())));
    shop.migrate(&config).await;

    // DB-02: the workers are started before the database, which is away for longer than a worker waits for one connection.
    postgres.kill().await;
    let fleet = Fleet::start(&shop, &config, WORKERS);
    sleep(Duration::from_secs(3)).await;
    postgres.restart().await;

    let (stop, tried) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(1)));
    let mut application = JoinSet::new();
    application.spawn(place_orders(Arc::clone(&shop), Arc::clone(&stop), Arc::clone(&tried)));
    let mut accepting = Vec::new();
    for _ in 0..KILLS {
        sleep(Duration::from_millis(2500)).await;
        let seen = proxy.ledger().calls().len();
        let busy = async {
            while proxy.open_calls() == 0 || proxy.ledger().calls().len() == seen {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let busy = timeout(Duration::from_secs(30), busy).await;
        assert!(
            busy.is_ok(),
            "nothing is called any more after {} kills; {} orders tried\n{}",
            accepting.len(),
            tried.load(Ordering::SeqCst),
            fleet.output()
        );
        postgres.kill().await;
        postgres.restart().await;
        accepting.push(now_us());
    }
    stop.store(true, Ordering::SeqCst);
    while application.join_next().await.is_some() {}
    eventually("every effect succeeds after the last kill", Duration::from_secs(60), async || {
        shop.outside(&["succeeded"]).await == 0
    })
    .await;

    let mut evidence = shop.evidence(proxy.ledger(), server.charges().await).await;
    let rolled_back = (1..tried.load(Ordering::SeqCst)).filter(|order| order.is_multiple_of(10));
    evidence.rolled_back = rolled_back.map(|order| format!("R-{order}")).collect();
    let mut delays: Vec<i64> = accepting
        .iter()
        .filter_map(|at| {
            evidence.attempts.iter().map(|row| row.started - at).filter(|delay| *delay > 0).min()
        })
        .collect();
    delays.sort_unstable();
    println!(
        "postgres_killed: {}; from \"accepts connections\" to the first claim: median {} ms of {delays:?} us; lost: {:?}",
        evidence.summary(),
        delays.get(delays.len() / 2).map_or(-1, |median| median / 1000),
        proxy.losses(),
    );
    assert_kept(&evidence.charged_once(), &evidence);
    assert!(evidence.orders.len() >= 200, "only {} orders committed", evidence.orders.len());
    let most = evidence.effects.iter().map(|effect| effect.attempts).max().unwrap_or_default();
    assert!(most <= 30, "an attempt counter spins: {most}");
    fleet.stop().await;
}
