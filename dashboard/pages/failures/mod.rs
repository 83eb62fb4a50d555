//! Failures, grouped by what they have in common: one cause is one line, however many effects it stopped.

use std::{collections::BTreeMap, time::Duration};

use aftercommit::{
    clock::Timestamp,
    state::State,
    store::{CauseRow, Causes},
};
use askama::Template;
use axum::{
    extract::{Query, State as Shared_},
    response::Response,
};

use super::{
    effects::Fields,
    frame::{Frame, Place},
    parts::{Moment, Num, Text, in_query, text},
    shown,
};
use crate::{
    causes as cause,
    problem::Problem,
    routes::Right,
    search::{Search, Term},
    shared::Shared,
};

/// More causes are not told apart by anybody.
const GROUPS_MAX: usize = 100;

#[derive(Template)]
#[template(path = "failures.html")]
struct Failures {
    frame: Frame,
    groups: Vec<Group>,
    tabs: Vec<Tab>,
    /// Of which state.
    state: State,
    searched: String,
    left_out: usize,
    may_act: bool,
}

struct Tab {
    name: &'static str,
    href: &'static str,
    n: Num,
    here: bool,
    counts: State,
}

struct Group {
    place: Text,
    cause: Text,
    /// The protocol's status of the newest.
    status: Option<u16>,
    hour: Num,
    day: Num,
    all: Num,
    last: Moment,
    sample: i64,
    sample_error: Text,
    /// The search for all of them.
    quoted: String,
    /// The search finds others too.
    wider: bool,
}

/// `GET /failures`.
pub(super) async fn page(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Query(asked): Query<Fields>,
) -> Result<Response, Problem> {
    let state = match asked.get("state").map(String::as_str) {
        Some("in_doubt") => State::InDoubt,
        Some(_) | None => State::Failed,
    };
    let frame = frame.at(Place::Failures, "Failures");
    let of = asked.get("downstream").filter(|name| !name.is_empty());
    let causes = shared.database().causes(state, of.map(String::as_str)).await?;
    let hidden = |error: &str| shared.redaction().words(error).into_owned();
    let mut groups = grouped(&causes.rows, state, frame.now, hidden);
    let left_out = groups.len().saturating_sub(GROUPS_MAX);
    groups.truncate(GROUPS_MAX);
    shown(&Failures {
        tabs: tabs(&frame, state),
        searched: searched(&causes),
        may_act: frame.visitor.may(Right::Operate),
        groups,
        state,
        left_out,
        frame,
    })
}

fn tabs(frame: &Frame, here: State) -> Vec<Tab> {
    let tab =
        |name, href, counts| Tab { name, href, n: frame.count(&[counts]), here: here == counts, counts };
    vec![tab("Failed", "failures", State::Failed), tab("In doubt", "failures?state=in_doubt", State::InDoubt)]
}

fn searched(causes: &Causes) -> String {
    if causes.whole && causes.searched < 2 {
        String::new()
    } else if causes.whole {
        format!("All {} are grouped.", Num(causes.searched))
    } else {
        format!("The newest {} are grouped; older ones are not looked at.", Num(causes.searched))
    }
}

/// What makes two failures alike.
type Alike<'a> = (&'a str, Option<&'a str>, Option<u16>, String);

fn grouped(rows: &[CauseRow], state: State, now: Timestamp, hidden: impl Fn(&str) -> String) -> Vec<Group> {
    let mut alike: BTreeMap<Alike<'_>, Vec<&CauseRow>> = BTreeMap::new();
    for row in rows {
        let cause = cause::cause(&hidden(row.error.as_deref().unwrap_or("")));
        let key = (row.downstream.as_str(), row.operation.as_deref(), row.response_status, cause);
        alike.entry(key).or_default().push(row);
    }
    let mut groups: Vec<Group> =
        alike.iter().map(|(key, rows)| group(key, rows, (state, now), &hidden)).collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.day.0, group.all.0)));
    groups
}

fn group(
    (downstream, operation, status, cause): &Alike<'_>,
    rows: &[&CauseRow],
    (state, now): (State, Timestamp),
    hidden: &impl Fn(&str) -> String,
) -> Group {
    let within = |hours: u64| {
        let since = now.minus(Duration::from_secs(hours * 3_600));
        Num(count(rows.iter().filter(|row| row.at >= since).count()))
    };
    let mut search = Search::of_state(state).and(Term::Downstream((*downstream).to_owned()));
    if let Some(operation) = operation {
        search = search.and(Term::Operation((*operation).to_owned()));
    }
    let fragment = cause::fragment(cause);
    if let Some(fragment) = fragment {
        search = search.and(Term::Error(fragment.to_owned()));
    }
    let newest = rows.iter().max_by_key(|row| row.at);
    let error = newest.and_then(|row| row.error.as_deref()).map(hidden).unwrap_or_default();
    Group {
        place: text(
            &operation.map_or_else(|| (*downstream).to_owned(), |name| format!("{downstream} / {name}")),
        ),
        cause: text(if cause.is_empty() { "no error was written down" } else { cause }),
        status: *status,
        hour: within(1),
        day: within(24),
        all: Num(count(rows.len())),
        last: Moment::short(newest.map_or(now, |row| row.at), now),
        sample: newest.map_or(0, |row| row.id.get()),
        sample_error: text(&error),
        quoted: in_query(&search.to_string()),
        wider: fragment != Some(cause.as_str()),
    }
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use aftercommit::effect::EffectId;

    use super::*;

    fn row(id: i64, hours_ago: u64, error: &str) -> CauseRow {
        CauseRow {
            id: EffectId::new(id),
            downstream: "payments".to_owned(),
            operation: Some("charge".to_owned()),
            error: Some(error.to_owned()),
            response_status: Some(402),
            at: Timestamp::from_micros(10_000_000_000_000).minus(Duration::from_secs(hours_ago * 3_600)),
        }
    }

    #[test]
    fn failures_of_one_cause_are_one_line_with_its_course_and_a_search_for_all() {
        let rows = [
            row(9, 0, "card_9 declined"),
            row(8, 2, "card_8 declined"),
            row(7, 50, "card_7 declined"),
            row(6, 0, "expired"),
        ];
        let groups = grouped(&rows, State::Failed, Timestamp::from_micros(10_000_000_000_000), str::to_owned);
        let first = &groups[0];
        assert_eq!((first.hour.0, first.day.0, first.all.0, first.sample), (1, 2, 3, 9));
        assert_eq!(first.cause.to_string(), "… declined");
        assert_eq!(first.quoted, "state:failed+downstream:payments+operation:charge+error:declined");
        assert!(first.wider && !groups[1].wider, "another cause may say declined too");
    }
}
