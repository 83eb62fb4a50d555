//! What is kept for how long after an effect has ended, or came in, and the seam through which it is dropped.
//!
//! Payloads go first or history does, as configured; keys go last. Nothing that has not ended is ever touched: an effect in
//! doubt keeps its payload, its log and its key until somebody resolves it and the time after that has passed.

use std::time::Duration;

use crate::{clock::Timestamp, error::StoreError, guard::KEPT_MAX};

const DAY: Duration = Duration::from_secs(86_400);

/// How long what is kept after an effect has ended, counted from its end on the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Payload, body and headers. A fingerprint takes their place, so that the key still tells identical from different.
    pub payloads: Duration,
    /// The attempt log, and what the downstream answered. State, status, note and times stay.
    pub history: Duration,
    /// The key with all that is left, and what people did to the effect. Afterwards the key is free: the same one is a new
    /// effect.
    pub keys: Duration,
    /// The answer of a guarded request that does not say so itself, from its beginning, and at least as long as an effect that
    /// it wrote is unfinished. Afterwards the same request runs again, and finds the same effects by their derived keys.
    pub requests: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { payloads: 3 * DAY, history: 30 * DAY, keys: 400 * DAY, requests: DAY }
    }
}

impl Retention {
    /// Why it contradicts itself: a sentence that names the setting. A key that goes takes payload and history along.
    ///
    /// # Errors
    ///
    /// The name of the setting, and the sentence.
    pub fn validate(&self) -> Result<(), (&'static str, &'static str)> {
        if self.payloads > self.keys {
            return Err((
                "payloads",
                "must not be longer than retention.keys: the key takes the payload along",
            ));
        }
        if self.history > self.keys {
            return Err((
                "history",
                "must not be longer than retention.keys: the key takes the history along",
            ));
        }
        // Zero is not "not given": an answer that is forgotten at once would guard nothing.
        if self.requests < Duration::from_micros(1) || self.requests > KEPT_MAX {
            return Err(("requests", "must be longer than 0 and at most 3600d"));
        }
        Ok(())
    }

    /// How long `step` leaves things alone; what came in says so itself, row by row.
    pub const fn of(&self, step: Step) -> Duration {
        match step {
            Step::Payloads => self.payloads,
            Step::History => self.history,
            Step::Keys => self.keys,
            Step::Requests | Step::Inbox => Duration::ZERO,
        }
    }
}

/// What is dropped, in the order in which it is: keys only of effects whose payload and history are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Payload, body, headers.
    Payloads,
    /// Attempt log and response.
    History,
    /// Everything.
    Keys,
    /// Answers of guarded requests.
    Requests,
    /// Messages that consumers received.
    Inbox,
}

impl Step {
    /// Every step, in order.
    pub const ALL: [Self; 5] = [Self::Payloads, Self::History, Self::Keys, Self::Requests, Self::Inbox];
    /// Those of effects that have ended, in order.
    pub const OF_EFFECTS: [Self; 3] = [Self::Payloads, Self::History, Self::Keys];

    /// As the database and people call it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Payloads => "payloads",
            Self::History => "history",
            Self::Keys => "keys",
            Self::Requests => "requests",
            Self::Inbox => "inbox",
        }
    }
}

/// What one batch of a step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Effects that the step is done with; of what came in, rows that are gone.
    pub effects: u64,
    /// There may be more that is due.
    pub more: bool,
    /// Somebody else is at this step: nothing was done.
    pub elsewhere: bool,
    /// How long others may have had to wait for it. What it waited for others itself is not counted: a busy database is no
    /// reason for smaller batches.
    pub held: Duration,
    /// The database's clock may have jumped: no key was dropped.
    pub ahead: Option<Ahead>,
}

/// A clock that is further ahead of its last reading than it is believed to have run: a wrong time server, a machine that
/// resumed, or nobody looked for so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// What it says now.
    pub now: Timestamp,
    /// What it said when it was last believed.
    pub last: Timestamp,
}

/// How far ahead of the last look a clock may be and keys are dropped by it all the same.
pub const AHEAD_MAX: Duration = DAY;

/// Dropping what was kept long enough.
#[async_trait::async_trait]
pub trait Retain: Send + Sync {
    /// Drops what `step` drops of up to about `limit` effects that ended longer than `age` ago, by the database's clock, those
    /// that ended first to begin with: one short transaction. Rows that somebody is working on are left for a later look.
    /// Idempotent; any worker may call it at any time, and a fleet does one batch of a step at a time.
    ///
    /// Keys, which are not to be had back, are not dropped while the clock is more than [`AHEAD_MAX`] ahead of the last look,
    /// which the database remembers: [`Batch::ahead`]. Nor is what came in.
    ///
    /// Of what came in each row says itself until when it is kept, so that `age` counts for nothing; a request is kept
    /// while an effect that it wrote has not ended.
    async fn drop_batch(&self, step: Step, age: Duration, limit: u32) -> Result<Batch, StoreError>;

    /// Believes the database's clock as it is now, however far ahead of the last look.
    async fn believe_clock(&self) -> Result<(), StoreError>;

    /// How many effects, or rows of what came in, `step` has to deal with now.
    async fn due(&self, step: Step, retention: &Retention) -> Result<u64, StoreError>;

    /// Forgets what no effect refers to any more: terms that no operation has had for `keys` and nothing unfinished was sent
    /// under (the newest of each operation stays, for the sweep), and what people did `keys` ago, and not within a day, to no
    /// effect in particular. The rows forgotten. Looks through the queue, under no lock, at most once a day for terms that it
    /// still refers to.
    async fn forget_unused(&self, keys: Duration) -> Result<u64, StoreError>;
}
