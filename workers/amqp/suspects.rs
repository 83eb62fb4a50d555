//! Messages on which the broker may have closed a channel. They go on a channel of their own, one by one: a second time they
//! put nobody else in doubt, and what the broker says then is said of them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// As many are remembered; the oldest is forgotten first, and costs one more closed channel.
const MOST: usize = 4096;

/// What is suspected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Suspect {
    /// The message with this id.
    Message(String),
    /// Whatever goes to this exchange with this routing key.
    Route(String, String),
}

/// What is remembered while the worker runs, whatever becomes of connections.
#[derive(Debug, Default)]
pub(super) struct Suspects(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    since: HashMap<Suspect, u64>,
    oldest: BTreeMap<u64, Suspect>,
    count: u64,
}

impl Suspects {
    /// The broker closed the channel on which this message was under way.
    pub(super) fn message(&self, key: &str) {
        self.lock().note(Suspect::Message(key.to_owned()));
    }

    /// The broker closed the channel for this routing key.
    pub(super) fn route(&self, exchange: &str, routing_key: &str) {
        self.lock().note(Suspect::Route(exchange.to_owned(), routing_key.to_owned()));
    }

    /// Whether the message must go alone.
    pub(super) fn suspected(&self, key: &str, exchange: &str, routing_key: &str) -> bool {
        let noted = self.lock();
        !noted.since.is_empty()
            && (noted.since.contains_key(&Suspect::Message(key.to_owned()))
                || noted.since.contains_key(&Suspect::Route(exchange.to_owned(), routing_key.to_owned())))
    }

    /// The broker took this message.
    pub(super) fn clear(&self, key: &str, exchange: &str, routing_key: &str) {
        let mut noted = self.lock();
        if !noted.since.is_empty() {
            noted.forget(&Suspect::Message(key.to_owned()));
            noted.forget(&Suspect::Route(exchange.to_owned(), routing_key.to_owned()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Noted {
    fn note(&mut self, suspect: Suspect) {
        self.forget(&suspect);
        self.count += 1;
        self.since.insert(suspect.clone(), self.count);
        self.oldest.insert(self.count, suspect);
        while self.since.len() > MOST {
            let Some((_, oldest)) = self.oldest.pop_first() else { return };
            self.since.remove(&oldest);
        }
    }

    fn forget(&mut self, suspect: &Suspect) {
        if let Some(at) = self.since.remove(suspect) {
            self.oldest.remove(&at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Suspects};

    #[test]
    fn only_the_oldest_suspects_are_forgotten() {
        let suspects = Suspects::default();
        suspects.route("e", "r");
        for n in 0..MOST {
            suspects.message(&format!("k{n}"));
        }
        assert!(!suspects.suspected("x", "e", "r"), "the oldest");
        assert!(suspects.suspected("k0", "e", "other"));
        suspects.message("k0");
        suspects.message("new");
        assert!(suspects.suspected("k0", "e", "r") && !suspects.suspected("k1", "e", "r"));
        suspects.clear("k0", "e", "r");
        assert!(!suspects.suspected("k0", "e", "r") && suspects.suspected("k2", "e", "r"));
    }
}
