//! What people do to downstreams and to bulks.

use aftercommit::{
    clock::{Timestamp, words::utc},
    store::{BulkInfo, BulkState, Control, PauseActed, PausedBy},
    visible::clean,
};

use super::{actor, reasonless};
use crate::{access::Visitor, problem::Problem, shared::Shared};

/// Nothing more is sent to the downstream until it is resumed.
///
/// # Errors
///
/// 404 when nobody ever registered it, 409 when it is paused already, 422 without a reason.
pub(crate) async fn pause(
    shared: &Shared,
    visitor: &Visitor,
    name: &str,
    reason: Option<String>,
) -> Result<(), Problem> {
    let reason = reason.filter(|reason| !reason.trim().is_empty()).ok_or_else(|| reasonless("pause"))?;
    match shared.database().pause(name, &actor(visitor, Some(reason))).await? {
        PauseActed::Done => Ok(()),
        PauseActed::NotFound => Err(absent_downstream(name)),
        PauseActed::AsItWas(paused) => {
            let by = paused.map(|paused| format!(", {}", by_whom(shared, &paused))).unwrap_or_default();
            Err(Problem::conflict("state-forbids", format!("{} is paused already{by}.", clean(name))))
        }
    }
}

/// Who paused it, when and why.
pub(crate) fn by_whom(shared: &Shared, paused: &PausedBy) -> String {
    let hidden = |reason: &str| clean(&shared.redaction().words(reason)).into_owned();
    let reason = paused.reason.as_deref().map(|reason| format!(": {}", hidden(reason))).unwrap_or_default();
    format!("by {} at {}{reason}", clean(&paused.who), utc(paused.at))
}

/// Goes on sending: ends the pause that was seen, by when it began, whoever paused it.
///
/// # Errors
///
/// 404 when nobody ever registered it, 409 when it is not paused, or was paused anew since.
pub(crate) async fn resume(
    shared: &Shared,
    visitor: &Visitor,
    name: &str,
    (paused_at, reason): (Timestamp, Option<String>),
) -> Result<(), Problem> {
    let reason = reason.filter(|reason| !reason.trim().is_empty());
    match shared.database().resume(name, &actor(visitor, reason), Some(paused_at)).await? {
        PauseActed::Done => Ok(()),
        PauseActed::NotFound => Err(absent_downstream(name)),
        PauseActed::AsItWas(Some(paused)) => {
            let detail = format!(
                "{} was paused anew since you looked, {}. Nothing was done: decide on what it is now.",
                clean(name),
                by_whom(shared, &paused)
            );
            Err(Problem::conflict("stale", detail))
        }
        PauseActed::AsItWas(None) => {
            Err(Problem::conflict("state-forbids", format!("{} is not paused.", clean(name))))
        }
    }
}

/// Pauses, resumes or cancels a bulk.
///
/// # Errors
///
/// 404 when there is none, 409 when it has ended, or is paused or running already.
pub(crate) async fn control_bulk(
    shared: &Shared,
    visitor: &Visitor,
    id: i64,
    control: Control,
) -> Result<BulkInfo, Problem> {
    let database = shared.database();
    let Some(before) = database.bulk(id).await? else { return Err(absent_bulk(id)) };
    // What would do nothing leaves no row in the audit, and is not answered as if it had been done.
    if !control.takes(before.state) {
        return Err(as_it_was(&before));
    }
    let now =
        database.control_bulk(id, control, &actor(visitor, None)).await?.ok_or_else(|| absent_bulk(id))?;
    if control == Control::Resume {
        crate::bulk::ring(shared);
    }
    // What was resumed may be through by now.
    let is_through = control == Control::Resume && now.state == BulkState::Finished;
    if is_through || now.state == control.leads_to() { Ok(now) } else { Err(as_it_was(&now)) }
}

/// Nothing was done to the bulk: it is this already, or has ended.
fn as_it_was(bulk: &BulkInfo) -> Problem {
    let (id, state) = (bulk.id, bulk.state.as_str());
    let detail = if bulk.finished_at.is_some() {
        format!("Bulk {id} has ended: it is {state}. What it did stays done.")
    } else {
        format!("Bulk {id} is {state} already: nothing was done.")
    };
    Problem::conflict("state-forbids", detail).with("bulk_state", state)
}

/// Nobody ever registered a downstream of this name.
pub(crate) fn absent_downstream(name: &str) -> Problem {
    Problem::not_found(format!(
        "No configuration ever made a downstream {} known here. The list of downstreams shows what there is.",
        clean(name)
    ))
}

/// There is no such bulk.
pub(crate) fn absent_bulk(id: i64) -> Problem {
    Problem::not_found(format!("There is no bulk {id}. It was never started, or retention dropped it."))
}
