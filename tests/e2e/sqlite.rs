//! The same promise without a server: the example application in Python and a worker share one SQLite file.

use std::time::Duration;

use rustix::process::Signal;
use tokio::process::Command;

use crate::support::Chance;

use super::{
    checker::assert_kept,
    environment,
    ledger_proxy::{Faults, LedgerProxy},
    processes::{Process, eventually, run, run_ok},
    servers::{PaymentServer, Reply, ScriptedServer},
    shop::{Fleet, Shop, WORKER, payments},
};

const SOON: Duration = Duration::from_secs(30);

fn python_example(shop: &Shop, order: &str) -> Command {
    let mut command = Command::new(environment::python());
    command.arg(environment::example("orders.py")).args([&shop.database.url(), order, "1500"]);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_in_python_on_sqlite_has_its_orders_charged_once_although_the_worker_is_killed() {
    let shop = Shop::on_sqlite().await;
    let server = PaymentServer::start(shop.folder.path()).await;
    let proxy = LedgerProxy::start(&server.address, shop.folder.path(), Faults::MAIN, Chance::seeded()).await;
    let config = shop.configure("worker", &format!("{WORKER}{}", payments(&proxy.url())));
    shop.migrate(&config).await;
    let mut fleet = Fleet::start(&shop, &config, 1);
    for order in 1..=60 {
        run_ok(&mut python_example(&shop, &format!("A-{order}")), SOON).await;
        if order % 10 == 0 {
            eventually("a call is open when the worker is killed", SOON, async || proxy.open_calls() > 0)
                .await;
            fleet.kill(0, Some(&proxy)).await;
        }
    }
    // The application's own primary key refuses an order that is placed again; nothing else is written either.
    let (again, _, err) = run(&mut python_example(&shop, "A-1"), SOON).await;
    assert!(!again.success() && err.contains("IntegrityError"), "{err}");
    eventually("every effect succeeds", Duration::from_secs(60), async || {
        shop.outside(&["succeeded"]).await == 0
    })
    .await;
    let mut evidence = shop.evidence(proxy.ledger(), server.charges().await).await;
    evidence.kills.clone_from(&fleet.kills);
    println!(
        "sqlite: {}; {} kills hit an open call; lost: {:?}",
        evidence.summary(),
        fleet.kills_with_open_call,
        proxy.losses()
    );
    assert_kept(&evidence.charged_once(), &evidence);
    assert_eq!(evidence.orders.len(), 60);
    assert!(evidence.unknown_attempts() >= 10, "only {} attempts unknown", evidence.unknown_attempts());
    assert!(fleet.kills_with_open_call >= 3, "only {} kills hit an open call", fleet.kills_with_open_call);
    fleet.stop().await;
}

/// DB-08: a file that another program made with a rollback journal, and holds locked for two seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_sqlite_file_is_waited_for_and_no_attempt_is_charged() {
    let shop = Shop::on_sqlite().await;
    let server = ScriptedServer::start(shop.folder.path(), |_request, _nth| Reply::DONE).await;
    let config = shop.configure("worker", &format!("{WORKER}{}", payments(&server.url())));
    let file = shop.path("shop.db");
    let make = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA journal_mode = DELETE');\
                c.execute('CREATE TABLE theirs (x)'); c.commit()";
    run_ok(Command::new(environment::python()).args(["-c", make]).arg(&file), SOON).await;
    shop.migrate(&config).await;
    run_ok(&mut python_example(&shop, "a"), SOON).await;

    let hold = "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None);\
                c.execute('BEGIN IMMEDIATE'); print('locked', flush=True); time.sleep(2); c.execute('COMMIT')";
    let mut command = Command::new(environment::python());
    command.args(["-c", hold]).arg(&file);
    let mut holder = Process::spawn("the other program", &mut command, &shop.path("holder.log"));
    eventually("the other program holds the lock", SOON, async || holder.output().contains("locked")).await;
    let mut worker = shop.worker("worker", &config);
    assert!(holder.ended(SOON).await.success(), "{}", holder.output());
    let state = shop.settled("order-a/charge", &["succeeded", "failed", "in_doubt"], SOON).await;
    assert_eq!((state.as_str(), server.counts("order-a/charge")), ("succeeded", (1, 1)));
    assert_eq!(shop.database.effect("order-a/charge").await.attempts, 1);
    worker.signal(Signal::TERM);
    assert!(worker.ended(SOON).await.success(), "{}", worker.output());
}

/// DB-08: where nobody may write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sqlite_file_that_cannot_be_opened_is_said_so() {
    let shop = Shop::on_sqlite().await;
    let missing = shop.path("no-such-folder/shop.db");
    // A folder in which not even root may make a file.
    let read_only = std::path::Path::new("/proc/no-such-folder.db");
    for file in [missing.as_path(), read_only] {
        let url = format!("sqlite:{}", file.display());
        let settings = format!("{WORKER}{}", payments("http://127.0.0.1:9"));
        let config = shop.configure_at("nowhere", &url, &settings);
        let (status, out, err) = run(shop.command(&config).arg("migrate"), SOON).await;
        assert!(!status.success(), "{out}");
        assert!(err.contains("no-such-folder"), "the file is named: {err}");
    }
}
