//! Downstreams, their endpoints, and workers.

use aftercommit::downstream::endpoint::Endpoint;
use axum::{Json, extract::State};

use super::{
    ask::{Body, Named},
    json::{
        DownstreamJson, DownstreamsJson, EndpointJson, EndpointsJson, ReasonJson, ResumeJson, Time,
        WorkerJson, WorkersJson,
    },
};
use crate::{access::Visitor, actions, problem::Problem, shared::Shared};

/// The downstreams: what they promise, what waits for them, and what holds them.
///
/// They are read once a second for everybody who looks, since counting what waits reads the queue: `now` says when. What somebody
/// changed through this dashboard is told at once.
#[utoipa::path(
    get,
    path = "/downstreams",
    tag = "look",
    responses((status = 200, description = "The downstreams", body = DownstreamsJson))
)]
pub(crate) async fn downstreams(State(shared): State<Shared>) -> Result<Json<DownstreamsJson>, Problem> {
    let read = shared.downstreams().await?;
    let downstreams = read.value.iter().map(DownstreamJson::from).collect();
    Ok(Json(DownstreamsJson { downstreams, now: Time(read.as_of) }))
}

/// Nothing more is sent to the downstream until it is resumed; calls that are under way go on.
#[utoipa::path(
    post,
    path = "/downstreams/{name}/pause",
    tag = "act",
    params(("name" = String, Path, description = "Its name")),
    request_body = ReasonJson,
    responses(
        (status = 200, description = "Paused", body = DownstreamJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415), (status = 422)
    )
)]
pub(crate) async fn pause(
    State(shared): State<Shared>,
    visitor: Visitor,
    Named([name]): Named<[String; 1]>,
    Body(wish): Body<ReasonJson>,
) -> Result<Json<DownstreamJson>, Problem> {
    actions::pause(&shared, &visitor, &name, wish.reason).await?;
    one(&shared, &name).await
}

/// Goes on sending, whoever paused it: what is due is due at once. Only the pause that was seen is ended.
#[utoipa::path(
    post,
    path = "/downstreams/{name}/resume",
    tag = "act",
    params(("name" = String, Path, description = "Its name")),
    request_body = ResumeJson,
    responses(
        (status = 200, description = "Resumed", body = DownstreamJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415)
    )
)]
pub(crate) async fn resume(
    State(shared): State<Shared>,
    visitor: Visitor,
    Named([name]): Named<[String; 1]>,
    Body(wish): Body<ResumeJson>,
) -> Result<Json<DownstreamJson>, Problem> {
    actions::resume(&shared, &visitor, &name, (wish.paused_at.0, wish.reason)).await?;
    one(&shared, &name).await
}

/// As it is after the act that this answers: what is read for everybody may be of the moment before.
async fn one(shared: &Shared, name: &str) -> Result<Json<DownstreamJson>, Problem> {
    let all = shared.eyes().downstreams().await?;
    let found = all.iter().find(|info| info.name == name);
    found.map(|info| Json(info.into())).ok_or_else(|| actions::absent_downstream(name))
}

/// The endpoints of a downstream that has many, as far as the database knows them.
#[utoipa::path(
    get,
    path = "/downstreams/{name}/endpoints",
    tag = "look",
    params(("name" = String, Path, description = "The downstream's name")),
    responses((status = 200, description = "The endpoints", body = EndpointsJson), (status = 400))
)]
pub(crate) async fn endpoints(
    State(shared): State<Shared>,
    Named([name]): Named<[String; 1]>,
) -> Result<Json<EndpointsJson>, Problem> {
    let (now, rows) = shared.eyes().endpoints(&name).await?;
    let endpoints = rows.iter().map(|row| EndpointJson::of_row(&name, row)).collect();
    Ok(Json(EndpointsJson { endpoints, now: Time(now) }))
}

/// Sends nothing more to an endpoint: what is due there fails, unsent.
#[utoipa::path(
    post,
    path = "/downstreams/{name}/endpoints/{endpoint}/disable",
    tag = "act",
    params(
        ("name" = String, Path, description = "The downstream's name"),
        ("endpoint" = String, Path, description = "The endpoint's name")
    ),
    request_body = ReasonJson,
    responses(
        (status = 200, description = "Disabled", body = EndpointJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415), (status = 422)
    )
)]
pub(crate) async fn disable(
    State(shared): State<Shared>,
    visitor: Visitor,
    Named([name, endpoint]): Named<[String; 2]>,
    Body(wish): Body<ReasonJson>,
) -> Result<Json<EndpointJson>, Problem> {
    let reason = wish.reason.filter(|reason| !reason.trim().is_empty());
    let reason = reason.ok_or_else(|| actions::reasonless("disable"))?;
    switch(&shared, &visitor, (&name, &endpoint), (Some(&reason), Some(reason.clone()))).await
}

/// Sends to an endpoint again, and forgets its failures.
#[utoipa::path(
    post,
    path = "/downstreams/{name}/endpoints/{endpoint}/enable",
    tag = "act",
    params(
        ("name" = String, Path, description = "The downstream's name"),
        ("endpoint" = String, Path, description = "The endpoint's name")
    ),
    request_body = ReasonJson,
    responses(
        (status = 200, description = "Enabled", body = EndpointJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415)
    )
)]
pub(crate) async fn enable(
    State(shared): State<Shared>,
    visitor: Visitor,
    Named([name, endpoint]): Named<[String; 2]>,
    Body(wish): Body<ReasonJson>,
) -> Result<Json<EndpointJson>, Problem> {
    switch(&shared, &visitor, (&name, &endpoint), (None, wish.reason)).await
}

async fn switch(
    shared: &Shared,
    visitor: &Visitor,
    (name, endpoint): (&str, &str),
    (disable, reason): (Option<&str>, Option<String>),
) -> Result<Json<EndpointJson>, Problem> {
    let (database, eyes) = (shared.database(), shared.eyes());
    let known = |rows: &[Endpoint]| rows.iter().find(|row| &*row.name == endpoint).cloned();
    if known(&eyes.endpoints(name).await?.1).is_none() {
        // To switch a name that nobody knows would make one.
        return Err(Problem::not_found(format!(
            "{name} has no endpoint {endpoint} in the database. One that only the configuration names, and that never failed, is \
             switched by the command line at its database."
        )));
    }
    let changed = database.switch_endpoint(name, endpoint, disable, &actions::actor(visitor, reason)).await?;
    match known(&eyes.endpoints(name).await?.1) {
        Some(row) if changed => Ok(Json(EndpointJson::of_row(name, &row))),
        Some(_) => {
            let already = if disable.is_some() { "disabled already" } else { "not disabled" };
            Err(Problem::conflict(
                "state-forbids",
                format!("The endpoint {endpoint} of {name} is {already}."),
            ))
        }
        None => Err(Problem::not_found(format!("{name} has no endpoint {endpoint} any more."))),
    }
}

/// The workers and what they serve, live ones first.
#[utoipa::path(
    get,
    path = "/workers",
    tag = "look",
    responses((status = 200, description = "The workers", body = WorkersJson))
)]
pub(crate) async fn workers(State(shared): State<Shared>) -> Result<Json<WorkersJson>, Problem> {
    let all = shared.database().workers().await?;
    let now = Time(shared.database().now().await?);
    Ok(Json(WorkersJson { workers: all.iter().map(WorkerJson::from).collect(), now }))
}
