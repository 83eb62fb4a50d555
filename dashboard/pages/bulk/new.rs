//! One verb on many effects: chosen, shown with what it would do, and begun. What is begun is what was shown, or nothing.

use aftercommit::{clock::Timestamp, effect::EffectId, state::State, verb::Verb};
use askama::Template;
use axum::{
    Form,
    extract::{Query, State as Shared_},
    http::StatusCode,
    response::{IntoResponse, Response},
};

use crate::{
    actions::{self, BulkWish, Preview},
    causes,
    pages::{
        frame::{Frame, Place},
        parts::{Badge, Num, Text, in_query, plural, text, words},
        shown,
    },
    problem::Problem,
    search::{Search, Term},
    security::see_other,
    shared::Shared,
};

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
    /// When it was looked at: ages are counted from then.
    at: i64,
    /// "1 effect", "1,204 effects".
    effects: String,
    states: Vec<(Badge, Num)>,
    of: Vec<(Text, Num)>,
    /// What of the list itself a person should know.
    notes: Vec<String>,
    /// What matches and is not on it, and why.
    refused: Option<(String, Vec<Text>)>,
    needs_reason: bool,
    /// As fast as it goes, where nobody says anything.
    rate: u32,
}

#[derive(Default)]
struct Said {
    reason: String,
    rate: String,
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
    let mut problems = Vec::new();
    let mut ids = Vec::new();
    for (_, id) in pairs.iter().filter(|(name, _)| name == "id") {
        match id.trim().parse() {
            Ok(id) => ids.push(EffectId::new(id)),
            // What is left out silently is not what was meant.
            Err(_no_number) => problems.push(format!("{id:?} is no number of an effect")),
        }
    }
    if !ids.is_empty() || !problems.is_empty() {
        return Search { terms: vec![Term::Ids(ids)], problems };
    }
    let mut search = Search::parse(field(pairs, "q"));
    if search.bare().is_some() {
        search.problems.push(
            "A word alone looks one effect up: say what is to be acted on with state:, downstream: or others."
                .to_owned(),
        );
    }
    search
}

/// Nothing was chosen at all, which is not the same as a search for everything.
fn is_nothing(pairs: &Pairs) -> bool {
    !pairs.iter().any(|(name, _)| matches!(name.as_str(), "q" | "id"))
}

fn field<'a>(pairs: &'a Pairs, name: &str) -> &'a str {
    pairs.iter().rfind(|(known, _)| known == name).map_or("", |(_, value)| value.trim())
}

/// The search for those of the states asked for that the verb takes: the page says how many effects that leaves. Where it takes none
/// of them the search is as it was, and refused: no state at all would read as every state.
fn narrowed(search: &Search, verb: &Verb) -> Search {
    let mut search = search.clone();
    for term in &mut search.terms {
        if let Term::State(states) = term {
            let taken: Vec<State> =
                states.iter().copied().filter(|state| actions::takes(verb).contains(state)).collect();
            if !taken.is_empty() {
                *states = taken;
            }
        }
    }
    search
}

/// The list that a person looked at, as the form sends it back.
struct LookedAt {
    at: Timestamp,
    effects: Option<u32>,
    digest: String,
}

impl LookedAt {
    /// What does not say so was looked at by nobody: no list is that one.
    fn of(pairs: &Pairs, now: Timestamp) -> Self {
        Self {
            at: field(pairs, "at").parse().map_or(now, Timestamp::from_micros),
            effects: field(pairs, "shown").parse::<u32>().ok().filter(|shown| *shown > 0),
            digest: field(pairs, "digest").to_owned(),
        }
    }
}

/// What is asked for, at the time that its ages are counted from.
fn wish(search: &Search, verb: Verb, at: Timestamp) -> BulkWish {
    BulkWish {
        filter: search.filter(at),
        cause: search.cause().map(str::to_owned),
        at: Some(at),
        verb,
        reason: None,
        rate: None,
        limit: None,
        confirmation: None,
        digest: None,
    }
}

/// `GET /bulk/new`.
pub(in crate::pages) async fn ask(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Problem> {
    new(frame, &shared, &pairs, None).await
}

/// The form: without a verb the choice of one, with one what it would do. `refused`: why what was sent was not begun.
async fn new(
    frame: Frame,
    shared: &Shared,
    pairs: &Pairs,
    mut refused: Option<Problem>,
) -> Result<Response, Problem> {
    let asked = chosen(pairs);
    let mut search = asked.clone();
    let unusable = search.problems.first().map(|problem| actions::unusable(problem.as_str()));
    let mut picked = None;
    if unusable.is_none()
        && !is_nothing(pairs)
        && let Some(verb) = verb(field(pairs, "verb"))
    {
        search = narrowed(&search, &verb);
        match preview(shared, &search, &verb, (pairs, frame.now, &mut refused)).await {
            Ok((at, preview)) => picked = Some(choice(preview, &verb, at, shared)),
            Err(problem) if problem.status() == StatusCode::UNPROCESSABLE_ENTITY => refused = Some(problem),
            Err(other) => return Err(other),
        }
    }
    let refused = unusable.or(refused);
    let what = match search.cause() {
        Some(cause) if search.problems.is_empty() => of_cause(shared, cause, &search, frame.now).await?,
        Some(_) | None => in_words(&search),
    };
    let page = New {
        what: text(&what),
        query: search.to_string(),
        quoted: in_query(&asked.to_string()),
        verbs: offers(&search),
        chosen: picked,
        problem: refused.as_ref().map(|problem| text(problem.detail())),
        said: Said { reason: field(pairs, "reason").to_owned(), rate: field(pairs, "rate").to_owned() },
        nothing: is_nothing(pairs),
        frame: frame.at(Place::Bulk, "Act on many"),
    };
    let status = refused.map_or(StatusCode::OK, |problem| problem.status());
    Ok((status, shown(&page)?).into_response())
}

/// What it would do, and to which list. A form that comes back for a slip of the person's still stands for the list that they looked
/// at: where that is another one by now they are told so, and do not find it exchanged.
async fn preview(
    shared: &Shared,
    search: &Search,
    verb: &Verb,
    (pairs, now, refused): (&Pairs, Timestamp, &mut Option<Problem>),
) -> Result<(Timestamp, Preview), Problem> {
    let slip = refused.as_ref().is_some_and(|problem| problem.status() == StatusCode::UNPROCESSABLE_ENTITY);
    if slip {
        let seen = LookedAt::of(pairs, now);
        let again = BulkWish { limit: seen.effects, ..wish(search, verb.clone(), seen.at) };
        let preview = actions::preview(shared, &again).await?;
        if preview.digest == seen.digest {
            return Ok((seen.at, preview));
        }
        *refused = Some(actions::another_list(&preview));
    }
    Ok((now, actions::preview(shared, &wish(search, verb.clone(), now)).await?))
}

/// The group that was chosen, in words.
async fn of_cause(shared: &Shared, cause: &str, search: &Search, now: Timestamp) -> Result<String, Problem> {
    let members = causes::members(shared, cause, (&search.filter(now), now)).await?;
    Ok(match members {
        Some(members) => format!("All effects {}", members.words),
        None => "a cause that no effect has any more".to_owned(),
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

fn choice(preview: Preview, verb: &Verb, at: Timestamp, shared: &Shared) -> Chosen {
    let known = VERBS.into_iter().find(|(word, ..)| *word == verb.as_str());
    let (word, name, _) = known.unwrap_or(("", "", ""));
    let outlook = &preview.outlook;
    let refused = outlook
        .refused_in_words()
        .map(|(sentence, lines)| (sentence, lines.iter().map(|line| text(line)).collect()));
    Chosen {
        word,
        name,
        effects: plural(outlook.effects, "effect"),
        states: outlook.by_state.iter().map(|(state, n)| (Badge::of(*state), Num(*n))).collect(),
        of: outlook.by_downstream.iter().map(|(name, n)| (text(name), Num(*n))).collect(),
        notes: outlook.notes(verb),
        refused,
        needs_reason: verb.needs_reason() || preview.consequence.type_this.is_some(),
        rate: shared.settings().bulk.rate,
        at: at.micros(),
        preview,
    }
}

/// `POST /bulk/new`.
pub(in crate::pages) async fn start(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Form(pairs): Form<Pairs>,
) -> Result<Response, Problem> {
    match begin(&frame, &shared, &pairs).await {
        Ok(id) => Ok(see_other(&format!("{}bulk/{id}?done=bulk", frame.root))),
        Err(problem)
            if matches!(
                problem.status(),
                StatusCode::UNPROCESSABLE_ENTITY | StatusCode::NOT_FOUND | StatusCode::CONFLICT
            ) =>
        {
            new(frame, &shared, &pairs, Some(problem)).await
        }
        Err(problem) => Err(problem),
    }
}

async fn begin(frame: &Frame, shared: &Shared, pairs: &Pairs) -> Result<i64, Problem> {
    let verb =
        verb(field(pairs, "verb")).ok_or_else(|| Problem::bad_request("Choose what is to be done."))?;
    let search = chosen(pairs);
    if let Some(problem) = search.problems.first() {
        return Err(actions::unusable(problem.as_str()));
    }
    if is_nothing(pairs) {
        return Err(actions::unusable("Nothing was ticked."));
    }
    let some = |name: &str| Some(field(pairs, name).to_owned()).filter(|value| !value.is_empty());
    let rate =
        some("rate").map(|rate| rate.parse().map_err(|_no_number| actions::unusable(actions::rate_words())));
    let seen = LookedAt::of(pairs, frame.now);
    let asked = wish(&narrowed(&search, &verb), verb, seen.at);
    let wish = BulkWish {
        reason: some("reason"),
        rate: rate.transpose()?,
        // No more than was shown, whatever came in meanwhile.
        limit: seen.effects,
        confirmation: some("confirmation"),
        digest: Some(seen.digest),
        ..asked
    };
    actions::bulk(shared, &frame.visitor, wish).await
}

#[cfg(test)]
mod tests;
