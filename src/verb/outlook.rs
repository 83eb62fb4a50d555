//! What can be told before a verb is carried out for many: which of them it will be refused for, and what of the rest somebody should
//! know who says go. Pure. Refusals are those of [`judge`]; what happens after the look is seen by whoever acts.

use std::{collections::BTreeMap, time::Duration};

use super::{Actor, Pinned, Refusal, Resolved, Subject, Verb, is_said_not_applied, judge};
use crate::{
    clock::Timestamp,
    decision::History,
    follow::is_of_a_used_key,
    state::State,
    store::{Beside, Status},
};

/// Why `verb` will change nothing about an effect, as far as that is known at `now`. A reason and a confirmation are asked for when it is
/// done. `beside` is what its row does not show; without it less is foreseen, and nothing wrong.
pub fn foresee(verb: &Verb, effect: &Status, beside: Option<&Beside>, now: Timestamp) -> Option<Refusal> {
    let actor = Actor { reason: Some("a reason".to_owned()), confirmed: true, ..Actor::default() };
    judge(verb, &actor, None, &subject(effect, beside), now).err()
}

fn subject(effect: &Status, beside: Option<&Beside>) -> Subject {
    let history = History {
        id: effect.id,
        uncertain: effect.uncertain,
        sent_before: effect.attempts > 0,
        attempts: effect.attempts,
        tries: effect.attempts,
        started_at: effect.created_at,
        first_sent_at: effect.first_sent_at,
        window_at_claim: None,
        expires_at: beside.and_then(|beside| beside.expires_at),
        resend: None,
        cancel_requested: false,
        applied_late: false,
        travels_until: effect.quiet_at,
    };
    // Two hashes that differ stand for two that do: which ones they are nobody asks.
    let changed = beside.is_some_and(|beside| beside.request_changed);
    Subject {
        state: effect.state,
        token: effect.token,
        history: (!effect.state.is_terminal()).then_some(history),
        contract: None,
        timeout: Duration::ZERO,
        key_used_before: is_of_a_used_key(effect),
        quiet_at: effect.quiet_at,
        pinned: changed.then(|| Pinned { sent: Vec::new(), today: None }),
        superseded: effect.superseded_by.is_some(),
        refusal_stored: effect.refusal_stored,
        payload_dropped: effect.payload_dropped,
        log_dropped: effect.log_dropped,
    }
}

/// Refusals of many for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// [`Refusal::as_str`].
    pub reason: String,
    /// [`Refusal::of_many`].
    pub words: String,
    /// How many effects.
    pub effects: u64,
}

/// What is told of a list before it is acted on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// How many effects are on it.
    pub effects: u64,
    /// Of each state.
    pub by_state: BTreeMap<State, u64>,
    /// Of each downstream.
    pub by_downstream: BTreeMap<String, u64>,
    /// So many of them a person resolved as not applied.
    pub resolved_not_applied: u64,
    /// So many of them may have been sent before: the outcome of an attempt of theirs was unknown.
    pub sent_before: u64,
    /// How many match besides and are not on it: only the oldest are.
    pub left_out: u64,
    /// What matches and is not on it, since the verb is refused for it.
    pub refused: Vec<Refused>,
}

impl Outlook {
    /// One more is on the list.
    pub fn list(&mut self, effect: &Listed) {
        self.effects += 1;
        *self.by_state.entry(effect.state).or_default() += 1;
        *self.by_downstream.entry(effect.downstream.clone()).or_default() += 1;
        self.resolved_not_applied += u64::from(effect.resolved_not_applied);
        self.sent_before += u64::from(effect.sent_before);
    }

    /// One more is refused.
    pub fn refuse(&mut self, refusal: &Refusal) {
        let (reason, words) = (refusal.as_str(), refusal.of_many());
        match self.refused.iter_mut().find(|known| known.words == words) {
            Some(known) => known.effects += 1,
            None => self.refused.push(Refused { reason: reason.to_owned(), words, effects: 1 }),
        }
    }

    /// How many match and are not on the list, since the verb is refused for them.
    pub fn all_refused(&self) -> u64 {
        self.refused.iter().map(|refused| refused.effects).sum()
    }

    /// What of the list itself somebody should know who says go, in sentences.
    pub fn notes(&self, verb: &Verb) -> Vec<String> {
        let mut notes = Vec::new();
        let goes_on = match verb {
            Verb::Retry => "is sent until somebody retries them, which this does",
            Verb::Reissue { resolve: None } => "was to be sent until somebody says so",
            Verb::Resend
            | Verb::Cancel
            | Verb::ResolveApplied { .. }
            | Verb::ResolveNotApplied
            | Verb::Redact
            | Verb::Reissue { resolve: Some(Resolved::Applied | Resolved::NotApplied) } => return notes,
        };
        if self.resolved_not_applied > 0 {
            let n = self.of_them(self.resolved_not_applied, "was", "were");
            notes.push(format!("{n} resolved by a person as not applied: nothing {goes_on}."));
        }
        if self.sent_before > 0 {
            let n = self.of_them(self.sent_before, "may have", "may have");
            notes.push(format!("{n} been sent before: the outcome of an earlier attempt was unknown."));
        }
        notes
    }

    /// What is not on the list, in a sentence and a line for each reason; `None`: nothing.
    pub fn refused_in_words(&self) -> Option<(String, Vec<String>)> {
        let more = if self.effects > 0 { "more " } else { "" };
        let sentence = match self.all_refused() {
            0 => return None,
            1 => format!("1 {more}matches and is left alone, since it would be refused:"),
            n => format!("{} {more}match and are left alone, since they would be refused:", grouped(n)),
        };
        let line = |refused: &Refused| {
            let noun = if refused.effects == 1 { "effect" } else { "effects" };
            format!("{} {noun}: {}", grouped(refused.effects), refused.words)
        };
        Some((sentence, self.refused.iter().map(line).collect()))
    }

    fn of_them(&self, n: u64, one: &str, many: &str) -> String {
        match (n, self.effects) {
            (1, 1) => format!("It {one}"),
            (1, _) => format!("1 of them {one}"),
            (n, all) if n == all => format!("All of them {many}"),
            (n, _) => format!("{} of them {many}", grouped(n)),
        }
    }
}

/// What of an effect on a list is told of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its state.
    pub state: State,
    /// Its downstream.
    pub downstream: String,
    /// A person resolved it as not applied, and nobody has said anything else since.
    pub resolved_not_applied: bool,
    /// It may have been sent before.
    pub sent_before: bool,
}

impl Listed {
    /// An effect, and what its row does not show.
    pub fn of(effect: &Status, beside: Option<&Beside>) -> Self {
        let said = effect.last_error.as_deref().is_some_and(is_said_not_applied);
        Self {
            state: effect.state,
            downstream: effect.downstream.clone(),
            resolved_not_applied: effect.state == State::Failed && said,
            sent_before: effect.uncertain || beside.is_some_and(|beside| beside.was_unknown),
        }
    }
}

/// Whether anything besides their rows is to be known of effects before `verb` is carried out for many: [`Beside`].
pub const fn looks_beside(verb: &Verb) -> bool {
    match verb {
        Verb::Retry | Verb::Resend | Verb::Reissue { .. } => true,
        Verb::Cancel | Verb::ResolveApplied { .. } | Verb::ResolveNotApplied | Verb::Redact => false,
    }
}

/// A number with its thousands apart.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(state: State, resolved_not_applied: bool, sent_before: bool) -> Listed {
        Listed { state, downstream: "pay".to_owned(), resolved_not_applied, sent_before }
    }

    #[test]
    fn what_a_person_resolved_and_what_may_have_been_sent_is_told_of_a_retry() {
        let mut outlook = Outlook::default();
        (0..1_204).for_each(|n| outlook.list(&listed(State::Failed, n < 4, n < 1_031)));
        outlook.list(&listed(State::Retrying, false, false));
        assert_eq!(
            outlook.notes(&Verb::Retry),
            [
                "4 of them were resolved by a person as not applied: nothing is sent until somebody retries them, which this does.",
                "1,031 of them may have been sent before: the outcome of an earlier attempt was unknown.",
            ]
        );
        assert_eq!(outlook.notes(&Verb::Redact), Vec::<String>::new(), "nothing is sent");
        assert_eq!(outlook.by_state, BTreeMap::from([(State::Failed, 1_204), (State::Retrying, 1)]));
        let mut one = Outlook::default();
        one.list(&listed(State::Failed, true, true));
        let notes = one.notes(&Verb::Retry).join(" ");
        assert!(
            notes.starts_with("It was resolved by a person") && notes.contains("It may have been sent"),
            "{notes}"
        );
    }

    #[test]
    fn what_is_left_alone_is_told_by_reason() {
        let mut outlook = Outlook::default();
        assert_eq!(outlook.refused_in_words(), None);
        outlook.refuse(&Refusal::Superseded);
        let (sentence, lines) = outlook.refused_in_words().unwrap();
        assert_eq!(sentence, "1 matches and is left alone, since it would be refused:");
        assert_eq!(lines, ["1 effect: superseded by a new effect"]);
        outlook.list(&listed(State::Failed, false, false));
        for us in 0..1_000 {
            outlook.refuse(&Refusal::StillTravelling { until: Timestamp::from_micros(us) });
        }
        let (sentence, lines) = outlook.refused_in_words().unwrap();
        assert_eq!(sentence, "1,001 more match and are left alone, since they would be refused:");
        assert_eq!(lines.len(), 2, "times do not tell reasons apart: {lines:?}");
        assert!(lines[1].starts_with("1,000 effects: "), "{lines:?}");
    }
}
