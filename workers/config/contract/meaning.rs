//! What the answer rules of a contract mean together: one answer has one meaning, and a marker proves what it says.

use aftercommit::contract::{Dedupe, Stores};

use super::Written;
use crate::config::answers::{AnswerRule, Answers, StatusRule};

impl Written {
    /// The lists that give an answer its meaning, by name.
    pub(crate) fn lists(&self) -> [(&'static str, &[AnswerRule]); 7] {
        [
            ("in_progress", list(self.in_progress.as_ref())),
            ("mismatch", list(self.mismatch.as_ref())),
            ("already_done", list(self.already_done.as_ref())),
            ("not_applied", list(self.not_applied.as_ref())),
            ("frees_key", list(self.frees_key.as_ref())),
            ("unknown", list(self.unknown.as_ref())),
            ("rejected", list(self.rejected.as_ref())),
        ]
    }

    /// The lists that say something about an answer whose meaning is known from elsewhere.
    pub(crate) fn marks(&self) -> [(&'static str, &[AnswerRule]); 2] {
        [("stored", list(self.stored.as_ref())), ("replay_status", list(self.replay_status.as_ref()))]
    }

    /// How answers are read; one answer must not have two meanings.
    pub(crate) fn answers(&self) -> Result<Answers, String> {
        let lists = self.lists();
        for (at, (name, rules)) in lists.iter().enumerate() {
            for (other_name, others) in &lists[at + 1..] {
                if let Some(rule) = rules.iter().find(|rule| others.contains(rule)) {
                    return Err(format!(
                        "{rule} stands in both {name} and {other_name}: it can mean one of them only"
                    ));
                }
            }
        }
        let mut all = lists.into_iter().chain(self.marks()).flat_map(|(_, rules)| rules);
        let nowhere = self.code_at.iter().flatten().next().is_none();
        if let Some(rule) = all.find(|rule| nowhere && rule.code.is_some()) {
            return Err(format!("{rule} asks for a machine code: say in code_at where it stands"));
        }
        self.replay_proves_no_refusal()?;
        let owned = |rules: &Option<Vec<AnswerRule>>| rules.clone().unwrap_or_default();
        Ok(Answers {
            in_progress: owned(&self.in_progress),
            mismatch: owned(&self.mismatch),
            already_done: owned(&self.already_done),
            not_applied: owned(&self.not_applied),
            rejected: owned(&self.rejected),
            frees_key: owned(&self.frees_key),
            unknown: owned(&self.unknown),
            stored: owned(&self.stored),
            code_at: self.code_at.clone().unwrap_or_default(),
            success: self.success.clone(),
            replay_header: self.replay_header.clone(),
            replay_status: owned(&self.replay_status),
            retry_directive: self.retry_directive.clone(),
            stores: match self.dedupe {
                Some(Dedupe::Key) => self.stores.unwrap_or_default(),
                Some(Dedupe::Lookup | Dedupe::None) | None => Stores::Success,
            },
        })
    }

    /// A refusal that is a replay proves that nothing was ever applied: too much to conclude from a status.
    fn replay_proves_no_refusal(&self) -> Result<(), String> {
        let done = list(self.already_done.as_ref());
        let refusal = |rule: &&AnswerRule| {
            let success = match rule.status {
                StatusRule::Exactly(status) => (200..300).contains(&status),
                StatusRule::Class(class) => class == 2,
            };
            !success && !done.contains(rule)
        };
        match list(self.replay_status.as_ref()).iter().find(refusal) {
            None => Ok(()),
            Some(rule) => Err(format!(
                "replay_status must not hold {rule}: only a 2xx, or a rule that also stands in already_done, shows that a request was seen before"
            )),
        }
    }
}

fn list(rules: Option<&Vec<AnswerRule>>) -> &[AnswerRule] {
    rules.map_or(&[], Vec::as_slice)
}
