//! The dashboard: an axum [`Router`] that mounts anywhere. For now one page that lists effects, and [`Operations`]: health
//! and metrics.
//!
//! It reads; it changes nothing.

mod metrics;
mod operations;
mod page;

use std::sync::Arc;

use aftercommit::{
    effect::EffectId,
    state::State as EffectState,
    store::{Database, Filter},
};
use axum::{
    Router,
    extract::{Query, State},
    http::{StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};

pub use operations::Operations;

/// Effects on a page.
const PAGE: u32 = 50;

/// The pages, and health and metrics of the database.
pub fn router(database: Arc<dyn Database>) -> Router {
    let operations = Operations::default();
    operations.watch(Arc::clone(&database), None);
    pages(database).merge(operations.router())
}

/// The pages alone: a process that serves [`Operations`] of its own merges them.
pub fn pages(database: Arc<dyn Database>) -> Router {
    Router::new().route("/", get(effects)).with_state(database)
}

/// What the page is asked for. Words that name nothing are ignored: a page that was bookmarked still opens.
#[derive(Debug, Default, serde::Deserialize)]
struct Asked {
    state: Option<String>,
    downstream: Option<String>,
    before: Option<i64>,
}

async fn effects(State(database): State<Arc<dyn Database>>, Query(asked): Query<Asked>) -> Response {
    let filter = Filter {
        states: asked
            .state
            .as_deref()
            .and_then(|word| word.parse::<EffectState>().ok())
            .into_iter()
            .collect(),
        downstream: asked.downstream.filter(|name| !name.is_empty()),
        before: asked.before.map(EffectId::new),
        limit: PAGE,
        ..Filter::default()
    };
    let read = async {
        let counts = database.counts().await?;
        let effects = database.effects(&filter).await?.effects;
        let (downstreams, now) = (database.downstreams().await?, database.now().await?);
        let unserved = page::unserved(&downstreams, now);
        Ok::<_, aftercommit::error::StoreError>(page::effects(&counts, &effects, &filter, &unserved))
    };
    match read.await {
        Ok(html) => (SAFE, Html(html)).into_response(),
        Err(problem) => {
            (StatusCode::SERVICE_UNAVAILABLE, SAFE, Html(page::unavailable(&problem.to_string())))
                .into_response()
        }
    }
}

/// Nothing is loaded from anywhere, nothing runs, nobody frames it.
const SAFE: [(header::HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];
