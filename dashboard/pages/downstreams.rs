//! Downstreams: what each promises, how it stands, and stopping it.

use aftercommit::{
    clock::{Timestamp, words::utc},
    state::State,
    store::{Breaker, DownstreamInfo, PauseActed},
};
use askama::Template;
use axum::{
    Form,
    extract::{Path, State as Shared_},
    http::StatusCode,
    response::{IntoResponse, Response},
};

use super::{
    frame::{Frame, Place},
    overview::standing,
    parts::{Moment, Num, Text, in_path, in_query, maybe, text},
    promise,
    prose::{Prose, prose},
    shown,
    ways::sentence,
};
use crate::{
    actions,
    problem::Problem,
    routes::Right,
    search::{Search, Term},
    security::see_other,
    shared::Shared,
};

#[derive(Template)]
#[template(path = "downstreams.html")]
struct Downstreams {
    frame: Frame,
    cards: Vec<Card>,
    may_act: bool,
}

struct Card {
    name: Text,
    /// As the counts name it.
    raw: String,
    /// As it may stand in a path.
    path: String,
    kind: Text,
    state: &'static str,
    class: &'static str,
    promise: Text,
    origin: Option<Text>,
    rate: Option<Text>,
    workers: u32,
    /// What keeps calls back, as sentences.
    held: Vec<Prose>,
    paused: bool,
    paused_at: Option<Moment>,
    oldest: Option<Moment>,
    counts: Vec<Cell>,
    /// It was never registered: there is nothing to pause.
    unknown: bool,
}

struct Cell {
    state: State,
    words: &'static str,
    n: Num,
    href: String,
}

#[derive(Template)]
#[template(path = "pause.html")]
struct Ask {
    frame: Frame,
    name: Text,
    path: String,
    verb: &'static str,
    title: &'static str,
    says: Text,
    refused: Option<Text>,
    waiting: String,
    needs_reason: bool,
    problem: Option<&'static str>,
    /// When the pause began that the person sees, in microseconds.
    paused_at: Option<i64>,
}

/// `GET /downstreams`.
pub(super) async fn page(frame: Frame, Shared_(shared): Shared_<Shared>) -> Result<Response, Problem> {
    let mut frame = frame.at(Place::Downstreams, "Downstreams");
    frame.warn_of_unserved();
    let mut cards = Vec::with_capacity(frame.downstreams.len());
    for info in &frame.downstreams {
        let terms = shared.database().terms(&info.name, None).await?;
        let promise = match terms {
            Some(terms) => promise::in_words(&terms.contract),
            None => "Nobody registered what it promises.".to_owned(),
        };
        cards.push(card(&frame, info, &promise, &shared));
    }
    shown(&Downstreams { may_act: frame.visitor.may(Right::Operate), cards, frame })
}

fn card(frame: &Frame, info: &DownstreamInfo, promise: &str, shared: &Shared) -> Card {
    let (state, class) = standing(info);
    let states = [
        (State::Ready, "due"),
        (State::InFlight, "in flight"),
        (State::Retrying, "retrying"),
        (State::InDoubt, "in doubt"),
        (State::Failed, "failed"),
        (State::Succeeded, "succeeded"),
    ];
    let cell = |(state, words): (State, &'static str)| {
        let search = Search::of_state(state).and(Term::Downstream(info.name.clone()));
        let n = frame.count_of(Some(&info.name), &[state]);
        Cell { state, words, n, href: format!("effects?q={}", in_query(&search.to_string())) }
    };
    Card {
        name: text(&info.name),
        raw: info.name.clone(),
        path: in_path(&info.name),
        kind: text(info.kind.as_deref().unwrap_or("not configured anywhere")),
        state,
        class,
        promise: text(promise),
        origin: maybe(info.origin.as_deref()),
        rate: maybe(info.rate.as_deref()),
        workers: info.workers,
        held: held(info, |words| shared.redaction().words(words).into_owned()),
        paused: info.paused.is_some(),
        paused_at: info.paused.as_ref().map(|paused| Moment::of(paused.at, frame.now)),
        oldest: info.oldest_due_at.map(|due| Moment::of(due, frame.now)),
        counts: states.into_iter().map(cell).collect(),
        unknown: info.kind.is_none(),
    }
}

/// What keeps calls back.
fn held(info: &DownstreamInfo, hidden: impl Fn(&str) -> String) -> Vec<Prose> {
    let mut held = Vec::new();
    if let Some(paused) = &info.paused {
        let why = paused.reason.as_deref().map(|why| format!(": {}", hidden(why))).unwrap_or_default();
        held.push(format!("Paused by {}{why}", paused.who));
    }
    match info.breaker {
        Breaker::Open => held
            .push("Its origin does not answer: no call is made until one finds out that it does.".to_owned()),
        Breaker::HalfOpen => {
            held.push("One call at a time finds out whether its origin answers again.".to_owned())
        }
        Breaker::Closed => {}
    }
    if let Some(until) = info.paused_until {
        held.push(format!("It asked to be left alone until {}.", utc(until)));
    }
    if let Some(why) = &info.hold_reason {
        held.push(format!("Last: {}", hidden(why)));
    }
    held.iter().map(|words| prose(&sentence(words))).collect()
}

/// `GET /downstreams/{name}/{verb}`.
pub(super) async fn ask(
    mut frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Path((name, verb)): Path<(String, String)>,
) -> Result<Response, Problem> {
    // What is decided on is as it is now: what was read for everybody may be two seconds old.
    frame.downstreams = shared.database().downstreams().await?;
    let page = asked(frame, &shared, (&name, &verb), None)?;
    let status = if page.refused.is_some() { StatusCode::CONFLICT } else { StatusCode::OK };
    Ok((status, shown(&page)?).into_response())
}

fn asked(
    frame: Frame,
    shared: &Shared,
    (name, verb): (&str, &str),
    problem: Option<&'static str>,
) -> Result<Ask, Problem> {
    let info = frame.downstreams.iter().find(|info| info.name == name);
    let info = info.ok_or_else(|| Problem::not_found("There is no downstream of that name."))?;
    let paused = info.paused.as_ref();
    let paused_at = paused.map(|paused| paused.at.micros());
    let by_whom = paused.map(|paused| actions::by_whom(shared, paused));
    let (verb, title, says, refused) = match verb {
        "pause" => (
            "pause",
            "Pause",
            "Nothing more is sent there by any worker until somebody resumes it. Calls that are under way go on. Effects wait; \
             what may have been applied is parked in doubt when its key's time runs out meanwhile."
                .to_owned(),
            by_whom.map(|by_whom| sentence(&format!("it is paused already, {by_whom}"))),
        ),
        "resume" => (
            "resume",
            "Resume",
            format!(
                "{} What is due is sent at once, by every worker that serves it, as fast as its rate allows.",
                sentence(&format!("it was paused {}", by_whom.unwrap_or_default()))
            ),
            paused.is_none().then(|| "It is not paused.".to_owned()),
        ),
        _ => return Err(Problem::no_page()),
    };
    let waiting =
        frame.count_of(Some(name), &[State::Ready, State::Retrying, State::Scheduled, State::Waiting]);
    Ok(Ask {
        name: text(name),
        path: in_path(name),
        waiting: super::parts::plural(waiting.0, "effect"),
        needs_reason: verb == "pause",
        says: text(&says),
        refused: refused.as_deref().map(text),
        frame: frame.at(Place::Downstreams, &format!("{title} {name}")),
        verb,
        title,
        problem,
        paused_at,
    })
}

/// What the form sends.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Sent {
    #[serde(default)]
    reason: String,
    /// When the pause began that a resume is to end.
    #[serde(default)]
    paused_at: i64,
}

/// `POST /downstreams/{name}/{verb}`.
pub(super) async fn act(
    mut frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Path((name, verb)): Path<(String, String)>,
    Form(sent): Form<Sent>,
) -> Result<Response, Problem> {
    let reason = Some(sent.reason.trim().to_owned()).filter(|reason| !reason.is_empty());
    if verb == "pause" && reason.is_none() {
        let problem = "Say why, for the audit and for whoever finds it paused.";
        let page = asked(frame, &shared, (&name, &verb), Some(problem))?;
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, shown(&page)?).into_response());
    }
    let actor = actions::actor(&frame.visitor, reason);
    let seen = Some(Timestamp::from_micros(sent.paused_at));
    let acted = match verb.as_str() {
        "pause" => shared.database().pause(&name, &actor).await?,
        "resume" => shared.database().resume(&name, &actor, seen).await?,
        _ => return Err(Problem::no_page()),
    };
    match acted {
        PauseActed::Done => Ok(see_other(&format!("{}downstreams?done={verb}", frame.root))),
        PauseActed::AsItWas(paused) => {
            let problem = match (verb.as_str(), &paused) {
                ("resume", Some(_)) => {
                    "It was paused anew since you looked, and nothing was done. Below is the pause that it is in now: decide anew."
                }
                ("resume", None) => "It was resumed since you looked: nothing was done.",
                (_, _) => "It was paused since you looked: nothing was done.",
            };
            // As it is now, and not as it was when this request came in.
            if let Some(info) = frame.downstreams.iter_mut().find(|info| info.name == name) {
                info.paused = paused;
            }
            let page = asked(frame, &shared, (&name, &verb), Some(problem))?;
            Ok((StatusCode::CONFLICT, shown(&page)?).into_response())
        }
        PauseActed::NotFound => Err(Problem::not_found("Nobody ever registered a downstream of that name.")),
    }
}
