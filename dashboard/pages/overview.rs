//! The overview: what needs a decision, then how the fleet does.

use aftercommit::{
    clock::{Timestamp, words},
    error::StoreError,
    state::State,
    store::{Breaker, DownstreamInfo, EngineFacts, Filter, Status, Traffic},
};
use askama::Template;
use axum::{
    extract::{Query, State as Shared_},
    response::Response,
};

use super::{
    frame::{Frame, Place},
    parts::{Moment, Num, Text, clock, in_path, in_query, maybe, text},
    row::place_of,
    shown,
};
use crate::{
    charts::{self, Chart, Plot, Span},
    problem::Problem,
    routes::Right,
    search::{Search, Term},
    shared::Shared,
};

/// Effects in doubt that are shown at once.
const DOUBTS: u32 = 5;

#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct Asked {
    span: Option<String>,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    tiles: Vec<Tile>,
    /// Nothing needs anybody; with what goes on instead.
    calm: Option<String>,
    doubts: Vec<Doubt>,
    doubts_in_all: Num,
    charts: Vec<Plot>,
    span: Span,
    rows: Vec<Row>,
    /// Nothing was ever enqueued.
    first_run: bool,
    /// What can be sent to try it, in words, for who may.
    trial: Option<Text>,
    /// The name of the table, as this database has it.
    table: &'static str,
}

struct Tile {
    name: &'static str,
    class: &'static str,
    /// The states whose effects it counts, as the module knows them.
    counts: String,
    n: Num,
    says: String,
    href: String,
}

struct Doubt {
    id: i64,
    place: Text,
    key: Text,
    why: Option<Text>,
    since: Moment,
}

struct Row {
    name: Text,
    /// As the counts name it.
    raw: String,
    path: String,
    kind: Text,
    state: &'static str,
    class: &'static str,
    contract: Text,
    last: Option<Text>,
    rate: Text,
    cells: Vec<Cell>,
}

struct Cell {
    label: &'static str,
    state: State,
    n: Num,
    href: String,
    class: &'static str,
}

/// `GET /`.
pub(super) async fn page(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Query(asked): Query<Asked>,
) -> Result<Response, Problem> {
    let span =
        asked.span.as_deref().and_then(|word| Span::ALL.into_iter().find(|span| span.as_str() == word));
    let span = span.unwrap_or_default();
    let mut frame = frame.at(Place::Overview, "Overview");
    warn(&mut frame);
    let (succeeded, charts) = courses(&shared, span, frame.now).await?;
    let in_doubt = frame.count(&[State::InDoubt]);
    let doubts = if in_doubt.is_zero() {
        Vec::new()
    } else {
        let filter = Filter { states: vec![State::InDoubt], limit: DOUBTS, ..Filter::default() };
        shared.eyes().effects(&filter).await?.effects.iter().map(|effect| doubt(effect, &frame)).collect()
    };
    let trial = shared.settings().trial.as_ref();
    let rows = frame.downstreams.iter().map(|info| row(info, &frame)).collect();
    let first_run = frame.total().is_zero();
    let sqlite = first_run && matches!(shared.database().examine().await?.engine, EngineFacts::Sqlite(_));
    shown(&Overview {
        tiles: tiles(&frame),
        calm: calm(&frame, &succeeded),
        doubts,
        doubts_in_all: in_doubt,
        charts,
        span,
        rows,
        first_run,
        trial: trial.filter(|_| frame.visitor.may(Right::Operate)).map(|trial| text(&trial.says)),
        table: if sqlite { "aftercommit_effects" } else { "aftercommit.effects" },
        frame,
    })
}

/// How things went: what succeeded in a sentence, and the charts. All is read from sums that are kept, but for the latency: that is of a
/// sample of the log, which a login at the database that may only view cannot read.
async fn courses(shared: &Shared, span: Span, now: Timestamp) -> Result<(String, Vec<Plot>), Problem> {
    let (database, since) = (shared.database(), span.since(now));
    let traffic = database.traffic(since, span.resolution()).await?;
    let chart = |what, class, state| {
        Chart::of((what, class), span, now, &traffic, |one: &Traffic| one.state == state)
    };
    let succeeded = chart("succeeded", "good", State::Succeeded);
    let failed = chart("failed", "bad", State::Failed);
    let mut charts = vec![succeeded.plot(), failed.plot(), charts::error_rate(span, now, &traffic)];
    match database.latencies(since, span.bars(), span.resolution()).await {
        Ok(latencies) => charts.push(charts::latency(span, now, &latencies)),
        // The least of what is told here: without it the page still says what needs a decision.
        Err(problem) if problem.is_forbidden() || matches!(problem, StoreError::TooSlow { .. }) => {}
        Err(problem) => return Err(problem.into()),
    }
    Ok((succeeded.sentence(), charts))
}

/// What people must not overlook.
fn warn(frame: &mut Frame) {
    frame.warn_of_unserved();
    for info in frame.downstreams.clone() {
        if let Some(paused) = &info.paused {
            let says = format!("{} is paused by {} since {}", info.name, paused.who, clock(paused.at));
            let more = paused.reason.as_deref().map(|reason| format!("Because: {reason}"));
            frame.banner("doubt", &says, Some(("downstreams".to_owned(), "Downstreams")), more.as_deref());
        }
    }
}

/// Whether nothing needs anybody, and what goes on.
fn calm(frame: &Frame, succeeded: &str) -> Option<String> {
    let needs = frame.count(&[State::InDoubt, State::Failed]);
    if !needs.is_zero() || !frame.banners.is_empty() || frame.total().is_zero() {
        return None;
    }
    let moving = frame.count(&[State::Ready, State::InFlight, State::Retrying]);
    Some(match moving {
        Num(0) => format!("No effect is in doubt or failed, and none is due. {succeeded}"),
        moving => format!("No effect is in doubt or failed; {moving} on their way. {succeeded}"),
    })
}

fn tiles(frame: &Frame) -> Vec<Tile> {
    let tile = |name, class, states: &[State], says: &str, page: Option<&str>| Tile {
        name,
        class,
        counts: states.iter().map(State::to_string).collect::<Vec<_>>().join(" "),
        n: frame.count(states),
        says: says.to_owned(),
        href: page.map_or_else(|| list(states), str::to_owned),
    };
    let oldest = frame.downstreams.iter().filter_map(|info| info.oldest_due_at).min();
    let oldest = match oldest {
        Some(due) if due < frame.now => format!("oldest for {}", words::span(frame.now.since(due))),
        Some(_) | None => "nothing waits".to_owned(),
    };
    vec![
        tile("Needs a decision", "doubt", &[State::InDoubt], "may have been applied", Some("doubt")),
        tile("Failed", "bad", &[State::Failed], "never applied", Some("failures")),
        tile("Due now", "", &[State::Ready], &oldest, None),
        tile("In flight", "", &[State::InFlight], "being carried out", None),
        tile("Retrying", "", &[State::Retrying], "tried, due again later", None),
        tile("Scheduled", "", &[State::Scheduled, State::Waiting], "due later", None),
    ]
}

/// The list of exactly those effects that are counted.
fn list(states: &[State]) -> String {
    let search = Search { terms: vec![Term::State(states.to_vec())], problems: Vec::new() };
    format!("effects?q={}", in_query(&search.to_string()))
}

fn doubt(effect: &Status, frame: &Frame) -> Doubt {
    Doubt {
        id: effect.id.get(),
        place: place_of(effect),
        key: text(&effect.idempotency_key),
        why: maybe(effect.last_error.as_deref()),
        since: Moment::short(effect.first_sent_at.unwrap_or(effect.created_at), frame.now),
    }
}

fn row(info: &DownstreamInfo, frame: &Frame) -> Row {
    let (state, class) = standing(info);
    let cell = |label, state: State, class| {
        let search = Search::of_state(state).and(Term::Downstream(info.name.clone()));
        let n = frame.count_of(Some(&info.name), &[state]);
        Cell { label, state, n, href: format!("effects?q={}", in_query(&search.to_string())), class }
    };
    Row {
        name: text(&info.name),
        raw: info.name.clone(),
        path: in_path(&info.name),
        kind: text(info.kind.as_deref().unwrap_or("not configured anywhere")),
        state,
        class,
        contract: text(info.contract.as_deref().unwrap_or("its contract is not known")),
        last: maybe(info.hold_reason.as_deref()),
        rate: text(info.rate.as_deref().unwrap_or("no limit")),
        cells: vec![
            cell("due", State::Ready, ""),
            cell("in flight", State::InFlight, ""),
            cell("retrying", State::Retrying, ""),
            cell("in doubt", State::InDoubt, "n-doubt"),
            cell("failed", State::Failed, "n-bad"),
        ],
    }
}

/// How a downstream stands, in a word.
pub(super) fn standing(info: &DownstreamInfo) -> (&'static str, &'static str) {
    if info.paused.is_some() {
        return ("paused", "in_doubt");
    }
    match info.breaker {
        Breaker::Open => return ("no answer", "failed"),
        Breaker::HalfOpen => return ("being tried", "retrying"),
        Breaker::Closed => {}
    }
    if info.paused_until.is_some() {
        return ("asked for patience", "retrying");
    }
    if info.workers == 0 { ("no worker", "failed") } else { ("serving", "succeeded") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_leads_to_the_effects_that_it_counts() {
        for states in [&[State::Ready][..], &[State::Scheduled, State::Waiting]] {
            let list = list(states);
            let search = Search::parse(list.split_once("q=").unwrap().1);
            assert!(search.problems.is_empty() && search.states() == states, "{list}");
        }
    }
}
