//! `causes`: why effects failed or are in doubt, grouped by what is the same about them.

use aftercommit::{clock::Timestamp, state::State as EffectState, store::CauseRow};
use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::{IntoParams, openapi::schema::ObjectBuilder};

use super::{
    ask::Query,
    json::{CauseJson, CausesJson, Time, word},
};
use crate::{
    causes::{Group, groups, superseded},
    problem::Problem,
    shared::Shared,
};

/// More causes than this nobody tells apart.
const CAUSES_MAX: usize = 200;

/// Of what to tell the causes.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct CausesQuery {
    /// Of failed effects, or of those in doubt.
    #[param(schema_with = states)]
    state: String,
    /// Only this downstream.
    downstream: Option<String>,
}

fn states() -> ObjectBuilder {
    word(["failed", "in_doubt"])
}

/// Why effects failed or are in doubt: the newest of them, grouped by what is the same about them.
#[utoipa::path(
    get,
    path = "/causes",
    tag = "look",
    params(CausesQuery),
    responses((status = 200, description = "The causes, the most frequent first", body = CausesJson), (status = 400))
)]
pub(crate) async fn causes(
    State(shared): State<Shared>,
    Query(asked): Query<CausesQuery>,
) -> Result<Json<CausesJson>, Problem> {
    let state = match asked.state.as_str() {
        "failed" => EffectState::Failed,
        "in_doubt" => EffectState::InDoubt,
        other => {
            let detail = format!("state: {other:?} has no causes; write failed or in_doubt.");
            return Err(Problem::bad_request(detail));
        }
    };
    let found = shared.eyes().causes(state, asked.downstream.as_deref()).await?;
    let now = shared.database().now().await?;
    let hidden = |error: &str| shared.redaction().words(error).into_owned();
    Ok(Json(CausesJson {
        state,
        causes: grouped(&found.rows, state, now, hidden),
        superseded: superseded(&found.rows),
        searched: found.searched,
        whole: found.whole,
        now: Time(now),
    }))
}

/// The most frequent first. `hidden` takes away what nobody is shown.
fn grouped(
    rows: &[CauseRow],
    state: EffectState,
    now: Timestamp,
    hidden: impl Fn(&str) -> String,
) -> Vec<CauseJson> {
    let groups = groups(rows, state, &hidden);
    let mut causes: Vec<CauseJson> =
        groups.into_iter().filter_map(|group| cause(group, now, &hidden)).collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.effects));
    causes.truncate(CAUSES_MAX);
    causes
}

fn cause(group: Group<'_>, now: Timestamp, hidden: &impl Fn(&str) -> String) -> Option<CauseJson> {
    // There is no group of nothing.
    let newest = group.newest()?;
    Some(CauseJson {
        downstream: group.downstream.to_owned(),
        operation: group.operation.map(str::to_owned),
        response_status: group.status,
        search: group.search().map(str::to_owned),
        sample: newest.error.as_deref().map(hidden),
        effects: group.len(),
        last_hour: group.within(1, now),
        last_day: group.within(24, now),
        last_week: group.within(168, now),
        newest: newest.id,
        newest_at: Time(newest.at),
        id: group.id,
        cause: group.cause,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aftercommit::effect::EffectId;

    use super::*;

    #[test]
    fn failures_of_one_cause_are_one_and_the_most_frequent_come_first() {
        let now = Timestamp::from_micros(10_000_000_000_000);
        let row = |id: i64, hours: u64, error: &str| CauseRow {
            id: EffectId::new(id),
            downstream: "pay".to_owned(),
            operation: None,
            error: Some(error.to_owned()),
            response_status: Some(402),
            superseded: false,
            at: now.minus(Duration::from_secs(hours * 3_600)),
        };
        let rows = [
            row(4, 0, "expired"),
            row(9, 0, "card_9 declined"),
            row(8, 2, "card_8 declined"),
            row(7, 50, "card_7 declined"),
        ];
        let causes = grouped(&rows, EffectState::Failed, now, |error| error.replace("card_9", "•••"));
        assert_eq!(causes.len(), 3, "what is hidden is another cause: {causes:?}");
        let causes = grouped(&rows, EffectState::Failed, now, str::to_owned);
        let first = &causes[0];
        assert_eq!((first.effects, first.last_hour, first.last_day, first.newest.get()), (3, 1, 2, 9));
        assert_eq!(first.last_week, 3);
        assert_eq!((first.cause.as_str(), first.search.as_deref()), ("… declined", Some("declined")));
    }
}
