//! One verb on one effect: a page that says what it will do to the outside world, then the deed, then what came of it.
//!
//! The form carries the state and the token that the person saw. What changed meanwhile is shown, never acted on.

mod wanted;

use aftercommit::{
    clock::{Timestamp, words::utc},
    effect::EffectId,
    state::State,
    store::{Acted, Breaker, DownstreamInfo},
    verb::{Refusal, Seen, Verb},
    visible::clean,
};
use askama::Template;
use axum::{
    Form,
    extract::{Path, Query, State as Shared_},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::value::RawValue;

use super::{
    effect::{Event, Known, number, since},
    effects::Fields,
    frame::{Frame, Place},
    parts::{Badge, Moment, Text, clock, lines, text},
    promise,
    prose::{Prose, prose},
    row::place_of,
    shown, ways,
};
use crate::{
    actions::{self, Choice, Consequence, Wish},
    problem::Problem,
    security::see_other,
    shared::Shared,
};

use wanted::Wanted;

#[derive(Template)]
#[template(path = "act.html")]
struct Ask {
    frame: Frame,
    id: i64,
    place: Text,
    badge: Badge,
    key: Text,
    verb: Wanted,
    /// What has to be said first.
    asks_as: bool,
    consequence: Option<Consequence>,
    /// Why it cannot be done.
    refused: Option<Prose>,
    /// What it will do once nothing can be travelling any more, where nothing else is against it.
    then: Option<Prose>,
    /// This page, where it is too early for it.
    here: Option<String>,
    means: Option<Prose>,
    seen: Seen,
    seen_at: i64,
    last: Option<Text>,
    first_sent: Option<Moment>,
    /// What was wrong with what was sent.
    problem: Option<Text>,
    said: Said,
    changed: Option<Changed>,
}

/// What changed since the person looked.
struct Changed {
    from: Badge,
    to: Badge,
    at: String,
    events: Vec<Event>,
}

/// What stands in the form.
#[derive(Clone, Default)]
struct Said {
    reason: String,
    response: String,
}

/// `GET /effects/{id}/{verb}`.
pub(super) async fn ask(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Path((id, word)): Path<(String, String)>,
    Query(asked): Query<Fields>,
) -> Result<Response, Problem> {
    let known = Known::read(&shared, &frame, number(&id)?).await?;
    let wanted = Wanted::of(&word, asked.get("as").map(String::as_str), known.effect.state)?;
    let page = page(frame, &known, wanted, Said::default());
    let status = if page.refused.is_some() { StatusCode::CONFLICT } else { StatusCode::OK };
    Ok((status, shown(&page)?).into_response())
}

/// What the form sends.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Sent {
    state: String,
    token: i64,
    #[serde(default)]
    seen_at: i64,
    #[serde(default, rename = "as")]
    found: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    response: String,
    #[serde(default)]
    confirmation: String,
}

/// `POST /effects/{id}/{verb}`.
pub(super) async fn act(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Path((id, word)): Path<(String, String)>,
    Form(sent): Form<Sent>,
) -> Result<Response, Problem> {
    let id = number(&id)?;
    let state = sent.state.parse::<State>().map_err(|unknown| Problem::bad_request(unknown.to_string()))?;
    let seen = Seen { state, token: sent.token };
    let mut wanted = Wanted::of(&word, Some(&sent.found), state)?;
    let said = Said { reason: sent.reason.clone(), response: sent.response.trim().to_owned() };
    if let Verb::ResolveApplied { response } = &mut wanted.verb
        && !said.response.is_empty()
    {
        if serde_json::from_str::<&RawValue>(&said.response).is_err() {
            let problem = "What the downstream said is no JSON. Leave it out, or paste all of it.";
            return again(&shared, frame, id, (wanted, said), (seen, sent.seen_at, problem)).await;
        }
        *response = Some(said.response.clone());
    }
    if wanted.asks_as(state) {
        let problem = "Say first whether it was applied.";
        return again(&shared, frame, id, (wanted, said), (seen, sent.seen_at, problem)).await;
    }
    let reason = Some(said.reason.trim().to_owned()).filter(|reason| !reason.is_empty());
    let confirmation = Some(sent.confirmation.clone()).filter(|words| !words.is_empty());
    let wish = Wish { verb: wanted.verb.clone(), seen, reason, confirmation };
    match actions::act(&shared, &frame.visitor, id, wish).await {
        Ok(Acted::Done(_, effect)) => {
            // The new effect is what a person looks at next.
            let to = match (&wanted.verb, effect.superseded_by) {
                (Verb::Reissue { .. }, Some(new)) => new,
                (_, _) => id,
            };
            let root = &frame.root;
            Ok(see_other(&format!("{root}effects/{to}?done={}", wanted.verb.as_str().replace(' ', "-"))))
        }
        Ok(Acted::Refused(_) | Acted::NotFound) => Err(Problem::failed()),
        Err(problem) if problem.status() == StatusCode::CONFLICT => {
            let known = Known::read(&shared, &frame, id).await?;
            stale(&shared, frame, &known, (wanted, said), (seen, sent.seen_at, problem.detail()))
        }
        Err(problem) if problem.status() == StatusCode::UNPROCESSABLE_ENTITY => {
            let words = for_people(&problem);
            again(&shared, frame, id, (wanted, said), (seen, sent.seen_at, words)).await
        }
        Err(problem) => Err(problem),
    }
}

/// What was wrong, for who filled in a form and sent no JSON.
fn for_people(problem: &Problem) -> &str {
    if problem.is("confirmation-needed") {
        "Nothing was done: to confirm it, type the words that are asked for below, as they stand there."
    } else if problem.is("reason-needed") {
        "Nothing was done: say why, for the audit."
    } else {
        problem.detail()
    }
}

/// The form once more, with what was wrong. It still stands for what the person saw: where the effect changed meanwhile they are told
/// that first, and the form is not renewed behind their back.
async fn again(
    shared: &Shared,
    frame: Frame,
    id: EffectId,
    (wanted, said): (Wanted, Said),
    (seen, seen_at, problem): (Seen, i64, &str),
) -> Result<Response, Problem> {
    let known = Known::read(shared, &frame, id).await?;
    if (seen.state, seen.token) != (known.effect.state, known.effect.token) {
        return stale(shared, frame, &known, (wanted, said), (seen, seen_at, problem));
    }
    let mut page = page(frame, &known, wanted, said);
    page.problem = Some(text(&shared.redaction().words(problem)));
    Ok((StatusCode::UNPROCESSABLE_ENTITY, shown(&page)?).into_response())
}

/// It is not what it was, or cannot be done as it is: what happened since, and the form for what it is now.
fn stale(
    shared: &Shared,
    frame: Frame,
    known: &Known,
    (wanted, said): (Wanted, Said),
    (seen, seen_at, why): (Seen, i64, &str),
) -> Result<Response, Problem> {
    let changed = (seen.state, seen.token) != (known.effect.state, known.effect.token);
    let wanted = Wanted::of(wanted.word, Some(wanted.found_word()), known.effect.state)?;
    let mut page = page(frame, known, wanted, said);
    if changed {
        let at = Timestamp::from_micros(seen_at);
        let events = since(known, at);
        let at = if seen_at > 0 { clock(at) } else { String::new() };
        page.changed =
            Some(Changed { from: Badge::of(seen.state), to: Badge::of(known.effect.state), at, events });
    } else if page.refused.is_none() {
        page.problem = Some(text(&shared.redaction().words(why)));
    }
    Ok((StatusCode::CONFLICT, shown(&page)?).into_response())
}

/// The choice that stands for a verb, whatever a person says with it, as it is at `at`.
fn outlook(known: &Known, verb: &Wanted, at: Timestamp) -> Option<Result<Consequence, Refusal>> {
    let is_it = |choice: &Choice| ways::route(&choice.verb).1.split('?').next() == Some(verb.word);
    known.choices(at).into_iter().find(is_it).map(|choice| choice.outlook)
}

/// What it does, with what keeps its downstream from being called now.
fn does(frame: &Frame, known: &Known, verb: &Wanted, at: Timestamp) -> Consequence {
    let effect = &known.effect;
    let mut consequence = actions::consequence(effect, &verb.verb, known.contract.as_ref(), at);
    if matches!(verb.verb, Verb::Retry | Verb::Resend | Verb::Reissue { .. })
        && let Some(info) = frame.downstreams.iter().find(|info| info.name == effect.downstream)
        && let Some(waits) = waits(info)
    {
        consequence.sentence = format!("{} {waits}", consequence.sentence);
    }
    consequence
}

fn page(frame: Frame, known: &Known, verb: Wanted, said: Said) -> Ask {
    let (effect, now) = (&known.effect, known.now);
    let refusal = outlook(known, &verb, now).and_then(Result::err);
    let then = match &refusal {
        Some(Refusal::StillTravelling { until }) => {
            let possible = outlook(known, &verb, *until).is_some_and(|outlook| outlook.is_ok());
            possible.then(|| prose(&does(&frame, known, &verb, *until).sentence))
        }
        Some(_) | None => None,
    };
    let too_early = matches!(refusal, Some(Refusal::StillTravelling { .. }));
    let here = too_early.then(|| verb.href(effect.id.get()));
    let refused = refusal.map(|refusal| prose(&ways::refused(&refusal, now)));
    let asks_as = verb.asks_as(effect.state);
    let doubt = effect.state == State::InDoubt;
    let title = format!("{} effect {}", verb.title(), effect.id);
    Ask {
        id: effect.id.get(),
        place: place_of(effect),
        badge: Badge::of(effect.state).held(effect.held_by.as_deref()).big(),
        key: text(&effect.idempotency_key),
        asks_as: asks_as && refused.is_none(),
        consequence: (refused.is_none() && !asks_as).then(|| does(&frame, known, &verb, now)),
        then: then.filter(|_| !asks_as),
        here,
        refused,
        means: doubt.then(|| prose(&promise::means_now(effect, known.contract.as_ref(), now))),
        seen: Seen { state: effect.state, token: effect.token },
        seen_at: now.micros(),
        last: effect.last_error.as_deref().map(lines),
        first_sent: effect.first_sent_at.map(|at| Moment::of(at, now)),
        problem: None,
        changed: None,
        frame: frame.at(Place::Effects, &title),
        verb,
        said,
    }
}

/// What keeps its downstream from being called now, as a sentence.
fn waits(info: &DownstreamInfo) -> Option<String> {
    let name = clean(&info.name);
    Some(match (&info.paused, info.paused_until, info.breaker, info.workers) {
        (Some(paused), _, _, _) => {
            format!(
                "{name} is paused now, by {}: nothing is sent before somebody resumes it.",
                clean(&paused.who)
            )
        }
        (None, Some(until), _, _) => format!("{name} asked to be left alone until {}.", utc(until)),
        (None, None, Breaker::Open, _) => format!("{name} does not answer now."),
        (None, None, Breaker::Closed | Breaker::HalfOpen, 0) => {
            format!("No live worker serves {name} now: nothing is sent before one does.")
        }
        (None, None, Breaker::Closed | Breaker::HalfOpen, _) => return None,
    })
}

/// What was done, for the page that is shown next. `word` is of an address: what is not ours says nothing.
pub(super) fn done(word: &str) -> Option<&'static str> {
    Some(match word {
        "retry" => "Done: it is due again. A worker sends it next, with the same key.",
        "resend" => {
            "Done: the next free worker sends it once more, with the same key, as soon as its downstream can be called."
        }
        "cancel" => "Done: nothing more is begun. If it was in flight, the outcome of that attempt decides.",
        "resolve-applied" => "Done: it counts as applied. Nothing is sent any more.",
        "resolve-not-applied" => "Done: it counts as not applied. Nothing is sent until somebody retries it.",
        "reissue" | "reissue-applied" | "reissue-not-applied" => {
            "Done: this new effect, with a new key, takes the old one's place."
        }
        "redact" => "Done: what was sent and answered is gone; key, state and times are kept.",
        "pause" => "Done: nothing more is sent there until it is resumed. Calls that are under way go on.",
        "resume" => "Done: what is due is sent again.",
        "bulk" => "Started: it goes on on the server, whether you look or not.",
        "bulk-pause" => "Done: no further effect is acted on until it is resumed.",
        "bulk-resume" => "Done: it goes on.",
        "bulk-cancel" => "Done: what was not acted on by now is left as it is.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_cannot_say_what_was_done_in_words_of_its_own() {
        assert_eq!(done("<script>"), None);
        for verb in [Verb::Retry, Verb::Resend, Verb::Cancel, Verb::Redact, Verb::ResolveNotApplied] {
            assert!(done(&verb.as_str().replace(' ', "-")).is_some(), "{verb:?}");
        }
    }
}
