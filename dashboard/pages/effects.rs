//! The list of effects: a search, its result a page at a time, and what may be done to all of it.

mod asked;
mod columns;

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    state::State,
    store::{Filter, Page, SEARCH_WINDOW},
};
use askama::Template;
use axum::{
    extract::{Query, State as Shared_},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};

pub(super) use asked::Fields;

use asked::{Asked, merged};
use columns::{Choice, Columns};

use super::{
    PAGE,
    frame::{Frame, Place},
    jump::{self, Jump},
    parts::{Num, Text, in_query, plural, text},
    row::{Limits, Row},
    shown,
};
use crate::{
    causes,
    problem::Problem,
    routes::Right,
    search::{Search, Term},
    security::see_other,
    shared::Shared,
};

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
    columns: Columns,
    choices: Vec<Choice>,
    /// The columns that the address chose, where it did: as links carry them on, and in a field of the search.
    link: String,
    chosen: Option<String>,
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
    headers: HeaderMap,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Result<Response, Problem> {
    let Asked { said, search, fields, before, columns, remember } = Asked::of(pairs);
    if remember {
        return Ok(columns::remember(columns.as_ref(), &said));
    }
    let link = columns.as_ref().map(Columns::link).unwrap_or_default();
    let listed = |search: &Search| see_other(&format!("effects?q={}{link}", in_query(&search.to_string())));
    if search.problems.is_empty() && !fields.is_empty() {
        return Ok(listed(&merged(&search, &fields)));
    }
    let before = self::before(before.as_deref())?;
    let mut problems: Vec<Text> = search.problems.iter().map(|problem| text(problem)).collect();
    if problems.is_empty()
        && let Some(word) = search.bare()
    {
        match jump::find(&shared, word).await? {
            Jump::Effect(id) => return Ok(see_other(&format!("effects/{id}"))),
            Jump::Search(found) => return Ok(listed(&found)),
            Jump::Nothing(why) => problems.push(text(&why)),
        }
    }
    let wrong = !search.problems.is_empty();
    let missing = !wrong && !problems.is_empty();
    let found = if problems.is_empty() {
        find(&shared, &search, before, frame.now).await?
    } else {
        Found::Page(Page::default())
    };
    let found = match found {
        Found::Page(page) => page,
        Found::Texts(texts) => return Ok(listed(&texts)),
    };
    let limits = Limits::of(&shared, &found.effects).await?;
    let mut view = view(
        frame.at(Place::Effects, "Effects"),
        (&said, &search),
        problems,
        (found, before.is_some()),
        &limits,
    );
    (view.chosen, view.link) = (columns.as_ref().map(Columns::words), link);
    view.columns = columns.or_else(|| Columns::remembered(&headers)).unwrap_or_default();
    view.choices = view.columns.choices();
    let page = shown(&view)?;
    Ok(match (wrong, missing) {
        (true, _) => (StatusCode::BAD_REQUEST, page).into_response(),
        (_, true) => (StatusCode::NOT_FOUND, page).into_response(),
        _ => page,
    })
}

/// The page's beginning, where one is given.
pub(super) fn before(word: Option<&str>) -> Result<Option<EffectId>, Problem> {
    let Some(word) = word.filter(|word| !word.is_empty()) else { return Ok(None) };
    let number = word.parse::<i64>().ok().filter(|number| *number > 0);
    let number = number.ok_or_else(|| {
        Problem::bad_request("`before` is the number of an effect. Begin with the newest page.")
    })?;
    Ok(Some(EffectId::new(number)))
}

/// What a search found.
enum Found {
    Page(Page),
    /// It meant texts: the search that says so. What is linked from the list, and what is done to all of it, reads it in this way too.
    Texts(Search),
}

/// A page of what is searched for. Whether what looks like a number is one is decided on the first page, and written down.
async fn find(
    shared: &Shared,
    search: &Search,
    before: Option<EffectId>,
    now: Timestamp,
) -> Result<Found, Problem> {
    if before.is_none()
        && let Some(texts) = search.as_texts()
    {
        let found = list(shared, &texts, None, now).await?;
        if !found.effects.is_empty() || found.next.is_some() {
            return Ok(Found::Texts(texts));
        }
    }
    list(shared, search, before, now).await.map(Found::Page)
}

async fn list(
    shared: &Shared,
    search: &Search,
    before: Option<EffectId>,
    now: Timestamp,
) -> Result<Page, Problem> {
    let filter = Filter { before, limit: PAGE, ..search.filter(now) };
    match search.cause() {
        None => Ok(shared.eyes().effects(&filter).await?),
        Some(cause) => {
            causes::members(shared, cause, (&filter, now))
                .await?
                .unwrap_or_default()
                .page(shared, &filter)
                .await
        }
    }
}

fn view(
    frame: Frame,
    (said, search): (&str, &Search),
    problems: Vec<Text>,
    (found, paged): (Page, bool),
    limits: &Limits,
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
        rows: found.effects.iter().map(|effect| Row::of(effect, frame.now, limits)).collect(),
        columns: Columns::default(),
        choices: Vec::new(),
        link: String::new(),
        chosen: None,
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
