//! Bulks: one verb over a frozen list of effects, carried out by whoever takes it, item by item, each with its own judgement,
//! audit row and transaction. The list and what became of each item is in the database, so that a process that ends is followed
//! by another one.

use std::time::Duration;

use crate::{
    clock::Timestamp,
    effect::EffectId,
    error::StoreError,
    verb::{Actor, Seen, Verb},
};

/// Most items of one bulk.
pub const BULK_MAX: usize = 100_000;
/// Most items a second: faster than this nothing goes, and it is as good as no limit.
pub const BULK_RATE_MAX: u32 = 10_000;
/// So many of the items that were not done are told, in their order.
pub const BULK_REFUSALS_MAX: u32 = 1_000;

/// What is to be known of an effect, besides its row, before a verb is carried out for it among many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Which effect.
    pub id: EffectId,
    /// The outcome of an attempt in its log was unknown, in whichever history.
    pub was_unknown: bool,
    /// Not begun after this, as long as it has not ended.
    pub expires_at: Option<Timestamp>,
    /// Its request would not be the one that was sent.
    pub request_changed: bool,
}

/// A bulk to be started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewBulk {
    /// Which verb: [`crate::verb::Verb::as_str`].
    pub verb: String,
    /// What was chosen, in words.
    pub what: String,
    /// At most this many items a second; 0: as fast as it goes.
    pub rate: u32,
    /// Who starts it, why, and from where. What is done to each item is audited as theirs.
    pub actor: Actor,
}

/// Where a bulk stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkState {
    /// It is, or waits to be, carried out.
    Running,
    /// A person said to wait: no item is acted on.
    Paused,
    /// A person called it off: what was not done by then is left as it was.
    Cancelled,
    /// No item is left.
    Finished,
}

impl BulkState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Running, Self::Paused, Self::Cancelled, Self::Finished];

    /// The word in the database, JSON and pages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Cancelled => "cancelled",
            Self::Finished => "finished",
        }
    }

    /// The state that a word stands for.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// A bulk as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkInfo {
    /// Its number.
    pub id: i64,
    /// Which verb.
    pub verb: String,
    /// What was chosen, in words.
    pub what: String,
    /// Who started it.
    pub who: String,
    /// Why.
    pub reason: Option<String>,
    /// From where.
    pub from: Option<String>,
    /// At most this many items a second; 0: as fast as it goes.
    pub rate: u32,
    /// Where it stands.
    pub state: BulkState,
    /// Items.
    pub total: u32,
    /// Items that were done.
    pub done: u32,
    /// Items that the verb refused.
    pub refused: u32,
    /// Items that had changed since the list was made.
    pub stale: u32,
    /// Items whose effects are gone.
    pub gone: u32,
    /// When it was started.
    pub created_at: Timestamp,
    /// When it finished, or was cancelled.
    pub finished_at: Option<Timestamp>,
    /// A few refusals, in words.
    pub samples: Vec<String>,
    /// The first [`BULK_REFUSALS_MAX`] items that were not done.
    pub refusals: Vec<BulkRefusal>,
}

/// An item that was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkRefusal {
    /// Which effect.
    pub effect: EffectId,
    /// Why.
    pub outcome: ItemOutcome,
    /// Why, in words.
    pub words: String,
}

/// An item that is still to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkItemRow {
    /// Its place in the list, from 1.
    pub n: u32,
    /// Which effect.
    pub effect: EffectId,
    /// As it was when the list was made: an effect that changed since is left alone.
    pub seen: Seen,
}

/// Why an item was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemOutcome {
    /// The verb refused it.
    Refused,
    /// It had changed since the list was made.
    Stale,
    /// There is no such effect any more.
    NotFound,
}

impl ItemOutcome {
    /// The word in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Stale => "stale",
            Self::NotFound => "gone",
        }
    }

    /// What a word stands for.
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Refused, Self::Stale, Self::NotFound].into_iter().find(|outcome| outcome.as_str() == word)
    }
}

/// What a person does to a bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// A running one waits.
    Pause,
    /// A paused one goes on.
    Resume,
    /// A running or paused one is called off.
    Cancel,
}

impl Control {
    /// The word in the audit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause bulk",
            Self::Resume => "resume bulk",
            Self::Cancel => "cancel bulk",
        }
    }

    /// The state that it leads to.
    pub const fn leads_to(self) -> BulkState {
        match self {
            Self::Pause => BulkState::Paused,
            Self::Resume => BulkState::Running,
            Self::Cancel => BulkState::Cancelled,
        }
    }

    /// Whether it takes a bulk in this state.
    pub const fn takes(self, state: BulkState) -> bool {
        match self {
            Self::Pause => matches!(state, BulkState::Running),
            Self::Resume => matches!(state, BulkState::Paused),
            Self::Cancel => matches!(state, BulkState::Running | BulkState::Paused),
        }
    }
}

const SAMPLES_MAX: usize = 5;

/// A few different ones.
pub(super) fn samples(refusals: &[BulkRefusal]) -> Vec<String> {
    let mut samples: Vec<String> = Vec::new();
    for refusal in refusals {
        if samples.len() < SAMPLES_MAX && !samples.contains(&refusal.words) {
            samples.push(refusal.words.clone());
        }
    }
    samples
}

/// How many items there are, where they can be a bulk.
pub(super) fn checked(bulk: &NewBulk, items: &[(EffectId, Seen)]) -> Result<i32, StoreError> {
    let invalid = |field, problem: String| StoreError::Invalid { field, problem };
    if Verb::of_word(&bulk.verb).is_none() {
        return Err(invalid("verb", format!("{:?} is no verb", bulk.verb)));
    }
    match i32::try_from(items.len()) {
        Ok(0) => Err(invalid("items", "there are none".to_owned())),
        Ok(total) if items.len() <= BULK_MAX => Ok(total),
        Ok(_) | Err(_) => {
            Err(invalid("items", format!("are {}, and at most {BULK_MAX} are taken: narrow it", items.len())))
        }
    }
}

/// What the audit says of a bulk that is started: it outlives the bulk's row.
pub(super) fn in_words(bulk: &NewBulk, total: i32) -> String {
    let reason = bulk.actor.reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
    format!("{} of {total} ({}){reason}", bulk.verb, bulk.what)
}

/// People's bulks, and those who carry them out.
///
/// An item is acted on by [`super::Operate::act`] with [`Actor::bulk`]: that marks it done in the transaction that acts, and
/// changes nothing where the bulk is not running any more or the item was dealt with before. So after a pause or a cancel has
/// returned nothing more is done, and two runners never do an item twice.
#[async_trait::async_trait]
pub trait Bulks: Send + Sync {
    /// Writes the list down, with an audit row; its number. At most [`BULK_MAX`] items ([`StoreError::Invalid`]).
    async fn start_bulk(&self, bulk: &NewBulk, items: &[(EffectId, Seen)]) -> Result<i64, StoreError>;

    /// One bulk, its counts as of now.
    async fn bulk(&self, id: i64) -> Result<Option<BulkInfo>, StoreError>;

    /// Bulks, newest first. Without samples and refusals.
    async fn bulks(&self, limit: u32) -> Result<Vec<BulkInfo>, StoreError>;

    /// The oldest running bulk that nobody holds (or whose holder's lease is over), now held by `runner` for `lease`.
    async fn take_bulk(&self, runner: &str, lease: Duration) -> Result<Option<BulkInfo>, StoreError>;

    /// Holds a running bulk for another `lease`, and says where it stands; what is not running is let go. `None`: it is not
    /// `runner`'s any more.
    async fn keep_bulk(
        &self,
        id: i64,
        runner: &str,
        lease: Duration,
    ) -> Result<Option<BulkState>, StoreError>;

    /// The next items that were not dealt with yet, in order.
    async fn bulk_items(&self, id: i64, limit: u32) -> Result<Vec<BulkItemRow>, StoreError>;

    /// Writes down why an item was not done; one that was dealt with before stays as it is.
    async fn bulk_refused(
        &self,
        id: i64,
        n: u32,
        outcome: ItemOutcome,
        words: &str,
    ) -> Result<(), StoreError>;

    /// Pauses, resumes or cancels, with an audit row; one that is in no state for it stays as it is, without one. `None`: there is
    /// no such bulk.
    async fn control_bulk(
        &self,
        id: i64,
        control: Control,
        actor: &Actor,
    ) -> Result<Option<BulkInfo>, StoreError>;

    /// Ends a running bulk of which no item is left.
    async fn end_bulk(&self, id: i64) -> Result<(), StoreError>;

    /// What is to be known of these effects besides their rows, before a verb is carried out for them: of those that are there, in no
    /// order. At most [`super::PAGE_MAX`] are asked for at a time.
    async fn beside(&self, ids: &[EffectId]) -> Result<Vec<Beside>, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_takes_what_it_can_change() {
        for state in BulkState::ALL {
            assert_eq!(BulkState::of_word(state.as_str()), Some(state));
            for control in [Control::Pause, Control::Resume, Control::Cancel] {
                assert!(!control.takes(state) || control.leads_to() != state, "{control:?} of {state:?}");
            }
            let ended = matches!(state, BulkState::Cancelled | BulkState::Finished);
            assert_eq!(Control::Cancel.takes(state), !ended, "{state:?}");
        }
    }

    #[test]
    fn samples_are_few_and_different() {
        let refusal = |words: &str| BulkRefusal {
            effect: EffectId::new(1),
            outcome: ItemOutcome::Refused,
            words: words.to_owned(),
        };
        let refusals = ["a", "b", "a", "c", "d", "e", "f"].map(refusal);
        assert_eq!(samples(&refusals), ["a", "b", "c", "d", "e"]);
    }
}
