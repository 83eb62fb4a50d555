//! `bulk`: one verb for many effects, carried out on the server.

use aftercommit::{
    store::{BulkInfo, Control, Filter},
    verb::{Resolved, Verb},
};
use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::IntoParams;

use super::{
    ask::{self, Body, Number, Query},
    json::{BulkJson, BulkWishJson, BulksJson, FilterJson, PreviewJson, Resolution},
};
use crate::{
    access::Visitor,
    actions::{self, BulkWish},
    problem::Problem,
    shared::Shared,
};

/// Starts a bulk, or says what it would do.
///
/// Which effects is listed once, now, the oldest first, without those that the verb is certainly refused for, which a dry run tells
/// apart (`refused`); each is acted on only as long as it is as it was listed. A resend and a
/// reissue are confirmed by the verb and the number of effects that a dry run tells. Who decides on what a dry run told sends its
/// `digest` and the number of its effects as `limit`: where the list is another one by now, nothing is begun.
#[utoipa::path(
    post,
    path = "/bulk",
    tag = "act",
    request_body = BulkWishJson,
    responses(
        (status = 202, description = "Started", body = BulkJson),
        (status = 200, description = "A dry run: nothing was done", body = PreviewJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415), (status = 422)
    )
)]
pub(crate) async fn start(
    State(shared): State<Shared>,
    visitor: Visitor,
    Body(wish): Body<BulkWishJson>,
) -> Result<Response, Problem> {
    let dry_run = wish.dry_run;
    let wish = BulkWish {
        verb: verb(&wish)?,
        cause: wish.filter.cause.clone(),
        at: None,
        filter: filter(wish.filter)?,
        reason: wish.reason,
        rate: wish.rate,
        limit: wish.limit,
        confirmation: wish.confirmation,
        digest: wish.digest,
    };
    if dry_run {
        let preview = actions::preview(&shared, &wish).await?;
        return Ok(Json(PreviewJson::of(&wish.verb, preview)).into_response());
    }
    let id = actions::bulk(&shared, &visitor, wish).await?;
    let bulk = find(&shared, id).await?;
    Ok((StatusCode::ACCEPTED, Json(BulkJson::from(&bulk))).into_response())
}

/// How many bulks to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct BulksQuery {
    /// At most this many.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
}

/// Bulks, newest first.
#[utoipa::path(
    get,
    path = "/bulk",
    tag = "look",
    params(BulksQuery),
    responses((status = 200, description = "The bulks", body = BulksJson), (status = 400))
)]
pub(crate) async fn list(
    State(shared): State<Shared>,
    Query(asked): Query<BulksQuery>,
) -> Result<Json<BulksJson>, Problem> {
    let bulks = shared.eyes().bulks(ask::page(asked.limit)?).await?;
    Ok(Json(BulksJson { bulks: bulks.iter().map(BulkJson::from).collect() }))
}

/// One bulk: how far it is.
#[utoipa::path(
    get,
    path = "/bulk/{id}",
    tag = "look",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    responses((status = 200, description = "The bulk", body = BulkJson), (status = 400), (status = 404))
)]
pub(crate) async fn show(State(shared): State<Shared>, id: Number) -> Result<Json<BulkJson>, Problem> {
    Ok(Json(BulkJson::from(&find(&shared, id.0).await?)))
}

/// Nothing more is begun until it is resumed.
#[utoipa::path(
    post,
    path = "/bulk/{id}/pause",
    tag = "act",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    responses(
        (status = 200, description = "The bulk as it is now", body = BulkJson),
        (status = 400), (status = 404), (status = 409)
    )
)]
pub(crate) async fn pause(
    State(shared): State<Shared>,
    visitor: Visitor,
    id: Number,
) -> Result<Json<BulkJson>, Problem> {
    control(&shared, &visitor, &id, Control::Pause).await
}

/// A paused bulk goes on.
#[utoipa::path(
    post,
    path = "/bulk/{id}/resume",
    tag = "act",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    responses(
        (status = 200, description = "The bulk as it is now", body = BulkJson),
        (status = 400), (status = 404), (status = 409)
    )
)]
pub(crate) async fn resume(
    State(shared): State<Shared>,
    visitor: Visitor,
    id: Number,
) -> Result<Json<BulkJson>, Problem> {
    control(&shared, &visitor, &id, Control::Resume).await
}

/// Nothing more is begun, for good. What was done stays done.
#[utoipa::path(
    post,
    path = "/bulk/{id}/cancel",
    tag = "act",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    responses(
        (status = 200, description = "The bulk as it is now", body = BulkJson),
        (status = 400), (status = 404), (status = 409)
    )
)]
pub(crate) async fn cancel(
    State(shared): State<Shared>,
    visitor: Visitor,
    id: Number,
) -> Result<Json<BulkJson>, Problem> {
    control(&shared, &visitor, &id, Control::Cancel).await
}

async fn control(
    shared: &Shared,
    visitor: &Visitor,
    id: &Number,
    control: Control,
) -> Result<Json<BulkJson>, Problem> {
    let bulk = actions::control_bulk(shared, visitor, id.0, control).await?;
    Ok(Json(BulkJson::from(&shared.redaction().bulk(bulk))))
}

async fn find(shared: &Shared, id: i64) -> Result<BulkInfo, Problem> {
    shared.eyes().bulk(id).await?.ok_or_else(|| actions::absent_bulk(id))
}

fn verb(wish: &BulkWishJson) -> Result<Verb, Problem> {
    let verb = match (wish.verb.as_str(), wish.found) {
        ("resolve", Some(Resolution::Applied)) => Verb::ResolveApplied { response: None },
        ("resolve", Some(Resolution::NotApplied)) => Verb::ResolveNotApplied,
        ("resolve", None) => {
            return Err(actions::unusable("as: say what was found out, applied or not_applied."));
        }
        ("reissue", found) => Verb::Reissue {
            resolve: found.map(|found| match found {
                Resolution::Applied => Resolved::Applied,
                Resolution::NotApplied => Resolved::NotApplied,
            }),
        },
        (_, Some(_)) => return Err(actions::unusable("as: goes with resolve and reissue only.")),
        ("retry", None) => Verb::Retry,
        ("resend", None) => Verb::Resend,
        ("cancel", None) => Verb::Cancel,
        ("redact", None) => Verb::Redact,
        (other, None) => {
            return Err(actions::unusable(format!(
                "verb: {other:?} is none; write retry, resend, cancel, resolve, reissue or redact."
            )));
        }
    };
    Ok(verb)
}

/// As the store asks for it.
fn filter(json: FilterJson) -> Result<Filter, Problem> {
    Ok(Filter {
        states: json.states,
        downstream: json.downstream,
        operation: json.operation,
        key: json.key,
        metadata: json.metadata.map(|raw| ask::object(RawValue::get(&raw).to_owned())).transpose()?,
        error: json.error,
        created_before: json.created_before.map(|time| time.0),
        created_after: json.created_after.map(|time| time.0),
        ids: json.ids.map(ask::few).transpose()?,
        before: None,
        limit: 0,
    })
}
