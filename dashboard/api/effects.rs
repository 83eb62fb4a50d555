//! `effects`: lists, one, its attempts, and a new one.

use aftercommit::{
    effect::EffectId,
    follow,
    store::{AuditFilter, Look, Status},
    visible::clean,
};
use axum::{Json, extract::State, http::StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    ask::{Body, EffectsQuery, Number, Query},
    enqueue::{self, Written},
    json::{
        AttemptJson, AttemptsJson, EffectJson, EffectsJson, EnqueueJson, EnqueuedJson, SentJson, VerbJson,
    },
    show::Shown,
};
use crate::{access::Visitor, actions, problem::Problem, shared::Shared};

/// Effects, newest first.
///
/// State, downstream, key, numbers, times and metadata are found by an index. Operation and error are looked for among the newest
/// effects that the others leave, page by page: `searched` says how many this page looked at, and a page may be empty and still
/// have a `next`.
#[utoipa::path(
    get,
    path = "/effects",
    tag = "look",
    params(EffectsQuery),
    responses((status = 200, description = "A page", body = EffectsJson), (status = 400), (status = 422))
)]
pub(crate) async fn list(
    State(shared): State<Shared>,
    visitor: Visitor,
    Query(asked): Query<EffectsQuery>,
) -> Result<Json<EffectsJson>, Problem> {
    let page = shared.eyes().effects(&asked.filter()?).await?;
    let mut json = EffectsJson::of(&page, shared.database().now().await?);
    let shown = Shown::to(&shared, &visitor);
    json.effects.iter_mut().for_each(|effect| shown.effect(effect));
    Ok(Json(json))
}

/// How much of an effect is shown.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneQuery {
    /// Whether what is sent is shown too: payload or body, target and headers. Nobody is shown it who may only view.
    #[serde(default)]
    payload: bool,
}

/// One effect: how it stands, its attempts, what follows, and what each verb would do now.
#[utoipa::path(
    get,
    path = "/effects/{id}",
    tag = "look",
    params(("id" = i64, Path, description = "Its number", minimum = 1), OneQuery),
    responses((status = 200, description = "The effect", body = EffectJson), (status = 400), (status = 404))
)]
pub(crate) async fn show(
    State(shared): State<Shared>,
    visitor: Visitor,
    id: Number,
    Query(asked): Query<OneQuery>,
) -> Result<Json<EffectJson>, Problem> {
    let eyes = shared.eyes();
    let effect = find(&shared, id.effect()).await?;
    let attempts = eyes.attempts(effect.id).await?;
    let now = shared.database().now().await?;
    let look = if asked.payload { Look::Whole } else { Look::Size };
    let intent = eyes.intent(effect.id, look).await?;
    let holder = match &effect.held_by {
        // As the pages show it, and not asked for anew: it counts what is pending.
        Some(_) => {
            let all = shared.downstreams().await?;
            all.value.iter().find(|info| info.name == effect.downstream).cloned()
        }
        None => None,
    };
    let contract = actions::contract(&shared, &effect).await?;
    let acts =
        eyes.audit(&AuditFilter { effect: Some(effect.id), limit: 1, ..AuditFilter::default() }).await?;
    let expires_at = intent.as_ref().and_then(|intent| intent.expires_at);
    let choices = actions::choices(&effect, contract.as_ref(), expires_at, now);
    let mut json = EffectJson::from(&effect);
    json.attempt_log = Some(attempts.iter().map(AttemptJson::from).collect());
    json.what_follows = Some(words(&follow::what_follows(&follow::Known {
        effect: &effect,
        attempts: &attempts,
        holder: holder.as_ref(),
        contract: contract.as_ref(),
        last_act: acts.first(),
        now,
    })));
    json.request = Some(intent.map(|intent| Box::new(SentJson::of(&intent, look))));
    json.verbs = Some(choices.into_iter().map(VerbJson::from).collect());
    Shown::to(&shared, &visitor).effect(&mut json);
    Ok(Json(json))
}

/// The attempts of an effect, oldest first: every call that its downstream saw.
#[utoipa::path(
    get,
    path = "/effects/{id}/attempts",
    tag = "look",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    responses((status = 200, description = "Its attempts", body = AttemptsJson), (status = 400), (status = 404))
)]
pub(crate) async fn attempts(
    State(shared): State<Shared>,
    id: Number,
) -> Result<Json<AttemptsJson>, Problem> {
    let effect = find(&shared, id.effect()).await?;
    let attempts = shared.eyes().attempts(effect.id).await?;
    Ok(Json(AttemptsJson { attempts: attempts.iter().map(AttemptJson::from).collect() }))
}

/// Writes an effect, in a transaction of its own.
///
/// The same key with the same request is the same effect: it is found, and nothing is written twice. A mail to several recipients
/// is an effect for each. Who wrote it is in the audit.
#[utoipa::path(
    post,
    path = "/effects",
    tag = "act",
    request_body = EnqueueJson,
    responses(
        (status = 201, description = "Written", body = EnqueuedJson),
        (status = 200, description = "It exists already", body = EnqueuedJson),
        (status = 400), (status = 409), (status = 413), (status = 415), (status = 422)
    )
)]
pub(crate) async fn create(
    State(shared): State<Shared>,
    visitor: Visitor,
    Body(wish): Body<EnqueueJson>,
) -> Result<(StatusCode, Json<EnqueuedJson>), Problem> {
    let written = enqueue::enqueue(&shared, &visitor, wish).await?;
    let status = if written.iter().any(|one| one.inserted) { StatusCode::CREATED } else { StatusCode::OK };
    let shown = Shown::to(&shared, &visitor);
    let effects = written.into_iter().map(|Written { effect, inserted, target }| {
        let mut json = EffectJson { inserted: Some(inserted), target, ..EffectJson::from(&effect) };
        shown.effect(&mut json);
        json
    });
    Ok((status, Json(EnqueuedJson { effects: effects.collect() })))
}

/// The effect, or that there is none.
pub(super) async fn find(shared: &Shared, id: EffectId) -> Result<Status, Problem> {
    let found = shared.eyes().effect(id).await?;
    found.ok_or_else(|| actions::absent(id))
}

/// What follows in words, with the ways that a person may take named as the API names them.
fn words(parts: &[follow::Part]) -> String {
    follow::text(parts, way_words, |way| format!("  {}", way_words(way)))
}

fn way_words(way: &follow::Way) -> String {
    use follow::Way;
    match way {
        Way::Work => "`aftercommit work`".to_owned(),
        Way::Downstreams => "GET downstreams".to_owned(),
        Way::Resume(name) => format!("POST downstreams/{}/resume", clean(name)),
        Way::Audit(id) => format!("GET audit?effect={id}"),
        Way::Retry(id) => format!("POST effects/{id}/retry"),
        Way::Resend(id) => format!("POST effects/{id}/resend"),
        Way::ResolveApplied(id) => format!("POST effects/{id}/resolve, as applied"),
        Way::ResolveNotApplied(id) => format!("POST effects/{id}/resolve, as not_applied"),
        Way::Reissue(id) => format!("POST effects/{id}/reissue"),
        Way::ReissueNotApplied(id) => format!("POST effects/{id}/reissue, with resolve not_applied"),
    }
}
