//! The list of effects: a search, its result a page at a time, and what may be done to all of it.

use std::collections::BTreeMap;

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    state::State,
    store::{Filter, Page, SEARCH_WINDOW},
};
use askama::Template;
use axum::{
    extract::{Query, State as Shared_},
    http::StatusCode,
    response::{IntoResponse, Response},
};

use super::{
    PAGE,
    frame::{Frame, Place},
    jump::{self, Jump},
    parts::{Num, Text, in_query, plural, text},
    row::Row,
    shown,
};
use crate::{
    problem::Problem,
    redaction::Redaction,
    routes::Right,
    search::{Reference, Search, Term},
    security::see_other,
    shared::Shared,
};

/// As the address has it: the search, or the fields that a form without scripts sends.
pub(super) type Fields = BTreeMap<String, String>;

#[derive(Template)]
#[template(path = "effects.html")]
struct Effects {
    frame: Frame,
    query: String,
    /// The search as it may stand in a link.
    quoted: String,
    chips: Vec<Chip>,
    views: Vec<View>,
    suggestions: Vec<String>,
    problems: Vec<Text>,
    rows: Vec<Row>,
    next: Option<i64>,
    paged: bool,
    matching: String,
    searched: Option<String>,
    empty: String,
    everything: String,
    may_act: bool,
    /// The states whose counts say that something new is there; `None`: the counts do not say.
    watch: Option<String>,
    watch_of: String,
    /// What they said when the page was made.
    base: u64,
}

struct Chip {
    text: Text,
    without: String,
}

struct View {
    name: &'static str,
    query: String,
    here: bool,
    counts: String,
    n: Option<Num>,
}

/// The built-in views.
const VIEWS: [(&str, &str); 7] = [
    ("All", ""),
    ("Needs a decision", "state:in_doubt"),
    ("Failed", "state:failed"),
    ("Due now", "state:ready"),
    ("Retrying", "state:retrying"),
    ("Stuck in flight", "state:in_flight age:>10m"),
    ("Last hour", "age:<1h"),
];

/// `GET /effects`.
pub(super) async fn page(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Query(asked): Query<Fields>,
) -> Result<Response, Problem> {
    let said = asked.get("q").map_or("", |q| q.trim());
    let search = Search::parse(said);
    if let Some(merged) = with_fields(&search, &asked) {
        return Ok(see_other(&format!("effects?q={}", in_query(&merged.to_string()))));
    }
    let before = before(&asked)?;
    let mut problems: Vec<Text> = search.problems.iter().map(|problem| text(problem)).collect();
    if problems.is_empty()
        && let Some(word) = search.bare()
    {
        match jump::find(&shared, word).await? {
            Jump::Effect(id) => return Ok(see_other(&format!("effects/{id}"))),
            Jump::Search(found) => {
                return Ok(see_other(&format!("effects?q={}", in_query(&found.to_string()))));
            }
            Jump::Nothing(why) => problems.push(text(&why)),
        }
    }
    let wrong = !search.problems.is_empty();
    let missing = !wrong && !problems.is_empty();
    let found =
        if problems.is_empty() { list(&shared, &search, before, frame.now).await? } else { Page::default() };
    let frame = frame.at(Place::Effects, "Effects");
    let view = view(frame, said, &search, problems, (found, before.is_some()), shared.redaction());
    let page = shown(&view)?;
    Ok(match (wrong, missing) {
        (true, _) => (StatusCode::BAD_REQUEST, page).into_response(),
        (_, true) => (StatusCode::NOT_FOUND, page).into_response(),
        _ => page,
    })
}

/// The page's beginning, where one is given.
fn before(asked: &Fields) -> Result<Option<EffectId>, Problem> {
    let Some(word) = asked.get("before").filter(|word| !word.is_empty()) else { return Ok(None) };
    let number = word.parse::<i64>().ok().filter(|number| *number > 0);
    let number = number.ok_or_else(|| {
        Problem::bad_request("`before` is the number of an effect. Begin with the newest page.")
    })?;
    Ok(Some(EffectId::new(number)))
}

/// The search with what the form's fields ask for besides; `None` where they ask for nothing.
fn with_fields(search: &Search, asked: &Fields) -> Option<Search> {
    let field = |name: &str| asked.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    let mut added = Vec::new();
    added.extend(field("state").and_then(|word| word.parse().ok()).map(|state| Term::State(vec![state])));
    added.extend(field("downstream").map(|name| Term::Downstream(name.to_owned())));
    added.extend(field("operation").map(|name| Term::Operation(name.to_owned())));
    added.extend(field("key").map(|key| Term::Key(key.to_owned())));
    added.extend(field("error").map(|words| Term::Error(words.to_owned())));
    if let (Some(name), Some(value)) = (field("reference"), field("value")) {
        added.push(Term::Metadata(Reference::other(name, value)));
    }
    added.extend(field("age").and_then(|age| Search::parse(&format!("age:{age}")).terms.into_iter().next()));
    if added.is_empty() {
        return None;
    }
    // What a field says takes the place of what the search said about the same.
    let kept = search.terms.iter().filter(|term| added.iter().all(|new| new.name() != term.name()));
    Some(Search { terms: kept.cloned().chain(added.iter().cloned()).collect(), problems: Vec::new() })
}

/// A page of what is searched for. A reference that may be meant as a number is looked for as one when no text is found.
pub(super) async fn list(
    shared: &Shared,
    search: &Search,
    before: Option<EffectId>,
    now: Timestamp,
) -> Result<Page, Problem> {
    let mut found = Page::default();
    for filter in search.filters(now) {
        found = shared.database().effects(&Filter { before, limit: PAGE, ..filter }).await?;
        if !found.effects.is_empty() || found.next.is_some() {
            break;
        }
    }
    Ok(found)
}

fn view(
    frame: Frame,
    said: &str,
    search: &Search,
    problems: Vec<Text>,
    (found, paged): (Page, bool),
    redaction: &Redaction,
) -> Effects {
    let written = search.to_string();
    let counted = search.is_counted().then(|| counted(&frame, search));
    let whole = !paged && found.next.is_none();
    let all = counted.or_else(|| whole.then(|| Num(u64::try_from(found.effects.len()).unwrap_or(u64::MAX))));
    let states = if search.states().is_empty() { &State::ALL } else { search.states() };
    let chips = search.terms.iter().enumerate();
    Effects {
        query: said.to_owned(),
        quoted: in_query(&written),
        chips: chips
            .map(|(at, term)| Chip {
                text: text(&term.to_string()),
                without: in_query(&search.without(at).to_string()),
            })
            .collect(),
        views: views(&frame, &written),
        suggestions: suggestions(&frame),
        problems,
        rows: found.effects.iter().map(|effect| Row::of(effect, frame.now, redaction)).collect(),
        next: found.next.map(EffectId::get),
        paged,
        matching: all.map(|all| plural(all.0, "effect")).unwrap_or_default(),
        searched: found.searched.map(|n| searched(n, found.next.is_some())),
        empty: empty(search, paged).to_owned(),
        everything: match all {
            Some(all) if all.0 == 1 => "the one that matches".to_owned(),
            Some(all) => format!("all {all} that match"),
            None => "all that match".to_owned(),
        },
        may_act: frame.visitor.may(Right::Operate),
        watch: (counted.is_some() && !paged)
            .then(|| states.iter().map(State::to_string).collect::<Vec<_>>().join(" ")),
        watch_of: search.downstream().unwrap_or_default().to_owned(),
        base: counted.map_or(0, |n| n.0),
        frame,
    }
}

fn counted(frame: &Frame, search: &Search) -> Num {
    let states = if search.states().is_empty() { &State::ALL } else { search.states() };
    frame.count_of(search.downstream(), states)
}

/// What was looked through.
fn searched(n: u64, more: bool) -> String {
    if more {
        let window = u64::from(SEARCH_WINDOW);
        format!(
            "Looked through {} of what the rest of the search leaves, {} a page; older ones stand on the pages that follow.",
            Num(n),
            Num(window)
        )
    } else {
        format!("Looked through all {} that the rest of the search leaves.", Num(n))
    }
}

fn empty(search: &Search, paged: bool) -> &'static str {
    match (search.terms.is_empty(), search.states()) {
        _ if paged => "No further effect matches.",
        (true, _) => "Nothing was enqueued yet.",
        (false, [State::InDoubt]) if search.terms.len() == 1 => "Nothing is in doubt.",
        (false, [State::Failed]) if search.terms.len() == 1 => "Nothing has failed.",
        (false, _) => "No effect matches.",
    }
}

fn views(frame: &Frame, written: &str) -> Vec<View> {
    let view = |(name, query): (&'static str, &str)| {
        let search = Search::parse(query);
        let one_state = search.is_counted() && !search.terms.is_empty();
        View {
            name,
            query: in_query(query),
            here: written == query,
            counts: search.states().iter().map(State::to_string).collect::<Vec<_>>().join(" "),
            n: one_state.then(|| counted(frame, &search)),
        }
    };
    VIEWS.map(view).into_iter().collect()
}

/// What the search box offers.
fn suggestions(frame: &Frame) -> Vec<String> {
    let states = State::ALL.map(|state| Search::of_state(state).to_string());
    let downstreams = frame.downstreams.iter().map(|info| Term::Downstream(info.name.clone()).to_string());
    let rest = ["operation:", "key:", "metadata.order:", "error:", "age:>1h", "age:<1h", "created:>", "id:"];
    states.into_iter().chain(downstreams).chain(rest.map(str::to_owned)).collect()
}
