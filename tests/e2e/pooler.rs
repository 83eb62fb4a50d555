//! Everything through a real pgbouncer in transaction mode: two server connections for whoever comes, so that no statement
//! meets the connection that the one before it ran on.

use std::{path::PathBuf, str::FromStr as _, time::Duration};

use aftercommit::{IdempotencyKey, NewEffect, Outbox, enqueue::Pooled};
use sqlx::{Connection as _, PgConnection, postgres::PgConnectOptions};
use tokio::task::JoinSet;

use super::{
    environment,
    processes::{eventually, run_ok},
    servers::PaymentServer,
    shop::{Fleet, Shop, WORKER, payments},
};

const APPLICATIONS: u32 = 20;
const ORDERS_EACH: u32 = 10;
const SOON: Duration = Duration::from_secs(60);

/// The shop's database through the pooler.
fn pooled(shop: &Shop) -> String {
    let mut url = url::Url::parse(&environment::pgbouncer_url()).expect("the pooler's URL");
    url.set_path(url::Url::parse(&shop.database.url()).expect("the shop's URL").path());
    url.into()
}

/// A configuration that leads through the pooler; the way around it is for LISTEN and `migrate`.
fn configure(shop: &Shop, server: &PaymentServer) -> PathBuf {
    let around = format!("pooler = \"transaction\"\ndirect = \"{}\"\n", shop.database.url());
    let downstream = payments(&format!("http://{}", server.address));
    shop.configure_at("worker", &pooled(shop), &format!("{around}{WORKER}{downstream}"))
}

/// Orders and their charges, each in a transaction of its own, on one connection of an application.
async fn sell(url: String, application: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let options = PgConnectOptions::from_str(&url)?.extra_float_digits(None);
    let mut connection = PgConnection::connect_with(&options).await?;
    for number in 0..ORDERS_EACH {
        let order = format!("{application}-{number}");
        let charge = serde_json::json!({
            "amount": 1500, "currency": "jpy", "source": "tok_visa", "metadata": { "order": order },
        });
        let mut tx = connection.begin().await?;
        sqlx::query("INSERT INTO orders (id, amount) VALUES ($1, 1500)")
            .bind(&order)
            .persistent(false)
            .execute(&mut *tx)
            .await?;
        let effect = NewEffect::to("payments")
            .operation("charge")
            .key(IdempotencyKey::parse(format!("order-{order}/charge"))?)
            .json(&charge)?;
        Outbox.enqueue(&mut Pooled(&mut tx), effect).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// DB-10. What people do meanwhile; returns how often.
async fn operate(shop: &Shop, config: &PathBuf) -> usize {
    let commands: [&[&str]; 8] = [
        &["effects", "list", "--json"],
        &["downstreams", "list"],
        &["workers"],
        &[
            "enqueue",
            "payments",
            "--operation",
            "charge",
            "--key",
            "by-hand",
            "--in",
            "1h",
            "--payload",
            "{}",
        ],
        &["effects", "list", "--state", "scheduled"],
        &["effects", "cancel", "KEY", "--reason", "nobody wants it"],
        &["audit"],
        &["migrate"],
    ];
    let mut done = 0;
    for words in commands {
        let mut command = shop.command(config);
        for word in words {
            if *word == "KEY" {
                command.arg(shop.database.effect("by-hand").await.id.to_string());
            } else {
                command.arg(word);
            }
        }
        run_ok(&mut command, SOON).await;
        done += 1;
    }
    done
}

/// DB-10: 20 connections of applications, two workers and an operator over two server connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn enqueue_work_and_operate_through_a_transaction_pooler_without_an_error() {
    let shop = Shop::on_postgres("pooler").await;
    let server = PaymentServer::start(shop.folder.path()).await;
    let config = configure(&shop, &server);
    shop.migrate(&config).await;
    let fleet = Fleet::start(&shop, &config, 2);

    let mut applications = JoinSet::new();
    for application in 0..APPLICATIONS {
        applications.spawn(sell(pooled(&shop), application));
    }
    let operated = operate(&shop, &config).await;
    assert_eq!(operated, 8, "every command ran");
    while let Some(sold) = applications.join_next().await {
        sold.expect("no application panics").unwrap_or_else(|error| panic!("an application failed: {error}"));
    }
    let all_charged = async || shop.outside(&["succeeded", "cancelled"]).await == 0;
    let what = format!("every effect succeeds; the workers say:\n{}", fleet.output());
    eventually(&what, SOON, all_charged).await;

    let charges = server.charges().await;
    assert_eq!(charges.len(), (APPLICATIONS * ORDERS_EACH) as usize, "each order is charged once");
    assert_eq!(shop.database.effect("by-hand").await.state, "cancelled");
    // A window that is shorter than the retries is warned of at every start.
    let output = fleet.output();
    let said = output.lines().filter(|line| !line.contains("contract.window"));
    let troubles: Vec<&str> = said.filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    assert!(troubles.is_empty(), "the workers met {troubles:#?}\n{output}");
    fleet.stop().await;
}
