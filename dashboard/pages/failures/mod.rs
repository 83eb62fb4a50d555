//! Failures, grouped by what they have in common: one cause is one line, however many effects it stopped.

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
    causes,
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
    /// The search for all of them, and no others.
    quoted: String,
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
    let of = asked.get("downstream").map(String::as_str).filter(|name| !name.is_empty());
    let found = shared.eyes().causes(state, of).await?;
    let hidden = |error: &str| shared.redaction().words(error).into_owned();
    let mut groups = grouped(&found.rows, Asked { state, of, now: frame.now }, hidden);
    let left_out = groups.len().saturating_sub(GROUPS_MAX);
    groups.truncate(GROUPS_MAX);
    shown(&Failures {
        tabs: tabs(&frame, state),
        searched: searched(&found),
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

/// What was asked for, and when.
#[derive(Clone, Copy)]
struct Asked<'a> {
    state: State,
    /// Of one downstream only.
    of: Option<&'a str>,
    now: Timestamp,
}

fn grouped(rows: &[CauseRow], asked: Asked<'_>, hidden: impl Fn(&str) -> String) -> Vec<Group> {
    let groups = causes::groups(rows, asked.state, &hidden);
    let mut groups: Vec<Group> = groups.into_iter().map(|found| group(&found, asked, &hidden)).collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.day.0, group.all.0)));
    groups
}

fn group(found: &causes::Group<'_>, asked: Asked<'_>, hidden: &impl Fn(&str) -> String) -> Group {
    let Asked { state, of, now } = asked;
    // The group itself, by all that makes its effects alike: what their errors share is shared with others too.
    let mut search = Search::of_state(state);
    if let Some(name) = of {
        search = search.and(Term::Downstream(name.to_owned()));
    }
    let search = search.and(Term::Cause(found.id.clone()));
    let newest = found.newest();
    let error = newest.and_then(|row| row.error.as_deref()).map(hidden).unwrap_or_default();
    let cause = found.cause.as_str();
    Group {
        place: text(&found.place()),
        cause: text(if cause.is_empty() { causes::NO_ERROR } else { cause }),
        status: found.status,
        hour: Num(found.within(1, now)),
        day: Num(found.within(24, now)),
        all: Num(found.len()),
        last: Moment::short(newest.map_or(now, |row| row.at), now),
        sample: newest.map_or(0, |row| row.id.get()),
        sample_error: text(&error),
        quoted: in_query(&search.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let now = Timestamp::from_micros(10_000_000_000_000);
        let of = |of| grouped(&rows, Asked { state: State::Failed, of, now }, str::to_owned);
        let groups = of(None);
        let first = &groups[0];
        assert_eq!((first.hour.0, first.day.0, first.all.0, first.sample), (1, 2, 3, 9));
        assert_eq!(first.cause.to_string(), "… declined");
        let searches: Vec<&str> = groups.iter().map(|group| group.quoted.as_str()).collect();
        assert!(searches.iter().all(|search| search.starts_with("state:failed+cause:")), "{searches:?}");
        assert_ne!(searches[0], searches[1], "each finds its own");
        assert_eq!(of(Some("payments"))[0].quoted, first.quoted.replace('+', "+downstream:payments+"));
    }
}
