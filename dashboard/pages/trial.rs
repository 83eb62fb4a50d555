//! The effect that somebody may send from an empty overview to see how it goes: where it is offered, and nowhere else.

use aftercommit::Enqueued;
use axum::{extract::State as Shared_, response::Response};

use crate::{access::Visitor, actions, api, problem::Problem, security::see_other, shared::Shared};

/// `POST /trial`: writes it, with its audit row, and leads to it.
pub(super) async fn send(Shared_(shared): Shared_<Shared>, visitor: Visitor) -> Result<Response, Problem> {
    let Some(trial) = &shared.settings().trial else {
        let detail = "This dashboard offers no effect to be tried: its downstreams are real ones. `aftercommit dev` does.";
        return Err(Problem::not_found(detail));
    };
    let actor = actions::actor(&visitor, Some("a test effect, sent from the overview".to_owned()));
    let written = shared.database().enqueue(&trial.effect, &actor).await.map_err(api::refused)?;
    let Some(first) = written.first().map(Enqueued::receipt) else { return Err(Problem::failed()) };
    Ok(see_other(&format!("effects/{}", first.id)))
}
