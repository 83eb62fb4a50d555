//! The example applications, run as a stranger would run them, each on its databases: one order, one charge, one call.

use std::{path::PathBuf, time::Duration};

use tokio::{process::Command, task::JoinSet};

use super::{
    environment,
    processes::{run, run_ok},
    servers::{PaymentServer, Reply, ScriptedServer},
    shop::{Shop, WORKER, payments},
};

const SOON: Duration = Duration::from_secs(60);
/// Compiling the Rust example, where the test run did not build it, on two busy cores.
const BUILD: Duration = Duration::from_secs(170);

/// A Rust example's program. `cargo test` builds examples, `cargo nextest` and `--tests` need not: then it is built here.
pub(super) async fn rust_example(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("a test is a program");
    let deps = this.parent().expect("in target/…/deps");
    let program = deps.parent().expect("in target/…").join("examples").join(name);
    if !program.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-q", "--workspace", "--example", name]).current_dir(env!("CARGO_MANIFEST_DIR"));
        run_ok(&mut build, BUILD).await;
    }
    program
}

fn python(url: &str, order: &str) -> Command {
    let mut command = Command::new(environment::python());
    command.arg(environment::example("orders.py")).args([url, order, "1500"]);
    command
}

fn psql(url: &str, order: &str) -> Command {
    let mut command = Command::new(environment::postgres_program("psql"));
    command.args([
        "-X",
        "-q",
        "-v",
        "ON_ERROR_STOP=1",
        "-v",
        &format!("order={order}"),
        "-v",
        "amount=1500",
        "-f",
    ]);
    command.arg(environment::example("orders.sql")).arg(url);
    command
}

/// Places an order with each application, lets a worker work, and asks the payment server.
async fn charged_once_each(shop: Shop, mut applications: Vec<(&str, Command)>) {
    let server = PaymentServer::start(shop.folder.path()).await;
    let config =
        shop.configure("worker", &format!("{WORKER}{}", payments(&format!("http://{}", server.address))));
    shop.migrate(&config).await;
    for (_, application) in &mut applications {
        run_ok(application, SOON).await;
    }
    shop.work_until_idle(&config).await;
    let mut charged: Vec<String> = server.charges().await.into_iter().map(|charge| charge.order).collect();
    charged.sort_unstable();
    let mut placed: Vec<String> = applications.iter().map(|(order, _)| (*order).to_owned()).collect();
    placed.sort_unstable();
    assert_eq!(charged, placed, "{:?}", shop.database.effects().await);

    for (order, application) in &mut applications {
        let (again, _, _) = run(application, SOON).await;
        assert!(!again.success(), "order {order} could be placed twice");
    }
    shop.work_until_idle(&config).await;
    assert_eq!(server.charges().await.len(), placed.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_applications_work_on_postgresql() {
    let shop = Shop::on_postgres("examples").await;
    let url = shop.database.url();
    let mut rust = Command::new(rust_example("orders").await);
    rust.args([&url, "rust", "1500"]);
    let applications = vec![("python", python(&url, "python")), ("psql", psql(&url, "psql")), ("rust", rust)];
    charged_once_each(shop, applications).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_applications_work_on_sqlite() {
    let shop = Shop::on_sqlite().await;
    let url = shop.database.url();
    let mut rust = Command::new(rust_example("orders").await);
    rust.args([&url, "rust", "1500"]);
    let applications = vec![("python", python(&url, "python")), ("rust", rust)];
    charged_once_each(shop, applications).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_business_transaction_that_rolls_back_leaves_no_effect() {
    let shop = Shop::on_postgres("rollback").await;
    let server = ScriptedServer::start(shop.folder.path(), |_request, _nth| Reply::DONE).await;
    let config = shop.configure("worker", &format!("{WORKER}{}", payments(&server.url())));
    shop.migrate(&config).await;
    shop.database.execute(&shop.order_sql("gone", "ROLLBACK")).await;
    shop.database.execute(&shop.order_sql("kept", "COMMIT")).await;
    shop.work_until_idle(&config).await;
    let keys: Vec<String> = server.all_counts().into_keys().collect();
    assert_eq!(keys, ["order-kept/charge"]);
    assert_eq!(shop.database.orders().await, ["kept"]);
}

/// What `unique_column.py` answers.
async fn paid(url: &str, key: &str, amount: &str) -> String {
    let mut command = Command::new(environment::python());
    command.arg(environment::example("unique_column.py")).args([url, key, "A-17", amount]);
    run_ok(&mut command, SOON).await
}

/// Many at once with one key: one payment, one charge, one answer.
async fn a_unique_column_is_enough(shop: Shop) {
    let config = shop.configure("worker", &format!("{WORKER}{}", payments("http://127.0.0.1:9")));
    shop.migrate(&config).await;
    let url = shop.database.url();
    let other = paid(&url, "another-key", "1500").await;
    let mut racing = JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        racing.spawn(async move { paid(&url, "key", "1500").await });
    }
    let answers = racing.join_all().await;
    assert!(answers[0].contains("201") && answers.iter().all(|answer| answer == &answers[0]), "{answers:?}");
    assert_ne!(answers[0], other, "another key is another payment");
    assert!(paid(&url, "key", "1600").await.contains("422"));
    assert_eq!(shop.database.effects().await.len(), 2, "a charge for each payment");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_column_answers_every_repeat_alike_on_postgresql() {
    a_unique_column_is_enough(Shop::on_postgres("unique_column").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_column_answers_every_repeat_alike_on_sqlite() {
    a_unique_column_is_enough(Shop::on_sqlite().await).await;
}
