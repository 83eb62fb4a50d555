//! What runs here, and how the pages are used.

use aftercommit::store::SCHEMA_VERSION;
use askama::Template;
use axum::{extract::State as Shared_, response::Response};

use super::{
    frame::{Frame, Place},
    parts::{Text, text},
    shown,
};
use crate::{problem::Problem, shared::Shared};

#[derive(Template)]
#[template(path = "about.html")]
struct About {
    frame: Frame,
    server: Text,
    schema: i32,
    pool: String,
}

/// `GET /about`.
pub(super) async fn page(frame: Frame, Shared_(shared): Shared_<Shared>) -> Result<Response, Problem> {
    let database = shared.database();
    let examined = database.examine().await?;
    let pool = database.connections();
    shown(&About {
        server: text(&examined.server),
        schema: SCHEMA_VERSION,
        pool: format!("{} in use, {} idle, {} at most", pool.used, pool.idle, pool.max),
        frame: frame.at(Place::About, "About"),
    })
}
