//! Guarded requests: which keys came in, what they were answered, and what they wrote. The answers are for whoever repeats one.

use aftercommit::store::{RequestFilter, RequestPlace};
use askama::Template;
use axum::{
    extract::{Query, State as Shared_},
    response::Response,
};

use super::{
    PAGE,
    effects::Fields,
    frame::{Frame, Place},
    parts::{Moment, Num, Text, in_query, text},
    shown,
};
use crate::{problem::Problem, shared::Shared};

#[derive(Template)]
#[template(path = "requests.html")]
struct Requests {
    frame: Frame,
    rows: Vec<Row>,
    scope: String,
    key: String,
    next: Option<String>,
    filtered: bool,
}

struct Row {
    id: i64,
    scope: Text,
    key: Text,
    status: u16,
    effects: Num,
    began: Moment,
    expires: Moment,
}

/// `GET /requests`.
pub(super) async fn page(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Query(asked): Query<Fields>,
) -> Result<Response, Problem> {
    let field = |name: &str| asked.get(name).filter(|value| !value.is_empty()).cloned();
    let before = field("before").map(|place| place.parse::<RequestPlace>());
    let before = before.transpose().map_err(|unknown| Problem::bad_request(unknown.to_string()))?;
    let filter = RequestFilter { scope: field("scope"), key: field("key"), before, limit: PAGE };
    let found = shared.database().requests(&filter).await?;
    let frame = frame.at(Place::Requests, "Requests");
    let full = found.len() >= usize::try_from(PAGE).unwrap_or(usize::MAX);
    let next = found.last().filter(|_| full).map(|last| {
        let kept = [("scope", &filter.scope), ("key", &filter.key)];
        let kept = kept
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name}={}&", in_query(value.as_ref()?))));
        format!("requests?{}before={}", kept.collect::<String>(), last.place())
    });
    let rows = found.iter().map(|request| Row {
        id: request.id,
        scope: text(&request.scope),
        key: text(&request.key),
        status: request.status,
        effects: Num(request.effects),
        began: Moment::short(request.created_at, frame.now),
        expires: Moment::short(request.expires_at, frame.now),
    });
    shown(&Requests {
        rows: rows.collect(),
        filtered: filter.scope.is_some() || filter.key.is_some(),
        scope: filter.scope.unwrap_or_default(),
        key: filter.key.unwrap_or_default(),
        next,
        frame,
    })
}
