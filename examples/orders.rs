//! An order and its charge in one transaction, in Rust:
//!
//! ```text
//! cargo run --example orders -- sqlite:shop.db A-17 1500
//! cargo run --example orders -- postgres://localhost/shop A-17 1500
//! ```
//!
//! Nothing is sent here. `enqueue` writes down what is to be sent; a worker (`aftercommit work`) does it after the commit.

use aftercommit::{IdempotencyKey, NewEffect, Outbox};
use sqlx::{Connection as _, PgConnection, SqliteConnection};

const ORDERS: &str = "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount bigint NOT NULL)";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: orders DATABASE ORDER AMOUNT";
    let (database, order) = (arguments.next().ok_or(usage)?, arguments.next().ok_or(usage)?);
    let amount: i64 = arguments.next().ok_or(usage)?.parse()?;

    if database.starts_with("sqlite:") {
        let mut connection = SqliteConnection::connect(&database).await?;
        sqlx::query(ORDERS).execute(&mut connection).await?;
        // Takes the write lock at once: a transaction that reads first may find that it cannot write any more.
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        let insert = sqlx::query("INSERT INTO orders (id, amount) VALUES (?, ?)");
        insert.bind(&order).bind(amount).execute(&mut *tx).await?;
        Outbox.enqueue(&mut *tx, charge(&order, amount)?).await?;
        tx.commit().await?;
    } else {
        let mut connection = PgConnection::connect(&database).await?;
        sqlx::query(ORDERS).execute(&mut connection).await?;
        let mut tx = connection.begin().await?;
        let insert = sqlx::query("INSERT INTO orders (id, amount) VALUES ($1, $2)");
        insert.bind(&order).bind(amount).execute(&mut *tx).await?;
        Outbox.enqueue(&mut *tx, charge(&order, amount)?).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// What is to be sent. The key says what it is for, so the same order is never charged twice, whoever tries again.
fn charge(order: &str, amount: i64) -> Result<NewEffect, Box<dyn std::error::Error>> {
    let metadata = serde_json::json!({ "order": order });
    Ok(NewEffect::to("payments")
        .operation("charge")
        .key(IdempotencyKey::parse(format!("order-{order}/charge"))?)
        .json(&serde_json::json!({
            "amount": amount, "currency": "jpy", "source": "tok_visa", "metadata": metadata,
        }))?
        .metadata(&metadata)?)
}
