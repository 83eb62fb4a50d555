//! `effects/{id}/{verb}`: each is one guarded statement, with the state and the token that it was decided on.

use aftercommit::{
    store::Acted,
    verb::{Resolved, Seen, Verb},
};
use axum::{Json, extract::State};
use serde_json::value::RawValue;

use super::{
    ask::{Body, Number},
    json::{ActJson, ConfirmedJson, EffectJson, ReissueJson, Resolution, ResolveJson},
    show::Shown,
};
use crate::{
    access::Visitor,
    actions::{self, Wish},
    problem::Problem,
    shared::Shared,
};

/// A failed effect again, in a new history; a scheduled or retrying one: due now.
#[utoipa::path(
    post,
    path = "/effects/{id}/retry",
    tag = "act",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    request_body = ActJson,
    responses(
        (status = 200, description = "Done; the effect as it is now", body = EffectJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415)
    )
)]
pub(crate) async fn retry(
    State(shared): State<Shared>,
    visitor: Visitor,
    id: Number,
    Body(wish): Body<ActJson>,
) -> Result<Json<EffectJson>, Problem> {
    act(&shared, &visitor, &id, plain(Verb::Retry, wish)).await
}

/// An effect in doubt again, with the same key: exactly one attempt, also past the time until which that is safe.
///
/// Where it may be applied twice, a confirmation word for word and a reason are needed: `GET effects/{id}` says which words, and why.
#[utoipa::path(
    post,
    path = "/effects/{id}/resend",
    tag = "act",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    request_body = ConfirmedJson,
    responses(
        (status = 200, description = "Done; the effect as it is now", body = EffectJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415), (status = 422)
    )
)]
pub(crate) async fn resend(
    State(shared): State<Shared>,
    visitor: Visitor,
    id: Number,
    Body(wish): Body<ConfirmedJson>,
) -> Result<Json<EffectJson>, Problem> {
    let seen = Seen { state: wish.state, token: wish.token };
    let wish = Wish { verb: Verb::Resend, seen, reason: wish.reason, confirmation: wish.confirmation };
    act(&shared, &visitor, &id, wish).await
}

/// Calls an effect off; in flight it is a request, and the outcome decides.
#[utoipa::path(
    post,
    path = "/effects/{id}/cancel",
    tag = "act",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    request_body = ActJson,
    responses(
        (status = 200, description = "Done; the effect as it is now", body = EffectJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415)
    )
)]
pub(crate) async fn cancel(
    State(shared): State<Shared>,
    visitor: Visitor,
    id: Number,
    Body(wish): Body<ActJson>,
) -> Result<Json<EffectJson>, Problem> {
    act(&shared, &visitor, &id, plain(Verb::Cancel, wish)).await
}

/// Lets the others of a lane pass an effect that blocks it. No effect blocks a lane yet: ordering keys are not built, so this is
/// always refused as what the state forbids.
#[utoipa::path(
    post,
    path = "/effects/{id}/skip",
    tag = "act",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    request_body = ActJson,
    responses((status = 400), (status = 404), (status = 409), (status = 413), (status = 415))
)]
pub(crate) async fn skip(
    State(shared): State<Shared>,
    id: Number,
    Body(_wish): Body<ActJson>,
) -> Result<Json<EffectJson>, Problem> {
    let effect = super::effects::find(&shared, id.effect()).await?;
    Err(actions::forbidden(&effect, "no effect blocks a lane: ordering keys are not built yet"))
}

/// A person says whether an effect in doubt was applied. Nothing is sent.
#[utoipa::path(
    post,
    path = "/effects/{id}/resolve",
    tag = "act",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    request_body = ResolveJson,
    responses(
        (status = 200, description = "Done; the effect as it is now", body = EffectJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415), (status = 422)
    )
)]
pub(crate) async fn resolve(
    State(shared): State<Shared>,
    visitor: Visitor,
    id: Number,
    Body(wish): Body<ResolveJson>,
) -> Result<Json<EffectJson>, Problem> {
    let verb = match (wish.found, wish.response) {
        (Resolution::Applied, response) => {
            Verb::ResolveApplied { response: response.as_deref().map(RawValue::get).map(str::to_owned) }
        }
        (Resolution::NotApplied, None) => Verb::ResolveNotApplied,
        (Resolution::NotApplied, Some(_)) => {
            return Err(actions::unusable("response: what was not applied has none; leave it out."));
        }
    };
    let seen = Seen { state: wish.state, token: wish.token };
    let wish = Wish { verb, seen, reason: Some(wish.reason), confirmation: None };
    act(&shared, &visitor, &id, wish).await
}

/// Writes a new effect with a new key in the place of one that has ended, or that is in doubt and resolved in the same action.
///
/// Answers the old effect: `superseded_by` is the new one.
#[utoipa::path(
    post,
    path = "/effects/{id}/reissue",
    tag = "act",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    request_body = ReissueJson,
    responses(
        (status = 200, description = "Done; the old effect as it is now", body = EffectJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415), (status = 422)
    )
)]
pub(crate) async fn reissue(
    State(shared): State<Shared>,
    visitor: Visitor,
    id: Number,
    Body(wish): Body<ReissueJson>,
) -> Result<Json<EffectJson>, Problem> {
    let resolve = wish.resolve.map(|found| match found {
        Resolution::Applied => Resolved::Applied,
        Resolution::NotApplied => Resolved::NotApplied,
    });
    let seen = Seen { state: wish.state, token: wish.token };
    let reason = Some(wish.reason);
    let wish = Wish { verb: Verb::Reissue { resolve }, seen, reason, confirmation: wish.confirmation };
    act(&shared, &visitor, &id, wish).await
}

/// Drops what was sent and what was answered, of an effect that has ended. Key, state and times stay.
#[utoipa::path(
    post,
    path = "/effects/{id}/redact",
    tag = "act",
    params(("id" = i64, Path, description = "Its number", minimum = 1)),
    request_body = ActJson,
    responses(
        (status = 200, description = "Done; the effect as it is now", body = EffectJson),
        (status = 400), (status = 404), (status = 409), (status = 413), (status = 415), (status = 422)
    )
)]
pub(crate) async fn redact(
    State(shared): State<Shared>,
    visitor: Visitor,
    id: Number,
    Body(wish): Body<ActJson>,
) -> Result<Json<EffectJson>, Problem> {
    act(&shared, &visitor, &id, plain(Verb::Redact, wish)).await
}

fn plain(verb: Verb, wish: ActJson) -> Wish {
    let seen = Seen { state: wish.state, token: wish.token };
    Wish { verb, seen, reason: wish.reason, confirmation: None }
}

async fn act(
    shared: &Shared,
    visitor: &Visitor,
    id: &Number,
    wish: Wish,
) -> Result<Json<EffectJson>, Problem> {
    match actions::act(shared, visitor, id.effect(), wish).await? {
        Acted::Done(_, effect) => Ok(Json(Shown::to(shared, visitor).status(*effect))),
        // `actions::act` tells these as problems.
        Acted::Refused(refusal) => Err(actions::unusable(refusal.to_string())),
        Acted::NotFound => Err(actions::absent(id.effect())),
    }
}
