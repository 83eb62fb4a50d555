//! The inbox: effects whose outcome nobody knows. For each what we know, what its downstream was asked, what the contract means now,
//! and the ways out.

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    follow::unknown_since,
    outcome::Verdict,
    state::State,
    store::{Filter, LoggedAttempt, Status},
};
use askama::Template;
use axum::{
    extract::{Query, State as Shared_},
    response::Response,
};

use super::{
    effect::Known,
    effects::Fields,
    frame::{Frame, Place},
    parts::{Moment, Num, Text, in_query, text, verdict},
    promise,
    prose::{Prose, prose},
    row::{Tag, place_of, references},
    shown,
    ways::{self, Ways},
};
use crate::{
    actions,
    problem::Problem,
    routes::Right,
    search::{Search, Term},
    shared::Shared,
};

/// Each is read with its attempts: more than these nobody decides on at one sitting.
const PAGE: u32 = 20;

#[derive(Template)]
#[template(path = "doubt.html")]
struct Inbox {
    frame: Frame,
    cards: Vec<Card>,
    groups: Vec<Group>,
    all: Num,
    of: Option<Text>,
    /// As the counts name it.
    of_raw: String,
    next: Option<String>,
    /// The search for all of them.
    quoted: String,
    may_act: bool,
}

/// Of one downstream.
struct Group {
    name: Text,
    n: Num,
    href: String,
    here: bool,
}

struct Card {
    id: i64,
    place: Text,
    key: Text,
    raw_key: String,
    references: Vec<Tag>,
    since: Option<Moment>,
    known: Text,
    why: Option<Text>,
    probe: Prose,
    means: Prose,
    /// The key still protects.
    safe: bool,
    ways: Ways,
}

/// `GET /doubt`.
pub(super) async fn page(
    frame: Frame,
    Shared_(shared): Shared_<Shared>,
    Query(asked): Query<Fields>,
) -> Result<Response, Problem> {
    let of = asked.get("downstream").filter(|name| !name.is_empty()).cloned();
    let before = asked.get("before").map(|word| {
        let number = word.parse::<i64>().map(EffectId::new);
        number.map_err(|_no_number| {
            Problem::bad_request("`before` is the number of an effect. Begin with the newest page.")
        })
    });
    let frame = frame.at(Place::Doubt, "In doubt");
    let filter = Filter {
        states: vec![State::InDoubt],
        downstream: of.clone(),
        before: before.transpose()?,
        limit: PAGE,
        ..Filter::default()
    };
    let found = shared.database().effects(&filter).await?;
    let mut cards = Vec::with_capacity(found.effects.len());
    for effect in found.effects {
        cards.push(card(&shared, &frame, effect).await?);
    }
    let mut search = Search::of_state(State::InDoubt);
    if let Some(name) = &of {
        search = search.and(Term::Downstream(name.clone()));
    }
    let more = of.as_ref().map(|name| format!("downstream={}&", in_query(name))).unwrap_or_default();
    shown(&Inbox {
        all: frame.count_of(of.as_deref(), &[State::InDoubt]),
        groups: groups(&frame, of.as_deref()),
        next: found.next.map(|next| format!("doubt?{more}before={next}")),
        quoted: in_query(&search.to_string()),
        of: of.as_deref().map(text),
        of_raw: of.unwrap_or_default(),
        may_act: frame.visitor.may(Right::Operate),
        cards,
        frame,
    })
}

fn groups(frame: &Frame, of: Option<&str>) -> Vec<Group> {
    let counted = frame.downstreams.iter().filter_map(|info| {
        let n = frame.count_of(Some(&info.name), &[State::InDoubt]);
        let here = of == Some(info.name.as_str());
        let href = format!("doubt?downstream={}", in_query(&info.name));
        (!n.is_zero() || here).then(|| Group { name: text(&info.name), n, href, here })
    });
    counted.collect()
}

async fn card(shared: &Shared, frame: &Frame, effect: Status) -> Result<Card, Problem> {
    let known = Known {
        attempts: shared.database().attempts(effect.id).await?,
        contract: actions::contract(shared, &effect).await?,
        audit: Vec::new(),
        intent: None,
        now: frame.now,
        effect,
    };
    let (effect, now) = (&known.effect, known.now);
    let can_probe = known.contract.as_ref().is_some_and(|contract| contract.can_probe);
    Ok(Card {
        id: effect.id.get(),
        place: place_of(effect),
        key: text(&effect.idempotency_key),
        raw_key: effect.idempotency_key.clone(),
        references: references(effect),
        since: unknown_since(effect, &known.attempts).map(|at| Moment::of(at, now)),
        known: text(&what_we_know(&known.attempts)),
        why: effect.last_error.as_deref().map(|why| text(&shared.redaction().words(why))),
        probe: prose(&probe(effect, can_probe, now)),
        means: prose(&promise::means_now(effect, known.contract.as_ref(), now)),
        safe: effect.safe_until.is_some_and(|until| now < until),
        ways: ways::out_of_doubt(&known, frame),
    })
}

/// The attempts in a sentence.
fn what_we_know(attempts: &[LoggedAttempt]) -> String {
    let unknown: Vec<&LoggedAttempt> =
        attempts.iter().filter(|attempt| attempt.outcome == Verdict::Unknown).collect();
    let told = |attempt: &LoggedAttempt| {
        let status =
            attempt.response_status.map(|status| format!(" with status {status}")).unwrap_or_default();
        format!("attempt {} ended {}{status}", attempt.attempt, verdict(attempt.outcome))
    };
    match (attempts.len(), unknown.as_slice()) {
        (0, _) => "No attempt is in the log: it was found in this state, or its log was dropped.".to_owned(),
        (_, []) => format!("{} in all, none of which is known to have applied it.", count(attempts.len())),
        (1, [one]) => format!("It was sent once: {}.", told(one)),
        (all, [.., last]) => format!(
            "It was sent {all} times, and {} of these may have applied it; the last of them: {}.",
            unknown.len(),
            told(last)
        ),
    }
}

fn count(n: usize) -> String {
    if n == 1 { "One attempt".to_owned() } else { format!("{n} attempts") }
}

/// What its downstream is asked, and when.
fn probe(effect: &Status, can_probe: bool, now: Timestamp) -> String {
    use aftercommit::clock::words::{relative, utc};
    match (can_probe, effect.due_at.filter(|due| *due > now)) {
        (true, Some(due)) => format!(
            "It can be asked: the next question goes out {} ({}). You need not wait for it.",
            relative(due, now),
            utc(due)
        ),
        (true, None) => "It can be asked, and the next question goes out as soon as a worker has a free slot, unless asking was \
                         given up."
            .to_owned(),
        (false, _) => "It cannot be asked: only somebody who looks there can say.".to_owned(),
    }
}
