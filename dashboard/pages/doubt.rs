//! The inbox: effects whose outcome nobody knows. For each what we know, what its downstream was asked, what the contract means now,
//! and the ways out.

use aftercommit::{
    clock::Timestamp,
    follow::{key_protects, sent, unknown_since},
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
    effects::{Fields, before},
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
    let before = before(asked.get("before").map(String::as_str))?;
    let frame = frame.at(Place::Doubt, "In doubt");
    let filter = Filter {
        states: vec![State::InDoubt],
        downstream: of.clone(),
        before,
        limit: PAGE,
        ..Filter::default()
    };
    let found = shared.eyes().effects(&filter).await?;
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
        attempts: shared.eyes().attempts(effect.id).await?,
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
        known: text(&what_we_know(effect, &known.attempts)),
        why: effect.last_error.as_deref().map(text),
        probe: prose(&probe(effect, can_probe, now)),
        means: prose(&promise::means_now(effect, known.contract.as_ref(), now)),
        safe: key_protects(effect, now),
        ways: ways::out_of_doubt(&known, frame),
    })
}

/// The attempts in a sentence or two: those that may have reached the downstream since nobody knows.
fn what_we_know(effect: &Status, attempts: &[LoggedAttempt]) -> String {
    let told = |attempt: &LoggedAttempt| {
        let status =
            attempt.response_status.map(|status| format!(" with status {status}")).unwrap_or_default();
        format!("attempt {} ended {}{status}", attempt.attempt, verdict(attempt.outcome))
    };
    let (sent, tried) = (sent(effect, attempts), attempts.iter().filter(|attempt| !attempt.late).count());
    let unknown: Vec<_> = sent.iter().filter(|attempt| attempt.outcome == Verdict::Unknown).collect();
    let mut words = match (sent.as_slice(), unknown.as_slice()) {
        (_, _) if attempts.is_empty() => {
            return "No attempt is in the log: it was found in this state, or its log was dropped."
                .to_owned();
        }
        ([], _) => {
            return format!(
                "It was attempted {}, and nothing of that is known to have reached it.",
                times(tried)
            );
        }
        ([one], _) => format!("It was sent once: {}.", told(one)),
        ([.., last], []) => format!(
            "It was sent {}, and none of these is known to have applied it; the last of them: {}.",
            times(sent.len()),
            told(last)
        ),
        (_, [.., last]) => format!(
            "It was sent {}, and {} of these may have applied it; the last of them: {}.",
            times(sent.len()),
            unknown.len(),
            told(last)
        ),
    };
    let ruled = attempts.iter().filter(|attempt| {
        let now = sent.iter().any(|sent| sent.attempt == attempt.attempt);
        attempt.outcome == Verdict::Unknown && !attempt.late && !now
    });
    let ruled = ruled.count();
    if ruled > 0 {
        // A person's word is not the downstream's: whoever decides now must know that there was another one.
        words.push_str(&format!(
            " It was sent before that, too: {} ended unknown, and somebody said that it had not been applied.",
            if ruled == 1 { "one attempt".to_owned() } else { format!("{ruled} attempts") }
        ));
    }
    if tried > sent.len() + ruled {
        words.push_str(&format!(
            " It was attempted {} in all: the others never reached it, or had ended before.",
            times(tried)
        ));
    }
    words
}

fn times(n: usize) -> String {
    if n == 1 { "once".to_owned() } else { format!("{n} times") }
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

#[cfg(test)]
pub(super) mod tests {
    use aftercommit::effect::EffectId;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    /// One in doubt, whose present history began at the 50th second.
    pub(in crate::pages) fn effect() -> Status {
        Status {
            id: EffectId::new(17),
            downstream: "pay".to_owned(),
            operation: None,
            idempotency_key: "k".to_owned(),
            state: State::InDoubt,
            held_by: None,
            attempts: 5,
            due_at: None,
            first_sent_at: Some(at(50)),
            safe_until: None,
            lease_until: None,
            worker: None,
            last_outcome: Some(Verdict::Unknown),
            last_error: None,
            response_status: None,
            response: None,
            metadata: None,
            refusal_stored: false,
            payload_dropped: false,
            log_dropped: false,
            superseded_by: None,
            created_at: at(1),
            finished_at: None,
            token: 1,
            quiet_at: None,
            uncertain: true,
        }
    }

    fn attempt(n: u32, outcome: Verdict, phase: &str) -> LoggedAttempt {
        LoggedAttempt {
            effect_id: EffectId::new(17),
            attempt: n,
            token: 1,
            worker: None,
            started_at: at(i64::from(n) * 10),
            ended_at: Some(at(i64::from(n) * 10 + 5)),
            phase: phase.to_owned(),
            outcome,
            response_status: None,
            error: None,
            late: false,
        }
    }

    #[test]
    fn only_what_may_have_reached_the_downstream_is_called_sent() {
        let refused = |n| attempt(n, Verdict::NotApplied, "connect");
        let timeout = |n| attempt(n, Verdict::Unknown, "answer");
        let said = |attempts: &[LoggedAttempt]| what_we_know(&effect(), attempts);
        let others = "It was attempted 5 times in all: the others never reached it, or had ended before.";
        let wanted = format!("It was sent once: attempt 5 ended unknown. {others}");
        assert_eq!(said(&[refused(1), refused(2), refused(3), refused(4), timeout(5)]), wanted);
        let ruled = "It was sent once: attempt 5 ended unknown. It was sent before that, too: one attempt ended unknown, and somebody \
                     said that it had not been applied.";
        assert_eq!(said(&[timeout(2), timeout(5)]), ruled);
        let limited = attempt(6, Verdict::NotApplied, "done");
        let wanted = "It was sent 2 times, and 1 of these may have applied it; the last of them: attempt 5 ended unknown.";
        assert_eq!(said(&[timeout(5), limited.clone()]), wanted);
        let late = LoggedAttempt { late: true, ..limited };
        assert_eq!(said(&[timeout(5), late]), "It was sent once: attempt 5 ended unknown.");
        let nothing = "It was attempted once, and nothing of that is known to have reached it.";
        assert_eq!(said(&[refused(5)]), nothing);
        assert!(said(&[]).starts_with("No attempt is in the log"));
    }
}
