//! A verb as a page asks for it, and the words around it.

use aftercommit::{
    state::State,
    verb::{Resolved, Verb},
};

use crate::{actions::Consequence, problem::Problem};

/// A verb as a page asks for it.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) verb: Verb,
    /// The word in the path.
    pub(super) word: &'static str,
    /// What becomes of an effect in doubt.
    pub(super) found: Option<Resolved>,
}

impl Wanted {
    pub(super) fn of(word: &str, found: Option<&str>, state: State) -> Result<Self, Problem> {
        let found = match found {
            Some("applied") => Some(Resolved::Applied),
            Some("not-applied") => Some(Resolved::NotApplied),
            Some(_) | None => None,
        };
        let (verb, word) = match word {
            "retry" => (Verb::Retry, "retry"),
            "resend" => (Verb::Resend, "resend"),
            "cancel" => (Verb::Cancel, "cancel"),
            "redact" => (Verb::Redact, "redact"),
            "resolve" if found == Some(Resolved::Applied) => {
                (Verb::ResolveApplied { response: None }, "resolve")
            }
            "resolve" => (Verb::ResolveNotApplied, "resolve"),
            // What has ended has nothing to be resolved.
            "reissue" => (Verb::Reissue { resolve: found.filter(|_| state == State::InDoubt) }, "reissue"),
            _ => return Err(Problem::no_page()),
        };
        Ok(Self { verb, word, found })
    }

    /// Whether it must be said first what became of the effect.
    pub(super) fn asks_as(&self, state: State) -> bool {
        self.found.is_none()
            && (self.word == "resolve" || (self.word == "reissue" && state == State::InDoubt))
    }

    pub(super) fn found_word(&self) -> &'static str {
        match self.found {
            Some(Resolved::Applied) => "applied",
            Some(Resolved::NotApplied) => "not-applied",
            None => "",
        }
    }

    pub(super) fn takes_response(&self) -> bool {
        matches!(self.verb, Verb::ResolveApplied { .. })
    }

    pub(super) fn title(&self) -> &'static str {
        match &self.verb {
            Verb::Retry => "Retry",
            Verb::Resend => "Resend",
            Verb::Cancel => "Cancel",
            Verb::ResolveApplied { .. } => "Resolve as applied",
            Verb::ResolveNotApplied if self.found.is_none() => "Resolve",
            Verb::ResolveNotApplied => "Resolve as not applied",
            Verb::Redact => "Redact",
            Verb::Reissue { .. } => "Reissue",
        }
    }

    /// What the button says that does it.
    pub(super) fn button(&self) -> &'static str {
        match &self.verb {
            Verb::Retry => "Retry now",
            Verb::Resend => "Resend now",
            Verb::Cancel => "Cancel it",
            Verb::ResolveApplied { .. } => "It was applied",
            Verb::ResolveNotApplied => "It was not applied",
            Verb::Redact => "Redact for good",
            Verb::Reissue { .. } => "Reissue with a new key",
        }
    }

    pub(super) fn needs_reason(&self, consequence: Option<&Consequence>) -> bool {
        self.verb.needs_reason() || consequence.is_some_and(|consequence| consequence.type_this.is_some())
    }

    /// Its page, below the root.
    pub(super) fn href(&self, id: i64) -> String {
        let found = self.found_word();
        let found = if found.is_empty() { String::new() } else { format!("?as={found}") };
        format!("effects/{id}/{}{found}", self.word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_doubt_is_not_resolved_before_it_is_said_how() {
        let resolve = Wanted::of("resolve", None, State::InDoubt).unwrap();
        assert!(resolve.asks_as(State::InDoubt));
        let reissue = Wanted::of("reissue", Some("applied"), State::InDoubt).unwrap();
        assert!(!reissue.asks_as(State::InDoubt) && reissue.verb.as_str() == "reissue applied");
        let ended = Wanted::of("reissue", Some("applied"), State::Failed).unwrap();
        assert_eq!(ended.verb.as_str(), "reissue");
        assert!(Wanted::of("drop", None, State::Failed).is_err());
        assert_eq!(
            (resolve.href(17), reissue.href(17)),
            ("effects/17/resolve".to_owned(), "effects/17/reissue?as=applied".to_owned())
        );
    }
}
