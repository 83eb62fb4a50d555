//! One effect in doubt, as the inbox shows it: what it is, what is known, and the ways out.

use aftercommit::{
    follow::{Why, asking, key_protects, sent, unknown_since, why_unknown},
    outcome::Verdict,
    store::{LoggedAttempt, Status},
};

use crate::pages::{
    effect::{Alias, Carried, Known, carried},
    frame::Frame,
    parts::{Moment, Text, text, verdict},
    promise,
    prose::{Prose, prose},
    row::{Tag, place_of, references},
    ways::{self, Ways},
};

/// One of the inbox.
pub(super) struct Card {
    pub(super) id: i64,
    pub(super) place: Text,
    pub(super) key: Text,
    pub(super) raw_key: String,
    pub(super) alias: Option<Alias>,
    pub(super) carries: Carried,
    pub(super) references: Vec<Tag>,
    pub(super) since: Option<Moment>,
    /// What became of the attempt that left the doubt.
    pub(super) what: Text,
    /// All that this attempt said.
    pub(super) said: Option<Text>,
    /// Why that leaves it in doubt: told once for all that share it.
    pub(super) meaning: Option<String>,
    pub(super) known: Text,
    pub(super) tries: String,
    pub(super) probe: Prose,
    pub(super) means: Prose,
    /// The key still protects.
    pub(super) safe: bool,
    pub(super) ways: Ways,
}

/// What is shown of it.
pub(super) fn card(known: &Known, frame: &Frame) -> Card {
    let (effect, now) = (&known.effect, known.now);
    let info = frame.downstreams.iter().find(|info| info.name == effect.downstream);
    let kind = info.and_then(|info| info.kind.as_deref());
    let Why { what, said, meaning } = why_unknown(effect, &known.attempts);
    Card {
        id: effect.id.get(),
        place: place_of(effect),
        key: text(&effect.idempotency_key),
        raw_key: effect.idempotency_key.clone(),
        alias: known.alias.clone(),
        carries: carried(known.intent.as_ref(), kind, &frame.visitor),
        references: references(effect),
        since: unknown_since(effect, &known.attempts).map(|at| Moment::of(at, now)),
        what: text(&what),
        said: said.map(|said| text(&said)),
        meaning: meaning.map(|meaning| ways::sentence(&meaning)),
        known: text(&what_we_know(effect, &known.attempts)),
        tries: known.tries(),
        probe: prose(&probe(known)),
        means: prose(&promise::means_now(effect, known.contract.as_ref(), now)),
        safe: key_protects(effect, now),
        ways: ways::out_of_doubt(known, frame),
    }
}

/// What its downstream was asked, what it said, and when it is asked again.
fn probe(known: &Known) -> String {
    let can_probe = known.contract.as_ref().is_some_and(|contract| contract.can_probe);
    match asking(&known.effect, known.now) {
        Some(asking) => asking,
        None if can_probe => {
            "It can be asked, and is not asked about this one: only a person decides.".to_owned()
        }
        None => "It cannot be asked: only somebody who looks there can say.".to_owned(),
    }
}

/// The attempts in a sentence or two: those that may have reached the downstream since nobody knows.
pub(super) fn what_we_know(effect: &Status, attempts: &[LoggedAttempt]) -> String {
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
