//! What a profile lacks before anybody may rely on it.

use aftercommit::contract::Dedupe;

use super::{Confidence, Contents};
use crate::config::Written;

/// What decides about money at a downstream that deduplicates by key: each must be set, or be known, or be said to be open.
const DECISIVE: [(&str, &[&str]); 6] = [
    ("how long a key is remembered", &["window"]),
    ("how long a key may be", &["max_key_len"]),
    ("what it answers while a request with the key is in progress", &["in_progress"]),
    ("what it answers when the key comes with another request", &["mismatch"]),
    ("how a replay is told from a first answer", &["replay_header", "replay_status"]),
    ("which answers are stored under the key", &["stores"]),
];

impl Contents {
    /// What is missing, a sentence each; empty where nothing is.
    pub fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        let set = self.set();
        for (key, _) in &set {
            if self.about(key).any(|fact| fact.confidence == Confidence::Low) {
                lacks.push(format!(
                    "contract.{key} stands on a fact of low confidence: leave it out, and say in [[open]] what the user should decide"
                ));
            } else if self.about(key).next().is_none() {
                lacks.push(format!(
                    "contract.{key} stands on nothing: add a [[fact]] with about = [\"{key}\"], says, source, date and confidence, or leave it out"
                ));
            }
        }
        self.strangers(&mut lacks);
        if self.contract.dedupe == Some(Dedupe::Key) {
            for (what, keys) in DECISIVE {
                let known = keys.iter().any(|key| self.about(key).next().is_some() || self.is_open(key));
                if !known {
                    lacks.push(format!(
                        "nothing says {what} ({}): set it with a [[fact]], or add [[open]] with what is not known and what to decide",
                        keys.join(", ")
                    ));
                }
            }
            let unpublished = !set.iter().any(|(key, _)| *key == "window");
            if unpublished && !self.is_open("window") {
                lacks.push(
                    "the contract has no window: say in [[open]] that the key promises nothing after an unknown outcome, and what the user should find out"
                        .to_owned(),
                );
            }
        }
        lacks
    }

    fn is_open(&self, key: &str) -> bool {
        self.open.iter().any(|open| open.about.iter().any(|about| about == key))
    }

    /// Facts and questions about keys that no contract has.
    fn strangers(&self, lacks: &mut Vec<String>) {
        let abouts =
            self.facts.iter().map(|fact| &fact.about).chain(self.open.iter().map(|open| &open.about));
        for about in abouts.flatten().filter(|about| !Written::KEYS.contains(&about.as_str())) {
            lacks.push(format!("about = [\"{about}\"] names no key of a contract"));
        }
    }
}
