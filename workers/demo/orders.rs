//! The business of the demo: orders, written with their effects in one SQL transaction, as any application would.

use sqlx::{Connection, SqliteConnection};

/// Orders in each act.
pub(super) const ORDERS: i64 = 10;

/// The business's own table.
pub(super) async fn create(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("CREATE TABLE orders (id TEXT PRIMARY KEY, amount INTEGER NOT NULL)")
        .execute(connection)
        .await
        .map(|_| ())
}

/// Ten orders, each with a charge and a receipt.
pub(super) async fn with_charges(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    for number in 1..=ORDERS {
        let (order, amount) = (format!("A-{number}"), 1_000 + 50 * number);
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        insert_order(&mut tx, &order, amount).await?;
        let charge = format!(r#"{{"amount":{amount},"currency":"jpy","source":"tok_visa"}}"#);
        insert_effect(&mut tx, "payments", &format!("order-{order}/charge"), &charge).await?;
        let receipt = format!(r#"{{"to":"customer-{number}@example.com","order":"{order}"}}"#);
        insert_effect(&mut tx, "receipts", &format!("order-{order}/receipt"), &receipt).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// Ten more orders, each with a fax to a warehouse that cannot deduplicate.
pub(super) async fn with_faxes(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    for number in 1..=ORDERS {
        let order = format!("B-{number}");
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        insert_order(&mut tx, &order, 500).await?;
        let fax = format!(r#"{{"to":"warehouse","order":"{order}"}}"#);
        insert_effect(&mut tx, "fax", &format!("order-{order}/fax"), &fax).await?;
        tx.commit().await?;
    }
    Ok(())
}

async fn insert_order(
    connection: &mut SqliteConnection,
    order: &str,
    amount: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO orders (id, amount) VALUES ($1, $2)")
        .bind(order)
        .bind(amount)
        .execute(connection)
        .await
        .map(|_| ())
}

async fn insert_effect(
    connection: &mut SqliteConnection,
    downstream: &str,
    key: &str,
    payload: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO aftercommit_effects (downstream, idempotency_key, payload) VALUES ($1, $2, $3)")
        .bind(downstream)
        .bind(key)
        .bind(payload)
        .execute(connection)
        .await
        .map(|_| ())
}
