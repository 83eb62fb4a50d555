//! `causes`: why effects failed or are in doubt, grouped by what is the same about them.

use std::{collections::BTreeMap, time::Duration};

use aftercommit::{clock::Timestamp, state::State as EffectState, store::CauseRow};
use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::{IntoParams, openapi::schema::ObjectBuilder};

use super::{
    ask::Query,
    json::{CauseJson, CausesJson, Time, word},
};
use crate::{
    causes::{cause, fragment},
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
    Ok(Json(CausesJson {
        state,
        causes: grouped(&found.rows, now),
        searched: found.searched,
        whole: found.whole,
        now: Time(now),
    }))
}

/// What makes two failures alike.
type Alike<'a> = (&'a str, Option<&'a str>, Option<u16>, String);

/// The most frequent first.
fn grouped(rows: &[CauseRow], now: Timestamp) -> Vec<CauseJson> {
    let mut alike: BTreeMap<Alike<'_>, Vec<&CauseRow>> = BTreeMap::new();
    for row in rows {
        let cause = cause(row.error.as_deref().unwrap_or_default());
        let key = (row.downstream.as_str(), row.operation.as_deref(), row.response_status, cause);
        alike.entry(key).or_default().push(row);
    }
    let mut groups: Vec<CauseJson> =
        alike.into_iter().filter_map(|(key, rows)| group(key, &rows, now)).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.effects));
    groups.truncate(CAUSES_MAX);
    groups
}

fn group(
    (downstream, operation, response_status, cause): Alike<'_>,
    rows: &[&CauseRow],
    now: Timestamp,
) -> Option<CauseJson> {
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let within = |hours: u64| {
        let since = now.minus(Duration::from_secs(hours * 3_600));
        count(rows.iter().filter(|row| row.at >= since).count())
    };
    // There is no group of nothing.
    let newest = rows.iter().max_by_key(|row| row.at)?;
    Some(CauseJson {
        downstream: downstream.to_owned(),
        operation: operation.map(str::to_owned),
        response_status,
        search: fragment(&cause).map(str::to_owned),
        cause,
        sample: newest.error.clone(),
        effects: count(rows.len()),
        last_hour: within(1),
        last_day: within(24),
        newest: newest.id,
        newest_at: Time(newest.at),
    })
}

#[cfg(test)]
mod tests {
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
            at: now.minus(Duration::from_secs(hours * 3_600)),
        };
        let rows = [
            row(4, 0, "expired"),
            row(9, 0, "card_9 declined"),
            row(8, 2, "card_8 declined"),
            row(7, 50, "card_7 declined"),
        ];
        let causes = grouped(&rows, now);
        let first = &causes[0];
        assert_eq!((first.effects, first.last_hour, first.last_day, first.newest.get()), (3, 1, 2, 9));
        assert_eq!((first.cause.as_str(), first.search.as_deref()), ("… declined", Some("declined")));
    }
}
