//! What is known besides effects: about this dashboard, counts, causes, traffic, guarded requests, and who did what.

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    store::{AuditFilter, LATENCY_BARS_MAX, RequestFilter, Resolution, SCHEMA_VERSION, UnknownPlace},
};
use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    ask::{self, Query},
    json::{
        AboutJson, AuditJson, AuditsJson, CountsJson, EXPIRED, KEPT, LatenciesJson, LatencyJson, RequestJson,
        RequestsJson, Time, TrafficsJson, request_state,
    },
};
use crate::{access::Visitor, live, problem::Problem, shared::Shared};

/// What this is, and who you are here.
#[utoipa::path(
    get,
    path = "/about",
    tag = "look",
    responses((status = 200, description = "This dashboard", body = AboutJson))
)]
pub(crate) async fn about(
    State(shared): State<Shared>,
    visitor: Visitor,
) -> Result<Json<AboutJson>, Problem> {
    let database = shared.database();
    let hold = match shared.eyes().hold().await {
        Ok(hold) => hold.map(|hold| hold.reason),
        // The login at the database may not read it.
        Err(problem) if problem.is_forbidden() => None,
        Err(problem) => return Err(problem.into()),
    };
    let settings = shared.settings();
    Ok(Json(AboutJson {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        schema_version: SCHEMA_VERSION,
        environment: settings.environment.clone(),
        read_only: settings.read_only,
        who: visitor.who.clone(),
        role: visitor.role.as_str().to_owned(),
        hold,
        now: Time(database.now().await?),
    }))
}

/// Effects by downstream and state: at most two seconds old, exact at rest.
#[utoipa::path(
    get,
    path = "/counts",
    tag = "look",
    responses((status = 200, description = "The counts", body = CountsJson))
)]
pub(crate) async fn counts(State(shared): State<Shared>) -> Result<Json<CountsJson>, Problem> {
    Ok(Json(live::look(&shared).await?))
}

/// Since when, and by what, to count.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrafficQuery {
    /// Since when (RFC 3339).
    since: String,
    /// `minute` or `hour`.
    #[param(schema_with = per)]
    per: String,
}

impl TrafficQuery {
    fn read(&self) -> Result<(Timestamp, Resolution), Problem> {
        let per = match self.per.as_str() {
            "minute" => Resolution::Minute,
            "hour" => Resolution::Hour,
            other => {
                return Err(Problem::bad_request(format!("per: {other:?} is none; write minute or hour.")));
            }
        };
        Ok((ask::at("since", &self.since)?, per))
    }
}

fn per() -> utoipa::openapi::schema::ObjectBuilder {
    super::json::word(["minute", "hour"])
}

/// How many effects ended how, over time.
#[utoipa::path(
    get,
    path = "/traffic",
    tag = "look",
    params(TrafficQuery),
    responses((status = 200, description = "What ended, the oldest first", body = TrafficsJson), (status = 400))
)]
pub(crate) async fn traffic(
    State(shared): State<Shared>,
    Query(asked): Query<TrafficQuery>,
) -> Result<Json<TrafficsJson>, Problem> {
    let (since, per) = asked.read()?;
    let traffic = shared.database().traffic(since, per).await?;
    Ok(Json(TrafficsJson::of(&traffic, shared.database().now().await?)))
}

/// How long the attempts took that ended effects, over time: two hundred minutes or hours at most.
///
/// Of a sample: up to five attempts of each sixth of a minute or hour, as long as their history is kept. Refused where the
/// dashboard's login at the database may only view.
#[utoipa::path(
    get,
    path = "/latencies",
    tag = "look",
    params(TrafficQuery),
    responses((status = 200, description = "The latencies, the oldest first", body = LatenciesJson), (status = 400))
)]
pub(crate) async fn latencies(
    State(shared): State<Shared>,
    Query(asked): Query<TrafficQuery>,
) -> Result<Json<LatenciesJson>, Problem> {
    let (since, per) = asked.read()?;
    let found = shared.database().latencies(since, LATENCY_BARS_MAX, per).await?;
    let latencies = found.iter().map(LatencyJson::from).collect();
    Ok(Json(LatenciesJson { latencies, now: Time(shared.database().now().await?) }))
}

/// Which guarded requests to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestsQuery {
    /// Only of this scope.
    scope: Option<String>,
    /// Only with this key.
    key: Option<String>,
    /// Only those that are `kept`, or `expired`.
    #[param(schema_with = request_state)]
    state: Option<String>,
    /// The `next` of the page before.
    before: Option<String>,
    /// At most this many.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
}

/// Guarded requests that were answered, those first that are kept longest. What they were answered with is shown to nobody but whoever
/// repeats them.
#[utoipa::path(
    get,
    path = "/requests",
    tag = "look",
    params(RequestsQuery),
    responses((status = 200, description = "A page", body = RequestsJson), (status = 400))
)]
pub(crate) async fn requests(
    State(shared): State<Shared>,
    Query(asked): Query<RequestsQuery>,
) -> Result<Json<RequestsJson>, Problem> {
    let limit = ask::page(asked.limit)?;
    let place = |text: String| {
        text.parse().map_err(|problem: UnknownPlace| Problem::bad_request(format!("before: {problem}.")))
    };
    let before = asked.before.map(place).transpose()?;
    let expired = asked.state.map(|word| match word.as_str() {
        KEPT => Ok(false),
        EXPIRED => Ok(true),
        other => Err(Problem::bad_request(format!("state: {other:?} is none; write {KEPT} or {EXPIRED}."))),
    });
    let expired = expired.transpose()?;
    let filter = RequestFilter { scope: asked.scope, key: asked.key, expired, before, limit };
    let found = shared.database().requests(&filter).await?;
    let full = found.len() == usize::try_from(limit).unwrap_or(usize::MAX);
    let next = found.last().filter(|_| full).map(|last| last.place().to_string());
    let requests = found.iter().map(RequestJson::from).collect();
    Ok(Json(RequestsJson { requests, next, now: Time(shared.database().now().await?) }))
}

/// Which audit rows to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// Only about this effect.
    #[param(minimum = 1)]
    effect: Option<i64>,
    /// Only about this downstream.
    downstream: Option<String>,
    /// Only what they did.
    who: Option<String>,
    /// Only rows with a lower number: the `next` of the page before.
    #[param(minimum = 1)]
    before: Option<i64>,
    /// At most this many.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
}

/// Who did what to which effect, newest first.
#[utoipa::path(
    get,
    path = "/audit",
    tag = "look",
    params(AuditQuery),
    responses((status = 200, description = "A page", body = AuditsJson), (status = 400))
)]
pub(crate) async fn audit(
    State(shared): State<Shared>,
    Query(asked): Query<AuditQuery>,
) -> Result<Json<AuditsJson>, Problem> {
    let limit = ask::page(asked.limit)?;
    let filter = AuditFilter {
        effect: ask::positive("effect", asked.effect)?.map(EffectId::new),
        downstream: asked.downstream,
        who: asked.who,
        before: ask::positive("before", asked.before)?,
        limit,
    };
    let rows = shared.eyes().audit(&filter).await?;
    let full = rows.len() == usize::try_from(limit).unwrap_or(usize::MAX);
    let next = rows.last().filter(|_| full).map(|row| row.id);
    Ok(Json(AuditsJson { audit: rows.iter().map(AuditJson::from).collect(), next }))
}
