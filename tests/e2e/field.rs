//! PostgreSQL as it is met in the field: a standby, a promotion, a login without rights, no connection left, a copy.

use std::{path::PathBuf, time::Duration};

use sqlx::{Connection as _, PgConnection};
use tokio::process::Command;

use super::{
    database::Database,
    environment,
    processes::{eventually, run, run_ok},
    servers::{PaymentServer, PostgresServer},
    shop::{Shop, WORKER, payments},
};

const SOON: Duration = Duration::from_secs(60);

/// A shop on a server of its own, and the payments that it makes.
async fn own_server(purpose: &str) -> (PostgresServer, Shop, PaymentServer, PathBuf) {
    let folder = tempfile::Builder::new().prefix("aftercommit-e2e-").tempdir().expect("a folder");
    let postgres = PostgresServer::start(folder.path()).await;
    let database = Database::on_server(&postgres.url("postgres"), purpose).await;
    database.execute("CREATE TABLE orders (id text PRIMARY KEY, amount bigint NOT NULL)").await;
    let shop = Shop { folder, database };
    let server = PaymentServer::start(shop.folder.path()).await;
    let config = shop.configure("worker", &settings(&server));
    (postgres, shop, server, config)
}

fn settings(server: &PaymentServer) -> String {
    format!("{WORKER}{}", payments(&format!("http://{}", server.address)))
}

/// Traps T2 and T3: a server that comes back as a standby, and is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_refused_and_a_promotion_that_lost_nothing_is_worked_on() {
    let (mut postgres, shop, server, config) = own_server("standby").await;
    shop.migrate(&config).await;
    let mut worker = shop.worker("worker", &config);
    shop.order("before").await;
    shop.settled("order-before/charge", &["succeeded"], SOON).await;

    postgres.kill().await;
    std::fs::write(shop.path("postgres").join("data/standby.signal"), "").expect("the folder is ours");
    postgres.restart().await;
    let (status, _, err) = run(shop.command(&config).arg("workers"), SOON).await;
    assert_eq!(status.code(), Some(69), "{err}");
    assert!(err.contains("standby") && err.contains("primary"), "{err}");
    eventually("the worker says why it waits", SOON, async || worker.output().contains("standby")).await;
    assert!(worker.has_ended().is_none(), "a worker waits for a primary: {}", worker.output());

    shop.database.execute("SELECT pg_promote()").await;
    shop.order("after").await;
    shop.settled("order-after/charge", &["succeeded"], SOON).await;
    assert_eq!(server.charges().await.len(), 2, "each order is charged once");
    assert_eq!(shop.database.text("SELECT timeline::text FROM aftercommit.identity").await, "2");
    assert_eq!(shop.database.text("SELECT count(*)::text FROM aftercommit.hold").await, "0");
}

/// A managed service: a login that owns its database and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_may_not_make_roles_migrates_and_is_told_what_is_missing() {
    let (postgres, shop, server, _) = own_server("managed").await;
    let admin = Database::Postgres(postgres.url("postgres"));
    admin.execute("CREATE ROLE shopkeeper LOGIN NOCREATEROLE NOCREATEDB CONNECTION LIMIT 3").await;
    admin.execute("CREATE DATABASE managed OWNER shopkeeper").await;
    let url = postgres.url("managed").replace("postgres@", "shopkeeper@");
    let config = shop.configure_at("managed", &url, &settings(&server));

    let (status, _, err) = run(shop.command(&config).arg("migrate"), SOON).await;
    assert!(status.success(), "{err}");
    let wanted: Vec<&str> = err.lines().filter(|line| line.starts_with("CREATE ROLE aftercommit_")).collect();
    assert_eq!(wanted.len(), 4, "the roles as SQL, to be run by somebody else:\n{err}");
    admin.execute(&wanted.join("\n")).await;
    let (status, _, err) = run(shop.command(&config).arg("migrate"), SOON).await;
    assert!(status.success() && !err.contains("CREATE ROLE"), "{err}");
    let managed = Database::Postgres(postgres.url("managed"));
    let granted = "SELECT has_table_privilege('aftercommit_worker', 'aftercommit.queue', 'UPDATE')::text";
    assert_eq!(managed.text(granted).await, "true");

    // No connection left: it is waited for, not given up.
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(PgConnection::connect(&url).await.expect("three are allowed"));
    }
    let mut command = shop.command(&config);
    let waiting = run(command.arg("workers"), SOON);
    let freed = async {
        let refused = eventually("the command waits for a connection", SOON, async || {
            PgConnection::connect(&url).await.is_err()
        });
        refused.await;
        drop(others);
    };
    let ((status, _, err), ()) = tokio::join!(waiting, freed);
    assert!(status.success(), "{err}");

    // A database that cannot hold every text is refused in words.
    admin
        .execute("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
        .await;
    let (status, _, err) =
        run(shop.command(&config).args(["migrate", "--database", &postgres.url("ascii")]), SOON).await;
    assert_eq!(status.code(), Some(2), "{err}");
    assert!(err.contains("UTF8") && err.contains("SQL_ASCII"), "{err}");
}

/// A dump, restored under another name.
async fn copy_of(shop: &Shop, name: &str) -> Database {
    let Database::Postgres(url) = &shop.database else { panic!("a dump of PostgreSQL") };
    let file = shop.path("dump.sql");
    let mut dump = Command::new(environment::postgres_program("pg_dump"));
    run_ok(dump.arg("--file").arg(&file).arg(url), SOON).await;
    let copy = Database::on_shared_server(name).await;
    let Database::Postgres(url) = &copy else { panic!("a copy on PostgreSQL") };
    let mut restore = Command::new(environment::postgres_program("psql"));
    run_ok(restore.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f"]).arg(&file).arg(url), SOON).await;
    copy
}

/// Trap T3: the copy knows of an order that was charged meanwhile, and believes that it was not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_dump_sends_nothing_until_somebody_has_looked() {
    let shop = Shop::on_postgres("restored").await;
    let server = PaymentServer::start(shop.folder.path()).await;
    let config = shop.configure("worker", &settings(&server));
    shop.migrate(&config).await;
    shop.order("first").await;
    shop.work_until_idle(&config).await;
    shop.order("second").await;
    let copy =
        Shop { folder: tempfile::tempdir().expect("a folder"), database: copy_of(&shop, "copy").await };
    shop.work_until_idle(&config).await;
    assert_eq!(server.charges().await.len(), 2);

    // A staging machine that was given the copy by mistake.
    let staging = copy.path("staging.toml");
    let text =
        format!("database = \"{}\"\nenvironment = \"staging\"\n{}", copy.database.url(), settings(&server));
    std::fs::write(&staging, text).expect("the folder is writable");
    let (status, _, err) = run(copy.command(&staging).args(["work", "--until-idle"]), SOON).await;
    assert_eq!(status.code(), Some(2), "{err}");
    assert!(err.contains("environment"), "{err}");

    // The restore that takes the place of the lost database, on a machine that remembers nothing.
    let config = copy.configure("restored", &settings(&server));
    let (status, _, err) = run(copy.command(&config).args(["work", "--until-idle"]), SOON).await;
    assert_eq!(status.code(), Some(4), "{err}");
    assert!(err.contains("HOLD") && err.contains("hold lift"), "{err}");
    for list in [&["effects", "list"][..], &["workers"], &["downstreams", "list"], &["audit"]] {
        let (status, _, err) = run(copy.command(&config).args(list), SOON).await;
        assert!(status.success() && err.contains("HOLD"), "{list:?}: {err}");
    }
    let shown = run_ok(copy.command(&config).args(["hold", "show", "--json"]), SOON).await;
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("one object");
    assert_eq!((&shown["held"], &shown["went_back"]), (&true.into(), &true.into()), "{shown}");
    assert_eq!(server.charges().await.len(), 2, "nothing was sent");

    let lift = ["hold", "lift", "--reason", "restored after the fire"];
    run_ok(copy.command(&config).args(lift), SOON).await;
    let (status, _, err) = run(copy.command(&config).args(lift), SOON).await;
    assert_eq!(status.code(), Some(4), "there is nothing to lift any more: {err}");
    copy.order("third").await;
    copy.work_until_idle(&config).await;
    // The vendor still knows the second order's key: it answers as it did then.
    assert_eq!(copy.outside(&["succeeded"]).await, 0, "{:?}", copy.database.effects().await);
    assert_eq!(server.charges().await.len(), 3, "the second order is not charged again");
}
