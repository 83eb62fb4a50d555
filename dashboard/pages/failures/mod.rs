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
    parts::{Moment, Num, Text, in_query, text, words},
    shown,
};
use crate::{
    causes,
    problem::Problem,
    routes::Right,
    search::{Search, Term},
    shared::Shared,
};

/// [`causes::SPANS`], as people read them.
const SPANS: [&str; 3] = ["1 h", "24 h", "7 d"];

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
    /// Of what was looked at, what a new effect took the place of.
    superseded: Num,
    /// Older ones were looked at as well.
    whole: bool,
    /// All of them, where there are any and who looks may act: "Act on all 1,204 failed", and the search.
    all: Option<(String, String)>,
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
    /// Those of the last hour, day, week: the words, how many, and the search for them.
    spans: Vec<Span>,
    all: Num,
    last: Moment,
    sample: i64,
    sample_error: Text,
    /// The search for all of them, and no others.
    quoted: String,
}

/// Those of a group that are of some last hours.
struct Span {
    words: &'static str,
    n: Num,
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
    let may_act = frame.visitor.may(Right::Operate);
    let count = frame.count_of(of, &[state]);
    let all = (may_act && !count.is_zero())
        .then(|| (format!("Act on all {count} {}…", words(state)), in_query(&of_all(state, of).to_string())));
    shown(&Failures {
        tabs: tabs(&frame, state),
        searched: searched(&found),
        superseded: Num(causes::superseded(&found.rows)),
        whole: found.whole,
        all,
        may_act,
        groups,
        state,
        left_out,
        frame,
    })
}

/// The search for all of a state, of a downstream if one was asked for.
fn of_all(state: State, of: Option<&str>) -> Search {
    let search = Search::of_state(state);
    match of {
        Some(name) => search.and(Term::Downstream(name.to_owned())),
        None => search,
    }
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
    groups.sort_by_key(|group| {
        let day = group.spans.iter().find(|span| span.words == "24 h").map(|span| span.n.0);
        std::cmp::Reverse((day, group.all.0))
    });
    groups
}

fn group(found: &causes::Group<'_>, asked: Asked<'_>, hidden: &impl Fn(&str) -> String) -> Group {
    let Asked { state, of, now } = asked;
    // The group itself, by all that makes its effects alike: what their errors share is shared with others too.
    let quoted =
        |span: Option<&str>| in_query(&of_all(state, of).and(Term::Cause(found.word(span))).to_string());
    let spans = causes::SPANS.iter().zip(SPANS).map(|((word, hours), words)| Span {
        words,
        n: Num(found.within(*hours, now)),
        quoted: quoted(Some(*word)),
    });
    let newest = found.newest();
    let error = newest.and_then(|row| row.error.as_deref()).map(hidden).unwrap_or_default();
    let cause = found.cause.as_str();
    Group {
        place: text(&found.place()),
        cause: text(if cause.is_empty() { causes::NO_ERROR } else { cause }),
        status: found.status,
        spans: spans.collect(),
        all: Num(found.len()),
        last: Moment::short(newest.map_or(now, |row| row.at), now),
        sample: newest.map_or(0, |row| row.id.get()),
        sample_error: text(&error),
        quoted: quoted(None),
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
            superseded: false,
            at: Timestamp::from_micros(10_000_000_000_000).minus(Duration::from_secs(hours_ago * 3_600)),
        }
    }

    #[test]
    fn failures_of_one_cause_are_one_line_with_its_course_and_a_search_for_all() {
        let rows = [
            row(9, 0, "card_9 declined"),
            row(8, 2, "card_8 declined"),
            row(7, 50, "card_7 declined"),
            row(5, 200, "card_5 declined"),
            row(6, 0, "expired"),
        ];
        let now = Timestamp::from_micros(10_000_000_000_000);
        let of = |of| grouped(&rows, Asked { state: State::Failed, of, now }, str::to_owned);
        let groups = of(None);
        let first = &groups[0];
        let spans: Vec<_> = first.spans.iter().map(|span| (span.words, span.n.0)).collect();
        assert_eq!(spans, [("1 h", 1), ("24 h", 2), ("7 d", 3)]);
        assert_eq!((first.all.0, first.sample), (4, 9));
        assert_eq!(
            first.spans[1].quoted,
            format!("{}-24h", first.quoted),
            "each figure leads to its effects"
        );
        assert_eq!(first.cause.to_string(), "… declined");
        let searches: Vec<&str> = groups.iter().map(|group| group.quoted.as_str()).collect();
        assert!(searches.iter().all(|search| search.starts_with("state:failed+cause:")), "{searches:?}");
        assert_ne!(searches[0], searches[1], "each finds its own");
        assert_eq!(of(Some("payments"))[0].quoted, first.quoted.replace('+', "+downstream:payments+"));
    }
}
