//! The guard that people write first: look up, run, then store. It stands here so that the tests can show that they would notice.

use std::sync::Arc;

use aftercommit::Outbox;
use axum::{
    Extension,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderName, StatusCode},
    response::{IntoResponse as _, Response},
};
use sqlx::{PgPool, SqlitePool};

use super::{
    gate::Step,
    server::{ORDER, Refused, Shop, charge},
};

const LOOK: &str = "SELECT answer FROM remembered WHERE scope = $1 AND request_key = $2";
const STORE: &str =
    "INSERT INTO remembered (scope, request_key, answer) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";

fn told(answer: String) -> Response {
    let marker = (HeaderName::from_static("idempotent-replayed"), "true");
    (StatusCode::CREATED, [marker], answer).into_response()
}

macro_rules! broken_handler {
    ($name:ident, $pool:ty) => {
        pub(super) async fn $name(
            State(shop): State<Arc<Shop>>,
            Extension(pool): Extension<$pool>,
            head: HeaderMap,
            body: Bytes,
        ) -> Result<Response, Refused> {
            let asked = shop.asked(&head, &body)?;
            let look = sqlx::query_scalar(LOOK).bind(&asked.scope).bind(&asked.key);
            let known: Option<String> = look.fetch_optional(&pool).await?;
            if let Some(answer) = known {
                return Ok(told(answer));
            }
            let mut tx = pool.begin().await?;
            let insert =
                sqlx::query_scalar(ORDER).bind(&asked.scope).bind(&asked.key).bind(asked.order.amount);
            let id: i64 = insert.fetch_one(&mut *tx).await?;
            Outbox.enqueue(&mut *tx, charge(&asked, id)?).await?;
            tx.commit().await?;
            shop.gate.reached(Step::AfterCommit);
            let answer = format!("{{\"order\":{id}}}");
            let store = sqlx::query(STORE).bind(&asked.scope).bind(&asked.key).bind(&answer);
            store.execute(&pool).await?;
            Ok((StatusCode::CREATED, answer).into_response())
        }
    };
}
broken_handler!(order_on_postgres, PgPool);
broken_handler!(order_on_sqlite, SqlitePool);
