//! What an order is, where it lies, and the effects that it has.

use aftercommit::{NewEffect, effect::InvalidEffect, state::State};
use axum::http::HeaderValue;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sqlx::{Row as _, SqliteConnection, SqlitePool};

use super::problem::Problem;

/// Where receipts go, unless the order says.
const CUSTOMER: &str = "customer@example.com";
const ITEM_MAX: usize = 100;
const EMAIL_MAX: usize = 254;
const AMOUNT_MAX: i64 = 99_999_999;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    /// What is bought.
    item: String,
    /// What it costs, in the currency's smallest unit.
    amount: i64,
    /// Three lower-case letters.
    currency: String,
    /// Where the receipt goes.
    #[serde(default = "customer")]
    email: String,
}

fn customer() -> String {
    CUSTOMER.to_owned()
}

impl Order {
    /// Reads an order as JSON or as a form.
    ///
    /// # Errors
    ///
    /// [`Problem`]: 415, 400 or 422.
    pub(super) fn read(content_type: Option<&HeaderValue>, body: &[u8]) -> Result<Self, Problem> {
        let media = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let order: Self = match media.as_str() {
            "application/json" => serde_json::from_slice(body).map_err(|problem| {
                if problem.is_data() {
                    Problem::invalid(problem.to_string())
                } else {
                    Problem::malformed(problem.to_string())
                }
            })?,
            "application/x-www-form-urlencoded" => {
                serde_json::from_value(form(body)).map_err(|problem| Problem::invalid(problem.to_string()))?
            }
            _ => return Err(Problem::unsupported()),
        };
        order.check()?;
        Ok(order)
    }

    fn check(&self) -> Result<(), Problem> {
        let wrong = |field, right| Err(Problem::invalid(format!("{field} must be {right}.")));
        let length = self.item.chars().count();
        if length == 0 || length > ITEM_MAX || self.item.chars().any(char::is_control) {
            return wrong("item", "1 to 100 characters without control characters");
        }
        if !(1..=AMOUNT_MAX).contains(&self.amount) {
            return wrong("amount", "1 to 99999999, in the currency's smallest unit");
        }
        if self.currency.len() != 3 || !self.currency.bytes().all(|letter| letter.is_ascii_lowercase()) {
            return wrong("currency", "three lower-case letters, such as jpy");
        }
        let printable = self.email.bytes().all(|byte| byte.is_ascii_graphic());
        let (name, host) = self.email.split_once('@').unwrap_or_default();
        if self.email.len() > EMAIL_MAX || !printable || name.is_empty() || host.is_empty() {
            return wrong("email", "an address such as customer@example.com");
        }
        Ok(())
    }

    /// The charge of order `id`. It has no key: the guard's request gives it one.
    pub(super) fn charge(&self, id: &str) -> Result<NewEffect, InvalidEffect> {
        let reference = json!({ "order": id });
        NewEffect::to("payments")
            .operation("charge")
            .json(&json!({
                "amount": self.amount, "currency": self.currency, "source": "tok_visa", "metadata": reference,
            }))?
            .metadata(&reference)
    }

    /// The receipt of order `id`; it holds everything that makes it this order.
    pub(super) fn receipt(&self, id: &str) -> Result<NewEffect, InvalidEffect> {
        let text = format!("{} for {} {}", self.item, self.amount, self.currency);
        NewEffect::to("mail")
            .json(&json!({ "to": self.email, "subject": format!("Your order {id}"), "text": text }))?
            .metadata(&json!({ "order": id }))
    }

    /// The message that tells others of order `id`.
    pub(super) fn message(&self, id: &str) -> Result<NewEffect, InvalidEffect> {
        NewEffect::to("orders")
            .operation("placed")
            .json(
                &json!({ "order": id, "item": self.item, "amount": self.amount, "currency": self.currency }),
            )?
            .metadata(&json!({ "order": id }))
    }

    /// Writes its row, or finds the one that the same request has written.
    ///
    /// # Errors
    ///
    /// When the database refuses.
    pub(super) async fn write(
        &self,
        connection: &mut SqliteConnection,
        id: &str,
        owner: &str,
        [charge, receipt]: [i64; 2],
    ) -> Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO demo_orders (id, owner, item, amount, currency, email, charge, receipt) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) \
             ON CONFLICT (id) DO UPDATE SET charge = excluded.charge, receipt = excluded.receipt",
        )
        .bind(id.to_owned())
        .bind(owner.to_owned())
        .bind(self.item.clone())
        .bind(self.amount)
        .bind(self.currency.clone())
        .bind(self.email.clone())
        .bind(charge)
        .bind(receipt)
        .execute(connection)
        .await
        .map(|_| ())
    }
}

/// A form as the object that JSON would have been; the last of two fields of one name counts.
fn form(body: &[u8]) -> Value {
    let fields = url::form_urlencoded::parse(body).map(|(name, value)| {
        let number = if name == "amount" { value.parse::<i64>().ok() } else { None };
        (name.into_owned(), number.map_or_else(|| Value::from(value.into_owned()), Value::from))
    });
    Value::Object(fields.collect::<Map<_, _>>())
}

/// Makes the table, unless it is there.
pub(super) async fn create_table(pool: &SqlitePool) -> Result<(), sqlx::Error> {
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS demo_orders (id TEXT PRIMARY KEY, owner TEXT NOT NULL, item TEXT NOT NULL, \
             amount INTEGER NOT NULL CHECK (amount > 0), currency TEXT NOT NULL, email TEXT NOT NULL, \
             charge INTEGER NOT NULL, receipt INTEGER NOT NULL) STRICT",
    )
    .execute(pool)
    .await
    .map(|_| ())
}

/// An order as its owner sees it, with the present state of its effects; `None` where there is none of theirs.
pub(super) async fn shown(
    connection: &mut SqliteConnection,
    id: &str,
    owner: &str,
) -> Result<Option<Value>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT item, amount, currency, email, charge, receipt FROM demo_orders WHERE id = ?1 AND owner = ?2",
    )
    .bind(id.to_owned())
    .bind(owner.to_owned())
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let mut effects = Vec::new();
    for name in ["charge", "receipt"] {
        effects.extend(effect(connection, name, row.try_get(name)?).await?);
    }
    Ok(Some(json!({
        "id": id,
        "item": row.try_get::<String, _>("item")?,
        "amount": row.try_get::<i64, _>("amount")?,
        "currency": row.try_get::<String, _>("currency")?,
        "email": row.try_get::<String, _>("email")?,
        "effects": effects,
    })))
}

/// An effect of an order, from the public view; `None` once retention has dropped it.
async fn effect(
    connection: &mut SqliteConnection,
    name: &str,
    id: i64,
) -> Result<Option<Value>, sqlx::Error> {
    let row = sqlx::query("SELECT downstream, idempotency_key, state FROM aftercommit_status WHERE id = ?1")
        .bind(id)
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let state: State =
        row.try_get::<String, _>("state")?.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    Ok(Some(json!({
        "name": name,
        "id": id,
        "downstream": row.try_get::<String, _>("downstream")?,
        "idempotency_key": row.try_get::<String, _>("idempotency_key")?,
        "state": state.as_str(),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content_type: &'static str, body: &str) -> Result<Order, u16> {
        let content_type = HeaderValue::from_static(content_type);
        Order::read(Some(&content_type), body.as_bytes()).map_err(|problem| problem.status())
    }

    #[test]
    fn json_and_forms_are_the_same_order() {
        let json = read(
            "application/json; charset=utf-8",
            r#"{"item":"tea","amount":1500,"currency":"jpy","email":"a@b"}"#,
        );
        let form = read("Application/X-WWW-Form-URLencoded", "item=tea&amount=1500&currency=jpy&email=a%40b");
        assert_eq!(json, form);
        assert_eq!(json.unwrap().amount, 1_500);
    }

    #[test]
    fn what_is_wrong_is_told_by_status() {
        let form = "application/x-www-form-urlencoded";
        for (kind, body, status) in [
            ("text/plain", "", 415),
            ("application/json", "{", 400),
            ("application/json", "[]", 422),
            ("application/json", r#"{"item":"tea","amount":1.5,"currency":"jpy"}"#, 422),
            ("application/json", r#"{"item":"tea","amount":1,"currency":"jpy","more":1}"#, 422),
            ("application/json", r#"{"item":"a\u0000","amount":1,"currency":"jpy"}"#, 422),
            (form, "", 422),
            (form, "item=tea&amount=0&currency=jpy", 422),
            (form, "item=tea&amount=x&currency=jpy", 422),
            (form, "item=tea&amount=1&currency=JPY", 422),
            (form, "item=tea&amount=1&currency=jpy&email=nobody", 422),
        ] {
            assert_eq!(read(kind, body), Err(status), "{kind} {body}");
        }
        assert_eq!(Order::read(None, b"{}").map_err(|problem| problem.status()), Err(415));
    }
}
