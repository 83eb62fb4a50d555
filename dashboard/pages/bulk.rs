//! One verb on many effects: chosen, shown with what it would do, started, and watched. The server works through a frozen list.

use aftercommit::{
    clock::words::span,
    effect::EffectId,
    state::State,
    store::{BulkInfo, BulkState, Control, Filter, PAGE_MAX},
    verb::Verb,
};
use askama::Template;
use axum::{
    Form,
    extract::{Path, Query, State as Shared_},
    http::StatusCode,
    response::{IntoResponse, Response},
};

use super::{
    frame::{Frame, Place},
    parts::{Moment, Num, Text, in_query, maybe, plural, text, words},
    shown,
};
use crate::{
    actions::{self, BulkWish, Preview},
    problem::Problem,
    routes::Right,
    search::{Search, Term},
    security::see_other,
    shared::Shared,
};

/// Bulk actions that are listed.
const LISTED: u32 = 100;

/// A form as it is sent: names may stand there several times.
type Pairs = Vec<(String, String)>;

#[derive(Template)]
#[template(path = "bulk_new.html")]
struct New {
    frame: Frame,
    /// What was chosen, in words.
    what: Text,
    query: String,
    quoted: String,
    verbs: Vec<Offer>,
    chosen: Option<Chosen>,
    problem: Option<Text>,
    said: Said,
    nothing: bool,
}

/// A verb that may be chosen.
struct Offer {
    word: &'static str,
    name: &'static str,
    says: String,
}

/// What it would do.
struct Chosen {
    word: &'static str,
    name: &'static str,
    preview: Preview,
    of: Vec<(Text, Num)>,
    needs_reason: bool,
    rate_max: u32,
}

#[derive(Default)]
struct Said {
    reason: String,
    rate: String,
}

#[derive(Template)]
#[template(path = "bulk_list.html")]
struct List {
    frame: Frame,
    rows: Vec<One>,
}

#[derive(Template)]
#[template(path = "bulk_one.html")]
struct Page {
    frame: Frame,
    one: One,
    samples: Vec<Text>,
    may_act: bool,
}

/// A bulk as it is shown.
struct One {
    id: i64,
    verb: Text,
    what: Text,
    who: Text,
    from: Option<Text>,
    reason: Option<Text>,
    state: BulkState,
    total: Num,
    through: Num,
    percent: u64,
    done: Num,
    refused: Num,
    stale: Num,
    gone: Num,
    rate: String,
    began: Moment,
    ended: Option<Moment>,
    took: Option<String>,
}

/// Every verb that may be done to many, with its word in the form.
const VERBS: [(&str, &str, &str); 8] = [
    (
        "retry",
        "Retry",
        "Attempted again: failed ones from the start, scheduled and retrying ones now. Each keeps its key.",
    ),
    ("cancel", "Cancel", "Called off where they are certain; in flight it is a request."),
    ("resolve applied", "Resolve as applied", "You looked: all of them were applied."),
    (
        "resolve not-applied",
        "Resolve as not applied",
        "You looked: none of them was applied. Nothing is sent until somebody retries.",
    ),
    ("resend", "Resend", "Each is sent once more with its own key, which may apply it twice."),
    ("reissue", "Reissue", "A new effect with a new key takes the place of each that has ended."),
    (
        "reissue not-applied",
        "Resolve as not applied and reissue",
        "You looked: none was applied. A new effect with a new key takes the place of each.",
    ),
    ("redact", "Redact", "What was sent and answered goes for good; keys and outcomes are kept."),
];

fn verb(word: &str) -> Option<Verb> {
    VERBS.iter().find(|(known, ..)| *known == word).and_then(|(word, ..)| Verb::of_word(word))
}

/// What was chosen: a search, or effects that were ticked.
fn chosen(pairs: &Pairs) -> Search {
    let ids: Vec<EffectId> = pairs
        .iter()
        .filter(|(name, _)| name == "id")
        .filter_map(|(_, id)| id.parse().ok().map(EffectId::new))
        .collect();
    if !ids.is_empty() {
        return Search { terms: vec![Term::Ids(ids)], problems: Vec::new() };
    }
    Search::parse(field(pairs, "q"))
}

fn field<'a>(pairs: &'a Pairs, name: &str) -> &'a str {
    pairs.iter().rfind(|(known, _)| known == name).map_or("", |(_, value)| value.trim())
}

/// `GET /bulk/new`.
pub(super) async fn ask(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Problem> {
    let page = new(frame, &shared, &pairs, None).await?;
    let status = if page.problem.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    Ok((status, shown(&page)?).into_response())
}

/// The form: without a verb the choice of one, with one what it would do.
async fn new(frame: Frame, shared: &Shared, pairs: &Pairs, problem: Option<String>) -> Result<New, Problem> {
    let search = chosen(pairs);
    let mut problem = problem.or_else(|| search.problems.first().cloned());
    if search.bare().is_some() {
        problem = Some("A word alone looks one effect up: say what is to be acted on with state:, downstream: or others.".to_owned());
    }
    let ticked_none = search.terms.is_empty() && !pairs.iter().any(|(name, _)| name == "q");
    let mut picked = None;
    if let Some(verb) = verb(field(pairs, "verb"))
        .filter(|_| !ticked_none && (problem.is_none() || search.problems.is_empty()))
    {
        match actions::preview(shared, &wish(&search, &frame, verb.clone(), pairs)).await {
            Ok(preview) => picked = Some(choice(preview, &verb, shared)),
            Err(refused) if refused.status() == StatusCode::UNPROCESSABLE_ENTITY => {
                problem = Some(refused.detail().to_owned())
            }
            Err(other) => return Err(other),
        }
    }
    let frame = frame.at(Place::Bulk, "Act on many");
    Ok(New {
        what: text(&in_words(&search)),
        query: search.to_string(),
        quoted: in_query(&search.to_string()),
        verbs: offers(&search),
        chosen: picked,
        problem: problem.as_deref().map(text),
        said: Said { reason: field(pairs, "reason").to_owned(), rate: field(pairs, "rate").to_owned() },
        nothing: ticked_none,
        frame,
    })
}

fn in_words(search: &Search) -> String {
    match search.terms.as_slice() {
        [] => "All that the verb takes.".to_owned(),
        [Term::Ids(ids)] => {
            format!("The {} that you ticked.", plural(u64::try_from(ids.len()).unwrap_or(u64::MAX), "effect"))
        }
        [Term::State(states)] => format!(
            "All that are {}.",
            states.iter().map(|state| words(*state)).collect::<Vec<_>>().join(" and ")
        ),
        _ => format!("All that match {search}"),
    }
}

/// Verbs that take any of the states asked for.
fn offers(search: &Search) -> Vec<Offer> {
    let states: Vec<State> = search.states().to_vec();
    let takes = |word: &str| {
        let Some(verb) = verb(word) else { return false };
        states.is_empty() || actions::takes(&verb).iter().any(|state| states.contains(state))
    };
    let offers = VERBS.into_iter().filter(|(word, ..)| takes(word));
    offers.map(|(word, name, says)| Offer { word, name, says: says.to_owned() }).collect()
}

fn choice(preview: Preview, verb: &Verb, shared: &Shared) -> Chosen {
    let known = VERBS.into_iter().find(|(word, ..)| *word == verb.as_str());
    let (word, name, _) = known.unwrap_or(("", "", ""));
    let of = preview.by_downstream.iter().map(|(name, n)| (text(name), Num(*n))).collect();
    let needs_reason = verb.needs_reason() || preview.consequence.type_this.is_some();
    Chosen { word, name, of, needs_reason, rate_max: shared.settings().bulk.rate, preview }
}

fn wish(search: &Search, frame: &Frame, verb: Verb, pairs: &Pairs) -> BulkWish {
    let mut filter = search.filters(frame.now).into_iter().next().unwrap_or_default();
    // Of the states asked for, those that the verb takes: the page says how many effects that leaves.
    filter.states.retain(|state| actions::takes(&verb).contains(state));
    let some = |name: &str| Some(field(pairs, name).to_owned()).filter(|value| !value.is_empty());
    BulkWish {
        filter: Filter { limit: PAGE_MAX, ..filter },
        verb,
        reason: some("reason"),
        rate: field(pairs, "rate").parse().ok(),
        // No more than was shown, whatever came in meanwhile.
        limit: field(pairs, "shown").parse().ok(),
        confirmation: some("confirmation"),
    }
}

/// `POST /bulk/new`.
pub(super) async fn start(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Form(pairs): Form<Pairs>,
) -> Result<Response, Problem> {
    let search = chosen(&pairs);
    let verb =
        verb(field(&pairs, "verb")).ok_or_else(|| Problem::bad_request("Choose what is to be done."))?;
    let begun = if search.problems.is_empty() && search.bare().is_none() {
        actions::bulk(&shared, &frame.visitor, wish(&search, &frame, verb, &pairs)).await
    } else {
        Err(Problem::bad_request(search.problems.join("; ")))
    };
    match begun {
        Ok(id) => Ok(see_other(&format!("{}bulk/{id}?done=bulk", frame.root))),
        Err(problem)
            if matches!(problem.status(), StatusCode::UNPROCESSABLE_ENTITY | StatusCode::NOT_FOUND) =>
        {
            let words = problem.detail().to_owned();
            let page = new(frame, &shared, &pairs, Some(words)).await?;
            Ok((problem.status(), shown(&page)?).into_response())
        }
        Err(problem) => Err(problem),
    }
}

/// `GET /bulk`.
pub(super) async fn list(frame: Frame, Shared_(shared): Shared_<Shared>) -> Result<Response, Problem> {
    let frame = frame.at(Place::Bulk, "Bulk actions");
    let bulks = shared.database().bulks(LISTED).await?;
    let rows = bulks.iter().map(|bulk| self::bulk(bulk, &frame)).collect();
    shown(&List { rows, frame })
}

/// `GET /bulk/{id}`.
pub(super) async fn one(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let info = find(&shared, &id).await?;
    let frame = frame.at(Place::Bulk, &format!("Bulk {}", info.id));
    let samples = info.samples.iter().map(|sample| text(sample)).collect();
    shown(&Page { one: bulk(&info, &frame), samples, may_act: frame.visitor.may(Right::Operate), frame })
}

async fn find(shared: &Shared, id: &str) -> Result<BulkInfo, Problem> {
    let absent = || Problem::not_found("There is no such bulk action, or retention dropped it.");
    let id = id.parse::<i64>().map_err(|_no_number| absent())?;
    shared.database().bulk(id).await?.ok_or_else(absent)
}

/// `POST /bulk/{id}/{control}`.
pub(super) async fn control(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Path((id, word)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let info = find(&shared, &id).await?;
    let control = match word.as_str() {
        "pause" => Control::Pause,
        "resume" => Control::Resume,
        "cancel" => Control::Cancel,
        _ => return Err(Problem::no_page()),
    };
    if !control.takes(info.state) {
        let words = format!("It is {} now, so it cannot be {word}d: nothing was done.", info.state.as_str());
        return Err(Problem::conflict("bulk-state", words.replace("canceld", "cancelled")));
    }
    let actor = actions::actor(&frame.visitor, None);
    let done = shared.database().control_bulk(info.id, control, &actor).await?;
    done.ok_or_else(|| Problem::not_found("There is no such bulk action any more."))?;
    shared.bell().notify_one();
    Ok(see_other(&format!("{}bulk/{}?done=bulk-{word}", frame.root, info.id)))
}

fn bulk(info: &BulkInfo, frame: &Frame) -> One {
    let through =
        u64::from(info.done) + u64::from(info.refused) + u64::from(info.stale) + u64::from(info.gone);
    let total = u64::from(info.total);
    One {
        id: info.id,
        verb: text(&info.verb),
        what: text(&info.what),
        who: text(&info.who),
        from: maybe(info.from.as_deref()),
        reason: maybe(info.reason.as_deref()),
        state: info.state,
        total: Num(total),
        through: Num(through),
        percent: through.saturating_mul(100).checked_div(total).unwrap_or(100),
        done: Num(info.done.into()),
        refused: Num(info.refused.into()),
        stale: Num(info.stale.into()),
        gone: Num(info.gone.into()),
        rate: if info.rate == 0 {
            "as fast as it goes".to_owned()
        } else {
            format!("at most {} a second", info.rate)
        },
        began: Moment::short(info.created_at, frame.now),
        ended: info.finished_at.map(|at| Moment::short(at, frame.now)),
        took: info.finished_at.map(|at| span(at.since(info.created_at))),
    }
}

#[cfg(test)]
mod tests {
    use aftercommit::verb::Resolved;

    use super::*;

    #[test]
    fn every_verb_that_is_offered_is_one() {
        for (word, ..) in VERBS {
            assert_eq!(verb(word).map(|verb| verb.as_str()), Some(word));
        }
        assert_eq!(verb("drop"), None);
        let resolve = Verb::Reissue { resolve: Some(Resolved::NotApplied) };
        assert_eq!(verb("reissue not-applied"), Some(resolve));
    }

    #[test]
    fn only_verbs_that_take_the_state_are_offered() {
        let words: Vec<_> = offers(&Search::parse("state:in_doubt")).iter().map(|offer| offer.word).collect();
        assert_eq!(words, ["resolve applied", "resolve not-applied", "resend", "reissue not-applied"]);
        let words: Vec<_> = offers(&Search::parse("state:failed")).iter().map(|offer| offer.word).collect();
        assert_eq!(words, ["retry", "reissue", "redact"]);
    }

    #[test]
    fn ticks_are_what_is_acted_on() {
        let pairs = |pairs: &[(&str, &str)]| -> Pairs {
            pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        assert_eq!(chosen(&pairs(&[("id", "7"), ("id", "9"), ("q", "state:failed")])).to_string(), "id:7,9");
        assert_eq!(chosen(&pairs(&[("q", "state:failed")])).to_string(), "state:failed");
    }
}
