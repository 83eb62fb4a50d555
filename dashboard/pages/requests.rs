//! Guarded requests: which keys came in, what they were answered, and what they wrote. The answers are for whoever repeats one.

use aftercommit::{
    guard::RequestCounts,
    store::{RequestFilter, RequestInfo, RequestPlace},
};
use askama::Template;
use axum::{
    extract::{Query, State as Shared_},
    response::Response,
};

use super::{
    PAGE,
    effects::Fields,
    frame::{Frame, Place},
    parts::{Moment, Num, Text, in_query, plural, text},
    shown,
};
use crate::{
    api::json::{EXPIRED, KEPT},
    problem::Problem,
    shared::Shared,
};

#[derive(Template)]
#[template(path = "requests.html")]
struct Requests {
    frame: Frame,
    rows: Vec<Row>,
    scope: String,
    key: String,
    only_kept: bool,
    only_expired: bool,
    next: Option<String>,
    filtered: bool,
    /// How those ended that this process guards, where it guards any.
    here: Option<String>,
}

struct Row {
    id: i64,
    scope: Text,
    key: Text,
    status: u16,
    effects: Num,
    /// What a repeat gets.
    state: &'static str,
    class: &'static str,
    why: Option<String>,
    began: Moment,
    expires: Moment,
}

/// `GET /requests`.
pub(super) async fn page(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Query(asked): Query<Fields>,
) -> Result<Response, Problem> {
    let filter = filter(&asked)?;
    let found = shared.database().requests(&filter).await?;
    let frame = frame.at(Place::Requests, "Requests");
    let full = found.len() >= usize::try_from(PAGE).unwrap_or(usize::MAX);
    let next = found.last().filter(|_| full).map(|last| {
        let state = word(filter.expired);
        let kept =
            [("scope", filter.scope.as_deref()), ("key", filter.key.as_deref()), ("state", Some(state))];
        let kept =
            kept.into_iter().filter_map(|(name, value)| Some((name, value.filter(|v| !v.is_empty())?)));
        let kept = kept.map(|(name, value)| format!("{name}={}&", in_query(value)));
        format!("requests?{}before={}", kept.collect::<String>(), last.place())
    });
    shown(&Requests {
        rows: found.iter().map(|request| row(request, &frame)).collect(),
        filtered: filter.scope.is_some() || filter.key.is_some() || filter.expired.is_some(),
        only_kept: filter.expired == Some(false),
        only_expired: filter.expired == Some(true),
        scope: filter.scope.unwrap_or_default(),
        key: filter.key.unwrap_or_default(),
        here: shared.operations().requests().map(tally),
        next,
        frame,
    })
}

fn filter(asked: &Fields) -> Result<RequestFilter, Problem> {
    let field = |name: &str| asked.get(name).filter(|value| !value.is_empty()).cloned();
    let before = field("before").map(|place| place.parse::<RequestPlace>());
    let before = before.transpose().map_err(|unknown| Problem::bad_request(unknown.to_string()))?;
    let expired = match field("state").as_deref() {
        None => None,
        Some(KEPT) => Some(false),
        Some(EXPIRED) => Some(true),
        Some(_) => {
            let detail = format!("`state` is {KEPT} or {EXPIRED}: whether a request's time is over.");
            return Err(Problem::bad_request(detail));
        }
    };
    Ok(RequestFilter { scope: field("scope"), key: field("key"), expired, before, limit: PAGE })
}

/// As the address has it.
const fn word(expired: Option<bool>) -> &'static str {
    match expired {
        None => "",
        Some(true) => EXPIRED,
        Some(false) => KEPT,
    }
}

fn row(request: &RequestInfo, frame: &Frame) -> Row {
    let (state, class, why) = match (request.expired, request.unfinished) {
        (false, _) => ("kept", "succeeded", None),
        // What it began is still going on: a repeat must not begin it again.
        (true, 1..) => {
            let going_on = format!("past its time: {} not ended", plural(request.unfinished, "effect"));
            ("kept", "in_doubt", Some(going_on))
        }
        (true, 0) => ("expired", "", Some("a repeat acts anew".to_owned())),
    };
    Row {
        id: request.id,
        scope: text(&request.scope),
        key: text(&request.key),
        status: request.status,
        effects: Num(request.effects),
        state,
        class,
        why,
        began: Moment::short(request.created_at, frame.now),
        expires: Moment::short(request.expires_at, frame.now),
    }
}

/// What came of the requests that this process guards.
fn tally(counts: RequestCounts) -> String {
    format!(
        "Since this process began: {} acted, {} replayed, {} refused while the first was in progress, {} refused as another \
         request's key.",
        Num(counts.first),
        Num(counts.replayed),
        Num(counts.in_progress),
        Num(counts.mismatch)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_guarded_requests_is_told_by_kind() {
        let counts = RequestCounts { first: 1_204, replayed: 3, in_progress: 2, mismatch: 1 };
        let told = tally(counts);
        for part in ["1,204 acted", "3 replayed", "2 refused while", "1 refused as"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    #[test]
    fn a_state_that_nobody_knows_is_refused() {
        let asked = |state: &str| filter(&Fields::from([("state".to_owned(), state.to_owned())]));
        assert_eq!(asked("expired").unwrap().expired, Some(true));
        assert_eq!(asked("kept").unwrap().expired, Some(false));
        assert_eq!(asked("").unwrap().expired, None);
        assert!(asked("answered").is_err());
    }
}
