//! One effect: what it is, what follows, what happened so far, what was sent and answered, and the ways out.

mod content;
mod history;
mod known;
mod rail;

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    follow::{self, Part, Way, is_of_a_used_key, unknown_since, what_follows},
    state::State,
    store::{DownstreamInfo, Status},
};
use askama::Template;
use axum::{
    extract::{Path, State as Shared_},
    response::Response,
};

use super::{
    frame::{Frame, Place},
    parts::{Badge, Moment, Text, maybe, text},
    promise,
    prose::{Prose, prose},
    row::{Tag, place_of, references},
    shown,
    ways::{self, Ways},
};
use crate::{problem::Problem, routes::Right, shared::Shared};

pub(super) use content::{Carried, carried};
pub(super) use history::{Event, since};
pub(super) use known::{Alias, Known};

#[derive(Template)]
#[template(path = "effect.html")]
struct EffectPage {
    frame: Frame,
    id: i64,
    place: Text,
    badge: Badge,
    key: Text,
    raw_key: String,
    alias: Option<Alias>,
    follows: Vec<Said>,
    window: Option<Window>,
    facts: Vec<Fact>,
    references: Vec<Tag>,
    superseded_by: Option<i64>,
    request: Option<i64>,
    rail: Vec<rail::Step>,
    events: Vec<Event>,
    was_attempted: bool,
    ways: Ways,
    contract: Option<Text>,
    content: content::Shown,
}

/// A piece of what follows.
enum Said {
    /// Line by line.
    Words(Vec<Prose>),
    /// A page, and its words.
    Link(String, &'static str),
    /// What is typed in a terminal.
    Code(&'static str),
}

impl Said {
    /// As it is said to somebody who may act or may not: nobody is led to a page that refuses them.
    fn to(self, may_act: bool) -> Self {
        match self {
            Self::Link(path, words) if !may_act && path.starts_with("effects/") => {
                Self::Words(vec![prose(words)])
            }
            Self::Words(_) | Self::Link(..) | Self::Code(_) => self,
        }
    }
}

/// Until when the key protects.
struct Window {
    says: &'static str,
    until: Moment,
    over: bool,
}

struct Fact {
    name: &'static str,
    value: FactValue,
}

enum FactValue {
    At(Moment),
    Words(Text),
}

/// `GET /effects/{id}`.
pub(super) async fn page(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = number(&id)?;
    let known = Known::read(&shared, &frame, id).await?;
    let title = format!("Effect {id}, {}", known.effect.downstream);
    let frame = frame.at(Place::Effects, &title);
    let info = frame.downstreams.iter().find(|info| info.name == known.effect.downstream).cloned();
    shown(&view(frame, &known, info.as_ref()))
}

/// The number of an effect in a path.
pub(super) fn number(word: &str) -> Result<EffectId, Problem> {
    let number = word.parse::<i64>().map(EffectId::new);
    number.map_err(|_no_number| {
        Problem::not_found("An effect has a number: look for it on the page of effects.")
    })
}

fn view(frame: Frame, known: &Known, info: Option<&DownstreamInfo>) -> EffectPage {
    let Known { effect, attempts, now, .. } = known;
    let contract = known.contract.as_ref();
    let last_act = known.audit.first();
    let follows =
        what_follows(&follow::Known { effect, attempts, holder: info, contract, last_act, now: *now });
    EffectPage {
        id: effect.id.get(),
        place: place_of(effect),
        badge: Badge::of(effect.state).held(effect.held_by.as_deref()).big(),
        key: text(&effect.idempotency_key),
        raw_key: effect.idempotency_key.clone(),
        alias: known.alias.clone(),
        follows: pieces(follows).into_iter().map(|said| said.to(frame.visitor.may(Right::Operate))).collect(),
        window: window(effect, *now),
        facts: facts(known),
        references: references(effect),
        superseded_by: effect.superseded_by.map(EffectId::get),
        request: known.intent.as_ref().and_then(|intent| intent.request_id),
        rail: rail::of(effect, attempts, *now),
        events: history::events(known),
        was_attempted: !attempts.is_empty(),
        ways: ways::of(known, &frame),
        contract: contract.map(|contract| text(&promise::in_words(contract))),
        content: content::shown(known, &frame.visitor, info),
        frame,
    }
}

/// What follows, for a page. Words on either side of an offer are sentences of their own, also where the offer stands elsewhere.
fn pieces(parts: Vec<Part>) -> Vec<Said> {
    let mut pieces = Vec::new();
    let mut after_an_offer = false;
    let mut parts = parts.into_iter().peekable();
    while let Some(part) = parts.next() {
        // What a resend may do is told beside its button, by what the contract promises now.
        if matches!(parts.peek(), Some(Part::Offers(Way::Resend(_)))) {
            parts.next();
            continue;
        }
        let offers = matches!(part, Part::Offers(_));
        let Some(piece) = said(part) else {
            after_an_offer |= offers;
            continue;
        };
        if offers && !pieces.is_empty() {
            pieces.push(Said::Words(vec![prose(if after_an_offer { " or " } else { " " })]));
        } else if after_an_offer && !pieces.is_empty() {
            pieces.push(Said::Words(vec![prose(""), prose("")]));
        }
        after_an_offer = offers;
        pieces.push(piece);
    }
    pieces
}

/// The page that asks before a verb is done.
fn act(id: EffectId, path: &str, words: &'static str) -> Option<Said> {
    Some(Said::Link(format!("effects/{id}/{path}"), words))
}

/// A piece of it.
fn said(part: Part) -> Option<Said> {
    match part {
        Part::Says(words) => Some(Said::Words(ways::plain(&words).split('\n').map(prose).collect())),
        Part::Names(Way::Work) => Some(Said::Code("aftercommit work")),
        Part::Names(Way::Downstreams) | Part::Offers(Way::Resume(_)) => {
            Some(Said::Link("downstreams".to_owned(), "Downstreams"))
        }
        Part::Names(Way::Audit(id)) | Part::Offers(Way::Audit(id)) => {
            Some(Said::Link(format!("audit?effect={id}"), "the audit"))
        }
        Part::Offers(Way::ResolveApplied(id)) => act(id, "resolve?as=applied", "it was applied"),
        Part::Offers(Way::ResolveNotApplied(id)) => act(id, "resolve?as=not-applied", "it was not applied"),
        Part::Offers(Way::Retry(id)) => act(id, "retry", "retry"),
        Part::Offers(Way::Reissue(id) | Way::ReissueNotApplied(id)) => act(id, "reissue", "reissue"),
        Part::Names(_) | Part::Offers(_) => None,
    }
}

fn window(effect: &Status, now: Timestamp) -> Option<Window> {
    // A key that was used before us protects nothing of ours.
    let open = !effect.state.is_terminal() && effect.first_sent_at.is_some() && !is_of_a_used_key(effect);
    let until = effect.safe_until.filter(|until| open && *until != Timestamp::MAX)?;
    let over = until <= now;
    let says =
        if over { "The key no longer protects since" } else { "The same key makes sending again safe until" };
    Some(Window { says, until: Moment::of(until, now), over })
}

fn facts(known: &Known) -> Vec<Fact> {
    let Known { effect, attempts, intent, now, .. } = known;
    let mut facts = Vec::new();
    let ended = effect.state.is_terminal();
    let mut at = |name, at: Option<Timestamp>| {
        let value = at.map(|at| FactValue::At(Moment::of(at, *now)));
        facts.extend(value.map(|value| Fact { name, value }));
    };
    at("Written", Some(effect.created_at));
    at("Due", effect.due_at.filter(|_| !ended && effect.state != State::InDoubt));
    at("Asked again", effect.due_at.filter(|due| effect.state == State::InDoubt && due > now));
    at("First sent", effect.first_sent_at);
    at("Unknown since", unknown_since(effect, attempts));
    at("Decidable from", effect.quiet_at.filter(|quiet| effect.state == State::InDoubt && quiet > now));
    at("Lease ends", effect.lease_until);
    at("Not begun after", intent.as_ref().and_then(|intent| intent.expires_at));
    at("Ended", effect.finished_at);
    let mut words = |name, of: Option<&str>| {
        facts.extend(maybe(of).map(|words| Fact { name, value: FactValue::Words(words) }));
    };
    words("Attempts", Some(&known.tries()));
    words("Worker", effect.worker.as_deref());
    words("Order", intent.as_ref().and_then(|intent| intent.ordering_key.as_deref()));
    words("Written by", intent.as_ref().and_then(|intent| intent.enqueued_by.as_deref()));
    words("Trace", intent.as_ref().and_then(|intent| intent.trace_context.as_deref()));
    facts
}
